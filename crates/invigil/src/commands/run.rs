//! `invigil run`: starts a command and records what becomes of it.
//!
//! In this tier only the beginning and the end are seen, and the evidence says so.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use invigil_journal::{Index, Journal, Options, RunRef, Store, SystemClock};
use invigil_schema::{
    Event, ExitCode, Origin, OsText, RunFailed, RunFinished, RunId, RunStarted, SpawnFailure, Tier,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::CliError;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// Run a command and record what becomes of it
///
/// Everything behind `--` is the command. Its exit code is passed on; death by signal N is 128+N. 125: Invigil itself
/// failed or was used wrongly; 126: the command cannot be executed; 127: it was not found.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The id of the run [default: run_ and a number that grows with time]
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// One JSON object on stdout at the end; the command's own stdout goes to stderr
    #[arg(long)]
    json: bool,

    /// No summary
    #[arg(long, short)]
    quiet: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let run_id = match &self.run_id {
            Some(id) => RunId::new(id.as_str())?,
            None => RunId::new(format!("run_{}", uuid::Uuid::now_v7().simple()))?,
        };
        let started = RunStarted {
            command: self.command.iter().cloned().map(OsText::from).collect(),
            cwd: env::current_dir()
                .unwrap_or_default()
                .into_os_string()
                .into(),
            env_keys: Vec::new(),
            platform: env::consts::OS.to_owned(),
            agent_shim: "none".to_owned(),
            tier: Tier::ContractOnly,
        };
        // From here on a signal is the command's business, and the record is completed.
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(CliError::Signals)?;
        let writer = concat!("invigil ", env!("CARGO_PKG_VERSION"));
        let (run, journal) =
            store.create(&run_id, Arc::new(SystemClock), Options::default(), writer)?;
        journal
            .append(Origin::Runtime, &started.into())?
            .written()?;
        let outcome = self.watch(&journal, signals)?;
        journal
            .append(Origin::Runtime, &outcome.event())
            .and_then(|ticket| ticket.durable())
            .map_err(CliError::Unrecorded)?;
        let head = journal.close().map_err(CliError::Unrecorded)?;
        if let Err(error) = Index::note(store, &run) {
            ui::warning(&error.to_string());
        }
        self.report(&run, &outcome, head.hash.to_string())?;
        Ok(outcome.code())
    }

    /// Starts the command and waits for its end.
    fn watch(&self, journal: &Journal, signals: Signals) -> Result<Outcome, CliError> {
        let name = || self.command[0].to_string_lossy().into_owned();
        let mut command = std::process::Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        if self.json {
            let stderr = rustix::io::dup(io::stderr());
            command.stdout(stderr.map_or_else(|_| Stdio::null(), Stdio::from));
        }
        let begun = Instant::now();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(Outcome::NotStarted(not_started(&name(), &error))),
        };
        let handle = signals.handle();
        let waited = pass_on(&child, signals).and_then(|()| child.wait());
        handle.close();
        match waited {
            Ok(status) => Ok(Outcome::Ended {
                status,
                elapsed: begun.elapsed(),
            }),
            Err(source) => {
                drop(child.kill());
                let reason = format!("cannot watch {}: {source}; it was killed", name());
                let failed = RunFailed {
                    failure: SpawnFailure::Internal,
                    reason,
                };
                journal.append(Origin::Runtime, &failed.into())?.durable()?;
                Err(CliError::Wait {
                    command: name(),
                    source,
                })
            }
        }
    }

    fn report(&self, run: &RunRef, outcome: &Outcome, head: String) -> Result<(), CliError> {
        if self.json {
            let (exit_code, signal) = outcome.status();
            let line = json!({
                "run_id": run.run_id(),
                "exit": outcome.code(),
                "exit_code": exit_code,
                "signal": signal,
                "event": outcome.event().kind(),
                "tier": Tier::ContractOnly,
                "evidence": run.directory(),
                "head": head,
            });
            writeln!(io::stdout(), "{line}")?;
        }
        if !self.quiet && !self.json {
            outcome.summarise(run);
        }
        Ok(())
    }
}

