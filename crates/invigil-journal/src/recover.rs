//! Opening for append: find the true end, and cut off what a crash has torn.

use std::sync::Arc;

use invigil_schema::JournalRecovered;

use crate::Error;
use crate::chain::{Position, digest};
use crate::mark::Mark;
use crate::read::{Lines, last_position};
use crate::segment::{self, POISONED};
use crate::storage::{Access, Storage, StorageFile, append_all, read_full, read_small};

/// The end of a journal, ready for the next record.
pub(crate) struct Tail {
    pub(crate) file: Arc<dyn StorageFile>,
    pub(crate) segment: u64,
    /// Where the last whole record ends.
    pub(crate) end: u64,
    pub(crate) position: Position,
}

impl Tail {
    /// The last record, as a mark. None in a segment without one: then the segment before is durable already.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let head = self.position.head().filter(|_| self.end > 0)?;
        Some(Mark {
            segment: self.segment,
            end: self.end,
            seq: head.seq,
            hash: head.hash,
        })
    }
}

/// Finds the end of a journal. The caller holds the lock.
pub(crate) fn tail(storage: &Arc<dyn Storage>) -> Result<(Tail, Option<JournalRecovered>), Error> {
    refuse_if_poisoned(&**storage)?;
    let (segments, _) = segment::list(&**storage)?;
    let last = segments[segments.len() - 1];
    let mark = Mark::load(&**storage)?;
    let file = segment::open(&**storage, last, Access::Append)?.ok_or(Error::Missing)?;
    let (end, position) = match mark {
        Some(mark) if mark.segment == last => {
            if !mark.holds(&*file)? {
                return Err(Error::DurableLost { seq: mark.seq });
            }
            (mark.end, mark.position())
        }
        Some(mark) if mark.segment > last => return Err(Error::DurableLost { seq: mark.seq }),
        _ if last == 0 => (0, Position::default()),
        _ => (0, end_of(&**storage, segments[segments.len() - 2], last)?),
    };
    let tail = Tail {
        file,
        segment: last,
        end,
        position,
    };
    catch_up(storage, tail)
}

/// Goes on from a known place to the true end, through segments that others have begun, and cuts off a torn tail.
/// The caller holds the lock.
pub(crate) fn catch_up(
    storage: &Arc<dyn Storage>,
    mut tail: Tail,
) -> Result<(Tail, Option<JournalRecovered>), Error> {
    loop {
        scan(storage, &mut tail)?;
        let size = tail
            .file
            .size()
            .map_err(Error::io("read", segment::name(tail.segment)))?;
        if size < tail.end {
            let seq = tail.position.count.saturating_sub(1);
            return Err(Error::DurableLost { seq });
        }
        if size > tail.end {
            let recovered = cut(&**storage, &tail, size)?;
            return Ok((tail, Some(recovered)));
        }
        let next = tail.position.count;
        if next == tail.segment {
            return Ok((tail, None));
        }
        let Some(file) = segment::open(&**storage, next, Access::Append)? else {
            return Ok((tail, None));
        };
        tail = Tail {
            file,
            segment: next,
            end: 0,
            position: tail.position,
        };
    }
}

pub(crate) fn refuse_if_poisoned(storage: &dyn Storage) -> Result<(), Error> {
    match read_small(storage, POISONED).map_err(Error::io("read", POISONED))? {
        None => Ok(()),
        Some(why) => Err(Error::Sealed(
            String::from_utf8_lossy(&why).trim().to_owned(),
        )),
    }
}

/// Says for all time that a sync has failed here. If even that fails there is nothing left to try: the handle that
/// saw the failure refuses by itself.
pub(crate) fn poison(storage: &dyn Storage, why: &str) {
    let written = storage.create(POISONED).and_then(|file| {
        append_all(&*file, why.as_bytes())?;
        file.sync()?;
        storage.sync()
    });
    drop(written);
}

/// Moves `tail` behind the last whole record of its segment.
fn scan(storage: &Arc<dyn Storage>, tail: &mut Tail) -> Result<(), Error> {
    let lines = Lines::open(
        Arc::clone(storage),
        tail.segment,
        tail.end,
        tail.position.count,
    )?;
    let mut lines = lines.ok_or(Error::Missing)?;
    loop {
        let line = match lines.line_in_segment(tail.segment) {
            Ok(Some(line)) => line,
            // Whatever has no end within the limit is no record.
            Ok(None) | Err(Error::Damaged { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        match tail.position.check(line) {
            Ok(position) => {
                tail.end += line.len() as u64;
                tail.position = position;
            }
            Err(_) => return Ok(()),
        }
    }
}

/// The place behind the last record of a segment that is finished, because `next` follows it.
fn end_of(storage: &dyn Storage, segment: u64, next: u64) -> Result<Position, Error> {
    let name = segment::name(segment);
    let file = segment::open(storage, segment, Access::Read)?.ok_or(Error::Missing)?;
    match last_position(&*file).map_err(Error::io("read", name))? {
        Some(position) if position.count == next => Ok(position),
        _ => Err(Error::DurableLost { seq: next - 1 }),
    }
}

/// Moves the torn tail into a file of its own, durably, and only then cuts it off.
fn cut(storage: &dyn Storage, tail: &Tail, size: u64) -> Result<JournalRecovered, Error> {
    let name = segment::name(tail.segment);
    let mut bytes = vec![0; (size - tail.end) as usize];
    let filled = read_full(&*tail.file, &mut bytes, tail.end).map_err(Error::io("read", &*name))?;
    bytes.truncate(filled);
    let side = keep(storage, tail.position.count, &bytes)?;
    tail.file
        .truncate(tail.end)
        .map_err(Error::io("cut", &*name))?;
    if let Err(error) = tail.file.sync() {
        poison(storage, &format!("sync of {name} failed: {error}"));
        return Err(Error::io("sync", name)(error));
    }
    Ok(JournalRecovered {
        bytes: bytes.len() as u64,
        file: side,
        sha256: digest(&bytes),
    })
}

fn keep(storage: &dyn Storage, seq: u64, bytes: &[u8]) -> Result<String, Error> {
    for attempt in 0.. {
        let name = segment::torn(seq, attempt);
        let file = match storage.create(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::io("create", name)(error)),
        };
        append_all(&*file, bytes)
            .and_then(|()| file.sync())
            .and_then(|()| storage.sync())
            .map_err(Error::io("write", &*name))?;
        return Ok(name);
    }
    unreachable!("a directory holds fewer than 2^32 files")
}
