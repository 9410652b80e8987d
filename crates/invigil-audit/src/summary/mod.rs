//! A run for people: what ran, what changed, where it went, what was refused, and what was not seen.
//!
//! Unlike the other views it has pids, times and counts. What repeats is folded while it happens, so that a run of a
//! million processes needs no more memory than what a person could read of it.

mod files;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::{
    ApprovalDecision, Event, FuseAction, NetOpKind, OsText, RepeatFuse, RulePlace, RunFailed,
    RunFinished, RunId, RunStarted, Stamp, Tier, Timestamp,
};
use serde::Serialize;

use files::Files;
pub(crate) use files::is_plain;
pub use files::{DirectoryChanges, FileChange, FileEntry};
pub use tree::ProcessNode;
use tree::Tree;

use crate::name::endpoint;
use crate::outcome::{accesses, note_best};
use crate::{
    Access, Coverage, DenialEntry, Fact, Health, HealthDoc, MilestoneState, Outcome, View,
};

/// A run for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryDoc {
    /// Names this form: [`SummaryDoc::SCHEMA`].
    pub schema: &'static str,
    /// The run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// How it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<RunStarted>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<RunFinished>,
    /// Why it was not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<RunFailed>,
    /// When it was started, on the wall clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// How long it took; up to the last fact if it has no end.
    pub duration_ms: u64,
    /// How often.
    pub counts: Counts,
    /// Processor time of the command and everything it waited for.
    pub cpu_us: u64,
    /// The most memory that one process, or all in one sample, had at once.
    pub peak_rss_kib: u64,
    /// The processes, folded.
    pub processes: Vec<ProcessNode>,
    /// What happened to files, by directory.
    pub files: Vec<DirectoryChanges>,
    /// Addresses, as they were.
    pub endpoints: Vec<EndpointSummary>,
    /// What was refused.
    pub denials: Vec<DenialSummary>,
    /// How the run went round in circles, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub circles: Vec<RepeatFuse>,
    /// Its phases, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseSummary>,
    /// The tier in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// How much was seen.
    pub kernel_layer: Coverage,
    /// What was not seen, or may not have been.
    pub not_seen: Vec<String>,
    /// What the observer noted, in its own words.
    pub notes: Vec<NoteSummary>,
}

impl SummaryDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.summary.v1";
}

/// How often something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Processes, the first one included.
    pub processes: u64,
    /// Programs loaded.
    pub execs: u64,
    /// Programs that could not be loaded.
    pub failed_execs: u64,
    /// Opens for reading only.
    pub reads: u64,
    /// Opens for writing.
    pub writes: u64,
    /// Other changes: renames, removals, permissions and so on.
    pub changes: u64,
    /// Files that were made and removed again.
    pub temporary_files: u64,
    /// Connections, and messages sent to an address.
    pub connects: u64,
    /// Own addresses taken or listened on.
    pub listens: u64,
    /// Refusals.
    pub denials: u64,
    /// Reports of the agent's framework.
    pub sdk_events: u64,
    /// Decisions of a tool gate.
    pub decisions: u64,
    /// Questions that were left to a person.
    pub approvals: u64,
    /// How many of them a person allowed.
    pub approved: u64,
    /// How many nobody answered: too late, withdrawn, nobody to ask.
    pub unanswered: u64,
    /// All facts.
    pub facts: u64,
}

/// One address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointSummary {
    /// The address.
    pub endpoint: OsText,
    /// The names that it was found under, where they are known.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
    /// What was tried with it, and how that ended at best.
    pub operations: BTreeMap<NetOpKind, Outcome>,
    /// How often.
    pub count: u64,
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DenialSummary {
    /// What was refused, and by which rule.
    #[serde(flatten)]
    pub denial: DenialEntry,
    /// Where the rule stands, and what would have been allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<RulePlace>,
    /// How often.
    pub count: u64,
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhaseSummary {
    /// Its name.
    pub phase: String,
    /// Whether it is reached.
    pub state: MilestoneState,
}

/// One note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoteSummary {
    /// In words.
    pub detail: String,
    /// How often.
    pub count: u64,
}

