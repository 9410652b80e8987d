//! Appending: one buffer, one chain, and whoever first needs the bytes written or durable does it for everybody.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use invigil_schema::{
    Digest, Event, JOURNAL_FORMAT, JournalOpened, JournalRecovered, Origin, RunId,
};

use crate::Error;
use crate::chain::{Head, Position};
use crate::clock::Clock;
use crate::mark::Mark;
use crate::recover::{self, After, Tail};
use crate::segment;
use crate::storage::{Sharing, Storage, StorageFile, write_full};

/// A full buffer is written by the thread that filled it.
const BUFFER: usize = 256 * 1024;
/// The durable mark is renewed when it is this far behind.
const MARK_EVERY: u64 = 256 * 1024;
/// So many small syncs in a row are worth room for the next ones.
const OFTEN: u32 = 4;
/// How often the background thread finds nothing to do before it sleeps for good.
const IDLE_ROUNDS: u32 = 20;

/// How a journal is written.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who else may append.
    pub sharing: Sharing,
    /// A segment of this size or more gets no further records.
    pub segment_bytes: u64,
    /// How long a record that nobody waits for may stay unsynced. Without it, and in a shared journal, until someone
    /// asks or closes.
    pub sync_after: Option<Duration>,
    /// How much room a journal that is synced often keeps ahead. Syncs of up to a quarter of it count. 0 for none.
    pub room_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            sharing: Sharing::Exclusive,
            segment_bytes: 64 * 1024 * 1024,
            sync_after: Some(Duration::from_millis(50)),
            room_bytes: 256 * 1024,
        }
    }
}

/// A journal that is open for appending. Dropping it writes and syncs what is left; [`Journal::close`] says how that
/// went.
pub struct Journal {
    shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
}

/// A record on its way. Until [`Ticket::written`] or [`Ticket::durable`] has returned, it may only be in memory.
#[derive(Clone)]
#[must_use = "an append promises nothing until its ticket says so"]
pub struct Ticket {
    shared: Arc<Shared>,
    head: Head,
}

impl Ticket {
    /// The record's number; of a batch, the last one's.
    pub fn seq(&self) -> u64 {
        self.head.seq
    }

    /// The record's hash.
    pub fn hash(&self) -> Digest {
        self.head.hash
    }

    /// Returns when the bytes are in the page cache: they survive the death of every process.
    pub fn written(&self) -> Result<(), Error> {
        let mut state = self.shared.state();
        if state.written > self.seq() {
            return Ok(());
        }
        self.shared.write_out(&mut state)
    }

    /// Returns when the bytes are on the medium: they survive the machine.
    pub fn durable(&self) -> Result<(), Error> {
        self.shared.make_durable(self.seq() + 1)
    }
}

struct Shared {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    options: Options,
    state: Mutex<State>,
    /// Why a sync failed. Held during each, so that there is one at a time: the kernel tells of a failure once, and
    /// whoever comes second would hear that all is well.
    failed_sync: Mutex<Option<String>>,
    /// A sync has ended, well or not.
    synced: Condvar,
    /// There is something to sync after a pause, or nothing ever again.
    wake: Condvar,
}

struct State {
    /// The end of the written part.
    tail: Tail,
    /// The end of the chain, buffered records included.
    chain: Position,
    /// Records behind `tail`, sealed and not yet written.
    buffer: Vec<u8>,
    /// How many records are in the page cache.
    written: u64,
    /// How many records are on the medium.
    durable: u64,
    /// Where this handle has last set a mark.
    marked: (u64, u64),
    /// Where the last sync began.
    synced: u64,
    /// How many small syncs there were in a row.
    small_syncs: u32,
    syncing: bool,
    background_sleeps: bool,
    closed: bool,
    poison: Option<String>,
}

