//! A job that our own code carries out, in a process of its own: it is bounded, watched, and killed when its time is up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use invigil_journal::Blobs;
use invigil_policy::{Narrow, Source};
use invigil_sandbox::{Handle, Killed, LaunchError, LaunchSpec, Outcome, Stdio, launch};
use invigil_schema::{Digest, Errno, Event, JobKept, Kept, LimitKind, Mode, OsText, Refused, Tier};
use serde_json::Value;

use super::midwife::Nurseries;
use super::pipes::Pipes;
use super::seen::{Seen, Watching};
use super::wire::{Answered, Content, Order, Said, receive, send, send_content};
use super::{Executor, Job};
use crate::capabilities::{Needs, Output};
use crate::control::Control;
use crate::guard::{Guard, Rules};

/// So many bytes one job may have kept: a sparse file costs its owner nothing, and the store all of its length.
const KEPT_BYTES: u64 = 1 << 30;
/// So many changes go into one record.
const KEPT_A_RECORD: usize = 64;

/// So many different kinds of workers are remembered, and so many of each stand ready.
const RECIPES: usize = 64;
const SPARES: usize = 4;

type Env = BTreeMap<OsString, OsString>;

/// Recipes by what makes workers different.
pub(super) type Recipes = HashMap<Key, Arc<Recipe>>;

/// What makes workers different.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    own: Vec<PathBuf>,
    writes: bool,
    programs: bool,
    signals: bool,
    strict: bool,
}

impl Key {
    /// Files are all that it needs.
    fn is_plain(&self) -> bool {
        !self.programs && !self.signals
    }
}

/// Everything that is needed to start a worker of one kind.
pub(super) struct Recipe {
    key: Key,
    argv: Vec<OsString>,
    env: Env,
    cwd: PathBuf,
    protected: Vec<PathBuf>,
    guard: Guard,
    nurseries: Option<Arc<Nurseries>>,
    spares: Mutex<Spares>,
}

/// Workers that stand ready, as long as somebody may want them.
#[derive(Default)]
struct Spares {
    closed: bool,
    workers: Vec<Ready>,
}

/// A worker that waits for its order.
pub(super) struct Ready {
    recipe: Arc<Recipe>,
    handle: Handle,
    guard: Guard,
    control: Control,
    watching: Watching,
    pipes: Pipes,
    degraded: Vec<String>,
}

/// A worker that has said its last word.
pub(super) struct Done {
    recipe: Arc<Recipe>,
    handle: Handle,
    guard: Guard,
    watching: Watching,
    said: io::Result<Option<Said>>,
    timeout: Duration,
    /// What it was about to change.
    touched: Vec<Kept>,
    words: String,
    degraded: Vec<String>,
}

impl Recipe {
    fn spares(&self) -> MutexGuard<'_, Spares> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one more worker, if there are not enough.
    pub(super) fn make_spare(self: &Arc<Self>) {
        if self.spares().workers.len() >= SPARES {
            return;
        }
        if let Ok(ready) = self.launch() {
            let mut spares = self.spares();
            if !spares.closed {
                spares.workers.push(ready);
            }
        }
    }

    /// Nobody wants a worker any more.
    pub(super) fn close(&self) {
        let mut spares = self.spares();
        spares.closed = true;
        spares.workers.clear();
    }

    /// Starts a worker in the best tier that is to be had.
    fn launch(self: &Arc<Self>) -> Result<Ready, String> {
        // Who signals processes of others cannot be watched by what forbids that.
        let tiers: &[Tier] = match (self.key.signals, self.key.strict) {
            (true, true) => return Err("what sends signals cannot be bounded".to_owned()),
            (true, false) => &[Tier::ContractOnly],
            (false, true) => &[Tier::Notify],
            (false, false) => &[Tier::Notify, Tier::Ptrace, Tier::ContractOnly],
        };
        let mut degraded = Vec::new();
        for &tier in tiers {
            match self.launch_in(tier) {
                Ok(mut ready) => {
                    ready.degraded = degraded;
                    return Ok(ready);
                }
                Err(error @ LaunchError::Tier { .. }) => degraded.push(error.to_string()),
                Err(error) => return Err(format!("the worker did not start: {error}")),
            }
        }
        Err(format!("the worker did not start: {}", degraded.join("; ")))
    }

