//! How a run is steered: orders from outside and what became of them, suspensions, signals, budgets, checkpoints,
//! milestones, the repeat fuse and the runs that are started inside of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, OsText, ProcessRef, RunId, StopReason};

/// The file that carries an order to the supervisor of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderFile {
    /// Names this form: [`OrderFile::SCHEMA`].
    pub schema: String,
    /// The run.
    pub run_id: RunId,
    /// Names the order within the run.
    pub id: String,
    /// What is wanted.
    pub order: Order,
    /// The user that gives it.
    pub uid: u32,
    /// The process that gives it.
    pub pid: u32,
}

impl OrderFile {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.order.v1";
}

/// The file that tells whoever gave an order what became of it. Everything in it is in the journal too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderReply {
    /// Names this form: [`OrderReply::SCHEMA`].
    pub schema: String,
    /// What became of it.
    pub ended: OrderEnded,
    /// The record that takes it.
    pub from: u64,
    /// The record that ends it.
    pub to: u64,
}

impl OrderReply {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.order.reply.v1";
}

/// What somebody outside wants of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Stop every process.
    Pause {
        /// Why, for the record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Let every process go on.
    Resume,
    /// Tell it something.
    Signal(Signal),
    /// Keep the files of the workspace as they are now.
    Checkpoint {
        /// What it is for, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// Make the files of the workspace what they were.
    Rollback {
        /// To this checkpoint; to the newest one, if nothing is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpoint: Option<String>,
    },
    /// Check a phase, and go on to the next if all of it is there.
    Milestone {
        /// Which one; the current one, if nothing is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        phase: Option<String>,
    },
}

impl Order {
    /// The name in the journal.
    pub fn as_str(&self) -> &'static str {
        match self {
            Order::Pause { .. } => "pause",
            Order::Resume => "resume",
            Order::Signal(_) => "signal",
            Order::Checkpoint { .. } => "checkpoint",
            Order::Rollback { .. } => "rollback",
            Order::Milestone { .. } => "milestone",
        }
    }
}

/// Who steers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "through", rename_all = "snake_case")]
pub enum SteeredBy {
    /// Somebody with the command line.
    CommandLine {
        /// The user.
        uid: u32,
        /// The process.
        pid: u32,
        /// The order.
        order: String,
    },
    /// A process of the run, where it may.
    Agent {
        /// Which one, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessRef>,
    },
    /// Invigil itself.
    Supervisor,
    /// The run that it was started in.
    Parent {
        /// Which one.
        run_id: RunId,
    },
    /// A run inside of it, whose files nobody may change meanwhile.
    Child {
        /// Which one.
        run_id: RunId,
    },
}

/// Data of `order_taken`: written before anything of the order happens. The origin is `user`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderTaken {
    /// Names the order within the run.
    pub id: String,
    /// What is wanted.
    pub what: Order,
    /// The user that gives it.
    pub uid: u32,
    /// The process that gives it.
    pub pid: u32,
}

/// Data of `order_ended`: what became of an order. Exactly one for each `order_taken`, unless the supervisor was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderEnded {
    /// The order.
    pub id: String,
    /// Whether it was carried out.
    pub done: bool,
    /// What came of it, for people; why not, if it was not carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Data of `order_refused`: a file that cannot count as an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderRefused {
    /// The name of the file.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

/// Data of `run_suspended`: something of the run waits. Open until a `run_resumed` with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSuspended {
    /// Names the suspension within the run.
    pub id: String,
    /// What waits, and for what.
    pub reason: SuspendReason,
    /// What is waited for: the ids of child runs, the checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<String>,
    /// Who wanted it.
    pub by: SteeredBy,
    /// Why, in the words of whoever wanted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Why something of a run waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SuspendReason {
    /// Every process is stopped, because somebody said so.
    Pause,
    /// Every process is stopped while its files are put back or kept.
    Files,
    /// An agent waits for the runs that it has started. Its processes are not stopped.
    SubAgentAwait,
}

impl SuspendReason {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            SuspendReason::Pause => "pause",
            SuspendReason::Files => "files",
            SuspendReason::SubAgentAwait => "sub_agent_await",
        }
    }
}

/// Data of `run_resumed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunResumed {
    /// The suspension that is over.
    pub id: String,
    /// What had waited.
    pub reason: SuspendReason,
    /// Who wanted it.
    pub by: SteeredBy,
    /// How long it was, in milliseconds.
    pub after_ms: u64,
}

