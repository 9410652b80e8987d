//! `invigil runs`: what there is.

use std::io::Write as _;

use invigil_journal::{Index, RunRow, RunState, Store};
use invigil_schema::StopReason;
use serde_json::json;

use super::tell;
use crate::error::CliError;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// List all runs, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Runs {
    /// Show at most this many
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,

    /// One JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

/// What a person wants to know first. An open run is running if its journal has a writer.
fn status<'r>(store: &Store, row: &'r RunRow) -> &'r str {
    if row.problem.is_some() {
        return "damaged";
    }
    match &row.state {
        RunState::Finished {
            stopped: Some(why), ..
        } => match why {
            StopReason::Timeout => "time-out",
            StopReason::Budget => "over budget",
            StopReason::Policy => "by policy",
            StopReason::Signal => "by signal",
            StopReason::Fuse => "fuse blown",
            StopReason::Parent => "by parent",
        },
        RunState::Finished {
            exit_code: Some(0), ..
        } => "ok",
        RunState::Finished {
            signal: Some(_), ..
        } => "killed",
        RunState::Finished { .. } => "exited",
        RunState::Failed { .. } => "not started",
        RunState::Ended { how, .. } => match how.as_str() {
            "success" | "done" => "ok",
            other => other,
        },
        RunState::Open => match store.run(&row.run_id) {
            Ok(run) if run.is_live() => "running",
            _ => "interrupted",
        },
    }
}

impl Runs {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let (index, refreshed) = Index::refreshed(store)?;
        tell(&refreshed);
        let mut rows = index.runs()?;
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        if self.json {
            return self.print_json(store, &rows);
        }
        if rows.is_empty() {
            ui::say(format_args!("no runs yet: try `invigil run -- echo hello`"));
            return Ok(0);
        }
        print_table(store, &rows)
    }

    fn print_json(&self, store: &Store, rows: &[RunRow]) -> Result<u8, CliError> {
        let mut out = std::io::stdout().lock();
        for row in rows {
            let line = json!({
                "run_id": row.run_id,
                "status": status(store, row),
                "started_at": row.started_at,
                "command": row.command,
                "outcome": row.state,
                "events": row.events,
                "head": { "seq": row.head.seq, "hash": row.head.hash },
                "problem": row.problem,
            });
            writeln!(out, "{line}")?;
        }
        Ok(0)
    }
}

fn print_table(store: &Store, rows: &[RunRow]) -> Result<u8, CliError> {
    let mut out = anstream::stdout().lock();
    let width = rows
        .iter()
        .map(|row| row.run_id.as_str().len())
        .max()
        .unwrap_or(0);
    writeln!(
        out,
        "{BOLD}{:width$}  {:19}  {:11}  {:>4}  {:>8}  {:>7}  COMMAND{BOLD:#}",
        "RUN", "STARTED (UTC)", "STATUS", "CODE", "TIME", "EVENTS"
    )?;
    for row in rows {
        let status = status(store, row);
        let style = match status {
            "ok" => GOOD,
            "running" => BOLD,
            "damaged" | "killed" | "failure" | "give_up" | "timeout" | "not started"
            | "time-out" | "over budget" | "by policy" => BAD,
            _ => WARN,
        };
        let (code, time) = match row.state {
            RunState::Finished {
                exit_code,
                signal,
                elapsed_ms,
                ..
            } => {
                let code = exit_code.map(|code| code.to_string());
                let signal = signal.map(|signal| format!("s{signal}"));
                let time = std::time::Duration::from_millis(elapsed_ms);
                (code.or(signal).unwrap_or_default(), ui::duration(time))
            }
            RunState::Ended { elapsed_ms, .. } => {
                let time = std::time::Duration::from_millis(elapsed_ms);
                (String::new(), ui::duration(time))
            }
            RunState::Open | RunState::Failed { .. } => Default::default(),
        };
        let started = row.started_at.to_string().replace('T', " ");
        writeln!(
            out,
            "{:width$}  {}  {style}{status:11}{style:#}  {code:>4}  {time:>8}  {:>7}  {}",
            row.run_id,
            &started[..19],
            row.events,
            ui::shorten(&ui::command(&row.command), 60),
        )?;
        if let Some(problem) = &row.problem {
            writeln!(
                out,
                "{:width$}  {BAD}└ {}{BAD:#}",
                "",
                ui::harmless(problem)
            )?;
        }
        if let RunState::Failed { reason } = &row.state {
            writeln!(out, "{:width$}  {DIM}└ {}{DIM:#}", "", ui::harmless(reason))?;
        }
    }
    Ok(0)
}
