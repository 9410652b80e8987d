//! A job that our own code carries out, in a process of its own: it is bounded, watched, and killed when its time is up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, BufReader, PipeReader, PipeWriter, Read};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use invigil_journal::Blobs;
use invigil_policy::{Narrow, Source};
use invigil_sandbox::{Killed, LaunchError, LaunchSpec, Outcome, Stdio, launch};
use invigil_schema::{Digest, Event, JobKept, Kept, LimitKind, Mode, OsText, Refused, Tier};
use serde_json::Value;

use super::seen::{Seen, Watching};
use super::wire::{Answered, Content, Order, Said, receive, send, send_content};
use super::{Executor, Job};
use crate::capabilities::{Needs, Output};
use crate::guard::{Guard, Rules};

/// How much of a worker's stderr is kept: the words of a panic.
const WORDS: u64 = 16 * 1024;
/// So many changes go into one record.
const KEPT_A_RECORD: usize = 64;

/// So many different guards are remembered.
const GUARDS: usize = 64;

type Env = BTreeMap<OsString, OsString>;

/// Guards by what they depend on: the trees, whether they may be changed, whether programs may be started.
pub(super) type Guards = HashMap<(Vec<PathBuf>, bool, bool), (Guard, Env)>;

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
    /// Carries a job out in a worker.
    pub(super) fn work(&self, job: &Job<'_>, needs: &Needs, undo: Vec<Kept>) -> Worked {
        let not_started = |why: String| Worked {
            end: WorkEnd::failed(why),
            seen: Seen::default(),
            degraded: Vec::new(),
        };
        let (guard, env) = match self.guard_of_worker(job, needs) {
            Ok(guard) => guard,
            Err(error) => return not_started(error),
        };
        let missing = match job.spec.strict {
            true => guard.missing(),
            false => Vec::new(),
        };
        if !missing.is_empty() {
            return not_started(format!("it cannot be bounded here: {}", missing.join("; ")));
        }
        // Who signals processes of others cannot be watched by what forbids that.
        let tiers: &[Tier] = match (needs.signals, job.spec.strict) {
            (true, _) => &[Tier::ContractOnly],
            (false, true) => &[Tier::Notify],
            (false, false) => &[Tier::Notify, Tier::Ptrace, Tier::ContractOnly],
        };
        let mut degraded = Vec::new();
        for (at, &tier) in tiers.iter().enumerate() {
            match self.try_work(job, needs, &undo, &guard, &env, tier) {
                Ok(mut worked) => {
                    degraded.append(&mut worked.degraded);
                    return Worked { degraded, ..worked };
                }
                Err(error @ LaunchError::Tier { .. }) if at + 1 < tiers.len() => {
                    degraded.push(error.to_string());
                }
                Err(error) => return not_started(format!("the worker did not start: {error}")),
            }
        }
        not_started("no tier is left to try".to_owned())
    }

    /// What holds a worker, made once for all that are held alike.
    fn guard_of_worker(&self, job: &Job<'_>, needs: &Needs) -> Result<(Guard, Env), String> {
        let writes = needs.writes && !job.spec.dry_run;
        let key = (job.roots.clone(), writes, !needs.programs.is_empty());
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((guard, env)) = guards.get(&key) {
            return Ok((guard.again(), env.clone()));
        }
        let rules = Arc::new(self.rules(job, &self.bounds_of_worker(job, needs))?);
        let mut env = self.env_of_jobs();
        let guard = Guard::new(&rules, &mut env, &[]);
        if guards.len() >= GUARDS {
            guards.clear();
        }
        let again = guard.again();
        guards.insert(key, (guard, env.clone()));
        Ok((again, env))
    }

    fn bounds_of_worker(&self, job: &Job<'_>, needs: &Needs) -> Narrow {
        let program = self.worker.program.clone();
        let writes = needs.writes && !job.spec.dry_run;
        Narrow {
            read: job.roots.clone(),
            write: match writes {
                true => job.roots.clone(),
                false => Vec::new(),
            },
            programs: vec![program],
            system: !needs.programs.is_empty(),
            env: super::ENV.map(str::to_owned).into(),
            memory: Some(self.limits.memory),
            processes: Some(self.limits.processes),
            file_size: Some(self.limits.file_size),
            ..Narrow::default()
        }
    }

    fn try_work(
        &self,
        job: &Job<'_>,
        needs: &Needs,
        undo: &[Kept],
        guard: &Guard,
        env: &Env,
        tier: Tier,
    ) -> Result<Worked, LaunchError> {
        let pipe = || {
            io::pipe().map_err(|error| LaunchError::System {
                step: "making a pipe",
                error: invigil_schema::Errno(error.raw_os_error().unwrap_or_default()),
            })
        };
        let ((its_in, to), (from, its_out), (words, its_err)) = (pipe()?, pipe()?, pipe()?);
        let mut launch_spec = LaunchSpec {
            env: env.clone(),
            cwd: job.working_dir.clone(),
            stdin: Stdio::Fd(its_in.into()),
            stdout: Stdio::Fd(its_out.into()),
            stderr: Stdio::Fd(its_err.into()),
            tier,
            protected: vec![self.engine.store.home().to_owned()],
            // Whatever only loads us has nothing to compare.
            digests: !needs.programs.is_empty(),
            ..LaunchSpec::new(self.worker.argv())
        };
        guard.hold(&mut launch_spec);
        if needs.signals {
            launch_spec.confine = None;
        }
        let watching = Watching::default();
        let gate = guard.gate(None, &job.control, OsText::default(), |_| {});
        let gate = gate.map_err(|error| LaunchError::System {
            step: "making the gate",
            error: invigil_schema::Errno(error.raw_os_error().unwrap_or_default()),
        })?;
        let deadline = Instant::now() + needs.timeout;
        let handle = launch(launch_spec, watching.clone(), gate)?;
        job.control.attach(handle.line());
        let line = handle.line();
        let talk = Talk {
            executor: self,
            job,
            readable: undo
                .iter()
                .filter_map(|kept| kept.before.sha256())
                .copied()
                .collect(),
            announced: Vec::new(),
        };
        let (said, words, outcome, timed_out) = thread::scope(|scope| {
            let said = scope.spawn(move || {
                let said = talk.with_worker(undo, to, from);
                // Whatever it has left behind has nothing to do any more.
                line.kill();
                said
            });
            let words = scope.spawn(move || last_words(words));
            let left = deadline.saturating_duration_since(Instant::now());
            let in_time = handle.wait(Some(left));
            let timed_out = in_time.is_none();
            if timed_out {
                handle.line().kill();
            }
            let outcome = in_time.or_else(|| handle.wait(None));
            let said = said
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("lost")));
            (said, words.join().unwrap_or_default(), outcome, timed_out)
        });
        job.control.detach();
        let seen = watching.take();
        let degraded = match &seen.started {
            Some(started) if !needs.signals => {
                guard.enforced(started);
                guard.warnings()
            }
            _ => Vec::new(),
        };
        let end = match said {
            _ if timed_out => WorkEnd::TimedOut(needs.timeout),
            _ if job.cancel.is_cancelled() => WorkEnd::Cancelled,
            Ok(Some(Said::Done { data, message })) => WorkEnd::Done(Output { data, message }),
            Ok(Some(Said::Failed {
                denied: true,
                error,
                ..
            })) => WorkEnd::Denied(denial(&error, &seen)),
            Ok(Some(Said::Failed { error, data, .. })) => WorkEnd::Failed { error, data },
            Ok(_) | Err(_) => WorkEnd::failed(died(outcome.as_ref(), &words)),
        };
        Ok(Worked {
            end,
            seen,
            degraded,
        })
    }

    /// The rules of a job: its own bounds, and upon them the files of the user and the project.
    pub(super) fn rules(&self, job: &Job<'_>, narrow: &Narrow) -> Result<Rules, String> {
        let mut sources: Vec<Source> = vec![narrow.source("the bounds of a job")];
        sources.extend(self.policies.iter().cloned());
        let mut places = self.places.clone();
        places.workspace.clone_from(&job.working_dir);
        Rules::load(Mode::Guard, sources, places).map_err(|error| error.to_string())
    }

    /// What every job gets of the environment.
    pub(super) fn env_of_jobs(&self) -> Env {
        let mut env = self.engine.env.clone();
        env.retain(|name, _| {
            name.to_str().is_some_and(|name| {
                super::ENV
                    .iter()
                    .any(|known| match known.strip_suffix('*') {
                        Some(prefix) => name.starts_with(prefix),
                        None => name == *known,
                    })
            })
        });
        env
    }
}

