//! What the numbers and registers of trapped calls mean. Nothing here reads memory.

use crate::names::CONFINED;

/// Numbers that newer kernels have on every architecture.
pub(crate) const QUOTACTL_FD: i64 = 443;
pub(crate) const PROCESS_MRELEASE: i64 = 448;
pub(crate) const FCHMODAT2: i64 = 452;
pub(crate) const SETXATTRAT: i64 = 463;
pub(crate) const REMOVEXATTRAT: i64 = 466;
pub(crate) const OPEN_TREE_ATTR: i64 = 467;
pub(crate) const FILE_SETATTR: i64 = 469;

pub(crate) const F_SETOWN_EX: u32 = 15;
pub(crate) const FIOSETOWN: u32 = 0x8901;
pub(crate) const SIOCSPGRP: u32 = 0x8902;

pub(crate) const TIOCSTI: u32 = 0x5412;
pub(crate) const TIOCLINUX: u32 = 0x541c;
/// Flags of a file, in the three forms in which they can be set.
pub(crate) const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
pub(crate) const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
pub(crate) const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Every kind of namespace; the last one only for `unshare`, where the bits are not those of a signal.
pub(crate) const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP) as u32 as u64;
pub(crate) const NEW_TIME: u64 = 0x80;

pub(crate) const CLONE_UNTRACED: u64 = 0x0080_0000;
/// A new namespace of any kind, or a file system context that two processes share.
pub(crate) const CLONE_IDENTITY: u64 =
    (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET) as u32
        as u64;
/// `AF_UNSPEC` as `at`: the call has no directory.
pub(crate) const CWD: i32 = libc::AT_FDCWD;

/// Which file a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path, relative to a directory.
    At {
        /// The directory's descriptor in the caller.
        dir: i32,
        /// Where the caller keeps the path.
        path: u64,
    },
    /// An open file.
    Fd(i32),
}

/// When a file was used, as the caller keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Two `timespec`s, or null.
    Specs(u64),
    /// One of the old forms, which is left to the kernel.
    Old,
}

/// The value of an attribute of a file, as the caller keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// Where it is, and how long.
    At(u64, u64),
    /// The same is told by a `struct xattr_args`.
    In(u64),
    /// It is no attribute with a name.
    Unknown,
}

/// Who shall get signals about an open file: a process, or a group if it is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This one.
    Number(i64),
    /// It is in the caller's memory.
    At(u64),
    /// It is in the caller's memory, behind its kind.
    Kinded(u64),
}

/// Whose priority or processors a call is about; 0 is the caller's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Process(i64),
    Group(i64),
    User(i64),
}

/// A trapped call, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Open {
        dir: i32,
        path: u64,
        flags: i32,
        mode: u32,
    },
    OpenHow {
        dir: i32,
        path: u64,
        how: u64,
        size: u64,
    },
    Exec {
        dir: i32,
        path: u64,
        argv: u64,
        flags: i32,
    },
    Mkdir {
        at: Place,
        mode: u32,
    },
    Mknod {
        at: Place,
        mode: u32,
        device: u64,
    },
    Unlink {
        at: Place,
        flags: i32,
    },
    Symlink {
        target: u64,
        at: Place,
    },
    Link {
        from: Place,
        to: Place,
        flags: i32,
    },
    Rename {
        from: Place,
        to: Place,
        flags: u32,
    },
    Chmod {
        at: Place,
        mode: u32,
        flags: i32,
    },
    Chown {
        at: Place,
        owner: u32,
        group: u32,
        flags: i32,
    },
    Truncate {
        at: Place,
        length: i64,
    },
    Utimes {
        at: Place,
        times: Times,
        flags: i32,
    },
    SetXattr {
        at: Place,
        name: u64,
        value: Value,
        /// Whether it must be there already, or must not.
        create: i32,
        flags: i32,
    },
    RemoveXattr {
        at: Place,
        name: u64,
        flags: i32,
    },
    Mount {
        /// What shows up there, if that is another part of the tree of files.
        from: Option<Place>,
        at: Place,
        /// Where the caller keeps the options, or null.
        options: u64,
        unmount: bool,
    },
    /// A copy of a part of the tree of files, to be mounted later.
    CopyTree {
        at: Place,
    },
    /// An option of a file system that is to be mounted later.
    MountOption {
        key: u64,
        value: Place,
    },
    Chroot {
        at: Place,
    },
    Connect {
        fd: i32,
        address: u64,
        length: u64,
    },
    Bind {
        fd: i32,
        address: u64,
        length: u64,
    },
    Listen {
        fd: i32,
        backlog: i32,
    },
    SendTo {
        fd: i32,
        data: u64,
        size: u64,
        flags: i32,
        address: u64,
        length: u64,
    },
    SendMsg {
        fd: i32,
        message: u64,
        flags: i32,
    },
    SendMmsg {
        fd: i32,
        messages: u64,
        count: u64,
        flags: i32,
    },
    Umask {
        mask: u32,
    },
    /// Credentials, namespaces or a sandbox of its own: what the process may do is no longer what we may do.
    Identity,
    NewNamespace,
    Chdir,
    CloneUntraced,
    NotDumpable,
    Signal {
        target: i64,
        signal: i32,
    },
    SignalByFd {
        pidfd: i32,
        signal: i32,
        group: bool,
    },
    /// Signals about an open file shall go to somebody.
    SignalOwner(Owner),
    Trace {
        request: u64,
        target: i64,
    },
    ForeignMemory {
        target: i64,
    },
    /// The same for whoever a descriptor stands for.
    ForeignMemoryByFd {
        pidfd: i32,
    },
    /// Whoever opens a file that is leased waits until the lease is given back.
    Lease,
    /// Where the caller keeps how a clock shall be changed.
    Clock {
        at: u64,
    },
    PidfdGetFd {
        pidfd: i32,
    },
    Limits {
        target: i64,
    },
    /// How much of the machine somebody gets.
    Schedule(Whose),
    /// Input that nobody has typed.
    Typing,
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    /// A file system or a copy of a tree that has no place yet.
    DetachedMount {
        name: &'static str,
    },
    /// Only trapped in a confined run.
    Confined {
        name: &'static str,
    },
    NewListener,
    IoUring,
    Privileged {
        name: &'static str,
    },
}

