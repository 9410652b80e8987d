//! The two languages that agents speak with a model: OpenAI's Responses and Anthropic's Messages, as streams.

use serde_json::{Value, json};

/// What the scripted model says next.
pub(super) enum Say<'a> {
    /// Run this command.
    Command { step: usize, line: &'a str },
    /// That was all.
    Done,
}

/// The results of tools that a request brings, in their order. None if the request is about something else, such as a title
/// for the session.
pub(super) fn results(path: &str, request: &Value) -> Option<Vec<String>> {
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if path.contains("/responses") {
        responses_tool(request)?;
        let outputs = array(&request["input"]).into_iter();
        let outputs = outputs.filter(|item| item["type"] == "function_call_output");
        return Some(outputs.map(|item| text(&item["output"])).collect());
    }
    if !array(&request["tools"])
        .iter()
        .any(|tool| tool["name"] == "Bash")
    {
        return None;
    }
    let messages = array(&request["messages"]).into_iter();
    let blocks = messages.flat_map(|message| array(&message["content"]));
    let blocks = blocks.filter(|block| block["type"] == "tool_result");
    Some(blocks.map(|block| text(&block["content"])).collect())
}

/// Text that is a string, or in blocks.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| block["text"].as_str());
            texts.collect()
        }
        other => other.to_string(),
    }
}

/// The body of an answer, and its type.
pub(super) fn answer(path: &str, request: &Value, say: &Say<'_>) -> (String, &'static str) {
    if path.contains("/responses") {
        return (responses(request, say), "text/event-stream");
    }
    if request["stream"] == true {
        return (messages(say), "text/event-stream");
    }
    let message = json!({
        "id": "msg_0", "type": "message", "role": "assistant", "model": "scripted",
        "content": [{ "type": "text", "text": "{\"title\": \"script\"}" }],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": { "input_tokens": 1, "output_tokens": 1 },
    });
    (message.to_string(), "application/json")
}

fn stream(events: &[Value]) -> String {
    let events = events.iter().map(|event| {
        let name = event["type"].as_str().unwrap_or_default();
        format!("event: {name}\ndata: {event}\n\n")
    });
    events.collect()
}

/// A tool that runs commands: its name, and the arguments that it takes.
type ShellTool = (&'static str, fn(&str) -> Value);

/// The shell tool that a request offers.
fn responses_tool(request: &Value) -> Option<ShellTool> {
    let known: [ShellTool; 3] = [
        ("exec_command", |line| json!({ "cmd": line })),
        ("shell_command", |line| json!({ "command": line })),
        ("shell", |line| json!({ "command": ["bash", "-c", line] })),
    ];
    let tools = request["tools"].as_array()?;
    let offered = |name: &str| tools.iter().any(|tool| tool["name"] == name);
    known.into_iter().find(|(name, _)| offered(name))
}

fn responses(request: &Value, say: &Say<'_>) -> String {
    let item = match (say, responses_tool(request)) {
        (Say::Command { step, line }, Some((name, arguments))) => json!({
            "type": "function_call", "id": format!("fc_{step}"), "call_id": format!("call_{step}"),
            "name": name, "arguments": arguments(line).to_string(), "status": "completed",
        }),
        _ => json!({
            "type": "message", "id": "msg_0", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": "done", "annotations": [] }],
        }),
    };
    let response =
        json!({ "id": "resp_0", "object": "response", "status": "in_progress", "output": [] });
    let completed = json!({
        "id": "resp_0", "object": "response", "status": "completed", "output": [item],
        "usage": {
            "input_tokens": 1, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": 1, "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 2,
        },
    });
    stream(&[
        json!({ "type": "response.created", "response": response }),
        json!({ "type": "response.output_item.added", "output_index": 0, "item": item }),
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
        json!({ "type": "response.completed", "response": completed }),
    ])
}

fn messages(say: &Say<'_>) -> String {
    let (block, delta, reason) = match say {
        Say::Command { step, line } => (
            json!({ "type": "tool_use", "id": format!("toolu_{step}"), "name": "Bash", "input": {} }),
            json!({
                "type": "input_json_delta",
                "partial_json": json!({ "command": line, "description": "a step" }).to_string(),
            }),
            "tool_use",
        ),
        Say::Done => (
            json!({ "type": "text", "text": "" }),
            json!({ "type": "text_delta", "text": "done" }),
            "end_turn",
        ),
    };
    let message = json!({
        "id": "msg_0", "type": "message", "role": "assistant", "model": "scripted", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 1, "output_tokens": 1 },
    });
    stream(&[
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({
            "type": "message_delta", "delta": { "stop_reason": reason, "stop_sequence": null },
            "usage": { "output_tokens": 2 },
        }),
        json!({ "type": "message_stop" }),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_both_languages() {
        let openai = json!({
            "tools": [{ "type": "function", "name": "shell" }],
            "input": [{ "type": "message" }, { "type": "function_call_output", "call_id": "c", "output": "one" }],
        });
        assert_eq!(results("/v1/responses", &openai).unwrap(), ["one"]);
        let anthropic = json!({
            "tools": [{ "name": "Bash" }],
            "messages": [
                { "role": "user", "content": "go" },
                { "role": "user", "content": [{ "type": "tool_result", "content": [{ "type": "text", "text": "two" }] }] },
            ],
        });
        assert_eq!(results("/v1/messages", &anthropic).unwrap(), ["two"]);
        assert_eq!(results("/v1/messages", &json!({ "messages": [] })), None);
    }
}
