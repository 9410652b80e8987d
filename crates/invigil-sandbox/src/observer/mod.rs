//! The observer: one thread that owns a run. It alone traces, answers trapped calls, and speaks to sink and gate.

mod bounds;
mod call;
mod kin;
mod pause;
mod settle;
mod trace;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use invigil_schema::{
    AccessDenied, Errno, Event, FileOp, FileOpKind, Hook, Note, ObserverFinished, ObserverNote,
    ObserverStarted, OpenFlag, Origin, OsText, ProcessForked, ProcessRef, RulePlace, Tier,
};

use crate::api::{Gate, Killed, LaunchError, Line, Outcome, Reads, Sink};
use crate::census::Census;
use crate::exec::Digests;
use crate::handle::{Begun, Ended, Started};
use crate::launch::{Launched, Prepared};
use crate::protect::Protected;
use crate::sys::{self, fs, landlock, ptrace, seccomp};
use crate::table::{self, Rights, Table};
use crate::together::Together;
use crate::waker::{Mailbox, Order};
use crate::watchdog::Watchdog;

use bounds::Bounds;
use pause::Pause;
use settle::Suspended;

/// How to watch.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) tier: Tier,
    pub(crate) reads: Reads,
    pub(crate) exact: bool,
    pub(crate) protected: Vec<PathBuf>,
    pub(crate) patience: Duration,
    pub(crate) digests: bool,
}

/// How long a new task may wait for the news of its birth before it is looked up.
const ORPHAN_PATIENCE: Duration = Duration::from_millis(50);
/// How many trapped calls are answered before the tracees get their turn.
const BURST: usize = 16;
/// How often the tree is killed again while it dies.
const KILL_AGAIN: Duration = Duration::from_millis(20);

/// A run that is watched.
struct Observer {
    tier: Tier,
    /// Nothing that was judged is left to the kernel.
    exact: bool,
    listener: Option<OwnedFd>,
    /// Trapped calls wait for their answer whatever signals arrive.
    killable: bool,
    table: Table,
    /// Stopped tasks whose birth has not been told yet.
    unclaimed: HashMap<u32, Instant>,
    /// Tasks that died before their birth was told.
    dead_unborn: HashSet<u32>,
    sink: Box<dyn Sink>,
    gate: Box<dyn Gate>,
    mailbox: Arc<Mailbox>,
    root: u32,
    root_loaded: bool,
    announced: bool,
    root_end: Option<ptrace::Change>,
    counts: ObserverFinished,
    killed: Option<Killed>,
    suspended: HashMap<u64, Suspended>,
    next_request: u64,
    /// None if nobody wants them.
    digests: Option<Digests>,
    protected: Protected,
    rights: Option<Rights>,
    /// The umask of this thread, if it has one of its own.
    own_umask: Option<u32>,
    process_umask: u32,
    privileged: bool,
    /// No call that can carry an address is left to the kernel.
    exact_network: bool,
    signals_scoped: bool,
    noted: HashSet<(u32, Note)>,
    /// Lets SIGCHLD in.
    waiting_mask: libc::sigset_t,
    census: Census,
    watchdog: Watchdog,
    reads: Reads,
    /// The gate wants to know what programs are started with.
    looks_at_programs: bool,
    together: Together,
    bounds: Bounds,
    /// Nothing goes on.
    paused: Option<Pause>,
    /// How many filters the command was started with.
    filters: Option<Vec<u8>>,
}

