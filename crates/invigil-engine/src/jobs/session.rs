//! Sessions: rows of jobs. A job names its session in its first record, so that none can be lost, whoever adds it.

use std::time::{Duration, Instant};

use invigil_journal::Jobs;
use invigil_schema::{
    Digest, JobId, Origin, SessionChanged, SessionId, SessionIdError, SessionState, StepRef,
};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::owner;
use super::undo::UNDO;
use super::{Cancel, ExecError, Executor, JobResult, JobSpec};

/// What is wrong with a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Not an id.
    #[error(transparent)]
    Id(#[from] SessionIdError),
    /// There is none.
    #[error(
        "there is no session {0}; `invigil session list` shows them, `invigil session new` opens one"
    )]
    Unknown(SessionId),
    /// The id is taken.
    #[error("session {0} exists already: choose another id, or leave it out to get a new one")]
    Exists(SessionId),
    /// It rests.
    #[error("session {0} is paused; `invigil session resume {0}` goes on")]
    Paused(SessionId),
    /// Another process carries out steps of it.
    #[error(
        "another process carries out steps of session {0}; wait for it, or open another session"
    )]
    Busy(SessionId),
    /// It is over.
    #[error("session {0} has ended; `invigil session new` opens another")]
    Ended(SessionId),
}

/// What is wrong with a file of steps. Nothing of it was carried out.
#[derive(Debug, thiserror::Error)]
pub enum StepsError {
    /// A line is not a step.
    #[error(
        "line {line} is not a step: {why}; write {{\"capability\": NAME, \"arguments\": {{…}}}}"
    )]
    Line {
        /// Which.
        line: usize,
        /// Why not.
        why: String,
    },
    /// There is nothing to do.
    #[error("there is no step in it")]
    Empty,
}

/// Steps, one a line.
#[derive(Debug, Clone)]
pub struct Steps {
    file: Digest,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    capability: String,
    #[serde(default)]
    arguments: Value,
    #[serde(default)]
    dry_run: bool,
}

