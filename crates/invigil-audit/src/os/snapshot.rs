//! The document of [`OsView`](super::OsView): how a run stands at one point, as an operating system would say it.

use invigil_schema::{OsText, ProcessRef};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run, or a session of another runtime, stands after its first events.
///
/// In a session log a `turn` is what the log says; in a journal of Invigil, which has no turns, it is the number of the
/// record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OsSnapshot {
    /// The newest suspension. It stays after a resume.
    pub last_suspend: Option<Suspension>,
    /// The turn of the newest resume.
    pub last_resumed_turn: Option<u64>,
    /// Agents in the order in which they were first named, each as its last event left it.
    pub process_by_agent: Vec<AgentProcess>,
    /// Budgets that were exceeded, oldest first.
    pub budget_exceeded: Vec<BudgetRow>,
    /// What became of signals, oldest first.
    pub signals: Vec<SignalRow>,
    /// How often memory was paged out.
    pub page_out_count: u64,
    /// How often memory was paged in.
    pub page_in_count: u64,
    /// How often something had to wait for a decision.
    pub tool_gated_count: u64,
    /// How often a memory was written.
    #[serde(default)]
    pub memory_written_count: u64,
    /// How often a memory was asked for.
    #[serde(default)]
    pub memory_queried_count: u64,
    /// How often a memory was refused.
    #[serde(default)]
    pub memory_validation_failed_count: u64,
    /// How often memories came back.
    #[serde(default)]
    pub memory_retrieval_result_count: u64,
    /// How many events there are before this point.
    #[serde(default)]
    pub events: u64,
    /// How many of them are of each category.
    #[serde(default)]
    pub categories: CategoryCounts,
    /// Where the run itself is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_state: Option<RunState>,
    /// What waits, oldest first. Empty after a resume.
    #[serde(default)]
    pub open_suspensions: Vec<Suspension>,
    /// The processes that the kernel told of.
    #[serde(default, skip_serializing_if = "ProcessTable::is_empty")]
    pub processes: ProcessTable,
    /// How often the files of the workspace were kept.
    #[serde(default)]
    pub checkpoint_count: u64,
    /// The newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointRow>,
    /// How often they were put back.
    #[serde(default)]
    pub rollback_count: u64,
    /// The checkpoint that was gone back to last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rollback: Option<CheckpointRow>,
    /// The phases of the run in their order, each as its last event left it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub milestones: Vec<MilestoneRow>,
    /// What cannot be, oldest first: listed, and not applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anomalies: Vec<Anomaly>,
    /// How many rows were left out of the lists above, so that they have an end.
    #[serde(default, skip_serializing_if = "RowsLeftOut::is_nothing")]
    pub left_out: RowsLeftOut,
}

/// Something that waits, or did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Suspension {
    /// When.
    pub turn: u64,
    /// Why: `ask_user`, `sub_agent_await`, `paused` and so on.
    pub reason: String,
    /// What waits: calls, questions, agents.
    #[serde(default)]
    pub pending_calls: Vec<String>,
}

/// An agent, as its last event left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentProcess {
    /// When.
    pub turn: u64,
    /// Which one; for a run of Invigil its id.
    pub agent_id: String,
    /// Who started it; empty if nobody did.
    pub parent_session_id: String,
    /// What it is now: `running`, `joined` and so on.
    pub state: String,
}

/// A budget that was exceeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetRow {
    /// When.
    pub turn: u64,
    /// Which one.
    pub budget: String,
}

/// What became of a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignalRow {
    /// When.
    pub turn: u64,
    /// Which one.
    pub signal_id: String,
    /// What became of it: `queue`, `interrupt`, `ignore` and so on.
    pub disposition: String,
    /// How many wait behind it.
    pub queue_depth: u64,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointRow {
    /// When.
    pub turn: u64,
    /// Which one.
    pub id: String,
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MilestoneRow {
    /// When.
    pub turn: u64,
    /// Which one.
    pub phase: String,
    /// Whether it is reached.
    pub state: MilestoneState,
}

/// Whether a phase is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MilestoneState {
    /// Nobody has looked yet.
    Open,
    /// Somebody has looked, and something is missing.
    Blocked,
    /// It is.
    Advanced,
    /// It was not by the end of the run.
    Missed,
}

/// How many events there are of each category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CategoryCounts {
    /// What was gated, or changed in rights.
    pub syscall: u64,
    /// Suspend, resume, budgets, checkpoints, milestones.
    pub sched: u64,
    /// Context and memory.
    pub mm: u64,
    /// Agents and processes.
    pub proc: u64,
    /// Signals.
    pub ipc: u64,
    /// Of a kind that this version does not know.
    pub unknown: u64,
}

/// Where a run is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Its journal is open, and its command is not started.
    Starting,
    /// It goes on.
    Running,
    /// It was stopped, and can go on.
    Paused,
    /// It is over.
    Ended,
}

/// The processes of a run. Those that live are all there; of those that ended, the newest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProcessTable {
    /// How many were ever started.
    pub started: u64,
    /// How many of them have ended.
    pub ended: u64,
    /// In the order in which they were started.
    pub rows: Vec<ProcessRow>,
}

impl ProcessTable {
    fn is_empty(&self) -> bool {
        *self == ProcessTable::default()
    }
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessRow {
    /// Which one.
    pub process: ProcessRef,
    /// Who made it; absent for the command itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ProcessRef>,
    /// What it is doing.
    pub state: ProcessState,
    /// The program that it loaded last; absent if it is still a copy of its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<OsText>,
    /// The number of the record that says so.
    pub since: u64,
}

/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ProcessState {
    /// It was made and has loaded nothing yet.
    Starting,
    /// It has loaded a program.
    Running,
    /// It waits for somebody's answer.
    Waiting,
    /// The run is paused.
    Stopped,
    /// It ended.
    Exited {
        /// Its exit code, unless a signal ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// The run is over, and its end was not seen.
    Lost,
}

/// Something that cannot be. It was not applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Anomaly {
    /// The number of the event, from 0.
    pub seq: u64,
    /// What kind.
    pub anomaly: AnomalyKind,
    /// The event, and what it is about.
    pub what: String,
}

/// Why an event was not applied.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AnomalyKind {
    /// It is about something that was over.
    AfterEnd,
    /// It ends something that never began, or was taken back.
    StaleCompletion,
    /// It ends something a second time.
    DuplicateCompletion,
    /// It is about an agent, or a process, that nobody has started.
    UnknownAgent,
}

/// How many rows a list would have more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RowsLeftOut {
    /// Of `budget_exceeded`, the oldest.
    #[serde(default)]
    pub budget_exceeded: u64,
    /// Of `signals`, the oldest.
    #[serde(default)]
    pub signals: u64,
    /// Of `open_suspensions`, the newest.
    #[serde(default)]
    pub open_suspensions: u64,
    /// Of `anomalies`, the newest.
    #[serde(default)]
    pub anomalies: u64,
}

impl RowsLeftOut {
    fn is_nothing(&self) -> bool {
        *self == RowsLeftOut::default()
    }
}
