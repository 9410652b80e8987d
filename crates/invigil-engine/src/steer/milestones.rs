//! Phases of a run, in their order: each has checks that must pass and files that must be there before the next begins.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use invigil_journal::Store;
use invigil_schema::{
    Check, Contract, Digest, Event, MilestoneAdvanced, MilestoneBlocked, MilestoneEvidence,
    MilestonesSet, OsText, RunId, Stage, SteeredBy,
};
use serde::Deserialize;

use crate::approvals::Asking;
use crate::capabilities::Roots;
use crate::capabilities::entry::{digest, open_regular};
use crate::contracts::{Evaluation, validate};
use crate::guard::{KeepError, Rules};
use crate::jobs::Cancel;
use crate::run::Engine;

/// More phases are not a plan.
const MAX_PHASES: usize = 64;

/// The phases of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Milestones {
    phases: Vec<Phase>,
    text: String,
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phase {
    name: String,
    /// All of them must pass.
    #[serde(default)]
    checks: Vec<Check>,
    /// Files below the workspace that must be there, and not be empty.
    #[serde(default)]
    evidence: Vec<OsText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    phases: Vec<Phase>,
}

/// What is wrong with a file of milestones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MilestonesError(String);

impl Milestones {
    /// Reads `{"phases": [{"name", "checks", "evidence"}]}`.
    pub fn parse(text: &str) -> Result<Milestones, MilestonesError> {
        let file: File =
            serde_json::from_str(text).map_err(|error| MilestonesError(error.to_string()))?;
        let phases = file.phases;
        let wrong = |why: String| Err(MilestonesError(why));
        if phases.is_empty() || phases.len() > MAX_PHASES {
            return wrong(format!("there must be 1 to {MAX_PHASES} phases"));
        }
        for (at, phase) in phases.iter().enumerate() {
            let name = phase.name.trim();
            if name.is_empty() || phases[..at].iter().any(|other| other.name.trim() == name) {
                return wrong(format!("phase {}: it needs a name of its own", at + 1));
            }
            if phase.checks.is_empty() && phase.evidence.is_empty() {
                return wrong(format!("phase {name}: it needs a check or evidence"));
            }
            let problems = match phase.checks.is_empty() {
                true => Vec::new(),
                false => validate(&phase.contract()),
            };
            if let Some(problem) = problems.first() {
                return wrong(format!("phase {name}: {problem}"));
            }
        }
        let text = text.to_owned();
        Ok(Milestones { phases, text })
    }

    /// Keeps the file word for word, and says what the evidence says of it.
    pub(crate) fn keep(&self, store: &Store) -> Result<MilestonesSet, KeepError> {
        let sha256 = store.blobs()?.put(self.text.as_bytes())?;
        let phases = self.phases.iter().map(|phase| phase.name.clone()).collect();
        Ok(MilestonesSet { phases, sha256 })
    }
}

impl Phase {
    fn contract(&self) -> Contract {
        Contract {
            description: String::new(),
            checks: self.checks.clone(),
        }
    }
}

/// How far a run is.
pub(super) struct Progress {
    milestones: Milestones,
    reached: usize,
    attempts: u32,
}

/// With what phases are checked.
pub(super) struct Means<'a> {
    pub(super) engine: &'a Engine,
    pub(super) rules: Option<Arc<Rules>>,
    pub(super) asking: Asking,
    pub(super) cancel: &'a Cancel,
    pub(super) run_id: &'a RunId,
    pub(super) workspace: &'a Path,
}

impl Progress {
    pub(super) fn new(milestones: Milestones) -> Progress {
        Progress {
            milestones,
            reached: 0,
            attempts: 0,
        }
    }

    /// The phases that are not reached.
    pub(super) fn missing(&self) -> Vec<String> {
        let missing = self.milestones.phases.iter().skip(self.reached);
        missing.map(|phase| phase.name.clone()).collect()
    }

    fn current(&self) -> Option<&Phase> {
        self.milestones.phases.get(self.reached)
    }

