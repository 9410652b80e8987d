//! Jobs: one well-defined action each, asked for by an agent, carried out by Invigil.
//!
//! A job is on record before it has any effect, happens in a process of its own inside of the sandbox, ends by its
//! deadline, and has exactly one end on record, durable before anybody is told. `docs/capabilities.md` says how.

mod command;
mod owner;
mod pipes;
mod recovery;
mod seen;
mod session;
mod undo;
mod wire;
mod work;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use invigil_journal::{BlobError, Error as JournalError, IndexError, Journal, StoreError, Ticket};
use invigil_policy::{Action, Places, Policy, Source, Verdict};
use invigil_schema::{
    Event, JobCancelled, JobCompleted, JobDenied, JobEnd, JobFailed, JobId, JobOutput, JobRefused,
    JobStarted, JobTimedOut, Origin, OsText, RunId, SessionId, Snapshot, Spawned, StepRef,
};
use serde::Serialize;
use serde_json::Value;

pub use recovery::recover;
pub use session::{OnError, SessionError, Steps, StepsError, StepsSpec};
pub use undo::UndoError;
pub use work::Worker;
pub use worker::worker;

use crate::approvals::Asking;
use crate::capabilities::{Needs, Plan, Registry, Unknown};
use crate::control::Control;
use crate::redact::Redactor;
use crate::run::{Engine, random};
use crate::telemetry::{ResourceGuard, Sampler, TelemetryError};
use owner::Owner;
use seen::Seen;
use work::{Ready, Recipes, WorkEnd, Worked};

/// The variables that every job gets, if they are there.
const ENV: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "NO_COLOR",
    "RUST_BACKTRACE",
];
/// A result of more bytes than this is kept as a blob, beside its record.
const INLINE: usize = 64 * 1024;

/// What an agent asks for.
#[derive(Debug, Clone, Default)]
pub struct JobSpec {
    /// The name of a capability.
    pub capability: String,
    /// What it is told.
    pub arguments: Value,
    /// Nothing may be changed.
    pub dry_run: bool,
    /// The session that it belongs to.
    pub session: Option<SessionId>,
    /// The step of the session's file that it is.
    pub step: Option<StepRef>,
    /// Further trees that it may use.
    pub allow: Vec<PathBuf>,
    /// Whether it is not to be done where this machine cannot bound it fully.
    pub strict: bool,
    /// Whether all that a program prints is kept.
    pub keep_output: bool,
}

/// How jobs are cancelled, from any thread.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<Cancelling>>);

#[derive(Default)]
struct Cancelling {
    cancelled: bool,
    /// The job that is under way.
    control: Control,
}

impl Cancel {
    /// For one job after the other.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the job that is under way, with everything that it has started. None is begun any more.
    pub fn cancel(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled = true;
        state.control.kill();
    }

    /// Whether somebody has cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .cancelled
    }

    /// The next job is steered by this.
    pub(crate) fn steers(&self, control: &Control) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.control = control.clone();
        if state.cancelled {
            state.control.kill();
        }
    }
}

/// What became of a job.
#[derive(Debug, Clone, Serialize)]
pub struct JobResult {
    /// The job.
    pub job_id: JobId,
    /// What was asked for.
    pub capability: String,
    /// Whether it was done.
    pub success: bool,
    /// How it ended.
    pub state: JobOutcome,
    /// What it gave.
    pub output: GivenOutput,
    /// The machine before.
    pub before: Snapshot,
    /// The machine after.
    pub after: Snapshot,
    /// The processes that it started.
    pub spawned: Vec<Spawned>,
    /// What this machine could not give.
    pub degraded: Vec<String>,
    /// The run with all of its facts, if a program did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The number of its last record.
    pub seq: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What else went wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// It was done.
    Completed,
    /// Its arguments are wrong.
    Invalid,
    /// It could not be done.
    Failed,
    /// The policy did not let it.
    Denied,
    /// Its time was up.
    TimedOut,
    /// Somebody did not want it any more.
    Cancelled,
}

