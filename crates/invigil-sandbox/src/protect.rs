//! What a run may not do to Invigil itself, whatever the gate says: change or read its store, signal it, trace it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use invigil_schema::{FileOp, FileOpKind};

use crate::calls::{Call, Owner, Place};
use crate::paths::{self, Caller, is_below, join};
use crate::sys;
use crate::sys::fs::{self, At, cstring};
use crate::table::status_line;
use crate::walk::{self, Found, Identity, Reach};

/// The name of the rule in the evidence.
pub(crate) const RULE: &str = "invigil protects itself";

/// The store.
#[derive(Debug)]
pub(crate) struct Protected {
    roots: Vec<Vec<u8>>,
    inodes: Vec<Identity>,
    /// The directories above.
    above: Vec<Identity>,
}

impl Protected {
    /// Resolves the paths as they are now; a store must exist to be protected.
    pub(crate) fn new(paths: &[PathBuf]) -> Protected {
        let mut protected = Protected {
            roots: Vec::new(),
            inodes: Vec::new(),
            above: Vec::new(),
        };
        for path in paths {
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            let identity = |path: &Path| path.metadata().map(|data| (data.dev(), data.ino()));
            protected.inodes.extend(identity(&real));
            let above = real.ancestors().skip(1).flat_map(identity);
            protected.above.extend(above);
            // The names that lead there count as well: whoever replaces a link on the way has replaced the file.
            let written = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            for path in [real, written] {
                let root = join(b"", path.as_os_str().as_bytes());
                if !protected.roots.contains(&root) {
                    protected.roots.push(root);
                }
            }
        }
        protected
    }

    /// Whether an operation on resolved paths touches the store.
    pub(crate) fn forbids(&self, op: &FileOp) -> bool {
        let moves = matches!(
            op.op,
            FileOpKind::Rename | FileOpKind::Exchange | FileOpKind::Mount | FileOpKind::Unmount
        );
        let touches = |path: &[u8]| {
            self.roots
                .iter()
                .any(|root| is_below(path, root) || moves && is_below(root, path))
        };
        if is_our_proc(op.path.as_bytes()) {
            return true;
        }
        let second = match op.op {
            // The text of a symbolic link is no access.
            FileOpKind::Symlink => None,
            _ => op.to.as_ref(),
        };
        // A link on the way would lead elsewhere.
        let leads = matches!(op.op, FileOpKind::Symlink | FileOpKind::Unlink)
            && self
                .roots
                .iter()
                .any(|root| is_below(root, op.path.as_bytes()));
        leads || touches(op.path.as_bytes()) || second.is_some_and(|to| touches(to.as_bytes()))
    }

    /// The same for a caller that may see other files under the same names, or the same under others: by the identity
    /// of the files and of the directories on the way to them.
    pub(crate) fn forbids_elsewhere(&self, caller: &Caller, call: Call) -> bool {
        let followed = |flags: i32| flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let touches = |place, follow| {
            walk::find(caller, place, follow, Reach::Everybody)
                .is_ok_and(|found| self.holds(caller, &found))
        };
        match call {
            Call::Open {
                dir, path, flags, ..
            } => {
                let exclusive = libc::O_CREAT | libc::O_EXCL;
                let follow = flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive;
                touches(Place::At { dir, path }, follow)
            }
            Call::OpenHow { dir, path, .. } => {
                let place = Place::At { dir, path };
                touches(place, true) || touches(place, false)
            }
            Call::Link { from, to, flags } => {
                touches(from, flags & libc::AT_SYMLINK_FOLLOW != 0) || touches(to, false)
            }
            Call::Rename { from, to, .. } => [from, to].into_iter().any(|place| {
                walk::find(caller, place, false, Reach::Everybody)
                    .is_ok_and(|found| self.holds(caller, &found) || self.is_above(&found))
            }),
            Call::Mkdir { at, .. }
            | Call::Mknod { at, .. }
            | Call::Unlink { at, .. }
            | Call::Symlink { at, .. } => touches(at, false),
            Call::Chmod { at, flags, .. }
            | Call::Chown { at, flags, .. }
            | Call::Utimes { at, flags, .. }
            | Call::SetXattr { at, flags, .. }
            | Call::RemoveXattr { at, flags, .. } => touches(at, followed(flags)),
            Call::Truncate { at, .. } => touches(at, true),
            Call::Mount { .. } | Call::CopyTree { .. } | Call::MountOption { .. } => {
                self.shows(caller, call)
            }
            _ => false,
        }
    }

    /// Whether a mount would show the store at a second place, where it cannot be recognised by its name.
    pub(crate) fn shows(&self, caller: &Caller, call: Call) -> bool {
        let touches = |place| {
            walk::find(caller, place, true, Reach::Everybody)
                .is_ok_and(|found| self.holds(caller, &found))
        };
        match call {
            Call::Mount { from, options, .. } => {
                from.is_some_and(touches)
                    || options != 0 && self.written_by_options(caller, options)
            }
            Call::CopyTree { at } => touches(at),
            Call::MountOption { key, value } => {
                let key = sys::read_string(caller.tid, key, OPTION_MAX).unwrap_or_default();
                UPPER.contains(&key.as_slice()) && touches(value)
            }
            _ => false,
        }
    }

