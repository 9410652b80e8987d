//! Reading while others write, reading from the middle, and many threads in one journal.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use invigil_journal::storage::{Access, Crash, FaultStorage, Faults};
use invigil_journal::{
    Error, Expected, Journal, MAX_RECORD, Options, Reader, Sharing, Storage, verify,
};
use invigil_schema::Event;

use super::support::{
    Hooked, ORIGIN, clock, create, disk, exclusive, journal, note, options, read_all, read_on,
    shared, snapshot,
};

#[test]
fn a_follower_sees_whole_records_across_rotations() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let journal = create(disk(path), options(sharing, 2000));
        const RECORDS: usize = 3000;
        let seen = std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let mut reader = Reader::open(disk(path)).unwrap();
                let mut seen = Vec::new();
                while seen.len() <= RECORDS {
                    read_on(&mut reader, &mut seen).unwrap();
                    std::thread::yield_now();
                }
                seen
            });
            for n in 0..RECORDS {
                let text = format!("{n} {}", "x".repeat(n % 300));
                let ticket = journal.append(ORIGIN, &note(&text)).unwrap();
                if n % 7 == 0 {
                    ticket.written().unwrap();
                }
            }
            journal.close().unwrap();
            follower.join().unwrap()
        });
        assert_eq!(seen, read_all(disk(path)).0);
        assert!(verify(disk(path), &Expected::default()).unwrap().segments > 5);
    }
}

fn last_segment(path: &Path) -> Vec<u8> {
    let files = snapshot(path).into_iter();
    let segments = files.filter(|(name, _)| name.ends_with(".ndjson"));
    // The first has a shorter name than all others.
    let last = segments.max_by_key(|(name, _)| (name.len(), name.clone()));
    last.unwrap().1
}

/// Records of all sizes are written over room while others read: whole or not at all, and never damage.
#[test]
fn readers_do_not_see_how_room_is_written_over() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let options = Options {
            room_bytes: 1 << 20,
            ..options(sharing, 3 << 20)
        };
        let journal = create(disk(path), options);
        let done = AtomicBool::new(false);
        let mut in_room = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut reader = Reader::open(disk(path)).unwrap();
                let mut count = 0;
                while !done.load(Ordering::SeqCst) {
                    while let Some(record) = reader.next().unwrap() {
                        count = record.seq + 1;
                    }
                    let live = Expected {
                        live: true,
                        ..Expected::default()
                    };
                    assert!(verify(disk(path), &live).unwrap().head.seq + 1 >= count);
                    // From the end, and from behind it.
                    for seq in [count, count + 1] {
                        drop(Reader::open_at(disk(path), seq).unwrap());
                    }
                }
            });
            for n in 0..30 {
                for size in [10, 20, 30, 40, 50, 5_000, 60_000] {
                    let text = "x".repeat(size + n);
                    let batch = [&note(&text), &note("y"), &note(&text)];
                    let batch = batch.map(|event| (ORIGIN, event));
                    journal.append_all(batch).unwrap().durable().unwrap();
                }
                in_room += usize::from(last_segment(path).ends_with(b"\n\n"));
                // More than one write takes at a time, over the room and beyond it.
                let large = note(&"z".repeat(300_000));
                let ticket = journal.append_all([(ORIGIN, &large); 4]).unwrap();
                ticket.written().unwrap();
                let mut reader = Reader::open_at(disk(path), ticket.seq()).unwrap().unwrap();
                assert_eq!(reader.next().unwrap().unwrap().hash, ticket.hash());
            }
            done.store(true, Ordering::SeqCst);
        });
        journal.close().unwrap();
        assert!(in_room > 10, "{in_room}");
        verify(disk(path), &Expected::default()).unwrap();
    }
}

/// What was acknowledged is seen by a reader that has seen room in its place.
#[test]
fn a_reader_that_has_seen_room_sees_what_is_written_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let with_room = |segment_bytes| Options {
        room_bytes: 10_000,
        ..shared(segment_bytes)
    };
    let journals = [
        create(disk(path), with_room(5000)),
        Journal::open(disk(path), clock(), with_room(9000))
            .unwrap()
            .0,
    ];
    let mut reader = Reader::open(disk(path)).unwrap();
    reader.next().unwrap().unwrap();
    for n in 1..200 {
        let ticket = journals[n % 2].append(ORIGIN, &note("seen")).unwrap();
        if n % 5 > 0 {
            ticket.durable().unwrap();
        }
        // What was read with this one is room, and the next is written over it, or into the next segment.
        assert_eq!(reader.next().unwrap().unwrap().seq, n as u64);
        if n % 3 == 0 {
            assert!(reader.next().unwrap().is_none());
        }
    }
    for journal in journals {
        journal.close().unwrap();
    }
    assert_eq!(read_all(disk(path)).0.len(), 200);
    verify(disk(path), &Expected::default()).unwrap();
}

