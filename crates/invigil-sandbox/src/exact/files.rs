//! Calls that are usually left to the kernel, carried out by us where a gate must not be fooled.
//!
//! What the kernel carries out it reads from the caller's memory once more, and another thread may have changed it since
//! the gate saw it. Where that must not be (`LaunchSpec::exact`), the path is followed step by step as the caller's, and
//! the file that is found is the one that is judged and used. What cannot be done so is not done at all.

use std::os::fd::{AsFd, OwnedFd};

use invigil_schema::{Errno, FileOpKind};

use crate::acts::{Act, Change, Linked};
use crate::calls::{Call, Place, Times, Value};
use crate::files::{self, Planned};
use crate::paths::{Base, Caller, Located, Stop, Target, read_path};
use crate::protect;
use crate::sys::fs::{self, cstring};
use crate::sys::{self, Sys};
use crate::walk::{self, Found, Lost, Reach};

/// The terminal of whoever opens it.
const DEV_TTY: (u32, u32) = (5, 0);
/// The largest value of an attribute.
const VALUE_MAX: u64 = 64 * 1024;

/// Why a call is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It fails like this, whoever makes it.
    Fails(Errno),
    /// It is refused, by this rule.
    Refused(&'static str, Errno),
}

/// A plan, or why there is none.
type Planning<T> = Result<T, Failure>;

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        Failure::Fails(error)
    }
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Failure {
        let denied = Errno(libc::EACCES);
        match lost {
            Lost::Fails(error) => Failure::Fails(error),
            Lost::Foreign(pid) if protect::is_us(i64::from(pid)) => {
                Failure::Refused(protect::RULE, denied)
            }
            Lost::Foreign(_) => Failure::Refused(FOREIGN, denied),
            Lost::Nameless(error) => Failure::Refused(NAMELESS, error),
        }
    }
}

/// The rule in the evidence of what would reach a process outside of the run.
const FOREIGN: &str = "confined:process";
/// The same of what has no name that could be judged.
const NAMELESS: &str = "its path is too long to be judged";
/// The same of calls that cannot be made on behalf.
const UNKNOWN: &str = "invigil cannot make this call for another";

/// Whether a call can be left to the kernel all the same: it gives no access to anything by itself.
pub(crate) fn is_harmless(call: Call) -> bool {
    // A reference to a file without the right to use it, or a file without a name. Each further step is judged.
    matches!(call, Call::Open { flags, .. } if flags & (libc::O_PATH | files::TEMPORARY) != 0)
}

