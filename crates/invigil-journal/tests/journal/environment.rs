//! Disks that are full, directories that cannot be written, and things that are not files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use invigil_journal::storage::{FaultStorage, Faults};
use invigil_journal::{Error, Expected, Journal, Reader, Storage, verify};
use invigil_schema::Digest;

use super::child::{self, Words, listen, say};
use super::support::{ORIGIN, clock, create, disk, exclusive, journal, note, read_all, run_id};

fn make(storage: Arc<dyn Storage>) -> Result<Journal, Error> {
    Journal::create(storage, clock(), exclusive(10_000), &run_id(), "test")
}

fn open(storage: Arc<dyn Storage>) -> Result<Journal, Error> {
    Journal::open(storage, clock(), exclusive(10_000)).map(|(journal, _)| journal)
}

/// Appends until the disk is full. What was acknowledged, and what the journal says.
fn fill(journal: &Journal) -> (BTreeMap<u64, Digest>, Error) {
    let mut acknowledged = BTreeMap::new();
    loop {
        let appended = journal.append(ORIGIN, &note(&"z".repeat(300)));
        match appended.and_then(|ticket| ticket.durable().map(|()| ticket)) {
            Ok(ticket) => acknowledged.insert(ticket.seq(), ticket.hash()),
            Err(error) => return (acknowledged, error),
        };
    }
}

fn all_there(acknowledged: &BTreeMap<u64, Digest>, storage: Arc<dyn Storage>) {
    let (seen, end) = read_all(storage);
    end.unwrap();
    for (seq, hash) in acknowledged {
        assert_eq!(seen[usize::try_from(*seq).unwrap()].hash, *hash);
    }
}

#[test]
fn a_full_disk_stops_the_journal_and_loses_nothing() {
    // At every fill level near a border: in a record, at a rotation, in recovery.
    for capacity in (30_000..31_500).step_by(7) {
        let storage = FaultStorage::new(capacity);
        let handle = || -> Arc<dyn Storage> { Arc::new(storage.another()) };
        let journal = make(handle()).unwrap();
        storage.set_faults(Faults {
            capacity: Some(capacity),
            ..Faults::default()
        });
        let (acknowledged, error) = fill(&journal);
        let said = error.to_string();
        assert!(said.contains("journal."), "{said}");
        assert!(said.contains("storage") || said.contains("space"), "{said}");
        assert!(matches!(
            journal.append(ORIGIN, &note("")),
            Err(Error::Poisoned(_))
        ));
        assert!(journal.close().is_err());
        all_there(&acknowledged, handle());
        // Still full: a clear refusal, again and again, and no heap of side files.
        for more in [0, 10, 20] {
            // Room for a piece of the side file, but not for all of it.
            storage.set_faults(Faults {
                capacity: Some(capacity + more),
                ..Faults::default()
            });
            if let Err(error) = open(handle()) {
                let said = error.to_string();
                let mut names = storage.list().unwrap().into_iter();
                let torn = names.any(|name| name.starts_with("torn."));
                assert!(
                    !(torn && said.contains("torn.")),
                    "half a side file is left"
                );
                assert!(
                    said.contains("torn.") || said.contains("journal."),
                    "{said}"
                );
            }
        }
        storage.set_faults(Faults::default());
        let journal = open(handle()).unwrap();
        journal
            .append(ORIGIN, &note("room"))
            .unwrap()
            .durable()
            .unwrap();
        journal.close().unwrap();
        all_there(&acknowledged, handle());
        verify(handle(), &Expected::default()).unwrap();
    }
}

#[test]
fn a_journal_that_cannot_be_begun_is_not_there() {
    for capacity in 0..200 {
        let storage = FaultStorage::new(capacity);
        storage.set_faults(Faults {
            capacity: Some(capacity),
            ..Faults::default()
        });
        let handle = || -> Arc<dyn Storage> { Arc::new(storage.another()) };
        let refused = make(handle()).err().unwrap().to_string();
        assert!(refused.contains("journal.ndjson"), "{refused}");
        assert!(storage.list().unwrap().is_empty(), "{capacity}");
        storage.set_faults(Faults::default());
        make(handle()).unwrap().close().unwrap();
        verify(handle(), &Expected::default()).unwrap();
    }
}