    /// Whether what is written to an overlay would end up in the store.
    fn written_by_options(&self, caller: &Caller, options: u64) -> bool {
        let options = sys::read_string(caller.tid, options, paths::PATH_MAX).unwrap_or_default();
        options.split(|&b| b == b',').any(|option| {
            let Some(equals) = option.iter().position(|&b| b == b'=') else {
                return false;
            };
            let (key, path) = (&option[..equals], &option[equals + 1..]);
            UPPER.contains(&key)
                && walk::find_text(caller, libc::AT_FDCWD, path, true, Reach::Everybody)
                    .is_ok_and(|found| self.holds(caller, &found))
        })
    }

    /// Whether a file is, or is in, the store, or is about this process.
    fn holds(&self, caller: &Caller, found: &Found) -> bool {
        let file = found.file.as_ref();
        let named_dir;
        let dir = match (&found.dir, file) {
            (Some(dir), _) => Some(dir),
            (None, Some(file)) => {
                named_dir = walk::dir_of(caller, file.as_fd());
                named_dir.as_ref()
            }
            (None, None) => None,
        };
        if let Some(held) = file.or(dir)
            && fs::is_proc(held.as_fd())
        {
            let ours = found.path.split(|&b| b == b'/').any(|part| {
                let number = str::from_utf8(part).ok().and_then(|n| n.parse().ok());
                number.is_some_and(is_us)
            });
            return ours && dir.is_none_or(|dir| walk::numbers_like_ours(dir.as_fd()));
        }
        let itself = file.and_then(|file| walk::identity(file.as_fd()).ok());
        if itself.is_some_and(|file| self.inodes.contains(&file)) {
            return true;
        }
        match (dir, itself) {
            (Some(dir), _) => walk::is_within(dir.as_fd(), &self.inodes),
            // A file that no name leads to any more is looked for.
            (None, Some(file)) => self.has(file),
            (None, None) => false,
        }
    }

    fn is_above(&self, found: &Found) -> bool {
        let file = found.file.as_ref();
        let file = file.and_then(|file| walk::identity(file.as_fd()).ok());
        file.is_some_and(|file| self.above.contains(&file))
    }

    /// Whether a file is somewhere in the store.
    fn has(&self, file: Identity) -> bool {
        if !self.inodes.iter().any(|(device, _)| *device == file.0) {
            return false;
        }
        let mut dirs: Vec<PathBuf> = self
            .roots
            .iter()
            .map(|root| PathBuf::from(OsStr::from_bytes(root)))
            .collect();
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.ino() == file.1 {
                    return true;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    dirs.push(entry.path());
                }
            }
        }
        false
    }
}

/// Options of an overlay that say where changes go.
const UPPER: [&[u8]; 2] = [b"upperdir", b"workdir"];
const OPTION_MAX: usize = 255;

/// What a caller sees of the tree of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// What we see.
    Ours,
    /// A root of its own in our mounts, or mounts of which ours learn.
    Shared,
    /// Mounts of its own.
    Own,
}

impl Sight {
    /// Looks at a caller. What cannot be looked at is taken for ours.
    pub(crate) fn of(caller: &Caller) -> Sight {
        let same = |what: &str| {
            let read = |who: &str| {
                cstring(format!("/proc/{who}/{what}")).and_then(|path| fs::readlink(At::Cwd, &path))
            };
            match (read(&caller.tid.to_string()), read("thread-self")) {
                (Ok(theirs), Ok(ours)) => theirs == ours,
                _ => true,
            }
        };
        match (same("ns/mnt"), same("root")) {
            (true, true) => Sight::Ours,
            (true, false) => Sight::Shared,
            // In a user namespace of its own nothing that it mounts comes back to us.
            (false, _) if !same("ns/user") => Sight::Own,
            (false, _) => {
                let path = cstring(format!("/proc/{}/mountinfo", caller.tid));
                let mounts = path
                    .and_then(|path| fs::read_all(&path))
                    .unwrap_or_default();
                let shared = mounts
                    .split(|&b| b == b'\n')
                    .flat_map(|line| line.split(|&b| b == b' '))
                    .any(|field| field.starts_with(b"shared:"));
                if shared { Sight::Shared } else { Sight::Own }
            }
        }
    }
}

/// Who sends a signal, as far as it decides who may get it.
#[derive(Debug)]
pub(crate) struct Sender {
    users: Vec<u32>,
    any: bool,
}

impl Sender {
    /// Looks at a caller.
    pub(crate) fn of(caller: &Caller) -> Sender {
        const CAP_KILL: u64 = 1 << 5;
        let status = status_of(caller.tid);
        let caps = status_line(&status, "CapEff").and_then(|caps| str::from_utf8(caps).ok());
        let caps = caps.and_then(|caps| u64::from_str_radix(caps, 16).ok());
        let user_namespace = |who: &str| {
            cstring(format!("/proc/{who}/ns/user")).and_then(|path| fs::readlink(At::Cwd, &path))
        };
        let users = users(&status);
        Sender {
            // The real and the effective one.
            users: users.into_iter().take(2).collect(),
            any: caps.unwrap_or(0) & CAP_KILL != 0
                && user_namespace(&caller.tid.to_string()) == user_namespace("thread-self"),
        }
    }

