//! The index: a cache that can be deleted, damaged or old, and remembers heads.

use std::fs;
use std::sync::Arc;

use invigil_journal::{Index, Options, RunRow, RunState, Store, SystemClock};
use invigil_schema::{Event, Origin, OsText, RunFinished, RunStarted, Tier};

use crate::child::{self, Words};
use crate::processes::kills;
use crate::store::{create, id, store};

fn started(command: &str) -> Event {
    let started = RunStarted {
        command: vec![OsText::from(command)],
        cwd: OsText::from("/"),
        directory: None,
        env_keys: Vec::new(),
        platform: "linux".into(),
        agent_shim: "none".into(),
        tier: Tier::ContractOnly,
        lineage: None,
    };
    started.into()
}

fn finished() -> Event {
    let finished = RunFinished {
        exit_code: Some(3),
        signal: None,
        success: false,
        window_elapsed_ms: 12,
        stopped: None,
        why: None,
    };
    finished.into()
}

fn append(store: &Store, run: &str, events: &[Event]) {
    let run = store.run(&id(run)).unwrap();
    let (journal, _) = run
        .append(Arc::new(SystemClock), Options::default())
        .unwrap();
    let events = events.iter().map(|event| (Origin::Runtime, event));
    journal.append_all(events).unwrap().durable().unwrap();
    journal.close().unwrap();
}

fn row(store: &Store, run: &str) -> RunRow {
    let (index, refreshed) = Index::refreshed(store).unwrap();
    assert_eq!(refreshed.rebuilt, None);
    index.run(&id(run)).unwrap().unwrap()
}

#[test]
fn follows_the_journals_and_reads_only_what_is_new() {
    let (_directory, store) = store();
    create(&store, "one").close().unwrap();
    assert_eq!(row(&store, "one").state, RunState::Open);
    append(&store, "one", &[started("sh")]);
    let open = row(&store, "one");
    assert_eq!((open.events, open.command), (2, vec![OsText::from("sh")]));
    append(&store, "one", &[finished()]);
    let (index, refreshed) = Index::refreshed(&store).unwrap();
    assert_eq!(refreshed.read, 1);
    let done = index.run(&id("one")).unwrap().unwrap();
    let state = RunState::Finished {
        exit_code: Some(3),
        signal: None,
        stopped: None,
        elapsed_ms: 12,
    };
    assert_eq!((done.events, done.state, done.head.seq), (3, state, 2));
    assert_eq!(Index::refreshed(&store).unwrap().1.read, 0);
}

/// Neither room nor its cut is news.
#[test]
fn room_is_nothing_to_read() {
    let (_directory, store) = store();
    let journal = create(&store, "one");
    for _ in 0..9 {
        let ticket = journal.append(Origin::Runtime, &started("sh")).unwrap();
        ticket.durable().unwrap();
    }
    let path = store.home().join("runs/one/journal.ndjson");
    assert!(fs::read(&path).unwrap().ends_with(b"\n\n"));
    assert_eq!(Index::refreshed(&store).unwrap().1.read, 1);
    assert_eq!(Index::refreshed(&store).unwrap().1.read, 0);
    let before = row(&store, "one");
    assert_eq!((before.events, &before.problem), (10, &None));
    journal.close().unwrap();
    assert!(!fs::read(&path).unwrap().ends_with(b"\n\n"));
    assert_eq!(Index::refreshed(&store).unwrap().1.read, 0);
    assert_eq!(row(&store, "one"), before);
    append(&store, "one", &[finished()]);
    assert_eq!(Index::refreshed(&store).unwrap().1.read, 1);
}

#[test]
fn deleted_damaged_or_foreign_it_is_built_again() {
    let (_directory, store) = store();
    create(&store, "one").close().unwrap();
    append(&store, "one", &[started("sh"), finished()]);
    let before = row(&store, "one");
    let path = store.home().join("index.sqlite");

    fs::remove_file(&path).unwrap();
    assert_eq!(row(&store, "one"), before);

    // Everything in one file, so that damage to it is damage.
    let settle = || {
        let db = rusqlite::Connection::open(&path).unwrap();
        let settled = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        assert_eq!(settled, Ok(0));
    };
    settle();
    let good = fs::read(&path).unwrap();
    let garbage = vec![0x5a; good.len()];
    let mut holed = good.clone();
    holed[100..3000].fill(0xff);
    let version = {
        let db = rusqlite::Connection::open(&path).unwrap();
        db.pragma_update(None, "user_version", 99).unwrap();
        drop(db);
        fs::read(&path).unwrap()
    };
    for (what, bytes) in [
        ("garbage", garbage),
        ("a hole", holed),
        ("cut", good[..700].to_vec()),
        ("version", version),
    ] {
        settle();
        fs::write(&path, &bytes).unwrap();
        let (index, refreshed) = Index::refreshed(&store).unwrap();
        assert!(refreshed.rebuilt.is_some(), "{what}");
        assert_eq!(
            index.run(&id("one")).unwrap(),
            Some(before.clone()),
            "{what}"
        );
        assert!(store.home().join("index.sqlite.damaged").exists());
    }
    settle();
    fs::write(&path, b"").unwrap();
    assert_eq!(row(&store, "one"), before, "an empty file is a new index");
}