    fn launch_in(self: &Arc<Self>, tier: Tier) -> Result<Ready, LaunchError> {
        let failed = |step| {
            move |error: io::Error| LaunchError::System {
                step,
                error: Errno(error.raw_os_error().unwrap_or_default()),
            }
        };
        let pipe = || io::pipe().map_err(failed("making a pipe"));
        let ((its_in, to), (from, its_out), (words, its_err)) = (pipe()?, pipe()?, pipe()?);
        let mut spec = LaunchSpec {
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            stdin: Stdio::Fd(its_in.into()),
            stdout: Stdio::Fd(its_out.into()),
            stderr: Stdio::Fd(its_err.into()),
            tier,
            protected: self.protected.clone(),
            // Whatever only loads us has nothing to compare.
            digests: self.key.programs,
            nursery: self.nurseries.as_ref().and_then(|all| all.with(&self.env)),
            ..LaunchSpec::new(self.argv.iter().cloned())
        };
        let guard = self.guard.again();
        guard.hold(&mut spec);
        if self.key.is_plain() {
            spec.limits = spec.limits.without_cgroup();
        }
        if self.key.signals {
            spec.confine = None;
        }
        let (control, watching) = (Control::new(), Watching::default());
        let gate = guard.gate(None, &control, OsText::default(), |_| {});
        let gate = gate.map_err(failed("making the gate"))?;
        let pipes = Pipes::new(to, from, words).map_err(failed("making a pipe"))?;
        let handle = launch(spec, watching.clone(), gate)?;
        if let Some(nurseries) = &self.nurseries {
            nurseries.served();
        }
        control.attach(handle.line());
        Ok(Ready {
            recipe: Arc::clone(self),
            handle,
            guard,
            control,
            watching,
            pipes,
            degraded: Vec::new(),
        })
    }
}

impl Ready {
    fn is_alive(&self) -> bool {
        self.handle.wait(Some(Duration::ZERO)).is_none()
    }

    /// What steers it.
    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Gives the order, answers what is asked, and returns with the last word, or without one when the time is up. The
    /// worker and whatever it has left behind are about to die then.
    pub(super) fn carry_out(
        mut self,
        executor: &Executor,
        job: &Job<'_>,
        needs: &Needs,
        undo: &[Kept],
    ) -> Done {
        let readable = undo.iter().filter_map(|kept| kept.before.sha256());
        let mut talk = Talk {
            executor,
            job,
            readable: readable.copied().collect(),
            announced: Vec::new(),
            touched: Vec::new(),
            kept_bytes: 0,
        };
        self.pipes.deadline = Instant::now().checked_add(needs.timeout);
        let said = talk.with_worker(undo, &mut self.pipes);
        self.handle.line().kill();
        self.control.detach();
        Done {
            recipe: self.recipe,
            handle: self.handle,
            guard: self.guard,
            watching: self.watching,
            said,
            timeout: needs.timeout,
            touched: talk.touched,
            words: self.pipes.words(),
            degraded: self.degraded,
        }
    }
}

