//! How attempts ended, and what an operation on a file was for.

use std::collections::BTreeMap;

use invigil_schema::{CallResult, Errno, FileOp, FileOpKind, OpenFlag, OsText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How attempts at one thing ended, at best; a greater one weighs more.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was tried and never succeeded.
    Failed,
    /// It was tried, and may have succeeded.
    Unknown,
    /// It succeeded at least once.
    Succeeded,
}

impl From<CallResult> for Outcome {
    fn from(result: CallResult) -> Self {
        const EINPROGRESS: Errno = Errno(115);
        match result {
            CallResult::Ok => Outcome::Succeeded,
            // Not an error: whether the connection comes about is seen by nobody but the process.
            CallResult::Failed(EINPROGRESS) | CallResult::Unknown => Outcome::Unknown,
            CallResult::Failed(_) => Outcome::Failed,
        }
    }
}

/// Remembers the best outcome for a key.
pub(crate) fn note_best<K: Ord>(map: &mut BTreeMap<K, Outcome>, key: K, outcome: Outcome) {
    map.entry(key)
        .and_modify(|best| *best = outcome.max(*best))
        .or_insert(outcome);
}

/// What a path was asked for. It is the request that counts, not the state of the disk: a program that opens with
/// `O_CREAT` has `create`, whether the file was there or not.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Opened for reading.
    Read,
    /// Opened as a handle that can neither read nor write.
    Handle,
    /// Opened for writing, or cut to a length.
    Write,
    /// Made, or opened so that it would be made.
    Create,
    /// Removed.
    Delete,
    /// Renamed: what it was called before.
    RenameFrom,
    /// Renamed: what it is called after.
    RenameTo,
    /// Given one more name.
    Link,
    /// Permissions, owner, times or extended attributes changed.
    Attributes,
    /// Mounted on or unmounted.
    Mount,
    /// Made the root directory.
    Chroot,
}

impl Access {
    /// Whether it leaves the file system as it is.
    pub fn is_read(self) -> bool {
        matches!(self, Access::Read | Access::Handle)
    }
}

/// Which paths an operation was about, and what for.
pub(crate) fn accesses(op: &FileOp) -> Vec<(&OsText, Access)> {
    let path = &op.path;
    let both = |from, to| {
        let second = op.to.as_ref().map(|second| (second, to));
        [(path, from)].into_iter().chain(second).collect()
    };
    match op.op {
        FileOpKind::Open | FileOpKind::Create => opened(op),
        FileOpKind::Truncate => vec![(path, Access::Write)],
        FileOpKind::Rename => both(Access::RenameFrom, Access::RenameTo),
        FileOpKind::Exchange => {
            let mut all: Vec<_> = both(Access::RenameFrom, Access::RenameFrom);
            all.extend(both(Access::RenameTo, Access::RenameTo));
            all
        }
        FileOpKind::Link => both(Access::Link, Access::Create),
        // The second text of a symbolic link is its content, not something that was touched.
        FileOpKind::Mkdir | FileOpKind::Symlink | FileOpKind::Mknod => {
            vec![(path, Access::Create)]
        }
        FileOpKind::Unlink | FileOpKind::Rmdir => vec![(path, Access::Delete)],
        FileOpKind::Chmod
        | FileOpKind::Chown
        | FileOpKind::Utimes
        | FileOpKind::SetXattr
        | FileOpKind::RemoveXattr => vec![(path, Access::Attributes)],
        FileOpKind::Mount | FileOpKind::Unmount => vec![(path, Access::Mount)],
        FileOpKind::Chroot => vec![(path, Access::Chroot)],
    }
}

fn opened(op: &FileOp) -> Vec<(&OsText, Access)> {
    let has = |flag| op.flags.contains(&flag);
    let mut accesses = Vec::new();
    if op.op == FileOpKind::Create || has(OpenFlag::Create) || has(OpenFlag::Temporary) {
        accesses.push((&op.path, Access::Create));
    }
    if has(OpenFlag::Write) || has(OpenFlag::Append) || has(OpenFlag::Truncate) {
        accesses.push((&op.path, Access::Write));
    }
    if has(OpenFlag::Path) {
        accesses.push((&op.path, Access::Handle));
    } else if has(OpenFlag::Read) || accesses.is_empty() {
        accesses.push((&op.path, Access::Read));
    }
    accesses
}
