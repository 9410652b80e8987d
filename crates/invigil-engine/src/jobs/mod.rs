//! Jobs: one well-defined action each, asked for by an agent, carried out by Invigil.
//!
//! A job is on record before it has any effect, happens in a process of its own inside of the sandbox, ends by its
//! deadline, and has exactly one end on record, durable before anybody is told. `docs/capabilities.md` says how.

mod command;
mod end;
mod fit;
mod looks;
mod midwife;
mod owner;
mod pipes;
mod recovery;
mod result;
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

use invigil_journal::{Error as JournalError, Journal, Ticket};
use invigil_policy::{Action, Narrow, Places, Policy, PolicyError, Source, Verdict};
use invigil_schema::{Event, JobId, JobRefused, JobStarted, Kept, Origin, OsText, Snapshot};

pub use recovery::{is_abandoned, recover};
pub use result::{ExecError, GivenOutput, JobOutcome, JobResult, JobSpec};
pub use session::{OnError, SessionError, Steps, StepsError, StepsSpec};
pub use undo::UndoError;
pub use work::Worker;
pub use worker::worker;

use crate::approvals::Asking;
use crate::capabilities::{self, Needs, Plan, Registry, Roots};
use crate::control::Control;
use crate::redact::Redactor;
use crate::run::{Engine, random};
use crate::telemetry::{ResourceGuard, Sampler};
use end::Ended;
use looks::Looks;
use midwife::{Midwife, Nurseries};
use owner::Owner;
use work::{Ready, Recipes, WorkEnd};

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
    looks: Looks,
    recipes: Mutex<Recipes>,
    nurseries: Option<Arc<Nurseries>>,
    midwife: Option<Midwife>,
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
    /// Whether the first worker is born in a process that is started at once, while everything else is made ready, and with
    /// `spares` every other one too. For those that carry out jobs that need no programs.
    pub nursery: bool,
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
    /// The working directory and what else is allowed, without links: it may read and change all of that.
    own: Vec<PathBuf>,
    /// The same, and the trees of which the policies of the user say what may be done there.
    roots: Vec<PathBuf>,
}

