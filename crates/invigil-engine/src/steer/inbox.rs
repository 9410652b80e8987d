//! What a run was told and has not heard yet. Pure: who is told what is decided here, and done elsewhere.

use std::collections::VecDeque;

use invigil_schema::{Disposition, Signal, Urgency};

/// How many may wait for the agent.
pub(super) const MAX_QUEUE: usize = 64;
/// How many are remembered, so that they are taken once.
const REMEMBERED: usize = 4096;

/// The signals of one run.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Wait until the agent asks.
    queue: VecDeque<Signal>,
    /// Wait for the next boundary.
    pending: VecDeque<Signal>,
    seen: VecDeque<String>,
}

impl Inbox {
    /// What becomes of a new signal. One that is dropped is not remembered: it may be sent again.
    pub(super) fn take_in(&mut self, signal: &Signal) -> Disposition {
        if self.seen.contains(&signal.id) {
            return Disposition::Duplicate;
        }
        let disposition = match signal.urgency {
            Urgency::Critical => Disposition::Interrupted,
            Urgency::Low => Disposition::Recorded,
            Urgency::High | Urgency::Normal if self.depth() >= MAX_QUEUE => Disposition::Dropped,
            Urgency::High => {
                self.pending.push_back(signal.clone());
                Disposition::Pending
            }
            Urgency::Normal => {
                self.queue.push_back(signal.clone());
                Disposition::Queued
            }
        };
        if disposition != Disposition::Dropped {
            self.seen.truncate(REMEMBERED - 1);
            self.seen.push_front(signal.id.clone());
        }
        disposition
    }

    /// How many wait.
    pub(super) fn depth(&self) -> usize {
        self.queue.len() + self.pending.len()
    }

    /// Whether something waits for a boundary.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A boundary: what waited for it, oldest first. It can still be asked for, before everything else.
    pub(super) fn boundary(&mut self) -> Vec<Signal> {
        let due: Vec<Signal> = self.pending.drain(..).collect();
        for signal in due.iter().rev() {
            self.queue.push_front(signal.clone());
        }
        due
    }

    /// The agent asks: everything that waits, the urgent first.
    pub(super) fn drain(&mut self) -> Vec<Signal> {
        self.boundary();
        self.queue.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(id: &str, urgency: Urgency) -> Signal {
        let (id, text) = (id.to_owned(), String::new());
        Signal { id, urgency, text }
    }

    #[test]
    fn each_urgency_goes_its_own_way_and_each_id_goes_once() {
        let mut inbox = Inbox::default();
        let mut take = |id, urgency| inbox.take_in(&signal(id, urgency));
        assert_eq!(take("a", Urgency::Low), Disposition::Recorded);
        assert_eq!(take("b", Urgency::Normal), Disposition::Queued);
        assert_eq!(take("c", Urgency::High), Disposition::Pending);
        assert_eq!(take("d", Urgency::Critical), Disposition::Interrupted);
        for id in ["a", "b", "c", "d"] {
            assert_eq!(take(id, Urgency::Critical), Disposition::Duplicate);
        }
        assert_eq!(inbox.depth(), 2);
        let ids = |signals: Vec<Signal>| signals.into_iter().map(|s| s.id).collect::<Vec<_>>();
        assert_eq!(ids(inbox.boundary()), ["c"]);
        assert_eq!(ids(inbox.boundary()), [""; 0]);
        assert_eq!(ids(inbox.drain()), ["c", "b"]);
        assert_eq!(inbox.depth(), 0);
    }

    #[test]
    fn a_full_queue_drops_and_what_was_dropped_may_come_again() {
        let mut inbox = Inbox::default();
        for number in 0..MAX_QUEUE {
            let taken = inbox.take_in(&signal(&number.to_string(), Urgency::Normal));
            assert_eq!(taken, Disposition::Queued);
        }
        let late = signal("late", Urgency::Normal);
        assert_eq!(inbox.take_in(&late), Disposition::Dropped);
        assert_eq!(inbox.take_in(&late), Disposition::Dropped);
        assert_eq!(inbox.drain().len(), MAX_QUEUE);
        assert_eq!(inbox.take_in(&late), Disposition::Queued);
        assert_eq!(inbox.take_in(&late), Disposition::Duplicate);
    }

    #[test]
    fn memory_is_bounded() {
        let mut inbox = Inbox::default();
        for number in 0..3 * REMEMBERED {
            inbox.take_in(&signal(&number.to_string(), Urgency::Low));
        }
        assert_eq!(inbox.seen.len(), REMEMBERED);
        let last = (3 * REMEMBERED - 1).to_string();
        let again = inbox.take_in(&signal(&last, Urgency::Low));
        assert_eq!(again, Disposition::Duplicate);
    }
}
