//! What the commands about jobs have in common: how an executor is made here, and what is said of a result.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use invigil_engine::capabilities::Plan;
use invigil_engine::{
    Asking, Cancel, Engine, ExecError, Executor, JobLimits, JobOutcome, JobResult, JobSpec,
    Registry, ResourceGuard, Setup, Worker,
};
use invigil_journal::{JobRow, Jobs, Store, SystemClock};
use invigil_schema::{ExitCode, JobId, SessionId};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::CliError;
use crate::policies::{gather, places, user_policy};
use crate::ui::{self, BAD, DIM, GOOD, WARN};

/// The argument that makes this program a worker.
pub(crate) const WORKER: &str = "__worker";
/// Arguments have at most so many bytes. A worker is told them in one line, which has room for more.
const LARGEST: u64 = 32 << 20;
/// `off` switches the resource guard off.
const GUARD: &str = "INVIGIL_GUARD";

/// What every command that carries out jobs can be told.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct JobOptions {
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Also allow this directory, besides the current one; may be repeated
    #[arg(long, value_name = "DIR")]
    allow: Vec<PathBuf>,

    /// Stack this policy file upon the bounds of the job; may be repeated
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,

    /// Refuse where this machine cannot bound the job fully
    #[arg(long)]
    strict: bool,

    /// Keep all that a program prints, not only what fits into the result
    #[arg(long)]
    keep_output: bool,
}

impl JobOptions {
    /// A job that is like this, and in this session.
    pub(crate) fn spec(&self, session: Option<SessionId>) -> JobSpec {
        JobSpec {
            dry_run: self.dry_run,
            session,
            allow: self.allow.clone(),
            strict: self.strict,
            keep_output: self.keep_output,
            ..JobSpec::default()
        }
    }

    /// What carries out jobs here.
    pub(crate) fn executor(&self, store: &Store, ahead: Ahead<'_>) -> Result<Executor, CliError> {
        make(store, &self.policy, ahead)
    }
}

/// The engine of this process.
pub(crate) fn engine(store: &Store) -> Result<Engine, CliError> {
    Ok(Engine {
        store: store.clone(),
        clock: Arc::new(SystemClock),
        env: env::vars_os().collect::<BTreeMap<OsString, OsString>>(),
        cwd: env::current_dir().map_err(CliError::NoCwd)?,
        runtime_dir: runtime_dir(),
        writer: WRITER.to_owned(),
    })
}

/// The program and version that records.
pub(crate) const WRITER: &str = concat!("invigil ", env!("CARGO_PKG_VERSION"));

/// Where sockets may be made: a directory of the user's own, where there is one.
fn runtime_dir() -> PathBuf {
    let own = env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_dir());
    own.unwrap_or_else(env::temp_dir)
}

/// What is made before it is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ahead<'a> {
    /// Nothing.
    Nothing,
    /// What this one job needs: a capability and its arguments.
    Job(&'a str, &'a Value),
    /// Workers for many.
    Workers,
}

/// What carries out one job, or few.
pub(crate) fn executor(store: &Store, policies: &[PathBuf]) -> Result<Executor, CliError> {
    make(store, policies, Ahead::Nothing)
}

/// What carries out many: a worker stands ready.
pub(crate) fn lasting_executor(store: &Store, policies: &[PathBuf]) -> Result<Executor, CliError> {
    make(store, policies, Ahead::Workers)
}

fn make(store: &Store, policies: &[PathBuf], ahead: Ahead<'_>) -> Result<Executor, CliError> {
    let registry = Registry::standard();
    let engine = engine(store)?;
    let places = places(&engine.cwd);
    let guard = match env::var_os(GUARD) {
        Some(off) if off == "off" => ResourceGuard::off(),
        _ => ResourceGuard::default(),
    };
    let sources = gather(None, policies, &places)?;
    let setup = Setup {
        nursery: match ahead {
            Ahead::Nothing => false,
            Ahead::Job(capability, arguments) => is_plain(&registry, capability, arguments),
            Ahead::Workers => true,
        },
        spares: matches!(ahead, Ahead::Workers),
        registry,
        worker: worker()?,
        // Nobody sits in front of a job; whoever wants can answer with `invigil approvals`.
        asking: Asking {
            timeout: Duration::from_secs(60),
            policy: Some(user_policy(&sources, &places)),
            ..Asking::default()
        },
        policies: sources,
        places,
        guard,
        limits: JobLimits::default(),
        engine,
    };
    Ok(Executor::new(setup)?)
}

