//! Checkpoints that are larger than somebody has thought of.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use invigil_journal::{Options, SystemClock};
use tempfile::TempDir;

use super::*;

fn world(most: (Most, Most)) -> (TempDir, Store, Checkpoints) {
    let directory = tempfile::tempdir().unwrap();
    let work = directory.path().join("work");
    fs::create_dir(&work).unwrap();
    let store = Store::new(directory.path().join("home"));
    let run_id = RunId::new("run").unwrap();
    let mut checkpoints = Checkpoints::new(&store, &run_id, work.clone(), directory_at(&work));
    checkpoints.most = most;
    (directory, store, checkpoints)
}

fn ordered(label: Option<String>) -> Wanted<'static> {
    Wanted::ordered(label, 0, SteeredBy::Supervisor)
}

fn make(work: &Path, names: std::ops::Range<u32>) {
    for name in names {
        fs::write(work.join(format!("f{name}")), name.to_string()).unwrap();
    }
}

/// A rollback, and the kinds of events that it recorded.
fn rollback(checkpoints: &Checkpoints) -> (Result<Rollbacked, String>, Vec<String>) {
    let kinds = RefCell::new(Vec::new());
    let record = |event: Event| {
        kinds.borrow_mut().push(event.kind().to_owned());
        Ok(0)
    };
    let done = checkpoints.rollback(None, 0, SteeredBy::Supervisor, &record);
    (done, kinds.into_inner())
}

#[test]
fn more_than_is_kept_can_be_turned_back_up_to_a_point() {
    let most = |files| Most {
        files,
        bytes: 1 << 20,
    };
    let (_directory, _store, checkpoints) = world((most(5), most(20)));
    let work = checkpoints.workspace.clone();
    make(&work, 0..5);
    checkpoints.take(ordered(None)).unwrap();
    make(&work, 5..20);
    let refused = checkpoints.take(ordered(None)).unwrap_err().to_string();
    assert!(refused.contains("more than 5 files"), "{refused}");
    let (done, kinds) = rollback(&checkpoints);
    assert_eq!(done.unwrap().removed, 15);
    assert_eq!(
        kinds,
        ["checkpoint_taken", "rollback_started", "rollbacked"]
    );

    // Beyond it nothing is begun, and it is said what helps.
    make(&work, 5..21);
    let (refused, kinds) = rollback(&checkpoints);
    let refused = refused.unwrap_err();
    assert!(refused.contains("nothing was changed"), "{refused}");
    assert!(kinds.is_empty(), "{kinds:?}");
    assert_eq!(fs::read_dir(&work).unwrap().count(), 21);
    fs::write(work.join(".gitignore"), "f1?\nf20\n").unwrap();
    let (done, _) = rollback(&checkpoints);
    // f5 to f9, and the file that says so.
    assert_eq!(done.unwrap().removed, 6);
}

#[test]
fn what_git_prints_is_read_to_its_end_and_goes_with_the_run() {
    let (_directory, store, checkpoints) = world((MOST, MOST_BEFORE));
    make(&checkpoints.workspace, 0..3);
    // More than git may print where somebody waits for all of it.
    let label = Some("x".repeat(12 << 20));
    for _ in 0..3 {
        checkpoints.take(ordered(label.clone())).unwrap();
    }
    let all = checkpoints.list().unwrap();
    let ids: Vec<&str> = all.iter().map(|taken| taken.id.as_str()).collect();
    assert_eq!(ids, ["c1", "c2", "c3"]);
    assert!(all.iter().all(|taken| taken.files == 3));

    // They go with their run.
    let run_id = RunId::new("run").unwrap();
    let created = store.create(&run_id, Arc::new(SystemClock), Options::default(), "test");
    let (run, journal) = created.unwrap();
    journal.close().unwrap();
    assert!(store.checkpoints_of(&run_id).is_dir());
    store.remove(&run).unwrap();
    assert!(!store.checkpoints_of(&run_id).exists());
}

#[test]
fn a_checkpoint_of_something_else_is_not_gone_back_to() {
    let (directory, store, checkpoints) = world((MOST, MOST_BEFORE));
    make(&checkpoints.workspace, 0..1);
    checkpoints.take(ordered(None)).unwrap();
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    let run_id = RunId::new("run").unwrap();
    let same_name = Checkpoints::new(&store, &run_id, other.clone(), directory_at(&other));
    let (refused, kinds) = rollback(&same_name);
    assert!(refused.unwrap_err().contains("another directory"));
    assert!(kinds.is_empty() && fs::read_dir(&other).unwrap().next().is_none());
}
