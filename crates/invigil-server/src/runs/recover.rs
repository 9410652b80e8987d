//! What an earlier daemon left: runs that are over, and runs that it could not end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use invigil_engine::redact::Redactor;
use invigil_journal::{Index, RunRef, RunState, Sharing, Store, StoreError, SystemClock};
use invigil_schema::{
    ActionStarted, ClientRunEnded, ClientRunStarted, Event, Origin, Termination, Turn, TurnStatus,
};

use super::registry::options;
use super::run::Run;

/// Who wrote the journals of the daemon.
pub(super) const WRITER: &str = concat!("invigil daemon ", env!("CARGO_PKG_VERSION"));
const WRITERS: &str = "invigil daemon ";

/// All runs of the daemon in a store. Those without an end get one.
pub(super) fn recover(store: &Store, redactor: &Redactor) -> Result<Vec<Arc<Run>>, StoreError> {
    let (index, _) = Index::refreshed(store)?;
    let mut runs = Vec::new();
    for row in index.runs()? {
        let Ok(run) = store.run(&row.run_id) else {
            continue;
        };
        let found = match row.state {
            RunState::Ended { .. } => past(&run, row.head.seq),
            RunState::Open if !run.is_live() => left_behind(store, &run, redactor),
            _ => Ok(None),
        };
        match found {
            Ok(found) => runs.extend(found),
            // One journal that cannot be read keeps nobody from working.
            Err(error) => tracing::warn!(run = %row.run_id, %error, "passed over"),
        }
    }
    Ok(runs)
}

/// A run that is over: its first records, and its last.
fn past(run: &RunRef, head: u64) -> Result<Option<Arc<Run>>, StoreError> {
    let mut found = (None, None);
    each(run, 0, |_, event| match event {
        Event::ClientRunStarted(started) => {
            found.0 = Some(started);
            false
        }
        Event::JournalOpened(_) | Event::JournalRecovered(_) => true,
        _ => false,
    })?;
    each(run, head, |_, event| {
        if let Event::ClientRunEnded(ended) = event {
            found.1 = Some(ended);
        }
        true
    })?;
    Ok(match found {
        (Some(started), Some(ended)) => Some(Run::over(run.clone(), started, ended, head + 1)),
        _ => None,
    })
}

/// A run that nobody ended, if it is the daemon's.
fn left_behind(
    store: &Store,
    run: &RunRef,
    redactor: &Redactor,
) -> Result<Option<Arc<Run>>, StoreError> {
    let mut scan = Scan::default();
    each(run, 0, |origin, event| scan.take(origin, event))?;
    let Some(started) = scan.started else {
        if scan.ours {
            // Its start was never acknowledged.
            store.remove(run)?;
        }
        return Ok(None);
    };
    let ended = ClientRunEnded {
        agent_id: started.agent_id.clone(),
        termination: Termination::Incomplete,
        ended_at: SystemTime::now().into(),
        turns: scan.turns + scan.open.len() as u64,
    };
    let interrupted = (scan.turns..).zip(scan.open.into_values());
    let mut events: Vec<Event> = interrupted
        .map(|(index, action)| interrupted_turn(index, action).into())
        .collect();
    events.push(ended.clone().into());
    let hidden: Vec<_> = events.iter().map(|event| redactor.event(event)).collect();
    let closing = || {
        let (journal, _) = run.append(Arc::new(SystemClock), options(Sharing::Exclusive))?;
        let batch = hidden.iter().map(|event| (Origin::Runtime, event.as_ref()));
        let appended = journal.append_all(batch).map(drop);
        appended.map_err(|error| run.error(error))?;
        let head = journal.close().map_err(|error| run.error(error))?;
        Ok::<_, StoreError>(head.seq + 1)
    };
    match closing() {
        Ok(records) => {
            tracing::info!(run = %run.run_id(), "was left open and is incomplete now");
            Ok(Some(Run::over(run.clone(), started, ended, records)))
        }
        Err(error) => {
            // It takes nothing more, and what is there can be read.
            tracing::warn!(run = %run.run_id(), %error, "cannot be ended");
            let turns = scan.turns;
            let ended = ClientRunEnded { turns, ..ended };
            Ok(Some(Run::over(run.clone(), started, ended, scan.records)))
        }
    }
}

fn interrupted_turn(index: u64, action: ActionStarted) -> Turn {
    Turn {
        index,
        prompt: None,
        tool: Some(action.tool),
        parameters: action.parameters,
        output: None,
        cli_outcome: None,
        verifier_verdict: Default::default(),
        policy_rejected: None,
        action_id: Some(action.action_id),
        proposal_id: Some(action.proposal_id),
        started_at: None,
        duration_ms: None,
        attempt: Some(action.attempt),
        status: Some(TurnStatus::Interrupted),
        error: Some("the daemon died before it ended".to_owned()),
        truncated: Vec::new(),
    }
}

/// What a journal without an end holds.
#[derive(Default)]
struct Scan {
    ours: bool,
    started: Option<ClientRunStarted>,
    turns: u64,
    records: u64,
    /// Actions that were started and have no turn.
    open: BTreeMap<(String, String), ActionStarted>,
}

impl Scan {
    fn take(&mut self, _: Origin, event: Event) -> bool {
        self.records += 1;
        match event {
            Event::JournalOpened(opened) => self.ours = opened.writer.starts_with(WRITERS),
            Event::ClientRunStarted(started) => self.started = Some(started),
            Event::ActionStarted(action) => {
                let id = (action.proposal_id.clone(), action.action_id.clone());
                self.open.insert(id, action);
            }
            Event::Turn(turn) => {
                self.turns += 1;
                if let (Some(proposal), Some(action)) = (turn.proposal_id, turn.action_id) {
                    self.open.remove(&(proposal, action));
                }
            }
            _ => {}
        }
        self.ours
    }
}

/// Hands on records from `seq` while more are wanted.
fn each(
    run: &RunRef,
    seq: u64,
    mut take: impl FnMut(Origin, Event) -> bool,
) -> Result<(), StoreError> {
    let Some(mut reader) = run.read(seq)? else {
        return Ok(());
    };
    while let Some(record) = reader.next().map_err(|error| run.error(error))? {
        let envelope = record.envelope().map_err(|error| run.error(error))?;
        if !take(envelope.origin, envelope.event()) {
            break;
        }
    }
    Ok(())
}
