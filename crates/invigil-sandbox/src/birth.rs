//! What a new process does to itself before it goes on as what it is to be: it waits until it is watched, takes on its
//! bounds, leaves the descriptor table that it was born with, and takes its streams.
//!
//! All of it is system calls: no allocation, no lock, no panic. So it can be done in the copy of a process that has many
//! threads.

use std::ffi::CStr;
use std::os::fd::RawFd;

use invigil_schema::Errno;

use crate::filter::{self, Trap};
use crate::sys::{self, caps, landlock};

/// Where a launch can fail in the child; also the tags of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Step {
    Ready = 1,
    Watched,
    Chdir,
    Limits,
    NoNewPrivileges,
    Capabilities,
    Landlock,
    Filter,
    Descriptors,
    Exec,
}

impl Step {
    pub(crate) fn from_tag(tag: i32) -> Option<Step> {
        use Step::*;
        [
            Ready,
            Watched,
            Chdir,
            Limits,
            NoNewPrivileges,
            Capabilities,
            Landlock,
            Filter,
            Descriptors,
            Exec,
        ]
        .into_iter()
        .find(|s| *s as i32 == tag)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Ready | Step::Watched => "the handshake",
            Step::Chdir => "chdir",
            Step::Limits => "setrlimit",
            Step::NoNewPrivileges => "no_new_privs",
            Step::Capabilities => "giving up capabilities",
            Step::Landlock => "Landlock",
            Step::Filter => "the seccomp filter",
            Step::Descriptors => "the descriptor table",
            Step::Exec => "execve",
        }
    }
}

/// Everything that is needed for it, made before the process exists.
#[derive(Clone, Copy)]
pub(crate) struct Birth<'a> {
    pub(crate) cwd: &'a CStr,
    /// How much of [`RESOURCES`] each process may use, where that is limited.
    pub(crate) limits: [Option<u64>; LIMITS],
    /// How it is watched; without, it is not, and takes on no bounds.
    pub(crate) trap: Option<Trap>,
    pub(crate) gives_up_capabilities: bool,
    /// The Landlock rules to enter, and how.
    pub(crate) ruleset: Option<(RawFd, u32)>,
    pub(crate) program: &'a [libc::sock_filter],
    /// What its standard streams become.
    pub(crate) streams: [Option<RawFd>; 3],
    pub(crate) mask: libc::sigset_t,
    /// Where it says how far it is.
    pub(crate) status: RawFd,
    /// Where it hears that it is watched.
    pub(crate) go: RawFd,
}

/// What the kernel limits for each process.
const RESOURCES: [libc::__rlimit_resource_t; LIMITS] = [
    libc::RLIMIT_FSIZE,
    libc::RLIMIT_DATA,
    libc::RLIMIT_CPU,
    libc::RLIMIT_NPROC,
    libc::RLIMIT_CORE,
];
/// So many are limited.
pub(crate) const LIMITS: usize = 5;

impl Birth<'_> {
    fn say(&self, step: Step, value: i32, extra: i32) {
        let mut bytes = [0u8; 12];
        bytes[..4].copy_from_slice(&(step as i32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&value.to_ne_bytes());
        bytes[8..].copy_from_slice(&extra.to_ne_bytes());
        // SAFETY: 12 bytes, which a pipe takes whole.
        unsafe { libc::write(self.status, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Says why it ends, and ends.
    pub(crate) fn fail(&self, step: Step, error: Errno) -> ! {
        self.say(step, error.0, 0);
        end()
    }

    /// Returns when the process is watched, bounded and alone with its streams. What else it has stays open until it loads
    /// something. To be called with all signals blocked, by a process that those who want to watch it may watch.
    pub(crate) fn grow(&self) {
        self.say(Step::Ready, 0, 0);
        let mut go = 0u8;
        // SAFETY: room for one byte.
        if unsafe { libc::read(self.go, std::ptr::from_mut(&mut go).cast(), 1) } != 1 {
            end();
        }
        // SAFETY: the path ends in a zero byte.
        if unsafe { libc::chdir(self.cwd.as_ptr()) } != 0 {
            self.fail(Step::Chdir, sys::errno());
        }
        for (resource, limit) in RESOURCES.into_iter().zip(self.limits) {
            if let Some(limit) = limit
                && let Err(error) = sys::lower_limit(resource, limit)
            {
                self.fail(Step::Limits, error);
            }
        }
        let (listener, killable) = match self.trap {
            Some(trap) => self.confine(trap),
            None => (-1, false),
        };
        self.leave_table();
        self.say(Step::Watched, listener, killable.into());
        self.take_streams();
        // Somebody is there now to pass signals on.
        sys::set_mask(&self.mask);
    }

    fn confine(&self, trap: Trap) -> (i32, bool) {
        if let Err(error) = sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1) {
            self.fail(Step::NoNewPrivileges, error);
        }
        if self.gives_up_capabilities
            && let Err(error) = caps::keep_for_good(caps::ORDINARY)
        {
            self.fail(Step::Capabilities, error);
        }
        if let Some((ruleset, flags)) = self.ruleset
            && let Err(error) = landlock::enter(ruleset, flags)
        {
            self.fail(Step::Landlock, error);
        }
        let program = filter::as_fprog(self.program);
        let install = |flags: libc::c_ulong| {
            // SAFETY: `program` points to the compiled filter, which outlives the call.
            sys::check(unsafe {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    flags,
                    &program,
                )
            })
        };
        if trap == Trap::Trace {
            return match install(0) {
                Ok(_) => (-1, false),
                Err(error) => self.fail(Step::Filter, error),
            };
        }
        let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        match install(listener | killable) {
            Ok(fd) => return (fd as i32, true),
            Err(Errno(libc::EINVAL)) => {}
            Err(error) => self.fail(Step::Filter, error),
        }
        match install(listener) {
            Ok(fd) => (fd as i32, false),
            Err(error) => self.fail(Step::Filter, error),
        }
    }

    /// Takes a copy of the descriptor table. `unshare` is refused in some containers, `close_range` is not.
    fn leave_table(&self) {
        const CLOSE_RANGE_UNSHARE: u32 = 2;
        // SAFETY: closes a descriptor that cannot exist; unshares the table.
        let unshared = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                u32::MAX,
                u32::MAX,
                CLOSE_RANGE_UNSHARE,
            ) == 0
                || libc::unshare(libc::CLONE_FILES) == 0
        };
        if !unshared {
            self.fail(Step::Descriptors, sys::errno());
        }
    }

    fn take_streams(&self) {
        // A stream that is given as descriptor 0 to 2 could be overwritten before it is used.
        let mut sources = [-1; 3];
        for (target, stream) in self.streams.into_iter().enumerate() {
            if let Some(fd) = stream {
                // SAFETY: plain integers.
                sources[target] = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
                if sources[target] < 0 {
                    self.fail(Step::Descriptors, sys::errno());
                }
            }
        }
        for (target, source) in sources.into_iter().enumerate() {
            // SAFETY: plain integers; the duplicate is not closed at exec.
            if source >= 0 && unsafe { libc::dup2(source, target as i32) } < 0 {
                self.fail(Step::Descriptors, sys::errno());
            }
        }
    }
}

/// Ends a process that has gone no further than this, without running anything of ours.
pub(crate) fn end() -> ! {
    // SAFETY: no memory is involved.
    unsafe { libc::_exit(127) }
}
