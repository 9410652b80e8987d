//! `cargo xtask agree`: what Invigil records of real programs against what strace says of them, fact for fact.
//!
//! Each program runs three times on inputs that are made anew at the same place: alone, under strace, and under Invigil.
//! Facts are compared as multisets, because pids and the order of processes that run side by side mean nothing.

mod fact;
mod journal;
mod line;
mod mask;
mod resolve;
mod scenario;
mod strace;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use self::fact::Facts;
use self::mask::Masks;
use self::scenario::Scenario;
use crate::child::{self, Ended, Program, Scratch, User};
use crate::{Result, release, root};

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(300);
/// How long processes that a program left behind may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Compare what is recorded of real programs with what strace says of them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this scenario; may be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only as a user without rights. Root does everything twice otherwise: as root and as such a user.
    #[arg(long)]
    as_user: bool,
    /// Only as the user who runs this.
    #[arg(long, conflicts_with = "as_user")]
    as_self: bool,
    /// Compare opens for reading too.
    #[arg(long)]
    reads: bool,
    /// Do each this many times. Some things go wrong only sometimes.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Print at most this many differences of each kind.
    #[arg(long, default_value_t = 20)]
    show: usize,
    /// Use this program instead of building one.
    #[arg(long, value_name = "FILE")]
    invigil: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result {
    let known = |name: &String| scenario::ALL.iter().any(|scenario| scenario.name == name);
    if let Some(name) = args.only.iter().find(|name| !known(name)) {
        let names: Vec<_> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
        return Err(format!("no scenario is called {name}: {}", names.join(", ")).into());
    }
    if child::missing(&["strace"]).is_some() {
        println!(
            "skipped: strace is not installed, and without it there is nothing to compare with"
        );
        return Ok(());
    }
    let stage = Stage::new(args)?;
    let mut failed = 0;
    for scenario in scenario::ALL {
        let asked = args.only.is_empty() || args.only.iter().any(|name| name == scenario.name);
        for &user in stage.users.iter().filter(|_| asked) {
            for _ in 0..args.times {
                failed += u32::from(!stage.compare(scenario, user, args.show)?);
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} scenarios do not agree").into()),
    }
}

/// The calls that are facts, as strace wants to be told.
#[cfg_attr(
    not(feature = "bench"),
    expect(dead_code, reason = "only the benchmark asks")
)]
pub(crate) fn facts() -> String {
    strace::CALLS
        .replace("chdir,fchdir,", "")
        .replace(",rt_sigreturn", "")
}

/// Where everything happens.
struct Stage {
    scratch: Scratch,
    invigil: PathBuf,
    /// A Rust toolchain, if there is one.
    rust: Option<PathBuf>,
    users: Vec<User>,
    /// Whether opens for reading are compared.
    reads: bool,
}

/// What was left by one run.
struct Run {
    ended: Ended,
    facts: Facts,
    /// What is wrong whatever the other side says.
    wrong: Vec<String>,
}

impl Stage {
    fn new(args: &Args) -> Result<Stage> {
        let users = match (User::is_root(), args.as_user, args.as_self) {
            (true, true, _) => vec![User::Nobody],
            (true, false, false) => vec![User::Same, User::Nobody],
            _ => vec![User::Same],
        };
        if users.contains(&User::Nobody) && child::missing(&["setpriv"]).is_some() {
            return Err("setpriv is not installed: use --as-self".into());
        }
        let scratch = Scratch::new("agree")?;
        let built = match &args.invigil {
            Some(path) => path.clone(),
            None => release("invigil")?,
        };
        let invigil = scratch.path().join("invigil");
        fs::copy(built, &invigil)?;
        Ok(Stage {
            invigil,
            rust: toolchain().ok(),
            reads: args.reads,
            scratch,
            users,
        })
    }