#[test]
fn a_reader_starts_at_every_record_and_goes_on_to_the_end() {
    // Small segments; and one that is larger than what the search reads at a time.
    for (notes, segment_bytes) in [(100, 1500), (5000, u64::MAX)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        journal(path, notes, segment_bytes);
        let (all, _) = read_all(disk(path));
        let step = usize::try_from(notes / 100).unwrap();
        for from in (0..=notes + 1).step_by(step) {
            let mut reader = Reader::open_at(disk(path), from).unwrap().unwrap();
            let mut seen = Vec::new();
            // To the end only now and then: it is the start that is looked for.
            if from % 10 == 0 || from >= notes {
                read_on(&mut reader, &mut seen).unwrap();
                assert_eq!(seen, all[usize::try_from(from).unwrap()..]);
            } else {
                assert_eq!(reader.next().unwrap().unwrap().seq, from);
            }
            assert!(reader.head().is_some());
        }
        for beyond in [notes + 2, notes + 1000, u64::MAX] {
            assert!(Reader::open_at(disk(path), beyond).unwrap().is_none());
        }
    }
}

#[test]
fn how_many_there_are_is_known_without_a_scan() {
    // In small segments with room, and in one that is larger than what is read at once.
    for (segment_bytes, records) in [(2000, 60), (64 << 20, 4000)] {
        let directory = tempfile::tempdir().unwrap();
        let journal = create(disk(directory.path()), exclusive(segment_bytes));
        for n in 1..=records {
            assert_eq!(Reader::count(disk(directory.path())).unwrap(), n);
            let text = format!("{n} {}", "x".repeat(100));
            let ticket = journal.append(ORIGIN, &note(&text)).unwrap();
            match n % 2 {
                0 => ticket.durable().unwrap(),
                _ => ticket.written().unwrap(),
            };
        }
        journal.close().unwrap();
        let count = Reader::count(disk(directory.path())).unwrap();
        assert_eq!(count as usize, read_all(disk(directory.path())).0.len());
    }
    let nowhere = tempfile::tempdir().unwrap();
    let missing = Reader::count(disk(nowhere.path()));
    assert!(matches!(missing, Err(Error::Missing)), "{missing:?}");
}

#[test]
fn a_reader_at_the_end_follows_into_the_next_segment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    journal(path, 10, u64::MAX);
    let mut reader = Reader::open_at(disk(path), 11).unwrap().unwrap();
    assert!(reader.next().unwrap().is_none());
    let (journal, _) = Journal::open(disk(path), clock(), exclusive(1)).unwrap();
    for n in 11..20 {
        journal
            .append(ORIGIN, &note("more"))
            .unwrap()
            .written()
            .unwrap();
        assert_eq!(reader.next().unwrap().unwrap().seq, n);
        assert!(reader.next().unwrap().is_none());
    }
}

#[test]
fn a_torn_tail_is_cut_and_rewritten_under_a_follower() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    journal(path, 3, u64::MAX);
    let mut reader = Reader::open(disk(path)).unwrap();
    let mut seen = Vec::new();
    read_on(&mut reader, &mut seen).unwrap();
    for turn in 1..50 {
        let file = fs::OpenOptions::new()
            .append(true)
            .open(path.join("journal.ndjson"))
            .unwrap();
        let torn = format!("{{\"seq\":{},\"time\":{}", seen.len(), "9".repeat(turn * 7));
        std::io::Write::write_all(&mut &file, torn.as_bytes()).unwrap();
        // The follower has read the torn tail, and must not keep it.
        read_on(&mut reader, &mut seen).unwrap();
        let (journal, recovered) = Journal::open(disk(path), clock(), exclusive(u64::MAX)).unwrap();
        assert_eq!(recovered.unwrap().bytes, torn.len() as u64);
        journal
            .append(ORIGIN, &note(&"y".repeat(turn)))
            .unwrap()
            .durable()
            .unwrap();
        drop(journal);
        let before = seen.len();
        read_on(&mut reader, &mut seen).unwrap();
        assert_eq!(seen.len(), before + 2);
    }
    assert_eq!(seen, read_all(disk(path)).0);
}

/// The worst moment: half of a line is read before the cut, the other half after it.
#[test]
fn a_tail_that_changes_between_two_reads_of_a_line_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    journal(path, 3, u64::MAX);
    let end = fs::metadata(path.join("journal.ndjson")).unwrap().len();
    // The first read of the last record has bytes that are no longer there.
    let stale = AtomicBool::new(true);
    let storage = Arc::new(Hooked {
        after_read: Arc::new(move |bytes, offset| {
            let last = usize::try_from((end - 100).saturating_sub(offset)).unwrap();
            if bytes.len() > last && stale.swap(false, Ordering::SeqCst) {
                bytes[last] = b'#';
            }
        }),
        ..Hooked::none(disk(path))
    });
    let mut reader = Reader::open(storage).unwrap();
    let mut seen = Vec::new();
    read_on(&mut reader, &mut seen).unwrap();
    assert_eq!(seen, read_all(disk(path)).0);
}

