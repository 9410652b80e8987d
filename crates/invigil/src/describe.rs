//! One line for a person about each kind of event.

use std::time::Duration;

use invigil_engine::contracts::CANNOT_RUN;
use invigil_schema::{
    Address, CallResult, CheckResult, Enforced, Event, FileOp, JobDenied, JobFailed, NetOp,
    OpenFlag, OsText, ProcessRef, RunFinished, StopReason, Timestamp,
};
use serde::Serialize;

use crate::question;
use crate::steered;
use crate::turn;
use crate::ui::{self, BAD, GOOD, WARN};

/// What happened, in one line.
pub(crate) fn describe(event: &Event, time: Timestamp) -> String {
    match event {
        Event::JournalOpened(opened) => {
            let (format, writer) = (opened.format, ui::harmless(&opened.writer));
            format!("format {format} by {writer} on {}", &time.to_string()[..10])
        }
        Event::JournalRecovered(recovered) => format!(
            "{BAD}{} bytes were cut off after a crash{BAD:#} and are kept in {}",
            recovered.bytes,
            ui::harmless(&recovered.file)
        ),
        Event::RunStarted(started) => {
            format!(
                "{} in {}",
                ui::command(&started.command),
                text(&started.cwd)
            )
        }
        Event::RunForked(forked) => {
            format!("of {} after record {}", forked.parent, forked.at_seq)
        }
        Event::RunFinished(finished) => ended(finished),
        Event::RunFailed(failed) => format!("{BAD}{}{BAD:#}", ui::harmless(&failed.reason)),
        Event::ObserverStarted(started) => {
            let missing = started.hooks.iter().filter(|hook| !hook.attached).count();
            let (tier, hooks) = (started.tier.as_str(), started.hooks.len());
            format!("tier {tier}, {} of {hooks} hooks", hooks - missing)
        }
        Event::ObserverFinished(finished) => {
            let lost: u64 = finished.lost.values().sum();
            let (received, processes) = (finished.received, finished.processes);
            format!("{received} facts of {processes} processes, {lost} lost")
        }
        Event::ObserverNote(note) => {
            let who = note.process.map(process).unwrap_or_default();
            format!("{WARN}{}{WARN:#} {who}", ui::harmless(&note.detail))
        }
        Event::ProcessForked(forked) => match forked.parent {
            Some(parent) => format!("{} by {}", process(forked.process), process(parent)),
            None => process(forked.process),
        },
        Event::ProcessExec(exec) => {
            format!("{} {}", process(exec.process), ui::command(&exec.argv))
        }
        Event::ExecFailed(failed) => {
            let who = process(failed.process);
            format!("{who} {}: {BAD}{}{BAD:#}", text(&failed.path), failed.error)
        }
        Event::ProcessExited(exited) => {
            let who = process(exited.process);
            match (exited.exit_code, exited.signal) {
                (Some(code), _) => format!("{who} exit {code}"),
                (None, Some(signal)) => format!("{who} signal {signal}"),
                (None, None) => format!("{who} ended"),
            }
        }
        Event::FileOp(op) => file_op(op),
        Event::FileFinal(file) => match (file.size, &file.sha256) {
            (Some(size), Some(sha256)) => {
                let short = &sha256.to_string()[..12];
                format!("{} {size} bytes, sha256 {short}…", text(&file.path))
            }
            _ => {
                let why = file.why_not.as_deref().unwrap_or("gone");
                format!("{} {}", text(&file.path), ui::harmless(why))
            }
        },
        Event::NetOp(op) => net_op(op),
        Event::AccessDenied(denied) => format!(
            "{} {BAD}{} {}{BAD:#} by {}",
            process(denied.process),
            ui::harmless(&denied.what),
            text(&denied.target),
            ui::harmless(&denied.rule)
        ),
        Event::ResourceSample(sample) => format!(
            "{} processes, {} MiB, {} of CPU",
            sample.processes,
            sample.rss_kib / 1024,
            ui::duration(Duration::from_micros(sample.cpu_us))
        ),
        Event::SdkEvent(sdk) => {
            let tool = sdk.tool.as_deref().unwrap_or_default();
            let (kind, source) = (name(&sdk.event_type), ui::harmless(&sdk.source));
            format!("{source} says {kind} {}", ui::harmless(tool))
        }
        Event::SdkRejected(rejected) => {
            format!(
                "{WARN}line {}: {}{WARN:#}",
                rejected.line,
                ui::harmless(&rejected.reason)
            )
        }
        Event::PolicyLoaded(loaded) => {
            let names = loaded.sources.iter();
            let names: Vec<String> = names.map(|source| ui::harmless(&source.name)).collect();
            format!("{}: {}", loaded.mode.as_str(), names.join(", "))
        }
        Event::PolicyEnforced(enforced) => {
            let parts = enforced.parts.iter();
            let part = |part: &Enforced| {
                let by = ui::harmless(&part.by);
                format!("{} {} ({by})", part.part, name(&part.strength))
            };
            parts.map(part).collect::<Vec<_>>().join(", ")
        }
        Event::PolicyDecision(decision) => format!(
            "{} {} ({})",
            ui::harmless(&decision.decision),
            ui::harmless(&decision.tool),
            ui::harmless(&decision.source)
        ),
        Event::PolicyFlagged(flagged) => {
            format!(
                "{WARN}line {}: {}{WARN:#}",
                flagged.line,
                ui::harmless(&flagged.reason)
            )
        }
        Event::ApprovalRequested(asked) => format!(
            "{WARN}{}{WARN:#} {} {} by {}",
            asked.id,
            process(asked.process),
            question::brief(&asked.what),
            ui::harmless(&asked.rule)
        ),
        Event::ApprovalAnswered(answered) => question::closed(answered).join("; "),
        Event::ApprovalRefused(refused) => format!(
            "{BAD}an answer to {} does not count{BAD:#}: {}",
            ui::harmless(&refused.id),
            ui::harmless(&refused.why)
        ),
        Event::JobStarted(job) => {
            let arguments = ui::shorten(&job.arguments.to_string(), 80);
            format!(
                "{} {} {}",
                job.job_id,
                ui::harmless(&job.capability),
                ui::harmless(&arguments)
            )
        }
        Event::JobKept(job) => {
            format!("{} is about to change {} paths", job.job_id, job.kept.len())
        }
        Event::JobCompleted(job) => format!("{} {GOOD}done{GOOD:#}", job.end.job_id),
        Event::JobFailed(JobFailed { end, error, .. })
        | Event::JobDenied(JobDenied { end, error }) => {
            format!("{} {BAD}{}{BAD:#}", end.job_id, ui::harmless(error))
        }
        Event::JobTimedOut(job) => format!("{} {BAD}its time was up{BAD:#}", job.end.job_id),
        Event::JobCancelled(job) => format!("{} {WARN}cancelled{WARN:#}", job.end.job_id),
        Event::JobRefused(job) => {
            format!(
                "{WARN}{} refused{WARN:#}: {}",
                ui::harmless(&job.capability),
                ui::harmless(&job.why)
            )
        }
        Event::SessionChanged(session) => {
            format!("session {} is {}", session.session, session.state.as_str())
        }
        Event::ClientRunStarted(started) => format!(
            "{} for {}",
            ui::shorten(&ui::harmless(&started.intent), 100),
            ui::harmless(&started.agent_id)
        ),
        Event::ClientRunEnded(ended) => format!("{} turns: {}", ended.turns, turn::ended(ended)),
        Event::ActionStarted(started) => format!(
            "{} {} (try {})",
            ui::harmless(&started.tool),
            turn::brief(&started.parameters),
            started.attempt
        ),
        Event::Turn(turn) => turn::line(turn),
        Event::ToolAsked(asked) => format!(
            "{WARN}{}{WARN:#} {} {} by {}",
            asked.id,
            ui::harmless(&asked.tool),
            turn::brief(&asked.parameters),
            ui::harmless(&asked.rule)
        ),
        Event::ToolAnswered(answered) => turn::answered(answered),
        Event::CheckStarted(started) => format!(
            "{} of {}: {} {}",
            started.number,
            started.of,
            ui::harmless(&started.check.name),
            ui::harmless(&ui::shorten(&started.check.command, 80))
        ),
        Event::CheckCompleted(completed) => check(&completed.result),
        Event::TaskStarted(task) => format!(
            "{} in {}",
            ui::harmless(&ui::shorten(&task.intent, 80)),
            text(&task.repository)
        ),
        Event::TaskContract(task) => {
            let checks = task.contract.checks.len();
            match task.confirmed {
                true => format!("{checks} checks, confirmed"),
                false => format!("{checks} checks, proposed"),
            }
        }
        Event::TaskChanged(task) => {
            let why = task.why.as_deref().map(ui::harmless);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            format!("{}, round {}{why}", task.state.as_str(), task.round)
        }
        Event::TaskRan(ran) => {
            let code = ran.exit_code.map(|code| format!(" exit {code}"));
            format!(
                "round {} {}{}",
                ran.round,
                ran.run,
                code.unwrap_or_default()
            )
        }
        Event::TaskProposed(proposed) => {
            let digest = &proposed.digest.to_string()[..12];
            format!("{} files, digest {digest}…", proposed.files.len())
        }
        Event::TaskAnswered(answered) => match answered.approved {
            true => format!("{GOOD}approved{GOOD:#} by uid {}", answered.uid),
            false => format!("{WARN}sent back{WARN:#} by uid {}", answered.uid),
        },
        Event::TaskEnded(ended) => {
            format!("{}: {}", ended.state.as_str(), ui::harmless(&ended.verdict))
        }
        Event::OrderTaken(order) => steered::order(order),
        Event::OrderEnded(ended) => steered::order_ended(ended),
        Event::OrderRefused(refused) => format!(
            "{BAD}{} is no order{BAD:#}: {}",
            ui::harmless(&refused.name),
            ui::harmless(&refused.why)
        ),
        Event::RunSuspended(suspended) => steered::suspended(suspended),
        Event::RunResumed(resumed) => steered::resumed(resumed),
        Event::ProcessStopped(stopped) => match stopped.signal {
            Some(signal) => format!("{} by signal {signal}", process(stopped.process)),
            None => process(stopped.process),
        },
        Event::ProcessContinued(continued) => process(continued.process),
        Event::SignalDisposed(disposed) => steered::signal(disposed),
        Event::BudgetExceeded(exceeded) => steered::exceeded(exceeded),
        Event::CheckpointTaken(taken) => steered::checkpoint(taken),
        Event::RollbackStarted(started) => format!(
            "to {}; {} is how it was before",
            ui::harmless(&started.checkpoint),
            ui::harmless(&started.before)
        ),
        Event::Rollbacked(done) => steered::rollback(done),
        Event::MilestonesSet(set) => ui::harmless(&set.phases.join(" → ")),
        Event::MilestoneEvidence(evidence) => steered::evidence(evidence),
        Event::MilestoneAdvanced(advanced) => {
            let next = advanced.next.as_deref().unwrap_or("the end");
            let phase = ui::harmless(&advanced.phase);
            format!("{GOOD}{phase}{GOOD:#} → {}", ui::harmless(next))
        }
        Event::MilestoneBlocked(blocked) => format!(
            "{BAD}{}{BAD:#}: {}",
            ui::harmless(&blocked.phase),
            ui::harmless(&blocked.missing.join("; "))
        ),
        Event::MilestonesMissed(missed) => {
            format!("{BAD}{}{BAD:#}", ui::harmless(&missed.phases.join(" → ")))
        }
        Event::RepeatFuse(fuse) => steered::fuse(fuse),
        Event::ChildRunStarted(child) => format!(
            "{} {} {}",
            process(child.process),
            child.run_id,
            ui::command(&child.command)
        ),
        Event::ChildRunRefused(refused) => {
            let who = refused.process.map(process).unwrap_or_default();
            format!("{who} {BAD}{}{BAD:#}", ui::harmless(&refused.why))
        }
        Event::ChildRunEnded(ended) => steered::child_ended(ended),
        Event::Unknown { data, .. } => ui::shorten(&ui::harmless(data.get()), 120),
    }
}