    /// Whether it may send a signal to a process, as the kernel would see it.
    pub(crate) fn may_signal(&self, pid: u32) -> bool {
        let users = users(&status_of(pid));
        // The real and the saved one.
        let theirs = [users.first(), users.get(2)];
        self.any
            || theirs
                .into_iter()
                .flatten()
                .any(|user| self.users.contains(user))
    }
}

fn status_of(pid: u32) -> Vec<u8> {
    cstring(format!("/proc/{pid}/status"))
        .and_then(|path| fs::read_all(&path))
        .unwrap_or_default()
}

pub(crate) fn users(status: &[u8]) -> Vec<u32> {
    let line = status_line(status, "Uid").and_then(|line| str::from_utf8(line).ok());
    line.unwrap_or_default()
        .split_ascii_whitespace()
        .flat_map(str::parse)
        .collect()
}

impl Owner {
    /// Who it is: a process, or a group if it is negative.
    pub(crate) fn target(self, caller: &Caller) -> i64 {
        const GROUP: i32 = 2;
        let number = |bytes: [u8; 4]| i64::from(i32::from_ne_bytes(bytes));
        match self {
            Owner::Number(number) => number,
            Owner::At(address) => sys::read_array(caller.tid, address).map_or(0, number),
            Owner::Kinded(address) => {
                let kind = sys::read_array(caller.tid, address).map_or(0, i32::from_ne_bytes);
                let who = sys::read_array(caller.tid, address + 4).map_or(0, number);
                if kind == GROUP { -who } else { who }
            }
        }
    }
}

/// Whether the numbers of processes mean to a caller what they mean to us.
pub(crate) fn numbers_ours(caller: &Caller) -> bool {
    let read =
        |who: &str| cstring(format!("/proc/{who}/ns/pid")).and_then(|p| fs::readlink(At::Cwd, &p));
    match (read(&caller.tid.to_string()), read("thread-self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => true,
    }
}

/// Whether a path leads into what `/proc` says of this process.
fn is_our_proc(path: &[u8]) -> bool {
    let rest = path.strip_prefix(b"/proc/").unwrap_or_default();
    let number = rest.split(|&b| b == b'/').next().unwrap_or_default();
    let number = str::from_utf8(number).ok().and_then(|n| n.parse().ok());
    number.is_some_and(is_us)
}

/// Whether a number names this process or one of its threads.
pub(crate) fn is_us(target: i64) -> bool {
    target > 0 && cstring(format!("/proc/self/task/{target}")).is_ok_and(|path| fs::exists(&path))
}

/// Which process a pidfd of the caller stands for. A directory of `/proc` will do as one.
pub(crate) fn pidfd_target(caller: &Caller, pidfd: i32) -> Option<i64> {
    let path = cstring(format!("/proc/{}/fdinfo/{pidfd}", caller.tid)).ok()?;
    let info = fs::read_all(&path).ok()?;
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
    if let Some(pid) = status_line(&info, "Pid") {
        return number(pid);
    }
    let path = paths::of_descriptor(caller, pidfd).ok()?;
    number(path.rsplit(|&b| b == b'/').next()?)
}

/// Whether a pidfd of the caller stands for this process.
pub(crate) fn pidfd_is_us(caller: &Caller, pidfd: i32) -> bool {
    pidfd_target(caller, pidfd).is_some_and(is_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_schema::{CallResult, ProcessRef};

    fn op(kind: FileOpKind, path: &str, to: Option<&str>) -> FileOp {
        FileOp {
            process: ProcessRef { pid: 1, start: 0 },
            op: kind,
            path: path.into(),
            to: to.map(Into::into),
            flags: vec![],
            mode: None,
            detail: None,
            result: CallResult::Unknown,
        }
    }

    #[test]
    fn the_store_and_the_way_to_it() {
        let store = Protected {
            roots: vec![b"/home/u/.local/invigil".to_vec()],
            inodes: vec![],
            above: vec![],
        };
        assert!(store.forbids(&op(
            FileOpKind::Unlink,
            "/home/u/.local/invigil/runs/x",
            None
        )));
        assert!(store.forbids(&op(
            FileOpKind::Rename,
            "/tmp/x",
            Some("/home/u/.local/invigil/x")
        )));
        assert!(store.forbids(&op(
            FileOpKind::Rename,
            "/home/u/.local",
            Some("/home/u/away")
        )));
        assert!(!store.forbids(&op(FileOpKind::Chmod, "/home/u/.local", None)));
        assert!(!store.forbids(&op(
            FileOpKind::Symlink,
            "/tmp/l",
            Some("/home/u/.local/invigil")
        )));
        assert!(store.forbids(&op(FileOpKind::Symlink, "/home/u/.local", Some("/tmp/x"))));
        assert!(!store.forbids(&op(FileOpKind::Create, "/home/u/.local/invigil2", None)));
    }
}