/// A follower that has met damage sees it gone when it is.
#[test]
fn damage_is_not_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    journal(path, 3, u64::MAX);
    let name = path.join("journal.ndjson");
    let file = fs::OpenOptions::new().write(true).open(&name).unwrap();
    let at = fs::metadata(&name).unwrap().len() - 100;
    let good = fs::read(&name).unwrap()[usize::try_from(at).unwrap()];
    file.write_all_at(b"#", at).unwrap();
    let mut reader = Reader::open(disk(path)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let end = read_on(&mut reader, &mut seen);
        assert!(matches!(end, Err(Error::Damaged { seq: 3, .. })));
    }
    file.write_all_at(&[good], at).unwrap();
    read_on(&mut reader, &mut seen).unwrap();
    assert_eq!(seen.len(), 4);
}

#[test]
fn records_up_to_the_limit_and_not_beyond() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let journal = create(disk(path), options(sharing, u64::MAX));
        let small = journal.append(ORIGIN, &note("")).unwrap();
        small.durable().unwrap();
        let empty = {
            let text = fs::read(path.join("journal.ndjson")).unwrap();
            text.split_inclusive(|&byte| byte == b'\n')
                .next_back()
                .unwrap()
                .len()
        };
        let mut reader = Reader::open_at(disk(path), 2).unwrap().unwrap();
        let exactly = "x".repeat(MAX_RECORD - empty);
        journal
            .append(ORIGIN, &note(&exactly))
            .unwrap()
            .written()
            .unwrap();
        assert_eq!(reader.next().unwrap().unwrap().line().len(), MAX_RECORD - 1);

        let before = journal.head();
        let over = journal.append(ORIGIN, &note(&format!("{exactly}x")));
        assert!(matches!(over, Err(Error::TooLarge(size)) if size == MAX_RECORD + 1));
        assert_eq!(journal.head(), before);
        assert!(reader.next().unwrap().is_none());

        // Nothing of a batch is there if one of it cannot be.
        let (good, bad) = (note("good"), note(&format!("{exactly}xxx")));
        let batch = [
            (ORIGIN, &good),
            (ORIGIN, &good),
            (ORIGIN, &bad),
            (ORIGIN, &good),
        ];
        assert!(matches!(journal.append_all(batch), Err(Error::TooLarge(_))));
        assert_eq!(journal.head(), before);
        let nested = format!("{}\n{}", "[".repeat(200), "]".repeat(200));
        let unwritable = Event::Unknown {
            kind: "deep".into(),
            data: serde_json::value::RawValue::from_string(nested).unwrap(),
        };
        let encode = journal.append_all([(ORIGIN, &good), (ORIGIN, &unwritable)]);
        assert!(matches!(encode, Err(Error::Encode(_))));
        assert_eq!(journal.head(), before);

        let ticket = journal
            .append_all([(ORIGIN, &good), (ORIGIN, &good)])
            .unwrap();
        assert_eq!(ticket.seq(), before.seq + 2);
        let nothing = journal.append_all([]).unwrap();
        assert_eq!(
            (nothing.seq(), nothing.hash()),
            (ticket.seq(), ticket.hash())
        );
        nothing.durable().unwrap();
        let head = journal.close().unwrap();
        assert_eq!(head.seq, ticket.seq());
        assert_eq!(verify(disk(path), &Expected::default()).unwrap().head, head);
    }
}

#[test]
fn sixteen_threads_share_their_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&syncs);
    let storage = Hooked::file_sync(disk(path), move |file| {
        counted.fetch_add(1, Ordering::Relaxed);
        // As slow as a disk: the others arrive in the meantime.
        std::thread::sleep(Duration::from_micros(300));
        file.sync()
    });
    let journal = create(storage, exclusive(20_000));
    const THREADS: usize = 16;
    const EACH: usize = 50;
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (journal, start) = (&journal, &start);
            scope.spawn(move || {
                start.wait();
                let mut last = 0;
                for n in 0..EACH {
                    let text = format!("t{thread}-{n}");
                    let ticket = journal.append(ORIGIN, &note(&text)).unwrap();
                    assert!(ticket.seq() > last);
                    last = ticket.seq();
                    ticket.durable().unwrap();
                }
            });
        }
    });
    let records = (THREADS * EACH) as u64;
    assert_eq!(journal.close().unwrap().seq, records);
    let syncs = syncs.load(Ordering::Relaxed);
    assert!(syncs < records / 2, "{syncs} syncs for {records} records");
    let (seen, end) = read_all(disk(path));
    end.unwrap();
    for thread in 0..THREADS {
        let prefix = format!("t{thread}-");
        let mine = seen
            .iter()
            .filter_map(|seen| seen.text.strip_prefix(&prefix));
        assert!(mine.eq((0..EACH).map(|n| n.to_string())));
    }
}

