//! SQLite files that are caches: private, quick, safe to delete, and built anew when they are damaged.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

/// A kind of cache: which version, which tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cache {
    pub(crate) version: i32,
    pub(crate) schema: &'static str,
}

impl Cache {
    /// Opens it, or makes it. Where no file can be made it is in memory, for this once; then the second is true.
    pub(crate) fn open(&self, path: &Path) -> Result<(Connection, bool), IndexError> {
        let failed = |source| IndexError::Sqlite {
            path: path.to_owned(),
            source,
        };
        if !path.exists() {
            // What is left of an index that was deleted belongs to no other.
            drop(remove_logs(path));
        }
        // SQLite would make it readable for everybody.
        let made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path);
        match made {
            Ok(_) => {}
            Err(error) if unwritable(&error) => return Ok((self.in_memory(path)?, true)),
            Err(source) => {
                return Err(IndexError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let db = Connection::open(path).map_err(failed)?;
        self.prepare(&db).map_err(failed)?;
        Ok((db, false))
    }

    /// An empty one that is gone with its user. `path` is where it would be.
    pub(crate) fn in_memory(&self, path: &Path) -> Result<Connection, IndexError> {
        let failed = |source| IndexError::Sqlite {
            path: path.to_owned(),
            source,
        };
        let db = Connection::open_in_memory().map_err(failed)?;
        self.prepare(&db).map_err(failed)?;
        Ok(db)
    }

    fn prepare(&self, db: &Connection) -> rusqlite::Result<()> {
        db.busy_timeout(Duration::from_secs(10))?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "NORMAL")?;
        // The end of a run does not wait for the cache to be tidied up; that is done once in a thousand pages.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let version =
            |db: &Connection| db.pragma_query_value(None, "user_version", |row| row.get(0));
        if version(db)? == self.version {
            return Ok(());
        }
        let transaction =
            rusqlite::Transaction::new_unchecked(db, rusqlite::TransactionBehavior::Immediate)?;
        // Another process may have been faster.
        match version(&transaction)? {
            now if now == self.version => return Ok(()),
            0 => {}
            _ => return Err(not_ours()),
        }
        transaction.execute_batch(self.schema)?;
        transaction.pragma_update(None, "user_version", self.version)?;
        transaction.commit()
    }
}

/// An error of this database.
pub(crate) fn failed(db: &Connection) -> impl Fn(rusqlite::Error) -> IndexError + use<> {
    let path = db.path().map(PathBuf::from).unwrap_or_default();
    move |source| IndexError::Sqlite {
        path: path.clone(),
        source,
    }
}

/// What can go wrong with the index. None of it harms a journal.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// SQLite said no.
    #[error("the index {}: {source}; it is a cache, and no record is harmed", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The file could not be made or moved.
    #[error("the index {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl IndexError {
    /// The disk is full, or may not be written.
    pub(crate) fn is_unwritable(&self) -> bool {
        match self {
            IndexError::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(
                    ErrorCode::DiskFull
                        | ErrorCode::ReadOnly
                        | ErrorCode::SystemIoFailure
                        | ErrorCode::CannotOpen
                )
            ),
            IndexError::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
        }
    }

    /// Damage is mended by building the index anew.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            IndexError::Sqlite { source, .. } => match source {
                rusqlite::Error::SqliteFailure(error, _) => matches!(
                    error.code,
                    ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown
                ),
                // A row or a table that is not as this version writes it.
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::InvalidColumnName(..)
                | rusqlite::Error::SqlInputError { .. } => true,
                _ => false,
            },
            IndexError::Io { .. } => false,
        }
    }
}

fn not_ours() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
    rusqlite::Error::SqliteFailure(code, Some("it is of another version".to_owned()))
}

fn unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(
        error.kind(),
        NotFound | PermissionDenied | ReadOnlyFilesystem
    )
}

/// Keeps a damaged index for whoever wants to look, and makes room for a new one.
pub(crate) fn set_aside(path: &Path) -> Result<(), IndexError> {
    let aside = fs::rename(path, path.with_extension("sqlite.damaged"));
    aside
        .and_then(|()| remove_logs(path))
        .map_err(|source| IndexError::Io {
            path: path.to_owned(),
            source,
        })
}

fn remove_logs(path: &Path) -> io::Result<()> {
    for suffix in ["sqlite-wal", "sqlite-shm"] {
        match fs::remove_file(path.with_extension(suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
