//! One connection, and everything that belongs to it alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use crate::daemon::Daemon;
use crate::peer::Peer;
use crate::proposal::{Memory, Policies, Tool};
use crate::rpc::{Answer, RpcError};
use crate::runs::Run;
use crate::signal::Signal;
use crate::ws::Outgoing;

/// Frames that wait to be written. More make their senders wait.
pub(crate) const OUTBOX: usize = 64;

/// One connection.
pub(crate) struct Session {
    pub(crate) daemon: Arc<Daemon>,
    /// Names the session and its client.
    pub(crate) id: String,
    pub(crate) peer: Peer,
    pub(crate) outbox: mpsc::Sender<Outgoing>,
    /// The connection is no more.
    pub(crate) gone: Signal,
    identity: Mutex<Identity>,
    /// The open run that proposals are recorded in.
    run: Mutex<Option<Arc<Run>>>,
    pub(crate) tools: RwLock<BTreeMap<String, Arc<Tool>>>,
    pub(crate) policies: RwLock<Policies>,
    pub(crate) state: Mutex<BTreeMap<String, Value>>,
    pub(crate) memory: Mutex<Memory>,
    /// Proposals under way, and how to stop them.
    pub(crate) proposals: Mutex<HashMap<String, Arc<Signal>>>,
    /// Subscriptions, and how to end them.
    pub(crate) subscriptions: Mutex<HashMap<Followed, Arc<Signal>>>,
    /// Requests to the client that wait for an answer.
    calls: Mutex<HashMap<String, oneshot::Sender<Answer<Box<RawValue>>>>>,
    next_call: AtomicU64,
    pub(crate) requests: AtomicUsize,
}

/// What a subscription is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Followed {
    /// The run of this id.
    Run(String),
    /// The task of this id.
    Task(String),
}

/// Who is at the other end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    pub(crate) authenticated: bool,
    /// A person, with the operator's token.
    pub(crate) operator: bool,
    pub(crate) agent: Option<String>,
}

/// A lock that a panic elsewhere does not close: what it guards is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new(
        daemon: Arc<Daemon>,
        peer: Peer,
        outbox: mpsc::Sender<Outgoing>,
    ) -> Arc<Session> {
        let identity = Identity {
            authenticated: peer.is_vouched_for(),
            ..Identity::default()
        };
        let policies = RwLock::new(Policies::new(&daemon));
        Arc::new(Session {
            id: crate::random_id("client"),
            peer,
            outbox,
            gone: Signal::default(),
            identity: Mutex::new(identity),
            run: Mutex::default(),
            tools: RwLock::default(),
            policies,
            state: Mutex::default(),
            memory: Mutex::default(),
            proposals: Mutex::default(),
            subscriptions: Mutex::default(),
            calls: Mutex::default(),
            next_call: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            daemon,
        })
    }

    pub(crate) fn identity(&self) -> MutexGuard<'_, Identity> {
        lock(&self.identity)
    }

    /// The agent that it speaks for, if it has said or been told.
    pub(crate) fn agent(&self) -> Option<String> {
        self.identity().agent.clone()
    }

    /// Whether it may know of what belongs to an agent.
    pub(crate) fn may_see(&self, agent_id: &str) -> bool {
        let identity = self.identity();
        identity.operator || identity.agent.as_deref() == Some(agent_id)
    }

    /// Whether it is the agent.
    pub(crate) fn is(&self, agent_id: &str) -> bool {
        self.identity().agent.as_deref() == Some(agent_id)
    }

    /// Takes up an agent, for good; the one that it has if none is named.
    pub(crate) fn speak_for(&self, agent_id: Option<&str>) -> Answer<String> {
        let mut identity = self.identity();
        match (&identity.agent, agent_id) {
            (Some(own), Some(other)) if own != other => Err(RpcError::not_now(format!(
                "this session speaks for the agent {own}: open another connection"
            ))),
            (Some(own), _) => Ok(own.clone()),
            (None, named) => {
                let agent = named.map_or_else(|| crate::random_id("agent"), str::to_owned);
                identity.agent = Some(agent.clone());
                Ok(agent)
            }
        }
    }

    /// The open run that proposals are recorded in.
    pub(crate) fn run(&self) -> Option<Arc<Run>> {
        let mut run = lock(&self.run);
        run.take_if(|run| run.is_over());
        run.clone()
    }

    pub(crate) fn set_run(&self, run: Arc<Run>) {
        *lock(&self.run) = Some(run);
    }

    /// Puts a frame into the outbox; waits while it is full.
    pub(crate) async fn send(&self, text: String) {
        // Whom nobody hears any more is told nothing.
        drop(self.outbox.send(Outgoing::Text(text)).await);
    }

    /// Puts a frame into the outbox if there is room.
    pub(crate) fn try_send(&self, text: String) {
        drop(self.outbox.try_send(Outgoing::Text(text)));
    }

    /// Begins a request to the client: its id, and where its answer comes.
    pub(crate) fn begin_call(&self) -> (String, oneshot::Receiver<Answer<Box<RawValue>>>) {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}:{number}", self.id);
        let (sender, receiver) = oneshot::channel();
        lock(&self.calls).insert(id.clone(), sender);
        (id, receiver)
    }

    /// Nobody waits for it any more; what comes is late.
    pub(crate) fn forget_call(&self, id: &str) {
        lock(&self.calls).remove(id);
    }

    /// An answer of the client.
    pub(crate) fn answered(&self, id: &RawValue, answer: Answer<Box<RawValue>>) {
        let id: Option<String> = serde_json::from_str(id.get()).ok();
        let waiting = id.and_then(|id| lock(&self.calls).remove(&id));
        let taken = waiting.is_some_and(|waiting| waiting.send(answer).is_ok());
        if !taken {
            self.daemon.metrics.late_answers_total.add(1);
        }
    }

    /// The connection is gone: whoever waits for it is told, and its run is left.
    pub(crate) async fn close(&self) {
        self.gone.fire();
        lock(&self.calls).clear();
        let proposals: Vec<_> = lock(&self.proposals).keys().cloned().collect();
        if !proposals.is_empty() {
            tracing::info!(
                session = self.id,
                ?proposals,
                "gone with proposals under way"
            );
        }
        // What is under way records its end first.
        let patience = Duration::from_secs(5);
        let settled = async {
            while self.requests.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        drop(tokio::time::timeout(patience, settled).await);
        if let Some(run) = self.run() {
            run.leave(&self.id).await;
        }
    }
}
