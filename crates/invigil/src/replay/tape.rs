//! A journal by number: any record, any state, without reading what lies between.

use std::collections::BTreeMap;
use std::io;

use aho_corasick::AhoCorasick;
use anstream::adapter::strip_str;
use invigil_audit::{Fact, Notable, TimelineDoc};
use invigil_journal::{Error, Reader, Record, RunRef, StoreError};
use invigil_schema::{Event, Origin, ProcessRef, Timestamp};

use super::reading::{LAYERS, Mark, Reading, Standing, State, layer};
use crate::describe::describe;

/// How many rows are kept.
const ROWS: usize = 4096;
/// The distance between states that are kept near where one stands.
const STEP: u64 = 256;
/// How many of them.
const STEPS: usize = 512;

/// One record, ready to be shown. What is in it is still in the words of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) seq: u64,
    pub(super) time: Timestamp,
    pub(super) origin: Origin,
    pub(super) kind: String,
    /// Whether this version knows the kind.
    pub(super) known: bool,
    /// What happened, in one line, without anything that could steer a terminal.
    pub(super) what: String,
    /// The data, word for word.
    pub(super) data: String,
    pub(super) notable: Option<Notable>,
    /// Who did it.
    pub(super) process: Option<ProcessRef>,
}

/// How a search stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sought {
    Found(u64),
    /// Not yet: go on from here.
    Further(u64),
    Nowhere,
}

/// A journal by number.
#[derive(Debug)]
pub(super) struct Tape {
    run: RunRef,
    reading: Reading,
    /// How many records there seem to be; the thread that reads has the last word.
    count: u64,
    rows: BTreeMap<u64, Row>,
    near: Vec<(u64, State)>,
    standing: Option<(u64, Standing)>,
    /// What a look at a single record has met.
    damage: Option<(u64, String)>,
}

impl Tape {
    pub(super) fn open(run: RunRef) -> Result<Tape, StoreError> {
        let count = match Reader::count(run.storage()) {
            // The thread that reads says what is wrong.
            Err(Error::Damaged { .. }) => 0,
            count => count.map_err(|error| run.error(error))?,
        };
        let reading = Reading::start(&run).map_err(|source| {
            let (action, name) = ("start a thread for", "the journal".to_owned());
            run.error(Error::Io {
                action,
                name,
                source,
            })
        })?;
        Ok(Tape {
            run,
            reading,
            count,
            rows: BTreeMap::new(),
            near: Vec::new(),
            standing: None,
            damage: None,
        })
    }

    pub(super) fn run(&self) -> &RunRef {
        &self.run
    }

    /// How many records there are, as far as is known.
    pub(super) fn count(&self) -> u64 {
        let known = self.reading.known();
        let read = known.marks.len() as u64;
        if known.whole {
            return read;
        }
        let good = self.damage.as_ref().map_or(u64::MAX, |(seq, _)| *seq);
        self.count.min(good).max(read)
    }

    /// How many were read and checked.
    pub(super) fn read(&self) -> u64 {
        self.reading.known().marks.len() as u64
    }

    pub(super) fn is_live(&self) -> bool {
        self.reading.known().live
    }

    /// Whether the end was reached, for now.
    pub(super) fn is_whole(&self) -> bool {
        self.reading.known().whole
    }

    /// Whether nothing is read any more, for a reason that is no damage.
    pub(super) fn has_died(&self) -> bool {
        self.reading.has_died()
    }

    /// Changes whenever there is something new to show.
    pub(super) fn version(&self) -> u64 {
        self.reading.known().version
    }

    /// What is wrong behind the last good record. What a single look has met may be an end that was being written; the
    /// thread that reads knows better as soon as it is there.
    pub(super) fn damage(&self) -> Option<String> {
        let known = self.reading.known();
        if known.whole || known.damage.is_some() {
            return known.damage.clone();
        }
        let read = known.marks.len() as u64;
        let ahead = self.damage.as_ref().filter(|(seq, _)| *seq >= read);
        ahead.map(|(_, text)| text.clone())
    }

