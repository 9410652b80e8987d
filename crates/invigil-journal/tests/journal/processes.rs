//! Several processes, and processes that are killed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fastrand::Rng;
use invigil_journal::{
    DiskStorage, Error, Expected, Journal, Options, Reader, SystemClock, verify,
};
use std::sync::Arc;

use super::child::{self, Words, listen, say};
use super::support::{
    ORIGIN, Seen, clock, create, disk, exclusive, note, options, read_all, shared,
};

const PROCESSES: u64 = 8;
const APPENDS: u64 = 1000;

#[test]
fn eight_processes_append_a_thousand_records_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    create(disk(path), shared(256 * 1024)).close().unwrap();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|me| {
            let (path, me) = (path.to_str().unwrap(), me.to_string());
            let mut command = child::command("append", &[("PATH", path), ("ME", &me)]);
            command.spawn().unwrap()
        })
        .collect();
    let mut acknowledged = BTreeMap::new();
    for mut child in children {
        let lines: Vec<String> = listen(&mut child).collect();
        assert!(child.wait().unwrap().success());
        for line in lines {
            let (seq, text) = line.split_once(' ').unwrap();
            let seq: u64 = seq.parse().unwrap();
            assert!(acknowledged.insert(seq, text.to_owned()).is_none());
        }
    }
    let (seen, end) = read_all(disk(path));
    end.unwrap();
    assert_eq!(seen.len() as u64, PROCESSES * APPENDS + 1);
    // File order is sequence order: the reader goes through the files from front to back.
    for (at, seen) in seen.iter().enumerate() {
        assert_eq!(seen.seq, at as u64);
    }
    assert_eq!(acknowledged.len() as u64, PROCESSES * APPENDS);
    for (seq, text) in &acknowledged {
        assert_eq!(&seen[*seq as usize].text, text);
    }
    // Each process finds its own records in the order in which it appended them.
    for me in 0..PROCESSES {
        let prefix = format!("p{me}-");
        let mine = seen
            .iter()
            .filter_map(|seen| seen.text.strip_prefix(&prefix));
        assert!(mine.eq((0..APPENDS).map(|n| n.to_string())), "{me}");
    }
    let report = verify(disk(path), &Expected::default()).unwrap();
    assert!(report.segments > 2);
    assert_eq!(report.torn, 0);
}

/// Appends, and after each acknowledgement finds the record where it is said to be.
pub(crate) fn append(words: &Words) {
    let (path, me) = (Path::new(&words["PATH"]), &words["ME"]);
    let bytes = 32 * 1024 * (1 + me.parse::<u64>().unwrap());
    let (journal, recovered) =
        Journal::open(disk(path), Arc::new(SystemClock), shared(bytes)).unwrap();
    assert!(recovered.is_none());
    let mut reader = None;
    for n in 0..APPENDS {
        let text = format!("p{me}-{n}");
        let ticket = journal.append(ORIGIN, &note(&text)).unwrap();
        match n % 50 {
            0 => ticket.durable().unwrap(),
            _ => ticket.written().unwrap(),
        }
        let reader = reader
            .get_or_insert_with(|| Reader::open_at(disk(path), ticket.seq()).unwrap().unwrap());
        loop {
            let record = reader
                .next()
                .unwrap()
                .expect("what was written can be read");
            if record.seq == ticket.seq() {
                assert_eq!(record.hash, ticket.hash());
                break;
            }
        }
        say(&format!("{} {text}", ticket.seq()));
    }
    journal.close().unwrap();
}

/// How often a writer is killed: as the test says, or as often as somebody with more time wants.
pub(crate) fn kills(usual: usize) -> usize {
    let wanted = std::env::var("INVIGIL_KILLS").ok();
    wanted.map_or(usual, |wanted| wanted.parse().unwrap())
}

