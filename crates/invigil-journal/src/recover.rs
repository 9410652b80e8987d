//! Opening for append: find the true end, and cut off what a crash has torn.

use std::io;
use std::sync::Arc;

use invigil_schema::{Digest, JournalRecovered};
use sha2::{Digest as _, Sha256};

use crate::Error;
use crate::chain::Position;
use crate::mark::Mark;
use crate::read::{Lines, Reader, end_before_room, last_position, opened};
use crate::segment::{self, POISONED};
use crate::storage::{Access, Storage, StorageFile, in_pieces, read_full, read_small, write_full};

/// The end of a journal, ready for the next record.
pub(crate) struct Tail {
    pub(crate) file: Arc<dyn StorageFile>,
    pub(crate) segment: u64,
    /// Where the last whole record ends.
    pub(crate) end: u64,
    /// Where the room behind it ends; there is none if that is not further.
    pub(crate) room: u64,
    pub(crate) position: Position,
}

impl Tail {
    /// Leaves nothing but records.
    pub(crate) fn cut_room(&mut self) -> io::Result<()> {
        if self.room > self.end {
            self.file.truncate(self.end)?;
            self.room = self.end;
        }
        Ok(())
    }

    /// Where that ends which is neither record nor room. A process that dies while it writes leaves the beginning of
    /// what it wrote, so that the first byte speaks for all; a loss of power leaves anything.
    fn torn_end(&self, after: After) -> Result<u64, Error> {
        if after == After::Others && self.is_followed_by_room()? {
            return Ok(self.end);
        }
        let end = end_before_room(&*self.file, self.end);
        end.map_err(Error::io("read", segment::name(self.segment)))
    }

    fn is_followed_by_room(&self) -> Result<bool, Error> {
        let mut byte = [0];
        let read = read_full(&*self.file, &mut byte, self.end);
        read.map_err(Error::io("read", segment::name(self.segment)))?;
        Ok(byte == *b"\n")
    }

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

/// Finds the end of a journal, and cuts off a torn tail. The caller holds the lock.
pub(crate) fn tail(storage: &Arc<dyn Storage>) -> Result<Tail, Error> {
    refuse_if_poisoned(&**storage)?;
    // Nothing is cut from, or added to, what this version cannot read.
    opened(&mut Reader::open(Arc::clone(storage))?)?;
    // Whoever began the last segment may have died before its name was durable.
    sync_names(&**storage)?;
    let (segments, _) = segment::list(&**storage)?;
    let last = segments[segments.len() - 1];
    let mark = Mark::load(&**storage)?;
    let file = segment::open(&**storage, last, Access::Write)?.ok_or(Error::Missing)?;
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
        room: end,
        position,
    };
    catch_up(storage, tail, After::AnyCrash).map(|(tail, _)| tail)
}

/// What may have happened since a place was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// A loss of power: any bytes may lie behind any others.
    AnyCrash,
    /// Other processes have written, and perhaps died of it.
    Others,
}

/// Goes on from a known place to the true end, through segments that others have begun, and cuts off a torn tail.
/// Says whether there was one. The caller holds the lock.
pub(crate) fn catch_up(
    storage: &Arc<dyn Storage>,
    mut tail: Tail,
    after: After,
) -> Result<(Tail, bool), Error> {
    loop {
        let size = tail
            .file
            .size()
            .map_err(Error::io("read", segment::name(tail.segment)))?;
        if size < tail.end {
            let seq = tail.position.count.saturating_sub(1);
            return Err(Error::DurableLost { seq });
        }
        tail.room = size;
        if size > tail.end && !tail.is_followed_by_room()? {
            scan(storage, &mut tail)?;
        }
        if size > tail.end {
            let torn = tail.torn_end(after)?;
            let is_torn = torn > tail.end;
            if is_torn {
                cut(&**storage, &mut tail, torn)?;
            }
            return Ok((tail, is_torn));
        }
        let next = tail.position.count;
        if next == tail.segment {
            return Ok((tail, false));
        }
        let Some(file) = segment::open(&**storage, next, Access::Write)? else {
            return Ok((tail, false));
        };
        sync_names(&**storage)?;
        tail = Tail {
            file,
            segment: next,
            end: 0,
            room: 0,
            position: tail.position,
        };
    }
}

