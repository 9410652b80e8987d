//! `cargo xtask soak`: the long forms of tests whose short forms are part of `cargo xtask test`.
//!
//! The tests read how long they should be from the environment; this command only sets it, and makes sure that there
//! was something to run.

use std::fs;
use std::time::Instant;

use crate::{Result, cargo, check, root};

/// Tests that have a long form.
#[derive(Clone, Copy)]
struct Tests {
    package: &'static str,
    name: &'static str,
    /// Where they are.
    folder: &'static str,
}

const JOURNAL: Tests = Tests {
    package: "invigil-journal",
    name: "journal",
    folder: "crates/invigil-journal/tests/journal",
};
const ESCAPE: Tests = Tests {
    package: "invigil",
    name: "escape",
    folder: "crates/invigil/tests/escape",
};

/// Run the long forms of tests: many seeds, many kills, many records, many tries to win a race.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds the model test tries.
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// How many times a writing process is killed.
    #[arg(long, default_value_t = 1_000)]
    kills: u64,
    /// How long a journal is verified and followed in constant memory.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// How often each race against a policy is tried.
    #[arg(long, default_value_t = 1_000_000)]
    tries: u64,
}

pub(crate) fn run(args: &Args) -> Result {
    soak(JOURNAL, "model::", "INVIGIL_SEEDS", args.seeds)?;
    soak(JOURNAL, "kill", "INVIGIL_KILLS", args.kills)?;
    soak(JOURNAL, "memory::", "INVIGIL_SOAK_RECORDS", args.records)?;
    soak(ESCAPE, "race", "INVIGIL_TRIES", args.tries)
}

fn soak(of: Tests, tests: &str, variable: &str, value: u64) -> Result {
    let folder = of.folder;
    println!("── {tests}: {variable}={value}");
    let listed = cargo_test(of, &[tests, "--", "--list"]).output()?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into());
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    if !names.lines().any(|line| line.ends_with(": test")) {
        return Err(format!("no test in {folder} has `{tests}` in its name").into());
    }
    if !is_read(of, variable)? {
        return Err(format!("no test in {folder} reads {variable}").into());
    }
    let begun = Instant::now();
    let mut command = cargo_test(of, &[tests, "--", "--nocapture"]);
    command.env(variable, value.to_string());
    check(command)?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("── {tests} is good ({seconds:.1} s)");
    Ok(())
}

/// Whether the tests know a variable. One that nobody reads would make the short form look like the long one.
fn is_read(of: Tests, variable: &str) -> Result<bool> {
    for entry in fs::read_dir(root().join(of.folder))? {
        let path = entry?.path();
        if path.is_file() && fs::read_to_string(path)?.contains(variable) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn cargo_test(of: Tests, rest: &[&str]) -> std::process::Command {
    let mut command = cargo(&["test", "--release", "--package", of.package]);
    command.args(["--all-features", "--test", of.name]);
    command.args(rest);
    command
}