/// What came of a check, in one line.
pub(crate) fn check(result: &CheckResult) -> String {
    let time = ui::duration(Duration::from_millis(result.duration_ms));
    let name = ui::harmless(&result.name);
    let how = match (result.exit_code, result.timed_out) {
        _ if result.passed => return format!("{GOOD}ok{GOOD:#} {name} after {time}"),
        (_, true) => "its time was up".to_owned(),
        (Some(0), _) => "exit 0, and the text is not in its output".to_owned(),
        (Some(code), _) => format!("exit {code}"),
        (None, _) if result.tail.starts_with(CANNOT_RUN) => ui::harmless(&result.tail),
        (None, _) => "ended by a signal".to_owned(),
    };
    format!("{BAD}red{BAD:#} {name} after {time}: {how}")
}

/// How a run ended.
pub(crate) fn ended(finished: &RunFinished) -> String {
    let time = ui::duration(Duration::from_millis(finished.window_elapsed_ms));
    let why = finished.why.as_deref().map(ui::harmless);
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    match finished.stopped {
        Some(StopReason::Timeout) => return format!("{BAD}time-out{BAD:#} after {time}{why}"),
        Some(StopReason::Budget) => return format!("{BAD}over budget{BAD:#} after {time}{why}"),
        Some(StopReason::Policy) => {
            return format!("{BAD}stopped by policy{BAD:#} after {time}{why}");
        }
        Some(StopReason::Signal) => {
            return format!("{WARN}ended by a signal from outside{WARN:#} after {time}{why}");
        }
        Some(StopReason::Fuse) => return format!("{BAD}fuse blown{BAD:#} after {time}{why}"),
        Some(StopReason::Parent) => {
            return format!("{WARN}ended with its parent{WARN:#} after {time}{why}");
        }
        None => {}
    }
    match (finished.exit_code, finished.signal) {
        (Some(0), _) => format!("{GOOD}exit 0{GOOD:#} after {time}"),
        (Some(code), _) => format!("{BAD}exit {code}{BAD:#} after {time}"),
        (None, Some(signal)) => format!("{BAD}killed by signal {signal}{BAD:#} after {time}"),
        (None, None) => format!("ended after {time}"),
    }
}

