//! `invigil session`: rows of jobs, from a file or one by one.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use invigil_engine::{Executor, JobResult, OnError, Steps, StepsSpec};
use invigil_journal::{JobFilter, Jobs as Index, SessionRow, Store};
use invigil_schema::{ExitCode, SessionId, SessionState};
use serde_json::json;

use super::jobs;
use crate::error::CliError;
use crate::executor::{Ahead, JobOptions, cancel_on_signals, executor, line, show, text_of};
use crate::ui::{self, BOLD, DIM};

/// Rows of jobs that belong together
#[derive(Debug, clap::Args)]
pub(crate) struct Session {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Open a session, and print its id
    New {
        /// Its id [default: ses_ and a number that grows with time]
        #[arg(long, value_name = "ID")]
        id: Option<SessionId>,
        /// What it is for
        #[arg(value_name = "TITLE")]
        title: Option<String>,
    },
    /// List sessions, newest first
    List {
        /// One JSON object a line on stdout
        #[arg(long)]
        json: bool,
    },
    /// Show the jobs of a session, in order
    Show {
        #[arg(value_name = "ID")]
        id: SessionId,
        /// One JSON object a line on stdout
        #[arg(long)]
        json: bool,
    },
    Run(Box<RunSteps>),
    /// Take no further jobs until it is resumed
    Pause {
        #[arg(value_name = "ID")]
        id: SessionId,
    },
    /// Take jobs again
    Resume {
        #[arg(value_name = "ID")]
        id: SessionId,
    },
    /// Take no further jobs
    End {
        #[arg(value_name = "ID")]
        id: SessionId,
    },
    Undo(UndoAll),
}

/// Carry out the steps of a file, one after the other
///
/// Each line is {"capability": NAME, "arguments": {…}}. A file that was begun before goes on at the first step that was
/// not done. 0: all were done; 1: some are left or failed.
#[derive(Debug, clap::Args)]
struct RunSteps {
    /// The file; `-` reads from stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The session [default: a new one]
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,

    /// Carry out at most this many now
    #[arg(long, value_name = "N")]
    max_steps: Option<usize>,

    /// Begin none after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_seconds: Option<Duration>,

    /// What to do when a step fails
    #[arg(long, value_enum, default_value_t = OnErrorName::Stop)]
    on_error: OnErrorName,

    #[command(flatten)]
    options: JobOptions,

    /// Each result as a JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnErrorName {
    Stop,
    Continue,
}

/// Take back what the jobs of a session have changed, the newest first
#[derive(Debug, clap::Args)]
struct UndoAll {
    #[arg(value_name = "ID")]
    id: SessionId,

    /// Also where something was changed since
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    options: JobOptions,

    /// Each result as a JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

impl Session {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        match self.command {
            Command::New { id, title } => {
                let session = executor(store, &[])?.open_session(id, title)?;
                writeln!(std::io::stdout().lock(), "{session}")?;
                Ok(0)
            }
            Command::List { json } => list(store, json),
            Command::Show { id, json } => show_session(store, id, json),
            Command::Run(run) => run.execute(store),
            Command::Pause { id } => change(store, &id, SessionState::Paused),
            Command::Resume { id } => change(store, &id, SessionState::Open),
            Command::End { id } => change(store, &id, SessionState::Ended),
            Command::Undo(undo) => undo.execute(store),
        }
    }
}

fn change(store: &Store, id: &SessionId, state: SessionState) -> Result<u8, CliError> {
    let changed = executor(store, &[])?.change_session(id, state)?;
    let already = match changed {
        true => "",
        false => " already",
    };
    ui::say(format_args!("session {id} is{already} {}", state.as_str()));
    Ok(0)
}

fn list(store: &Store, as_json: bool) -> Result<u8, CliError> {
    let rows = Index::refreshed(store)?.sessions()?;
    let mut out = anstream::stdout().lock();
    if as_json {
        for row in &rows {
            writeln!(out, "{}", json_of(row))?;
        }
        return Ok(0);
    }
    if rows.is_empty() {
        ui::say(format_args!(
            "no sessions yet: `invigil session new` opens one"
        ));
        return Ok(0);
    }
    let width = rows
        .iter()
        .map(|row| row.session.as_str().len())
        .max()
        .unwrap_or(0);
    writeln!(
        out,
        "{BOLD}{:width$}  {:19}  STATE   TITLE{BOLD:#}",
        "SESSION", "OPENED (UTC)"
    )?;
    for row in rows {
        let started = row.started_at.to_string().replace('T', " ");
        let title = ui::harmless(row.title.as_deref().unwrap_or_default());
        let state = row.state.as_str();
        writeln!(
            out,
            "{:width$}  {}  {state:6}  {title}",
            row.session,
            &started[..19]
        )?;
    }
    Ok(0)
}

