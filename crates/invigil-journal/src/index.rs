//! A cache over all journals of a store, in SQLite. It answers quickly, can be deleted at any time, and is never the
//! only place of a fact but one: it remembers heads, so that a journal which has become shorter is noticed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use invigil_schema::{Digest, Envelope, Event, Origin, OsText, RunId, StopReason, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Row, named_params};

use crate::cache::{self, Cache, IndexError};
use crate::chain::Head;
use crate::read::Reader;
use crate::segment;
use crate::storage::{Access, Storage, read_full};
use crate::store::{RunRef, Store, StoreError};

const FILE: &str = "index.sqlite";
const CACHE: Cache = Cache {
    version: 1,
    schema: SCHEMA,
};
const SCHEMA: &str = "
CREATE TABLE runs (
    run_id     TEXT PRIMARY KEY,
    started_at INTEGER NOT NULL,  -- microseconds since 1970, of record 0
    command    TEXT NOT NULL,     -- JSON array
    state      TEXT NOT NULL,     -- JSON
    events     INTEGER NOT NULL,
    segment    INTEGER NOT NULL,  -- where the head lies,
    end        INTEGER NOT NULL,  -- and where it ends
    head_seq   INTEGER NOT NULL,
    head_hash  TEXT NOT NULL,
    problem    TEXT
) STRICT;
CREATE INDEX runs_by_time ON runs (started_at);
";

/// The index of a store.
pub struct Index {
    db: Connection,
    /// A store that cannot be written is indexed in memory.
    in_memory: bool,
}

/// What a refresh had to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// The index was damaged, or of another version, and is built anew: why. Heads it remembered are gone.
    pub rebuilt: Option<String>,
    /// The index could not be written: why. Heads it remembers were not compared.
    pub unsaved: Option<String>,
    /// How many runs were read, in whole or in part.
    pub read: usize,
}

/// What became of a run, as far as its journal says.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// No end is recorded: it goes on, or was interrupted.
    Open,
    /// The command has ended.
    Finished {
        /// Its exit code.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// Why Invigil ended it, if it did.
        stopped: Option<StopReason>,
        /// How long it took.
        elapsed_ms: u64,
    },
    /// The command could not be started.
    Failed {
        /// Why.
        reason: String,
    },
    /// A client of the daemon led it, and it is over.
    Ended {
        /// How, in one word.
        how: String,
        /// How long it took.
        elapsed_ms: u64,
    },
}

/// One run, as the index knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub run_id: RunId,
    /// When its journal was begun.
    pub started_at: Timestamp,
    /// The command and its arguments.
    pub command: Vec<OsText>,
    /// What became of it.
    pub state: RunState,
    /// How many records.
    pub events: u64,
    /// The last record.
    pub head: Head,
    /// What is wrong with its journal.
    pub problem: Option<String>,
}

impl Index {
    /// Opens the index of a store and reads what is new in its journals.
    pub fn refreshed(store: &Store) -> Result<(Index, Refreshed), StoreError> {
        let path = store.home().join(FILE);
        let why = match Index::open(&path).and_then(|index| index.known().map(|_| index)) {
            Ok(index) => match index.refresh(store) {
                Ok(refreshed) => return Ok((index, refreshed)),
                Err(StoreError::Index(error)) if error.is_damage() => error.to_string(),
                Err(StoreError::Index(error)) if error.is_unwritable() => {
                    return Index::unsaved(store, &error);
                }
                Err(error) => return Err(error),
            },
            Err(error) if error.is_damage() => error.to_string(),
            Err(error) if error.is_unwritable() => return Index::unsaved(store, &error),
            Err(error) => return Err(error.into()),
        };
        cache::set_aside(&path)?;
        let index = Index::open(&path)?;
        let refreshed = index.refresh(store)?;
        Ok((
            index,
            Refreshed {
                rebuilt: Some(why),
                ..refreshed
            },
        ))
    }

    /// Where nothing can be written, an index for this once: looking must work on a full disk.
    fn unsaved(store: &Store, why: &IndexError) -> Result<(Index, Refreshed), StoreError> {
        let db = CACHE.in_memory(&store.home().join(FILE))?;
        let index = Index {
            db,
            in_memory: true,
        };
        let refreshed = index.refresh(store)?;
        let unsaved = Some(why.to_string());
        Ok((
            index,
            Refreshed {
                unsaved,
                ..refreshed
            },
        ))
    }

    /// Opens the index of a store and reads what is new in one journal.
    pub fn note(store: &Store, run: &RunRef) -> Result<(), StoreError> {
        let index = Index::open(&store.home().join(FILE))?;
        let known = index.row(run.run_id())?;
        index.refresh_run(run, known).map(|_| ())
    }

