//! The person's side: how an order gets to the supervisor of a run, and what became of it comes back.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use invigil_journal::{RunRef, Store, StoreError};
use invigil_schema::{Event, Order, OrderEnded, OrderFile, OrderReply, RunId};

use super::folder::Folder;
use crate::letters::Found;

/// Between two looks for what became of an order.
const LOOK: Duration = Duration::from_millis(20);
/// How long the supervisor may take to notice an order. It looks ten times a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of an order.
#[derive(Debug)]
pub struct Given {
    /// Whether it was carried out, and what came of it.
    pub ended: OrderEnded,
    /// What is on the record of it, the taking and the end included.
    pub events: Vec<Event>,
}

/// Why an order cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// Nobody is there to obey.
    #[error("run {0} is over: nobody is there to obey")]
    Over(RunId),
    /// The supervisor does not look.
    #[error(
        "run {0} does not react, and the order was taken back; has it been stopped? `fg` or `kill -CONT` lets it go on"
    )]
    Deaf(RunId),
    /// It was killed before it had obeyed.
    #[error("run {0} ended before it had obeyed")]
    Gone(RunId),
    /// It is over, and others may write where it did.
    #[error(
        "run {run_id} is over, but {root}, which it belongs to, goes on and may change the same files; wait for its end, or keep and turn back the files of {root}"
    )]
    Family {
        /// The run.
        run_id: RunId,
        /// The run at the top.
        root: RunId,
    },
    /// What became of it could not be written down.
    #[error("run {run_id}: it could not be recorded: {why}")]
    Unrecorded {
        /// The run.
        run_id: RunId,
        /// Why not.
        why: String,
    },
    /// The store cannot be written, and that is how a run is kept from steering.
    #[error(
        "no order can be left in {}: {source}; a process of a run cannot steer runs, so use a terminal outside of any run", path.display()
    )]
    Forbidden {
        /// The store.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The files of the order.
    #[error("cannot leave an order in {}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Leaves an order for a run, and waits until what became of it is on the record.
pub fn give(store: &Store, run: &RunRef, order: Order) -> Result<Given, SteerError> {
    let run_id = run.run_id();
    let over = || SteerError::Over(run_id.clone());
    let folder = Folder::new(store.home(), run_id);
    if !run.is_live() {
        // What a killed supervisor has left.
        folder.remove();
        return Err(over());
    }
    let file = OrderFile {
        schema: OrderFile::SCHEMA.to_owned(),
        run_id: run_id.clone(),
        id: uuid::Uuid::now_v7().simple().to_string(),
        order,
        uid: rustix::process::getuid().as_raw(),
        pid: std::process::id(),
    };
    folder.leave(&file).map_err(|source| {
        let path = store.home().to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => over(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                SteerError::Forbidden { path, source }
            }
            _ => SteerError::Io { path, source },
        }
    })?;
    let until = Instant::now() + PATIENCE;
    loop {
        // Asked before the look: what was replied before the end is still found.
        let there = folder.is_there() && run.is_live();
        match folder.take_reply(&file.id) {
            Found::Letter(OrderReply {
                ended, from, to, ..
            }) => {
                let events = events(run, from, to, &file.id)?;
                return Ok(Given { ended, events });
            }
            Found::Refused(_) => return on_record(run, &file.id),
            Found::Nothing if !there => return on_record(run, &file.id),
            Found::Nothing => {}
        }
        if Instant::now() > until && folder.take_back(&file.id) {
            return Err(SteerError::Deaf(run_id.clone()));
        }
        thread::sleep(LOOK);
    }
}

/// What became of an order, as the journal says.
fn on_record(run: &RunRef, id: &str) -> Result<Given, SteerError> {
    let mut events = events(run, 0, u64::MAX, id)?;
    let begin = events
        .iter()
        .position(|event| matches!(event, Event::OrderTaken(taken) if taken.id == id));
    let gone = || SteerError::Gone(run.run_id().clone());
    events.drain(..begin.ok_or_else(gone)?);
    match events.last() {
        Some(Event::OrderEnded(ended)) if ended.id == id => {
            let ended = ended.clone();
            Ok(Given { ended, events })
        }
        _ => Err(gone()),
    }
}

/// The records from one to another, or to the end of the order.
fn events(run: &RunRef, from: u64, to: u64, id: &str) -> Result<Vec<Event>, StoreError> {
    /// What an order can lead to.
    const KINDS: [&str; 12] = [
        "order_taken",
        "order_ended",
        "run_suspended",
        "run_resumed",
        "signal_disposed",
        "checkpoint_taken",
        "rollback_started",
        "rollbacked",
        "milestone_evidence",
        "milestone_advanced",
        "milestone_blocked",
        "child_run_ended",
    ];
    let mut found = Vec::new();
    let Some(mut reader) = run.read(from)? else {
        return Ok(found);
    };
    while let Some(record) = reader.next().map_err(|error| run.error(error))? {
        let envelope = record.envelope().map_err(|error| run.error(error))?;
        if KINDS.contains(&&*envelope.kind) {
            let event = envelope.event();
            let ended = matches!(&event, Event::OrderEnded(ended) if ended.id == id);
            found.push(event);
            if ended {
                break;
            }
        }
        if envelope.seq >= to {
            break;
        }
    }
    Ok(found)
}