fn whose(kind: u32, who: u64) -> Whose {
    let who = i64::from(who as i32);
    match kind {
        0 => Whose::Process(who),
        1 => Whose::Group(who),
        _ => Whose::User(who),
    }
}

fn at(dir: u64, path: u64) -> Place {
    Place::At {
        dir: dir as i32,
        path,
    }
}

const PIDFD_SIGNAL_PROCESS_GROUP: u64 = 4;
const MOVE_MOUNT_F_EMPTY_PATH: u64 = 0x04;
const MOVE_MOUNT_T_EMPTY_PATH: u64 = 0x40;
const FSCONFIG_SET_PATH: u64 = 3;
const FSCONFIG_SET_PATH_EMPTY: u64 = 4;
const FSCONFIG_SET_FD: u64 = 5;

/// Whether a mount with these flags shows a part of the tree of files at a second place.
fn shows_files(flags: u64) -> bool {
    flags & (libc::MS_BIND | libc::MS_MOVE) != 0 && flags & libc::MS_REMOUNT == 0
}

/// What the calls that every architecture has mean.
fn decode_common(number: i64, a: [u64; 6]) -> Option<Call> {
    let call = match number {
        libc::SYS_openat => Call::Open {
            dir: a[0] as i32,
            path: a[1],
            flags: a[2] as i32,
            mode: a[3] as u32,
        },
        libc::SYS_openat2 => Call::OpenHow {
            dir: a[0] as i32,
            path: a[1],
            how: a[2],
            size: a[3],
        },
        libc::SYS_execve => Call::Exec {
            dir: CWD,
            path: a[0],
            argv: a[1],
            flags: 0,
        },
        libc::SYS_execveat => Call::Exec {
            dir: a[0] as i32,
            path: a[1],
            argv: a[2],
            flags: a[4] as i32,
        },
        libc::SYS_mkdirat => Call::Mkdir {
            at: at(a[0], a[1]),
            mode: a[2] as u32,
        },
        libc::SYS_mknodat => Call::Mknod {
            at: at(a[0], a[1]),
            mode: a[2] as u32,
            device: a[3],
        },
        libc::SYS_unlinkat => Call::Unlink {
            at: at(a[0], a[1]),
            flags: a[2] as i32,
        },
        libc::SYS_symlinkat => Call::Symlink {
            target: a[0],
            at: at(a[1], a[2]),
        },
        libc::SYS_linkat => Call::Link {
            from: at(a[0], a[1]),
            to: at(a[2], a[3]),
            flags: a[4] as i32,
        },
        libc::SYS_renameat2 => Call::Rename {
            from: at(a[0], a[1]),
            to: at(a[2], a[3]),
            flags: a[4] as u32,
        },
        libc::SYS_fchmod => Call::Chmod {
            at: Place::Fd(a[0] as i32),
            mode: a[1] as u32,
            flags: 0,
        },
        libc::SYS_fchmodat => Call::Chmod {
            at: at(a[0], a[1]),
            mode: a[2] as u32,
            flags: 0,
        },
        FCHMODAT2 => Call::Chmod {
            at: at(a[0], a[1]),
            mode: a[2] as u32,
            flags: a[3] as i32,
        },
        libc::SYS_fchown => Call::Chown {
            at: Place::Fd(a[0] as i32),
            owner: a[1] as u32,
            group: a[2] as u32,
            flags: 0,
        },
        libc::SYS_fchownat => Call::Chown {
            at: at(a[0], a[1]),
            owner: a[2] as u32,
            group: a[3] as u32,
            flags: a[4] as i32,
        },
        libc::SYS_truncate => Call::Truncate {
            at: at(CWD as u64, a[0]),
            length: a[1] as i64,
        },
        libc::SYS_utimensat if a[1] == 0 => Call::Utimes {
            at: Place::Fd(a[0] as i32),
            times: Times::Specs(a[2]),
            flags: 0,
        },
        libc::SYS_utimensat => Call::Utimes {
            at: at(a[0], a[1]),
            times: Times::Specs(a[2]),
            flags: a[3] as i32,
        },
        libc::SYS_setxattr => Call::SetXattr {
            at: at(CWD as u64, a[0]),
            name: a[1],
            value: Value::At(a[2], a[3]),
            create: a[4] as i32,
            flags: 0,
        },
        libc::SYS_lsetxattr => Call::SetXattr {
            at: at(CWD as u64, a[0]),
            name: a[1],
            value: Value::At(a[2], a[3]),
            create: a[4] as i32,
            flags: libc::AT_SYMLINK_NOFOLLOW,
        },
        libc::SYS_fsetxattr => Call::SetXattr {
            at: Place::Fd(a[0] as i32),
            name: a[1],
            value: Value::At(a[2], a[3]),
            create: a[4] as i32,
            flags: 0,
        },
        SETXATTRAT => Call::SetXattr {
            at: at(a[0], a[1]),
            name: a[3],
            value: Value::In(a[4]),
            create: 0,
            flags: a[2] as i32,
        },
        libc::SYS_removexattr => Call::RemoveXattr {
            at: at(CWD as u64, a[0]),
            name: a[1],
            flags: 0,
        },
        libc::SYS_lremovexattr => Call::RemoveXattr {
            at: at(CWD as u64, a[0]),
            name: a[1],
            flags: libc::AT_SYMLINK_NOFOLLOW,
        },
        libc::SYS_fremovexattr => Call::RemoveXattr {
            at: Place::Fd(a[0] as i32),
            name: a[1],
            flags: 0,
        },
        REMOVEXATTRAT => Call::RemoveXattr {
            at: at(a[0], a[1]),
            name: a[3],
            flags: a[2] as i32,
        },
        FILE_SETATTR => Call::SetXattr {
            at: at(a[0], a[1]),
            name: 0,
            value: Value::Unknown,
            create: 0,
            flags: a[4] as i32,
        },
        libc::SYS_mount => Call::Mount {
            from: shows_files(a[3]).then_some(at(CWD as u64, a[0])),
            at: at(CWD as u64, a[1]),
            options: a[4],
            unmount: false,
        },
        libc::SYS_move_mount => Call::Mount {
            // A mount without a place yet was looked at when it was made.
            from: (a[4] & MOVE_MOUNT_F_EMPTY_PATH == 0).then_some(at(a[0], a[1])),
            at: if a[4] & MOVE_MOUNT_T_EMPTY_PATH == 0 {
                at(a[2], a[3])
            } else {
                Place::Fd(a[2] as i32)
            },
            options: 0,
            unmount: false,
        },
        libc::SYS_umount2 => Call::Mount {
            from: None,
            at: at(CWD as u64, a[0]),
            options: 0,
            unmount: true,
        },
        libc::SYS_open_tree | OPEN_TREE_ATTR => Call::CopyTree {
            at: if a[2] as i32 & libc::AT_EMPTY_PATH == 0 {
                at(a[0], a[1])
            } else {
                Place::Fd(a[0] as i32)
            },
        },
        libc::SYS_fsconfig => Call::MountOption {
            key: a[2],
            value: match a[1] {
                FSCONFIG_SET_PATH => at(a[4], a[3]),
                FSCONFIG_SET_PATH_EMPTY | FSCONFIG_SET_FD => Place::Fd(a[4] as i32),
                _ => at(CWD as u64, a[3]),
            },
        },
        libc::SYS_chroot => Call::Chroot {
            at: at(CWD as u64, a[0]),
        },
        libc::SYS_pivot_root => Call::Chroot {
            at: at(CWD as u64, a[0]),
        },
        libc::SYS_connect => Call::Connect {
            fd: a[0] as i32,
            address: a[1],
            length: a[2],
        },
        libc::SYS_bind => Call::Bind {
            fd: a[0] as i32,
            address: a[1],
            length: a[2],
        },
        libc::SYS_listen => Call::Listen {
            fd: a[0] as i32,
            backlog: a[1] as i32,
        },
        libc::SYS_sendto => Call::SendTo {
            data: a[1],
            size: a[2],
            fd: a[0] as i32,
            flags: a[3] as i32,
            address: a[4],
            length: a[5],
        },
        libc::SYS_sendmsg => Call::SendMsg {
            fd: a[0] as i32,
            message: a[1],
            flags: a[2] as i32,
        },
        libc::SYS_sendmmsg => Call::SendMmsg {
            fd: a[0] as i32,
            messages: a[1],
            count: a[2],
            flags: a[3] as i32,
        },
        libc::SYS_chdir | libc::SYS_fchdir => Call::Chdir,
        libc::SYS_umask => Call::Umask {
            mask: a[0] as u32 & 0o777,
        },
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_landlock_restrict_self
        | libc::SYS_unshare
        | libc::SYS_setns => Call::Identity,
        libc::SYS_clone if a[0] & CLONE_UNTRACED != 0 => Call::CloneUntraced,
        libc::SYS_clone => Call::NewNamespace,
        libc::SYS_prctl => Call::NotDumpable,
        libc::SYS_kill | libc::SYS_tkill | libc::SYS_rt_sigqueueinfo => Call::Signal {
            target: i64::from(a[0] as i32),
            signal: a[1] as i32,
        },
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => Call::Signal {
            target: i64::from(a[0] as i32),
            signal: a[2] as i32,
        },
        libc::SYS_pidfd_send_signal => Call::SignalByFd {
            pidfd: a[0] as i32,
            signal: a[1] as i32,
            group: a[3] & PIDFD_SIGNAL_PROCESS_GROUP != 0,
        },
        libc::SYS_fcntl if a[1] as i32 == libc::F_SETLEASE => Call::Lease,
        libc::SYS_fcntl => Call::SignalOwner(match a[1] as u32 {
            F_SETOWN_EX => Owner::Kinded(a[2]),
            _ => Owner::Number(i64::from(a[2] as i32)),
        }),
        libc::SYS_ioctl => match a[1] as u32 {
            TIOCSTI | TIOCLINUX => Call::Typing,
            FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS | FS_IOC_FSSETXATTR => Call::SetXattr {
                at: Place::Fd(a[0] as i32),
                name: 0,
                value: Value::Unknown,
                create: 0,
                flags: 0,
            },
            _ => Call::SignalOwner(Owner::At(a[2])),
        },
        libc::SYS_setpriority => Call::Schedule(whose(a[0] as u32, a[1])),
        libc::SYS_ioprio_set => Call::Schedule(whose((a[0] as u32).wrapping_sub(1), a[1])),
        libc::SYS_sched_setaffinity
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_setparam
        | libc::SYS_sched_setattr => Call::Schedule(whose(0, a[0])),
        libc::SYS_socket => Call::Socket {
            domain: a[0] as i32,
            kind: a[1] as i32,
            protocol: a[2] as i32,
        },
        libc::SYS_mount_setattr => Call::Mount {
            from: None,
            at: if a[2] as i32 & libc::AT_EMPTY_PATH == 0 {
                at(a[0], a[1])
            } else {
                Place::Fd(a[0] as i32)
            },
            options: 0,
            unmount: false,
        },
        libc::SYS_fsopen => Call::DetachedMount { name: "fsopen" },
        libc::SYS_fsmount => Call::DetachedMount { name: "fsmount" },
        libc::SYS_fspick => Call::DetachedMount { name: "fspick" },
        libc::SYS_ptrace => Call::Trace {
            request: a[0],
            target: i64::from(a[1] as i32),
        },
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => Call::ForeignMemory {
            target: i64::from(a[0] as i32),
        },
        libc::SYS_migrate_pages | libc::SYS_move_pages => Call::ForeignMemory {
            target: i64::from(a[0] as i32),
        },
        libc::SYS_process_madvise | PROCESS_MRELEASE => {
            Call::ForeignMemoryByFd { pidfd: a[0] as i32 }
        }
        libc::SYS_adjtimex => Call::Clock { at: a[0] },
        libc::SYS_clock_adjtime => Call::Clock { at: a[1] },
        libc::SYS_pidfd_getfd => Call::PidfdGetFd { pidfd: a[0] as i32 },
        libc::SYS_prlimit64 => Call::Limits {
            target: i64::from(a[0] as i32),
        },
        libc::SYS_seccomp => Call::NewListener,
        libc::SYS_io_uring_setup => Call::IoUring,
        libc::SYS_open_by_handle_at => Call::Privileged {
            name: "open_by_handle_at",
        },
        libc::SYS_bpf => Call::Privileged { name: "bpf" },
        libc::SYS_init_module => Call::Privileged {
            name: "init_module",
        },
        libc::SYS_finit_module => Call::Privileged {
            name: "finit_module",
        },
        libc::SYS_delete_module => Call::Privileged {
            name: "delete_module",
        },
        libc::SYS_kexec_load => Call::Privileged { name: "kexec_load" },
        libc::SYS_kexec_file_load => Call::Privileged {
            name: "kexec_file_load",
        },
        _ => Call::Confined {
            name: CONFINED
                .iter()
                .find_map(|(n, name)| (*n == number).then_some(*name))?,
        },
    };
    Some(call)
}