/// Passes signals on to the child until they are closed. A terminal sends SIGINT to its whole foreground group, so
/// that one is passed on only when nobody else does; a second one kills.
fn pass_on(child: &Child, mut signals: Signals) -> io::Result<()> {
    let pid = Pid::from_child(child);
    let child: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
    let thread = move || {
        let mut interrupts = 0;
        for signal in signals.forever() {
            interrupts += u32::from(signal == SIGINT);
            let signal = match signal {
                SIGINT if interrupts > 1 => Signal::KILL,
                SIGINT if in_foreground() => continue,
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            // It has ended already: then there is nobody to tell.
            let _ = pidfd_send_signal(&child, signal);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(thread)
        .map(drop)
}

fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| {
        rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}

enum Outcome {
    Ended {
        status: ExitStatus,
        elapsed: Duration,
    },
    NotStarted(RunFailed),
}

fn not_started(command: &str, error: &io::Error) -> RunFailed {
    let (failure, advice) = match error.kind() {
        io::ErrorKind::NotFound => (SpawnFailure::NotFound, "is it installed, and in PATH?"),
        _ => (
            SpawnFailure::NotExecutable,
            "is it a program, and may you execute it?",
        ),
    };
    RunFailed {
        failure,
        reason: format!("cannot start {command}: {error}; {advice}"),
    }
}

impl Outcome {
    fn status(&self) -> (Option<i32>, Option<i32>) {
        match self {
            Outcome::Ended { status, .. } => (status.code(), status.signal()),
            Outcome::NotStarted(_) => (None, None),
        }
    }

    fn event(&self) -> Event {
        match self {
            Outcome::Ended { status, elapsed } => RunFinished {
                exit_code: status.code(),
                signal: status.signal(),
                success: status.success(),
                window_elapsed_ms: elapsed.as_millis() as u64,
                stopped: None,
            }
            .into(),
            Outcome::NotStarted(failed) => failed.clone().into(),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Outcome::Ended { status, .. } => match (status.code(), status.signal()) {
                (Some(code), _) => code as u8,
                (None, Some(signal)) => ExitCode::of_signal(signal),
                (None, None) => ExitCode::Invigil.into(),
            },
            Outcome::NotStarted(failed) => match failed.failure {
                SpawnFailure::NotFound => ExitCode::NotFound.into(),
                SpawnFailure::NotExecutable => ExitCode::NotExecutable.into(),
                SpawnFailure::Internal => ExitCode::Invigil.into(),
            },
        }
    }

    fn summarise(&self, run: &RunRef) {
        let verdict = match self {
            Outcome::Ended { status, elapsed } => {
                let time = ui::duration(*elapsed);
                match (status.code(), status.signal()) {
                    (Some(0), _) => format!("{GOOD}ok{GOOD:#}: exit 0 after {time}"),
                    (Some(code), _) => format!("{BAD}exit {code}{BAD:#} after {time}"),
                    (None, signal) => {
                        format!(
                            "{BAD}killed by signal {}{BAD:#} after {time}",
                            signal.unwrap_or(0)
                        )
                    }
                }
            }
            Outcome::NotStarted(failed) => {
                format!("{BAD}not started{BAD:#}: {}", ui::harmless(&failed.reason))
            }
        };
        let (id, directory) = (run.run_id(), run.directory().display());
        ui::say(format_args!("{BOLD}invigil{BOLD:#}  {verdict}"));
        ui::say(format_args!(
            "  {DIM}seen{DIM:#}     {WARN}lifecycle only{WARN:#} (tier contract_only): no processes, files or network"
        ));
        ui::say(format_args!("  {DIM}evidence{DIM:#} {directory}"));
        ui::say(format_args!("  {DIM}look{DIM:#}     invigil show {id}"));
    }
}
