//! What a job has changed and can be taken back.

use std::collections::HashSet;
use std::fs::File;

use invigil_journal::{JobRow, JobState, Jobs, RunRef, StoreError};
use invigil_schema::{Event, JobId, JobStarted, Kept, OsText};

use super::{ExecError, Executor, Job, JobSpec, owner};

/// The capability that takes back what another has done.
pub(super) const UNDO: &str = "undo";

/// Why nothing can be taken back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UndoError {
    /// No job is meant.
    #[error("there is no job {0:?}; `invigil jobs` lists them")]
    NoJob(String),
    /// It goes on.
    #[error(
        "job {0} is still under way; wait for it with `invigil wait {0}`, or run `invigil recover` if its process is gone"
    )]
    Open(JobId),
    /// It has changed nothing that was kept.
    #[error("job {job_id} ({capability}) has changed nothing that could be taken back")]
    Nothing {
        /// The job.
        job_id: JobId,
        /// What it did.
        capability: String,
    },
    /// It was done before.
    #[error("job {job_id} was taken back already, by job {by}; to do it again, undo that one")]
    Already {
        /// The job.
        job_id: JobId,
        /// What took it back.
        by: JobId,
    },
}

impl Executor {
    /// For the capability that takes back: nobody else takes the same job back meanwhile. Nothing for others.
    pub(super) fn alone_with(&self, spec: &JobSpec) -> Result<Option<File>, ExecError> {
        let id = spec.arguments.get("job_id").and_then(|id| id.as_str());
        match id.and_then(|id| JobId::new(id).ok()) {
            Some(id) if spec.capability == UNDO => {
                let lock = owner::undo_of(&self.engine.store, &id);
                lock.map(Some).map_err(ExecError::Owner)
            }
            _ => Ok(None),
        }
    }

    /// For the capability that takes back: what the job that it names has kept, newest first. Nothing for others.
    pub(super) fn to_take_back(&self, job: &Job<'_>) -> Result<Vec<Kept>, ExecError> {
        if job.spec.capability != UNDO {
            return Ok(Vec::new());
        }
        let arguments = &job.spec.arguments;
        let text = |key: &str| arguments.get(key).and_then(|value| value.as_str());
        let name = text("job_id").unwrap_or_default();
        let jobs = Jobs::refreshed(&self.engine.store)?;
        let Some(run) = self.engine.store.jobs_so_far() else {
            return Err(UndoError::NoJob(name.to_owned()).into());
        };
        let row = match JobId::new(name).ok().map(|id| jobs.job(&id)).transpose()? {
            Some(Some(row)) => row,
            _ => return Err(UndoError::NoJob(name.to_owned()).into()),
        };
        if row.state == JobState::Open {
            return Err(UndoError::Open(row.job_id).into());
        }
        let mut kept = kept_by(&jobs, &run, &row.job_id)?;
        if kept.is_empty() {
            let capability = row.capability;
            let job_id = row.job_id;
            return Err(UndoError::Nothing { job_id, capability }.into());
        }
        let before = taken_back(&jobs, &run, &row)?;
        let wanted = text("path").map(|path| job.working_dir.join(path));
        let already = |path: &OsText| before.paths.contains(path);
        let all_gone = kept.iter().all(|kept| already(&kept.path));
        if let Some(by) = before.by
            && (all_gone
                || before.whole
                || wanted.is_some_and(|path| already(&path.into_os_string().into())))
        {
            let job_id = row.job_id;
            return Err(UndoError::Already { job_id, by }.into());
        }
        kept.retain(|kept| !already(&kept.path));
        kept.reverse();
        Ok(kept)
    }

    /// Whether a job has changed anything that nobody has taken back since.
    pub(super) fn has_something_to_take_back(
        &self,
        jobs: &Jobs,
        row: &JobRow,
    ) -> Result<bool, ExecError> {
        let Some(run) = self.engine.store.jobs_so_far() else {
            return Ok(false);
        };
        let before = taken_back(jobs, &run, row)?;
        let kept = kept_by(jobs, &run, &row.job_id)?;
        let left = |kept: &Kept| !before.paths.contains(&kept.path);
        Ok(!before.whole && kept.iter().any(left))
    }
}

/// What a job was about to change, in the order of its changes.
fn kept_by(jobs: &Jobs, run: &RunRef, job_id: &JobId) -> Result<Vec<Kept>, ExecError> {
    let mut kept = Vec::new();
    for seq in jobs.kept(job_id)? {
        if let Some(Event::JobKept(record)) = event(run, seq)? {
            kept.extend(record.kept);
        }
    }
    Ok(kept)
}

/// What was taken back of a job before.
#[derive(Default)]
struct Before {
    by: Option<JobId>,
    whole: bool,
    paths: HashSet<OsText>,
}

fn taken_back(jobs: &Jobs, run: &RunRef, row: &JobRow) -> Result<Before, ExecError> {
    let mut before = Before::default();
    for undo in jobs.undoing(&row.job_id)? {
        let counts = undo.state == JobState::Completed && !undo.dry_run;
        // What took back and was itself taken back does not count.
        if !counts || taken_back(jobs, run, &undo)?.by.is_some() {
            continue;
        }
        let started = match event(run, undo.seq)? {
            Some(Event::JobStarted(started)) => Some(started),
            _ => None,
        };
        before.whole |= started.is_none_or(|started| is_whole(&started));
        let kept = kept_by(jobs, run, &undo.job_id)?;
        before.paths.extend(kept.into_iter().map(|kept| kept.path));
        before.by = Some(undo.job_id);
    }
    Ok(before)
}

fn is_whole(started: &JobStarted) -> bool {
    started
        .arguments
        .get("path")
        .is_none_or(|path| path.is_null())
}

pub(super) fn event(run: &RunRef, seq: u64) -> Result<Option<Event>, StoreError> {
    let Some(mut reader) = run.read(seq)? else {
        return Ok(None);
    };
    let record = reader.next().map_err(|error| run.error(error))?;
    let envelope = record.map(|record| record.envelope()).transpose();
    let envelope = envelope.map_err(|error| run.error(error))?;
    Ok(envelope.map(|envelope| envelope.event()))
}