#[test]
fn a_journal_that_became_shorter_is_reported_and_its_head_kept() {
    let (_directory, store) = store();
    create(&store, "one").close().unwrap();
    append(&store, "one", &[started("sh"), finished()]);
    let whole = row(&store, "one");
    let path = store.home().join("runs/one/journal.ndjson");
    let bytes = fs::read(&path).unwrap();
    let end_of_second = bytes
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'\n')
        .nth(1)
        .unwrap()
        .0
        + 1;
    fs::write(&path, &bytes[..end_of_second]).unwrap();
    for _ in 0..2 {
        let cut = row(&store, "one");
        let problem = cut.problem.as_deref().unwrap();
        assert!(problem.contains("record 2 is missing"), "{problem}");
        assert_eq!(
            (cut.head, cut.events),
            (whole.head, whole.events),
            "never re-indexed"
        );
    }
    // Grown again, with another record in its place.
    fs::remove_file(store.home().join("runs/one/durable")).unwrap();
    append(&store, "one", &[started("other"), finished()]);
    let problem = row(&store, "one").problem.unwrap();
    assert!(problem.contains("record 2 has another hash"), "{problem}");
    // Put back as it was: all is well.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(row(&store, "one"), whole);
}

#[test]
fn a_run_that_vanished_is_reported() {
    let (_directory, store) = store();
    create(&store, "one").close().unwrap();
    let before = row(&store, "one");
    fs::remove_dir_all(store.home().join("runs/one")).unwrap();
    let gone = row(&store, "one");
    assert_eq!(gone.problem.as_deref(), Some("its directory is gone"));
    assert_eq!(gone.head, before.head);
}

#[test]
fn damage_in_the_middle_is_reported_with_the_record() {
    let (_directory, store) = store();
    create(&store, "one").close().unwrap();
    append(&store, "one", &[started("sh"), finished()]);
    let path = store.home().join("runs/one/journal.ndjson");
    let bytes = String::from_utf8(fs::read(&path).unwrap()).unwrap();
    fs::write(&path, bytes.replace("\"sh\"", "\"ss\"")).unwrap();
    let problem = row(&store, "one").problem.unwrap();
    assert!(problem.contains("record 1 is damaged"), "{problem}");
}

#[test]
fn eight_at_once_agree() {
    let (_directory, store) = store();
    for run in 0..20 {
        create(&store, &format!("run{run}")).close().unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (index, refreshed) = Index::refreshed(&store).unwrap();
                assert_eq!(refreshed.rebuilt, None);
                assert_eq!(index.runs().unwrap().len(), 20);
            });
        }
    });
}

#[test]
fn runs_come_newest_first() {
    let (_directory, store) = store();
    for run in ["c", "a", "b"] {
        create(&store, run).close().unwrap();
    }
    let (index, _) = Index::refreshed(&store).unwrap();
    let order: Vec<String> = index
        .runs()
        .unwrap()
        .iter()
        .map(|row| row.run_id.to_string())
        .collect();
    assert_eq!(order, ["b", "a", "c"]);
}

/// Begins runs, records in them and notes them in the index until it is killed.
pub(crate) fn note_until_killed(words: &Words) {
    let store = Store::new(&words["home"]);
    for number in 0.. {
        let name = format!("{}_{number}", words["name"]);
        let journal = create(&store, &name);
        let run = store.run(&id(&name)).unwrap();
        journal
            .append(Origin::Runtime, &started("sh"))
            .unwrap()
            .durable()
            .unwrap();
        child::say(&name);
        Index::note(&store, &run).unwrap();
        drop(journal);
        Index::refreshed(&store).unwrap();
    }
}

/// Killed in the middle of making runs and of writing the index: every acknowledged record is there, and the index
/// says the same as one that is built anew.
#[test]
fn killed_during_an_update_it_is_right_afterwards() {
    let (_directory, store) = store();
    fs::create_dir_all(store.home()).unwrap();
    let home = store.home().to_str().unwrap().to_owned();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut acknowledged = Vec::new();
    for round in 0..kills(40) {
        let name = format!("round{round}");
        let words = [("home", &*home), ("name", &*name)];
        let mut child = child::command("note_until_killed", &words).spawn().unwrap();
        let said = child::listen(&mut child);
        std::thread::sleep(std::time::Duration::from_millis(rng.u64(5..80)));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(said);
        let (index, refreshed) = Index::refreshed(&store).unwrap();
        assert_eq!(refreshed.rebuilt, None, "round {round}");
        let rows = index.runs().unwrap();
        assert!(rows.iter().all(|row| row.problem.is_none()), "{rows:#?}");
        for run in &acknowledged {
            let row = index.run(&id(run)).unwrap();
            assert!(row.is_some_and(|row| row.events >= 2), "{run}");
        }
    }
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());
    let rows = |store: &Store| Index::refreshed(store).unwrap().0.runs().unwrap();
    let updated = rows(&store);
    fs::remove_file(store.home().join("index.sqlite")).unwrap();
    assert_eq!(rows(&store), updated);
}
