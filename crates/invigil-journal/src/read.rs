//! Reading: whole lines only, without a lock, checked against the chain as they come.

use std::ops::Range;
use std::sync::Arc;

use invigil_schema::{Digest, Envelope, Event};

use crate::Error;
use crate::chain::{Flaw, Head, MAX_RECORD, Position, sequence_of, tail_of};
use crate::segment;
use crate::storage::{Access, Storage, StorageFile, in_pieces, read_full};

const CHUNK: usize = 256 * 1024;

/// Reads the records of a journal in order and checks each against the one before.
///
/// At the end [`Reader::next`] returns nothing; called again later it returns what has been added since, so that the
/// same reader also follows. It never sees half a record and never makes a writer wait.
pub struct Reader {
    lines: Lines,
    position: Position,
}

/// One record, as it stands in the journal.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Its sequence number.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
    pub(crate) line: &'a [u8],
}

impl<'a> Record<'a> {
    /// The exact bytes, without the newline.
    pub fn line(&self) -> &'a [u8] {
        self.line
    }

    /// Parses the line.
    pub fn envelope(&self) -> Result<Envelope<'a>, Error> {
        Envelope::parse(self.line)
            .map_err(|error| Error::Foreign(format!("record {}: {error}", self.seq)))
    }
}

impl Reader {
    /// From record 0.
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self, Error> {
        let lines = Lines::open(storage, 0, 0, 0)?.ok_or(Error::Missing)?;
        Ok(Reader {
            lines,
            position: Position::default(),
        })
    }

    /// From record `seq`, found without a scan from the start. Nothing if record `seq - 1` does not exist yet.
    ///
    /// The hash of the record before is taken as it stands there; what follows is checked against it.
    pub fn open_at(storage: Arc<dyn Storage>, seq: u64) -> Result<Option<Self>, Error> {
        let Some(before) = seq.checked_sub(1) else {
            return Reader::open(storage).map(Some);
        };
        match Reader::open_behind(Arc::clone(&storage), before) {
            // The end may have been written over meanwhile.
            Err(Error::Damaged { .. }) => Reader::open_behind(storage, before),
            other => other,
        }
    }

    fn open_behind(storage: Arc<dyn Storage>, before: u64) -> Result<Option<Self>, Error> {
        let (segments, _) = segment::list(&*storage)?;
        let first = segments[segments.partition_point(|&first| first <= before) - 1];
        let Some(mut lines) = Lines::find(storage, first, before)? else {
            return Ok(None);
        };
        let Some(line) = lines.next_line()? else {
            return Ok(None);
        };
        let hash = match tail_of(&lines.buffer[line.clone()]) {
            Some(hash) => hash,
            None if lines.only_room_behind(line.end)? => return Ok(None),
            None => return Err(lines.damaged(line.start, before, Flaw::Unsealed)),
        };
        Ok(Some(Reader {
            lines,
            position: Position {
                count: before + 1,
                hash,
            },
        }))
    }

    /// How many records there are, as the last one says. Found without a scan from the start, and so without a check of
    /// the chain: whoever reads on finds out whether it is true.
    pub fn count(storage: Arc<dyn Storage>) -> Result<u64, Error> {
        let (segments, _) = segment::list(&*storage)?;
        let last = segments.last().copied().unwrap_or_default();
        let mut count = last;
        if let Some(mut lines) = Lines::open(storage, last, 0, last)? {
            lines.approach(u64::MAX)?;
            while let Some(seq) = lines.line_in_segment(last)?.and_then(sequence_of) {
                count = seq.saturating_add(1);
            }
        }
        Ok(count)
    }

    /// The next record, if it is there yet. After damage every call reports the same damage.
    #[expect(
        clippy::should_implement_trait,
        reason = "a record borrows from the reader"
    )]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let mut before = None;
        let line = loop {
            match self.advance() {
                Ok(line) => break line,
                // Room is written over and a torn tail cut while one reads. What two looks find alike is damage.
                Err((Error::Damaged { .. }, length)) if before != Some(length) => {
                    before = Some(length);
                }
                Err((error, _)) => return Err(error),
            }
        };
        Ok(line.map(|line| Record {
            seq: self.position.count - 1,
            hash: self.position.hash,
            line: &self.lines.buffer[line.start..line.end - 1],
        }))
    }

    /// The place in the buffer of the next record, or what is wrong and how long the line is that should be it. Damage
    /// is forgotten, so that the next call looks anew.
    fn advance(&mut self) -> Result<Option<Range<usize>>, (Error, usize)> {
        let fresh = self.lines.start == self.lines.end;
        let Some(line) = self.lines.next_line().map_err(|error| (error, 0))? else {
            return Ok(None);
        };
        let flaw = match self.position.check(&self.lines.buffer[line.clone()]) {
            Ok(position) => {
                self.position = position;
                return Ok(Some(line));
            }
            Err(flaw) => flaw,
        };
        let unsealed = flaw == Flaw::Unsealed;
        let error = self.lines.damaged(line.start, self.position.count, flaw);
        self.lines.reread(line.start);
        if unsealed && !fresh {
            // It was so a while ago. Since then it may have been written over, or cut off for the next segment.
            return self.advance();
        }
        // Room, or a record that is being written over it.
        let ended = || Ok(unsealed && self.lines.only_room_behind(line.len())?);
        match ended() {
            Ok(true) => Ok(None),
            Ok(false) => Err((error, line.len())),
            Err(error) => Err((error, 0)),
        }
    }

    /// The last record that was returned.
    pub fn head(&self) -> Option<Head> {
        self.position.head()
    }

    /// Where reading stands: segment, by its first record, and offset.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.lines.segment, self.lines.offset_of(self.lines.start))
    }

    /// How many bytes lie behind the last whole record that are not room.
    pub(crate) fn unfinished(&self) -> Result<u64, Error> {
        let (_, offset) = self.place();
        Ok(self.lines.end_before_room(offset)? - offset)
    }
}

