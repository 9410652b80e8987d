//! What a run may not do to Invigil itself, whatever the gate says: change or read its store, signal it, trace it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use invigil_schema::{FileOp, FileOpKind};

use crate::calls::{Call, Place};
use crate::paths::{self, Caller, is_below, join};
use crate::sys::fs::{self, At, cstring};
use crate::table::status_line;

/// The name of the rule in the evidence.
pub(crate) const RULE: &str = "invigil protects itself";

/// The store.
#[derive(Debug)]
pub(crate) struct Protected {
    roots: Vec<Vec<u8>>,
    inodes: Vec<(u64, u64)>,
}

impl Protected {
    /// Resolves the paths as they are now; a store must exist to be protected.
    pub(crate) fn new(paths: &[PathBuf]) -> Protected {
        let mut protected = Protected {
            roots: Vec::new(),
            inodes: Vec::new(),
        };
        for path in paths {
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            if let Ok(data) = real.metadata() {
                use std::os::unix::fs::MetadataExt;
                protected.inodes.push((data.dev(), data.ino()));
            }
            protected.roots.push(join(b"", real.as_os_str().as_bytes()));
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
        touches(op.path.as_bytes()) || second.is_some_and(|to| touches(to.as_bytes()))
    }

    /// The same for a caller that sees other paths than we do: by the identity of the directories on the way.
    pub(crate) fn forbids_elsewhere(&self, caller: &Caller, call: Call) -> bool {
        if self.inodes.is_empty() {
            return false;
        }
        let places = match call {
            Call::Open { dir, path, .. } | Call::OpenHow { dir, path, .. } => {
                [Some(Place::At { dir, path }), None]
            }
            Call::Link { from, to, .. } | Call::Rename { from, to, .. } => [Some(from), Some(to)],
            Call::Mkdir { at, .. }
            | Call::Mknod { at, .. }
            | Call::Unlink { at, .. }
            | Call::Symlink { at, .. }
            | Call::Chmod { at, .. }
            | Call::Chown { at, .. }
            | Call::Truncate { at, .. }
            | Call::Utimes { at, .. }
            | Call::SetXattr { at, .. }
            | Call::RemoveXattr { at, .. }
            | Call::Mount { at, .. } => [Some(at), None],
            _ => [None, None],
        };
        places
            .into_iter()
            .flatten()
            .any(|place| hold(caller, place).is_some_and(|fd| self.is_inside(fd)))
    }

    /// Walks up from a file or directory.
    fn is_inside(&self, fd: OwnedFd) -> bool {
        const DEPTH: usize = 256;
        let mut at = fd;
        let mut last = None;
        for _ in 0..DEPTH {
            let Ok(stat) = fs::fstat(at.as_fd()) else {
                return false;
            };
            let here = (stat.st_dev, stat.st_ino);
            if self.inodes.contains(&here) {
                return true;
            }
            if last == Some(here) {
                return false;
            }
            last = Some(here);
            match fs::open(
                At::Dir(at.as_fd()),
                c"..",
                libc::O_PATH | libc::O_DIRECTORY,
                0,
                0,
            ) {
                Ok(up) => at = up,
                // A file has no `..`; what the kernel calls it has.
                Err(_) => {
                    let Ok(path) = fs::path_of(at.as_fd()) else {
                        return false;
                    };
                    return self.roots.iter().any(|root| is_below(&path, root));
                }
            }
        }
        false
    }
}

/// Holds the directory that a path of the caller leads into, through the caller's own root.
fn hold(caller: &Caller, place: Place) -> Option<OwnedFd> {
    let open = |path: String| fs::open(At::Cwd, &cstring(path).ok()?, libc::O_PATH, 0, 0).ok();
    let (dir, path) = match place {
        Place::Fd(fd) => return open(format!("/proc/{}/fd/{fd}", caller.tid)),
        Place::At { dir, path } => (dir, paths::read_path(caller, path).ok()?),
    };
    let base = match (path.first(), dir) {
        (Some(b'/'), _) => open(format!("/proc/{}/root", caller.tid))?,
        (_, libc::AT_FDCWD) => open(format!("/proc/{}/cwd", caller.tid))?,
        (_, fd) => open(format!("/proc/{}/fd/{fd}", caller.tid))?,
    };
    let resolve = if path.first() == Some(&b'/') {
        libc::RESOLVE_IN_ROOT
    } else {
        0
    };
    let mut text = path.as_slice();
    loop {
        let c = cstring(if text.is_empty() { b"." } else { text }).ok()?;
        if let Ok(fd) = fs::open(At::Dir(base.as_fd()), &c, libc::O_PATH, 0, resolve) {
            return Some(fd);
        }
        // What does not exist yet would be made in the directory above.
        let slash = text.iter().rposition(|&b| b == b'/');
        text = match slash {
            Some(slash) if !text.is_empty() => &text[..slash],
            _ if text.is_empty() => return None,
            _ => b"",
        };
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

/// Whether a pidfd of the caller stands for this process.
pub(crate) fn pidfd_is_us(caller: &Caller, pidfd: i32) -> bool {
    let Ok(path) = cstring(format!("/proc/{}/fdinfo/{pidfd}", caller.tid)) else {
        return false;
    };
    let info = fs::read_all(&path).unwrap_or_default();
    let pid = status_line(&info, "Pid").and_then(|pid| str::from_utf8(pid).ok());
    pid.and_then(|pid| pid.parse().ok()).is_some_and(is_us)
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
        assert!(!store.forbids(&op(FileOpKind::Create, "/home/u/.local/invigil2", None)));
    }
}
