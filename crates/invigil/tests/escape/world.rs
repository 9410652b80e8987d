//! What a hostile program finds: a place to work, a secret, tools, people outside, and Invigil's store.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::servers::Servers;
use crate::victim::Victim;

/// Nobody in particular: an ordinary user without any rights.
const NOBODY: u32 = 65534;

/// No way takes longer, unless something hangs. Races are tried more often than that in a soak.
const LIMIT: Duration = Duration::from_secs(90);

/// One way around a policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// Its name in the program.
    pub(crate) way: &'static str,
    /// Words that stand together in one record of a refusal; ` | ` separates alternatives. Empty for what is listed in
    /// `UNRECORDED`.
    pub(crate) denied: &'static str,
    /// What happens where nobody forbids it.
    pub(crate) alone: Alone,
}

/// The ways whose failure is on no record, and why it cannot be. A way that is not here must leave a denial behind; whoever
/// adds one changes the number.
const UNRECORDED: [(&str, &str); 5] = [
    (
        "core_dump",
        "nothing is refused: the limit for core files is zero, and the kernel writes none",
    ),
    (
        "cloned3_namespace",
        "clone3 does not exist in a run. Every libc tries it for each thread and each child before clone, so it is the \
         filter that says so; a trap would cost what a process storm costs",
    ),
    ("cloned_into_cgroup", "the same"),
    (
        "other_group",
        "setpgid finds only children of the caller: the kernel says that there is no such process",
    ),
    (
        "locked",
        "nothing is refused: whoever locks what it can read locks nobody out who has it open already",
    ),
];

/// What a way does without Invigil.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    /// Harm; a test that sees none could not fail.
    Works,
    /// It depends on the machine, or cannot be tried without danger.
    Untried,
}

/// A way that works where nobody forbids it.
pub(crate) const fn works(way: &'static str, denied: &'static str) -> Case {
    let alone = Alone::Works;
    Case { way, denied, alone }
}

/// A way that is only tried under Invigil.
pub(crate) const fn untried(way: &'static str, denied: &'static str) -> Case {
    let alone = Alone::Untried;
    Case { way, denied, alone }
}

/// Cases that share a program and a policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suite<'a> {
    /// The file in `programs`.
    pub(crate) program: &'static str,
    /// A policy in which `@` is the world, and `ALLOWED` the port that may be reached.
    pub(crate) policy: &'static str,
    /// More words for the command line.
    pub(crate) options: &'static [&'static str],
    /// The table.
    pub(crate) cases: &'a [Case],
}

