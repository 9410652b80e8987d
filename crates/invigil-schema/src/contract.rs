//! Outcome contracts: what is to be checked, and what came of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, RunId};

/// What "done" means: a set of checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// For people.
    #[serde(default)]
    pub description: String,
    /// All of them must pass.
    #[serde(default)]
    pub checks: Vec<Check>,
}

/// One command, and what is expected of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Names it within its contract.
    pub name: String,
    /// For `sh -c`.
    pub command: String,
    /// Whether it must exit with 0.
    #[serde(default = "yes")]
    pub expect_exit_zero: bool,
    /// A text that its output must have.
    #[serde(default)]
    pub output_contains: Option<String>,
    /// How long it may take.
    #[serde(default = "two_minutes")]
    pub timeout_secs: u64,
}

fn yes() -> bool {
    true
}

fn two_minutes() -> u64 {
    Check::TIMEOUT_SECS
}

impl Check {
    /// How long a check may take if nothing is said.
    pub const TIMEOUT_SECS: u64 = 120;
    /// No check takes longer than this.
    pub const LONGEST_SECS: u64 = 3_600;

    /// The text that is expected, if there is one.
    pub fn text(&self) -> Option<&str> {
        self.output_contains
            .as_deref()
            .filter(|text| !text.is_empty())
    }

    /// How long it may take, within bounds.
    pub fn bounded_secs(&self) -> u64 {
        self.timeout_secs.clamp(1, Self::LONGEST_SECS)
    }
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckResult {
    /// Which check.
    pub name: String,
    /// The exit code was as expected, the text was there, the time was not up.
    pub passed: bool,
    /// Absent if it could not run, or a signal ended it.
    pub exit_code: Option<i32>,
    /// The time was up.
    #[serde(default)]
    pub timed_out: bool,
    /// The last 4 KiB of what it printed.
    pub tail: String,
    /// How long it took.
    pub duration_ms: u64,
    /// All that it printed, if that could be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Digest>,
    /// The run with all of its facts, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// When a contract is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Before the agent has done anything.
    Baseline,
    /// On what the agent left.
    Verify,
    /// The same, with the files of the checks that the agent changed as they were before.
    Original,
}

/// Data of `check_started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckStarted {
    /// When.
    pub stage: Stage,
    /// Which round of the agent's work it is about; 0 before the first.
    pub round: u32,
    /// Which one, from 1.
    pub number: u32,
    /// How many there are.
    pub of: u32,
    /// The check.
    pub check: Check,
}

/// Data of `check_completed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckCompleted {
    /// When.
    pub stage: Stage,
    /// Which round of the agent's work it is about; 0 before the first.
    pub round: u32,
    /// What came of it.
    pub result: CheckResult,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_name_and_command_must_be_there() {
        let check: Check = serde_json::from_str(r#"{"name": "a", "command": "b"}"#).unwrap();
        assert!(check.expect_exit_zero && check.text().is_none());
        assert_eq!(check.timeout_secs, 120);
        let bounded = |timeout_secs| {
            Check {
                timeout_secs,
                ..check.clone()
            }
            .bounded_secs()
        };
        assert_eq!((bounded(0), bounded(7), bounded(9_999)), (1, 7, 3_600));
        assert!(serde_json::from_str::<Check>(r#"{"name": "a", "command": "b", "x": 1}"#).is_err());
        assert!(serde_json::from_str::<Check>(r#"{"name": "a"}"#).is_err());
    }
}
