//! What bounds a run, besides its gate: calls that are refused by what they are, the outer bound of a confined run, and
//! limits.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use invigil_schema::{
    EnforcedBy, Errno, FileOp, FileOpKind, Floor, Hook, LimitKind, Limited, Note, ObserverNote,
    OpenFlag, Origin, OsText,
};

use super::Observer;
use super::call::Trapped;
use super::settle::Work;
use crate::acts::Act;
use crate::api::{Decision, Killed};
use crate::calls::{Call, NAMESPACES, NEW_TIME, Whose};
use crate::confine::{Beyond, Confined};
use crate::launch::{Launched, Prepared};
use crate::limits::{Gauges, Ledger, Meter, wants_cgroup};
use crate::paths::Caller;
use crate::protect::{self, RULE};
use crate::sys::fs::{self, cstring};
use crate::sys::ptrace::Usage;
use crate::sys::seccomp::Reply;
use crate::sys::{self, caps, socket};
use crate::table::{Pending, Process, Rights, status_line};
use crate::walk;

/// What bounds a run.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    confined: Option<Arc<Confined>>,
    /// What is recorded of the confinement.
    floor: Option<Floor>,
    gauges: Option<Gauges>,
    /// Why there is no cgroup.
    no_cgroup: Option<String>,
}

/// A call that does not happen, and why.
#[derive(Debug)]
pub(super) struct Refusal {
    what: &'static str,
    target: OsText,
    rule: String,
    error: i32,
}

impl Refusal {
    fn confined(what: &'static str, name: &str) -> Refusal {
        Refusal {
            what,
            target: name.into(),
            rule: format!("confined:{what}"),
            error: libc::EPERM,
        }
    }

    fn ours(what: &'static str, target: &str) -> Refusal {
        Refusal {
            what,
            target: target.into(),
            rule: RULE.to_owned(),
            error: libc::EPERM,
        }
    }
}

impl Bounds {
    pub(super) fn is_confined(&self) -> bool {
        self.confined.is_some()
    }

    pub(super) fn floor(&self) -> Option<&Floor> {
        self.floor.as_ref()
    }

    pub(super) fn limits(&self) -> &[Limited] {
        self.gauges.as_ref().map_or(&[], |gauges| &gauges.limits)
    }

    fn limit(&self, what: LimitKind) -> Option<Limited> {
        let mut limits = self.limits().iter();
        limits.find(|limited| limited.what == what).copied()
    }

    /// What the evidence says in short.
    pub(super) fn hooks(&self) -> Vec<Hook> {
        let mut hooks = Vec::new();
        if let Some(floor) = &self.floor {
            let parts = [
                ("landlock_files", "fs."),
                ("landlock_tcp", "net."),
                ("landlock_scopes", "scope."),
            ];
            for (name, prefix) in parts {
                let of_part = |rights: &[String]| {
                    let found = rights.iter().filter(|right| right.starts_with(prefix));
                    found.cloned().collect::<Vec<_>>()
                };
                let missing = of_part(&floor.not_handled);
                let why_not = match (missing.is_empty(), of_part(&floor.handled).is_empty()) {
                    (true, true) => Some("not asked for".to_owned()),
                    (true, false) => None,
                    (false, _) => Some(format!("this kernel lacks {}", missing.join(", "))),
                };
                hooks.push(hook(name, why_not));
            }
        }
        if self.limits().iter().any(wants_cgroup) {
            hooks.push(hook("cgroup", self.no_cgroup.clone()));
        }
        hooks
    }

    /// Whether what the gate has allowed stays within the outer bound. The kernel would stop the caller there, but not
    /// us.
    pub(super) fn judge(&self, caller: &Caller, work: &Work) -> Decision {
        let Some(confined) = &self.confined else {
            return Decision::Allow;
        };
        let bound = &confined.bound;
        let judged = match work {
            Work::File(op, _) => others(op)
                .and_then(|()| lent(caller, op))
                .and_then(|()| bound.file(op)),
            Work::Watch(Pending::File(op)) => {
                let bounded = bound.file(op).or_else(|_| bound.file(&real(op)));
                bounded.and_then(|()| others(op))
            }
            Work::Net(op, act) => bound.net(op, || socket::is_tcp(act.socket.as_fd())),
            // What the kernel makes of ports is its own business.
            Work::Watch(Pending::Net(ops)) => ops.iter().try_for_each(|op| bound.net(op, || false)),
            // What such a name leads to is known when it is loaded.
            Work::Watch(Pending::Exec(wanted)) if wanted.found.as_bytes().starts_with(PROC) => {
                Ok(())
            }
            Work::Watch(Pending::Exec(wanted)) => {
                let found = wanted.found.as_bytes();
                bound.exec(found).or_else(|_| bound.exec(&real_path(found)))
            }
            Work::Watch(Pending::Chdir | Pending::Rights(..)) => Ok(()),
        };
        decision(judged)
    }