/// What a job gave.
#[derive(Debug, Clone, Serialize)]
pub struct GivenOutput {
    /// Whether it was done.
    pub success: bool,
    /// The result.
    pub data: Value,
    /// The same for people, or why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why there is no job.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such capability.
    #[error("{0}; `invigil capabilities` lists them")]
    Unknown(#[from] Unknown),
    /// The machine is too busy.
    #[error("{why}; INVIGIL_GUARD=off switches this guard off")]
    Busy {
        /// Which figure is past its threshold.
        why: String,
    },
    /// A directory that cannot be used.
    #[error("cannot use the directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The session takes no jobs.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is nothing to take back.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// The machine's figures cannot be read.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// There is no randomness to hide secrets with.
    #[error("the kernel gives no random numbers: {0}")]
    Key(#[source] io::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index of jobs.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The files of the store that say who lives.
    #[error("cannot use the store: {0}")]
    Owner(#[source] io::Error),
    /// The journal of jobs cannot be written.
    #[error("the job cannot be recorded: {0}")]
    Journal(#[from] JournalError),
    /// A policy file is wrong.
    #[error("{0}")]
    Policy(String),
}

/// Carries out jobs, one or many at once.
pub struct Executor {
    engine: Engine,
    registry: Registry,
    worker: Worker,
    policies: Vec<Source>,
    places: Places,
    policy: Policy,
    asking: Asking,
    guard: ResourceGuard,
    limits: JobLimits,
    sampler: Mutex<Sampler>,
    recipes: Mutex<Recipes>,
    spares: bool,
    /// Trees that the policies of the user open beyond the working directory.
    granted: Vec<PathBuf>,
    journal: Journal,
    redactor: Redactor,
    owner: Owner,
}

/// What an executor works with.
pub struct Setup {
    /// Where everything is kept, and where jobs happen if nothing else is said.
    pub engine: Engine,
    /// What can be asked for.
    pub registry: Registry,
    /// What carries jobs out.
    pub worker: Worker,
    /// The policy files of the user and the project; they are stacked upon the bounds of each job.
    pub policies: Vec<Source>,
    /// What their variables stand for.
    pub places: Places,
    /// How a person is asked what the policy leaves open, where a program does the job.
    pub asking: Asking,
    /// What refuses work when the machine is busy.
    pub guard: ResourceGuard,
    /// What a job may use.
    pub limits: JobLimits,
    /// Whether a worker is kept ready for the next job. For those that carry out many.
    pub spares: bool,
}

/// What a job may use. A policy file can say something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    /// Bytes of memory of one job.
    pub memory: u64,
    /// Processes of one job at once.
    pub processes: u64,
    /// Bytes of one file that it writes.
    pub file_size: u64,
}

impl Default for JobLimits {
    fn default() -> Self {
        JobLimits {
            memory: 4 << 30,
            processes: 512,
            file_size: 4 << 30,
        }
    }
}

/// One job under way.
struct Job<'a> {
    id: JobId,
    spec: &'a JobSpec,
    cancel: &'a Cancel,
    /// Without links.
    working_dir: PathBuf,
    /// The working directory and what else is allowed, without links.
    roots: Vec<PathBuf>,
}

impl Job<'_> {
    /// A directory below one of the roots.
    fn resolved(&self, path: &Path) -> Result<PathBuf, String> {
        let asked = self.working_dir.join(path);
        let real = asked
            .canonicalize()
            .map_err(|error| format!("`cwd`: {}: {error}", path.display()))?;
        match self.roots.iter().any(|root| real.starts_with(root)) {
            true => Ok(real),
            false => Err(format!(
                "`cwd`: {} is not below an allowed directory",
                path.display()
            )),
        }
    }
}

impl Executor {
    /// Makes everything ready.
    pub fn new(setup: Setup) -> Result<Executor, ExecError> {
        let Setup {
            engine,
            registry,
            worker,
            policies,
            places,
            asking,
            guard,
            limits,
            spares,
        } = setup;
        let policy =
            Policy::load(&policies, &places).map_err(|error| ExecError::Policy(error.report()))?;
        let (_, journal) = engine
            .store
            .jobs(Arc::clone(&engine.clock), &engine.writer)?;
        let owner = Owner::new(&engine.store).map_err(ExecError::Owner)?;
        let mut sampler = Sampler::open()?;
        sampler.load(&engine.store.home().join(Sampler::LAST_READING));
        Ok(Executor {
            redactor: Redactor::new(random().map_err(ExecError::Key)?),
            sampler: Mutex::new(sampler),
            recipes: Mutex::default(),
            spares,
            granted: granted(&policy),
            policy,
            engine,
            registry,
            worker,
            policies,
            places,
            asking,
            guard,
            limits,
            journal,
            owner,
        })
    }

