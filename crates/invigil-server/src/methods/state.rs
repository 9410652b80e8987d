//! `state.*`: what a session keeps for its actions.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Nothing, OK, Okay};
use crate::config::Limits;
use crate::rpc::{Answer, RpcError};
use crate::session::{Session, lock};

/// A key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    /// Which.
    key: String,
}

/// A value.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Found {
    /// The value; null if there is none.
    value: Value,
    /// Whether there is one.
    exists: bool,
}

pub(crate) async fn get(session: Arc<Session>, params: Key) -> Answer<Found> {
    let value = lock(&session.state).get(&params.key).cloned();
    let exists = value.is_some();
    let value = value.unwrap_or_default();
    Ok(Found { value, exists })
}

/// Parameters of `state.set`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Set {
    /// Which.
    key: String,
    /// To what.
    value: Value,
}

pub(crate) async fn set(session: Arc<Session>, params: Set) -> Answer<Okay> {
    let limits = &session.daemon.config.limits;
    let mut state = lock(&session.state);
    put(&mut state, &params.key, params.value, limits)?;
    Ok(OK)
}

/// Sets a key, if there is room.
pub(crate) fn put(
    state: &mut BTreeMap<String, Value>,
    key: &str,
    value: Value,
    limits: &Limits,
) -> Answer<()> {
    let size = |key: &str, value: &Value| 64 + key.len() + value.to_string().len();
    let others = state.iter().filter(|(other, _)| *other != key);
    let bytes: usize = others.map(|(key, value)| size(key, value)).sum();
    if bytes + size(key, &value) > limits.state_bytes {
        let why = format!("the state has at most {} bytes", limits.state_bytes);
        return Err(RpcError::limit("state_bytes", why));
    }
    if !state.contains_key(key) && state.len() >= limits.entries {
        let why = format!("the state has at most {} keys", limits.entries);
        return Err(RpcError::limit("entries", why));
    }
    state.insert(key.to_owned(), value);
    Ok(())
}

/// Whether it is there.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Exists {
    /// Whether.
    exists: bool,
}

pub(crate) async fn exists(session: Arc<Session>, params: Key) -> Answer<Exists> {
    let exists = lock(&session.state).contains_key(&params.key);
    Ok(Exists { exists })
}

/// All keys.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Keys {
    /// Sorted.
    keys: Vec<String>,
}

pub(crate) async fn keys(session: Arc<Session>, _: Nothing) -> Answer<Keys> {
    let keys = lock(&session.state).keys().cloned().collect();
    Ok(Keys { keys })
}

/// Everything.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Snapshot {
    /// All keys and values.
    state: BTreeMap<String, Value>,
}

pub(crate) async fn snapshot(session: Arc<Session>, _: Nothing) -> Answer<Snapshot> {
    let state = lock(&session.state).clone();
    Ok(Snapshot { state })
}
