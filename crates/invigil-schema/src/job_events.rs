//! What the journal of jobs holds: a job is one action that Invigil carried out on behalf of an agent, a session is a
//! row of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job::{JobId, Kept, SessionId};
use crate::telemetry::{ProcessSummary, Telemetry};
use crate::{Digest, OsText, RunId};

/// The machine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Its figures.
    pub telemetry: Telemetry,
    /// Its processes, in short.
    pub processes: ProcessSummary,
}

/// Data of `job_started`: durable before anything happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobStarted {
    /// The job.
    pub job_id: JobId,
    /// What is asked for.
    pub capability: String,
    /// With which arguments, without secrets; null if they are kept as a blob.
    pub arguments: Value,
    /// The blob with the arguments as JSON, where they are too large for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_blob: Option<Digest>,
    /// Whether nothing is to be changed.
    pub dry_run: bool,
    /// The session that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The step of the session's file that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepRef>,
    /// Where it happens.
    pub working_dir: OsText,
    /// Further trees that it may use.
    pub allowed: Vec<OsText>,
    /// The process that looks after it: the name of a file that it keeps locked for as long as it lives.
    pub owner: String,
    /// The machine before.
    pub before: Snapshot,
}

/// Data of `job_kept`: what is about to change, durable before it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobKept {
    /// The job that changes it.
    pub job_id: JobId,
    /// What was there, and what will be.
    pub kept: Vec<Kept>,
}

/// What every end of a job says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobEnd {
    /// The job.
    pub job_id: JobId,
    /// What was asked for.
    pub capability: String,
    /// The session that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// From `job_started` on.
    pub duration_ms: u64,
    /// The processes that it started, besides the one that carried it out.
    pub spawned: Vec<Spawned>,
    /// What was refused to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// What this machine could not give: which protection is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    /// The run that has all of its facts, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The machine before; absent where nobody lived to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Snapshot>,
    /// The machine after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Snapshot>,
}

/// A process that a job started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spawned {
    /// Its number.
    pub pid: u32,
    /// Who made it.
    pub parent: u32,
    /// The last program that it loaded, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<OsText>,
    /// Its exit code, unless a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Something that was refused to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// To what it was refused.
    pub target: OsText,
    /// By which rule.
    pub rule: String,
}

/// What a job gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobOutput {
    /// The result; null if it is kept as a blob.
    pub data: Value,
    /// The blob with the result as JSON, where it is too large for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Data of `job_completed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobCompleted {
    /// How it ended.
    pub end: JobEnd,
    /// What it gave.
    pub output: JobOutput,
}

/// Data of `job_failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobFailed {
    /// How it ended.
    pub end: JobEnd,
    /// Why.
    pub error: String,
    /// Nobody lived to tell how it ended; it was found without an end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recovered: bool,
    /// What it gave all the same: a program's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<JobOutput>,
}

/// Data of `job_denied`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobDenied {
    /// How it ended.
    pub end: JobEnd,
    /// What was refused, and by which rule.
    pub error: String,
}

/// Data of `job_timed_out`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobTimedOut {
    /// How it ended.
    pub end: JobEnd,
    /// How long it had.
    pub timeout_ms: u64,
    /// What it gave until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<JobOutput>,
}

/// Data of `job_cancelled`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobCancelled {
    /// How it ended.
    pub end: JobEnd,
    /// What it gave until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<JobOutput>,
}

/// Data of `job_refused`: the machine was too busy, and nothing was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobRefused {
    /// What was asked for.
    pub capability: String,
    /// The session that it would have belonged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Which figure was past its threshold.
    pub why: String,
    /// The machine.
    pub before: Snapshot,
}

/// Data of `session_changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionChanged {
    /// The session.
    pub session: SessionId,
    /// What it is now.
    pub state: SessionState,
    /// What it is for, when it is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// What a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Jobs can be added.
    Open,
    /// No job is added until it is resumed.
    Paused,
    /// No job is added any more.
    Ended,
}

impl SessionState {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            SessionState::Open => "open",
            SessionState::Paused => "paused",
            SessionState::Ended => "ended",
        }
    }
}

/// A line of a file of steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepRef {
    /// The file, by the digest of its content.
    pub file: Digest,
    /// The number of the step, from 1.
    pub number: u64,
}

fn is_false(value: &bool) -> bool {
    !value
}