impl Done {
    /// Waits until nobody is left, and says what came of it.
    pub(super) fn wait(self, job: &Job<'_>) -> Worked {
        let outcome = self.handle.wait(None);
        if !matches!(self.said, Ok(Some(_))) {
            super::sweep(&job.id, &job.roots, &self.touched);
        }
        let seen = self.watching.take();
        let mut degraded = self.degraded;
        if let (Some(started), false) = (&seen.started, self.recipe.key.signals) {
            self.guard.enforced(started);
            degraded.extend(self.guard.warnings());
        }
        let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
        let end = match self.said {
            Err(error) if timed_out(&error) => WorkEnd::TimedOut(self.timeout),
            Ok(Some(Said::Done { data, message })) => WorkEnd::Done(Output { data, message }),
            _ if job.cancel.is_cancelled() => WorkEnd::Cancelled,
            Ok(Some(Said::Failed {
                denied: true,
                error,
                ..
            })) => WorkEnd::Denied(denial(&error, &seen)),
            Ok(Some(Said::Failed { error, data, .. })) => WorkEnd::Failed { error, data },
            Ok(_) | Err(_) => WorkEnd::failed(died(outcome.as_ref(), &self.words)),
        };
        Worked {
            end,
            seen,
            degraded,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Worked {
    pub(super) end: WorkEnd,
    pub(super) seen: Seen,
    pub(super) degraded: Vec<String>,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum WorkEnd {
    Done(Output),
    Failed {
        error: String,
        data: Option<Value>,
    },
    Denied(String),
    /// It had so much time.
    TimedOut(Duration),
    Cancelled,
}

impl WorkEnd {
    pub(super) fn failed(error: impl Into<String>) -> WorkEnd {
        WorkEnd::Failed {
            error: error.into(),
            data: None,
        }
    }
}

impl Executor {
    fn key(&self, job: &Job<'_>, needs: &Needs) -> Key {
        Key {
            own: job.own.clone(),
            writes: needs.writes && !job.spec.dry_run,
            programs: !needs.programs.is_empty(),
            // A dry run is watched like any other, and what watches forbids signals.
            signals: needs.signals && !job.spec.dry_run,
            strict: job.spec.strict,
        }
    }

    fn recipes(&self) -> MutexGuard<'_, Recipes> {
        self.recipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker that stands ready for this job, if there is one. The next is made while this one works.
    pub(super) fn spare(&self, job: &Job<'_>, needs: &Needs) -> Option<Ready> {
        let recipe = self.recipes().get(&self.key(job, needs)).cloned()?;
        let mut spares = recipe.spares();
        let spare = std::iter::from_fn(|| spares.workers.pop()).find(Ready::is_alive);
        drop(spares);
        self.leave_spare(&recipe);
        spare
    }

    /// A new worker that waits for its order, bounded as the job must be.
    pub(super) fn ready(&self, job: &Job<'_>, needs: &Needs) -> Result<Ready, String> {
        let key = self.key(job, needs);
        let mut recipes = self.recipes();
        let recipe = match recipes.get(&key) {
            Some(recipe) => Arc::clone(recipe),
            None => {
                let recipe = Arc::new(self.recipe(job, &key)?);
                if recipes.len() >= RECIPES {
                    recipes.drain().for_each(|(_, recipe)| recipe.close());
                }
                recipes.insert(key, Arc::clone(&recipe));
                recipe
            }
        };
        drop(recipes);
        recipe.launch()
    }

    /// Has a worker made for the next job of this kind, in the background.
    fn leave_spare(&self, recipe: &Arc<Recipe>) {
        if let Some(midwife) = &self.midwife
            && recipe.key.is_plain()
        {
            midwife.call(recipe);
        }
    }

    fn recipe(&self, job: &Job<'_>, key: &Key) -> Result<Recipe, String> {
        let narrow = Narrow {
            read: key.own.clone(),
            write: match key.writes {
                true => key.own.clone(),
                false => Vec::new(),
            },
            programs: vec![self.worker.program.clone()],
            system: key.programs,
            env: super::ENV.map(str::to_owned).into(),
            memory: Some(self.limits.memory),
            processes: Some(self.limits.processes),
            file_size: Some(self.limits.file_size),
            ..Narrow::default()
        };
        let rules = Arc::new(self.rules(job, &narrow)?);
        let mut env = env_of_jobs(&self.engine.env);
        let guard = Guard::new(&rules, &mut env, &[]);
        let missing = match key.strict {
            true => guard.missing(None),
            false => Vec::new(),
        };
        if !missing.is_empty() {
            return Err(format!("it cannot be bounded here: {}", missing.join("; ")));
        }
        Ok(Recipe {
            key: key.clone(),
            argv: self.worker.argv(),
            env,
            cwd: job.working_dir.clone(),
            protected: self.protected(),
            guard,
            nurseries: self.nurseries.clone().filter(|_| key.is_plain()),
            spares: Mutex::default(),
        })
    }

    /// No job changes the records, nor the rules of the next.
    fn protected(&self) -> Vec<PathBuf> {
        let rules = self.asking.policy.iter().map(|own| own.path().to_owned());
        let store = self.engine.store.home().to_owned();
        std::iter::once(store).chain(rules).collect()
    }

    /// The rules of a job: its own bounds, and upon them the files of the user and the project.
    pub(super) fn rules(&self, job: &Job<'_>, narrow: &Narrow) -> Result<Rules, String> {
        let mut sources: Vec<Source> = vec![narrow.source("the bounds of a job")];
        sources.extend(self.policies.iter().cloned());
        let mut places = self.places.clone();
        places.workspace.clone_from(&job.working_dir);
        Rules::load(Mode::Guard, sources, places).map_err(|error| error.to_string())
    }
}

/// What every job gets of the environment.
pub(super) fn env_of_jobs(env: &Env) -> Env {
    let passes = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            super::ENV
                .iter()
                .any(|known| match known.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == *known,
                })
        })
    };
    let passed = env.iter().filter(|(name, _)| passes(name));
    passed
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What was refused, in one sentence, with the rule that says so if it is known.
pub(super) fn denial(error: &str, seen: &Seen) -> String {
    let about = |refused: &&Refused| {
        let target = refused.target.to_string_lossy();
        let name = target.rsplit('/').next().unwrap_or_default();
        // A change goes by way of a temporary name, and that is what was refused then.
        error.contains(name) || name.starts_with(".invigil-")
    };
    match seen.refused.iter().rev().find(about) {
        Some(refused) => format!("{error} ({})", refused.rule),
        None => error.to_owned(),
    }
}

const SIGABRT: i32 = 6;
const SIGXFSZ: i32 = 25;

/// Why there is no result.
fn died(outcome: Option<&Outcome>, words: &str) -> String {
    let words = words.trim();
    let how = match outcome {
        Some(Outcome {
            killed: Some(Killed::Limit { limited, .. }),
            ..
        }) => {
            let oom = match limited.what {
                LimitKind::Memory => "oom_killed: ",
                _ => "",
            };
            format!(
                "{oom}its limit of {} is {}",
                limited.what.as_str(),
                limited.limit
            )
        }
        Some(Outcome {
            killed: Some(Killed::ObserverFailed(why) | Killed::SinkFailed(why)),
            ..
        }) => format!("it could not be watched any more: {why}"),
        Some(Outcome {
            signal: Some(SIGABRT),
            ..
        }) if words.contains("memory allocation of") => {
            "oom_killed: its limit of memory is reached".to_owned()
        }
        Some(Outcome {
            signal: Some(SIGXFSZ),
            ..
        }) => "a file that it wrote became too large".to_owned(),
        Some(Outcome {
            signal: Some(signal),
            ..
        }) => format!("it was ended by signal {signal}"),
        Some(Outcome { exit_code, .. }) => {
            format!(
                "it ended with exit code {} and no result",
                exit_code.unwrap_or_default()
            )
        }
        None => "nobody knows how it ended".to_owned(),
    };
    match words.is_empty() {
        true => format!("the worker died: {how}"),
        false => format!("the worker died: {how}; it said: {words}"),
    }
}

/// The supervisor's part of the conversation.
struct Talk<'a> {
    executor: &'a Executor,
    job: &'a Job<'a>,
    /// Blobs that the worker may see: what the job that it undoes has kept, and what it has kept itself.
    readable: HashSet<Digest>,
    announced: Vec<Kept>,
    touched: Vec<Kept>,
    kept_bytes: u64,
}

