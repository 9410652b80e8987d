//! The one end of a job: recorded, and then told.

use std::time::Instant;

use invigil_schema::{
    Event, JobCancelled, JobCompleted, JobDenied, JobEnd, JobFailed, JobOutput, JobTimedOut, RunId,
    Snapshot,
};
use serde_json::Value;

use super::fit::short;
use super::seen::Seen;
use super::work::{WorkEnd, Worked};
use super::{ExecError, Executor, GivenOutput, Job, JobOutcome, JobResult};

/// How a job ended, before it is on record.
pub(super) struct Ended {
    pub(super) worked: Worked,
    /// The machine after, if somebody has looked already.
    pub(super) after: Option<Snapshot>,
    /// The run with all of its facts.
    pub(super) run: Option<RunId>,
    /// What a program printed, however it ended.
    pub(super) shown: Option<Value>,
    /// Whether the arguments were wrong.
    pub(super) invalid: bool,
}

impl Ended {
    /// Just so, without any process.
    pub(super) fn so(end: WorkEnd) -> Ended {
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

impl Executor {
    /// Records the one end of a job, and tells it.
    pub(super) fn finish(
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
        let look = || self.looks.after(&job.working_dir, &self.redactor).ok();
        let after = ended.after.or_else(look);
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
        let mut output = |data: Value| {
            self.kept_output(data).unwrap_or_else(|error| {
                warnings.push(format!("the result could not be kept: {error}"));
                JobOutput {
                    data: Value::Null,
                    blob: None,
                    message: None,
                }
            })
        };
        let partial = ended.shown;
        let (event, state, data, message): (Event, JobOutcome, Value, Option<String>) = match how {
            WorkEnd::Done(given) => {
                let output = JobOutput {
                    message: given.message.as_deref().map(short),
                    ..output(given.data.clone())
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
                    error: short(&error),
                    recovered: false,
                    output: data.clone().map(&mut output),
                };
                (event.into(), state, data.unwrap_or_default(), Some(error))
            }
            WorkEnd::Denied(error) => {
                let error = format!("Denied: {error}");
                let event = JobDenied {
                    end,
                    error: short(&error),
                };
                (
                    event.into(),
                    JobOutcome::Denied,
                    partial.unwrap_or_default(),
                    Some(error),
                )
            }
            WorkEnd::TimedOut(limit) => {
                let timeout_ms = limit.as_millis() as u64;
                let output = partial.clone().map(&mut output);
                let event = JobTimedOut {
                    end,
                    timeout_ms,
                    output,
                };
                let message = format!("Execution failed: it took longer than {limit:?}");
                (
                    event.into(),
                    JobOutcome::TimedOut,
                    partial.unwrap_or_default(),
                    Some(message),
                )
            }
            WorkEnd::Cancelled => {
                let output = partial.clone().map(&mut output);
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
}