    /// What can be asked for.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Carries out one job. An error means that there was none; everything else is a result.
    pub fn exec(&self, spec: &JobSpec, cancel: &Cancel) -> Result<JobResult, ExecError> {
        let capability = self.registry.get(&spec.capability)?;
        let working_dir = directory(&self.engine.cwd)?;
        let mut roots = vec![working_dir.clone()];
        for path in &spec.allow {
            roots.push(directory(&self.engine.cwd.join(path))?);
        }
        roots.extend(self.granted.iter().cloned());
        if let Some(session) = &spec.session {
            self.takes_jobs(session)?;
        }
        let job = Job {
            id: new_id(),
            spec,
            cancel,
            working_dir,
            roots,
        };
        let plan = capability.check(&spec.arguments);
        let denial = self.denial(spec);
        thread::scope(|scope| {
            // A worker is started while everything else is made ready. It does nothing before it has its order.
            let launching = match (&plan, &denial) {
                (Ok(Plan::Work(needs)), None) => {
                    let (job, needs) = (&job, *needs);
                    Some(scope.spawn(move || self.ready(job, &needs)))
                }
                _ => None,
            };
            let before = self.snapshot(&job.working_dir)?;
            self.admit(spec, &before)?;
            let begun = Instant::now();
            self.append(&self.started(&job, &before).into())?
                .durable()?;
            let done = match (plan, denial) {
                (Err(error), _) => Ended {
                    invalid: true,
                    ..Ended::so(WorkEnd::failed(error.to_string()))
                },
                (_, Some(why)) => Ended::so(WorkEnd::Denied(why)),
                _ if cancel.is_cancelled() => Ended::so(WorkEnd::Cancelled),
                (Ok(Plan::Command(command)), _) if spec.dry_run => {
                    Ended::so(WorkEnd::Done(dry(&command)))
                }
                (Ok(Plan::Command(command)), _) => self.command(&job, &command),
                (Ok(Plan::Work(needs)), _) => {
                    let ready = launching.and_then(|thread| thread.join().ok());
                    let lost = || Err("the worker did not start".to_owned());
                    self.work(&job, &needs, ready.unwrap_or_else(lost))
                }
            };
            self.finish(&job, before, begun, done)
        })
    }

    /// Hands a job to a worker.
    fn work(&self, job: &Job<'_>, needs: &Needs, ready: Result<Ready, String>) -> Ended {
        let ready = match ready {
            Ok(ready) => ready,
            Err(why) => return Ended::so(WorkEnd::failed(why)),
        };
        let undo = match self.to_take_back(job) {
            Ok(undo) => undo,
            Err(error) => return Ended::so(WorkEnd::failed(error.to_string())),
        };
        job.cancel.steers(ready.control());
        let done = ready.carry_out(self, job, needs, &undo);
        self.leave_spare(&done);
        // While the worker dies.
        let after = self.snapshot(&job.working_dir).ok();
        Ended {
            worked: done.wait(job),
            after,
            ..Ended::so(WorkEnd::Cancelled)
        }
    }

    /// Asks the guard; what it refuses is on record.
    fn admit(&self, spec: &JobSpec, before: &Snapshot) -> Result<(), ExecError> {
        let Err(refused) = self.guard.check(&before.telemetry, &before.processes) else {
            return Ok(());
        };
        let why = refused.to_string();
        let event = JobRefused {
            capability: spec.capability.clone(),
            session: spec.session.clone(),
            why: why.clone(),
            before: before.clone(),
        };
        self.append(&event.into())?.durable()?;
        Err(ExecError::Busy { why })
    }

