//! Subscriptions to tasks: a first page, and then what becomes durable, read from the journal.

use std::sync::Arc;
use std::time::Duration;

use invigil_schema::{Origin, TaskId, TaskState, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::coder::{bench, seen, with};
use super::{OK, Okay};
use crate::rpc::{self, Answer};
use crate::session::{Followed, Session};
use crate::subscription::{Sent, Subscription};
use crate::tasks::{Bench, Standing, Tail};

/// So many records at once.
const PAGE_RECORDS: usize = 256;
/// Between two looks at a task that another process may work on.
const LOOK: Duration = Duration::from_secs(1);
/// The record that nothing follows.
const ENDED: &str = "task_ended";

/// Parameters of `coder.subscribe`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    /// The task.
    task_id: String,
    /// The first record that is wanted; from the beginning if nothing is said.
    #[serde(default)]
    from_seq: Option<u64>,
}

/// A record of a task.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Record {
    /// Its number.
    seq: u64,
    /// When it was recorded.
    time: Timestamp,
    /// Who vouches for it.
    origin: Origin,
    /// What kind it is: task_started, task_contract, check_started, check_completed, task_changed, task_ran,
    /// task_proposed, task_answered, task_ended.
    kind: String,
    /// The facts.
    #[schemars(with = "serde_json::Value")]
    data: Box<RawValue>,
}

/// One record, sent.
#[derive(Serialize)]
struct TaskEvent<'a> {
    task_id: &'a TaskId,
    #[serde(flatten)]
    record: &'a Record,
}

/// The subscription is over; the rest is in the journal.
#[derive(Serialize)]
struct Lagged<'a> {
    task_id: &'a TaskId,
    from_seq: u64,
}

/// The first records.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Subscribed {
    /// The task.
    task_id: TaskId,
    /// How it stands.
    state: TaskState,
    /// What there is already, as far as it fits.
    events: Vec<Record>,
    /// The record that comes next.
    next_seq: u64,
}

pub(crate) async fn subscribe(session: Arc<Session>, params: Subscribe) -> Answer<Subscribed> {
    let (_, view) = seen(&session, &params.task_id).await?;
    let task_id = view.task_id;
    let subscription = Subscription::enter(&session, Followed::Task(task_id.to_string()))?;
    let bench = Arc::clone(bench(&session)?);
    // What is beyond the end is what comes next.
    let from = params.from_seq.unwrap_or(0).min(view.seq + 1);
    let mut follower = Follower::new(&bench, task_id.clone(), from);
    let events = follower.next().await?;
    follower.over |= view.state.is_over() && from > view.seq;
    let subscribed = Subscribed {
        task_id,
        state: view.state,
        next_seq: follower.next_seq,
        events,
    };
    tokio::spawn(async move { pump(&subscription, follower).await });
    Ok(subscribed)
}

/// Parameters of `coder.unsubscribe`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsubscribe {
    /// The task.
    task_id: String,
}

pub(crate) async fn unsubscribe(session: Arc<Session>, params: Unsubscribe) -> Answer<Okay> {
    Subscription::end(&session, &Followed::Task(params.task_id))?;
    Ok(OK)
}

/// Sends what becomes durable, until the task is over or nobody listens.
async fn pump(subscription: &Subscription, mut follower: Follower) {
    while !follower.over {
        let Ok(records) = follower.next().await else {
            return lagged(subscription, &follower.task_id, follower.next_seq).await;
        };
        for record in &records {
            let task_id = &follower.task_id;
            let Ok(frame) = rpc::notification("coder.event", &TaskEvent { task_id, record }) else {
                return;
            };
            match subscription.send(frame).await {
                Sent::Yes => {}
                Sent::Over => return,
                Sent::Late => return lagged(subscription, task_id, record.seq).await,
            }
        }
        if records.is_empty() {
            tokio::select! {
                () = follower.changed() => {}
                () = subscription.over() => return,
            }
        }
    }
}

async fn lagged(subscription: &Subscription, task_id: &TaskId, from_seq: u64) {
    let words = Lagged { task_id, from_seq };
    subscription.lagged("coder.lagged", &words).await;
}

/// Where somebody is in the journal of a task.
struct Follower {
    bench: Arc<Bench>,
    task_id: TaskId,
    news: Option<tokio::sync::watch::Receiver<Standing>>,
    tail: Option<Tail>,
    next_seq: u64,
    /// The last record has been read.
    over: bool,
}

impl Follower {
    fn new(bench: &Arc<Bench>, task_id: TaskId, next_seq: u64) -> Follower {
        Follower {
            news: Some(bench.follow(&task_id)),
            bench: Arc::clone(bench),
            task_id,
            tail: Some(Tail::default()),
            next_seq,
            over: false,
        }
    }

    /// Waits until there may be more.
    async fn changed(&mut self) {
        let Some(news) = &mut self.news else { return };
        // A task that is worked on here is told of; another process says nothing.
        let here = news.borrow().here;
        match here {
            true => drop(news.changed().await),
            false => drop(tokio::time::timeout(LOOK, news.changed()).await),
        }
    }

    /// The next records that are durable, as many as fit.
    async fn next(&mut self) -> Answer<Vec<Record>> {
        let standing = self.news.as_mut().map(|news| *news.borrow_and_update());
        let standing = standing.unwrap_or_default();
        let (task_id, from) = (self.task_id.clone(), self.next_seq);
        let mut tail = self.tail.take().unwrap_or_default();
        let read = with(&self.bench, move |bench| {
            let tasks = bench.workshop.tasks();
            let end = match standing.here {
                true => standing.records,
                false => tail.settled(tasks, &task_id)?.max(standing.records),
            };
            let mut records = Vec::new();
            let mut over = false;
            if from < end
                && let Some(mut reader) = tasks.subscribe(&task_id, from)?
            {
                while records.len() < PAGE_RECORDS
                    && let Some(record) = reader.next()?
                    && record.seq < end
                {
                    let envelope = record.envelope()?;
                    over = envelope.kind == ENDED;
                    records.push(Record {
                        seq: envelope.seq,
                        time: envelope.time,
                        origin: envelope.origin,
                        kind: envelope.kind.into_owned(),
                        data: envelope.data.to_owned(),
                    });
                }
            }
            Ok((records, over, tail))
        });
        let (records, over, tail) = read.await?;
        self.tail = Some(tail);
        self.over = over;
        if let Some(last) = records.last() {
            self.next_seq = last.seq + 1;
        }
        Ok(records)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(news) = self.news.take() {
            self.bench.unfollow(&self.task_id, news);
        }
    }
}
