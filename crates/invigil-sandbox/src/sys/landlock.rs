//! Landlock: the one rule that is used here keeps signals, and with them tracing, inside the run.

use std::os::fd::{FromRawFd, OwnedFd};

use super::{Sys, check};

const CREATE_RULESET_VERSION: u32 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;
/// The first version that can scope signals.
pub(crate) const ABI_WITH_SCOPES: u32 = 6;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// The version that the kernel has, if it has Landlock.
pub(crate) fn abi() -> Option<u32> {
    // SAFETY: with this flag the kernel reads no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            CREATE_RULESET_VERSION,
        )
    };
    check(version).ok().map(|v| v as u32)
}

/// A ruleset under which no process outside can be signalled or traced.
pub(crate) fn signal_scope() -> Sys<OwnedFd> {
    let attr = RulesetAttr {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: SCOPE_SIGNAL,
    };
    // SAFETY: `attr` has the size that is given, and the descriptor that comes back is ours.
    unsafe {
        let fd = check(libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &attr,
            size_of::<RulesetAttr>(),
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}
