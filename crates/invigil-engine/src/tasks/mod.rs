//! Tasks: an intent, a contract, an agent that works in a worktree of its own, and a person who decides.
//!
//! `docs/contracts.md` says what is promised. Everything that happens is in the journal of the task; whoever wants to
//! follow it reads that from any sequence number on.

mod open;
mod settings;
mod verdict;
mod view;
mod work;
mod worktree;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use invigil_journal::{BlobError, Error as JournalError, Options, Reader, RunRef, StoreError};
use invigil_policy::{Places, PolicyError, Source};
use invigil_schema::{
    Contract, Digest, Event, Mode, Origin, OsText, RunId, TaskAnswered, TaskContract, TaskEnded,
    TaskId, TaskIdError, TaskStarted, TaskState,
};

pub use view::TaskView;
pub(crate) use work::digest;

use crate::approvals::Asking;
use crate::capabilities::Failure;
use crate::contracts::{self, GenerateError, Problem, summary, validate};
use crate::jobs::Cancel;
use crate::run::Engine;
use crate::spec::Output;
use open::{Open, keep, put};
use settings::Settings;
use worktree::{Own, Repository};

/// The file that asks whoever works on a task to stop.
const CANCEL: &str = "cancel";
/// Invigil's own repository of a task.
const OWN: &str = "repository";
/// A patch that is larger than this cannot be shown.
const LARGEST_PATCH: u64 = 64 << 20;
/// How long whoever works on a task may take to stop.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
const UNWANTED: &str = "Somebody did not want it any more.";
const TOLD_TO_STOP: &str = "Invigil was told to stop while it was worked on.";

/// What is to be done.
#[derive(Debug, Clone)]
pub struct TaskSpec {
    /// The id; without one a new one is made.
    pub task_id: Option<TaskId>,
    /// The person's repository.
    pub repository: PathBuf,
    /// What the person wants.
    pub intent: String,
    /// What "done" means, if whoever wants it has said it.
    pub contract: Option<Contract>,
    /// Whose it is, if a client of the daemon wants it.
    pub agent_id: Option<String>,
    /// The agent's command. `{intent}` in its arguments is replaced; without it the intent is on its stdin.
    pub agent: Vec<OsString>,
    /// What the policy means.
    pub mode: Mode,
    /// The policy files.
    pub sources: Vec<Source>,
    /// What the variables in them stand for; the workspace is the worktree.
    pub places: Places,
    /// How often red checks go back to the agent.
    pub max_rounds: u32,
    /// How long the agent may work in each round.
    pub timeout: Option<Duration>,
}

/// Who says something about a task: a person, or the client that began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// A person.
    Person,
    /// A client of the daemon.
    Client,
}

impl Voice {
    fn origin(self) -> Origin {
        match self {
            Voice::Person => Origin::User,
            Voice::Client => Origin::Client,
        }
    }
}

/// The agent's command as a person writes it, for a shell. `{intent}` is an argument of its own, whatever is in it.
pub fn shell_agent(text: &str) -> Vec<OsString> {
    let mut argv: Vec<OsString> = vec!["sh".into(), "-c".into()];
    match text.contains(work::INTENT) {
        true => argv.extend([
            text.replace(work::INTENT, "\"$1\"").into(),
            "agent".into(),
            work::INTENT.into(),
        ]),
        false => argv.push(text.into()),
    }
    argv
}

/// What surrounds a task while it is worked on.
pub struct Attended<'a> {
    /// Ends it.
    pub cancel: &'a Cancel,
    /// How a person is asked what the policy leaves open.
    pub asking: Asking,
    /// Where the agent's output goes.
    pub output: Output,
    /// Hears everything that is recorded.
    pub listen: &'a mut dyn FnMut(&Event),
}

