//! What is done to files on behalf of a caller, once it has been planned and allowed.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use invigil_schema::Errno;

use crate::paths::{Located, Target};
use crate::sys::Sys;
use crate::sys::fs;

/// What we would do.
#[derive(Debug)]
pub(crate) enum Act {
    /// It is open already, for reading, which changes nothing.
    Give(OwnedFd),
    Open {
        target: Target,
        flags: i32,
    },
    Create {
        at: Located,
        flags: i32,
        mode: u32,
    },
    Mkdir {
        at: Located,
        mode: u32,
    },
    Mknod {
        at: Located,
        mode: u32,
        device: u64,
    },
    Unlink {
        at: Located,
        flags: i32,
    },
    Symlink {
        text: CString,
        at: Located,
    },
    Link {
        from: Linked,
        to: Located,
    },
    Rename {
        from: Located,
        to: Located,
        flags: u32,
    },
    Chmod {
        target: Target,
        mode: u32,
    },
    /// On a duplicate of the caller's descriptor.
    ByFd {
        target: Target,
        change: Change,
    },
    /// On whatever is held, a symbolic link included.
    Change {
        target: Target,
        change: Change,
    },
    SetXattr {
        target: Target,
        name: CString,
        value: Vec<u8>,
        create: i32,
    },
    RemoveXattr {
        target: Target,
        name: CString,
    },
    /// It may wait for somebody else to open it too.
    OpenSlowly {
        target: Target,
        flags: i32,
    },
    Chown {
        target: Target,
        owner: u32,
        group: u32,
    },
    Truncate {
        target: Target,
        length: i64,
    },
    Utimes {
        target: Target,
        times: Option<[libc::timespec; 2]>,
    },
}

/// A change of attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    Mode(u32),
    Owner(u32, u32),
    Times(Option<[libc::timespec; 2]>),
}

/// What a hard link is made of.
#[derive(Debug)]
pub(crate) enum Linked {
    /// A name, which is not followed.
    Name(Located),
    /// A file.
    File(Target),
}

/// What an act has made.
#[derive(Debug)]
pub(crate) enum Done {
    /// Nothing but its effect.
    Returned,
    /// A descriptor for the caller.
    Opened(OwnedFd),
    /// It waits, and somebody else has to wait for it.
    Waits(Slow),
}

impl Act {
    /// The file that it is about, if it is there already and held.
    pub(crate) fn held(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Act::Give(fd) => Some(fd.as_fd()),
            Act::Open { target, .. }
            | Act::OpenSlowly { target, .. }
            | Act::Chmod { target, .. }
            | Act::ByFd { target, .. }
            | Act::Change { target, .. }
            | Act::SetXattr { target, .. }
            | Act::RemoveXattr { target, .. }
            | Act::Chown { target, .. }
            | Act::Truncate { target, .. }
            | Act::Utimes { target, .. }
            | Act::Link {
                from: Linked::File(target),
                ..
            } => Some(target.fd.as_fd()),
            Act::Create { .. }
            | Act::Mkdir { .. }
            | Act::Mknod { .. }
            | Act::Unlink { .. }
            | Act::Symlink { .. }
            | Act::Link { .. }
            | Act::Rename { .. } => None,
        }
    }

    /// Whether the names in it still stand where they stood when it was judged. What is held by itself always does.
    pub(crate) fn is_in_place(&self) -> bool {
        match self {
            Act::Create { at, .. }
            | Act::Mkdir { at, .. }
            | Act::Mknod { at, .. }
            | Act::Unlink { at, .. }
            | Act::Symlink { at, .. } => at.is_in_place(),
            Act::Rename { from, to, .. } => from.is_in_place() && to.is_in_place(),
            Act::Link {
                from: Linked::Name(from),
                to,
            } => from.is_in_place() && to.is_in_place(),
            Act::Link { to, .. } => to.is_in_place(),
            _ => true,
        }
    }
}

/// An open that waits.
#[derive(Debug, Clone)]
pub(crate) struct Slow {
    target: Arc<Target>,
    flags: i32,
}