    /// Whether a file is one that steers others, or the machine.
    pub(super) fn judge_file(&self, op: &FileOp) -> Decision {
        decision(self.confined.as_ref().map_or(Ok(()), |_| others(op)))
    }

    /// The same for a program that is already loaded.
    pub(super) fn judge_exec(&self, executable: &OsText) -> Decision {
        let confined = self.confined.as_ref();
        decision(confined.map_or(Ok(()), |c| c.bound.exec(executable.as_bytes())))
    }

    /// How long a file may become, as the evidence says it.
    pub(super) fn longest_file(&self) -> Option<OsText> {
        let limited = self.limit(LimitKind::FileSize)?;
        let text = format!("a file of more than {} bytes", limited.limit);
        Some(text.into_bytes().into())
    }

    /// Whether an act would make a file longer than the caller may make one. The limit is not ours.
    pub(super) fn is_too_long(&self, act: &Act) -> bool {
        let limit = self.limit(LimitKind::FileSize);
        matches!((act, limit), (Act::Truncate { length, .. }, Some(limited))
            if *length > limited.limit.cast_signed())
    }
}

/// The rule in the evidence of a file that would have become too long.
pub(super) const LONG_FILE: &str = "limit:file_size";

/// Where names lead to something else for each process.
const PROC: &[u8] = b"/proc/";

/// What `/proc` has of every process for everybody: whoever opens it learns no more than any other user would.
const PUBLIC: [&[u8]; 16] = [
    b"",
    b"task",
    b"stat",
    b"statm",
    b"status",
    b"cmdline",
    b"comm",
    b"cgroup",
    b"limits",
    b"loginuid",
    b"sessionid",
    b"sched",
    b"schedstat",
    b"oom_score",
    b"oom_score_adj",
    b"oom_adj",
];

/// The memory of the machine, its ports, and what its kernel has to say.
const MACHINE: [&[u8]; 6] = [
    b"/proc/kcore",
    b"/proc/kmsg",
    b"/dev/mem",
    b"/dev/kmem",
    b"/dev/port",
    b"/dev/kmsg",
];

/// Where processes are put into groups that share what they use.
const CGROUPS: &[u8] = b"/sys/fs/cgroup/";

/// Whether a file is how others are steered or seen through: what `/proc` has of a process outside of the run, cgroups, and
/// the machine itself.
fn others(op: &FileOp) -> Result<(), Beyond> {
    let reads = op.op == FileOpKind::Open && !op.flags.contains(&OpenFlag::Write);
    let path = op.path.as_bytes();
    let beyond = |rule| {
        let error = Errno(libc::EACCES);
        Err(Beyond { rule, error })
    };
    if MACHINE.contains(&path) && !op.flags.contains(&OpenFlag::Path) {
        return beyond("confined:machine");
    }
    if reads {
        return Ok(());
    }
    if path.starts_with(CGROUPS) {
        return beyond("confined:cgroup");
    }
    match whose(path).and_then(status_of) {
        Some(status) if !walk::is_traced_by_us(&status) => beyond("confined:process"),
        _ => Ok(()),
    }
}

/// Whether a file that we would open says more of a process than the caller may know. The kernel would ask what the caller
/// may do to that process; us it lets look at everybody.
fn lent(caller: &Caller, op: &FileOp) -> Result<(), Beyond> {
    let path = op.path.as_bytes();
    let Some(pid) = whose(path).filter(|pid| *pid != caller.pid) else {
        return Ok(());
    };
    let mut names = path[PROC.len()..].split(|&b| b == b'/').skip(1);
    let mut name = names.next().unwrap_or_default();
    if name == b"task" && names.next().is_some() {
        name = names.next().unwrap_or_default();
    }
    let public = PUBLIC.contains(&name) && names.next().is_none();
    // Who is not there any more has nothing to say.
    let known = status_of(pid).is_none_or(|status| walk::is_traced_by_us(&status));
    match public || known {
        true => Ok(()),
        false => Err(Beyond {
            rule: "confined:process",
            error: Errno(libc::EACCES),
        }),
    }
}

/// Which process a file in `/proc` is about.
fn whose(path: &[u8]) -> Option<u32> {
    let rest = path.strip_prefix(PROC)?;
    let number = rest.split(|&b| b == b'/').next()?;
    str::from_utf8(number).ok()?.parse().ok()
}

