//! One run, from its specification to its last record.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use invigil_journal::{
    Clock, Error as JournalError, Head, Index, Options, RunRef, Store, StoreError,
};
use invigil_policy::Budget;
use invigil_sandbox::{
    Answer, Decision, Gate, Handle, Killed, LaunchError, LaunchSpec, Line, Reads, Request, Stdio,
    launch,
};
use invigil_schema::{
    AccessDenied, BudgetExceeded, BudgetKind, Event, LimitKind, Note, ObserverNote, Origin, OsText,
    RunFailed, RunFinished, RunId, RunStarted, SDK_SCHEMA, SpawnFailure, StopReason, Tier,
};

use crate::approvals::Desk;
use crate::channel::Channel;
use crate::control::Control;
use crate::guard::{Guard, KeepError};
use crate::output::Relay;
use crate::record::{Facts, Recorder, Root};
use crate::redact::Redactor;
use crate::reported::Reported;
use crate::spec::{EVENTS, EVENTS_SCHEMA, Input, Leftovers, RUN_ID, RunSpec, SpecError};
use crate::steer::{Helm, Setup as HelmSetup, directory_at};
use crate::watchdog::{Reports, Time, Watchdog};

/// What surrounds a run. The engine itself looks at neither the environment nor the terminal.
#[derive(Clone)]
pub struct Engine {
    /// Where runs are kept.
    pub store: Store,
    /// The times of records.
    pub clock: Arc<dyn Clock>,
    /// The environment that a command inherits.
    pub env: BTreeMap<OsString, OsString>,
    /// Where a command starts if nothing else is said.
    pub cwd: PathBuf,
    /// Where sockets may be made.
    pub runtime_dir: PathBuf,
    /// The program and version that records.
    pub writer: String,
}

/// A run that is over and recorded.
#[derive(Debug)]
pub struct RunOutcome {
    /// Its journal.
    pub run: RunRef,
    /// How it ended.
    pub end: End,
    /// How much of it was seen.
    pub tier: Tier,
    /// Its last record.
    pub head: Head,
    /// What went wrong besides.
    pub warnings: Vec<String>,
}

impl RunOutcome {
    /// Whether the command was there to do anything.
    pub fn has_started(&self) -> bool {
        matches!(self.end, End::Finished(_))
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The command ran.
    Finished(RunFinished),
    /// The command could not be started.
    NotStarted(RunFailed),
}

/// Why there is no complete record of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The specification is wrong; nothing was started or written.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The tier that is required is not to be had; nothing was started.
    #[error("{0}; `invigil doctor` shows what works on this machine")]
    Tier(String),
    /// The policy cannot be enforced here, and must be; nothing was started.
    #[error("the strict mode cannot be had here: {}; `invigil doctor` shows what works on this machine", .0.join("; "))]
    Unenforceable(Vec<String>),
    /// The texts of the policy could not be kept; nothing was started.
    #[error("cannot keep the policy of the run: {0}")]
    Keep(#[from] KeepError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no randomness to hide secrets with, so nothing was started.
    #[error("the kernel gives no random numbers: {0}")]
    Key(#[source] io::Error),
    /// A file for reports cannot be one; nothing was started.
    #[error("cannot take reports from {}: {source}", path.display())]
    Reports {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The socket of the SDK channel could not be made; nothing was started.
    #[error("cannot make a socket for the agent's own reports: {0}")]
    Channel(#[source] io::Error),
    /// The journal could not be written any more; every process of the run was killed.
    #[error(
        "run {run_id} could not be recorded any more, and every process of it was killed: {why}"
    )]
    Record {
        /// Which run.
        run_id: RunId,
        /// What went wrong.
        why: String,
    },
    /// The observer failed; every process of the run was killed.
    #[error(
        "run {run_id} could not be watched any more, and every process of it was killed: {why}"
    )]
    Watch {
        /// Which run.
        run_id: RunId,
        /// What went wrong.
        why: String,
    },
}

