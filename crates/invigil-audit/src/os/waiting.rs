//! What waits, and what it waits for.

use std::collections::{BTreeMap, VecDeque};

use invigil_schema::ProcessRef;
use serde::{Deserialize, Serialize};

use super::{AnomalyKind, ROWS_MAX, Suspension};

/// As many answered questions are remembered, to tell a second answer from one to a question that never was.
const CLOSED_MAX: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiting {
    /// The newest suspension, open or not.
    pub(super) last: Option<Suspension>,
    pub(super) last_resumed_turn: Option<u64>,
    /// Oldest first.
    pub(super) open: Vec<Suspension>,
    /// How many more are open than are listed.
    pub(super) left_out: u64,
    /// The process that a question keeps waiting.
    askers: BTreeMap<String, ProcessRef>,
    closed: VecDeque<String>,
}

impl Waiting {
    pub(super) fn suspend(&mut self, suspension: Suspension) {
        self.last = Some(suspension.clone());
        match self.open.len() < ROWS_MAX {
            true => self.open.push(suspension),
            false => self.left_out += 1,
        }
    }

    /// All that waits goes on. `named` is what it is about, where that is said.
    pub(super) fn resume<'a>(
        &mut self,
        turn: u64,
        named: impl Iterator<Item = &'a String>,
    ) -> Result<(), AnomalyKind> {
        if self.open.is_empty() {
            return Err(match self.last_resumed_turn {
                Some(_) => AnomalyKind::DuplicateCompletion,
                None => AnomalyKind::StaleCompletion,
            });
        }
        let pending = |call: &String| {
            let mut calls = self.open.iter().flat_map(|open| &open.pending_calls);
            calls.any(|pending| pending == call)
        };
        let mut named = named.peekable();
        if named.peek().is_some() && self.left_out == 0 && !named.any(pending) {
            return Err(AnomalyKind::StaleCompletion);
        }
        self.open.clear();
        self.left_out = 0;
        self.last_resumed_turn = Some(turn);
        Ok(())
    }

    /// A question is asked.
    pub(super) fn ask(&mut self, turn: u64, reason: &str, id: &str, asker: Option<ProcessRef>) {
        if let Some(asker) = asker {
            self.askers.insert(id.to_owned(), asker);
        }
        self.suspend(Suspension {
            turn,
            reason: reason.to_owned(),
            pending_calls: vec![id.to_owned()],
        });
    }

    /// One question is closed; who waited for it.
    pub(super) fn close(&mut self, turn: u64, id: &str) -> Result<Option<ProcessRef>, AnomalyKind> {
        let waits = |open: &Suspension| open.pending_calls.iter().any(|pending| pending == id);
        let Some(place) = self.open.iter().position(waits) else {
            let again = self.closed.iter().any(|closed| closed == id);
            return Err(match again {
                true => AnomalyKind::DuplicateCompletion,
                false => AnomalyKind::StaleCompletion,
            });
        };
        self.open.remove(place);
        self.last_resumed_turn = Some(turn);
        if self.closed.len() >= CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(id.to_owned());
        Ok(self.askers.remove(id))
    }

    /// Whether a process waits for another answer still.
    pub(super) fn waits(&self, process: ProcessRef) -> bool {
        self.askers.values().any(|asker| *asker == process)
    }

    /// The run is over; nothing waits any more.
    pub(super) fn end(&mut self) {
        self.open.clear();
        self.left_out = 0;
        self.askers.clear();
    }
}
