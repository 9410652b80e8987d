//! Paths of a caller whose root or mounts are not ours: followed step by step from where it stands.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use invigil_schema::Errno;

use crate::calls::Place;
use crate::paths::{Caller, as_written, join, read_path};
use crate::sys::fs::{self, At, cstring};
use crate::sys::{self, Sys};
use crate::table::status_line;

/// How many symbolic links the kernel follows.
const LINKS: usize = 40;
/// How deep a directory may lie.
const DEPTH: usize = 256;

/// Whose links in `/proc` are followed: to its files, its directories, its root. The kernel would ask what the caller may do
/// to that process; we may do more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Everybody's, to know where they lead.
    Everybody,
    /// Those of the run, to use what is found there.
    Run,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The kernel says so.
    Fails(Errno),
    /// It goes through what `/proc` has of a process that is not of the run; its number.
    Foreign(u32),
    /// The kernel has no name for what it leads to: it would be too long.
    Nameless(Errno),
}

impl From<Errno> for Lost {
    fn from(error: Errno) -> Lost {
        Lost::Fails(error)
    }
}

/// A file by device and inode.
pub(crate) type Identity = (u64, u64);

/// Which file a descriptor holds.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> Sys<Identity> {
    fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Found {
    /// The directory that the last name stands in; None for a file that was reached by its descriptor.
    pub(crate) dir: Option<OwnedFd>,
    /// The file, if there is one.
    pub(crate) file: Option<OwnedFd>,
    /// The path, as the kernel calls it.
    pub(crate) path: Vec<u8>,
    /// The last name; empty for a file that was reached by its descriptor.
    pub(crate) name: Vec<u8>,
}

fn hold(at: At<'_>, path: &[u8], flags: i32) -> Sys<OwnedFd> {
    fs::open(at, &cstring(path)?, libc::O_PATH | flags, 0, 0)
}

fn of_caller(caller: &Caller, what: &str) -> Sys<OwnedFd> {
    hold(
        At::Cwd,
        format!("/proc/{}/{what}", caller.tid).as_bytes(),
        0,
    )
}

fn kind(fd: BorrowedFd<'_>) -> Sys<u32> {
    fs::fstat(fd).map(|stat| stat.st_mode & libc::S_IFMT)
}

/// Follows a path of the caller.
pub(crate) fn find(
    caller: &Caller,
    place: Place,
    follow: bool,
    reach: Reach,
) -> Result<Found, Lost> {
    match place {
        Place::Fd(fd) => by_descriptor(of_caller(caller, &format!("fd/{fd}"))?),
        Place::At { dir, path } => {
            let text = read_path(caller, path).map_err(|_| Errno(libc::EFAULT))?;
            find_text(caller, dir, &text, follow, reach)
        }
    }
}

fn by_descriptor(file: OwnedFd) -> Result<Found, Lost> {
    let path = name_of(file.as_fd())?;
    let dir = if kind(file.as_fd())? == libc::S_IFDIR {
        Some(hold(At::Dir(file.as_fd()), b".", 0)?)
    } else {
        None
    };
    Ok(Found {
        dir,
        file: Some(file),
        path,
        name: Vec::new(),
    })
}

/// Follows a path that has been read already.
pub(crate) fn find_text(
    caller: &Caller,
    dir: i32,
    text: &[u8],
    follow: bool,
    reach: Reach,
) -> Result<Found, Lost> {
    let root = of_caller(caller, "root")?;
    let mut at = match (text.first(), dir) {
        (Some(b'/'), _) => hold(At::Dir(root.as_fd()), b".", 0)?,
        (_, libc::AT_FDCWD) => of_caller(caller, "cwd")?,
        (_, fd) => of_caller(caller, &format!("fd/{fd}"))?,
    };
    if text.is_empty() {
        return by_descriptor(at);
    }
    let follow = follow || text.last() == Some(&b'/');
    // The next name is the last one.
    let mut names = Vec::new();
    push(&mut names, text);
    let mut links = 0;
    while let Some(name) = names.pop() {
        if name == b".." {
            if identity(at.as_fd())? != identity(root.as_fd())? {
                at = hold(At::Dir(at.as_fd()), b"..", 0)?;
            }
            continue;
        }
        let last = names.is_empty();
        let next = match hold(At::Dir(at.as_fd()), &name, libc::O_NOFOLLOW) {
            Err(Errno(libc::ENOENT)) if last => return named(at, None, &name),
            next => next?,
        };
        if kind(next.as_fd())? != libc::S_IFLNK {
            if last {
                return named(at, Some(next), &name);
            }
            at = next;
            continue;
        }
        if last && !follow {
            return named(at, Some(next), &name);
        }
        links += 1;
        if links > LINKS {
            return Err(Errno(libc::ELOOP).into());
        }
        let text = fs::readlink(At::Dir(next.as_fd()), c"");
        // What `/proc` has of whoever asks (`mounts`, `net`) is an ordinary link to it; no magic one has such a text.
        let of_self = text.as_ref().is_ok_and(|text| text.starts_with(b"self/"));
        if fs::is_proc(next.as_fd()) && !of_self {
            at = match name.as_slice() {
                // It means whoever asks.
                b"self" => hold(At::Cwd, format!("/proc/{}", caller.pid).as_bytes(), 0)?,
                b"thread-self" => hold(
                    At::Cwd,
                    format!("/proc/{}/task/{}", caller.pid, caller.tid).as_bytes(),
                    0,
                )?,
                _ => match foreigner(caller, at.as_fd()) {
                    Some(pid) if reach == Reach::Run => return Err(Lost::Foreign(pid)),
                    _ => hold(At::Dir(at.as_fd()), &name, 0)?,
                },
            };
            if last {
                return by_descriptor(at);
            }
            continue;
        }
        let text = text?;
        if text.first() == Some(&b'/') {
            at = hold(At::Dir(root.as_fd()), b".", 0)?;
        }
        push(&mut names, &text);
    }
    by_descriptor(at)
}

