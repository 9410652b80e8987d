//! seccomp notifications.

use std::os::fd::{AsRawFd, BorrowedFd};

use invigil_schema::Errno;

use super::{Sys, check};

/// Makes the observer run on the processor of the caller, at once.
const FD_SYNC_WAKE_UP: u64 = 1;

/// A call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notification {
    /// What to answer to.
    pub(crate) id: u64,
    /// The thread that waits.
    pub(crate) tid: u32,
    /// The architecture of the call.
    pub(crate) arch: u32,
    /// Its number.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
}

/// What a call is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is done, and this is what it returns.
    Return(i64),
    /// It fails.
    Fail(Errno),
    /// The kernel shall carry it out.
    Continue,
}

/// Asks for synchronous wake-ups; false where the kernel does not know them.
pub(crate) fn set_sync_wake_up(listener: BorrowedFd<'_>) -> bool {
    // SAFETY: the argument of this request is an integer.
    let set = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
            FD_SYNC_WAKE_UP,
        )
    };
    set == 0
}

/// Takes the next call. `ENOENT` if it was there and is not any more.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> Sys<Notification> {
    // SAFETY: the kernel wants an all-zero structure and fills it.
    let notification = unsafe {
        let mut notification: libc::seccomp_notif = std::mem::zeroed();
        check(libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &mut notification,
        ))?;
        notification
    };
    Ok(Notification {
        id: notification.id,
        tid: notification.pid,
        arch: notification.data.arch,
        number: notification.data.nr.into(),
        arguments: notification.data.args,
    })
}

/// Answers a call. `ENOENT` if nobody waits any more.
pub(crate) fn reply(listener: BorrowedFd<'_>, id: u64, reply: Reply) -> Sys<()> {
    let response = libc::seccomp_notif_resp {
        id,
        val: match reply {
            Reply::Return(value) => value,
            _ => 0,
        },
        error: match reply {
            Reply::Fail(Errno(number)) => -number,
            _ => 0,
        },
        flags: match reply {
            Reply::Continue => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            _ => 0,
        },
    };
    // SAFETY: `response` outlives the call.
    check(unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &response,
        )
    })
    .map(drop)
}

/// Puts a descriptor into the caller and answers with its number, in one step.
pub(crate) fn inject(
    listener: BorrowedFd<'_>,
    id: u64,
    fd: BorrowedFd<'_>,
    close_on_exec: bool,
) -> Sys<i64> {
    let add = libc::seccomp_notif_addfd {
        id,
        flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
        srcfd: fd.as_raw_fd() as u32,
        newfd: 0,
        newfd_flags: if close_on_exec {
            libc::O_CLOEXEC as u32
        } else {
            0
        },
    };
    // SAFETY: `add` outlives the call.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &add) })
}

/// Whether the call still waits.
pub(crate) fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: `id` outlives the call.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &id,
        ) == 0
    }
}
