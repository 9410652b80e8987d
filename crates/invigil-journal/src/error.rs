//! What can go wrong with one journal.

use std::io;

use invigil_schema::RunIdError;

use crate::chain::{Flaw, MAX_RECORD};

/// What can go wrong with one journal, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The medium said no.
    #[error("cannot {action} {name}: {source}")]
    Io {
        /// What was tried: `read`, `create`.
        action: &'static str,
        /// The file.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// An earlier write or sync failed; nothing more is recorded through this handle.
    #[error("the journal is poisoned: {0}")]
    Poisoned(String),
    /// An earlier sync failed, perhaps in another process; nothing may be appended any more.
    #[error("the journal is poisoned and takes no more records: {0}; start a new run")]
    Sealed(String),
    /// Another process owns this journal.
    #[error("another process is writing to this journal")]
    Busy,
    /// There is no journal here.
    #[error("there is no journal here: journal.ndjson is missing")]
    Missing,
    /// There is one already.
    #[error("there is a journal here already")]
    Exists,
    /// The record is larger than a record may be.
    #[error(
        "the record has {0} bytes, at most {max} are allowed: put the payload into a blob",
        max = MAX_RECORD
    )]
    TooLarge(usize),
    /// The event cannot be written as JSON.
    #[error("the event cannot be written as JSON: {0}")]
    Encode(#[source] serde_json::Error),
    /// A record is not what the chain says it must be.
    #[error("record {seq} is damaged ({segment}, byte {offset}): {flaw}")]
    Damaged {
        /// Its sequence number.
        seq: u64,
        /// The segment it should be in.
        segment: String,
        /// Where it begins.
        offset: u64,
        /// What is wrong.
        flaw: Flaw,
    },
    /// Records that were known to be on the medium are gone; this is not the work of a crash.
    #[error("records up to {seq} were durable and are no longer whole: run `invigil verify`")]
    DurableLost {
        /// The last record that was known to be durable.
        seq: u64,
    },
    /// Record 0 is whole but does not open a journal that this version can read.
    #[error("this is not a journal that this version can read: {0}")]
    Foreign(String),
    /// The first record names something that is no run id.
    #[error(transparent)]
    RunId(#[from] RunIdError),
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        name: impl Into<String>,
    ) -> impl FnOnce(io::Error) -> Error {
        let name = name.into();
        move |source| Error::Io {
            action,
            name,
            source,
        }
    }
}
