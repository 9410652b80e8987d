//! A trapped call: what it means, whether it may happen, who makes it.

use invigil_schema::{
    CallResult, Errno, FileOp, FileOpKind, NetOp, Note, OsText, ProcessRef, Tier,
};

use super::Observer;
use super::settle::{Via, Work, file_what};
use crate::api::{Action, Answer, Decision, Moment, Request};
use crate::calls::{self, Call, Owner};
use crate::exact::sockets::Refusal;
use crate::exact::{self, sockets};
use crate::exec;
use crate::files::{self, Likeness, Way};
use crate::filter;
use crate::names;
use crate::net;
use crate::paths::{self, Base, Caller, Stop, read_path};
use crate::protect::{self, RULE, Sight};
use crate::sys::ptrace::{self, Registers};
use crate::sys::seccomp::{Notification, Reply};
use crate::sys::{self, seccomp};
use crate::table::{Identity, Pending, Rights, Wanted};

/// Why something is refused that only the caller itself could do.
const INEXACT: &str = "it could be changed after it was judged";

/// A trapped call and who made it.
#[derive(Debug)]
pub(super) struct Trapped {
    pub(super) caller: Caller,
    pub(super) process: ProcessRef,
    pub(super) via: Via,
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
}

impl Observer {
    /// A call has arrived at the listener.
    pub(super) fn on_notification(&mut self, notification: Notification) {
        let via = Via::Notification(notification.id);
        let Notification {
            tid,
            number,
            arguments,
            arch,
            ..
        } = notification;
        if !self.table.tasks.contains_key(&tid) {
            // A task is told before it runs, so this one has died, or the news of it waits.
            let _ = self.drain_tracees();
        }
        self.on_trapped(tid, via, arch, number, arguments);
    }

    /// A call has stopped its task.
    pub(super) fn on_call_stop(&mut self, tid: u32) {
        match Registers::of(tid) {
            Ok(registers) => {
                let (number, arguments) = (registers.number(), registers.arguments());
                self.on_trapped(tid, Via::Stop, filter::ARCH, number, arguments);
            }
            Err(_) => {
                let _ = ptrace::resume(tid, 0);
            }
        }
    }

    fn on_trapped(&mut self, tid: u32, via: Via, arch: u32, number: i64, arguments: [u64; 6]) {
        let known = self.table.tasks.get_mut(&tid).map(|task| {
            task.native = false;
            if task.followed.is_some() {
                // It is judged anew, and what it was before is no second attempt.
                task.pending = None;
            }
            task.pid
        });
        let process = known.and_then(|pid| self.table.processes.get(&pid));
        let cwd = process.and_then(|p| p.cwd.clone()).unwrap_or_default();
        let held = process.map(|p| p.held.clone()).unwrap_or_default();
        let process = process.map(|p| p.id);
        let Some(process) = process else {
            // Nothing unknown goes on.
            if let (Via::Notification(id), Some(listener)) = (via, &self.listener) {
                let listener = std::os::fd::AsFd::as_fd(listener);
                if seccomp::still_waits(listener, id) {
                    *self
                        .counts
                        .lost
                        .entry("unknown process".into())
                        .or_default() += 1;
                    let _ = sys::kill(tid, libc::SIGKILL);
                }
            }
            return;
        };
        let trapped = Trapped {
            caller: Caller {
                tid,
                pid: process.pid,
                cwd,
                process: held,
            },
            process,
            via,
            number,
            arguments,
        };
        if arch != filter::ARCH || number >= i64::from(filter::X32) || number < 0 {
            let detail = "a system call of another architecture, which is refused";
            self.note(process, Note::ForeignArchitecture, detail);
            return self.reply(trapped, Reply::Fail(Errno(libc::ENOSYS)));
        }
        match calls::decode(number, arguments) {
            Some(Call::Exec {
                dir,
                path,
                argv,
                flags,
            }) => self.on_exec_call(trapped, dir, path, argv, flags),
            Some(call) => match self.forbids(&trapped, call) {
                Some(refusal) => self.refuse_by(trapped, refusal),
                None => self.on_call(trapped, call),
            },
            None => self.reply(trapped, Reply::Continue),
        }
    }

