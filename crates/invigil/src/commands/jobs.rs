//! `invigil jobs` and `invigil wait`: what was asked for, and what became of it.

use std::io::Write as _;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use invigil_engine::is_abandoned;
use invigil_journal::{JobFilter, JobRow, JobState, Jobs as Index, RunRef, Store};
use invigil_schema::{Envelope, ExitCode, SessionId};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::executor::find;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// List jobs, newest first, or show one
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Jobs {
    #[command(subcommand)]
    command: Option<JobsCommand>,

    #[command(flatten)]
    list: List,
}

#[derive(Debug, clap::Subcommand)]
enum JobsCommand {
    Show(ShowJob),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only those of this session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,

    /// Only those that stand like this
    #[arg(long, value_enum)]
    state: Option<StateName>,

    /// Show at most this many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,

    /// One JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum StateName {
    Open,
    Completed,
    Failed,
    Denied,
    TimedOut,
    Cancelled,
}

impl From<StateName> for JobState {
    fn from(name: StateName) -> JobState {
        match name {
            StateName::Open => JobState::Open,
            StateName::Completed => JobState::Completed,
            StateName::Failed => JobState::Failed,
            StateName::Denied => JobState::Denied,
            StateName::TimedOut => JobState::TimedOut,
            StateName::Cancelled => JobState::Cancelled,
        }
    }
}

/// Show one job: its arguments, how it ended, what it changed
#[derive(Debug, clap::Args)]
struct ShowJob {
    /// Its id, the beginning of it, or `last`
    #[arg(value_name = "JOB")]
    job: String,

    /// Its records, one JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

impl Jobs {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        match self.command {
            Some(JobsCommand::Show(show)) => show.execute(store),
            None => self.list.execute(store),
        }
    }
}

impl List {
    fn execute(self, store: &Store) -> Result<u8, CliError> {
        let filter = JobFilter {
            session: self.session,
            state: self.state.map(JobState::from),
            limit: Some(self.limit),
        };
        let rows = Index::refreshed(store)?.jobs(&filter)?;
        if self.json {
            let mut out = std::io::stdout().lock();
            for row in &rows {
                writeln!(out, "{}", as_json(row))?;
            }
            return Ok(0);
        }
        if rows.is_empty() {
            ui::say(format_args!(
                "no such jobs: try `invigil exec file_list '{{\"path\": \".\"}}'`"
            ));
            return Ok(0);
        }
        print(&rows)
    }
}

pub(crate) fn as_json(row: &JobRow) -> Value {
    json!({
        "job_id": row.job_id,
        "capability": row.capability,
        "state": row.state,
        "session": row.session,
        "dry_run": row.dry_run,
        "started_at": row.started_at,
        "duration_ms": row.elapsed_ms,
        "error": row.error,
        "seq": row.seq,
        "end_seq": row.end_seq,
    })
}

/// A table of jobs.
pub(crate) fn print(rows: &[JobRow]) -> Result<u8, CliError> {
    let mut out = anstream::stdout().lock();
    let width = rows
        .iter()
        .map(|row| row.job_id.as_str().len())
        .max()
        .unwrap_or(0);
    writeln!(
        out,
        "{BOLD}{:width$}  {:19}  {:9}  {:>8}  CAPABILITY{BOLD:#}",
        "JOB", "STARTED (UTC)", "STATE", "TIME"
    )?;
    for row in rows {
        let style = match row.state {
            JobState::Completed => GOOD,
            JobState::Open => BOLD,
            JobState::Cancelled => WARN,
            JobState::Failed | JobState::Denied | JobState::TimedOut => BAD,
        };
        let time = row.elapsed_ms.map(Duration::from_millis).map(ui::duration);
        let started = row.started_at.to_string().replace('T', " ");
        let dry = match row.dry_run {
            true => " (dry run)",
            false => "",
        };
        writeln!(
            out,
            "{:width$}  {}  {style}{:9}{style:#}  {:>8}  {}{dry}",
            row.job_id,
            &started[..19],
            row.state.as_str(),
            time.unwrap_or_default(),
            ui::harmless(&row.capability),
        )?;
        if let Some(error) = &row.error {
            let error = ui::shorten(&ui::harmless(error), 100);
            writeln!(out, "{:width$}  {DIM}└ {error}{DIM:#}", "")?;
        }
    }
    Ok(0)
}

