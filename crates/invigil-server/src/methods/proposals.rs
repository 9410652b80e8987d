//! `proposal.*`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::own;
use crate::proposal::{self, Proposal, Submitted};
use crate::rpc::{Answer, RpcError};
use crate::session::{Session, lock};

/// Parameters of `proposal.submit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Submit {
    /// What is to be done.
    proposal: Proposal,
    /// The session; one's own.
    #[serde(default)]
    session_id: Option<String>,
}

pub(crate) async fn submit(session: Arc<Session>, params: Submit) -> Answer<Submitted> {
    own(&session, params.session_id.as_ref())?;
    proposal::submit(session, params.proposal).await
}

/// Parameters of `proposal.cancel`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// The proposal.
    proposal_id: String,
}

/// It is being stopped; its own answer says what became of its actions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Cancelling {
    /// The proposal.
    proposal_id: String,
    /// Always true.
    ok: bool,
}

pub(crate) async fn cancel(session: Arc<Session>, params: Cancel) -> Answer<Cancelling> {
    let found = lock(&session.proposals).get(&params.proposal_id).cloned();
    let stop = found.ok_or_else(|| RpcError::not_found("proposal"))?;
    stop.fire();
    Ok(Cancelling {
        proposal_id: params.proposal_id,
        ok: true,
    })
}
