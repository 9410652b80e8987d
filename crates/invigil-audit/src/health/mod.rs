//! The health of the evidence: how much was seen of each layer, and which claims that allows.
//!
//! Everything counts as missing that could be: a hook that is not attached, a fact that was lost or cannot be read, a
//! run that was cut off. What is missing has a name, and takes back the claims that it bears on.

mod claim;
mod kernel;

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::{Event, Hook, LineFlaw, Origin, RunStarted, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use claim::claims;
pub use claim::{Claim, ClaimKind};
use kernel::Kernel;

use crate::{Fact, View};

/// How much was seen of each layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthDoc {
    /// Names this form: [`HealthDoc::SCHEMA`].
    pub schema: String,
    /// How much was seen from outside the agent.
    pub kernel_layer: Coverage,
    /// Whether a tool gate has decided anything.
    pub policy_layer: PolicyStatus,
    /// Whether the agent's framework has reported anything.
    pub sdk_layer: SdkStatus,
    /// Whether everything that was seen belongs to a process of the run.
    pub cgroup_correlation: Binding,
    /// How much of the network was seen.
    pub network_coverage: Coverage,
    /// More on the kernel layer.
    pub kernel: KernelHealth,
    /// More on the policy layer.
    pub policy: PolicyHealth,
    /// More on the SDK layer.
    pub sdk: SdkHealth,
    /// What a reader should know, each as `name: words`.
    pub notes: BTreeSet<String>,
    /// Which claims of absence the evidence allows.
    pub claims: Vec<Claim>,
}

impl HealthDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.health.v1";

    /// One of the claims.
    pub fn claim(&self, kind: ClaimKind) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.claim == kind)
    }

    /// Whether a claim may be made.
    pub fn allows(&self, kind: ClaimKind) -> bool {
        self.claim(kind).is_some_and(|claim| claim.allowed)
    }
}

/// How much was seen.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Coverage {
    /// Nothing.
    Absent,
    /// Something, and something may be missing.
    Partial,
    /// Everything.
    Complete,
}

/// Whether a tool gate has decided anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyStatus {
    /// It has not.
    Absent,
    /// It has.
    Present,
}

/// Whether the agent's framework has reported anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SdkStatus {
    /// Nothing.
    Absent,
    /// Something, and something that cannot count.
    Partial,
    /// It has, and it is no more than that: its own word.
    SelfReported,
}

/// Whether facts are bound to what they belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// There is nothing to bind.
    NotApplicable,
    /// All are.
    Clean,
    /// Not all are, or not all are known.
    Partial,
    /// None is.
    Failed,
}

/// What is behind the status of the kernel layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelHealth {
    /// The tier in force; the intended one if none came into force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Whether opens for reading are observed.
    pub reads: bool,
    /// Each class of facts, and whether it is observed.
    pub hooks: Vec<Hook>,
    /// What the kernel reported; known when the last process is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emitted: Option<u64>,
    /// How many of them were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// The difference, by cause.
    pub lost: BTreeMap<String, u64>,
    /// What keeps the layer from being complete, each as `name: words`.
    pub missing: BTreeSet<String>,
}

/// What is behind the status of the policy layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyHealth {
    /// Decisions.
    pub decisions: u64,
    /// Lines of the gate's log that cannot count, by what is wrong with them.
    pub flagged: BTreeMap<LineFlaw, u64>,
    /// Questions that were left to a person.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub approvals: u64,
    /// How many of them were closed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub answers: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What is behind the status of the SDK layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SdkHealth {
    /// Which framework is said to be inside. That alone is no report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shim: Option<String>,
    /// Lines that were accepted.
    pub events: u64,
    /// Lines that were not, by what is wrong with them.
    pub rejected: BTreeMap<LineFlaw, u64>,
}

/// Folds facts into a [`HealthDoc`].
#[derive(Debug, Clone, Default)]
pub struct Health {
    started: Option<RunStarted>,
    failed: bool,
    kernel: Kernel,
    decisions: u64,
    flagged: BTreeMap<LineFlaw, u64>,
    approvals: u64,
    answers: u64,
    sdk_events: u64,
    rejected: BTreeMap<LineFlaw, u64>,
    unreadable: BTreeSet<String>,
    notes: BTreeSet<String>,
}

