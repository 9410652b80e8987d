//! Makes every decision of a run again, from what its journal recorded, and says where one comes out differently.
//!
//! Nothing is run and no disk is looked at, but for the texts of the policy, which are kept by their digest. What the
//! journal does not hold the whole input of is counted as such, and never guessed. `docs/audit.md` says what that is.

mod rules;
mod verdicts;

use invigil_journal::{BlobError, RunRef, Store, StoreError};
use invigil_policy::PolicyError;
use invigil_schema::{Digest, Event};
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
    let mut done = Redecided::default();
    let mut ruled: Option<Ruled> = None;
    let mut verdicts = Verdicts::new(store);
    let mut failed = None;
    each(run, |fact| {
        if done.differs.is_some() || failed.is_some() {
            return;
        }
        if let Event::PolicyLoaded(loaded) = fact.event {
            match Ruled::load(store, loaded) {
                Ok(rules) => ruled = Some(rules),
                Err(error) => failed = Some(error),
            }
        }
        let by_rule = ruled.as_mut().map(|ruled| ruled.take(fact));
        let came = by_rule.into_iter().flatten().chain(verdicts.take(fact));
        for (seq, came) in came {
            done.count(seq, came);
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let last = ruled.as_mut().map(Ruled::end);
    for (seq, came) in last.into_iter().flatten() {
        done.count(seq, came);
    }
    Ok(done)
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
