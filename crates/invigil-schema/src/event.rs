//! Every kind of event there is. Adding one takes a struct for its data and a row in the table below; the compiler
//! and the schema test ask for the rest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::approval::{ApprovalAnswered, ApprovalRefused, ApprovalRequested};
use crate::contract::{CheckCompleted, CheckStarted};
use crate::daemon::{
    ActionStarted, ClientRunEnded, ClientRunStarted, ToolAnswered, ToolAsked, Turn,
};
use crate::guard::{PolicyEnforced, PolicyLoaded};
use crate::job_events::{
    JobCancelled, JobCompleted, JobDenied, JobFailed, JobKept, JobRefused, JobStarted, JobTimedOut,
    SessionChanged,
};
use crate::kernel::{
    AccessDenied, ExecFailed, FileFinal, FileOp, NetOp, ObserverFinished, ObserverNote,
    ObserverStarted, ProcessExec, ProcessExited, ProcessForked, ResourceSample,
};
use crate::layers::{PolicyDecision, PolicyFlagged, SdkEvent, SdkRejected};
use crate::steer::{
    BudgetExceeded, CheckpointTaken, ChildRunEnded, ChildRunRefused, ChildRunStarted, Lineage,
    MilestoneAdvanced, MilestoneBlocked, MilestoneEvidence, MilestonesMissed, MilestonesSet,
    OrderEnded, OrderRefused, OrderTaken, ProcessContinued, ProcessStopped, RepeatFuse,
    RollbackStarted, Rollbacked, RunResumed, RunSuspended, SignalDisposed,
};
use crate::task::{
    TaskAnswered, TaskChanged, TaskContract, TaskEnded, TaskProposed, TaskRan, TaskStarted,
};
use crate::{Digest, OsText, RunId};

/// Who vouches for an event. No view may promote one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Seen from outside the agent, through the kernel.
    Kernel,
    /// Invigil did or decided it.
    Runtime,
    /// The agent reports it of itself.
    Sdk,
    /// A client of the daemon reports it.
    Client,
    /// A person decided it.
    User,
}

impl Origin {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Kernel => "kernel",
            Origin::Runtime => "runtime",
            Origin::Sdk => "sdk",
            Origin::Client => "client",
            Origin::User => "user",
        }
    }
}

/// The part of an operating system that an event belongs to. Every kind has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// What was gated, or changed in rights.
    Syscall,
    /// Suspend, resume, budgets, checkpoints, milestones.
    Sched,
    /// Context and memory.
    Mm,
    /// Agents and processes.
    Proc,
    /// Signals.
    Ipc,
}