impl Suite<'_> {
    /// Tries all cases as everybody, and tells of all that went wrong.
    #[track_caller]
    pub(crate) fn hold(&self) {
        let mut wrong = Vec::new();
        for nobody in users() {
            for case in self.cases.iter().filter(|case| wanted(case.way)) {
                let who = if nobody { "nobody" } else { "whoever tests" };
                let began = Instant::now();
                let flaws = self.attempt(case, nobody);
                // A soak takes long, and shows how far it is.
                if tries() > FEW {
                    let (way, tries, flaws) = (case.way, tries(), flaws.len());
                    let took = began.elapsed().as_secs();
                    println!("{way} as {who}: {tries} tries, {flaws} flaws, {took} s");
                }
                wrong.extend(
                    flaws
                        .iter()
                        .map(|flaw| format!("{} as {who}: {flaw}", case.way)),
                );
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", self.program, wrong.join("\n"));
    }

    /// Whether a way does harm where nobody forbids it. A race may be lost; one that is always lost is none.
    fn works_alone(&self, case: &Case, nobody: bool) -> bool {
        (0..5).any(|_| {
            let world = World::new(nobody, case.way);
            let output = world.alone(self.program, case.way);
            !world.harm(&output).is_empty()
        })
    }

    fn attempt(&self, case: &Case, nobody: bool) -> Vec<String> {
        let mut flaws = Vec::new();
        if case.alone == Alone::Works && !self.works_alone(case, nobody) {
            flaws.push("does nothing even where it may".to_owned());
        }
        let world = World::new(nobody, case.way);
        let output = world.guarded(self, case.way);
        flaws.extend(world.harm(&output));
        let (denials, ended) = world.denials();
        if !ended {
            flaws.push(format!("the run has no end in the journal: {output:?}"));
        }
        let words = |alternative: &str| {
            let found = |denial: &String| alternative.split(' ').all(|word| denial.contains(word));
            denials.iter().any(found)
        };
        if case.denied.is_empty() {
            let reason = UNRECORDED.iter().find(|(way, _)| *way == case.way);
            flaws.extend(match reason {
                Some(_) => None,
                None => Some(format!(
                    "nobody says why it is not recorded, but {denials:#?}"
                )),
            });
        } else if !case.denied.split(" | ").any(words) {
            let some = &denials[..denials.len().min(4)];
            flaws.push(format!(
                "no denial with {:?}, but {some:#?} and {output:?}",
                case.denied
            ));
        }
        flaws
    }
}

/// Whoever runs the tests, and if that is root an ordinary user too.
pub(crate) fn users() -> Vec<bool> {
    if rustix::process::getuid().is_root() {
        vec![false, true]
    } else {
        println!("only as uid {:?}", rustix::process::getuid());
        vec![false]
    }
}

/// A race is tried so often where nobody forbids it, and under a policy if nobody says otherwise.
const FEW: u64 = 5_000;

/// How often a race is tried under a policy.
fn tries() -> u64 {
    let tries = std::env::var("INVIGIL_TRIES").map(|tries| tries.parse());
    tries.map_or(FEW, |tries| tries.unwrap())
}

/// Whether a way is tried: all are, unless `INVIGIL_WAYS` names some.
fn wanted(way: &str) -> bool {
    let ways = std::env::var("INVIGIL_WAYS");
    ways.map_or(true, |ways| ways.split(',').any(|wanted| wanted == way))
}

/// Everything there is, made anew for each run.
pub(crate) struct World {
    directory: TempDir,
    nobody: bool,
    servers: Servers,
    victim: Victim,
    before: Vec<Entry>,
}

/// A file or a directory that must stay as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    path: PathBuf,
    content: Option<Vec<u8>>,
    mode: u32,
    links: u64,
    changed: (i64, i64),
}

