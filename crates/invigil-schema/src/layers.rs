//! What others report of a run: the agent's own framework (the SDK layer) and a tool gate (the policy layer).
//!
//! Both are kept as they were said. Nothing here is ever promoted to something that was seen.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{OsText, ProcessRef};

/// The schema that a line of the SDK channel must name.
pub const SDK_SCHEMA: &str = "invigil.sdk.event.v1";

/// Data of `sdk_event`: a line of the SDK channel that was accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SdkEvent {
    /// Which connection, counted from 0; absent for the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// The line in it, counted from 1.
    pub line: u64,
    /// Who wrote it, where the kernel says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
    /// What it reports.
    pub event_type: SdkEventType,
    /// The framework that reports.
    pub source: String,
    /// The call that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The whole line.
    pub body: Value,
}

/// What a framework reports.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SdkEventType {
    /// A tool is about to be called.
    ToolCallStarted,
    /// A tool has answered.
    ToolCallCompleted,
    /// A model was asked.
    ModelCall,
    /// Something was said.
    Message,
    /// The agent says that it is done.
    RunFinished,
    /// The agent says that it has failed.
    RunFailed,
}

/// Data of `sdk_rejected`: a line of the SDK channel that was not accepted. Nothing else is lost by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SdkRejected {
    /// Which connection, counted from 0; absent for the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// The line in it, counted from 1.
    pub line: u64,
    /// Who wrote it, where the kernel says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
    /// What is wrong with it.
    pub flaw: LineFlaw,
    /// The same for people.
    pub reason: String,
    /// The beginning of the line.
    pub text: OsText,
}

/// Data of `policy_decision`: what a tool gate decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyDecision {
    /// The line in the gate's log, counted from 1.
    pub line: u64,
    /// The gate.
    pub source: String,
    /// The tool that was asked for.
    pub tool: String,
    /// The call.
    pub tool_call_id: String,
    /// What was decided: `allow`, `deny` and so on.
    pub decision: String,
    /// The whole record.
    pub body: Value,
}

/// Data of `policy_flagged`: a line of a tool gate's log that cannot count as a decision of this run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyFlagged {
    /// The line in the gate's log, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub flaw: LineFlaw,
    /// The same for people.
    pub reason: String,
    /// The beginning of the line.
    pub text: OsText,
}

/// What is wrong with a line that somebody reported.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LineFlaw {
    /// Not a JSON object.
    NotJson,
    /// It names another schema, or none.
    WrongSchema,
    /// It is of another run.
    WrongRun,
    /// Its number does not follow the one before.
    SequenceGap,
    /// It reports something that no framework can.
    UnknownType,
    /// Something that it must say is missing, or is not text.
    MissingField,
    /// It is longer than a line may be.
    TooLong,
    /// There is a decision for this call already.
    SecondDecision,
    /// The peer is not a process of the run.
    ForeignPeer,
    /// It could not be read at all.
    Unreadable,
}
