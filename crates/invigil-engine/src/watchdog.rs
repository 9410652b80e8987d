//! What happens by the clock while a run goes on: its time-out, samples of what it uses, files that others write to.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use invigil_sandbox::Handle;
use invigil_schema::{BudgetExceeded, BudgetKind, Event, Origin, RunId, StopReason};

use crate::control::Control;
use crate::lines::GrowingFile;
use crate::record::Recorder;
use crate::reports::{DecisionReader, SdkReader};
use crate::steer::Helm;

/// Between asking to end and killing.
const GRACE: Duration = Duration::from_secs(2);
/// Between two samples of what the run uses.
const SAMPLE: Duration = Duration::from_secs(1);
/// Between two looks into files that others write to.
const LOOK: Duration = Duration::from_millis(20);
/// Samples take at most one part in this many of the time.
const SAMPLE_SHARE: u32 = 20;

/// How long a run may take, and what its end is called then.
pub(crate) struct Time {
    pub(crate) limit: Duration,
    pub(crate) reason: StopReason,
    pub(crate) why: String,
}

impl Time {
    /// The shorter of a time-out and a budget.
    pub(crate) fn of(timeout: Option<Duration>, budget: Option<Duration>) -> Option<Time> {
        let time = |limit, reason, why: &str| Time {
            limit,
            reason,
            why: format!("it took longer than {limit:?}{why}"),
        };
        match (timeout, budget) {
            (timeout, Some(limit)) if timeout.is_none_or(|timeout| limit < timeout) => {
                Some(time(limit, StopReason::Budget, ", which is its budget"))
            }
            (timeout, _) => timeout.map(|limit| time(limit, StopReason::Timeout, "")),
        }
    }
}

/// Looks after one run.
pub(crate) struct Watchdog<'a> {
    handle: &'a Handle,
    recorder: &'a Recorder,
    control: &'a Control,
    time: Option<Time>,
    reports: &'a Mutex<Reports>,
    helm: &'a Helm,
    over: Mutex<bool>,
    changed: Condvar,
}

impl<'a> Watchdog<'a> {
    pub(crate) fn new(
        time: Option<Time>,
        reports: &'a Mutex<Reports>,
        handle: &'a Handle,
        recorder: &'a Recorder,
        control: &'a Control,
        helm: &'a Helm,
    ) -> Self {
        Watchdog {
            handle,
            recorder,
            control,
            time,
            reports,
            helm,
            over: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// The run is over.
    pub(crate) fn stop(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Returns when the run is over.
    pub(crate) fn watch(&self) {
        let begun = Instant::now();
        // It may have begun stopped, before its time.
        let (before, _) = self.control.rested();
        let rested = || {
            let (rested, paused) = self.control.rested();
            (rested.saturating_sub(before), paused)
        };
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let mut term_at = self.time.as_ref().map(|time| begun + time.limit);
        let mut kill_at = None;
        let mut sample_at = begun + SAMPLE;
        loop {
            let look_at = reports.are_expected().then(|| Instant::now() + LOOK);
            let (paused_for, paused) = rested();
            let due = term_at.filter(|_| !paused).map(|at| at + paused_for);
            let next = [due, kill_at, look_at]
                .into_iter()
                .flatten()
                .fold(sample_at, Instant::min);
            let over = self.sleep_until(next);
            let record = |origin, event| {
                self.recorder.try_record(origin, &event);
                self.helm.heard(&event);
            };
            reports.read(&record);
            if over {
                return reports.finish(&record);
            }
            let now = Instant::now();
            // The time in which everybody was stopped is not the run's.
            let (paused_for, _) = rested();
            let due = term_at.map(|at| at + paused_for);
            if let Some(time) = self
                .time
                .as_ref()
                .filter(|_| due.is_some_and(|at| at <= now))
            {
                if time.reason == StopReason::Budget {
                    let used = begun.elapsed().saturating_sub(paused_for);
                    self.control.exceeded(BudgetExceeded {
                        budget: BudgetKind::Wall,
                        limit: time.limit.as_millis() as u64,
                        used: used.as_millis() as u64,
                    });
                }
                self.control.terminate(time.reason, &time.why);
                (term_at, kill_at) = (None, Some(now + GRACE));
            }
            if kill_at.is_some_and(|at| at <= now) {
                self.control.kill();
                kill_at = None;
            }
            if sample_at <= now {
                let sample = self.handle.sample();
                self.helm.sampled(&sample);
                self.recorder.try_record(Origin::Kernel, &sample.into());
                sample_at = now + SAMPLE.max(now.elapsed() * SAMPLE_SHARE);
            }
        }
    }

    /// Whether the run is over.
    fn sleep_until(&self, at: Instant) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = at.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(over, pause, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Files to which the agent's framework and a tool gate write.
pub(crate) struct Reports {
    sdk: Option<(GrowingFile, SdkReader)>,
    decisions: Option<(GrowingFile, DecisionReader)>,
}

impl Reports {
    /// Made before anything runs: what is in the files then is not of this run.
    pub(crate) fn new(
        events: Option<PathBuf>,
        decisions: Option<PathBuf>,
        run_id: &RunId,
        store: &Path,
    ) -> Result<Reports, (PathBuf, io::Error)> {
        let open =
            |path: PathBuf| GrowingFile::new(path.clone(), store).map_err(|error| (path, error));
        let (events, decisions) = (
            events.map(open).transpose()?,
            decisions.map(open).transpose()?,
        );
        Ok(Reports {
            sdk: events.map(|file| (file, SdkReader::new(run_id.clone(), None, None))),
            decisions: decisions.map(|file| (file, DecisionReader::new(run_id.clone()))),
        })
    }

    fn are_expected(&self) -> bool {
        self.sdk.is_some() || self.decisions.is_some()
    }

    fn read(&mut self, record: &dyn Fn(Origin, Event)) {
        if let Some((file, reader)) = &mut self.sdk
            && let Err(why) = file.read(|line| record(Origin::Sdk, reader.read(&line)))
        {
            record(Origin::Sdk, reader.unreadable(&why));
        }
        if let Some((file, reader)) = &mut self.decisions
            && let Err(why) = file.read(|line| record(Origin::Client, reader.read(&line)))
        {
            record(Origin::Client, DecisionReader::unreadable(&why));
        }
    }

    fn finish(&mut self, record: &dyn Fn(Origin, Event)) {
        if let Some((file, reader)) = &mut self.sdk {
            file.finish(|line| record(Origin::Sdk, reader.read(&line)));
        }
        if let Some((file, reader)) = &mut self.decisions {
            file.finish(|line| record(Origin::Client, reader.read(&line)));
        }
    }
}
