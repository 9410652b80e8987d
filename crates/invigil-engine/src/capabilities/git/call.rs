//! Starting git so that nothing of a repository, a user or a machine makes it start anything else.
//!
//! The sandbox is what forbids other programs. This is so that git does not even try, and works where filters and
//! drivers are configured.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::Failure;

/// How much git may print; more ends it.
const MAX_OUTPUT: u64 = 32 << 20;
const MAX_STDERR: u64 = 64 << 10;

/// What is always said. No hooks, no watchers, no helpers, no signatures, no background work.
const SETTINGS: [(&str, &str); 21] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", "false"),
    ("core.sshCommand", "false"),
    ("core.quotePath", "false"),
    ("credential.helper", ""),
    ("diff.external", ""),
    ("diff.noPrefix", "false"),
    ("commit.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("fetch.prune", "false"),
    ("protocol.ext.allow", "never"),
];

/// Keys of a repository that name programs, by what they begin and end with, and what takes their place.
const DRIVERS: [(&str, &str, &str); 8] = [
    ("filter.", ".clean", ""),
    ("filter.", ".smudge", ""),
    ("filter.", ".process", ""),
    ("filter.", ".required", "false"),
    ("diff.", ".command", ""),
    ("diff.", ".textconv", ""),
    ("merge.", ".driver", ""),
    ("gpg.", "program", "false"),
];
/// Keys for which there is no harmless value.
const REFUSED: [(&str, &str); 5] = [
    ("core.", "alternaterefscommand"),
    ("core.", "gitproxy"),
    ("remote.", ".vcs"),
    ("remote.", ".uploadpack"),
    ("remote.", ".receivepack"),
];

/// git in one directory.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    dir: PathBuf,
    /// It does not look for a repository above this.
    ceiling: PathBuf,
    settings: Vec<(OsString, OsString)>,
    variables: Vec<(&'static str, OsString)>,
}

/// What git printed.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
    pub(crate) truncated: bool,
}

impl Printed {
    /// What was printed, without the end of the line.
    pub(crate) fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// The parts of what was printed with `-z`.
    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        let parts = self.stdout.strip_suffix(b"\0").unwrap_or(&self.stdout);
        if parts.is_empty() {
            return Vec::new();
        }
        parts.split(|&byte| byte == 0).collect()
    }
}

impl Caller {
    /// In this directory, below this root.
    pub(crate) fn new(dir: &Path, root: &Path) -> Self {
        let settings = SETTINGS
            .iter()
            .map(|(key, value)| (key.into(), value.into()));
        Caller {
            dir: dir.to_owned(),
            ceiling: root.parent().unwrap_or(root).to_owned(),
            settings: settings.collect(),
            variables: Vec::new(),
        }
    }

    /// With a variable set.
    pub(crate) fn with(&self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        let mut caller = self.clone();
        caller.variables.push((name, value.as_ref().to_owned()));
        caller
    }

    /// Says that the owner of the repository may be somebody else: that it is below an allowed root is the consent.
    pub(crate) fn trust(&mut self, repository: &Path) {
        let key = "safe.directory".into();
        self.settings.push((key, repository.into()));
    }

    /// Puts something harmless in the place of the programs that a repository names.
    pub(crate) fn disarm(&mut self) -> Result<(), Failure> {
        let listed = self.call(&["config", "--list", "--name-only", "-z"])?;
        for key in listed.parts() {
            let known = key.to_ascii_lowercase();
            let is = |begin: &str, end: &str| {
                known.starts_with(begin.as_bytes()) && known.ends_with(end.as_bytes())
            };
            if let Some((begin, end)) = REFUSED.iter().find(|(begin, end)| is(begin, end)) {
                return Err(Failure::new(format!(
                    "the repository's configuration names a program to start ({begin}…{end}); take it out"
                )));
            }
            if let Some((_, _, value)) = DRIVERS.iter().find(|(begin, end, _)| is(begin, end)) {
                let key = OsStr::from_bytes(key).to_owned();
                self.settings.push((key.clone(), value.into()));
                if known.starts_with(b"filter.") {
                    self.not_required(&key);
                }
            }
        }
        Ok(())
    }

    fn not_required(&mut self, key: &OsStr) {
        let key = key.as_bytes();
        if let Some(dot) = key.iter().rposition(|&byte| byte == b'.') {
            let mut required = key[..dot].to_vec();
            required.extend(b".required");
            let required = OsStr::from_bytes(&required).to_owned();
            self.settings.push((required, "false".into()));
        }
    }

    /// Runs git; anything but success is a failure with what it said.
    pub(crate) fn call<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Printed, Failure> {
        self.call_with(args, b"")
    }

    /// As [`Caller::call`], with something to read.
    pub(crate) fn call_with<A: AsRef<OsStr>>(
        &self,
        args: &[A],
        stdin: &[u8],
    ) -> Result<Printed, Failure> {
        let printed = self.try_call(args, stdin)?;
        if printed.code == Some(0) || printed.truncated {
            return Ok(printed);
        }
        let what = args
            .first()
            .map_or("", |arg| arg.as_ref().to_str().unwrap_or(""));
        let mut failure = Failure::new(format!("git {what}: {}", printed.stderr.trim()));
        failure.denied = printed.stderr.contains("Permission denied");
        Err(failure)
    }

    /// Runs git; how it ended is the caller's business.
    pub(crate) fn try_call<A: AsRef<OsStr>>(
        &self,
        args: &[A],
        stdin: &[u8],
    ) -> Result<Printed, Failure> {
        let ran = self.run(args, stdin);
        ran.map_err(|error| Failure::io("git cannot be run", error))
    }

    fn run<A: AsRef<OsStr>>(&self, args: &[A], stdin: &[u8]) -> io::Result<Printed> {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut stdout = Vec::new();
        let (read, stderr) = std::thread::scope(|scope| {
            // Both run beside the reading of stdout, so that no pipe fills up while another is waited for.
            scope.spawn(move || input.map(|mut input| input.write_all(stdin)));
            let errors = scope.spawn(move || first(errors, MAX_STDERR));
            let read = match output {
                Some(output) => output.take(MAX_OUTPUT + 1).read_to_end(&mut stdout),
                None => Ok(0),
            };
            if stdout.len() as u64 > MAX_OUTPUT {
                drop(child.kill());
            }
            (read, errors.join().unwrap_or_default())
        });
        let status = child.wait()?;
        read?;
        let truncated = stdout.len() as u64 > MAX_OUTPUT;
        stdout.truncate(MAX_OUTPUT as usize);
        Ok(Printed {
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            code: status.code(),
            truncated,
        })
    }

    /// git, not started yet.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("git");
        command
            .current_dir(&self.dir)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_CEILING_DIRECTORIES", &self.ceiling)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_LITERAL_PATHSPECS", "1")
            .env("GIT_ALLOW_PROTOCOL", "file:https:http")
            .env("GIT_PAGER", "cat")
            .env("GIT_EDITOR", "false")
            .env("GIT_CONFIG_COUNT", self.settings.len().to_string());
        for (at, (key, value)) in self.settings.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{at}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{at}"), value);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The beginning of what comes; the rest is read and forgotten.
fn first(from: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What was said until something broke is better than nothing.
        drop((&mut from).take(most).read_to_end(&mut bytes));
        drop(io::copy(&mut from, &mut io::sink()));
    }
    bytes
}