    /// Whether the caller sees and may do exactly what we see and may do, so that we may do it for it.
    fn likeness(&mut self, caller: &Caller) -> Likeness {
        let Some(process) = self.table.processes.get_mut(&caller.pid) else {
            return Likeness::None;
        };
        if process.identity == Identity::Unchecked {
            let rights = Rights::of(&caller.tid.to_string()).ok();
            let same = rights.is_some() && rights == self.rights;
            process.identity = if same {
                Identity::Ours
            } else {
                Identity::Different
            };
        }
        if process.identity != Identity::Ours || self.rights.is_none() {
            return Likeness::None;
        }
        // Without a umask of our own we cannot take on the caller's.
        let umask = self.own_umask.is_some() || process.umask == self.process_umask;
        if umask && self.tier == Tier::Notify {
            Likeness::Acts
        } else {
            Likeness::Sees
        }
    }

    fn on_call(&mut self, trapped: Trapped, call: Call) {
        let caller = &trapped.caller;
        let likeness = self.likeness(caller);
        if let Some(planned) = files::plan(caller, call, likeness, self.exact) {
            return self.on_file_call(trapped, call, planned, likeness);
        }
        let network = matches!(
            call,
            Call::Connect { .. }
                | Call::Bind { .. }
                | Call::Listen { .. }
                | Call::SendTo { .. }
                | Call::SendMsg { .. }
                | Call::SendMmsg { .. }
        );
        if network && self.exact_network {
            let plan = sockets::plan(caller, call, likeness == Likeness::Acts);
            return self.on_exact_call(trapped, plan);
        }
        if network {
            return match net::plan(caller, call, likeness == Likeness::Acts) {
                Some(planned) => self.on_net_call(trapped, planned),
                None => self.pass(trapped),
            };
        }
        self.on_other_call(trapped, call);
    }

    fn on_file_call(
        &mut self,
        trapped: Trapped,
        call: Call,
        planned: files::Planned,
        likeness: Likeness,
    ) {
        let files::Planned {
            op,
            path,
            to,
            flags,
            mode,
            detail,
            way,
        } = planned;
        let process = trapped.process;
        let result = CallResult::Unknown;
        let op = FileOp {
            process,
            op,
            path,
            to,
            flags,
            mode,
            detail,
            result,
        };
        let own_mounts = likeness == Likeness::None && Sight::of(&trapped.caller) == Sight::Own;
        let elsewhere =
            matches!(way, Way::Native) && self.protected.forbids_elsewhere(&trapped.caller, call);
        if elsewhere || !own_mounts && self.protected.forbids(&op) {
            let error = Errno(libc::EACCES);
            return self.refuse_file(trapped, op, RULE, error);
        }
        if matches!(call, Call::Chroot { .. } | Call::Mount { .. }) {
            self.unsettle(&trapped.caller);
        }
        if self.exact && matches!(way, Way::Native) && !exact::files::is_harmless(call) {
            return self.refuse_file(trapped, op, INEXACT, Errno(libc::EPERM));
        }
        let work = match way {
            Way::Fails(error) => return self.fail_all_the_same(trapped, op, error),
            Way::Refused(rule, error) => return self.refuse_file(trapped, op, rule, error),
            Way::Native => Work::Watch(Pending::File(op)),
            Way::Ours(act) => Work::File(op, act),
        };
        self.decide(trapped, work);
    }

    /// A call on a file that the kernel would not let happen. If it may not happen anyway, that is on the record too.
    fn fail_all_the_same(&mut self, trapped: Trapped, op: FileOp, error: Errno) {
        let refused = self.exact && matches!(error.0, libc::EACCES | libc::EPERM);
        let answer = refused.then(|| {
            self.gate.check(&Request {
                id: 0,
                process: trapped.process,
                action: Action::File(&op),
                moment: Moment::Failing,
                held: None,
                exact: true,
            })
        });
        let decision = match answer {
            Some(Answer::Now(Decision::Allow)) => self.bounds.judge_file(&op),
            Some(Answer::Now(decision)) => decision,
            Some(Answer::Ask) | None => Decision::Allow,
        };
        if let Decision::Deny { rule, place, .. } = decision {
            let (what, target) = (file_what(&op), op.path.clone());
            self.deny_by(trapped.process, &what, target, (rule, place), error);
        }
        self.fail_file(trapped, op, error);
    }

