//! One action: through the gates, then done, as often as it may be tried.

use std::sync::Arc;
use std::time::{Duration, Instant};

use invigil_schema::{ActionStarted, Origin, PolicyRejected, TurnStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::execute::Context;
use super::gate::{self, Refusal, action_digest};
use super::tool::Tool;
use super::wire::{Action, ActionKind, Operator, Precondition, RejectedBy};
use crate::builtin::Cancelled;
use crate::rpc;
use crate::session::lock;

/// What became of an action.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    pub(crate) status: TurnStatus,
    pub(crate) output: Option<Value>,
    pub(crate) error: Option<String>,
    pub(crate) rejected_by: Option<RejectedBy>,
    pub(crate) policy: Option<PolicyRejected>,
    /// How often a tool was called.
    pub(crate) attempts: u32,
}

impl Done {
    fn well(output: Value, attempts: u32) -> Done {
        Done {
            output: Some(output),
            attempts,
            ..Done::badly(TurnStatus::Succeeded, None)
        }
    }

    pub(crate) fn badly(status: TurnStatus, error: impl Into<Option<String>>) -> Done {
        Done {
            status,
            output: None,
            error: error.into(),
            rejected_by: None,
            policy: None,
            attempts: 0,
        }
    }
}

impl From<Refusal> for Done {
    fn from(refusal: Refusal) -> Done {
        match refusal {
            Refusal::Rejected { by, why, policy } => Done {
                rejected_by: Some(by),
                policy,
                ..Done::badly(TurnStatus::Rejected, why)
            },
            Refusal::Stopped => Done::badly(TurnStatus::Cancelled, "it was cancelled".to_owned()),
            Refusal::Gone => {
                Done::badly(TurnStatus::Interrupted, "its client went away".to_owned())
            }
            Refusal::Unrecorded(error) => Done::badly(TurnStatus::Failed, error.to_string()),
        }
    }
}

/// Does an action whose references are resolved.
pub(crate) async fn act(
    context: &Context,
    action: &Action,
    parameters: &Map<String, Value>,
) -> Done {
    if let Err(refusal) = gate::preconditions(context, action) {
        return refusal.into();
    }
    match (action.kind, action.tool.as_deref()) {
        (ActionKind::ToolCall, tool) => {
            let name = tool.unwrap_or_default();
            match gate::tool_call(context, action, name, parameters).await {
                Ok(tool) => call(context, action, &tool, parameters).await,
                Err(refusal) => refusal.into(),
            }
        }
        (kind, _) => of_state(context, kind, parameters),
    }
}

fn of_state(context: &Context, kind: ActionKind, parameters: &Map<String, Value>) -> Done {
    let key = parameters
        .get("key")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let value = parameters.get("value").or(parameters.get("expected"));
    let mut state = lock(&context.session.state);
    match kind {
        ActionKind::StateRead => match state.get(key) {
            Some(value) => Done::well(value.clone(), 0),
            None => Done::badly(TurnStatus::Failed, format!("the state has no {key:?}")),
        },
        ActionKind::StateWrite => {
            let value = value.cloned().unwrap_or_default();
            let limits = &context.session.daemon.config.limits;
            match crate::methods::put_state(&mut state, key, value.clone(), limits) {
                Ok(()) => Done::well(value, 0),
                Err(error) => Done::badly(TurnStatus::Failed, error.to_string()),
            }
        }
        ActionKind::Assertion | ActionKind::ToolCall => {
            let operator = parameters.get("operator").cloned().unwrap_or(json!("eq"));
            let condition = Precondition {
                key: key.to_owned(),
                operator: match serde_json::from_value::<Operator>(operator) {
                    Ok(operator) => operator,
                    Err(error) => return Done::badly(TurnStatus::Failed, error.to_string()),
                },
                value: value.cloned().unwrap_or_default(),
            };
            match condition.holds(state.get(key)) {
                true => Done::well(json!(true), 0),
                false => Done::badly(TurnStatus::Failed, format!("{key:?} is not as asserted")),
            }
        }
    }
}

/// Calls a tool, or gives what it gave before.
async fn call(
    context: &Context,
    action: &Action,
    tool: &Arc<Tool>,
    parameters: &Map<String, Value>,
) -> Done {
    let idempotent = action.idempotent || tool.info.idempotent;
    let remembers = idempotent || tool.ttl().is_some();
    let digest = remembers.then(|| action_digest(&tool.info.name, parameters));
    let memory = &context.session.memory;
    if let Some(digest) = &digest
        && let Some(output) = lock(memory).find(digest, Instant::now())
    {
        return Done::well(output, 0);
    }
    let limits = &context.session.daemon.config.limits;
    let time = Duration::from_millis(action.timeout_ms.unwrap_or(limits.action_ms));
    let most = 1 + action.retries();
    let mut attempt = 1;
    loop {
        let tried = attempt_once(context, action, tool, parameters, attempt, time).await;
        let done = match tried {
            Tried::Well(output) => {
                if let Some(digest) = digest {
                    let until = tool.ttl().map(|ttl| Instant::now() + ttl);
                    lock(memory).keep(digest, &output, until);
                }
                return Done::well(output, attempt);
            }
            Tried::Failed(error) => Done::badly(TurnStatus::Failed, error),
            Tried::TimedOut => {
                let why = format!("no answer within {} ms", time.as_millis());
                Done::badly(TurnStatus::TimedOut, why)
            }
            Tried::Ended(done) => {
                return Done {
                    attempts: attempt,
                    ..done
                };
            }
        };
        let known = done.status == TurnStatus::Failed;
        if attempt >= most || !(known || idempotent) {
            return Done {
                attempts: attempt,
                ..done
            };
        }
        let pause = Duration::from_millis(50 << attempt.min(4));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = context.stop.wait() => return Refusal::Stopped.into(),
            () = context.session.gone.wait() => return Refusal::Gone.into(),
        }
        attempt += 1;
    }
}

