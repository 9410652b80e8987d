//! Reads the journal behind the screen: from the start to the end and on as it grows, checking the chain.
//!
//! Of each record one byte is kept, and every few thousand records a copy of the state of the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use invigil_audit::{
    Fact, Moment, MomentDoc, Notable, OsSnapshot, OsView, Timeline, TimelineDoc, View as _,
};
use invigil_journal::{Reader, Record, RunRef};
use invigil_schema::Origin;

/// So many records are taken in before the screen gets to see them.
const BATCH: usize = 2048;
/// Between two looks at the end.
const PAUSE: Duration = Duration::from_millis(50);
/// How many copies of the state there are at most.
const COPIES: usize = 128;
/// The distance between two of them to begin with.
const DISTANCE: u64 = 8192;

/// What is kept of a record: its layer, and what a person looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u8);

impl Mark {
    const REFUSED: u8 = 0x80;
    const ASKED: u8 = 0x40;

    fn new(origin: Origin, notable: Option<Notable>) -> Mark {
        Mark(match notable {
            Some(Notable::Refused) => layer(origin) | Self::REFUSED,
            Some(Notable::Asked) => layer(origin) | Self::ASKED,
            None => layer(origin),
        })
    }

    /// Whether it is of one of these layers.
    pub(super) fn is_in(self, layers: u8) -> bool {
        self.0 & layers != 0
    }

    pub(super) fn is(self, notable: Notable) -> bool {
        match notable {
            Notable::Refused => self.0 & Self::REFUSED != 0,
            Notable::Asked => self.0 & Self::ASKED != 0,
        }
    }
}

/// A layer as a bit, in the order in which people are told of them.
pub(super) fn layer(origin: Origin) -> u8 {
    match origin {
        Origin::Kernel => 1,
        Origin::Runtime => 2,
        Origin::Sdk => 4,
        Origin::Client => 8,
        Origin::User => 16,
    }
}

/// All layers.
pub(super) const LAYERS: u8 = 31;

/// How a run stands after some record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) os: OsSnapshot,
    pub(super) moment: MomentDoc,
}

/// Folds facts into a [`Standing`].
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    os: OsView,
    moment: Moment,
}

impl State {
    pub(super) fn take(&mut self, fact: &Fact<'_>) {
        self.os.take(fact);
        self.moment.take(fact);
    }

    pub(super) fn standing(&self) -> Standing {
        Standing {
            os: self.os.snapshot(),
            moment: self.moment.document(),
        }
    }
}

/// What is known of the journal so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// One for each record that was read.
    pub(super) marks: Vec<Mark>,
    /// All of them along the time.
    pub(super) timeline: Option<TimelineDoc>,
    /// Whether the end was reached, for now.
    pub(super) whole: bool,
    /// What is wrong behind the last record that was read.
    pub(super) damage: Option<String>,
    /// Whether somebody writes.
    pub(super) live: bool,
    /// Changes whenever something here does.
    pub(super) version: u64,
    copies: Copies,
}

impl Known {
    /// The state after the first `count` records, or after fewer, and after how many.
    pub(super) fn state_before(&self, count: u64) -> (u64, State) {
        let copies = &self.copies.all;
        match copies
            .partition_point(|(at, _)| *at <= count)
            .checked_sub(1)
        {
            Some(last) => copies[last].clone(),
            None => (0, State::default()),
        }
    }
}

/// Copies of the state at equal distances; twice as far from each other when there are too many.
#[derive(Debug)]
struct Copies {
    distance: u64,
    all: Vec<(u64, State)>,
}

impl Default for Copies {
    fn default() -> Self {
        Copies {
            distance: DISTANCE,
            all: Vec::new(),
        }
    }
}

impl Copies {
    fn offer(&mut self, count: u64, state: &State) {
        if !count.is_multiple_of(self.distance) {
            return;
        }
        self.all.push((count, state.clone()));
        if self.all.len() > COPIES {
            self.distance *= 2;
            let distance = self.distance;
            self.all.retain(|(count, _)| count.is_multiple_of(distance));
        }
    }
}

