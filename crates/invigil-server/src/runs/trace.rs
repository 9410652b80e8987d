//! What is read from the journal of a run: its start, its turns and its end, as clients see them.

use std::ops::Range;

use invigil_journal::{RunRef, StoreError};
use invigil_schema::Envelope;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

/// Which records, by their numbers in the journal, and how many of them at once.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) records: Range<u64>,
    pub(crate) limit: usize,
    pub(crate) bytes: usize,
}

/// Records, and where the next one begins.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Page {
    /// Tagged `record`: started, turn, ended.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub(crate) records: Vec<Box<RawValue>>,
    /// Where each record ends.
    #[serde(skip)]
    pub(crate) cursors: Vec<u64>,
    /// Where to go on.
    pub(crate) cursor: u64,
}

/// Reads a page. Blocks.
pub(crate) fn page(run: &RunRef, span: &Span) -> Result<Page, StoreError> {
    let mut page = Page {
        records: Vec::new(),
        cursors: Vec::new(),
        cursor: span.records.start,
    };
    if page.cursor >= span.records.end {
        return Ok(page);
    }
    let Some(mut reader) = run.read(page.cursor)? else {
        return Ok(page);
    };
    let mut bytes = 0;
    while page.cursor < span.records.end && page.records.len() < span.limit && bytes < span.bytes {
        let record = reader.next().map_err(|error| run.error(error))?;
        let Some(record) = record else { break };
        page.cursor = record.seq + 1;
        let envelope = record.envelope().map_err(|error| run.error(error))?;
        if let Some(record) = shown(run, &envelope) {
            bytes += record.get().len();
            page.records.push(record);
            page.cursors.push(page.cursor);
        }
    }
    Ok(page)
}

/// The data with a tag in front; what clients are not shown is nothing.
fn shown(run: &RunRef, envelope: &Envelope<'_>) -> Option<Box<RawValue>> {
    let head = match &*envelope.kind {
        "client_run_started" => format!("{{\"record\":\"started\",\"run_id\":\"{}\"", run.run_id()),
        "client_run_ended" => format!("{{\"record\":\"ended\",\"run_id\":\"{}\"", run.run_id()),
        "turn" => "{\"record\":\"turn\"".to_owned(),
        _ => return None,
    };
    let members = envelope.data.get().strip_prefix('{')?;
    let comma = if members.starts_with('}') { "" } else { "," };
    RawValue::from_string(format!("{head}{comma}{members}")).ok()
}