/// Data of `process_stopped`: a process does nothing until it is continued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStopped {
    /// Which.
    pub process: ProcessRef,
    /// The signal that stopped it; absent where the run is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Data of `process_continued`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessContinued {
    /// Which.
    pub process: ProcessRef,
}

/// How much something matters.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// Only recorded.
    Low,
    /// Waits until the agent asks for it.
    Normal,
    /// Interrupts at the next boundary.
    High,
    /// Ends the run now.
    Critical,
}

impl Urgency {
    /// The name in the journal and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Urgency::Low => "low",
            Urgency::Normal => "normal",
            Urgency::High => "high",
            Urgency::Critical => "critical",
        }
    }
}

/// Something that a run is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// Names it: the same one is taken once.
    pub id: String,
    /// How much it matters.
    pub urgency: Urgency,
    /// What it says.
    #[serde(default)]
    pub text: String,
}

/// Data of `signal_disposed`: what became of a signal. There may be several for one: queued, and delivered later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignalDisposed {
    /// The signal.
    pub signal: Signal,
    /// What became of it.
    pub disposition: Disposition,
    /// How many wait for the agent afterwards.
    pub queue_depth: u64,
    /// Who has sent it, or has taken it.
    pub by: SteeredBy,
    /// Where it was delivered: `exec`, `tool_call`, `poll`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundary: Option<String>,
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// The run is asked to end, and killed soon after.
    Interrupted,
    /// It waits for the next boundary.
    Pending,
    /// Every process of the run is sent `SIGINT`, at a boundary.
    Delivered,
    /// It waits until the agent asks.
    Queued,
    /// The agent has it.
    Taken,
    /// It is on the record, and that is all.
    Recorded,
    /// It was there before.
    Duplicate,
    /// The queue is full. It may be sent again.
    Dropped,
}

impl Disposition {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Disposition::Interrupted => "interrupted",
            Disposition::Pending => "pending",
            Disposition::Delivered => "delivered",
            Disposition::Queued => "queued",
            Disposition::Taken => "taken",
            Disposition::Recorded => "recorded",
            Disposition::Duplicate => "duplicate",
            Disposition::Dropped => "dropped",
        }
    }
}

/// What a run is given a part of.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// Milliseconds on the clock, without those in which it was paused.
    Wall,
    /// Microseconds of processor time.
    Cpu,
    /// Bytes of memory at once.
    Memory,
    /// Bytes by which its files have grown.
    Disk,
    /// Bytes that it has printed.
    Output,
    /// Processes alive at once.
    Processes,
    /// Calls of tools that were reported.
    ToolCalls,
    /// Tokens of models that were reported.
    Tokens,
    /// Cost that was reported, in millionths of the currency.
    Cost,
}

impl BudgetKind {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            BudgetKind::Wall => "wall",
            BudgetKind::Cpu => "cpu",
            BudgetKind::Memory => "memory",
            BudgetKind::Disk => "disk",
            BudgetKind::Output => "output",
            BudgetKind::Processes => "processes",
            BudgetKind::ToolCalls => "tool_calls",
            BudgetKind::Tokens => "tokens",
            BudgetKind::Cost => "cost",
        }
    }
}

/// Data of `budget_exceeded`: written before the run is ended for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetExceeded {
    /// Which budget.
    pub budget: BudgetKind,
    /// How much there was.
    pub limit: u64,
    /// How much was used when that was noticed.
    pub used: u64,
}

/// An amount of one budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetShare {
    /// Of what.
    pub budget: BudgetKind,
    /// How much.
    pub amount: u64,
}

/// Data of `checkpoint_taken`: the files of the workspace at a position of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointTaken {
    /// Names the checkpoint within the run.
    pub id: String,
    /// What it was taken for.
    pub cause: CheckpointCause,
    /// What it is for, in the words of whoever wanted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The directory.
    pub workspace: OsText,
    /// The git tree that has the files, in Invigil's own repository.
    pub tree: String,
    /// The last record before the files were read.
    pub at_seq: u64,
    /// How many files it has.
    pub files: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// What is not in it, as far as it is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// How much is not in it.
    #[serde(default)]
    pub left_out_count: u64,
    /// Who wanted it.
    pub by: SteeredBy,
}

