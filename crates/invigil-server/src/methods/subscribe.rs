//! Subscriptions to runs: a first page, and then what becomes durable, read from the journal.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::runs::{PAGE_RECORDS, Trace, read, read_page, seen};
use super::{OK, Okay};
use crate::rpc::{self, Answer};
use crate::runs::{Run, Status};
use crate::session::{Followed, Session};
use crate::subscription::{Sent, Subscription};

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
    let subscription = Subscription::enter(&session, Followed::Run(run.id().to_string()))?;
    let snapshot = read(&run, params.from.unwrap_or(0), PAGE_RECORDS).await;
    let Ok(Trace::Found { page, .. }) = &snapshot else {
        return snapshot;
    };
    let cursor = page.cursor;
    tokio::spawn(async move { pump(&subscription, &run, cursor).await });
    snapshot
}

/// Sends what becomes durable, until the run is over or nobody listens.
async fn pump(subscription: &Subscription, run: &Arc<Run>, mut cursor: u64) {
    let mut standing = run.standing();
    let lagged = |cursor| {
        let words = Lagged {
            run_id: run.id().as_str(),
            cursor,
        };
        async move { subscription.lagged("runs.trace.lagged", &words).await }
    };
    let (run_id, agent_id) = (run.id().as_str(), run.started.agent_id.as_str());
    loop {
        let now = standing.borrow_and_update().clone();
        let (end, status) = (now.records, now.status());
        while cursor < end {
            let Ok(page) = read_page(run, cursor..end, PAGE_RECORDS).await else {
                return lagged(cursor).await;
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
                match subscription.send(frame).await {
                    Sent::Yes => cursor = *next,
                    Sent::Over => return,
                    Sent::Late => return lagged(cursor).await,
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
            () = subscription.over() => return,
        }
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
    Subscription::end(&session, &Followed::Run(params.run_id))?;
    Ok(OK)
}
