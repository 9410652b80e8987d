//! What goes in and what comes out: what an agent asks for, what became of it, and why there is no job at all.

use std::io;
use std::path::PathBuf;

use invigil_journal::{Error as JournalError, IndexError, StoreError};
use invigil_schema::{JobId, RunId, SessionId, Snapshot, Spawned, StepRef};
use serde::Serialize;
use serde_json::Value;

use super::{SessionError, UndoError};
use crate::capabilities::Unknown;
use crate::telemetry::TelemetryError;

/// What an agent asks for.
#[derive(Debug, Clone, Default)]
pub struct JobSpec {
    /// The name of a capability.
    pub capability: String,
    /// What it is told.
    pub arguments: Value,
    /// Nothing may be changed.
    pub dry_run: bool,
    /// The session that it belongs to.
    pub session: Option<SessionId>,
    /// The step of the session's file that it is.
    pub step: Option<StepRef>,
    /// Further trees that it may use.
    pub allow: Vec<PathBuf>,
    /// Whether it is not to be done where this machine cannot bound it fully.
    pub strict: bool,
    /// Whether all that a program prints is kept.
    pub keep_output: bool,
}

/// What became of a job.
#[derive(Debug, Clone, Serialize)]
pub struct JobResult {
    /// The job.
    pub job_id: JobId,
    /// What was asked for.
    pub capability: String,
    /// Whether it was done.
    pub success: bool,
    /// How it ended.
    pub state: JobOutcome,
    /// What it gave.
    pub output: GivenOutput,
    /// The machine before.
    pub before: Snapshot,
    /// The machine after.
    pub after: Snapshot,
    /// The processes that it started.
    pub spawned: Vec<Spawned>,
    /// What this machine could not give.
    pub degraded: Vec<String>,
    /// The run with all of its facts, if a program did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The number of its last record.
    pub seq: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What else went wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// It was done.
    Completed,
    /// Its arguments are wrong.
    Invalid,
    /// It could not be done.
    Failed,
    /// The policy did not let it.
    Denied,
    /// Its time was up.
    TimedOut,
    /// Somebody did not want it any more.
    Cancelled,
}

/// What a job gave.
#[derive(Debug, Clone, Serialize)]
pub struct GivenOutput {
    /// Whether it was done.
    pub success: bool,
    /// The result.
    pub data: Value,
    /// The same for people, or why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why there is no job.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such capability.
    #[error("{0}; `invigil capabilities` lists them")]
    Unknown(#[from] Unknown),
    /// The machine is too busy.
    #[error("{why}; INVIGIL_GUARD=off switches this guard off")]
    Busy {
        /// Which figure is past its threshold.
        why: String,
    },
    /// A directory that cannot be used.
    #[error("cannot use the directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The session takes no jobs.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is nothing to take back.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// The machine's figures cannot be read.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// There is no randomness to hide secrets with.
    #[error("the kernel gives no random numbers: {0}")]
    Key(#[source] io::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index of jobs.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The files of the store that say who lives.
    #[error("cannot use the store: {0}")]
    Owner(#[source] io::Error),
    /// The arguments are too large for a record, and cannot be kept beside it.
    #[error("the arguments cannot be kept: {0}")]
    Arguments(String),
    /// The journal of jobs cannot be written.
    #[error("the job cannot be recorded: {0}")]
    Journal(#[from] JournalError),
    /// A policy file is wrong.
    #[error("{0}")]
    Policy(String),
}
