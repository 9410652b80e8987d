//! The command line as a person or a script uses it: the real binary, real processes, real files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod run;
mod views;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A store of its own, and the binary.
struct Invigil {
    directory: tempfile::TempDir,
}

impl Invigil {
    fn new() -> Self {
        Invigil {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_invigil"));
        command
            .args(args)
            .env("INVIGIL_HOME", self.home())
            .env("NO_COLOR", "1")
            .current_dir(self.directory.path());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs and expects this exit code; stdout and stderr.
    #[track_caller]
    fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        let output = self.output(args);
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}\n{stdout}\n{stderr}"
        );
        (stdout, stderr)
    }

    fn journal(&self, run: &str) -> PathBuf {
        self.home().join("runs").join(run).join("journal.ndjson")
    }

    fn events(&self, run: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.journal(run)).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Invigil {
    /// The data of the only event of a kind.
    #[track_caller]
    fn event(&self, run: &str, kind: &str) -> serde_json::Value {
        let mut found: Vec<_> = self
            .events(run)
            .into_iter()
            .filter(|event| event["kind"] == kind)
            .collect();
        assert_eq!(found.len(), 1, "{kind}: {found:?}");
        found.remove(0)["data"].take()
    }
}

/// Everything below a directory, to see that nothing has changed.
fn tree(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        match path.read_dir() {
            Ok(entries) => pending.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => found.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}
