//! A question as a person sees it, in the terminal of the run or in another one. Nothing in it can steer a terminal.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use invigil_schema::{
    ApprovalAnswered, ApprovalBy, ApprovalDecision, ApprovalScope, Asked, QuestionFile, Timestamp,
};

use crate::describe::{address, name, text};
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// What would happen, in one line.
pub(crate) fn brief(what: &Asked) -> String {
    match what {
        Asked::Exec { argv, .. } => ui::command(argv),
        Asked::File { op, path, to, .. } => match to {
            Some(to) => format!("{} {} → {}", name(op), text(path), text(to)),
            None => format!("{} {}", name(op), text(path)),
        },
        Asked::Net { op, address: to } => format!("{} {}", name(op), address(to)),
    }
}

/// The whole of it, line by line.
pub(crate) fn print(out: &mut impl Write, file: &QuestionFile) -> io::Result<()> {
    let question = &file.question;
    let label = |label: &str| format!("  {DIM}{label:5}{DIM:#} ");
    match &question.what {
        Asked::Exec { program, argv, cwd } => {
            writeln!(out, "{}{BOLD}{}{BOLD:#}", label("run"), ui::command(argv))?;
            writeln!(out, "{}{}", label("file"), text(program))?;
            writeln!(out, "{}{}", label("in"), text(cwd))?;
        }
        Asked::File {
            op,
            path,
            to,
            flags,
            detail,
        } => {
            writeln!(out, "{}{BOLD}{}{BOLD:#}", label(&name(op)), text(path))?;
            if let Some(to) = to {
                writeln!(out, "{}{BOLD}{}{BOLD:#}", label("to"), text(to))?;
            }
            if !flags.is_empty() {
                let flags: Vec<String> = flags.iter().map(name).collect();
                writeln!(out, "{}{}", label("how"), flags.join(", "))?;
            }
            if let Some(detail) = detail {
                writeln!(out, "{}{}", label("with"), text(detail))?;
            }
        }
        Asked::Net { op, address: to } => {
            writeln!(out, "{}{BOLD}{}{BOLD:#}", label(&name(op)), address(to))?;
        }
    }
    writeln!(out, "{}{}", label("rule"), ui::harmless(&question.rule))?;
    if let Some(reason) = &question.reason {
        writeln!(out, "{}{}", label("why"), ui::harmless(reason))?;
    }
    let pid = question.process.pid;
    writeln!(out, "{}process {pid} of {}", label("by"), file.run_id)?;
    let left = ui::duration(left(question.deadline));
    writeln!(out, "{}{left}, then no", label("left"))
}

/// How long until a moment on the wall clock.
pub(crate) fn left(deadline: Timestamp) -> Duration {
    let left = deadline.since(SystemTime::now().into());
    Duration::from_secs(left.as_secs())
}

/// How long since a moment on the wall clock.
pub(crate) fn waits(file: &QuestionFile) -> Duration {
    let now = Timestamp::from(SystemTime::now());
    Duration::from_secs(now.since(file.asked_at).as_secs())
}

/// How a question was closed, and the rule that was added; one line each.
pub(crate) fn closed(answered: &ApprovalAnswered) -> Vec<String> {
    let decision = match (answered.decision, answered.scope) {
        (ApprovalDecision::Deny, _) => format!("{BAD}denied{BAD:#}"),
        (ApprovalDecision::Allow, Some(ApprovalScope::Run)) => {
            format!("{GOOD}allowed{GOOD:#} for this run")
        }
        (ApprovalDecision::Allow, Some(ApprovalScope::Always)) => {
            format!("{GOOD}allowed{GOOD:#} for always")
        }
        (ApprovalDecision::Allow, _) => format!("{GOOD}allowed{GOOD:#} once"),
    };
    let how = match answered.by {
        ApprovalBy::Terminal { .. } => String::new(),
        ApprovalBy::CommandLine { uid, pid } => format!(", by process {pid} of user {uid}"),
        ApprovalBy::SameAction => ", together with the same action".to_owned(),
        ApprovalBy::Timeout => ": nobody answered in time".to_owned(),
        ApprovalBy::ProcessEnded => ": the process that waited has ended".to_owned(),
        ApprovalBy::Interrupted => ": the run was interrupted".to_owned(),
        ApprovalBy::RunEnded => ": the run is over".to_owned(),
        ApprovalBy::Nobody => ": nobody can be asked".to_owned(),
        ApprovalBy::TooMany => ": too many questions are open".to_owned(),
    };
    let reason = answered.reason.as_ref();
    let reason = reason.map_or(String::new(), |why| format!(" ({})", ui::harmless(why)));
    let mut lines = vec![format!("question {} {decision}{how}{reason}", answered.id)];
    if let Some(added) = &answered.added {
        let (file, line) = (text(&added.file), added.line);
        lines.push(format!("added to {file}, line {line}:"));
        let added = added.text.lines();
        lines.extend(added.map(|line| format!("  {GOOD}+{GOOD:#} {}", ui::harmless(line))));
    }
    if let Some(why) = &answered.not_added {
        let why = ui::harmless(why);
        lines.push(format!(
            "{WARN}no rule was added{WARN:#}, it holds for this run: {why}"
        ));
    }
    lines
}
