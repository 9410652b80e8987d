//! The command line as a person or a script uses it: the real binary, real processes, real files.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and one that skips says so"
)]

mod approvals;
mod audit;
mod contract;
mod derive;
mod evidence;
mod guard;
mod hosts;
mod observe;
mod policy;
mod protect;
mod replay;
mod report;
mod repos;
mod run;
mod script;
mod task;
mod telemetry;
mod terminal;
mod views;
mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A store of its own, and the binary, as one user.
struct Invigil {
    directory: tempfile::TempDir,
    nobody: bool,
}

/// Nobody in particular: an ordinary user without any rights.
const NOBODY: u32 = 65534;

impl Invigil {
    fn new() -> Self {
        Invigil {
            directory: tempfile::tempdir().unwrap(),
            nobody: false,
        }
    }

    /// As whoever runs the tests; if that is root, as an ordinary user too.
    fn everyone() -> Vec<Invigil> {
        let mut all = vec![Invigil::new()];
        let root = rustix::process::getuid().is_root();
        let setpriv = Command::new("setpriv").arg("--version").output();
        if root && setpriv.is_ok() {
            let directory = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            all.push(Invigil {
                directory,
                nobody: true,
            });
        } else {
            println!(
                "only as uid {:?}: no root, or no setpriv",
                rustix::process::getuid()
            );
        }
        all
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn command(&self, args: &[&str]) -> Command {
        let binary = env!("CARGO_BIN_EXE_invigil");
        let mut command = Command::new(if self.nobody { "setpriv" } else { binary });
        if self.nobody {
            let nobody = NOBODY.to_string();
            command.args([
                "--reuid",
                &nobody,
                "--regid",
                &nobody,
                "--clear-groups",
                binary,
            ]);
        }
        command
            .args(args)
            .env("HOME", self.directory.path())
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
    /// A path in the directory in which commands run.
    fn at(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// The data of all events of a kind.
    fn all(&self, run: &str, kind: &str) -> Vec<serde_json::Value> {
        let events = self.events(run).into_iter();
        let mut events: Vec<_> = events.filter(|event| event["kind"] == kind).collect();
        events
            .iter_mut()
            .map(|event| event["data"].take())
            .collect()
    }

    /// The data of the only event of a kind.
    #[track_caller]
    fn event(&self, run: &str, kind: &str) -> serde_json::Value {
        let mut found = self.all(run, kind);
        assert_eq!(found.len(), 1, "{kind}: {found:?}");
        found.remove(0)
    }
}

/// Whatever a test has recorded: every decision of it comes out the same again, and nothing in it is impossible.
impl Drop for Invigil {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for folder in ["runs", "tasks"] {
            let journals = self.home().join(folder).read_dir();
            for journal in journals.into_iter().flatten().flatten() {
                self.look_back(&journal.path());
            }
        }
    }
}

impl Invigil {
    fn look_back(&self, journal: &Path) {
        let run = format!("{}/", journal.display());
        let verified = self.output(&["verify", "--decisions", "--json", &run]);
        let verified = String::from_utf8_lossy(&verified.stdout).into_owned();
        let answer: serde_json::Value = serde_json::from_str(&verified).unwrap_or_default();
        assert!(
            answer["decisions"]["differs"].is_null(),
            "{run}: {verified}"
        );
        // What a test has damaged has no snapshot.
        let snapshot = self.output(&["show", "--snapshot", "--json", &run]);
        let snapshot: serde_json::Value =
            serde_json::from_slice(&snapshot.stdout).unwrap_or_default();
        assert!(snapshot["anomalies"].is_null(), "{run}: {snapshot:#}");
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
