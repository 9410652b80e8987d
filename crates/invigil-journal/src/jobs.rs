//! A cache over the journal of jobs: which jobs and sessions there are, how they ended, and where their records stand.

use std::path::Path;

use invigil_schema::{Digest, Envelope, Event, JobEnd, JobId, SessionId, SessionState, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};

use crate::cache::{self, Cache, IndexError};
use crate::chain::Head;
use crate::store::{RunRef, Store, StoreError};

const FILE: &str = "jobs.sqlite";
const CACHE: Cache = Cache {
    version: 1,
    schema: SCHEMA,
};
const SCHEMA: &str = "
CREATE TABLE jobs (
    job_id     TEXT PRIMARY KEY,
    seq        INTEGER NOT NULL,  -- of its first record
    started_at INTEGER NOT NULL,  -- microseconds since 1970
    capability TEXT NOT NULL,
    session    TEXT,
    dry_run    INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    undoes     TEXT,              -- the job that it takes back
    state      TEXT NOT NULL,
    end_seq    INTEGER,           -- of its last record
    elapsed_ms INTEGER,
    error      TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_by_seq ON jobs (seq);
CREATE INDEX jobs_by_session ON jobs (session, seq) WHERE session IS NOT NULL;
CREATE INDEX jobs_open ON jobs (seq) WHERE end_seq IS NULL;
CREATE INDEX jobs_undoing ON jobs (undoes) WHERE undoes IS NOT NULL;
CREATE TABLE kept (job_id TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (job_id, seq)) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
    session    TEXT PRIMARY KEY,
    seq        INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    state      TEXT NOT NULL,
    title      TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE steps (
    session TEXT NOT NULL, file TEXT NOT NULL, step INTEGER NOT NULL, seq INTEGER NOT NULL, job_id TEXT NOT NULL,
    PRIMARY KEY (session, file, step, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
";

/// After so many new records the log of the cache is put away.
const MANY: u64 = 10_000;

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It has no end yet.
    Open,
    /// It was done.
    Completed,
    /// It was not.
    Failed,
    /// The policy did not let it.
    Denied,
    /// Its time was up.
    TimedOut,
    /// Somebody did not want it any more.
    Cancelled,
}

impl JobState {
    const ALL: [JobState; 6] = [
        JobState::Open,
        JobState::Completed,
        JobState::Failed,
        JobState::Denied,
        JobState::TimedOut,
        JobState::Cancelled,
    ];

    /// The name that people type.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Open => "open",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Denied => "denied",
            JobState::TimedOut => "timed_out",
            JobState::Cancelled => "cancelled",
        }
    }
}

/// One job, as the index knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its id.
    pub job_id: JobId,
    /// The number of its first record.
    pub seq: u64,
    /// When it was started.
    pub started_at: Timestamp,
    /// What was asked for.
    pub capability: String,
    /// The session that it belongs to.
    pub session: Option<SessionId>,
    /// Whether nothing was to be changed.
    pub dry_run: bool,
    /// Who looks after it.
    pub owner: String,
    /// How it stands.
    pub state: JobState,
    /// The number of its last record.
    pub end_seq: Option<u64>,
    /// How long it took.
    pub elapsed_ms: Option<u64>,
    /// Why it was not done.
    pub error: Option<String>,
}

/// One session, as the index knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id.
    pub session: SessionId,
    /// When it was opened.
    pub started_at: Timestamp,
    /// What it is.
    pub state: SessionState,
    /// What it is for.
    pub title: Option<String>,
}

/// Which jobs.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Those of this session.
    pub session: Option<SessionId>,
    /// Those that stand like this.
    pub state: Option<JobState>,
    /// The newest so many.
    pub limit: Option<usize>,
}

/// The index of the jobs of a store.
pub struct Jobs {
    db: Connection,
    run: Option<RunRef>,
}

