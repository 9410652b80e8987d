//! Facts that the kernel tells of a run: processes, files, the network, and how well they were observed.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CallResult, Digest, Errno, Floor, Limited, OsText, RulePlace, Tier};

/// One process. The kernel uses a pid again; it does so with another start time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ProcessRef {
    /// The pid, as the supervisor sees it.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start: u64,
}

/// Data of `process_forked`. Threads are not processes and have no event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessForked {
    /// The new process.
    pub process: ProcessRef,
    /// Who made it; absent for the first process of a run, whose parent is the supervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ProcessRef>,
}

/// Data of `process_exec`: the new program is loaded, and none of its instructions has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessExec {
    /// Which process.
    pub process: ProcessRef,
    /// Who made it, as in its `process_forked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ProcessRef>,
    /// The file that the kernel loaded, without symbolic links. For a script this is the interpreter.
    pub executable: OsText,
    /// What was asked for, made absolute; differs from `executable` for a script or a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<OsText>,
    /// The arguments, as they stand in the new image.
    pub argv: Vec<OsText>,
    /// How many bytes of arguments are missing from `argv`, which then ends early.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub argv_cut_bytes: u64,
    /// The working directory.
    pub cwd: OsText,
    /// Digest of `executable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
}

/// Data of `exec_failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecFailed {
    /// Which process.
    pub process: ProcessRef,
    /// What was asked for, made absolute.
    pub path: OsText,
    /// Why not.
    pub error: Errno,
}

/// Data of `process_exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessExited {
    /// Which process.
    pub process: ProcessRef,
    /// Its exit code, unless a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Processor time in user mode, of the process and the children that it waited for.
    pub user_us: u64,
    /// Processor time in the kernel, likewise.
    pub system_us: u64,
    /// The most memory that it, or a child that it waited for, had at once.
    pub max_rss_kib: u64,
}

/// Data of `file_op`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileOp {
    /// Who.
    pub process: ProcessRef,
    /// What.
    pub op: FileOpKind,
    /// The absolute path, or for a nameless file what `/proc/PID/fd` says of it.
    pub path: OsText,
    /// The second path of `rename` and `link`; for `symlink` the text of the link, as it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<OsText>,
    /// How an open was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<OpenFlag>,
    /// Permission bits, where the call has some, before the umask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// More of the arguments, where a call has them: the name of an attribute, owner and group, a length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<OsText>,
    /// How it ended.
    pub result: CallResult,
}

/// What was done to a file.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FileOpKind {
    /// Opened; the flags say for what.
    Open,
    /// Opened, and it did not exist before.
    Create,
    /// Cut or extended to a length, by path or by descriptor.
    Truncate,
    /// Renamed, perhaps over another file.
    Rename,
    /// Exchanged with another file.
    Exchange,
    /// Got one more name.
    Link,
    /// Lost a name.
    Unlink,
    /// Directory made.
    Mkdir,
    /// Directory removed.
    Rmdir,
    /// Permissions changed.
    Chmod,
    /// Owner or group changed.
    Chown,
    /// Symbolic link made.
    Symlink,
    /// Times set.
    Utimes,
    /// Extended attribute set.
    SetXattr,
    /// Extended attribute removed.
    RemoveXattr,
    /// Device, FIFO, socket or plain file made by `mknod`.
    Mknod,
    /// Something mounted there.
    Mount,
    /// Something unmounted.
    Unmount,
    /// Root directory changed to it.
    Chroot,
}

/// How a file was asked to be opened.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OpenFlag {
    /// For reading.
    Read,
    /// For writing.
    Write,
    /// `O_APPEND`.
    Append,
    /// `O_CREAT`.
    Create,
    /// `O_EXCL`.
    Exclusive,
    /// `O_TRUNC`.
    Truncate,
    /// `O_DIRECTORY`.
    Directory,
    /// `O_NOFOLLOW`.
    NoFollow,
    /// `O_TMPFILE`: a file without a name.
    Temporary,
    /// `O_PATH`: a handle that can neither read nor write.
    Path,
    /// `O_SYNC`.
    Sync,
    /// `O_DSYNC`.
    DataSync,
    /// `O_DIRECT`.
    Direct,
    /// `O_NONBLOCK`.
    Nonblocking,
    /// `O_CLOEXEC`.
    CloseOnExec,
    /// `O_NOATIME`.
    NoAtime,
    /// `O_ASYNC`.
    Async,
    /// `RESOLVE_*`: the way to the file was restricted.
    Restricted,
}

/// Data of `net_op`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetOp {
    /// Who.
    pub process: ProcessRef,
    /// What.
    pub op: NetOpKind,
    /// Whereto; for `bind` and `listen` the own address.
    pub address: Address,
    /// The name that the address was found under, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where it was led, if that was somewhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Address>,
    /// How it ended. A connection that is not waited for ends in `EINPROGRESS`.
    pub result: CallResult,
}

/// What was done on the network.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum NetOpKind {
    /// Connected.
    Connect,
    /// Took an own address.
    Bind,
    /// Began to accept connections.
    Listen,
    /// Sent a message to an address.
    Send,
}

/// The address of a socket.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case", tag = "family")]
pub enum Address {
    /// IPv4.
    Inet {
        /// The address.
        ip: Ipv4Addr,
        /// The port.
        port: u16,
    },
    /// IPv6.
    Inet6 {
        /// The address.
        ip: Ipv6Addr,
        /// The port.
        port: u16,
        /// The interface, for link-local addresses.
        #[serde(default, skip_serializing_if = "is_zero_u32")]
        scope: u32,
    },
    /// A Unix socket in the file system, by its absolute path.
    Unix {
        /// The path.
        path: OsText,
    },
    /// A Unix socket with a name that is in no file system.
    Abstract {
        /// The name, without the leading zero byte.
        name: OsText,
    },
    /// No address: a dissolved association, or an automatic bind.
    Unnamed,
    /// Another family: netlink, packet, vsock and so on.
    Other {
        /// Its number (`AF_…`).
        number: u16,
        /// The address behind the family, byte for byte.
        bytes: OsText,
    },
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Address::Inet {
                ip: *v4.ip(),
                port: v4.port(),
            },
            SocketAddr::V6(v6) => Address::Inet6 {
                ip: *v6.ip(),
                port: v6.port(),
                scope: v6.scope_id(),
            },
        }
    }
}

