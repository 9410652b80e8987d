//! Reading what frameworks and tool gates report: each line is accepted, or kept as rejected with its reason.

use std::collections::BTreeMap;
use std::io;

use invigil_schema::{
    Event, LineFlaw, OsText, PolicyDecision, PolicyFlagged, ProcessRef, RunId, SDK_SCHEMA,
    SdkEvent, SdkEventType, SdkRejected,
};
use serde_json::{Map, Value};

use crate::lines::{Line, MAX_LINE};

/// How much of a rejected line is kept.
const KEPT: usize = 4096;
/// How deeply a line may be nested. An archive refuses what is nested too deeply, and no agent shall be able to make
/// its own run one that cannot be packed.
const MAX_NESTING: usize = 32;

/// Why a line is not accepted.
struct Rejected {
    flaw: LineFlaw,
    reason: String,
}

fn rejected(flaw: LineFlaw, reason: impl Into<String>) -> Rejected {
    let reason = reason.into();
    Rejected { flaw, reason }
}

/// Reads the lines of one connection, or of one file, of the SDK channel.
pub(crate) struct SdkReader {
    run_id: RunId,
    connection: Option<u64>,
    process: Option<ProcessRef>,
    next: u64,
}

impl SdkReader {
    pub(crate) fn new(run_id: RunId, connection: Option<u64>, process: Option<ProcessRef>) -> Self {
        SdkReader {
            run_id,
            connection,
            process,
            next: 0,
        }
    }

    /// Who writes, where that is known.
    pub(crate) fn process(&self) -> Option<ProcessRef> {
        self.process
    }

    /// The event that a line becomes.
    pub(crate) fn read(&mut self, line: &Line<'_>) -> Event {
        match self.accept(line) {
            Ok(event) => event.into(),
            Err(Rejected { flaw, reason }) => SdkRejected {
                connection: self.connection,
                line: line.number,
                process: self.process,
                flaw,
                reason,
                text: beginning(line),
            }
            .into(),
        }
    }

    /// What a whole connection becomes whose peer is not of the run.
    pub(crate) fn foreign(connection: u64, pid: u32) -> Event {
        SdkRejected {
            connection: Some(connection),
            line: 0,
            process: None,
            flaw: LineFlaw::ForeignPeer,
            reason: format!("process {pid} is not of this run; its connection was closed"),
            text: OsText::default(),
        }
        .into()
    }

    /// What a connection, or a file, becomes that cannot be read.
    pub(crate) fn unreadable(&self, why: &str) -> Event {
        SdkRejected {
            connection: self.connection,
            line: 0,
            process: self.process,
            flaw: LineFlaw::Unreadable,
            reason: why.to_owned(),
            text: OsText::default(),
        }
        .into()
    }

    /// The same for a connection that was never read.
    pub(crate) fn lost(connection: u64, process: Option<ProcessRef>, why: &io::Error) -> Event {
        SdkRejected {
            connection: Some(connection),
            line: 0,
            process,
            flaw: LineFlaw::Unreadable,
            reason: format!("the connection could not be served: {why}"),
            text: OsText::default(),
        }
        .into()
    }

