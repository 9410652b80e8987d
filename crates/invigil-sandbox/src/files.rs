//! Calls that change files: what they would do, in a plan that holds the files.

use std::os::fd::AsFd;

use invigil_schema::{Errno, FileOpKind, OpenFlag, OsText};

use crate::acts::{Act, Change, Linked};
use crate::calls::{Call, Place, Times};
use crate::exact;
use crate::exact::files::Failure;
use crate::paths::{self, Base, Caller, Located, Stop, Target, read_path};
use crate::sys;
use crate::sys::fs::{self, cstring};
use crate::walk;

/// How much a caller is like us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// It may see other files under the same names.
    None,
    /// It sees what we see.
    Sees,
    /// We may act for it.
    Acts,
}

/// What a call would do to files. The paths are what a fact says of it.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) op: FileOpKind,
    pub(crate) path: OsText,
    pub(crate) to: Option<OsText>,
    pub(crate) flags: Vec<OpenFlag>,
    pub(crate) mode: Option<u32>,
    pub(crate) detail: Option<OsText>,
    pub(crate) way: Way,
}

/// How it is done.
#[derive(Debug)]
pub(crate) enum Way {
    /// By us.
    Ours(Act),
    /// By the caller, watched.
    Native,
    /// Not at all: it fails by itself.
    Fails(Errno),
    /// Not at all: it is refused, by this rule.
    Refused(&'static str, Errno),
}

const ACCESS: i32 = libc::O_ACCMODE;
pub(crate) const TEMPORARY: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// The names of the flags of `open`.
pub(crate) fn open_flags(flags: i32, resolve: u64) -> Vec<OpenFlag> {
    let mut names = Vec::new();
    if flags & libc::O_PATH == 0 {
        match flags & ACCESS {
            libc::O_RDONLY => names.push(OpenFlag::Read),
            libc::O_WRONLY => names.push(OpenFlag::Write),
            _ => names.extend([OpenFlag::Read, OpenFlag::Write]),
        }
    }
    let bits = [
        (libc::O_APPEND, OpenFlag::Append),
        (libc::O_CREAT, OpenFlag::Create),
        (libc::O_EXCL, OpenFlag::Exclusive),
        (libc::O_TRUNC, OpenFlag::Truncate),
        (libc::O_DIRECTORY, OpenFlag::Directory),
        (libc::O_NOFOLLOW, OpenFlag::NoFollow),
        (TEMPORARY, OpenFlag::Temporary),
        (libc::O_PATH, OpenFlag::Path),
        (libc::O_SYNC, OpenFlag::Sync),
        (libc::O_DSYNC, OpenFlag::DataSync),
        (libc::O_DIRECT, OpenFlag::Direct),
        (libc::O_NONBLOCK, OpenFlag::Nonblocking),
        (libc::O_CLOEXEC, OpenFlag::CloseOnExec),
        (libc::O_NOATIME, OpenFlag::NoAtime),
        (libc::O_ASYNC, OpenFlag::Async),
    ];
    names.extend(
        bits.iter()
            .filter(|(bit, _)| flags & bit == *bit)
            .map(|(_, name)| *name),
    );
    if names.contains(&OpenFlag::Sync) {
        names.retain(|f| *f != OpenFlag::DataSync);
    }
    if names.contains(&OpenFlag::Temporary) {
        names.retain(|f| *f != OpenFlag::Directory);
    }
    if resolve != 0 {
        names.push(OpenFlag::Restricted);
    }
    names
}

impl Planned {
    fn new(op: FileOpKind) -> Planned {
        Planned {
            op,
            path: OsText::default(),
            to: None,
            flags: Vec::new(),
            mode: None,
            detail: None,
            way: Way::Native,
        }
    }
}

/// Plans a call. None if it is not about files. With `exact` nothing that matters is left to the kernel.
pub(crate) fn plan(
    caller: &Caller,
    call: Call,
    likeness: Likeness,
    exact: bool,
) -> Option<Planned> {
    let mut planned = Planned::new(kind(call)?);
    let way = match likeness {
        Likeness::None => Err(Stop::Native),
        Likeness::Sees | Likeness::Acts => plan_ours(caller, call, &mut planned),
    };
    planned.way = match (way, likeness) {
        (Ok(act), Likeness::Acts) => Way::Ours(act),
        (Err(Stop::Fail(error)), Likeness::Acts) => Way::Fails(error),
        (Err(Stop::Native), Likeness::Acts) if exact && !exact::files::is_harmless(call) => {
            match exact::files::plan(caller, call, &mut planned) {
                Ok(act) => Way::Ours(act),
                Err(Failure::Fails(error)) => Way::Fails(error),
                Err(Failure::Refused(rule, error)) => Way::Refused(rule, error),
            }
        }
        _ => Way::Native,
    };
    let two = matches!(call, Call::Link { .. } | Call::Rename { .. });
    if planned.path.as_bytes().is_empty() || two && planned.to.is_none() {
        written_paths(caller, call, likeness, &mut planned);
    }
    Some(planned)
}

fn kind(call: Call) -> Option<FileOpKind> {
    Some(match call {
        Call::Open { .. } | Call::OpenHow { .. } => FileOpKind::Open,
        Call::Mkdir { .. } => FileOpKind::Mkdir,
        Call::Mknod { .. } => FileOpKind::Mknod,
        Call::Unlink { flags, .. } if flags & libc::AT_REMOVEDIR != 0 => FileOpKind::Rmdir,
        Call::Unlink { .. } => FileOpKind::Unlink,
        Call::Symlink { .. } => FileOpKind::Symlink,
        Call::Link { .. } => FileOpKind::Link,
        Call::Rename { flags, .. } if flags & libc::RENAME_EXCHANGE != 0 => FileOpKind::Exchange,
        Call::Rename { .. } => FileOpKind::Rename,
        Call::Chmod { .. } => FileOpKind::Chmod,
        Call::Chown { .. } => FileOpKind::Chown,
        Call::Truncate { .. } => FileOpKind::Truncate,
        Call::Utimes { .. } => FileOpKind::Utimes,
        Call::SetXattr { .. } => FileOpKind::SetXattr,
        Call::RemoveXattr { .. } => FileOpKind::RemoveXattr,
        Call::Mount { unmount: false, .. } => FileOpKind::Mount,
        Call::Mount { unmount: true, .. } => FileOpKind::Unmount,
        Call::Chroot { .. } => FileOpKind::Chroot,
        _ => return None,
    })
}

fn locate(caller: &Caller, at: Place) -> Result<Located, Stop> {
    match at {
        Place::Fd(_) => Err(Stop::Native),
        Place::At { dir, path } => Base::of(caller, dir, &read_path(caller, path)?)?.locate(),
    }
}

/// The same for two names, which are mostly in the same directory and short.
fn locate_two(caller: &Caller, from: Place, to: Place) -> Result<(Located, Located), Stop> {
    if let (
        Place::At { dir, path },
        Place::At {
            dir: dir2,
            path: path2,
        },
    ) = (from, to)
        && let Some([text, text2]) = sys::read_two_strings(caller.tid, [path, path2])
    {
        return paths::locate_two(caller, (dir, &text), (dir2, &text2));
    }
    Ok((locate(caller, from)?, locate(caller, to)?))
}

/// Holds the file that a call follows links to.
fn target(caller: &Caller, at: Place, flags: i32) -> Result<Target, Stop> {
    let Place::At { dir, path } = at else {
        return Err(Stop::Native);
    };
    if flags & libc::AT_EMPTY_PATH != 0 {
        return Err(Stop::Native);
    }
    let nofollow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        libc::O_NOFOLLOW
    } else {
        0
    };
    Base::of(caller, dir, &read_path(caller, path)?)?.target(caller, nofollow, 0)
}

