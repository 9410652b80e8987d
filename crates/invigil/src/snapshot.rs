//! How a run stands at one record, for people.

use std::io::{self, Write};

use invigil_audit::{OsSnapshot, ProcessRow, ProcessState, RunState, Suspension};

use crate::describe::{name, text};
use crate::ui::{self, BAD, BOLD, DIM, WARN};

/// How many rows of each part are shown.
const ROWS: usize = 20;

/// The snapshot in a few lines.
pub(crate) fn print(out: &mut impl Write, snapshot: &OsSnapshot) -> io::Result<()> {
    let counts = &snapshot.categories;
    let state = snapshot.run_state.map_or("empty", state);
    let last = snapshot.events.saturating_sub(1);
    writeln!(
        out,
        "{BOLD}snapshot{BOLD:#}  {state} after record {last}: {} proc, {} syscall, {} sched, {} ipc, {} mm, {} unknown",
        counts.proc, counts.syscall, counts.sched, counts.ipc, counts.mm, counts.unknown
    )?;
    waiting(out, snapshot)?;
    for agent in snapshot.process_by_agent.iter().take(ROWS) {
        label(out, "agent")?;
        let parent = match agent.parent_session_id.as_str() {
            "" => String::new(),
            parent => format!(" of {}", ui::harmless(parent)),
        };
        let (id, state) = (ui::harmless(&agent.agent_id), ui::harmless(&agent.state));
        writeln!(out, "{id}{parent}: {state} {DIM}({}){DIM:#}", agent.turn)?;
    }
    processes(out, snapshot)?;
    steps(out, snapshot)?;
    for anomaly in snapshot.anomalies.iter().take(ROWS) {
        label(out, "odd")?;
        let (kind, what) = (name(&anomaly.anomaly), ui::harmless(&anomaly.what));
        writeln!(
            out,
            "{BAD}{kind}{BAD:#} {what} {DIM}({}){DIM:#}",
            anomaly.seq
        )?;
    }
    more(
        out,
        snapshot.anomalies.len() as u64 + snapshot.left_out.anomalies,
    )
}

fn waiting(out: &mut impl Write, snapshot: &OsSnapshot) -> io::Result<()> {
    let line = |suspension: &Suspension| {
        let pending: Vec<String> = suspension
            .pending_calls
            .iter()
            .map(|call| ui::harmless(call))
            .collect();
        let reason = ui::harmless(&suspension.reason);
        format!(
            "{reason} {} {DIM}({}){DIM:#}",
            pending.join(", "),
            suspension.turn
        )
    };
    for open in snapshot.open_suspensions.iter().take(ROWS) {
        label(out, "waits")?;
        writeln!(out, "{WARN}{}{WARN:#}", line(open))?;
    }
    if let (true, Some(last)) = (snapshot.open_suspensions.is_empty(), &snapshot.last_suspend) {
        label(out, "waited")?;
        let resumed = snapshot.last_resumed_turn;
        let resumed = resumed.map(|turn| format!(", resumed {DIM}({turn}){DIM:#}"));
        writeln!(out, "{}{}", line(last), resumed.unwrap_or_default())?;
    }
    if snapshot.tool_gated_count > 0 {
        label(out, "asked")?;
        writeln!(out, "{} times", snapshot.tool_gated_count)?;
    }
    Ok(())
}

fn processes(out: &mut impl Write, snapshot: &OsSnapshot) -> io::Result<()> {
    let table = &snapshot.processes;
    if table.started == 0 {
        return Ok(());
    }
    label(out, "processes")?;
    writeln!(out, "{} started, {} ended", table.started, table.ended)?;
    let lives = |row: &&ProcessRow| !matches!(row.state, ProcessState::Exited { .. });
    let living = table.rows.iter().filter(lives);
    for row in living.clone().take(ROWS) {
        let program = row
            .program
            .as_ref()
            .map_or_else(|| "a copy of its parent".to_owned(), text);
        let (pid, state) = (row.process.pid, process_state(row.state));
        writeln!(
            out,
            "           {pid:>7} {state:9} {program} {DIM}({}){DIM:#}",
            row.since
        )?;
    }
    more(out, living.count() as u64)
}

fn steps(out: &mut impl Write, snapshot: &OsSnapshot) -> io::Result<()> {
    for signal in snapshot.signals.iter().rev().take(ROWS) {
        label(out, "signal")?;
        let (id, became) = (
            ui::harmless(&signal.signal_id),
            ui::harmless(&signal.disposition),
        );
        writeln!(
            out,
            "{id}: {became}, {} waiting {DIM}({}){DIM:#}",
            signal.queue_depth, signal.turn
        )?;
    }
    for budget in snapshot.budget_exceeded.iter().take(ROWS) {
        label(out, "budget")?;
        writeln!(
            out,
            "{BAD}{}{BAD:#} {DIM}({}){DIM:#}",
            ui::harmless(&budget.budget),
            budget.turn
        )?;
    }
    if let Some(last) = &snapshot.last_checkpoint {
        label(out, "checkpoint")?;
        let count = snapshot.checkpoint_count;
        writeln!(
            out,
            "{} {DIM}({}){DIM:#}, {count} in all",
            ui::harmless(&last.id),
            last.turn
        )?;
    }
    if let Some(last) = &snapshot.last_rollback {
        label(out, "rollback")?;
        writeln!(
            out,
            "to {} {DIM}({}){DIM:#}",
            ui::harmless(&last.id),
            last.turn
        )?;
    }
    for milestone in snapshot.milestones.iter().take(ROWS) {
        label(out, "milestone")?;
        let (phase, state) = (ui::harmless(&milestone.phase), name(&milestone.state));
        writeln!(out, "{phase}: {state} {DIM}({}){DIM:#}", milestone.turn)?;
    }
    let memory = [
        ("paged out", snapshot.page_out_count),
        ("paged in", snapshot.page_in_count),
        ("written", snapshot.memory_written_count),
        ("asked for", snapshot.memory_queried_count),
        ("refused", snapshot.memory_validation_failed_count),
        ("found", snapshot.memory_retrieval_result_count),
    ];
    let memory = memory.iter().filter(|(_, count)| *count > 0);
    let memory: Vec<String> = memory
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    if !memory.is_empty() {
        label(out, "memory")?;
        writeln!(out, "{}", memory.join(", "))?;
    }
    Ok(())
}

fn state(state: RunState) -> &'static str {
    match state {
        RunState::Starting => "starting",
        RunState::Running => "running",
        RunState::Paused => "paused",
        RunState::Ended => "ended",
    }
}

fn process_state(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Starting => "starting",
        ProcessState::Running => "running",
        ProcessState::Waiting => "waiting",
        ProcessState::Stopped => "stopped",
        ProcessState::Exited { .. } => "exited",
        ProcessState::Lost => "lost",
    }
}

fn label(out: &mut impl Write, label: &str) -> io::Result<()> {
    write!(out, "{DIM}{label:<10}{DIM:#} ")
}

fn more(out: &mut impl Write, all: u64) -> io::Result<()> {
    match all.saturating_sub(ROWS as u64) {
        0 => Ok(()),
        more => writeln!(
            out,
            "           {DIM}and {more} more: --json has all{DIM:#}"
        ),
    }
}
