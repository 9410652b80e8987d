//! `runs.*`, but for subscriptions.

use std::sync::Arc;
use std::time::Duration;

use invigil_schema::{Origin, Outcome, RunId, Termination, Turn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::name;
use super::{OK, Okay};
use crate::proposal::check_reported;
use crate::rpc::{Answer, RpcError};
use crate::runs::{Page, RecordError, Row, Run, Span, Start, Status, page};
use crate::session::Session;

/// A page has at most so many bytes of records.
const PAGE_BYTES: usize = 1 << 20;
/// And so many records.
pub(super) const PAGE_RECORDS: usize = 1_000;
/// A cancelled run waits so long for those who carry something out.
const PATIENCE: Duration = Duration::from_secs(2);

/// Parameters of `runs.start`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartParams {
    /// What is to be done.
    intent: String,
    /// The agent that it is for.
    #[serde(default)]
    agent_id: Option<String>,
    /// What people call the agent.
    #[serde(default)]
    agent_name: Option<String>,
    /// How one would see that it is done.
    #[serde(default)]
    outcome_description: Option<String>,
    /// Asking again with the same key gives the same run.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// A run that has begun.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Started {
    /// Its id.
    run_id: RunId,
    /// The agent that it is for.
    agent_id: String,
}

pub(crate) async fn start(session: Arc<Session>, params: StartParams) -> Answer<Started> {
    if session.daemon.going_down.is_fired() {
        return Err(RpcError::going_down());
    }
    if params.intent.trim().is_empty() {
        return Err(RpcError::params("intent", "it is blank"));
    }
    let most = session.daemon.config.limits.string_bytes;
    for (field, text) in [
        ("intent", Some(&params.intent)),
        ("agent_name", params.agent_name.as_ref()),
        ("outcome_description", params.outcome_description.as_ref()),
    ] {
        if text.is_some_and(|text| text.len() > most) {
            let why = format!("it has more than {most} bytes");
            return Err(RpcError::params(field, why));
        }
    }
    for (field, text) in [
        ("agent_id", &params.agent_id),
        ("idempotency_key", &params.idempotency_key),
    ] {
        text.iter().try_for_each(|text| name(field, text))?;
    }
    let agent_id = session.speak_for(params.agent_id.as_deref())?;
    let open = session.run();
    let again = |run: &Arc<Run>| {
        let key = &run.started.idempotency_key;
        key.is_some() && *key == params.idempotency_key
    };
    if let Some(run) = open.filter(|run| !again(run)) {
        let why = format!(
            "the run {} is open in this session: complete it first",
            run.id()
        );
        return Err(RpcError::not_now(why));
    }
    let run = session.daemon.registry.start(Start {
        agent_id: agent_id.clone(),
        agent_name: params.agent_name,
        client_id: session.id.clone(),
        intent: params.intent,
        outcome_description: params.outcome_description,
        idempotency_key: params.idempotency_key,
    });
    let run = run.await?;
    if !run.is_over() {
        run.join(&session.id);
        session.set_run(Arc::clone(&run));
    }
    Ok(Started {
        run_id: run.id().clone(),
        agent_id,
    })
}

/// The run, if this session is its agent; otherwise it is as if there were none.
fn own(session: &Session, run_id: &str) -> Answer<Arc<Run>> {
    let run = session.daemon.registry.find(run_id);
    let own = run.filter(|run| session.is(&run.started.agent_id));
    own.ok_or_else(|| RpcError::not_found("run"))
}

/// The run, if this session may know of it.
pub(super) fn seen(session: &Session, run_id: &str) -> Option<Arc<Run>> {
    let run = session.daemon.registry.find(run_id)?;
    session.may_see(&run.started.agent_id).then_some(run)
}

/// Parameters of `runs.complete`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Complete {
    /// The run.
    run_id: String,
    /// How it went.
    outcome: Outcome,
}

pub(crate) async fn complete(session: Arc<Session>, params: Complete) -> Answer<Okay> {
    let run = own(&session, &params.run_id)?;
    let limits = &session.daemon.config.limits;
    let bytes = serde_json::to_vec(&params.outcome).map_or(0, |json| json.len());
    if bytes > limits.turn_bytes {
        let most = limits.turn_bytes;
        let why = format!("outcome has {bytes} bytes, at most {most} are taken");
        return Err(RpcError::limit("turn_bytes", why));
    }
    run.complete(Termination::Outcome {
        status: params.outcome.status,
        outcome: params.outcome,
    })
    .await?;
    let daemon = Arc::clone(&session.daemon);
    tokio::spawn(async move { daemon.tidy().await });
    Ok(OK)
}

/// Parameters of `runs.cancel`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// The run.
    run_id: String,
}

/// What could be stopped.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CancelledRun {
    /// The run.
    run_id: String,
    /// The run is over.
    ok: bool,
    /// Proposals that have come to an end.
    stopped: Vec<String>,
    /// Proposals of which nobody knows.
    unconfirmed: Vec<String>,
}

