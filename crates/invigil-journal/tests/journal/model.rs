//! A journal on a medium that fails, against a model of what it has promised.
//!
//! Each seed is one life of a journal: several rounds of appends that end in a crash of the process or of the machine,
//! with kills at any operation, failed syncs, a full disk and short writes on the way, in recovery too.
//!
//! `INVIGIL_SEEDS=n` runs that many seeds, `INVIGIL_SEED=n` only that one.

use std::fmt::Write as _;
use std::sync::Arc;

use fastrand::Rng;
use invigil_journal::storage::{Crash, FaultStorage, Faults};
use invigil_journal::{Error, Expected, Flaw, Journal, Sharing, Storage, Ticket, verify};
use invigil_schema::{Digest, Event};

use super::support::{
    self, Hooked, ORIGIN, Seen, bytes_of, clock, note, options, read_all, run_id, sha256,
};

#[test]
fn what_was_promised_is_there_after_every_crash() {
    let one = number("INVIGIL_SEED");
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => 0..number("INVIGIL_SEEDS").unwrap_or(3000),
    };
    let mut total = Covered::default();
    for seed in seeds.clone() {
        match Life::new(seed, honest).live() {
            Ok(covered) => total.add(&covered),
            Err(failure) => panic!(
                "seed {seed}: {failure}\nrun it again: \
                 INVIGIL_SEED={seed} cargo test -p invigil-journal --test journal {TEST}"
            ),
        }
    }
    if one.is_none() && seeds.end >= 1000 {
        total.is_not_vacuous();
    }
}

const TEST: &str = "model::what_was_promised_is_there_after_every_crash";

/// The test above is worth nothing if it cannot fail.
#[test]
fn a_lying_medium_is_found_out() {
    let liars: [(&str, Wrap); 4] = [
        ("files are never synced", |storage| {
            Hooked::file_sync(storage, |_| Ok(()))
        }),
        ("names are never synced", |inner| {
            Arc::new(Hooked {
                on_names_sync: |_| Ok(()),
                ..Hooked::none(inner)
            })
        }),
        ("nothing is cut off", |inner| {
            Arc::new(Hooked {
                on_cut: |_, _| Ok(()),
                ..Hooked::none(inner)
            })
        }),
        ("failures of a sync are kept quiet", |storage| {
            Hooked::file_sync(storage, |file| {
                drop(file.sync());
                Ok(())
            })
        }),
    ];
    for (what, wrap) in liars {
        let found = (0..1000).find(|&seed| Life::new(seed, wrap).live().is_err());
        assert!(found.is_some(), "nobody noticed that {what}");
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap())
}

/// What stands between a journal and its medium.
type Wrap = fn(Arc<dyn Storage>) -> Arc<dyn Storage>;

fn honest(storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
    storage
}

/// What a life has met, to show that the seeds reach what they are for.
#[derive(Debug, Default)]
struct Covered {
    power: u64,
    process: u64,
    cuts: u64,
    rotations: u64,
    sealed: u64,
    full: u64,
    killed_in_recovery: u64,
    lost_unacknowledged: u64,
    shared: u64,
    acknowledged: u64,
    /// Crashes that have left room, and half a record in it.
    room: u64,
    torn_in_room: u64,
    shared_room: u64,
}

impl Covered {
    fn add(&mut self, other: &Covered) {
        self.power += other.power;
        self.process += other.process;
        self.cuts += other.cuts;
        self.rotations += other.rotations;
        self.sealed += other.sealed;
        self.full += other.full;
        self.killed_in_recovery += other.killed_in_recovery;
        self.lost_unacknowledged += other.lost_unacknowledged;
        self.shared += other.shared;
        self.acknowledged += other.acknowledged;
        self.room += other.room;
        self.torn_in_room += other.torn_in_room;
        self.shared_room += other.shared_room;
    }

    fn is_not_vacuous(&self) {
        let all = [
            self.power,
            self.process,
            self.cuts,
            self.rotations,
            self.sealed,
            self.full,
            self.killed_in_recovery,
            self.lost_unacknowledged,
            self.shared,
            self.acknowledged,
            self.room,
            self.torn_in_room,
            self.shared_room,
        ];
        assert!(all.iter().all(|&count| count >= 50), "{self:?}");
    }
}