impl Job<'_> {
    /// A directory below one of the roots.
    fn resolved(&self, path: &Path) -> Result<PathBuf, WorkEnd> {
        let asked = self.working_dir.join(path);
        let about = |why: String| format!("`cwd`: {}: {why}", path.display());
        let real = asked
            .canonicalize()
            .map_err(|error| WorkEnd::failed(about(error.to_string())))?;
        match self.roots.iter().any(|root| real.starts_with(root)) {
            true => Ok(real),
            false => {
                let why = "it is not below an allowed directory; allow one with --allow";
                Err(WorkEnd::Denied(about(why.to_owned())))
            }
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
            nursery,
            spares,
        } = setup;
        let env = work::env_of_jobs(&engine.env);
        let nurseries = nursery.then(|| Arc::new(Nurseries::new(worker.clone(), &env, spares)));
        let wrong = |error: PolicyError| ExecError::Policy(error.report());
        let policy = Policy::load(&policies, &places).map_err(wrong)?;
        let (_, journal) = engine
            .store
            .jobs(Arc::clone(&engine.clock), &engine.writer)?;
        let owner = Owner::new(&engine.store).map_err(ExecError::Owner)?;
        let mut sampler = Sampler::open()?;
        sampler.load(&engine.store.home().join(Sampler::LAST_READING));
        Ok(Executor {
            redactor: Redactor::new(random().map_err(ExecError::Key)?),
            looks: Looks::new(sampler),
            recipes: Mutex::default(),
            nurseries,
            midwife: spares.then(Midwife::new).flatten(),
            granted: granted(&policies, &places).map_err(wrong)?,
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
        let mut own = vec![working_dir.clone()];
        for path in &spec.allow {
            own.push(directory(&self.engine.cwd.join(path))?);
        }
        let roots = own.iter().chain(&self.granted).cloned().collect();
        if let Some(session) = &spec.session {
            self.takes_jobs(session)?;
        }
        let job = Job {
            id: new_id(),
            spec,
            cancel,
            working_dir,
            own,
            roots,
        };
        let mut plan = capability.check(&spec.arguments);
        let denial = self.denial(spec);
        let _undoing = self.alone_with(spec)?;
        let undo = self.to_take_back(&job);
        if let (Ok(Plan::Work(needs)), Ok(undo)) = (&mut plan, &undo)
            && spec.capability == undo::UNDO
            && undo.iter().all(|kept| kept.repository.is_none())
        {
            needs.programs = &[];
        }
        thread::scope(|scope| {
            let wanted = match (&plan, &denial) {
                (Ok(Plan::Work(needs)), None) => Some(*needs),
                _ => None,
            };
            let spare = wanted.and_then(|needs| self.spare(&job, &needs));
            // A worker is started while everything else is made ready. It does nothing before it has its order.
            let launching = wanted.filter(|_| spare.is_none()).map(|needs| {
                let job = &job;
                scope.spawn(move || self.ready(job, &needs))
            });
            let before = self.looks.before(&job.working_dir, &self.redactor)?;
            self.admit(spec, &before)?;
            let begun = Instant::now();
            self.append(&self.started(&job, &before)?.into())?
                .durable()?;
            let done = match (plan, denial) {
                (Err(error), _) => Ended {
                    invalid: true,
                    ..Ended::so(WorkEnd::failed(error.to_string()))
                },
                (_, Some(why)) => Ended::so(WorkEnd::Denied(why)),
                _ if cancel.is_cancelled() => Ended::so(WorkEnd::Cancelled),
                (Ok(Plan::Command(command)), _) if spec.dry_run => {
                    let cwd = command.cwd.as_deref().map(|cwd| job.resolved(cwd));
                    let end = cwd.transpose().map(|_| WorkEnd::Done(dry(&command)));
                    Ended::so(end.unwrap_or_else(|refused| refused))
                }
                (Ok(Plan::Command(command)), _) => self.command(&job, &command),
                (Ok(Plan::Work(needs)), _) => {
                    let launched = || launching.and_then(|thread| thread.join().ok());
                    let ready = spare.map(Ok).or_else(launched);
                    let lost = || Err("the worker did not start".to_owned());
                    self.work(&job, &needs, ready.unwrap_or_else(lost), undo)
                }
            };
            self.finish(&job, before, begun, done)
        })
    }

    /// Hands a job to a worker.
    fn work(
        &self,
        job: &Job<'_>,
        needs: &Needs,
        ready: Result<Ready, String>,
        undo: Result<Vec<Kept>, ExecError>,
    ) -> Ended {
        let undo = match undo {
            Ok(undo) => undo,
            Err(error) => return Ended::so(WorkEnd::failed(error.to_string())),
        };
        let ready = match ready {
            Ok(ready) => ready,
            Err(why) => return Ended::so(WorkEnd::failed(why)),
        };
        job.cancel.steers(ready.control());
        let done = ready.carry_out(self, job, needs, &undo);
        // While the worker dies.
        let after = self.looks.after(&job.working_dir, &self.redactor).ok();
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

    fn started(&self, job: &Job<'_>, before: &Snapshot) -> Result<JobStarted, ExecError> {
        let fitted = self.fitted(job.spec.arguments.clone());
        let (arguments, arguments_blob) =
            fitted.map_err(|error| ExecError::Arguments(error.to_string()))?;
        let os = |path: &PathBuf| OsText::from(path.clone().into_os_string());
        Ok(JobStarted {
            job_id: job.id.clone(),
            capability: job.spec.capability.clone(),
            arguments,
            arguments_blob,
            dry_run: job.spec.dry_run,
            session: job.spec.session.clone(),
            step: job.spec.step.clone(),
            working_dir: os(&job.working_dir),
            allowed: job.roots[1..].iter().map(os).collect(),
            owner: self.owner.name().to_owned(),
            before: before.clone(),
        })
    }

    /// Appends to the journal of jobs, without secrets.
    fn append(&self, event: &Event) -> Result<Ticket, JournalError> {
        self.journal
            .append(Origin::Runtime, &self.redactor.event(event))
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

/// Trees that the policies of the user open beyond what every job has.
fn granted(policies: &[Source], places: &Places) -> Result<Vec<PathBuf>, PolicyError> {
    let mut sources = vec![Narrow::default().source("the bounds of a job")];
    let roots = |sources: &[Source]| -> Result<Vec<PathBuf>, PolicyError> {
        let bounds = Policy::load(sources, places)?.bounds();
        let roots = bounds.read_roots.into_iter().chain(bounds.write_roots);
        Ok(roots.flatten().collect())
    };
    let common = roots(&sources)?;
    sources.extend(policies.iter().cloned());
    let more = roots(&sources)?.into_iter();
    let more = more.filter(|root| !common.contains(root));
    let real = more.filter_map(|root| root.canonicalize().ok());
    Ok(real.filter(|root| root.is_dir()).collect())
}

impl Drop for Executor {
    fn drop(&mut self) {
        let recipes = self.recipes.lock().unwrap_or_else(PoisonError::into_inner);
        recipes.values().for_each(|recipe| recipe.close());
        let file = self.engine.store.home().join(Sampler::LAST_READING);
        self.looks.save(&file);
    }
}

/// What would be run.
fn dry(command: &capabilities::Command) -> capabilities::Output {
    let argv: Vec<String> = command
        .argv
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let data = serde_json::json!({ "dry_run": true, "argv": argv });
    capabilities::Output::new(data).message("nothing was run")
}

/// Removes what a worker that was killed has left under temporary names.
fn sweep(job_id: &JobId, roots: &[PathBuf], kept: &[Kept]) {
    let Some((first, more)) = roots.split_first() else {
        return;
    };
    if let Ok(roots) = Roots::open(first, more) {
        capabilities::sweep(&roots, job_id, kept);
    }
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