    fn started(&self, job: &Job<'_>, before: &Snapshot) -> JobStarted {
        let os = |path: &PathBuf| OsText::from(path.clone().into_os_string());
        JobStarted {
            job_id: job.id.clone(),
            capability: job.spec.capability.clone(),
            arguments: job.spec.arguments.clone(),
            dry_run: job.spec.dry_run,
            session: job.spec.session.clone(),
            step: job.spec.step.clone(),
            working_dir: os(&job.working_dir),
            allowed: job.roots[1..].iter().map(os).collect(),
            owner: self.owner.name().to_owned(),
            before: before.clone(),
        }
    }

    /// Records the one end of a job, and tells it.
    fn finish(
        &self,
        job: &Job<'_>,
        before: Snapshot,
        begun: Instant,
        ended: Ended,
    ) -> Result<JobResult, ExecError> {
        let Worked {
            end: how,
            mut seen,
            degraded,
        } = ended.worked;
        // A machine that cannot be looked at any more must not keep a job without an end.
        let after = ended.after.or_else(|| self.snapshot(&job.working_dir).ok());
        let after = after.unwrap_or_else(|| before.clone());
        let end = JobEnd {
            job_id: job.id.clone(),
            capability: job.spec.capability.clone(),
            session: job.spec.session.clone(),
            duration_ms: begun.elapsed().as_millis() as u64,
            spawned: seen.take_spawned(),
            refused: std::mem::take(&mut seen.refused),
            degraded: degraded.clone(),
            run: ended.run.clone(),
            before: Some(before.clone()),
            after: Some(after.clone()),
        };
        let (spawned, duration_ms) = (end.spawned.clone(), end.duration_ms);
        let zombies = self.guard.zombies(&after.processes);
        let mut warnings: Vec<String> = zombies.iter().map(ToString::to_string).collect();
        let mut output = |data: Value, message: Option<String>| {
            self.kept_output(data, message).unwrap_or_else(|error| {
                warnings.push(format!("the result could not be kept: {error}"));
                JobOutput {
                    data: Value::Null,
                    blob: None,
                    message: None,
                }
            })
        };
        let partial = ended.shown;
        let mut some = |data: Option<Value>| data.map(|data| output(data, None));
        let (event, state, data, message): (Event, JobOutcome, Value, Option<String>) = match how {
            WorkEnd::Done(given) => {
                let kept = some(Some(given.data.clone()));
                let kept = kept.unwrap_or_else(|| JobOutput {
                    data: Value::Null,
                    blob: None,
                    message: None,
                });
                let output = JobOutput {
                    message: given.message.clone(),
                    ..kept
                };
                let event = JobCompleted { end, output }.into();
                (event, JobOutcome::Completed, given.data, given.message)
            }
            WorkEnd::Failed { error, data } => {
                let (state, error) = match ended.invalid {
                    true => (JobOutcome::Invalid, format!("Validation failed: {error}")),
                    false => (JobOutcome::Failed, format!("Execution failed: {error}")),
                };
                let data = data.or(partial);
                let event = JobFailed {
                    end,
                    error: error.clone(),
                    recovered: false,
                    output: some(data.clone()),
                };
                (event.into(), state, data.unwrap_or_default(), Some(error))
            }
            WorkEnd::Denied(error) => {
                let error = format!("Denied: {error}");
                let event = JobDenied {
                    end,
                    error: error.clone(),
                };
                (
                    event.into(),
                    JobOutcome::Denied,
                    partial.unwrap_or_default(),
                    Some(error),
                )
            }
            WorkEnd::TimedOut => {
                let timeout_ms = duration_ms;
                let output = some(partial.clone());
                let event = JobTimedOut {
                    end,
                    timeout_ms,
                    output,
                };
                let message = "Execution failed: its time was up".to_owned();
                (
                    event.into(),
                    JobOutcome::TimedOut,
                    partial.unwrap_or_default(),
                    Some(message),
                )
            }
            WorkEnd::Cancelled => {
                let output = some(partial.clone());
                let message = "Execution failed: it was cancelled".to_owned();
                (
                    JobCancelled { end, output }.into(),
                    JobOutcome::Cancelled,
                    partial.unwrap_or_default(),
                    Some(message),
                )
            }
        };
        let ticket = self.append(&event)?;
        ticket.durable()?;
        let success = state == JobOutcome::Completed;
        Ok(JobResult {
            job_id: job.id.clone(),
            capability: job.spec.capability.clone(),
            success,
            state,
            output: GivenOutput {
                success,
                data,
                message,
            },
            before,
            after,
            spawned,
            degraded,
            run: ended.run,
            seq: ticket.seq(),
            duration_ms,
            warnings,
        })
    }

