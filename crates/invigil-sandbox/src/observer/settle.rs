//! From a decision to an answer.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use invigil_schema::{
    Address, CallResult, Errno, FileOp, FileOpKind, NetOp, NetOpKind, Note, OpenFlag, Origin,
    OsText,
};

use super::Observer;
use super::bounds::LONG_FILE;
use super::call::Trapped;
use super::trace::ERESTARTNOINTR;
use crate::acts::{self, Act, Done, Slow};
use crate::api::{Action, Decision};
use crate::net;
use crate::paths::Caller;
use crate::protect::RULE;
use crate::sys::ptrace::{self, Registers};
use crate::sys::seccomp::{self, Reply};
use crate::sys::{self, Sys};
use crate::table::Pending;
use crate::waker::Order;

/// The rule in the evidence of what is refused because it cannot be done on behalf.
const EXACT_RULE: &str = "invigil:exact_network";

/// How a trapped call reached us, and how it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    /// It waits at the listener.
    Notification(u64),
    /// Its task is stopped.
    Stop,
}

/// What is to be done about a call.
#[derive(Debug)]
pub(super) enum Work {
    /// We do it to a file.
    File(FileOp, Act),
    /// We do it to a socket.
    Net(NetOp, net::Act),
    /// The kernel does it, and we look.
    Watch(Pending),
}

impl Work {
    /// What the gate is asked.
    pub(super) fn actions(&self) -> Vec<Action<'_>> {
        match self {
            Work::File(op, _) | Work::Watch(Pending::File(op)) => vec![Action::File(op)],
            Work::Net(op, _) => vec![Action::Net(op)],
            Work::Watch(Pending::Net(ops)) => ops.iter().map(Action::Net).collect(),
            Work::Watch(Pending::Exec(wanted)) => vec![Action::Exec(wanted.request())],
            Work::Watch(Pending::Chdir | Pending::Rights(..)) => Vec::new(),
        }
    }

    /// The file that it is about, if it is held.
    pub(super) fn held(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Work::File(_, act) => act.held(),
            Work::Net(..) | Work::Watch(_) => None,
        }
    }

    /// Makes it happen at another address.
    fn lead(&mut self, to: SocketAddr, host: Option<String>) -> Sys<()> {
        let Work::Net(op, act) = self else {
            return Err(Errno(libc::EACCES));
        };
        act.lead(to)?;
        op.host = host;
        op.instead = Some(match to {
            SocketAddr::V4(to) => Address::Inet {
                ip: *to.ip(),
                port: to.port(),
            },
            SocketAddr::V6(to) => Address::Inet6 {
                ip: *to.ip(),
                port: to.port(),
                scope: to.scope_id(),
            },
        });
        Ok(())
    }

    /// What a refusal is about.
    fn target(&self) -> (String, OsText) {
        match self {
            Work::File(op, _) | Work::Watch(Pending::File(op)) => (file_what(op), op.path.clone()),
            Work::Net(op, _) => net_what(op),
            Work::Watch(Pending::Net(ops)) => ops.first().map_or_else(Default::default, net_what),
            Work::Watch(Pending::Exec(wanted)) => ("exec".into(), wanted.found.clone()),
            Work::Watch(Pending::Chdir | Pending::Rights(..)) => Default::default(),
        }
    }
}

pub(super) fn file_what(op: &FileOp) -> String {
    let name = match op.op {
        FileOpKind::Open if !op.flags.contains(&OpenFlag::Write) => "read",
        FileOpKind::Open | FileOpKind::Create | FileOpKind::Truncate => "write",
        FileOpKind::Rename | FileOpKind::Exchange => "rename",
        FileOpKind::Unlink | FileOpKind::Rmdir => "remove",
        FileOpKind::Link | FileOpKind::Symlink => "link",
        FileOpKind::Mkdir | FileOpKind::Mknod => "make",
        FileOpKind::Mount | FileOpKind::Unmount | FileOpKind::Chroot => "mount",
        FileOpKind::Chmod
        | FileOpKind::Chown
        | FileOpKind::Utimes
        | FileOpKind::SetXattr
        | FileOpKind::RemoveXattr => "attributes",
    };
    format!("file.{name}")
}