/// The kernel's own limit on the size of a file works for everybody.
#[test]
fn a_file_that_may_not_grow_stops_the_journal_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    create(disk(path), exclusive(1 << 20)).close().unwrap();
    let script = "trap '' XFSZ; ulimit -f 20; exec \"$@\"";
    let words = [("PATH", path.to_str().unwrap())];
    let mut child = child::through(&["sh", "-c", script, "sh"], "fill", &words)
        .spawn()
        .unwrap();
    let said: Vec<String> = listen(&mut child).collect();
    assert!(child.wait().unwrap().success());
    let (error, acknowledged) = said.split_last().unwrap();
    assert!(error.contains("File too large"), "{error}");
    assert!(error.contains("journal.ndjson"), "{error}");
    assert!(acknowledged.len() > 10);
    let acknowledged = acknowledged.iter().map(|line| {
        let (seq, hash) = line.split_once(' ').unwrap();
        (seq.parse().unwrap(), hash.parse().unwrap())
    });
    let acknowledged: BTreeMap<u64, Digest> = acknowledged.collect();
    let journal = open(disk(path)).unwrap();
    journal
        .append(ORIGIN, &note("room"))
        .unwrap()
        .durable()
        .unwrap();
    journal.close().unwrap();
    all_there(&acknowledged, disk(path));
    verify(disk(path), &Expected::default()).unwrap();
}

pub(crate) fn fill_disk(words: &Words) {
    let storage = disk(Path::new(&words["PATH"]));
    let (journal, _) = Journal::open(storage, clock(), exclusive(1 << 20)).unwrap();
    let (acknowledged, error) = fill(&journal);
    for (seq, hash) in acknowledged {
        say(&format!("{seq} {hash}"));
    }
    say(&error.to_string());
}

/// A real file system without room, in a mount namespace of its own, so that nothing is left behind.
#[test]
fn a_small_file_system_fills_up_and_is_usable_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let mount = "mount -t tmpfs -o size=256k tmpfs \"$0\" || exit 77; exec \"$@\"";
    let program = ["unshare", "--mount", "sh", "-c", mount, path];
    let child = child::through(&program, "small_disk", &[("PATH", path)]).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return skipped(&format!("unshare: {error}")),
    };
    let said: Vec<String> = listen(&mut child).collect();
    let status = child.wait().unwrap();
    if said.is_empty() && !status.success() {
        return skipped("mounting is not permitted here");
    }
    assert!(status.success(), "{said:?}");
    assert_eq!(said.last().unwrap(), "done");
}

pub(crate) fn small_disk(words: &Words) {
    say("mounted");
    let path = Path::new(&words["PATH"]);
    fs::write(path.join("ballast"), vec![1; 64 * 1024]).unwrap();
    let journal = make(disk(path)).unwrap();
    let (acknowledged, error) = fill(&journal);
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(acknowledged.len() > 100);
    drop(journal);
    all_there(&acknowledged, disk(path));
    fs::remove_file(path.join("ballast")).unwrap();
    let journal = open(disk(path)).unwrap();
    journal
        .append(ORIGIN, &note("room"))
        .unwrap()
        .durable()
        .unwrap();
    journal.close().unwrap();
    all_there(&acknowledged, disk(path));
    verify(disk(path), &Expected::default()).unwrap();
    say("done");
}

fn skipped(why: &str) {
    println!("skipped: {why}");
}

#[test]
fn a_directory_that_may_not_be_written_is_refused_and_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(directory.path(), 0o755);
    for name in ["empty", "readonly", "locked"] {
        fs::create_dir(at(name)).unwrap();
    }
    for name in ["readonly", "locked"] {
        journal(&at(name), 20, 1000);
    }
    for file in fs::read_dir(at("readonly")).unwrap() {
        mode(&file.unwrap().path(), 0o444);
    }
    mode(&at("empty"), 0o555);
    mode(&at("readonly"), 0o555);
    mode(&at("locked"), 0o000);

    let words = [("PATH", directory.path().to_str().unwrap())];
    let unprivileged = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    // Permissions do not apply to root.
    let root = rustix::process::geteuid().is_root();
    if root && Command::new("setpriv").arg("--version").output().is_err() {
        return skipped("root without setpriv");
    }
    let program = if root { &unprivileged[..] } else { &[] };
    // The nobody of `setpriv` may not be allowed into the build directory: it gets a copy of this binary.
    let copy = at("binary");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    mode(&copy, 0o755);
    let mut child = child::of(&copy, program, "without_rights", &words)
        .spawn()
        .unwrap();
    let said: Vec<String> = listen(&mut child).collect();
    let status = child.wait().unwrap();
    for name in ["empty", "readonly", "locked"] {
        mode(&at(name), 0o755);
    }
    assert!(status.success(), "{said:?}");
    assert_eq!(said, ["done"]);
    assert!(fs::read_dir(at("empty")).unwrap().next().is_none());
}

