//! A proposal from its first action to its last turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use invigil_schema::{Origin, Turn, TurnStatus};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::act::{Done, act};
use super::plan::{Planned, plan};
use super::reference;
use super::tool::Tool;
use super::turn::{kept, turn};
use super::wire::{Action, ActionResult, Cost, FailureBehavior, Proposal, Submitted};
use crate::rpc::{Answer, RpcError};
use crate::runs::{RecordError, Run, UnderWay};
use crate::session::{Session, lock};
use crate::signal::Signal;

/// A proposal without its actions.
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) source: Option<String>,
    pub(crate) context: Option<Value>,
}

/// What the actions of a proposal share.
pub(crate) struct Context {
    pub(crate) session: Arc<Session>,
    pub(crate) proposal: About,
    pub(crate) stop: Arc<Signal>,
    under_way: Option<UnderWay>,
}

impl Context {
    /// The run that it is recorded in.
    pub(crate) fn run(&self) -> Option<&Arc<Run>> {
        self.under_way.as_ref().map(UnderWay::run)
    }

    /// A tool of the session, else one of the daemon's own.
    pub(crate) fn tool(&self, name: &str) -> Option<Arc<Tool>> {
        let tools = self.session.tools.read();
        let tools = tools.unwrap_or_else(|error| error.into_inner());
        let own = tools.get(name).cloned();
        own.or_else(|| self.session.daemon.built_in_tool(name))
    }

    pub(crate) fn kept(&self, parameters: &Map<String, Value>) -> Value {
        let limits = &self.session.daemon.config.limits;
        kept(Value::Object(parameters.clone()), limits)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        lock(&self.session.proposals).remove(&self.proposal.id);
    }
}

impl Action {
    /// How many more tries there are.
    pub(crate) fn retries(&self) -> u32 {
        let wanted = u32::from(self.failure_behavior == FailureBehavior::Retry);
        self.max_retries.unwrap_or(wanted)
    }
}

/// Carries out a proposal. It is answered when its turns are durable.
pub(crate) async fn submit(session: Arc<Session>, proposal: Proposal) -> Answer<Submitted> {
    let begun = Instant::now();
    if session.daemon.going_down.is_fired() {
        return Err(RpcError::going_down());
    }
    let limits = &session.daemon.config.limits;
    let about = About {
        id: proposal.id.clone(),
        source: proposal.source.clone(),
        context: proposal.context.clone().map(|value| kept(value, limits)),
    };
    let actions = plan(proposal, limits)?;
    let context = Arc::new(begin(session, about, actions.len())?);
    let metrics = &context.session.daemon.metrics;
    metrics.proposals_total.add(1);
    let mut work = Work::new(Arc::clone(&context), actions);
    work.all().await;
    let (results, recorded, mut cost) = work.finish();
    metrics.actions_total.add(results.len() as u64);
    for recorded in recorded {
        let recorded = recorded.await;
        recorded.unwrap_or_else(|_| Err(RecordError::Journal("no answer".to_owned())))?;
    }
    cost.total_duration_ms = begun.elapsed().as_millis() as u64;
    Ok(Submitted {
        proposal_id: context.proposal.id.clone(),
        results,
        cost,
    })
}

fn begin(session: Arc<Session>, proposal: About, actions: usize) -> Answer<Context> {
    let stop = Arc::new(Signal::default());
    let id = &proposal.id;
    let mut proposals = lock(&session.proposals);
    if proposals.contains_key(id) {
        let why = format!("the proposal {id:?} is under way already");
        return Err(RpcError::not_now(why));
    }
    let run = session.run();
    let under_way = run
        .map(|run| run.begin(id, actions as u64, &stop))
        .transpose()?;
    proposals.insert(id.clone(), Arc::clone(&stop));
    drop(proposals);
    Ok(Context {
        session,
        proposal,
        stop,
        under_way,
    })
}

/// An action that has come to its end.
struct Ended {
    place: usize,
    done: Done,
    result: ActionResult,
    turn: Turn,
}

struct Work {
    context: Arc<Context>,
    actions: Vec<Arc<Planned>>,
    /// What has not begun.
    waiting: Vec<usize>,
    ended: Vec<Option<Ended>>,
    outputs: HashMap<String, Value>,
    aborted: Option<String>,
    /// Turns up to here are on their way into the journal.
    handed: usize,
    recorded: Vec<oneshot::Receiver<Result<u64, RecordError>>>,
    unrecorded: Option<RecordError>,
}

impl Work {
    fn new(context: Arc<Context>, actions: Vec<Planned>) -> Work {
        Work {
            context,
            waiting: (0..actions.len()).collect(),
            ended: actions.iter().map(|_| None).collect(),
            actions: actions.into_iter().map(Arc::new).collect(),
            outputs: HashMap::new(),
            aborted: None,
            handed: 0,
            recorded: Vec::new(),
            unrecorded: None,
        }
    }

    /// Carries out everything, what is independent side by side.
    async fn all(&mut self) {
        let mut running = JoinSet::new();
        loop {
            let mut ready = self.ready();
            // The last that is ready needs no task of its own if nothing else runs.
            let here = match running.is_empty() {
                true => ready.pop(),
                false => None,
            };
            for place in ready {
                running.spawn(self.one(place));
            }
            let ended = match here {
                Some(place) if running.is_empty() => Some(Ok(self.one(place).await)),
                Some(place) => {
                    running.spawn(self.one(place));
                    running.join_next().await
                }
                None => running.join_next().await,
            };
            match ended {
                Some(Ok(ended)) => self.take(ended),
                Some(Err(error)) => tracing::error!(%error, "an action broke"),
                None if self.waiting.is_empty() => break,
                None => {}
            }
            self.hand_over();
        }
        self.hand_over();
    }