/// A call on a descriptor of the caller, on a duplicate of which we can make the same call.
fn plan_by_fd(
    caller: &Caller,
    fd: i32,
    change: Change,
    planned: &mut Planned,
) -> Result<Act, Stop> {
    if fd < 0 {
        return Err(Stop::Native);
    }
    let fd = match caller.duplicate(fd) {
        Ok(fd) => fd,
        Err(Errno(libc::EBADF)) => return Err(Stop::Fail(Errno(libc::EBADF))),
        Err(_) => return Err(Stop::Native),
    };
    let path = fs::path_of(fd.as_fd()).map_err(|_| Stop::Native)?;
    planned.path = path.clone().into();
    Ok(Act::ByFd {
        target: Target { fd, path },
        change,
    })
}

fn plan_ours(caller: &Caller, call: Call, planned: &mut Planned) -> Result<Act, Stop> {
    let mut named = |located: Located| {
        planned.path = located.path.clone().into();
        located
    };
    match call {
        Call::Open {
            dir,
            path,
            flags,
            mode,
        } => {
            planned.flags = open_flags(flags, 0);
            planned.mode = has_mode(flags).then_some(mode & 0o7777);
            let text = read_path(caller, path)?;
            plan_open(
                caller,
                Base::of(caller, dir, &text)?,
                flags,
                mode,
                0,
                planned,
            )
        }
        Call::OpenHow {
            dir,
            path,
            how,
            size,
        } => {
            let (flags, mode, resolve) = read_how(caller, how, size)?;
            planned.flags = open_flags(flags, resolve);
            planned.mode = has_mode(flags).then_some(mode & 0o7777);
            let text = read_path(caller, path)?;
            // Restrictions are about the way from the caller's own directory, which the text must keep whole.
            if resolve != 0 && text.first() == Some(&b'/') && resolve & libc::RESOLVE_IN_ROOT == 0 {
                return Err(Stop::Native);
            }
            if resolve & (libc::RESOLVE_IN_ROOT | libc::RESOLVE_CACHED) != 0 {
                return Err(Stop::Native);
            }
            plan_open(
                caller,
                Base::of(caller, dir, &text)?,
                flags,
                mode,
                resolve,
                planned,
            )
        }
        Call::Mkdir { at, mode } => {
            planned.mode = Some(mode & 0o7777);
            Ok(Act::Mkdir {
                at: named(locate(caller, at)?),
                mode,
            })
        }
        Call::Mknod { at, mode, device } => {
            planned.mode = Some(mode & 0o7777);
            Ok(Act::Mknod {
                at: named(locate(caller, at)?),
                mode,
                device,
            })
        }
        Call::Unlink { at, flags } => Ok(Act::Unlink {
            at: named(locate(caller, at)?),
            flags,
        }),
        Call::Symlink { target, at } => {
            let text = read_path(caller, target)?;
            planned.to = Some(text.clone().into());
            if text.is_empty() {
                return Err(Stop::Fail(Errno(libc::ENOENT)));
            }
            let at = locate(caller, at)?;
            planned.path = at.path.clone().into();
            Ok(Act::Symlink {
                text: cstring(text).map_err(Stop::Fail)?,
                at,
            })
        }
        Call::Link { from, to, flags } => plan_link(caller, from, to, flags, planned),
        Call::Rename { from, to, flags } => {
            let (from, to) = locate_two(caller, from, to)?;
            let from = named(from);
            planned.to = Some(to.path.clone().into());
            Ok(Act::Rename { from, to, flags })
        }
        Call::Chmod { at, mode, flags } => {
            planned.mode = Some(mode & 0o7777);
            if let Place::Fd(fd) = at {
                return plan_by_fd(caller, fd, Change::Mode(mode), planned);
            }
            if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
                return Err(Stop::Native);
            }
            let target = target(caller, at, flags)?;
            planned.path = target.path.clone().into();
            Ok(Act::Chmod { target, mode })
        }
        Call::Chown {
            at,
            owner,
            group,
            flags,
        } => {
            planned.detail = Some(owner_text(owner, group));
            if let Place::Fd(fd) = at {
                return plan_by_fd(caller, fd, Change::Owner(owner, group), planned);
            }
            if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
                return Err(Stop::Native);
            }
            let target = target(caller, at, flags)?;
            planned.path = target.path.clone().into();
            Ok(Act::Chown {
                target,
                owner,
                group,
            })
        }
        Call::Truncate { at, length } => {
            planned.detail = Some(length.to_string().into_bytes().into());
            let target = target(caller, at, 0)?;
            planned.path = target.path.clone().into();
            Ok(Act::Truncate { target, length })
        }
        Call::Utimes {
            at,
            times: Times::Specs(address),
            flags,
        } => {
            if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
                return Err(Stop::Native);
            }
            let times = read_times(caller, address)?;
            if let Place::Fd(fd) = at {
                return plan_by_fd(caller, fd, Change::Times(times), planned);
            }
            let target = target(caller, at, flags)?;
            planned.path = target.path.clone().into();
            Ok(Act::Utimes { target, times })
        }
        _ => Err(Stop::Native),
    }
}

