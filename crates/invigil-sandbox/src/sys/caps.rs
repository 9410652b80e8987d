//! Capabilities of the calling thread. They can only be given up here.

use super::{Sys, check, prctl};

const VERSION_3: u32 = 0x2008_0522;

/// What an ordinary build or installation by root needs.
pub(crate) const ORDINARY: u64 = bit(CHOWN)
    | bit(DAC_OVERRIDE)
    | bit(FOWNER)
    | bit(FSETID)
    | bit(KILL)
    | bit(SETGID)
    | bit(SETUID)
    | bit(NET_BIND_SERVICE);
/// What it takes to look into and to end processes that have changed their user.
pub(crate) const WATCHING: u64 = bit(KILL) | bit(SYS_PTRACE);

const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const NET_BIND_SERVICE: u32 = 10;
const SYS_PTRACE: u32 = 19;

const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

const fn bit(number: u32) -> u64 {
    1 << number
}

/// The names of a set: `cap_chown` and so on.
pub(crate) fn names(set: u64) -> Vec<String> {
    let named = NAMES.iter().enumerate();
    named
        .filter(|(number, _)| set >> number & 1 == 1)
        .map(|(_, name)| format!("cap_{name}"))
        .collect()
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const SELF: Header = Header {
    version: VERSION_3,
    pid: 0,
};

fn permitted() -> Sys<u64> {
    let mut halves = [Half::default(); 2];
    // SAFETY: both structures have the layout of this version and outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &SELF, &mut halves) })?;
    Ok(u64::from(halves[0].permitted) | u64::from(halves[1].permitted) << 32)
}

/// Leaves the calling thread with those capabilities of `keep` that it has. Safe between fork and exec.
pub(crate) fn keep(keep: u64) -> Sys<()> {
    let left = permitted()? & keep;
    let half = |bits: u64| Half {
        effective: bits as u32,
        permitted: bits as u32,
        inheritable: 0,
    };
    let halves = [half(left), half(left >> 32)];
    // SAFETY: both structures have the layout of this version and outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &SELF, &halves) }).map(drop)
}

/// The same for good: nothing that is loaded later gets others back. Who may not change what can be gained back has
/// nothing to gain, unless it is root in a container that forbids the change; what is left then can be seen from
/// outside. Safe between fork and exec.
pub(crate) fn keep_for_good(kept: u64) -> Sys<()> {
    for number in (0..64).filter(|number| kept >> number & 1 == 0) {
        // Ends at the first number that the kernel does not know, or at once without the right to do this.
        if prctl(libc::PR_CAPBSET_DROP, number).is_err() {
            break;
        }
    }
    let clear_all = libc::PR_CAP_AMBIENT_CLEAR_ALL as u64;
    let _ = prctl(libc::PR_CAP_AMBIENT, clear_all);
    keep(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_names() {
        let names = names(ORDINARY);
        assert_eq!(names.len(), 8);
        assert!(names.contains(&"cap_net_bind_service".to_owned()));
    }
}