/// Where a file is, or would be, by the real names of the directories that there are.
pub(crate) fn would_be(caller: &Caller, dir: i32, text: &[u8]) -> Vec<u8> {
    let mut there = text.len();
    loop {
        if let Ok(found) = find_text(caller, dir, &text[..there], true, Reach::Everybody) {
            return join(&found.path, &text[there..]);
        }
        // What is behind a missing directory has no links, but a step back from it leads nowhere.
        there = match text[..there].iter().rposition(|&b| b == b'/') {
            Some(at) if at > 0 && text[at + 1..there] != *b".." => at,
            _ => return as_written(caller, dir, text),
        };
    }
}

/// Which process that is not of the run, such as ourselves, a directory of `/proc` is about.
fn foreigner(caller: &Caller, dir: BorrowedFd<'_>) -> Option<u32> {
    let status = |name| {
        let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
        cstring(path).and_then(|path| fs::read_all(&path)).ok()
    };
    let status = status("status").or_else(|| status("../status"))?;
    let pid = status_number(&status, "Tgid")?;
    (pid != caller.pid && !is_traced_by_us(&status)).then_some(pid)
}

/// Whether the status of a process says that this thread traces it, as it does every process of the run.
pub(crate) fn is_traced_by_us(status: &[u8]) -> bool {
    status_number(status, "TracerPid") == Some(sys::gettid())
}

fn status_number(status: &[u8], name: &str) -> Option<u32> {
    let text = status_line(status, name)?;
    str::from_utf8(text).ok()?.parse().ok()
}

fn push(names: &mut Vec<Vec<u8>>, text: &[u8]) {
    let parts = text.split(|&b| b == b'/').rev();
    names.extend(
        parts
            .filter(|part| !matches!(*part, b"" | b"."))
            .map(<[u8]>::to_vec),
    );
}

fn name_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Lost> {
    fs::path_of(fd).map_err(Lost::Nameless)
}

fn named(dir: OwnedFd, file: Option<OwnedFd>, name: &[u8]) -> Result<Found, Lost> {
    let path = join(&name_of(dir.as_fd())?, name);
    Ok(Found {
        dir: Some(dir),
        file,
        path,
        name: name.to_vec(),
    })
}

/// The directory that a file stands in by the name that the kernel has for it, if it still does.
pub(crate) fn dir_of(caller: &Caller, file: BorrowedFd<'_>) -> Option<OwnedFd> {
    let path = fs::path_of(file).ok()?;
    if path.first() != Some(&b'/') {
        return None;
    }
    let found = find_text(caller, libc::AT_FDCWD, &path, false, Reach::Everybody).ok()?;
    let same = identity(found.file?.as_fd()).ok()? == identity(file).ok()?;
    found.dir.filter(|_| same)
}

/// Whether a directory is one of these or lies below one.
pub(crate) fn is_within(dir: BorrowedFd<'_>, roots: &[Identity]) -> bool {
    let Ok(mut at) = hold(At::Dir(dir), b".", 0) else {
        return false;
    };
    let mut last = None;
    for _ in 0..DEPTH {
        let Ok(here) = identity(at.as_fd()) else {
            return false;
        };
        if roots.contains(&here) {
            return true;
        }
        if last == Some(here) {
            return false;
        }
        last = Some(here);
        match hold(At::Dir(at.as_fd()), b"..", 0) {
            Ok(up) => at = up,
            Err(_) => return false,
        }
    }
    false
}

/// Whether numbers in this `proc` file system mean what they mean to us.
pub(crate) fn numbers_like_ours(dir: BorrowedFd<'_>) -> bool {
    let (Ok(mut at), Ok((device, _))) = (hold(At::Dir(dir), b".", 0), identity(dir)) else {
        return true;
    };
    for _ in 0..DEPTH {
        match hold(At::Dir(at.as_fd()), b"..", 0) {
            Ok(up) if identity(up.as_fd()).is_ok_and(|up| up.0 == device) => {
                let top = identity(up.as_fd()) == identity(at.as_fd());
                at = up;
                if top {
                    break;
                }
            }
            _ => break,
        }
    }
    let ours = std::process::id().to_string();
    fs::readlink(At::Dir(at.as_fd()), c"self").is_ok_and(|own| own == ours.as_bytes())
}
