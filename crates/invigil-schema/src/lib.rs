//! The words Invigil speaks: events and their envelope, ids, digests, categories, exit codes.
//!
//! Everything that is written to disk or sent to another process is defined here, and nothing else is. There is no
//! I/O, no clock and no randomness in this crate: it can be read from top to bottom as the vocabulary of the others.

mod approval;
mod bounds;
mod contract;
mod daemon;
mod digest;
mod envelope;
mod errno;
mod event;
mod exit;
mod guard;
mod id;
mod job;
mod job_events;
mod jsonschema;
mod kernel;
mod layers;
mod os;
mod steer;
mod task;
mod telemetry;
mod text;
mod time;

pub use approval::{
    AddedRule, AnswerFile, ApprovalAnswered, ApprovalBy, ApprovalDecision, ApprovalRefused,
    ApprovalRequested, ApprovalScope, Asked, QuestionFile,
};
pub use bounds::{EnforcedBy, Floor, LimitKind, Limited};
pub use contract::{Check, CheckCompleted, CheckResult, CheckStarted, Contract, Stage};
pub use daemon::{
    ActionStarted, AnsweredBy, CliOutcome, ClientRunEnded, ClientRunStarted, Outcome,
    OutcomeStatus, PolicyRejected, Termination, ToolAnswered, ToolAsked, Turn, TurnStatus,
    VerifierVerdict,
};
pub use digest::{Digest, ParseDigestError};
pub use envelope::{Envelope, Stamp, encode_body};
pub use errno::{CallResult, Errno, ParseErrnoError};
pub use event::{
    Category, DirectoryId, Event, ForkCheckpoint, JournalOpened, JournalRecovered, Origin,
    RunFailed, RunFinished, RunForked, RunStarted, SpawnFailure, StopReason, Tier,
};
pub use exit::ExitCode;
pub use guard::{
    DeniedProgram, Enforced, Mode, PolicyEnforced, PolicyLoaded, PolicyPlaces, PolicySource,
    RulePlace, Strength,
};
pub use id::{RunId, RunIdError};
pub use job::{
    Entry, JobId, JobIdError, Kept, Repository, SessionId, SessionIdError, TaskId, TaskIdError,
};
pub use job_events::{
    JobCancelled, JobCompleted, JobDenied, JobEnd, JobFailed, JobKept, JobOutput, JobRefused,
    JobStarted, JobTimedOut, Refused, SessionChanged, SessionState, Snapshot, Spawned, StepRef,
};
pub use jsonschema::journal_schema;
pub use kernel::{
    AccessDenied, Address, ExecFailed, FileFinal, FileOp, FileOpKind, Hook, NetOp, NetOpKind, Note,
    ObserverFinished, ObserverNote, ObserverStarted, OpenFlag, ProcessExec, ProcessExited,
    ProcessForked, ProcessRef, ResourceSample,
};
pub use layers::{
    LineFlaw, PolicyDecision, PolicyFlagged, SDK_SCHEMA, SdkEvent, SdkEventType, SdkRejected,
};
pub use os::{
    AgentProcessChanged, CategoryFlaw, Primitive, SessionEvent, SessionKind, SessionRecord,
    category_flaw, session_log_has_required_categories,
};
pub use steer::{
    BudgetExceeded, BudgetKind, BudgetShare, CheckpointCause, CheckpointTaken, ChildRunEnded,
    ChildRunRefused, ChildRunStarted, Circle, Disposition, FuseAction, LeftOut, Lineage,
    MilestoneAdvanced, MilestoneBlocked, MilestoneEvidence, MilestonesMissed, MilestonesSet, Order,
    OrderEnded, OrderFile, OrderRefused, OrderReply, OrderTaken, ProcessContinued, ProcessStopped,
    RepeatFuse, RollbackStarted, Rollbacked, RunResumed, RunSuspended, Signal, SignalDisposed,
    SteeredBy, SuspendReason, Urgency,
};
pub use task::{
    TaskAnswered, TaskChanged, TaskContract, TaskEnded, TaskProposed, TaskRan, TaskStarted,
    TaskState,
};
pub use telemetry::{
    Accelerator, CgroupCpu, CgroupFigures, CgroupMemory, CgroupTasks, CpuBusy, CpuFigures,
    DiskFigures, Exceeded, GuardScope, Guarded, ListeningPort, LoadAverage, MemoryFigures,
    Pressure, ProcessState, ProcessSummary, ProcessView, Stall, TaskFigures, Telemetry,
};
pub use text::OsText;
pub use time::Timestamp;

/// The version of the journal format that this crate describes; record 0 of every journal names it.
pub const JOURNAL_FORMAT: u32 = 1;
