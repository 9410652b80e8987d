//! `approvals.*`: who may see a question, and who may answer it.

use std::collections::HashSet;
use std::sync::Arc;

use invigil_schema::{AnsweredBy, ApprovalDecision, RunId, ToolAsked};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Nothing;
use crate::peer::{self, Peer};
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

/// The process of the person at the other end, or why there is none.
async fn person(session: &Arc<Session>) -> Result<u32, String> {
    let session = Arc::clone(session);
    let looked = tokio::task::spawn_blocking(move || look(&session));
    looked.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Looks at the processes at the other end, and at those of all sessions that lead a run. Blocks.
fn look(session: &Session) -> Result<u32, String> {
    let operator = session.identity().operator;
    if !operator && matches!(session.peer, Peer::Tcp(_)) {
        return Err("to answer needs the operator's token, or the Unix socket".to_owned());
    }
    let processes = session.peer.processes();
    let processes = processes.ok_or("the process at the other end cannot be found")?;
    let line: Vec<u32> = processes
        .iter()
        .flat_map(|pid| peer::ancestry(*pid))
        .collect();
    let mut accused = HashSet::new();
    for other in session.daemon.sessions() {
        if other.run().is_some() {
            accused.extend(other.peer.processes().into_iter().flatten());
        }
    }
    if line.iter().any(|pid| accused.contains(pid)) {
        return Err("a process of a run cannot answer".to_owned());
    }
    let runs = session.daemon.config.home.join("runs");
    if peer::supervises(&line, &runs) {
        return Err("a process of a watched run cannot answer".to_owned());
    }
    let first = processes.first().copied();
    let pid = first.ok_or("the process at the other end cannot be found")?;
    if !operator && !peer::is_at_a_terminal(pid) {
        return Err(
            "without the operator's token, only somebody at a terminal can answer".to_owned(),
        );
    }
    Ok(pid)
}
