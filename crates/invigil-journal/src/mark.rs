//! The durable mark: a record that is known to be on the medium. Old or missing, but never wrong.

use invigil_schema::Digest;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::chain::{Head, Position, TAIL, digest, tail_of};
use crate::segment::{self, DURABLE};
use crate::storage::{Storage, StorageFile, read_full, read_small};

/// A record that a sync has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// The segment, by its first record.
    pub(crate) segment: u64,
    /// Where the record ends in it.
    pub(crate) end: u64,
    /// The record.
    pub(crate) seq: u64,
    /// Its hash.
    pub(crate) hash: Digest,
}

/// Every mark has this size, so that rewriting it in place never leaves a piece of the one before.
const SIZE: usize = 256;

impl Mark {
    pub(crate) fn head(&self) -> Head {
        Head {
            seq: self.seq,
            hash: self.hash,
        }
    }

    pub(crate) fn position(&self) -> Position {
        Position {
            count: self.seq.saturating_add(1),
            hash: self.hash,
        }
    }

    /// The mark of a journal. One that cannot be read counts as none: it is never synced, and may be half of the new
    /// one and half of the old.
    pub(crate) fn load(storage: &dyn Storage) -> Result<Option<Mark>, Error> {
        let bytes = read_small(storage, DURABLE).map_err(Error::io("read", DURABLE))?;
        let line: Option<(Mark, Digest)> =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        match line {
            Some((mark, check)) if mark.check()? == check => Ok(Some(mark)),
            _ => Ok(None),
        }
    }

    /// What tells a mark from a mixture of two.
    fn check(&self) -> Result<Digest, Error> {
        let text = serde_json::to_vec(self).map_err(Error::Encode)?;
        Ok(digest(&text))
    }

    pub(crate) fn store(&self, storage: &dyn Storage) -> Result<(), Error> {
        let mut line = serde_json::to_vec(&(self, self.check()?)).map_err(Error::Encode)?;
        line.resize(SIZE - 1, b' ');
        line.push(b'\n');
        storage
            .put(DURABLE, &line)
            .map_err(Error::io("write", DURABLE))
    }

    /// Whether the record that the mark names is where the mark says.
    pub(crate) fn holds(&self, file: &dyn StorageFile) -> Result<bool, Error> {
        let Some(start) = self.end.checked_sub(TAIL as u64) else {
            return Ok(false);
        };
        let mut tail = [0; TAIL];
        let filled = read_full(file, &mut tail, start)
            .map_err(Error::io("read", segment::name(self.segment)))?;
        Ok(filled == TAIL && tail_of(&tail) == Some(self.hash))
    }
}