/// Plans a call that is not planned the short way.
pub(crate) fn plan(caller: &Caller, call: Call, planned: &mut Planned) -> Planning<Act> {
    let find = |at, flags: i32| found(caller, at, flags & libc::AT_SYMLINK_NOFOLLOW == 0);
    match call {
        Call::Open {
            dir,
            path,
            flags,
            mode,
        } => {
            let text = text(caller, path)?;
            plan_open(caller, dir, &text, flags, mode, planned)
        }
        Call::OpenHow {
            dir,
            path,
            how,
            size,
        } => plan_open_how(caller, dir, path, how, size, planned),
        Call::Mkdir { at, mode } => Ok(Act::Mkdir {
            at: named(find(at, libc::AT_SYMLINK_NOFOLLOW)?, planned)?,
            mode,
        }),
        Call::Mknod { at, mode, device } => Ok(Act::Mknod {
            at: named(find(at, libc::AT_SYMLINK_NOFOLLOW)?, planned)?,
            mode,
            device,
        }),
        Call::Unlink { at, flags } => Ok(Act::Unlink {
            at: named(find(at, libc::AT_SYMLINK_NOFOLLOW)?, planned)?,
            flags,
        }),
        Call::Symlink { target, at } => {
            let text = text(caller, target)?;
            planned.to = Some(text.clone().into());
            Ok(Act::Symlink {
                text: cstring(text)?,
                at: named(find(at, libc::AT_SYMLINK_NOFOLLOW)?, planned)?,
            })
        }
        Call::Rename { from, to, flags } => {
            let from = named(find(from, libc::AT_SYMLINK_NOFOLLOW)?, planned)?;
            let to = name_of(find(to, libc::AT_SYMLINK_NOFOLLOW)?)?;
            planned.to = Some(to.path.clone().into());
            Ok(Act::Rename { from, to, flags })
        }
        Call::Link { from, to, flags } => {
            let follow = flags & (libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0;
            let from = found(caller, from, follow)?;
            let to = name_of(find(to, libc::AT_SYMLINK_NOFOLLOW)?)?;
            planned.to = Some(to.path.clone().into());
            let from = if follow {
                Linked::File(held(from, planned)?)
            } else {
                Linked::Name(named(from, planned)?)
            };
            Ok(Act::Link { from, to })
        }
        Call::Chmod { at, mode, flags } => change(find(at, flags)?, Change::Mode(mode), planned),
        Call::Chown {
            at,
            owner,
            group,
            flags,
        } => change(find(at, flags)?, Change::Owner(owner, group), planned),
        Call::Utimes {
            at,
            times: Times::Specs(address),
            flags,
        } => {
            let times = files::read_times(caller, address).map_err(error)?;
            change(find(at, flags)?, Change::Times(times), planned)
        }
        Call::Truncate { at, length } => Ok(Act::Truncate {
            target: held(find(at, 0)?, planned)?,
            length,
        }),
        Call::SetXattr {
            at,
            name,
            value: value @ (Value::At(..) | Value::In(_)),
            create,
            flags,
        } => {
            let (value, size, create) = value_of(caller, value, create)?;
            let bytes = sys::read_bytes(caller.tid, value, size.min(VALUE_MAX + 1) as usize)?;
            if bytes.len() as u64 > VALUE_MAX {
                return Err(Errno(libc::E2BIG).into());
            }
            let name = attribute(caller, name, planned)?;
            Ok(Act::SetXattr {
                target: held(find(at, flags)?, planned)?,
                name,
                value: bytes,
                create,
            })
        }
        Call::RemoveXattr { at, name, flags } => {
            let name = attribute(caller, name, planned)?;
            Ok(Act::RemoveXattr {
                target: held(find(at, flags)?, planned)?,
                name,
            })
        }
        // Flags of a file, which only its owner's tools set.
        Call::SetXattr {
            at: Place::Fd(_), ..
        } => Err(Failure::Refused(UNKNOWN, Errno(libc::EPERM))),
        // Newer or older forms of the same, which programs try before, or in place of, the ones above.
        Call::SetXattr { .. } | Call::Utimes { .. } => {
            Err(Failure::Refused(UNKNOWN, Errno(libc::ENOSYS)))
        }
        _ => Err(Failure::Refused(UNKNOWN, Errno(libc::EPERM))),
    }
}

fn error(stop: Stop) -> Errno {
    match stop {
        Stop::Fail(error) => error,
        Stop::Native => Errno(libc::EACCES),
    }
}

fn text(caller: &Caller, address: u64) -> Planning<Vec<u8>> {
    let text = read_path(caller, address).map_err(error)?;
    if text.is_empty() {
        return Err(Errno(libc::ENOENT).into());
    }
    Ok(text)
}

fn found(caller: &Caller, at: Place, follow: bool) -> Planning<Found> {
    match at {
        // A duplicate is the caller's own descriptor, with what it may do through it.
        Place::Fd(fd) => {
            let file = caller.duplicate(fd)?;
            let path = fs::path_of(file.as_fd())?;
            Ok(Found {
                dir: None,
                file: Some(file),
                path,
                name: Vec::new(),
            })
        }
        at => Ok(walk::find(caller, at, follow, Reach::Run)?),
    }
}

fn held(found: Found, planned: &mut Planned) -> Planning<Target> {
    planned.path = found.path.clone().into();
    Ok(Target {
        fd: found.file.ok_or(Errno(libc::ENOENT))?,
        path: found.path,
    })
}

fn name_of(found: Found) -> Planning<Located> {
    // The root, or a directory by its descriptor: it has no name that could be given or taken.
    let dir = found.dir.ok_or(Errno(libc::EBUSY))?;
    if found.name.is_empty() {
        return Err(Errno(libc::EBUSY).into());
    }
    Ok(Located::new(dir, cstring(found.name)?, found.path))
}

fn named(found: Found, planned: &mut Planned) -> Planning<Located> {
    planned.path = found.path.clone().into();
    name_of(found)
}

/// Where the value of an attribute is, how long it is, and whether it must be there already, or must not.
fn value_of(caller: &Caller, value: Value, create: i32) -> Sys<(u64, u64, i32)> {
    match value {
        Value::At(at, size) => Ok((at, size, create)),
        Value::In(address) => {
            let at = sys::read_array(caller.tid, address).map(u64::from_ne_bytes)?;
            let size = sys::read_array(caller.tid, address + 8).map(u32::from_ne_bytes)?;
            let create = sys::read_array(caller.tid, address + 12).map(i32::from_ne_bytes)?;
            Ok((at, u64::from(size), create))
        }
        Value::Unknown => Err(Errno(libc::ENOSYS)),
    }
}

fn attribute(caller: &Caller, name: u64, planned: &mut Planned) -> Sys<std::ffi::CString> {
    let name = sys::read_string(caller.tid, name, 255)?;
    planned.detail = Some(name.clone().into());
    cstring(name)
}

fn change(found: Found, change: Change, planned: &mut Planned) -> Planning<Act> {
    match change {
        Change::Mode(mode) => planned.mode = Some(mode & 0o7777),
        Change::Owner(owner, group) => planned.detail = Some(files::owner_text(owner, group)),
        Change::Times(_) => {}
    }
    let target = held(found, planned)?;
    Ok(Act::Change { target, change })
}

fn plan_open(
    caller: &Caller,
    dir: i32,
    text: &[u8],
    flags: i32,
    mode: u32,
    planned: &mut Planned,
) -> Planning<Act> {
    planned.flags = files::open_flags(flags, 0);
    planned.mode = files::has_mode(flags).then_some(mode & 0o7777);
    let exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let follow = flags & libc::O_NOFOLLOW == 0 && !exclusive;
    let mut found = walk::find_text(caller, dir, text, follow, Reach::Run)?;
    planned.path = found.path.clone().into();
    match found.file.take() {
        Some(_) if exclusive => Err(Errno(libc::EEXIST).into()),
        Some(fd) => open_found(
            caller,
            Target {
                fd,
                path: found.path,
            },
            flags,
        ),
        None if flags & libc::O_CREAT != 0 => {
            planned.op = FileOpKind::Create;
            Ok(Act::Create {
                at: name_of(found)?,
                flags,
                mode,
            })
        }
        None => Err(Errno(libc::ENOENT).into()),
    }
}

/// A file that is there, whatever it is.
fn open_found(caller: &Caller, target: Target, flags: i32) -> Planning<Act> {
    let stat = fs::fstat(target.fd.as_fd())?;
    let waits = flags & libc::O_NONBLOCK == 0 && flags & libc::O_ACCMODE != libc::O_RDWR;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFLNK => Err(Errno(libc::ELOOP).into()),
        libc::S_IFSOCK => Err(Errno(libc::ENXIO).into()),
        libc::S_IFIFO if waits => Ok(Act::OpenSlowly { target, flags }),
        libc::S_IFCHR if (libc::major(stat.st_rdev), libc::minor(stat.st_rdev)) == DEV_TTY => {
            // It means the terminal of whoever opens it, which must be ours too.
            if terminal(caller.pid)? != terminal(std::process::id())? {
                return Err(Errno(libc::ENXIO).into());
            }
            Ok(Act::Open { target, flags })
        }
        // We trace everybody here, and may look where the caller may not.
        _ if target.path.starts_with(b"/proc/") && target.path.ends_with(b"/mem") => {
            Err(Failure::Refused(FOREIGN, Errno(libc::EACCES)))
        }
        _ => Ok(Act::Open { target, flags }),
    }
}

