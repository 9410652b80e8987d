//! What no compiler checks: the arrows between crates, the habits of the source, the links of the documentation.
//!
//! Everything is a pure function over a [`Workspace`] in memory. It runs as a step of `cargo xtask test` and as a test
//! of this crate.

mod arrows;
mod markdown;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use crate::{Result, cargo};

/// What tidy looks at.
#[derive(Debug, Default)]
struct Workspace {
    /// Files and folders, relative to the root.
    paths: BTreeSet<String>,
    /// The text of sources and pages, by path.
    texts: BTreeMap<String, String>,
    crates: Vec<Crate>,
}

/// A crate as Cargo sees it.
#[derive(Debug)]
struct Crate {
    name: String,
    manifest: String,
    /// The files that its library and programs start in.
    starts: Vec<String>,
    /// The crates of this workspace that it depends on, other than for tests.
    uses: BTreeSet<String>,
}

/// Something to put right.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Collects violations.
#[derive(Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, file: &str, line: usize, what: impl Into<String>) {
        self.0.push(Violation {
            file: file.to_owned(),
            line,
            what: what.into(),
        });
    }
}

/// Prints what is untidy in the workspace at `root`, and fails if there is anything.
pub(crate) fn check(root: &Path) -> Result {
    let violations = look(&Workspace::load(root)?);
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(format!("{count} places to put right").into()),
    }
}

fn look(workspace: &Workspace) -> Vec<Violation> {
    let mut findings = Findings::default();
    arrows::check(workspace, &mut findings);
    source::check(workspace, &mut findings);
    markdown::check(workspace, &mut findings);
    findings.0.sort();
    findings.0
}

impl Workspace {
    fn load(root: &Path) -> Result<Workspace> {
        let mut workspace = Workspace::default();
        workspace.walk(root, "")?;
        let output = cargo(&["metadata", "--no-deps", "--format-version", "1"]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let metadata = serde_json::from_slice(&output.stdout)?;
        workspace.crates = arrows::crates(&metadata).ok_or("`cargo metadata` has another form")?;
        Ok(workspace)
    }

    fn walk(&mut self, folder: &Path, prefix: &str) -> Result {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && name != "target" && name != ".git" {
                self.walk(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && (name.ends_with(".rs") || name.ends_with(".md")) {
                self.texts
                    .insert(path.clone(), fs::read_to_string(entry.path())?);
            }
            self.paths.insert(path);
        }
        Ok(())
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Workspace {
        let mut workspace = Workspace::default();
        for (path, text) in files {
            workspace.texts.insert((*path).into(), (*text).into());
            for (at, _) in path.match_indices('/') {
                workspace.paths.insert(path[..at].into());
            }
            workspace.paths.insert((*path).into());
        }
        workspace
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        super::check(&crate::root()).unwrap();
    }
}
