//! What the kernel says of a job, in short: which processes there were, and what was refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use invigil_sandbox::{Sink, SinkError};
use invigil_schema::{Event, ObserverStarted, Origin, OsText, ProcessRef, Refused, Spawned};

/// More than this of a kind is only counted.
const SHOWN: usize = 256;
/// And no more bytes of paths than fit into a record.
const BYTES: usize = 256 * 1024;

/// A fold over the facts of a job.
#[derive(Debug, Default)]
pub(super) struct Seen {
    first: Option<ProcessRef>,
    spawned: Vec<Spawned>,
    places: HashMap<ProcessRef, usize>,
    /// All processes but the first.
    pub(super) processes: u64,
    pub(super) refused: Vec<Refused>,
    /// Of the paths that are shown.
    bytes: usize,
    pub(super) started: Option<ObserverStarted>,
}

impl Seen {
    /// Takes one fact over.
    pub(super) fn take(&mut self, event: &Event) {
        match event {
            Event::ProcessForked(forked) => {
                let Some(parent) = forked.parent else {
                    self.first = Some(forked.process);
                    return;
                };
                self.processes += 1;
                if self.spawned.len() < SHOWN {
                    self.places.insert(forked.process, self.spawned.len());
                    self.spawned.push(Spawned {
                        pid: forked.process.pid,
                        parent: parent.pid,
                        program: None,
                        exit_code: None,
                        signal: None,
                    });
                }
            }
            Event::ProcessExec(exec) => {
                if self.has_room_for(&exec.executable)
                    && let Some(spawned) = self.at(exec.process)
                {
                    spawned.program = Some(exec.executable.clone());
                }
            }
            Event::ProcessExited(exited) => {
                if let Some(spawned) = self.at(exited.process) {
                    (spawned.exit_code, spawned.signal) = (exited.exit_code, exited.signal);
                }
            }
            Event::AccessDenied(denied)
                if self.refused.len() < SHOWN && self.has_room_for(&denied.target) =>
            {
                self.refused.push(Refused {
                    target: denied.target.clone(),
                    rule: denied.rule.clone(),
                });
            }
            Event::ObserverStarted(started) => self.started = Some(started.clone()),
            _ => {}
        }
    }

    /// Whether one more path can be shown.
    fn has_room_for(&mut self, path: &OsText) -> bool {
        let bytes = self.bytes + path.as_bytes().len();
        let fits = bytes <= BYTES;
        if fits {
            self.bytes = bytes;
        }
        fits
    }

    fn at(&mut self, process: ProcessRef) -> Option<&mut Spawned> {
        let place = *self.places.get(&process)?;
        self.spawned.get_mut(place)
    }

    pub(super) fn take_spawned(&mut self) -> Vec<Spawned> {
        std::mem::take(&mut self.spawned)
    }
}

/// The same, while the facts come in.
#[derive(Debug, Clone, Default)]
pub(super) struct Watching(Arc<Mutex<Seen>>);

impl Watching {
    /// What was seen so far; nothing of it is left behind.
    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink for Watching {
    fn fact(&mut self, _: Origin, event: Event) -> Result<(), SinkError> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.take(&event);
        Ok(())
    }
}