fn status_of(pid: u32) -> Option<Vec<u8>> {
    let path = cstring(format!("/proc/{pid}/status")).ok()?;
    fs::read_all(&path).ok()
}

/// The path of a call that the kernel makes may be as the caller wrote it.
fn real(op: &FileOp) -> FileOp {
    let real = |path: &OsText| OsText::from(real_path(path.as_bytes()));
    FileOp {
        path: real(&op.path),
        to: match op.op {
            FileOpKind::Symlink => op.to.clone(),
            _ => op.to.as_ref().map(real),
        },
        ..op.clone()
    }
}

/// A path without symbolic links, as far as it exists.
fn real_path(path: &[u8]) -> Vec<u8> {
    let path = Path::new(OsStr::from_bytes(path));
    let of_parent = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let real = path.canonicalize().ok().or_else(of_parent);
    let real = real.unwrap_or_else(|| path.to_owned());
    real.into_os_string().into_vec()
}

fn hook(name: &str, why_not: Option<String>) -> Hook {
    Hook {
        name: name.into(),
        attached: why_not.is_none(),
        why_not,
    }
}

fn decision(judged: Result<(), Beyond>) -> Decision {
    match judged {
        Ok(()) => Decision::Allow,
        Err(Beyond { rule, error }) => Decision::Deny {
            error,
            rule: rule.to_owned(),
            place: None,
        },
    }
}

impl Observer {
    /// Takes on the bounds of a command that is about to be loaded, and has this status.
    pub(super) fn bound(&mut self, prepared: &Prepared, launched: &Launched, status: &[u8]) {
        let cgroup = launched.cgroup.as_ref().ok().cloned();
        self.bounds = Bounds {
            confined: prepared.confined.clone(),
            floor: None,
            no_cgroup: launched.cgroup.as_ref().err().cloned(),
            gauges: Some(Gauges {
                limits: prepared.limits.in_force(cgroup.as_deref(), true),
                cgroup,
                census: self.census.clone(),
                ledger: Ledger::default(),
            }),
        };
        let Some(confined) = &prepared.confined else {
            return;
        };
        // From now on the run is what others are compared with, and we act with no more than it has.
        if self.rights.is_some() {
            self.rights = Rights::with(status, &launched.pid.to_string()).ok();
        }
        if caps::keep(caps::ORDINARY | caps::WATCHING).is_err() {
            self.rights = None;
        }
        self.bounds.floor = Some(Floor {
            capabilities: caps::names(capabilities_of(status)),
            ..confined.floor.clone()
        });
    }

    /// Begins to look at what the run uses.
    pub(super) fn measure(&mut self) -> Option<Meter> {
        let gauges = self.bounds.gauges.clone()?;
        match Meter::start(gauges, Arc::clone(&self.mailbox)) {
            Ok(meter) => Some(meter),
            Err(error) => {
                let why = format!("limits cannot be kept: {error}");
                self.kill_all(Killed::ObserverFailed(why));
                None
            }
        }
    }

    /// Everybody is dead. Somebody may have died of a limit that nobody has looked at since.
    pub(super) fn last_look(&mut self) {
        let Some(cgroup) = self.bounds.gauges.as_ref().and_then(|g| g.cgroup.clone()) else {
            return;
        };
        let limited = self.bounds.limit(LimitKind::Memory);
        if let (Some(limited), Some(measured)) = (limited, cgroup.out_of_memory()) {
            self.past_limit(limited, measured);
        }
        cgroup.remove();
    }

    /// The run has used more than it may.
    pub(super) fn past_limit(&mut self, limited: Limited, measured: u64) {
        if self.killed.is_some() {
            return;
        }
        let detail = format!(
            "{}: {measured} used, {} allowed ({})",
            limited.what.as_str(),
            limited.limit,
            limited.by.as_str()
        );
        self.kill_all(Killed::Limit { limited, measured });
        let note = ObserverNote {
            process: None,
            note: Note::TreeKilled,
            detail,
        };
        self.emit(Origin::Runtime, note.into());
    }

    /// A process was born, and has not run yet.
    pub(super) fn count_births(&mut self) {
        let alive = self.table.processes.len() as u64;
        match self.bounds.limit(LimitKind::Processes) {
            Some(limited) if limited.by == EnforcedBy::Observer && alive > limited.limit => {
                self.past_limit(limited, alive);
            }
            _ => {}
        }
    }

