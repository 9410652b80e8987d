//! `file_list`: what is in a directory, and below it.

use std::io;
use std::path::Path;

use invigil_schema::OsText;
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::change::as_path;
use super::walk::{Chosen, Next, Visit, Visitor, walk};
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments};

/// How many entries a result has.
const MAX_ENTRIES: usize = 10_000;
const MAX_DEPTH: usize = 64;

/// Lists directories.
pub(super) struct FileList;

/// Arguments of `file_list`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The directory; relative to the working directory, or absolute below an allowed root.
    path: OsText,
    /// Only what matches: a pattern with a slash is about the path below the directory, one without about the name.
    glob: Option<String>,
    /// How deep to go: 1 is the directory alone.
    #[serde(default = "flat")]
    #[schemars(range(min = 1, max = 64))]
    depth: usize,
}

fn flat() -> usize {
    1
}

impl Capability for FileList {
    type Args = Args;
    const NAME: &'static str = "file_list";
    const DESCRIPTION: &'static str =
        "Lists what is in a directory, sorted; links are not followed.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        arguments::path("path", &args.path)?;
        arguments::in_range("depth", args.depth, 1, MAX_DEPTH)?;
        Chosen::new(args.glob.as_deref()).map(drop)
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs::READS)
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let (dir, path) = context.roots.directory(as_path(&args.path))?;
        let chosen = Chosen::new(args.glob.as_deref())
            .map_err(|invalid| Failure::new(invalid.to_string()))?;
        let mut list = List {
            chosen,
            depth: args.depth,
            entries: Vec::new(),
            truncated: false,
            unreadable: Vec::new(),
        };
        walk(&dir, &mut list).map_err(|error| Failure::io(path.display(), error))?;
        Ok(Output::new(json!({
            "path": OsText::from(path.as_os_str()),
            "entries": list.entries,
            "truncated": list.truncated,
            "unreadable": list.unreadable,
        })))
    }
}

struct List {
    chosen: Chosen,
    depth: usize,
    entries: Vec<Value>,
    truncated: bool,
    unreadable: Vec<OsText>,
}

impl Visitor for List {
    fn visit(&mut self, visit: &Visit<'_>) -> io::Result<Next> {
        if self.chosen.is(visit.path) {
            if self.entries.len() == MAX_ENTRIES {
                self.truncated = true;
                return Ok(Next::Stop);
            }
            self.entries.push(entry(visit));
        }
        let deeper = visit.depth < self.depth;
        Ok(if deeper { Next::On } else { Next::Past })
    }

    fn closed(&mut self, path: &Path, _: &io::Error) {
        self.unreadable.push(OsText::from(path.as_os_str()));
    }
}

fn entry(visit: &Visit<'_>) -> Value {
    let kind = match visit.kind() {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => "device",
    };
    let mut entry = json!({
        "path": OsText::from(visit.path.as_os_str()),
        "type": kind,
        "mode": format!("{:04o}", visit.stat.st_mode & 0o7777),
        "modified": visit.stat.st_mtime,
    });
    match kind {
        "file" => entry["size"] = visit.stat.st_size.into(),
        "symlink" => {
            let target = rustix::fs::readlinkat(visit.dir, visit.name, Vec::new());
            let target = target.map(|target| OsText::from(target.into_bytes()));
            entry["target"] = json!(target.ok());
        }
        _ => {}
    }
    entry
}
