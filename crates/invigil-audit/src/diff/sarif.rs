//! A comparison in the Static Analysis Results Interchange Format 2.1.0, for code hosts that show it.

use serde_json::{Value, json};

use super::{ChangeKind, DiffDoc, DiffRow, Section, Verdict};
use crate::health::word;

/// A comparison as a SARIF 2.1.0 log with one run.
pub fn sarif(diff: &DiffDoc) -> Value {
    let results: Vec<Value> = diff.rows().iter().map(result).collect();
    let doubts = diff.sections.iter().flat_map(|section| {
        let name = section.section.as_str();
        let doubts = section.reasons.iter();
        doubts.map(move |reason| {
            json!({
                "level": "warning",
                "message": { "text": format!("{name} cannot be compared for sure: {reason}") },
            })
        })
    });
    let kinds = [ChangeKind::Added, ChangeKind::Removed, ChangeKind::Changed];
    let rules = Section::ALL.into_iter().flat_map(|section| {
        kinds.map(|change| {
            let text = format!("{} {}", words(change), section.as_str().replace('_', " "));
            json!({
                "id": rule_id(section, change),
                "shortDescription": { "text": text },
                "defaultConfiguration": { "level": level(change) },
            })
        })
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "invigil",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules.collect::<Vec<Value>>(),
            } },
            "invocations": [{
                "executionSuccessful": diff.verdict != Verdict::NotComparable,
                "toolExecutionNotifications": doubts.collect::<Vec<Value>>(),
            }],
            "results": results,
            "properties": { "verdict": diff.verdict },
        }],
    })
}

fn result(row: &DiffRow<'_>) -> Value {
    let doubt = if row.sure { "" } else { " (not for sure)" };
    let detail = match row.detail.as_str() {
        "" => String::new(),
        detail => format!(": {detail}"),
    };
    let name = row.name.to_string_lossy();
    let text = format!("{} {name}{detail}{doubt}", words(row.change));
    let id = rule_id(row.section, row.change);
    json!({
        "ruleId": id,
        "level": if row.sure { level(row.change) } else { "note" },
        "message": { "text": text },
        "locations": [location(row)],
        "partialFingerprints": { "invigil/v1": format!("{id} {name}") },
    })
}

fn location(row: &DiffRow<'_>) -> Value {
    let bytes = row.name.as_bytes();
    let is_file = matches!(
        row.section,
        Section::FilesystemPaths | Section::ProcessExecs
    );
    if is_file && bytes.starts_with(b"/") {
        let uri = format!("file://{}", percent_encode(bytes));
        return json!({ "physicalLocation": { "artifactLocation": { "uri": uri } } });
    }
    json!({ "logicalLocations": [{ "name": row.name.to_string_lossy(), "kind": "resource" }] })
}

fn percent_encode(path: &[u8]) -> String {
    let mut uri = String::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

fn rule_id(section: Section, change: ChangeKind) -> String {
    format!("{}.{}", section.as_str(), word(&change))
}

/// What is new deserves a look; what is gone is worth knowing.
fn level(change: ChangeKind) -> &'static str {
    match change {
        ChangeKind::Added | ChangeKind::Changed => "warning",
        ChangeKind::Removed => "note",
    }
}

fn words(change: ChangeKind) -> &'static str {
    match change {
        ChangeKind::Added => "Only in the second run:",
        ChangeKind::Removed => "Only in the first run:",
        ChangeKind::Changed => "Not alike in both runs:",
    }
}
