//! Forks: a new run that begins where another one stood. It holds where it comes from, and copies nothing.

use std::sync::Arc;

use invigil_journal::{Clock, Error, Index, Options, RunRef, Store, StoreError};
use invigil_schema::{ForkCheckpoint, Origin, RunForked, RunId};

use crate::looking::os_view;

/// Why a run cannot be forked.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// A run.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The parent is not that long.
    #[error("record {at} is not there: run {run_id} has {records}")]
    NotThatFar {
        /// The parent.
        run_id: RunId,
        /// What was asked for.
        at: u64,
        /// How many it has.
        records: u64,
    },
}

/// Makes a run that begins where `parent` stood when record `at` was written. It is durable when this returns.
pub fn fork(
    store: &Store,
    parent: &RunRef,
    at: u64,
    run_id: &RunId,
    clock: Arc<dyn Clock>,
    writer: &str,
) -> Result<(RunRef, RunForked), ForkError> {
    let view = os_view(store, parent, Some(at.saturating_add(1)))?;
    let too_far = || ForkError::NotThatFar {
        run_id: parent.run_id().clone(),
        at,
        records: view.events(),
    };
    let mut reader = parent.read(at)?.ok_or_else(too_far)?;
    let record = reader.next().map_err(|error| parent.error(error))?;
    let record = record.ok_or_else(too_far)?;
    let checkpoint = view.snapshot().last_checkpoint.map(|taken| ForkCheckpoint {
        id: taken.id,
        seq: taken.turn,
    });
    let forked = RunForked {
        parent: parent.run_id().clone(),
        at_seq: at,
        hash: record.hash,
        checkpoint,
    };
    let (run, journal) = store.create(run_id, clock, Options::default(), writer)?;
    let begun = || -> Result<(), Error> {
        let ticket = journal.append(Origin::Runtime, &forked.clone().into())?;
        ticket.durable()
    };
    begun().map_err(|error| run.error(error))?;
    journal.close().map_err(|error| run.error(error))?;
    Index::note(store, &run)?;
    Ok((run, forked))
}
