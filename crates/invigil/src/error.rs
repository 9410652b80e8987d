//! Errors of the command line, and the exit code of each.

use std::io;
use std::path::PathBuf;

use invigil_audit::IgnoreError;
use invigil_engine::{ApprovalError, EvidenceError, RunError, SpecError};
use invigil_journal::{Error as JournalError, IndexError, StoreError};
use invigil_schema::{ExitCode, RunIdError};

use crate::ui;

/// Everything that ends a command early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    RunId(#[from] RunIdError),
    #[error("nowhere to keep runs: set INVIGIL_HOME, or HOME, or use --home DIR")]
    NoHome,
    #[error("--from {from}: the journal ends at record {end}")]
    BeyondEnd { from: u64, end: u64 },
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("--sha256 is the digest of an archive, and this is none: use --head for a run")]
    OnlyArchives,
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    #[error(transparent)]
    Approval(#[from] ApprovalError),
    #[error(transparent)]
    Ignore(#[from] IgnoreError),
    #[error("cannot read the policy {}: {source}", path.display())]
    Policy { path: PathBuf, source: io::Error },
    #[error("{0}")]
    BadPolicy(String),
    #[error("the current directory is gone: {0}; go to another one")]
    NoCwd(#[source] io::Error),
    #[error("cannot write the result to {}: {source}", path.display())]
    Status { path: PathBuf, source: io::Error },
    /// Whoever read our output has gone; that is not our failure.
    #[error("the output was closed")]
    OutputClosed,
    #[error("cannot write the output: {0}")]
    Output(#[source] io::Error),
}

impl CliError {
    fn code(&self) -> ExitCode {
        match self {
            CliError::OutputClosed => ExitCode::Success,
            CliError::Store(_)
            | CliError::Journal(_)
            | CliError::RunId(_)
            | CliError::NoHome
            | CliError::BeyondEnd { .. }
            | CliError::Signals(_)
            | CliError::Spec(_)
            | CliError::Run(_)
            | CliError::OnlyArchives
            | CliError::Evidence(_)
            | CliError::Approval(_)
            | CliError::Ignore(_)
            | CliError::Policy { .. }
            | CliError::BadPolicy(_)
            | CliError::NoCwd(_)
            | CliError::Status { .. }
            | CliError::Output(_) => ExitCode::Invigil,
        }
    }

    /// Tells the person and gives the exit code.
    pub(crate) fn report(&self) -> std::process::ExitCode {
        if !matches!(self, CliError::OutputClosed) {
            ui::error(&self.to_string());
        }
        std::process::ExitCode::from(u8::from(self.code()))
    }
}

impl From<IndexError> for CliError {
    fn from(error: IndexError) -> Self {
        CliError::Store(error.into())
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::OutputClosed,
            _ => CliError::Output(error),
        }
    }
}
