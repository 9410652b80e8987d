//! `cargo xtask soak`: the long forms of tests whose short forms are part of `cargo xtask test`.
//!
//! The tests read how long they should be from the environment; this command only sets it, and makes sure that there
//! was something to run.

use std::fs;
use std::time::Instant;

use crate::{Result, cargo, check, root};

/// Tests that have a long form.
struct Suite {
    package: &'static str,
    test: &'static str,
    directory: &'static str,
    /// What else has to be built for them.
    needs: &'static [&'static str],
}

const JOURNAL: Suite = Suite {
    package: "invigil-journal",
    test: "journal",
    directory: "crates/invigil-journal/tests/journal",
    needs: &[],
};
const SANDBOX: Suite = Suite {
    package: "invigil-sandbox",
    test: "observer",
    directory: "crates/invigil-sandbox/tests/observer",
    needs: &["--example", "watch"],
};

const ESCAPE: Suite = Suite {
    package: "invigil",
    test: "escape",
    directory: "crates/invigil/tests/escape",
    needs: &[],
};

const JOBS: Suite = Suite {
    package: "invigil",
    test: "jobs",
    directory: "crates/invigil/tests/jobs",
    needs: &[],
};

const DAEMON: Suite = Suite {
    package: "invigil",
    test: "daemon",
    directory: "crates/invigil/tests/daemon",
    needs: &[],
};

/// Run the long forms of tests: many seeds, many kills, many records, many races.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds the model test tries.
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// How many times a writing process is killed.
    #[arg(long, default_value_t = 1_000)]
    kills: u64,
    /// How many times a daemon is killed under load.
    #[arg(long, default_value_t = 100)]
    daemon_kills: u64,
    /// How long a journal is verified and followed in constant memory.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// How often another thread may try to exchange an address.
    #[arg(long, default_value_t = 1_000_000)]
    races: u64,
    /// How many jobs each of eight processes carries out; a fifth of it is how often one is killed.
    #[arg(long, default_value_t = 1_000)]
    jobs: u64,
}

pub(crate) fn run(args: &Args) -> Result {
    JOURNAL.soak("model::", "INVIGIL_SEEDS", args.seeds)?;
    JOURNAL.soak("kill", "INVIGIL_KILLS", args.kills)?;
    JOURNAL.soak("memory::", "INVIGIL_SOAK_RECORDS", args.records)?;
    DAEMON.soak("kill", "INVIGIL_KILLS", args.daemon_kills)?;
    SANDBOX.soak("exact_races", "INVIGIL_RACES", args.races)?;
    ESCAPE.soak("race", "INVIGIL_TRIES", args.races)?;
    JOBS.soak("crowd::", "INVIGIL_JOBS_SOAK", args.jobs)
}

impl Suite {
    fn soak(&self, tests: &str, variable: &str, value: u64) -> Result {
        println!("── {tests}: {variable}={value}");
        let directory = self.directory;
        let listed = self.cargo_test(&[tests, "--", "--list"]).output()?;
        if !listed.status.success() {
            return Err(String::from_utf8_lossy(&listed.stderr).into());
        }
        let names = String::from_utf8_lossy(&listed.stdout);
        if !names.lines().any(|line| line.ends_with(": test")) {
            return Err(format!("no test in {directory} has `{tests}` in its name").into());
        }
        if !self.is_read(variable)? {
            return Err(format!("no test in {directory} reads {variable}").into());
        }
        let begun = Instant::now();
        let mut command = self.cargo_test(&[tests, "--", "--nocapture"]);
        command.env(variable, value.to_string());
        check(command)?;
        let seconds = begun.elapsed().as_secs_f64();
        println!("── {tests} is good ({seconds:.1} s)");
        Ok(())
    }

    /// Whether the tests know a variable. One that nobody reads would make the short form look like the long one.
    fn is_read(&self, variable: &str) -> Result<bool> {
        for entry in fs::read_dir(root().join(self.directory))? {
            if fs::read_to_string(entry?.path())?.contains(variable) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn cargo_test(&self, rest: &[&str]) -> std::process::Command {
        let mut command = cargo(&["test", "--release", "--package", self.package]);
        command.args(["--all-features", "--test", self.test]);
        command.args(self.needs);
        command.args(rest);
        command
    }
}
