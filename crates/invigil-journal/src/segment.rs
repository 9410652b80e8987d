//! Names of the files of one journal.

use std::io;
use std::sync::Arc;

use crate::Error;
use crate::storage::{Access, Storage, StorageFile};

/// The file that says why a journal takes no more records.
pub(crate) const POISONED: &str = "poisoned";
/// The file that holds the durable mark.
pub(crate) const DURABLE: &str = "durable";
const TORN: &str = "torn.";

/// The segment whose first record is `seq`.
pub(crate) fn name(seq: u64) -> String {
    match seq {
        0 => "journal.ndjson".to_owned(),
        seq => format!("journal.{seq:020}.ndjson"),
    }
}

/// The first sequence number of a segment, if this is the name of one.
pub(crate) fn first_of(file: &str) -> Option<u64> {
    if file == name(0) {
        return Some(0);
    }
    let digits = file.strip_prefix("journal.")?.strip_suffix(".ndjson")?;
    let seq = digits.parse().ok()?;
    (seq != 0 && name(seq) == file).then_some(seq)
}

/// A name for the torn tail that was found where record `seq` should be.
pub(crate) fn torn(seq: u64, attempt: u32) -> String {
    format!("{TORN}{seq}.{attempt}")
}

/// The torn tails that were found where record `seq` should be, in the order in which they were cut.
pub(crate) fn torn_at(storage: &dyn Storage, seq: u64) -> Result<Vec<String>, Error> {
    let names = storage.list().map_err(Error::io("list", "the journal"))?;
    let prefix = format!("{TORN}{seq}.");
    let attempt = |name: &String| name.strip_prefix(&prefix)?.parse::<u32>().ok();
    let mut attempts: Vec<u32> = names.iter().filter_map(attempt).collect();
    attempts.sort_unstable();
    Ok(attempts.into_iter().map(|n| torn(seq, n)).collect())
}

/// First sequence numbers of all segments in order, and how many torn tails lie beside them.
pub(crate) fn list(storage: &dyn Storage) -> Result<(Vec<u64>, usize), Error> {
    let names = storage.list().map_err(Error::io("list", "the journal"))?;
    let mut segments: Vec<u64> = names.iter().filter_map(|name| first_of(name)).collect();
    segments.sort_unstable();
    let torn = names.iter().filter(|name| name.starts_with(TORN)).count();
    if segments.first() != Some(&0) {
        return Err(Error::Missing);
    }
    Ok((segments, torn))
}

/// Opens a segment; nothing if there is none of that name.
pub(crate) fn open(
    storage: &dyn Storage,
    seq: u64,
    access: Access,
) -> Result<Option<Arc<dyn StorageFile>>, Error> {
    let name = name(seq);
    match storage.open(&name, access) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", name)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_there_and_back() {
        for seq in [0, 1, 104_857, u64::MAX] {
            assert_eq!(first_of(&name(seq)), Some(seq));
        }
        for foreign in [
            "journal.1.ndjson",
            "journal.00000000000000000000.ndjson",
            "journal.0000000000000000000x.ndjson",
            "journal.00000000000000000001.ndjson~",
            "torn.1.0",
            "lock",
        ] {
            assert_eq!(first_of(foreign), None, "{foreign}");
        }
    }
}
