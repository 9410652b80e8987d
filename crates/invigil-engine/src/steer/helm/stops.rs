//! Stopping every process, and letting them go on.

use std::time::Instant;

use invigil_schema::{Origin, RunResumed, RunSuspended, SteeredBy, SuspendReason};

use super::{Inner, Obeyed, Open, SETTLE};
use crate::control::Paused;

impl Inner {
    /// Stops everybody. Who is stopped stays so: a second order changes nothing.
    pub(super) fn pause(
        &self,
        id: &str,
        reason: SuspendReason,
        by: SteeredBy,
        why: Option<String>,
    ) -> Obeyed {
        if !self.control.is_running() {
            return Err("there is no process to stop".to_owned());
        }
        if self.state().suspended.is_some() {
            return Ok("it was paused already".to_owned());
        }
        self.record(
            Origin::Runtime,
            RunSuspended {
                id: id.to_owned(),
                reason,
                pending: Vec::new(),
                by,
                why,
            },
        )?;
        self.state().suspended = Some(Open {
            id: id.to_owned(),
            reason,
            since: Instant::now(),
        });
        let still = self.control.pause(SETTLE);
        self.each_child(|child| child.follow(&self.run_id, true));
        match still {
            Paused::Still => Ok("paused".to_owned()),
            Paused::Settling => Ok(
                "paused; a process is in a call that takes its time, and stops on its way back"
                    .to_owned(),
            ),
            Paused::NotRunning => Err("it has just ended".to_owned()),
        }
    }

    pub(super) fn resume(&self, by: SteeredBy) -> Obeyed {
        match self.let_go(by)? {
            true => Ok("resumed".to_owned()),
            false => Ok("it was not paused".to_owned()),
        }
    }

    /// Ends the suspension that is open. False if there is none.
    pub(super) fn let_go(&self, by: SteeredBy) -> Result<bool, String> {
        let Some(open) = self.state().suspended.take() else {
            return Ok(false);
        };
        let resumed = RunResumed {
            id: open.id,
            reason: open.reason,
            by,
            after_ms: open.since.elapsed().as_millis() as u64,
        };
        self.record(Origin::Runtime, resumed)?;
        self.control.resume();
        self.each_child(|child| child.follow(&self.run_id, false));
        Ok(true)
    }

    /// Does something with the files while nobody of the run can change them. A run that was paused before stays so.
    pub(super) fn still<T>(
        &self,
        id: &str,
        by: &SteeredBy,
        act: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let before = self.state().suspended.is_some();
        if !before && self.control.is_running() {
            self.pause(id, SuspendReason::Files, by.clone(), None)?;
        }
        let acted = act();
        if !before {
            self.let_go(SteeredBy::Supervisor)?;
        }
        acted
    }
}