fn json_of(row: &SessionRow) -> serde_json::Value {
    json!({
        "session": row.session,
        "state": row.state,
        "opened_at": row.started_at,
        "title": row.title,
    })
}

fn show_session(store: &Store, id: SessionId, as_json: bool) -> Result<u8, CliError> {
    let index = Index::refreshed(store)?;
    let Some(row) = index.session(&id)? else {
        return Err(CliError::NoSession(id));
    };
    let filter = JobFilter {
        session: Some(id),
        ..JobFilter::default()
    };
    let mut jobs = index.jobs(&filter)?;
    jobs.reverse();
    let mut out = anstream::stdout().lock();
    if as_json {
        let all: Vec<_> = jobs.iter().map(jobs::as_json).collect();
        let mut session = json_of(&row);
        session["jobs"] = all.into();
        writeln!(out, "{session}")?;
        return Ok(0);
    }
    let title = ui::harmless(row.title.as_deref().unwrap_or_default());
    writeln!(
        out,
        "{BOLD}{}{BOLD:#}  {}  {title}",
        row.session,
        row.state.as_str()
    )?;
    drop(out);
    match jobs.is_empty() {
        true => Ok(0),
        false => jobs::print(&jobs),
    }
}

impl RunSteps {
    fn execute(self, store: &Store) -> Result<u8, CliError> {
        let steps = Steps::parse(&text_of(&self.file)?).map_err(|source| CliError::Steps {
            path: self.file.clone(),
            source,
        })?;
        let executor = self.options.executor(store, Ahead::Workers)?;
        let session = match self.session {
            Some(session) => session,
            None => executor.open_session(None, Some(self.file.display().to_string()))?,
        };
        let spec = StepsSpec {
            like: self.options.spec(None),
            session: session.clone(),
            max_steps: self.max_steps,
            max_time: self.max_seconds,
            on_error: match self.on_error {
                OnErrorName::Stop => OnError::Stop,
                OnErrorName::Continue => OnError::Continue,
            },
        };
        let total = steps.len();
        let mut failed = 0;
        let mut refused = None;
        let next =
            executor.run_steps(&steps, &spec, &cancel_on_signals()?, &mut |step, result| {
                match result {
                    Ok(result) => {
                        failed += usize::from(!result.success);
                        told(result, self.json, step, total);
                    }
                    Err(error) => {
                        failed += 1;
                        refused = Some(error.to_string());
                        ui::error(&ui::harmless(&error.to_string()));
                    }
                }
            })?;
        let left = total + 1 - next.min(total + 1);
        let tail = match (failed, left) {
            (0, 0) => "all done".to_owned(),
            (failed, left) => format!("{failed} failed, {left} left"),
        };
        ui::say(format_args!(
            "{DIM}session {session}: {total} steps, {tail}{DIM:#}"
        ));
        Ok(match (refused, failed, left) {
            (Some(_), ..) => ExitCode::Invigil.into(),
            (None, 0, 0) => ExitCode::Success.into(),
            _ => ExitCode::No.into(),
        })
    }
}

/// Progress: one line a step.
fn told(result: &JobResult, as_json: bool, step: usize, total: usize) {
    if as_json {
        // Whoever reads it has gone; the steps go on.
        drop(show(result, true));
    }
    ui::say(format_args!("{DIM}{step}/{total}{DIM:#} {}", line(result)));
}

impl UndoAll {
    fn execute(self, store: &Store) -> Result<u8, CliError> {
        let executor: Executor = self.options.executor(store, Ahead::Nothing)?;
        let cancel = cancel_on_signals()?;
        let mut code = 0;
        for job in executor.to_undo(&self.id)? {
            let mut spec = self.options.spec(None);
            spec.capability = "undo".to_owned();
            spec.arguments = json!({ "job_id": job, "force": self.force });
            let result = executor.exec(&spec, &cancel)?;
            code = code.max(show(&result, self.json)?);
            if !result.success {
                // What came before it stands below what could not be taken back.
                break;
            }
        }
        Ok(code)
    }
}