/// One record that was handed to the journal, in its place.
struct Entry {
    text: String,
    /// Known once its append, or the batch that it ends, has succeeded.
    hash: Option<Digest>,
}

/// How a round, or an opening, ended.
enum End {
    /// The journal can be opened again.
    Open,
    /// This life is over: the journal is sealed, was never begun, or an injected combination is outside of what the
    /// format promises.
    Over,
}

struct Life {
    rng: Rng,
    wrap: Wrap,
    storage: Arc<FaultStorage>,
    sharing: Sharing,
    /// What was appended, in order. Behind `floor` it may or may not be there after a crash.
    entries: Vec<Entry>,
    /// So many records have been acknowledged as durable.
    durable: u64,
    /// So many are known to be in the page cache.
    written: u64,
    /// Of ten appends so many are made durable at once.
    durable_of_ten: u8,
    /// Appends since the beginning; makes every text unique.
    texts: u64,
    capacity: bool,
    covered: Covered,
}

impl Life {
    fn new(seed: u64, wrap: Wrap) -> Life {
        let mut rng = Rng::with_seed(seed);
        let sharing = match rng.bool() {
            true => Sharing::Exclusive,
            false => Sharing::Shared,
        };
        Life {
            storage: Arc::new(FaultStorage::new(rng.u64(..))),
            wrap,
            sharing,
            entries: Vec::new(),
            durable: 0,
            written: 0,
            durable_of_ten: rng.choice([2, 7]).unwrap(),
            texts: 0,
            capacity: false,
            covered: Covered {
                shared: u64::from(sharing == Sharing::Shared),
                ..Covered::default()
            },
            rng,
        }
    }

    fn live(mut self) -> Result<Covered, String> {
        let Some(journals) = self.begin()? else {
            return Ok(self.covered);
        };
        let mut journals = journals;
        for _ in 0..self.rng.u32(1..6) {
            match self.round(journals)? {
                End::Open => {}
                End::Over => return Ok(self.covered),
            }
            journals = match self.reopen()? {
                Some(journals) => journals,
                None => return Ok(self.covered),
            };
        }
        Ok(self.covered)
    }

    /// Record 0, now and then with faults. Nothing if the journal was never begun.
    fn begin(&mut self) -> Result<Option<Vec<Journal>>, String> {
        self.entries.push(Entry {
            text: String::new(),
            hash: None,
        });
        if self.rng.u8(0..8) == 0 {
            self.inject(12);
        }
        let (storage, options) = (self.handle(), self.options());
        match Journal::create(storage, clock(), options, &run_id(), "model") {
            Ok(journal) => {
                self.acknowledge(1);
                self.storage.set_faults(Faults::default());
                Ok(Some(self.join(journal)?))
            }
            Err(_) => match self.crash()? {
                End::Over => Ok(None),
                End::Open => self.reopen(),
            },
        }
    }

    fn options(&mut self) -> invigil_journal::Options {
        let segment_bytes = self.rng.choice([0, 300, 700, 1500, 1 << 20]).unwrap();
        invigil_journal::Options {
            room_bytes: self.rng.choice([0, 1500, 4000, 20_000]).unwrap(),
            ..options(self.sharing, segment_bytes)
        }
    }

    fn handle(&self) -> Arc<dyn Storage> {
        (self.wrap)(Arc::new(self.storage.another()))
    }

    /// A shared journal is written by two processes in turn, each with its own idea of how long a segment is.
    fn join(&mut self, journal: Journal) -> Result<Vec<Journal>, String> {
        let mut journals = vec![journal];
        if self.sharing == Sharing::Shared {
            let (storage, options) = (self.handle(), self.options());
            let (second, recovered) = Journal::open(storage, clock(), options)
                .map_err(|error| format!("the second process: {error}"))?;
            // A side file of a recovery that was interrupted, and whose tail a loss of power has taken, may bear the
            // number of a record that only now is the next.
            if recovered.is_some() {
                self.check(&second, true)?;
            }
            journals.push(second);
        }
        Ok(journals)
    }

    fn inject(&mut self, within: u64) {
        let mut faults = Faults::default();
        self.capacity = false;
        match self.rng.u8(0..8) {
            0..3 => faults.kill_at = Some(self.rng.u64(0..within)),
            3..5 => faults.fail_sync_at = Some(self.rng.u64(0..within)),
            5 => {
                faults.capacity = Some(self.rng.u64(200..8000));
                self.capacity = true;
            }
            6 => {
                faults.kill_at = Some(self.rng.u64(0..within));
                faults.fail_sync_at = Some(self.rng.u64(0..within));
            }
            _ => {}
        }
        if self.rng.u8(0..4) == 0 {
            faults.short_writes = Some(self.rng.usize(1..200));
        }
        self.storage.set_faults(faults);
    }