impl World {
    /// Makes everything that a way needs.
    pub(crate) fn new(nobody: bool, way: &str) -> World {
        let mut builder = tempfile::Builder::new();
        let directory = builder.prefix("invigil-escape-").tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in [
            "work/good",
            "work/.config/invigil",
            "secret/deep",
            "secret/empty",
            "nest/secret",
            "tools",
            "bin",
            "outside",
            "home/runs/before",
        ] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for (name, text) in [
            ("work/hello", "hello\n"),
            ("work/good/key", "hello\n"),
            ("secret/key", "ESCAPED: this is the secret\n"),
            ("nest/secret/key", "ESCAPED: this is the secret\n"),
            ("secret/script", "#!/bin/sh\necho ESCAPED: the script ran\n"),
            ("home/runs/before/journal.ndjson", "{}\n"),
        ] {
            fs::write(at(name), text).unwrap();
        }
        let (built, tool) = (programs(), at("tools/witness"));
        fs::copy(built.join("witness"), &tool).unwrap();
        fs::hard_link(&tool, at("tools/alias")).unwrap();
        fs::copy(&tool, at("tools/twin")).unwrap();
        fs::copy(built.join("bare"), at("tools/bare")).unwrap();
        fs::hard_link(at("tools/bare"), at("tools/bare-alias")).unwrap();
        if way.starts_with("earlier") {
            fs::hard_link(at("secret/key"), at("work/earlier")).unwrap();
        }
        fs::copy("/bin/true", at("tools/nothing")).unwrap();
        // Not the same program, or it would be refused as such.
        let mut other = fs::read(&tool).unwrap();
        other.push(0);
        fs::write(at("tools/suid"), other).unwrap();
        fs::set_permissions(at("secret/script"), PermissionsExt::from_mode(0o755)).unwrap();
        if nobody {
            give(directory.path());
        }
        // This one stays ours: whoever runs it would have our rights.
        std::os::unix::fs::chown(
            at("tools/suid"),
            Some(rustix::process::getuid().as_raw()),
            None,
        )
        .unwrap();
        fs::set_permissions(at("tools/suid"), PermissionsExt::from_mode(0o4755)).unwrap();
        let servers = Servers::start(&at("outside"));
        if nobody {
            give(&at("outside"));
        }
        let victim = Victim::start(as_user(nobody, "sleep"), directory.path());
        let mut world = World {
            directory,
            nobody,
            servers,
            victim,
            before: Vec::new(),
        };
        world.before = world.entries();
        world
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, program: &str, way: &str, tries: u64, mut command: Command) -> Command {
        let file = self.at("bin").join(program);
        fs::copy(programs().join(program), &file).unwrap();
        let numbers = [
            u64::from(self.victim.id()),
            u64::from(self.servers.port),
            u64::from(self.servers.allowed),
            tries,
        ];
        command
            .arg(file)
            .arg(way)
            .arg(self.directory.path())
            .args(numbers.map(|number| number.to_string()))
            .current_dir(self.at("work"))
            .env("HOME", self.at("work"))
            .env("INVIGIL_HOME", self.at("home"))
            .env("NO_COLOR", "1");
        command
    }

    /// Runs a way without Invigil.
    fn alone(&self, program: &str, way: &str) -> String {
        finish(self.command(program, way, FEW, as_user(self.nobody, "env")))
    }

    /// Runs a way under a policy.
    fn guarded(&self, suite: &Suite<'_>, way: &str) -> String {
        let world = self.directory.path().to_str().unwrap();
        let policy = suite.policy.replace('@', world);
        let policy = policy.replace("ALLOWED", &self.servers.allowed.to_string());
        let file = self.at("policy.toml");
        fs::write(&file, policy).unwrap();
        let mut command = as_user(self.nobody, env!("CARGO_BIN_EXE_invigil"));
        command.args([
            "run", "-q", "--run-id", "hostile", "--mode", "guard", "--policy",
        ]);
        command.arg(file).args(suite.options).arg("--");
        finish(self.command(suite.program, way, tries(), command))
    }

    /// The refusals of the run, a line each, and whether it has ended as it should. A long race fills several files; a
    /// part of what they say is enough.
    fn denials(&self) -> (Vec<String>, bool) {
        let mut files: Vec<PathBuf> = fs::read_dir(self.at("home/runs/hostile"))
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        files.retain(|file| file.extension().is_some_and(|kind| kind == "ndjson"));
        let (mut denials, mut ended) = (Vec::new(), false);
        for text in files.iter().map(|file| fs::read_to_string(file).unwrap()) {
            for line in text.lines() {
                let event: Value = serde_json::from_str(line).unwrap();
                let kind = event["kind"].as_str().unwrap();
                ended |= kind == "run_finished";
                let tells = ["access_denied", "observer_note", "run_finished"].contains(&kind);
                if tells && denials.len() < 10_000 {
                    denials.push(event["data"].to_string());
                }
            }
        }
        (denials, ended)
    }

