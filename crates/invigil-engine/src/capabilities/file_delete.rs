//! `file_delete`: a file, a link, or a tree, all of it kept.

use invigil_schema::{Entry, OsText};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::change::{self, Change, as_path, removals};
use super::entry::look;
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments};

/// How many paths a result names.
const MAX_NAMED: usize = 1000;

/// Deletes files and trees.
pub(super) struct FileDelete;

/// Arguments of `file_delete`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// What to delete; relative to the working directory, or absolute below an allowed root. Of a link, the link.
    path: OsText,
    /// Delete a directory with everything in it. Without this only an empty one is deleted.
    #[serde(default)]
    recursive: bool,
}

impl Capability for FileDelete {
    type Args = Args;
    const NAME: &'static str = "file_delete";
    const DESCRIPTION: &'static str =
        "Deletes a file, a link or a directory. Everything is kept and can be had back.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        arguments::path("path", &args.path)
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs::WRITES)
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let place = context.roots.at(as_path(&args.path))?;
        let path = place.path.display();
        let found = look(&place.dir, &place.name).map_err(|e| Failure::io(path.to_string(), e))?;
        let mut changes = Vec::new();
        match &found.entry {
            Entry::Absent => return Err(Failure::new(format!("{path}: there is no such file"))),
            Entry::Directory { .. } => {
                let dir = context.roots.exact_directory(&place.path)?;
                removals(&dir, &place.path, &mut changes)?;
                if !args.recursive && !changes.is_empty() {
                    return Err(Failure::new(format!(
                        "{path}: the directory is not empty; set `recursive` to delete what is in it"
                    )));
                }
            }
            _ => {}
        }
        let backup = found.entry.sha256().copied();
        changes.push(Change::removal(&place.path, found.entry));
        let count = changes.len();
        let deleted: Vec<Value> = changes.iter().rev().take(MAX_NAMED).map(named).collect();
        if !context.dry_run {
            change::make(changes, context)?;
        }
        Ok(Output::new(json!({
            "path": OsText::from(place.path.as_os_str()),
            "backup": backup,
            "entries": count,
            "deleted": deleted,
            "truncated": count > MAX_NAMED,
        })))
    }
}

fn named(change: &Change) -> Value {
    let (kind, backup) = match &change.kept.before {
        Entry::File { sha256, .. } => ("file", Some(sha256)),
        Entry::Symlink { .. } => ("symlink", None),
        _ => ("directory", None),
    };
    json!({ "path": change.kept.path, "type": kind, "backup": backup })
}
