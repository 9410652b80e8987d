//! Durable append against the floor and against SQLite.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use invigil_journal::Options;
use invigil_schema::Origin;
use rusqlite::Connection;

use super::report::{Goal, Table};
use super::rounds::{interleaved, timed};
use super::sample::{Lines, Scratch, create, events};
use crate::Result;

/// Records a commit, and commits a round.
const SIZES: [(usize, usize); 4] = [(1, 500), (8, 400), (64, 200), (512, 40)];

pub(super) fn measure(scratch: &Scratch, quick: bool) -> Result<[Table; 2]> {
    let mut rates = Table::new(
        "Durable append",
        &[
            "records a commit",
            "journal, records/s",
            "floor",
            "SQLite",
            "SQLite, new",
        ],
    );
    let mut ratios = Table::new(
        "Durable append, ratios",
        &[
            "records a commit",
            "journal ÷ floor",
            "goal",
            "journal ÷ SQLite",
            "goal",
            "journal ÷ SQLite, new",
            "SQLite ÷ floor",
        ],
    );
    let mut size = 0.0;
    for (records, commits) in SIZES {
        println!("durable append, {records} records a commit …");
        let (rounds, commits) = if quick {
            (3, commits / 10)
        } else {
            (16, commits)
        };
        size = measure_size(scratch, records, commits, rounds, [&mut rates, &mut ratios])?;
    }
    rates.note(format!(
        "One thread appends a batch and waits until it is on the medium. A record has {size:.0} bytes on average. The \
         floor is one `write` and one `fdatasync` of the same bytes to a file that grows. SQLite {} has WAL mode, \
         `synchronous=FULL`, the same bytes as BLOBs with an integer key, one transaction a commit. It is past its first \
         checkpoints, so that it writes over a log that already has its full length. `SQLite, new` is a database that is \
         made for each round, so that its log still grows.",
        rusqlite::version()
    ));
    ratios.note(
        "The same rounds. Where SQLite is ahead of the floor it is because of the file: to write over bytes that are \
         there costs a sync less than to make a file longer, since the new length must reach the medium too. The journal \
         keeps room ahead for the same reason, but for large commits.",
    );
    Ok([rates, ratios])
}

fn measure_size(
    scratch: &Scratch,
    records: usize,
    commits: usize,
    rounds: usize,
    [rates, ratios]: [&mut Table; 2],
) -> Result<f64> {
    let lines = Lines::new(scratch, records * commits * (rounds + 1))?;
    let folder = scratch.folder("durable")?;
    let journal = create(&folder, Options::default())?;
    let events = events();
    let batch: Vec<_> = events.iter().cycle().take(records).collect();
    let mut journal = |_| {
        timed(|| {
            for _ in 0..commits {
                let batch = batch.iter().map(|&event| (Origin::Kernel, event));
                journal.append_all(batch)?.durable()?;
            }
            Ok(())
        })
    };
    let first_of = |round, commit| (round * commits + commit) * records;
    let mut file = append_to(&folder.join("floor"))?;
    let mut floor = |round| {
        timed(|| {
            for commit in 0..commits {
                let first = first_of(round, commit);
                file.write_all(lines.range(first..first + records))?;
                file.sync_data()?;
            }
            Ok(())
        })
    };
    let mut database = database(&folder.join("peer.sqlite"))?;
    warm_up(&mut database, &lines)?;
    let mut sqlite = |round| {
        timed(|| {
            for commit in 0..commits {
                insert(&mut database, &lines, first_of(round, commit), records)?;
            }
            Ok(())
        })
    };
    let mut new_sqlite = |round| {
        let mut database = self::database(&scratch.folder("new")?.join("peer.sqlite"))?;
        timed(|| {
            for commit in 0..commits {
                insert(&mut database, &lines, first_of(round, commit), records)?;
            }
            Ok(())
        })
    };
    let [journal, floor, sqlite, new_sqlite] = interleaved(
        rounds,
        [&mut journal, &mut floor, &mut sqlite, &mut new_sqlite],
    )?;
    let rate = |seconds| (records * commits) as f64 / seconds;
    rates.row([
        records.to_string(),
        journal.map(rate).to_string(),
        floor.map(rate).to_string(),
        sqlite.map(rate).to_string(),
        new_sqlite.map(rate).to_string(),
    ]);
    let (to_floor, to_sqlite) = (journal.speed_of(&floor), journal.speed_of(&sqlite));
    ratios.row([
        records.to_string(),
        to_floor.to_string(),
        Goal::AtLeast(0.7).verdict(to_floor.median()),
        to_sqlite.to_string(),
        Goal::Above(1.0).verdict(to_sqlite.median()),
        journal.speed_of(&new_sqlite).to_string(),
        sqlite.speed_of(&floor).to_string(),
    ]);
    Ok(lines.mean_size())
}

pub(super) fn append_to(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    file.sync_all()?;
    Ok(file)
}

fn database(path: &Path) -> Result<Connection> {
    let database = Connection::open(path)?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "synchronous", "FULL")?;
    database.execute_batch(
        "CREATE TABLE records (seq INTEGER PRIMARY KEY, line BLOB NOT NULL);
         CREATE TABLE warm (seq INTEGER PRIMARY KEY, line BLOB NOT NULL);",
    )?;
    Ok(database)
}

/// Takes a database past its first checkpoints.
fn warm_up(database: &mut Connection, lines: &Lines) -> Result {
    let line = lines.range(0..1).repeat(100);
    for _ in 0..10 {
        let transaction = database.transaction()?;
        for _ in 0..50 {
            transaction.execute("INSERT INTO warm (line) VALUES (?1)", [&line])?;
        }
        transaction.commit()?;
    }
    Ok(())
}

fn insert(database: &mut Connection, lines: &Lines, first: usize, records: usize) -> Result {
    let transaction = database.transaction()?;
    {
        let sql = "INSERT INTO records (seq, line) VALUES (?1, ?2)";
        let mut statement = transaction.prepare_cached(sql)?;
        for seq in first..first + records {
            statement.execute((seq as i64, lines.range(seq..seq + 1)))?;
        }
    }
    transaction.commit()?;
    Ok(())
}