impl Steps {
    /// Reads a file of steps: JSON, one a line. Empty lines are passed over.
    pub fn parse(text: &str) -> Result<Steps, StepsError> {
        let mut steps = Vec::new();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let step = serde_json::from_str(line).map_err(|error| StepsError::Line {
                line: at + 1,
                why: error.to_string(),
            })?;
            steps.push(step);
        }
        if steps.is_empty() {
            return Err(StepsError::Empty);
        }
        Ok(Steps {
            file: Digest::from_bytes(Sha256::digest(text.as_bytes()).into()),
            steps,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// What happens when a step is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The rest is left for another time.
    Stop,
    /// The next one follows.
    Continue,
}

/// How steps are carried out.
#[derive(Debug, Clone)]
pub struct StepsSpec {
    /// In which session.
    pub session: SessionId,
    /// Everything but what the steps themselves say.
    pub like: JobSpec,
    /// Not more than so many this time.
    pub max_steps: Option<usize>,
    /// None is begun after this time.
    pub max_time: Option<Duration>,
    /// What happens when one is not done.
    pub on_error: OnError,
}

impl Executor {
    /// Opens a session.
    pub fn open_session(
        &self,
        id: Option<SessionId>,
        title: Option<String>,
    ) -> Result<SessionId, ExecError> {
        let session = match id {
            Some(id) => match self.index()?.session(&id)? {
                Some(_) => return Err(SessionError::Exists(id).into()),
                None => id,
            },
            None => SessionId::new(format!("ses_{}", uuid::Uuid::now_v7().simple()))
                .map_err(SessionError::from)?,
        };
        self.change(&session, SessionState::Open, title)?;
        Ok(session)
    }

    /// Pauses, resumes or ends a session. Whether it was something else before.
    pub fn change_session(&self, id: &SessionId, state: SessionState) -> Result<bool, ExecError> {
        let now = match self.index()?.session(id)? {
            Some(row) => row.state,
            None => return Err(SessionError::Unknown(id.clone()).into()),
        };
        if now == SessionState::Ended && state != SessionState::Ended {
            return Err(SessionError::Ended(id.clone()).into());
        }
        if now != state {
            self.change(id, state, None)?;
        }
        Ok(now != state)
    }

    fn change(
        &self,
        id: &SessionId,
        state: SessionState,
        title: Option<String>,
    ) -> Result<(), ExecError> {
        let event = SessionChanged {
            session: id.clone(),
            state,
            title,
        };
        let event = event.into();
        let event = self.redactor.event(&event);
        Ok(self.journal.append(Origin::User, &event)?.durable()?)
    }

    /// Whether jobs can be added to a session.
    pub(super) fn takes_jobs(&self, id: &SessionId) -> Result<(), ExecError> {
        let row = self.index()?.session(id)?;
        let refused = match row.map(|row| row.state) {
            Some(SessionState::Open) => return Ok(()),
            Some(SessionState::Paused) => SessionError::Paused(id.clone()),
            Some(SessionState::Ended) => SessionError::Ended(id.clone()),
            None => SessionError::Unknown(id.clone()),
        };
        Err(refused.into())
    }

    fn index(&self) -> Result<Jobs, ExecError> {
        Ok(Jobs::refreshed(&self.engine.store)?)
    }

    /// Carries out steps one after the other, from the first that was not done before. `told` hears of each. The number
    /// of the step that would be next, from 1.
    pub fn run_steps(
        &self,
        steps: &Steps,
        spec: &StepsSpec,
        cancel: &Cancel,
        told: &mut dyn FnMut(usize, &Result<JobResult, ExecError>),
    ) -> Result<usize, ExecError> {
        let lock = owner::steps_of(&self.engine.store, &spec.session).map_err(ExecError::Owner)?;
        let Some(_alone) = lock else {
            return Err(SessionError::Busy(spec.session.clone()).into());
        };
        let begun = Instant::now();
        let last = self.index()?.last_step(&spec.session, &steps.file)?;
        let mut next = match last {
            None => 1,
            Some((step, done)) => step as usize + usize::from(done),
        };
        let most = spec.max_steps.unwrap_or(usize::MAX);
        for _ in 0..most {
            let Some(step) = steps.steps.get(next - 1) else {
                break;
            };
            if cancel.is_cancelled() || spec.max_time.is_some_and(|most| begun.elapsed() >= most) {
                break;
            }
            let job = JobSpec {
                capability: step.capability.clone(),
                arguments: step.arguments.clone(),
                dry_run: step.dry_run || spec.like.dry_run,
                session: Some(spec.session.clone()),
                // What is only tried is still to be done.
                step: (!spec.like.dry_run).then_some(StepRef {
                    file: steps.file,
                    number: next as u64,
                }),
                ..spec.like.clone()
            };
            let result = self.exec(&job, cancel);
            let done = result.as_ref().is_ok_and(|result| result.success);
            // Without a job nothing says that the step was tried: it must not be left behind.
            let refused = matches!(&result, Err(error) if !matches!(error, ExecError::Unknown(_)));
            told(next, &result);
            if refused || !done && spec.on_error == OnError::Stop {
                break;
            }
            next += 1;
        }
        Ok(next)
    }

    /// The jobs of a session that changed something and were not taken back, newest first.
    pub fn to_undo(&self, session: &SessionId) -> Result<Vec<JobId>, ExecError> {
        let index = self.index()?;
        if index.session(session)?.is_none() {
            return Err(SessionError::Unknown(session.clone()).into());
        }
        let filter = invigil_journal::JobFilter {
            session: Some(session.clone()),
            ..Default::default()
        };
        let mut jobs = Vec::new();
        for row in index.jobs(&filter)? {
            if row.capability != UNDO && self.has_something_to_take_back(&index, &row)? {
                jobs.push(row.job_id);
            }
        }
        Ok(jobs)
    }
}