pub(crate) async fn cancel(session: Arc<Session>, params: Cancel) -> Answer<CancelledRun> {
    let run = own(&session, &params.run_id)?;
    let (stopped, unconfirmed) = run.cancel(PATIENCE).await?;
    Ok(CancelledRun {
        run_id: params.run_id,
        ok: true,
        stopped,
        unconfirmed,
    })
}

/// Parameters of `runs.record_turns`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordTurns {
    /// The run.
    run_id: String,
    /// What was done. The daemon gives the indexes.
    turns: Vec<Turn>,
}

/// What was recorded.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Recorded {
    /// The run.
    run_id: String,
    /// The index of the first turn.
    base_index: u64,
    /// How many there are.
    count: usize,
    /// They are durable.
    ok: bool,
}

pub(crate) async fn record_turns(session: Arc<Session>, params: RecordTurns) -> Answer<Recorded> {
    let run = own(&session, &params.run_id)?;
    let (limits, count) = (&session.daemon.config.limits, params.turns.len());
    if count > limits.turns_per_batch {
        let most = limits.turns_per_batch;
        let why = format!("there are {count} turns, at most {most} are taken at once");
        return Err(RpcError::limit("turns_per_batch", why));
    }
    for (n, turn) in params.turns.iter().enumerate() {
        check_reported(turn, &format!("turns[{n}]"), limits)?;
    }
    let recorded = run.record(Origin::Client, params.turns)?.await;
    let lost = |_| Err(RecordError::Journal("no answer".to_owned()));
    Ok(Recorded {
        run_id: params.run_id,
        base_index: recorded.unwrap_or_else(lost)?,
        count,
        ok: true,
    })
}

/// Parameters of `runs.list`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    /// Only of this agent.
    #[serde(default)]
    agent_id: Option<String>,
    /// Only those that are like this.
    #[serde(default)]
    status: Option<Status>,
    /// At most so many.
    #[serde(default)]
    limit: Option<usize>,
    /// Where the last page ended.
    #[serde(default)]
    cursor: Option<RunId>,
}

/// Runs, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// The runs.
    runs: Vec<Row>,
    /// Where the next page begins, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<RunId>,
}

pub(crate) async fn list(session: Arc<Session>, params: List) -> Answer<Listed> {
    let limit = params.limit.unwrap_or(100).clamp(1, PAGE_RECORDS);
    let wanted = |row: &Row| {
        session.may_see(&row.agent_id)
            && params
                .agent_id
                .as_ref()
                .is_none_or(|agent| *agent == row.agent_id)
            && params.status.is_none_or(|status| status == row.status)
    };
    let registry = &session.daemon.registry;
    let runs = registry.list(params.cursor.as_ref(), limit, wanted);
    let full = runs.len() == limit;
    let cursor = runs.last().map(|row| row.run_id.clone()).filter(|_| full);
    Ok(Listed { runs, cursor })
}

/// Parameters of `runs.get_trace`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetTrace {
    /// The run.
    run_id: String,
    /// Where the last page ended.
    #[serde(default)]
    cursor: Option<u64>,
    /// At most so many records.
    #[serde(default)]
    limit: Option<usize>,
}

/// Records of a run, or that there is none.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Trace {
    /// It is there.
    Found {
        /// The run.
        run_id: RunId,
        /// The agent that it is for.
        agent_id: String,
        /// What it is doing.
        status: Status,
        /// The records.
        #[serde(flatten)]
        page: Page,
    },
    /// It is not, or not for this session.
    Missing {
        /// What was asked for.
        run_id: String,
        /// Always true.
        not_found: bool,
    },
}

impl Trace {
    pub(super) fn missing(run_id: String) -> Trace {
        Trace::Missing {
            run_id,
            not_found: true,
        }
    }
}

pub(crate) async fn get_trace(session: Arc<Session>, params: GetTrace) -> Answer<Trace> {
    let Some(run) = seen(&session, &params.run_id) else {
        return Ok(Trace::missing(params.run_id));
    };
    let limit = params.limit.unwrap_or(PAGE_RECORDS);
    read(&run, params.cursor.unwrap_or(0), limit).await
}

/// A page of what is durable.
pub(super) async fn read(run: &Arc<Run>, from: u64, limit: usize) -> Answer<Trace> {
    let standing = run.standing().borrow().clone();
    let page = read_page(run, from..standing.records, limit).await?;
    Ok(Trace::Found {
        run_id: run.id().clone(),
        agent_id: run.started.agent_id.clone(),
        status: standing.status(),
        page,
    })
}

pub(super) async fn read_page(
    run: &Arc<Run>,
    records: std::ops::Range<u64>,
    limit: usize,
) -> Answer<Page> {
    let span = Span {
        records,
        limit: limit.clamp(1, PAGE_RECORDS),
        bytes: PAGE_BYTES,
    };
    let run = Arc::clone(run);
    let read = tokio::task::spawn_blocking(move || page(&run.reference, &span));
    let read = read.await.map_err(RpcError::internal)?;
    read.map_err(RpcError::internal)
}