    /// Everything that has happened and must not have.
    fn harm(&self, output: &str) -> Vec<String> {
        let mut harm = self.leftovers();
        let said = output.lines().filter(|line| line.contains("ESCAPED"));
        harm.extend(said.take(3).map(|line| format!("it says {line:?}")));
        harm.extend(
            self.servers
                .reached()
                .iter()
                .map(|who| format!("{who} was reached")),
        );
        harm.extend(self.victim.harm());
        let now = self.entries();
        let differs = |entry: &&Entry| !self.before.contains(entry);
        harm.extend(
            now.iter()
                .filter(differs)
                .map(|entry| format!("there is {entry:?}")),
        );
        let gone = |entry: &&Entry| !now.contains(entry);
        harm.extend(
            self.before
                .iter()
                .filter(gone)
                .map(|entry| format!("there was {entry:?}")),
        );
        harm
    }

    /// Processes that are still there, which are ended.
    fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let path = entry.unwrap().path();
            let Ok(exe) = fs::read_link(path.join("exe")) else {
                continue;
            };
            if exe.starts_with(self.at("bin")) {
                let pid = path.file_name().unwrap().to_str().unwrap().to_owned();
                drop(Command::new("kill").args(["-KILL", &pid]).status());
                left.push(format!("{pid} still runs"));
            }
        }
        left
    }

    /// What must stay as it is.
    fn entries(&self) -> Vec<Entry> {
        let kept = ["secret", "nest", "tools", "home/runs/before", "home/token"];
        let mut pending: Vec<PathBuf> = kept.map(|name| self.at(name)).to_vec();
        let mut entries = Vec::new();
        while let Some(path) = pending.pop() {
            let Ok(data) = fs::symlink_metadata(&path) else {
                continue;
            };
            if data.is_dir() {
                pending.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
            entries.push(Entry {
                content: data.is_file().then(|| fs::read(&path).unwrap()),
                mode: data.mode(),
                links: data.nlink(),
                changed: (data.ctime(), data.ctime_nsec()),
                path,
            });
        }
        entries.sort();
        entries
    }
}

/// A command as one of the users.
fn as_user(nobody: bool, program: &str) -> Command {
    if !nobody {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let id = NOBODY.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]);
    command
}

/// Everything below belongs to nobody in particular.
fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// Runs a command to its end and gives what it said; a hang is a failure.
fn finish(mut command: Command) -> String {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().unwrap()),
        Box::new(child.stderr.take().unwrap()),
    ];
    // What is printed past a limit is of no interest, but somebody has to take it.
    let readers = pipes.each_mut().map(|pipe| {
        let mut pipe = std::mem::replace(pipe, Box::new(std::io::empty()));
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let mut block = [0; 8192];
            while let Ok(n @ 1..) = pipe.read(&mut block) {
                let keep = n.min(100_000_usize.saturating_sub(text.len()));
                text.extend_from_slice(&block[..keep]);
            }
            text
        })
    });
    let limit = LIMIT * u32::try_from(tries().div_ceil(20_000)).unwrap();
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("{command:?} hangs");
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut text = format!("[{:?} {:?}] ", status.code(), status.signal());
    // Whoever outlives the command holds its pipes, but not for ever.
    for reader in readers {
        let waited = Instant::now();
        while !reader.is_finished() && waited.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(2));
        }
        if reader.is_finished() {
            text += &String::from_utf8_lossy(&reader.join().unwrap());
        }
    }
    text
}

/// Where the programs are, built once.
fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("escape");
        fs::create_dir_all(&to).unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/programs");
        for entry in fs::read_dir(from).unwrap() {
            let source = entry.unwrap().path();
            if source.extension().is_some_and(|kind| kind == "c") {
                let mut gcc = Command::new("gcc");
                gcc.args(["-w", "-O1", "-pthread", "-o"]);
                let bare = source.file_stem().is_some_and(|name| name == "bare");
                let alone = ["-nostdlib", "-static", "-fno-stack-protector"];
                gcc.arg(to.join(source.file_stem().unwrap()))
                    .arg(&source)
                    .args(if bare { &alone[..] } else { &["-lutil"] });
                assert!(gcc.status().unwrap().success(), "{source:?}");
            }
        }
        to
    })
}
