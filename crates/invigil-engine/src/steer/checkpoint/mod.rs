//! The files of a workspace, kept as git objects in a repository of Invigil's own, and put back from there.
//!
//! git never looks at the workspace: files are found and read by descriptors that follow no link, and written the same
//! way. What the objects are is in `repository`, how they are found in `tree`, how they are put back in `restore`.

mod repository;
mod restore;
#[cfg(test)]
mod tests;
mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use invigil_journal::Store;
use invigil_schema::{
    CheckpointCause, CheckpointTaken, DirectoryId, Event, OsText, RollbackStarted, Rollbacked,
    RunId, SteeredBy,
};

use crate::capabilities::Failure;
use repository::{Entries, Repository};
use tree::{Listed, Most};

pub(crate) use tree::directory_at;

/// How many paths are listed in an event.
const LISTED: usize = 100;
/// More is not kept.
const MOST: Most = Most {
    files: 200_000,
    bytes: 4 << 30,
};
/// What a run has made of it must be kept too, or it could not be turned back: some times as much.
const MOST_BEFORE: Most = Most {
    files: 1_000_000,
    bytes: 16 << 30,
};

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
    #[error("{} is too large to be kept: more than {most}; {advice}", workspace.display())]
    TooLarge {
        /// The directory.
        workspace: PathBuf,
        /// How much is kept.
        most: String,
        /// What somebody can do.
        advice: &'static str,
    },
    /// Something else has its name.
    #[error("{} is not the directory in which the run was started; move that one back to its place first", .0.display())]
    Another(PathBuf),
    /// The workspace.
    #[error("cannot read {}: {source}", workspace.display())]
    Workspace {
        /// The directory.
        workspace: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// It has the files of something else.
    #[error("checkpoint {0} is of another directory than the one in which the run was started")]
    Elsewhere(String),
    /// git, or the repository.
    #[error("{0}")]
    Git(String),
}

impl From<Failure> for CheckpointError {
    fn from(failure: Failure) -> Self {
        CheckpointError::Git(failure.to_string())
    }
}

/// What somebody can do about a workspace that is too large to be turned back.
const NOT_BEFORE: &str = "it must be kept as it is before it is turned back, so nothing was changed; take away what is not needed, \
     or say in .gitignore what need not be kept and stays as it is";

/// What is to be kept, and why.
pub(super) struct Wanted<'a> {
    cause: CheckpointCause,
    label: Option<String>,
    at_seq: u64,
    by: SteeredBy,
    /// What is kept even where a `.gitignore` leaves it out.
    also: Option<&'a Entries>,
}

impl Wanted<'static> {
    /// Somebody wants it.
    pub(super) fn ordered(label: Option<String>, at_seq: u64, by: SteeredBy) -> Self {
        Wanted {
            cause: CheckpointCause::Ordered,
            label,
            at_seq,
            by,
            also: None,
        }
    }
}

/// The checkpoints of one run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    workspace: PathBuf,
    /// Which directory that was when the run was started, where that is known.
    directory: Option<DirectoryId>,
    store: PathBuf,
    repository: Repository,
    /// How much is kept when somebody wants it, and before a rollback.
    most: (Most, Most),
}

impl Checkpoints {
    /// Of the files below this directory, and of no other one that is called so later.
    pub fn new(
        store: &Store,
        run_id: &RunId,
        workspace: PathBuf,
        directory: Option<DirectoryId>,
    ) -> Checkpoints {
        Checkpoints {
            workspace,
            directory,
            store: store.home().to_owned(),
            repository: Repository::new(store.checkpoints_of(run_id)),
            most: (MOST, MOST_BEFORE),
        }
    }

    /// All of them, oldest first.
    pub fn list(&self) -> Result<Vec<CheckpointTaken>, CheckpointError> {
        self.repository.list()
    }

    /// Keeps the files as they are now.
    pub(super) fn take(&self, wanted: Wanted<'_>) -> Result<CheckpointTaken, CheckpointError> {
        self.take_of(&self.open()?, wanted)
    }

    fn take_of(
        &self,
        root: &OwnedFd,
        wanted: Wanted<'_>,
    ) -> Result<CheckpointTaken, CheckpointError> {
        self.repository.make()?;
        let id = format!("c{}", self.list()?.len() + 1);
        let mut import = self.repository.import()?;
        let (most, advice) = match wanted.cause {
            CheckpointCause::Rollback => (&self.most.1, NOT_BEFORE),
            _ => (&self.most.0, "say in .gitignore what need not be"),
        };
        let listed = Listed::read(root, &self.store, most, wanted.also, &mut import);
        let listed = listed.map_err(|source| CheckpointError::Workspace {
            workspace: self.workspace.clone(),
            source,
        })?;
        let listed = listed.ok_or_else(|| CheckpointError::TooLarge {
            workspace: self.workspace.clone(),
            most: format!("{} files or {} GiB", most.files, most.bytes >> 30),
            advice,
        })?;
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
        let root = self.open().map_err(said)?;
        let wanted = self.repository.entries(&target.tree).map_err(said)?;
        let before = self.take_of(
            &root,
            Wanted {
                cause: CheckpointCause::Rollback,
                label: None,
                at_seq,
                by: by.clone(),
                also: Some(&wanted),
            },
        );
        let before = before.map_err(said)?;
        record(before.clone().into())?;
        // Nothing is begun before everything that is needed is there.
        let present = self.repository.entries(&before.tree).map_err(said)?;
        let objects = self.repository.objects().map_err(said)?;
        let started = RollbackStarted {
            checkpoint: target.id.clone(),
            before: before.id.clone(),
            by,
        };
        record(started.into())?;
        let restored = restore::restore(&root, &present, &wanted, objects);
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

    /// The directory, if it is still the one in which the run was started.
    fn open(&self) -> Result<OwnedFd, CheckpointError> {
        let unreadable = |source: io::Error| CheckpointError::Workspace {
            workspace: self.workspace.clone(),
            source,
        };
        let root = tree::open(&self.workspace, self.directory.is_some()).map_err(unreadable)?;
        let known = match &self.directory {
            Some(known) => known.is(&tree::directory_id(&root).map_err(unreadable)?),
            None => true,
        };
        match known {
            true => Ok(root),
            false => Err(CheckpointError::Another(self.workspace.clone())),
        }
    }

    /// The one that is named, or the newest that was not taken for a rollback.
    fn find(&self, name: Option<&str>) -> Result<CheckpointTaken, CheckpointError> {
        let mut all = self.list()?.into_iter().rev();
        let found = match name {
            Some(name) => all
                .find(|taken| taken.id == name)
                .ok_or_else(|| CheckpointError::NotFound(name.to_owned())),
            None => all
                .find(|taken| taken.cause != CheckpointCause::Rollback)
                .ok_or(CheckpointError::None),
        };
        let found = found?;
        match found.workspace == OsText::from(self.workspace.as_os_str()) {
            true => Ok(found),
            false => Err(CheckpointError::Elsewhere(found.id)),
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