impl Engine {
    /// Starts a command, watches it to its end and records everything. Whatever the agent does, there is a journal.
    pub fn run(&self, spec: &RunSpec, control: &Control) -> Result<RunOutcome, RunError> {
        let run_id = spec.validate()?;
        let mut env = self.env.clone();
        let guard = spec.rules.as_ref().map(|rules| {
            let own: Vec<PathBuf> = spec
                .events_file
                .iter()
                .map(|file| self.cwd.join(file))
                .collect();
            Arc::new(Guard::new(rules, &mut env, &own))
        });
        let missing = guard
            .as_ref()
            .map_or_else(Vec::new, |guard| guard.missing(spec.tier));
        if !missing.is_empty() {
            return Err(RunError::Unenforceable(missing));
        }
        let redactor = Redactor::new(random().map_err(RunError::Key)?);
        let at = |file: &PathBuf| self.cwd.join(file);
        let (events, decisions) = (
            spec.events_file.as_ref().map(at),
            spec.decisions_file.as_ref().map(at),
        );
        let reports = Reports::new(events, decisions, &run_id, self.store.home())
            .map_err(|(path, source)| RunError::Reports { path, source })?;
        let channel = Channel::open(&self.runtime_dir).map_err(RunError::Channel)?;
        let channel = Arc::new(channel);
        let clock = Arc::clone(&self.clock);
        let created = self
            .store
            .create(&run_id, clock, Options::default(), &self.writer);
        let (run, journal) = created?;
        let recorder = Arc::new(Recorder::new(journal, redactor, control.clone()));
        let lost = |error: JournalError| RunError::Record {
            run_id: run_id.clone(),
            why: error.to_string(),
        };
        recorder.processes.report_to(channel.path());
        let started = self.started(spec);
        let directory = started.directory;
        recorder
            .record(Origin::Runtime, &started.into())
            .map_err(lost)?;
        if let Some(guard) = &guard {
            let loaded = guard.keep(&self.store)?.into();
            recorder.record(Origin::Runtime, &loaded).map_err(lost)?;
        }
        let desk = Desk::new(
            &run_id,
            self.store.home(),
            Arc::clone(&recorder),
            spec.asking.clone(),
        );
        if let Some(milestones) = &spec.milestones {
            let set = milestones.keep(&self.store)?.into();
            recorder.record(Origin::Runtime, &set).map_err(lost)?;
        }
        let helm = Helm::new(HelmSetup {
            engine: self,
            spec,
            run_id: &run_id,
            workspace: self.cwd(spec),
            directory,
            budget: guard.as_ref().map(|guard| *guard.budget()),
            recorder: &recorder,
            control,
            protected: self.protected(spec, &channel),
        });
        if let Some(above) = &spec.ancestry {
            above.reached(&helm);
        }
        let watch = Watch {
            engine: self,
            spec,
            run_id: &run_id,
            recorder: &recorder,
            channel: &channel,
            control,
            reports: Mutex::new(reports),
            desk: &desk,
            helm: &helm,
            guard,
            env,
        };
        control.ask_at(Some(desk.clone()));
        control.record_at(Some(Arc::clone(&recorder)));
        let watched = helm.during(|| desk.during(|| watch.run()));
        control.ask_at(None);
        control.record_at(None);
        let (end, tier, mut warnings) = watched?;
        if let Some(why) = recorder.failure() {
            let why = why.to_owned();
            return Err(RunError::Record { run_id, why });
        }
        for file in recorder.take_written().finals(&|| control.is_impatient()) {
            recorder
                .record(Origin::Kernel, &file.into())
                .map_err(lost)?;
        }
        let last: Event = match &end {
            End::Finished(finished) => finished.clone().into(),
            End::NotStarted(failed) => failed.clone().into(),
        };
        recorder.record(Origin::Runtime, &last).map_err(lost)?;
        let head = recorder.close().map_err(lost)?;
        let noted = Index::note(&self.store, &run);
        warnings.extend(noted.err().map(|error| error.to_string()));
        Ok(RunOutcome {
            run,
            end,
            tier,
            head,
            warnings,
        })
    }

