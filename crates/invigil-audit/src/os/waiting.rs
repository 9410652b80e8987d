//! What waits, and what it waits for.

use std::collections::VecDeque;

use invigil_schema::ProcessRef;
use serde::{Deserialize, Serialize};

use super::{AnomalyKind, ROWS_MAX, Suspension};

/// As many ended suspensions are remembered, to tell a second end from the end of something that never was.
const CLOSED_MAX: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiting {
    /// The newest suspension, open or not.
    pub(super) last: Option<Suspension>,
    pub(super) last_resumed_turn: Option<u64>,
    /// Oldest first.
    open: Vec<Open>,
    /// How many more are open than are listed.
    pub(super) left_out: u64,
    closed: VecDeque<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    /// What names it, where it can be closed by itself.
    id: Option<String>,
    /// The process that it keeps waiting.
    process: Option<ProcessRef>,
    suspension: Suspension,
}

impl Waiting {
    pub(super) fn open(&self) -> impl Iterator<Item = &Suspension> {
        self.open.iter().map(|open| &open.suspension)
    }

    pub(super) fn suspend(&mut self, id: Option<&str>, suspension: Suspension) {
        self.push(id, None, suspension);
    }

    /// A question is asked.
    pub(super) fn ask(&mut self, turn: u64, reason: &str, id: &str, process: Option<ProcessRef>) {
        let suspension = Suspension {
            turn,
            reason: reason.to_owned(),
            pending_calls: vec![id.to_owned()],
        };
        self.push(Some(id), process, suspension);
    }

    fn push(&mut self, id: Option<&str>, process: Option<ProcessRef>, suspension: Suspension) {
        self.last = Some(suspension.clone());
        if self.open.len() >= ROWS_MAX {
            self.left_out += 1;
            return;
        }
        self.open.push(Open {
            id: id.map(str::to_owned),
            process,
            suspension,
        });
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
            let mut calls = self.open().flat_map(|open| &open.pending_calls);
            calls.any(|pending| pending == call)
        };
        let mut named = named.peekable();
        if named.peek().is_some() && self.left_out == 0 && !named.any(pending) {
            return Err(AnomalyKind::StaleCompletion);
        }
        self.end();
        self.last_resumed_turn = Some(turn);
        Ok(())
    }

    /// One of them goes on; the process that has waited.
    pub(super) fn close(&mut self, turn: u64, id: &str) -> Result<Option<ProcessRef>, AnomalyKind> {
        let mut open = self.open.iter();
        let Some(place) = open.position(|open| open.id.as_deref() == Some(id)) else {
            return self.close_unlisted(turn, id);
        };
        let closed = self.open.remove(place);
        self.remember(turn, id);
        Ok(closed.process)
    }

    fn close_unlisted(&mut self, turn: u64, id: &str) -> Result<Option<ProcessRef>, AnomalyKind> {
        if self.closed.iter().any(|closed| closed == id) {
            return Err(AnomalyKind::DuplicateCompletion);
        }
        if self.left_out == 0 {
            return Err(AnomalyKind::StaleCompletion);
        }
        self.left_out -= 1;
        self.remember(turn, id);
        Ok(None)
    }

    fn remember(&mut self, turn: u64, id: &str) {
        self.last_resumed_turn = Some(turn);
        if self.closed.len() >= CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(id.to_owned());
    }

    /// Whether a process waits for another answer still.
    pub(super) fn waits(&self, process: ProcessRef) -> bool {
        self.open.iter().any(|open| open.process == Some(process))
    }

    /// Whether something waits for one of these reasons.
    pub(super) fn has(&self, reasons: &[&str]) -> bool {
        self.open()
            .any(|open| reasons.contains(&open.reason.as_str()))
    }

    /// The run is over; nothing waits any more.
    pub(super) fn end(&mut self) {
        self.open.clear();
        self.left_out = 0;
    }
}
