//! Runs that a client of the daemon leads: what it wants, what was asked for and done, and how it ended.
//!
//! These types are both the journal's records and what the daemon sends of them; they have one spelling.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ApprovalDecision, Digest, Timestamp};

/// Data of `client_run_started`: a client leads a run through the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientRunStarted {
    /// The agent that it is for. Who is no other may see it.
    pub agent_id: String,
    /// What people call the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_name: Option<String>,
    /// The connection that began it.
    pub client_id: String,
    /// What is to be done.
    pub intent: String,
    /// How one would see that it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome_description: Option<String>,
    /// The name under which the client asked for it; asking again gives the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When.
    pub started_at: Timestamp,
}

/// Data of `client_run_ended`: nothing of the run follows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientRunEnded {
    /// The agent that it was for.
    pub agent_id: String,
    /// How.
    pub termination: Termination,
    /// When.
    pub ended_at: Timestamp,
    /// How many turns there are.
    pub turns: u64,
}

/// How a run of a client ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Termination {
    /// The client says how.
    Outcome {
        /// In one word.
        status: OutcomeStatus,
        /// In its own words.
        outcome: Outcome,
    },
    /// Nobody said so: the client or the daemon went away.
    Incomplete,
    /// It was cancelled.
    Cancelled,
}

impl Termination {
    /// In one word: `success`, `incomplete`.
    pub fn word(&self) -> String {
        let word = match self {
            Termination::Outcome { status, .. } => status.as_str(),
            Termination::Incomplete => "incomplete",
            Termination::Cancelled => "cancelled",
        };
        word.to_owned()
    }
}

/// How it went, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    /// All of it is done.
    Success,
    /// Some of it is done.
    PartialSuccess,
    /// The agent sees no way.
    GiveUp,
    /// There was no more time.
    Timeout,
    /// It went wrong.
    Failure,
    /// It is over; nobody says how it went.
    Done,
}

impl OutcomeStatus {
    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            OutcomeStatus::Success => "success",
            OutcomeStatus::PartialSuccess => "partial_success",
            OutcomeStatus::GiveUp => "give_up",
            OutcomeStatus::Timeout => "timeout",
            OutcomeStatus::Failure => "failure",
            OutcomeStatus::Done => "done",
        }
    }
}

/// What the client says about the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// In one word.
    pub status: OutcomeStatus,
    /// In a few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// What speaks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Value>,
    /// Numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Value>,
}

/// Data of `turn`: one action, or what a client reports as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Its place among the turns of the run, from 0. Given by the daemon, whatever a client says.
    #[serde(default)]
    pub index: u64,
    /// What an agent was told to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The tool that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// With what.
    #[serde(default)]
    pub parameters: Value,
    /// What came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How a command line ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cli_outcome: Option<CliOutcome>,
    /// What a check said.
    #[serde(default)]
    pub verifier_verdict: VerifierVerdict,
    /// The policy refused it; the tool was not called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_rejected: Option<PolicyRejected>,
    /// The action of the proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_id: Option<String>,
    /// The proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal_id: Option<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How often it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TurnStatus>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Members that were too long to be kept whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub truncated: Vec<String>,
}

/// How a command line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CliOutcome {
    /// By itself.
    Exited {
        /// Its exit code.
        code: i64,
    },
    /// By a signal.
    Killed,
    /// Its time was up.
    Timeout,
}

/// What a check said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifierVerdict {
    /// Good.
    Pass,
    /// Not good.
    Fail,
    /// There was none.
    #[default]
    NotRun,
}

/// Which rule refused an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRejected {
    /// Its name, or its file, line and text.
    pub rule: String,
    /// The parameter that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}

/// What became of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// It was done.
    Succeeded,
    /// It was tried, and went wrong.
    Failed,
    /// It was not let through.
    Rejected,
    /// Something before it went wrong.
    Skipped,
    /// Somebody cancelled it.
    Cancelled,
    /// There was no answer in time.
    TimedOut,
    /// Whoever was to do it went away; nobody knows how far it came.
    Interrupted,
}

/// Data of `action_started`: written before a tool is called, so that a call without an end is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActionStarted {
    /// The proposal.
    pub proposal_id: String,
    /// The action.
    pub action_id: String,
    /// The tool.
    pub tool: String,
    /// With what.
    pub parameters: Value,
    /// From 1.
    pub attempt: u32,
    /// Who made the proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What the client sent with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
}

/// Data of `tool_asked`: an action waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolAsked {
    /// What an answer is addressed to.
    pub id: String,
    /// The proposal.
    pub proposal_id: String,
    /// The action.
    pub action_id: String,
    /// The tool.
    pub tool: String,
    /// With what.
    pub parameters: Value,
    /// The hash of exactly that, before anything was hidden.
    pub action: Digest,
    /// The rule that asks.
    pub rule: String,
    /// When it becomes a deny.
    pub deadline: Timestamp,
}

/// Data of `tool_answered`: the question is closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolAnswered {
    /// The question.
    pub id: String,
    /// The hash of the action that was decided on.
    pub action: Digest,
    /// What was decided.
    pub decision: ApprovalDecision,
    /// Whether the same action is not asked about again in this run.
    pub remembered: bool,
    /// Who, or what, closed it.
    pub by: AnsweredBy,
}

/// Who, or what, closed a question of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "through", rename_all = "snake_case")]
pub enum AnsweredBy {
    /// A person, over this connection.
    Person {
        /// The connection.
        client_id: String,
        /// Its process, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// Nobody, in time.
    Timeout,
    /// Nobody: the action was cancelled, or its client went away.
    Withdrawn,
}

impl AnsweredBy {
    /// Whether a person has decided.
    pub fn is_person(&self) -> bool {
        matches!(self, AnsweredBy::Person { .. })
    }
}
