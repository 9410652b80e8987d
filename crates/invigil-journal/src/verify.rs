//! Checking everything, from record 0, and changing nothing.

use std::sync::Arc;

use invigil_schema::{Digest, RunId};

use crate::Error;
use crate::chain::{Flaw, Head};
use crate::mark::Mark;
use crate::read::{Reader, opened};
use crate::segment;
use crate::storage::Storage;

/// What a journal is checked against besides itself.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The run it must be of.
    pub run_id: Option<RunId>,
    /// A head that was known earlier: this record must be there and have this hash.
    pub head: Option<Head>,
    /// The same, when only the hash is known.
    pub head_hash: Option<Digest>,
    /// A writer may be at work, so an unfinished last record is no damage.
    pub live: bool,
}

/// What was checked and found whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The run it is of.
    pub run_id: RunId,
    /// The last record.
    pub head: Head,
    /// How many bytes.
    pub bytes: u64,
    /// How many segments.
    pub segments: usize,
    /// How many torn tails lie beside the journal.
    pub torn: usize,
}

/// The first thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} is bad ({segment}, byte {offset}): {what}")]
pub struct Damage {
    /// The first bad sequence number; of missing records the first.
    pub seq: u64,
    /// The segment it is, or should be, in.
    pub segment: String,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// Why a journal was not found whole.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It is damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// It could not be read.
    #[error(transparent)]
    Unreadable(Error),
}

impl From<Error> for VerifyError {
    fn from(error: Error) -> Self {
        match error {
            Error::Damaged {
                seq,
                segment,
                offset,
                flaw,
            } => VerifyError::Damaged(Damage {
                seq,
                segment,
                offset,
                what: flaw.to_string(),
            }),
            Error::Foreign(what) => VerifyError::Damaged(Damage {
                seq: 0,
                segment: segment::name(0),
                offset: 0,
                what,
            }),
            other => VerifyError::Unreadable(other),
        }
    }
}

/// Checks a journal from its first record to its last. Memory does not grow with its length.
pub fn verify(storage: Arc<dyn Storage>, expected: &Expected) -> Result<Report, VerifyError> {
    // The mark is read first, so that it cannot be newer than what is read after it.
    let mark = Mark::load(&*storage)?;
    // The segments too: whatever lies in front of one of these was finished before it was begun.
    let (segments, torn) = segment::list(&*storage)?;
    let mut reader = Reader::open(Arc::clone(&storage))?;
    let opened = opened(&mut reader)?;
    let mut wanted = Wanted::new(expected, mark.map(|mark| mark.head()));
    if let Some(run_id) = expected.run_id.as_ref().filter(|id| **id != opened.run_id) {
        let what = format!("it is of run {}, not of {run_id}", opened.run_id);
        return Err(damage(&reader, 0, what));
    }
    if let Some(what) = reader.head().and_then(|head| wanted.meet(head)) {
        return Err(damage(&reader, 0, what));
    }
    let mut bytes = 0;
    let (mut segment, _) = reader.place();
    let mut finished = reader.place().1;
    while let Some(head) = check_next(&mut reader, &mut wanted)? {
        let (now, offset) = reader.place();
        if now != segment {
            bytes += finished;
            segment = now;
        }
        finished = offset;
        debug_assert_eq!(Some(head), reader.head());
    }
    bytes += finished;
    let head = reader.head().ok_or(Error::Missing)?;
    let missing = head.seq + 1;
    // The last segment may be empty: its writer died before the first record. The reader stands in it all the same.
    let (last, _) = reader.place();
    if let Some(stray) = segments.iter().find(|&&first| first > last) {
        let what = format!("{}, but {} follows", Flaw::Absent, segment::name(*stray));
        return Err(damage(&reader, missing, what));
    }
    if !expected.live {
        let unfinished = reader.unfinished()?;
        if unfinished > 0 {
            let what = format!("{}: {unfinished} bytes of it are there", Flaw::Unterminated);
            return Err(damage(&reader, missing, what));
        }
    }
    if let Some(what) = wanted.unmet() {
        return Err(damage(&reader, missing, what));
    }
    Ok(Report {
        run_id: opened.run_id,
        head,
        bytes,
        segments: segments.len(),
        torn,
    })
}

fn check_next(reader: &mut Reader, wanted: &mut Wanted) -> Result<Option<Head>, VerifyError> {
    let head = match reader.next()? {
        Some(record) => Head {
            seq: record.seq,
            hash: record.hash,
        },
        None => return Ok(None),
    };
    match wanted.meet(head) {
        Some(what) => Err(damage(reader, head.seq, what)),
        None => Ok(Some(head)),
    }
}

fn damage(reader: &Reader, seq: u64, what: String) -> VerifyError {
    let (segment, offset) = reader.place();
    VerifyError::Damaged(Damage {
        seq,
        segment: segment::name(segment),
        offset,
        what,
    })
}

/// Heads that must be met on the way.
struct Wanted {
    heads: Vec<(Head, &'static str)>,
    hash: Option<Digest>,
}

impl Wanted {
    fn new(expected: &Expected, mark: Option<Head>) -> Self {
        let remembered = expected.head.map(|head| (head, "the remembered head"));
        let durable = mark.map(|head| (head, "the durable mark"));
        Wanted {
            heads: remembered.into_iter().chain(durable).collect(),
            hash: expected.head_hash,
        }
    }

    fn meet(&mut self, head: Head) -> Option<String> {
        if self.hash == Some(head.hash) {
            self.hash = None;
        }
        let at = self
            .heads
            .iter()
            .position(|(want, _)| want.seq == head.seq)?;
        let (want, whose) = self.heads.swap_remove(at);
        if want.hash == head.hash {
            // Both may want the same record.
            return self.meet(head);
        }
        Some(format!("{whose} has another hash here: {}", want.hash))
    }

    fn unmet(&self) -> Option<String> {
        if let Some((want, whose)) = self.heads.iter().min_by_key(|(want, _)| want.seq) {
            return Some(format!("{}: {whose} is record {}", Flaw::Absent, want.seq));
        }
        let hash = self.hash?;
        Some(format!(
            "no record has the hash {hash}: the journal was cut or rewritten"
        ))
    }
}
