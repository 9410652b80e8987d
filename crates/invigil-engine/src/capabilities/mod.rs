//! Capabilities: the well-defined acts that an agent may ask for, one file each.
//!
//! This is the code that runs in a worker. It validates, it computes, it announces each change before it makes it, and
//! it makes the change so that a race is noticed. It starts no worker, keeps no journal and knows no policy.

mod arguments;
mod change;
pub(crate) mod entry;
mod file_delete;
mod file_edit;
mod file_list;
mod file_read;
mod file_write;
pub(crate) mod git;
pub(crate) mod ignored;
mod kill;
mod registry;
mod roots;
mod search;
mod shell;
mod sweep;
mod undo;
pub(crate) mod walk;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use invigil_schema::{Digest, JobId, Kept};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use change::temporary_prefix;
pub use registry::{AnyCapability, Duplicate, Registry, Unknown};
pub use roots::{Place, Roots};
pub(crate) use sweep::sweep;

/// How long a capability may take if nothing is said.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a capability may be told to take.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// One thing that an agent may ask for.
pub trait Capability: Send + Sync + 'static {
    /// What it is told. Unknown fields are refused; doc comments become the descriptions of the schema.
    type Args: DeserializeOwned + JsonSchema;
    /// What it is called.
    const NAME: &'static str;
    /// What it does, for whoever chooses among capabilities.
    const DESCRIPTION: &'static str;

    /// Ranges and combinations that the types do not say. Names the field.
    fn validate(&self, args: &Self::Args) -> Result<(), Invalid>;

    /// How it is carried out; decided in the supervisor, of arguments that are valid.
    fn plan(&self, args: &Self::Args) -> Plan;

    /// Carried out in the worker. Never called for [`Plan::Command`].
    fn execute(&self, args: Self::Args, context: &mut Context<'_>) -> Result<Output, Failure>;
}

/// Arguments that are refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {why}")]
pub struct Invalid {
    /// The field, with its place inside of others, as `env.PATH`.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl Invalid {
    /// A field and what is wrong with it.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Invalid {
            field: field.into(),
            why: why.into(),
        }
    }
}

/// How a capability is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Our own code, in a worker.
    Work(Needs),
    /// A program, watched like any run.
    Command(Command),
}

/// What a worker needs, and gets nothing beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Whether it changes files below the allowed roots.
    pub writes: bool,
    /// The programs that it starts, by name.
    pub programs: &'static [&'static str],
    /// Whether it sends signals to processes other than its own.
    pub signals: bool,
    /// When it is ended.
    pub timeout: Duration,
}

impl Needs {
    /// It looks at files and changes nothing.
    pub const READS: Needs = Needs {
        writes: false,
        programs: &[],
        signals: false,
        timeout: DEFAULT_TIMEOUT,
    };
    /// It changes files.
    pub const WRITES: Needs = Needs {
        writes: true,
        ..Needs::READS
    };

    /// Whether files are all that it needs. Such workers can be had fast.
    pub fn is_plain(&self) -> bool {
        self.programs.is_empty() && !self.signals
    }
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Where it starts, relative to the working directory; there, if nothing is said.
    pub cwd: Option<PathBuf>,
    /// What it reads.
    pub stdin: Vec<u8>,
    /// Variables, besides those that every job gets.
    pub env: BTreeMap<OsString, OsString>,
    /// When it is ended.
    pub timeout: Duration,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The result, an object.
    pub data: Value,
    /// One line for people.
    pub message: Option<String>,
}

impl Output {
    /// A result and nothing more to say.
    pub fn new(data: Value) -> Self {
        Output {
            data,
            message: None,
        }
    }

    /// Adds a line for people.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}

/// Why it could not be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    message: String,
    /// Whether the operating system refused it for want of permission, so that a policy may be the reason.
    pub denied: bool,
    /// What can be said beyond a line, as the conflicts of an undo.
    pub data: Option<Value>,
}

impl Failure {
    /// A failure with its reason.
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            denied: false,
            data: None,
        }
    }

    /// What failed, and what the operating system said.
    pub fn io(what: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Failure {
            message: format!("{what}: {error}"),
            denied: error.kind() == io::ErrorKind::PermissionDenied,
            data: None,
        }
    }

    /// Adds what can be said beyond a line.
    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What a capability works with.
pub struct Context<'a> {
    /// Nothing may be changed; what would happen is told.
    pub dry_run: bool,
    /// The job, after which temporary files are named.
    pub job_id: &'a JobId,
    /// Where relative paths begin. It is the first of the roots.
    pub working_dir: &'a Path,
    /// What may be touched.
    pub roots: &'a Roots,
    /// Where goes what is about to change.
    pub keeper: &'a mut dyn Keeper,
    /// For `undo`: what the job kept, newest first. Empty otherwise.
    pub undo: Vec<Kept>,
}

/// Keeps what is about to change. In a worker it speaks with the supervisor.
pub trait Keeper {
    /// Announces one change: what is there now, what will be there. The content of a regular file is read from
    /// `content` to its end; one whose digest is not that of `kept.before` is refused with `InvalidData`.
    fn keep(&mut self, kept: Kept, content: Option<&mut dyn Read>) -> io::Result<()>;

    /// Returns when everything announced so far is durable. Nothing may be changed before.
    fn settle(&mut self) -> io::Result<()>;

    /// The content that was kept under this digest, by this job or by the one that is undone.
    fn fetch(&mut self, sha256: &Digest, into: &mut dyn Write) -> io::Result<()>;
}