    /// A process has died, and what it used is remembered.
    pub(super) fn settle_account(&self, process: &Process, usage: &Usage) {
        if self
            .bounds
            .limit(LimitKind::Cpu)
            .is_none_or(|l| l.by != EnforcedBy::Sampled)
        {
            return;
        }
        if let Some(gauges) = &self.bounds.gauges {
            let parent = process.parent.map(|parent| parent.pid);
            let parent = parent.filter(|pid| self.table.processes.contains_key(pid));
            let used = usage.user + usage.system;
            gauges.ledger.ended(process.id.pid, parent, used);
        }
    }

    /// Whether a call is refused by what it is, before anybody is asked.
    pub(super) fn forbids(&self, trapped: &Trapped, call: Call) -> Option<Refusal> {
        match call {
            Call::Typing => return Some(Refusal::ours("terminal", "input that nobody has typed")),
            Call::Schedule(whose) if self.schedules_us(&trapped.caller, whose) => {
                return Some(Refusal::ours("schedule", "the supervisor"));
            }
            _ => {}
        }
        let confined = self.bounds.confined.as_ref()?;
        let arguments = &trapped.arguments;
        let outside = |what, target: i64| {
            let refused = self.is_outside(&trapped.caller, target);
            refused.then(|| Refusal::confined(what, &format!("process {target}")))
        };
        match call {
            Call::Mount { .. }
            | Call::CopyTree { .. }
            | Call::MountOption { .. }
            | Call::DetachedMount { .. }
            | Call::Chroot { .. } => Some(Refusal::confined("mount", mount_name(trapped.number))),
            Call::Identity => {
                let new = match trapped.number {
                    libc::SYS_setns => true,
                    libc::SYS_unshare => arguments[0] & (NAMESPACES | NEW_TIME) != 0,
                    _ => false,
                };
                let name = match trapped.number {
                    libc::SYS_setns => "setns",
                    _ => "unshare",
                };
                new.then(|| Refusal::confined("namespace", name))
            }
            Call::NewNamespace if arguments[0] & NAMESPACES != 0 => {
                Some(Refusal::confined("namespace", "clone"))
            }
            Call::Privileged { name } | Call::Confined { name } => Some(Refusal {
                rule: format!("confined:{name}"),
                ..Refusal::confined("call", name)
            }),
            Call::Socket {
                domain,
                kind,
                protocol,
            } => {
                let Beyond { rule, error } = confined.bound.socket(domain, kind, protocol).err()?;
                Some(Refusal {
                    what: "net.socket",
                    target: format!(
                        "(family {domain}, type {}, protocol {protocol})",
                        kind & 0xf
                    )
                    .into_bytes()
                    .into(),
                    rule: rule.to_owned(),
                    error: error.0,
                })
            }
            Call::SendTo { flags, .. }
            | Call::SendMsg { flags, .. }
            | Call::SendMmsg { flags, .. }
                if flags & libc::MSG_FASTOPEN != 0 =>
            {
                Some(Refusal {
                    error: libc::EOPNOTSUPP,
                    ..Refusal::confined("fastopen", "a connection by its first message")
                })
            }
            Call::Trace { request, target } if request != u64::from(libc::PTRACE_TRACEME) => {
                outside("trace", target)
            }
            Call::ForeignMemory { target } => outside("trace", target),
            Call::ForeignMemoryByFd { pidfd } => {
                outside("trace", protect::pidfd_target(&trapped.caller, pidfd)?)
            }
            Call::SignalOwner(owner) => {
                let target = owner.target(&trapped.caller);
                let group = target.checked_neg().filter(|group| *group > 0);
                match group {
                    Some(group) if !self.is_own_group(&trapped.caller, group) => {
                        Some(Refusal::confined("signal", &format!("group {group}")))
                    }
                    _ => outside("signal", target),
                }
            }
            Call::Lease if arguments[2] as i32 != libc::F_UNLCK => {
                Some(Refusal::confined("lease", "fcntl"))
            }
            // To ask what it says is nobody's business.
            Call::Clock { at } => {
                let modes = sys::read_array(trapped.caller.tid, at).map_or(0, u32::from_ne_bytes);
                (modes != 0).then(|| Refusal::confined("clock", "adjtimex"))
            }
            Call::Mknod { mode, device, .. } if is_device(mode, device) => {
                Some(Refusal::confined("device", "mknod"))
            }
            Call::PidfdGetFd { pidfd } => {
                outside("descriptor", protect::pidfd_target(&trapped.caller, pidfd)?)
            }
            Call::Signal { target, signal } if signal != 0 => outside("signal", target),
            Call::SignalByFd { pidfd, signal, .. } if signal != 0 => {
                outside("signal", protect::pidfd_target(&trapped.caller, pidfd)?)
            }
            Call::Limits { target } | Call::Schedule(Whose::Process(target)) => {
                outside("schedule", target)
            }
            Call::Schedule(Whose::Group(group)) if !self.is_own_group(&trapped.caller, group) => {
                Some(Refusal::confined("schedule", &format!("group {group}")))
            }
            Call::Schedule(Whose::User(user)) => {
                Some(Refusal::confined("schedule", &format!("user {user}")))
            }
            _ => None,
        }
    }

