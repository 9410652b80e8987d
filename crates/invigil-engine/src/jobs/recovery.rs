//! After a crash: a job whose process is gone gets its one end.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use invigil_journal::{Clock, JobFilter, JobRow, JobState, Jobs, RunRef, Store};
use invigil_schema::{Event, JobEnd, JobFailed, JobId, Origin, OsText};

use super::command::Temporary;
use super::undo::event;
use super::{ExecError, owner, sweep};

/// Gives each job without an end, and without a living owner, exactly one. The jobs that got it, oldest first. `tmp` is
/// where temporary directories are.
pub fn recover(
    store: &Store,
    clock: Arc<dyn Clock>,
    writer: &str,
    tmp: &Path,
) -> Result<Vec<JobId>, ExecError> {
    if store.jobs_so_far().is_none() {
        return Ok(Vec::new());
    }
    let _alone = owner::one_at_a_time(store).map_err(ExecError::Owner)?;
    let open = JobFilter {
        state: Some(JobState::Open),
        ..JobFilter::default()
    };
    let jobs = Jobs::refreshed(store)?;
    let mut alive = HashMap::new();
    for job in jobs.jobs(&open)? {
        alive
            .entry(job.owner)
            .or_insert_with_key(|owner| owner::is_alive(store, owner));
    }
    alive.retain(|_, alive| !*alive);
    if alive.is_empty() {
        return Ok(Vec::new());
    }
    // Who is dead now says nothing more. What it still said before is read only now.
    jobs.refresh()?;
    let (run, journal) = store.jobs(clock, writer)?;
    let mut recovered = Vec::new();
    let mut left = jobs.jobs(&open)?;
    left.retain(|job| alive.contains_key(&job.owner));
    for job in left.into_iter().rev() {
        let failed = JobFailed {
            end: JobEnd {
                job_id: job.job_id.clone(),
                capability: job.capability,
                session: job.session,
                duration_ms: 0,
                spawned: Vec::new(),
                refused: Vec::new(),
                degraded: Vec::new(),
                run: None,
                before: None,
                after: None,
            },
            error: "Execution failed: the process that looked after it is gone".to_owned(),
            recovered: true,
            output: None,
        };
        journal.append(Origin::Runtime, &failed.into())?.durable()?;
        tidy(&jobs, &run, job.seq, &job.job_id)?;
        Temporary::forget(tmp, &job.job_id);
        recovered.push(job.job_id);
    }
    jobs.refresh()?;
    for owner in alive.keys() {
        owner::forget(store, owner);
    }
    Ok(recovered)
}

/// Whether nobody looks after a job any more. It may have got its end just before.
pub fn is_abandoned(store: &Store, job: &JobRow) -> bool {
    !owner::is_alive(store, &job.owner)
}

/// Removes what the worker of a dead process may have left under temporary names.
fn tidy(jobs: &Jobs, run: &RunRef, seq: u64, job_id: &JobId) -> Result<(), ExecError> {
    let path = |text: &OsText| PathBuf::from(OsStr::from_bytes(text.as_bytes()));
    let Some(Event::JobStarted(started)) = event(run, seq)? else {
        return Ok(());
    };
    let mut touched = Vec::new();
    for seq in jobs.kept(job_id)? {
        if let Some(Event::JobKept(record)) = event(run, seq)? {
            touched.extend(record.kept);
        }
    }
    let mut roots = vec![path(&started.working_dir)];
    roots.extend(started.allowed.iter().map(path));
    sweep(job_id, &roots, &touched);
    Ok(())
}
