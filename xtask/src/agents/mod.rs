//! `cargo xtask agents`: real agents, headless, with a model that follows a script; alone and under Invigil.
//!
//! The agents come from npm. Their model is ours, on loopback, and whatever else they would like to reach is behind a proxy
//! that does not exist. Not a part of `cargo xtask test`.

mod endpoint;
mod evidence;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use self::endpoint::{Endpoint, Transcript};
use crate::child::{self, Ended, Program, Scratch, User};
use crate::{Result, release, root};

/// How long an agent may take for the whole script.
const LIMIT: Duration = Duration::from_secs(180);

/// How many differences are printed.
const SHOW: usize = 20;

/// What the model asks for. Each line has a word that finds it again, `step-` and its number.
const STEPS: &[Step] = &[
    step("echo step-0 > zero.txt; cat zero.txt", 0, "step-0"),
    step("ls /step-1/is/not/there", 2, "No such file"),
    step(
        "mkdir -p step-2/deep; touch step-2/deep/file; find step-2 | sort",
        0,
        "step-2/deep/file",
    ),
    step("exit $((3 + 0)) # step-3", 3, "3"),
    step(
        "printf 'c\\nb\\na\\n' | sort | tr a-z A-Z | tee step-4.txt | wc -l",
        0,
        "3",
    ),
    step(
        "git init -q step-5; cd step-5; git status --short; ls -a",
        0,
        ".git",
    ),
    step(
        "(sleep 0.2; echo late > step-6.txt) & wait; cat step-6.txt",
        0,
        "late",
    ),
    step(
        "python3 -c 'import subprocess; raise SystemExit(subprocess.call([\"sh\", \"-c\", \"exit 9\"]))' step-7",
        9,
        "9",
    ),
];

/// One command of the script.
struct Step {
    line: &'static str,
    /// Its exit code.
    code: i32,
    /// A part of what the agent says came of it.
    says: &'static str,
}

const fn step(line: &'static str, code: i32, says: &'static str) -> Step {
    Step { line, code, says }
}

/// Run real agents with a scripted model, alone and under Invigil.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this agent: codex or claude.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Install the newest versions again.
    #[arg(long)]
    update: bool,
    /// Use this program instead of building one.
    #[arg(long, value_name = "FILE")]
    invigil: Option<PathBuf>,
}

/// An agent that npm has.
struct Agent {
    name: &'static str,
    package: &'static str,
    command: &'static str,
    /// Whether it confines its commands itself. Invigil may refuse that, and then says so.
    confines: bool,
    program: fn(&Path, u16, &Path) -> Result<Program>,
}

const AGENTS: &[Agent] = &[
    Agent {
        name: "codex",
        package: "@openai/codex",
        command: "codex",
        confines: false,
        program: codex,
    },
    Agent {
        name: "codex in its own sandbox",
        package: "@openai/codex",
        command: "codex",
        confines: true,
        program: codex_sandboxed,
    },
    Agent {
        name: "claude",
        package: "@anthropic-ai/claude-code",
        command: "claude",
        confines: false,
        program: claude,
    },
];

pub(crate) fn run(args: &Args) -> Result {
    if let Some(missing) = child::missing(&["npm", "node"]) {
        println!("skipped: {missing} is not installed, and agents come from npm");
        return Ok(());
    }
    let scratch = Scratch::new("agents")?;
    let built = match &args.invigil {
        Some(path) => path.clone(),
        None => release("invigil")?,
    };
    let invigil = scratch.path().join("invigil");
    fs::copy(built, &invigil)?;
    let mut failed = 0;
    for agent in AGENTS {
        if args.only.as_ref().is_some_and(|only| only != agent.command) {
            continue;
        }
        let command = match install(agent, args.update, scratch.path()) {
            Ok(command) => command,
            Err(error) => {
                println!("{}: skipped, it cannot be installed: {error}", agent.name);
                continue;
            }
        };
        let users: &[User] = if User::is_root() {
            &[User::Same, User::Nobody]
        } else {
            &[User::Same]
        };
        for &user in users {
            let stage = Stage {
                scratch: &scratch,
                invigil: &invigil,
                agent,
                command: &command,
                user,
            };
            failed += u32::from(!stage.compare()?);
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} agents do not behave as they do alone").into()),
    }
}

