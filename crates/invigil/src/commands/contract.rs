//! `invigil contract`: says what is wrong with a contract, has one written, or runs its checks.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use invigil_engine::contracts::{
    Api, Evaluation, GenerateError, Generator, all_green, derive, parse, render, summary,
};
use invigil_engine::{Asking, Cancel, Engine};
use invigil_journal::Store;
use invigil_schema::{Contract as Agreed, ExitCode, Stage};
use serde_json::json;

use crate::error::CliError;
use crate::executor::{cancel_on_signals, engine, text_of};
use crate::judge::{contract, tell};
use crate::policies::PolicyOptions;
use crate::ui::{self, BAD, GOOD};

/// Say what "done" means: check a contract, have one written, run its checks
#[derive(Debug, clap::Args)]
pub(crate) struct Contract {
    #[command(subcommand)]
    command: ContractCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ContractCommand {
    Check(Check),
    Derive(Derive),
    Run(Run),
}

/// Print every problem of a contract, with its place
///
/// Exit 0: it can be used; 1: it cannot.
#[derive(Debug, clap::Args)]
struct Check {
    /// JSON or TOML; `-` is stdin
    file: PathBuf,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Ask a model for a contract
#[derive(Debug, clap::Args)]
struct Derive {
    /// What is wanted
    #[arg(long, value_name = "TEXT")]
    intent: String,

    /// The repository [default: here]
    #[arg(long, value_name = "DIR")]
    repo: Option<PathBuf>,

    #[command(flatten)]
    model: ModelOptions,

    /// Write it to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Run the checks of a contract, here and now
///
/// Exit 0: it is met; 120: it is not.
#[derive(Debug, clap::Args)]
struct Run {
    /// JSON or TOML; `-` is stdin
    file: PathBuf,

    /// Where they run [default: here]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    #[command(flatten)]
    policy: PolicyOptions,

    /// The results as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Who writes contracts.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelOptions {
    /// A command that takes the prompt on stdin and prints the answer, such as 'claude -p'
    #[arg(long, value_name = "CMD", conflicts_with_all = ["openai", "anthropic"])]
    model_cmd: Option<String>,

    /// An endpoint that is compatible with OpenAI's, such as `https://api.openai.com/v1`; the key is in $OPENAI_API_KEY
    #[arg(
        long,
        value_name = "URL",
        requires = "model",
        conflicts_with = "anthropic"
    )]
    openai: Option<String>,

    /// Anthropic's endpoint, or another one that is compatible; the key is in $ANTHROPIC_API_KEY
    #[arg(long, value_name = "URL", requires = "model", num_args = 0..=1, default_missing_value = "https://api.anthropic.com")]
    anthropic: Option<String>,

    /// Which model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// How often it is asked, if its answers cannot be used
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) attempts: u32,

    /// How long an answer may take
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "3m")]
    model_timeout: Duration,
}

/// An answer of a model; why there is none is said at once, since it may be asked again.
pub(crate) fn told(answer: Result<String, GenerateError>) -> Result<String, GenerateError> {
    answer.inspect_err(|error| ui::warning(&ui::harmless(&error.to_string())))
}

impl ModelOptions {
    /// Who answers, if somebody was named.
    pub(crate) fn generator(&self, engine: &Engine) -> Result<Generator, CliError> {
        let model = self.model.as_deref().unwrap_or_default();
        let key = |name: &str| env::var(name).ok().filter(|key| !key.is_empty());
        let (api, url, key) = match (&self.model_cmd, &self.openai, &self.anthropic) {
            (Some(command), ..) => {
                return Ok(Generator::Command {
                    engine: engine.clone(),
                    command: command.clone(),
                    timeout: self.model_timeout,
                });
            }
            (_, Some(url), _) => (Api::OpenAi, url, key("OPENAI_API_KEY")),
            (_, _, Some(url)) => (Api::Anthropic, url, key("ANTHROPIC_API_KEY")),
            (None, None, None) => return Err(CliError::NoModel),
        };
        Ok(Generator::http(api, url, model, key, self.model_timeout)?)
    }
}

