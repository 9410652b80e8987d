//! Who looks after a job: a file that its process keeps locked. The kernel lets go of it when the process dies, however
//! it does, in whichever namespace it lived.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use invigil_journal::Store;
use invigil_schema::{JobId, SessionId};

const OWNERS: &str = "owners";

/// The process that holds this is alive.
#[derive(Debug)]
pub(super) struct Owner {
    name: String,
    path: PathBuf,
    _lock: File,
}

impl Owner {
    /// Makes this process known as an owner of jobs.
    pub(super) fn new(store: &Store) -> io::Result<Owner> {
        let name = format!("own_{}", uuid::Uuid::now_v7().simple());
        let path = folder(store)?.join(&name);
        let lock = private().create_new(true).open(&path)?;
        lock.lock()?;
        Ok(Owner {
            name,
            path,
            _lock: lock,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// Whether an owner lives. One that cannot be asked about counts as alive: what is uncertain is left alone.
pub(super) fn is_alive(store: &Store, name: &str) -> bool {
    let path = store.home().join(OWNERS).join(name);
    match OpenOptions::new().read(true).open(path) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        // Shared, so that two who ask do not take each other for the owner.
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
        },
    }
}

/// Nothing of this owner is left.
pub(super) fn forget(store: &Store, name: &str) {
    drop(fs::remove_file(store.home().join(OWNERS).join(name)));
}

/// Held by whoever mends what the dead have left, so that it happens once.
pub(super) fn one_at_a_time(store: &Store) -> io::Result<File> {
    let lock = private()
        .create(true)
        .truncate(false)
        .open(folder(store)?.join("recovery"))?;
    lock.lock()?;
    Ok(lock)
}

/// Held by whoever carries out the steps of a session; nothing if another does.
pub(super) fn steps_of(store: &Store, session: &SessionId) -> io::Result<Option<File>> {
    let lock = private()
        .create(true)
        .truncate(false)
        .open(folder(store)?.join(format!("steps.{session}")))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Held by whoever takes a job back; the next one waits, and finds it done.
pub(super) fn undo_of(store: &Store, job_id: &JobId) -> io::Result<File> {
    let lock = private()
        .create(true)
        .truncate(false)
        .open(folder(store)?.join(format!("undo.{job_id}")))?;
    lock.lock()?;
    Ok(lock)
}

fn folder(store: &Store) -> io::Result<PathBuf> {
    let folder = store.home().join(OWNERS);
    make(&folder)?;
    Ok(folder)
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}