/// The command of an agent, from a folder that is kept.
fn install(agent: &Agent, update: bool, said: &Path) -> Result<PathBuf> {
    let folder = root().join("target/agents").join(agent.command);
    let command = folder.join("node_modules/.bin").join(agent.command);
    if !command.exists() || update {
        println!("{}: installing {} …", agent.name, agent.package);
        fs::create_dir_all(&folder)?;
        let latest = format!("{}@latest", agent.package);
        let mut npm = Program::new([
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            ".",
            &latest,
        ]);
        npm.env = std::env::vars_os().collect();
        npm.folder = folder;
        npm.limit = Duration::from_secs(600);
        npm.succeed(said)?;
    }
    let mut version = Program::new([command.clone().into_os_string(), "--version".into()]);
    version.env("HOME", said);
    let version = version.succeed(said)?.stdout;
    println!(
        "{}: {}",
        agent.name,
        String::from_utf8_lossy(&version).trim()
    );
    Ok(command)
}

/// One agent and one user.
struct Stage<'a> {
    scratch: &'a Scratch,
    invigil: &'a Path,
    agent: &'a Agent,
    command: &'a Path,
    user: User,
}

impl Stage<'_> {
    fn compare(&self) -> Result<bool> {
        let title = format!("{} as {}", self.agent.name, self.user.name());
        let (alone, said) = self.turn(Ok)?;
        let mut wrong = Vec::new();
        if !follows(&said) {
            let text = alone.said();
            return Err(
                format!("{title}: it does not follow the script alone: {said:?}\n{text}").into(),
            );
        }
        let status = self
            .scratch
            .folder("status", self.user)?
            .join("status.json");
        let home = self.scratch.folder("invigil-home", self.user)?;
        let (watched, under) = self.turn(|mut program| {
            program.env("INVIGIL_HOME", home);
            let mut words = vec![self.invigil.as_os_str().to_owned()];
            words.extend(["run", "--quiet", "--status"].map(Into::into));
            words.extend([status.clone().into(), "--".into()]);
            Ok(program.under(words))
        })?;
        if alone.code() != watched.code() {
            wrong.push(format!(
                "exit code {} under Invigil, {} alone",
                watched.code(),
                alone.code()
            ));
        }
        let (said, under) = (steady(&said), steady(&under));
        for (at, (one, two)) in said.iter().zip(&under).enumerate() {
            if one != two {
                wrong.push(format!("step {at}: {two:?} under Invigil, {one:?} alone"));
            }
        }
        if said.len() != under.len() {
            wrong.push(format!(
                "{} steps under Invigil, {} alone",
                under.len(),
                said.len()
            ));
            wrong.push(watched.said());
        }
        let status = fs::read_to_string(status)
            .map_err(|error| format!("no status ({error}); it said:\n{}", watched.said()))?;
        let status: Value = serde_json::from_str(&status)?;
        let evidence =
            evidence::read(Path::new(status["evidence"].as_str().ok_or("no evidence")?))?;
        let markers = (0..STEPS.len()).map(|step| format!("step-{step}"));
        let expected: Vec<_> = markers.zip(STEPS.iter().map(|step| step.code)).collect();
        wrong.extend(evidence.missing(&expected));
        let seconds = |ended: &Ended| ended.took.as_secs_f64();
        let refused = self.agent.confines && evidence.denied();
        let verdict = match (wrong.is_empty(), refused) {
            (true, _) => "the same",
            (false, true) => "its own sandbox was refused, which is on the record",
            (false, false) => "DIFFERENT",
        };
        println!(
            "{title}: {} steps, {} execs in {} records, tier {} ({:.1} s alone, {:.1} s under Invigil): {verdict}",
            STEPS.len(),
            evidence.execs,
            evidence.records,
            status["tier"],
            seconds(&alone),
            seconds(&watched),
        );
        for line in wrong.iter().take(SHOW) {
            println!("    {line}");
        }
        for (note, count) in &evidence.notes {
            println!("    {note} ({count}×)");
        }
        Ok(wrong.is_empty() || refused)
    }

    /// Lets the agent follow the script once.
    fn turn(&self, change: impl FnOnce(Program) -> Result<Program>) -> Result<(Ended, Transcript)> {
        let commands = STEPS.iter().map(|step| step.line.to_owned()).collect();
        let endpoint = Endpoint::start(commands)?;
        let home = self.scratch.folder("home", self.user)?;
        let mut program = (self.agent.program)(self.command, endpoint.port, &home)?;
        self.user.give(&home)?;
        program.user = self.user;
        program.folder = self.scratch.folder("work", self.user)?;
        program.limit = LIMIT;
        program.env("HOME", home);
        program.env("TMPDIR", self.scratch.folder("tmp", self.user)?);
        // Nothing but loopback.
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            program.env(name, "http://127.0.0.1:9");
        }
        for name in ["NO_PROXY", "no_proxy"] {
            program.env(name, "127.0.0.1,localhost");
        }
        let ended = change(program)?.run(&self.scratch.folder("said", User::Same)?)?;
        child::clear(&self.scratch.path().join("work"), Duration::from_secs(5));
        Ok((ended, endpoint.transcript()))
    }
}