/// The first record of a journal: which run it is of.
pub(crate) fn opened(reader: &mut Reader) -> Result<invigil_schema::JournalOpened, Error> {
    let Some(record) = reader.next()? else {
        let (segment, offset) = reader.place();
        return Err(Error::Damaged {
            seq: 0,
            segment: segment::name(segment),
            offset,
            flaw: Flaw::Absent,
        });
    };
    match record.envelope()?.event() {
        Event::JournalOpened(opened) if opened.format == invigil_schema::JOURNAL_FORMAT => {
            Ok(opened)
        }
        Event::JournalOpened(opened) => Err(Error::Foreign(format!("format {}", opened.format))),
        other => Err(Error::Foreign(format!(
            "record 0 is of kind {:?}",
            other.kind()
        ))),
    }
}

/// Whole lines, across segments.
pub(crate) struct Lines {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    segment: u64,
    /// The number that the next line should have; names the next segment.
    next: u64,
    buffer: Vec<u8>,
    /// The file's offset of `buffer[0]`.
    base: u64,
    start: usize,
    scanned: usize,
    end: usize,
}

impl Lines {
    /// Starts at `offset` of a segment, where record `next` should begin. Nothing if there is no such segment.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        segment: u64,
        offset: u64,
        next: u64,
    ) -> Result<Option<Self>, Error> {
        let Some(file) = segment::open(&*storage, segment, Access::Read)? else {
            return Ok(None);
        };
        Ok(Some(Lines {
            storage,
            file,
            segment,
            next,
            buffer: Vec::new(),
            base: offset,
            start: 0,
            scanned: 0,
            end: 0,
        }))
    }

    /// Stands in front of record `target` of a segment, found by bisection. Nothing if the segment ends before it.
    fn find(storage: Arc<dyn Storage>, segment: u64, target: u64) -> Result<Option<Self>, Error> {
        let Some(mut lines) = Lines::open(storage, segment, 0, segment)? else {
            return Ok(None);
        };
        lines.approach(target)?;
        loop {
            let Some(line) = lines.next_line()? else {
                return Ok(None);
            };
            match sequence_of(&lines.buffer[line.clone()]) {
                Some(seq) if seq == target => {
                    lines.next = target + 1;
                    lines.reread(line.start);
                    return Ok(Some(lines));
                }
                Some(seq) if seq < target => lines.next = seq + 1,
                Some(found) => {
                    return Err(lines.damaged(line.start, target, Flaw::Sequence { found }));
                }
                None if lines.only_room_behind(line.end)? => return Ok(None),
                None => return Err(lines.damaged(line.start, target, Flaw::Unsealed)),
            }
        }
    }

    /// Stands at most a chunk in front of record `target` of this segment, or of its end if that comes first.
    fn approach(&mut self, target: u64) -> Result<(), Error> {
        let read_error = || Error::io("read", segment::name(self.segment));
        // The line at `low` has a number of at most `target`; one that begins behind `high` has a larger one.
        let (mut low, mut next) = (0, self.segment);
        let mut high = self.file.size().map_err(read_error())?;
        while high - low > CHUNK as u64 {
            let middle = low + (high - low) / 2;
            match line_behind(&*self.file, middle).map_err(read_error())? {
                Some((start, seq)) if seq <= target => (low, next) = (start, seq),
                _ => high = middle,
            }
        }
        (self.base, self.next) = (low, next);
        Ok(())
    }

    /// The place in the buffer of the next whole line, newline included.
    pub(crate) fn next_line(&mut self) -> Result<Option<Range<usize>>, Error> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..self.end]) {
                let line = self.start..self.scanned + at + 1;
                if line.len() > MAX_RECORD {
                    return Err(self.too_long());
                }
                (self.start, self.scanned) = (line.end, line.end);
                self.next += 1;
                return Ok(Some(line));
            }
            self.scanned = self.end;
            if self.end - self.start > MAX_RECORD {
                return Err(self.too_long());
            }
            if self.fill()? > 0 {
                continue;
            }
            if self.end > self.start {
                // Half a line. It may be cut and written over, so it is not kept.
                self.reread_from(self.start);
                return Ok(None);
            }
            let here = self.segment == self.next;
            match segment::open(&*self.storage, self.next, Access::Read)? {
                Some(file) if !here => self.enter(file),
                _ => return Ok(None),
            }
        }
    }

    /// The next whole line, unless it is in another segment.
    pub(crate) fn line_in_segment(&mut self, segment: u64) -> Result<Option<&[u8]>, Error> {
        match self.next_line()? {
            Some(line) if self.segment == segment => Ok(Some(&self.buffer[line])),
            _ => Ok(None),
        }
    }

    /// Whether nothing but room lies behind a place in the buffer, as the file is now.
    fn only_room_behind(&self, index: usize) -> Result<bool, Error> {
        let offset = self.offset_of(index);
        Ok(self.end_before_room(offset)? == offset)
    }

    fn end_before_room(&self, offset: u64) -> Result<u64, Error> {
        let end = end_before_room(&*self.file, offset);
        end.map_err(Error::io("read", segment::name(self.segment)))
    }

    fn fill(&mut self) -> Result<usize, Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.scanned -= self.start;
        self.start = 0;
        if self.buffer.len() < self.end + CHUNK {
            // Fresh zeros cost nothing until they are touched.
            let mut larger = vec![0; self.end + CHUNK];
            larger[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = larger;
        }
        let offset = self.offset_of(self.end);
        let read = read_full(&*self.file, &mut self.buffer[self.end..], offset)
            .map_err(Error::io("read", segment::name(self.segment)))?;
        self.end += read;
        Ok(read)
    }

    fn enter(&mut self, file: Arc<dyn StorageFile>) {
        self.file = file;
        self.segment = self.next;
        self.base = 0;
        (self.start, self.scanned, self.end) = (0, 0, 0);
    }

    /// Goes back to a line that was just returned, and forgets what was read of it.
    fn reread(&mut self, start: usize) {
        self.next = self.next.saturating_sub(1);
        self.reread_from(start);
    }

    fn reread_from(&mut self, start: usize) {
        self.base = self.offset_of(start);
        (self.start, self.scanned, self.end) = (0, 0, 0);
    }

    fn offset_of(&self, index: usize) -> u64 {
        self.base + index as u64
    }

    /// Nothing of such a line is kept: the next call looks anew.
    fn too_long(&mut self) -> Error {
        let error = self.damaged(self.start, self.next, Flaw::TooLong);
        self.reread_from(self.start);
        error
    }

    fn damaged(&self, start: usize, seq: u64, flaw: Flaw) -> Error {
        Error::Damaged {
            seq,
            segment: segment::name(self.segment),
            offset: self.offset_of(start),
            flaw,
        }
    }
}

