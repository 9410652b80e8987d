//! The files of a workspace, kept as git objects in a repository of Invigil's own, and put back from there.
//!
//! git never looks at the workspace: files are found and read by descriptors that follow no link, and written the same
//! way. What the objects are is in `repository`, how they are found in `tree`, how they are put back in `restore`.

mod repository;
mod restore;
mod tree;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use invigil_schema::{
    CheckpointCause, CheckpointTaken, Event, OsText, RollbackStarted, Rollbacked, RunId, SteeredBy,
};

use crate::capabilities::Failure;
use repository::Repository;
use tree::Listed;

/// The directory of all checkpoints, in the store.
const CHECKPOINTS: &str = "checkpoints";
/// How many paths are listed in an event.
const LISTED: usize = 100;

/// Why a checkpoint cannot be taken or gone back to.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// No such checkpoint.
    #[error("there is no checkpoint {0:?}; `invigil checkpoint RUN --list` shows them")]
    NotFound(String),
    /// None was taken yet.
    #[error("there is no checkpoint yet; `invigil checkpoint RUN` takes one")]
    None,
    /// It is more than is kept.
    #[error("{} is too large to be kept: more than {most}; say in .gitignore what need not be", workspace.display())]
    TooLarge {
        /// The directory.
        workspace: PathBuf,
        /// How much is kept.
        most: String,
    },
    /// The workspace.
    #[error("cannot read {}: {source}", workspace.display())]
    Workspace {
        /// The directory.
        workspace: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// git, or the repository.
    #[error("{0}")]
    Git(String),
}

impl From<Failure> for CheckpointError {
    fn from(failure: Failure) -> Self {
        CheckpointError::Git(failure.to_string())
    }
}

/// What is to be kept, and why.
pub(super) struct Wanted<'a> {
    cause: CheckpointCause,
    label: Option<String>,
    at_seq: u64,
    by: SteeredBy,
    /// Files that are kept even where a `.gitignore` leaves them out.
    also: &'a BTreeSet<PathBuf>,
}

impl Wanted<'static> {
    /// Somebody wants it.
    pub(super) fn ordered(label: Option<String>, at_seq: u64, by: SteeredBy) -> Self {
        static NONE: BTreeSet<PathBuf> = BTreeSet::new();
        Wanted {
            cause: CheckpointCause::Ordered,
            label,
            at_seq,
            by,
            also: &NONE,
        }
    }
}

/// The checkpoints of one run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    workspace: PathBuf,
    store: PathBuf,
    repository: Repository,
}

impl Checkpoints {
    /// Of the files below this directory.
    pub fn new(store: &Path, run_id: &RunId, workspace: PathBuf) -> Checkpoints {
        let name = format!("{}.git", run_id.as_str());
        Checkpoints {
            workspace,
            store: store.to_owned(),
            repository: Repository::new(store.join(CHECKPOINTS).join(name)),
        }
    }

    /// All of them, oldest first.
    pub fn list(&self) -> Result<Vec<CheckpointTaken>, CheckpointError> {
        self.repository.list()
    }

    /// Keeps the files as they are now.
    pub(super) fn take(&self, wanted: Wanted<'_>) -> Result<CheckpointTaken, CheckpointError> {
        self.repository.make()?;
        let id = format!("c{}", self.list()?.len() + 1);
        let mut import = self.repository.import()?;
        let listed = Listed::read(&self.workspace, &self.store, wanted.also, &mut import)?;
        let mut taken = CheckpointTaken {
            id,
            cause: wanted.cause,
            label: wanted.label,
            workspace: OsText::from(self.workspace.as_os_str()),
            tree: String::new(),
            at_seq: wanted.at_seq,
            files: listed.files,
            bytes: listed.bytes,
            left_out: listed.left_out,
            left_out_count: listed.left_out_count,
            by: wanted.by,
        };
        taken.tree = import.finish(&taken, &listed.manifest)?;
        Ok(taken)
    }

    /// Makes the files what they were, after a checkpoint of how they are. `record` writes down what is about to happen,
    /// and what came of it.
    pub(super) fn rollback(
        &self,
        to: Option<&str>,
        at_seq: u64,
        by: SteeredBy,
        record: &dyn Fn(Event) -> Result<u64, String>,
    ) -> Result<Rollbacked, String> {
        let said = |error: CheckpointError| error.to_string();
        let target = self.find(to).map_err(said)?;
        let wanted = self.repository.entries(&target.tree).map_err(said)?;
        let also: BTreeSet<PathBuf> = wanted.files().map(Path::to_owned).collect();
        let before = self.take(Wanted {
            cause: CheckpointCause::Rollback,
            label: None,
            at_seq,
            by: by.clone(),
            also: &also,
        });
        let before = before.map_err(said)?;
        record(before.clone().into())?;
        let started = RollbackStarted {
            checkpoint: target.id.clone(),
            before: before.id.clone(),
            by,
        };
        record(started.into())?;
        let present = self.repository.entries(&before.tree).map_err(said)?;
        let objects = self.repository.objects().map_err(said)?;
        let restored = restore::restore(&self.workspace, &present, &wanted, objects);
        let restored = restored.map_err(|error| error.to_string())?;
        let done = Rollbacked {
            checkpoint: target.id,
            at_seq: target.at_seq,
            before: before.id,
            restored: restored.written,
            removed: restored.removed,
            failed_count: restored.failed.len() as u64,
            failed: restored.failed.into_iter().take(LISTED).collect(),
        };
        record(done.clone().into())?;
        Ok(done)
    }

    /// The one that is named, or the newest that was not taken for a rollback.
    fn find(&self, name: Option<&str>) -> Result<CheckpointTaken, CheckpointError> {
        let mut all = self.list()?.into_iter().rev();
        match name {
            Some(name) => all
                .find(|taken| taken.id == name)
                .ok_or_else(|| CheckpointError::NotFound(name.to_owned())),
            None => all
                .find(|taken| taken.cause != CheckpointCause::Rollback)
                .ok_or(CheckpointError::None),
        }
    }
}

/// What is said of a checkpoint to whoever wanted it.
pub(super) fn said(taken: &CheckpointTaken) -> String {
    let left_out = match taken.left_out_count {
        0 => String::new(),
        count => format!(", {count} left out"),
    };
    format!(
        "{}: {} files, {} bytes{left_out}",
        taken.id, taken.files, taken.bytes
    )
}

/// The same of a rollback. What could not be put back makes it a failure.
pub(super) fn rolled(done: Rollbacked) -> Result<String, String> {
    let text = format!(
        "{}: {} files written, {} removed; `invigil rollback RUN {}` takes it back",
        done.checkpoint, done.restored, done.removed, done.before
    );
    match done.failed.first() {
        None => Ok(text),
        Some(first) => Err(format!(
            "{text}; {} could not be put back, first {}: {}",
            done.failed_count,
            first.path.to_string_lossy(),
            first.why
        )),
    }
}