/// Data of `access_denied`: Invigil refused it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccessDenied {
    /// Who.
    pub process: ProcessRef,
    /// What was refused: `file.open`, `exec`, `net.connect`, `signal`, `trace` and so on.
    pub what: String,
    /// The path, the address or the process that it was about.
    pub target: OsText,
    /// The rule that refused it.
    pub rule: String,
    /// Where the rule stands, if it is of a policy file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<RulePlace>,
    /// What the process was told.
    pub error: Errno,
}

/// Data of `observer_started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObserverStarted {
    /// The tier in force.
    pub tier: Tier,
    /// Whether opens for reading are observed.
    pub reads: bool,
    /// Each class of facts, and whether it is observed.
    pub hooks: Vec<Hook>,
    /// The version of Landlock in force, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// The kernel's release.
    pub kernel: String,
    /// Whether the run has capabilities that make self-protection best effort.
    pub privileged: bool,
    /// What the kernel refuses to the run; absent if it is not confined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
    /// The limits of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limited>,
}

/// One class of facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// Whether it is observed.
    pub attached: bool,
    /// Why not, or what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// Data of `observer_finished`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ObserverFinished {
    /// What the kernel reported: trapped calls and process events that are facts.
    pub emitted: u64,
    /// How many of them were recorded.
    pub received: u64,
    /// The difference, by cause. Empty when nothing was lost.
    pub lost: BTreeMap<String, u64>,
    /// How many processes there were.
    pub processes: u64,
}

/// Data of `observer_note`: something that a reader of the evidence should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObserverNote {
    /// Whose doing it was, where it was somebody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
    /// What kind.
    pub note: Note,
    /// In words.
    pub detail: String,
}

/// What an `observer_note` is about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// A program wanted a seccomp listener of its own, which cannot exist beside Invigil's.
    ForeignListener,
    /// A program wanted `io_uring`, which would go past the observer.
    IoUringDenied,
    /// A program wanted to trace another one; there is one tracer per process, and that is Invigil.
    DebuggerInside,
    /// A program wanted to run system calls of an architecture that is not observed.
    ForeignArchitecture,
    /// A call could not be carried out on behalf and was let through, seen but without its result.
    Continued,
    /// A limit of the supervisor was met.
    SupervisorLimit,
    /// A privileged operation that can go past the observer.
    Privileged,
    /// A file system or a copy of a tree was prepared for mounting. Where it is put is a fact of its own.
    DetachedMount,
    /// What was loaded is not what was decided on.
    ExecMismatch,
    /// What was opened is not what was decided on.
    OpenMismatch,
    /// A program with a set-user-id or set-group-id bit was loaded. The bit has no effect in a run.
    RightsNotLent,
    /// The whole tree was killed.
    TreeKilled,
    /// A better tier could not be had.
    LesserTier,
}

/// Data of `resource_sample`: what the whole tree uses at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ResourceSample {
    /// Processes alive.
    pub processes: u64,
    /// Threads alive.
    pub threads: u64,
    /// Processor time so far, user and kernel, of the living processes.
    pub cpu_us: u64,
    /// Memory in use. Pages that are shared count once for each process.
    pub rss_kib: u64,
    /// Bytes read through system calls so far, by the living processes.
    pub read_bytes: u64,
    /// Bytes written likewise.
    pub written_bytes: u64,
}

/// Data of `file_final`: a file that was written during the run, as it is at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileFinal {
    /// The path.
    pub path: OsText,
    /// Its size; absent if it is no longer there or not a plain file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// Why there is no digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn is_zero_u32(n: &u32) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;

    #[test]
    fn a_file_op_reads_as_people_would_say_it() {
        let op = FileOp {
            process: ProcessRef { pid: 7, start: 99 },
            op: FileOpKind::Create,
            path: "/tmp/x".into(),
            to: None,
            flags: vec![OpenFlag::Write, OpenFlag::Create, OpenFlag::Exclusive],
            mode: Some(0o644),
            detail: None,
            result: CallResult::Failed(Errno(17)),
        };
        assert_eq!(
            serde_json::to_string(&op).unwrap(),
            r#"{"process":{"pid":7,"start":99},"op":"create","path":"/tmp/x","flags":["write","create","exclusive"],"mode":420,"result":"EEXIST"}"#
        );
    }

    #[test]
    fn addresses_say_their_family() {
        let op = NetOp {
            process: ProcessRef { pid: 7, start: 99 },
            op: NetOpKind::Connect,
            address: Address::Inet6 {
                ip: Ipv6Addr::LOCALHOST,
                port: 443,
                scope: 0,
            },
            host: None,
            instead: None,
            result: CallResult::Ok,
        };
        let json = serde_json::to_string(&op).unwrap();
        assert!(json.contains(r#""address":{"family":"inet6","ip":"::1","port":443}"#));
        let raw = serde_json::value::RawValue::from_string(json).unwrap();
        assert!(matches!(Event::from_parts("net_op", &raw), Event::NetOp(back) if back == op));
    }

    #[test]
    fn tiers_are_ordered() {
        assert!(Tier::ContractOnly < Tier::Ptrace && Tier::Ptrace < Tier::Notify);
    }
}