/// What the old calls mean that only x86-64 has.
#[cfg(target_arch = "x86_64")]
fn decode_old(number: i64, a: [u64; 6]) -> Option<Call> {
    let path = at(CWD as u64, a[0]);
    let call = match number {
        libc::SYS_open => Call::Open {
            dir: CWD,
            path: a[0],
            flags: a[1] as i32,
            mode: a[2] as u32,
        },
        libc::SYS_creat => Call::Open {
            dir: CWD,
            path: a[0],
            flags: libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
            mode: a[1] as u32,
        },
        libc::SYS_mkdir => Call::Mkdir {
            at: path,
            mode: a[1] as u32,
        },
        libc::SYS_mknod => Call::Mknod {
            at: path,
            mode: a[1] as u32,
            device: a[2],
        },
        libc::SYS_rmdir => Call::Unlink {
            at: path,
            flags: libc::AT_REMOVEDIR,
        },
        libc::SYS_unlink => Call::Unlink { at: path, flags: 0 },
        libc::SYS_symlink => Call::Symlink {
            target: a[0],
            at: at(CWD as u64, a[1]),
        },
        libc::SYS_link => Call::Link {
            from: path,
            to: at(CWD as u64, a[1]),
            flags: 0,
        },
        libc::SYS_rename => Call::Rename {
            from: path,
            to: at(CWD as u64, a[1]),
            flags: 0,
        },
        libc::SYS_renameat => Call::Rename {
            from: at(a[0], a[1]),
            to: at(a[2], a[3]),
            flags: 0,
        },
        libc::SYS_chmod => Call::Chmod {
            at: path,
            mode: a[1] as u32,
            flags: 0,
        },
        libc::SYS_chown => Call::Chown {
            at: path,
            owner: a[1] as u32,
            group: a[2] as u32,
            flags: 0,
        },
        libc::SYS_lchown => Call::Chown {
            at: path,
            owner: a[1] as u32,
            group: a[2] as u32,
            flags: libc::AT_SYMLINK_NOFOLLOW,
        },
        libc::SYS_utime | libc::SYS_utimes => Call::Utimes {
            at: path,
            times: Times::Old,
            flags: 0,
        },
        libc::SYS_futimesat => Call::Utimes {
            at: at(a[0], a[1]),
            times: Times::Old,
            flags: 0,
        },
        _ => return None,
    };
    Some(call)
}

#[cfg(not(target_arch = "x86_64"))]
fn decode_old(number: i64, a: [u64; 6]) -> Option<Call> {
    const RENAMEAT: i64 = 38;
    (number == RENAMEAT).then(|| Call::Rename {
        from: at(a[0], a[1]),
        to: at(a[2], a[3]),
        flags: 0,
    })
}

/// What a trapped call means. None for a number that no rule traps.
pub(crate) fn decode(number: i64, arguments: [u64; 6]) -> Option<Call> {
    decode_common(number, arguments).or_else(|| decode_old(number, arguments))
}