/// Why a task cannot be begun, continued or approved.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// No such task.
    #[error("there is no task {0:?}; `invigil task list` shows them")]
    NotFound(String),
    /// Several tasks begin like this.
    #[error("{prefix:?} begins several tasks: {}", some.iter().map(TaskId::as_str).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// Which it could be.
        some: Vec<TaskId>,
    },
    /// It stands differently.
    #[error("task {task_id} is {}: {wanted}", state.as_str())]
    State {
        /// Which.
        task_id: TaskId,
        /// How it stands.
        state: TaskState,
        /// What would be necessary.
        wanted: &'static str,
    },
    /// Somebody works on it.
    #[error("another process works on task {0}; wait for it, or cancel it")]
    Busy(TaskId),
    /// The contract proves nothing.
    #[error("the contract cannot be used: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Contract(Vec<Problem>),
    /// There is no agent.
    #[error("there is no agent: --agent 'CMD…'")]
    NoAgent,
    /// The mode enforces nothing.
    #[error("a task needs a policy: the mode is guard or strict")]
    Unguarded,
    /// Not a repository.
    #[error("{} is not in a git repository with a checkout", .0.display())]
    NoRepository(PathBuf),
    /// Nothing to begin with.
    #[error("{} has no commits yet: make one, so that there is something to begin with", .0.display())]
    NoCommits(PathBuf),
    /// The worktree would be in the checkout.
    #[error("the worktree {} would be inside of the repository: choose another cache folder ($XDG_CACHE_HOME)", .0.display())]
    Inside(PathBuf),
    /// A directory.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// git said no.
    #[error("{0}")]
    Git(String),
    /// Nobody can review it.
    #[error("the change is larger than 32 MiB, more than anybody can review")]
    TooLarge,
    /// Somebody took it away.
    #[error("the worktree {} is gone", .0.display())]
    WorktreeGone(PathBuf),
    /// What is there is not what was shown.
    #[error("refused: {0}; look at it again with `invigil task show`")]
    Changed(String),
    /// Another content was shown.
    #[error(
        "refused: the digest is {expected}, and not {given}; look at it again with `invigil task show`"
    )]
    Digest {
        /// Of what waits for approval.
        expected: Digest,
        /// Of what was shown.
        given: String,
    },
    /// The agent.
    #[error("the agent could not be run: {0}")]
    Agent(String),
    /// The policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A blob.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The id.
    #[error(transparent)]
    Id(#[from] TaskIdError),
    /// No randomness.
    #[error("the kernel gives no random numbers: {0}")]
    Random(#[source] io::Error),
    /// It does not stop.
    #[error("task {0} was asked to stop, and has not yet")]
    StillThere(TaskId),
}

impl From<Failure> for TaskError {
    fn from(failure: Failure) -> TaskError {
        TaskError::Git(failure.to_string())
    }
}

/// All tasks of a store.
pub struct Tasks {
    engine: Engine,
    /// Where worktrees are made: outside of the store, which no run may write.
    work: PathBuf,
}

impl Tasks {
    /// Tasks of the engine's store, with their worktrees in this directory.
    pub fn new(engine: Engine, work: PathBuf) -> Tasks {
        Tasks { engine, work }
    }

    /// Begins a task: a worktree at `HEAD`, and a journal. With a contract it is confirmed, without it waits for one.
    pub fn start(&self, spec: &TaskSpec) -> Result<TaskView, TaskError> {
        if spec.agent.first().is_none_or(|word| word.is_empty()) {
            return Err(TaskError::NoAgent);
        }
        if spec.mode == Mode::Observe {
            return Err(TaskError::Unguarded);
        }
        if let Some(contract) = &spec.contract {
            usable(contract)?;
        }
        let repository = Repository::at(&spec.repository)?;
        let notes = repository.notes()?;
        let task_id = match &spec.task_id {
            Some(id) => id.clone(),
            None => TaskId::new(format!("task_{}", uuid::Uuid::now_v7().simple()))?,
        };
        let folder = self.folder_of(&task_id);
        let name = repository.top.file_name().unwrap_or("work".as_ref());
        let worktree = folder.join(name);
        fs::create_dir_all(&self.work).map_err(in_directory(&self.work))?;
        let real = fs::canonicalize(&self.work).map_err(in_directory(&self.work))?;
        if real.starts_with(&repository.top) {
            return Err(TaskError::Inside(worktree));
        }
        let run_id = run_id(&task_id)?;
        let clock = self.engine.clock.clone();
        let (journal_ref, journal) =
            self.engine
                .store
                .create_task(&run_id, clock, &self.engine.writer)?;
        let open = Open::new(journal_ref, journal)?;
        let started = TaskStarted {
            task_id: task_id.clone(),
            intent: spec.intent.clone(),
            repository: repository.top.clone().into_os_string().into(),
            base: repository.base.clone(),
            worktree: worktree.clone().into_os_string().into(),
            agent: spec.agent.iter().cloned().map(OsText::from).collect(),
            agent_id: spec.agent_id.clone(),
            max_rounds: spec.max_rounds,
            notes,
        };
        open.append(Origin::Runtime, &started.into())?;
        let made = Settings::of(spec)
            .write(open.directory())
            .map_err(in_directory(open.directory()))
            .and_then(|()| repository.prepare(&worktree, &open.own()));
        if let Err(error) = made {
            let verdict = format!("The worktree could not be made: {error}");
            self.end(&open, &task_id, TaskState::Failed, verdict, None)?;
            return Err(error);
        }
        if let Some(contract) = &spec.contract {
            keep(&open, contract)?;
            let data = TaskContract {
                contract: contract.clone(),
                derived: false,
                confirmed: true,
            };
            let voice = match &spec.agent_id {
                Some(_) => Voice::Client,
                None => Voice::Person,
            };
            open.append(voice.origin(), &data.into())?;
        }
        drop(open);
        self.get(task_id.as_str())
    }

    /// Has a contract written, and puts it to the person. The task is over if that is not possible, or not wanted any
    /// more.
    pub fn derive(
        &self,
        task_id: &TaskId,
        max_attempts: u32,
        cancel: &Cancel,
        generate: &mut dyn FnMut(&str) -> Result<String, GenerateError>,
    ) -> Result<TaskView, TaskError> {
        let open = self.open(task_id, "a contract is derived at the beginning", |view| {
            view.state == TaskState::Created
        })?;
        let repository = path_of(&self.get(task_id.as_str())?.repository);
        let settings = Settings::read(open.directory()).map_err(in_directory(open.directory()))?;
        let ask = |prompt: &str| match cancel.is_cancelled() {
            true => Err(GenerateError::Cancelled),
            false => generate(prompt),
        };
        let about = summary(&repository);
        let derived = open.attentive(cancel, || {
            contracts::derive(ask, &settings.intent, &about, max_attempts)
        });
        match derived {
            _ if cancel.is_cancelled() => {
                self.end(&open, task_id, TaskState::Abandoned, open.stopped(), None)?;
            }
            Ok(derived) => put(&open, &derived.contract)?,
            Err(error) => {
                let verdict = format!("There is no contract: {error}");
                self.end(&open, task_id, TaskState::Failed, verdict, None)?;
            }
        }
        drop(open);
        self.get(task_id.as_str())
    }

    /// Somebody agrees with the proposed contract, or with another one in its place.
    pub fn confirm(
        &self,
        task_id: &TaskId,
        instead: Option<&Contract>,
        voice: Voice,
    ) -> Result<TaskView, TaskError> {
        instead.map_or(Ok(()), usable)?;
        let open = self.open(task_id, "there is nothing to confirm", |view| {
            matches!(view.state, TaskState::Created | TaskState::ContractProposed)
        })?;
        let contract = match instead {
            Some(contract) => {
                keep(&open, contract)?;
                contract.clone()
            }
            // As it was proposed, word for word.
            None => Settings::contract(open.directory()).map_err(in_directory(open.directory()))?,
        };
        let data = TaskContract {
            contract,
            derived: instead.is_none(),
            confirmed: true,
        };
        open.append(voice.origin(), &data.into())?;
        drop(open);
        self.get(task_id.as_str())
    }

    /// Works on a task whose contract is confirmed, until it needs approval or is over.
    pub fn work(&self, task_id: &TaskId, attended: Attended<'_>) -> Result<TaskView, TaskError> {
        let open = self.open(task_id, "its contract must be confirmed first", |view| {
            view.state == TaskState::ContractConfirmed
        })?;
        self.carry_on(task_id, open, None, attended)
    }

    /// Sends what was proposed back to the agent, with what is wanted instead.
    pub fn respond(
        &self,
        task_id: &TaskId,
        text: &str,
        (voice, uid): (Voice, u32),
        attended: Attended<'_>,
    ) -> Result<TaskView, TaskError> {
        let open = self.open(
            task_id,
            "only what waits for approval can be sent back",
            |view| view.state == TaskState::NeedsApproval,
        )?;
        let view = self.get(task_id.as_str())?;
        let Some(proposed) = view.proposed else {
            return Err(TaskError::NotFound(task_id.to_string()));
        };
        let answered = TaskAnswered {
            approved: false,
            digest: proposed.digest,
            text: Some(text.to_owned()),
            uid,
        };
        open.append(voice.origin(), &answered.into())?;
        self.carry_on(task_id, open, Some(text), attended)
    }

    /// The patch that waits for approval.
    pub fn patch(&self, view: &TaskView) -> Result<Vec<u8>, TaskError> {
        match &view.proposed {
            Some(proposed) => Ok(self
                .engine
                .store
                .blobs()?
                .get(&proposed.patch, LARGEST_PATCH)?),
            None => Ok(Vec::new()),
        }
    }

    /// Delivers what was shown to a person, as a branch. `shown` is the digest of that, or the first 12 digits of it.
    pub fn approve(&self, task_id: &TaskId, shown: &str, uid: u32) -> Result<TaskView, TaskError> {
        let open = self.open(task_id, "there is nothing to approve", |view| {
            view.state == TaskState::NeedsApproval
        })?;
        let view = self.get(task_id.as_str())?;
        let Some(proposed) = &view.proposed else {
            return Err(TaskError::NotFound(task_id.to_string()));
        };
        let expected = proposed.digest;
        if shown.len() < 12 || !expected.to_string().starts_with(shown) {
            let given = shown.to_owned();
            return Err(TaskError::Digest { expected, given });
        }
        let worktree = path_of(&view.worktree);
        let own = Own::new(&open.own(), &worktree, &view.base);
        let patch = self.patch(&view)?;
        let digest = digest(&view.base, &proposed.commit, &patch);
        if digest != expected {
            return Err(TaskError::Changed(
                "the record of what was shown does not fit".to_owned(),
            ));
        }
        let now = own.content()?;
        if now.tree != proposed.tree {
            let why = "the content of the worktree has changed since it was shown".to_owned();
            return Err(TaskError::Changed(why));
        }
        let mut repository = Repository::at(&path_of(&view.repository))?;
        repository.base.clone_from(&view.base);
        let answered = TaskAnswered {
            approved: true,
            digest,
            text: None,
            uid,
        };
        open.append(Origin::User, &answered.into())?;
        let branch = format!("invigil/{task_id}");
        repository.deliver(&own, &proposed.commit, &branch)?;
        let verdict = format!("The work is on the branch {branch}; your checkout is as it was.");
        let delivered = Some((branch, proposed.commit.clone()));
        self.end(&open, task_id, TaskState::Merged, verdict, delivered)?;
        drop(open);
        self.get(task_id.as_str())
    }

    /// Ends a task: its processes are dead and its worktree is gone when this returns.
    pub fn cancel(&self, task_id: &TaskId) -> Result<TaskView, TaskError> {
        let until = Instant::now() + PATIENCE;
        let mut asked = false;
        loop {
            match self.open(task_id, "it is over already", |view| !view.state.is_over()) {
                Ok(open) => {
                    let verdict = UNWANTED.to_owned();
                    self.end(&open, task_id, TaskState::Abandoned, verdict, None)?;
                    drop(open);
                    return self.get(task_id.as_str());
                }
                Err(TaskError::Busy(_)) if Instant::now() < until => {
                    let file = self.journal(task_id)?.directory().join(CANCEL);
                    fs::write(&file, "").map_err(in_directory(&file))?;
                    asked = true;
                    std::thread::sleep(LOOK);
                }
                // It has stopped, as it was asked to.
                Err(TaskError::State { .. }) if asked => return self.get(task_id.as_str()),
                Err(TaskError::Busy(task_id)) => return Err(TaskError::StillThere(task_id)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends each task whose process died while it worked. One that waits for a person stays as it is.
    pub fn recover(&self) -> Result<Vec<TaskId>, TaskError> {
        let mut ended = Vec::new();
        for view in self.list()? {
            if view.live || view.state.is_over() || view.state.waits() {
                continue;
            }
            let died = |view: &TaskView| !view.state.is_over() && !view.state.waits();
            let Ok(open) = self.open(&view.task_id, "it is over already", died) else {
                continue;
            };
            let verdict = "The process that worked on it is gone.".to_owned();
            self.end(&open, &view.task_id, TaskState::Failed, verdict, None)?;
            ended.push(view.task_id);
        }
        Ok(ended)
    }

    /// All tasks, newest first. Those of which nothing can be read are left out.
    pub fn list(&self) -> Result<Vec<TaskView>, TaskError> {
        let mut views: Vec<TaskView> = Vec::new();
        for journal in self.engine.store.tasks()? {
            views.extend(TaskView::read(&journal).ok().flatten());
        }
        views.sort_by_key(|view| std::cmp::Reverse(view.started_at));
        Ok(views)
    }

    /// The task that a person means: an id, the beginning of one, or `last`.
    pub fn get(&self, name: &str) -> Result<TaskView, TaskError> {
        let not_found = || TaskError::NotFound(name.to_owned());
        if name == RunId::LAST {
            return self.list()?.into_iter().next().ok_or_else(not_found);
        }
        let mut found = self.engine.store.tasks()?;
        if let Some(exact) = found.iter().find(|task| task.run_id().as_str() == name) {
            return TaskView::read(exact)?.ok_or_else(not_found);
        }
        found.retain(|task| task.run_id().as_str().starts_with(name));
        match &found[..] {
            [] => Err(not_found()),
            [one] => TaskView::read(one)?.ok_or_else(not_found),
            many => Err(TaskError::Ambiguous {
                prefix: name.to_owned(),
                some: many
                    .iter()
                    .filter_map(|task| TaskId::new(task.run_id().as_str()).ok())
                    .collect(),
            }),
        }
    }

    /// The task of this very id.
    pub fn view(&self, task_id: &TaskId) -> Result<TaskView, TaskError> {
        let not_found = || TaskError::NotFound(task_id.to_string());
        TaskView::read(&self.journal(task_id)?)?.ok_or_else(not_found)
    }

    /// Everything about a task from this sequence number on; called again at its end, the reader has what came since.
    pub fn subscribe(&self, task_id: &TaskId, from: u64) -> Result<Option<Reader>, TaskError> {
        Ok(self.journal(task_id)?.read(from)?)
    }

    /// The journal of a task.
    pub fn journal(&self, task_id: &TaskId) -> Result<RunRef, TaskError> {
        let tasks = self.engine.store.tasks()?;
        let found = tasks
            .into_iter()
            .find(|task| task.run_id().as_str() == task_id.as_str());
        found.ok_or_else(|| TaskError::NotFound(task_id.to_string()))
    }

    /// Takes a task over, if it stands like this.
    fn open(
        &self,
        task_id: &TaskId,
        wanted: &'static str,
        stands: impl Fn(&TaskView) -> bool,
    ) -> Result<Open, TaskError> {
        let journal_ref = self.journal(task_id)?;
        let appended = journal_ref.append(self.engine.clock.clone(), Options::default());
        let (journal, _) = appended.map_err(|error| match journal_ref.is_live() {
            true => TaskError::Busy(task_id.clone()),
            false => error.into(),
        })?;
        // Only now nobody else can change it any more.
        let view = self.get(task_id.as_str())?;
        match stands(&view) {
            true => Open::new(journal_ref, journal),
            false => Err(TaskError::State {
                task_id: task_id.clone(),
                state: view.state,
                wanted,
            }),
        }
    }

    /// Clears everything away and writes the last record.
    fn end(
        &self,
        open: &Open,
        task_id: &TaskId,
        state: TaskState,
        verdict: String,
        delivered: Option<(String, String)>,
    ) -> Result<Event, TaskError> {
        let directory = open.directory();
        for gone in [self.folder_of(task_id), directory.join(OWN)] {
            remove(&gone)?;
        }
        for file in [Settings::FILE, Settings::CONTRACT, CANCEL] {
            drop(fs::remove_file(directory.join(file)));
        }
        let (branch, commit) = delivered.unzip();
        let ended: Event = TaskEnded {
            state,
            verdict,
            branch,
            commit,
        }
        .into();
        open.append(Origin::Runtime, &ended)?;
        Ok(ended)
    }

    fn folder_of(&self, task_id: &TaskId) -> PathBuf {
        self.work.join(task_id.as_str())
    }
}

fn usable(contract: &Contract) -> Result<(), TaskError> {
    let problems = validate(contract);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(TaskError::Contract(problems)),
    }
}

fn run_id(task_id: &TaskId) -> Result<RunId, TaskError> {
    RunId::new(task_id.as_str()).map_err(|error| TaskError::Store(error.into()))
}

/// Removes a tree, folders that may not be written too.
fn remove(path: &Path) -> Result<(), TaskError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path);
            fs::remove_dir_all(path).map_err(in_directory(path))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_directory(path)(error)),
        _ => Ok(()),
    }
}

fn open_up(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    drop(fs::set_permissions(path, fs::Permissions::from_mode(0o700)));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

fn path_of(text: &OsText) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.as_bytes()))
}

fn in_directory(path: &Path) -> impl FnOnce(io::Error) -> TaskError {
    let path = path.to_owned();
    move |source| TaskError::Directory { path, source }
}
