//! How a run stands at one record, in lines: who lives, who waits, how much has happened.

use std::collections::BTreeMap;
use std::time::Duration;

use anstream::adapter::strip_str;
use invigil_audit::{OsSnapshot, ProcessRow, ProcessState, RunState};
use invigil_schema::ProcessRef;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::draw::Palette;
use super::reading::Standing;
use crate::describe::{ended, name, text};
use crate::{summary, ui};

/// How many of the newest rows of a list are shown.
const ROWS: usize = 8;

/// Who lives, each behind its parent. Whoever has lost it stands at the root.
pub(super) fn tree(
    standing: &Standing,
    actor: Option<ProcessRef>,
    palette: Palette,
) -> Vec<Line<'static>> {
    let rows = &standing.os.processes.rows;
    let living = rows.iter().filter(|row| lives(row));
    let living: BTreeMap<ProcessRef, &ProcessRow> = living.map(|row| (row.process, row)).collect();
    if living.is_empty() {
        return vec![Line::styled("nobody is alive", Palette::dim())];
    }
    let mut children: BTreeMap<Option<ProcessRef>, Vec<&ProcessRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| lives(row)) {
        let parent = row.parent.filter(|parent| living.contains_key(parent));
        children.entry(parent).or_default().push(row);
    }
    let mut pending: Vec<(usize, &ProcessRow)> = Vec::new();
    let mut behind = |pending: &mut Vec<_>, depth, parent| {
        let below = children.remove(&parent).unwrap_or_default();
        pending.extend(below.into_iter().rev().map(|row| (depth, row)));
    };
    behind(&mut pending, 0, None);
    let mut lines = Vec::with_capacity(living.len());
    while let Some((depth, row)) = pending.pop() {
        behind(&mut pending, depth + 1, Some(row.process));
        let acts = actor == Some(row.process);
        let command = command(standing, &living, row);
        lines.push(branch(depth, row, &command, acts, palette));
    }
    lines
}

fn lives(row: &ProcessRow) -> bool {
    !matches!(row.state, ProcessState::Exited { .. } | ProcessState::Lost)
}

/// What a process runs: its own program, or that of the one which it is a copy of.
fn command(
    standing: &Standing,
    living: &BTreeMap<ProcessRef, &ProcessRow>,
    row: &ProcessRow,
) -> String {
    let commands = &standing.moment.commands;
    let own = commands.get(&row.process).map(|argv| ui::command(argv));
    if let Some(own) = own.or_else(|| row.program.as_ref().map(text)) {
        return own;
    }
    let mut up = row.parent;
    // A chain of copies is as long as the tree is deep, and has no circles.
    while let Some(parent) = up {
        if let Some(argv) = commands.get(&parent) {
            return format!("(fork of) {}", ui::command(argv));
        }
        up = living.get(&parent).and_then(|row| row.parent);
    }
    "(fork)".to_owned()
}

fn branch(
    depth: usize,
    row: &ProcessRow,
    command: &str,
    acts: bool,
    palette: Palette,
) -> Line<'static> {
    let style = match acts {
        true => palette.in_colour(Color::Cyan).add_modifier(Modifier::BOLD),
        false => Style::new(),
    };
    let branch = match depth {
        0 => String::new(),
        depth => format!("{}└ ", "  ".repeat((depth - 1).min(20))),
    };
    let state = match row.state {
        ProcessState::Waiting => "waiting ",
        ProcessState::Stopped => "stopped ",
        _ => "",
    };
    Line::from(vec![
        Span::styled(if acts { "▸" } else { " " }, style),
        Span::styled(branch, Palette::dim()),
        Span::styled(format!("{} ", row.process.pid), Palette::dim()),
        Span::styled(state, palette.warn()),
        Span::styled(ui::shorten(command, 300), style),
    ])
}