/// The table of kinds: `Struct = "name in the journal", Category;`
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $category:ident;)+) => {
        /// One fact, of one of the known kinds or word for word of an unknown one.
        #[derive(Debug, Clone)]
        pub enum Event {
            $($(#[$doc])* $kind($kind),)+
            /// A kind that this version does not know, or whose data it cannot read.
            Unknown {
                /// Its name.
                kind: String,
                /// Its data, word for word.
                data: Box<RawValue>,
            },
        }

        impl Event {
            /// The names of all known kinds, in the order of the table.
            pub const KINDS: &[&str] = &[$($name),+];

            /// The name in the journal.
            pub fn kind(&self) -> &str {
                match self {
                    $(Event::$kind(_) => $name,)+
                    Event::Unknown { kind, .. } => kind,
                }
            }

            /// The one category of a known kind.
            pub fn category(&self) -> Option<Category> {
                match self {
                    $(Event::$kind(_) => Some(Category::$category),)+
                    Event::Unknown { .. } => None,
                }
            }

            /// The one category of the kind of this name.
            pub fn category_of(kind: &str) -> Option<Category> {
                match kind {
                    $($name => Some(Category::$category),)+
                    _ => None,
                }
            }

            /// Reads what a journal holds. Never fails: what cannot be read is kept as it is.
            pub fn from_parts(kind: &str, data: &RawValue) -> Event {
                let known = match kind {
                    $($name => serde_json::from_str(data.get()).map(Event::$kind).ok(),)+
                    _ => None,
                };
                known.unwrap_or_else(|| Event::Unknown { kind: kind.to_owned(), data: data.to_owned() })
            }

            /// Appends the data as JSON.
            pub(crate) fn encode_data(&self, line: &mut Vec<u8>) -> serde_json::Result<()> {
                match self {
                    $(Event::$kind(data) => serde_json::to_writer(line, data),)+
                    Event::Unknown { data, .. } => {
                        // A raw value may hold newlines between its tokens; a record may not.
                        let breaks = |byte: u8| u8::from(byte == b'\n') | u8::from(byte == b'\r');
                        if data.get().bytes().fold(0, |found, byte| found | breaks(byte)) != 0 {
                            let value: serde_json::Value = serde_json::from_str(data.get())?;
                            return serde_json::to_writer(line, &value);
                        }
                        line.extend_from_slice(data.get().as_bytes());
                        Ok(())
                    }
                }
            }

            /// Name, category and schema of each kind's data.
            pub(crate) fn schemas(
                generator: &mut schemars::SchemaGenerator,
            ) -> Vec<(&'static str, Category, schemars::Schema)> {
                vec![$(($name, Category::$category, generator.subschema_for::<$kind>())),+]
            }
        }

        $(impl From<$kind> for Event {
            fn from(data: $kind) -> Event {
                Event::$kind(data)
            }
        })+
    };
}

kinds! {
    /// Record 0 of every journal.
    JournalOpened = "journal_opened", Sched;
    /// A torn tail was cut off after a crash.
    JournalRecovered = "journal_recovered", Sched;
    /// The command is about to be started.
    RunStarted = "run_started", Proc;
    /// The run begins where another one stood.
    RunForked = "run_forked", Proc;
    /// The command has ended.
    RunFinished = "run_finished", Proc;
    /// The command could not be started.
    RunFailed = "run_failed", Proc;
    /// The kernel is asked to tell what the command does.
    ObserverStarted = "observer_started", Sched;
    /// The last process is dead; how much was seen.
    ObserverFinished = "observer_finished", Sched;
    /// Something that bears on how complete the evidence is.
    ObserverNote = "observer_note", Sched;
    /// A process made another.
    ProcessForked = "process_forked", Proc;
    /// A process loaded a program.
    ProcessExec = "process_exec", Proc;
    /// A process could not load a program.
    ExecFailed = "exec_failed", Proc;
    /// A process ended.
    ProcessExited = "process_exited", Proc;
    /// A file was opened, made, changed or removed, or that was tried.
    FileOp = "file_op", Syscall;
    /// A written file at the end of the run.
    FileFinal = "file_final", Syscall;
    /// A socket was connected, bound, listened on or sent from, or that was tried.
    NetOp = "net_op", Syscall;
    /// Invigil refused something.
    AccessDenied = "access_denied", Syscall;
    /// What decides in this run.
    PolicyLoaded = "policy_loaded", Syscall;
    /// Who sees to it that the policy holds.
    PolicyEnforced = "policy_enforced", Syscall;
    /// What the tree uses.
    ResourceSample = "resource_sample", Mm;
    /// The agent's framework reports something.
    SdkEvent = "sdk_event", Ipc;
    /// The agent's framework reported something that cannot be read.
    SdkRejected = "sdk_rejected", Ipc;
    /// A tool gate decided something.
    PolicyDecision = "policy_decision", Syscall;
    /// A tool gate logged something that cannot count.
    PolicyFlagged = "policy_flagged", Syscall;
    /// A call waits for a person.
    ApprovalRequested = "approval_requested", Syscall;
    /// A question is closed.
    ApprovalAnswered = "approval_answered", Syscall;
    /// An answer that cannot count.
    ApprovalRefused = "approval_refused", Syscall;
    /// A job is about to be carried out.
    JobStarted = "job_started", Proc;
    /// A job is about to change something.
    JobKept = "job_kept", Sched;
    /// A job was done.
    JobCompleted = "job_completed", Proc;
    /// A job was not done.
    JobFailed = "job_failed", Proc;
    /// The policy did not let a job be done.
    JobDenied = "job_denied", Proc;
    /// The time of a job was up.
    JobTimedOut = "job_timed_out", Proc;
    /// Somebody did not want a job any more.
    JobCancelled = "job_cancelled", Proc;
    /// The machine was too busy for a job.
    JobRefused = "job_refused", Sched;
    /// A session was opened, paused, resumed or ended.
    SessionChanged = "session_changed", Sched;
    /// A client of the daemon begins a run.
    ClientRunStarted = "client_run_started", Proc;
    /// Its run is over.
    ClientRunEnded = "client_run_ended", Proc;
    /// A tool of a client is about to be called.
    ActionStarted = "action_started", Syscall;
    /// One action and what became of it, or what a client reports as such.
    Turn = "turn", Syscall;
    /// An action of a client waits for a person.
    ToolAsked = "tool_asked", Syscall;
    /// A question about an action is closed.
    ToolAnswered = "tool_answered", Syscall;
    /// A check is about to be run.
    CheckStarted = "check_started", Proc;
    /// A check has ended.
    CheckCompleted = "check_completed", Proc;
    /// A task was begun.
    TaskStarted = "task_started", Proc;
    /// What "done" means for a task.
    TaskContract = "task_contract", Sched;
    /// A task stands differently.
    TaskChanged = "task_changed", Sched;
    /// The agent's work of one round is over.
    TaskRan = "task_ran", Proc;
    /// A person is asked to approve something.
    TaskProposed = "task_proposed", Sched;
    /// A person has answered.
    TaskAnswered = "task_answered", Sched;
    /// A task is over.
    TaskEnded = "task_ended", Proc;
    /// Somebody outside wants something of a run.
    OrderTaken = "order_taken", Ipc;
    /// What became of it.
    OrderEnded = "order_ended", Ipc;
    /// A file that cannot count as an order.
    OrderRefused = "order_refused", Ipc;
    /// Something of a run waits.
    RunSuspended = "run_suspended", Sched;
    /// It goes on.
    RunResumed = "run_resumed", Sched;
    /// A process does nothing until it is continued.
    ProcessStopped = "process_stopped", Proc;
    /// It goes on.
    ProcessContinued = "process_continued", Proc;
    /// What became of something that a run was told.
    SignalDisposed = "signal_disposed", Ipc;
    /// A run has used more than it was given.
    BudgetExceeded = "budget_exceeded", Sched;
    /// The files of the workspace are kept as they are.
    CheckpointTaken = "checkpoint_taken", Sched;
    /// The files of the workspace are about to be put back.
    RollbackStarted = "rollback_started", Sched;
    /// The files of the workspace were put back.
    Rollbacked = "rollbacked", Sched;
    /// The phases of a run.
    MilestonesSet = "milestones_set", Sched;
    /// What a phase has to show.
    MilestoneEvidence = "milestone_evidence", Sched;
    /// A phase is reached.
    MilestoneAdvanced = "milestone_advanced", Sched;
    /// A phase is not reached.
    MilestoneBlocked = "milestone_blocked", Sched;
    /// Phases that a run has not reached by its end.
    MilestonesMissed = "milestones_missed", Sched;
    /// A run goes round in circles.
    RepeatFuse = "repeat_fuse", Sched;
    /// A run was started inside of this one.
    ChildRunStarted = "child_run_started", Proc;
    /// A run could not be started inside of this one.
    ChildRunRefused = "child_run_refused", Proc;
    /// A run that was started inside of this one is over.
    ChildRunEnded = "child_run_ended", Proc;
}

/// Data of `journal_opened`: binds the chain to a format and a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JournalOpened {
    /// The version of the journal format.
    pub format: u32,
    /// The run that this journal belongs to.
    pub run_id: RunId,
    /// The program and version that began the journal.
    pub writer: String,
}