impl Talk<'_> {
    /// Gives the order, answers, and returns the worker's last message, if it got that far.
    fn with_worker(&mut self, undo: &[Kept], pipes: &mut Pipes) -> io::Result<Option<Said>> {
        let order = Order {
            job_id: self.job.id.clone(),
            capability: self.job.spec.capability.clone(),
            arguments: self.job.spec.arguments.clone(),
            dry_run: self.job.spec.dry_run,
            working_dir: self.job.working_dir.clone(),
            allowed: self.job.roots[1..].to_vec(),
            undo: undo.to_vec(),
        };
        let (mut to, from) = pipes.ends();
        send(&mut to, &order)?;
        let mut from = BufReader::new(from);
        let blobs = self
            .executor
            .engine
            .store
            .blobs()
            .map_err(io::Error::other)?;
        while let Some(said) = receive::<Said>(&mut from)? {
            let answer = match said {
                Said::Keep { kept, content } => {
                    let mut taken = Ok(());
                    if content {
                        let mut content = Content::new(&mut from);
                        taken = self.take(&blobs, &kept, &mut content);
                        content.skip()?;
                    }
                    self.touched.push(kept.clone());
                    taken.map(|()| self.announced.push(kept))
                }
                Said::Settle => self.settle(),
                Said::Fetch { sha256 } => {
                    let blob = match self.readable.contains(&sha256) {
                        true => blobs.open(&sha256).map_err(io::Error::other),
                        false => Err(io::Error::other("this job has not kept it")),
                    };
                    match blob {
                        Ok(mut blob) => {
                            send(&mut to, &Answered::Ok)?;
                            send_content(&mut to, &mut blob)?;
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                last @ (Said::Done { .. } | Said::Failed { .. }) => return Ok(Some(last)),
            };
            let answer = match answer {
                Ok(()) => Answered::Ok,
                Err(error) => Answered::No {
                    invalid: error.kind() == io::ErrorKind::InvalidData,
                    error: error.to_string(),
                },
            };
            send(&mut to, &answer)?;
        }
        Ok(None)
    }

    fn take(&mut self, blobs: &Blobs, kept: &Kept, content: &mut impl Read) -> io::Result<()> {
        let room = KEPT_BYTES - self.kept_bytes;
        let put = blobs.put_from(content.by_ref().take(room + 1));
        let (sha256, length) = put.map_err(io::Error::other)?;
        if length > room {
            let why = format!("more than {KEPT_BYTES} bytes would have to be kept");
            return Err(io::Error::other(why));
        }
        self.kept_bytes += length;
        if kept.before.sha256() != Some(&sha256) {
            let why = "the content is not what was announced: it changed meanwhile";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.readable.insert(sha256);
        Ok(())
    }

    /// What was announced is durable when this returns.
    fn settle(&mut self) -> io::Result<()> {
        let mut last = None;
        let announced = std::mem::take(&mut self.announced);
        for kept in announced.chunks(KEPT_A_RECORD) {
            let event: Event = JobKept {
                job_id: self.job.id.clone(),
                kept: kept.to_vec(),
            }
            .into();
            last = Some(self.executor.append(&event).map_err(io::Error::other)?);
        }
        last.map_or(Ok(()), |ticket| ticket.durable().map_err(io::Error::other))
    }
}

/// How the worker is started.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The program, as an absolute path without links.
    pub program: PathBuf,
    /// Its arguments: whatever makes it call [`super::worker`].
    pub arguments: Vec<OsString>,
}

impl Worker {
    fn argv(&self) -> Vec<OsString> {
        let program = self.program.clone().into_os_string();
        std::iter::once(program)
            .chain(self.arguments.iter().cloned())
            .collect()
    }
}