/// Lines with a label each.
#[derive(Default)]
struct Labelled(Vec<Line<'static>>);

impl Labelled {
    fn say(&mut self, label: &str, text: String, style: Style) {
        self.0.push(Line::from(vec![
            Span::styled(format!("{label:10}"), Palette::dim()),
            Span::styled(text, style),
        ]));
    }
}

/// How the run stands, in a few lines.
pub(super) fn snapshot(standing: &Standing, palette: Palette) -> Vec<Line<'static>> {
    let Standing { os, moment } = standing;
    let mut lines = Labelled::default();
    let plain = Style::new();
    let state = match (&moment.finished, &moment.failed) {
        (Some(finished), _) => strip_str(&ended(finished)).to_string(),
        (None, Some(failed)) => format!("not started: {}", ui::harmless(&failed.reason)),
        (None, None) => match os.run_state {
            Some(RunState::Paused) => "paused".to_owned(),
            Some(RunState::Ended) => "ended".to_owned(),
            Some(RunState::Running) => "goes on".to_owned(),
            Some(RunState::Starting) | None => "begins".to_owned(),
        },
    };
    lines.say("run", state, Style::new().add_modifier(Modifier::BOLD));
    let elapsed = Duration::from_nanos(moment.elapsed_ns);
    lines.say("after", ui::duration(elapsed), plain);
    let (started, over) = (os.processes.started, os.processes.ended);
    let alive = os.processes.rows.iter().filter(|row| lives(row)).count();
    let processes = format!("{alive} alive, {over} of {started} ended");
    lines.say("processes", processes, plain);
    lines.say("programs", moment.programs.to_string(), plain);
    let (changes, reads) = (moment.changes, moment.reads);
    let files = format!("{changes} changes, {reads} reads");
    lines.say("files", files, plain);
    lines.say("network", moment.network.to_string(), plain);
    match moment.last_refused {
        Some(seq) => {
            let refused = format!("{}, last in {seq}", moment.refused);
            lines.say("refused", refused, palette.bad());
        }
        None => lines.say("refused", "0".to_owned(), plain),
    }
    if moment.passed + moment.not_passed > 0 {
        let (passed, not) = (moment.passed, moment.not_passed);
        let style = if not > 0 { palette.bad() } else { plain };
        lines.say("checks", format!("{passed} passed, {not} not"), style);
    }
    if moment.reports > 0 {
        let reports = format!("{} of the agent", moment.reports);
        lines.say("reports", reports, plain);
    }
    if let Some(sample) = &moment.sample {
        let memory = summary::bytes(sample.rss_kib * 1024);
        lines.say("memory", memory, plain);
    }
    as_a_system(&mut lines, os, palette);
    lines.0
}

/// Who waits, which signals came, which budgets were exceeded.
fn as_a_system(lines: &mut Labelled, os: &OsSnapshot, palette: Palette) {
    let plain = Style::new();
    if os.open_suspensions.is_empty() {
        lines.say("waits", "nothing".to_owned(), plain);
    }
    for open in os.open_suspensions.iter().take(ROWS) {
        let pending = ui::harmless(&open.pending_calls.join(", "));
        let (reason, turn) = (ui::harmless(&open.reason), open.turn);
        let waits = format!("{reason} {pending} ({turn})");
        lines.say("waits", waits, palette.warn());
    }
    // The first one is the run itself.
    for agent in os.process_by_agent.iter().skip(1).rev().take(ROWS) {
        let (id, state) = (ui::harmless(&agent.agent_id), ui::harmless(&agent.state));
        lines.say("agent", format!("{id}: {state} ({})", agent.turn), plain);
    }
    for signal in os.signals.iter().rev().take(ROWS) {
        let id = ui::harmless(&signal.signal_id);
        let became = ui::harmless(&signal.disposition);
        lines.say("signal", format!("{id}: {became} ({})", signal.turn), plain);
    }
    for budget in os.budget_exceeded.iter().rev().take(ROWS) {
        let text = format!(
            "{} exceeded ({})",
            ui::harmless(&budget.budget),
            budget.turn
        );
        lines.say("budget", text, palette.bad());
    }
    if let Some(last) = &os.last_checkpoint {
        let text = format!("{} ({})", ui::harmless(&last.id), last.turn);
        lines.say("checkpoint", text, plain);
    }
    if let Some(last) = &os.last_rollback {
        let text = format!("{} ({})", ui::harmless(&last.id), last.turn);
        lines.say("rollback", text, palette.warn());
    }
    for milestone in os.milestones.iter().take(ROWS) {
        let (phase, state) = (ui::harmless(&milestone.phase), name(&milestone.state));
        lines.say("milestone", format!("{phase}: {state}"), plain);
    }
    for odd in os.anomalies.iter().rev().take(ROWS) {
        let text = format!(
            "{} {} ({})",
            name(&odd.anomaly),
            ui::harmless(&odd.what),
            odd.seq
        );
        lines.say("odd", text, palette.bad());
    }
    if os.categories.unknown > 0 {
        let text = format!("{} of unknown kinds", os.categories.unknown);
        lines.say("records", text, palette.warn());
    }
}