/// Starts the command and returns when its last descendant is dead.
pub(crate) fn run(
    prepared: Prepared,
    config: Config,
    sink: Box<dyn Sink>,
    gate: Box<dyn Gate>,
    ended: &Ended,
    started: &Started,
) {
    let start = Instant::now();
    let (mut observer, launched) = match Observer::begin(&prepared, &config, sink, gate) {
        Ok(begun) => begun,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let status = launched.status;
    let meter = observer.measure();
    let mut waiting = Some(started);
    while !observer.table.tasks.is_empty() || !observer.unclaimed.is_empty() {
        if let Err(error) = observer.turn() {
            observer.kill_all(Killed::ObserverFailed(format!("{error}")));
        }
        if observer.root_loaded
            && let Some(started) = waiting.take()
        {
            let _ = started.send(Ok(Begun {
                mailbox: Arc::clone(&observer.mailbox),
                pid: observer.root,
                census: observer.census.clone(),
            }));
        }
    }
    drop(meter);
    observer.last_look();
    let outcome = observer.finish(start);
    if let Some(started) = waiting {
        let gone = LaunchError::System {
            step: "the launcher",
            error: Errno(libc::ECHILD),
        };
        let _ = started.send(Err(prepared.exec_failure(&status).unwrap_or(gone)));
    }
    ended.set(outcome);
}

impl Observer {
    fn begin(
        prepared: &Prepared,
        config: &Config,
        sink: Box<dyn Sink>,
        gate: Box<dyn Gate>,
    ) -> Result<(Observer, Launched), LaunchError> {
        let own = table::status_of("thread-self").unwrap_or_default();
        let process_umask = table::umask_of(&own);
        let own_umask = sys::unshare_fs().is_ok().then_some(process_umask);
        let mailbox = Mailbox::for_this_thread().map_err(|error| LaunchError::System {
            step: "eventfd",
            error,
        })?;
        // Paths are resolved with openat2, which some containers refuse. Without it nothing is done on behalf.
        let resolves = fs::open(
            fs::At::Cwd,
            c"/",
            libc::O_PATH,
            0,
            libc::RESOLVE_NO_MAGICLINKS,
        )
        .is_ok();
        let census = Census::default();
        let looks_at_programs = gate.looks_at_programs();
        let mut observer = Observer {
            tier: config.tier,
            exact: config.exact,
            listener: None,
            killable: false,
            table: Table::default(),
            unclaimed: HashMap::new(),
            dead_unborn: HashSet::new(),
            sink,
            gate,
            mailbox: Arc::new(mailbox),
            root: 0,
            root_loaded: false,
            announced: false,
            root_end: None,
            counts: ObserverFinished::default(),
            killed: None,
            suspended: HashMap::new(),
            next_request: 1,
            digests: config.digests.then(Digests::default),
            protected: Protected::new(&config.protected),
            rights: if resolves {
                Rights::with(&own, "thread-self").ok()
            } else {
                None
            },
            own_umask,
            process_umask,
            privileged: is_privileged(&own),
            exact_network: false,
            signals_scoped: prepared.signals_scoped(),
            noted: HashSet::new(),
            waiting_mask: sys::current_mask(Some(libc::SIGCHLD)),
            watchdog: Watchdog::new(config.patience, census.clone()),
            reads: config.reads,
            looks_at_programs,
            census,
            together: Together::default(),
            bounds: Bounds::default(),
            paused: None,
            filters: None,
        };
        let line = Line(Arc::clone(&observer.mailbox));
        observer.gate.begin(line);
        let mut launched = prepared.start()?;
        let its = table::status_of(&launched.pid.to_string()).unwrap_or_default();
        observer.note_filters(&its);
        observer.bound(prepared, &launched, &its);
        observer.killable = launched.killable;
        observer.listener = launched.listener.take();
        observer.root = launched.pid;
        let sync = observer
            .listener
            .as_ref()
            .is_some_and(|l| seccomp::set_sync_wake_up(l.as_fd()));
        let sockets = observer.why_not_sockets();
        let inexact = observer.why_not_exact(config, sockets.as_deref());
        observer.exact_network = inexact.is_none();
        let event = observer.started_event(config, sync, sockets.as_deref(), inexact);
        observer.emit(Origin::Runtime, event.into());
        let process = observer
            .table
            .add_process(launched.pid, None, process_umask);
        observer.table.add_task(launched.pid, launched.pid, false);
        observer.counts.processes += 1;
        observer.census.add(launched.pid);
        observer.emit(
            Origin::Kernel,
            ProcessForked {
                process,
                parent: None,
            }
            .into(),
        );
        if launched.grown {
            observer.on_grown();
        }
        // Who was told to stop before there was anybody stops before the command is loaded.
        observer.obey_all();
        Ok((observer, launched))
    }

    /// Why sockets of others cannot be duplicated, if that is so.
    fn why_not_sockets(&self) -> Option<String> {
        let duplicated =
            sys::pidfd_open(self.root, false).and_then(|pidfd| sys::pidfd_getfd(pidfd.as_fd(), 2));
        match duplicated {
            // A closed descriptor is no refusal.
            Ok(_) | Err(Errno(libc::EBADF)) => None,
            Err(error) => Some(format!(
                "pidfd_getfd fails with {error}; addresses can be raced"
            )),
        }
    }

    /// Why the network is not exact, if it is not.
    fn why_not_exact<'a>(&self, config: &Config, sockets: Option<&'a str>) -> Option<&'a str> {
        if !config.exact {
            Some("not asked for")
        } else if self.tier != Tier::Notify {
            Some("needs the notify tier; addresses can be raced")
        } else if self.own_umask.is_none() {
            Some("the observer has no directory of its own; addresses can be raced")
        } else {
            sockets
        }
    }

    fn started_event(
        &self,
        config: &Config,
        sync: bool,
        sockets: Option<&str>,
        inexact: Option<&str>,
    ) -> ObserverStarted {
        let hook = |name: &str, why_not: Option<&str>| Hook {
            name: name.into(),
            attached: why_not.is_none(),
            why_not: why_not.map(Into::into),
        };
        let notify = self.tier == Tier::Notify;
        let reads = config.reads == Reads::Recorded;
        let interrupted = "signals can interrupt a trapped call (needs Linux 5.19)";
        ObserverStarted {
            tier: self.tier,
            reads,
            hooks: vec![
                hook("processes", None),
                hook("files", None),
                hook("network", None),
                hook("reads", (!reads).then_some("not asked for")),
                hook(
                    "race_free_arguments",
                    (!notify).then_some("needs the notify tier"),
                ),
                hook("network_on_behalf", sockets.filter(|_| notify)),
                hook(
                    "killable_wait",
                    (notify && !self.killable).then_some(interrupted),
                ),
                hook(
                    "synchronous_wake_up",
                    (notify && !sync).then_some("needs Linux 6.6"),
                ),
                hook(
                    "signal_scope",
                    (!self.signals_scoped).then_some("not asked for, or needs Landlock 6"),
                ),
            ]
            .into_iter()
            // Only where somebody relies on it.
            .chain(config.exact.then(|| hook("exact_network", inexact)))
            .chain(self.bounds.hooks())
            .collect(),
            landlock_abi: match self.bounds.floor() {
                Some(floor) => floor.landlock_abi,
                None => landlock::abi().filter(|_| self.signals_scoped),
            },
            kernel: sys::kernel_release(),
            privileged: self.privileged && !self.bounds.is_confined(),
            floor: self.bounds.floor().cloned(),
            limits: self.bounds.limits().to_vec(),
        }
    }

    /// Waits for something to do, and does it.
    fn turn(&mut self) -> sys::Sys<()> {
        self.drain_tracees()?;
        // Whoever launched the command must hear of it before anything is waited for: the next thing may be an answer
        // that only they can give.
        let news = self.root_loaded && !std::mem::replace(&mut self.announced, self.root_loaded);
        if news || self.table.tasks.is_empty() && self.unclaimed.is_empty() {
            return Ok(());
        }
        self.obey_all();
        self.tell_when_still();
        // Whoever is in a trapped call while the run is paused waits there.
        let listener = self.listener.as_ref().filter(|_| self.paused.is_none());
        let listener = listener.map_or(-1, AsRawFd::as_raw_fd);
        let poll = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [poll(listener), poll(self.mailbox.bell().as_raw_fd())];
        for _ in 0..BURST {
            let timeout = if self.killed.is_some() {
                Some(KILL_AGAIN)
            } else if self.settles() {
                Some(pause::SETTLE)
            } else if self.unclaimed.is_empty() {
                None
            } else {
                Some(ORPHAN_PATIENCE)
            };
            self.watchdog.rest();
            let ready = sys::wait_ready(&mut fds, timeout, &self.waiting_mask)?;
            self.watchdog.work();
            if ready == 0 {
                break;
            }
            if fds[1].revents != 0 {
                sys::silence(self.mailbox.bell());
                break;
            }
            if fds[0].revents & libc::POLLIN != 0 {
                self.receive()?;
            } else if fds[0].revents != 0 {
                // Every process that used the filter is gone or going; their ends are still to come.
                self.listener = None;
                break;
            }
        }
        if self.watchdog.has_bitten() {
            let why = "the observer was stuck in a call that it made for a process";
            self.kill_all(Killed::ObserverFailed(why.into()));
        }
        if let Some(killed) = self.killed.clone() {
            self.kill_all(killed);
        }
        Ok(())
    }

    fn receive(&mut self) -> sys::Sys<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        match seccomp::receive(listener.as_fd()) {
            Ok(notification) => self.on_notification(notification),
            Err(Errno(libc::ENOENT | libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn obey_all(&mut self) {
        while let Some(order) = self.mailbox.take() {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Order) {
        let Some(order) = self.postpone(order) else {
            return;
        };
        match order {
            Order::Signal(signal) => {
                for pid in self.table.processes.keys() {
                    let _ = sys::kill(*pid, signal);
                }
            }
            Order::Kill => self.kill_all(Killed::Asked),
            Order::Pause(tell) => self.pause(tell),
            Order::Resume => self.unpause(),
            Order::Kin(process, tell) => {
                let _ = tell.try_send(self.is_kin(process));
            }
            Order::Limit(limited, measured) => self.past_limit(limited, measured),
            Order::Answer(request, decision) => self.on_answer(request, decision),
            Order::Connected(request, result) => self.on_connected(request, result),
            Order::Opened(request, result) => self.on_opened(request, result),
        }
    }

    /// Records a fact. If that fails nothing may go on.
    fn emit(&mut self, origin: Origin, event: Event) {
        self.counts.emitted += 1;
        if matches!(self.killed, Some(Killed::SinkFailed(_))) {
            *self.counts.lost.entry("sink failed".into()).or_default() += 1;
            return;
        }
        // A sink that is slow is back-pressure, not a fault.
        self.watchdog.rest();
        let recorded = self.sink.fact(origin, event);
        self.watchdog.work();
        match recorded {
            Ok(()) => self.counts.received += 1,
            Err(error) => {
                *self.counts.lost.entry("sink failed".into()).or_default() += 1;
                self.kill_all(Killed::SinkFailed(error.to_string()));
            }
        }
    }

    /// Says something about a process once.
    fn note(&mut self, process: ProcessRef, note: Note, detail: &str) {
        if self.noted.insert((process.pid, note)) {
            let event = ObserverNote {
                process: Some(process),
                note,
                detail: detail.into(),
            };
            self.emit(Origin::Kernel, event.into());
        }
    }

    /// Records what was done to a file, unless it was only read and nobody wants to know.
    fn emit_file(&mut self, op: FileOp) {
        let changes = |flag: &OpenFlag| {
            let kinds = [OpenFlag::Write, OpenFlag::Create, OpenFlag::Truncate];
            kinds.contains(flag) || *flag == OpenFlag::Temporary
        };
        let only_read = op.op == FileOpKind::Open && !op.flags.iter().any(changes);
        if !only_read || self.reads != Reads::Judged {
            self.emit(Origin::Kernel, op.into());
        }
    }

    fn deny(&mut self, process: ProcessRef, what: &str, target: OsText, rule: &str, error: Errno) {
        self.deny_by(process, what, target, (rule.to_owned(), None), error);
    }

    /// The same with the place of the rule.
    fn deny_by(
        &mut self,
        process: ProcessRef,
        what: &str,
        target: OsText,
        (rule, place): (String, Option<Box<RulePlace>>),
        error: Errno,
    ) {
        let event = AccessDenied {
            process,
            what: what.into(),
            target,
            rule,
            place: place.map(|place| *place),
            error,
        };
        self.emit(Origin::Runtime, event.into());
    }

    fn kill_all(&mut self, why: Killed) {
        if self.killed.is_none() {
            self.killed = Some(why);
        }
        for tid in self.table.tasks.keys().chain(self.unclaimed.keys()) {
            let _ = sys::kill(*tid, libc::SIGKILL);
        }
    }

    fn finish(&mut self, start: Instant) -> Outcome {
        let event = self.counts.clone();
        if !matches!(self.killed, Some(Killed::SinkFailed(_)))
            && let Err(error) = self.sink.fact(Origin::Runtime, event.into())
        {
            self.killed = Some(Killed::SinkFailed(error.to_string()));
        }
        let (exit_code, signal) = match self.root_end {
            Some(ptrace::Change::Exited(code)) => (Some(code), None),
            Some(ptrace::Change::Killed(signal)) => (None, Some(signal)),
            _ => (None, None),
        };
        Outcome {
            exit_code,
            signal,
            elapsed: start.elapsed(),
            observed: self.counts.clone(),
            killed: self.killed.clone(),
        }
    }
}

/// Whether a process whose status this is has capabilities.
fn is_privileged(status: &[u8]) -> bool {
    table::status_line(status, "CapEff").is_some_and(|caps| caps.iter().any(|&b| b != b'0'))
}
