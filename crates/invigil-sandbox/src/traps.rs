//! Which system calls are trapped, and when.

use crate::calls::{
    CLONE_IDENTITY, CLONE_UNTRACED, F_SETOWN_EX, FCHMODAT2, FILE_SETATTR, FIOSETOWN,
    FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, NAMESPACES, OPEN_TREE_ATTR,
    PROCESS_MRELEASE, REMOVEXATTRAT, SETXATTRAT, SIOCSPGRP, TIOCLINUX, TIOCSTI,
};
use crate::confine::Sockets;
use crate::filter::{Rule, When};
use crate::names::CONFINED;

const NEW_LISTENER: u64 = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
const OPEN_TREE_CLONE: u32 = 1;
/// Bits of `open` that can change something: not plainly for reading.
const OPEN_CHANGES: u64 = (libc::O_WRONLY
    | libc::O_RDWR
    | libc::O_CREAT
    | libc::O_TRUNC
    | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;

/// What decides how much is trapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// Opens for reading too.
    pub(crate) reads: bool,
    /// Landlock keeps signals inside.
    pub(crate) signals_scoped: bool,
    /// Sockets may not have source routes.
    pub(crate) exact: bool,
    /// The supervisor's pid.
    pub(crate) supervisor: u32,
    /// Which sockets are trapped when they are made, in a confined run.
    pub(crate) confined: Option<Sockets>,
}

/// Who gets signals about a file, what types into a terminal, and what changes attributes.
const IOCTLS: &[u32] = &[
    FIOSETOWN,
    SIOCSPGRP,
    TIOCSTI,
    TIOCLINUX,
    FS_IOC_SETFLAGS,
    FS_IOC32_SETFLAGS,
    FS_IOC_FSSETXATTR,
];

/// The rules of the filter, the frequent calls first.
pub(crate) fn rules(scope: Scope) -> Vec<Rule> {
    let always = |number| Rule {
        number,
        when: When::Always,
    };
    let open = |number, flags| Rule {
        number,
        when: if scope.reads {
            When::Always
        } else {
            When::AnyBit(flags, OPEN_CHANGES as u32)
        },
    };
    let signal = |number| Rule {
        number,
        when: if scope.signals_scoped {
            When::Equals(0, scope.supervisor)
        } else {
            When::Always
        },
    };
    let mut rules = vec![
        open(libc::SYS_openat, 2),
        Rule {
            number: libc::SYS_sendto,
            when: When::NonZero(4),
        },
        Rule {
            number: libc::SYS_clone,
            when: When::Clone(match scope.confined {
                Some(_) => (CLONE_UNTRACED | NAMESPACES) as u32,
                None => (CLONE_UNTRACED | CLONE_IDENTITY) as u32,
            }),
        },
        Rule {
            number: libc::SYS_prctl,
            when: When::Equals(0, libc::PR_SET_DUMPABLE as u32),
        },
        Rule {
            number: libc::SYS_prlimit64,
            when: When::NonZero(0),
        },
        // Who gets a signal when something can be read.
        Rule {
            number: libc::SYS_fcntl,
            when: When::OneOf(
                1,
                match scope.confined {
                    Some(_) => &[libc::F_SETOWN as u32, F_SETOWN_EX, libc::F_SETLEASE as u32],
                    None => &[libc::F_SETOWN as u32, F_SETOWN_EX],
                },
            ),
        },
        Rule {
            number: libc::SYS_ioctl,
            when: When::OneOf(1, IOCTLS),
        },
        Rule {
            number: libc::SYS_open_tree,
            when: When::AnyBit(2, OPEN_TREE_CLONE),
        },
        Rule {
            number: OPEN_TREE_ATTR,
            when: When::AnyBit(2, OPEN_TREE_CLONE),
        },
        Rule {
            number: libc::SYS_seccomp,
            when: When::AnyBit(1, NEW_LISTENER as u32),
        },
        Rule {
            number: libc::SYS_unshare,
            when: When::AnyBit(0, !(libc::CLONE_FILES as u32)),
        },
        // Its flags are in memory, where another thread could add CLONE_UNTRACED. Every libc falls back to clone.
        Rule {
            number: libc::SYS_clone3,
            when: When::Refused(libc::ENOSYS as u16),
        },
        signal(libc::SYS_kill),
        signal(libc::SYS_tkill),
        signal(libc::SYS_rt_sigqueueinfo),
        // These two name the process of the thread as well, and the kernel checks that it is right.
        Rule {
            number: libc::SYS_tgkill,
            when: When::Equals(0, scope.supervisor),
        },
        Rule {
            number: libc::SYS_rt_tgsigqueueinfo,
            when: When::Equals(0, scope.supervisor),
        },
    ];
    rules.extend(ALWAYS.iter().chain(ALWAYS_OLD).copied().map(always));
    rules.extend(schedules());
    if let Some(sockets) = scope.confined {
        rules.extend(CONFINED.iter().map(|(number, _)| always(*number)));
        rules.extend(OF_OTHERS.iter().copied().map(always));
        // Without a number they are about the caller itself.
        let of_others = [libc::SYS_migrate_pages, libc::SYS_move_pages];
        rules.extend(of_others.map(|number| Rule {
            number,
            when: When::NonZero(0),
        }));
        let when = match sockets {
            Sockets::Free => None,
            Sockets::Unusual => Some(When::Socket),
            Sockets::All => Some(When::Always),
        };
        let number = libc::SYS_socket;
        rules.extend(when.map(|when| Rule { number, when }));
    }
    if scope.exact {
        rules.push(Rule {
            number: libc::SYS_setsockopt,
            when: When::RefusedOptions(libc::EPERM as u16, SOURCE_ROUTES),
        });
    }
    #[cfg(target_arch = "x86_64")]
    rules.push(open(libc::SYS_open, 1));
    rules
}

