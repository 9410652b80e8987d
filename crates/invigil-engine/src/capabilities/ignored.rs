//! What `.gitignore` and `.ignore` leave out of a tree, directory by directory.

use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::entry;

/// Longer files are no lists of patterns.
const MAX_IGNORE_FILE: u64 = 1 << 20;

/// What each directory on the way leaves out.
#[derive(Debug, Default)]
pub(crate) struct Ignored(Vec<(PathBuf, Gitignore)>);

impl Ignored {
    /// A directory is about to be gone through.
    pub(crate) fn enter(&mut self, dir: BorrowedFd<'_>, path: &Path) {
        self.0.push((path.to_owned(), rules(dir)));
    }

    /// A directory has been gone through.
    pub(crate) fn leave(&mut self) {
        self.0.pop();
    }

    /// Whether a path is left out: the innermost directory that says something decides.
    pub(crate) fn is(&self, path: &Path, is_dir: bool) -> bool {
        let decisions = self.0.iter().rev().map(|(base, rules)| {
            let below = path.strip_prefix(base).unwrap_or(path);
            rules.matched(below, is_dir)
        });
        decisions
            .filter(|decision| !decision.is_none())
            .map(|decision| decision.is_ignore())
            .next()
            .unwrap_or(false)
    }
}

/// What the files of one directory leave out. What cannot be read leaves out nothing.
fn rules(dir: BorrowedFd<'_>) -> Gitignore {
    let mut builder = GitignoreBuilder::new("");
    for name in [".gitignore", ".ignore"] {
        let mut text = String::new();
        let Ok(file) = entry::open_regular(dir, name.as_ref()) else {
            continue;
        };
        if file.take(MAX_IGNORE_FILE).read_to_string(&mut text).is_ok() {
            for line in text.lines() {
                // A line that is no pattern leaves out nothing, as for git.
                drop(builder.add_line(None, line).map(drop));
            }
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}