    pub(super) fn timeline(&self) -> Option<TimelineDoc> {
        self.reading.known().timeline.clone()
    }

    /// The nearest record from `from` on, or back, that is of these layers and, if wanted, notable. Only what was read
    /// is known.
    pub(super) fn nearest(
        &self,
        from: u64,
        forward: bool,
        layers: u8,
        notable: Option<Notable>,
    ) -> Option<u64> {
        if layers == LAYERS && notable.is_none() {
            return (from < self.count()).then_some(from);
        }
        let fits = |mark: &Mark| mark.is_in(layers) && notable.is_none_or(|it| mark.is(it));
        let known = self.reading.known();
        let from = usize::try_from(from).ok()?;
        let found = match forward {
            true => {
                let rest = known.marks.get(from..)?;
                rest.iter().position(fits).map(|at| from + at)
            }
            false => {
                let end = known.marks.len().min(from + 1);
                known.marks[..end].iter().rposition(fits)
            }
        };
        found.map(|at| at as u64)
    }

    /// Up to `rows` records of these layers around one: where the first stands does not depend on where one came from.
    pub(super) fn around(&mut self, at: u64, rows: usize, layers: u8) -> Vec<Row> {
        let mut before = Vec::new();
        let mut place = at.checked_sub(1);
        while before.len() < rows
            && let Some(from) = place
            && let Some(seq) = self.nearest(from, false, layers, None)
        {
            before.push(seq);
            place = seq.checked_sub(1);
        }
        let mut after = Vec::new();
        let mut place = at;
        while after.len() < rows
            && let Some(seq) = self.nearest(place, true, layers, None)
        {
            after.push(seq);
            place = seq + 1;
        }
        let above = (rows / 2).max(rows.saturating_sub(after.len()));
        before.truncate(above);
        before.reverse();
        before.extend(after);
        before.truncate(rows);
        before.into_iter().filter_map(|seq| self.row(seq)).collect()
    }

    /// One record.
    pub(super) fn row(&mut self, seq: u64) -> Option<Row> {
        if !self.rows.contains_key(&seq) {
            if self.rows.len() > ROWS {
                self.rows.clear();
            }
            self.load(seq);
        }
        self.rows.get(&seq).cloned()
    }

    /// Takes in a record and some behind it: they are probably wanted next.
    fn load(&mut self, seq: u64) {
        const AHEAD: u64 = 64;
        let mut rows = Vec::new();
        let end = self.each(seq, seq + AHEAD, |record| {
            rows.push(row(record)?);
            Ok(())
        });
        self.rows.extend(rows.into_iter().map(|row| (row.seq, row)));
        if let Err(Error::Damaged { seq, .. }) = &end {
            let text = end.as_ref().map_err(Error::to_string).err();
            self.damage = text.map(|text| (*seq, text));
        }
    }