    fn on_net_call(&mut self, trapped: Trapped, planned: net::Planned) {
        let process = trapped.process;
        let result = CallResult::Unknown;
        let ops: Vec<NetOp> = planned
            .ops
            .into_iter()
            .map(|(op, address)| NetOp {
                process,
                op,
                address,
                host: None,
                instead: None,
                result,
            })
            .collect();
        let work = match (planned.act, ops.first()) {
            (Some(act), Some(op)) => Work::Net(op.clone(), act),
            _ => Work::Watch(Pending::Net(ops)),
        };
        self.decide(trapped, work);
    }

    fn on_exact_call(&mut self, trapped: Trapped, plan: Result<sockets::Plan, Refusal>) {
        let process = trapped.process;
        let fact = |(op, address)| NetOp {
            process,
            op,
            address,
            host: None,
            instead: None,
            result: CallResult::Unknown,
        };
        match plan {
            Ok((Some(op), act)) => self.decide(trapped, Work::Net(fact(op), act)),
            Ok((None, act)) => self.do_net(trapped, None, act),
            Err(Refusal::Fails(op, error)) => self.net_ended(trapped, op.map(fact), Err(error)),
            Err(Refusal::Lends(op, error)) => self.refuse_net(trapped, fact(op), error),
        }
    }

    fn on_exec_call(&mut self, trapped: Trapped, dir: i32, path: u64, argv: u64, flags: i32) {
        let caller = &trapped.caller;
        let text = read_path(caller, path).unwrap_or_default();
        let asked: OsText = paths::as_written(caller, dir, &text).into();
        let mut wanted = Wanted {
            found: asked.clone(),
            asked,
            name: text.clone().into(),
            arguments: Default::default(),
        };
        let likeness = self.likeness(caller);
        if flags & libc::AT_EMPTY_PATH == 0 && !text.is_empty() && likeness != Likeness::None {
            let target = Base::of(caller, dir, &text).and_then(|base| base.target(caller, 0, 0));
            match target {
                Ok(target) => wanted.found = target.path.into(),
                // The search along PATH mostly meets files that are not there.
                Err(Stop::Fail(error)) if likeness == Likeness::Acts => {
                    let pending = Pending::Exec(wanted);
                    self.complete(caller.tid, pending, CallResult::Failed(error));
                    return self.reply(trapped, Reply::Fail(error));
                }
                Err(_) => {}
            }
        }
        if self.looks_at_programs {
            wanted.arguments = exec::wanted_arguments(caller.tid, argv);
        }
        self.decide(trapped, Work::Watch(Pending::Exec(wanted)));
    }

    /// Asks the gate.
    fn decide(&mut self, trapped: Trapped, work: Work) {
        let id = self.next_request;
        self.next_request += 1;
        let process = trapped.process;
        let mut answer = Answer::Now(Decision::Allow);
        for action in work.actions() {
            answer = self.gate.check(&Request {
                id,
                process,
                action,
                moment: Moment::Before,
                held: work.held(),
                exact: matches!(work, Work::Net(..) | Work::File(..)),
            });
            if answer != Answer::Now(Decision::Allow) {
                break;
            }
        }
        match answer {
            Answer::Now(decision) => self.settle(trapped, work, decision),
            Answer::Ask => self.suspend(id, trapped, work),
        }
    }

    /// Directories that are held may have other names after this.
    pub(super) fn forget_paths(&mut self, op: &FileOp) {
        let moves = matches!(
            op.op,
            FileOpKind::Rename | FileOpKind::Exchange | FileOpKind::Mount | FileOpKind::Unmount
        );
        if !moves {
            return;
        }
        for process in self.table.processes.values() {
            let Some(dir) = process.cwd.as_ref().and_then(|cwd| cwd.get()) else {
                continue;
            };
            dir.renamed(op.path.as_bytes());
            if let Some(to) = &op.to {
                dir.renamed(to.as_bytes());
            }
        }
    }

