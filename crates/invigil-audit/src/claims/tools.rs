//! What the agent's framework reports of its tools: what each was called with, and what it says came of it.

use std::collections::BTreeMap;

use invigil_schema::{SdkEvent, SdkEventType};
use serde_json::Value;

use super::ToolDid;

/// As many calls are open at once, at most; older ones are forgotten.
const OPEN_MAX: usize = 1024;

/// A call, from the record of its start to that of its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) id: String,
    pub(super) from: u64,
    pub(super) did: ToolDid,
}

/// Calls that were started and have not ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    open: BTreeMap<String, (u64, ToolDid)>,
}

impl Calls {
    /// A call that this report ends, if it says something that can be looked at.
    pub(super) fn take(&mut self, seq: u64, event: &SdkEvent) -> Option<Call> {
        let (id, tool) = (event.tool_call_id.clone()?, event.tool.clone()?);
        match event.event_type {
            SdkEventType::ToolCallStarted => {
                if self.open.len() >= OPEN_MAX
                    && let Some(oldest) = self.oldest()
                {
                    self.open.remove(&oldest);
                }
                let did = asked_for(&tool, &event.body)?;
                self.open.insert(id, (seq, did));
                None
            }
            SdkEventType::ToolCallCompleted => {
                let (from, did) = self.open.remove(&id)?;
                let did = with_result(did, &event.body);
                Some(Call {
                    tool,
                    id,
                    from,
                    did,
                })
            }
            _ => None,
        }
    }

    fn oldest(&self) -> Option<String> {
        let oldest = self.open.iter().min_by_key(|(_, (seq, _))| *seq);
        oldest.map(|(id, _)| id.clone())
    }
}

/// What a call is to do, if it is a command or a change of a file.
fn asked_for(tool: &str, body: &Value) -> Option<ToolDid> {
    let arguments = arguments(body)?;
    let text = |names: &[&str]| {
        let mut found = names
            .iter()
            .filter_map(|name| arguments.get(name)?.as_str());
        found.next().map(str::to_owned)
    };
    if let Some(command) = text(&["command", "cmd"]) {
        let (exit_code, ok) = (None, None);
        return Some(ToolDid::Command {
            command,
            exit_code,
            ok,
        });
    }
    let tool = tool.to_ascii_lowercase();
    let writes = [
        "write", "edit", "create", "patch", "replace", "save", "append",
    ];
    if !writes.iter().any(|word| tool.contains(word)) {
        return None;
    }
    let path = text(&["path", "file_path", "filename", "file", "filePath"])?;
    Some(ToolDid::Write { path, ok: None })
}

fn arguments(body: &Value) -> Option<Value> {
    let names = ["arguments", "args", "input", "parameters"];
    let found = names.iter().find_map(|name| body.get(name))?;
    match found {
        Value::String(text) => serde_json::from_str(text).ok(),
        found => Some(found.clone()),
    }
}

fn with_result(did: ToolDid, body: &Value) -> ToolDid {
    let places = [
        Some(body),
        body.get("result"),
        body.get("output"),
        body.get("response"),
    ];
    let places: Vec<&Value> = places.into_iter().flatten().collect();
    let find = |names: &[&str]| {
        let all = places
            .iter()
            .flat_map(|place| names.iter().map(|name| place.get(name)));
        all.flatten().next()
    };
    let code =
        find(&["exit_code", "exitCode", "returncode", "exit_status"]).and_then(Value::as_i64);
    let flag = find(&["ok", "success"]).and_then(Value::as_bool);
    let error = find(&["is_error", "isError"]).and_then(Value::as_bool);
    let said = flag.or(error.map(|error| !error));
    match did {
        ToolDid::Command { command, .. } => ToolDid::Command {
            command,
            exit_code: code,
            ok: said,
        },
        ToolDid::Write { path, .. } => ToolDid::Write { path, ok: said },
    }
}

/// What is said in a report that is a message, or the end of the agent's work.
pub(super) fn spoken(event: &SdkEvent) -> Option<String> {
    let says = matches!(
        event.event_type,
        SdkEventType::Message | SdkEventType::RunFinished | SdkEventType::RunFailed
    );
    let body = &event.body;
    let role = body.get("role").and_then(Value::as_str);
    if !says || role.is_some_and(|role| !matches!(role, "assistant" | "agent" | "model")) {
        return None;
    }
    let names = [
        "text",
        "content",
        "message",
        "summary",
        "final_message",
        "result",
        "output",
    ];
    let mut texts: Vec<String> = names
        .iter()
        .filter_map(|name| text(body.get(name)?))
        .collect();
    texts.dedup();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Text that is a string, in blocks, or one level deeper.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts: Vec<String> = blocks.iter().filter_map(text).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        Value::Object(object) => {
            let typed = object.get("type").and_then(Value::as_str);
            // Of the blocks of a message, only text is said.
            if typed.is_some_and(|typed| !matches!(typed, "text" | "output_text" | "message")) {
                return None;
            }
            let inner = object.get("text").or_else(|| object.get("content"))?;
            text(inner)
        }
        _ => None,
    }
}
