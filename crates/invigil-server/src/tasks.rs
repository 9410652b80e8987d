//! Tasks that this daemon works on: how they are begun, how far each journal is durable, how all of them are stopped.
//!
//! The engine does the work, on blocking threads. What a task is, is in its journal; nothing here outlives the daemon.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use invigil_engine::contracts::Generator;
use invigil_engine::{Asking, Attended, Cancel, Output, TaskError, TaskView, Tasks, Voice};
use invigil_journal::Reader;
use invigil_policy::{Places, Source};
use invigil_schema::{Event, Mode, TaskId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::session::lock;

/// Between two looks whether a step is over.
const LOOK: Duration = Duration::from_millis(5);
/// A step that has released its task is over within this time.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Tasks that are stopped have so long to clear away what they have made.
const STOPPING: Duration = Duration::from_secs(10);
/// Those who follow them have so long to take the last event.
const TELLING: Duration = Duration::from_secs(1);

/// What tasks need of the world: the border to whoever knows it.
pub trait Workshop: Send + Sync {
    /// The tasks of the store.
    fn tasks(&self) -> &Tasks;

    /// The policy files that hold for work in a repository, and what their variables stand for.
    fn rules(&self, repository: &Path, mode: Mode) -> Result<(Vec<Source>, Places), String>;

    /// How a person is asked what the policy leaves open.
    fn asking(&self) -> Asking;

    /// Who writes contracts, if anybody does, and how often they are asked.
    fn model(&self) -> Option<(Generator, u32)>;
}

/// How far a task has come, as far as this daemon knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// So many records are durable.
    pub(crate) records: u64,
    /// This daemon works on it, and tells of every record.
    pub(crate) here: bool,
}

/// What is to be done with a task.
pub(crate) enum Step {
    /// Has a contract written, by somebody who is asked so often.
    Derive(Box<Generator>, u32),
    /// Lets the agent work.
    Work,
    /// Sends it back to the agent.
    Respond {
        text: String,
        voice: Voice,
        uid: u32,
    },
}

/// The tasks of a daemon.
pub(crate) struct Bench {
    pub(crate) workshop: Arc<dyn Workshop>,
    seats: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    /// What is under way, and how to stop it.
    under_way: Mutex<HashMap<TaskId, Cancel>>,
    /// What somebody follows or works on.
    news: Mutex<HashMap<TaskId, watch::Sender<Standing>>>,
}

impl Bench {
    pub(crate) fn new(workshop: Arc<dyn Workshop>, most: usize, metrics: Arc<Metrics>) -> Self {
        Bench {
            workshop,
            seats: Arc::new(Semaphore::new(most)),
            metrics,
            under_way: Mutex::default(),
            news: Mutex::default(),
        }
    }

    /// Room for one more task to be worked on, if there is any.
    pub(crate) fn seat(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.seats).try_acquire_owned().ok()
    }

    /// Begins a step with a task; it goes on by itself. The answer comes when the step is on record, or could not be
    /// begun.
    pub(crate) fn begin(
        self: &Arc<Self>,
        view: &TaskView,
        step: Step,
        seat: OwnedSemaphorePermit,
    ) -> Result<oneshot::Receiver<Result<(), TaskError>>, TaskError> {
        let (sender, begun) = oneshot::channel();
        let held = self.take(view, seat)?;
        tokio::task::spawn_blocking(move || {
            let (mut sender, task_id) = (Some(sender), held.task_id.clone());
            let done = held.step(step, &mut sender);
            drop(held);
            if let Err(error) = &done {
                tracing::warn!(%task_id, %error, "a task could not be carried on");
            }
            if let Some(sender) = sender {
                drop(sender.send(done));
            }
        });
        Ok(begun)
    }

    /// Takes a task to work on it.
    fn take(
        self: &Arc<Self>,
        view: &TaskView,
        seat: OwnedSemaphorePermit,
    ) -> Result<Held, TaskError> {
        let (cancel, task_id) = (Cancel::new(), view.task_id.clone());
        match lock(&self.under_way).entry(task_id.clone()) {
            Entry::Occupied(_) => return Err(TaskError::Busy(task_id)),
            Entry::Vacant(vacant) => vacant.insert(cancel.clone()),
        };
        self.metrics.tasks_under_way.add(1);
        self.tell(&task_id, |standing| {
            standing.records = standing.records.max(view.seq + 1);
            standing.here = true;
        });
        Ok(Held {
            bench: Arc::clone(self),
            task_id,
            cancel,
            _seat: seat,
        })
    }

    /// Something was done to a task, and this is how it stands.
    pub(crate) fn changed(&self, view: &TaskView) {
        let records = view.seq + 1;
        self.tell(&view.task_id, |standing| {
            standing.records = standing.records.max(records);
        });
    }

    /// Tells those who follow a task. Who begins to later looks for themselves, unless it is worked on here.
    fn tell(&self, task_id: &TaskId, change: impl FnOnce(&mut Standing)) {
        let mut news = lock(&self.news);
        let sender = news.entry(task_id.clone()).or_default();
        sender.send_modify(change);
        if !sender.borrow().here && sender.is_closed() {
            news.remove(task_id);
        }
    }

    /// Follows a task.
    pub(crate) fn follow(&self, task_id: &TaskId) -> watch::Receiver<Standing> {
        let mut news = lock(&self.news);
        news.entry(task_id.clone()).or_default().subscribe()
    }

    /// Nobody may follow it any more.
    pub(crate) fn unfollow(&self, task_id: &TaskId, receiver: watch::Receiver<Standing>) {
        drop(receiver);
        self.tell(task_id, |_| {});
    }

    /// Waits for a step that has come to its end, and is about to let go of its task. Whether there was one.
    pub(crate) async fn rest(&self, task_id: &TaskId) -> bool {
        let free = || !lock(&self.under_way).contains_key(task_id);
        let there = !free();
        drop(timeout(LAST_WORDS, until(free)).await);
        there
    }

    /// Lets what is under way come to its end, and then stops it: agents die, tasks have an end, and those who follow
    /// them hear of it.
    pub(crate) async fn go_down(&self, grace: Duration) {
        let all: Vec<TaskId> = lock(&self.under_way).keys().cloned().collect();
        let quiet = || until(|| lock(&self.under_way).is_empty());
        drop(timeout(grace, quiet()).await);
        lock(&self.under_way).values().for_each(Cancel::cancel);
        drop(timeout(STOPPING, quiet()).await);
        let told = until(|| {
            let news = lock(&self.news);
            !all.iter().any(|task_id| news.contains_key(task_id))
        });
        drop(timeout(TELLING, told).await);
    }
}

