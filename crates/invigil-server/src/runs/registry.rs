//! All runs of the daemon: how they begin, how they are found, which are kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use invigil_engine::redact::Redactor;
use invigil_journal::{Options, Sharing, Store, StoreError, SystemClock};
use invigil_schema::{ClientRunStarted, Event, Origin, RunId, Timestamp};

use super::recover::{WRITER, recover};
use super::run::{Row, Run};
use crate::config::{Limits, Retention};
use crate::metrics::Metrics;
use crate::rpc::{Answer, RpcError};

/// How journals of the daemon are written: everything is synced by those who wait for it.
pub(super) fn options(sharing: Sharing) -> Options {
    Options {
        sharing,
        sync_after: None,
        ..Options::default()
    }
}

/// All runs of the daemon.
pub(crate) struct Registry {
    store: Store,
    redactor: Redactor,
    runs: RwLock<BTreeMap<RunId, Arc<Run>>>,
    /// Under which key a run was asked for. Held while one is begun, so that two who ask at once get one.
    keys: tokio::sync::Mutex<HashMap<String, Arc<Run>>>,
    turns_per_run: u64,
    retention: Retention,
    metrics: Arc<Metrics>,
}

/// What a client wants to begin.
pub(crate) struct Start {
    pub(crate) agent_id: String,
    pub(crate) agent_name: Option<String>,
    pub(crate) client_id: String,
    pub(crate) intent: String,
    pub(crate) outcome_description: Option<String>,
    pub(crate) idempotency_key: Option<String>,
}

impl Registry {
    /// Reads a store, and ends what an earlier daemon left open.
    pub(crate) fn open(
        store: Store,
        redactor: Redactor,
        limits: &Limits,
        retention: Retention,
        metrics: Arc<Metrics>,
    ) -> Result<Registry, StoreError> {
        let runs = recover(&store, &redactor)?;
        let keys = runs.iter().filter_map(|run| {
            let key = run.started.idempotency_key.clone()?;
            Some((key, Arc::clone(run)))
        });
        let registry = Registry {
            keys: tokio::sync::Mutex::new(keys.collect()),
            runs: RwLock::new(
                runs.into_iter()
                    .map(|run| (run.id().clone(), run))
                    .collect(),
            ),
            store,
            redactor,
            turns_per_run: limits.turns_per_run,
            retention,
            metrics,
        };
        registry.tidy();
        Ok(registry)
    }

    /// Begins a run, or finds the one of the same key.
    pub(crate) async fn start(&self, start: Start) -> Answer<Arc<Run>> {
        let Some(key) = start.idempotency_key.clone() else {
            return self.create(start).await;
        };
        let mut keys = self.keys.lock().await;
        if let Some(run) = keys.get(&key) {
            if run.started.agent_id != start.agent_id {
                return Err(RpcError::not_now("the idempotency key is another agent's"));
            }
            return Ok(Arc::clone(run));
        }
        let run = self.create(start).await?;
        keys.insert(key, Arc::clone(&run));
        Ok(run)
    }

    async fn create(&self, start: Start) -> Answer<Arc<Run>> {
        let started = ClientRunStarted {
            agent_id: start.agent_id,
            agent_name: start.agent_name,
            client_id: start.client_id,
            intent: start.intent,
            outcome_description: start.outcome_description,
            idempotency_key: start.idempotency_key,
            started_at: SystemTime::now().into(),
        };
        let id = RunId::new(format!("run_{}", uuid::Uuid::now_v7().simple()));
        let id = id.map_err(RpcError::internal)?;
        let (store, redactor) = (self.store.clone(), self.redactor.clone());
        let event = Event::from(started.clone());
        let made = tokio::task::spawn_blocking(move || {
            let clock = Arc::new(SystemClock);
            let made = store.create(&id, clock, options(Sharing::Exclusive), WRITER)?;
            let durable = made
                .1
                .append(Origin::Runtime, &redactor.event(&event))
                .and_then(|ticket| ticket.durable());
            durable.map_err(|error| made.0.error(error))?;
            Ok::<_, StoreError>(made)
        });
        let made = made.await.map_err(RpcError::internal)?;
        let (reference, journal) = made.map_err(RpcError::unrecorded)?;
        let run = Run::open(
            reference,
            journal,
            started,
            self.redactor.clone(),
            self.turns_per_run,
            Arc::clone(&self.metrics),
        );
        let mut runs = self.runs.write().unwrap_or_else(|error| error.into_inner());
        runs.insert(run.id().clone(), Arc::clone(&run));
        Ok(run)
    }

    /// The run of this id.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Run>> {
        let id = RunId::new(id).ok()?;
        let runs = self.runs.read().unwrap_or_else(|error| error.into_inner());
        runs.get(&id).cloned()
    }

    /// Runs, newest first, from behind `cursor` on, as many of those that are wanted as there is room for.
    pub(crate) fn list(
        &self,
        cursor: Option<&RunId>,
        limit: usize,
        wanted: impl Fn(&Row) -> bool,
    ) -> Vec<Row> {
        let runs = self.runs.read().unwrap_or_else(|error| error.into_inner());
        let end = cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = runs.range::<RunId, _>((Bound::Unbounded, end)).rev();
        let rows = rows.map(|(_, run)| run.row()).filter(wanted);
        rows.take(limit).collect()
    }

    /// The runs that are open.
    pub(crate) fn open_runs(&self) -> Vec<Arc<Run>> {
        let runs = self.runs.read().unwrap_or_else(|error| error.into_inner());
        let open = runs.values().filter(|run| !run.is_over());
        open.cloned().collect()
    }

    /// Removes what is over and not to be kept. Blocks.
    pub(crate) fn tidy(&self) {
        if self.retention.count.is_none() && self.retention.age.is_none() {
            return;
        }
        let now: Timestamp = SystemTime::now().into();
        let runs = self.runs.read().unwrap_or_else(|error| error.into_inner());
        let past = runs.values().rev().filter(|run| run.is_over());
        let too_many = self.retention.count.unwrap_or(usize::MAX);
        let removed: Vec<Arc<Run>> = past
            .enumerate()
            .filter(|(newer, run)| {
                let ended = run.row().ended_at.unwrap_or(now);
                let age = self.retention.age;
                *newer >= too_many || age.is_some_and(|age| now.since(ended) > age)
            })
            .map(|(_, run)| Arc::clone(run))
            .collect();
        drop(runs);
        for run in removed {
            match self.store.remove(&run.reference) {
                Ok(()) => {
                    let mut runs = self.runs.write().unwrap_or_else(|error| error.into_inner());
                    runs.remove(run.id());
                    drop(runs);
                    if let (Some(key), Ok(mut keys)) =
                        (&run.started.idempotency_key, self.keys.try_lock())
                    {
                        keys.remove(key);
                    }
                }
                Err(error) => tracing::warn!(run = %run.id(), %error, "cannot be removed"),
            }
        }
    }
}
