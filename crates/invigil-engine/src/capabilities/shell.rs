//! `shell`: a program of the agent's choice. It runs like any command under watch, not in a worker of ours.

use std::collections::BTreeMap;
use std::path::PathBuf;

use invigil_schema::OsText;
use schemars::JsonSchema;
use serde::Deserialize;

use super::change::as_path;
use super::{Capability, Command, Context, Failure, Invalid, Output, Plan, arguments};

const MAX_STDIN: usize = 1 << 20;

/// Runs programs.
pub(super) struct Shell;

/// Arguments of `shell`: `command` or `argv`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// A line for `/bin/sh -c`.
    command: Option<OsText>,
    /// A program and its arguments, without a shell.
    argv: Option<Vec<OsText>>,
    /// Where it starts: relative to the working directory, or absolute below an allowed root.
    cwd: Option<OsText>,
    /// What it reads; at most 1 MiB.
    #[serde(default)]
    stdin: OsText,
    /// Seconds after which it is ended: 30, if nothing is said.
    #[schemars(range(max = 3600))]
    timeout: Option<f64>,
    /// Variables to set, besides those that every job gets.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

impl Capability for Shell {
    type Args = Args;
    const NAME: &'static str = "shell";
    const DESCRIPTION: &'static str =
        "Runs a command line or a program, and gives what it printed.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        match (&args.command, &args.argv) {
            (None, None) => return Err(Invalid::new("command", "`command` or `argv` is needed")),
            (Some(_), Some(_)) => {
                return Err(Invalid::new(
                    "argv",
                    "`command` is given, too; one is enough",
                ));
            }
            (Some(command), None) => arguments::path("command", command)?,
            (None, Some(argv)) => {
                let program = argv.first();
                let program = program.ok_or_else(|| Invalid::new("argv", "it is empty"))?;
                arguments::path("argv[0]", program)?;
                for (at, argument) in argv.iter().enumerate() {
                    arguments::text(&format!("argv[{at}]"), argument.as_bytes())?;
                }
            }
        }
        if let Some(cwd) = &args.cwd {
            arguments::path("cwd", cwd)?;
        }
        if args.stdin.as_bytes().len() > MAX_STDIN {
            let why = format!(
                "{} bytes are out of range: at most {MAX_STDIN}",
                args.stdin.as_bytes().len()
            );
            return Err(Invalid::new("stdin", why));
        }
        for (name, value) in &args.env {
            let field = format!("env.{name}");
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(Invalid::new(field, "it is not the name of a variable"));
            }
            if name.starts_with("INVIGIL_") {
                return Err(Invalid::new(field, "the variables of Invigil are its own"));
            }
            arguments::text(&field, value.as_bytes())?;
        }
        arguments::timeout(args.timeout)
    }

    fn plan(&self, args: &Args) -> Plan {
        let argv = match (&args.command, &args.argv) {
            (Some(command), _) => vec!["/bin/sh".into(), "-c".into(), as_path(command).into()],
            (None, argv) => argv
                .iter()
                .flatten()
                .map(|word| as_path(word).into())
                .collect(),
        };
        let variables = args.env.iter();
        Plan::Command(Command {
            argv,
            cwd: args.cwd.as_ref().map(|cwd| PathBuf::from(as_path(cwd))),
            stdin: args.stdin.as_bytes().to_vec(),
            env: variables
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            timeout: arguments::timeout_or_default(args.timeout),
        })
    }

    fn execute(&self, _: Args, _: &mut Context<'_>) -> Result<Output, Failure> {
        Err(Failure::new(
            "a command is run by the supervisor, not by a worker",
        ))
    }
}
