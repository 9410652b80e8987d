//! Runs programs bare and under watch, in every combination of user and tier, with a limit on everything.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Nothing here takes longer unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Who runs it, and how it is watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) root: bool,
    pub(crate) tier: &'static str,
}

/// The programs that the tests use, where everybody can reach them.
pub(crate) struct Tools {
    dir: PathBuf,
    pub(crate) traps: Option<PathBuf>,
    pub(crate) confined: Option<PathBuf>,
}

impl Tools {
    /// Where they are.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

pub(crate) fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let dir = lasting_dir();
        let built = std::env::current_exe().unwrap();
        let built = built
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .join("examples/watch");
        std::fs::copy(&built, dir.join("watch")).expect("cargo builds the example");
        let compile = |name: &str| {
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
            let program = dir.join(name);
            let compiled = Command::new("gcc")
                .args(["-w", "-O1", "-pthread", "-o"])
                .arg(&program)
                .arg(fixtures.join(format!("{name}.c")))
                .status()
                .is_ok_and(|status| status.success());
            if !compiled {
                eprintln!("skipped: there is no gcc to build the fixtures with");
            }
            compiled.then_some(program)
        };
        Tools {
            traps: compile("traps"),
            confined: compile("confined"),
            dir,
        }
    })
}

/// A directory that everybody may use.
pub(crate) fn open_dir() -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("invigil-test-")
        .tempdir()
        .unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// The same for as long as the tests last. What a static holds is never dropped.
pub(crate) fn lasting_dir() -> PathBuf {
    static HELD: Mutex<Vec<TempDir>> = Mutex::new(Vec::new());
    extern "C" fn let_go() {
        if let Ok(mut held) = HELD.lock() {
            held.clear();
        }
    }
    let dir = open_dir();
    let path = dir.path().to_owned();
    let mut held = HELD.lock().unwrap();
    if held.is_empty() {
        // SAFETY: it takes nothing, unwinds nowhere, and lives as long as the program.
        unsafe { libc::atexit(let_go) };
    }
    held.push(dir);
    path
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self")
        .is_ok_and(|data| std::os::unix::fs::MetadataExt::uid(&data) == 0)
}

pub(crate) fn modes() -> Vec<Mode> {
    let users: &[bool] = if is_root() { &[true, false] } else { &[false] };
    let tiers = ["notify", "ptrace"];
    users
        .iter()
        .flat_map(|&root| tiers.map(|tier| Mode { root, tier }))
        .collect()
}

impl Mode {
    /// A command as the user of this mode.
    pub(crate) fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if self.root || !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "--",
            ])
            .arg(program);
        command
    }

    /// `watch` with its options; the facts go to `facts.ndjson` in `dir`.
    pub(crate) fn watch(self, dir: &Path, options: &[&str]) -> Command {
        let mut command = self.command(tools().dir.join("watch"));
        command.args(["--tier", self.tier, "--timeout", "45", "--out"]);
        command
            .arg(dir.join("facts.ndjson"))
            .args(options)
            .arg("--")
            .current_dir(dir);
        command
    }

    /// Runs a program under watch in a fresh directory.
    pub(crate) fn run(self, options: &[&str], program: &[&str]) -> Run {
        self.run_in(open_dir(), options, program)
    }

    pub(crate) fn run_in(self, dir: TempDir, options: &[&str], program: &[&str]) -> Run {
        let work = dir.path().join("work");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::set_permissions(&work, std::fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = self.watch(dir.path(), options);
        command.current_dir(&work).args(program);
        let (code, output) = finish(command);
        let facts = read_facts(dir.path());
        Run {
            mode: self,
            code,
            output,
            facts,
            dir,
        }
    }

    /// Runs a program without anybody watching.
    pub(crate) fn bare(self, program: &[&str]) -> (i32, String) {
        let dir = open_dir();
        let mut command = self.command(program[0]);
        command.args(&program[1..]).current_dir(dir.path());
        finish(command)
    }
}

/// Runs a command to its end; a hang is a failure.
pub(crate) fn finish(mut command: Command) -> (i32, String) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).unwrap();
        text
    });
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).unwrap();
        text
    });
    let code = wait(&mut child, LIMIT).unwrap_or_else(|| panic!("{command:?} hangs"));
    let mut output = reader.join().unwrap();
    output.extend(errors.join().unwrap());
    (code, String::from_utf8_lossy(&output).into_owned())
}

/// Waits for a child; kills it if that takes too long.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(
                status
                    .code()
                    .unwrap_or_else(|| 128 + status.signal().unwrap()),
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

pub(crate) fn read_facts(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("facts.ndjson")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What came of a program that was watched.
pub(crate) struct Run {
    pub(crate) mode: Mode,
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) facts: Vec<Value>,
    pub(crate) dir: TempDir,
}

impl Run {
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("work")
    }

    /// The data of all facts of a kind.
    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        self.facts
            .iter()
            .filter(|f| f["kind"] == kind)
            .map(|f| &f["data"])
            .collect()
    }

    /// File operations on a path below the working directory.
    pub(crate) fn on(&self, name: &str) -> Vec<&Value> {
        let path = self.work().join(name);
        self.of("file_op")
            .into_iter()
            .filter(|op| op["path"] == path.to_str().unwrap())
            .collect()
    }

    pub(crate) fn notes(&self) -> Vec<&str> {
        self.of("observer_note")
            .iter()
            .map(|n| n["note"].as_str().unwrap())
            .collect()
    }

    /// Nothing was lost, every process was born, and every process died.
    pub(crate) fn complete(&self) {
        let mode = self.mode;
        let finished = self.of("observer_finished");
        assert_eq!(finished.len(), 1, "{mode:?} {}", self.output);
        assert_eq!(finished[0]["emitted"], finished[0]["received"], "{mode:?}");
        assert_eq!(finished[0]["lost"], serde_json::json!({}), "{mode:?}");
        let ids = |kind| {
            let mut ids: Vec<_> = self
                .of(kind)
                .iter()
                .map(|f| f["process"].to_string())
                .collect();
            ids.sort();
            ids
        };
        assert_eq!(ids("process_forked"), ids("process_exited"), "{mode:?}");
        assert_eq!(
            finished[0]["processes"],
            ids("process_forked").len(),
            "{mode:?}"
        );
    }
}

/// Runs a fixture bare and under watch in every mode: same output, same exit code, complete facts.
pub(crate) fn same_as_bare(arguments: &[&str], check: impl Fn(&Run)) {
    let Some(traps) = &tools().traps else {
        return;
    };
    let mut program = vec![traps.to_str().unwrap()];
    program.extend(arguments);
    for mode in modes() {
        let (code, output) = mode.bare(&program);
        let run = mode.run(&[], &program);
        assert_eq!(run.output, output, "{mode:?} {arguments:?}");
        assert_eq!(run.code, code, "{mode:?} {arguments:?}");
        run.complete();
        check(&run);
    }
}