    /// Whatever the process is after this call, it has to be looked at anew.
    fn unsettle(&mut self, caller: &Caller) {
        if let Some(process) = self.table.processes.get_mut(&caller.pid) {
            process.identity = match process.identity {
                // Each thread can have its own credentials; only one that is alone speaks for its process.
                _ if process.threads > 1 => Identity::Different,
                Identity::Ours => Identity::Unchecked,
                other => other,
            };
        }
    }

    fn on_other_call(&mut self, trapped: Trapped, call: Call) {
        let (caller, process) = (&trapped.caller, trapped.process);
        match call {
            Call::Umask { mask } => {
                if let Some(process) = self.table.processes.get_mut(&caller.pid) {
                    process.umask = mask;
                }
                self.pass(trapped);
            }
            // It would have to act for itself from now on, and what it does could not be judged.
            Call::Identity if self.exact && trapped.number == libc::SYS_landlock_restrict_self => {
                self.deny(
                    process,
                    "landlock",
                    "a sandbox of its own".into(),
                    INEXACT,
                    Errno(libc::EPERM),
                );
                self.reply(trapped, Reply::Fail(Errno(libc::EPERM)));
            }
            Call::Identity => {
                self.unsettle(caller);
                if trapped.number == libc::SYS_landlock_restrict_self
                    && let Some(process) = self.table.processes.get_mut(&caller.pid)
                {
                    process.identity = Identity::Different;
                }
                match names::rights(trapped.number) {
                    Some(name) if self.bounds.is_confined() => {
                        self.watch(trapped, Pending::Rights(process, name));
                    }
                    _ => self.pass(trapped),
                }
            }
            Call::Chdir => {
                if let Some(process) = self.table.processes.get_mut(&caller.pid) {
                    process.cwd = None;
                }
                self.watch(trapped, Pending::Chdir);
            }
            Call::NewNamespace => {
                // A shared umask and directory is more than is kept track of.
                if trapped.arguments[0] & libc::CLONE_FS as u64 != 0
                    && let Some(process) = self.table.processes.get_mut(&caller.pid)
                {
                    process.identity = Identity::Different;
                }
                if let Some(process) = self.table.processes.get_mut(&caller.pid) {
                    process.child_differs = true;
                }
                self.pass(trapped);
            }
            Call::NotDumpable => self.on_dumpable(trapped),
            Call::CloneUntraced => {
                self.refuse(
                    trapped,
                    "clone",
                    "a process that nobody watches".into(),
                    libc::EPERM,
                );
            }
            Call::Signal { target, signal } => self.on_signal_call(trapped, target, signal),
            Call::SignalByFd {
                pidfd,
                signal,
                group,
            } => match protect::pidfd_target(caller, pidfd) {
                Some(pid) if protect::is_us(pid) => {
                    self.refuse(trapped, "signal", "the supervisor".into(), libc::EPERM);
                }
                Some(pid) if group => match sys::getpgid(pid as u32) {
                    Ok(group) => self.signal_group(trapped, Some(group), signal),
                    Err(_) => self.pass(trapped),
                },
                _ => self.pass(trapped),
            },
            Call::SignalOwner(owner) => {
                let (us, group) = self.owner_is_us(caller, owner);
                if us {
                    let target = if group {
                        "the supervisor's group"
                    } else {
                        "the supervisor"
                    };
                    self.refuse(trapped, "signal", target.into(), libc::EPERM);
                } else {
                    self.pass(trapped);
                }
            }
            Call::CopyTree { .. } | Call::MountOption { .. }
                if self.protected.shows(caller, call) =>
            {
                self.refuse(trapped, "file.mount", "the store".into(), libc::EACCES);
            }
            Call::CopyTree { .. } => {
                self.note(process, Note::DetachedMount, "open_tree");
                self.pass(trapped);
            }
            Call::PidfdGetFd { pidfd } if protect::pidfd_is_us(caller, pidfd) => {
                self.refuse(trapped, "descriptor", "the supervisor".into(), libc::EPERM);
            }
            Call::Trace { target, .. }
            | Call::ForeignMemory { target }
            | Call::Limits { target }
                if protect::is_us(target) =>
            {
                self.refuse(trapped, "trace", "the supervisor".into(), libc::EPERM);
            }
            Call::Trace { .. } => {
                let detail = "it cannot trace: every process has one tracer, and that is Invigil";
                self.note(process, Note::DebuggerInside, detail);
                self.pass(trapped);
            }
            Call::NewListener => {
                let detail = "it wanted a seccomp listener of its own and was told EBUSY: only one can exist";
                self.note(process, Note::ForeignListener, detail);
                self.reply(trapped, Reply::Fail(Errno(libc::EBUSY)));
            }
            Call::IoUring => {
                self.note(
                    process,
                    Note::IoUringDenied,
                    "io_uring would go past the observer",
                );
                self.reply(trapped, Reply::Fail(Errno(libc::EPERM)));
            }
            Call::DetachedMount { name } => {
                self.note(process, Note::DetachedMount, name);
                self.pass(trapped);
            }
            Call::Privileged { name } => {
                self.note(process, Note::Privileged, name);
                self.pass(trapped);
            }
            _ => self.pass(trapped),
        }
    }