fn net_what(op: &NetOp) -> (String, OsText) {
    let name = match op.op {
        NetOpKind::Connect => "connect",
        NetOpKind::Bind => "bind",
        NetOpKind::Listen => "listen",
        NetOpKind::Send => "send",
    };
    let address = match &op.address {
        Address::Inet { ip, port } => format!("{ip}:{port}").into_bytes().into(),
        Address::Inet6 { ip, port, .. } => format!("[{ip}]:{port}").into_bytes().into(),
        Address::Unix { path } => path.clone(),
        Address::Abstract { name } => [b"@", name.as_bytes()].concat().into(),
        Address::Unnamed => "(unnamed)".into(),
        Address::Other { number, .. } => format!("(family {number})").into_bytes().into(),
    };
    (format!("net.{name}"), address)
}

/// A call that waits for somebody else.
#[derive(Debug)]
pub(super) struct Suspended {
    trapped: Trapped,
    what: Waiting,
}

#[derive(Debug)]
enum Waiting {
    /// For an answer.
    Asked(Work),
    /// For a connection, or for room for a message.
    Connecting {
        op: Option<NetOp>,
        /// Tells the worker that nobody waits any more.
        forgotten: Arc<AtomicBool>,
    },
    /// For somebody else who opens the same FIFO.
    Opening {
        op: FileOp,
        slow: Slow,
        close_on_exec: bool,
    },
}

/// Why something that was approved is refused all the same.
const MOVED: &str = "it was moved while somebody was asked about it";

/// Why a decision to lead something elsewhere is a refusal.
pub(super) const NOT_ELSEWHERE: &str = "it cannot be led to another address";

impl Observer {
    /// Does what was decided.
    pub(super) fn settle(&mut self, trapped: Trapped, mut work: Work, decision: Decision) {
        let decision = match decision {
            Decision::Allow => self.bounds.judge(&trapped.caller, &work),
            decided => decided,
        };
        let (error, rule, place) = match decision {
            Decision::Allow => return self.carry_out(trapped, work),
            Decision::Instead { to, host } => match work.lead(to, host) {
                Ok(()) => return self.carry_out(trapped, work),
                Err(error) => (error, NOT_ELSEWHERE.to_owned(), None),
            },
            Decision::Deny { error, rule, place } => (error, rule, place),
        };
        let (what, target) = work.target();
        let result = CallResult::Failed(error);
        let pending = match work {
            Work::File(op, _) => Pending::File(op),
            Work::Net(op, _) => Pending::Net(vec![op]),
            Work::Watch(pending) => pending,
        };
        self.complete(trapped.caller.tid, pending, result);
        self.deny_by(trapped.process, &what, target, (rule, place), error);
        self.reply(trapped, Reply::Fail(error));
    }

    fn carry_out(&mut self, trapped: Trapped, work: Work) {
        match work {
            Work::Watch(pending) => self.watch(trapped, pending),
            Work::File(op, act) if self.bounds.is_too_long(&act) => {
                let Caller { pid, tid, .. } = trapped.caller;
                let _ = sys::kill_thread(pid, tid, libc::SIGXFSZ);
                self.refuse_file(trapped, op, LONG_FILE, Errno(libc::EFBIG));
            }
            Work::File(op, act) => self.do_file(trapped, op, act),
            Work::Net(op, act) => self.do_net(trapped, Some(op), act),
        }
    }

