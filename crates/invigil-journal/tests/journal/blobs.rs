//! Blobs: written once, whole under their name at every moment, checked when read.

use std::io::{self, Read};
use std::sync::Arc;

use invigil_journal::storage::{Crash, FaultStorage, Faults};
use invigil_journal::{BlobError, Blobs, DiskStorage};
use invigil_schema::Digest;

const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn on_disk() -> (tempfile::TempDir, Blobs) {
    let directory = tempfile::tempdir().unwrap();
    let blobs = Blobs::new(Arc::new(DiskStorage::new(directory.path())));
    (directory, blobs)
}

fn files(directory: &tempfile::TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

#[test]
fn named_after_their_content_and_written_once() {
    let (directory, blobs) = on_disk();
    let digest = blobs.put(b"hello").unwrap();
    assert_eq!(digest.to_string(), HELLO);
    assert_eq!(blobs.put(b"hello").unwrap(), digest);
    assert_eq!(blobs.put_from(&b"hello"[..]).unwrap(), (digest, 5));
    assert_eq!(files(&directory), 1);
    assert_eq!(blobs.get(&digest, 5).unwrap(), b"hello");
    let empty = blobs.put(b"").unwrap();
    assert_eq!(blobs.get(&empty, 0).unwrap(), b"");
}

#[test]
fn larger_than_memory_should_be() {
    let (_directory, blobs) = on_disk();
    let size = 20 << 20;
    let (digest, stored) = blobs.put_from(io::repeat(7).take(size)).unwrap();
    assert_eq!(stored, size);
    let error = blobs.get(&digest, size - 1).unwrap_err();
    assert!(
        matches!(error, BlobError::TooLarge { size: s, .. } if s == size),
        "{error}"
    );
    let mut reader = blobs.open(&digest).unwrap();
    assert_eq!(io::copy(&mut reader, &mut io::sink()).unwrap(), size);
}

#[test]
fn damage_is_never_handed_out_and_mended_by_the_next_put() {
    let (directory, blobs) = on_disk();
    let digest = blobs.put(b"hello").unwrap();
    let path = directory.path().join(HELLO);
    for damaged in [&b"hellp"[..], b"hell", b"hello!", b""] {
        std::fs::write(&path, damaged).unwrap();
        let error = blobs.get(&digest, 100).unwrap_err();
        assert!(
            matches!(error, BlobError::Damaged(d) if d == digest),
            "{error}"
        );
        let read = io::copy(&mut blobs.open(&digest).unwrap(), &mut io::sink());
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(blobs.put(b"hello").unwrap(), digest);
        assert_eq!(blobs.get(&digest, 100).unwrap(), b"hello");
    }
    let missing = Digest::ZERO;
    assert!(matches!(blobs.get(&missing, 9), Err(BlobError::Missing(d)) if d == missing));
}

#[test]
fn a_source_that_fails_leaves_nothing() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("gone"))
        }
    }
    let (directory, blobs) = on_disk();
    let error = blobs.put_from((&b"begun"[..]).chain(Broken)).unwrap_err();
    assert!(matches!(error, BlobError::Source(_)), "{error}");
    assert_eq!(files(&directory), 0);
}

#[test]
fn eight_writers_of_the_same_content() {
    let (directory, blobs) = on_disk();
    let content = vec![3; 300_000];
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| blobs.put(&content).unwrap());
        }
    });
    assert_eq!(files(&directory), 1);
}

/// Killed at each operation in turn, by process and by power: what has the name has the content, and what was
/// acknowledged is there.
#[test]
fn whole_or_not_there_after_every_crash() {
    let content = vec![9; 200_000];
    for crash in [Crash::Process, Crash::Power] {
        for (at, seed) in (0..60).flat_map(|at| (0..20).map(move |seed| (at, seed))) {
            let storage = Arc::new(FaultStorage::new(seed * 1000 + at));
            storage.set_faults(Faults {
                kill_at: Some(at),
                ..Faults::default()
            });
            let acknowledged = Blobs::new(Arc::clone(&storage) as _).put(&content);
            let after = Blobs::new(Arc::new(storage.crash(crash)));
            let digest = match acknowledged {
                Ok(digest) => digest,
                Err(_) => Blobs::new(Arc::new(FaultStorage::new(0)))
                    .put(&content)
                    .unwrap(),
            };
            match after.get(&digest, u64::MAX) {
                Ok(found) => assert_eq!(found, content),
                Err(BlobError::Missing(_)) => {
                    assert!(acknowledged.is_err(), "{crash:?} {at} {seed}")
                }
                Err(error) => panic!("{crash:?} at {at}, seed {seed}: {error}"),
            }
            assert_eq!(after.put(&content).unwrap(), digest);
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_no_blob() {
    let storage = Arc::new(FaultStorage::new(1));
    storage.set_faults(Faults {
        capacity: Some(100_000),
        ..Faults::default()
    });
    let blobs = Blobs::new(Arc::clone(&storage) as _);
    assert!(matches!(
        blobs.put(&vec![1; 200_000]),
        Err(BlobError::Io { .. })
    ));
    // The room is free again.
    blobs.put(&vec![2; 90_000]).unwrap();
}
