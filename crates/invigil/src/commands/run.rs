//! `invigil run`: starts a command under watch, and says at the end what it did.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use invigil_engine::{
    Asking, Cancel, Control, End, Fuse, Milestones, Offspring, Output, RunOutcome, RunSpec,
    UserPolicy, summary,
};
use invigil_journal::Store;
use invigil_schema::{ExitCode, SpawnFailure, StopReason, Tier};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::error::CliError;
use crate::executor::{engine, text_of};
use crate::judge::Judge;
use crate::nested::{self, Nested};
use crate::policies::{PolicyOptions, places, users_own};
use crate::status::StatusFile;
use crate::terminal::{Ask, Terminal};
use crate::{summary as view, ui};

/// Run a command under watch and record what it does
///
/// Everything behind `--` is the command. Its exit code is passed on; death by signal N is 128+N. 124: the time was up;
/// 120: the contract is not met; 121: the policy did not let the command start; 122: a budget was exceeded; 125: Invigil itself failed or was used wrongly; 126: the command cannot be executed;
/// 127: it was not found. `--status` and `--json` say without ambiguity which it was.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The id of the run [default: run_ and a number that grows with time]
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Which agent framework is inside
    #[arg(long, value_name = "NAME", default_value = "none")]
    shim: String,

    /// Set a variable for the command; may be repeated
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(OsString, OsString)>,

    /// Start the command in this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// End the run after this time: 90s, 30m, 2h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,

    /// Record opens for reading too
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    reads: Switch,

    /// Use this tier and no other
    #[arg(long, value_enum)]
    tier: Option<TierName>,

    /// Refuse to run below this tier
    #[arg(long, value_enum)]
    require_tier: Option<TierName>,

    /// End the run when it has printed this much: 500KiB, 64MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_output: Option<u64>,

    /// The agent's framework writes its events to this file instead of the socket in $INVIGIL_EVENTS
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,

    /// A tool gate writes its decisions to this file, as CloudEvents, one a line
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,

    #[command(flatten)]
    policy: PolicyOptions,

    /// Judge what the command has done by this contract: 120 if it is not met
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,

    /// Where to ask what the policy leaves to a person
    #[arg(long, value_enum, default_value_t = Ask::Terminal)]
    ask: Ask,

    /// Deny what nobody has answered after this time: 90s, 30m
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10m")]
    ask_timeout: Duration,

    /// The phases of the run, each with checks and evidence, as JSON
    #[arg(long, value_name = "FILE")]
    milestones: Option<PathBuf>,

    /// How deep runs may be started inside of runs
    #[arg(long, value_name = "N", default_value_t = Offspring::default().depth)]
    max_depth: u32,

    /// How many runs may go on inside of this one at once
    #[arg(long, value_name = "N", default_value_t = Offspring::default().open)]
    max_children: usize,

    /// Alert when a command has failed this often in a row; 0 never does
    #[arg(long, value_name = "N", default_value_t = 5)]
    alert_failures: u64,

    /// End the run when a command has failed this often in a row
    #[arg(long, value_name = "N")]
    stop_failures: Option<u64>,

    /// Alert when no file has changed for this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    alert_idle: Option<Duration>,

    /// End the run when no file has changed for this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    stop_idle: Option<Duration>,

    /// Write the result as one JSON object to this file
    #[arg(long, value_name = "FILE")]
    status: Option<PathBuf>,

    /// The result as one JSON object on stdout at the end; the command's own stdout goes to stderr
    #[arg(long)]
    json: bool,

    /// No summary
    #[arg(long, short)]
    quiet: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The tiers, as they are typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum TierName {
    Notify,
    Ptrace,
    ContractOnly,
}

impl From<TierName> for Tier {
    fn from(name: TierName) -> Tier {
        match name {
            TierName::Notify => Tier::Notify,
            TierName::Ptrace => Tier::Ptrace,
            TierName::ContractOnly => Tier::ContractOnly,
        }
    }
}

fn variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it must be NAME=VALUE".to_owned()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| "it must begin with a number".to_owned())?;
    let factor: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        unit => {
            return Err(format!(
                "{unit:?} is not a unit: B, KiB, MiB, GiB, kB, MB, GB"
            ));
        }
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| "it is too large".to_owned())
}