impl Jobs {
    /// Opens the index of a store and reads what is new in the journal of jobs.
    pub fn refreshed(store: &Store) -> Result<Jobs, StoreError> {
        let path = store.home().join(FILE);
        let run = store.jobs_so_far();
        match Jobs::open(&path, run.clone()) {
            Err(StoreError::Index(error)) if error.is_damage() => {
                cache::set_aside(&path)?;
                Jobs::open(&path, run)
            }
            Err(StoreError::Index(error)) if error.is_unwritable() => {
                let jobs = Jobs {
                    db: CACHE.in_memory(&path)?,
                    run,
                };
                jobs.refresh()?;
                Ok(jobs)
            }
            jobs => jobs,
        }
    }

    fn open(path: &Path, run: Option<RunRef>) -> Result<Jobs, StoreError> {
        let db = match run {
            Some(_) => CACHE.open(path)?.0,
            None => CACHE.in_memory(path)?,
        };
        let jobs = Jobs { db, run };
        jobs.refresh()?;
        Ok(jobs)
    }

    /// Reads what is new.
    pub fn refresh(&self) -> Result<(), StoreError> {
        let Some(run) = &self.run else {
            return Ok(());
        };
        let failed = cache::failed(&self.db);
        if self.is_current(run)? {
            return Ok(());
        }
        // Others do the same at once: whoever is first reads, and the rest find it read.
        let begun = Transaction::new_unchecked(&self.db, TransactionBehavior::Immediate);
        let transaction = begun.map_err(&failed)?;
        let head = known_head(&transaction).map_err(&failed)?;
        let next = head.map_or(0, |head| head.seq + 1);
        let reader = run.read(next)?.filter(|reader| reader.head() == head);
        let mut reader = match reader {
            Some(reader) => reader,
            // It is not the journal that was read before: a copy was put in its place, or its end was cut off.
            None => {
                let all = "DELETE FROM jobs; DELETE FROM kept; DELETE FROM sessions; DELETE FROM steps; DELETE FROM head;";
                transaction.execute_batch(all).map_err(&failed)?;
                match run.read(0)? {
                    Some(reader) => reader,
                    None => return Ok(()),
                }
            }
        };
        let mut last = None;
        while let Some(record) = reader.next().map_err(|error| run.error(error))? {
            last = Some(Head {
                seq: record.seq,
                hash: record.hash,
            });
            let envelope = record.envelope().map_err(|error| run.error(error))?;
            take(&transaction, &envelope).map_err(&failed)?;
        }
        if let Some(head) = last {
            let saved = transaction.execute(
                "INSERT OR REPLACE INTO head VALUES (1, ?1, ?2)",
                params![head.seq as i64, head.hash.to_string()],
            );
            saved.map_err(&failed)?;
        }
        transaction.commit().map_err(&failed)?;
        if last.is_some_and(|head| head.seq >= next + MANY) {
            // Whoever opens it next would have to read all of the log again. If somebody else is at it, it stays.
            let shortened = "PRAGMA wal_checkpoint(TRUNCATE)";
            drop(self.db.query_row(shortened, [], |_| Ok(())));
        }
        Ok(())
    }

    /// Whether nothing is new, as it mostly is; then nobody is in another's way.
    fn is_current(&self, run: &RunRef) -> Result<bool, StoreError> {
        let Some(head) = known_head(&self.db).map_err(cache::failed(&self.db))? else {
            return Ok(false);
        };
        match run.read(head.seq + 1)? {
            Some(mut reader) if reader.head() == Some(head) => {
                let next = reader.next().map_err(|error| run.error(error))?;
                Ok(next.is_none())
            }
            _ => Ok(false),
        }
    }

    /// Jobs, newest first.
    pub fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRow>, IndexError> {
        let session = filter.session.as_ref().map(SessionId::as_str);
        let limit = filter.limit.map_or(-1, |limit| limit as i64);
        let rows = |clause: &str, values: &[&dyn rusqlite::ToSql]| {
            self.rows(
                &format!("SELECT * FROM jobs {clause} ORDER BY seq DESC LIMIT ?1"),
                values,
            )
        };
        match (session, filter.state) {
            (None, None) => rows("", params![limit]),
            (None, Some(JobState::Open)) => rows("WHERE end_seq IS NULL", params![limit]),
            (None, Some(state)) => rows("WHERE state = ?2", params![limit, state.as_str()]),
            (Some(session), None) => rows("WHERE session = ?2", params![limit, session]),
            (Some(session), Some(state)) => rows(
                "WHERE session = ?2 AND state = ?3",
                params![limit, session, state.as_str()],
            ),
        }
    }