pub(crate) fn refuse_if_poisoned(storage: &dyn Storage) -> Result<(), Error> {
    match read_small(storage, POISONED).map_err(Error::io("read", POISONED))? {
        None => Ok(()),
        Some(why) if why.is_empty() => Err(Error::Sealed("a sync failed".to_owned())),
        Some(why) => Err(Error::Sealed(
            String::from_utf8_lossy(&why).trim().to_owned(),
        )),
    }
}

/// Says for all time that a sync has failed here. If even that fails there is nothing left to try: the handle that
/// saw the failure refuses by itself.
pub(crate) fn poison(storage: &dyn Storage, why: &str) {
    if let Ok(file) = storage.create(POISONED) {
        // The name alone is enough: the reason may not fit on a full disk.
        drop(write_full(&*file, why.as_bytes(), 0));
        drop(file.sync());
        drop(storage.sync());
    }
}

/// Makes names durable. A failure is as final as that of a segment: a later sync may succeed without them.
pub(crate) fn sync_names(storage: &dyn Storage) -> Result<(), Error> {
    storage.sync().map_err(|error| {
        poison(storage, &format!("sync of the directory failed: {error}"));
        Error::io("sync", "the directory")(error)
    })
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

/// Copies the torn tail up to `torn` into a file of its own, durably, and only then cuts it off, and the room too.
fn cut(storage: &dyn Storage, tail: &mut Tail, torn: u64) -> Result<(), Error> {
    refuse_to_cut_durable(storage, tail)?;
    keep(storage, tail, torn)?;
    let name = segment::name(tail.segment);
    tail.cut_room().map_err(Error::io("cut", &*name))?;
    tail.file.sync().map_err(|error| {
        poison(storage, &format!("sync of {name} failed: {error}"));
        Error::io("sync", name)(error)
    })
}

/// A handle that is far behind the others may meet damage where no crash can have made it.
fn refuse_to_cut_durable(storage: &dyn Storage, tail: &Tail) -> Result<(), Error> {
    let (segments, _) = segment::list(storage)?;
    if let Some(later) = segments.iter().find(|&&first| first > tail.segment) {
        return Err(Error::DurableLost { seq: later - 1 });
    }
    match Mark::load(storage)? {
        Some(mark) if (mark.segment, mark.end) > (tail.segment, tail.end) => {
            Err(Error::DurableLost { seq: mark.seq })
        }
        _ => Ok(()),
    }
}

fn keep(storage: &dyn Storage, tail: &Tail, torn: u64) -> Result<(), Error> {
    for attempt in 0.. {
        let name = segment::torn(tail.position.count, attempt);
        let side = match storage.create(&name) {
            Ok(side) => side,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::io("create", name)(error)),
        };
        let mut at = 0;
        let copied = in_pieces(&*tail.file, tail.end..torn, |piece| {
            write_full(&*side, piece, at)?;
            at += piece.len() as u64;
            Ok(())
        });
        if let Err(error) = copied.and_then(|()| side.sync()) {
            drop(storage.remove(&name));
            return Err(Error::io("write", name)(error));
        }
        return sync_names(storage);
    }
    unreachable!("a directory holds fewer than 2^32 files")
}

/// Torn tails whose record is not there yet. It would be record `count`, the next one: each is named after the record
/// in whose place it was found, and the first one written there says so. A crash can come between the two.
pub(crate) fn unrecorded(
    storage: &dyn Storage,
    count: u64,
) -> Result<Vec<JournalRecovered>, Error> {
    let names = segment::torn_at(storage, count)?.into_iter();
    names.map(|name| describe(storage, name)).collect()
}

fn describe(storage: &dyn Storage, name: String) -> Result<JournalRecovered, Error> {
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let described = storage.open(&name, Access::Read).and_then(|file| {
        in_pieces(&*file, 0..file.size()?, |piece| {
            hash.update(piece);
            bytes += piece.len() as u64;
            Ok(())
        })
    });
    described.map_err(Error::io("read", &*name))?;
    Ok(JournalRecovered {
        bytes,
        file: name,
        sha256: Digest::from_bytes(hash.finalize().into()),
    })
}
