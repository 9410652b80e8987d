//! Everything that the page says, folded from the journal in one pass. Long lists are counted on, not kept.

use anstream::adapter::strip_str;
use invigil_audit::{
    Claims, ClaimsDoc, Fact, Health, HealthDoc, Summary, SummaryDoc, Timeline, TimelineDoc, View,
};
use invigil_schema::{CheckResult, Event, Origin, Stage, Timestamp};

use crate::describe::describe;

/// How many entries of one kind are kept.
const KEPT: usize = 1000;

/// One record, in one line.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) time: Timestamp,
    pub(super) origin: Origin,
    pub(super) kind: String,
    pub(super) what: String,
}

/// The result of a check.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) seq: u64,
    pub(super) stage: Stage,
    pub(super) round: u32,
    pub(super) result: CheckResult,
}

/// A list with an end, and how much there is behind it.
#[derive(Debug, Clone)]
pub(super) struct Kept<T> {
    pub(super) all: Vec<T>,
    pub(super) more: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept {
            all: Vec::new(),
            more: 0,
        }
    }
}

impl<T> Kept<T> {
    fn keep(&mut self, item: impl FnOnce() -> T) {
        match self.all.len() < KEPT {
            true => self.all.push(item()),
            false => self.more += 1,
        }
    }
}

/// What the page is made of.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    summary: Summary,
    health: Health,
    timeline: Timeline,
    claims: Claims,
    pub(super) refusals: Kept<Entry>,
    pub(super) decisions: Kept<Entry>,
    pub(super) checks: Kept<Checked>,
    pub(super) unknown: Kept<Entry>,
}

impl Gathered {
    pub(super) fn take(&mut self, fact: &Fact<'_>) {
        self.summary.take(fact);
        self.health.take(fact);
        self.timeline.take(fact);
        self.claims.take(fact);
        let entry = || Entry {
            seq: fact.seq,
            time: fact.stamp.time,
            origin: fact.origin,
            kind: fact.event.kind().to_owned(),
            what: strip_str(&describe(fact.event, fact.stamp.time)).to_string(),
        };
        if let Event::Unknown { .. } = fact.event {
            return self.unknown.keep(entry);
        }
        match fact.vouched() {
            Some(Event::AccessDenied(_)) => self.refusals.keep(entry),
            Some(event) if is_decision(event) => self.decisions.keep(entry),
            Some(Event::CheckCompleted(check)) => self.checks.keep(|| Checked {
                seq: fact.seq,
                stage: check.stage,
                round: check.round,
                result: check.result.clone(),
            }),
            _ => {}
        }
    }

    pub(super) fn claims(&self) -> ClaimsDoc {
        self.claims.document()
    }

    pub(super) fn documents(&self) -> (SummaryDoc, HealthDoc, TimelineDoc) {
        (
            self.summary.document(),
            self.health.document(),
            self.timeline.document(),
        )
    }
}

/// Whether somebody decided something, or laid down how it is decided.
fn is_decision(event: &Event) -> bool {
    matches!(
        event,
        Event::PolicyLoaded(_)
            | Event::PolicyEnforced(_)
            | Event::PolicyDecision(_)
            | Event::PolicyFlagged(_)
            | Event::ApprovalRequested(_)
            | Event::ApprovalAnswered(_)
            | Event::ApprovalRefused(_)
            | Event::ToolAsked(_)
            | Event::ToolAnswered(_)
            | Event::JobDenied(_)
            | Event::JobRefused(_)
            | Event::TaskContract(_)
            | Event::TaskProposed(_)
            | Event::TaskAnswered(_)
            | Event::OrderTaken(_)
            | Event::OrderEnded(_)
            | Event::OrderRefused(_)
            | Event::RunSuspended(_)
            | Event::RunResumed(_)
            | Event::SignalDisposed(_)
            | Event::BudgetExceeded(_)
            | Event::CheckpointTaken(_)
            | Event::Rollbacked(_)
            | Event::MilestoneAdvanced(_)
            | Event::MilestoneBlocked(_)
            | Event::MilestonesMissed(_)
            | Event::RepeatFuse(_)
            | Event::ChildRunStarted(_)
            | Event::ChildRunRefused(_)
            | Event::ChildRunEnded(_)
    )
}