    /// Takes those out whose needs have succeeded; ends those that will never begin.
    fn ready(&mut self) -> Vec<usize> {
        let stopped = self.context.stop.is_fired() || self.context.session.gone.is_fired();
        let (mut ready, mut never) = (Vec::new(), Vec::new());
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|place| {
            let needs = &self.actions[*place].needs;
            let status = |need: &usize| self.ended[*need].as_ref().map(|need| need.done.status);
            let unmet = needs
                .iter()
                .find(|need| status(need).is_some_and(|status| status != TurnStatus::Succeeded));
            if stopped {
                let gone = self.context.session.gone.is_fired();
                let (status, why) = match gone {
                    true => (TurnStatus::Interrupted, "its client went away"),
                    false => (TurnStatus::Cancelled, "it was cancelled"),
                };
                never.push((*place, status, why.to_owned()));
            } else if let Some(id) = &self.aborted {
                let why = format!("{id:?} did not succeed");
                never.push((*place, TurnStatus::Skipped, why));
            } else if let Some(unmet) = unmet {
                let why = format!("{:?} did not succeed", self.actions[*unmet].action.id);
                never.push((*place, TurnStatus::Skipped, why));
            } else if needs.iter().all(|need| status(need).is_some()) {
                ready.push(*place);
            } else {
                return true;
            }
            false
        });
        self.waiting = waiting;
        let any = !never.is_empty();
        for (place, status, why) in never {
            let planned = Arc::clone(&self.actions[place]);
            let parameters = planned.action.parameters.clone();
            let done = Done::badly(status, why);
            let now = (SystemTime::now(), Instant::now());
            self.take(ended(
                &self.context,
                place,
                &planned.action,
                parameters,
                done,
                now,
            ));
        }
        if any && ready.is_empty() {
            return self.ready();
        }
        ready
    }

    /// One action, with its references resolved as things are now.
    fn one(&self, place: usize) -> impl Future<Output = Ended> + Send + 'static {
        let (context, planned) = (Arc::clone(&self.context), Arc::clone(&self.actions[place]));
        let output = |id: &str| self.outputs.get(id);
        let resolved = reference::resolve(&planned.action.parameters, &output);
        async move {
            let action = &planned.action;
            let now = (SystemTime::now(), Instant::now());
            let (parameters, done) = match resolved {
                Ok(parameters) => {
                    let done = act(&context, action, &parameters).await;
                    (parameters, done)
                }
                Err(why) => {
                    let done = Done::badly(TurnStatus::Failed, why);
                    (action.parameters.clone(), done)
                }
            };
            ended(&context, place, action, parameters, done, now)
        }
    }

    fn take(&mut self, ended: Ended) {
        let action = &self.actions[ended.place].action;
        match ended.done.status {
            TurnStatus::Succeeded => {
                let output = ended.done.output.clone().unwrap_or_default();
                self.outputs.insert(action.id.clone(), output);
            }
            TurnStatus::Skipped | TurnStatus::Cancelled | TurnStatus::Interrupted => {}
            _ if action.failure_behavior == FailureBehavior::Skip => {}
            _ => self.aborted = Some(action.id.clone()),
        }
        if ended.done.status == TurnStatus::Rejected {
            self.context
                .session
                .daemon
                .metrics
                .actions_rejected_total
                .add(1);
        }
        let place = ended.place;
        self.ended[place] = Some(ended);
    }

    /// Hands turns to the journal as soon as all before them are there.
    fn hand_over(&mut self) {
        let Some(run) = self.context.run() else {
            return;
        };
        let mut turns = Vec::new();
        while let Some(Some(ended)) = self.ended.get(self.handed) {
            turns.push(ended.turn.clone());
            self.handed += 1;
        }
        if turns.is_empty() {
            return;
        }
        match run.record(Origin::Runtime, turns) {
            Ok(recorded) => self.recorded.push(recorded),
            Err(error) => self.unrecorded = Some(error),
        }
    }

    #[expect(clippy::type_complexity, reason = "taken apart at once")]
    fn finish(
        self,
    ) -> (
        Vec<ActionResult>,
        Vec<oneshot::Receiver<Result<u64, RecordError>>>,
        Cost,
    ) {
        let mut cost = Cost::default();
        let mut results = Vec::with_capacity(self.ended.len());
        for ended in self.ended.into_iter().flatten() {
            cost.tool_calls += u64::from(ended.done.attempts);
            match ended.done.status {
                TurnStatus::Succeeded | TurnStatus::Failed | TurnStatus::TimedOut => {
                    cost.actions_executed += 1;
                }
                _ => cost.actions_skipped += 1,
            }
            results.push(ended.result);
        }
        let mut recorded = self.recorded;
        if let Some(error) = self.unrecorded {
            let (sender, receiver) = oneshot::channel();
            drop(sender.send(Err(error)));
            recorded.push(receiver);
        }
        (results, recorded, cost)
    }
}

fn ended(
    context: &Context,
    place: usize,
    action: &Action,
    parameters: Map<String, Value>,
    done: Done,
    (started_at, began): (SystemTime, Instant),
) -> Ended {
    let duration_ms = began.elapsed().as_millis() as u64;
    let limits = &context.session.daemon.config.limits;
    let turn = turn(
        &context.proposal.id,
        action,
        Value::Object(parameters),
        &done,
        started_at.into(),
        duration_ms,
        limits,
    );
    let result = ActionResult {
        action_id: action.id.clone(),
        status: done.status,
        output: done.output.clone(),
        error: done.error.clone(),
        rejected_by: done.rejected_by,
        policy_rejected: done.policy.clone(),
        duration_ms,
    };
    Ended {
        place,
        done,
        result,
        turn,
    }
}