/// Whether a job needs a worker and nothing else.
fn is_plain(registry: &Registry, capability: &str, arguments: &Value) -> bool {
    let found = registry.get(capability).ok();
    let plan = found.and_then(|capability| capability.check(arguments).ok());
    matches!(plan, Some(Plan::Work(needs)) if needs.is_plain())
}

fn worker() -> Result<Worker, CliError> {
    let program = env::current_exe().and_then(fs::canonicalize);
    Ok(Worker {
        program: program.map_err(CliError::NoProgram)?,
        arguments: vec![WORKER.into()],
    })
}

/// Signals that end programs cancel the job instead, so that it has its end on record.
pub(crate) fn cancel_on_signals() -> Result<Cancel, CliError> {
    let cancel = Cancel::new();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(CliError::Signals)?;
    let by_signal = cancel.clone();
    let body = move || {
        for _ in signals.forever() {
            by_signal.cancel();
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(body).map_err(CliError::Signals)?;
    Ok(cancel)
}

/// The exit code of a job.
pub(crate) fn code(state: JobOutcome) -> u8 {
    match state {
        JobOutcome::Completed => ExitCode::Success.into(),
        JobOutcome::Failed => ExitCode::No.into(),
        JobOutcome::Invalid => ExitCode::Invigil.into(),
        JobOutcome::Denied => ExitCode::Policy.into(),
        JobOutcome::TimedOut => ExitCode::Timeout.into(),
        JobOutcome::Cancelled => ExitCode::of_signal(SIGINT),
    }
}

/// Shows a result: as one JSON object, or its data and a line for people.
pub(crate) fn show(result: &JobResult, as_json: bool) -> Result<u8, CliError> {
    let mut out = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut out, result).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(code(result.state));
    }
    if !result.output.data.is_null() {
        let text = serde_json::to_string_pretty(&result.output.data).unwrap_or_default();
        writeln!(out, "{}", ui::harmless_lines(&text))?;
    }
    drop(out);
    for warning in result.degraded.iter().chain(&result.warnings) {
        ui::warning(&ui::harmless(warning));
    }
    ui::say(format_args!("{}", line(result)));
    Ok(code(result.state))
}

/// A result in one line.
pub(crate) fn line(result: &JobResult) -> String {
    let (style, word) = match result.state {
        JobOutcome::Completed => (GOOD, "done"),
        JobOutcome::Failed | JobOutcome::Invalid => (BAD, "failed"),
        JobOutcome::Denied => (BAD, "denied"),
        JobOutcome::TimedOut => (BAD, "time-out"),
        JobOutcome::Cancelled => (WARN, "cancelled"),
    };
    let message = result.output.message.as_deref().map(ui::harmless);
    let message = message.map_or_else(String::new, |message| format!("  {message}"));
    let time = ui::duration(Duration::from_millis(result.duration_ms));
    format!(
        "{style}{word}{style:#} {} {DIM}{}, {time}{DIM:#}{message}",
        result.capability, result.job_id
    )
}

/// The job that a person means: an id, the beginning of one, or `last`.
pub(crate) fn find(jobs: &Jobs, name: &str) -> Result<JobRow, CliError> {
    if let Ok(id) = JobId::new(name)
        && let Some(row) = jobs.job(&id)?
    {
        return Ok(row);
    }
    let mut found = jobs.begin_with(name)?;
    match found.len() {
        0 => Err(CliError::NoJob(name.to_owned())),
        1 => Ok(found.remove(0)),
        _ => Err(CliError::ManyJobs {
            prefix: name.to_owned(),
            some: found.into_iter().map(|row| row.job_id).collect(),
        }),
    }
}

/// JSON from the command line, or from stdin if it is `-`.
pub(crate) fn arguments(text: &str) -> Result<Value, CliError> {
    let text = match text {
        "-" => {
            let mut read = String::new();
            io::stdin().take(LARGEST + 1).read_to_string(&mut read)?;
            if read.len() as u64 > LARGEST {
                return Err(CliError::LargeArguments);
            }
            read
        }
        text => text.to_owned(),
    };
    serde_json::from_str(&text).map_err(CliError::BadArguments)
}

/// The text of a file that a person named; `-` is stdin.
pub(crate) fn text_of(path: &Path) -> Result<String, CliError> {
    let text = match path.as_os_str() == "-" {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(path),
    };
    text.map_err(|source| CliError::File {
        path: path.to_owned(),
        source,
    })
}

impl From<ExecError> for CliError {
    fn from(error: ExecError) -> Self {
        CliError::Exec(Box::new(error))
    }
}