fn file_op(op: &FileOp) -> String {
    let mut line = format!(
        "{} {} {}",
        process(op.process),
        name(&op.op),
        text(&op.path)
    );
    if let Some(to) = &op.to {
        line += &format!(" → {}", text(to));
    }
    let flags: Vec<String> = op
        .flags
        .iter()
        .filter(|flag| tells(**flag))
        .map(name)
        .collect();
    if !flags.is_empty() {
        line += &format!(" ({})", flags.join(", "));
    }
    line + &result(op.result)
}

/// How a descriptor is passed on says nothing about the file.
fn tells(flag: OpenFlag) -> bool {
    !matches!(flag, OpenFlag::CloseOnExec | OpenFlag::Nonblocking)
}

fn net_op(op: &NetOp) -> String {
    let (who, what) = (process(op.process), name(&op.op));
    let whereto = match &op.host {
        Some(host) => format!("{} ({})", ui::harmless(host), address(&op.address)),
        None => address(&op.address),
    };
    format!("{who} {what} {whereto}{}", result(op.result))
}

/// An address as people write it.
pub(crate) fn address(address: &Address) -> String {
    match address {
        Address::Inet { ip, port } => format!("{ip}:{port}"),
        Address::Inet6 { ip, port, .. } => format!("[{ip}]:{port}"),
        Address::Unix { path } => format!("unix:{}", text(path)),
        Address::Abstract { name } => format!("unix:@{}", text(name)),
        Address::Unnamed => "unnamed".to_owned(),
        Address::Other { number, .. } => format!("family {number}"),
    }
}

fn result(result: CallResult) -> String {
    match result {
        CallResult::Ok => String::new(),
        CallResult::Unknown => format!(": {WARN}result not seen{WARN:#}"),
        CallResult::Failed(error) => format!(": {BAD}{error}{BAD:#}"),
    }
}

fn process(process: ProcessRef) -> String {
    format!("[{}]", process.pid)
}

pub(crate) fn text(text: &OsText) -> String {
    ui::harmless(&text.to_string_lossy())
}

/// The name of a unit variant, as the journal has it.
pub(crate) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