/// Whether an agent did what the model asked for, to the end.
fn follows(transcript: &Transcript) -> bool {
    let mut pairs = transcript.results.iter().zip(STEPS);
    let all = transcript.results.len() == STEPS.len();
    transcript.done && all && pairs.all(|(result, step)| result.contains(step.says))
}

/// What tools answered, without what says how long it took or names a piece of it by chance.
fn steady(transcript: &Transcript) -> Vec<String> {
    let chance = ["Wall time", "Chunk ID", "Original token count"];
    let results = transcript.results.iter().map(|result| {
        let lines = result.lines();
        let lines = lines.filter(|line| !chance.iter().any(|word| line.contains(word)));
        lines.collect::<Vec<_>>().join("\n")
    });
    results.collect()
}

fn codex(command: &Path, port: u16, home: &Path) -> Result<Program> {
    let mut program = codex_sandboxed(command, port, home)?;
    let bypass = "--dangerously-bypass-approvals-and-sandbox";
    for word in program
        .words
        .iter_mut()
        .filter(|word| *word == "--sandbox=workspace-write")
    {
        *word = bypass.into();
    }
    Ok(program)
}

fn codex_sandboxed(command: &Path, port: u16, home: &Path) -> Result<Program> {
    let settings = home.join(".codex");
    fs::create_dir(&settings)?;
    let config = format!(
        "model = \"scripted\"\nmodel_provider = \"script\"\ncheck_for_update_on_startup = false\n\
         [analytics]\nenabled = false\n\
         [model_providers.script]\nname = \"script\"\nbase_url = \"http://127.0.0.1:{port}/v1\"\n\
         env_key = \"SCRIPT_KEY\"\nwire_api = \"responses\"\n"
    );
    fs::write(settings.join("config.toml"), config)?;
    let mut program = Program::new([command.as_os_str()]);
    let words = [
        "exec",
        "--skip-git-repo-check",
        "--sandbox=workspace-write",
        "follow the script",
    ];
    program.words.extend(words.map(Into::into));
    program.env("CODEX_HOME", settings);
    program.env("SCRIPT_KEY", "no-key");
    Ok(program)
}

fn claude(command: &Path, port: u16, _home: &Path) -> Result<Program> {
    let mut program = Program::new([command.as_os_str()]);
    let words = [
        "--print",
        "--allowedTools",
        "Bash",
        "--",
        "follow the script",
    ];
    program.words.extend(words.map(Into::into));
    program.env("ANTHROPIC_BASE_URL", format!("http://127.0.0.1:{port}"));
    program.env("ANTHROPIC_API_KEY", "no-key");
    for name in [
        "DISABLE_TELEMETRY",
        "DISABLE_AUTOUPDATER",
        "DISABLE_ERROR_REPORTING",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    ] {
        program.env(name, "1");
    }
    program.env("SHELL", "/bin/bash");
    Ok(program)
}
