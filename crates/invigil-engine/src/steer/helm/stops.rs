//! Stopping every process, and letting them go on.
//!
//! A run stands still for as long as anybody holds it: a person, whoever works on its files, the run that it was started
//! in. Each lets go for itself alone, so nobody lets go on what another one has stopped.

use std::time::Instant;

use invigil_schema::{Origin, RunId, RunResumed, RunSuspended, SteeredBy, SuspendReason};

use super::{Helm, Inner, Obeyed, SETTLE, lock};
use crate::control::Paused;

/// Who has stopped every process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// A person.
    Person,
    /// Whoever keeps, puts back or checks the files of the run.
    Files,
    /// The run that it was started in.
    Parent,
    /// The same as `Files`, of a run inside of it.
    Child(RunId),
}

/// A suspension that is open.
pub(super) struct Stop {
    holder: Holder,
    id: String,
    reason: SuspendReason,
    since: Instant,
}

/// A suspension that somebody wants.
struct Wanted {
    holder: Holder,
    id: String,
    reason: SuspendReason,
    by: SteeredBy,
    why: Option<String>,
}

impl Helm {
    /// The run that this one was started in stands still, for this reason, or goes on. Whether nothing moves.
    pub(super) fn follow(&self, parent: &RunId, stopped: Option<SuspendReason>) -> bool {
        let by = SteeredBy::Parent {
            run_id: parent.clone(),
        };
        match stopped {
            Some(reason) => {
                let stopped = self.0.stop(Wanted {
                    holder: Holder::Parent,
                    id: uuid::Uuid::now_v7().simple().to_string(),
                    reason,
                    by,
                    why: None,
                });
                // Who cannot be recorded dies of it, and does nothing any more.
                stopped.map_or(true, |(_, paused)| paused != Paused::Settling)
            }
            None => {
                // As above.
                drop(self.0.let_go(&Holder::Parent, by));
                true
            }
        }
    }
}

impl Inner {
    /// Somebody wants everybody to stop. Who is stopped stays so: a second order changes nothing.
    pub(super) fn pause(&self, id: &str, by: SteeredBy, why: Option<String>) -> Obeyed {
        let paused = self.stop(Wanted {
            holder: Holder::Person,
            id: id.to_owned(),
            reason: SuspendReason::Pause,
            by,
            why,
        })?;
        match paused {
            (_, Paused::NotRunning) => Err("there is no process to stop".to_owned()),
            (false, _) => Ok("it was paused already".to_owned()),
            (true, Paused::Still) => Ok("paused".to_owned()),
            (true, Paused::Settling) => Ok(
                "paused; a process is in a call that takes its time, and stops on its way back"
                    .to_owned(),
            ),
        }
    }

    /// Somebody wants everybody to go on.
    pub(super) fn resume(&self, by: SteeredBy) -> Obeyed {
        let was_paused = self.let_go(&Holder::Person, by)?;
        match (was_paused, self.is_held_by(&Holder::Parent)) {
            (true, false) => Ok("resumed".to_owned()),
            (false, false) => Ok("it was not paused".to_owned()),
            (true, true) => Ok("it goes on with the run that it was started in".to_owned()),
            (false, true) => Err(format!(
                "it is paused with the run that it was started in; resume {}",
                self.root_run
            )),
        }
    }

    /// Stops everybody on behalf of one holder, and those inside too. Whether it did not hold the run before, and how
    /// everybody stands.
    fn stop(&self, wanted: Wanted) -> Result<(bool, Paused), String> {
        let _turn = lock(&self.turn);
        // Of one that is over those inside may be left. They end soon, and until then they are not let go.
        let is_new = !self.control.is_over() && !self.is_held_by(&wanted.holder);
        let reason = wanted.reason;
        if is_new {
            self.begin_to_hold(wanted)?;
        }
        let paused = self.control.pause(SETTLE);
        let mut still = true;
        self.each_child(|child| still &= child.follow(&self.run_id, Some(reason)));
        Ok(match still {
            true => (is_new, paused),
            false => (is_new, Paused::Settling),
        })
    }

