//! What a person sees before they approve: the diff, the checks before and after, what the agent did, what was refused.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use invigil_engine::{TaskView, Tasks};
use invigil_schema::{CheckResult, TaskState};
use rustix::termios::{LocalModes, OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};

use crate::describe::text;
use crate::error::CliError;
use crate::judge::tell_edited;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

const ADDED: Style = AnsiColor::Green.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();
const PLACE: Style = AnsiColor::Cyan.on_default();

/// The colour of a state.
pub(crate) fn style(state: TaskState) -> Style {
    match state {
        TaskState::Merged | TaskState::Reported => GOOD,
        TaskState::NeedsApproval | TaskState::ContractProposed => WARN,
        TaskState::Failed => BAD,
        TaskState::Abandoned => DIM,
        _ => BOLD,
    }
}

/// Everything about a task on stdout.
pub(crate) fn print(tasks: &Tasks, view: &TaskView) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    let patch = tasks.patch(view)?;
    for line in String::from_utf8_lossy(&patch).lines() {
        let style = match line.as_bytes() {
            [b'd', b'i', b'f', b'f', b' ', ..] => BOLD,
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => BOLD,
            [b'@', ..] => PLACE,
            [b'+', ..] => ADDED,
            [b'-', ..] => REMOVED,
            _ => Style::new(),
        };
        // Tabs stay; everything else that could steer a terminal is shown as what it is.
        let parts: Vec<String> = line.split('\t').map(ui::harmless).collect();
        writeln!(out, "{style}{}{style:#}", parts.join("\t"))?;
    }
    let state = style(view.state);
    writeln!(
        out,
        "\n{BOLD}{}{BOLD:#}  {state}{}{state:#}",
        view.task_id,
        view.state.as_str()
    )?;
    writeln!(out, "  intent   {}", ui::harmless(&view.intent))?;
    for check in &view.checks {
        let before = view
            .baseline
            .iter()
            .find(|before| before.name == check.name);
        let (was, is) = (before.map_or_else(String::new, colour), colour(check));
        let time = ui::duration(Duration::from_millis(check.duration_ms));
        writeln!(
            out,
            "  check    {was} → {is}  {} {DIM}{time}{DIM:#}",
            ui::harmless(&check.name)
        )?;
    }
    for check in &view.originals {
        let (is, name) = (colour(check), ui::harmless(&check.name));
        writeln!(
            out,
            "  original {is}  {name} {DIM}with the check files as they were{DIM:#}"
        )?;
    }
    for ran in &view.runs {
        let code = ran
            .exit_code
            .map_or_else(String::new, |code| format!(", exit {code}"));
        let time = ui::duration(Duration::from_millis(ran.duration_ms));
        writeln!(
            out,
            "  agent    round {}: {time}{code}, {} processes, {} left running and killed  {DIM}invigil show {}{DIM:#}",
            ran.round, ran.processes, ran.left_running, ran.run
        )?;
        if !ran.reached.is_empty() {
            writeln!(out, "  reached  {}", ui::harmless(&ran.reached.join(", ")))?;
        }
        for refused in &ran.refused {
            writeln!(
                out,
                "  {BAD}refused{BAD:#}  {} by {}",
                text(&refused.target),
                ui::harmless(&refused.rule)
            )?;
        }
    }
    if let Some(proposed) = &view.proposed {
        for commit in &proposed.commits {
            writeln!(out, "  commit   {}", ui::harmless(commit))?;
        }
        for note in &proposed.notes {
            writeln!(out, "  {WARN}note{WARN:#}     {}", ui::harmless(note))?;
        }
        writeln!(out, "  files    {}", proposed.files.len())?;
        writeln!(out, "  digest   {}", proposed.digest)?;
    }
    if let Some(branch) = &view.branch {
        writeln!(out, "  branch   {}", ui::harmless(branch))?;
    }
    if let Some(verdict) = &view.verdict {
        writeln!(out, "  {BOLD}verdict{BOLD:#}  {}", ui::harmless(verdict))?;
    }
    drop(out);
    if let Some(proposed) = &view.proposed {
        tell_edited(&proposed.edited_checks);
    }
    Ok(())
}

fn colour(check: &CheckResult) -> String {
    match check.passed {
        true => format!("{GOOD}green{GOOD:#}"),
        false => format!("{BAD}red{BAD:#}"),
    }
}

/// One key from the terminal; nothing if there is none. What was typed before the question does not count.
pub(crate) fn key(prompt: &str) -> Result<Option<char>, CliError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    let before = tcgetattr(&stdin).map_err(io::Error::from)?;
    let mut raw = before.clone();
    raw.local_modes
        .remove(LocalModes::ICANON | LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(io::Error::from)?;
    tcflush(&stdin, QueueSelector::IFlush).map_err(io::Error::from)?;
    ui::say(format_args!("{BOLD}{prompt}{BOLD:#}"));
    let mut byte = [0];
    let read = stdin.lock().read(&mut byte);
    tcsetattr(&stdin, OptionalActions::Now, &before).map_err(io::Error::from)?;
    Ok(match read? {
        0 => None,
        _ => Some(char::from(byte[0]).to_ascii_lowercase()),
    })
}