    fn acknowledge(&mut self, count: u64) {
        self.covered.acknowledged += count.saturating_sub(self.durable);
        self.durable = self.durable.max(count);
        self.written = self.written.max(count);
    }

    /// Appends until something fails or enough is done; ends in a crash or a clean end.
    fn round(&mut self, journals: Vec<Journal>) -> Result<End, String> {
        self.inject(150);
        let mut tickets = Vec::new();
        for _ in 0..self.rng.u32(0..40) {
            let journal = &journals[self.rng.usize(0..journals.len())];
            if let Err(error) = self.act(journal, &mut tickets)? {
                let again = journal.append(ORIGIN, &note("after the failure"));
                ensure(again.is_err(), || format!("an append after {error}"))?;
                if let Some(ticket) = tickets.last() {
                    self.ask(ticket);
                }
                if self.rng.bool() {
                    drop(journals);
                }
                return self.crash();
            }
        }
        if self.rng.u8(0..3) == 0 {
            // Another handle of the same order: closing one makes durable what it has written or seen.
            for journal in journals {
                if let Ok(head) = journal.close() {
                    self.acknowledge(head.seq + 1);
                }
            }
        }
        self.crash()
    }

    /// One step. The outer error is a broken promise, the inner one a fault that the journal has reported.
    fn act(
        &mut self,
        journal: &Journal,
        tickets: &mut Vec<Ticket>,
    ) -> Result<Result<(), Error>, String> {
        let step = self.rng.u8(0..10);
        let earlier = match tickets.is_empty() {
            true => None,
            false => Some(tickets[self.rng.usize(0..tickets.len())].clone()),
        };
        match (step, earlier) {
            (0, Some(ticket)) => {
                return Ok(ticket
                    .written()
                    .map(|()| self.written = self.written.max(ticket.seq() + 1)));
            }
            (1, Some(ticket)) => {
                return Ok(ticket
                    .durable()
                    .map(|()| self.acknowledge(ticket.seq() + 1)));
            }
            _ => {}
        }
        let size = if step == 2 { self.rng.usize(0..6) } else { 1 };
        let events: Vec<Event> = (0..size).map(|_| self.event()).collect();
        let ticket = match journal.append_all(events.iter().map(|event| (ORIGIN, event))) {
            Ok(ticket) => ticket,
            Err(error) => return Ok(Err(error)),
        };
        let last = self.entries.len() - 1;
        ensure(ticket.seq() == last as u64, || {
            format!("record {} is said to be {}", last, ticket.seq())
        })?;
        self.entries[last].hash = Some(ticket.hash());
        if self.sharing == Sharing::Shared {
            self.written = self.written.max(ticket.seq() + 1);
        }
        let at_once = step >= 10 - self.durable_of_ten;
        tickets.push(ticket.clone());
        if at_once {
            return Ok(ticket
                .durable()
                .map(|()| self.acknowledge(ticket.seq() + 1)));
        }
        Ok(Ok(()))
    }

    /// An acknowledgement counts whenever it is given.
    fn ask(&mut self, ticket: &Ticket) {
        if ticket.durable().is_ok() {
            self.acknowledge(ticket.seq() + 1);
        }
    }

    fn event(&mut self) -> Event {
        let mut text = format!("text {}", self.texts);
        self.texts += 1;
        for _ in 0..self.rng.u32(0..8) {
            write!(text, " {:x}", self.rng.u64(..)).unwrap();
        }
        let event = note(&text);
        self.entries.push(Entry { text, hash: None });
        event
    }