/// What was refused, in one sentence, with the rule that says so if it is known.
pub(super) fn denial(error: &str, seen: &Seen) -> String {
    let about = |refused: &&Refused| {
        let target = refused.target.to_string_lossy();
        let name = target.rsplit('/').next().unwrap_or_default();
        error.contains(name)
    };
    match seen.refused.iter().rev().find(about) {
        Some(refused) => format!("{error} ({})", refused.rule),
        None => error.to_owned(),
    }
}

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

fn last_words(mut from: PipeReader) -> String {
    let mut words = Vec::new();
    drop(from.by_ref().take(WORDS).read_to_end(&mut words));
    drop(io::copy(&mut from, &mut io::sink()));
    String::from_utf8_lossy(&words).into_owned()
}

/// The supervisor's part of the conversation.
struct Talk<'a> {
    executor: &'a Executor,
    job: &'a Job<'a>,
    /// Blobs that the worker may see: what the job that it undoes has kept, and what it has kept itself.
    readable: HashSet<Digest>,
    announced: Vec<Kept>,
}

impl Talk<'_> {
    /// Gives the order, answers, and returns the worker's last message, if it got that far.
    fn with_worker(
        mut self,
        undo: &[Kept],
        mut to: PipeWriter,
        from: PipeReader,
    ) -> io::Result<Option<Said>> {
        let order = Order {
            job_id: self.job.id.clone(),
            capability: self.job.spec.capability.clone(),
            arguments: self.job.spec.arguments.clone(),
            dry_run: self.job.spec.dry_run,
            working_dir: self.job.working_dir.clone(),
            allowed: self.job.roots[1..].to_vec(),
            undo: undo.to_vec(),
        };
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
        let put = blobs.put_from(content);
        let (sha256, _) = put.map_err(io::Error::other)?;
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

/// How long a killed tree may take to be gone.
pub(super) const GRACE: Duration = Duration::from_millis(250);
