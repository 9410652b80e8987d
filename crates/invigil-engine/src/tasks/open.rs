//! A task that is held: its journal is locked, and what is recorded of it is durable.

use std::path::{Path, PathBuf};

use invigil_journal::{Journal, RunRef};
use invigil_schema::{Contract, Event, Origin, TaskContract};

use super::settings::Settings;
use super::{CANCEL, LOOK, OWN, TOLD_TO_STOP, TaskError, UNWANTED, in_directory};
use crate::held::Bell;
use crate::jobs::Cancel;
use crate::redact::Redactor;
use crate::run::redactor;

/// A task that nobody else works on.
pub(super) struct Open {
    journal_ref: RunRef,
    journal: Journal,
    redactor: Redactor,
}

impl Open {
    pub(super) fn new(journal_ref: RunRef, journal: Journal) -> Result<Open, TaskError> {
        Ok(Open {
            journal_ref,
            journal,
            redactor: redactor().map_err(TaskError::Random)?,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        self.journal_ref.directory()
    }

    /// Where Invigil's own repository of the task is, for a git that runs somewhere else.
    pub(super) fn own(&self) -> PathBuf {
        let path = self.directory().join(OWN);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Does something that can be cancelled, by the file too.
    pub(super) fn attentive<T>(&self, cancel: &Cancel, work: impl FnOnce() -> T) -> T {
        let (over, file) = (Bell::default(), self.directory().join(CANCEL));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.wait(LOOK) {
                    if file.exists() {
                        cancel.cancel();
                    }
                }
            });
            let worked = work();
            over.ring();
            worked
        })
    }

    /// Why it was cancelled.
    pub(super) fn stopped(&self) -> String {
        let asked = self.directory().join(CANCEL).exists();
        let why = if asked { UNWANTED } else { TOLD_TO_STOP };
        why.to_owned()
    }

    /// On record, durably.
    pub(super) fn append(&self, origin: Origin, event: &Event) -> Result<(), TaskError> {
        let ticket = self.journal.append(origin, &self.redactor.event(event))?;
        Ok(ticket.durable()?)
    }
}

/// A contract that nobody has agreed with yet.
pub(super) fn put(open: &Open, contract: &Contract) -> Result<(), TaskError> {
    keep(open, contract)?;
    let data = TaskContract {
        contract: contract.clone(),
        derived: true,
        confirmed: false,
    };
    open.append(Origin::Runtime, &data.into())
}

/// The journal has it without secrets; checks are run with its exact words.
pub(super) fn keep(open: &Open, contract: &Contract) -> Result<(), TaskError> {
    let kept = Settings::keep_contract(open.directory(), contract);
    kept.map_err(in_directory(open.directory()))
}