    fn accept(&mut self, line: &Line<'_>) -> Result<SdkEvent, Rejected> {
        let body = object(line)?;
        if text(&body, "schema").ok() != Some(SDK_SCHEMA) {
            let reason = format!("`schema` must be {SDK_SCHEMA:?}");
            return Err(rejected(LineFlaw::WrongSchema, reason));
        }
        if text(&body, "run_id")? != self.run_id.as_str() {
            let reason = format!("`run_id` must be {:?}", self.run_id.as_str());
            return Err(rejected(LineFlaw::WrongRun, reason));
        }
        let expected = self.next;
        match body.get("seq").and_then(Value::as_u64) {
            Some(seq) => {
                // One gap is one bad line, not all that follow.
                self.next = seq.saturating_add(1);
                if seq != expected {
                    let reason = format!("`seq` is {seq}, {expected} was expected");
                    return Err(rejected(LineFlaw::SequenceGap, reason));
                }
            }
            None => return Err(rejected(LineFlaw::MissingField, "`seq` must be a number")),
        }
        let event_type = body.get("event_type").cloned().unwrap_or_default();
        let event_type: SdkEventType = serde_json::from_value(event_type).map_err(|_| {
            let reason = format!(
                "`event_type` is {}",
                body.get("event_type").unwrap_or(&Value::Null)
            );
            rejected(LineFlaw::UnknownType, reason)
        })?;
        let source = text(&body, "source")?.to_owned();
        let of_tool = matches!(
            event_type,
            SdkEventType::ToolCallStarted | SdkEventType::ToolCallCompleted
        );
        let field = |name: &str| match text(&body, name) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) if !of_tool => Ok(None),
            Err(error) => Err(error),
        };
        Ok(SdkEvent {
            connection: self.connection,
            line: line.number,
            process: self.process,
            event_type,
            source,
            tool_call_id: field("tool_call_id")?,
            tool: field("tool")?,
            body: Value::Object(body),
        })
    }
}

/// Reads the log of a tool gate: CloudEvents, one a line.
pub(crate) struct DecisionReader {
    run_id: RunId,
    /// The line of the decision that counts, for each call.
    decided: BTreeMap<String, u64>,
}

impl DecisionReader {
    pub(crate) fn new(run_id: RunId) -> Self {
        DecisionReader {
            run_id,
            decided: BTreeMap::new(),
        }
    }

    /// The event that a line becomes.
    pub(crate) fn read(&mut self, line: &Line<'_>) -> Event {
        match self.accept(line) {
            Ok(decision) => decision.into(),
            Err(Rejected { flaw, reason }) => PolicyFlagged {
                line: line.number,
                flaw,
                reason,
                text: beginning(line),
            }
            .into(),
        }
    }

    /// What a log becomes that cannot be read.
    pub(crate) fn unreadable(why: &str) -> Event {
        PolicyFlagged {
            line: 0,
            flaw: LineFlaw::Unreadable,
            reason: why.to_owned(),
            text: OsText::default(),
        }
        .into()
    }

    fn accept(&mut self, line: &Line<'_>) -> Result<PolicyDecision, Rejected> {
        let body = object(line)?;
        text(&body, "type")?;
        let source = text(&body, "source")?.to_owned();
        let Some(data) = body.get("data").and_then(Value::as_object) else {
            return Err(rejected(LineFlaw::MissingField, "`data` must be an object"));
        };
        // A gate that serves many runs says which; one that does not serves this one.
        let run = [data.get("run_id"), body.get("runid"), body.get("run_id")];
        if let Some(run) = run.into_iter().flatten().next()
            && run.as_str() != Some(self.run_id.as_str())
        {
            return Err(rejected(LineFlaw::WrongRun, format!("it is of run {run}")));
        }
        let (tool, decision) = (
            text(data, "tool")?.to_owned(),
            text(data, "decision")?.to_owned(),
        );
        let tool_call_id = text(data, "tool_call_id")?.to_owned();
        if let Some(first) = self.decided.get(&tool_call_id) {
            let reason = format!("line {first} has decided {tool_call_id:?} already");
            return Err(rejected(LineFlaw::SecondDecision, reason));
        }
        self.decided.insert(tool_call_id.clone(), line.number);
        let body = Value::Object(body);
        Ok(PolicyDecision {
            line: line.number,
            source,
            tool,
            tool_call_id,
            decision,
            body,
        })
    }
}

fn object(line: &Line<'_>) -> Result<Map<String, Value>, Rejected> {
    if line.too_long {
        return Err(rejected(
            LineFlaw::TooLong,
            format!("it has more than {MAX_LINE} bytes"),
        ));
    }
    match serde_json::from_slice(line.bytes) {
        Ok(Value::Object(object)) if object.values().any(|value| is_deeper(value, MAX_NESTING)) => {
            let reason = format!("it is nested more than {MAX_NESTING} levels deep");
            Err(rejected(LineFlaw::NotJson, reason))
        }
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(rejected(LineFlaw::NotJson, "it is not a JSON object")),
        Err(error) => Err(rejected(LineFlaw::NotJson, error.to_string())),
    }
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        _ if levels == 0 => true,
        Value::Array(values) => values.iter().any(|value| is_deeper(value, levels - 1)),
        Value::Object(values) => values.values().any(|value| is_deeper(value, levels - 1)),
        _ => false,
    }
}

fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str, Rejected> {
    match object.get(name).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(rejected(
            LineFlaw::MissingField,
            format!("`{name}` must be a text"),
        )),
    }
}

fn beginning(line: &Line<'_>) -> OsText {
    OsText::from(line.bytes[..line.bytes.len().min(KEPT)].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(number: u64, bytes: &[u8]) -> Line<'_> {
        Line {
            number,
            bytes,
            too_long: false,
        }
    }

    fn good(seq: u64) -> Value {
        json!({
            "schema": SDK_SCHEMA, "run_id": "r", "seq": seq, "event_type": "tool_call_started",
            "source": "test", "tool_call_id": "c1", "tool": "read", "more": [1, 2],
        })
    }

    fn flaws(lines: &[String]) -> Vec<Option<LineFlaw>> {
        let mut reader = SdkReader::new(RunId::new("r").unwrap(), Some(0), None);
        let read = |(at, text): (usize, &String)| match reader
            .read(&line(at as u64 + 1, text.as_bytes()))
        {
            Event::SdkEvent(_) => None,
            Event::SdkRejected(rejected) => Some(rejected.flaw),
            other => panic!("{other:?}"),
        };
        lines.iter().enumerate().map(read).collect()
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inside, _| json!([inside]))
    }

    #[test]
    fn each_bad_line_has_its_own_flaw_and_loses_nothing_else() {
        let with = |seq: u64, name: &str, value: Value| {
            let mut line = good(seq);
            line[name] = value;
            line.to_string()
        };
        let lines = [
            good(0).to_string(),
            "not json".into(),
            "[1]".into(),
            with(1, "schema", json!("other.v1")),
            with(1, "run_id", json!("another")),
            with(3, "more", json!(null)),
            with(4, "event_type", json!("dreamt")),
            with(5, "tool", json!(7)),
            with(6, "event_type", json!("message")),
            good(7).to_string(),
            with(8, "more", nested(40)),
            with(8, "more", nested(30)),
        ];
        use LineFlaw::*;
        let expected = [
            None,
            Some(NotJson),
            Some(NotJson),
            Some(WrongSchema),
            Some(WrongRun),
            Some(SequenceGap),
            Some(UnknownType),
            Some(MissingField),
            None,
            None,
            Some(NotJson),
            None,
        ];
        assert_eq!(flaws(&lines), expected);
    }

    #[test]
    fn a_gate_decides_once_and_for_its_own_run() {
        let mut reader = DecisionReader::new(RunId::new("r").unwrap());
        let mut read = |number: u64, value: Value| {
            let text = value.to_string();
            match reader.read(&line(number, text.as_bytes())) {
                Event::PolicyDecision(decision) => Ok(decision.decision),
                Event::PolicyFlagged(flagged) => Err(flagged.flaw),
                other => panic!("{other:?}"),
            }
        };
        let record = |call: &str, decision: &str| {
            json!({ "type": "gate.decision", "source": "/gate",
                "data": { "tool": "read", "tool_call_id": call, "decision": decision } })
        };
        assert_eq!(read(1, record("c1", "allow")), Ok("allow".into()));
        assert_eq!(read(2, record("c1", "deny")), Err(LineFlaw::SecondDecision));
        let mut other = record("c2", "allow");
        other["data"]["run_id"] = json!("elsewhere");
        assert_eq!(read(3, other), Err(LineFlaw::WrongRun));
        assert_eq!(read(4, record("c2", "deny")), Ok("deny".into()));
        assert_eq!(read(5, json!({ "type": "x" })), Err(LineFlaw::MissingField));
    }
}
