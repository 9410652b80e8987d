//! What a sandbox must enforce: the outer bound of everything that a policy could allow.
//!
//! A bound is never tighter than the policy. It is the floor that holds even where a single decision could be raced.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use globset::GlobSet;
use serde::Serialize;

/// The outer bound of a policy. `None` is: no bound.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Whether every open for reading must be judged: a rule or a default can refuse one.
    pub reads: bool,
    /// Whether every load of a program must be judged.
    pub execs: bool,
    /// Whether every use of the network must be judged.
    pub network: bool,
    /// Whether every use of a Unix socket must be judged.
    pub unix: bool,
    /// Files and directories outside of which nothing can be read.
    pub read_roots: Option<Vec<PathBuf>>,
    /// Files and directories outside of which nothing can be written.
    pub write_roots: Option<Vec<PathBuf>>,
    /// What can be executed.
    pub exec_roots: Option<ExecRoots>,
    /// TCP ports outside of which nothing can be connected or bound. Empty: no network at all but Unix sockets.
    pub ports: Option<Vec<RangeInclusive<u16>>>,
    /// Whether rules name hosts, so that names must be known for them to hold.
    pub names: bool,
    /// Programs that are denied whatever their arguments: look each one up, keep its digest, and refuse to read its file.
    /// A later file may have overruled one; [`crate::Policy::verdict`] on what was found has the last word.
    pub denied_programs: Vec<ProgramPattern>,
    /// Which variables reach the command.
    pub env: Option<EnvFilter>,
    /// How much may be used.
    pub budget: Budget,
}

impl Bounds {
    /// Whether there is no network but Unix sockets.
    pub fn network_off(&self) -> bool {
        self.ports.as_ref().is_some_and(Vec::is_empty)
    }
}

/// What can be executed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExecRoots {
    /// Files and directories.
    pub roots: Vec<PathBuf>,
    /// Bare names, to be looked up in `PATH`. Their loader and their interpreter are needed too.
    pub names: Vec<String>,
}

/// How a rule names programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramPattern {
    /// By the last part of its path: `git`.
    Name(String),
    /// By its path.
    Path(PathBuf),
    /// By a glob over its path, or over its name if there is no slash.
    Glob(String),
}

/// Which variables reach the command.
#[derive(Debug, Clone)]
pub struct EnvFilter {
    /// A name must be in each of these.
    pub(crate) lists: Vec<GlobSet>,
}

impl EnvFilter {
    /// Whether a variable of this name reaches the command.
    pub fn passes(&self, name: &[u8]) -> bool {
        let name = globset::Candidate::from_bytes(name);
        self.lists.iter().all(|list| list.is_match_candidate(&name))
    }
}

/// How much may be used. `None` is: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// From start to end.
    pub wall: Option<Duration>,
    /// Time on processors, of all processes together.
    pub cpu: Option<Duration>,
    /// Bytes of memory, of all processes together.
    pub memory: Option<u64>,
    /// Processes at one time.
    pub processes: Option<u64>,
    /// Bytes on standard output and standard error together.
    pub output: Option<u64>,
    /// Bytes of one file.
    pub file_size: Option<u64>,
    /// Calls of tools.
    pub tool_calls: Option<u64>,
}
