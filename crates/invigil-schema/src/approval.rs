//! Questions that a policy leaves to a person, and the answers: as events, and as the files through which they travel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Address, Digest, FileOpKind, NetOpKind, OpenFlag, OsText, ProcessRef, RunId, Timestamp,
};

/// Data of `approval_requested`: a call waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalRequested {
    /// What an answer is addressed to; unique in the run.
    pub id: String,
    /// Who waits.
    pub process: ProcessRef,
    /// What would happen.
    pub what: Asked,
    /// The hash of exactly that, before anything was hidden.
    pub action: Digest,
    /// The rule that asks: file, line and text.
    pub rule: String,
    /// Why it asks, in the words of its author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it becomes a deny.
    pub deadline: Timestamp,
}

/// What would happen if it were allowed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Asked {
    /// A program is loaded.
    Exec {
        /// The file, all links followed.
        program: OsText,
        /// Its arguments, its own name first.
        argv: Vec<OsText>,
        /// Where.
        cwd: OsText,
    },
    /// Something is done to a file.
    File {
        /// What.
        op: FileOpKind,
        /// To which.
        path: OsText,
        /// The second path of `rename` and `link`, the text of `symlink`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<OsText>,
        /// How an open is asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        flags: Vec<OpenFlag>,
        /// More of the arguments, where a call has them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<OsText>,
    },
    /// Something is done on the network.
    Net {
        /// What.
        op: NetOpKind,
        /// With which address.
        address: Address,
    },
}

/// Data of `approval_answered`: a question is closed. The origin is `user` where a person has decided, and `runtime`
/// where nobody has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalAnswered {
    /// The question.
    pub id: String,
    /// The hash of the action that was decided on.
    pub action: Digest,
    /// What was decided.
    pub decision: ApprovalDecision,
    /// For how long; only of what was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ApprovalScope>,
    /// Who, or what, closed it.
    pub by: ApprovalBy,
    /// Why, in the words of whoever decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The rule that was added to the user's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedRule>,
    /// Why no rule was added although one was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_added: Option<String>,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalDecision {
    /// It may happen.
    Allow,
    /// It may not.
    Deny,
}

/// For how long something is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// This call.
    Once,
    /// The same action in this run.
    Run,
    /// The same action in every run: a rule was added to the user's policy.
    Always,
}

/// Who, or what, closed a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "through", rename_all = "snake_case")]
pub enum ApprovalBy {
    /// Somebody at the terminal of the run.
    Terminal {
        /// The user that the supervisor runs as.
        uid: u32,
    },
    /// Somebody with the command line.
    CommandLine {
        /// The user.
        uid: u32,
        /// The process.
        pid: u32,
    },
    /// The same action was answered for the whole run while this question was open.
    SameAction,
    /// Nobody, in time.
    Timeout,
    /// Nobody: the process that waited is dead, or has become another program.
    ProcessEnded,
    /// Nobody: the run was interrupted while it waited.
    Interrupted,
    /// Nobody: the run is over.
    RunEnded,
    /// Nobody can be asked.
    Nobody,
    /// Nobody was asked: too many questions are open.
    TooMany,
}

impl ApprovalBy {
    /// Whether a person has decided.
    pub fn is_person(self) -> bool {
        matches!(
            self,
            ApprovalBy::Terminal { .. } | ApprovalBy::CommandLine { .. }
        )
    }
}

/// A rule that was added to a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddedRule {
    /// The file.
    pub file: OsText,
    /// The line, from 1.
    pub line: u64,
    /// The text that is new.
    pub text: String,
}

/// Data of `approval_refused`: an answer that cannot count. The question stays open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalRefused {
    /// The question.
    pub id: String,
    /// What is wrong with the answer.
    pub why: String,
}

/// The file that shows an open question to others. It has the exact words, where the journal hides secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuestionFile {
    /// Names this form: [`QuestionFile::SCHEMA`].
    pub schema: String,
    /// The run.
    pub run_id: RunId,
    /// Its record in the journal.
    pub seq: u64,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// The question.
    pub question: ApprovalRequested,
}

impl QuestionFile {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.approval.question.v1";
}

/// The file that carries an answer to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerFile {
    /// Names this form: [`AnswerFile::SCHEMA`].
    pub schema: String,
    /// The run.
    pub run_id: RunId,
    /// The question.
    pub id: String,
    /// The hash of the action that was shown.
    pub action: Digest,
    /// What was decided.
    pub decision: ApprovalDecision,
    /// For how long; only of what is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ApprovalScope>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The user that answers.
    pub uid: u32,
    /// The process that answers.
    pub pid: u32,
}

impl AnswerFile {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.approval.answer.v1";
}