    fn started(&self, spec: &RunSpec) -> RunStarted {
        RunStarted {
            command: spec.command.iter().cloned().map(OsText::from).collect(),
            cwd: self.cwd(spec).into_os_string().into(),
            directory: directory_at(&self.cwd(spec)),
            env_keys: spec.env.keys().cloned().map(OsText::from).collect(),
            platform: spec.platform.clone(),
            agent_shim: spec.agent_shim.clone(),
            tier: spec.tier.unwrap_or(Tier::Notify),
            lineage: spec.ancestry.as_ref().map(|above| above.lineage.clone()),
        }
    }

    /// Nobody inside may change the record, decide in the gate's name, write the rules of the next run, put itself in
    /// the place to which others report, or do so to the runs that it was started in.
    fn protected(&self, spec: &RunSpec, channel: &Channel) -> Vec<PathBuf> {
        let store = self.store.home().to_owned();
        let decisions = spec.decisions_file.iter().map(|file| self.cwd.join(file));
        let rules = spec.asking.policy.iter().map(|own| own.path().to_owned());
        let channel = channel.path();
        let channel = channel.parent().map(Path::to_owned);
        let above = spec
            .ancestry
            .iter()
            .flat_map(|above| above.protected.clone());
        std::iter::once(store)
            .chain(decisions)
            .chain(rules)
            .chain(channel)
            .chain(above)
            .collect()
    }

    /// A relative directory is relative to where the engine is.
    fn cwd(&self, spec: &RunSpec) -> PathBuf {
        self.cwd.join(spec.cwd.as_deref().unwrap_or(&self.cwd))
    }
}

/// Allows everything to a run without a policy. It can be steered all the same.
struct Open(Control);

impl Gate for Open {
    fn check(&mut self, _: &Request<'_>) -> Answer {
        Answer::Now(Decision::Allow)
    }

    fn begin(&mut self, line: Line) {
        self.0.attach(line);
    }
}

/// A command that is being started and watched.
struct Watch<'a> {
    engine: &'a Engine,
    spec: &'a RunSpec,
    run_id: &'a RunId,
    recorder: &'a Arc<Recorder>,
    channel: &'a Arc<Channel>,
    control: &'a Control,
    reports: Mutex<Reports>,
    desk: &'a Desk,
    helm: &'a Helm,
    guard: Option<Arc<Guard>>,
    /// What the command inherits.
    env: BTreeMap<OsString, OsString>,
}

