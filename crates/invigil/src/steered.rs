//! One line for a person about how a run was steered.

use std::time::Duration;

use invigil_schema::{
    BudgetExceeded, BudgetKind, CheckpointTaken, ChildRunEnded, Circle, Disposition, FuseAction,
    MilestoneEvidence, Order, OrderEnded, OrderTaken, RepeatFuse, Rollbacked, RunResumed,
    RunSuspended, SignalDisposed,
};

use crate::describe::text;
use crate::ui::{self, BAD, GOOD, WARN};

pub(crate) fn order(order: &OrderTaken) -> String {
    let more = match &order.what {
        Order::Pause { why: Some(text) } | Order::Checkpoint { label: Some(text) } => text,
        Order::Signal(signal) => signal.urgency.as_str(),
        Order::Rollback {
            checkpoint: Some(text),
        }
        | Order::Milestone { phase: Some(text) } => text,
        _ => "",
    };
    format!(
        "{} {} {} by process {} of uid {}",
        ui::harmless(&order.id),
        order.what.as_str(),
        ui::harmless(more),
        order.pid,
        order.uid
    )
}

pub(crate) fn order_ended(ended: &OrderEnded) -> String {
    let why = ended.why.as_deref().map(ui::harmless).unwrap_or_default();
    let id = ui::harmless(&ended.id);
    match ended.done {
        true => format!("{id} {GOOD}done{GOOD:#} {why}"),
        false => format!("{id} {BAD}not done{BAD:#}: {why}"),
    }
}

pub(crate) fn suspended(suspended: &RunSuspended) -> String {
    let why = suspended.why.as_deref().map(ui::harmless);
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let pending = match suspended.pending.len() {
        0 => String::new(),
        _ => format!(" for {}", ui::harmless(&suspended.pending.join(", "))),
    };
    format!("{WARN}{}{WARN:#}{pending}{why}", suspended.reason.as_str())
}

pub(crate) fn resumed(resumed: &RunResumed) -> String {
    let time = ui::duration(Duration::from_millis(resumed.after_ms));
    format!("after {time} of {}", resumed.reason.as_str())
}

pub(crate) fn signal(disposed: &SignalDisposed) -> String {
    let signal = &disposed.signal;
    let how = disposed.disposition.as_str();
    let how = match disposed.disposition {
        Disposition::Interrupted | Disposition::Dropped => format!("{BAD}{how}{BAD:#}"),
        _ => how.to_owned(),
    };
    let place = disposed.boundary.as_deref().map(ui::harmless);
    let place = place.map_or_else(String::new, |place| format!(" at {place}"));
    format!(
        "{} {} {how}{place}, {} wait: {}",
        ui::harmless(&signal.id),
        signal.urgency.as_str(),
        disposed.queue_depth,
        ui::harmless(&ui::shorten(&signal.text, 80))
    )
}

pub(crate) fn exceeded(exceeded: &BudgetExceeded) -> String {
    let BudgetExceeded {
        budget,
        limit,
        used,
    } = exceeded;
    let unit = match budget {
        BudgetKind::Wall => " ms",
        BudgetKind::Cpu => " µs",
        BudgetKind::Memory | BudgetKind::Disk | BudgetKind::Output => " bytes",
        BudgetKind::Processes | BudgetKind::ToolCalls | BudgetKind::Tokens => "",
        BudgetKind::Cost => " millionths",
    };
    format!("{BAD}{}{BAD:#}: {used}{unit} of {limit}", budget.as_str())
}

pub(crate) fn checkpoint(taken: &CheckpointTaken) -> String {
    let label = taken.label.as_deref().map(ui::harmless).unwrap_or_default();
    let left_out = match taken.left_out_count {
        0 => String::new(),
        count => format!(", {WARN}{count} left out{WARN:#}"),
    };
    format!(
        "{} {label} of {}: {} files, {} bytes{left_out}",
        ui::harmless(&taken.id),
        text(&taken.workspace),
        taken.files,
        taken.bytes
    )
}

pub(crate) fn rollback(done: &Rollbacked) -> String {
    let failed = match done.failed_count {
        0 => String::new(),
        count => format!(", {BAD}{count} could not be put back{BAD:#}"),
    };
    format!(
        "to {} at record {}: {} written, {} removed{failed}; {} undoes it",
        ui::harmless(&done.checkpoint),
        done.at_seq,
        done.restored,
        done.removed,
        ui::harmless(&done.before)
    )
}

pub(crate) fn evidence(evidence: &MilestoneEvidence) -> String {
    let digest = evidence.sha256.as_ref().map(ToString::to_string);
    let digest = digest.map_or_else(String::new, |hex| format!(" sha256 {}…", &hex[..12]));
    let why = evidence.why.as_deref().map(ui::harmless);
    let (phase, what) = (ui::harmless(&evidence.phase), text(&evidence.evidence));
    match evidence.accepted {
        true => format!("{phase}: {what} {GOOD}ok{GOOD:#}{digest}"),
        false => format!(
            "{phase}: {what} {BAD}{}{BAD:#}{digest}",
            why.unwrap_or_default()
        ),
    }
}

pub(crate) fn fuse(fuse: &RepeatFuse) -> String {
    let what = match fuse.circle {
        Circle::SameFailure => {
            format!("{} failed {} times", ui::command(&fuse.command), fuse.count)
        }
        Circle::NoChange => format!("nothing has changed for {} s", fuse.count),
    };
    match (fuse.action, fuse.stops_at) {
        (FuseAction::Stop, _) => format!("{BAD}stopped{BAD:#}: {what}"),
        (FuseAction::Alert, Some(at)) => format!("{WARN}{what}{WARN:#}; it is ended at {at}"),
        (FuseAction::Alert, None) => format!("{WARN}{what}{WARN:#}"),
    }
}

pub(crate) fn child_ended(ended: &ChildRunEnded) -> String {
    let how = match (ended.exit_code, ended.signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "not started".to_owned(),
    };
    format!("{} {how}", ended.run_id)
}
