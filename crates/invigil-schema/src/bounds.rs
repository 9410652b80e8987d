//! What bounds a run: the floor that the kernel holds under it, and its limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OsText;

/// What the kernel itself refuses to a confined run, whatever anybody else says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Floor {
    /// The version of Landlock in force; absent if the kernel has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// The rights that Landlock decides on: `fs.write_file`, `net.connect_tcp`, `scope.signal` and so on.
    pub handled: Vec<String>,
    /// The rights that were asked for and that this kernel cannot decide on.
    pub not_handled: Vec<String>,
    /// Roots that were asked for and are not there, so that nothing is allowed below them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_roots: Vec<OsText>,
    /// The capabilities that the command was left with: `cap_chown` and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

/// What is limited.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Processor time of the whole tree, in microseconds.
    Cpu,
    /// Memory of the whole tree, in bytes.
    Memory,
    /// Processes alive at once.
    Processes,
    /// The size of one file, in bytes.
    FileSize,
}

impl LimitKind {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            LimitKind::Cpu => "cpu",
            LimitKind::Memory => "memory",
            LimitKind::Processes => "processes",
            LimitKind::FileSize => "file_size",
        }
    }
}

/// Who sees to it that a limit is kept.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EnforcedBy {
    /// The kernel, for the whole tree.
    Cgroup,
    /// The kernel, for each process.
    Rlimit,
    /// The observer, at each birth of a process.
    Observer,
    /// A look from time to time: it can be exceeded for a moment.
    Sampled,
}

impl EnforcedBy {
    /// The name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            EnforcedBy::Cgroup => "cgroup",
            EnforcedBy::Rlimit => "rlimit",
            EnforcedBy::Observer => "observer",
            EnforcedBy::Sampled => "sampled",
        }
    }
}

/// A limit in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Limited {
    /// What is limited.
    pub what: LimitKind,
    /// How much there may be, in the unit of `what`.
    pub limit: u64,
    /// Who sees to it.
    pub by: EnforcedBy,
}