    /// Forgets a run that was removed on purpose. Without an index there is nothing to forget.
    pub(crate) fn forget(store: &Store, run_id: &RunId) -> Result<(), IndexError> {
        let path = store.home().join(FILE);
        if !path.exists() {
            return Ok(());
        }
        let index = Index::open(&path)?;
        let gone = index
            .db
            .execute("DELETE FROM runs WHERE run_id = ?1", [run_id.as_str()]);
        gone.map(|_| ()).map_err(index.failed())
    }

    fn open(path: &Path) -> Result<Index, IndexError> {
        let (db, in_memory) = CACHE.open(path)?;
        Ok(Index { db, in_memory })
    }

    fn failed(&self) -> impl Fn(rusqlite::Error) -> IndexError + use<> {
        cache::failed(&self.db)
    }

    fn refresh(&self, store: &Store) -> Result<Refreshed, StoreError> {
        let rows = self.known()?.into_iter();
        let mut known: BTreeMap<RunId, Known> = rows
            .map(|known| (known.row.run_id.clone(), known))
            .collect();
        let mut refreshed = Refreshed::default();
        for run in store.runs()? {
            let row = known.remove(run.run_id());
            refreshed.read += usize::from(self.refresh_run(&run, row)?);
        }
        // What is left had a journal once.
        for (_, mut gone) in known {
            if gone.row.problem.is_none() {
                gone.row.problem = Some("its directory is gone".to_owned());
                self.save(&gone)?;
            }
        }
        Ok(refreshed)
    }

    /// Reads what is new in one journal; whether there was anything.
    fn refresh_run(&self, run: &RunRef, known: Option<Known>) -> Result<bool, StoreError> {
        let storage = run.storage();
        let row = match known {
            Some(known) if known.unchanged(&*storage) => return Ok(false),
            Some(known) => continued(run, known),
            None => started(run),
        };
        let Some(mut row) = row else {
            return Ok(false);
        };
        if !self.in_memory
            && row.row.problem.is_none()
            && let Err(problem) = sync(&*storage, row.segment)
        {
            // This head could still vanish in a loss of power, and would then look removed.
            row.row.problem = Some(problem);
        }
        self.save(&row)?;
        Ok(true)
    }

    fn known(&self) -> Result<Vec<Known>, IndexError> {
        let query = || {
            let mut statement = self.db.prepare_cached("SELECT * FROM runs")?;
            statement
                .query_map([], Known::read)?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        query().map_err(self.failed())
    }

    fn row(&self, run_id: &RunId) -> Result<Option<Known>, IndexError> {
        let row = self
            .db
            .query_row(
                "SELECT * FROM runs WHERE run_id = ?1",
                [run_id.as_str()],
                Known::read,
            )
            .optional();
        row.map_err(self.failed())
    }

    /// A remembered head is only ever replaced by a later one.
    fn save(&self, known: &Known) -> Result<(), IndexError> {
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let row = &known.row;
        let saved = self.db.execute(
            "INSERT INTO runs VALUES (:run_id, :started_at, :command, :state, :events, :segment, :end,
                                      :head_seq, :head_hash, :problem)
             ON CONFLICT (run_id) DO UPDATE SET
                 started_at = excluded.started_at, command = excluded.command, state = excluded.state,
                 events = excluded.events, segment = excluded.segment, end = excluded.end,
                 head_seq = excluded.head_seq, head_hash = excluded.head_hash, problem = excluded.problem
             WHERE excluded.head_seq >= runs.head_seq",
            named_params! {
                ":run_id": row.run_id.as_str(),
                ":started_at": row.started_at.as_micros() as i64,
                ":command": json(serde_json::to_string(&row.command)),
                ":state": json(serde_json::to_string(&row.state)),
                ":events": row.events as i64,
                ":segment": known.segment as i64,
                ":end": known.end as i64,
                ":head_seq": row.head.seq as i64,
                ":head_hash": row.head.hash.to_string(),
                ":problem": row.problem,
            },
        );
        saved.map(|_| ()).map_err(self.failed())
    }

    /// All runs, newest first.
    pub fn runs(&self) -> Result<Vec<RunRow>, IndexError> {
        let mut runs: Vec<RunRow> = self.known()?.into_iter().map(|known| known.row).collect();
        runs.sort_by(|a, b| (b.started_at, &b.run_id).cmp(&(a.started_at, &a.run_id)));
        Ok(runs)
    }

    /// One run.
    pub fn run(&self, run_id: &RunId) -> Result<Option<RunRow>, IndexError> {
        Ok(self.row(run_id)?.map(|known| known.row))
    }
}

/// A row, and where its head ends.
struct Known {
    row: RunRow,
    segment: u64,
    end: u64,
}

