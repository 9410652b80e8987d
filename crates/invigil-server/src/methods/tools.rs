//! `tools.*`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Nothing;
use crate::proposal::{Tool, ToolInfo};
use crate::rpc::{Answer, RpcError};
use crate::session::Session;

/// Parameters of `tools.register`: a list, or an object with one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Register {
    /// A list.
    List(Vec<serde_json::Value>),
    /// An object with one.
    Object(RegisterObject),
}

/// Tools to be registered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegisterObject {
    /// The tools.
    tools: Vec<serde_json::Value>,
}

/// How many there are.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Registered {
    /// The names of those that were registered.
    registered: Vec<String>,
}

pub(crate) async fn register(session: Arc<Session>, params: Register) -> Answer<Registered> {
    let (Register::List(tools) | Register::Object(RegisterObject { tools })) = params;
    let most = session.daemon.config.limits.entries;
    // All or none.
    let mut checked = Vec::with_capacity(tools.len().min(most));
    for (n, tool) in tools.into_iter().enumerate() {
        let field = format!("tools[{n}]");
        let info: ToolInfo = serde_path_to_error::deserialize(tool).map_err(|error| {
            let path = error.path().to_string();
            let field = match path.as_str() {
                "." => field.clone(),
                path => format!("{field}.{path}"),
            };
            RpcError::params(&field, error.into_inner())
        })?;
        if session.daemon.built_in_tool(&info.name).is_some() {
            let why = format!("{:?} is a tool of the daemon itself", info.name);
            return Err(RpcError::params(&format!("{field}.name"), why));
        }
        let info = ToolInfo {
            built_in: false,
            ..info
        };
        checked.push(Tool::new(info, &field)?);
    }
    let tools = session.tools.write();
    let mut tools = tools.unwrap_or_else(|error| error.into_inner());
    let new = checked
        .iter()
        .filter(|tool| !tools.contains_key(&tool.info.name));
    if tools.len() + new.count() > most {
        let why = format!("a session has at most {most} tools");
        return Err(RpcError::limit("entries", why));
    }
    let registered = checked.iter().map(|tool| tool.info.name.clone()).collect();
    for tool in checked {
        tools.insert(tool.info.name.clone(), Arc::new(tool));
    }
    Ok(Registered { registered })
}

/// What can be called.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// The tools of this session and of the daemon.
    tools: Vec<ToolInfo>,
}

pub(crate) async fn list(session: Arc<Session>, _: Nothing) -> Answer<Listed> {
    let own = session.tools.read();
    let own = own.unwrap_or_else(|error| error.into_inner());
    let mut tools: Vec<ToolInfo> = own.values().map(|tool| tool.info.clone()).collect();
    tools.extend(
        session
            .daemon
            .built_in_tools()
            .map(|tool| tool.info.clone()),
    );
    Ok(Listed { tools })
}

/// Parameters of `tools.unregister`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unregister {
    /// Their names.
    names: Vec<String>,
}

/// What is gone.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Unregistered {
    /// The names of those that were there.
    unregistered: Vec<String>,
}

pub(crate) async fn unregister(session: Arc<Session>, params: Unregister) -> Answer<Unregistered> {
    let tools = session.tools.write();
    let mut tools = tools.unwrap_or_else(|error| error.into_inner());
    let mut unregistered = params.names;
    unregistered.retain(|name| tools.remove(name).is_some());
    Ok(Unregistered { unregistered })
}