impl Journal {
    /// Begins a journal in an empty directory. Its first record is durable when this returns.
    pub fn create(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        options: Options,
        run_id: &RunId,
        writer: &str,
    ) -> Result<Journal, Error> {
        let lock = Lock::take(&storage, options.sharing)?;
        recover::refuse_if_poisoned(&*storage)?;
        let name = segment::name(0);
        let file = match storage.create(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists);
            }
            Err(error) => return Err(Error::io("create", name)(error)),
        };
        let tail = Tail {
            file,
            segment: 0,
            end: 0,
            room: 0,
            position: Position::default(),
        };
        let shared = Arc::new(Shared::new(Arc::clone(&storage), clock, options, tail));
        let opened = JournalOpened {
            format: JOURNAL_FORMAT,
            run_id: run_id.clone(),
            writer: writer.to_owned(),
        };
        if let Err(error) = shared.begin(&opened.into()) {
            drop(storage.remove(&name));
            return Err(error);
        }
        lock.hand_over();
        Ok(Journal::start(shared))
    }

    /// Opens a journal that exists, cutting off what a crash has torn. What was cut is recorded and returned.
    pub fn open(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<(Journal, Option<JournalRecovered>), Error> {
        // Before the lock, which would make a file where there is no journal.
        segment::list(&*storage)?;
        let lock = Lock::take(&storage, options.sharing)?;
        let tail = recover::tail(&storage)?;
        let shared = Arc::new(Shared::new(storage, clock, options, tail));
        let recovered = {
            let mut state = shared.state();
            let recovered = shared.record_recovery(&mut state)?;
            if recovered.is_some() {
                shared.sync_now(&mut state)?;
            }
            recovered
        };
        lock.hand_over();
        Ok((Journal::start(shared), recovered))
    }

    fn start(shared: Arc<Shared>) -> Journal {
        let background = match (shared.options.sharing, shared.options.sync_after) {
            (Sharing::Exclusive, Some(pause)) => {
                let shared = Arc::clone(&shared);
                let body = move || shared.sync_in_background(pause);
                // Without the thread records wait until someone asks for them or closes; nothing is lost.
                thread::Builder::new()
                    .name("journal".into())
                    .spawn(body)
                    .ok()
            }
            _ => None,
        };
        Journal { shared, background }
    }

    /// Puts one record into the order.
    pub fn append(&self, origin: Origin, event: &Event) -> Result<Ticket, Error> {
        self.append_all([(origin, event)])
    }

    /// Puts several records into the order, with none of another thread or process between them. Either all are
    /// accepted or none; a crash may still keep only the first of them. An empty batch is the ticket of the head.
    pub fn append_all<'a>(
        &self,
        events: impl IntoIterator<Item = (Origin, &'a Event)>,
    ) -> Result<Ticket, Error> {
        let shared = &self.shared;
        let mut state = shared.state();
        state.alive()?;
        match shared.options.sharing {
            Sharing::Exclusive => {
                shared.seal(&mut state, events)?;
                if state.buffer.len() >= BUFFER {
                    shared.write_out(&mut state)?;
                }
                if state.background_sleeps {
                    state.background_sleeps = false;
                    shared.wake.notify_one();
                }
            }
            Sharing::Shared => {
                let _lock = Lock::take(&shared.storage, Sharing::Shared)?;
                shared.catch_up(&mut state)?;
                shared.seal(&mut state, events)?;
                shared.write_out(&mut state)?;
            }
        }
        Ok(Ticket {
            shared: Arc::clone(shared),
            head: state.head(),
        })
    }

    /// The last record of the order, on the medium or not.
    pub fn head(&self) -> Head {
        self.shared.state().head()
    }

    /// Makes everything durable and lets go of the journal.
    pub fn close(mut self) -> Result<Head, Error> {
        let result = self.shut();
        result.map(|()| self.head())
    }

    fn shut(&mut self) -> Result<(), Error> {
        {
            let mut state = self.shared.state();
            if state.closed {
                return Ok(());
            }
            state.closed = true;
        }
        self.shared.wake.notify_one();
        if let Some(thread) = self.background.take() {
            drop(thread.join());
        }
        let count = {
            let mut state = self.shared.state();
            if state.tail.room > state.tail.end {
                // The last sync is one without room.
                state.durable = 0;
            }
            state.chain.count
        };
        let result = self.shared.make_durable(count);
        if result.is_ok() {
            let mut state = self.shared.state();
            if let Some(mark) = state.tail.mark() {
                self.shared.set_mark(&mut state, mark, 1);
            }
        }
        if self.shared.options.sharing == Sharing::Exclusive {
            drop(self.shared.storage.unlock());
        }
        result
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        drop(self.shut());
    }
}

