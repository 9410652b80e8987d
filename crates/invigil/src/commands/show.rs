//! `invigil show`: a run's records, for people or for `jq`, to the end or as they come.

use std::io::Write;
use std::thread;
use std::time::Duration;

use invigil_engine::{os_view, summary, summary_at};
use invigil_journal::{Record, RunRef, Store};
use invigil_schema::Origin;

use super::find;
use crate::describe::describe;
use crate::error::CliError;
use crate::session_log;
use crate::snapshot;
use crate::summary as view;
use crate::ui::{self, BOLD, DIM};

/// How long a follower waits before it looks again.
const PAUSE: Duration = Duration::from_millis(50);

/// Show what a run did
///
/// A summary, or the parts that are asked for in full.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory; with --session a file
    run: String,

    /// The process tree
    #[arg(long)]
    processes: bool,

    /// Every file that was changed
    #[arg(long)]
    files: bool,

    /// Every address
    #[arg(long)]
    network: bool,

    /// Everything that was refused
    #[arg(long)]
    denials: bool,

    /// The records of the journal, one by one
    #[arg(long)]
    events: bool,

    /// With --events: begin with this record
    #[arg(long, value_name = "SEQ", requires = "events")]
    from: Option<u64>,

    /// The records as they come, while the run goes on
    #[arg(long, short)]
    follow: bool,

    /// How it stood when this record was written
    #[arg(long, value_name = "SEQ", conflicts_with_all = ["events", "follow"])]
    at: Option<u64>,

    /// Who ran, who waited and for what, which signals and budgets there were
    #[arg(long, conflicts_with_all = ["events", "follow", "processes", "files", "network", "denials"])]
    snapshot: bool,

    /// The snapshot of a session log of another runtime, in JSON: an array, or an event a line
    #[arg(long, conflicts_with_all = ["events", "follow", "processes", "files", "network", "denials"])]
    session: bool,

    /// JSON on stdout: one object, or with --events and --follow the records word for word, one a line
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        if self.session {
            return session_log::show(self.run.as_ref(), self.at, self.json);
        }
        let run = find(store, &self.run)?;
        if self.snapshot {
            return self.snapshot(store, &run);
        }
        if self.events || self.follow {
            return self.records(&run);
        }
        let summary = match self.at {
            Some(at) => self.reached(at, summary_at(&run, at.saturating_add(1))?, |doc| {
                doc.counts.facts
            })?,
            None => summary(&run)?,
        };
        let mut out = anstream::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::json!(summary))?;
            return Ok(0);
        }
        if let Some(at) = self.at {
            writeln!(out, "{DIM}as it stood after record {at}{DIM:#}")?;
        }
        if self.processes {
            view::processes(&mut out, &summary)?;
        }
        if self.files {
            view::files(&mut out, &summary)?;
        }
        if self.network {
            view::network(&mut out, &summary)?;
        }
        if self.denials {
            view::denials(&mut out, &summary)?;
        }
        let parts = self.processes || self.files || self.network || self.denials;
        let all = self.at.is_none() && !parts && led(&mut out, &run)?;
        if !parts && !all {
            view::print(&mut out, &run, &summary)?;
        }
        Ok(0)
    }

    fn snapshot(&self, store: &Store, run: &RunRef) -> Result<u8, CliError> {
        let count = self.at.map(|at| at.saturating_add(1));
        let snapshot = os_view(store, run, count)?.snapshot();
        let snapshot = match self.at {
            Some(at) => self.reached(at, snapshot, |snapshot| snapshot.events)?,
            None => snapshot,
        };
        let mut out = anstream::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", serde_json::json!(snapshot))?,
            false => snapshot::print(&mut out, &snapshot)?,
        }
        Ok(0)
    }

    /// A document, if there was a record of this number.
    fn reached<T>(&self, at: u64, document: T, count: impl Fn(&T) -> u64) -> Result<T, CliError> {
        match count(&document) {
            count if count > at => Ok(document),
            count => {
                let end = count.saturating_sub(1);
                Err(CliError::NotThatFar { at, end })
            }
        }
    }

    fn records(&self, run: &RunRef) -> Result<u8, CliError> {
        let mut out = anstream::stdout().lock();
        if !self.json {
            writeln!(out, "{BOLD}run{BOLD:#} {}", run.run_id())?;
            writeln!(out, "{DIM}in  {}{DIM:#}", run.directory().display())?;
        }
        let mut reader = self.reader(run)?;
        loop {
            // Asked before reading: whatever a writer wrote before it ended is then seen.
            let live = self.follow && run.is_live();
            while let Some(record) = reader.next().map_err(|error| run.error(error))? {
                match self.json {
                    true => {
                        out.write_all(record.line())?;
                        writeln!(out)?;
                    }
                    false => print(&mut out, record)?,
                }
            }
            out.flush()?;
            if !live {
                return Ok(0);
            }
            thread::sleep(PAUSE);
        }
    }

    fn reader(&self, run: &RunRef) -> Result<invigil_journal::Reader, CliError> {
        let from = self.from.unwrap_or(0);
        loop {
            let live = self.follow && run.is_live();
            if let Some(reader) = run.read(from)? {
                return Ok(reader);
            }
            if !live {
                let mut reader = run
                    .read(0)?
                    .ok_or(CliError::Journal(invigil_journal::Error::Missing))?;
                while reader.next().map_err(|error| run.error(error))?.is_some() {}
                let end = reader.head().map_or(0, |head| head.seq);
                return Err(CliError::BeyondEnd { from, end });
            }
            thread::sleep(PAUSE);
        }
    }
}

/// A run that a client of the daemon led is what it wanted, its turns and its end. Whether it is one.
fn led(out: &mut impl Write, run: &RunRef) -> Result<bool, CliError> {
    let Some(mut reader) = run.read(0)? else {
        return Ok(false);
    };
    let mut led = false;
    while let Some(record) = reader.next().map_err(|error| run.error(error))? {
        match record.envelope()?.kind.as_ref() {
            "client_run_started" => led = true,
            "turn" | "tool_asked" | "tool_answered" | "client_run_ended" => {}
            // It may follow a torn start.
            "journal_opened" | "journal_recovered" | "action_started" => continue,
            _ if led => continue,
            _ => return Ok(false),
        }
        print(out, record)?;
    }
    Ok(led)
}

fn print(out: &mut impl Write, record: Record<'_>) -> Result<(), CliError> {
    let envelope = record.envelope()?;
    let time = envelope.time.to_string();
    let kind = envelope.kind.as_ref();
    let (origin, seq) = (envelope.origin.as_str(), record.seq);
    let what = describe(&envelope.event(), envelope.time);
    let style = if envelope.origin == Origin::Kernel {
        BOLD
    } else {
        DIM
    };
    writeln!(
        out,
        "{DIM}{seq:>6}  {}{DIM:#}  {style}{origin:7}{style:#}  {BOLD}{:17}{BOLD:#}  {what}",
        &time[11..23],
        ui::harmless(kind),
    )?;
    Ok(())
}
