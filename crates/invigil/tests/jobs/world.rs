//! A store, a directory to work in, something outside of it, and the binary, as one user.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use invigil_journal::{Expected, Store, verify};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Nobody in particular: an ordinary user without any rights.
const NOBODY: u32 = 65534;
/// Nothing takes longer, unless it hangs.
const LONG: Duration = Duration::from_secs(60);
/// The one record that ends a job.
const ENDS: [&str; 5] = [
    "job_completed",
    "job_failed",
    "job_denied",
    "job_timed_out",
    "job_cancelled",
];

/// Everything that a test has of its own.
pub(crate) struct World {
    folder: TempDir,
    pub(crate) nobody: bool,
}

impl World {
    /// As whoever runs the tests; if that is root, as an ordinary user too.
    pub(crate) fn everyone() -> Vec<World> {
        let root = rustix::process::getuid().is_root();
        let setpriv = Command::new("setpriv").arg("--version").output().is_ok();
        if !(root && setpriv) {
            println!("only as one user: no root, or no setpriv");
        }
        let users = [false, true].into_iter();
        let users = users.take(1 + usize::from(root && setpriv));
        users.map(World::new).collect()
    }

    /// As somebody without rights, where that is possible.
    pub(crate) fn ordinary() -> World {
        World::everyone().pop().unwrap()
    }

    fn new(nobody: bool) -> World {
        let world = World {
            folder: tempfile::tempdir().unwrap(),
            nobody,
        };
        fs::create_dir(world.work()).unwrap();
        fs::create_dir(world.at("outside")).unwrap();
        fs::write(world.at("outside/secret"), "secret").unwrap();
        world.give_away();
        world
    }

    /// Whatever the test has made so far belongs to the user.
    pub(crate) fn give_away(&self) {
        if self.nobody {
            chown(self.folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            for path in tree(self.folder.path()).into_keys() {
                std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
    }

    /// A path beside the working directory.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.at("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.at("store")
    }

    pub(crate) fn store(&self) -> Store {
        Store::new(self.home())
    }

    /// A file in the working directory, of the user.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        self.give_away();
        path
    }

    pub(crate) fn link(&self, name: &str, to: impl AsRef<Path>) {
        symlink(to, self.work().join(name)).unwrap();
        self.give_away();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).unwrap()
    }

    /// A policy file outside of the working directory.
    pub(crate) fn policy(&self, text: &str) -> String {
        let path = self.at("policy.toml");
        fs::write(&path, text).unwrap();
        self.give_away();
        path.to_str().unwrap().to_owned()
    }