pub(crate) fn without_rights(words: &Words) {
    let at = |name: &str| disk(&Path::new(&words["PATH"]).join(name));
    let refused = |error: Error, name: &str| {
        let said = error.to_string();
        assert!(said.contains("ermission denied"), "{said}");
        assert!(said.contains(name), "{said}");
    };
    refused(make(at("empty")).err().unwrap(), "lock");
    refused(open(at("readonly")).err().unwrap(), "lock");
    refused(open(at("locked")).err().unwrap(), "the journal");
    refused(Reader::open(at("locked")).err().unwrap(), "journal.ndjson");
    // Who may only read can read and check.
    assert_eq!(read_all(at("readonly")).0.len(), 21);
    let report = verify(at("readonly"), &Expected::default()).unwrap();
    assert_eq!(report.head.seq, 20);
    assert!(verify(at("locked"), &Expected::default()).is_err());
    say("done");
}

#[test]
fn a_directory_that_is_not_there_is_said_to_be_missing() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = || disk(&directory.path().join("nowhere"));
    for error in [
        make(nowhere()).err().unwrap(),
        open(nowhere()).err().unwrap(),
    ] {
        assert!(error.to_string().contains("No such file"), "{error}");
    }
    // A directory without a journal: opening for append, too, leaves no trace.
    assert!(matches!(open(disk(directory.path())), Err(Error::Missing)));
    assert!(matches!(
        Reader::open(disk(directory.path())),
        Err(Error::Missing)
    ));
    assert!(verify(disk(directory.path()), &Expected::default()).is_err());
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
}

#[derive(Debug, Clone, Copy)]
enum Thing {
    Directory,
    Link,
    Dangling,
    Fifo,
}

impl Thing {
    const ALL: [Thing; 4] = [Thing::Directory, Thing::Link, Thing::Dangling, Thing::Fifo];

    fn put(self, path: &Path) {
        match self {
            Thing::Directory => fs::create_dir(path).unwrap(),
            Thing::Link => {
                let target = path.with_extension("target");
                fs::rename(path, &target)
                    .or_else(|_| fs::write(&target, ""))
                    .unwrap();
                symlink(target, path).unwrap();
            }
            Thing::Dangling => symlink("/nowhere/at/all", path).unwrap(),
            Thing::Fifo => {
                use rustix::fs::{CWD, FileType, Mode, mknodat};
                mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
            }
        }
    }
}

/// Names with kind and length; nothing here is opened.
fn look(directory: &Path) -> BTreeMap<String, (fs::FileType, u64)> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            let about = entry.path().symlink_metadata().unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, (about.file_type(), about.len()))
        })
        .collect()
}

#[test]
fn what_is_not_a_file_is_not_taken_for_one() {
    for thing in Thing::ALL {
        for name in ["journal.ndjson", "durable", "poisoned", "lock"] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            journal(path, 5, u64::MAX);
            if !matches!(thing, Thing::Link) {
                drop(fs::remove_file(path.join(name)));
            }
            thing.put(&path.join(name));
            let before = look(path);
            let said = open(disk(path)).err().unwrap().to_string();
            assert!(said.contains(name), "{thing:?} {name}: {said}");
            assert_eq!(before, look(path), "{thing:?} {name}");
            match name {
                // The lock and the seal are none of a reader's business.
                "lock" | "poisoned" => {
                    verify(disk(path), &Expected::default()).unwrap();
                }
                _ => {
                    let said = verify(disk(path), &Expected::default())
                        .unwrap_err()
                        .to_string();
                    assert!(said.contains(name), "{thing:?} {name}: {said}");
                }
            }
            assert_eq!(before, look(path), "{thing:?} {name}");
        }
        // A new journal in such a place.
        let directory = tempfile::tempdir().unwrap();
        thing.put(&directory.path().join("journal.ndjson"));
        assert!(matches!(make(disk(directory.path())), Err(Error::Exists)));
        assert!(!Path::new("/nowhere").exists());
    }
}

/// The next segment cannot be begun: the record that asked for it fails, nothing else is touched.
#[test]
fn a_thing_in_the_place_of_the_next_segment_stops_the_journal() {
    for thing in Thing::ALL {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let journal = create(disk(path), exclusive(1));
        let next = "journal.00000000000000000001.ndjson";
        thing.put(&path.join(next));
        let ticket = journal.append(ORIGIN, &note("one")).unwrap();
        let said = ticket.written().unwrap_err().to_string();
        assert!(said.contains(next), "{said}");
        assert!(ticket.durable().is_err());
        drop(journal);
        let said = open(disk(path)).err().unwrap().to_string();
        assert!(said.contains(next), "{said}");
    }
}
