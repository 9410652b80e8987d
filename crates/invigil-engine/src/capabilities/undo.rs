//! `undo`: what a job changed, back to what it was; everything or nothing.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use invigil_schema::{Entry, JobId, Kept, OsText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::change::{self, Change, Content, as_path, removals};
use super::entry::{self, same};
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments, git};

/// Takes jobs back.
pub(super) struct Undo;

/// Arguments of `undo`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The job to take back.
    job_id: JobId,
    /// Only what the job did at this path and below.
    path: Option<OsText>,
    /// Put back what was there although something has changed since. What is there now is kept.
    #[serde(default)]
    force: bool,
}

/// Why something stays as it is.
#[derive(Debug, Serialize)]
struct Conflict {
    path: OsText,
    why: String,
}

impl Capability for Undo {
    type Args = Args;
    const NAME: &'static str = "undo";
    const DESCRIPTION: &'static str =
        "Takes back what a job changed. If something has changed since, nothing is touched.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        match &args.path {
            Some(path) => arguments::path("path", path),
            None => Ok(()),
        }
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs {
            programs: git::PROGRAMS,
            ..Needs::WRITES
        })
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let kept = std::mem::take(&mut context.undo);
        if kept.is_empty() {
            let why = "it changed nothing that can be put back";
            return Err(Failure::new(format!("job {}: {why}", args.job_id)));
        }
        let kept = match &args.path {
            Some(path) => selected(kept, &absolute(as_path(path), context)),
            None => kept,
        };
        if kept.is_empty() {
            let why = "it changed nothing at this path";
            return Err(Failure::new(format!("job {}: {why}", args.job_id)));
        }
        let mut plan = Way {
            force: args.force,
            changes: Vec::new(),
            conflicts: Vec::new(),
            unchanged: Vec::new(),
            gone: BTreeSet::new(),
            made: BTreeSet::new(),
        };
        for kept in kept {
            plan.back(kept, context)?;
        }
        let restored: Vec<OsText> = plan.restored();
        if !plan.conflicts.is_empty() {
            let paths: Vec<String> = plan
                .conflicts
                .iter()
                .map(|conflict| format!("{}: {}", conflict.path.to_string_lossy(), conflict.why))
                .collect();
            let message = format!("conflict, nothing was touched: {}", paths.join("; "));
            let data = json!({ "restored": [], "conflicts": plan.conflicts });
            return Err(Failure::new(message).with(data));
        }
        if !context.dry_run {
            change::make(plan.changes, context)?;
        }
        Ok(Output::new(json!({
            "undone": args.job_id,
            "restored": restored,
            "unchanged": plan.unchanged,
            "conflicts": [],
        })))
    }
}

/// A path as it is kept. Its directory may be gone, and then there is nothing to resolve.
fn absolute(path: &Path, context: &Context<'_>) -> PathBuf {
    if let Ok(place) = context.roots.at(path) {
        return place.path;
    }
    let mut absolute = PathBuf::new();
    let base = context.roots.paths().next().unwrap_or(context.working_dir);
    for component in base.join(path).components() {
        match component {
            Component::ParentDir => drop(absolute.pop()),
            component => absolute.push(component),
        }
    }
    absolute
}

/// What was kept at a path and below, and the directories on the way that were deleted with it.
fn selected(kept: Vec<Kept>, path: &Path) -> Vec<Kept> {
    let leads_there = |kept: &Kept| {
        path.starts_with(as_path(&kept.path)) && matches!(kept.before, Entry::Directory { .. })
    };
    let is_below = |kept: &Kept| as_path(&kept.path).starts_with(path);
    if !kept.iter().any(is_below) {
        return Vec::new();
    }
    kept.into_iter()
        .filter(|kept| is_below(kept) || leads_there(kept))
        .collect()
}

/// The way back.
struct Way {
    force: bool,
    changes: Vec<Change>,
    conflicts: Vec<Conflict>,
    unchanged: Vec<OsText>,
    /// Paths that will be gone.
    gone: BTreeSet<PathBuf>,
    /// Directories that will be there.
    made: BTreeSet<PathBuf>,
}

impl Way {
    fn restored(&self) -> Vec<OsText> {
        let paths = self.changes.iter().map(|change| change.kept.path.clone());
        paths.collect()
    }

    fn back(&mut self, kept: Kept, context: &mut Context<'_>) -> Result<(), Failure> {
        if kept.repository.is_some() {
            return self.back_in_git(kept, context);
        }
        let path = as_path(&kept.path).to_owned();
        let now = match change::current(&path, context) {
            Ok(now) => now,
            Err(failure) if failure.denied => return Err(failure),
            Err(failure) => {
                self.conflict(&path, failure.to_string());
                return Ok(());
            }
        };
        if same(&now, &kept.before) {
            self.unchanged.push(kept.path);
            return Ok(());
        }
        if !same(&now, &kept.after) && !self.force {
            self.conflict(&path, "it has changed since");
            return Ok(());
        }
        let stays_directory = matches!(kept.before, Entry::Directory { .. });
        if matches!(now, Entry::Directory { .. }) && !stays_directory {
            self.empty(&path, context)?;
        }
        match &kept.before {
            Entry::Absent => drop(self.gone.insert(path.clone())),
            before => {
                if !self.has_directory(&path, context) {
                    self.conflict(&path, "the directory that it was in is gone");
                    return Ok(());
                }
                if let Entry::Directory { .. } = before {
                    self.made.insert(path.clone());
                }
            }
        }
        self.changes
            .push(Change::new(&path, now, kept.before, Content::Kept));
        Ok(())
    }

    fn back_in_git(&mut self, kept: Kept, context: &mut Context<'_>) -> Result<(), Failure> {
        let path = as_path(&kept.path).to_owned();
        match git::way_back(kept, self.force, &self.changes, context)? {
            git::Back::Change(change) => self.changes.push(*change),
            git::Back::Unchanged => self.unchanged.push(OsText::from(path.as_os_str())),
            git::Back::Conflict(why) => self.conflict(&path, why),
        }
        Ok(())
    }

    /// Sees to it that a directory that is to go is empty by then.
    fn empty(&mut self, path: &Path, context: &Context<'_>) -> Result<(), Failure> {
        let dir = context.roots.exact_directory(path)?;
        let names = entry::names(&dir).map_err(|error| Failure::io(path.display(), error))?;
        let others = names
            .iter()
            .any(|name| !self.gone.contains(&path.join(name)));
        if !others {
            return Ok(());
        }
        if !self.force {
            self.conflict(path, "other things have come into it since");
            return Ok(());
        }
        let mut all = Vec::new();
        removals(&dir, path, &mut all)?;
        for removal in all {
            if self.gone.insert(removal.path().to_owned()) {
                self.changes.push(removal);
            }
        }
        Ok(())
    }

    fn has_directory(&self, path: &Path, context: &Context<'_>) -> bool {
        let made = path.parent().is_some_and(|dir| self.made.contains(dir));
        made || matches!(context.roots.exact_or_absent(path), Ok(Some(_)))
    }

    fn conflict(&mut self, path: &Path, why: impl Into<String>) {
        self.conflicts.push(Conflict {
            path: OsText::from(path.as_os_str().as_bytes().to_vec()),
            why: why.into(),
        });
    }
}