impl Contract {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        match self.command {
            ContractCommand::Check(check) => check.execute(),
            ContractCommand::Derive(derive) => derive.execute(store),
            ContractCommand::Run(run) => run.execute(store),
        }
    }
}

impl Check {
    fn execute(self) -> Result<u8, CliError> {
        let parsed = parse(&text_of(&self.file)?);
        let mut out = anstream::stdout().lock();
        if self.json {
            let result = match &parsed {
                Ok(contract) => json!({ "ok": true, "contract": contract, "problems": [] }),
                Err(flaws) => {
                    let problem = |flaw: &invigil_engine::contracts::Flaw| json!({ "line": flaw.line, "column": flaw.column, "message": flaw.message });
                    let problems: Vec<_> = flaws.iter().map(problem).collect();
                    json!({ "ok": false, "problems": problems })
                }
            };
            writeln!(out, "{result}")?;
        } else {
            let file = self.file.display();
            match &parsed {
                Ok(contract) => {
                    writeln!(
                        out,
                        "{GOOD}ok{GOOD:#} {file}: {} checks",
                        contract.checks.len()
                    )?;
                    writeln!(out, "{}", ui::harmless_lines(&render(contract)))?;
                }
                Err(flaws) => {
                    for flaw in flaws {
                        writeln!(
                            out,
                            "{BAD}{file}:{}{BAD:#}",
                            ui::harmless(&flaw.to_string())
                        )?;
                    }
                }
            }
        }
        Ok(match parsed {
            Ok(_) => ExitCode::Success.into(),
            Err(_) => ExitCode::No.into(),
        })
    }
}

impl Derive {
    fn execute(self, store: &Store) -> Result<u8, CliError> {
        let engine = engine(store)?;
        let repository = engine.cwd.join(self.repo.as_deref().unwrap_or(&engine.cwd));
        let mut model = self.model.generator(&engine)?;
        ui::say(format_args!("asking the model for a contract"));
        let ask = |prompt: &str| told(model.generate(prompt, &Cancel::new()));
        let about = summary(&repository);
        let derived = derive(ask, &self.intent, &about, self.model.attempts)?;
        let text = as_text(&derived.contract);
        match &self.output {
            Some(path) => {
                fs::write(path, text).map_err(|source| CliError::File {
                    path: path.clone(),
                    source,
                })?;
                ui::say(format_args!(
                    "{}",
                    ui::harmless_lines(&render(&derived.contract))
                ));
            }
            None => write!(anstream::stdout().lock(), "{text}")?,
        }
        Ok(0)
    }
}

fn as_text(contract: &Agreed) -> String {
    let text = serde_json::to_string_pretty(contract).unwrap_or_default();
    format!("{text}\n")
}

impl Run {
    fn execute(self, store: &Store) -> Result<u8, CliError> {
        let contract = contract(&self.file)?;
        let engine = engine(store)?;
        let cwd = engine.cwd.join(self.cwd.as_deref().unwrap_or(&engine.cwd));
        let rules = self.policy.rules(&cwd)?.map(|(rules, _)| Arc::new(rules));
        let evaluation = Evaluation {
            engine: &engine,
            rules,
            asking: Asking {
                timeout: Duration::from_secs(60),
                ..Asking::default()
            },
            cwd,
            prefix: format!("check_{}", uuid::Uuid::now_v7().simple()),
            require_tier: None,
            stage: Stage::Verify,
            round: 0,
        };
        let results = evaluation.run(&contract, &cancel_on_signals()?, &mut |event| tell(&event));
        let met = all_green(&results);
        if self.json {
            let result = json!({ "met": met, "checks": results });
            writeln!(std::io::stdout().lock(), "{result}")?;
        }
        Ok(match met {
            true => ExitCode::Success.into(),
            false => ExitCode::ContractNotMet.into(),
        })
    }
}