    /// Checks the current phase. The evidence is recorded before the decision; what became of it, and whether it is reached.
    pub(super) fn check(
        &mut self,
        wanted: Option<&str>,
        means: &Means<'_>,
        by: SteeredBy,
        record: &dyn Fn(Event) -> Result<u64, String>,
    ) -> Result<(String, bool), String> {
        let phase = self
            .current()
            .ok_or("every phase is reached already")?
            .clone();
        if let Some(wanted) = wanted.filter(|wanted| *wanted != phase.name) {
            return Err(format!(
                "phase {wanted:?} is not the current one, which is {:?}",
                phase.name
            ));
        }
        self.attempts += 1;
        let shown = self.show(&phase, means);
        for evidence in &shown {
            record(evidence.clone().into())?;
        }
        let missing: Vec<String> = shown
            .iter()
            .filter(|evidence| !evidence.accepted)
            .map(|evidence| {
                let why = evidence.why.as_deref().unwrap_or_default();
                format!("{}: {why}", evidence.evidence.to_string_lossy())
            })
            .collect();
        let name = phase.name;
        if !missing.is_empty() {
            let said = format!("phase {name} is not reached: {}", missing.join("; "));
            let phase = name;
            record(MilestoneBlocked { phase, missing, by }.into())?;
            return Ok((said, false));
        }
        self.reached += 1;
        let next = self.current().map(|phase| phase.name.clone());
        let said = match &next {
            Some(next) => format!("phase {name} is reached; {next} is next"),
            None => format!("phase {name} is reached, which is the last"),
        };
        let phase = name;
        record(MilestoneAdvanced { phase, next, by }.into())?;
        Ok((said, true))
    }

    /// What a phase has to show: its files, and what its checks say.
    fn show(&self, phase: &Phase, means: &Means<'_>) -> Vec<MilestoneEvidence> {
        let of = |evidence: OsText| MilestoneEvidence {
            phase: phase.name.clone(),
            evidence,
            sha256: None,
            accepted: false,
            why: None,
            run: None,
        };
        let mut shown = Vec::new();
        for path in &phase.evidence {
            let (sha256, why) = match file(means.workspace, path) {
                Ok(sha256) => (Some(sha256), None),
                Err(why) => (None, Some(why)),
            };
            shown.push(MilestoneEvidence {
                sha256,
                accepted: why.is_none(),
                why,
                ..of(path.clone())
            });
        }
        let evaluation = Evaluation {
            engine: means.engine,
            rules: means.rules.clone(),
            asking: means.asking.clone(),
            cwd: means.workspace.to_owned(),
            prefix: format!("{}-milestone-{}", means.run_id, self.attempts),
            require_tier: None,
            stage: Stage::Verify,
            round: self.attempts,
        };
        let results = evaluation.run(&phase.contract(), means.cancel, &mut drop);
        for result in results {
            let why = match result.exit_code {
                _ if result.timed_out => "its time was up".to_owned(),
                Some(code) => format!("exit {code}"),
                None => "it did not run to its end".to_owned(),
            };
            shown.push(MilestoneEvidence {
                sha256: result.output,
                accepted: result.passed,
                why: (!result.passed).then_some(why),
                run: result.run,
                ..of(result.name.as_str().into())
            });
        }
        shown
    }
}

/// The digest of a file below the workspace. Links lead nowhere, and an empty file shows nothing.
fn file(workspace: &Path, path: &OsText) -> Result<Digest, String> {
    let roots = Roots::open(workspace, &[]).map_err(|error| error.to_string())?;
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    let place = roots.exact(path).map_err(|failure| failure.to_string())?;
    let mut file = open_regular(&place.dir, &place.name).map_err(|error| error.to_string())?;
    match digest(&mut file).map_err(|error| error.to_string())? {
        (_, 0) => Err("it is empty".to_owned()),
        (sha256, _) => Ok(sha256),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_must_be_one() {
        let right = r#"{"phases": [{"name": "a", "evidence": ["x"]},
            {"name": "b", "checks": [{"name": "c", "command": "make test"}]}]}"#;
        assert_eq!(Milestones::parse(right).unwrap().phases.len(), 2);
        for wrong in [
            "{}",
            r#"{"phases": []}"#,
            r#"{"phases": [{"name": "a"}]}"#,
            r#"{"phases": [{"name": " ", "evidence": ["x"]}]}"#,
            r#"{"phases": [{"name": "a", "evidence": ["x"]}, {"name": "a", "evidence": ["y"]}]}"#,
            r#"{"phases": [{"name": "a", "evidence": ["x"], "more": 1}]}"#,
            r#"{"phases": [{"name": "a", "checks": [{"name": "c", "command": " "}]}]}"#,
        ] {
            assert!(Milestones::parse(wrong).is_err(), "{wrong}");
        }
    }
}