#[derive(Debug, Clone, Default)]
struct EndpointUse {
    hosts: BTreeSet<String>,
    operations: BTreeMap<NetOpKind, Outcome>,
    count: u64,
}

/// Folds facts into a [`SummaryDoc`].
#[derive(Debug, Clone, Default)]
pub struct Summary {
    run_id: Option<RunId>,
    started: Option<(Stamp, RunStarted)>,
    finished: Option<RunFinished>,
    failed: Option<RunFailed>,
    last_mono: u64,
    counts: Counts,
    peak_rss_kib: u64,
    tree: Tree,
    files: Files,
    endpoints: BTreeMap<OsText, EndpointUse>,
    denials: BTreeMap<(DenialEntry, Option<RulePlace>), u64>,
    circles: Vec<RepeatFuse>,
    phases: Vec<PhaseSummary>,
    notes: BTreeMap<String, u64>,
    health: Health,
}

impl Summary {
    fn count_file(&mut self, op: &invigil_schema::FileOp) {
        let asked = accesses(op);
        let has = |wanted| asked.iter().any(|(_, access)| *access == wanted);
        if has(Access::Write) {
            self.counts.writes += 1;
        } else if asked.iter().all(|(_, access)| access.is_read()) {
            self.counts.reads += 1;
        } else {
            self.counts.changes += 1;
        }
        self.files.take(op);
    }

    fn net(&mut self, op: &invigil_schema::NetOp) {
        match op.op {
            NetOpKind::Connect | NetOpKind::Send => self.counts.connects += 1,
            NetOpKind::Bind | NetOpKind::Listen => self.counts.listens += 1,
        }
        if let Some(endpoint) = endpoint(&op.address) {
            let used = self.endpoints.entry(endpoint).or_default();
            note_best(&mut used.operations, op.op, op.result.into());
            used.hosts.extend(op.host.clone());
            used.count += 1;
        }
    }

    /// More is not remembered of what goes round and round; that it does is known by then.
    fn circle(&mut self, fuse: &RepeatFuse) {
        const KEPT: usize = 100;
        if self.circles.len() < KEPT || fuse.action == FuseAction::Stop {
            self.circles.push(fuse.clone());
        }
    }

    fn phase(&mut self, phase: &str, state: MilestoneState) {
        let known = self.phases.iter_mut().find(|known| known.phase == phase);
        if let Some(known) = known {
            known.state = state;
        }
    }

    fn duration_ms(&self) -> u64 {
        let so_far = || {
            let (stamp, _) = self.started.as_ref()?;
            Some(self.last_mono.saturating_sub(stamp.mono) / 1_000_000)
        };
        let finished = self
            .finished
            .as_ref()
            .map(|finished| finished.window_elapsed_ms);
        finished.or_else(so_far).unwrap_or_default()
    }
}

