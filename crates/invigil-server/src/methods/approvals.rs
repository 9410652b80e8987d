//! `approvals.*`: who may see a question, and who may answer it.

use std::sync::Arc;

use invigil_schema::{AnsweredBy, ApprovalDecision, RunId, ToolAsked};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Nothing;
use crate::person::person;
use crate::rpc::{Answer, RpcError};
use crate::session::Session;

/// An open question.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Open {
    /// The run that it is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// The agent that it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    /// What is asked.
    #[serde(flatten)]
    question: ToolAsked,
}

/// Open questions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// All that this session may see.
    approvals: Vec<Open>,
}

pub(crate) async fn list(session: Arc<Session>, _: Nothing) -> Answer<Listed> {
    let everything = session.identity().operator || person(&session).await.is_ok();
    let agent = session.agent();
    let open = session.daemon.approvals.list().into_iter();
    let seen = open.filter(|asked| everything || agent.is_some() && asked.agent_id == agent);
    let approvals = seen.map(|asked| Open {
        run_id: asked.run.map(|run| run.id().clone()),
        agent_id: asked.agent_id,
        question: asked.question,
    });
    Ok(Listed {
        approvals: approvals.collect(),
    })
}

/// Parameters of `approvals.resolve`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resolve {
    /// The question.
    id: String,
    /// Whether it may happen.
    decision: ApprovalDecision,
    /// Not to be asked about the same action again in this run.
    #[serde(default)]
    remember: bool,
}

/// It is answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Resolved {
    /// The question.
    id: String,
    /// What was decided.
    decision: ApprovalDecision,
    /// Always true.
    ok: bool,
}

pub(crate) async fn resolve(session: Arc<Session>, params: Resolve) -> Answer<Resolved> {
    // Who may answer nothing learns nothing about what there is to be answered.
    let pid = person(&session).await.map_err(RpcError::forbidden)?;
    let daemon = &session.daemon;
    let by = AnsweredBy::Person {
        client_id: session.id.clone(),
        pid: Some(pid),
    };
    let (id, decision) = (&params.id, params.decision);
    let approvals = &daemon.approvals;
    approvals.resolve(id, decision, params.remember, by, &daemon.metrics)?;
    Ok(Resolved {
        id: params.id,
        decision,
        ok: true,
    })
}
