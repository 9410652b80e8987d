//! The snapshot of a run: what an operating system would say of it after its first events. Who runs, who waits and for
//! what, which signals came and which budgets were exceeded.
//!
//! One fold for two languages: journals of Invigil, and session logs of other runtimes. It looks into the few kinds that
//! it needs and counts the rest by their name, so that a long journal is read much faster than it could be parsed. The
//! state of the fold can be kept and gone on with later. `docs/audit.md` has the rules.

mod agents;
mod own;
mod peek;
mod processes;
mod session;
mod snapshot;
mod steps;
mod waiting;

use std::collections::VecDeque;

use invigil_schema::{Category, Envelope, Event, Origin, SessionRecord};
use serde::{Deserialize, Serialize};

use agents::Agents;
use peek::Peek;
use processes::Processes;
pub use snapshot::{
    AgentProcess, Anomaly, AnomalyKind, BudgetRow, CategoryCounts, CheckpointRow, MilestoneRow,
    MilestoneState, OsSnapshot, ProcessRow, ProcessState, ProcessTable, RowsLeftOut, RunState,
    SignalRow, Suspension,
};
use steps::Steps;
use waiting::Waiting;

use crate::{Fact, View};

/// Rows of lists that grow with the events are kept up to this number.
const ROWS_MAX: usize = 1024;
/// Anomalies likewise. The first ones tell what went wrong.
const ANOMALIES_MAX: usize = 256;

/// Folds a run, or a session of another runtime, into an [`OsSnapshot`].
///
/// Everything that it knows is in its serialized form: kept after the first events and read back, it goes on as if it
/// had never stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsView {
    /// How many events were taken.
    events: u64,
    categories: CategoryCounts,
    run_state: Option<RunState>,
    /// What the journal, or the task, is called.
    own_id: String,
    agents: Agents,
    waiting: Waiting,
    processes: Processes,
    budgets: Newest<BudgetRow>,
    signals: Newest<SignalRow>,
    steps: Steps,
    anomalies: Vec<Anomaly>,
    anomalies_left_out: u64,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    page_out: u64,
    page_in: u64,
    tool_gated: u64,
    memory_written: u64,
    memory_queried: u64,
    memory_validation_failed: u64,
    memory_retrieval_result: u64,
}

impl OsView {
    /// Takes in the next line of a journal, with or without its newline. What it needs not to know of it is not read.
    pub fn take_line(&mut self, line: &[u8]) -> serde_json::Result<()> {
        match Peek::of(line) {
            Some(peek) if !own::is_of_interest(peek.kind) => {
                self.count(peek.seq, peek.origin, peek.kind);
                Ok(())
            }
            // Of a kind that matters, or spelled in a way that only a whole parser reads.
            _ => {
                let envelope = Envelope::parse(line)?;
                let event = envelope.event();
                self.take(&Fact::of(&envelope, &event));
                Ok(())
            }
        }
    }

    /// Takes in the next event of a session log.
    pub fn take_session(&mut self, record: &SessionRecord) {
        let seq = self.events;
        self.count_category(record.kind().map(|kind| kind.category()));
        self.session(seq, record);
    }

    /// How many events were taken.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How it stands.
    pub fn snapshot(&self) -> OsSnapshot {
        OsSnapshot {
            last_suspend: self.waiting.last.clone(),
            last_resumed_turn: self.waiting.last_resumed_turn,
            process_by_agent: self.agents.rows().to_vec(),
            budget_exceeded: self.budgets.rows.iter().cloned().collect(),
            signals: self.signals.rows.iter().cloned().collect(),
            page_out_count: self.counts.page_out,
            page_in_count: self.counts.page_in,
            tool_gated_count: self.counts.tool_gated,
            memory_written_count: self.counts.memory_written,
            memory_queried_count: self.counts.memory_queried,
            memory_validation_failed_count: self.counts.memory_validation_failed,
            memory_retrieval_result_count: self.counts.memory_retrieval_result,
            events: self.events,
            categories: self.categories,
            run_state: self.run_state,
            open_suspensions: self.waiting.open().cloned().collect(),
            processes: self.processes.table(),
            checkpoint_count: self.steps.checkpoints,
            last_checkpoint: self.steps.last_checkpoint.clone(),
            rollback_count: self.steps.rollbacks,
            last_rollback: self.steps.last_rollback.clone(),
            milestones: self.steps.milestones.clone(),
            anomalies: self.anomalies.clone(),
            left_out: RowsLeftOut {
                budget_exceeded: self.budgets.left_out,
                signals: self.signals.left_out,
                open_suspensions: self.waiting.left_out,
                anomalies: self.anomalies_left_out,
            },
        }
    }

    /// Counts an event that no rule looks into.
    fn count(&mut self, seq: u64, origin: Origin, kind: &str) {
        let category = Event::category_of(kind);
        self.count_category(category);
        let seen = matches!(origin, Origin::Kernel | Origin::Runtime);
        if self.is_over() && seen && category.is_some() && !own::may_follow_the_end(kind) {
            self.anomaly(seq, AnomalyKind::AfterEnd, kind);
        }
    }

    fn count_category(&mut self, category: Option<Category>) {
        self.events += 1;
        let counts = &mut self.categories;
        let count = match category {
            Some(Category::Syscall) => &mut counts.syscall,
            Some(Category::Sched) => &mut counts.sched,
            Some(Category::Mm) => &mut counts.mm,
            Some(Category::Proc) => &mut counts.proc,
            Some(Category::Ipc) => &mut counts.ipc,
            None => &mut counts.unknown,
        };
        *count += 1;
    }

    fn is_over(&self) -> bool {
        self.run_state == Some(RunState::Ended)
    }

    fn anomaly(&mut self, seq: u64, anomaly: AnomalyKind, what: impl Into<String>) {
        if self.anomalies.len() >= ANOMALIES_MAX {
            self.anomalies_left_out += 1;
            return;
        }
        let what = what.into();
        self.anomalies.push(Anomaly { seq, anomaly, what });
    }

    /// Lists what a rule found wrong.
    fn apply(&mut self, seq: u64, what: impl FnOnce() -> String, done: Result<(), AnomalyKind>) {
        if let Err(anomaly) = done {
            self.anomaly(seq, anomaly, what());
        }
    }
}

impl View for OsView {
    type Document = OsSnapshot;

    fn take(&mut self, fact: &Fact<'_>) {
        let kind = fact.event.kind();
        if !own::is_of_interest(kind) {
            return self.count(fact.seq, fact.origin, kind);
        }
        self.count_category(Event::category_of(kind));
        if let Some(event) = fact.vouched() {
            self.own(fact.seq, event);
        }
    }

    fn document(&self) -> OsSnapshot {
        self.snapshot()
    }
}

/// The newest rows of a list, and how many were there before them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Newest<T> {
    rows: VecDeque<T>,
    left_out: u64,
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Newest {
            rows: VecDeque::new(),
            left_out: 0,
        }
    }
}

impl<T> Newest<T> {
    fn push(&mut self, row: T) {
        if self.rows.len() >= ROWS_MAX {
            self.rows.pop_front();
            self.left_out += 1;
        }
        self.rows.push_back(row);
    }
}