impl State {
    fn alive(&self) -> Result<(), Error> {
        match &self.poison {
            Some(why) => Err(Error::Poisoned(why.clone())),
            None if self.closed => Err(Error::Poisoned("it was closed".to_owned())),
            None => Ok(()),
        }
    }

    /// What a sync that begins now will cover.
    fn covered(&self) -> (u64, Option<Mark>) {
        (self.written, self.tail.mark())
    }

    fn poisoned(&mut self, why: String) -> Error {
        let why = self.poison.get_or_insert(why);
        Error::Poisoned(why.clone())
    }

    fn head(&self) -> Head {
        let head = self.chain.head();
        head.unwrap_or(Head {
            seq: 0,
            hash: Digest::ZERO,
        })
    }
}

impl Shared {
    fn new(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        options: Options,
        tail: Tail,
    ) -> Shared {
        let position = tail.position;
        let state = State {
            marked: (0, 0),
            synced: tail.end,
            small_syncs: 0,
            tail,
            chain: position,
            buffer: Vec::new(),
            written: position.count,
            // What is found there may still be on its way to the medium.
            durable: 0,
            syncing: false,
            background_sleeps: false,
            closed: false,
            poison: None,
        };
        Shared {
            storage,
            clock,
            options,
            state: Mutex::new(state),
            failed_sync: Mutex::new(None),
            synced: Condvar::new(),
            wake: Condvar::new(),
        }
    }

    /// A thread that panicked with the lock held has left the state as it was before its record or after it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the first record, and the name of its file, durable.
    fn begin(&self, opened: &Event) -> Result<(), Error> {
        let mut state = self.state();
        self.seal(&mut state, [(Origin::Runtime, opened)])?;
        self.write_out(&mut state)?;
        self.sync_now(&mut state)?;
        recover::sync_names(&*self.storage)
    }