    /// Whether both sides agree. Prints what they do not agree on.
    fn compare(&self, scenario: &Scenario, user: User, show: usize) -> Result<bool> {
        let title = format!("{} as {}", scenario.name, user.name());
        let missing = child::missing(scenario.needs);
        let no_rust = (scenario.rust && self.rust.is_none()).then_some("Rust");
        if let Some(missing) = missing.or(no_rust) {
            println!("{title}: skipped, {missing} is not installed");
            return Ok(true);
        }
        let masks = Masks::new(scenario.masks);
        let bare = self.bare(scenario, user)?;
        let strace = self.strace(scenario, user, &masks)?;
        let ours = self.invigil(scenario, user, &masks)?;
        let mut report = ours.wrong;
        report.extend(same_end("strace", &bare, &strace.ended, scenario));
        report.extend(same_end("invigil", &bare, &ours.ended, scenario));
        let (missed, extra) = (
            more(&strace.facts, &ours.facts),
            more(&ours.facts, &strace.facts),
        );
        report.extend(some("only strace saw", &missed, show));
        report.extend(some("only invigil saw", &extra, show));
        let count: i64 = strace.facts.values().sum();
        let seconds = |ended: &Ended| ended.took.as_secs_f64();
        let title = format!(
            "{title}: {count} facts ({:.1} s alone, {:.1} s under strace, {:.1} s under invigil)",
            seconds(&bare),
            seconds(&strace.ended),
            seconds(&ours.ended)
        );
        if report.is_empty() {
            println!("{title}: no difference");
            return Ok(true);
        }
        println!("{title}: DIFFERENT");
        for line in report {
            println!("    {line}");
        }
        Ok(false)
    }

    fn bare(&self, scenario: &Scenario, user: User) -> Result<Ended> {
        let ended = self.program(scenario, user)?.run(&self.said()?)?;
        child::clear(&self.scratch.path().join("work"), PATIENCE);
        Ok(ended)
    }

    fn strace(&self, scenario: &Scenario, user: User, masks: &Masks) -> Result<Run> {
        let program = self.program(scenario, user)?;
        let log = self.scratch.folder("strace", user)?.join("log");
        let mut words: Vec<std::ffi::OsString> = ["strace", "-f", "-yy", "-s", "1000000", "-o"]
            .map(Into::into)
            .into();
        words.push(log.clone().into());
        words.extend(["-e"].map(Into::into));
        words.push(format!("trace={}", strace::CALLS).into());
        words.push("--".into());
        let ended = program.under(words).run(&self.said()?)?;
        let work = program.folder.to_string_lossy();
        let log = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        Ok(Run {
            ended,
            facts: strace::read(&log, &work, masks, self.reads),
            wrong: Vec::new(),
        })
    }

    fn invigil(&self, scenario: &Scenario, user: User, masks: &Masks) -> Result<Run> {
        let mut program = self.program(scenario, user)?;
        let home = self.scratch.folder("invigil-home", user)?;
        let status = self.scratch.folder("status", user)?.join("status.json");
        program.env("INVIGIL_HOME", &home);
        let mut words = vec![self.invigil.clone().into_os_string()];
        words.extend(["run", "--quiet", "--status"].map(Into::into));
        words.push(status.clone().into());
        if self.reads {
            words.extend(["--reads", "on"].map(Into::into));
        }
        words.push("--".into());
        let ended = program.under(words).run(&self.said()?)?;
        let status = fs::read_to_string(&status)
            .map_err(|error| format!("no status ({error}); it said:\n{}", ended.said()))?;
        let status: Value = serde_json::from_str(&status)?;
        let folder = status["evidence"].as_str().ok_or("no evidence")?;
        let journal = journal::read(Path::new(folder), masks, self.reads)?;
        let mut wrong = journal.wrong;
        if status["tier"] != "notify" {
            wrong.push(format!("tier {}", status["tier"]));
        }
        if self.scratch.path().join("work").exists() {
            child::clear(&self.scratch.path().join("work"), Duration::ZERO);
        }
        Ok(Run {
            ended,
            facts: journal.facts,
            wrong,
        })
    }