impl Known {
    fn read(row: &Row<'_>) -> rusqlite::Result<Known> {
        fn number(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
            row.get::<_, i64>(column).map(|number| number as u64)
        }
        fn parsed<T>(
            row: &Row<'_>,
            column: &str,
            parse: impl FnOnce(&str) -> Result<T, Box<dyn std::error::Error + Send + Sync>>,
        ) -> rusqlite::Result<T> {
            let text: String = row.get(column)?;
            let at = row.as_ref().column_index(column)?;
            parse(&text).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, error)
            })
        }
        Ok(Known {
            row: RunRow {
                run_id: parsed(row, "run_id", |text| Ok(RunId::new(text)?))?,
                started_at: Timestamp::from_micros(number(row, "started_at")?),
                command: parsed(row, "command", |text| Ok(serde_json::from_str(text)?))?,
                state: parsed(row, "state", |text| Ok(serde_json::from_str(text)?))?,
                events: number(row, "events")?,
                head: Head {
                    seq: number(row, "head_seq")?,
                    hash: parsed(row, "head_hash", |text| Ok(text.parse::<Digest>()?))?,
                },
                problem: row.get("problem")?,
            },
            segment: number(row, "segment")?,
            end: number(row, "end")?,
        })
    }

    /// Nothing was added or taken away since: behind the head there is at most room. Two look-ups and one byte.
    fn unchanged(&self, storage: &dyn Storage) -> bool {
        let open = |seq: u64| storage.open(&segment::name(seq), Access::Read);
        let ends_there = open(self.segment).and_then(|file| {
            let mut behind = [b'\n'];
            read_full(&*file, &mut behind, self.end)?;
            Ok(file.size()? >= self.end && behind == *b"\n")
        });
        self.row.problem.is_none()
            && ends_there.unwrap_or(false)
            && open(self.row.head.seq + 1).is_err()
    }

    /// Takes over every record that the reader still has.
    fn fold(mut self, mut reader: Reader) -> Known {
        loop {
            match reader.next() {
                Ok(Some(record)) => {
                    self.row.head = Head {
                        seq: record.seq,
                        hash: record.hash,
                    };
                    self.row.events = record.seq + 1;
                    if let Ok(envelope) = record.envelope() {
                        self.row.take(&envelope);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.row.problem = Some(error.to_string());
                    break;
                }
            }
        }
        (self.segment, self.end) = reader.place();
        self
    }
}

impl RunRow {
    fn take(&mut self, envelope: &Envelope<'_>) {
        // Most records are the kernel's, and none of them matters here: their data is not even parsed.
        if envelope.origin != Origin::Runtime {
            return;
        }
        match envelope.event() {
            Event::JournalOpened(_) => self.started_at = envelope.time,
            Event::RunStarted(started) => self.command = started.command,
            Event::RunFinished(finished) => {
                self.state = RunState::Finished {
                    exit_code: finished.exit_code,
                    signal: finished.signal,
                    stopped: finished.stopped,
                    elapsed_ms: finished.window_elapsed_ms,
                }
            }
            Event::RunFailed(failed) => {
                self.state = RunState::Failed {
                    reason: failed.reason,
                }
            }
            Event::ClientRunStarted(started) => self.command = vec![started.intent.as_str().into()],
            Event::ClientRunEnded(ended) => {
                let elapsed = ended.ended_at.since(self.started_at);
                self.state = RunState::Ended {
                    how: ended.termination.word(),
                    elapsed_ms: elapsed.as_millis() as u64,
                }
            }
            _ => {}
        }
    }
}

/// A run that the index does not know. Nothing, if there is no record to remember.
fn started(run: &RunRef) -> Option<Known> {
    let reader = Reader::open(run.storage()).ok()?;
    let none = Head {
        seq: 0,
        hash: Digest::ZERO,
    };
    let known = Known {
        row: RunRow {
            run_id: run.run_id().clone(),
            started_at: Timestamp::default(),
            command: Vec::new(),
            state: RunState::Open,
            events: 0,
            head: none,
            problem: None,
        },
        segment: 0,
        end: 0,
    };
    let known = known.fold(reader);
    (known.row.events > 0 || known.row.problem.is_some()).then_some(known)
}

/// A run that the index knows, and whose journal has changed.
fn continued(run: &RunRef, mut known: Known) -> Option<Known> {
    let head = known.row.head;
    let reader = Reader::open_at(Arc::clone(&run.storage()) as Arc<dyn Storage>, head.seq + 1);
    let problem = match reader {
        Ok(Some(reader)) if reader.head() == Some(head) => {
            known.row.problem = None;
            return Some(known.fold(reader));
        }
        Ok(Some(_)) => format!(
            "record {} has another hash than the one remembered",
            head.seq
        ),
        Ok(None) => format!(
            "it is shorter than remembered: record {} is missing",
            head.seq
        ),
        Err(error) => error.to_string(),
    };
    known.row.problem = Some(problem);
    Some(known)
}

fn sync(storage: &dyn Storage, segment: u64) -> Result<(), String> {
    let name = segment::name(segment);
    let synced = storage
        .open(&name, Access::Read)
        .and_then(|file| file.sync());
    synced.map_err(|error| format!("{name} cannot be synced: {error}"))
}
