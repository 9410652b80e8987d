//! Orders to a run that is over: there is no supervisor, so whoever gives the order records it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use invigil_journal::{Clock, Index, Options, RunRef, Store};
use invigil_schema::{Event, Order, OrderEnded, OrderTaken, Origin, RunStarted, SteeredBy};

use super::checkpoint::{self, Checkpoints, Wanted};
use super::client::{Given, SteerError};
use crate::control::Control;
use crate::record::Recorder;
use crate::redact::Redactor;
use crate::run::random;

/// Carries out an order that is about the files of a run that has ended. Anything else has nobody to obey it.
pub fn ended(
    store: &Store,
    run: &RunRef,
    clock: Arc<dyn Clock>,
    order: Order,
) -> Result<Given, SteerError> {
    let run_id = run.run_id();
    if !matches!(order, Order::Checkpoint { .. } | Order::Rollback { .. }) {
        return Err(SteerError::Over(run_id.clone()));
    }
    let started = started(run)?;
    // Whoever is left of the family may write there, and nobody here can stop them.
    if let Some(lineage) = &started.lineage
        && store.run(&lineage.root).is_ok_and(|root| root.is_live())
    {
        return Err(SteerError::Family {
            run_id: run_id.clone(),
            root: lineage.root.clone(),
        });
    }
    let workspace = PathBuf::from(OsStr::from_bytes(started.cwd.as_bytes()));
    let key = random().map_err(|source| SteerError::Io {
        path: store.home().to_owned(),
        source,
    })?;
    let (journal, _) = run.append(clock, Options::default())?;
    let recorder = Recorder::new(journal, Redactor::new(key), Control::new());
    let mut events = Vec::new();
    let given = obey(
        &Checkpoints::new(store, run_id, workspace, started.directory),
        order,
        &mut |origin, event: Event| {
            let recorded = recorder.record_at(origin, &event);
            events.push(event);
            recorded.map_err(|error| error.to_string())
        },
    );
    recorder.close().map_err(|error| run.error(error))?;
    Index::note(store, run)?;
    match given {
        Ok(ended) => Ok(Given { ended, events }),
        Err(why) => Err(SteerError::Unrecorded {
            run_id: run_id.clone(),
            why,
        }),
    }
}

type Record<'a> = &'a mut dyn FnMut(Origin, Event) -> Result<u64, String>;

fn obey(checkpoints: &Checkpoints, order: Order, record: Record<'_>) -> Result<OrderEnded, String> {
    let (id, uid) = (
        uuid::Uuid::now_v7().simple().to_string(),
        rustix::process::getuid().as_raw(),
    );
    let pid = std::process::id();
    let taken = OrderTaken {
        id: id.clone(),
        what: order.clone(),
        uid,
        pid,
    };
    let seq = record(Origin::User, taken.into())?;
    let by = SteeredBy::CommandLine {
        uid,
        pid,
        order: id.clone(),
    };
    let obeyed = match order {
        Order::Checkpoint { label } => {
            let kept = checkpoints.take(Wanted::ordered(label, seq, by));
            kept.map_err(|error| error.to_string()).and_then(|kept| {
                let said = checkpoint::said(&kept);
                record(Origin::Runtime, kept.into()).map(|_| said)
            })
        }
        Order::Rollback { checkpoint } => {
            let record = std::cell::RefCell::new(&mut *record);
            let record = |event: Event| (record.borrow_mut())(Origin::Runtime, event);
            let done = checkpoints.rollback(checkpoint.as_deref(), seq, by, &record);
            done.and_then(checkpoint::rolled)
        }
        _ => Err("the run is over".to_owned()),
    };
    let (why, done) = match obeyed {
        Ok(said) => (said, true),
        Err(why) => (why, false),
    };
    let ended = OrderEnded {
        id,
        done,
        why: Some(why),
    };
    record(Origin::Runtime, ended.clone().into())?;
    Ok(ended)
}

/// How a run was started.
fn started(run: &RunRef) -> Result<RunStarted, SteerError> {
    if let Some(mut reader) = run.read(0)? {
        while let Some(record) = reader.next().map_err(|error| run.error(error))? {
            let envelope = record.envelope().map_err(|error| run.error(error))?;
            if let Event::RunStarted(started) = envelope.event() {
                return Ok(started);
            }
        }
    }
    Err(SteerError::Gone(run.run_id().clone()))
}