    /// A program as the user, in the working directory.
    pub(crate) fn program(&self, program: &str, args: &[&str]) -> Command {
        let mut command = match self.nobody {
            false => Command::new(program),
            true => {
                let id = NOBODY.to_string();
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]);
                command
            }
        };
        command
            .args(args)
            .env("HOME", self.folder.path())
            .env("INVIGIL_HOME", self.home())
            .env("INVIGIL_GUARD", "off")
            .env("NO_COLOR", "1")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .stdin(Stdio::null())
            .current_dir(self.work());
        command
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_invigil"), args)
    }

    /// Runs and expects this exit code; stdout and stderr.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        expected(code, &self.command(args).output().unwrap(), &args)
    }

    /// Runs, expects this exit code, and gives the lines of JSON on stdout.
    #[track_caller]
    pub(crate) fn lines(&self, code: i32, args: &[&str]) -> Vec<Value> {
        let (stdout, _) = self.expect(code, args);
        let lines = stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(crate) fn exec_command(
        &self,
        capability: &str,
        arguments: &Value,
        more: &[&str],
    ) -> Command {
        let arguments = arguments.to_string();
        let mut args = vec!["exec", capability, &arguments, "--json"];
        args.extend(more);
        self.command(&args)
    }

    /// One job with this exit code: its result, which is what is on record.
    #[track_caller]
    pub(crate) fn exec(&self, code: i32, capability: &str, arguments: Value) -> Value {
        self.exec_with(code, capability, arguments, &[])
    }

    #[track_caller]
    pub(crate) fn exec_with(
        &self,
        code: i32,
        capability: &str,
        arguments: Value,
        more: &[&str],
    ) -> Value {
        let output = self
            .exec_command(capability, &arguments, more)
            .output()
            .unwrap();
        self.result(code, &output, &arguments)
    }

    /// The result that was printed, after a comparison with the journal.
    #[track_caller]
    pub(crate) fn result(&self, code: i32, output: &Output, about: &dyn std::fmt::Debug) -> Value {
        let (stdout, _) = expected(code, output, about);
        let result: Value = serde_json::from_str(&stdout).unwrap();
        let record = self.record(result["seq"].as_u64().unwrap());
        let kind = record["kind"].as_str().unwrap();
        assert!(ENDS.contains(&kind), "{record}");
        assert_eq!(record["data"]["end"]["job_id"], result["job_id"]);
        assert_eq!(result["success"], code == 0, "{result}");
        assert_eq!(result["success"], result["output"]["success"]);
        let (state, end) = match code {
            0 => ("completed", "job_completed"),
            1 => ("failed", "job_failed"),
            121 => ("denied", "job_denied"),
            124 => ("timed_out", "job_timed_out"),
            125 => ("invalid", "job_failed"),
            _ => ("cancelled", "job_cancelled"),
        };
        assert_eq!(
            (result["state"].as_str(), kind),
            (Some(state), end),
            "{result}"
        );
        result
    }

    /// A job that changes nothing, whatever it is asked for.
    #[track_caller]
    pub(crate) fn dry(&self, capability: &str, arguments: Value) -> Value {
        let before = self.everything();
        let result = self.exec_with(0, capability, arguments, &["--dry-run"]);
        self.is_still(&before);
        result
    }

    /// Each of these is wrong, and the field is named.
    #[track_caller]
    pub(crate) fn wrong(&self, capability: &str, cases: &[(Value, &str)]) {
        let before = self.everything();
        // What is wrong does not depend on who says it.
        let most = if self.nobody { 2 } else { cases.len() };
        for (arguments, field) in &cases[..most] {
            let result = self.exec(125, capability, arguments.clone());
            let message = message(&result);
            assert!(message.starts_with("Validation failed: "), "{message}");
            assert!(
                message.contains(&format!("`{field}`")),
                "{arguments}: {message}"
            );
        }
        self.is_still(&before);
    }

    /// Each of these is denied, for a reason in these words, and nothing is changed.
    #[track_caller]
    pub(crate) fn denied(&self, capability: &str, cases: &[(Value, &str)]) {
        let before = self.everything();
        for (arguments, why) in cases {
            let result = self.exec(121, capability, arguments.clone());
            let message = message(&result);
            assert!(message.starts_with("Denied: "), "{arguments}: {message}");
            assert!(message.contains(why), "{arguments}: {message}");
        }
        self.is_still(&before);
    }

    /// A policy denies it, and the message names file and line.
    #[track_caller]
    pub(crate) fn forbidden(&self, capability: &str, arguments: Value, policy: &str, line: usize) {
        // A temporary name may have come and gone.
        let before = without_times(self.everything());
        let file = self.policy(policy);
        let result = self.exec_with(121, capability, arguments, &["--policy", &file]);
        let place = format!("policy.toml:{line}");
        let message = message(&result);
        assert!(message.contains(&place), "{message}");
        fs::remove_file(file).unwrap();
        same(&before, &without_times(self.everything()));
    }

    /// Everything but the store.
    pub(crate) fn everything(&self) -> Tree {
        let mut all = tree(self.folder.path());
        // The time of the folder changes when the store and policies are made in it.
        all.retain(|path, _| !path.starts_with(self.home()) && path != self.folder.path());
        all
    }

    #[track_caller]
    pub(crate) fn is_still(&self, before: &Tree) {
        same(before, &self.everything());
    }

    /// The records of the journal of jobs, all of them.
    pub(crate) fn records(&self) -> Vec<Value> {
        self.records_from(0)
    }

    fn records_from(&self, seq: u64) -> Vec<Value> {
        let Some(run) = self.store().jobs_so_far() else {
            return Vec::new();
        };
        let Some(mut reader) = run.read(seq).unwrap() else {
            return Vec::new();
        };
        let mut records = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            records.push(serde_json::from_slice(record.line()).unwrap());
        }
        records
    }

    #[track_caller]
    fn record(&self, seq: u64) -> Value {
        let found = self.records_from(seq).into_iter().next();
        found.unwrap_or_else(|| panic!("there is no record {seq}"))
    }

    /// The data of all records of a kind.
    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        let mut records = self.records();
        records.retain(|record| record["kind"] == kind);
        records
            .iter_mut()
            .map(|record| record["data"].take())
            .collect()
    }

    /// The numbers have no gaps, every hash fits, each job that was started has exactly one end. How many jobs.
    #[track_caller]
    pub(crate) fn is_well(&self) -> usize {
        let run = self.store().jobs_so_far().unwrap();
        verify(run.storage(), &Expected::default()).unwrap();
        let mut ends: HashMap<String, usize> = HashMap::new();
        for (at, record) in self.records().iter().enumerate() {
            assert_eq!(record["seq"], at, "{record}");
            let kind = record["kind"].as_str().unwrap();
            let id = |value: &Value| value.as_str().unwrap().to_owned();
            if kind == "job_started" {
                let known = ends.insert(id(&record["data"]["job_id"]), 0);
                assert_eq!(known, None, "started twice: {record}");
            }
            if ENDS.contains(&kind) {
                let count = ends.get_mut(&id(&record["data"]["end"]["job_id"]));
                *count.unwrap_or_else(|| panic!("never started: {record}")) += 1;
            }
        }
        let wrong: Vec<_> = ends.iter().filter(|(_, count)| **count != 1).collect();
        assert!(wrong.is_empty(), "without exactly one end: {wrong:?}");
        ends.len()
    }
}

