//! What the run is told, and what that does to its processes.

use std::sync::atomic::Ordering;
use std::time::Instant;

use invigil_schema::{Disposition, Origin, Signal, SignalDisposed, SteeredBy, StopReason};
use rustix::process::Signal as Unix;

use super::{GRACE, Inner, MAX_ID, MAX_TEXT, Obeyed};
use crate::steer::inbox::MAX_QUEUE;

/// What became of a signal, before it is on the record.
pub(super) struct Disposed<'a> {
    pub(super) signal: &'a Signal,
    pub(super) disposition: Disposition,
    pub(super) depth: usize,
    pub(super) by: SteeredBy,
    pub(super) boundary: Option<&'a str>,
}

impl Inner {
    pub(super) fn signal(&self, signal: &Signal, by: SteeredBy) -> Obeyed {
        if signal.id.is_empty() || signal.id.len() > MAX_ID || signal.text.len() > MAX_TEXT {
            return Err(format!(
                "an id has 1 to {MAX_ID} bytes, and a text at most {MAX_TEXT}"
            ));
        }
        let (disposition, depth) = {
            let mut state = self.state();
            let disposition = state.inbox.take_in(signal);
            self.due.store(state.inbox.has_pending(), Ordering::Release);
            (disposition, state.inbox.depth())
        };
        self.dispose(Disposed {
            signal,
            disposition,
            depth,
            by,
            boundary: None,
        })?;
        match disposition {
            Disposition::Interrupted => {
                let why = match signal.text.as_str() {
                    "" => format!("signal {}", signal.id),
                    text => text.to_owned(),
                };
                self.interrupt(StopReason::Signal, &why);
                Ok("the run is asked to end, and killed soon after".to_owned())
            }
            Disposition::Pending => Ok("it is delivered at the next boundary".to_owned()),
            Disposition::Queued => Ok(format!("it waits for the agent, as one of {depth}")),
            Disposition::Recorded => Ok("it is on the record".to_owned()),
            Disposition::Duplicate => Ok("it was there before, and is not taken again".to_owned()),
            Disposition::Dropped => Err(format!(
                "{MAX_QUEUE} signals wait already; it was dropped, and may be sent again"
            )),
            Disposition::Delivered | Disposition::Taken => Ok(String::new()),
        }
    }

    /// Asks the run to end, and kills it soon after: those inside of it first. Who is paused feels only the second.
    pub(super) fn interrupt(&self, reason: StopReason, why: &str) {
        self.cancel_children(why);
        self.control.terminate(reason, why);
        let mut state = self.state();
        state.kill_at.get_or_insert_with(|| Instant::now() + GRACE);
    }

    pub(super) fn kill_in_time(&self) {
        let now = Instant::now();
        let mut state = self.state();
        if state.kill_at.take_if(|at| *at <= now).is_some() {
            drop(state);
            self.control.kill();
        }
    }

    /// The agent is about to do the next thing: what waited for that interrupts it.
    pub(super) fn boundary(&self, place: &str) {
        if !self.due.load(Ordering::Acquire) {
            return;
        }
        let (due, depth) = {
            let mut state = self.state();
            self.due.store(false, Ordering::Release);
            (state.inbox.boundary(), state.inbox.depth())
        };
        for signal in &due {
            drop(self.dispose(Disposed {
                signal,
                disposition: Disposition::Delivered,
                depth,
                by: SteeredBy::Supervisor,
                boundary: Some(place),
            }));
        }
        if !due.is_empty() {
            self.control.signal(Unix::INT.as_raw());
        }
    }

    pub(super) fn dispose(&self, disposed: Disposed<'_>) -> Result<u64, String> {
        let event = SignalDisposed {
            signal: disposed.signal.clone(),
            disposition: disposed.disposition,
            queue_depth: disposed.depth as u64,
            by: disposed.by,
            boundary: disposed.boundary.map(str::to_owned),
        };
        self.record(Origin::Runtime, event)
    }
}
