//! Landlock: rulesets of the rights that the kernel knows.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{Sys, check};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: i32 = 1;
const RULE_NET_PORT: i32 = 2;
/// Programs that are loaded later are logged too.
pub(crate) const LOG_NEW_EXEC_ON: u32 = 1 << 1;
/// The first version that can scope signals.
pub(crate) const ABI_WITH_SCOPES: u32 = 6;
/// The first version that can log.
pub(crate) const ABI_WITH_LOG: u32 = 7;

/// What can be done to files and directories, with the version that knows it first.
const FS: [(&str, u32); 16] = [
    ("fs.execute", 1),
    ("fs.write_file", 1),
    ("fs.read_file", 1),
    ("fs.read_dir", 1),
    ("fs.remove_dir", 1),
    ("fs.remove_file", 1),
    ("fs.make_char", 1),
    ("fs.make_dir", 1),
    ("fs.make_reg", 1),
    ("fs.make_sock", 1),
    ("fs.make_fifo", 1),
    ("fs.make_block", 1),
    ("fs.make_sym", 1),
    ("fs.refer", 2),
    ("fs.truncate", 3),
    ("fs.ioctl_dev", 5),
];
const NET: [(&str, u32); 2] = [("net.bind_tcp", 4), ("net.connect_tcp", 4)];
const SCOPES: [(&str, u32); 2] = [("scope.abstract_unix_socket", 6), ("scope.signal", 6)];

pub(crate) const EXECUTE: u64 = 1;
pub(crate) const READ: u64 = 1 << 2 | 1 << 3;
pub(crate) const REFER: u64 = 1 << 13;
/// Making devices is not among them.
pub(crate) const WRITE: u64 = 1 << 1
    | 1 << 4
    | 1 << 5
    | 1 << 7
    | 1 << 8
    | 1 << 9
    | 1 << 10
    | 1 << 12
    | REFER
    | 1 << 14
    | 1 << 15;
pub(crate) const MAKE_DEVICES: u64 = 1 << 6 | 1 << 11;
/// What can be said of a file that is no directory.
pub(crate) const OF_FILES: u64 = EXECUTE | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15;
pub(crate) const BIND_TCP: u64 = 1;
pub(crate) const CONNECT_TCP: u64 = 1 << 1;
pub(crate) const SCOPE_ABSTRACT: u64 = 1;
pub(crate) const SCOPE_SIGNAL: u64 = 1 << 1;

/// A set of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct Rights {
    pub(crate) fs: u64,
    pub(crate) net: u64,
    pub(crate) scoped: u64,
}

impl Rights {
    /// Those that a version knows.
    pub(crate) fn of_abi(abi: u32) -> Rights {
        let known = |table: &[(&str, u32)]| {
            let bits = table.iter().enumerate();
            bits.filter(|(_, (_, since))| *since <= abi)
                .fold(0, |all, (bit, _)| all | 1 << bit)
        };
        Rights {
            fs: known(&FS),
            net: known(&NET),
            scoped: known(&SCOPES),
        }
    }

    /// Those that both have.
    pub(crate) fn and(self, other: Rights) -> Rights {
        Rights {
            fs: self.fs & other.fs,
            net: self.net & other.net,
            scoped: self.scoped & other.scoped,
        }
    }

    /// Those that the other has not.
    pub(crate) fn without(self, other: Rights) -> Rights {
        Rights {
            fs: self.fs & !other.fs,
            net: self.net & !other.net,
            scoped: self.scoped & !other.scoped,
        }
    }

    /// Their names.
    pub(crate) fn names(self) -> Vec<String> {
        let all = [
            (self.fs, &FS[..]),
            (self.net, &NET[..]),
            (self.scoped, &SCOPES[..]),
        ];
        all.into_iter()
            .flat_map(|(bits, table)| {
                table
                    .iter()
                    .enumerate()
                    .filter(move |(bit, _)| bits >> bit & 1 == 1)
                    .map(|(_, (name, _))| (*name).to_owned())
            })
            .collect()
    }
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

/// Rules that a process can put itself under.
#[derive(Debug)]
pub(crate) struct Ruleset {
    fd: OwnedFd,
    handled: Rights,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

#[repr(C)]
struct NetPort {
    allowed: u64,
    port: u64,
}

impl Ruleset {
    /// A ruleset that refuses these rights, which the kernel must know.
    pub(crate) fn new(handled: Rights) -> Sys<Ruleset> {
        // SAFETY: `handled` has the layout and the size that are given, and the descriptor that comes back is ours.
        let fd = unsafe {
            let fd = check(libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &handled,
                size_of::<Rights>(),
                0,
            ))?;
            OwnedFd::from_raw_fd(fd as i32)
        };
        Ok(Ruleset { fd, handled })
    }

    fn add<T>(&self, kind: i32, rule: &T) -> Sys<()> {
        // SAFETY: `rule` is the structure that the kind asks for, and outlives the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.fd.as_raw_fd(),
                kind,
                std::ptr::from_ref(rule),
                0,
            )
        })
        .map(drop)
    }

    /// Gives back rights to a file, or to everything below a directory.
    pub(crate) fn allow_beneath(&self, file: BorrowedFd<'_>, rights: u64) -> Sys<()> {
        let allowed = rights & self.handled.fs;
        if allowed == 0 {
            return Ok(());
        }
        let parent = file.as_raw_fd();
        self.add(RULE_PATH_BENEATH, &PathBeneath { allowed, parent })
    }

    /// Gives back rights to a port.
    pub(crate) fn allow_port(&self, port: u16, rights: u64) -> Sys<()> {
        let allowed = rights & self.handled.net;
        if allowed == 0 {
            return Ok(());
        }
        let port = port.into();
        self.add(RULE_NET_PORT, &NetPort { allowed, port })
    }

    /// What [`enter`] takes.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Puts the calling thread under the rules of a ruleset. It must have given up new privileges. Safe between fork and
/// exec.
pub(crate) fn enter(ruleset: RawFd, flags: u32) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, flags) }).map(drop)
}

/// A ruleset under which no process outside can be signalled or traced.
pub(crate) fn signal_scope() -> Sys<Ruleset> {
    Ruleset::new(Rights {
        scoped: SCOPE_SIGNAL,
        ..Rights::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_knows_more() {
        let counts = [1, 2, 3, 4, 5, 6, 7].map(|abi| Rights::of_abi(abi).names().len());
        assert_eq!(counts, [13, 14, 15, 17, 18, 20, 20]);
        assert_eq!(Rights::of_abi(1).fs, 0x1fff);
        assert_eq!(Rights::of_abi(7).fs, 0xffff);
        assert_eq!(READ | WRITE | EXECUTE | MAKE_DEVICES, 0xffff);
        let missing = Rights::of_abi(7).without(Rights::of_abi(4));
        let names = ["fs.ioctl_dev", "scope.abstract_unix_socket", "scope.signal"];
        assert_eq!(missing.names(), names);
    }
}
