//! `invigil pause`, `resume` and `signal`: orders to a run that goes on, given from another terminal.

use std::io::Write as _;

use clap::ValueEnum;
use invigil_engine::{Given, give};
use invigil_journal::Store;
use invigil_schema::{Event, ExitCode, Order, Signal as Told, Urgency};
use serde_json::json;

use crate::error::CliError;
use crate::ui::{self, BAD, GOOD};

/// Stop every process of a run
///
/// Nothing of the run happens until `invigil resume`. Its time does not count meanwhile; the time of open questions does.
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    /// The run: an id, the beginning of one, or `last`
    run: String,

    /// Why; it is in the evidence
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// The result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Let a paused run go on
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// The run: an id, the beginning of one, or `last`
    run: String,

    /// The result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Tell a run something
///
/// critical: it is asked to end, and killed soon after. high: it is interrupted when it starts the next program or tool.
/// normal: it waits until the agent asks. low: it is only recorded.
#[derive(Debug, clap::Args)]
pub(crate) struct Signal {
    /// The run: an id, the beginning of one, or `last`
    run: String,

    /// How much it matters
    #[arg(long, value_enum, default_value_t = UrgencyName::Normal)]
    urgency: UrgencyName,

    /// Names the signal: the same one is taken once [default: a new one]
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// The result as one JSON object on stdout
    #[arg(long)]
    json: bool,

    /// What the run is told
    #[arg(value_name = "TEXT", default_value = "")]
    text: String,
}

/// Have the current phase of a run checked
///
/// The run is stopped meanwhile. If all checks pass and all evidence is there, the next phase begins.
#[derive(Debug, clap::Args)]
pub(crate) struct Milestone {
    /// The run: an id, the beginning of one, or `last`
    run: String,

    /// The phase; it must be the current one
    phase: Option<String>,

    /// The result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UrgencyName {
    Critical,
    High,
    Normal,
    Low,
}

impl From<UrgencyName> for Urgency {
    fn from(name: UrgencyName) -> Urgency {
        match name {
            UrgencyName::Critical => Urgency::Critical,
            UrgencyName::High => Urgency::High,
            UrgencyName::Normal => Urgency::Normal,
            UrgencyName::Low => Urgency::Low,
        }
    }
}

impl Pause {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        order(
            store,
            &self.run,
            Order::Pause { why: self.reason },
            self.json,
        )
    }
}

impl Resume {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        order(store, &self.run, Order::Resume, self.json)
    }
}

impl Signal {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let new = || format!("s-{}", uuid::Uuid::now_v7().simple());
        let signal = Told {
            id: self.id.unwrap_or_else(new),
            urgency: self.urgency.into(),
            text: self.text,
        };
        order(store, &self.run, Order::Signal(signal), self.json)
    }
}

impl Milestone {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let phase = self.phase;
        order(store, &self.run, Order::Milestone { phase }, self.json)
    }
}

fn order(store: &Store, run: &str, order: Order, json: bool) -> Result<u8, CliError> {
    let run = store.find(run)?;
    tell(&give(store, &run, order)?, json)
}

/// Says what became of an order: 0 if it was carried out, 1 if not.
pub(super) fn tell(given: &Given, json: bool) -> Result<u8, CliError> {
    let ended = &given.ended;
    let code = match ended.done {
        true => ExitCode::Success,
        false => ExitCode::No,
    };
    if json {
        let events: Vec<_> = given.events.iter().filter_map(as_json).collect();
        let result =
            json!({ "order": ended.id, "done": ended.done, "why": ended.why, "events": events });
        writeln!(std::io::stdout(), "{result}")?;
        return Ok(code.into());
    }
    let why = ended.why.as_deref().map(ui::harmless).unwrap_or_default();
    let mut out = anstream::stdout().lock();
    match ended.done {
        true => writeln!(out, "{GOOD}{why}{GOOD:#}")?,
        false => writeln!(out, "{BAD}not done{BAD:#}: {why}")?,
    }
    Ok(code.into())
}

/// What an order has led to, for programs.
fn as_json(event: &Event) -> Option<serde_json::Value> {
    let data = match event {
        Event::RunSuspended(data) => json!(data),
        Event::RunResumed(data) => json!(data),
        Event::SignalDisposed(data) => json!(data),
        Event::CheckpointTaken(data) => json!(data),
        Event::RollbackStarted(data) => json!(data),
        Event::Rollbacked(data) => json!(data),
        Event::MilestoneEvidence(data) => json!(data),
        Event::MilestoneAdvanced(data) => json!(data),
        Event::MilestoneBlocked(data) => json!(data),
        _ => return None,
    };
    Some(json!({ "kind": event.kind(), "data": data }))
}