    /// A program with inputs that nobody has used.
    fn program(&self, scenario: &Scenario, user: User) -> Result<Program> {
        let folder = self.scratch.folder("work", user)?;
        for (name, text) in scenario.inputs {
            fs::write(folder.join(name), text)?;
        }
        fs::write(
            folder.join("prepare.sh"),
            format!("set -e\n{}", scenario.prepare),
        )?;
        fs::write(folder.join("run.sh"), scenario.run)?;
        user.give(&folder)?;
        let mut program = Program::new(["/bin/sh", "prepare.sh"]);
        program.folder = folder;
        program.user = user;
        program.limit = LIMIT;
        program.env("HOME", self.scratch.folder("home", user)?);
        program.env("TMPDIR", self.scratch.folder("tmp", user)?);
        if let Some(rust) = &self.rust {
            program.env("RUST", rust);
            program.env("RUSTC", rust.join("bin/rustc"));
        }
        for who in ["AUTHOR", "COMMITTER"] {
            program.env(&format!("GIT_{who}_NAME"), "Somebody");
            program.env(&format!("GIT_{who}_EMAIL"), "somebody@example.com");
            program.env(&format!("GIT_{who}_DATE"), "2020-01-02T03:04:05Z");
        }
        program.succeed(&self.said()?)?;
        program.words[1] = "run.sh".into();
        Ok(program)
    }

    fn said(&self) -> Result<PathBuf> {
        self.scratch.folder("said", User::Same)
    }
}

/// How the end of a watched run differs from that of the bare one.
fn same_end(who: &str, bare: &Ended, watched: &Ended, scenario: &Scenario) -> Vec<String> {
    let mut report = Vec::new();
    if bare.code() != watched.code() {
        report.push(format!(
            "exit code {} under {who}, {} alone",
            watched.code(),
            bare.code()
        ));
    }
    let steady = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let mut lines: Vec<&str> = text.lines().collect();
        if scenario.unordered_output {
            lines.sort_unstable();
        }
        lines.join("\n")
    };
    for (name, alone, under) in [
        ("stdout", &bare.stdout, &watched.stdout),
        ("stderr", &bare.stderr, &watched.stderr),
    ] {
        let (alone, under) = (steady(alone), steady(under));
        if alone != under {
            report.push(format!(
                "{name} under {who}: {under:?}\n      alone: {alone:?}"
            ));
        }
    }
    report
}

/// What is in the first and not as often in the second.
fn more(these: &Facts, those: &Facts) -> Facts {
    let over = these.iter().map(|(fact, count)| {
        let others = those.get(fact).copied().unwrap_or_default();
        (fact.clone(), count - others)
    });
    over.filter(|(_, count)| *count > 0).collect()
}

fn some(title: &str, facts: &Facts, show: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (fact, count) in facts.iter().take(show) {
        let fact: String = fact.chars().take(600).collect();
        lines.push(format!("{title} ({count}×): {fact}"));
    }
    if facts.len() > show {
        lines.push(format!("{title}: and {} more", facts.len() - show));
    }
    lines
}

/// A Rust toolchain that every user can reach. One in a home that is closed is linked into the build folder.
fn toolchain() -> Result<PathBuf> {
    let mut rustc = Program::new(["rustc", "--print", "sysroot"]);
    rustc.env = std::env::vars_os().collect();
    rustc.folder = root();
    let scratch = Scratch::new("toolchain")?;
    let output = rustc.succeed(scratch.path())?.stdout;
    let sysroot = PathBuf::from(String::from_utf8(output)?.trim());
    if !User::is_root() {
        return Ok(sysroot);
    }
    let name = sysroot.file_name().unwrap_or_default();
    let copy = root().join("target/toolchain").join(name);
    if !copy.exists() {
        fs::create_dir_all(root().join("target/toolchain"))?;
        let from = sysroot.as_os_str();
        let words = ["cp".as_ref(), "-al".as_ref(), from, copy.as_os_str()];
        let linked = Program::new(words).run(scratch.path())?;
        if !linked.status.success() {
            drop(fs::remove_dir_all(&copy));
            let words = ["cp".as_ref(), "-a".as_ref(), from, copy.as_os_str()];
            Program::new(words).succeed(scratch.path())?;
        }
    }
    Ok(copy)
}
