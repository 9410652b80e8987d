//! The document of [`Claims`](super::Claims): what was said, what was seen of it, and which is which.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the agent said of its work, beside what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimsDoc {
    /// Names this form: [`ClaimsDoc::SCHEMA`].
    pub schema: String,
    /// The claims that were understood, in the order in which they were made.
    pub claims: Vec<JudgedClaim>,
    /// How many of them are supported.
    pub supported: u64,
    /// How many are contradicted.
    pub contradicted: u64,
    /// How many cannot be judged.
    pub unsupported: u64,
    /// How many more there are than are listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

impl ClaimsDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.claims.v1";
}

/// One claim, and what is to be held of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JudgedClaim {
    /// Where it was made.
    pub said: Said,
    /// What it says.
    pub claim: Claimed,
    /// What is to be held of it.
    pub finding: Finding,
    /// Why, for people.
    pub because: String,
    /// The numbers of the records that say so, oldest first, as far as they are listed.
    pub events: Vec<u64>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_events: u64,
}

/// Where a claim was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Said {
    /// The record in which the agent's framework reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The file in which it stands, if it is not from the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in the text, from 1.
    pub line: u64,
    /// The sentence, or the tool's result, in short.
    pub text: String,
}

/// What is claimed.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Claimed {
    /// The tests pass.
    TestsPass,
    /// A command was run.
    Ran {
        /// As it was said.
        command: String,
    },
    /// A file was made.
    Created {
        /// As it was said.
        path: String,
    },
    /// A file was changed.
    Changed {
        /// As it was said.
        path: String,
    },
    /// A file was removed.
    Deleted {
        /// As it was said.
        path: String,
    },
    /// A file, or everything in a directory, was left alone.
    Untouched {
        /// As it was said.
        path: String,
    },
    /// Nothing else was changed.
    OnlyTouched {
        /// As it was said.
        paths: Vec<String>,
    },
    /// There was no traffic on the network.
    NoNetwork,
    /// A tool did what its result says.
    ToolResult {
        /// The tool.
        tool: String,
        /// The call.
        tool_call_id: String,
        /// What it is said to have done.
        did: ToolDid,
    },
}

/// What the framework says a tool has done.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum ToolDid {
    /// It ran a command, which ended like this.
    Command {
        /// The command.
        command: String,
        /// Its exit code, where one was reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i64>,
        /// Whether it is said to have gone well, where that was reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ok: Option<bool>,
    },
    /// It changed a file.
    Write {
        /// The file.
        path: String,
        /// Whether it is said to have gone well, where that was reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ok: Option<bool>,
    },
}

/// What is to be held of a claim.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// What was seen says the opposite.
    Contradicted,
    /// What was seen says neither.
    Unsupported,
    /// What was seen says so.
    Supported,
}

impl Finding {
    /// The word in the document.
    pub fn as_str(self) -> &'static str {
        match self {
            Finding::Contradicted => "contradicted",
            Finding::Unsupported => "unsupported",
            Finding::Supported => "supported",
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