/// Data of `journal_recovered`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JournalRecovered {
    /// How many bytes were cut off.
    pub bytes: u64,
    /// The file beside the journal that now holds them.
    pub file: String,
    /// Their digest.
    pub sha256: Digest,
}

/// How much of a run is seen from outside; a greater one sees more.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Only that the command was started and how it ended.
    ContractOnly,
    /// Everything, by stopping each observed call twice.
    Ptrace,
    /// Everything, with calls carried out on behalf: the default.
    Notify,
}

impl Tier {
    /// The name in the journal and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::ContractOnly => "contract_only",
            Tier::Ptrace => "ptrace",
            Tier::Notify => "notify",
        }
    }
}

/// Data of `run_started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunStarted {
    /// The command and its arguments.
    pub command: Vec<OsText>,
    /// Where it is started.
    pub cwd: OsText,
    /// Which directory that is, whatever is called so later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryId>,
    /// The names, never the values, of the variables that were set for it.
    pub env_keys: Vec<OsText>,
    /// The operating system.
    pub platform: String,
    /// Which agent framework is said to be inside.
    pub agent_shim: String,
    /// What is observed.
    pub tier: Tier,
    /// Where it comes from, if it was started inside of another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
}

/// What tells a directory from every other one, for as long as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirectoryId {
    /// The file system. Its number may be another one after a restart of the machine.
    pub device: u64,
    /// The number within the file system.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970, where the file system knows that. Nobody can choose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<u64>,
}

