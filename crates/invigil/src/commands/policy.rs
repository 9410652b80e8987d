//! `invigil policy`: what policy files say, before anything runs.

use std::env;
use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use invigil_engine::learn;
use invigil_journal::{RunRef, Store};
use invigil_policy::{Action, Decision, Endpoint, Layer, Places, UnixSocket, Verdict};
use invigil_schema::{ExitCode, OsText};
use serde_json::{Value, json};

use super::find;
use crate::error::CliError;
use crate::policies::{gather, places, read, resolve};
use crate::ui::{self, BAD, GOOD, WARN};

/// Check policy files, explain what they decide, and learn new ones from runs
#[derive(Debug, clap::Args)]
pub(crate) struct Policy {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(Check),
    Explain(Explain),
    Learn(Learn),
}

impl Policy {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let cwd = env::current_dir().map_err(CliError::NoCwd)?;
        let places = places(&cwd);
        match self.command {
            Command::Check(command) => command.execute(&places),
            Command::Explain(command) => command.execute(&places),
            Command::Learn(command) => command.execute(store, &places),
        }
    }
}

/// Read policy files as strictly as a run would, and try the examples in their rules
///
/// Exit code 125 if one of them cannot be used.
#[derive(Debug, clap::Args)]
struct Check {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Check {
    fn execute(self, places: &Places) -> Result<u8, CliError> {
        let mut code = ExitCode::Success;
        for path in &self.files {
            let checked = read(path, Layer::CommandLine)
                .and_then(|source| Ok(invigil_policy::Policy::load(&[source], places)?));
            match checked {
                Ok(policy) => {
                    let rules = policy.rules().count();
                    let name = ui::harmless(&path.display().to_string());
                    writeln!(anstream::stdout(), "{GOOD}ok{GOOD:#} {name}: {rules} rules")?;
                }
                Err(error) => {
                    ui::error(&error.to_string());
                    code = ExitCode::Invigil;
                }
            }
        }
        Ok(code.into())
    }
}

/// Write the smallest readable policy under which these runs would have passed
///
/// What was read is only restricted if the runs were made with `--reads on`. Nothing secret is ever allowed. The files
/// are for the directory that this is called in: call it in the workspace of the runs.
#[derive(Debug, clap::Args)]
struct Learn {
    /// The runs: ids, beginnings of them, or `last`
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,

    /// Write it to this file, which must not be there
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Learn {
    fn execute(self, store: &Store, places: &Places) -> Result<u8, CliError> {
        let found = self.runs.iter().map(|run| find(store, run));
        let found: Vec<RunRef> = found.collect::<Result<_, _>>()?;
        let text = learn(&found, places)?;
        match self.output {
            None => std::io::stdout().write_all(text.as_bytes())?,
            Some(path) => {
                let written =
                    File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes()));
                written.map_err(|source| CliError::PolicyOut { path, source })?;
            }
        }
        Ok(0)
    }
}

/// Say what a policy decides, by which rule of which file
///
/// The files stack as in a run: the profile, the user's own, the project's (.invigil/policy.toml), those named here.
/// Exit code 0: allow. 1: deny. 3: ask.
#[derive(Debug, clap::Args)]
struct Explain {
    /// A policy file; may be repeated
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,

    /// A profile that comes with Invigil: observe, coding, strict
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    what: What,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Open this for reading
    #[arg(long, value_name = "PATH")]
    read: Option<PathBuf>,

    /// Make, change or remove this
    #[arg(long, value_name = "PATH")]
    write: Option<PathBuf>,

    /// Connect to this; a name is not looked up
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,

    /// Use this Unix socket; @NAME for one that is no file
    #[arg(long, value_name = "PATH")]
    unix: Option<String>,

    /// Call this tool with these parameters
    #[arg(long, num_args = 2, value_names = ["NAME", "JSON"])]
    tool: Option<Vec<String>>,

