//! Whether an action may be done. The first gate that says no decides.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use invigil_schema::{
    AnsweredBy, ApprovalDecision, Digest, Origin, PolicyRejected, ToolAnswered, ToolAsked,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::execute::Context;
use super::policies::Judgement;
use super::tool::Tool;
use super::wire::{Action, RejectedBy};
use crate::approvals::{Asked, Verdict};
use crate::rpc::RpcError;
use crate::session::lock;

/// Why an action is not done.
#[derive(Debug)]
pub(crate) enum Refusal {
    Rejected {
        by: RejectedBy,
        why: String,
        policy: Option<PolicyRejected>,
    },
    /// It, or its run, was stopped while somebody was asked.
    Stopped,
    /// The client is gone.
    Gone,
    /// What would have to be recorded first could not be.
    Unrecorded(RpcError),
}

impl Refusal {
    fn rejected(by: RejectedBy, why: impl Into<String>) -> Refusal {
        Refusal::Rejected {
            by,
            why: why.into(),
            policy: None,
        }
    }

    fn by_policy(by: RejectedBy, why: String, policy: PolicyRejected) -> Refusal {
        Refusal::Rejected {
            by,
            why,
            policy: Some(policy),
        }
    }
}

/// The hash of exactly what would be done.
pub(crate) fn action_digest(tool: &str, parameters: &Map<String, Value>) -> Digest {
    let mut hash = Sha256::new();
    hash.update(b"invigil.tool.v1\0");
    hash.update(tool.as_bytes());
    hash.update([0]);
    // Members are sorted, so that one call has one text.
    hash.update(serde_json::to_vec(parameters).unwrap_or_default());
    Digest::from_bytes(hash.finalize().into())
}

/// Whether what must hold of the state holds.
pub(crate) fn preconditions(context: &Context, action: &Action) -> Result<(), Refusal> {
    let state = lock(&context.session.state);
    let failed = action
        .preconditions
        .iter()
        .find(|condition| !condition.holds(state.get(&condition.key)));
    match failed {
        None => Ok(()),
        Some(condition) => {
            let why = format!("the precondition on {:?} does not hold", condition.key);
            Err(Refusal::rejected(RejectedBy::Precondition, why))
        }
    }
}

/// Whether a tool may be called with this; the tool, if so.
pub(crate) async fn tool_call(
    context: &Context,
    action: &Action,
    name: &str,
    parameters: &Map<String, Value>,
) -> Result<Arc<Tool>, Refusal> {
    let session = &context.session;
    let judgement = {
        let policies = session.policies.read();
        let policies = policies.unwrap_or_else(|error| error.into_inner());
        policies.judge(name, parameters, &lock(&session.state), Instant::now())
    };
    match judgement {
        Judgement::Allow => {}
        Judgement::Deny(policy) => {
            let why = format!("denied by policy: {}", policy.rule);
            return Err(Refusal::by_policy(RejectedBy::Policy, why, policy));
        }
        Judgement::Ask(policy) => ask(context, action, name, parameters, policy).await?,
    }
    let tool = context.tool(name);
    let tool = tool.ok_or_else(|| {
        let why = format!("no tool {name:?} is registered");
        Refusal::rejected(RejectedBy::UnregisteredTool, why)
    })?;
    tool.check(parameters)
        .map_err(|why| Refusal::rejected(RejectedBy::Parameters, why))?;
    Ok(tool)
}

/// Puts the action to a person, and waits for that alone.
async fn ask(
    context: &Context,
    action: &Action,
    tool: &str,
    parameters: &Map<String, Value>,
    policy: PolicyRejected,
) -> Result<(), Refusal> {
    let (session, daemon) = (&context.session, &context.session.daemon);
    let digest = action_digest(tool, parameters);
    let run = context.run();
    if run.is_some_and(|run| run.is_allowed(&digest)) {
        return Ok(());
    }
    let patience = Duration::from_millis(daemon.config.limits.question_ms);
    let question = ToolAsked {
        id: crate::random_id("ask"),
        proposal_id: context.proposal.id.clone(),
        action_id: action.id.clone(),
        tool: tool.to_owned(),
        parameters: Value::Object(parameters.clone()),
        action: digest,
        rule: policy.rule.clone(),
        deadline: (SystemTime::now() + patience).into(),
    };
    let denied = |why: String| Refusal::by_policy(RejectedBy::Approval, why, policy.clone());
    // Whoever can see it can answer it; so it is written first.
    if let Some(run) = run {
        run.note(Origin::Runtime, question.clone())
            .map_err(Refusal::Unrecorded)?;
    }
    let asked = Asked {
        question: question.clone(),
        agent_id: session.agent(),
        run: run.cloned(),
    };
    let most = daemon.config.limits.questions;
    let Some(mut answer) = daemon.approvals.ask(asked, most, &daemon.metrics) else {
        return Err(denied(format!("{most} questions are open already")));
    };
    let closed = tokio::select! {
        verdict = &mut answer => match verdict {
            // The answer was recorded by whoever took it.
            Ok(Verdict { decision: ApprovalDecision::Allow, .. }) => return Ok(()),
            Ok(Verdict { decision: ApprovalDecision::Deny, .. }) => {
                return Err(denied("a person said no".to_owned()));
            }
            Err(_) => Refusal::Stopped,
        },
        () = tokio::time::sleep(patience) => denied("nobody answered in time".to_owned()),
        () = context.stop.wait() => Refusal::Stopped,
        () = session.gone.wait() => Refusal::Gone,
    };
    if daemon.approvals.withdraw(&question.id, &daemon.metrics)
        && let Some(run) = run
    {
        let by = match &closed {
            Refusal::Rejected { .. } => AnsweredBy::Timeout,
            _ => AnsweredBy::Withdrawn,
        };
        let answered = ToolAnswered {
            id: question.id,
            action: digest,
            decision: ApprovalDecision::Deny,
            remembered: false,
            by,
        };
        run.note(Origin::Runtime, answered)
            .map_err(Refusal::Unrecorded)?;
    }
    Err(closed)
}