/// Returns when something is so.
async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::time::sleep(LOOK).await;
    }
}

/// A task that this daemon works on.
struct Held {
    bench: Arc<Bench>,
    task_id: TaskId,
    cancel: Cancel,
    _seat: OwnedSemaphorePermit,
}

impl Held {
    /// Does a step to its end. Blocks.
    fn step(
        &self,
        step: Step,
        begun: &mut Option<oneshot::Sender<Result<(), TaskError>>>,
    ) -> Result<(), TaskError> {
        let (bench, task_id, cancel) = (&*self.bench, &self.task_id, &self.cancel);
        let tasks = bench.workshop.tasks();
        let mut tail = Tail::default();
        // Whatever is recorded is durable when the listener hears of it, and so is all before.
        let mut listen = |_: &Event| {
            let records = tail.end(tasks, task_id);
            bench.tell(task_id, |standing| standing.records = records);
            if let Some(begun) = begun.take() {
                drop(begun.send(Ok(())));
            }
        };
        let attended = Attended {
            cancel,
            asking: bench.workshop.asking(),
            output: nowhere()?,
            listen: &mut listen,
        };
        let view = match step {
            Step::Derive(mut model, attempts) => {
                let mut ask = |prompt: &str| model.generate(prompt, cancel);
                tasks.derive(task_id, attempts, cancel, &mut ask)?
            }
            Step::Work => tasks.work(task_id, attended)?,
            Step::Respond { text, voice, uid } => {
                tasks.respond(task_id, &text, (voice, uid), attended)?
            }
        };
        tracing::info!(%task_id, state = view.state.as_str(), "a task has come this far");
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (bench, task_id) = (&self.bench, &self.task_id);
        let records = Tail::default().settled(bench.workshop.tasks(), task_id);
        // Before anybody else can take it.
        bench.tell(task_id, |standing| {
            standing.records = standing.records.max(records.unwrap_or(0));
            standing.here = false;
        });
        lock(&bench.under_way).remove(task_id);
        bench.metrics.tasks_under_way.less();
    }
}

/// What an agent prints is for nobody: a daemon has no terminal, and its own log must be its own.
fn nowhere() -> Result<Output, TaskError> {
    let path = Path::new("/dev/null");
    let null = File::options().write(true).open(path);
    let null = null.map_err(|source| TaskError::Directory {
        path: path.to_owned(),
        source,
    })?;
    let null = Arc::new(null.into());
    Ok(Output::Into {
        stdout: Arc::clone(&null),
        stderr: null,
    })
}

/// Where a journal ends.
#[derive(Default)]
pub(crate) struct Tail {
    reader: Option<Reader>,
    records: u64,
}

impl Tail {
    /// How many records there are now. Blocks.
    fn end(&mut self, tasks: &Tasks, task_id: &TaskId) -> u64 {
        if self.reader.is_none() {
            let reader = tasks.subscribe(task_id, self.records);
            self.reader = reader.ok().flatten();
        }
        if let Some(reader) = &mut self.reader {
            while let Ok(Some(record)) = reader.next() {
                self.records = record.seq + 1;
            }
        }
        self.records
    }

    /// How many records are durable, if this daemon does not work on the task. Blocks.
    ///
    /// Whoever does waits for each record before the next one, so only the last may not be, while the task is held.
    pub(crate) fn settled(&mut self, tasks: &Tasks, task_id: &TaskId) -> Result<u64, TaskError> {
        let held = tasks.journal(task_id)?.is_live();
        let records = self.end(tasks, task_id);
        Ok(records.saturating_sub(held.into()))
    }
}