#[test]
fn two_hundred_kills_lose_nothing_that_was_acknowledged() {
    let mut rng = Rng::with_seed(9);
    let mut torn = 0;
    let mut acknowledged_in_all = 0;
    // A journal lives through some kills; its promises hold through all of them.
    let kills = kills(200);
    for _ in 0..kills.div_ceil(20) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        create(disk(path), exclusive(u64::MAX)).close().unwrap();
        let mut acknowledged: BTreeMap<u64, String> = BTreeMap::new();
        for kill in 0..20 {
            let sharing = if kill % 2 == 0 { "exclusive" } else { "shared" };
            let bytes = rng.choice(["0", "400", "3000", "100000"]).unwrap();
            kill_a_writer(path, sharing, bytes, &mut rng, &mut acknowledged);
            let (seen, _) = read_all(disk(path));
            all_there(&acknowledged, &seen);
        }
        // Opening recovers the last of them; then everything is whole.
        let (journal, _) = Journal::open(disk(path), clock(), exclusive(1000)).unwrap();
        journal.close().unwrap();
        let report = verify(disk(path), &Expected::default()).unwrap();
        let (seen, end) = read_all(disk(path));
        end.unwrap();
        all_there(&acknowledged, &seen);
        torn += report.torn;
        acknowledged_in_all += acknowledged.len();
    }
    assert!(acknowledged_in_all > kills / 4, "{acknowledged_in_all}");
    println!("{acknowledged_in_all} acknowledged records, {torn} torn tails");
}

fn all_there(acknowledged: &BTreeMap<u64, String>, seen: &[Seen]) {
    for (seq, hash) in acknowledged {
        let there = seen.get(*seq as usize).map(|seen| seen.hash.to_string());
        assert_eq!(there.as_ref(), Some(hash), "record {seq}");
    }
}