/// Where the room begins that a file ends in, looking no further back than `offset`.
pub(crate) fn end_before_room(file: &dyn StorageFile, offset: u64) -> std::io::Result<u64> {
    let (mut at, mut end) = (offset, offset);
    in_pieces(file, offset..u64::MAX, |piece| {
        if let Some(last) = piece.iter().rposition(|&byte| byte != b'\n') {
            end = at + last as u64 + 1;
        }
        at += piece.len() as u64;
        Ok(())
    })?;
    Ok(end)
}

/// The first line that begins behind `offset`: where, and its number.
fn line_behind(file: &dyn StorageFile, offset: u64) -> std::io::Result<Option<(u64, u64)>> {
    const NUMBER: usize = 32;
    let mut window = vec![0; 16 * 1024];
    let mut at = offset;
    loop {
        let filled = read_full(file, &mut window, at)?;
        if let Some(newline) = memchr::memchr(b'\n', &window[..filled]) {
            let start = at + newline as u64 + 1;
            let mut number = [0; NUMBER];
            let filled = read_full(file, &mut number, start)?;
            return Ok(sequence_of(&number[..filled]).map(|seq| (start, seq)));
        }
        if filled < window.len() || at - offset > MAX_RECORD as u64 {
            return Ok(None);
        }
        at += filled as u64;
    }
}

/// The place behind the last line of a finished segment, as that line states it.
pub(crate) fn last_position(file: &dyn StorageFile) -> std::io::Result<Option<Position>> {
    let size = file.size()?;
    let mut window = 4096;
    loop {
        let start = size.saturating_sub(window);
        let mut bytes = vec![0; (size - start) as usize];
        let filled = read_full(file, &mut bytes, start)?;
        bytes.truncate(filled);
        let Some(hash) = tail_of(&bytes) else {
            return Ok(None);
        };
        let before = memchr::memrchr(b'\n', &bytes[..bytes.len() - 1]);
        let line = match before {
            Some(newline) => &bytes[newline + 1..],
            None if start == 0 => &bytes[..],
            None if window > MAX_RECORD as u64 => return Ok(None),
            None => {
                window *= 8;
                continue;
            }
        };
        let count = sequence_of(line).and_then(|seq| seq.checked_add(1));
        return Ok(count.map(|count| Position { count, hash }));
    }
}
