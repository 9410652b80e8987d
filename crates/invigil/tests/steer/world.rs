//! A store, the binary, one user, and runs that go on while somebody steers them.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nobody in particular: an ordinary user without any rights.
const NOBODY: u32 = 65534;
/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store of its own, and the binary, as one user.
pub(crate) struct World {
    directory: tempfile::TempDir,
    nobody: bool,
}

/// A run that goes on. It dies with this.
pub(crate) struct Going {
    child: Child,
}

impl World {
    /// As whoever runs the tests; if that is root, as an ordinary user too.
    pub(crate) fn everyone() -> Vec<World> {
        let new = |nobody| World {
            directory: tempfile::tempdir().unwrap(),
            nobody,
        };
        let mut all = vec![new(false)];
        let setpriv = Command::new("setpriv").arg("--version").output();
        if rustix::process::getuid().is_root() && setpriv.is_ok() {
            all.push(new(true));
        } else {
            println!("only as one user: no root, or no setpriv");
        }
        for world in &all {
            world.make("work");
            if world.nobody {
                let own = |path: PathBuf| {
                    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
                };
                own(world.at(""));
                own(world.at("work"));
            }
        }
        all
    }

    /// Whether it has rights that it could give up.
    pub(crate) fn is_root(&self) -> bool {
        !self.nobody && rustix::process::getuid().is_root()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A path in the directory in which runs are started.
    pub(crate) fn work(&self, name: &str) -> PathBuf {
        self.at("work").join(name)
    }

    fn make(&self, name: &str) {
        std::fs::create_dir(self.at(name)).unwrap();
    }

    /// Any program, as this user.
    pub(crate) fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(if self.nobody {
            "setpriv".as_ref()
        } else {
            program.as_ref()
        });
        if self.nobody {
            let nobody = NOBODY.to_string();
            command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"]);
            command.arg(program.as_ref());
        }
        command
            .env("HOME", self.directory.path())
            .env("INVIGIL_HOME", self.at("home"))
            // What a killed supervisor leaves goes with the rest.
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .env("NO_COLOR", "1")
            .current_dir(self.at("work"));
        command
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_invigil"));
        command.args(args);
        command
    }

    /// A shell script as this user, in the directory of the runs.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) {
        let done = self.program("sh").args(["-ec", script]).status().unwrap();
        assert!(done.success(), "{script}");
    }

    /// Runs and expects this exit code; stdout and stderr.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        check(&self.command(args).output().unwrap(), code, args)
    }

    /// Runs a command that prints one JSON object.
    #[track_caller]
    pub(crate) fn json(&self, code: i32, args: &[&str]) -> Value {
        let (stdout, _) = self.expect(code, args);
        serde_json::from_str(&stdout).unwrap()
    }

    /// Starts a run of a shell script, and waits until its first program is loaded.
    #[track_caller]
    pub(crate) fn start(&self, run: &str, options: &[&str], script: &str) -> Going {
        self.start_command(run, options, &["sh", "-c", script])
    }

    #[track_caller]
    pub(crate) fn start_command(&self, run: &str, options: &[&str], command: &[&str]) -> Going {
        let mut args = vec!["run", "--run-id", run, "--quiet"];
        args.extend(options);
        args.push("--");
        args.extend(command);
        let child = self
            .command(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let going = Going { child };
        until("the run starts", || {
            let kinds = self.events(run);
            kinds.iter().any(|event| event["kind"] == "process_exec")
        });
        going
    }

    pub(crate) fn events(&self, run: &str) -> Vec<Value> {
        let path = self.at("home/runs").join(run).join("journal.ndjson");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line of a journal that is being written may be half a line.
        let lines = text.lines().map(serde_json::from_str);
        lines.map_while(Result::ok).collect()
    }

    /// The data of all events of a kind.
    pub(crate) fn all(&self, run: &str, kind: &str) -> Vec<Value> {
        let events = self.events(run).into_iter();
        let events = events.filter(|event| event["kind"] == kind);
        events.map(|mut event| event["data"].take()).collect()
    }

    /// The data of the only event of a kind.
    #[track_caller]
    pub(crate) fn event(&self, run: &str, kind: &str) -> Value {
        let mut found = self.all(run, kind);
        assert_eq!(found.len(), 1, "{kind}: {found:?}");
        found.remove(0)
    }

    /// The kinds among these, in the order of the journal.
    pub(crate) fn order(&self, run: &str, kinds: &[&str]) -> Vec<String> {
        let events = self.events(run).into_iter();
        let named = events.map(|event| event["kind"].as_str().unwrap_or_default().to_owned());
        named
            .filter(|kind| kinds.contains(&kind.as_str()))
            .collect()
    }

    /// What a file in the directory of runs says.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.work(name)).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str) {
        until(name, || self.work(name).exists());
    }

    /// Its journal verifies.
    #[track_caller]
    pub(crate) fn verifies(&self, run: &str) {
        self.expect(0, &["verify", run]);
    }
}

impl Going {
    /// Waits for the end of the run and expects this exit code; stdout and stderr.
    #[track_caller]
    pub(crate) fn expect(mut self, code: i32) -> (String, String) {
        until("the run ends", || self.child.try_wait().unwrap().is_some());
        let mut output = Output {
            status: self.child.wait().unwrap(),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        use std::io::Read as _;
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        out.unwrap().read_to_end(&mut output.stdout).unwrap();
        err.unwrap().read_to_end(&mut output.stderr).unwrap();
        check(&output, code, &["the run"])
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[track_caller]
fn check(output: &Output, code: i32, args: &[&str]) -> (String, String) {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = format!("{args:?}\n{stdout}\n{stderr}");
    assert_eq!(output.status.code(), Some(code), "{text}");
    (stdout, stderr)
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "it never came: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The state of a process: `R`, `S`, `t` and so on.
pub(crate) fn state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
