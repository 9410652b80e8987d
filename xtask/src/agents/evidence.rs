//! What the journal of a run says of the commands that an agent was asked for.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Result;

/// How a note about a refusal begins.
const DENIED: &str = "denied: ";

/// What was seen from outside of the agent.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) records: u64,
    pub(super) execs: u64,
    /// What a reader should know, and how often.
    pub(super) notes: BTreeMap<String, u64>,
    /// The arguments of each process, all of its programs one behind the other.
    arguments: HashMap<String, String>,
    exits: HashMap<String, i64>,
}

/// Reads the journal in a run's folder.
pub(super) fn read(folder: &Path) -> Result<Evidence> {
    let mut evidence = Evidence::default();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "ndjson") {
            for line in fs::read_to_string(path)?.lines() {
                evidence.take(&serde_json::from_str(line)?);
            }
        }
    }
    Ok(evidence)
}

impl Evidence {
    fn take(&mut self, record: &Value) {
        self.records += 1;
        let data = &record["data"];
        let process = data["process"].to_string();
        match record["kind"].as_str().unwrap_or_default() {
            "process_exec" => {
                self.execs += 1;
                *self.arguments.entry(process).or_default() += &data["argv"].to_string();
            }
            "process_exited" => {
                let code = data["exit_code"].as_i64();
                self.exits.insert(process, code.unwrap_or(-1));
            }
            "observer_note" => self.note(format!("note: {}: {}", data["note"], data["detail"])),
            "access_denied" => self.note(format!("{DENIED}{} {}", data["what"], data["target"])),
            "observer_finished" if data["emitted"] != data["received"] => {
                self.note(format!("lost: {data}"));
            }
            "net_op" if data["op"] == "connect" => self.connect(&data["address"]),
            _ => {}
        }
    }

    fn note(&mut self, note: String) {
        *self.notes.entry(note).or_default() += 1;
    }

    /// Whether Invigil refused something.
    pub(super) fn denied(&self) -> bool {
        self.notes.keys().any(|note| note.starts_with(DENIED))
    }

    /// Whatever is not on this machine is worth a line.
    fn connect(&mut self, address: &Value) {
        let ip = address["ip"].as_str().unwrap_or("127.");
        if !ip.starts_with("127.") && ip != "::1" {
            self.note(format!("it tried to reach {ip} port {}", address["port"]));
        }
    }

    /// The commands that no process ran, or none that ended with this code.
    pub(super) fn missing(&self, expected: &[(String, i32)]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (marker, code) in expected {
            let ran = self
                .arguments
                .iter()
                .filter(|(_, text)| text.contains(marker.as_str()));
            let codes: Vec<_> = ran
                .map(|(process, _)| self.exits.get(process).copied())
                .collect();
            if codes.is_empty() {
                wrong.push(format!("{marker}: not in the kernel layer"));
            } else if !codes.contains(&Some(i64::from(*code))) {
                wrong.push(format!("{marker}: exit codes {codes:?}, not {code}"));
            }
        }
        wrong
    }
}
