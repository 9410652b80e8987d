//! The supervisor's side: looks for orders, obeys them one after the other, and records what came of each.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use invigil_policy::Budget;
use invigil_schema::{
    BudgetExceeded, BudgetKind, BudgetShare, ChildRunRefused, ChildRunStarted, Circle, Disposition,
    Event, FuseAction, Order, OrderEnded, OrderFile, OrderRefused, OrderReply, OrderTaken, Origin,
    ProcessExited, ProcessRef, RepeatFuse, ResourceSample, RunId, RunResumed, RunSuspended,
    SdkEventType, Signal, SignalDisposed, SteeredBy, StopReason, SuspendReason, Urgency,
};
use rustix::process::Signal as Unix;

use super::checkpoint::{self, Checkpoints, Wanted};
use super::children::{self, Birth, Child, ChildNews, ChildSpec, Children, Left, amounts};
use super::disk::Disk;
use super::folder::Folder;
use super::fuse::Watcher;
use super::inbox::{Inbox, MAX_QUEUE};
use super::milestones::{Means, Progress};
use super::request::{self, Reply, Request};
use super::usage::Usage;
use crate::approvals::Asking;
use crate::control::{Control, Paused};
use crate::jobs::Cancel;
use crate::letters::Found;
use crate::record::Recorder;
use crate::run::Engine;
use crate::spec::RunSpec;

/// Between two looks for orders.
const LOOK: Duration = Duration::from_millis(100);
/// Between asking to end and killing.
const GRACE: Duration = Duration::from_secs(2);
/// How long everybody may take to stop.
const SETTLE: Duration = Duration::from_secs(5);
/// The longest text and the longest id of a signal.
const MAX_TEXT: usize = 2048;
const MAX_ID: usize = 128;
/// How many phases may wait to be checked.
const MAX_WISHES: usize = 4;

/// Steers one run. Clones steer the same run.
#[derive(Clone)]
pub(crate) struct Helm(Arc<Inner>);

struct Inner {
    run_id: RunId,
    folder: Folder,
    recorder: Arc<Recorder>,
    control: Control,
    checkpoints: Checkpoints,
    usage: Usage,
    /// None if nobody limits it.
    disk: Option<Mutex<Disk>>,
    watcher: Mutex<Watcher>,
    budget: Budget,
    /// The command itself.
    root: Mutex<Option<ProcessRef>>,
    /// What the tree used when it was last looked at.
    sample: Mutex<Option<ResourceSample>>,
    /// What the command and all that it has waited for have used.
    cpu_us: AtomicU64,
    children: Mutex<Children>,
    /// Ends the checks of phases.
    cancel: Cancel,
    engine: Engine,
    spec: RunSpec,
    workspace: PathBuf,
    /// None if the run has no phases.
    progress: Mutex<Option<Progress>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a signal waits for a boundary, for those who look often.
    due: AtomicBool,
}

#[derive(Default)]
struct State {
    inbox: Inbox,
    /// Every process is stopped.
    suspended: Option<Open>,
    /// When a run that was asked to end is killed.
    kill_at: Option<Instant>,
    /// Why nobody can steer.
    nobody: Option<&'static str>,
    /// For how long the run was paused, when that was last asked.
    rested: Duration,
    /// It is ended because it went round in circles.
    blown: bool,
    /// There is something to do before the next look.
    news: bool,
    /// Runs that processes of this one want.
    births: Vec<Birth>,
    /// Processes that wanted a run, and have ended.
    gone: Vec<ProcessRef>,
    /// The suspension of the agent that waits for its children.
    awaits: Option<Open>,
    /// Phases that the agent wants to be checked.
    wishes: Vec<(Option<String>, Option<ProcessRef>)>,
    over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A suspension that is open.
struct Open {
    id: String,
    reason: SuspendReason,
    since: Instant,
}

/// What came of an order: said to whoever gave it.
type Obeyed = Result<String, String>;

/// What a helm has to do with.
pub(crate) struct Setup<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) spec: &'a RunSpec,
    pub(crate) run_id: &'a RunId,
    /// The directory whose files checkpoints keep.
    pub(crate) workspace: PathBuf,
    pub(crate) budget: Option<Budget>,
    pub(crate) recorder: &'a Arc<Recorder>,
    pub(crate) control: &'a Control,
    /// What nobody inside may change.
    pub(crate) protected: Vec<PathBuf>,
}

