//! `invigil approvals`: questions that runs have for a person, and the answers.

use std::io::Write as _;

use clap::Subcommand;
use invigil_engine::{OpenQuestion, Reply, answer, find, open_questions};
use invigil_journal::Store;
use invigil_schema::ApprovalScope;
use serde_json::json;

use crate::error::CliError;
use crate::question;
use crate::ui::{self, BOLD};

/// Answer the questions of runs
///
/// When a policy says `ask`, the call waits until somebody answers or its time is up. Answers can be given here, from
/// any terminal of the same user, but not from inside of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Approvals {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List open questions, the oldest first
    List {
        /// Only of this run: an id, the beginning of one, or `last`
        run: Option<String>,

        /// One JSON object a line on stdout
        #[arg(long)]
        json: bool,
    },
    /// Show one question in full
    Show {
        /// The id of a question, or the beginning of one
        id: String,

        /// One JSON object on stdout
        #[arg(long)]
        json: bool,
    },
    /// Let it happen, this once if nothing else is said
    Allow {
        /// The id of a question, or the beginning of one
        id: String,

        /// The same action again in this run, too
        #[arg(long, conflicts_with = "always")]
        run: bool,

        /// In every run: adds a rule to the user's policy file
        #[arg(long)]
        always: bool,
    },
    /// Do not let it happen
    Deny {
        /// The id of a question, or the beginning of one
        id: String,

        /// Why; it is in the evidence
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

impl Approvals {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        match self.command {
            Command::List { run, json } => list(store, run.as_deref(), json),
            Command::Show { id, json } => show(&find(store, &id)?, json),
            Command::Allow { id, run, always } => {
                let scope = match (run, always) {
                    (_, true) => ApprovalScope::Always,
                    (true, _) => ApprovalScope::Run,
                    _ => ApprovalScope::Once,
                };
                reply(&find(store, &id)?, &Reply::allow(scope))
            }
            Command::Deny { id, reason } => reply(&find(store, &id)?, &Reply::deny(reason)),
        }
    }
}

fn list(store: &Store, run: Option<&str>, json: bool) -> Result<u8, CliError> {
    let mut questions = open_questions(store)?;
    if let Some(name) = run {
        let run = store.find(name)?;
        questions.retain(|question| question.file.run_id == *run.run_id());
    }
    if json {
        let mut out = std::io::stdout().lock();
        for question in &questions {
            writeln!(out, "{}", as_json(question))?;
        }
        return Ok(0);
    }
    if questions.is_empty() {
        ui::say(format_args!("no open questions"));
        return Ok(0);
    }
    let mut out = anstream::stdout().lock();
    let runs = questions.iter().map(|question| &question.file.run_id);
    let width = runs.map(|run| run.as_str().len()).max().unwrap_or(0);
    writeln!(
        out,
        "{BOLD}{:8}  {:width$}  {:>7}  {:>7}  {:48}  RULE{BOLD:#}",
        "ID", "RUN", "WAITS", "LEFT", "WHAT"
    )?;
    for question in &questions {
        let (file, asked) = (&question.file, &question.file.question);
        writeln!(
            out,
            "{:8}  {:width$}  {:>7}  {:>7}  {:48}  {}",
            asked.id,
            file.run_id,
            ui::duration(question::waits(file)),
            ui::duration(question::left(asked.deadline)),
            ui::shorten(&question::brief(&asked.what), 48),
            ui::harmless(&asked.rule),
        )?;
    }
    Ok(0)
}

fn show(question: &OpenQuestion, json: bool) -> Result<u8, CliError> {
    let mut out = anstream::stdout().lock();
    if json {
        writeln!(out, "{}", as_json(question))?;
        return Ok(0);
    }
    writeln!(out, "{BOLD}question{BOLD:#} {}", question.id())?;
    question::print(&mut out, &question.file)?;
    Ok(0)
}

/// What is answered is shown first, so that nobody answers blindly; what was shown is what the answer is bound to.
fn reply(question: &OpenQuestion, reply: &Reply) -> Result<u8, CliError> {
    show(question, false)?;
    let answered = answer(question, reply)?;
    let mut out = anstream::stdout().lock();
    for line in question::closed(&answered) {
        writeln!(out, "{line}")?;
    }
    Ok(0)
}

fn as_json(question: &OpenQuestion) -> serde_json::Value {
    let (file, asked) = (&question.file, &question.file.question);
    json!({
        "id": asked.id,
        "run_id": file.run_id,
        "asked_at": file.asked_at,
        "waits_ms": question::waits(file).as_millis() as u64,
        "deadline": asked.deadline,
        "what": asked.what,
        "action": asked.action,
        "rule": asked.rule,
        "reason": asked.reason,
        "process": asked.process,
    })
}
