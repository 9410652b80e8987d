//! One run that clients lead.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use invigil_engine::redact::Redactor;
use invigil_journal::{Journal, RunRef};
use invigil_schema::{
    ClientRunEnded, ClientRunStarted, Digest, Event, Origin, RunId, Termination, Timestamp, Turn,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::line::{Batch, Line, RecordError, Standing};
use crate::metrics::Metrics;
use crate::rpc::{Answer, RpcError};
use crate::session::lock;
use crate::signal::Signal;

/// A run, open or over.
pub(crate) struct Run {
    pub(crate) reference: RunRef,
    pub(crate) started: ClientRunStarted,
    /// None if it was over before this daemon began.
    line: Option<Arc<Line>>,
    standing: watch::Sender<Standing>,
    state: Mutex<State>,
    most: u64,
}

#[derive(Default)]
struct State {
    /// The sessions that lead it.
    sessions: HashSet<String>,
    /// Actions that are under way, and room for their turns.
    under_way: u64,
    /// Its end is on its way; nothing begins any more.
    ending: bool,
    proposals: HashMap<String, Arc<Signal>>,
    /// Actions that a person has allowed for the whole run.
    allowed: HashSet<Digest>,
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It is open.
    Running,
    /// Its client has said how it ended.
    Completed,
    /// Nobody has.
    Incomplete,
    /// It was cancelled.
    Cancelled,
}

/// What the registry knows of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Row {
    /// Its id.
    pub(crate) run_id: RunId,
    /// The agent that it is for.
    pub(crate) agent_id: String,
    /// What people call the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent_name: Option<String>,
    /// The connection that began it.
    pub(crate) client_id: String,
    /// What is to be done.
    pub(crate) intent: String,
    /// How one would see that it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome_description: Option<String>,
    /// When it began.
    pub(crate) started_at: Timestamp,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) termination: Option<Termination>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<Timestamp>,
    /// How many turns are durable.
    pub(crate) turns: u64,
    /// What it is doing.
    pub(crate) status: Status,
}

impl Standing {
    pub(crate) fn status(&self) -> Status {
        match self.ended.as_ref().map(|ended| &ended.termination) {
            None => Status::Running,
            Some(Termination::Outcome { .. }) => Status::Completed,
            Some(Termination::Incomplete) => Status::Incomplete,
            Some(Termination::Cancelled) => Status::Cancelled,
        }
    }
}

impl Run {
    /// An open run. Its first records are durable.
    pub(crate) fn open(
        reference: RunRef,
        journal: Journal,
        started: ClientRunStarted,
        redactor: Redactor,
        most: u64,
        metrics: Arc<Metrics>,
    ) -> Arc<Run> {
        let standing = watch::Sender::new(Standing {
            turns: 0,
            records: journal.head().seq + 1,
            ended: None,
        });
        let (publisher, counted) = (standing.clone(), Arc::clone(&metrics));
        let publish = move |standing: Standing| {
            if standing.ended.is_some() {
                counted.runs_open.less();
            }
            publisher.send_replace(standing);
        };
        metrics.runs_open.add(1);
        metrics.runs_total.add(1);
        let line = Line::new(journal, redactor, most, metrics, Box::new(publish));
        Arc::new(Run {
            reference,
            started,
            line: Some(line),
            standing,
            state: Mutex::default(),
            most,
        })
    }

    /// A run of the past.
    pub(crate) fn over(
        reference: RunRef,
        started: ClientRunStarted,
        ended: ClientRunEnded,
        records: u64,
    ) -> Arc<Run> {
        let standing = watch::Sender::new(Standing {
            turns: ended.turns,
            records,
            ended: Some(ended),
        });
        Arc::new(Run {
            reference,
            started,
            line: None,
            standing,
            state: Mutex::default(),
            most: 0,
        })
    }

    pub(crate) fn id(&self) -> &RunId {
        self.reference.run_id()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.standing.borrow().ended.is_some()
    }

    /// What is durable, now and later.
    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    pub(crate) fn row(&self) -> Row {
        let standing = self.standing.borrow().clone();
        let (started, status) = (self.started.clone(), standing.status());
        let ended = standing.ended;
        Row {
            run_id: self.id().clone(),
            agent_id: started.agent_id,
            agent_name: started.agent_name,
            client_id: started.client_id,
            intent: started.intent,
            outcome_description: started.outcome_description,
            started_at: started.started_at,
            ended_at: ended.as_ref().map(|ended| ended.ended_at),
            termination: ended.map(|ended| ended.termination),
            turns: standing.turns,
            status,
        }
    }

    fn line(&self) -> Result<&Arc<Line>, RecordError> {
        self.line.as_ref().ok_or(RecordError::Over)
    }

