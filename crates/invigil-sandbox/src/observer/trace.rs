//! What ptrace tells: births, loaded programs, ends; and signals and stops, which pass through unchanged.

use std::time::Instant;

use invigil_schema::{
    CallResult, Errno, ExecFailed, FileOp, FileOpKind, Note, Origin, OsText, ProcessContinued,
    ProcessExec, ProcessExited, ProcessForked, ProcessRef, ProcessStopped, Tier,
};

use super::bounds::LONG_FILE;
use super::settle::NOT_ELSEWHERE;
use super::{ORPHAN_PATIENCE, Observer};
use crate::api::{Action, Answer, Decision, Exec, Moment, Request};
use crate::calls;
use crate::exec;
use crate::paths::{self, Cwd};
use crate::sys::fs::{self, At, cstring};
use crate::sys::ptrace::{self, Change, Registers, Waited};
use crate::sys::{self, Sys};
use crate::table::{Followed, Pending, Wanted, status_line};

const ERESTARTSYS: i64 = -512;
pub(super) const ERESTARTNOINTR: i64 = -513;
const ERESTART_RESTARTBLOCK: i64 = -516;

impl Observer {
    /// Deals with everything that the tracees have to tell now.
    pub(super) fn drain_tracees(&mut self) -> Sys<()> {
        loop {
            match ptrace::wait(false) {
                Ok(Some(waited)) => self.on_change(waited),
                Ok(None) => break,
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::ECHILD)) => {
                    self.table.tasks.clear();
                    self.unclaimed.clear();
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.claim_late();
        Ok(())
    }

    fn on_change(&mut self, waited: Waited) {
        let tid = waited.tid;
        match waited.change {
            Change::Exited(_) | Change::Killed(_) => self.on_end(waited),
            Change::Signal(signal) => self.on_signal(tid, signal),
            Change::SystemCall => self.on_call_exit(tid),
            Change::Event(event, signal) => self.on_event(tid, event, signal),
        }
    }

    fn on_event(&mut self, tid: u32, event: i32, signal: i32) {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(child) = ptrace::event_message(tid) {
                    self.on_birth(tid, child as u32, event == libc::PTRACE_EVENT_CLONE);
                }
                self.resume(tid, 0);
            }
            libc::PTRACE_EVENT_EXEC => self.on_exec(tid),
            libc::PTRACE_EVENT_SECCOMP if self.holds_call(tid) => {}
            libc::PTRACE_EVENT_SECCOMP => self.on_call_stop(tid),
            ptrace::EVENT_STOP => self.on_stop(tid, signal),
            _ => self.resume(tid, 0),
        }
    }

    /// A task that has died in the meantime cannot be resumed; its end is told next.
    pub(super) fn resume(&mut self, tid: u32, signal: i32) {
        if self.holds(tid, signal) {
            return;
        }
        let watched = self.table.tasks.get(&tid).is_some_and(|task| {
            task.followed.is_some() || self.tier == Tier::Ptrace && task.pending.is_some()
        });
        let _ = if watched {
            ptrace::resume_to_exit(tid, signal)
        } else {
            ptrace::resume(tid, signal)
        };
    }

    fn on_birth(&mut self, parent_tid: u32, child: u32, by_clone: bool) {
        let Some(parent) = self.table.tasks.get(&parent_tid).map(|task| task.pid) else {
            return;
        };
        if self.table.tasks.contains_key(&child) {
            return;
        }
        let stopped = self.unclaimed.remove(&child).is_some();
        let thread = by_clone
            && cstring(format!("/proc/{parent}/task/{child}")).is_ok_and(|path| fs::exists(&path));
        // A number that was used before is somebody new.
        if self.dead_unborn.remove(&child)
            && !cstring(format!("/proc/{child}")).is_ok_and(|path| fs::exists(&path))
        {
            return;
        }
        self.adopt(child, parent, thread, !stopped);
        if stopped {
            self.resume(child, 0);
        }
    }

    fn adopt(&mut self, child: u32, parent: u32, thread: bool, newborn: bool) {
        if thread {
            self.table.add_task(child, parent, newborn);
        } else {
            let process = self.table.add_process(child, Some(parent), 0o022);
            self.table.add_task(child, child, newborn);
            self.counts.processes += 1;
            self.census.add(child);
            let parent = self.table.processes.get(&child).and_then(|p| p.parent);
            self.emit(Origin::Kernel, ProcessForked { process, parent }.into());
            self.count_births();
        }
        if self.killed.is_some() {
            let _ = sys::kill(child, libc::SIGKILL);
        }
    }

    /// A parent that is killed at the moment of a birth never tells it. The child is looked up instead.
    fn claim_late(&mut self) {
        let late: Vec<u32> = self
            .unclaimed
            .iter()
            .filter(|(_, since)| since.elapsed() >= ORPHAN_PATIENCE)
            .map(|(tid, _)| *tid)
            .collect();
        for tid in late {
            self.unclaimed.remove(&tid);
            let status =
                cstring(format!("/proc/{tid}/status")).and_then(|path| fs::read_all(&path));
            let status = status.unwrap_or_default();
            let number = |name| {
                let text = status_line(&status, name).and_then(|text| str::from_utf8(text).ok());
                text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0)
            };
            let (leader, parent) = (number("Tgid"), number("PPid"));
            if leader != tid && self.table.processes.contains_key(&leader) {
                self.adopt(tid, leader, true, false);
            } else {
                self.adopt(tid, parent, false, false);
            }
            self.resume(tid, 0);
        }
    }

    fn on_stop(&mut self, tid: u32, signal: i32) {
        let Some(task) = self.table.tasks.get_mut(&tid) else {
            self.unclaimed.insert(tid, Instant::now());
            return;
        };
        task.newborn = false;
        if self.tier == Tier::Notify {
            self.complete_watched(tid);
        }
        match signal {
            libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                self.on_standing(tid, Some(signal));
                let _ = ptrace::listen(tid);
            }
            _ => {
                self.on_standing(tid, None);
                self.resume(tid, 0);
            }
        }
    }

    /// A process was stopped by a signal, or goes on after that. Told once for all of its threads.
    fn on_standing(&mut self, tid: u32, signal: Option<i32>) {
        let pid = self.table.tasks.get(&tid).map(|task| task.pid);
        let Some(process) = pid.and_then(|pid| self.table.processes.get_mut(&pid)) else {
            return;
        };
        if std::mem::replace(&mut process.stopped, signal.is_some()) == signal.is_some() {
            return;
        }
        let process = process.id;
        let event = match signal {
            Some(_) => ProcessStopped { process, signal }.into(),
            None => ProcessContinued { process }.into(),
        };
        self.emit(Origin::Kernel, event);
    }

    /// The task has come out of a call that the kernel carried out, and its registers say how that went.
    fn complete_watched(&mut self, tid: u32) {
        let Some(task) = self.table.tasks.get_mut(&tid) else {
            return;
        };
        if task.followed.is_some() {
            return;
        }
        let Some(pending) = task.pending.take() else {
            return;
        };
        let Ok(registers) = Registers::of(tid) else {
            return;
        };
        let result = registers.result();
        if (ERESTART_RESTARTBLOCK..=ERESTARTSYS).contains(&result) {
            task.followed = Some(Followed::Again(registers.number()));
            task.pending = Some(pending);
            return;
        }
        self.complete_with(tid, pending, result);
    }

    /// Records a call that the kernel has carried out. A file that it opened is what the descriptor says it is,
    /// whatever the caller's memory says.
    fn complete_with(&mut self, tid: u32, mut pending: Pending, result: i64) {
        let outcome = CallResult::from_return(result);
        if let Pending::File(op) = &mut pending
            && matches!(op.op, FileOpKind::Open | FileOpKind::Create)
        {
            if outcome.is_ok() {
                let path = cstring(format!("/proc/{tid}/fd/{result}"));
                if let Ok(path) = path.and_then(|path| fs::readlink(At::Cwd, &path)) {
                    let path = path.into();
                    let judged = std::mem::replace(&mut op.path, path);
                    if judged != op.path {
                        self.judge_opened(op);
                    }
                }
            } else {
                op.op = FileOpKind::Open;
            }
        }
        self.complete(tid, pending, outcome);
    }

    /// The kernel has opened another file than the gate has decided on: a link stood in the way, or somebody has
    /// changed the name in the meantime. Its process goes no further if it may not have that one.
    fn judge_opened(&mut self, op: &FileOp) {
        let process = op.process;
        let request = Request {
            id: 0,
            process,
            action: Action::File(op),
            moment: Moment::After,
            held: None,
            exact: true,
        };
        let (error, refused) = match self.gate.check(&request) {
            Answer::Now(Decision::Allow) => return,
            Answer::Now(Decision::Deny { error, rule, place }) => (error, (rule, place)),
            Answer::Now(Decision::Instead { .. }) | Answer::Ask => (
                Errno(libc::EACCES),
                (
                    "a file that was not asked about cannot be approved later".into(),
                    None,
                ),
            ),
        };
        let detail = "killed when it had opened another file than the one that was decided on";
        self.note(process, Note::OpenMismatch, detail);
        self.deny_by(process, "file.open", op.path.clone(), refused, error);
        let _ = sys::kill(process.pid, libc::SIGKILL);
    }

    /// Records what a call has come to.
    pub(super) fn complete(&mut self, tid: u32, pending: Pending, result: CallResult) {
        match pending {
            Pending::File(mut op) => {
                self.forget_paths(&op);
                op.result = result;
                self.emit_file(op);
            }
            Pending::Net(ops) => {
                for mut op in ops {
                    op.result = result;
                    self.emit(Origin::Kernel, op.into());
                }
            }
            Pending::Chdir => {
                let pid = self.table.tasks.get(&tid).map_or(0, |task| task.pid);
                // With threads another change may be under way.
                if let Some(process) = self.table.processes.get_mut(&pid)
                    && process.threads <= 1
                {
                    process.cwd = Some(Cwd::default());
                }
            }
            Pending::Rights(process, name) => {
                if result == CallResult::Failed(Errno(libc::EPERM)) {
                    let rule = "the kernel gives no more rights than there are";
                    self.deny(process, "rights", name.into(), rule, Errno(libc::EPERM));
                }
            }
            Pending::Exec(Wanted { asked: path, .. }) => {
                let process = self
                    .table
                    .tasks
                    .get(&tid)
                    .and_then(|t| self.table.processes.get(&t.pid));
                if let (CallResult::Failed(error), Some(process)) = (result, process) {
                    let event = ExecFailed {
                        process: process.id,
                        path,
                        error,
                    };
                    self.emit(Origin::Kernel, event.into());
                }
            }
        }
    }

    fn on_signal(&mut self, tid: u32, signal: i32) {
        #[cfg(target_arch = "x86_64")]
        self.keep_whole(tid);
        if signal == libc::SIGXFSZ {
            self.on_long_file(tid);
        }
        self.resume(tid, signal);
    }

    /// A file would have become longer than it may, says the kernel, whether or not the signal is ignored. Told once of
    /// each process.
    fn on_long_file(&mut self, tid: u32) {
        let pid = self.table.tasks.get(&tid).map(|task| task.pid);
        let process = pid.and_then(|pid| self.table.processes.get_mut(&pid));
        if let (Some(target), Some(process)) = (self.bounds.longest_file(), process)
            && !std::mem::replace(&mut process.told_of_length, true)
        {
            let process = process.id;
            self.deny(process, "file.write", target, LONG_FILE, Errno(libc::EFBIG));
        }
    }

    /// A signal that arrives before a trapped call has been looked at ends the waiting for it. The call has not begun,
    /// so it must not look interrupted: whatever the handler wants, it is made again.
    #[cfg(target_arch = "x86_64")]
    fn keep_whole(&mut self, tid: u32) {
        let native = self.table.tasks.get(&tid).is_none_or(|task| task.native);
        if self.tier != Tier::Notify || native {
            return;
        }
        let Ok(mut registers) = Registers::of(tid) else {
            return;
        };
        let trapped = calls::decode(registers.number(), registers.arguments()).is_some();
        if registers.result() == ERESTARTSYS && trapped {
            registers.set_result(ERESTARTNOINTR);
            let _ = registers.store(tid);
        }
    }

    fn on_exec(&mut self, pid: u32) {
        // Only a thread can be another than the leader that it becomes.
        let alone = self
            .table
            .processes
            .get(&pid)
            .is_some_and(|p| p.threads <= 1);
        let old = if alone {
            pid
        } else {
            ptrace::event_message(pid).map_or(pid, |tid| tid as u32)
        };
        let pending = self
            .table
            .tasks
            .get_mut(&old)
            .and_then(|task| task.pending.take());
        self.table.keep_leader(pid);
        if !self.table.tasks.contains_key(&pid) {
            self.table.add_task(pid, pid, false);
        }
        if let Some(task) = self.table.tasks.get_mut(&pid) {
            (task.pending, task.native, task.followed) = (None, false, None);
        }
        let wanted = match pending {
            Some(Pending::Exec(wanted)) => Some(wanted),
            _ => None,
        };
        let cwd = self.table.processes.get(&pid).and_then(|p| p.cwd.as_ref());
        let cwd = cwd
            .and_then(|cwd| cwd.get())
            .and_then(|dir| dir.known_path());
        let image = exec::look(pid, cwd, self.digests.as_mut());
        if let Some(process) = self.table.processes.get(&pid) {
            let (id, parent) = (process.id, process.parent);
            let changed = wanted
                .as_ref()
                .is_none_or(|wanted| wanted.found != image.executable);
            if changed || self.looks_at_programs {
                self.judge_again(pid, &image);
            }
            if image.lends_rights {
                let detail = "it would run with the rights of its owner or group; here it has those of its caller";
                self.note(id, Note::RightsNotLent, detail);
            }
            let requested = wanted.map(|wanted| wanted.asked);
            let requested = requested.filter(|asked| *asked != image.executable);
            self.emit(Origin::Kernel, loaded(id, parent, requested, image).into());
        }
        self.root_loaded |= pid == self.root;
        self.resume(pid, 0);
    }

    /// The command was born grown up. It loads nothing; what it has is what its nursery has loaded, which we say and no
    /// call of its own.
    pub(super) fn on_grown(&mut self) {
        let image = exec::look(self.root, None, self.digests.as_mut());
        if let Some(process) = self.table.processes.get(&self.root) {
            let event = loaded(process.id, process.parent, None, image);
            self.emit(Origin::Runtime, event.into());
        }
        self.root_loaded = true;
    }

    /// What was loaded may not be what was asked for: an interpreter, another file under the same name, other
    /// arguments. The gate decides on what is there; nothing of it has run.
    fn judge_again(&mut self, pid: u32, image: &exec::Image) {
        let Some(process) = self.table.processes.get(&pid).map(|p| p.id) else {
            return;
        };
        let name = match self.looks_at_programs {
            true => exec::name(pid).unwrap_or_default(),
            false => image.executable.clone(),
        };
        let asked = match name.as_bytes() {
            [] => image.executable.clone(),
            [b'/', ..] => paths::join(b"", name.as_bytes()).into(),
            name => paths::join(image.cwd.as_bytes(), name).into(),
        };
        let request = Request {
            id: 0,
            process,
            action: Action::Exec(Exec {
                loaded: true,
                program: &image.executable,
                asked: &asked,
                name: &name,
                argv: &image.argv,
                cut: false,
                sha256: image.sha256,
            }),
            moment: Moment::After,
            held: None,
            exact: true,
        };
        let answer = match self.gate.check(&request) {
            Answer::Now(Decision::Allow) => Answer::Now(self.bounds.judge_exec(&image.executable)),
            answer => answer,
        };
        let refused = match answer {
            Answer::Now(Decision::Allow) => return,
            Answer::Now(Decision::Deny { rule, place, .. }) => (rule, place),
            Answer::Now(Decision::Instead { .. }) => (NOT_ELSEWHERE.into(), None),
            Answer::Ask => (
                "a program that was not asked about cannot be approved later".into(),
                None,
            ),
        };
        self.note(
            process,
            Note::ExecMismatch,
            "killed before its first instruction",
        );
        self.deny_by(
            process,
            "exec",
            image.executable.clone(),
            refused,
            Errno(libc::EACCES),
        );
        let _ = sys::kill(pid, libc::SIGKILL);
    }

    fn on_end(&mut self, waited: Waited) {
        let tid = waited.tid;
        let Some(task) = self.table.remove_task(tid) else {
            if self.unclaimed.remove(&tid).is_none() {
                self.dead_unborn.insert(tid);
            }
            return;
        };
        self.forget_suspended(tid);
        self.forget_held(tid);
        if let Some(pending) = task.pending {
            self.abandon(pending);
        }
        if task.pid != tid {
            return;
        }
        if tid == self.root {
            self.root_end = Some(waited.change);
        }
        self.noted.retain(|(pid, _)| *pid != tid);
        self.census.remove(tid);
        let Some(process) = self.table.processes.remove(&tid) else {
            return;
        };
        self.table.tasks.retain(|_, task| task.pid != tid);
        self.settle_account(&process, &waited.usage);
        let (exit_code, signal) = match waited.change {
            Change::Exited(code) => (Some(code), None),
            Change::Killed(signal) => (None, Some(signal)),
            _ => (None, None),
        };
        let event = ProcessExited {
            process: process.id,
            exit_code,
            signal,
            user_us: waited.usage.user.as_micros() as u64,
            system_us: waited.usage.system.as_micros() as u64,
            max_rss_kib: waited.usage.max_rss,
        };
        self.emit(Origin::Kernel, event.into());
    }

    /// A call whose caller was killed in it: it was attempted, and how it ended is not known.
    fn abandon(&mut self, pending: Pending) {
        if matches!(pending, Pending::File(_) | Pending::Net(_)) {
            self.complete(0, pending, CallResult::Unknown);
        }
    }

    /// A call that is followed begins or ends.
    fn on_followed(&mut self, tid: u32) {
        let Some(task) = self.table.tasks.get_mut(&tid) else {
            return self.resume(tid, 0);
        };
        match (task.followed, Registers::of(tid)) {
            (Some(Followed::Again(number)), Ok(registers)) if registers.number() == number => {
                task.followed = Some(Followed::Begun);
            }
            (Some(Followed::Begun), Ok(registers)) => match registers.result() {
                ERESTART_RESTARTBLOCK..=ERESTARTSYS => {
                    task.followed = Some(Followed::Again(registers.number()));
                }
                result => {
                    task.followed = None;
                    if let Some(pending) = task.pending.take() {
                        self.complete_with(tid, pending, result);
                    }
                }
            },
            // Something else is made instead: a signal has ended it.
            _ => {
                task.followed = None;
                if let Some(pending) = task.pending.take() {
                    self.complete_with(tid, pending, -i64::from(libc::EINTR));
                }
            }
        }
        self.resume(tid, 0);
    }

    /// The end of a call in the ptrace tier.
    fn on_call_exit(&mut self, tid: u32) {
        if self.tier == Tier::Notify {
            return self.on_followed(tid);
        }
        let pending = self
            .table
            .tasks
            .get_mut(&tid)
            .and_then(|task| task.pending.take());
        if let (Some(pending), Ok(registers)) = (pending, Registers::of(tid)) {
            // Whether the call is made again is up to the signal. If it is, that is another attempt.
            let result = match registers.result() {
                ERESTART_RESTARTBLOCK..=ERESTARTSYS => -i64::from(libc::EINTR),
                result => result,
            };
            self.complete_with(tid, pending, result);
        }
        self.resume(tid, 0);
    }
}

/// The fact that a process has a program.
fn loaded(
    process: ProcessRef,
    parent: Option<ProcessRef>,
    requested: Option<OsText>,
    image: exec::Image,
) -> ProcessExec {
    let (argv, argv_cut_bytes) = exec::recorded(image.argv);
    ProcessExec {
        process,
        parent,
        executable: image.executable,
        requested,
        argv,
        argv_cut_bytes,
        cwd: image.cwd,
        sha256: image.sha256,
    }
}
