//! Subscriptions: a first page, and then what becomes durable, read from the journal.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::runs::{PAGE_RECORDS, Trace, read, read_page, seen};
use super::{OK, Okay};
use crate::rpc::{self, Answer, RpcError};
use crate::runs::{Run, Status};
use crate::session::{Session, lock};
use crate::signal::Signal;
use crate::ws::Outgoing;

/// Parameters of `runs.subscribe`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    /// The run.
    run_id: String,
    /// A cursor; from the beginning if there is none.
    #[serde(default)]
    from: Option<u64>,
}

/// One record, sent.
#[derive(Serialize)]
struct TraceEvent<'a> {
    run_id: &'a str,
    agent_id: &'a str,
    record: &'a RawValue,
    cursor: u64,
    status: Status,
}

/// The subscription is over; the rest is in the journal.
#[derive(Serialize)]
struct Lagged<'a> {
    run_id: &'a str,
    cursor: u64,
}

pub(crate) async fn subscribe(session: Arc<Session>, params: Subscribe) -> Answer<Trace> {
    let Some(run) = seen(&session, &params.run_id) else {
        return Ok(Trace::missing(params.run_id));
    };
    let id = run.id().to_string();
    let stop = Arc::new(Signal::default());
    {
        let mut subscriptions = lock(&session.subscriptions);
        let most = session.daemon.config.limits.entries;
        if subscriptions.len() >= most {
            let why = format!("{most} subscriptions are open in this session");
            return Err(RpcError::limit("entries", why));
        }
        // Another one for the same run takes the place of the first.
        if let Some(before) = subscriptions.insert(id.clone(), Arc::clone(&stop)) {
            before.fire();
        }
    }
    let snapshot = read(&run, params.from.unwrap_or(0), PAGE_RECORDS).await;
    let Ok(Trace::Found { page, .. }) = &snapshot else {
        lock(&session.subscriptions).remove(&id);
        return snapshot;
    };
    let cursor = page.cursor;
    tokio::spawn(async move {
        session.daemon.metrics.subscriptions.add(1);
        pump(&session, &run, cursor, &stop).await;
        let mut subscriptions = lock(&session.subscriptions);
        if subscriptions
            .get(&id)
            .is_some_and(|own| Arc::ptr_eq(own, &stop))
        {
            subscriptions.remove(&id);
        }
        session.daemon.metrics.subscriptions.less();
    });
    snapshot
}

/// Sends what becomes durable, until the run is over or nobody listens.
async fn pump(session: &Arc<Session>, run: &Arc<Run>, mut cursor: u64, stop: &Signal) {
    let mut standing = run.standing();
    let patience = Duration::from_millis(session.daemon.config.limits.lag_ms);
    let (run_id, agent_id) = (run.id().as_str(), run.started.agent_id.as_str());
    loop {
        let now = standing.borrow_and_update().clone();
        let (end, status) = (now.records, now.status());
        while cursor < end {
            let Ok(page) = read_page(run, cursor..end, PAGE_RECORDS).await else {
                return lagged(session, stop, run_id, cursor).await;
            };
            for (record, next) in page.records.iter().zip(&page.cursors) {
                let event = TraceEvent {
                    run_id,
                    agent_id,
                    record,
                    cursor: *next,
                    // The last event is the one that says that it is over.
                    status: if *next < end { Status::Running } else { status },
                };
                let Ok(frame) = rpc::notification("runs.trace.event", &event) else {
                    return;
                };
                if stop.is_fired() || session.gone.is_fired() {
                    return;
                }
                let sent = session.outbox.send(Outgoing::Text(frame));
                match timeout(patience, sent).await {
                    Ok(Ok(())) => cursor = *next,
                    Ok(Err(_)) => return,
                    Err(_) => return lagged(session, stop, run_id, cursor).await,
                }
            }
            if page.cursor == cursor && page.records.is_empty() {
                break;
            }
            cursor = page.cursor;
        }
        if now.ended.is_some() {
            return;
        }
        tokio::select! {
            changed = standing.changed() => if changed.is_err() { return },
            () = stop.wait() => return,
            () = session.gone.wait() => return,
        }
    }
}

/// Tells a slow one, as soon as it can be told anything.
async fn lagged(session: &Session, stop: &Signal, run_id: &str, cursor: u64) {
    let Ok(frame) = rpc::notification("runs.trace.lagged", &Lagged { run_id, cursor }) else {
        return;
    };
    tokio::select! {
        () = session.send(frame) => {}
        () = stop.wait() => {}
        () = session.gone.wait() => {}
    }
}

/// Parameters of `runs.unsubscribe`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsubscribe {
    /// The run.
    run_id: String,
}

pub(crate) async fn unsubscribe(session: Arc<Session>, params: Unsubscribe) -> Answer<Okay> {
    let subscription = lock(&session.subscriptions).remove(&params.run_id);
    let subscription = subscription.ok_or_else(|| RpcError::not_found("subscription"))?;
    subscription.fire();
    Ok(OK)
}