impl Watch<'_> {
    /// Starts the command in the best tier that is to be had, and waits for the death of its last process.
    fn run(self) -> Result<(End, Tier, Vec<String>), RunError> {
        let started = self.start();
        // Nobody is left to steer, or nobody ever was.
        self.control.detach();
        let (end, tier) = started?;
        let warnings = self.guard.map_or_else(Vec::new, |guard| guard.warnings());
        Ok((end, tier, warnings))
    }

    fn start(&self) -> Result<(End, Tier), RunError> {
        let least = self.guard.as_ref().map(|guard| guard.least_tier());
        let tiers = tiers(self.spec, least);
        for (at, &tier) in tiers.iter().enumerate() {
            let budget = self.budget();
            let most = [self.spec.max_output, budget.output].into_iter().flatten();
            let relay = Relay::new(self.spec, most.min(), self.control);
            let relay = relay.map_err(RunError::Channel)?;
            if tier == Tier::ContractOnly {
                self.desk
                    .ask_nobody("in the tier contract_only a run could answer its own questions");
                self.helm
                    .obey_nobody("in the tier contract_only a run could steer itself");
            }
            let helm = self.helm.clone();
            let reported = Reported::new(self.run_id, tier, self.channel, self.recorder, helm);
            let launch_spec = self.launch_spec(tier, &relay);
            let facts = Facts {
                recorder: Arc::clone(self.recorder),
                reported: reported.clone(),
                desk: self.desk.clone(),
                helm: self.helm.clone(),
                guard: self.guard.clone(),
                leftovers: match self.spec.leftovers {
                    Leftovers::Await => None,
                    Leftovers::Kill => Some(Root::default()),
                },
            };
            let launched = match &self.guard {
                Some(guard) => {
                    let reports = self.reports_to();
                    // Facts and requests have real paths.
                    let reports = reports.canonicalize().unwrap_or(reports);
                    let recorder = Arc::clone(self.recorder);
                    let refused = move |denied: AccessDenied| {
                        recorder.try_record(Origin::Runtime, &denied.into());
                    };
                    let reports = reports.into_os_string().into();
                    let gate = guard
                        .gate(Some(self.desk), self.control, reports, refused)
                        .map_err(RunError::Channel)?;
                    launch(launch_spec, facts, gate)
                }
                None => launch(launch_spec, facts, Open(self.control.clone())),
            };
            match launched {
                Ok(handle) => {
                    let end = self.attend(Arc::new(handle), &reported, relay)?;
                    return Ok((end, tier));
                }
                Err(error @ LaunchError::Tier { .. }) if at + 1 < tiers.len() => {
                    let note = ObserverNote {
                        process: None,
                        note: Note::LesserTier,
                        detail: error.to_string(),
                    };
                    // A failure is met again at the next record.
                    self.recorder.try_record(Origin::Runtime, &note.into());
                }
                Err(error @ LaunchError::Tier { .. }) => {
                    return Err(RunError::Tier(error.to_string()));
                }
                Err(error) => {
                    let refused = self.guard.as_ref().and_then(|guard| guard.refused());
                    let failed = match (refused, self.control.stopped()) {
                        (Some((_, rule)), _) => RunFailed {
                            failure: SpawnFailure::Policy,
                            reason: format!("the policy does not let it start: {rule}"),
                        },
                        (None, Some((_, why))) => RunFailed {
                            failure: SpawnFailure::Internal,
                            reason: format!("it was ended before it had begun: {why}"),
                        },
                        (None, None) => not_started(&error),
                    };
                    return Ok((End::NotStarted(failed), tier));
                }
            }
        }
        Err(RunError::Tier("no tier is left to try".to_owned()))
    }

    /// How much the run may use; nothing is limited without a policy.
    fn budget(&self) -> Budget {
        let guard = self.guard.as_ref();
        guard.map(|guard| *guard.budget()).unwrap_or_default()
    }

    fn launch_spec(&self, tier: Tier, relay: &Relay) -> LaunchSpec {
        let (engine, spec) = (self.engine, self.spec);
        let mut env = self.env.clone();
        env.extend(spec.env.clone());
        env.insert(RUN_ID.into(), self.run_id.as_str().into());
        env.insert(EVENTS.into(), self.reports_to().into());
        env.insert(EVENTS_SCHEMA.into(), SDK_SCHEMA.into());
        let (stdout, stderr) = relay.ends();
        let stdin = match &spec.stdin {
            Input::Stdin => Stdio::Inherit,
            Input::From(fd) => fd.try_clone().map_or(Stdio::Null, Stdio::Fd),
        };
        let mut launch = LaunchSpec {
            env,
            cwd: engine.cwd(spec),
            stdin,
            stdout,
            stderr,
            tier,
            reads: match spec.reads {
                true => Reads::Recorded,
                false => Reads::Free,
            },
            protected: engine.protected(spec, self.channel),
            ..LaunchSpec::new(spec.command.clone())
        };
        if let Some(guard) = &self.guard {
            guard.hold(&mut launch);
        }
        launch
    }

    /// Where the agent's framework reports to.
    fn reports_to(&self) -> PathBuf {
        match &self.spec.events_file {
            Some(file) => self.engine.cwd.join(file),
            None => self.channel.path(),
        }
    }

    /// Stays with a run that has started until its last process is dead.
    fn attend(
        &self,
        handle: Arc<Handle>,
        reported: &Reported,
        relay: Relay,
    ) -> Result<End, RunError> {
        self.control.attach(handle.line());
        let watchdog = Watchdog::new(
            Time::of(self.spec.timeout, self.budget().wall),
            &self.reports,
            &handle,
            self.recorder,
            self.control,
            self.helm,
        );
        let outcome = thread::scope(|scope| {
            scope.spawn(|| reported.serve());
            scope.spawn(|| watchdog.watch());
            let outcome = handle.wait(None);
            relay.finish();
            self.channel.stop();
            watchdog.stop();
            outcome
        });
        self.control.detach();
        let Some(outcome) = outcome else {
            unreachable!("a wait without a limit ends with the run")
        };
        let stopped = match outcome.killed {
            Some(Killed::SinkFailed(why)) => {
                return Err(RunError::Record {
                    run_id: self.run_id.clone(),
                    why,
                });
            }
            Some(Killed::ObserverFailed(why)) => {
                return Err(RunError::Watch {
                    run_id: self.run_id.clone(),
                    why,
                });
            }
            Some(Killed::Limit { limited, measured }) => {
                let (what, limit) = (limited.what.as_str(), limited.limit);
                if let Some(budget) = budget_of(limited.what) {
                    self.control.exceeded(BudgetExceeded {
                        budget,
                        limit,
                        used: measured,
                    });
                }
                let why = format!("its budget of {what} is {limit}, and it used {measured}");
                Some((StopReason::Budget, why))
            }
            Some(Killed::Asked) | None => self.control.stopped(),
        };
        let stopped = stopped.or_else(|| {
            let (pid, rule) = self.guard.as_ref()?.refused()?;
            let killed = pid == handle.pid() && outcome.signal == Some(KILLED);
            killed.then(|| {
                (
                    StopReason::Policy,
                    format!("the policy does not let it start: {rule}"),
                )
            })
        });
        let (reason, why) = stopped.unzip();
        Ok(End::Finished(RunFinished {
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            success: outcome.exit_code == Some(0) && reason.is_none(),
            window_elapsed_ms: outcome.elapsed.as_millis() as u64,
            stopped: reason,
            why,
        }))
    }
}

