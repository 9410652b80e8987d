//! How much the files that a run writes have grown. Looked at from outside, again and again: nobody has to tell.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use invigil_schema::{FileOp, FileOpKind, OpenFlag, OsText};

/// More files are not followed one by one; each of them has taken a block, at least.
const MAX_FILES: usize = 100_000;
const BLOCK: u64 = 4096;

/// The files of one run, and what they took before it wrote to them.
#[derive(Debug, Default)]
pub(super) struct Disk {
    before: BTreeMap<OsText, u64>,
    uncounted: u64,
}

impl Disk {
    /// Takes over what a fact says.
    pub(super) fn take(&mut self, op: &FileOp) {
        if !op.result.is_ok() {
            return;
        }
        match op.op {
            FileOpKind::Create => self.add(&op.path, 0),
            FileOpKind::Open if op.flags.contains(&OpenFlag::Write) => {
                self.add(&op.path, taken(&op.path));
            }
            FileOpKind::Truncate => self.add(&op.path, taken(&op.path)),
            FileOpKind::Rename => {
                if let Some(to) = &op.to {
                    let before = self.before.remove(&op.path);
                    self.before.remove(to);
                    self.add(to, before.unwrap_or_else(|| taken(to)));
                }
            }
            FileOpKind::Unlink => {
                self.before.remove(&op.path);
            }
            _ => {}
        }
    }

    fn add(&mut self, path: &OsText, before: u64) {
        let bytes = path.as_bytes();
        let no_file = [&b"/dev/"[..], b"/proc/", b"/sys/"];
        if no_file.iter().any(|prefix| bytes.starts_with(prefix)) {
            return;
        }
        if self.before.len() >= MAX_FILES && !self.before.contains_key(path) {
            self.uncounted += 1;
            return;
        }
        self.before.entry(path.clone()).or_insert(before);
    }

    /// By how much they have grown.
    pub(super) fn grown(&self) -> u64 {
        let grown = |(path, before): (&OsText, &u64)| taken(path).saturating_sub(*before);
        self.before.iter().map(grown).sum::<u64>() + self.uncounted * BLOCK
    }
}

/// How much of the disk a file takes now. What is only a length takes nothing.
fn taken(path: &OsText) -> u64 {
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    let data = path.symlink_metadata();
    data.map_or(0, |data| {
        if data.is_file() {
            data.blocks() * 512
        } else {
            0
        }
    })
}