    /// Hands on the records from `from` up to `end`, or fewer if there are not so many.
    fn each(
        &self,
        from: u64,
        end: u64,
        mut take: impl FnMut(Record<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(mut reader) = Reader::open_at(self.run.storage(), from)? else {
            return Ok(());
        };
        for _ in from..end {
            match reader.next()? {
                Some(record) => take(record)?,
                None => break,
            }
        }
        Ok(())
    }

    /// How the run stands after a record; nothing if it was not read yet.
    pub(super) fn standing(&mut self, seq: u64) -> Option<&Standing> {
        if self.standing.as_ref().is_none_or(|(at, _)| *at != seq) {
            if seq >= self.read() {
                return None;
            }
            let state = self.state(seq + 1)?;
            self.standing = Some((seq, state.standing()));
        }
        self.standing.as_ref().map(|(_, standing)| standing)
    }

    /// The state after the first `count` records.
    fn state(&mut self, count: u64) -> Option<State> {
        let (mut at, mut state) = self.reading.known().state_before(count);
        let near = self.near.partition_point(|(near, _)| *near <= count);
        match near.checked_sub(1).map(|last| &self.near[last]) {
            Some((nearer, known)) if *nearer >= at => (at, state) = (*nearer, known.clone()),
            _ => self.near.clear(),
        }
        let mut passed = Vec::new();
        let read = self.each(at, count, |record| {
            let envelope = record.envelope()?;
            let event = envelope.event();
            state.take(&Fact::of(&envelope, &event));
            at += 1;
            if at.is_multiple_of(STEP) {
                passed.push((at, state.clone()));
            }
            Ok(())
        });
        let last = self.near.last().map_or(0, |(at, _)| *at);
        self.near
            .extend(passed.into_iter().filter(|(at, _)| *at > last));
        if self.near.len() > STEPS {
            self.near.drain(..STEPS / 2);
        }
        (read.is_ok() && at == count).then_some(state)
    }

    /// Looks for a text in kinds and data of at most `budget` records, from `from` on or back.
    pub(super) fn search(
        &self,
        needle: &Needle,
        from: u64,
        forward: bool,
        layers: u8,
        budget: u64,
    ) -> Sought {
        let end = self.count();
        let range = match forward {
            true => from..end.min(from.saturating_add(budget)),
            false => (from + 1).saturating_sub(budget)..end.min(from + 1),
        };
        let mut found = None;
        let looked = self.each(range.start, range.end, |record| {
            if (found.is_none() || !forward) && needle.is_in(record, layers)? {
                found = Some(record.seq);
            }
            Ok(())
        });
        match found {
            Some(seq) => Sought::Found(seq),
            // Damage ends the search as the end does.
            None if looked.is_err() => Sought::Nowhere,
            None if forward && range.end < end => Sought::Further(range.end),
            None if !forward && range.start > 0 => Sought::Further(range.start - 1),
            None => Sought::Nowhere,
        }
    }
}

/// A text to look for, without regard to case.
#[derive(Debug, Clone)]
pub(super) struct Needle(AhoCorasick);

impl Needle {
    pub(super) fn new(text: &str) -> io::Result<Needle> {
        let mut builder = AhoCorasick::builder();
        let built = builder.ascii_case_insensitive(true).build([text]);
        built.map(Needle).map_err(io::Error::other)
    }

    fn is_in(&self, record: Record<'_>, layers: u8) -> Result<bool, Error> {
        let envelope = record.envelope()?;
        let visible = layer(envelope.origin) & layers != 0;
        Ok(visible && (self.0.is_match(&*envelope.kind) || self.0.is_match(envelope.data.get())))
    }
}

fn row(record: Record<'_>) -> Result<Row, Error> {
    let envelope = record.envelope()?;
    let event = envelope.event();
    let fact = Fact::of(&envelope, &event);
    Ok(Row {
        seq: record.seq,
        time: envelope.time,
        origin: envelope.origin,
        kind: envelope.kind.to_string(),
        known: !matches!(event, Event::Unknown { .. }),
        what: strip_str(&describe(&event, envelope.time)).to_string(),
        data: envelope.data.get().to_owned(),
        notable: fact.notable(),
        process: actor(&event),
    })
}

/// The process that an event is about.
fn actor(event: &Event) -> Option<ProcessRef> {
    match event {
        Event::ProcessForked(it) => Some(it.process),
        Event::ProcessExec(it) => Some(it.process),
        Event::ExecFailed(it) => Some(it.process),
        Event::ProcessExited(it) => Some(it.process),
        Event::FileOp(it) => Some(it.process),
        Event::NetOp(it) => Some(it.process),
        Event::AccessDenied(it) => Some(it.process),
        Event::ApprovalRequested(it) => Some(it.process),
        Event::ObserverNote(it) => it.process,
        Event::SdkEvent(it) => it.process,
        _ => None,
    }
}