/// The budget that a limit of the sandbox is. The size of one file is none: it ends a call, not a run.
fn budget_of(limit: LimitKind) -> Option<BudgetKind> {
    match limit {
        LimitKind::Cpu => Some(BudgetKind::Cpu),
        LimitKind::Memory => Some(BudgetKind::Memory),
        LimitKind::Processes => Some(BudgetKind::Processes),
        LimitKind::FileSize => None,
    }
}

/// `SIGKILL`
const KILLED: i32 = 9;

/// The key that hides the secrets of one run. It is never written down: within a run equal secrets look equal, and
/// when the run is over nobody can guess them back, not even with the store in hand.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    let mut filled = 0;
    while filled < key.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut key[filled..], flags)?;
    }
    Ok(key)
}

/// Hides secrets, with a key of its own.
pub fn redactor() -> io::Result<Redactor> {
    random().map(Redactor::new)
}

/// The tiers to try, best first.
fn tiers(spec: &RunSpec, least: Option<Tier>) -> Vec<Tier> {
    let least = spec.require_tier.max(least).unwrap_or(Tier::ContractOnly);
    match spec.tier {
        Some(tier) => vec![tier],
        None => [Tier::Notify, Tier::Ptrace, Tier::ContractOnly]
            .into_iter()
            .filter(|tier| *tier >= least)
            .collect(),
    }
}

fn not_started(error: &LaunchError) -> RunFailed {
    let (failure, advice) = match error {
        LaunchError::NotFound { .. } => (SpawnFailure::NotFound, "; is it installed, and in PATH?"),
        LaunchError::NotExecutable { .. } => (
            SpawnFailure::NotExecutable,
            "; is it a program, and may you execute it?",
        ),
        LaunchError::NoCommand
        | LaunchError::ZeroByte
        | LaunchError::Cwd { .. }
        | LaunchError::Tier { .. }
        | LaunchError::Sink(_)
        | LaunchError::System { .. } => (SpawnFailure::Internal, ""),
    };
    RunFailed {
        failure,
        reason: format!("{error}{advice}"),
    }
}
