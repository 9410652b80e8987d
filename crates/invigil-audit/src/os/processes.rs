//! The processes of a run: all that live, and the newest of those that ended.

use std::collections::{BTreeMap, VecDeque};

use invigil_schema::{OsText, ProcessExec, ProcessExited, ProcessForked, ProcessRef};
use serde::{Deserialize, Serialize};

use super::{AnomalyKind, ProcessRow, ProcessState, ProcessTable};

/// As many processes that ended are remembered.
const ENDED_MAX: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Processes {
    started: u64,
    ended: u64,
    rows: Rows,
    /// Those of the rows that ended, oldest first.
    newest_ended: VecDeque<ProcessRef>,
    /// The run is paused.
    stopped: bool,
}

/// Rows by process; kept as a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Numbered>", into = "Vec<Numbered>")]
struct Rows(BTreeMap<ProcessRef, Numbered>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Numbered {
    /// Its place among all that were started.
    number: u64,
    /// A signal has stopped it, whatever becomes of the run.
    by_signal: bool,
    row: ProcessRow,
}

impl From<Vec<Numbered>> for Rows {
    fn from(rows: Vec<Numbered>) -> Self {
        let rows = rows.into_iter();
        Rows(rows.map(|one| (one.row.process, one)).collect())
    }
}

impl From<Rows> for Vec<Numbered> {
    fn from(rows: Rows) -> Self {
        rows.0.into_values().collect()
    }
}

impl Processes {
    pub(super) fn forked(&mut self, seq: u64, forked: &ProcessForked) {
        self.begin(seq, forked.process, forked.parent);
    }

    /// The record of a beginning can come after the first facts of the new process.
    fn begin(&mut self, seq: u64, process: ProcessRef, parent: Option<ProcessRef>) {
        let number = self.started;
        let state = match self.stopped {
            true => ProcessState::Stopped,
            false => ProcessState::Starting,
        };
        self.rows.0.entry(process).or_insert_with(|| {
            self.started += 1;
            let row = ProcessRow {
                process,
                parent,
                state,
                program: None,
                since: seq,
            };
            Numbered {
                number,
                by_signal: false,
                row,
            }
        });
    }

    pub(super) fn exec(&mut self, seq: u64, exec: &ProcessExec) -> Result<(), AnomalyKind> {
        self.begin(seq, exec.process, exec.parent);
        let Some(Numbered { row, .. }) = self.rows.0.get_mut(&exec.process) else {
            return Ok(());
        };
        if matches!(row.state, ProcessState::Exited { .. }) {
            return Err(AnomalyKind::AfterEnd);
        }
        row.program = Some(exec.executable.clone());
        row.state = match self.stopped {
            true => ProcessState::Stopped,
            false => ProcessState::Running,
        };
        row.since = seq;
        Ok(())
    }

    pub(super) fn exited(&mut self, seq: u64, exited: &ProcessExited) -> Result<(), AnomalyKind> {
        let Some(Numbered { row, .. }) = self.rows.0.get_mut(&exited.process) else {
            return Err(AnomalyKind::UnknownAgent);
        };
        if matches!(row.state, ProcessState::Exited { .. }) {
            return Err(AnomalyKind::DuplicateCompletion);
        }
        row.state = ProcessState::Exited {
            code: exited.exit_code,
            signal: exited.signal,
        };
        row.since = seq;
        self.ended += 1;
        self.newest_ended.push_back(exited.process);
        if self.newest_ended.len() > ENDED_MAX
            && let Some(oldest) = self.newest_ended.pop_front()
        {
            self.rows.0.remove(&oldest);
        }
        Ok(())
    }

    /// A process waits for somebody's answer, or does so no more.
    pub(super) fn waits(&mut self, seq: u64, process: ProcessRef, waits: bool) {
        let (stopped, row) = (self.stopped, self.rows.0.get_mut(&process));
        let Some(Numbered { row, .. }) = row else {
            return;
        };
        if matches!(row.state, ProcessState::Exited { .. } | ProcessState::Lost) {
            return;
        }
        row.state = match (waits, stopped) {
            (true, _) => ProcessState::Waiting,
            (false, true) => ProcessState::Stopped,
            (false, false) => running(row.program.as_ref()),
        };
        row.since = seq;
    }

    /// One of them is stopped, or goes on.
    pub(super) fn stop_one(&mut self, seq: u64, process: ProcessRef, stopped: bool) {
        let run_stopped = self.stopped;
        if let Some(Numbered { by_signal, row, .. }) = self.rows.0.get_mut(&process) {
            *by_signal = stopped;
            stop(row, seq, stopped || run_stopped);
        }
    }

    /// All of them are stopped, or go on.
    pub(super) fn stop(&mut self, seq: u64, stopped: bool) {
        self.stopped = stopped;
        for Numbered { by_signal, row, .. } in self.rows.0.values_mut() {
            stop(row, seq, stopped || *by_signal);
        }
    }

    /// The run is over: whose end was not seen is lost.
    pub(super) fn end(&mut self, seq: u64) {
        for Numbered { row, .. } in self.rows.0.values_mut() {
            if !matches!(row.state, ProcessState::Exited { .. }) {
                (row.state, row.since) = (ProcessState::Lost, seq);
            }
        }
    }

    pub(super) fn table(&self) -> ProcessTable {
        let mut rows: Vec<&Numbered> = self.rows.0.values().collect();
        rows.sort_unstable_by_key(|one| one.number);
        ProcessTable {
            started: self.started,
            ended: self.ended,
            rows: rows.into_iter().map(|one| one.row.clone()).collect(),
        }
    }
}

/// What waits goes on waiting, and what has ended stays so.
fn stop(row: &mut ProcessRow, seq: u64, stopped: bool) {
    let new = match (row.state, stopped) {
        (ProcessState::Starting | ProcessState::Running, true) => ProcessState::Stopped,
        (ProcessState::Stopped, false) => running(row.program.as_ref()),
        _ => return,
    };
    (row.state, row.since) = (new, seq);
}

fn running(program: Option<&OsText>) -> ProcessState {
    match program {
        Some(_) => ProcessState::Running,
        None => ProcessState::Starting,
    }
}