#[test]
fn what_nobody_waits_for_is_synced_in_the_background() {
    let storage = FaultStorage::new(1);
    let options = Options {
        sync_after: Some(Duration::from_millis(1)),
        ..exclusive(u64::MAX)
    };
    let (sender, synced) = mpsc::channel();
    let hooked = Hooked::file_sync(Arc::new(storage.another()), move |file| {
        let result = file.sync();
        sender.send(()).unwrap();
        result
    });
    let journal = create(hooked, options);
    synced.recv().unwrap();
    for _ in 0..3 {
        let ticket = journal.append(ORIGIN, &note("alone")).unwrap();
        synced.recv_timeout(Duration::from_secs(20)).unwrap();
        drop(ticket);
        // Long enough for the thread to sleep for good: the next append must wake it.
        std::thread::sleep(Duration::from_millis(60));
    }
    let after = storage.crash(Crash::Power);
    assert_eq!(read_all(Arc::new(after)).0.len(), 4);
}

/// The kernel tells of a failed sync once. If a rotation could sync the same file at the same time, it might be the
/// one that hears that all is well.
#[test]
fn a_rotation_does_not_sync_beside_a_sync_that_fails() {
    let storage = FaultStorage::new(1);
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let (slow, overlapped) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let hooked = {
        let (slow, overlapped) = (Arc::clone(&slow), Arc::clone(&overlapped));
        Hooked::file_sync(Arc::new(storage.another()), move |file| {
            if !slow.swap(false, Ordering::SeqCst) {
                overlapped.store(true, Ordering::SeqCst);
                return file.sync();
            }
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
            Err(std::io::Error::other("the disk is broken"))
        })
    };
    let journal = create(hooked, exclusive(1));
    let ticket = journal.append(ORIGIN, &note("one")).unwrap();
    ticket.written().unwrap();
    slow.store(true, Ordering::SeqCst);
    overlapped.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ticket.durable());
        has_entered.recv().unwrap();
        let rotating = scope.spawn(|| journal.append(ORIGIN, &note("two")).unwrap().written());
        // Time for the rotation to come to its sync. If it comes later the test proves less, but never fails.
        std::thread::sleep(Duration::from_millis(50));
        let overlapped = overlapped.load(Ordering::SeqCst);
        release.send(()).unwrap();
        assert!(waiting.join().unwrap().is_err());
        assert!(rotating.join().unwrap().is_err());
        assert!(!overlapped, "two syncs at a time");
    });
    assert!(journal.append(ORIGIN, &note("three")).is_err());
    assert!(journal.close().is_err());
    let sealed = Journal::open(Arc::new(storage.another()), clock(), exclusive(1));
    assert!(matches!(sealed, Err(Error::Sealed(_))));
}

/// Every waiter hears of a failed sync; nobody waits for ever.
#[test]
fn a_failed_sync_fails_everybody_who_waits() {
    for seed in 0..20 {
        let storage = FaultStorage::new(seed);
        let journal = create(Arc::new(storage.another()), exclusive(u64::MAX));
        storage.set_faults(Faults {
            fail_sync_at: Some(1),
            ..Faults::default()
        });
        let tickets: Vec<_> = (0..8)
            .map(|_| journal.append(ORIGIN, &note("waiting")).unwrap())
            .collect();
        std::thread::scope(|scope| {
            for ticket in &tickets {
                scope.spawn(|| assert!(matches!(ticket.durable(), Err(Error::Poisoned(_)))));
            }
        });
        assert!(journal.close().is_err());
        assert!(storage.open("poisoned", Access::Read).is_ok());
    }
}

/// Processes that disagree about the length of a segment, in turn.
#[test]
fn shared_writers_with_different_segments_go_on_from_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    create(disk(path), shared(0)).close().unwrap();
    let journals: Vec<Journal> = [0, 1, 500, 5000, u64::MAX]
        .map(|bytes| Journal::open(disk(path), clock(), shared(bytes)).unwrap().0)
        .into();
    for n in 1..=100_u64 {
        let journal = &journals[usize::try_from(n * 7 % 5).unwrap()];
        let ticket = journal.append(ORIGIN, &note(&n.to_string())).unwrap();
        assert_eq!(ticket.seq(), n);
        if n % 9 == 0 {
            ticket.durable().unwrap();
        }
    }
    for journal in journals {
        journal.close().unwrap();
    }
    let report = verify(disk(path), &Expected::default()).unwrap();
    assert_eq!(report.head.seq, 100);
    assert!(report.segments > 20);
}
