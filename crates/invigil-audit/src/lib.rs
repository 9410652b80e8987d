//! What a journal means: folds over the events of a run.
//!
//! Each view takes facts in the order of the journal and gives a document at any time. The same journal gives the
//! same bytes; memory grows with the number of distinct things, not with the number of events. There is no I/O and no
//! clock here, and nothing that was reported is ever shown as something that was seen.

mod claims;
mod correlation;
mod diff;
mod fact;
mod health;
mod jsonschema;
mod moment;
mod name;
mod os;
mod outcome;
mod summary;
mod surface;
mod timeline;

pub use claims::{Claimed, Claims, ClaimsDoc, Finding, JudgedClaim, Said, ToolDid};
pub use correlation::{Ambiguity, AmbiguityKind, CallEntry, Correlation, CorrelationDoc, Seen};
pub use diff::{
    ChangeKind, Changed, DiffDoc, DiffRow, HealthChange, Ignore, IgnoreError, Item, Section,
    SectionDiff, Side, Verdict, diff, sarif,
};
pub use fact::{Fact, View};
pub use health::{
    Binding, Claim, ClaimKind, Coverage, Health, HealthDoc, KernelHealth, PolicyHealth,
    PolicyStatus, SdkHealth, SdkStatus,
};
pub use jsonschema::view_schemas;
pub use moment::{Moment, MomentDoc};
pub use os::{
    AgentProcess, Anomaly, AnomalyKind, BudgetRow, CategoryCounts, CheckpointRow, MilestoneRow,
    MilestoneState, OsSnapshot, OsView, ProcessRow, ProcessState, ProcessTable, RowsLeftOut,
    RunState, SignalRow, Suspension,
};
pub use outcome::{Access, Outcome};
pub use summary::{
    Counts, DenialSummary, DirectoryChanges, EndpointSummary, FileChange, FileEntry, NoteSummary,
    PhaseSummary, ProcessNode, Summary, SummaryDoc,
};
pub use surface::{
    DenialEntry, EndpointEntry, ExecEntry, PathEntry, Reporter, Surface, SurfaceDoc, ToolEntry,
};
pub use timeline::{Notable, Timeline, TimelineBin, TimelineDoc};

/// The views that belong to the evidence of a run, folded together in one pass.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// What was touched.
    pub surface: Surface,
    /// How much was seen.
    pub health: Health,
    /// What belongs to which tool call.
    pub correlation: Correlation,
}

impl View for Evidence {
    type Document = (SurfaceDoc, HealthDoc, CorrelationDoc);

    fn take(&mut self, fact: &Fact<'_>) {
        self.surface.take(fact);
        self.health.take(fact);
        self.correlation.take(fact);
    }

    fn document(&self) -> Self::Document {
        (
            self.surface.document(),
            self.health.document(),
            self.correlation.document(),
        )
    }
}
