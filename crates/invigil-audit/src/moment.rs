//! How much has happened up to one moment, and what those who live then run.
//!
//! Small on purpose: a copy of it is put aside every few thousand records, so that any moment is found quickly. It grows
//! with the number of processes that are alive, and with nothing else. Who lives and who waits is in
//! [`OsSnapshot`](crate::OsSnapshot).

use std::collections::BTreeMap;
use std::sync::Arc;

use invigil_schema::{Event, OsText, ProcessRef, ResourceSample, RunFailed, RunFinished};

use crate::outcome::accesses;
use crate::{Fact, Notable, View};

/// How much has happened up to some record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MomentDoc {
    /// How many records there are up to here.
    pub records: u64,
    /// How much time has passed since the first one, in nanoseconds. The time between two boots does not count.
    pub elapsed_ns: u64,
    /// The command lines of the processes that are alive and have loaded a program.
    pub commands: BTreeMap<ProcessRef, Arc<Vec<OsText>>>,
    /// Programs loaded.
    pub programs: u64,
    /// Files opened for reading.
    pub reads: u64,
    /// Other operations on files.
    pub changes: u64,
    /// Operations on the network.
    pub network: u64,
    /// Refusals.
    pub refused: u64,
    /// The record of the last one.
    pub last_refused: Option<u64>,
    /// Reports of the agent.
    pub reports: u64,
    /// Checks that passed.
    pub passed: u64,
    /// Checks that did not.
    pub not_passed: u64,
    /// What the run used when it was last looked at.
    pub sample: Option<ResourceSample>,
    /// How it ended, if it has.
    pub finished: Option<RunFinished>,
    /// Why it was not started, if it was not.
    pub failed: Option<RunFailed>,
}

/// Folds facts into a [`MomentDoc`].
#[derive(Debug, Clone, Default)]
pub struct Moment {
    so_far: MomentDoc,
    mono: Option<u64>,
}

impl View for Moment {
    type Document = MomentDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        let mono = fact.stamp.mono;
        let since = mono.saturating_sub(self.mono.replace(mono).unwrap_or(mono));
        let so_far = &mut self.so_far;
        so_far.elapsed_ns = so_far.elapsed_ns.saturating_add(since);
        so_far.records += 1;
        if fact.notable() == Some(Notable::Refused) {
            so_far.refused += 1;
            so_far.last_refused = Some(fact.seq);
        }
        match fact.vouched() {
            Some(Event::ProcessExec(exec)) => {
                so_far.programs += 1;
                let argv = Arc::new(exec.argv.clone());
                so_far.commands.insert(exec.process, argv);
            }
            Some(Event::ProcessExited(exited)) => {
                so_far.commands.remove(&exited.process);
            }
            Some(Event::FileOp(op)) => {
                match accesses(op).iter().all(|(_, access)| access.is_read()) {
                    true => so_far.reads += 1,
                    false => so_far.changes += 1,
                }
            }
            Some(Event::NetOp(_)) => so_far.network += 1,
            Some(Event::SdkEvent(_)) => so_far.reports += 1,
            Some(Event::CheckCompleted(check)) => match check.result.passed {
                true => so_far.passed += 1,
                false => so_far.not_passed += 1,
            },
            Some(Event::ResourceSample(sample)) => so_far.sample = Some(sample.clone()),
            Some(Event::RunFinished(finished)) => {
                so_far.finished = Some(finished.clone());
                so_far.commands.clear();
            }
            Some(Event::RunFailed(failed)) => so_far.failed = Some(failed.clone()),
            _ => {}
        }
    }

    fn document(&self) -> MomentDoc {
        self.so_far.clone()
    }
}
