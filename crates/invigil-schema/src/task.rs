//! What the journal of a task holds: an intent, a contract, an agent's work, and what a person made of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::Contract;
use crate::job::TaskId;
use crate::{Digest, OsText, Refused, RunId};

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It has a worktree and no contract yet.
    Created,
    /// A contract was derived; a person has not agreed yet.
    ContractProposed,
    /// It is clear what "done" means.
    ContractConfirmed,
    /// The agent works.
    Running,
    /// Invigil runs the checks.
    Verifying,
    /// The checks are green; a person decides.
    NeedsApproval,
    /// The work is on a branch.
    Merged,
    /// The checks are red, or something went wrong.
    Failed,
    /// Somebody did not want it any more.
    Abandoned,
    /// The checks are green without a change.
    Reported,
}

impl TaskState {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Created => "created",
            TaskState::ContractProposed => "contract_proposed",
            TaskState::ContractConfirmed => "contract_confirmed",
            TaskState::Running => "running",
            TaskState::Verifying => "verifying",
            TaskState::NeedsApproval => "needs_approval",
            TaskState::Merged => "merged",
            TaskState::Failed => "failed",
            TaskState::Abandoned => "abandoned",
            TaskState::Reported => "reported",
        }
    }

    /// Whether nothing happens any more.
    pub fn is_over(self) -> bool {
        matches!(
            self,
            TaskState::Merged | TaskState::Failed | TaskState::Abandoned | TaskState::Reported
        )
    }

    /// Whether it waits for a person, and for no process.
    pub fn waits(self) -> bool {
        matches!(self, TaskState::ContractProposed | TaskState::NeedsApproval)
    }
}

/// Data of `task_started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStarted {
    /// The task.
    pub task_id: TaskId,
    /// What the person wants.
    pub intent: String,
    /// The person's repository.
    pub repository: OsText,
    /// The commit that the work begins with.
    pub base: String,
    /// Where the work happens.
    pub worktree: OsText,
    /// The agent's command.
    pub agent: Vec<OsText>,
    /// Whose it is, if a client of the daemon began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How often red checks go back to the agent.
    pub max_rounds: u32,
    /// What the person should know of the repository.
    pub notes: Vec<String>,
}

/// Data of `task_contract`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskContract {
    /// What "done" means.
    pub contract: Contract,
    /// Whether a model has written it.
    pub derived: bool,
    /// Whether a person has agreed, or the client that began the task.
    pub confirmed: bool,
}

/// Data of `task_changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskChanged {
    /// How it stands now.
    pub state: TaskState,
    /// The round of the agent's work, from 1; 0 before.
    pub round: u32,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Data of `task_ran`: the agent's work of one round is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRan {
    /// Which round.
    pub round: u32,
    /// The run with all of its facts.
    pub run: RunId,
    /// The exit code, if there is one.
    pub exit_code: Option<i32>,
    /// How it ended, if it did not by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What was refused, as far as it is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// How many processes there were.
    pub processes: u64,
    /// How many it left running, which were killed.
    #[serde(default)]
    pub left_running: u64,
    /// Addresses that it reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reached: Vec<String>,
    /// How long it took.
    pub duration_ms: u64,
}

/// Data of `task_proposed`: what a person is asked to approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskProposed {
    /// Of everything below that becomes yours: an approval is bound to it.
    pub digest: Digest,
    /// The commit that would be delivered.
    pub commit: String,
    /// Its tree.
    pub tree: String,
    /// The patch from the base to it, as a blob.
    pub patch: Digest,
    /// Which files it changes.
    pub files: Vec<OsText>,
    /// The commits of the agent that are delivered too, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<String>,
    /// Files of the checks that were changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edited_checks: Vec<OsText>,
    /// What the person should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Data of `task_answered`: what was said to what was proposed. Only a person approves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskAnswered {
    /// Whether it is to be delivered.
    pub approved: bool,
    /// The digest of what was shown to them.
    pub digest: Digest,
    /// What they want to be done instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The user id.
    pub uid: u32,
}

/// Data of `task_ended`: the last record of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskEnded {
    /// How.
    pub state: TaskState,
    /// In one sentence, for people.
    pub verdict: String,
    /// Where the work is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Which commit that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}