impl DirectoryId {
    /// Whether both name the same directory.
    pub fn is(&self, other: &DirectoryId) -> bool {
        let born = self.born_ns == other.born_ns;
        let told = self.device == other.device || self.born_ns.is_some();
        self.inode == other.inode && born && told
    }
}

/// Data of `run_forked`: record 1 of a run that begins where another one stood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunForked {
    /// The other run.
    pub parent: RunId,
    /// Its last record that belongs to this run's past.
    pub at_seq: u64,
    /// The hash of that record, which covers all before it.
    pub hash: Digest,
    /// The newest checkpoint of the parent's files by then, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ForkCheckpoint>,
}

/// A checkpoint of the run that another one was forked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForkCheckpoint {
    /// Names it within its run.
    pub id: String,
    /// The record that it was taken with.
    pub seq: u64,
}

/// Data of `run_finished`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunFinished {
    /// The exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Exit code 0.
    pub success: bool,
    /// Milliseconds since it was started.
    pub window_elapsed_ms: u64,
    /// Why Invigil ended it, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StopReason>,
    /// The same for people, with what was exceeded or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Why Invigil ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Its time was up.
    Timeout,
    /// It used more than it was given.
    Budget,
    /// The policy said so.
    Policy,
    /// Somebody outside said so.
    Signal,
    /// It went round in circles.
    Fuse,
    /// The run that it was started in is over, or does not want it any more.
    Parent,
}

/// Data of `run_failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunFailed {
    /// What kind of failure.
    pub failure: SpawnFailure,
    /// The same for people.
    pub reason: String,
}

/// Why a command could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpawnFailure {
    /// No such command.
    NotFound,
    /// It is there, but cannot be executed.
    NotExecutable,
    /// The policy does not let it start.
    Policy,
    /// Invigil could not start or follow it.
    Internal,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Envelope, Stamp, encode_body};

    fn line(event: &Event) -> Vec<u8> {
        let mut line = Vec::new();
        encode_body(&mut line, 3, Stamp::default(), Origin::Sdk, event).unwrap();
        line.extend_from_slice(format!(",\"hash\":\"{}\"}}", Digest::ZERO).as_bytes());
        line
    }

    #[test]
    fn an_event_comes_back_from_its_line() {
        let finished = RunFinished {
            exit_code: None,
            signal: Some(9),
            success: false,
            window_elapsed_ms: 12,
            stopped: None,
            why: None,
        };
        let line = line(&finished.clone().into());
        let envelope = Envelope::parse(&line).unwrap();
        assert_eq!((envelope.seq, envelope.origin), (3, Origin::Sdk));
        assert!(matches!(envelope.event(), Event::RunFinished(data) if data == finished));
    }

    #[test]
    fn unknown_kinds_are_kept_word_for_word() {
        let data = r#"{"b": 1.50,  "a":[ 1,2 ], "b":null}"#;
        let unknown = Event::Unknown {
            kind: "from_\"tomorrow\"".into(),
            data: RawValue::from_string(data.into()).unwrap(),
        };
        let line = line(&unknown);
        let event = Envelope::parse(&line).unwrap().event();
        let Event::Unknown { kind, data: kept } = &event else {
            panic!("{event:?}")
        };
        assert_eq!((kind.as_str(), kept.get()), ("from_\"tomorrow\"", data));
        assert_eq!(event.category(), None);
    }

    #[test]
    fn a_known_kind_with_foreign_data_is_kept_too() {
        let data = RawValue::from_string(r#"{"exit":"later"}"#.into()).unwrap();
        let event = Event::from_parts("run_finished", &data);
        assert!(matches!(event, Event::Unknown { ref kind, .. } if kind == "run_finished"));
    }

    #[test]
    fn a_raw_value_cannot_break_the_line() {
        let data = RawValue::from_string("{\n\"a\":\n1}".into()).unwrap();
        let line = line(&Event::Unknown {
            kind: "x".into(),
            data,
        });
        assert!(!line.contains(&b'\n'));
    }

    #[test]
    fn names_are_unique_and_snake_case() {
        let mut names = Event::KINDS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Event::KINDS.len());
        assert!(
            names
                .iter()
                .all(|n| n.bytes().all(|c| c.is_ascii_lowercase() || c == b'_'))
        );
    }
}