    fn do_file(&mut self, trapped: Trapped, mut op: FileOp, act: Act) {
        self.take_umask(&trapped);
        let close_on_exec = op.flags.contains(&OpenFlag::CloseOnExec);
        let done = acts::perform(act);
        self.forget_paths(&op);
        if let Err(Errno(libc::EMFILE | libc::ENFILE)) = done
            && !self.exact
        {
            let detail = "out of descriptors: a call was left to the kernel";
            self.note(trapped.process, Note::SupervisorLimit, detail);
            return self.watch(trapped, Pending::File(op));
        }
        if done.is_err() && op.op == FileOpKind::Create {
            op.op = FileOpKind::Open;
        }
        op.result = match &done {
            Ok(_) => CallResult::Ok,
            Err(error) => CallResult::Failed(*error),
        };
        match done {
            Ok(Done::Opened(fd)) => {
                let again = op.clone();
                self.emit_file(op);
                self.inject(trapped, fd, close_on_exec, again);
            }
            Ok(Done::Waits(slow)) => self.open_slowly(trapped, op, slow, close_on_exec),
            Ok(Done::Returned) => {
                self.emit_file(op);
                self.reply(trapped, Reply::Return(0));
            }
            Err(error) => {
                self.emit_file(op);
                self.reply(trapped, Reply::Fail(error));
            }
        }
    }

    /// An open that waits goes to a thread of its own.
    fn open_slowly(&mut self, trapped: Trapped, op: FileOp, slow: Slow, close_on_exec: bool) {
        let request = self.next_request;
        self.next_request += 1;
        let mailbox = Arc::clone(&self.mailbox);
        let waiting = slow.clone();
        let wait = move || mailbox.post(Order::Opened(request, waiting.finish()));
        let name = "invigil-open".to_owned();
        let worker = std::thread::Builder::new().name(name).stack_size(64 * 1024);
        match worker.spawn(wait) {
            Ok(_) => {
                let what = Waiting::Opening {
                    op,
                    slow,
                    close_on_exec,
                };
                self.suspended.insert(request, Suspended { trapped, what });
            }
            Err(_) => self.fail_file(trapped, op, Errno(libc::EAGAIN)),
        }
    }

    /// A worker's open has ended.
    pub(super) fn on_opened(&mut self, request: u64, result: Sys<OwnedFd>) {
        if let Some(Suspended {
            trapped,
            what:
                Waiting::Opening {
                    mut op,
                    close_on_exec,
                    ..
                },
        }) = self.suspended.remove(&request)
        {
            match result {
                Ok(fd) => {
                    op.result = CallResult::Ok;
                    self.emit(Origin::Kernel, op.clone().into());
                    self.inject(trapped, fd, close_on_exec, op);
                }
                Err(error) => self.fail_file(trapped, op, error),
            }
        }
    }

    /// Files are made with the umask of the caller.
    fn take_umask(&mut self, trapped: &Trapped) {
        let wanted = self
            .table
            .processes
            .get(&trapped.caller.pid)
            .map(|p| p.umask);
        if let (Some(current), Some(wanted)) = (self.own_umask, wanted)
            && current != wanted
        {
            sys::umask(wanted);
            self.own_umask = Some(wanted);
        }
    }

    fn inject(&mut self, trapped: Trapped, fd: OwnedFd, close_on_exec: bool, op: FileOp) {
        let (Via::Notification(id), Some(listener)) = (trapped.via, &self.listener) else {
            return;
        };
        let give = || seccomp::inject(listener.as_fd(), id, fd.as_fd(), close_on_exec);
        match self.together.hand_over(trapped.caller.tid, give) {
            Ok(_) | Err(Errno(libc::ENOENT)) => {}
            // The caller has no room for the descriptor. What the open did to the file is done.
            Err(error) => {
                let op = FileOp {
                    result: CallResult::Failed(error),
                    ..op
                };
                self.emit_file(op);
                self.reply(trapped, Reply::Fail(error));
            }
        }
    }