    /// A process that is not dumpable cannot be looked into without privileges. It is told that it is.
    fn on_dumpable(&mut self, trapped: Trapped) {
        if trapped.arguments[1] != 0 || self.privileged {
            return self.pass(trapped);
        }
        let detail = "it asked not to be dumpable; it stays so that it can be observed";
        self.note(trapped.process, Note::Continued, detail);
        self.reply(trapped, Reply::Return(0));
    }

    /// Whether signals about a file would go to us, and whether as one of a group.
    fn owner_is_us(&self, caller: &Caller, owner: Owner) -> (bool, bool) {
        if !protect::numbers_ours(caller) {
            return (false, false);
        }
        let target = owner.target(caller);
        let group = target < 0 && sys::getpgid(0).is_ok_and(|own| i64::from(own) == -target);
        (group || protect::is_us(target), group)
    }

    fn on_signal_call(&mut self, trapped: Trapped, target: i64, signal: i32) {
        // In another namespace a number can mean us only if it means the caller's own group.
        let same_numbers = target == 0 || protect::numbers_ours(&trapped.caller);
        if !same_numbers {
            return self.pass(trapped);
        }
        if protect::is_us(target) && signal != 0 {
            return self.refuse(trapped, "signal", "the supervisor".into(), libc::EPERM);
        }
        match target {
            0 => match sys::getpgid(trapped.caller.pid) {
                Ok(group) => self.signal_group(trapped, Some(group), signal),
                Err(_) => self.pass(trapped),
            },
            -1 => self.signal_group(trapped, None, signal),
            group if group < 0 => self.signal_group(trapped, Some(-group as u32), signal),
            _ => self.pass(trapped),
        }
    }

    /// A signal to a group, or to everybody. If that includes us, everybody else of the run gets it.
    fn signal_group(&mut self, trapped: Trapped, group: Option<u32>, signal: i32) {
        let includes_us = group.is_none() || group == sys::getpgid(0).ok();
        if self.signals_scoped || !includes_us && !self.bounds.is_confined() {
            return self.pass(trapped);
        }
        let sender = protect::Sender::of(&trapped.caller);
        let mut result = Err(Errno(libc::ESRCH));
        for pid in self.table.processes.keys() {
            let meant = match group {
                Some(group) => sys::getpgid(*pid) == Ok(group),
                None => *pid != trapped.caller.pid,
            };
            if !meant {
                continue;
            }
            let sent = if sender.may_signal(*pid) {
                sys::kill(*pid, signal)
            } else {
                Err(Errno(libc::EPERM))
            };
            if result.is_err() {
                result = sent;
            }
        }
        let reply = result.map_or_else(Reply::Fail, |()| Reply::Return(0));
        self.reply(trapped, reply);
    }
}