    /// Answers a call that does not happen.
    pub(super) fn refuse_by(&mut self, trapped: Trapped, refusal: Refusal) {
        let Refusal {
            what,
            target,
            rule,
            error,
        } = refusal;
        self.deny(trapped.process, what, target, &rule, Errno(error));
        self.reply(trapped, Reply::Fail(Errno(error)));
    }

    /// Whether the supervisor is among those whose share of the machine would change.
    fn schedules_us(&self, caller: &Caller, whose: Whose) -> bool {
        if !protect::numbers_ours(caller) {
            return false;
        }
        let user_of = |pid: u32| {
            let status =
                cstring(format!("/proc/{pid}/status")).and_then(|path| fs::read_all(&path));
            protect::users(&status.unwrap_or_default()).first().copied()
        };
        let own_user = user_of(std::process::id());
        match whose {
            Whose::Process(target) => protect::is_us(target),
            Whose::Group(0) => sys::getpgid(caller.pid) == sys::getpgid(0),
            Whose::Group(group) => sys::getpgid(0).is_ok_and(|own| i64::from(own) == group),
            Whose::User(0) => user_of(caller.pid) == own_user,
            Whose::User(user) => own_user.is_some_and(|own| i64::from(own) == user),
        }
    }

    /// Whether a group was made by the run. Its number is that of the process that made it.
    fn is_own_group(&self, caller: &Caller, group: i64) -> bool {
        let group = match group {
            0 => sys::getpgid(caller.pid).ok().map(i64::from),
            group => Some(group),
        };
        let leader = group.and_then(|group| u32::try_from(group).ok());
        leader.is_some_and(|leader| self.table.processes.contains_key(&leader))
    }

    /// Whether a number names a living process that is not of the run.
    fn is_outside(&self, caller: &Caller, target: i64) -> bool {
        if target <= 0 || !protect::numbers_ours(caller) {
            return false;
        }
        let pid = target as u32;
        if self.table.tasks.contains_key(&pid) || protect::is_us(target) {
            return false;
        }
        let status = cstring(format!("/proc/{pid}/status")).and_then(|path| fs::read_all(&path));
        let Ok(status) = status else {
            return false;
        };
        // A child that is dead for us may still be waited for by its parent.
        let known = |name| {
            let number = status_line(&status, name).and_then(|text| str::from_utf8(text).ok());
            let number = number.and_then(|text| text.parse().ok());
            number.is_some_and(|pid: u32| self.table.processes.contains_key(&pid))
        };
        !known("Tgid") && !known("PPid")
    }
}

/// Whether a node would be a device. The one without a number stands for a removed file where trees are laid over others.
fn is_device(mode: u32, device: u64) -> bool {
    match mode & libc::S_IFMT {
        libc::S_IFBLK => true,
        libc::S_IFCHR => device != 0,
        _ => false,
    }
}

fn mount_name(number: i64) -> &'static str {
    match number {
        libc::SYS_umount2 => "umount2",
        libc::SYS_move_mount => "move_mount",
        libc::SYS_fsopen => "fsopen",
        libc::SYS_fsmount => "fsmount",
        libc::SYS_fspick => "fspick",
        libc::SYS_fsconfig => "fsconfig",
        libc::SYS_mount_setattr => "mount_setattr",
        libc::SYS_open_tree => "open_tree",
        libc::SYS_pivot_root => "pivot_root",
        libc::SYS_chroot => "chroot",
        libc::SYS_mount => "mount",
        _ => "open_tree_attr",
    }
}

/// What a process has or, being root, gets back when it loads a program.
fn capabilities_of(status: &[u8]) -> u64 {
    let set = |name| {
        let text = status_line(status, name).and_then(|text| str::from_utf8(text).ok());
        text.and_then(|text| u64::from_str_radix(text, 16).ok())
            .unwrap_or(0)
    };
    let root = protect::users(status).first() == Some(&0);
    set("CapPrm") | if root { set("CapBnd") } else { 0 }
}
