//! A run along its time: how many records of each layer, in a bounded number of bins of one length.

use invigil_schema::{ApprovalDecision, Event, Origin, SpawnFailure, TurnStatus};
use serde::Serialize;

use crate::{Fact, View};

/// No more bins than this. When the run gets longer, two become one.
const MOST: usize = 256;

/// Something that a person looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notable {
    /// Something was refused.
    Refused,
    /// Something was left to a person.
    Asked,
}

impl Fact<'_> {
    /// Whether this is something that a person looks for.
    pub fn notable(&self) -> Option<Notable> {
        let refused = match self.vouched()? {
            Event::ApprovalRequested(_) | Event::ToolAsked(_) | Event::TaskProposed(_) => {
                return Some(Notable::Asked);
            }
            Event::AccessDenied(_) | Event::JobDenied(_) | Event::ChildRunRefused(_) => true,
            Event::ApprovalAnswered(answered) => answered.decision == ApprovalDecision::Deny,
            Event::ToolAnswered(answered) => answered.decision == ApprovalDecision::Deny,
            Event::PolicyDecision(decided) => decided.decision == "deny",
            Event::RunFailed(failed) => failed.failure == SpawnFailure::Policy,
            Event::Turn(turn) => turn.status == Some(TurnStatus::Rejected),
            _ => false,
        };
        refused.then_some(Notable::Refused)
    }
}

/// A run along its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimelineDoc {
    /// Names this form: [`TimelineDoc::SCHEMA`].
    pub schema: &'static str,
    /// How much time one bin is, in nanoseconds.
    pub bin_ns: u64,
    /// How long it took from the first record to the last, in nanoseconds. The time between two boots is not known
    /// and does not count.
    pub elapsed_ns: u64,
    /// From the first record to the last one.
    pub bins: Vec<TimelineBin>,
}

impl TimelineDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.timeline.v1";

    /// How many records there are in all bins.
    pub fn records(&self) -> u64 {
        self.bins.iter().map(TimelineBin::records).sum()
    }
}

/// One stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TimelineBin {
    /// The number of its first record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// Records for which the kernel vouches.
    pub kernel: u64,
    /// Those of Invigil.
    pub runtime: u64,
    /// Those of the agent.
    pub sdk: u64,
    /// Those of a client.
    pub client: u64,
    /// Those of a person.
    pub user: u64,
    /// Of all of them: how often something was refused.
    pub refused: u64,
    /// How often something was left to a person.
    pub asked: u64,
}

impl TimelineBin {
    /// How many records.
    pub fn records(&self) -> u64 {
        self.layers().iter().map(|(_, count)| count).sum()
    }

    /// How many of each layer.
    pub fn layers(&self) -> [(Origin, u64); 5] {
        [
            (Origin::Kernel, self.kernel),
            (Origin::Runtime, self.runtime),
            (Origin::Sdk, self.sdk),
            (Origin::Client, self.client),
            (Origin::User, self.user),
        ]
    }

    /// Takes in the bin that follows.
    pub fn absorb(&mut self, next: &TimelineBin) {
        self.first = self.first.or(next.first);
        self.kernel += next.kernel;
        self.runtime += next.runtime;
        self.sdk += next.sdk;
        self.client += next.client;
        self.user += next.user;
        self.refused += next.refused;
        self.asked += next.asked;
    }
}

/// Folds facts into a [`TimelineDoc`].
#[derive(Debug, Clone)]
pub struct Timeline {
    width: u64,
    elapsed: u64,
    mono: Option<u64>,
    bins: Vec<TimelineBin>,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline {
            width: 1000,
            elapsed: 0,
            mono: None,
            bins: Vec::new(),
        }
    }
}

impl Timeline {
    /// The bin of now.
    fn bin(&mut self) -> &mut TimelineBin {
        while self.elapsed / self.width >= MOST as u64 {
            self.width *= 2;
            let pairs = self.bins.chunks(2).map(|pair| {
                let mut bin = pair[0];
                pair.iter().skip(1).for_each(|next| bin.absorb(next));
                bin
            });
            self.bins = pairs.collect();
        }
        let at = (self.elapsed / self.width) as usize;
        if self.bins.len() <= at {
            self.bins.resize(at + 1, TimelineBin::default());
        }
        &mut self.bins[at]
    }
}

impl View for Timeline {
    type Document = TimelineDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        // After a boot the clock begins anew; how long the machine was off is not known.
        let since = fact
            .stamp
            .mono
            .saturating_sub(self.mono.unwrap_or(fact.stamp.mono));
        self.mono = Some(fact.stamp.mono);
        self.elapsed = self.elapsed.saturating_add(since);
        let bin = self.bin();
        bin.first.get_or_insert(fact.seq);
        match fact.origin {
            Origin::Kernel => bin.kernel += 1,
            Origin::Runtime => bin.runtime += 1,
            Origin::Sdk => bin.sdk += 1,
            Origin::Client => bin.client += 1,
            Origin::User => bin.user += 1,
        }
        match fact.notable() {
            Some(Notable::Refused) => bin.refused += 1,
            Some(Notable::Asked) => bin.asked += 1,
            None => {}
        }
    }

    fn document(&self) -> TimelineDoc {
        TimelineDoc {
            schema: TimelineDoc::SCHEMA,
            bin_ns: self.width,
            elapsed_ns: self.elapsed,
            bins: self.bins.clone(),
        }
    }
}
