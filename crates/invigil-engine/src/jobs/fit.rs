//! What goes into a record, which has room for a mebibyte: what is too large is kept as a blob, or cut.

use invigil_journal::{BlobError, StoreError};
use invigil_schema::{Digest, JobOutput};
use serde_json::Value;

use super::Executor;

/// More bytes than this are kept as a blob, beside the record.
const INLINE: usize = 64 * 1024;
/// No message is longer than this in a record.
const MESSAGE: usize = 16 * 1024;

/// Why something could not be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum FitError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Executor {
    /// A value for a record: as it is, or null and the blob that has it as JSON, without secrets.
    pub(super) fn fitted(&self, value: Value) -> Result<(Value, Option<Digest>), FitError> {
        if serde_json::to_vec(&value)?.len() <= INLINE {
            return Ok((value, None));
        }
        // What stands in front of a secret in JSON may hide it, so it is the value that is looked at.
        let redacted = serde_json::to_vec(&self.redactor.value(value))?;
        let blob = self.engine.store.blobs()?.put(&redacted)?;
        Ok((Value::Null, Some(blob)))
    }

    /// What a job gave, for a record.
    pub(super) fn kept_output(&self, data: Value) -> Result<JobOutput, FitError> {
        let (data, blob) = self.fitted(data)?;
        Ok(JobOutput {
            data,
            blob,
            message: None,
        })
    }
}

/// A message for a record.
pub(super) fn short(message: &str) -> String {
    match message.len() <= MESSAGE {
        true => message.to_owned(),
        false => format!("{}…", &message[..message.floor_char_boundary(MESSAGE)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(short("short"), "short");
        let long = "ü".repeat(MESSAGE);
        let cut = short(&long);
        assert!(cut.len() <= MESSAGE + 3 && cut.ends_with("ü…"), "{cut}");
    }
}
