//! From an action and what became of it to the turn that is kept; and the limits of turns, on every way in.

use invigil_schema::{CliOutcome, Timestamp, Turn, TurnStatus, VerifierVerdict};
use serde_json::{Value, json};

use super::act::Done;
use super::wire::Action;
use crate::config::Limits;
use crate::rpc::{Answer, RpcError};

/// The turn of an action.
pub(crate) fn turn(
    proposal: &str,
    action: &Action,
    parameters: Value,
    done: &Done,
    started_at: Timestamp,
    duration_ms: u64,
    limits: &Limits,
) -> Turn {
    let tool = action.tool.clone();
    let mut turn = Turn {
        index: 0,
        prompt: None,
        tool,
        parameters,
        output: done.output.clone(),
        cli_outcome: None,
        verifier_verdict: VerifierVerdict::NotRun,
        policy_rejected: done.policy.clone(),
        action_id: Some(action.id.clone()),
        proposal_id: Some(proposal.to_owned()),
        started_at: Some(started_at),
        duration_ms: Some(duration_ms),
        attempt: (done.attempts > 0).then_some(done.attempts),
        status: Some(done.status),
        error: done.error.clone(),
        truncated: Vec::new(),
    };
    match turn.tool.as_deref() {
        Some("drive_cli") => drive_cli(&mut turn),
        Some("check_outcome") => check_outcome(&mut turn),
        _ => {}
    }
    fit(&mut turn, limits);
    turn
}

/// An agent on a command line: what it was told, the end of what it said, how it ended.
fn drive_cli(turn: &mut Turn) {
    let prompt = turn.parameters.get("prompt").and_then(Value::as_str);
    turn.prompt = prompt.map(str::to_owned);
    let output = turn.output.take();
    let get = |name: &str| output.as_ref().and_then(|output| output.get(name));
    let flag = |name: &str| get(name).and_then(Value::as_bool) == Some(true);
    turn.cli_outcome = if flag("timed_out") || turn.status == Some(TurnStatus::TimedOut) {
        Some(CliOutcome::Timeout)
    } else if let Some(code) = get("exit_code").and_then(Value::as_i64) {
        Some(CliOutcome::Exited { code })
    } else if flag("killed") || get("signal").is_some_and(|signal| !signal.is_null()) {
        Some(CliOutcome::Killed)
    } else {
        None
    };
    let tail = ["output_tail", "output", "stdout"]
        .into_iter()
        .find_map(get);
    turn.output = match tail {
        Some(Value::String(tail)) => Some(Value::String(tail.clone())),
        _ => output,
    };
}

fn check_outcome(turn: &mut Turn) {
    let passed = turn.output.as_ref().and_then(|output| output.get("passed"));
    turn.verifier_verdict = match passed.and_then(Value::as_bool) {
        Some(true) => VerifierVerdict::Pass,
        Some(false) => VerifierVerdict::Fail,
        None => VerifierVerdict::NotRun,
    };
}

/// Makes a turn fit: what has happened is kept, even if not in full.
fn fit(turn: &mut Turn, limits: &Limits) {
    let most = limits.string_bytes;
    let mut cut = Vec::new();
    for (name, text) in [("prompt", &mut turn.prompt), ("error", &mut turn.error)] {
        if let Some(text) = text {
            shorten(text, most, Keep::Begin, name, &mut cut);
        }
    }
    let parameters = "parameters".to_owned();
    shorten_value(
        &mut turn.parameters,
        most,
        Keep::Begin,
        parameters,
        &mut cut,
    );
    if let Some(output) = &mut turn.output {
        shorten_value(output, most, Keep::End, "output".to_owned(), &mut cut);
    }
    for name in ["output", "parameters"] {
        let bytes = serde_json::to_vec(turn).map_or(0, |json| json.len());
        if bytes <= limits.turn_bytes {
            break;
        }
        let kept = match name {
            "output" => turn.output.as_mut(),
            _ => Some(&mut turn.parameters),
        };
        if let Some(kept) = kept {
            let bytes = kept.to_string().len();
            *kept = json!({ "truncated_bytes": bytes });
            cut.push(name.to_owned());
        }
    }
    turn.truncated = cut;
    turn.truncated.truncate(64);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Begin,
    End,
}

fn shorten(text: &mut String, most: usize, keep: Keep, at: &str, cut: &mut Vec<String>) {
    if text.len() <= most {
        return;
    }
    *text = match keep {
        Keep::Begin => text[..text.floor_char_boundary(most)].to_owned(),
        Keep::End => text[text.ceil_char_boundary(text.len() - most)..].to_owned(),
    };
    cut.push(at.to_owned());
}

fn shorten_value(value: &mut Value, most: usize, keep: Keep, at: String, cut: &mut Vec<String>) {
    match value {
        Value::String(text) => shorten(text, most, keep, &at, cut),
        Value::Array(items) => {
            for (n, item) in items.iter_mut().enumerate() {
                shorten_value(item, most, keep, format!("{at}[{n}]"), cut);
            }
        }
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                shorten_value(value, most, keep, format!("{at}.{name}"), cut);
            }
        }
        _ => {}
    }
}

/// Parameters as they are kept of an action that begins.
pub(crate) fn kept(parameters: Value, limits: &Limits) -> Value {
    let (mut value, mut cut) = (parameters, Vec::new());
    shorten_value(
        &mut value,
        limits.string_bytes,
        Keep::Begin,
        String::new(),
        &mut cut,
    );
    match value.to_string().len() {
        bytes if bytes > limits.turn_bytes => json!({ "truncated_bytes": bytes }),
        _ => value,
    }
}

/// Checks a turn that a client reports. What is too long is refused with its place.
pub(crate) fn check_reported(turn: &Turn, at: &str, limits: &Limits) -> Answer<()> {
    let value = serde_json::to_value(turn).map_err(RpcError::internal)?;
    let bytes = value.to_string().len();
    if bytes > limits.turn_bytes {
        let most = limits.turn_bytes;
        let why = format!("{at} has {bytes} bytes, at most {most} are taken");
        return Err(RpcError::limit("turn_bytes", why));
    }
    check_strings(&value, at.to_owned(), limits.string_bytes)
}

fn check_strings(value: &Value, at: String, most: usize) -> Answer<()> {
    match value {
        Value::String(text) if text.len() > most => {
            let why = format!("{at} has {} bytes, at most {most} are taken", text.len());
            Err(RpcError::limit("string_bytes", why))
        }
        Value::Array(items) => (0..)
            .zip(items)
            .try_for_each(|(n, item): (usize, _)| check_strings(item, format!("{at}[{n}]"), most)),
        Value::Object(members) => members
            .iter()
            .try_for_each(|(name, value)| check_strings(value, format!("{at}.{name}"), most)),
        _ => Ok(()),
    }
}