fn plan_link(
    caller: &Caller,
    from: Place,
    to: Place,
    flags: i32,
    planned: &mut Planned,
) -> Result<Act, Stop> {
    if flags & libc::AT_EMPTY_PATH != 0 {
        return Err(Stop::Native);
    }
    let (linked, to) = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        let from = target(caller, from, 0)?;
        planned.path = from.path.clone().into();
        (Linked::File(from), locate(caller, to)?)
    } else {
        let (from, to) = locate_two(caller, from, to)?;
        planned.path = from.path.clone().into();
        (Linked::Name(from), to)
    };
    planned.to = Some(to.path.clone().into());
    Ok(Act::Link { from: linked, to })
}

pub(crate) fn has_mode(flags: i32) -> bool {
    flags & (libc::O_CREAT | TEMPORARY) != 0
}

pub(crate) fn owner_text(owner: u32, group: u32) -> OsText {
    let name = |id: u32| {
        if id == u32::MAX {
            "-".to_owned()
        } else {
            id.to_string()
        }
    };
    format!("{}:{}", name(owner), name(group))
        .into_bytes()
        .into()
}

pub(crate) fn read_times(
    caller: &Caller,
    address: u64,
) -> Result<Option<[libc::timespec; 2]>, Stop> {
    if address == 0 {
        return Ok(None);
    }
    let bytes: [u8; 32] = sys::read_array(caller.tid, address).map_err(stop_memory)?;
    let number = |i: usize| {
        let mut field = [0; 8];
        field.copy_from_slice(&bytes[i..i + 8]);
        i64::from_ne_bytes(field)
    };
    let time = |i: usize| libc::timespec {
        tv_sec: number(i),
        tv_nsec: number(i + 8),
    };
    Ok(Some([time(0), time(16)]))
}

