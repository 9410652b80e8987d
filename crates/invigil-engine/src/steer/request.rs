//! What an agent can ask for on its channel, and what it is answered: one line of JSON each way.

use invigil_schema::{RunId, Signal};
use serde::{Deserialize, Serialize};

use super::children::ChildSpec;

/// The schema that a request must name.
const SCHEMA: &str = "invigil.request.v1";
/// The schema of an answer.
const ANSWER: &str = "invigil.answer.v1";

/// A line that asks for something.
#[derive(Debug, Deserialize)]
struct Line {
    schema: String,
    run_id: String,
    #[serde(flatten)]
    request: Request,
}

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(super) enum Request {
    /// What the run was told and has not heard yet.
    Signals,
    /// To have a phase checked. What became of it is a signal.
    Milestone {
        /// Which one; the current one, if nothing is said.
        phase: Option<String>,
    },
    /// A run inside of this one. The answers are lines of another kind.
    Run {
        /// Which.
        child: Box<ChildSpec>,
    },
}

/// What is answered.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// Everything that waited, the urgent first.
    Signals(Vec<Signal>),
    /// It will be done.
    Taken(bool),
    /// It cannot be answered.
    Error(String),
}

#[derive(Serialize)]
struct Answered {
    schema: &'static str,
    #[serde(flatten)]
    reply: Reply,
}

/// A request for a run inside of another one, as a line.
pub fn ask_for_run(run_id: &str, child: &ChildSpec) -> serde_json::Result<Vec<u8>> {
    let value = serde_json::json!({
        "schema": SCHEMA, "run_id": run_id, "request": "run", "child": child,
    });
    let mut line = serde_json::to_vec(&value)?;
    line.push(b'\n');
    Ok(line)
}

/// The answer to a line: nothing if it asks for nothing, and nothing to say if that comes later.
pub(super) fn answer(
    line: &[u8],
    run_id: &RunId,
    reply: impl FnOnce(Request) -> Option<Reply>,
) -> Option<Vec<u8>> {
    // Reports are many, and must not be parsed twice.
    memchr::memmem::find(line, SCHEMA.as_bytes())?;
    let value: serde_json::Value = serde_json::from_slice(line).ok()?;
    if value.get("schema")?.as_str()? != SCHEMA {
        return None;
    }
    let reply = match serde_json::from_value::<Line>(value) {
        Ok(line) if line.schema == SCHEMA && line.run_id == run_id.as_str() => {
            match reply(line.request) {
                Some(reply) => reply,
                None => return Some(Vec::new()),
            }
        }
        Ok(_) => Reply::Error(format!("`run_id` must be {:?}", run_id.as_str())),
        Err(error) => Reply::Error(error.to_string()),
    };
    let schema = ANSWER;
    let mut line = serde_json::to_vec(&Answered { schema, reply }).ok()?;
    line.push(b'\n');
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> Option<String> {
        let run_id = RunId::new("r").unwrap();
        let answered = answer(line.as_bytes(), &run_id, |_| {
            Some(Reply::Signals(Vec::new()))
        })?;
        String::from_utf8(answered).ok()
    }

    #[test]
    fn a_request_is_answered_and_a_report_is_not() {
        let right = r#"{"schema":"invigil.request.v1","run_id":"r","request":"signals"}"#;
        let answer = "{\"schema\":\"invigil.answer.v1\",\"signals\":[]}\n";
        assert_eq!(ask(right).as_deref(), Some(answer));
        assert_eq!(
            ask(r#"{"schema":"invigil.sdk.event.v1","text":"invigil.request.v1"}"#),
            None
        );
        assert_eq!(ask("invigil.request.v1"), None);
        for wrong in [
            r#"{"schema":"invigil.request.v1","run_id":"s","request":"signals"}"#,
            r#"{"schema":"invigil.request.v1","run_id":"r","request":"root"}"#,
        ] {
            assert!(ask(wrong).unwrap().contains("\"error\""), "{wrong}");
        }
    }
}