    /// Run this command; what stands in `sh -c` or behind `env` counts too
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Explain {
    fn execute(self, places: &Places) -> Result<u8, CliError> {
        let sources = gather(self.profile.as_deref(), &self.policy, places)?;
        let policy = invigil_policy::Policy::load(&sources, places)?;
        let (what, decision) = self.what.decide(&policy)?;
        if self.json {
            let mut object = json!(decision);
            object["action"] = json!(what);
            writeln!(std::io::stdout(), "{object}")?;
        } else {
            print(&what, &decision)?;
        }
        Ok(match decision.verdict {
            Verdict::Allow => 0,
            Verdict::Deny => 1,
            Verdict::Ask => 3,
        })
    }
}

impl What {
    /// What is asked about in words, and what is decided.
    fn decide(self, policy: &invigil_policy::Policy) -> Result<(String, Decision), CliError> {
        let path = |path: &Path| OsText::from(resolve(path).into_os_string());
        if let Some(read) = self.read.as_deref().map(path) {
            let decision = policy.decide(&Action::Read(read.as_bytes()));
            return Ok((format!("read {}", read.to_string_lossy()), decision));
        }
        if let Some(write) = self.write.as_deref().map(path) {
            let decision = policy.decide(&Action::Write(write.as_bytes()));
            return Ok((format!("write {}", write.to_string_lossy()), decision));
        }
        if let Some(to) = &self.connect {
            let (host, addr) = endpoint(to).ok_or_else(|| CliError::NotAnAddress(to.clone()))?;
            let decision = policy.decide(&Action::Connect(Endpoint { addr, host }));
            return Ok((format!("connect {to}"), decision));
        }
        if let Some(socket) = &self.unix {
            let resolved = path(Path::new(socket));
            let name = match socket.strip_prefix('@') {
                Some(name) => UnixSocket::Abstract(name.as_bytes()),
                None => UnixSocket::Path(resolved.as_bytes()),
            };
            return Ok((format!("unix {socket}"), policy.decide(&Action::Unix(name))));
        }
        if let Some([name, params]) = self.tool.as_deref() {
            let params: Value = serde_json::from_str(params).map_err(CliError::NotJson)?;
            let decision = policy.decide(&Action::Tool {
                name,
                params: &params,
            });
            return Ok((format!("tool {name}"), decision));
        }
        let decided = policy.decide_command(&self.command, &locate);
        let (words, decision) = decided.ok_or(invigil_engine::SpecError::EmptyCommand)?;
        let words: Vec<OsText> = words
            .iter()
            .map(|word| OsText::from(word.as_str()))
            .collect();
        Ok((format!("exec {}", ui::command(&words)), decision))
    }
}

fn print(what: &str, decision: &Decision) -> Result<(), CliError> {
    let style = match decision.verdict {
        Verdict::Allow => GOOD,
        Verdict::Ask => WARN,
        Verdict::Deny => BAD,
    };
    let text = decision.to_string();
    let (verdict, reasons) = text.split_once('\n').unwrap_or((&text, ""));
    let mut out = anstream::stdout().lock();
    writeln!(out, "{style}{verdict}{style:#} {}", ui::harmless(what))?;
    for line in reasons.lines() {
        writeln!(out, "{}", ui::harmless(line))?;
    }
    Ok(())
}

/// An address, or a name with an address that stands for none.
fn endpoint(text: &str) -> Option<(Option<&str>, SocketAddr)> {
    if let Ok(addr) = text.parse() {
        return Some((None, addr));
    }
    /// The prefix in which packets are thrown away (RFC 6666).
    const NOWHERE: IpAddr = IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1));
    let (host, port) = text.rsplit_once(':')?;
    let name = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
    name.then_some((Some(host), SocketAddr::new(NOWHERE, port.parse().ok()?)))
}

/// The program that a command would load, and the name by which it is called.
fn locate(name: &str) -> Option<(OsText, OsText)> {
    let found = match name.contains('/') {
        true => PathBuf::from(name),
        false => {
            let path = env::var_os("PATH")?;
            let executable = |path: &PathBuf| {
                path.metadata()
                    .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
            };
            env::split_paths(&path)
                .map(|dir| dir.join(name))
                .find(executable)?
        }
    };
    let directory = resolve(found.parent().unwrap_or(Path::new(".")));
    let called = directory.join(found.file_name()?);
    Some((
        resolve(&found).into_os_string().into(),
        called.into_os_string().into(),
    ))
}
