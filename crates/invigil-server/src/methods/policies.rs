//! `policy.*`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::session::own;
use super::{Nothing, OK, Okay};
use crate::proposal::PolicyParams;
use crate::rpc::{Answer, RpcError};
use crate::session::Session;

pub(crate) async fn register(session: Arc<Session>, params: PolicyParams) -> Answer<Okay> {
    own(&session, params.session_id.as_ref())?;
    let most = session.daemon.config.limits.entries;
    let policies = session.policies.write();
    let mut policies = policies.unwrap_or_else(|error| error.into_inner());
    if policies.len() >= most {
        let why = format!("a session has at most {most} policies");
        return Err(RpcError::limit("entries", why));
    }
    policies.register(params, &session.daemon)?;
    Ok(OK)
}

/// What this session has added.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// Names.
    policies: Vec<String>,
}

pub(crate) async fn list(session: Arc<Session>, _: Nothing) -> Answer<Listed> {
    let policies = session.policies.read();
    let policies = policies.unwrap_or_else(|error| error.into_inner());
    Ok(Listed {
        policies: policies.names(),
    })
}