impl Helm {
    pub(crate) fn new(setup: Setup<'_>) -> Helm {
        let (store, run_id) = (setup.engine.store.home(), setup.run_id);
        let budget = setup.budget.unwrap_or_default();
        Helm(Arc::new(Inner {
            run_id: run_id.clone(),
            folder: Folder::new(store, run_id),
            checkpoints: Checkpoints::new(store, run_id, setup.workspace.clone()),
            recorder: Arc::clone(setup.recorder),
            control: setup.control.clone(),
            usage: Usage::new(&budget),
            disk: budget.disk.map(|most| Mutex::new(Disk::new(most))),
            watcher: Mutex::new(Watcher::new(setup.spec.fuse.clone())),
            budget,
            root: Mutex::default(),
            sample: Mutex::default(),
            cpu_us: AtomicU64::new(0),
            children: Mutex::new(Children::new(run_id, setup.spec, setup.protected)),
            cancel: Cancel::new(),
            engine: setup.engine.clone(),
            spec: setup.spec.clone(),
            workspace: setup.workspace,
            progress: Mutex::new(setup.spec.milestones.clone().map(Progress::new)),
            state: Mutex::default(),
            changed: Condvar::new(),
            due: AtomicBool::new(false),
        }))
    }

    /// From now on every order is refused.
    pub(crate) fn obey_nobody(&self, why: &'static str) {
        self.0.state().nobody = Some(why);
    }

    /// Looks for orders while a run goes on.
    pub(crate) fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        struct Ending<'a>(&'a Helm);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.0.cancel.cancel();
                self.0.0.state().over = true;
                self.0.0.changed.notify_all();
            }
        }
        // Where no order can be left, none comes: that is not worth a run.
        drop(self.0.folder.make());
        thread::scope(|scope| {
            scope.spawn(|| self.serve());
            let _ending = Ending(self);
            run()
        })
    }

    fn serve(&self) {
        let inner = &self.0;
        loop {
            let over = inner.wait(LOOK);
            for id in inner.folder.left() {
                inner.look(&id);
            }
            inner.bear(self);
            inner.abandon();
            inner.part(false);
            inner.kill_in_time();
            if over {
                inner.finish();
                return inner.folder.remove();
            }
            inner.grant_wishes();
            inner.tick();
        }
    }

    /// Takes over what a fact says, when it is on the record.
    pub(crate) fn fact(&self, event: &Event) {
        let inner = &self.0;
        if let (Event::FileOp(op), Some(disk)) = (event, &inner.disk) {
            lock(disk).take(op);
        }
        let fuse = lock(&inner.watcher).take(event);
        if let Some(fuse) = fuse {
            inner.blow(fuse);
        }
        match event {
            Event::ProcessExec(_) => inner.boundary("exec"),
            Event::ProcessForked(first) if first.parent.is_none() => {
                lock(&inner.root).get_or_insert(first.process);
            }
            Event::ProcessExited(exited) => inner.exited(exited),
            _ => {}
        }
    }

    /// What the tree uses now.
    pub(crate) fn sampled(&self, sample: &ResourceSample) {
        *lock(&self.0.sample) = Some(sample.clone());
    }

    /// What the run has used of what can be set aside for it.
    pub(super) fn used(&self) -> Vec<BudgetShare> {
        let inner = &self.0;
        let limits = amounts(&inner.budget).into_keys();
        let share = |budget| {
            let amount = inner.spent(budget) + lock(&inner.children).taken(budget);
            BudgetShare { budget, amount }
        };
        limits.map(share).collect()
    }

    /// The run that this one was started in is paused, or goes on.
    fn follow(&self, parent: &RunId, paused: bool) {
        let by = SteeredBy::Parent {
            run_id: parent.clone(),
        };
        let id = uuid::Uuid::now_v7().simple().to_string();
        drop(match paused {
            true => self.0.pause(&id, SuspendReason::Pause, by, None),
            false => self.0.resume(by),
        });
    }

    /// The run that this one was started in does not want it any more. Those inside of it go first.
    fn cancel(&self, why: &str) {
        self.0.interrupt(StopReason::Parent, why);
    }

    /// Takes over what the agent's framework says of itself, when it is on the record.
    pub(crate) fn heard(&self, event: &Event) {
        let Event::SdkEvent(said) = event else {
            return;
        };
        for (exceeded, why) in self.0.usage.count(said) {
            self.0.control.end_over_budget(exceeded, &why);
        }
        let called = [
            SdkEventType::ToolCallStarted,
            SdkEventType::ToolCallCompleted,
        ];
        if called.contains(&said.event_type) {
            self.0.boundary("tool_call");
        }
    }

    /// Answers a line on the channel that asks for something. False if it is none.
    pub(crate) fn answer(
        &self,
        line: &[u8],
        from: Option<ProcessRef>,
        mut to: &UnixStream,
    ) -> bool {
        let answer = request::answer(line, &self.0.run_id, |wanted| match wanted {
            Request::Signals => Some(Reply::Signals(self.poll(from))),
            Request::Milestone { phase } => Some(self.0.wish(phase, from)),
            Request::Run { child } => self.0.conceive(*child, from, to),
        });
        match answer {
            // Who does not read what it has asked for is not waited for.
            Some(answer) => {
                drop(to.write_all(&answer));
                true
            }
            None => false,
        }
    }

    /// The agent asks what it was told: all that waits.
    fn poll(&self, process: Option<ProcessRef>) -> Vec<Signal> {
        let inner = &self.0;
        let taken = {
            let mut state = inner.state();
            inner.due.store(false, Ordering::Release);
            state.inbox.drain()
        };
        for signal in &taken {
            drop(inner.dispose(Disposed {
                signal,
                disposition: Disposition::Taken,
                depth: 0,
                by: SteeredBy::Agent { process },
                boundary: Some("poll"),
            }));
        }
        taken
    }
}