/// Calls about the memory of others, and about clocks, that only a confined run is judged for.
const OF_OTHERS: &[i64] = &[
    libc::SYS_process_madvise,
    PROCESS_MRELEASE,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
];

/// Priorities and processors of others than the caller.
fn schedules() -> impl Iterator<Item = Rule> {
    const PROCESS: u32 = 0;
    const IO_PROCESS: u32 = 1;
    [
        (libc::SYS_setpriority, When::NotBoth(PROCESS, 0)),
        (libc::SYS_ioprio_set, When::NotBoth(IO_PROCESS, 0)),
        (libc::SYS_sched_setaffinity, When::NonZero(0)),
        (libc::SYS_sched_setscheduler, When::NonZero(0)),
        (libc::SYS_sched_setparam, When::NonZero(0)),
        (libc::SYS_sched_setattr, When::NonZero(0)),
    ]
    .into_iter()
    .map(|(number, when)| Rule { number, when })
}
/// Options of sockets, by level and name, that let packets go first to another host than the one they are sent to.
const SOURCE_ROUTES: &[(i32, i32)] = &[
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
    (libc::IPPROTO_IPV6, libc::IPV6_RTHDR),
    (libc::IPPROTO_IPV6, IPV6_2292RTHDR),
    (libc::IPPROTO_IPV6, IPV6_2292PKTOPTIONS),
];
const IPV6_2292RTHDR: i32 = 5;
const IPV6_2292PKTOPTIONS: i32 = 6;

const ALWAYS: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_openat2,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_fsconfig,
    libc::SYS_umount2,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_umask,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_setns,
    libc::SYS_landlock_restrict_self,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_io_uring_setup,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
];

#[cfg(target_arch = "x86_64")]
const ALWAYS_OLD: &[i64] = &[
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_link,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_OLD: &[i64] = &[38];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::decode;

    #[test]
    fn whatever_is_trapped_can_be_decoded() {
        let scope = Scope {
            reads: true,
            signals_scoped: false,
            exact: true,
            supervisor: 1,
            confined: Some(Sockets::All),
        };
        for rule in rules(scope) {
            let refused = matches!(rule.when, When::Refused(_) | When::RefusedOptions(..));
            assert!(refused || decode(rule.number, [0; 6]).is_some(), "{rule:?}");
        }
    }

    #[test]
    fn no_number_is_there_twice() {
        let scope = Scope {
            reads: false,
            signals_scoped: true,
            exact: true,
            supervisor: 1,
            confined: Some(Sockets::Unusual),
        };
        let mut numbers: Vec<_> = rules(scope).iter().map(|r| r.number).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
    }
}
