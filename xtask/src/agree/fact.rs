//! A fact in a form that both sides can be brought to: what was done, to what, how, and how it ended.
//!
//! Nothing here says which process it was or when: pids and the order of processes that run side by side differ from run
//! to run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// strace cuts a path that the kernel would not take, and what is left may end in slashes.
const LONG: usize = 4090;

/// How many times each fact was seen.
pub(super) type Facts = BTreeMap<String, i64>;

/// Adds one fact.
pub(super) fn add(facts: &mut Facts, fact: String) {
    *facts.entry(fact).or_default() += 1;
}

pub(super) fn fork() -> String {
    "fork".into()
}

/// The end of a process: `0`, or `SIGKILL`.
pub(super) fn exit(how: &str) -> String {
    format!("exit {how}")
}

/// A program that was loaded. The arguments are those of the new image.
pub(super) fn exec(path: &str, argv: &[String]) -> String {
    format!("exec {path} {argv:?} = ok")
}

pub(super) fn exec_failed(path: &str, error: &str) -> String {
    format!("exec {path} = {error}")
}

/// What was done to a file.
#[derive(Debug, Default)]
pub(super) struct File<'a> {
    pub(super) op: &'a str,
    pub(super) path: String,
    pub(super) to: Option<String>,
    /// Names of flags, in any order.
    pub(super) flags: Vec<&'a str>,
    pub(super) mode: Option<u32>,
    pub(super) detail: Option<String>,
    pub(super) result: String,
}

pub(super) fn file(mut file: File<'_>) -> String {
    if file.path.len() >= LONG {
        file.path = "(too long)".into();
    }
    let mut text = format!("{} {}", file.op, file.path);
    if let Some(to) = &file.to {
        let _ = write!(text, " -> {to}");
    }
    file.flags.sort_unstable();
    if !file.flags.is_empty() {
        let _ = write!(text, " [{}]", file.flags.join(" "));
    }
    if let Some(mode) = file.mode {
        let _ = write!(text, " {mode:04o}");
    }
    if let Some(detail) = &file.detail {
        let _ = write!(text, " {detail}");
    }
    let _ = write!(text, " = {}", file.result);
    text
}

/// Whether an open with these flags can change something.
pub(super) fn changes(flags: &[&str]) -> bool {
    let changing = ["write", "create", "truncate", "temporary"];
    flags.iter().any(|flag| changing.contains(flag))
}

/// What was done on the network.
pub(super) fn net(op: &str, address: &str, result: &str) -> String {
    format!("{op} {address} = {result}")
}

/// Ports that the kernel hands out are another in each run. Its default range is taken, so that both sides agree even if
/// somebody changes it in between.
pub(super) fn port(port: u32) -> String {
    match port {
        32_768..=60_999 => "PORT".into(),
        port => port.to_string(),
    }
}