    /// What of a result goes into the record: all of it, or the digest of a blob.
    fn kept_output(&self, data: Value, message: Option<String>) -> Result<JobOutput, OutputError> {
        let bytes = serde_json::to_vec(&data)?;
        if bytes.len() <= INLINE {
            return Ok(JobOutput {
                data,
                blob: None,
                message,
            });
        }
        let redacted = self.redactor.bytes(&bytes);
        let blob = self.engine.store.blobs()?.put(&redacted)?;
        Ok(JobOutput {
            data: Value::Null,
            blob: Some(blob),
            message,
        })
    }

    /// Appends to the journal of jobs, without secrets.
    fn append(&self, event: &Event) -> Result<Ticket, JournalError> {
        self.journal
            .append(Origin::Runtime, &self.redactor.event(event))
    }

    fn snapshot(&self, working_dir: &Path) -> Result<Snapshot, TelemetryError> {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Snapshot {
            telemetry: sampler.machine(working_dir)?,
            processes: sampler.summary()?,
        })
    }

    /// What the policy of the user says of the capability as such.
    fn denial(&self, spec: &JobSpec) -> Option<String> {
        let action = Action::Tool {
            name: &spec.capability,
            params: &spec.arguments,
        };
        match self.policy.verdict(&action) {
            Verdict::Allow => None,
            Verdict::Deny => Some(self.policy.decide(&action).cite()),
            Verdict::Ask => Some(format!(
                "{}, and nobody can be asked here",
                self.policy.decide(&action).cite()
            )),
        }
    }
}

/// Trees that the policies of the user open beyond the working directory.
fn granted(policy: &Policy) -> Vec<PathBuf> {
    let bounds = policy.bounds();
    let roots = bounds.read_roots.into_iter().chain(bounds.write_roots);
    let real = roots.flatten().filter_map(|root| root.canonicalize().ok());
    real.filter(|root| root.is_dir()).collect()
}

/// How a job ended, before it is on record.
struct Ended {
    worked: Worked,
    /// The machine after, if somebody has looked already.
    after: Option<Snapshot>,
    /// The run with all of its facts.
    run: Option<RunId>,
    /// What a program printed, however it ended.
    shown: Option<Value>,
    /// Whether the arguments were wrong.
    invalid: bool,
}

impl Ended {
    /// Just so, without any process.
    fn so(end: WorkEnd) -> Ended {
        Ended {
            worked: Worked {
                end,
                seen: Seen::default(),
                degraded: Vec::new(),
            },
            after: None,
            run: None,
            shown: None,
            invalid: false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum OutputError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Drop for Executor {
    fn drop(&mut self) {
        let recipes = self.recipes.lock().unwrap_or_else(PoisonError::into_inner);
        recipes.values().for_each(|recipe| recipe.close());
        let file = self.engine.store.home().join(Sampler::LAST_READING);
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        // The next process has no figure for the processors then; nothing else depends on it.
        drop(sampler.save(&file));
    }
}

/// What would be run.
fn dry(command: &crate::capabilities::Command) -> crate::capabilities::Output {
    let argv: Vec<String> = command
        .argv
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let data = serde_json::json!({ "dry_run": true, "argv": argv });
    crate::capabilities::Output::new(data).message("nothing was run")
}

fn new_id() -> JobId {
    match JobId::new(format!("job_{}", uuid::Uuid::now_v7().simple())) {
        Ok(id) => id,
        Err(_) => unreachable!("letters, digits and `_` are an id"),
    }
}

fn directory(path: &Path) -> Result<PathBuf, ExecError> {
    let real = path.canonicalize().and_then(|real| match real.is_dir() {
        true => Ok(real),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    real.map_err(|source| ExecError::Directory {
        path: path.to_owned(),
        source,
    })
}
