//! Every method that there is, in one table; each group has a file.

mod approvals;
mod coder;
mod discover;
mod follow;
mod policies;
mod proposals;
mod runs;
mod session;
mod state;
mod subscribe;
mod tools;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::rpc::{self, Answer};
use crate::session::Session;

pub(crate) use state::put as put_state;

/// The one method that needs no authentication, being it.
pub(crate) const AUTH: &str = "session.auth";

/// When a request is begun, and when the next one of its connection may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The next one begins when it is finished.
    InTurn,
    /// The next one begins when it first waits.
    Aside,
}

type Call = Box<dyn Fn(Arc<Session>, Option<Box<RawValue>>) -> Working + Send + Sync>;
type Working = Pin<Box<dyn Future<Output = Answer<Box<RawValue>>> + Send>>;

/// A method: how it is called, and how it is described.
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) order: Order,
    pub(crate) call: Call,
    summary: &'static str,
    params: fn(&mut SchemaGenerator) -> Schema,
    result: fn(&mut SchemaGenerator) -> Schema,
}

/// Every method, in the order in which they are described.
static METHODS: LazyLock<Vec<Method>> = LazyLock::new(|| {
    use Order::{Aside, InTurn};
    vec![
        method(AUTH, InTurn, "Says who one is.", session::auth),
        method(
            "session.info",
            InTurn,
            "What the daemon knows of this session.",
            session::info,
        ),
        method("rpc.discover", InTurn, "This document.", discover::discover),
        method("runs.start", InTurn, "Begins a run.", runs::start),
        method("runs.complete", InTurn, "Ends a run.", runs::complete),
        method(
            "runs.cancel",
            Aside,
            "Stops what is under way and ends the run.",
            runs::cancel,
        ),
        method(
            "runs.record_turns",
            Aside,
            "Records turns of the client's own.",
            runs::record_turns,
        ),
        method("runs.list", Aside, "Lists runs, newest first.", runs::list),
        method(
            "runs.get_trace",
            Aside,
            "Reads the records of a run.",
            runs::get_trace,
        ),
        method(
            "runs.subscribe",
            Aside,
            "Reads the records of a run, and goes on.",
            subscribe::subscribe,
        ),
        method(
            "runs.unsubscribe",
            Aside,
            "Ends a subscription.",
            subscribe::unsubscribe,
        ),
        method(
            "proposal.submit",
            Aside,
            "Has actions done.",
            proposals::submit,
        ),
        method(
            "proposal.cancel",
            Aside,
            "Stops a proposal.",
            proposals::cancel,
        ),
        method("tools.register", InTurn, "Adds tools.", tools::register),
        method("tools.list", InTurn, "Lists tools.", tools::list),
        method(
            "tools.unregister",
            InTurn,
            "Removes tools.",
            tools::unregister,
        ),
        method(
            "policy.register",
            InTurn,
            "Adds a policy.",
            policies::register,
        ),
        method(
            "policy.list",
            InTurn,
            "Lists the policies of this session.",
            policies::list,
        ),
        method("state.get", InTurn, "A value of the state.", state::get),
        method(
            "state.set",
            InTurn,
            "Sets a value of the state.",
            state::set,
        ),
        method(
            "state.exists",
            InTurn,
            "Whether the state has a key.",
            state::exists,
        ),
        method("state.keys", InTurn, "The keys of the state.", state::keys),
        method(
            "state.snapshot",
            InTurn,
            "The whole state.",
            state::snapshot,
        ),
        method(
            "approvals.list",
            InTurn,
            "Lists open questions.",
            approvals::list,
        ),
        method(
            "approvals.resolve",
            Aside,
            "Answers a question.",
            approvals::resolve,
        ),
        method("coder.start", Aside, "Begins a task.", coder::start),
        method(
            "coder.confirm_contract",
            Aside,
            "Agrees with a contract, and lets the agent work.",
            coder::confirm_contract,
        ),
        method(
            "coder.respond",
            Aside,
            "Sends what was proposed back to the agent.",
            coder::respond,
        ),
        method(
            "coder.approve_merge",
            Aside,
            "Delivers what was shown to a person, as a branch.",
            coder::approve_merge,
        ),
        method("coder.cancel", Aside, "Ends a task.", coder::cancel),
        method(
            "coder.list",
            Aside,
            "Lists tasks, newest first.",
            coder::list,
        ),
        method(
            "coder.get",
            Aside,
            "How a task stands, and its patch.",
            coder::get,
        ),
        method(
            "coder.subscribe",
            Aside,
            "Reads the records of a task, and goes on.",
            follow::subscribe,
        ),
        method(
            "coder.unsubscribe",
            Aside,
            "Ends a subscription.",
            follow::unsubscribe,
        ),
    ]
});

static BY_NAME: LazyLock<HashMap<&'static str, &'static Method>> =
    LazyLock::new(|| METHODS.iter().map(|method| (method.name, method)).collect());

/// The method of this name.
pub(crate) fn find(name: &str) -> Option<&'static Method> {
    BY_NAME.get(name).copied()
}

fn method<P, R, F>(
    name: &'static str,
    order: Order,
    summary: &'static str,
    handler: impl Fn(Arc<Session>, P) -> F + Copy + Send + Sync + 'static,
) -> Method
where
    P: DeserializeOwned + JsonSchema + Send,
    R: Serialize + JsonSchema,
    F: Future<Output = Answer<R>> + Send + 'static,
{
    let call = move |session, raw: Option<Box<RawValue>>| {
        let params = rpc::params::<P>(raw.as_deref());
        let working = params.map(|params| handler(session, params));
        Box::pin(async move {
            let result = working?.await?;
            rpc::raw(&result)
        }) as Working
    };
    Method {
        name,
        order,
        call: Box::new(call),
        summary,
        params: |generator| generator.subschema_for::<P>(),
        result: |generator| generator.subschema_for::<R>(),
    }
}

/// Nothing is asked.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// It is done.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Okay {
    /// Always true.
    ok: bool,
}

/// It is done.
pub(crate) const OK: Okay = Okay { ok: true };