    /// The job of this very id.
    pub fn job(&self, job_id: &JobId) -> Result<Option<JobRow>, IndexError> {
        let rows = self.rows(
            "SELECT * FROM jobs WHERE job_id = ?1",
            params![job_id.as_str()],
        )?;
        Ok(rows.into_iter().next())
    }

    /// Jobs whose ids begin like this; `last` is the newest. Not more than a handful.
    pub fn begin_with(&self, prefix: &str) -> Result<Vec<JobRow>, IndexError> {
        if prefix == "last" {
            return self.rows("SELECT * FROM jobs ORDER BY seq DESC LIMIT 1", params![]);
        }
        // Ids have no character behind `~`.
        self.rows(
            "SELECT * FROM jobs WHERE job_id >= ?1 AND job_id < ?1 || '~' ORDER BY seq LIMIT 6",
            params![prefix],
        )
    }

    /// The jobs that took this one back, or tried to.
    pub fn undoing(&self, job_id: &JobId) -> Result<Vec<JobRow>, IndexError> {
        self.rows(
            "SELECT * FROM jobs WHERE undoes = ?1 ORDER BY seq",
            params![job_id.as_str()],
        )
    }

    /// The numbers of the records that say what a job was about to change.
    pub fn kept(&self, job_id: &JobId) -> Result<Vec<u64>, IndexError> {
        let query = || {
            let mut statement = self
                .db
                .prepare_cached("SELECT seq FROM kept WHERE job_id = ?1 ORDER BY seq")?;
            statement
                .query_map([job_id.as_str()], |row| row.get::<_, i64>(0))?
                .map(|seq| seq.map(|seq| seq as u64))
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        query().map_err(cache::failed(&self.db))
    }

    /// All sessions, newest first.
    pub fn sessions(&self) -> Result<Vec<SessionRow>, IndexError> {
        let query = || {
            let mut statement = self
                .db
                .prepare_cached("SELECT * FROM sessions ORDER BY seq DESC")?;
            statement
                .query_map([], session)?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        query().map_err(cache::failed(&self.db))
    }

    /// One session.
    pub fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, IndexError> {
        let row = self.db.query_row(
            "SELECT * FROM sessions WHERE session = ?1",
            [id.as_str()],
            session,
        );
        row.optional().map_err(cache::failed(&self.db))
    }

    /// The last step of a file that a session has begun, and whether it was done.
    pub fn last_step(
        &self,
        session: &SessionId,
        file: &Digest,
    ) -> Result<Option<(u64, bool)>, IndexError> {
        let last = self.db.query_row(
            "SELECT step, state FROM steps JOIN jobs USING (job_id)
             WHERE steps.session = ?1 AND file = ?2 ORDER BY steps.seq DESC LIMIT 1",
            params![session.as_str(), file.to_string()],
            |row| {
                let state: String = row.get(1)?;
                Ok((
                    row.get::<_, i64>(0)? as u64,
                    state == JobState::Completed.as_str(),
                ))
            },
        );
        last.optional().map_err(cache::failed(&self.db))
    }

    fn rows(
        &self,
        query: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<Vec<JobRow>, IndexError> {
        let rows = || {
            let mut statement = self.db.prepare_cached(query)?;
            statement
                .query_map(parameters, job)?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(cache::failed(&self.db))
    }
}

fn known_head(db: &Connection) -> rusqlite::Result<Option<Head>> {
    let head = db.query_row("SELECT seq, hash FROM head", [], |row| {
        Ok(Head {
            seq: row.get::<_, i64>(0)? as u64,
            hash: text(row, 1, |hash| hash.parse::<Digest>().ok())?,
        })
    });
    head.optional()
}

/// Takes over one record.
fn take(db: &Connection, envelope: &Envelope<'_>) -> rusqlite::Result<()> {
    let seq = envelope.seq as i64;
    let at = envelope.time.as_micros() as i64;
    let run = |statement: &str, parameters: &[&dyn rusqlite::ToSql]| {
        db.prepare_cached(statement)?.execute(parameters).map(drop)
    };
    let end = |end: &JobEnd, state: JobState, error: Option<&str>| {
        run(
            "UPDATE jobs SET state = ?2, end_seq = ?3, elapsed_ms = ?4, error = ?5 WHERE job_id = ?1 AND end_seq IS NULL",
            params![
                end.job_id.as_str(),
                state.as_str(),
                seq,
                end.duration_ms as i64,
                error
            ],
        )
    };
    match envelope.event() {
        Event::JobStarted(started) => {
            let undoes = match started.capability.as_str() {
                "undo" => started.arguments.get("job_id").and_then(|id| id.as_str()),
                _ => None,
            };
            run(
                "INSERT OR IGNORE INTO jobs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'open', NULL, NULL, NULL)",
                params![
                    started.job_id.as_str(),
                    seq,
                    at,
                    started.capability,
                    started.session.as_ref().map(SessionId::as_str),
                    started.dry_run,
                    started.owner,
                    undoes,
                ],
            )?;
            let (Some(session), Some(step)) = (&started.session, &started.step) else {
                return Ok(());
            };
            run(
                "INSERT OR IGNORE INTO steps VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    session.as_str(),
                    step.file.to_string(),
                    step.number as i64,
                    seq,
                    started.job_id.as_str(),
                ],
            )
        }
        Event::JobKept(kept) => run(
            "INSERT OR IGNORE INTO kept VALUES (?1, ?2)",
            params![kept.job_id.as_str(), seq],
        ),
        Event::JobCompleted(job) => end(&job.end, JobState::Completed, None),
        Event::JobFailed(job) => end(&job.end, JobState::Failed, Some(&job.error)),
        Event::JobDenied(job) => end(&job.end, JobState::Denied, Some(&job.error)),
        Event::JobTimedOut(job) => end(&job.end, JobState::TimedOut, None),
        Event::JobCancelled(job) => end(&job.end, JobState::Cancelled, None),
        Event::SessionChanged(changed) => run(
            "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (session) DO UPDATE SET state = excluded.state",
            params![
                changed.session.as_str(),
                seq,
                at,
                changed.state.as_str(),
                changed.title
            ],
        ),
        _ => Ok(()),
    }
}

fn job(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let number = |column: &str| row.get::<_, i64>(column).map(|number| number as u64);
    let maybe = |column: &str| {
        row.get::<_, Option<i64>>(column)
            .map(|n| n.map(|n| n as u64))
    };
    let session: Option<String> = row.get("session")?;
    Ok(JobRow {
        job_id: text(row, "job_id", |id| JobId::new(id).ok())?,
        seq: number("seq")?,
        started_at: Timestamp::from_micros(number("started_at")?),
        capability: row.get("capability")?,
        session: session.and_then(|id| SessionId::new(id).ok()),
        dry_run: row.get("dry_run")?,
        owner: row.get("owner")?,
        state: text(row, "state", |state| {
            JobState::ALL
                .into_iter()
                .find(|known| known.as_str() == state)
        })?,
        end_seq: maybe("end_seq")?,
        elapsed_ms: maybe("elapsed_ms")?,
        error: row.get("error")?,
    })
}

fn session(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    let all = [
        SessionState::Open,
        SessionState::Paused,
        SessionState::Ended,
    ];
    Ok(SessionRow {
        session: text(row, "session", |id| SessionId::new(id).ok())?,
        started_at: Timestamp::from_micros(row.get::<_, i64>("started_at")? as u64),
        state: text(row, "state", |state| {
            all.into_iter().find(|known| known.as_str() == state)
        })?,
        title: row.get("title")?,
    })
}

/// A text that means something; an error that counts as damage if it does not.
fn text<T>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
    parse: impl FnOnce(&str) -> Option<T>,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    let at = column.idx(row.as_ref())?;
    parse(&text).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(
            at,
            rusqlite::types::Type::Text,
            format!("{text:?} is not known").into(),
        )
    })
}