    /// Does something to a socket; without a fact if it is none.
    pub(super) fn do_net(&mut self, trapped: Trapped, op: Option<NetOp>, act: net::Act) {
        if matches!(act.kind, net::Kind::BindFrom(_)) {
            self.take_umask(&trapped);
        }
        match net::perform(act) {
            net::Done::Ended(result) => self.net_ended(trapped, op, result),
            net::Done::Wait(act) => {
                let request = self.next_request;
                self.next_request += 1;
                let mailbox = Arc::clone(&self.mailbox);
                let forgotten = Arc::new(AtomicBool::new(false));
                let flag = Arc::clone(&forgotten);
                let worker =
                    move || mailbox.post(Order::Connected(request, net::finish(act, &flag)));
                let name = "invigil-connect".to_owned();
                match std::thread::Builder::new()
                    .name(name)
                    .stack_size(64 * 1024)
                    .spawn(worker)
                {
                    Ok(_) => {
                        let what = Waiting::Connecting { op, forgotten };
                        self.suspended.insert(request, Suspended { trapped, what });
                    }
                    Err(_) => match op {
                        Some(op) if !self.exact_network && op.instead.is_none() => {
                            self.watch(trapped, Pending::Net(vec![op]));
                        }
                        op => self.net_ended(trapped, op, Err(Errno(libc::ENOBUFS))),
                    },
                }
            }
        }
    }

    pub(super) fn net_ended(&mut self, trapped: Trapped, op: Option<NetOp>, result: Sys<i64>) {
        if let Some(mut op) = op {
            op.result = match result {
                Ok(_) => CallResult::Ok,
                Err(error) => CallResult::Failed(error),
            };
            self.emit(Origin::Kernel, op.into());
        }
        let reply = result.map_or_else(Reply::Fail, Reply::Return);
        self.reply(trapped, reply);
    }

    /// A call on sockets that cannot be done on behalf without lending rights, and must not be left to the kernel.
    pub(super) fn refuse_net(&mut self, trapped: Trapped, op: NetOp, error: Errno) {
        let (what, target) = net_what(&op);
        self.deny(trapped.process, &what, target, EXACT_RULE, error);
        self.net_ended(trapped, Some(op), Err(error));
    }

    /// A worker's connection has ended.
    pub(super) fn on_connected(&mut self, request: u64, result: Sys<i64>) {
        if let Some(Suspended {
            trapped,
            what: Waiting::Connecting { op, .. },
        }) = self.suspended.remove(&request)
        {
            self.net_ended(trapped, op, result);
        }
    }

    /// Keeps a call waiting until somebody decides.
    pub(super) fn suspend(&mut self, id: u64, trapped: Trapped, work: Work) {
        self.suspended.insert(
            id,
            Suspended {
                trapped,
                what: Waiting::Asked(work),
            },
        );
    }

    /// Somebody has decided.
    pub(super) fn on_answer(&mut self, request: u64, decision: Decision) {
        match self.suspended.remove(&request) {
            Some(Suspended {
                trapped,
                what: Waiting::Asked(work),
            }) => {
                // While somebody thought about it, the directory may have got another name, with other rules.
                let decision = match &work {
                    Work::File(_, act) if !act.is_in_place() => Decision::Deny {
                        error: Errno(libc::EACCES),
                        rule: MOVED.to_owned(),
                        place: None,
                    },
                    _ => decision,
                };
                self.settle(trapped, work, decision);
            }
            Some(connecting) => drop(self.suspended.insert(request, connecting)),
            None => {}
        }
    }

