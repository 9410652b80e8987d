//! The facts of a journal.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::fact::{self, Facts, File};
use super::mask::Masks;
use crate::Result;

/// What a run left behind.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) facts: Facts,
    /// What should not be in a journal of an undisturbed run.
    pub(super) wrong: Vec<String>,
    /// Whether opens for reading are facts.
    reads: bool,
}

/// Reads the journal in a run's folder.
pub(super) fn read(folder: &Path, masks: &Masks, reads: bool) -> Result<Journal> {
    let mut journal = Journal {
        reads,
        ..Journal::default()
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend((name.starts_with("journal.") && name.ends_with(".ndjson")).then_some(name));
    }
    // `journal.ndjson` is the first segment; a digit sorts before a letter.
    names.sort_by_key(|name| (name != "journal.ndjson", name.clone()));
    let mut finished = false;
    for name in names {
        for line in fs::read_to_string(folder.join(name))?.lines() {
            let record: Value = serde_json::from_str(line)?;
            finished |= record["kind"] == "observer_finished";
            journal.take(&record, masks);
        }
    }
    if !finished {
        journal.wrong.push("no observer_finished".into());
    }
    Ok(journal)
}

impl Journal {
    fn take(&mut self, record: &Value, masks: &Masks) {
        let data = &record["data"];
        let fact = match record["kind"].as_str().unwrap_or_default() {
            "process_forked" if data["parent"].is_null() => return,
            "process_forked" => fact::fork(),
            "process_exec" => exec(data),
            "exec_failed" => fact::exec_failed(&text(&data["path"]), &text(&data["error"])),
            "process_exited" => exit(data),
            "file_op" => match self.file(data) {
                Some(fact) => fact,
                None => return,
            },
            "net_op" => net(data),
            "observer_note" | "access_denied" => {
                self.wrong.push(format!("{} {data}", text(&record["kind"])));
                return;
            }
            "observer_finished" if data["emitted"] != data["received"] => {
                self.wrong.push(format!("lost events: {data}"));
                return;
            }
            _ => return,
        };
        fact::add(&mut self.facts, masks.apply(&fact));
    }

    /// None for an open that changes nothing, where such opens are not compared.
    fn file(&mut self, data: &Value) -> Option<String> {
        let mut op = data["op"].as_str().unwrap_or_default();
        let flags = data["flags"].as_array().map_or(&[][..], Vec::as_slice);
        let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
        let result = text(&data["result"]);
        if op == "create" {
            op = "open";
        } else if op == "open" && flags.contains(&"exclusive") && result == "ok" {
            self.wrong
                .push(format!("an exclusive open that made nothing: {data}"));
        }
        if op == "open" && !self.reads && !fact::changes(&flags) {
            return None;
        }
        Some(fact::file(File {
            op,
            // strace says it of descriptors only, and of none that is a directory.
            path: text(&data["path"])
                .trim_start_matches("(deleted)")
                .replace(" (deleted)", ""),
            to: data.get("to").map(text),
            flags,
            mode: data["mode"].as_u64().map(|mode| mode as u32),
            detail: data.get("detail").map(text),
            result,
        }))
    }
}

fn exec(data: &Value) -> String {
    let asked = data.get("requested").unwrap_or(&data["executable"]);
    let argv = data["argv"].as_array().map_or(&[][..], Vec::as_slice);
    let argv: Vec<String> = argv.iter().map(text).collect();
    fact::exec(&text(asked), &argv)
}

fn exit(data: &Value) -> String {
    let signal = data["signal"]
        .as_i64()
        .map(|signal| format!("signal {signal}"));
    fact::exit(&signal.unwrap_or_else(|| data["exit_code"].to_string()))
}

fn net(data: &Value) -> String {
    let address = &data["address"];
    let port = fact::port(address["port"].as_u64().unwrap_or_default() as u32);
    let address = match address["family"].as_str().unwrap_or_default() {
        "inet" => format!("{}:{port}", text(&address["ip"])),
        "inet6" => format!("[{}]:{port}", text(&address["ip"])),
        "unix" => format!("unix {}", text(&address["path"])),
        "abstract" => format!("unix @{}", text(&address["name"])),
        "unnamed" => "unnamed".into(),
        _ => format!("family {}", address["number"]),
    };
    fact::net(
        data["op"].as_str().unwrap_or_default(),
        &address,
        &text(&data["result"]),
    )
}

/// Text of the operating system; bytes that are no text stay in the form of the journal.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
