//! Calls that the evidence speaks of by their names.

use crate::calls::QUOTACTL_FD;

/// Calls that only a confined run is refused.
pub(crate) const CONFINED: &[(i64, &str)] = &[
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_reboot, "reboot"),
    (libc::SYS_swapon, "swapon"),
    (libc::SYS_swapoff, "swapoff"),
    (libc::SYS_acct, "acct"),
    (libc::SYS_quotactl, "quotactl"),
    (QUOTACTL_FD, "quotactl_fd"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_settimeofday, "settimeofday"),
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_setdomainname, "setdomainname"),
    (libc::SYS_fanotify_init, "fanotify_init"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_ioperm, "ioperm"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_iopl, "iopl"),
];

/// The name of a call by which a process would get other rights.
pub(crate) fn rights(number: i64) -> Option<&'static str> {
    Some(match number {
        libc::SYS_setuid => "setuid",
        libc::SYS_setgid => "setgid",
        libc::SYS_setreuid => "setreuid",
        libc::SYS_setregid => "setregid",
        libc::SYS_setresuid => "setresuid",
        libc::SYS_setresgid => "setresgid",
        libc::SYS_setgroups => "setgroups",
        libc::SYS_capset => "capset",
        _ => return None,
    })
}