/// The thread that reads, and what it has found.
#[derive(Debug)]
pub(super) struct Reading {
    known: Arc<Mutex<Known>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    /// Begins to read. Nothing is known yet when this returns.
    pub(super) fn start(run: &RunRef) -> std::io::Result<Reading> {
        let known = Arc::new(Mutex::new(Known::default()));
        let over = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            run: run.clone(),
            known: Arc::clone(&known),
            over: Arc::clone(&over),
            timeline: Timeline::default(),
            state: State::default(),
            count: 0,
        };
        let thread = thread::Builder::new().name("reading".into());
        let thread = thread.spawn(move || worker.work())?;
        Ok(Reading {
            known,
            over,
            thread: Some(thread),
        })
    }

    /// Whether the thread has ended although nothing was wrong: then it has panicked.
    pub(super) fn has_died(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        ended && self.known().damage.is_none()
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    run: RunRef,
    known: Arc<Mutex<Known>>,
    over: Arc<AtomicBool>,
    timeline: Timeline,
    state: State,
    count: u64,
}

impl Worker {
    fn work(mut self) {
        let mut reader = match Reader::open(self.run.storage()) {
            Ok(reader) => reader,
            Err(error) => return self.tell(&[], &[], true, Some(error.to_string())),
        };
        let mut told = false;
        while !self.over.load(Ordering::Relaxed) {
            let (mut marks, mut copies) = (Vec::with_capacity(BATCH), Vec::new());
            let mut damage = None;
            while marks.len() < BATCH {
                match reader.next() {
                    Ok(Some(record)) => match self.take(record) {
                        Ok(mark) => marks.push(mark),
                        Err(error) => {
                            damage = Some(error.to_string());
                            break;
                        }
                    },
                    Ok(None) => break,
                    Err(error) => {
                        damage = Some(error.to_string());
                        break;
                    }
                }
                if self.count.is_multiple_of(DISTANCE) {
                    copies.push((self.count, self.state.clone()));
                }
            }
            let whole = marks.len() < BATCH;
            let news = !marks.is_empty() || damage.is_some() || !told;
            if news {
                told = whole;
                let end = damage.is_some();
                self.tell(&marks, &copies, whole, damage);
                if end {
                    return;
                }
            }
            if whole {
                self.look(news);
                thread::sleep(PAUSE);
            }
        }
    }

    fn take(&mut self, record: Record<'_>) -> Result<Mark, invigil_journal::Error> {
        let envelope = record.envelope()?;
        let event = envelope.event();
        let fact = Fact::of(&envelope, &event);
        self.timeline.take(&fact);
        self.state.take(&fact);
        self.count += 1;
        Ok(Mark::new(fact.origin, fact.notable()))
    }

    fn tell(&self, marks: &[Mark], copies: &[(u64, State)], whole: bool, damage: Option<String>) {
        let timeline = self.timeline.document();
        let mut known = lock(&self.known);
        known.marks.extend_from_slice(marks);
        for (count, state) in copies {
            known.copies.offer(*count, state);
        }
        known.timeline = Some(timeline);
        known.whole = whole;
        known.damage = damage;
        known.version += 1;
    }

    /// Whether somebody writes. To look takes the lock for a moment where it is free, so it is not done without need.
    fn look(&self, news: bool) {
        if !news && !lock(&self.known).live {
            return;
        }
        let live = self.run.is_live();
        let mut known = lock(&self.known);
        if known.live != live {
            known.live = live;
            known.version += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_get_rarer_and_never_many() {
        let mut copies = Copies::default();
        for n in 1..=10_000 {
            copies.offer(n * DISTANCE, &State::default());
            assert!(copies.all.len() <= COPIES);
        }
        let counts: Vec<u64> = copies.all.iter().map(|(count, _)| *count).collect();
        assert_eq!(counts[0], copies.distance);
        assert!(
            counts
                .windows(2)
                .all(|two| two[1] - two[0] == copies.distance)
        );
        assert!(counts.len() > COPIES / 3);
    }

    #[test]
    fn a_mark_is_a_layer_and_what_it_stands_for() {
        let mark = Mark::new(Origin::Kernel, Some(Notable::Refused));
        assert!(mark.is_in(layer(Origin::Kernel)) && mark.is_in(LAYERS));
        assert!(!mark.is_in(LAYERS & !layer(Origin::Kernel)));
        assert!(mark.is(Notable::Refused) && !mark.is(Notable::Asked));
    }
}