    /// The caller is dead, so nobody waits.
    pub(super) fn forget_suspended(&mut self, tid: u32) {
        if self.suspended.is_empty() {
            return;
        }
        let gone: Vec<u64> = self
            .suspended
            .iter()
            .filter(|(_, s)| s.trapped.caller.tid == tid)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            match self.suspended.remove(&id).map(|suspended| suspended.what) {
                Some(Waiting::Connecting { op, forgotten }) => {
                    forgotten.store(true, Ordering::Relaxed);
                    if let Some(op) = op {
                        self.emit(Origin::Kernel, op.into());
                    }
                }
                Some(Waiting::Asked(_)) => self.gate.withdrawn(id),
                Some(Waiting::Opening { op, slow, .. }) => {
                    slow.release();
                    self.emit_file(op);
                }
                None => {}
            }
        }
    }

    /// Lets the kernel make a call and looks at what comes of it.
    pub(super) fn watch(&mut self, trapped: Trapped, pending: Pending) {
        let tid = trapped.caller.tid;
        let Some(task) = self.table.tasks.get_mut(&tid) else {
            return;
        };
        let followed = task.followed.is_some();
        let watched = match trapped.via {
            Via::Stop => true,
            // The task cannot leave the call before the answer, and stops on its way back from it. A call that would
            // block finds the stop pending and comes back at once. It is made again, and followed.
            Via::Notification(_) => followed || self.killable && ptrace::interrupt(tid).is_ok(),
        };
        // Others could see that a FIFO was opened and given up; so that is not tried, but followed from the beginning.
        let untried = watched && !followed && trapped.via != Via::Stop && is_blocking(&pending);
        if watched {
            task.pending = Some(pending);
            task.native = followed;
        } else {
            task.native = true;
            // An exec that nobody could watch is still told by its event when it succeeds.
            match pending {
                Pending::Exec(_) => task.pending = Some(pending),
                // Where it is cannot be told, so nothing is kept.
                Pending::Chdir | Pending::Rights(..) => {}
                pending => self.complete(tid, pending, CallResult::Unknown),
            }
        }
        match trapped.via {
            Via::Stop => {
                let _ = ptrace::resume_to_exit(tid, 0);
            }
            Via::Notification(_) if untried => {
                let again = Errno(-ERESTARTNOINTR as i32);
                self.reply(trapped, Reply::Fail(again));
            }
            Via::Notification(_) => self.reply(trapped, Reply::Continue),
        }
    }

    /// Lets the kernel make a call that is not a fact.
    pub(super) fn pass(&mut self, trapped: Trapped) {
        if let Some(task) = self.table.tasks.get_mut(&trapped.caller.tid) {
            task.native = true;
        }
        self.reply(trapped, Reply::Continue);
    }

    /// Answers.
    pub(super) fn reply(&mut self, trapped: Trapped, reply: Reply) {
        let tid = trapped.caller.tid;
        match (trapped.via, &self.listener) {
            (Via::Notification(id), Some(listener)) => {
                // The caller may have been killed; then its end is told next.
                let _ = seccomp::reply(listener.as_fd(), id, reply);
            }
            (Via::Notification(_), None) => {}
            (Via::Stop, _) => {
                let value = match reply {
                    Reply::Return(value) => Some(value),
                    Reply::Fail(Errno(number)) => Some(-i64::from(number)),
                    Reply::Continue => None,
                };
                if let (Some(value), Ok(mut registers)) = (value, Registers::of(tid)) {
                    registers.set_number(-1);
                    registers.set_result(value);
                    let _ = registers.store(tid);
                }
                let _ = ptrace::resume(tid, 0);
            }
        }
    }

    /// A call on a file that fails whoever makes it.
    pub(super) fn fail_file(&mut self, trapped: Trapped, mut op: FileOp, error: Errno) {
        op.result = CallResult::Failed(error);
        if op.op == FileOpKind::Create {
            op.op = FileOpKind::Open;
        }
        self.emit_file(op);
        self.reply(trapped, Reply::Fail(error));
    }

    /// A call on a file that Invigil does not let happen.
    pub(super) fn refuse_file(&mut self, trapped: Trapped, op: FileOp, rule: &str, error: Errno) {
        let (what, target) = (file_what(&op), op.path.clone());
        self.deny(trapped.process, &what, target, rule, error);
        self.fail_file(trapped, op, error);
    }

    /// Any other call that Invigil does not let happen.
    pub(super) fn refuse(&mut self, trapped: Trapped, what: &str, target: OsText, error: i32) {
        self.deny(trapped.process, what, target, RULE, Errno(error));
        self.reply(trapped, Reply::Fail(Errno(error)));
    }
}

/// Whether an open that was left to the kernel may wait for somebody: a FIFO, a terminal line.
fn is_blocking(pending: &Pending) -> bool {
    let Pending::File(op) = pending else {
        return false;
    };
    if op.op != FileOpKind::Open {
        return false;
    }
    let both = op.flags.contains(&OpenFlag::Read) && op.flags.contains(&OpenFlag::Write);
    if both || op.flags.contains(&OpenFlag::Nonblocking) {
        return false;
    }
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileTypeExt;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(op.path.as_bytes()));
    std::fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo())
}