    /// Ends every process, perhaps the machine, and says what may be expected of what is left.
    fn crash(&mut self) -> Result<End, String> {
        let how = match self.rng.bool() {
            true => Crash::Process,
            false => Crash::Power,
        };
        let failed = self.storage.failed_sync();
        let (dead, capacity) = (self.storage.is_dead(), self.capacity);
        self.storage = Arc::new(self.storage.crash(how));
        self.capacity = false;
        self.covered.full += u64::from(capacity);
        self.look_for_room();
        match how {
            Crash::Process => self.covered.process += 1,
            Crash::Power => {
                self.covered.power += 1;
                self.written = self.durable;
            }
        }
        // A side file that could not be synced is thrown away: the tail that it was to keep is still there.
        let Some(name) = failed.filter(|name| !name.starts_with("torn.")) else {
            return Ok(End::Open);
        };
        self.after_failed_sync(&name, dead || capacity)
    }

    fn look_for_room(&mut self) {
        let names = self.storage.list().unwrap().into_iter();
        let segments = names.filter(|name| name.ends_with(".ndjson"));
        // The first has a shorter name than all others.
        let Some(last) = segments.max_by_key(|name| (name.len(), name.clone())) else {
            return;
        };
        let bytes = bytes_of(&*self.storage, &last);
        let Some(end) = bytes.iter().rposition(|&byte| byte != b'\n') else {
            return;
        };
        if bytes.len() < end + 3 {
            return;
        }
        self.covered.room += 1;
        self.covered.torn_in_room += u64::from(!bytes[..=end].ends_with(b"\"}"));
        self.covered.shared_room += u64::from(self.sharing == Sharing::Shared);
    }

    /// `unmarked`: the process died, or the disk was full, before the failure could be written down.
    fn after_failed_sync(&mut self, name: &str, unmarked: bool) -> Result<End, String> {
        let (storage, options) = (self.handle(), self.options());
        match Journal::open(storage, clock(), options) {
            Err(Error::Sealed(_)) => self.covered.sealed += 1,
            // It failed in `create`, which has told nobody of the journal.
            Err(Error::Missing) if self.durable == 0 => return Ok(End::Over),
            Err(error) if unmarked => return Ok(ignore(&error)),
            Ok(_) if unmarked => return Ok(End::Over),
            other => {
                let opened = other.map(|(_, recovered)| recovered);
                return Err(format!("the sync of {name:?} failed, and then: {opened:?}"));
            }
        }
        // Nothing may be added any more, but everything can be read.
        let (seen, _) = read_all(self.handle());
        self.compare(&seen)?;
        Ok(End::Over)
    }

    /// Recovers, now and then with a crash in the middle of it. Nothing if this life is over.
    fn reopen(&mut self) -> Result<Option<Vec<Journal>>, String> {
        for attempt in 0.. {
            let with_faults = attempt < 4 && self.rng.u8(0..3) == 0;
            if with_faults {
                self.inject(40);
            }
            let (storage, options) = (self.handle(), self.options());
            match Journal::open(storage, clock(), options) {
                Ok((journal, recovered)) => {
                    self.storage.set_faults(Faults::default());
                    if self.storage.is_dead() {
                        drop(journal);
                    } else {
                        self.check(&journal, recovered.is_some())?;
                        return self.join(journal).map(Some);
                    }
                }
                Err(Error::Missing | Error::Damaged { seq: 0, .. }) if self.durable == 0 => {
                    return Ok(None);
                }
                Err(error) if !with_faults => return Err(format!("recovery: {error}")),
                Err(_) => {}
            }
            self.covered.killed_in_recovery += 1;
            match self.crash()? {
                End::Open => {}
                End::Over => return Ok(None),
            }
        }
        unreachable!("the fifth attempt is without faults")
    }

    /// The journal is open again: is everything there that must be, and nothing that must not?
    fn check(&mut self, journal: &Journal, recovered: bool) -> Result<(), String> {
        let (seen, end) = read_all(self.handle());
        end.map_err(|error| format!("reading after recovery: {error}"))?;
        let kept = self.compare(&seen)?;
        self.check_side_files(&seen[kept..])?;
        if recovered {
            let last = seen.last().map(|seen| seen.kind.as_str());
            ensure(last == Some("journal_recovered"), || {
                format!("the last record after a recovery is {last:?}")
            })?;
            self.covered.cuts += 1;
        }
        if kept < self.entries.len() {
            self.covered.lost_unacknowledged += 1;
        }
        let head = seen.last().map(|seen| (seen.seq, seen.hash));
        ensure(
            head == Some((journal.head().seq, journal.head().hash)),
            || {
                format!(
                    "the head is {:?} and the last record {head:?}",
                    journal.head()
                )
            },
        )?;
        let report = verify(self.handle(), &Expected::default())
            .map_err(|error| format!("verify after recovery: {error}"))?;
        ensure(report.head == journal.head(), || {
            format!("verify found {:?}", report.head)
        })?;
        self.covered.rotations += u64::from(report.segments > 1);
        self.entries.truncate(kept);
        self.entries.extend(seen[kept..].iter().map(|seen| Entry {
            text: seen.text.clone(),
            hash: Some(seen.hash),
        }));
        // What has been read is in the page cache.
        self.written = self.entries.len() as u64;
        Ok(())
    }