/// What one try came to.
enum Tried {
    Well(Value),
    Failed(String),
    TimedOut,
    /// There will be no other.
    Ended(Done),
}

/// What a client is asked to do.
#[derive(Serialize)]
struct Execute<'a> {
    action_id: &'a str,
    tool: &'a str,
    parameters: &'a Map<String, Value>,
    timeout_ms: u64,
    attempt: u32,
    request_id: &'a str,
}

async fn attempt_once(
    context: &Context,
    action: &Action,
    tool: &Arc<Tool>,
    parameters: &Map<String, Value>,
    attempt: u32,
    time: Duration,
) -> Tried {
    let deadline = tokio::time::Instant::now() + time;
    tokio::select! {
        () = tool.turn() => {}
        () = tokio::time::sleep_until(deadline) => return Tried::TimedOut,
        () = context.stop.wait() => return Tried::Ended(Refusal::Stopped.into()),
        () = context.session.gone.wait() => return Tried::Ended(Refusal::Gone.into()),
    }
    // The intention first: a call that is never answered is known after any crash.
    if let Some(run) = context.run() {
        let started = ActionStarted {
            proposal_id: context.proposal.id.clone(),
            action_id: action.id.clone(),
            tool: tool.info.name.clone(),
            parameters: context.kept(parameters),
            attempt,
            source: context.proposal.source.clone(),
            context: context.proposal.context.clone(),
        };
        if let Err(error) = run.note(Origin::Runtime, started) {
            return Tried::Ended(Refusal::Unrecorded(error).into());
        }
    }
    match tool.info.built_in {
        true => built_in(context, tool, parameters, deadline).await,
        false => call_back(context, action, tool, parameters, attempt, deadline, time).await,
    }
}

async fn call_back(
    context: &Context,
    action: &Action,
    tool: &Tool,
    parameters: &Map<String, Value>,
    attempt: u32,
    deadline: tokio::time::Instant,
    time: Duration,
) -> Tried {
    let session = &context.session;
    let (request_id, answer) = session.begin_call();
    let execute = Execute {
        action_id: &action.id,
        tool: &tool.info.name,
        parameters,
        timeout_ms: time.as_millis() as u64,
        attempt,
        request_id: &request_id,
    };
    let frame = match rpc::request(&request_id, "tools.execute", &execute) {
        Ok(frame) => frame,
        Err(error) => return Tried::Failed(error.to_string()),
    };
    session.daemon.metrics.callbacks_total.add(1);
    let answered = async {
        session.send(frame).await;
        answer.await
    };
    let ended = tokio::select! {
        answer = answered => match answer {
            Ok(Ok(output)) => match serde_json::from_str(output.get()) {
                Ok(output) => return Tried::Well(output),
                Err(error) => return Tried::Failed(format!("its answer cannot be read: {error}")),
            },
            Ok(Err(error)) => return Tried::Failed(error.message),
            Err(_) => Tried::Ended(Refusal::Gone.into()),
        },
        () = tokio::time::sleep_until(deadline) => Tried::TimedOut,
        () = context.stop.wait() => Tried::Ended(Refusal::Stopped.into()),
        () = session.gone.wait() => Tried::Ended(Refusal::Gone.into()),
    };
    session.forget_call(&request_id);
    let cancel = json!({ "request_id": request_id });
    if let Ok(cancel) = rpc::notification("tools.cancel", &cancel) {
        session.try_send(cancel);
    }
    ended
}

async fn built_in(
    context: &Context,
    tool: &Arc<Tool>,
    parameters: &Map<String, Value>,
    deadline: tokio::time::Instant,
) -> Tried {
    let daemon = Arc::clone(&context.session.daemon);
    let Some(tools) = daemon.config.built_in.clone() else {
        return Tried::Failed("there are no built-in tools".to_owned());
    };
    let seat = Arc::clone(&daemon.built_in).acquire_owned();
    let seat = tokio::select! {
        seat = seat => seat,
        () = tokio::time::sleep_until(deadline) => return Tried::TimedOut,
        () = context.stop.wait() => return Tried::Ended(Refusal::Stopped.into()),
    };
    let cancelled = Arc::new(Cancelled::default());
    let (name, value) = (tool.info.name.clone(), Value::Object(parameters.clone()));
    let (seen, until) = (Arc::clone(&cancelled), deadline.into_std());
    let mut work = tokio::task::spawn_blocking(move || {
        let result = tools.execute(&name, &value, until, &seen);
        drop(seat);
        result
    });
    let ended = tokio::select! {
        result = &mut work => return match result {
            Ok(Ok(output)) => Tried::Well(output),
            Ok(Err(error)) => Tried::Failed(error),
            Err(error) => Tried::Failed(format!("the tool broke: {error}")),
        },
        () = tokio::time::sleep_until(deadline) => Tried::TimedOut,
        () = context.stop.wait() => Tried::Ended(Refusal::Stopped.into()),
        () = context.session.gone.wait() => Tried::Ended(Refusal::Gone.into()),
    };
    cancelled.set();
    ended
}