impl Slow {
    /// Waits for it.
    pub(crate) fn finish(&self) -> Sys<OwnedFd> {
        fs::reopen(self.target.fd.as_fd(), open_flags(self.flags))
    }

    /// Ends the waiting: whoever opens both ends lets everybody go on.
    pub(crate) fn release(&self) {
        let _ = fs::reopen(self.target.fd.as_fd(), libc::O_RDWR | libc::O_NONBLOCK);
    }
}

/// What is left of the flags of an open when the file is held.
fn open_flags(flags: i32) -> i32 {
    flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW) | libc::O_NOCTTY
}

/// Does what was planned. `ELOOP` from here is the caller's.
pub(crate) fn perform(act: Act) -> Sys<Done> {
    match act {
        Act::Give(fd) => return Ok(Done::Opened(fd)),
        Act::Open { target, flags } => {
            let fd = fs::reopen(target.fd.as_fd(), open_flags(flags))?;
            return Ok(Done::Opened(fd));
        }
        Act::Create { at, flags, mode } => {
            let made = fs::open(
                at.at(),
                &at.name,
                flags | libc::O_EXCL | libc::O_NOCTTY,
                mode,
                0,
            );
            return match made {
                // Somebody outside of the run has made it in the meantime.
                Err(Errno(libc::EEXIST)) if flags & libc::O_EXCL == 0 => {
                    let flags = flags & !libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NOCTTY;
                    fs::open(at.at(), &at.name, flags, 0, libc::RESOLVE_NO_MAGICLINKS)
                }
                made => made,
            }
            .map(Done::Opened);
        }
        Act::Mkdir { at, mode } => fs::mkdir(at.at(), &at.name, mode)?,
        Act::Mknod { at, mode, device } => fs::mknod(at.at(), &at.name, mode, device)?,
        Act::Unlink { at, flags } => fs::unlink(at.at(), &at.name, flags)?,
        Act::Symlink { text, at } => fs::symlink(&text, at.at(), &at.name)?,
        Act::Link {
            from: Linked::Name(from),
            to,
        } => {
            fs::link((from.at(), &from.name), (to.at(), &to.name), 0)?;
        }
        Act::Link {
            from: Linked::File(from),
            to,
        } => {
            let follow = libc::AT_SYMLINK_FOLLOW;
            fs::link((fs::At::Cwd, &from.handle()), (to.at(), &to.name), follow)?;
        }
        Act::Rename { from, to, flags } => {
            fs::rename((from.at(), &from.name), (to.at(), &to.name), flags)?;
        }
        Act::ByFd { target, change } => match change {
            Change::Mode(mode) => fs::fchmod(target.fd.as_fd(), mode)?,
            Change::Owner(owner, group) => fs::fchown(target.fd.as_fd(), owner, group)?,
            Change::Times(times) => fs::futimes(target.fd.as_fd(), times.as_ref())?,
        },
        Act::OpenSlowly { target, flags } => {
            let target = Arc::new(target);
            return Ok(Done::Waits(Slow { target, flags }));
        }
        Act::Change { target, change } => match change {
            Change::Mode(mode) => fs::chmod_held(target.fd.as_fd(), mode)?,
            Change::Owner(owner, group) => fs::chown_held(target.fd.as_fd(), owner, group)?,
            Change::Times(times) => fs::utimes_held(target.fd.as_fd(), times.as_ref())?,
        },
        Act::SetXattr {
            target,
            name,
            value,
            create,
        } => fs::set_attribute(&target.handle(), &name, &value, create)?,
        Act::RemoveXattr { target, name } => fs::remove_attribute(&target.handle(), &name)?,
        Act::Chmod { target, mode } => fs::chmod(&target.handle(), mode)?,
        Act::Chown {
            target,
            owner,
            group,
        } => {
            fs::chown(fs::At::Cwd, &target.handle(), owner, group, 0)?;
        }
        Act::Truncate { target, length } => fs::truncate(&target.handle(), length)?,
        Act::Utimes { target, times } => {
            fs::utimes(fs::At::Cwd, &target.handle(), times.as_ref(), 0)?;
        }
    }
    Ok(Done::Returned)
}