    /// Hands over turns, in this order. The index of the first, when they are durable.
    pub(crate) fn record(
        &self,
        origin: Origin,
        turns: Vec<Turn>,
    ) -> Result<oneshot::Receiver<Result<u64, RecordError>>, RecordError> {
        Ok(self.line()?.record(Batch::Turns(origin, turns)))
    }

    /// Writes one record to the page cache.
    pub(crate) fn note(&self, origin: Origin, event: impl Into<Event>) -> Answer<()> {
        Ok(self.line()?.note(origin, &event.into())?)
    }

    /// A session leads it too.
    pub(crate) fn join(&self, session: &str) {
        lock(&self.state).sessions.insert(session.to_owned());
    }

    /// A session has gone. If it was the last one, the run is over.
    pub(crate) async fn leave(&self, session: &str) {
        let last = {
            let mut state = lock(&self.state);
            state.sessions.remove(session) && state.sessions.is_empty() && !state.ending
        };
        if last && let Err(error) = self.end(Termination::Incomplete).await {
            tracing::warn!(run = %self.id(), %error, "its end could not be recorded");
        }
    }

    /// Takes up a proposal: room for the turns of its actions, and a way to stop it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        proposal: &str,
        actions: u64,
        stop: &Arc<Signal>,
    ) -> Answer<UnderWay> {
        let mut state = lock(&self.state);
        if state.ending || self.is_over() {
            return Err(RecordError::Over.into());
        }
        if self.standing.borrow().turns + state.under_way + actions > self.most {
            return Err(RecordError::Full(self.most).into());
        }
        if state.proposals.contains_key(proposal) {
            let why = format!("the proposal {proposal:?} is under way already");
            return Err(RpcError::not_now(why));
        }
        state.under_way += actions;
        let stop = Arc::clone(stop);
        state.proposals.insert(proposal.to_owned(), stop);
        Ok(UnderWay {
            run: Arc::clone(self),
            proposal: proposal.to_owned(),
            actions,
        })
    }

    /// Ends it as its client says. Refused while something is under way.
    pub(crate) async fn complete(&self, termination: Termination) -> Answer<()> {
        {
            let mut state = lock(&self.state);
            if state.ending || self.is_over() {
                return Err(RecordError::Over.into());
            }
            if state.under_way > 0 {
                let why = "actions are under way: wait for them, or cancel the run";
                return Err(RpcError::not_now(why));
            }
            state.ending = true;
        }
        self.finish(termination).await
    }

    /// Stops everything, waits a while for it, and ends it. Says which proposals have come to an end.
    pub(crate) async fn cancel(&self, patience: Duration) -> Answer<(Vec<String>, Vec<String>)> {
        let proposals = {
            let mut state = lock(&self.state);
            if state.ending || self.is_over() {
                return Err(RecordError::Over.into());
            }
            state.ending = true;
            state.proposals.clone()
        };
        proposals.values().for_each(|stop| stop.fire());
        self.settled(patience).await;
        let left: HashSet<String> = lock(&self.state).proposals.keys().cloned().collect();
        let (left, stopped) = proposals.into_keys().partition(|id| left.contains(id));
        self.finish(Termination::Cancelled).await?;
        Ok((stopped, left))
    }

    /// Ends it without its client, after what is under way.
    pub(crate) async fn end(&self, termination: Termination) -> Answer<()> {
        {
            let mut state = lock(&self.state);
            if state.ending || self.is_over() {
                return Ok(());
            }
            state.ending = true;
            state.proposals.values().for_each(|stop| stop.fire());
        }
        self.settled(Duration::from_secs(5)).await;
        self.finish(termination).await
    }

    async fn settled(&self, patience: Duration) {
        let settled = async {
            while lock(&self.state).under_way > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        drop(tokio::time::timeout(patience, settled).await);
    }

    async fn finish(&self, termination: Termination) -> Answer<()> {
        let end = ClientRunEnded {
            agent_id: self.started.agent_id.clone(),
            termination,
            ended_at: SystemTime::now().into(),
            turns: 0,
        };
        let recorded = self.line()?.record(Batch::End(end)).await;
        let recorded = recorded.unwrap_or_else(|_| Err(RecordError::Journal("no answer".into())));
        if recorded.is_err() {
            lock(&self.state).ending = false;
        }
        recorded.map(|_| ()).map_err(RpcError::from)
    }

    /// Allows an action for the whole run.
    pub(crate) fn allow(&self, action: Digest) {
        lock(&self.state).allowed.insert(action);
    }

    pub(crate) fn is_allowed(&self, action: &Digest) -> bool {
        lock(&self.state).allowed.contains(action)
    }
}

/// A proposal under way in a run; it holds room for its turns.
pub(crate) struct UnderWay {
    run: Arc<Run>,
    proposal: String,
    actions: u64,
}

impl UnderWay {
    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = lock(&self.run.state);
        state.under_way -= self.actions;
        state.proposals.remove(&self.proposal);
    }
}