fn stop_memory(error: Errno) -> Stop {
    match error.0 {
        libc::EFAULT => Stop::Fail(error),
        _ => Stop::Native,
    }
}

pub(crate) fn read_how(caller: &Caller, how: u64, size: u64) -> Result<(i32, u32, u64), Stop> {
    // A size or a bit that we do not know is the kernel's to judge.
    if size != size_of::<libc::open_how>() as u64 {
        return Err(Stop::Native);
    }
    let bytes: [u8; 24] = sys::read_array(caller.tid, how).map_err(stop_memory)?;
    let number = |i: usize| {
        let mut field = [0; 8];
        field.copy_from_slice(&bytes[i..i + 8]);
        u64::from_ne_bytes(field)
    };
    let (flags, mode, resolve) = (number(0), number(8), number(16));
    if flags >> 31 != 0 || mode & !0o7777 != 0 || mode != 0 && !has_mode(flags as i32) {
        return Err(Stop::Native);
    }
    Ok((flags as i32, mode as u32, resolve))
}

fn plan_open(
    caller: &Caller,
    mut base: Base,
    flags: i32,
    mode: u32,
    resolve: u64,
    planned: &mut Planned,
) -> Result<Act, Stop> {
    // A nameless file can get a name only from the one who opened it.
    if flags & (TEMPORARY | libc::O_PATH) != 0 || flags & (ACCESS | libc::O_TRUNC) == libc::O_TRUNC
    {
        return Err(Stop::Native);
    }
    let reads = flags & (ACCESS | libc::O_CREAT) == libc::O_RDONLY && resolve == 0;
    if reads && let Some(found) = base.read_now(flags) {
        return match found {
            Ok(Target { fd, path }) => {
                planned.path = path.into();
                Ok(Act::Give(fd))
            }
            Err(stop) => {
                planned.path = base.straight_path().unwrap_or_default().into();
                Err(stop)
            }
        };
    }
    let exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    const LINKS: usize = 40;
    // Most files that are to be created are not there, and one look says so.
    let looks = flags & (libc::O_CREAT | libc::O_NOFOLLOW | libc::O_DIRECTORY) == libc::O_CREAT
        && resolve == 0;
    for _ in 0..LINKS {
        let mut absent = exclusive;
        if looks && !exclusive {
            match base.target(caller, libc::O_NOFOLLOW, 0) {
                Ok(target) => {
                    let kind = kind_of(&target)?;
                    if kind != libc::S_IFLNK {
                        planned.path = target.path.clone().into();
                        return plan_open_existing(target, kind, flags);
                    }
                }
                Err(Stop::Fail(Errno(libc::ENOENT))) => absent = true,
                Err(other) => return Err(other),
            }
        }
        if !absent {
            let found = base.target(
                caller,
                flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY),
                resolve,
            );
            match found {
                Ok(target) => {
                    planned.path = target.path.clone().into();
                    let kind = kind_of(&target)?;
                    return plan_open_existing(target, kind, flags);
                }
                Err(Stop::Fail(Errno(libc::ENOENT))) if flags & libc::O_CREAT != 0 => {}
                Err(other) => return Err(other),
            }
        }
        if resolve != 0 {
            return Err(Stop::Native);
        }
        let at = base.locate()?;
        planned.path = at.path.clone().into();
        planned.op = FileOpKind::Create;
        if absent {
            return Ok(Act::Create { at, flags, mode });
        }
        match fs::readlink(at.at(), &at.name) {
            // A link to nothing: what it names is made.
            Ok(text) if flags & libc::O_NOFOLLOW == 0 => {
                base = Base::of_link(caller, &at, &text)?;
            }
            _ => return Ok(Act::Create { at, flags, mode }),
        }
    }
    Err(Stop::Native)
}