/// The controlling terminal of a process: field 7 of its `stat`.
fn terminal(pid: u32) -> Planning<Vec<u8>> {
    let stat = fs::read_dense(&cstring(format!("/proc/{pid}/stat"))?)?;
    let after_name = stat
        .iter()
        .rposition(|&b| b == b')')
        .map_or(0, |end| end + 1);
    let field = stat[after_name..].split(|&b| b == b' ').nth(5);
    Ok(field.unwrap_or_default().to_vec())
}

/// An open whose way is restricted: the kernel follows it for us as it would for the caller.
fn plan_open_how(
    caller: &Caller,
    dir: i32,
    path: u64,
    how: u64,
    size: u64,
    planned: &mut Planned,
) -> Planning<Act> {
    let (flags, mode, resolve) = match files::read_how(caller, how, size) {
        Ok(how) => how,
        Err(Stop::Fail(error)) => return Err(error.into()),
        // A form that we do not know. Programs go back to the ones that everybody knows.
        Err(Stop::Native) => return Err(Errno(libc::EINVAL).into()),
    };
    let text = text(caller, path)?;
    if flags & files::TEMPORARY != 0 {
        return Err(Failure::Refused(UNKNOWN, Errno(libc::EPERM)));
    }
    // The kernel hands no bare reference over, and left to it the flags in memory could be others by then. Whoever knows
    // `openat` asks again.
    if flags & libc::O_PATH != 0 {
        return Err(Errno(libc::ENOSYS).into());
    }
    if resolve == 0 {
        return plan_open(caller, dir, &text, flags, mode, planned);
    }
    planned.flags = files::open_flags(flags, resolve);
    planned.mode = files::has_mode(flags).then_some(mode & 0o7777);
    if resolve & libc::RESOLVE_CACHED != 0 {
        return Err(Errno(libc::EAGAIN).into());
    }
    let start = Base::start(caller, dir).map_err(error)?;
    let from = |text: &[u8], flags: i32| -> Sys<OwnedFd> {
        let resolve = resolve | libc::RESOLVE_NO_MAGICLINKS;
        fs::open(
            start.at(),
            &cstring(text)?,
            libc::O_PATH | flags,
            0,
            resolve,
        )
    };
    let exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let kept = flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY);
    match from(&text, kept) {
        Ok(_) if exclusive => Err(Errno(libc::EEXIST).into()),
        Ok(fd) => {
            let path = fs::path_of(fd.as_fd())?;
            planned.path = path.clone().into();
            open_found(caller, Target { fd, path }, flags)
        }
        Err(Errno(libc::ENOENT)) if flags & libc::O_CREAT != 0 => {
            let (parent, name) = match text.iter().rposition(|&b| b == b'/') {
                Some(0) => (&b"/"[..], &text[1..]),
                Some(slash) => (&text[..slash], &text[slash + 1..]),
                None => (&b"."[..], &text[..]),
            };
            if matches!(name, b"" | b"." | b"..") {
                return Err(Errno(libc::EISDIR).into());
            }
            let parent = from(parent, libc::O_DIRECTORY)?;
            let name = cstring(name)?;
            // A link to nothing would be followed; where to is not ours to say here.
            if fs::readlink(fs::At::Dir(parent.as_fd()), &name).is_ok() {
                return Err(Errno(libc::ELOOP).into());
            }
            let dir_path = fs::path_of(parent.as_fd())?;
            let path = crate::paths::join(&dir_path, name.as_bytes());
            planned.path = path.clone().into();
            planned.op = FileOpKind::Create;
            Ok(Act::Create {
                at: Located::new(parent, name, path),
                flags,
                mode,
            })
        }
        Err(error) => Err(error.into()),
    }
}
