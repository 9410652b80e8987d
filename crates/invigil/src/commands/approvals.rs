//! `invigil approvals`: questions that runs and hosts have for a person, and the answers.

use std::io::Write as _;

use clap::Subcommand;
use invigil_engine::{ApprovalError, OpenQuestion, Reply, answer, find, open_questions};
use invigil_journal::Store;
use invigil_schema::{ApprovalDecision, ApprovalScope};
use serde_json::json;

use crate::error::CliError;
use crate::hosted::{self, Daemon, Hosted};
use crate::question;
use crate::ui::{self, BOLD};

/// Answer the questions of runs and of the daemon's hosts
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
            Command::Show { id, json } => match meant(store, &id)? {
                Meant::Run(question) => show(&question, json),
                Meant::Host(_, hosted) => show_hosted(&hosted, json),
            },
            Command::Allow { id, run, always } => match meant(store, &id)? {
                Meant::Run(question) => {
                    let scope = match (run, always) {
                        (_, true) => ApprovalScope::Always,
                        (true, _) => ApprovalScope::Run,
                        _ => ApprovalScope::Once,
                    };
                    reply(&question, &Reply::allow(scope))
                }
                Meant::Host(..) if always => Err(CliError::OnlyRuns("--always")),
                Meant::Host(daemon, hosted) => {
                    reply_hosted(daemon, &hosted, ApprovalDecision::Allow, run)
                }
            },
            Command::Deny { id, reason } => match meant(store, &id)? {
                Meant::Run(question) => reply(&question, &Reply::deny(reason)),
                Meant::Host(..) if reason.is_some() => Err(CliError::OnlyRuns("--reason")),
                Meant::Host(daemon, hosted) => {
                    reply_hosted(daemon, &hosted, ApprovalDecision::Deny, false)
                }
            },
        }
    }
}

/// The question that a person means.
enum Meant {
    Run(OpenQuestion),
    Host(Daemon, Hosted),
}

/// An id, or the beginning of one; of a run, or else of a host.
fn meant(store: &Store, name: &str) -> Result<Meant, CliError> {
    let missing = match find(store, name) {
        Ok(question) => return Ok(Meant::Run(question)),
        Err(error @ ApprovalError::NotFound(_)) if !name.is_empty() => error,
        Err(error) => return Err(error.into()),
    };
    let Some(mut daemon) = Daemon::find(store)? else {
        return Err(missing.into());
    };
    let mut open = daemon.questions()?;
    open.retain(|hosted| hosted.id().starts_with(name));
    match open.len() {
        0 => Err(missing.into()),
        1 => Ok(Meant::Host(daemon, open.remove(0))),
        _ => Err(ApprovalError::Ambiguous {
            prefix: name.to_owned(),
            ids: open.iter().map(|hosted| hosted.id().to_owned()).collect(),
        }
        .into()),
    }
}

fn list(store: &Store, run: Option<&str>, json: bool) -> Result<u8, CliError> {
    let mut questions = open_questions(store)?;
    let mut hosted = match Daemon::find(store)? {
        Some(mut daemon) => daemon.questions()?,
        None => Vec::new(),
    };
    if let Some(name) = run {
        let run = store.find(name)?;
        questions.retain(|question| question.file.run_id == *run.run_id());
        hosted.retain(|hosted| hosted.is_of(run.run_id()));
    }
    if json {
        let mut out = std::io::stdout().lock();
        for question in &questions {
            writeln!(out, "{}", as_json(question))?;
        }
        for hosted in &hosted {
            writeln!(out, "{}", json!(hosted))?;
        }
        return Ok(0);
    }
    if questions.is_empty() && hosted.is_empty() {
        ui::say(format_args!("no open questions"));
        return Ok(0);
    }
    let of_runs = questions.iter().map(|question| {
        let (file, asked) = (&question.file, &question.file.question);
        [
            asked.id.clone(),
            file.run_id.to_string(),
            ui::duration(question::waits(file)),
            ui::duration(question::left(asked.deadline)),
            ui::shorten(&question::brief(&asked.what), 48),
            ui::harmless(&asked.rule),
        ]
    });
    let of_hosts = hosted.iter().map(|hosted| {
        [
            hosted.id().to_owned(),
            hosted.run().to_owned(),
            "-".to_owned(),
            hosted.left(),
            ui::shorten(&hosted.brief(), 48),
            hosted.rule(),
        ]
    });
    let rows: Vec<[String; 6]> = of_runs.chain(of_hosts).collect();
    let wide = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (ids, runs) = (wide(0).max(8), wide(1));
    let mut out = anstream::stdout().lock();
    writeln!(
        out,
        "{BOLD}{:ids$}  {:runs$}  {:>7}  {:>7}  {:48}  RULE{BOLD:#}",
        "ID", "RUN", "WAITS", "LEFT", "WHAT"
    )?;
    for [id, run, waits, left, what, rule] in rows {
        writeln!(
            out,
            "{id:ids$}  {run:runs$}  {waits:>7}  {left:>7}  {what:48}  {rule}"
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

fn show_hosted(hosted: &Hosted, json: bool) -> Result<u8, CliError> {
    let mut out = anstream::stdout().lock();
    if json {
        writeln!(out, "{}", json!(hosted))?;
        return Ok(0);
    }
    writeln!(out, "{BOLD}question{BOLD:#} {}", hosted.id())?;
    hosted.print(&mut out)?;
    Ok(0)
}

fn reply_hosted(
    mut daemon: Daemon,
    hosted: &Hosted,
    decision: ApprovalDecision,
    remember: bool,
) -> Result<u8, CliError> {
    show_hosted(hosted, false)?;
    daemon.answer(hosted, decision, remember)?;
    let closed = hosted::closed(hosted, decision, remember);
    writeln!(anstream::stdout(), "{closed}")?;
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
