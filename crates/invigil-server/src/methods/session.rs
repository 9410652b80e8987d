//! `session.*`: who is there.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Nothing;
use crate::config::Limits;
use crate::rpc::{Answer, RpcError};
use crate::session::Session;

/// Parameters of `session.auth`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    /// What is in the daemon's `token`, or in its `operator-token`.
    #[serde(default)]
    token: Option<String>,
    /// The agent that this connection speaks for.
    #[serde(default)]
    agent_id: Option<String>,
}

/// A session.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Info {
    /// Names the session.
    session_id: String,
    /// The same; in records it names the client.
    client_id: String,
    /// `client` or `operator`.
    role: &'static str,
    /// The agent that it speaks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    /// The run that proposals are recorded in.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    /// The version of the daemon.
    server: &'static str,
    /// How much of everything there may be.
    limits: Limits,
}

pub(crate) async fn auth(session: Arc<Session>, params: Auth) -> Answer<Info> {
    let daemon = &session.daemon;
    let wrong = || RpcError::unauthenticated("the token is not that of this daemon");
    match &params.token {
        Some(token) if same(token, &daemon.operator_token) => {
            let mut identity = session.identity();
            (identity.authenticated, identity.operator) = (true, true);
        }
        Some(token) if same(token, &daemon.token) => session.identity().authenticated = true,
        None if session.peer.is_vouched_for() => {}
        _ => return Err(wrong()),
    }
    if let Some(agent) = &params.agent_id {
        name("agent_id", agent)?;
        session.speak_for(Some(agent))?;
    }
    info(session, Nothing {}).await
}

pub(crate) async fn info(session: Arc<Session>, _: Nothing) -> Answer<Info> {
    let identity = session.identity().clone();
    Ok(Info {
        session_id: session.id.clone(),
        client_id: session.id.clone(),
        role: if identity.operator {
            "operator"
        } else {
            "client"
        },
        agent_id: identity.agent,
        run_id: session.run().map(|run| run.id().to_string()),
        server: env!("CARGO_PKG_VERSION"),
        limits: session.daemon.config.limits.clone(),
    })
}

/// A name of something must be one.
pub(super) fn name(field: &str, text: &str) -> Answer<()> {
    match text.trim().is_empty() || text.len() > 256 {
        true => Err(RpcError::params(field, "it must have 1 to 256 bytes")),
        false => Ok(()),
    }
}

/// Takes as long for a token that is almost right as for one that is not.
fn same(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |d, (a, b)| d | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

/// A session that is named must be one's own; another's looks like none.
pub(super) fn own(session: &Session, session_id: Option<&String>) -> Answer<()> {
    match session_id {
        Some(id) if *id != session.id => Err(RpcError::not_found("session")),
        _ => Ok(()),
    }
}