fn kind_of(target: &Target) -> Result<u32, Stop> {
    let stat = fs::fstat(target.fd.as_fd()).map_err(|_| Stop::Native)?;
    Ok(stat.st_mode & libc::S_IFMT)
}

fn plan_open_existing(target: Target, kind: u32, flags: i32) -> Result<Act, Stop> {
    // We trace everybody here, and may look where the caller may not.
    if target.path.starts_with(b"/proc/") && target.path.ends_with(b"/mem") {
        return Err(Stop::Native);
    }
    match kind {
        libc::S_IFREG | libc::S_IFDIR => Ok(Act::Open { target, flags }),
        // What a device or a FIFO does when it is opened depends on who opens it, and it may block.
        _ => Err(Stop::Native),
    }
}

/// Whether a call follows a symbolic link at the end of its path.
fn follows(call: Call) -> bool {
    match call {
        Call::Open { flags, .. } => {
            let exclusive = libc::O_CREAT | libc::O_EXCL;
            flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive
        }
        Call::OpenHow { .. } | Call::Truncate { .. } | Call::Mount { .. } | Call::Chroot { .. } => {
            true
        }
        Call::Link { flags, .. } => flags & libc::AT_SYMLINK_FOLLOW != 0,
        Call::Chmod { flags, .. }
        | Call::Chown { flags, .. }
        | Call::Utimes { flags, .. }
        | Call::SetXattr { flags, .. }
        | Call::RemoveXattr { flags, .. } => flags & libc::AT_SYMLINK_NOFOLLOW == 0,
        _ => false,
    }
}