impl Run {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let engine = engine(store)?;
        let mut spec = self.spec();
        spec.validate()?;
        if let Some(nested) = nested::run(store, &spec, &self.policy)? {
            return self.tell_nested(&nested);
        }
        let workspace = match &self.cwd {
            Some(cwd) => engine.cwd.join(cwd),
            None => engine.cwd.clone(),
        };
        spec.asking.policy = Some(match self.policy.rules(&workspace)? {
            Some((rules, user)) => {
                spec.rules = Some(Arc::new(rules));
                user
            }
            // Nobody is asked, but the rules of the next run are not for this one to write.
            None => UserPolicy::new(users_own(&places(&workspace)), |_, _| {
                Err("nothing is asked in the observe mode".to_owned())
            }),
        });
        if let Some(path) = &self.milestones {
            let parsed = Milestones::parse(&text_of(path)?);
            spec.milestones = Some(parsed.map_err(|source| CliError::Milestones {
                path: path.clone(),
                source,
            })?);
        }
        let status = match &self.status {
            Some(path) => Some(StatusFile::prepare(path, store)?),
            None => None,
        };
        let (control, cancel) = (Control::new(), Cancel::new());
        pass_on_signals(control.clone(), cancel.clone())?;
        let terminal = Arc::new(Terminal::new(self.ask).map_err(CliError::Signals)?);
        spec.asking.audience = Some(terminal.clone());
        let judge = match &self.contract {
            Some(path) => Some(Judge::new(path, &engine, &spec, workspace)?.baseline(&cancel)?),
            None => None,
        };
        let ran = engine.run(&spec, &control);
        let judged = match (judge, &ran) {
            (Some(judge), Ok(outcome)) if outcome.has_started() => {
                Some(judge.judge(outcome, &cancel)?)
            }
            _ => None,
        };
        terminal.finish();
        let (result, code) = match &ran {
            Ok(outcome) => {
                let code = match &judged {
                    Some(judged) if !judged.met => ExitCode::ContractNotMet.into(),
                    _ => code(&outcome.end),
                };
                let mut result = result(outcome, code);
                if let Some(judged) = &judged {
                    result["contract"] = json!(judged);
                }
                (result, code)
            }
            Err(error) => {
                let code = ExitCode::Invigil.into();
                (
                    json!({ "event": "invigil_failed", "exit": code, "error": error.to_string() }),
                    code,
                )
            }
        };
        if let Some(status) = status {
            status.write(&result)?;
        }
        if self.json {
            writeln!(io::stdout(), "{result}")?;
        }
        self.tell(&ran?);
        Ok(code)
    }

    /// The same of a run that the supervisor of another one has started.
    fn tell_nested(&self, nested: &Nested) -> Result<u8, CliError> {
        let code = code(&nested.end);
        let mut result = ended(&nested.end);
        result["run_id"] = json!(nested.run_id);
        result["exit"] = json!(code);
        if self.json {
            writeln!(io::stdout(), "{result}")?;
        }
        if let End::NotStarted(failed) = &nested.end {
            ui::error(&ui::harmless(&failed.reason));
        }
        Ok(code)
    }

    /// What people read. If it cannot be written, the exit code is still the command's.
    fn tell(&self, outcome: &RunOutcome) {
        for warning in &outcome.warnings {
            ui::warning(warning);
        }
        match &outcome.end {
            _ if self.json => {}
            End::NotStarted(failed) if self.quiet => ui::error(&ui::harmless(&failed.reason)),
            _ if self.quiet => {}
            _ => match summary(&outcome.run) {
                Ok(summary) => {
                    drop(view::print(
                        &mut anstream::stderr().lock(),
                        &outcome.run,
                        &summary,
                    ));
                }
                Err(error) => ui::warning(&error.to_string()),
            },
        }
    }

    fn spec(&self) -> RunSpec {
        RunSpec {
            run_id: self.run_id.clone(),
            agent_shim: self.shim.clone(),
            env: self.env.iter().cloned().collect(),
            cwd: self.cwd.clone(),
            timeout: self.timeout,
            reads: self.reads == Switch::On,
            tier: self.tier.map(Tier::from),
            require_tier: self.require_tier.map(Tier::from),
            events_file: self.events.clone(),
            decisions_file: self.decisions.clone(),
            max_output: self.max_output,
            asking: Asking {
                timeout: self.ask_timeout,
                somebody: self.ask != Ask::Never,
                ..Asking::default()
            },
            offspring: Offspring {
                depth: self.max_depth,
                open: self.max_children,
                ..Offspring::default()
            },
            fuse: Fuse {
                alert_failures: Some(self.alert_failures).filter(|count| *count > 0),
                stop_failures: self.stop_failures,
                alert_idle: self.alert_idle,
                stop_idle: self.stop_idle,
            },
            stdout: if self.json {
                Output::Stderr
            } else {
                Output::Stdout
            },
            ..RunSpec::new(self.command.clone())
        }
    }
}

