//! The one way into a run's journal while it goes on: redacted, chained, and in the page cache before the answer.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use invigil_journal::{Error, Head, Journal};
use invigil_sandbox::{Sink, SinkError};
use invigil_schema::{Event, Origin, ProcessRef};

use crate::approvals::Desk;
use crate::control::Control;
use crate::guard::Guard;
use crate::processes::Processes;
use crate::redact::Redactor;
use crate::reported::Reported;
use crate::steer::Helm;
use crate::written::Written;

/// Records what is seen, said and decided in one run.
pub(crate) struct Recorder {
    /// None when it is closed.
    journal: RwLock<Option<Journal>>,
    redactor: Redactor,
    control: Control,
    pub(crate) processes: Processes,
    written: Mutex<Written>,
    failure: OnceLock<String>,
}

impl Recorder {
    pub(crate) fn new(journal: Journal, redactor: Redactor, control: Control) -> Self {
        Recorder {
            journal: RwLock::new(Some(journal)),
            redactor,
            control,
            processes: Processes::default(),
            written: Mutex::default(),
            failure: OnceLock::new(),
        }
    }

    /// Returns when the record survives the death of every process. If it cannot be written, the run is killed: what
    /// is not on the record does not happen.
    pub(crate) fn record(&self, origin: Origin, event: &Event) -> Result<(), Error> {
        self.record_at(origin, event).map(drop)
    }

    /// The same; the number of the record.
    pub(crate) fn record_at(&self, origin: Origin, event: &Event) -> Result<u64, Error> {
        let event = self.redactor.event(event);
        let journal = self.journal.read().unwrap_or_else(PoisonError::into_inner);
        let written = match &*journal {
            Some(journal) => journal
                .append(origin, &event)
                .and_then(|ticket| ticket.written().map(|()| ticket.seq())),
            None => Err(closed()),
        };
        written.inspect_err(|error| self.fail(error))
    }

    /// For threads that have nobody to tell.
    pub(crate) fn try_record(&self, origin: Origin, event: &Event) {
        // A failure has killed the run already, and is told at its end.
        drop(self.record(origin, event));
    }

    fn fail(&self, error: &Error) {
        self.failure.get_or_init(|| error.to_string());
        self.control.kill();
    }

    /// Why not everything could be recorded.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The files that were written; none are left behind.
    pub(crate) fn take_written(&self) -> Written {
        std::mem::take(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes everything durable. No more records come.
    pub(crate) fn close(&self) -> Result<Head, Error> {
        let journal = self
            .journal
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        journal.map_or_else(|| Err(closed()), Journal::close)
    }
}

fn closed() -> Error {
    Error::Poisoned("it was closed".to_owned())
}

/// The kernel's facts, each behind what was reported before it; the desk must know who is dead, the helm what is
/// about to happen, and the guard what it has to work with.
pub(crate) struct Facts {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) reported: Reported,
    pub(crate) desk: Desk,
    pub(crate) helm: Helm,
    pub(crate) guard: Option<Arc<Guard>>,
    /// Whether what is left is killed when the command itself has ended.
    pub(crate) leftovers: Option<Root>,
}

/// The process that the command itself is.
#[derive(Debug, Default)]
pub(crate) struct Root(Option<ProcessRef>);

impl Root {
    /// Whether this is the end of the command.
    pub(crate) fn ends(&mut self, event: &Event) -> bool {
        match event {
            Event::ProcessForked(first) if first.parent.is_none() => {
                self.0.get_or_insert(first.process);
                false
            }
            Event::ProcessExited(exited) => self.0 == Some(exited.process),
            _ => false,
        }
    }
}

impl Sink for Facts {
    fn fact(&mut self, origin: Origin, event: Event) -> Result<(), SinkError> {
        let recorder = &self.recorder;
        // Who connects through the observer is known by the fact of it, and then asked for by what is reported.
        recorder.processes.take(&event);
        self.reported.before(&event);
        recorder
            .written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(&event);
        recorder.record(origin, &event)?;
        self.desk.fact(&event);
        self.helm.fact(&event);
        if let (Event::ObserverStarted(started), Some(guard)) = (&event, &self.guard) {
            let enforced = guard.enforced(started);
            recorder.record(Origin::Runtime, &enforced.into())?;
        }
        if self
            .leftovers
            .as_mut()
            .is_some_and(|root| root.ends(&event))
        {
            recorder.control.kill();
        }
        Ok(())
    }
}