impl ShowJob {
    fn execute(self, store: &Store) -> Result<u8, CliError> {
        let index = Index::refreshed(store)?;
        let row = find(&index, &self.job)?;
        let Some(run) = store.jobs_so_far() else {
            return Err(CliError::NoJob(self.job));
        };
        let mut numbers = vec![row.seq];
        numbers.extend(index.kept(&row.job_id)?);
        numbers.extend(row.end_seq);
        let mut out = anstream::stdout().lock();
        if self.json {
            for seq in numbers {
                record(&run, seq, |line, _| {
                    writeln!(out, "{}", String::from_utf8_lossy(line))
                })??;
            }
            return Ok(0);
        }
        print(std::slice::from_ref(&row))?;
        for seq in numbers {
            record(&run, seq, |_, envelope| {
                let data: Value = serde_json::from_str(envelope.data.get()).unwrap_or_default();
                let shown = match &*envelope.kind {
                    "job_started" => data["arguments"].clone(),
                    "job_kept" => data["kept"].clone(),
                    _ if data["output"].is_null() => json!({ "error": data["error"] }),
                    _ => data["output"].clone(),
                };
                let text = serde_json::to_string_pretty(&shown).unwrap_or_default();
                writeln!(out, "\n{BOLD}{} {DIM}#{seq}{DIM:#}{BOLD:#}", envelope.kind)?;
                writeln!(out, "{}", ui::harmless_lines(&text))?;
                if let Some(run) = data["end"]["run"].as_str() {
                    writeln!(out, "{DIM}all of its facts: invigil show {run}{DIM:#}")?;
                }
                Ok::<(), std::io::Error>(())
            })??;
        }
        Ok(0)
    }
}

fn record<T>(
    run: &RunRef,
    seq: u64,
    with: impl FnOnce(&[u8], &Envelope<'_>) -> T,
) -> Result<T, CliError> {
    let end = || CliError::BeyondEnd {
        from: seq,
        end: seq,
    };
    let mut reader = run.read(seq)?.ok_or_else(end)?;
    let record = reader.next()?.ok_or_else(end)?;
    let envelope = record.envelope()?;
    Ok(with(record.line(), &envelope))
}

/// Wait until a job has ended
///
/// The exit code is that of the job, as with `invigil exec`; 124 if it has not ended in time.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    /// Its id, the beginning of it, or `last`
    #[arg(value_name = "JOB")]
    job: String,

    /// Wait no longer than this: 90s, 30m
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,

    /// The job as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Between two looks at a job that goes on.
const LOOK: Duration = Duration::from_millis(50);

impl Wait {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let begun = Instant::now();
        let index = Index::refreshed(store)?;
        let mut row = find(&index, &self.job)?;
        while row.state == JobState::Open {
            if self.timeout.is_some_and(|most| begun.elapsed() >= most) {
                return Err(CliError::StillOpen(row.job_id));
            }
            // Who is dead says nothing more: what it said before is read after that.
            let abandoned = is_abandoned(store, &row);
            index.refresh()?;
            if let Some(now) = index.job(&row.job_id)? {
                row = now;
            }
            match row.state {
                JobState::Open if abandoned => return Err(CliError::Abandoned(row.job_id)),
                JobState::Open => std::thread::sleep(LOOK),
                _ => {}
            }
        }
        match self.json {
            true => writeln!(std::io::stdout().lock(), "{}", as_json(&row))?,
            false => drop(print(std::slice::from_ref(&row))?),
        }
        Ok(match row.state {
            JobState::Failed if is_invalid(&row) => ExitCode::Invigil.into(),
            JobState::Open | JobState::Failed => ExitCode::No.into(),
            JobState::Completed => ExitCode::Success.into(),
            JobState::Denied => ExitCode::Policy.into(),
            JobState::TimedOut => ExitCode::Timeout.into(),
            JobState::Cancelled => ExitCode::of_signal(2),
        })
    }
}

/// Whether it failed because its arguments were wrong.
fn is_invalid(row: &JobRow) -> bool {
    let error = row.error.as_deref().unwrap_or_default();
    error.starts_with("Validation failed: ")
}