    fn seal<'a>(
        &self,
        state: &mut State,
        events: impl IntoIterator<Item = (Origin, &'a Event)>,
    ) -> Result<(), Error> {
        let (chain, length) = (state.chain, state.buffer.len());
        // What is put into the order together has one time.
        let now = self.clock.now();
        for (origin, event) in events {
            let sealed = state.chain.seal(&mut state.buffer, now, origin, event);
            match sealed {
                Ok(position) => state.chain = position,
                Err(error) => {
                    state.buffer.truncate(length);
                    state.chain = chain;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the buffer to the file in one write, into a new segment if the old one is full.
    fn write_out(&self, state: &mut State) -> Result<(), Error> {
        if state.buffer.is_empty() {
            return Ok(());
        }
        if let Some(why) = &state.poison {
            return Err(Error::Poisoned(why.clone()));
        }
        // A segment without a record has the name that its successor would get.
        if state.tail.end > 0 && state.tail.end >= self.options.segment_bytes {
            self.rotate(state)?;
        }
        if let Err(error) = write_full(&*state.tail.file, &state.buffer, state.tail.end) {
            let name = segment::name(state.tail.segment);
            let why = format!(
                "record {} could not be written to {name}: {error}",
                state.written
            );
            return Err(state.poisoned(why));
        }
        state.tail.end += state.buffer.len() as u64;
        state.tail.position = state.chain;
        state.written = state.chain.count;
        state.buffer.clear();
        Ok(())
    }

    /// Old segment without room and durable, then the new file, then its name durable.
    fn rotate(&self, state: &mut State) -> Result<(), Error> {
        state.tail.cut_room().map_err(|error| {
            let name = segment::name(state.tail.segment);
            state.poisoned(format!("the room of {name} could not be cut: {error}"))
        })?;
        self.sync_now(state)?;
        let first = state.written;
        let name = segment::name(first);
        let file = self
            .storage
            .create(&name)
            .map_err(Error::io("create", &*name))
            .and_then(|file| recover::sync_names(&*self.storage).map(|()| file))
            .map_err(|error| state.poisoned(format!("{name} could not be begun: {error}")))?;
        let position = state.tail.position;
        state.tail = Tail {
            file,
            segment: first,
            end: 0,
            room: 0,
            position,
        };
        Ok(())
    }

    /// Before a sync: if there were many small ones, room for the next, for which the medium then has to learn no new
    /// length. This one carries it. A closed journal needs none.
    fn make_room(&self, state: &mut State) {
        let (tail, room) = (&mut state.tail, self.options.room_bytes);
        if state.closed {
            drop(tail.cut_room());
            return;
        }
        let bytes = tail.end.saturating_sub(state.synced);
        state.synced = tail.end;
        let small = bytes <= room / 4;
        state.small_syncs = if small { state.small_syncs + 1 } else { 0 };
        if state.small_syncs < OFTEN || tail.room >= tail.end + bytes {
            return;
        }
        let start = tail.room.max(tail.end);
        tail.room = tail.end + room;
        // As much as fits on the disk. Nothing relies on it.
        let newlines = vec![b'\n'; (tail.room - start) as usize];
        drop(write_full(&*tail.file, &newlines, start));
    }

    /// Syncs while holding the state, and in the shared case the lock: nobody can get between a failure and its mark.
    fn sync_now(&self, state: &mut State) -> Result<(), Error> {
        let covered = state.covered();
        let result = self.sync_file(&*state.tail.file);
        self.after_sync(state, covered, result)
    }

    fn sync_file(&self, file: &dyn StorageFile) -> io::Result<()> {
        let failed = self.failed_sync.lock();
        let mut failed = failed.unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &*failed {
            return Err(io::Error::other(why.clone()));
        }
        file.sync()
            .inspect_err(|error| *failed = Some(error.to_string()))
    }

    /// `covered` is what was written when the sync began.
    fn after_sync(
        &self,
        state: &mut State,
        (written, mark): (u64, Option<Mark>),
        result: io::Result<()>,
    ) -> Result<(), Error> {
        match result {
            Ok(()) => {
                state.durable = state.durable.max(written);
                if let Some(mark) = mark {
                    self.set_mark(state, mark, MARK_EVERY);
                }
                Ok(())
            }
            Err(error) => {
                // Another thread may have begun a new segment in the meantime.
                let name = segment::name(mark.map_or(state.tail.segment, |mark| mark.segment));
                let why = format!(
                    "sync of {name} failed: {error}; {} records are known to be durable",
                    state.durable
                );
                recover::poison(&*self.storage, &why);
                Err(state.poisoned(why))
            }
        }
    }

    /// Renews the mark if the old one is at least `behind` bytes behind. One that cannot be written is only an old
    /// mark. A sync that took longer than that of the next segment does not set it back.
    fn set_mark(&self, state: &mut State, mark: Mark, behind: u64) {
        let (segment, end) = state.marked;
        let further = mark.end >= end.saturating_add(behind);
        let due = mark.segment > segment || mark.segment == segment && further;
        if due && mark.store(&*self.storage).is_ok() {
            state.marked = (mark.segment, mark.end);
        }
    }

    /// Returns when the first `count` records are durable; the first to come syncs for all who wait.
    fn make_durable(&self, count: u64) -> Result<(), Error> {
        let mut state = self.state();
        loop {
            if state.durable >= count {
                return Ok(());
            }
            if let Some(why) = &state.poison {
                return Err(Error::Poisoned(why.clone()));
            }
            if self.options.sharing == Sharing::Shared {
                let _lock = Lock::take(&self.storage, Sharing::Shared)?;
                self.catch_up(&mut state)?;
                self.make_room(&mut state);
                self.sync_now(&mut state)?;
                continue;
            }
            if state.syncing {
                state = self
                    .synced
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            self.write_out(&mut state)?;
            self.make_room(&mut state);
            let (covered, file) = (state.covered(), Arc::clone(&state.tail.file));
            state.syncing = true;
            drop(state);
            let result = self.sync_file(&*file);
            state = self.state();
            state.syncing = false;
            self.synced.notify_all();
            self.after_sync(&mut state, covered, result)?;
        }
    }

    /// Takes over what other processes have appended. The caller holds the lock.
    fn catch_up(&self, state: &mut State) -> Result<(), Error> {
        let tail = Tail {
            file: Arc::clone(&state.tail.file),
            ..state.tail
        };
        let caught_up = recover::refuse_if_poisoned(&*self.storage)
            .and_then(|()| recover::catch_up(&self.storage, tail, After::Others));
        let (tail, cut) = caught_up.map_err(|error| state.poisoned(error.to_string()))?;
        if tail.segment != state.tail.segment {
            // Whoever began the new segment has synced the old one.
            state.durable = state.durable.max(state.written);
        }
        state.chain = tail.position;
        state.written = tail.position.count;
        state.tail = tail;
        if cut {
            self.record_recovery(state)
                .map_err(|error| state.poisoned(error.to_string()))?;
        }
        Ok(())
    }

    /// Records every torn tail that no record names yet, and returns the last. The notes themselves may come up to the
    /// name of another: it was kept before a loss of power took the records in front of it as well.
    fn record_recovery(&self, state: &mut State) -> Result<Option<JournalRecovered>, Error> {
        let mut last = None;
        loop {
            let torn = recover::unrecorded(&*self.storage, state.written)?;
            if torn.is_empty() {
                return Ok(last);
            }
            last = torn.last().cloned();
            let events: Vec<Event> = torn.into_iter().map(Event::from).collect();
            self.seal(state, events.iter().map(|event| (Origin::Runtime, event)))?;
            self.write_out(state)?;
        }
    }

    /// Makes durable what nobody waits for.
    fn sync_in_background(&self, pause: Duration) {
        let mut idle = 0;
        let mut state = self.state();
        loop {
            if state.closed || state.poison.is_some() {
                return;
            }
            let waited = if idle < IDLE_ROUNDS {
                self.wake
                    .wait_timeout(state, pause)
                    .map(|(state, _)| state)
                    .map_err(|error| error.into_inner().0)
            } else {
                state.background_sleeps = true;
                self.wake.wait(state).map_err(PoisonError::into_inner)
            };
            state = waited.unwrap_or_else(|state| state);
            let count = state.chain.count;
            if state.durable >= count {
                idle += 1;
                continue;
            }
            idle = 0;
            drop(state);
            if self.make_durable(count).is_err() {
                return;
            }
            state = self.state();
        }
    }
}

/// The lock for the length of a scope, unless an exclusive journal takes it over.
struct Lock {
    storage: Arc<dyn Storage>,
    sharing: Sharing,
    released: bool,
}

impl Lock {
    fn take(storage: &Arc<dyn Storage>, sharing: Sharing) -> Result<Self, Error> {
        // Somebody who only asks whether a writer is alive holds the lock for microseconds.
        let mut tries = 20;
        while !storage.lock(sharing).map_err(Error::io("lock", "lock"))? {
            tries -= 1;
            if tries == 0 {
                return Err(Error::Busy);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Lock {
            storage: Arc::clone(storage),
            sharing,
            released: false,
        })
    }

    /// The journal is open: an exclusive one keeps the lock until it is closed.
    fn hand_over(mut self) {
        self.released = self.sharing == Sharing::Exclusive;
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.released {
            drop(self.storage.unlock());
        }
    }
}
