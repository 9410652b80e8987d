//! The supervisor's side: looks for orders, obeys them one after the other, and records what came of each.

mod family;
mod limits;
mod phases;
mod signals;
mod stops;

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use invigil_policy::Budget;
use invigil_schema::{
    BudgetShare, DirectoryId, Disposition, Event, Order, OrderEnded, OrderFile, OrderRefused,
    OrderReply, OrderTaken, Origin, ProcessRef, ResourceSample, RunId, SdkEventType, Signal,
    SteeredBy, StopReason,
};

use super::checkpoint::{self, Checkpoints, Wanted};
use super::children::{Birth, Children, Family, amounts, is_used_up};
use super::disk::Disk;
use super::folder::Folder;
use super::fuse::Watcher;
use super::inbox::Inbox;
use super::milestones::Progress;
use super::request::{self, Reply, Request};
use super::usage::Usage;
use crate::control::Control;
use crate::jobs::Cancel;
use crate::letters::Found;
use crate::record::Recorder;
use crate::run::Engine;
use crate::spec::RunSpec;
use signals::Disposed;
use stops::Stop;

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

/// The same, of a run that may be over and forgotten.
#[derive(Clone)]
pub(super) struct Remote(Weak<Inner>);

impl Remote {
    /// None if it is forgotten.
    pub(super) fn helm(&self) -> Option<Helm> {
        self.0.upgrade().map(Helm)
    }
}

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
    /// All runs that belong together.
    family: Arc<Family>,
    /// The one at the top of them.
    root_run: RunId,
    /// Held by whoever stops or lets go everybody, and by whoever starts a run inside: no run is born in between. A run
    /// above comes before those inside of it.
    turn: Mutex<()>,
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
    /// Who has stopped every process; nobody, if it goes on.
    stops: Vec<Stop>,
    /// When a run that was asked to end is killed.
    kill_at: Option<Instant>,
    /// Why nobody can steer.
    nobody: Option<&'static str>,
    /// For how long the run was paused, when that was last asked.
    rested: Duration,
    /// When it is time to measure again.
    measure_at: Option<Instant>,
    /// It is ended because it went round in circles.
    blown: bool,
    /// There is something to do before the next look.
    news: bool,
    /// What became of orders, and could not be told yet.
    replies: Vec<OrderReply>,
    /// Runs that processes of this one want.
    births: VecDeque<Birth>,
    /// The process whose run is just being started.
    bearing: Option<ProcessRef>,
    /// Processes that wanted a run, and have ended.
    gone: Vec<ProcessRef>,
    /// The suspension of the agent that waits for its children.
    awaits: Option<Await>,
    /// Phases that the agent wants to be checked.
    wishes: Vec<(Option<String>, Option<ProcessRef>)>,
    over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait for children that is open.
struct Await {
    id: String,
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
    /// Which one it is.
    pub(crate) directory: Option<DirectoryId>,
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
        let above = setup.spec.ancestry.as_ref();
        let family = above.map_or_else(Arc::default, |above| Arc::clone(&above.family));
        let root_run = above.map_or(run_id, |above| &above.lineage.root).clone();
        let helm = Helm(Arc::new(Inner {
            run_id: run_id.clone(),
            folder: Folder::new(store, run_id),
            checkpoints: Checkpoints::new(
                &setup.engine.store,
                run_id,
                setup.workspace.clone(),
                setup.directory,
            ),
            recorder: Arc::clone(setup.recorder),
            control: setup.control.clone(),
            usage: Usage::new(&budget),
            disk: budget.disk.map(|_| Mutex::default()),
            watcher: Mutex::new(Watcher::new(setup.spec.fuse.clone())),
            budget,
            root: Mutex::default(),
            sample: Mutex::default(),
            cpu_us: AtomicU64::new(0),
            children: Mutex::new(Children::new(run_id, setup.spec, setup.protected, &family)),
            family,
            root_run,
            turn: Mutex::default(),
            cancel: Cancel::new(),
            engine: setup.engine.clone(),
            spec: setup.spec.clone(),
            workspace: setup.workspace,
            progress: Mutex::new(setup.spec.milestones.clone().map(Progress::new)),
            state: Mutex::default(),
            changed: Condvar::new(),
            due: AtomicBool::new(false),
        }));
        helm.0.family.begin_with(&helm);
        helm
    }

    pub(super) fn remote(&self) -> Remote {
        Remote(Arc::downgrade(&self.0))
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
            inner.reply();
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
        let limits = limits.filter(|budget| is_used_up(*budget));
        let share = |budget| {
            let taken = lock(&inner.children).taken(budget);
            let amount = inner.spent(budget).saturating_add(taken);
            BudgetShare { budget, amount }
        };
        limits.map(share).collect()
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
            self.state().replies.push(OrderReply {
                schema: OrderReply::SCHEMA.to_owned(),
                ended,
                from,
                to,
            });
        }
        self.reply();
    }

    /// Tells whoever gave an order. What cannot be told now is told at the next look; when there is none any more, the
    /// journal has it all.
    fn reply(&self) {
        let replies = std::mem::take(&mut self.state().replies);
        let untold = replies
            .into_iter()
            .filter(|reply| !self.folder.reply(reply));
        let untold: Vec<_> = untold.collect();
        self.state().replies.extend(untold);
    }

    fn obey(&self, file: &OrderFile, seq: u64) -> Obeyed {
        let by = SteeredBy::CommandLine {
            uid: file.uid,
            pid: file.pid,
            order: file.id.clone(),
        };
        match &file.order {
            Order::Pause { why } => self.pause(&file.id, by, why.clone()),
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

    fn wake(&self) {
        self.state().news = true;
        self.changed.notify_all();
    }

    /// The run is over, and so is what was suspended.
    fn finish(&self) {
        self.cancel_children("the run that it was started in is over");
        self.part(true);
        self.let_all_go();
        self.record_missed();
    }
}