impl Health {
    /// A fact that this version cannot read, or that its origin cannot vouch for. Kinds from tomorrow are skipped.
    fn not_counted(&mut self, fact: &Fact<'_>) {
        match fact.event {
            Event::Unknown { kind, .. } if Event::KINDS.contains(&kind.as_str()) => {
                if fact.origin == Origin::Kernel || fact.origin == Origin::Runtime {
                    self.kernel.unreadable(kind);
                }
                self.unreadable.insert(kind.clone());
            }
            Event::Unknown { .. } => {}
            known => {
                let (kind, origin) = (known.kind(), fact.origin.as_str());
                let note = format!("not_counted: {kind} is not for {origin} to vouch for");
                self.notes.insert(note);
            }
        }
    }

    fn policy_status(&self) -> PolicyStatus {
        match self.decisions + self.answers {
            0 => PolicyStatus::Absent,
            _ => PolicyStatus::Present,
        }
    }

    fn sdk_status(&self) -> SdkStatus {
        if !self.rejected.is_empty() || self.unreadable.contains("sdk_event") {
            SdkStatus::Partial
        } else if self.sdk_events > 0 {
            SdkStatus::SelfReported
        } else {
            SdkStatus::Absent
        }
    }

    fn shim(&self) -> Option<&str> {
        let shim = self.started.as_ref()?.agent_shim.as_str();
        (shim != "none").then_some(shim)
    }

    fn all_notes(&self, intended: Option<Tier>) -> BTreeSet<String> {
        let mut notes = self.notes.clone();
        notes.extend(self.kernel.notes(intended));
        if self.failed {
            notes.insert("run_failed: the command was not started".to_owned());
        }
        for kind in &self.unreadable {
            notes.insert(format!("unreadable: an event of kind {kind}"));
        }
        for flaw in self.rejected.keys() {
            notes.insert(format!("sdk_rejected: {}", word(flaw)));
        }
        for flaw in self.flagged.keys() {
            notes.insert(format!("policy_flagged: {}", word(flaw)));
        }
        if let Some(shim) = self.shim()
            && self.sdk_events == 0
        {
            notes.insert(format!(
                "shim_silent: {shim} was named and reported nothing"
            ));
        }
        notes
    }
}

impl View for Health {
    type Document = HealthDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        let Some(event) = fact.vouched() else {
            return self.not_counted(fact);
        };
        self.kernel.take(event);
        match event {
            Event::RunStarted(started) => self.started = Some(started.clone()),
            Event::RunFailed(_) => self.failed = true,
            Event::SdkEvent(_) => self.sdk_events += 1,
            Event::SdkRejected(line) => *self.rejected.entry(line.flaw).or_default() += 1,
            Event::PolicyDecision(_) => self.decisions += 1,
            Event::ApprovalRequested(_) => self.approvals += 1,
            Event::ApprovalAnswered(_) => self.answers += 1,
            Event::PolicyFlagged(line) => *self.flagged.entry(line.flaw).or_default() += 1,
            _ => {}
        }
    }

    fn document(&self) -> HealthDoc {
        let intended = self.started.as_ref().map(|started| started.tier);
        let missing = self.kernel.missing(intended);
        let kernel_layer = self.kernel.coverage(intended, &missing);
        let decisions_whole =
            self.flagged.is_empty() && !self.unreadable.contains("policy_decision");
        HealthDoc {
            schema: HealthDoc::SCHEMA.to_owned(),
            kernel_layer,
            policy_layer: self.policy_status(),
            sdk_layer: self.sdk_status(),
            cgroup_correlation: self.kernel.binding(intended, &missing),
            network_coverage: self.kernel.network(kernel_layer, &missing),
            claims: claims(&missing, self.policy_status(), decisions_whole),
            kernel: self.kernel.document(intended, &missing),
            policy: PolicyHealth {
                decisions: self.decisions,
                flagged: self.flagged.clone(),
                approvals: self.approvals,
                answers: self.answers,
            },
            sdk: SdkHealth {
                shim: self.shim().map(str::to_owned),
                events: self.sdk_events,
                rejected: self.rejected.clone(),
            },
            notes: self.all_notes(intended),
        }
    }
}

/// The name of a plain enum's variant in JSON.
pub(crate) fn word<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