    /// How many records are those that were appended. Behind them there may be only notes of recovery.
    fn compare(&self, seen: &[Seen]) -> Result<usize, String> {
        let is_entry = |(seen, entry): &(&Seen, &Entry)| {
            let same_hash = entry.hash.is_none_or(|hash| hash == seen.hash);
            match seen.seq {
                0 => seen.kind == "journal_opened",
                _ => seen.text == entry.text && same_hash,
            }
        };
        let pairs = seen.iter().zip(&self.entries);
        let kept = pairs.take_while(is_entry).count();
        let floor = self.durable.max(self.written);
        ensure(kept as u64 >= floor, || {
            let (durable, written) = (self.durable, self.written);
            format!("{durable} durable and {written} written records, but only {kept} are there")
        })?;
        let foreign = seen[kept..]
            .iter()
            .find(|seen| seen.kind != "journal_recovered");
        ensure(foreign.is_none(), || {
            format!("behind {kept} records there is {foreign:?}")
        })?;
        Ok(kept)
    }

    /// What was cut off is in its side file, word for word as recorded.
    fn check_side_files(&self, notes: &[Seen]) -> Result<(), String> {
        let storage = self.storage.another();
        let storage: Arc<dyn Storage> = Arc::new(storage);
        let mut reader = invigil_journal::Reader::open(Arc::clone(&storage)).unwrap();
        while let Some(record) = reader.next().map_err(|error| error.to_string())? {
            if notes.iter().all(|note| note.seq != record.seq) {
                continue;
            }
            let Event::JournalRecovered(note) = record.envelope().unwrap().event() else {
                continue;
            };
            let side = bytes_of(&*storage, &note.file);
            let same = side.len() as u64 == note.bytes && sha256(&side) == note.sha256;
            ensure(same, || format!("{} is not what {note:?} says", note.file))?;
        }
        Ok(())
    }
}

fn ignore(_: &Error) -> End {
    End::Over
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// A journal that died before its first record was whole is not opened, and not made into something else.
#[test]
fn half_a_first_record_is_no_journal() {
    for kill_at in 0..12 {
        let storage = FaultStorage::new(kill_at);
        storage.set_faults(Faults {
            kill_at: Some(kill_at),
            short_writes: Some(20),
            ..Faults::default()
        });
        let made = Journal::create(
            Arc::new(storage.another()),
            clock(),
            support::exclusive(1000),
            &run_id(),
            "test",
        );
        drop(made);
        let storage = storage.crash(Crash::Process);
        let before = read_all(Arc::new(storage.another())).0.len();
        let opened = Journal::open(
            Arc::new(storage.another()),
            clock(),
            support::exclusive(1000),
        );
        match opened {
            Ok((journal, None)) => assert_eq!((before, journal.head().seq), (1, 0)),
            Ok((_, recovered)) => panic!("{recovered:?}"),
            Err(Error::Missing) => assert_eq!(before, 0),
            Err(Error::Damaged { seq: 0, flaw, .. }) => {
                assert_eq!((before, flaw), (0, Flaw::Absent));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A process may die after it has made a segment and before the name is on the medium. The others go on in it.
#[test]
fn a_segment_that_a_dead_process_has_made_is_made_durable_by_the_living() {
    for seed in 0..50 {
        let storage = FaultStorage::new(seed);
        let journal = support::create(Arc::new(storage.another()), support::shared(1 << 20));
        drop(
            storage
                .create("journal.00000000000000000001.ndjson")
                .unwrap(),
        );
        let ticket = journal.append(ORIGIN, &note("one")).unwrap();
        ticket.durable().unwrap();
        let after = storage.crash(Crash::Power);
        let (seen, end) = read_all(Arc::new(after));
        end.unwrap();
        assert_eq!(seen.last().map(|seen| seen.hash), Some(ticket.hash()));
    }
}