/// Why a checkpoint was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointCause {
    /// Somebody wanted it.
    Ordered,
    /// The run was about to start.
    Start,
    /// The files were about to be put back.
    Rollback,
    /// A phase was reached.
    Milestone,
}

/// A path that was left out of something, or could not be dealt with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Below the workspace.
    pub path: OsText,
    /// Why.
    pub why: String,
}

/// Data of `rollback_started`: written before the first file is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackStarted {
    /// The checkpoint that is gone back to.
    pub checkpoint: String,
    /// The checkpoint of how it was before: rolling back to that one undoes this.
    pub before: String,
    /// Who wanted it.
    pub by: SteeredBy,
}

/// Data of `rollbacked`: the files are what they were, but for those that are listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rollbacked {
    /// The checkpoint that was gone back to.
    pub checkpoint: String,
    /// The position of the journal that it was taken at.
    pub at_seq: u64,
    /// The checkpoint of how it was before.
    pub before: String,
    /// How many files were written.
    pub restored: u64,
    /// How many files were removed that had not been there.
    pub removed: u64,
    /// What could not be put back, as far as it is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<LeftOut>,
    /// How much could not be put back.
    #[serde(default)]
    pub failed_count: u64,
}

/// Data of `milestones_set`: the phases of a run, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MilestonesSet {
    /// The names.
    pub phases: Vec<String>,
    /// The digest of the file that they are in, which is the name of a blob.
    pub sha256: Digest,
}

/// Data of `milestone_evidence`: what a phase has to show. Written before the phase is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MilestoneEvidence {
    /// The phase.
    pub phase: String,
    /// What it is: the path of a file, or the name of a check.
    pub evidence: OsText,
    /// Its digest: of the file, or of what the check has printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// Whether it is what was asked for.
    pub accepted: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The run of the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// Data of `milestone_advanced`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MilestoneAdvanced {
    /// The phase that is reached.
    pub phase: String,
    /// The one that begins; absent after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Who wanted it to be checked.
    pub by: SteeredBy,
}

/// Data of `milestone_blocked`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MilestoneBlocked {
    /// The phase that is not reached.
    pub phase: String,
    /// What is missing.
    pub missing: Vec<String>,
    /// Who wanted it to be checked.
    pub by: SteeredBy,
}

/// Data of `milestones_missed`: the run is about to end, and these phases are not reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MilestonesMissed {
    /// Their names, in their order.
    pub phases: Vec<String>,
}

/// Data of `repeat_fuse`: a run goes round in circles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepeatFuse {
    /// What happens.
    pub circle: Circle,
    /// What is done about it.
    pub action: FuseAction,
    /// How often in a row, or for how many seconds.
    pub count: u64,
    /// At which count the run is ended; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stops_at: Option<u64>,
    /// The program and its arguments, where it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<OsText>,
}

/// How a run goes round in circles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Circle {
    /// The same command fails again and again.
    SameFailure,
    /// Nothing changes for a long time.
    NoChange,
}

/// What is done about a run that goes round in circles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FuseAction {
    /// Somebody should look.
    Alert,
    /// The run is ended.
    Stop,
}

/// Where a run comes from, if it was started inside of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lineage {
    /// The run that it was started in.
    pub parent: RunId,
    /// The run at the top.
    pub root: RunId,
    /// How many runs are above it; 1 for a child of the top.
    pub depth: u32,
    /// The process of the parent that wanted it.
    pub process: ProcessRef,
    /// What was set aside for it from what its parent had left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<BudgetShare>,
}

/// Data of `child_run_started`, in the journal of the parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChildRunStarted {
    /// The child.
    pub run_id: RunId,
    /// The process that wanted it.
    pub process: ProcessRef,
    /// How many runs are above the child.
    pub depth: u32,
    /// Its command.
    pub command: Vec<OsText>,
    /// What was set aside for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<BudgetShare>,
}

/// Data of `child_run_refused`, in the journal of the parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChildRunRefused {
    /// The process that wanted it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
    /// Why not.
    pub why: String,
}

/// Data of `child_run_ended`, in the journal of the parent: exactly one for each `child_run_started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChildRunEnded {
    /// The child.
    pub run_id: RunId,
    /// Its exit code, unless a signal ended it or it could not start.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Exit code 0.
    pub success: bool,
    /// Why Invigil ended it, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StopReason>,
    /// What it used of what was set aside for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<BudgetShare>,
}
