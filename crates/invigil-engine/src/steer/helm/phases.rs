//! The phases of the run, checked when somebody wants it.

use invigil_schema::{Event, MilestonesMissed, Origin, ProcessRef, Signal, SteeredBy, Urgency};

use super::{Inner, MAX_TEXT, MAX_WISHES, lock};
use crate::approvals::Asking;
use crate::steer::milestones::{Means, Progress};
use crate::steer::request::Reply;

impl Inner {
    /// The agent wants a phase to be checked. That takes time, and is done when this thread comes to it.
    pub(super) fn wish(&self, phase: Option<String>, from: Option<ProcessRef>) -> Reply {
        let mut state = self.state();
        match state.wishes.len() {
            MAX_WISHES.. => Reply::Error(format!("{MAX_WISHES} phases wait to be checked")),
            _ => {
                state.wishes.push((phase, from));
                Reply::Taken(true)
            }
        }
    }

    pub(super) fn grant_wishes(&self) {
        let wishes = std::mem::take(&mut self.state().wishes);
        for (phase, process) in wishes {
            let by = SteeredBy::Agent { process };
            let id = uuid::Uuid::now_v7().simple().to_string();
            let checked = self.milestone(&id, phase.as_deref(), by);
            let text = checked.map_or_else(|why| why, |(said, _)| said);
            let end = text.floor_char_boundary(MAX_TEXT);
            let signal = Signal {
                id: format!("milestone-{id}"),
                urgency: Urgency::Normal,
                text: text[..end].to_owned(),
            };
            drop(self.signal(&signal, SteeredBy::Supervisor));
        }
    }

    /// The run is over. What it was to reach and has not is on its record.
    pub(super) fn record_missed(&self) {
        let progress = lock(&self.progress);
        let phases = progress.as_ref().map(Progress::missing).unwrap_or_default();
        if !phases.is_empty() {
            // A failure is met again at the last record.
            drop(self.record(Origin::Runtime, MilestonesMissed { phases }));
        }
    }

    /// Checks the current phase while nobody can change anything.
    pub(super) fn milestone(
        &self,
        id: &str,
        phase: Option<&str>,
        by: SteeredBy,
    ) -> Result<(String, bool), String> {
        let mut progress = lock(&self.progress);
        let progress = progress.as_mut().ok_or("the run has no milestones")?;
        let means = Means {
            engine: &self.engine,
            rules: self.spec.rules.clone(),
            // Whoever is asked about a check is asked elsewhere: the terminal is the run's.
            asking: Asking {
                audience: None,
                ..self.spec.asking.clone()
            },
            cancel: &self.cancel,
            run_id: &self.run_id,
            workspace: &self.workspace,
        };
        let record = |event: Event| self.record(Origin::Runtime, event);
        self.still(id, &by, || {
            progress.check(phase, &means, by.clone(), &record)
        })
    }
}