fn kill_a_writer(
    path: &Path,
    sharing: &str,
    segment_bytes: &str,
    rng: &mut Rng,
    acknowledged: &mut BTreeMap<u64, String>,
) {
    let words = [
        ("PATH", path.to_str().unwrap()),
        ("SHARING", sharing),
        ("BYTES", segment_bytes),
    ];
    let mut child = child::command("write_until_killed", &words)
        .spawn()
        .unwrap();
    let lines = listen(&mut child);
    let (sender, receiver) = mpsc::channel();
    let listener = std::thread::spawn(move || lines.for_each(|line| sender.send(line).unwrap()));
    // At any moment: now and then while it starts and recovers, else while it writes.
    if rng.u8(0..5) > 0 {
        let ready = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(ready, "ready");
    }
    std::thread::sleep(Duration::from_micros(rng.u64(0..25_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    listener.join().unwrap();
    for line in receiver {
        // The last line may be cut short by the kill.
        if let Some((seq, hash)) = line.split_once(' ').filter(|(_, hash)| hash.len() == 64) {
            acknowledged.insert(seq.parse().unwrap(), hash.to_owned());
        }
    }
}

/// Writes without end, from several threads, and tells what was acknowledged as durable.
pub(crate) fn write_until_killed(words: &Words) {
    let sharing = match words["SHARING"].as_str() {
        "shared" => invigil_journal::Sharing::Shared,
        _ => invigil_journal::Sharing::Exclusive,
    };
    let options = Options {
        sync_after: Some(Duration::from_millis(1)),
        ..options(sharing, words["BYTES"].parse().unwrap())
    };
    let storage = disk(Path::new(&words["PATH"]));
    let (journal, _) = Journal::open(storage, Arc::new(SystemClock), options).unwrap();
    say("ready");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0.. {
                    // Large ones too: the kernel can be interrupted in the middle of writing them.
                    let size = if n % 8 == 5 { 300_000 } else { n % 200 };
                    let events: Vec<_> = (0..n % 4 + 1).map(|_| note(&"x".repeat(size))).collect();
                    let batch = events.iter().map(|event| (ORIGIN, event));
                    let ticket = journal.append_all(batch).unwrap();
                    if (n + thread) % 3 == 0 {
                        ticket.durable().unwrap();
                        // One write: half a line of one thread is not mixed with another's.
                        let line = format!(">{} {}\n", ticket.seq(), ticket.hash());
                        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn a_second_exclusive_writer_is_refused_until_the_first_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    create(disk(path), exclusive(u64::MAX)).close().unwrap();
    let open = || Journal::open(disk(path), clock(), exclusive(u64::MAX));
    let words = [("PATH", path.to_str().unwrap())];
    let mut child = child::command("hold", &words)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = listen(&mut child);
    assert_eq!(lines.next().as_deref(), Some("holding"));
    assert!(matches!(open(), Err(Error::Busy)));
    let sharing = Journal::open(disk(path), clock(), shared(u64::MAX));
    assert!(matches!(sharing, Err(Error::Busy)), "and nobody waits");
    assert!(DiskStorage::new(path).is_locked().unwrap());
    // Reading needs no lock.
    assert_eq!(read_all(disk(path)).0.len(), 2);

    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!DiskStorage::new(path).is_locked().unwrap());
    let (journal, recovered) = open().unwrap();
    assert!(recovered.is_none());
    assert_eq!(journal.head().seq, 1);
}

/// Holds a journal until it is killed, or its standard input ends.
pub(crate) fn hold(words: &Words) {
    let storage = disk(Path::new(&words["PATH"]));
    let (journal, _) = Journal::open(storage, clock(), exclusive(u64::MAX)).unwrap();
    journal
        .append(ORIGIN, &note("held"))
        .unwrap()
        .written()
        .unwrap();
    say("holding");
    drop(std::io::read_to_string(std::io::stdin()));
}

/// Between two records of somebody who shares, another may take the journal for its own.
#[test]
fn who_shares_is_told_of_an_owner_and_goes_on_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let sharing = create(disk(directory.path()), shared(u64::MAX));
    let append = |text| {
        sharing
            .append(ORIGIN, &note(text))
            .map(|ticket| ticket.seq())
    };
    assert_eq!(append("before").unwrap(), 1);
    let (owner, _) = Journal::open(disk(directory.path()), clock(), exclusive(u64::MAX)).unwrap();
    assert!(matches!(append("meanwhile"), Err(Error::Busy)));
    owner
        .append(ORIGIN, &note("mine"))
        .unwrap()
        .written()
        .unwrap();
    owner.close().unwrap();
    assert_eq!(append("after").unwrap(), 3);
}

#[test]
fn two_journals_of_one_process_exclude_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let storage = disk(directory.path());
    let first = create(Arc::clone(&storage), exclusive(u64::MAX));
    // Through the same handle, and through another.
    for storage in [Arc::clone(&storage), disk(directory.path())] {
        let second = Journal::open(storage, clock(), exclusive(u64::MAX));
        assert!(matches!(second, Err(Error::Busy)));
    }
    first
        .append(ORIGIN, &note("still mine"))
        .unwrap()
        .durable()
        .unwrap();
    first.close().unwrap();
    Journal::open(storage, clock(), exclusive(u64::MAX)).unwrap();
}

#[test]
fn an_open_that_fails_gives_the_lock_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    create(disk(path), exclusive(u64::MAX)).close().unwrap();
    std::fs::write(path.join("poisoned"), "sync failed").unwrap();
    let storage = disk(path);
    let sealed = Journal::open(Arc::clone(&storage), clock(), exclusive(u64::MAX));
    assert!(matches!(&sealed, Err(Error::Sealed(why)) if why == "sync failed"));
    assert!(!DiskStorage::new(path).is_locked().unwrap());
    std::fs::remove_file(path.join("poisoned")).unwrap();
    drop(Journal::open(storage, clock(), exclusive(u64::MAX)).unwrap());
    let exists = Journal::create(
        disk(path),
        clock(),
        shared(1),
        &super::support::run_id(),
        "test",
    );
    assert!(matches!(exists, Err(Error::Exists)));
    assert!(!DiskStorage::new(path).is_locked().unwrap());
}

/// A process that is in the middle of appending hears of a failed sync of another.
#[test]
fn a_poisoned_shared_journal_takes_nothing_from_anybody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let journal = create(disk(path), shared(u64::MAX));
    let ticket = journal.append(ORIGIN, &note("before")).unwrap();
    std::fs::write(path.join("poisoned"), "sync failed elsewhere").unwrap();
    let before = std::fs::read(path.join("journal.ndjson")).unwrap();
    let refused = journal.append(ORIGIN, &note("after")).err().unwrap();
    assert!(refused.to_string().contains("elsewhere"), "{refused}");
    assert!(ticket.durable().is_err());
    assert_eq!(before, std::fs::read(path.join("journal.ndjson")).unwrap());
}