    fn begin_to_hold(&self, wanted: Wanted) -> Result<(), String> {
        let Wanted {
            holder,
            id,
            reason,
            by,
            why,
        } = wanted;
        self.record(
            Origin::Runtime,
            RunSuspended {
                id: id.clone(),
                reason,
                pending: Vec::new(),
                by,
                why,
            },
        )?;
        self.state().stops.push(Stop {
            holder,
            id,
            reason,
            since: Instant::now(),
        });
        Ok(())
    }

    fn is_held_by(&self, holder: &Holder) -> bool {
        let state = self.state();
        state.stops.iter().any(|stop| stop.holder == *holder)
    }

    /// Takes back what a holder wanted. Everybody goes on if it was the last one. False if it did not hold the run.
    fn let_go(&self, holder: &Holder, by: SteeredBy) -> Result<bool, String> {
        let _turn = lock(&self.turn);
        let (stop, goes_on) = {
            let mut state = self.state();
            let at = state.stops.iter().position(|stop| stop.holder == *holder);
            let stop = at.map(|at| state.stops.remove(at));
            (stop, state.stops.is_empty())
        };
        let Some(stop) = stop else {
            return Ok(false);
        };
        self.record_resumed(stop, by)?;
        if goes_on {
            self.control.resume();
            self.each_child(|child| _ = child.follow(&self.run_id, None));
        }
        Ok(true)
    }

    /// The run is over, and so is everything that was stopped.
    pub(super) fn let_all_go(&self) {
        let _turn = lock(&self.turn);
        let stops = std::mem::take(&mut self.state().stops);
        for stop in stops {
            // What cannot be recorded has ended the run already.
            drop(self.record_resumed(stop, SteeredBy::Supervisor));
        }
        self.control.resume();
    }

    fn record_resumed(&self, stop: Stop, by: SteeredBy) -> Result<u64, String> {
        let resumed = RunResumed {
            id: stop.id,
            reason: stop.reason,
            by,
            after_ms: stop.since.elapsed().as_millis() as u64,
        };
        self.record(Origin::Runtime, resumed)
    }

    /// Does something with the files while nobody of the run can change them, and nobody of all the runs that it was
    /// started in, or that were started with it. Who was stopped before stays so.
    pub(super) fn still<T>(
        &self,
        id: &str,
        by: &SteeredBy,
        act: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        // One at a time in the whole family.
        let _files = lock(&self.family.files);
        let top = self.family.top().filter(|top| top.0.run_id != self.run_id);
        let for_us = Holder::Child(self.run_id.clone());
        let mut moves = false;
        if let Some(top) = &top {
            moves |= top.0.hold(
                for_us.clone(),
                id,
                SteeredBy::Child {
                    run_id: self.run_id.clone(),
                },
            )?;
        }
        let held = self.hold(Holder::Files, id, by.clone());
        let acted = match held.map(|moving| moves | moving) {
            Ok(false) => act(),
            Ok(true) => Err(MOVES.to_owned()),
            Err(why) => Err(why),
        };
        let own = self.let_go(&Holder::Files, SteeredBy::Supervisor);
        let above = top.map(|top| top.0.let_go(&for_us, SteeredBy::Supervisor));
        above.transpose().and(own)?;
        acted
    }

    /// Stops everybody for what is done with files. Whether somebody still moves.
    fn hold(&self, holder: Holder, id: &str, by: SteeredBy) -> Result<bool, String> {
        let paused = self.stop(Wanted {
            holder,
            id: id.to_owned(),
            reason: SuspendReason::Files,
            by,
            why: None,
        })?;
        Ok(matches!(paused, (_, Paused::Settling)))
    }
}

/// What is done with files is not done then.
const MOVES: &str = "a process is in a call that takes its time and could change files meanwhile; nothing was done: try again, or pause the run first";