impl View for Summary {
    type Document = SummaryDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        self.health.take(fact);
        self.counts.facts += 1;
        self.last_mono = self.last_mono.max(fact.stamp.mono);
        let Some(event) = fact.vouched() else {
            return;
        };
        match event {
            Event::JournalOpened(opened) => self.run_id = Some(opened.run_id.clone()),
            Event::RunStarted(started) => self.started = Some((fact.stamp, started.clone())),
            Event::RunFinished(finished) => self.finished = Some(finished.clone()),
            Event::RunFailed(failed) => self.failed = Some(failed.clone()),
            Event::ProcessForked(forked) => {
                self.counts.processes += 1;
                self.tree.forked(forked);
            }
            Event::ProcessExec(exec) => {
                self.counts.execs += 1;
                self.tree.exec(exec);
            }
            Event::ExecFailed(_) => self.counts.failed_execs += 1,
            Event::ProcessExited(exited) => {
                self.peak_rss_kib = self.peak_rss_kib.max(exited.max_rss_kib);
                self.tree.exited(exited);
            }
            Event::FileOp(op) => self.count_file(op),
            Event::FileFinal(file) => self.files.settled(file),
            Event::NetOp(op) => self.net(op),
            Event::AccessDenied(denied) => {
                self.counts.denials += 1;
                let entry = DenialEntry {
                    what: denied.what.clone(),
                    target: denied.target.clone(),
                    rule: denied.rule.clone(),
                };
                let entry = (entry, denied.place.clone());
                *self.denials.entry(entry).or_default() += 1;
            }
            Event::ResourceSample(sample) => {
                self.peak_rss_kib = self.peak_rss_kib.max(sample.rss_kib);
            }
            Event::ObserverNote(note) => {
                *self.notes.entry(note.detail.clone()).or_default() += 1;
            }
            Event::RepeatFuse(fuse) => self.circle(fuse),
            Event::MilestonesSet(set) => {
                let open = |phase: &String| PhaseSummary {
                    phase: phase.clone(),
                    state: MilestoneState::Open,
                };
                self.phases = set.phases.iter().map(open).collect();
            }
            Event::MilestoneAdvanced(reached) => {
                self.phase(&reached.phase, MilestoneState::Advanced);
            }
            Event::MilestoneBlocked(blocked) => {
                self.phase(&blocked.phase, MilestoneState::Blocked);
            }
            Event::MilestonesMissed(missed) => {
                for phase in &missed.phases {
                    self.phase(phase, MilestoneState::Missed);
                }
            }
            Event::SdkEvent(_) => self.counts.sdk_events += 1,
            Event::PolicyDecision(_) => self.counts.decisions += 1,
            Event::ApprovalRequested(_) => self.counts.approvals += 1,
            Event::ApprovalAnswered(answered) => match answered.decision {
                ApprovalDecision::Allow => self.counts.approved += 1,
                ApprovalDecision::Deny if !answered.by.is_person() => self.counts.unanswered += 1,
                ApprovalDecision::Deny => {}
            },
            _ => {}
        }
    }

    fn document(&self) -> SummaryDoc {
        let health = self.health.document();
        let endpoints = self
            .endpoints
            .iter()
            .map(|(endpoint, used)| EndpointSummary {
                endpoint: endpoint.clone(),
                hosts: used.hosts.clone(),
                operations: used.operations.clone(),
                count: used.count,
            });
        let denials = self.denials.iter();
        let denials = denials.map(|((denial, place), &count)| DenialSummary {
            denial: denial.clone(),
            place: place.clone(),
            count,
        });
        let notes = self.notes.iter().map(|(detail, &count)| NoteSummary {
            detail: detail.clone(),
            count,
        });
        let processes = self.tree.document();
        SummaryDoc {
            schema: SummaryDoc::SCHEMA,
            run_id: self.run_id.clone(),
            started: self.started.as_ref().map(|(_, started)| started.clone()),
            finished: self.finished.clone(),
            failed: self.failed.clone(),
            started_at: self.started.as_ref().map(|(stamp, _)| stamp.time),
            duration_ms: self.duration_ms(),
            counts: Counts {
                temporary_files: self.files.temporary(),
                ..self.counts
            },
            cpu_us: processes
                .iter()
                .fold(0, |sum, process| sum.saturating_add(process.cpu_us)),
            peak_rss_kib: self.peak_rss_kib,
            processes,
            files: self.files.document(),
            endpoints: endpoints.collect(),
            denials: denials.collect(),
            circles: self.circles.clone(),
            phases: self.phases.clone(),
            tier: health.kernel.tier,
            kernel_layer: health.kernel_layer,
            not_seen: not_seen(&health),
            notes: notes.collect(),
        }
    }
}

/// Everything that takes back a claim about what was seen from outside.
fn not_seen(health: &HealthDoc) -> Vec<String> {
    use crate::ClaimKind::{NoOtherDecision, NoOtherTool};
    let claims = health.claims.iter();
    let outside = claims.filter(|claim| !matches!(claim.claim, NoOtherTool | NoOtherDecision));
    let mut reasons: Vec<String> = outside.flat_map(|claim| claim.reasons.clone()).collect();
    reasons.sort();
    reasons.dedup();
    reasons
}