/// What became of a signal, before it is on the record.
struct Disposed<'a> {
    signal: &'a Signal,
    disposition: Disposition,
    depth: usize,
    by: SteeredBy,
    boundary: Option<&'a str>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits for this long; whether the run is over.
    fn wait(&self, time: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.over && !state.news);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.news = false;
        state.over
    }

    fn record(&self, origin: Origin, event: impl Into<Event>) -> Result<u64, String> {
        let recorded = self.recorder.record_at(origin, &event.into());
        recorded.map_err(|error| format!("it cannot be recorded: {error}"))
    }

    fn look(&self, id: &str) {
        let refuse = |why: String| {
            let name = format!("{id}.order");
            drop(self.record(Origin::Runtime, OrderRefused { name, why }));
        };
        let file = match self.folder.take(id) {
            Found::Nothing => return,
            Found::Refused(why) => return refuse(why),
            Found::Letter(file) => file,
        };
        if file.schema != OrderFile::SCHEMA || file.run_id != self.run_id || file.id != id {
            return refuse("it has another form, or is for another run".to_owned());
        }
        let taken = OrderTaken {
            id: id.to_owned(),
            what: file.order.clone(),
            uid: file.uid,
            pid: file.pid,
        };
        // What is not on the record does not happen.
        let Ok(from) = self.record(Origin::User, taken) else {
            return;
        };
        let nobody = self.state().nobody;
        let (why, done) = match nobody.map_or_else(|| self.obey(&file, from), |why| Err(why.into()))
        {
            Ok(what) => (what, true),
            Err(why) => (why, false),
        };
        let ended = OrderEnded {
            id: id.to_owned(),
            done,
            why: (!why.is_empty()).then_some(why),
        };
        if let Ok(to) = self.record(Origin::Runtime, ended.clone()) {
            self.folder.reply(&OrderReply {
                schema: OrderReply::SCHEMA.to_owned(),
                ended,
                from,
                to,
            });
        }
    }

    fn obey(&self, file: &OrderFile, seq: u64) -> Obeyed {
        let by = SteeredBy::CommandLine {
            uid: file.uid,
            pid: file.pid,
            order: file.id.clone(),
        };
        match &file.order {
            Order::Pause { why } => self.pause(&file.id, SuspendReason::Pause, by, why.clone()),
            Order::Resume => self.resume(by),
            Order::Signal(signal) => self.signal(signal, by),
            Order::Checkpoint { label } => self.still(&file.id, &by, || {
                let wanted = Wanted::ordered(label.clone(), seq, by.clone());
                let taken = self.checkpoints.take(wanted).map_err(|e| e.to_string())?;
                let said = checkpoint::said(&taken);
                self.record(Origin::Runtime, taken)?;
                Ok(said)
            }),
            Order::Rollback { checkpoint } => self.still(&file.id, &by, || {
                let record = |event: Event| self.record(Origin::Runtime, event);
                let wanted = checkpoint.as_deref();
                let done = self.checkpoints.rollback(wanted, seq, by.clone(), &record);
                checkpoint::rolled(done?)
            }),
            Order::Milestone { phase } => match self.milestone(&file.id, phase.as_deref(), by)? {
                (said, true) => Ok(said),
                (said, false) => Err(said),
            },
        }
    }

    /// A process of the run wants a run of its own. It is started when this thread comes to it.
    fn conceive(
        &self,
        spec: ChildSpec,
        from: Option<ProcessRef>,
        to: &UnixStream,
    ) -> Option<Reply> {
        let Some(process) = from else {
            children::tell(to, &ChildNews::Elsewhere);
            return None;
        };
        if !self.engine.store.is_at(&children::path(&spec.home)) {
            children::tell(to, &ChildNews::Elsewhere);
            return None;
        }
        match to.try_clone() {
            Ok(stream) => {
                let birth = Birth {
                    spec,
                    process,
                    stream,
                };
                self.state().births.push(birth);
                self.wake();
            }
            Err(error) => children::tell(to, &ChildNews::Error(error.to_string())),
        }
        None
    }

    fn wake(&self) {
        self.state().news = true;
        self.changed.notify_all();
    }

    /// Starts the runs that were asked for, each on the record first.
    fn bear(&self, helm: &Helm) {
        let births = std::mem::take(&mut self.state().births);
        for birth in births {
            if let Err(why) = self.start_child(&birth, helm) {
                let process = Some(birth.process);
                let refused = ChildRunRefused {
                    process,
                    why: why.clone(),
                };
                drop(self.record(Origin::Runtime, refused));
                birth.tell(&ChildNews::Error(why));
            }
        }
    }

    fn start_child(&self, birth: &Birth, helm: &Helm) -> Result<(), String> {
        if self.state().over || self.control.stopped().is_some() {
            return Err("the run that it would be in is ending".to_owned());
        }
        let left = self.left();
        let ready = lock(&self.children).prepare(birth, &self.engine, &self.spec, &left)?;
        let run_id = ready.run_id.clone();
        self.record(
            Origin::Runtime,
            ChildRunStarted {
                run_id: run_id.clone(),
                process: birth.process,
                depth: ready.depth,
                command: birth.spec.command.clone(),
                reserved: ready.reserved.clone(),
            },
        )?;
        self.begin_to_await(&run_id)?;
        birth.tell(&ChildNews::Started { run_id });
        let helm = helm.clone();
        lock(&self.children).start(ready, birth, move || helm.0.wake());
        Ok(())
    }

    /// The agent waits, from its first child that goes on to the end of the last.
    fn begin_to_await(&self, child: &RunId) -> Result<(), String> {
        if self.state().awaits.is_some() {
            return Ok(());
        }
        let id = uuid::Uuid::now_v7().simple().to_string();
        let suspended = RunSuspended {
            id: id.clone(),
            reason: SuspendReason::SubAgentAwait,
            pending: vec![child.as_str().to_owned()],
            by: SteeredBy::Supervisor,
            why: None,
        };
        self.record(Origin::Runtime, suspended)?;
        self.state().awaits = Some(Open {
            id,
            reason: SuspendReason::SubAgentAwait,
            since: Instant::now(),
        });
        Ok(())
    }

    /// Takes leave of children that have ended; of all of them, if that is waited for.
    fn part(&self, all: bool) {
        let reaped = lock(&self.children).reap(all);
        for (ended, child, news) in reaped {
            drop(self.record(Origin::Runtime, ended));
            child.tell(&news);
        }
        if !lock(&self.children).open.is_empty() {
            return;
        }
        let awaits = self.state().awaits.take();
        if let Some(open) = awaits {
            let resumed = RunResumed {
                id: open.id,
                reason: open.reason,
                by: SteeredBy::Supervisor,
                after_ms: open.since.elapsed().as_millis() as u64,
            };
            drop(self.record(Origin::Runtime, resumed));
        }
    }

    /// Whoever wanted a run and has ended does not want it any more.
    fn exited(&self, exited: &ProcessExited) {
        if *lock(&self.root) == Some(exited.process) {
            let used = exited.user_us + exited.system_us;
            self.cpu_us.store(used, Ordering::Relaxed);
        }
        let wanted = |child: &Child| child.process == exited.process;
        if lock(&self.children).open.iter().any(wanted) {
            self.state().gone.push(exited.process);
            self.wake();
        }
    }

    /// Ends the runs that nobody wants any more.
    fn abandon(&self) {
        let gone = std::mem::take(&mut self.state().gone);
        let unwanted: Vec<_> = {
            let children = lock(&self.children);
            let open = children.open.iter();
            let unwanted = open.filter(|child| gone.contains(&child.process));
            unwanted
                .map(|child| (child.control.clone(), Arc::clone(&child.helm)))
                .collect()
        };
        for (control, helm) in unwanted {
            cancel_child(&control, &helm, "whoever wanted it has ended");
        }
    }

    /// Ends all children, those inside of them first, and waits for them. What does not end in time is killed.
    fn cancel_children(&self, why: &str) {
        let children: Vec<_> = {
            let children = lock(&self.children);
            let open = children.open.iter();
            open.map(|child| (child.control.clone(), Arc::clone(&child.helm)))
                .collect()
        };
        if children.is_empty() {
            return;
        }
        for (control, helm) in &children {
            cancel_child(control, helm, why);
        }
        let until = Instant::now() + GRACE + GRACE;
        while Instant::now() < until && children.iter().any(|(control, _)| !control.is_over()) {
            thread::sleep(Duration::from_millis(5));
        }
        for (control, _) in &children {
            control.kill();
        }
    }

    /// How much of a budget the run itself uses or has used.
    fn spent(&self, budget: BudgetKind) -> u64 {
        let sample = lock(&self.sample);
        let sample = sample.as_ref();
        match budget {
            BudgetKind::Cpu => {
                let now = sample.map_or(0, |sample| sample.cpu_us);
                now.max(self.cpu_us.load(Ordering::Relaxed))
            }
            BudgetKind::Memory => sample.map_or(0, |sample| sample.rss_kib * 1024),
            BudgetKind::Processes => sample.map_or(0, |sample| sample.processes),
            BudgetKind::Disk => self.disk.as_ref().map_or(0, |disk| lock(disk).grown()),
            budget => self.usage.used(budget),
        }
    }

    /// How much is left of each budget that there is.
    fn left(&self) -> Left {
        let children = lock(&self.children);
        let left = |(budget, limit): (BudgetKind, u64)| {
            let taken = self.spent(budget) + children.taken(budget);
            (budget, limit.saturating_sub(taken))
        };
        amounts(&self.budget).into_iter().map(left).collect()
    }

    /// The agent wants a phase to be checked. That takes time, and is done when this thread comes to it.
    fn wish(&self, phase: Option<String>, from: Option<ProcessRef>) -> Reply {
        let mut state = self.state();
        match state.wishes.len() {
            MAX_WISHES.. => Reply::Error(format!("{MAX_WISHES} phases wait to be checked")),
            _ => {
                state.wishes.push((phase, from));
                Reply::Taken(true)
            }
        }
    }

    fn grant_wishes(&self) {
        let wishes = std::mem::take(&mut self.state().wishes);
        for (phase, process) in wishes {
            let by = SteeredBy::Agent { process };
            let id = uuid::Uuid::now_v7().simple().to_string();
            let checked = self.milestone(&id, phase.as_deref(), by);
            let text = checked.map_or_else(|why| why, |(said, _)| said);
            let end = text.floor_char_boundary(MAX_TEXT);
            let signal = Signal {
                id: format!("milestone-{id}"),
                urgency: Urgency::Normal,
                text: text[..end].to_owned(),
            };
            drop(self.signal(&signal, SteeredBy::Supervisor));
        }
    }

    /// Checks the current phase while nobody can change anything.
    fn milestone(
        &self,
        id: &str,
        phase: Option<&str>,
        by: SteeredBy,
    ) -> Result<(String, bool), String> {
        let mut progress = lock(&self.progress);
        let progress = progress.as_mut().ok_or("the run has no milestones")?;
        let means = Means {
            engine: &self.engine,
            rules: self.spec.rules.clone(),
            // Whoever is asked about a check is asked elsewhere: the terminal is the run's.
            asking: Asking {
                audience: None,
                ..self.spec.asking.clone()
            },
            cancel: &self.cancel,
            run_id: &self.run_id,
            workspace: &self.workspace,
        };
        let record = |event: Event| self.record(Origin::Runtime, event);
        self.still(id, &by, || {
            progress.check(phase, &means, by.clone(), &record)
        })
    }

    /// Stops everybody. Who is stopped stays so: a second order changes nothing.
    fn pause(&self, id: &str, reason: SuspendReason, by: SteeredBy, why: Option<String>) -> Obeyed {
        if !self.control.is_running() {
            return Err("there is no process to stop".to_owned());
        }
        if self.state().suspended.is_some() {
            return Ok("it was paused already".to_owned());
        }
        self.record(
            Origin::Runtime,
            RunSuspended {
                id: id.to_owned(),
                reason,
                pending: Vec::new(),
                by,
                why,
            },
        )?;
        self.state().suspended = Some(Open {
            id: id.to_owned(),
            reason,
            since: Instant::now(),
        });
        let still = self.control.pause(SETTLE);
        self.each_child(|child| child.follow(&self.run_id, true));
        match still {
            Paused::Still => Ok("paused".to_owned()),
            Paused::Settling => Ok(
                "paused; a process is in a call that takes its time, and stops on its way back"
                    .to_owned(),
            ),
            Paused::NotRunning => Err("it has just ended".to_owned()),
        }
    }

    fn resume(&self, by: SteeredBy) -> Obeyed {
        match self.let_go(by)? {
            true => Ok("resumed".to_owned()),
            false => Ok("it was not paused".to_owned()),
        }
    }

    /// Ends the suspension that is open. False if there is none.
    fn let_go(&self, by: SteeredBy) -> Result<bool, String> {
        let Some(open) = self.state().suspended.take() else {
            return Ok(false);
        };
        let resumed = RunResumed {
            id: open.id,
            reason: open.reason,
            by,
            after_ms: open.since.elapsed().as_millis() as u64,
        };
        self.record(Origin::Runtime, resumed)?;
        self.control.resume();
        self.each_child(|child| child.follow(&self.run_id, false));
        Ok(true)
    }

    fn each_child(&self, act: impl Fn(&Helm)) {
        let helms: Vec<Helm> = {
            let children = lock(&self.children);
            let helms = children.open.iter().filter_map(|child| child.helm.get());
            helms.cloned().collect()
        };
        helms.iter().for_each(act);
    }

    /// Does something with the files while nobody of the run can change them. A run that was paused before stays so.
    fn still<T>(
        &self,
        id: &str,
        by: &SteeredBy,
        act: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let before = self.state().suspended.is_some();
        if !before && self.control.is_running() {
            self.pause(id, SuspendReason::Files, by.clone(), None)?;
        }
        let acted = act();
        if !before {
            self.let_go(SteeredBy::Supervisor)?;
        }
        acted
    }

    fn signal(&self, signal: &Signal, by: SteeredBy) -> Obeyed {
        if signal.id.is_empty() || signal.id.len() > MAX_ID || signal.text.len() > MAX_TEXT {
            return Err(format!(
                "an id has 1 to {MAX_ID} bytes, and a text at most {MAX_TEXT}"
            ));
        }
        let (disposition, depth) = {
            let mut state = self.state();
            let disposition = state.inbox.take_in(signal);
            self.due.store(state.inbox.has_pending(), Ordering::Release);
            (disposition, state.inbox.depth())
        };
        self.dispose(Disposed {
            signal,
            disposition,
            depth,
            by,
            boundary: None,
        })?;
        match disposition {
            Disposition::Interrupted => {
                let why = match signal.text.as_str() {
                    "" => format!("signal {}", signal.id),
                    text => text.to_owned(),
                };
                self.interrupt(StopReason::Signal, &why);
                Ok("the run is asked to end, and killed soon after".to_owned())
            }
            Disposition::Pending => Ok("it is delivered at the next boundary".to_owned()),
            Disposition::Queued => Ok(format!("it waits for the agent, as one of {depth}")),
            Disposition::Recorded => Ok("it is on the record".to_owned()),
            Disposition::Duplicate => Ok("it was there before, and is not taken again".to_owned()),
            Disposition::Dropped => Err(format!(
                "{MAX_QUEUE} signals wait already; it was dropped, and may be sent again"
            )),
            Disposition::Delivered | Disposition::Taken => Ok(String::new()),
        }
    }

    /// What is due by the clock.
    fn tick(&self) {
        let (rested, paused) = self.control.rested();
        if paused {
            return;
        }
        let since = std::mem::replace(&mut self.state().rested, rested);
        let mut watcher = lock(&self.watcher);
        watcher.rest(rested.saturating_sub(since));
        let fuse = watcher.tick();
        drop(watcher);
        if let Some(fuse) = fuse {
            self.blow(fuse);
        }
        let exceeded = self.disk.as_ref().and_then(|disk| lock(disk).exceeded());
        if let Some(exceeded) = exceeded {
            let BudgetExceeded { limit, used, .. } = exceeded;
            let why = format!("its files grew by {used} bytes, and its budget of disk is {limit}");
            self.control.end_over_budget(exceeded, &why);
        }
    }

    /// The run goes round in circles: somebody is told, or it is ended.
    fn blow(&self, fuse: RepeatFuse) {
        let stops = fuse.action == FuseAction::Stop;
        let why = match fuse.circle {
            Circle::SameFailure => format!("the same command failed {} times", fuse.count),
            Circle::NoChange => format!("nothing has changed for {} s", fuse.count),
        };
        if self.state().blown {
            return;
        }
        if self.record(Origin::Runtime, fuse).is_ok() && stops {
            self.state().blown = true;
            self.interrupt(StopReason::Fuse, &why);
        }
    }

    /// Asks the run to end, and kills it soon after: those inside of it first. Who is paused feels only the second.
    fn interrupt(&self, reason: StopReason, why: &str) {
        self.cancel_children(why);
        self.control.terminate(reason, why);
        let mut state = self.state();
        state.kill_at.get_or_insert_with(|| Instant::now() + GRACE);
    }

    fn kill_in_time(&self) {
        let now = Instant::now();
        let mut state = self.state();
        if state.kill_at.take_if(|at| *at <= now).is_some() {
            drop(state);
            self.control.kill();
        }
    }

    /// The agent is about to do the next thing: what waited for that interrupts it.
    fn boundary(&self, place: &str) {
        if !self.due.load(Ordering::Acquire) {
            return;
        }
        let (due, depth) = {
            let mut state = self.state();
            self.due.store(false, Ordering::Release);
            (state.inbox.boundary(), state.inbox.depth())
        };
        for signal in &due {
            drop(self.dispose(Disposed {
                signal,
                disposition: Disposition::Delivered,
                depth,
                by: SteeredBy::Supervisor,
                boundary: Some(place),
            }));
        }
        if !due.is_empty() {
            self.control.signal(Unix::INT.as_raw());
        }
    }

    fn dispose(&self, disposed: Disposed<'_>) -> Result<u64, String> {
        let event = SignalDisposed {
            signal: disposed.signal.clone(),
            disposition: disposed.disposition,
            queue_depth: disposed.depth as u64,
            by: disposed.by,
            boundary: disposed.boundary.map(str::to_owned),
        };
        self.record(Origin::Runtime, event)
    }

    /// The run is over, and so is what was suspended.
    fn finish(&self) {
        self.cancel_children("the run that it was started in is over");
        self.part(true);
        drop(self.let_go(SteeredBy::Supervisor));
    }
}

/// Asks a child to end. One that has not begun to take orders yet is killed.
fn cancel_child(control: &Control, helm: &OnceLock<Helm>, why: &str) {
    match helm.get() {
        Some(helm) => helm.cancel(why),
        None => control.end(StopReason::Parent, why),
    }
}
