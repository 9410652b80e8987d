//! A store: runs appear whole or not at all, and are found by what people type.

use std::sync::Arc;

use invigil_journal::{Expected, Options, Store, StoreError, SystemClock, verify};
use invigil_schema::RunId;

pub(crate) fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path().join("home"));
    (directory, store)
}

pub(crate) fn id(id: &str) -> RunId {
    RunId::new(id).unwrap()
}

pub(crate) fn create(store: &Store, run: &str) -> invigil_journal::Journal {
    create_checked(store, run).unwrap()
}

fn create_checked(store: &Store, run: &str) -> Result<invigil_journal::Journal, StoreError> {
    let made = store.create(&id(run), Arc::new(SystemClock), Options::default(), "test");
    made.map(|(_, journal)| journal)
}

#[test]
fn a_new_run_is_whole_and_live_until_closed() {
    let (_directory, store) = store();
    assert!(store.runs().unwrap().is_empty());
    assert!(!store.home().exists(), "looking makes nothing");
    let journal = create(&store, "one");
    let run = store.run(&id("one")).unwrap();
    assert!(run.is_live());
    journal.close().unwrap();
    assert!(!run.is_live());
    let report = verify(run.storage(), &Expected::default()).unwrap();
    assert_eq!((report.run_id, report.head.seq), (id("one"), 0));
}

#[test]
fn modes_keep_others_out() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, store) = store();
    create(&store, "one").close().unwrap();
    store.blobs().unwrap().put(b"x").unwrap();
    invigil_journal::Index::refreshed(&store).unwrap();
    let mut pending = vec![store.home().to_owned()];
    let mut seen = 0;
    while let Some(path) = pending.pop() {
        let metadata = path.metadata().unwrap();
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(
            metadata.permissions().mode() & 0o777,
            expected,
            "{}",
            path.display()
        );
        seen += 1;
        if metadata.is_dir() {
            pending.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen >= 8, "{seen}");
}

#[test]
fn an_id_is_taken_once_even_by_eight_at_the_same_time() {
    let (_directory, store) = store();
    let made: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| create_checked(&store, "same").is_ok()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    let left: Vec<_> = store.home().join("runs").read_dir().unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(matches!(
        create_checked(&store, "same"),
        Err(StoreError::Exists(_))
    ));
}

#[test]
fn found_by_id_prefix_and_last() {
    let (_directory, store) = store();
    for run in ["beta", "alpha", "alphabet"] {
        create(&store, run).close().unwrap();
    }
    let found = |name: &str| store.find(name).map(|run| run.run_id().to_string());
    assert_eq!(
        found("alpha").unwrap(),
        "alpha",
        "a whole id wins over a prefix"
    );
    assert_eq!(found("alphab").unwrap(), "alphabet");
    assert_eq!(found("b").unwrap(), "beta");
    assert_eq!(
        found("last").unwrap(),
        "alphabet",
        "the newest, not the last by name"
    );
    let error = found("al").unwrap_err().to_string();
    assert!(error.contains("2 runs: alpha, alphabet"), "{error}");
    let error = found("gamma").unwrap_err().to_string();
    assert!(error.contains("`invigil runs`"), "{error}");
    assert!(matches!(found("../beta"), Err(StoreError::RunId(_))));
}

#[test]
fn a_place_that_cannot_be_a_store_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error = create_checked(&Store::new(&file), "one")
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("cannot make the directory"), "{error}");
    assert!(error.contains("file/runs"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
}