/// What a path leads to, without an act that would hold it. None if it leads nowhere.
fn led_to(
    caller: &Caller,
    dir: i32,
    text: &[u8],
    follow: bool,
    likeness: Likeness,
) -> Option<Vec<u8>> {
    if likeness == Likeness::None {
        return walk::find_text(caller, dir, text, follow, walk::Reach::Everybody)
            .ok()
            .map(|found| found.path);
    }
    let base = Base::of(caller, dir, text).ok()?;
    let target = if follow {
        base.target(caller, 0, 0).ok()
    } else {
        None
    };
    match target {
        Some(target) => Some(target.path),
        None => base.locate().ok().map(|located| located.path),
    }
}

/// Paths for a fact about a call whose files we do not hold: what they lead to, or as they are written.
fn written_paths(caller: &Caller, call: Call, likeness: Likeness, planned: &mut Planned) {
    let follow = follows(call);
    let lead = |at: Place, follow: bool| match at {
        Place::Fd(fd) => {
            paths::of_descriptor(caller, fd).unwrap_or_else(|_| format!("(fd {fd})").into())
        }
        Place::At { dir, path } => match read_path(caller, path) {
            Ok(text) => led_to(caller, dir, &text, follow, likeness)
                .unwrap_or_else(|| walk::would_be(caller, dir, &text)),
            Err(_) => match paths::read_any_path(caller, path) {
                Ok(text) => paths::as_written(caller, dir, &text),
                Err(_) => b"(unreadable)".to_vec(),
            },
        },
    };
    let text = |at| lead(at, follow);
    let at = match call {
        Call::Open {
            dir,
            path,
            flags,
            mode,
        } => {
            planned.flags = open_flags(flags, 0);
            planned.mode = has_mode(flags).then_some(mode & 0o7777);
            Place::At { dir, path }
        }
        Call::OpenHow {
            dir,
            path,
            how,
            size,
        } => {
            if let Ok((flags, mode, how)) = read_how(caller, how, size) {
                planned.flags = open_flags(flags, how);
                planned.mode = has_mode(flags).then_some(mode & 0o7777);
            }
            Place::At { dir, path }
        }
        Call::Link { from, to, .. } | Call::Rename { from, to, .. } => {
            planned.to = Some(lead(to, false).into());
            from
        }
        Call::Symlink { target, at } => {
            planned.to = read_path(caller, target).ok().map(Into::into);
            at
        }
        Call::Chmod { at, mode, .. } | Call::Mkdir { at, mode } | Call::Mknod { at, mode, .. } => {
            planned.mode = Some(mode & 0o7777);
            at
        }
        Call::Chown {
            at, owner, group, ..
        } => {
            planned.detail = Some(owner_text(owner, group));
            at
        }
        Call::SetXattr { at, name, .. } | Call::RemoveXattr { at, name, .. } => {
            planned.detail = sys::read_string(caller.tid, name, 256).ok().map(Into::into);
            at
        }
        Call::Unlink { at, .. }
        | Call::Truncate { at, .. }
        | Call::Utimes { at, .. }
        | Call::Mount { at, .. }
        | Call::Chroot { at } => at,
        _ => return,
    };
    planned.path = text(at).into();
    if planned.flags.contains(&OpenFlag::Create)
        && cstring(planned.path.as_bytes()).is_ok_and(|path| !fs::exists(&path))
    {
        planned.op = FileOpKind::Create;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_names_that_people_use() {
        let names = open_flags(
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY,
            0,
        );
        assert_eq!(
            names,
            [
                OpenFlag::Read,
                OpenFlag::Write,
                OpenFlag::Create,
                OpenFlag::Exclusive
            ]
        );
        assert_eq!(
            open_flags(libc::O_WRONLY | libc::O_SYNC, 0),
            [OpenFlag::Write, OpenFlag::Sync]
        );
        assert_eq!(
            open_flags(libc::O_TMPFILE | libc::O_RDWR, 0)[2..],
            [OpenFlag::Temporary]
        );
    }
}
