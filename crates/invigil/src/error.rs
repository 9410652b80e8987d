//! Errors of the command line, and the exit code of each.

use std::io;
use std::path::PathBuf;

use invigil_audit::IgnoreError;
use invigil_engine::contracts::{DeriveError, Flaw, GenerateError};
use invigil_engine::{
    ApprovalError, EvidenceError, ExecError, ForkError, LearnError, RedecideError, RunError,
    SpecError, StepsError, TaskError, TelemetryError,
};
use invigil_journal::{Error as JournalError, IndexError, StoreError};
use invigil_policy::{PROFILES, PolicyError};
use invigil_schema::{ExitCode, JobId, RunId, RunIdError, SessionId, TaskId};
use invigil_server::{ClientError, ServeError};

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
    #[error(
        "replay is a screen, and there is no terminal to show it in: `invigil show {0} --events` prints the records, `invigil report {0}` writes a page"
    )]
    NoTerminal(RunId),
    #[error("the terminal: {0}")]
    Screen(#[source] io::Error),
    #[error("{} exists already: choose another name with -o, or replace it with --force", _0.display())]
    ReportExists(PathBuf),
    #[error("cannot write the report {}: {source}", path.display())]
    ReportOut { path: PathBuf, source: io::Error },
    #[error("--at {at}: the journal ends at record {end}")]
    NotThatFar { at: u64, end: u64 },
    #[error("{path}: {why}", path = path.display())]
    SessionLog { path: PathBuf, why: String },
    #[error(transparent)]
    Redecide(#[from] RedecideError),
    #[error("--decisions looks into the store where a run was recorded, and this is an archive")]
    OnlyRuns,
    #[error(transparent)]
    Fork(#[from] ForkError),
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
    #[error("{}", ui::harmless_lines(&.0.report()))]
    Policy(#[from] PolicyError),
    #[error("cannot read the policy {}: {source}; name a file that is there", path.display())]
    PolicyFile { path: PathBuf, source: io::Error },
    #[error("there is no profile `{0}`; profiles are {all}", all = PROFILES.join(", "))]
    NoProfile(String),
    #[error("--mode observe enforces no policy: leave it out, or leave out --policy and --profile")]
    ObserveWithPolicy,
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("cannot write the policy {}: {source}", path.display())]
    PolicyOut { path: PathBuf, source: io::Error },
    #[error("`{0}` is not an address; write HOST:PORT, ADDRESS:PORT or [ADDRESS]:PORT")]
    NotAnAddress(String),
    #[error("parameters are JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("no daemon can be reached in {}: {source}; `invigil serve` starts one", home.display())]
    NoDaemon { home: PathBuf, source: ClientError },
    #[error("cannot read the token {}: {source}; is a daemon running?", path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error("the daemon: {0}")]
    Client(#[from] ClientError),
    #[error("{0} is for questions of runs; this one is of a host of the daemon: leave it out")]
    OnlyRuns(&'static str),
    #[error("the current directory is gone: {0}; go to another one")]
    NoCwd(#[source] io::Error),
    #[error("cannot write the result to {}: {source}", path.display())]
    Status { path: PathBuf, source: io::Error },
    #[error("{} is in the store, which holds runs and nothing else: choose another place with -o", _0.display())]
    InStore(PathBuf),
    #[error("{}", ui::harmless_lines(&.0.to_string()))]
    Exec(Box<ExecError>),
    #[error("the arguments are not JSON: {0}; quote them: '{{\"path\": \"x\"}}'")]
    BadArguments(#[source] serde_json::Error),
    #[error("there is no job {0:?}; `invigil jobs` lists them")]
    NoJob(String),
    #[error("{prefix:?} begins several jobs: {}", some.iter().map(JobId::as_str).collect::<Vec<_>>().join(", "))]
    ManyJobs { prefix: String, some: Vec<JobId> },
    #[error("the arguments are longer than 32 MiB")]
    LargeArguments,
    #[error("job {0} has not ended yet")]
    StillOpen(JobId),
    #[error("job {0} has no end, and its process is gone; `invigil recover` gives it one")]
    Abandoned(JobId),
    #[error("there is no session {0}; `invigil session list` shows them")]
    NoSession(SessionId),
    #[error("{}: {source}", path.display())]
    Steps { path: PathBuf, source: StepsError },
    #[error("cannot read {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot find this program to start a worker: {0}")]
    NoProgram(#[source] io::Error),
    #[error("{} is no contract:\n{}", path.display(), ui::harmless_lines(&list(flaws)))]
    Contract { path: PathBuf, flaws: Vec<Flaw> },
    #[error("who shall write the contract? --model-cmd CMD, --openai URL or --anthropic")]
    NoModel,
    #[error("{}", ui::harmless(&.0.to_string()))]
    Generate(#[from] GenerateError),
    #[error("{}", ui::harmless(&.0.to_string()))]
    Derive(#[from] DeriveError),
    #[error("{}", ui::harmless_lines(&.0.to_string()))]
    Task(Box<TaskError>),
    #[error(
        "there is no terminal to show it in: look at `invigil task show {0}` and give the digest that it prints with --digest"
    )]
    NoDigest(TaskId),
    #[error("it was cancelled")]
    Cancelled,
    #[error("the kernel gives no random numbers: {0}")]
    Random(#[source] io::Error),
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
            CliError::StillOpen(_) => ExitCode::Timeout,
            CliError::Derive(_) | CliError::Cancelled => ExitCode::No,
            CliError::Task(error) => match **error {
                TaskError::Changed(_) | TaskError::Digest { .. } => ExitCode::No,
                _ => ExitCode::Invigil,
            },
            CliError::Store(_)
            | CliError::Journal(_)
            | CliError::RunId(_)
            | CliError::NoHome
            | CliError::Abandoned(_)
            | CliError::LargeArguments
            | CliError::BeyondEnd { .. }
            | CliError::NoTerminal(_)
            | CliError::Screen(_)
            | CliError::ReportExists(_)
            | CliError::ReportOut { .. }
            | CliError::NotThatFar { .. }
            | CliError::SessionLog { .. }
            | CliError::Redecide(_)
            | CliError::OnlyRuns
            | CliError::Fork(_)
            | CliError::Signals(_)
            | CliError::Spec(_)
            | CliError::Run(_)
            | CliError::OnlyArchives
            | CliError::Evidence(_)
            | CliError::Approval(_)
            | CliError::Ignore(_)
            | CliError::Policy(_)
            | CliError::PolicyFile { .. }
            | CliError::NoProfile(_)
            | CliError::ObserveWithPolicy
            | CliError::Learn(_)
            | CliError::Telemetry(_)
            | CliError::PolicyOut { .. }
            | CliError::NotAnAddress(_)
            | CliError::NotJson(_)
            | CliError::Serve(_)
            | CliError::NoDaemon { .. }
            | CliError::Token { .. }
            | CliError::Client(_)
            | CliError::OnlyRuns(_)
            | CliError::NoCwd(_)
            | CliError::Status { .. }
            | CliError::InStore(_)
            | CliError::Exec(_)
            | CliError::BadArguments(_)
            | CliError::NoJob(_)
            | CliError::ManyJobs { .. }
            | CliError::NoSession(_)
            | CliError::Steps { .. }
            | CliError::File { .. }
            | CliError::NoProgram(_)
            | CliError::Contract { .. }
            | CliError::NoModel
            | CliError::NoDigest(_)
            | CliError::Generate(_)
            | CliError::Random(_)
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

fn list(flaws: &[Flaw]) -> String {
    let lines: Vec<String> = flaws.iter().map(|flaw| format!("  {flaw}")).collect();
    lines.join("\n")
}

impl From<TaskError> for CliError {
    fn from(error: TaskError) -> Self {
        CliError::Task(Box::new(error))
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