#[track_caller]
fn expected(code: i32, output: &Output, about: &dyn std::fmt::Debug) -> (String, String) {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let (shown, _) = stdout.split_at(stdout.floor_char_boundary(1000));
    let status = output.status;
    assert_eq!(
        status.code(),
        Some(code),
        "{about:?}: {status}\n{shown}\n{stderr}"
    );
    (stdout, stderr)
}

pub(crate) fn message(result: &Value) -> &str {
    result["output"]["message"].as_str().unwrap_or_default()
}

pub(crate) fn data(result: &Value) -> &Value {
    &result["output"]["data"]
}

pub(crate) fn id(result: &Value) -> &str {
    result["job_id"].as_str().unwrap()
}

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    mode: u32,
    owner: (u32, u32),
    /// The bytes of a file, the target of a link.
    content: Vec<u8>,
    modified: (i64, i64),
}

/// Everything below a directory, and the directory itself: names, bytes, modes, owners, links and times.
pub(crate) type Tree = BTreeMap<PathBuf, Entry>;

pub(crate) fn tree(path: &Path) -> Tree {
    let mut found = Tree::new();
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_dir() {
            pending.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if stat.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        let entry = Entry {
            mode: stat.permissions().mode(),
            owner: (stat.uid(), stat.gid()),
            content,
            modified: (stat.mtime(), stat.mtime_nsec()),
        };
        found.insert(path, entry);
    }
    found
}

/// Without the times, which nobody takes back.
pub(crate) fn shape(path: &Path) -> Tree {
    without_times(tree(path))
}

fn without_times(mut tree: Tree) -> Tree {
    for entry in tree.values_mut() {
        entry.modified = (0, 0);
    }
    tree
}

#[track_caller]
pub(crate) fn same(before: &Tree, after: &Tree) {
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed: Vec<_> = paths.into_iter().filter(differs).collect();
    let show = |path: &PathBuf| {
        (
            path.clone(),
            before.get(path).cloned(),
            after.get(path).cloned(),
        )
    };
    let shown: Vec<_> = changed.into_iter().map(show).collect();
    assert!(shown.is_empty(), "changed: {shown:#?}");
}

/// A number of seconds that nobody else sleeps for, by which processes can be found.
pub(crate) fn unique_seconds() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("6{}.{:04}", std::process::id(), next)
}

/// The processes that have this text in one of their arguments, but for our own and those that lead to them.
pub(crate) fn processes_with(text: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) && !line.contains("invigil") {
            found.push((pid, line));
        }
    }
    found
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LONG, "it never happens: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A dying process may be seen for a moment; a survivor is seen for longer.
#[track_caller]
pub(crate) fn none_is_left(text: &str) {
    let begun = Instant::now();
    loop {
        let left = processes_with(text);
        if left.is_empty() {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(1),
            "left behind: {left:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Runs with this on stdin.
pub(crate) fn fed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

/// Arguments of `shell` with a second of time.
pub(crate) fn a_second(command: &str) -> Value {
    json!({ "command": command, "timeout": 1 })
}