/// The exit code of `invigil run`.
fn code(end: &End) -> u8 {
    match end {
        End::NotStarted(failed) => match failed.failure {
            SpawnFailure::NotFound => ExitCode::NotFound.into(),
            SpawnFailure::NotExecutable => ExitCode::NotExecutable.into(),
            SpawnFailure::Policy => ExitCode::Policy.into(),
            SpawnFailure::Internal => ExitCode::Invigil.into(),
        },
        End::Finished(finished) => match (finished.stopped, finished.exit_code, finished.signal) {
            (Some(StopReason::Timeout), ..) => ExitCode::Timeout.into(),
            (Some(StopReason::Budget), ..) => ExitCode::Budget.into(),
            (Some(StopReason::Policy), ..) => ExitCode::Policy.into(),
            (Some(StopReason::Fuse), ..) => ExitCode::Budget.into(),
            (Some(StopReason::Signal | StopReason::Parent), ..) => ExitCode::of_signal(SIGTERM),
            (None, Some(code), _) => code as u8,
            (None, None, Some(signal)) => ExitCode::of_signal(signal),
            (None, None, None) => ExitCode::Invigil.into(),
        },
    }
}

/// The last record.
fn ended(end: &End) -> Value {
    match end {
        End::Finished(finished) => json!({ "event": "run_finished", "outcome": finished }),
        End::NotStarted(failed) => json!({ "event": "run_failed", "outcome": failed }),
    }
}

/// Says without ambiguity what the exit code means.
fn result(outcome: &RunOutcome, code: u8) -> Value {
    let mut result = json!({
        "run_id": outcome.run.run_id(),
        "exit": code,
        "tier": outcome.tier,
        "evidence": outcome.run.directory(),
        "head": { "seq": outcome.head.seq, "hash": outcome.head.hash },
    });
    if let (Value::Object(result), Value::Object(more)) = (&mut result, ended(&outcome.end)) {
        result.extend(more);
    }
    result
}

/// A second interrupt within this time means it.
const TWICE: Duration = Duration::from_secs(2);

/// From here on a signal is the run's business. What is typed at a terminal goes to its whole foreground group, so that
/// is not passed on a second time; a second SIGINT soon after the first kills. A terminal that is closed tells only the
/// leader of its session, which may be us, and everybody in the run shall know.
fn pass_on_signals(control: Control, cancel: Cancel) -> Result<(), CliError> {
    // SIGXFSZ has a handler only so that a file that is too large is an error and not our death.
    let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXFSZ];
    let mut signals = SignalsInfo::<WithOrigin>::new(all).map_err(CliError::Signals)?;
    let pass_on = move || {
        let mut interrupted: Option<Instant> = None;
        for origin in signals.forever() {
            let from_terminal = origin.process.is_none();
            // The command is over, or has not begun: what goes on are checks.
            if [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&origin.signal) && !control.is_running()
            {
                cancel.cancel();
            }
            match origin.signal {
                SIGXFSZ => {}
                SIGINT if interrupted.is_some_and(|at| at.elapsed() < TWICE) => control.kill(),
                SIGINT | SIGQUIT if from_terminal => control.interrupted(),
                signal => control.signal(signal),
            }
            if origin.signal == SIGINT {
                interrupted = Some(Instant::now());
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(pass_on).map(drop).map_err(CliError::Signals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("7"), Ok(7));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("2kB"), Ok(2000));
        for bad in ["", "x", "-1", "1.5MiB", "3 MiB", "99999999999GiB", "1m"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn variables_have_names() {
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
