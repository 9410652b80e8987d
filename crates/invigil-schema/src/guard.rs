//! What limits a run by decisions: the policy in force, and who sees to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, OsText};

/// What a policy means for a run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is refused but harm to Invigil itself.
    Observe,
    /// The policy is enforced, and may ask.
    Guard,
    /// What no rule allows is refused, and nobody is asked.
    Strict,
}

impl Mode {
    /// The name in the journal and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Observe => "observe",
            Mode::Guard => "guard",
            Mode::Strict => "strict",
        }
    }
}

/// A line of a policy file that decided something.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct RulePlace {
    /// The name of the file.
    pub file: String,
    /// Its line, from 1.
    pub line: u64,
    /// Its column in characters, from 1.
    pub column: u64,
    /// What it says about what it matches: `deny`, `ask`.
    pub decision: String,
    /// What it matches, in the words of the file.
    pub text: String,
    /// Why, in the words of its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What would have been allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
}

/// Data of `policy_loaded`: what decides in this run. The texts are blobs, so that decisions can be made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyLoaded {
    /// What the policy means for the run.
    pub mode: Mode,
    /// The files, in the order in which they stack.
    pub sources: Vec<PolicySource>,
    /// What the variables of the files stand for.
    pub places: PolicyPlaces,
    /// Programs that are refused whatever their arguments, as they were found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_programs: Vec<DeniedProgram>,
    /// The names of variables that were kept from the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_withheld: Vec<OsText>,
}

/// A policy file as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicySource {
    /// Its name, as people see it.
    pub name: String,
    /// Whose it is: `builtin`, `user`, `project`, `command_line`.
    pub layer: String,
    /// The digest of its text, which is the name of a blob.
    pub sha256: Digest,
}

/// What the variables of policy files stand for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyPlaces {
    /// `~` and `${home}`.
    pub home: OsText,
    /// `${workspace}`.
    pub workspace: OsText,
    /// `${tmp}`.
    pub tmp: OsText,
    /// Where programs are looked for.
    pub path: Vec<OsText>,
}

/// A program that is refused whatever its arguments, under any name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeniedProgram {
    /// Where it is.
    pub path: OsText,
    /// Its digest, where it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
}

/// Data of `policy_enforced`: who sees to it that the policy holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyEnforced {
    /// Each part of the policy that can refuse something.
    pub parts: Vec<Enforced>,
}

/// How one part of a policy is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enforced {
    /// Which part: `files.read`, `files.write`, `programs`, `network`, `network.names`, `unix`.
    pub part: String,
    /// How far it goes.
    pub strength: Strength,
    /// Who does it, or what is missing.
    pub by: String,
}

/// How far the enforcement of a part of a policy goes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Strength {
    /// Not at all.
    None,
    /// It can be got around by somebody who tries to.
    Advisory,
    /// What is decided is what happens.
    Full,
}
