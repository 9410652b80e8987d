//! Makes every decision of a run again, from what its journal recorded, and says where one comes out differently.
//!
//! Nothing is run and no disk is looked at, but for the texts of the policy, which are kept by their digest. What the
//! journal does not hold the whole input of is counted as such, and never guessed. `docs/audit.md` says what that is.

mod allowed;
mod rules;
#[cfg(test)]
mod tests;
mod verdicts;

use invigil_audit::Fact;
use invigil_journal::{BlobError, RunRef, Store, StoreError};
use invigil_policy::PolicyError;
use invigil_schema::{Digest, Event, Origin, PolicyLoaded};
use serde::Serialize;

use crate::evidence::each;
use rules::Ruled;
use verdicts::Verdicts;

/// What came of making every decision again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Redecided {
    /// Decisions that came out the same.
    pub same: u64,
    /// Decisions of which the journal does not have the whole input: what can be checked of them fits.
    pub in_part: u64,
    /// The first that came out differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs: Option<Difference>,
}

/// A decision that comes out differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The record that holds it.
    pub seq: u64,
    /// What was decided on.
    pub what: String,
    /// What the journal says.
    pub recorded: String,
    /// What comes out now.
    pub derived: String,
}

/// Why decisions cannot be made again.
#[derive(Debug, thiserror::Error)]
pub enum RedecideError {
    /// The run.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A text of the policy.
    #[error(
        "the policy text {sha256} of the run is not in this store: {source}; look where the run was recorded"
    )]
    Text {
        /// Its digest.
        sha256: Digest,
        /// What went wrong.
        source: BlobError,
    },
    /// A text of the policy is none any more.
    #[error("the policy of the run cannot be read any more: {0}")]
    Policy(Box<PolicyError>),
}

/// What came of one decision.
#[derive(Debug)]
enum Came {
    Same,
    InPart,
    Differs {
        what: String,
        recorded: String,
        derived: String,
    },
}

impl Came {
    fn differs(
        what: impl Into<String>,
        recorded: impl Into<String>,
        derived: impl Into<String>,
    ) -> Came {
        Came::Differs {
            what: what.into(),
            recorded: recorded.into(),
            derived: derived.into(),
        }
    }
}

/// Makes every decision of a run again, up to the first that comes out differently.
pub fn redecide(store: &Store, run: &RunRef) -> Result<Redecided, RedecideError> {
    let mut again = Again {
        store,
        done: Redecided::default(),
        ruled: None,
        begun: false,
        verdicts: Verdicts::new(store),
    };
    let mut failed = None;
    each(run, |fact| {
        if again.done.differs.is_some() || failed.is_some() {
            return;
        }
        failed = again.take(fact).err();
    })?;
    match failed {
        Some(error) => Err(error),
        None => Ok(again.end()),
    }
}

/// A run, as far as it was gone through.
struct Again<'a> {
    store: &'a Store,
    done: Redecided,
    ruled: Option<Ruled>,
    /// Something was seen to happen.
    begun: bool,
    verdicts: Verdicts<'a>,
}

impl Again<'_> {
    fn take(&mut self, fact: &Fact<'_>) -> Result<(), RedecideError> {
        if let Some(came) = self.stray(fact) {
            self.done.count(fact.seq, came);
            return Ok(());
        }
        self.begun |= fact.origin == Origin::Kernel;
        if let Event::PolicyLoaded(loaded) = fact.event {
            self.ruled = Some(Ruled::load(self.store, loaded)?);
        }
        let by_rule = self.ruled.as_mut().map(|ruled| ruled.take(fact));
        let verdict = self.verdicts.take(fact);
        for (seq, came) in by_rule.into_iter().flatten().chain(verdict) {
            self.done.count(seq, came);
        }
        Ok(())
    }

    /// What no run records: data that cannot be read, a word of somebody who cannot vouch for it, rules that come late
    /// or twice, and decisions without rules.
    fn stray(&self, fact: &Fact<'_>) -> Option<Came> {
        let what = format!("a record of kind {}", fact.event.kind());
        match fact.event {
            Event::Unknown { kind, .. } => {
                let known = Event::KINDS.contains(&kind.as_str());
                let derived = "nothing can be derived from it";
                known.then(|| Came::differs(what, "its data cannot be read", derived))
            }
            _ if fact.vouched().is_none() && !self.verdicts.is_of_client(fact) => {
                let origin = fact.origin.as_str();
                let derived = format!("{origin} cannot vouch for it");
                Some(Came::differs(
                    what,
                    format!("its origin is {origin}"),
                    derived,
                ))
            }
            Event::PolicyLoaded(loaded) => self.loaded_late(loaded),
            event if self.ruled.is_none() && is_by_rules(event) => {
                let derived = "no policy was loaded that could decide";
                Some(Came::differs(what, "it was decided by rules", derived))
            }
            _ => None,
        }
    }

    fn loaded_late(&self, loaded: &PolicyLoaded) -> Option<Came> {
        let why = match (&self.ruled, self.begun) {
            (Some(_), _) => "the policy of a run is loaded once",
            (None, true) => "the policy of a run is loaded before anything happens",
            (None, false) => return None,
        };
        let recorded = format!("a policy was loaded, in the mode {}", loaded.mode.as_str());
        Some(Came::differs("the policy", recorded, why))
    }

    fn end(mut self) -> Redecided {
        let last = self.ruled.as_mut().map(Ruled::end);
        for (seq, came) in last.into_iter().flatten() {
            self.done.count(seq, came);
        }
        self.done
    }
}

/// Whether there is no such record without a policy.
fn is_by_rules(event: &Event) -> bool {
    match event {
        Event::AccessDenied(denied) => denied.place.is_some(),
        Event::PolicyEnforced(_) | Event::ApprovalRequested(_) | Event::ApprovalAnswered(_) => true,
        _ => false,
    }
}

impl Redecided {
    fn count(&mut self, seq: u64, came: Came) {
        match came {
            _ if self.differs.is_some() => {}
            Came::Same => self.same += 1,
            Came::InPart => self.in_part += 1,
            Came::Differs {
                what,
                recorded,
                derived,
            } => {
                self.differs = Some(Difference {
                    seq,
                    what,
                    recorded,
                    derived,
                });
            }
        }
    }
}
