//! Where everything lies: a directory with runs, blobs and the index.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind::AlreadyExists};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use invigil_schema::{JournalRecovered, RunId, RunIdError};

use crate::cache::IndexError;
use crate::clock::Clock;
use crate::index::Index;
use crate::read::{Reader, opened};
use crate::storage::{DiskStorage, Sharing};
use crate::write::{Journal, Options};
use crate::{Blobs, Error};

const RUNS: &str = "runs";
const TASKS: &str = "tasks";
const BLOBS: &str = "blobs";
/// What views have kept of long runs: a cache.
const FOLDS: &str = "folds";
/// The directory of the repositories of checkpoints.
const CHECKPOINTS: &str = "checkpoints";
/// The directory of the journal of jobs, and the id that it is bound to.
const JOBS: &str = "jobs";
/// Directories with this prefix are runs in the making.
const NEW: &str = ".new.";
/// Directories with this prefix were runs.
const GONE: &str = ".gone.";

/// A store: many runs, their blobs, one index.
#[derive(Debug, Clone)]
pub struct Store {
    home: PathBuf,
}

/// One journal, in a store or wherever somebody has put a copy.
#[derive(Debug, Clone)]
pub struct RunRef {
    directory: PathBuf,
    run_id: RunId,
}

/// What can go wrong with a store, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The id is taken.
    #[error("run {0} exists already: choose another id, or leave it out to get a new one")]
    Exists(RunId),
    /// No run of that name.
    #[error("there is no run {name:?} in {}: `invigil runs` lists them", home.display())]
    NotFound {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        home: PathBuf,
    },
    /// Several runs begin like this.
    #[error("{prefix:?} begins {} runs: {}", candidates.len(), list(candidates))]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// Which runs it could be.
        candidates: Vec<RunId>,
    },
    /// Not a run id.
    #[error(transparent)]
    RunId(#[from] RunIdError),
    /// The journal of a run.
    #[error("run {run_id}: {source}")]
    Journal {
        /// Which run.
        run_id: RunId,
        /// What went wrong.
        source: Error,
    },
    /// A journal outside of a store.
    #[error("{}: {source}", path.display())]
    Foreign {
        /// Where it is.
        path: PathBuf,
        /// What went wrong.
        source: Error,
    },
    /// The index.
    #[error(transparent)]
    Index(#[from] IndexError),
}

fn list(candidates: &[RunId]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<&str> = candidates.iter().take(SHOWN).map(RunId::as_str).collect();
    if candidates.len() > SHOWN {
        text.push("…");
    }
    text.join(", ")
}

impl StoreError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_owned();
        move |source| StoreError::Io {
            action,
            path,
            source,
        }
    }
}

impl Store {
    /// A store at this place. Nothing is made before something is written.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Store { home: home.into() }
    }

    /// Where it is.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Whether this is the path of the store, whatever links lead there.
    pub fn is_at(&self, path: &Path) -> bool {
        match (path.canonicalize(), self.home.canonicalize()) {
            (Ok(path), Ok(home)) => path == home,
            _ => false,
        }
    }

    /// Whether a file of this name would lie in the store, whatever links lead there.
    pub fn holds(&self, path: &Path) -> bool {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        match (parent.canonicalize(), self.home.canonicalize()) {
            (Ok(parent), Ok(home)) => parent.starts_with(home),
            _ => false,
        }
    }

    /// Begins a run. Its directory appears whole or not at all.
    pub fn create(
        &self,
        run_id: &RunId,
        clock: Arc<dyn Clock>,
        options: Options,
        writer: &str,
    ) -> Result<(RunRef, Journal), StoreError> {
        let runs = self.home.join(RUNS);
        let run = self.make(&runs, run_id, Arc::clone(&clock), &options, writer)?;
        let (journal, _) = run.append(clock, options)?;
        Ok((run, journal))
    }

    /// Begins the journal of a task, like that of a run.
    pub fn create_task(
        &self,
        task_id: &RunId,
        clock: Arc<dyn Clock>,
        writer: &str,
    ) -> Result<(RunRef, Journal), StoreError> {
        let (tasks, options) = (self.home.join(TASKS), Options::default());
        let task = self.make(&tasks, task_id, Arc::clone(&clock), &options, writer)?;
        let (journal, _) = task.append(clock, options)?;
        Ok((task, journal))
    }

    /// The journals of all tasks, sorted by id.
    pub fn tasks(&self) -> Result<Vec<RunRef>, StoreError> {
        self.journals(TASKS)
    }

    /// The journal of jobs, to append to; it is made if it is not there yet. Several processes may do so at once.
    pub fn jobs(
        &self,
        clock: Arc<dyn Clock>,
        writer: &str,
    ) -> Result<(RunRef, Journal), StoreError> {
        let options = Options {
            sharing: Sharing::Shared,
            ..Options::default()
        };
        let run_id = RunId::new(JOBS)?;
        let run = match self.jobs_so_far() {
            Some(run) => run,
            None => match self.make(&self.home, &run_id, Arc::clone(&clock), &options, writer) {
                // Another process was faster.
                Err(StoreError::Exists(run_id)) => RunRef {
                    directory: self.home.join(JOBS),
                    run_id,
                },
                made => made?,
            },
        };
        let (journal, _) = run.append(clock, options)?;
        Ok((run, journal))
    }

    /// The journal of jobs, to read, if there ever was a job.
    pub fn jobs_so_far(&self) -> Option<RunRef> {
        let directory = self.home.join(JOBS);
        let run_id = RunId::new(JOBS).ok()?;
        directory.is_dir().then_some(RunRef { directory, run_id })
    }

    /// Makes the directory of a journal with its first record, durably.
    fn make(
        &self,
        parent: &Path,
        run_id: &RunId,
        clock: Arc<dyn Clock>,
        options: &Options,
        writer: &str,
    ) -> Result<RunRef, StoreError> {
        let directory = parent.join(run_id.as_str());
        if directory.symlink_metadata().is_ok() {
            return Err(StoreError::Exists(run_id.clone()));
        }
        make_directory(parent, true)?;
        let draft = Draft::make(parent, run_id)?;
        let in_draft = |source| StoreError::Journal {
            run_id: run_id.clone(),
            source,
        };
        let exclusive = Options {
            sharing: Sharing::Exclusive,
            sync_after: None,
            ..options.clone()
        };
        let storage = Arc::new(DiskStorage::new(&draft.0));
        Journal::create(storage, clock, exclusive, run_id, writer)
            .and_then(Journal::close)
            .map_err(in_draft)?;
        draft.publish(&directory, run_id)?;
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(StoreError::io("sync", parent))?;
        Ok(RunRef {
            directory,
            run_id: run_id.clone(),
        })
    }

    /// Removes a run that is over, for good. One that is written to is refused.
    pub fn remove(&self, run: &RunRef) -> Result<(), StoreError> {
        if run.is_live() {
            return Err(run.error(Error::Busy));
        }
        let runs = self.home.join(RUNS);
        let gone = runs.join(format!("{GONE}{}", run.run_id));
        // First its name, at once: what is half removed is no run.
        fs::rename(&run.directory, &gone).map_err(StoreError::io("remove", &run.directory))?;
        fs::remove_dir_all(&gone).map_err(StoreError::io("remove", &gone))?;
        // They may not be there; without its run nobody believes them.
        drop(fs::remove_file(
            self.folds().join(format!("{}.ndjson", run.run_id)),
        ));
        drop(fs::remove_dir_all(self.checkpoints_of(&run.run_id)));
        Ok(Index::forget(self, &run.run_id)?)
    }

    /// All runs, sorted by id.
    pub fn runs(&self) -> Result<Vec<RunRef>, StoreError> {
        self.journals(RUNS)
    }

    fn journals(&self, folder: &str) -> Result<Vec<RunRef>, StoreError> {
        let path = self.home.join(folder);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io("list", &path)(error)),
        };
        let mut runs = Vec::new();
        for entry in entries {
            let entry = entry.map_err(StoreError::io("list", &path))?;
            let name = entry.file_name().into_string();
            if let Some(run_id) = name.ok().and_then(|name| RunId::new(name).ok()) {
                let directory = entry.path();
                runs.push(RunRef { directory, run_id });
            }
        }
        runs.sort_by(|a, b| a.run_id.cmp(&b.run_id));
        Ok(runs)
    }

    /// The run of this very id.
    pub fn run(&self, run_id: &RunId) -> Result<RunRef, StoreError> {
        let directory = self.home.join(RUNS).join(run_id.as_str());
        if !directory.is_dir() {
            return Err(self.not_found(run_id.as_str()));
        }
        Ok(RunRef {
            directory,
            run_id: run_id.clone(),
        })
    }

    /// The run that a person means: an id, the beginning of one, or `last`.
    pub fn find(&self, name: &str) -> Result<RunRef, StoreError> {
        if name == RunId::LAST {
            let (index, _) = Index::refreshed(self)?;
            let newest = index
                .runs()?
                .into_iter()
                .find_map(|row| self.run(&row.run_id).ok());
            return newest.ok_or_else(|| self.not_found(name));
        }
        let whole = RunId::new(name)?;
        if let Ok(run) = self.run(&whole) {
            return Ok(run);
        }
        let mut candidates = self.runs()?;
        candidates.retain(|run| run.run_id.as_str().starts_with(name));
        match candidates.len() {
            0 => Err(self.not_found(name)),
            1 => Ok(candidates.remove(0)),
            _ => Err(StoreError::Ambiguous {
                prefix: name.to_owned(),
                candidates: candidates.into_iter().map(|run| run.run_id).collect(),
            }),
        }
    }

    /// Where views keep what they have made of long runs, in a file for each: `RUN.ndjson`. It can be deleted.
    pub fn folds(&self) -> PathBuf {
        self.home.join(FOLDS)
    }

    /// Where the files of a run's workspace are kept. It goes with the run.
    pub fn checkpoints_of(&self, run_id: &RunId) -> PathBuf {
        self.home.join(CHECKPOINTS).join(format!("{run_id}.git"))
    }

    /// The blobs of all runs.
    pub fn blobs(&self) -> Result<Blobs, StoreError> {
        let path = self.home.join(BLOBS);
        make_directory(&path, true)?;
        Ok(Blobs::new(Arc::new(DiskStorage::new(path))))
    }

    fn not_found(&self, name: &str) -> StoreError {
        let (name, home) = (name.to_owned(), self.home.clone());
        StoreError::NotFound { name, home }
    }
}

impl RunRef {
    /// A journal outside of a store: a run directory, or the `journal.ndjson` in one.
    pub fn at(path: &Path) -> Result<RunRef, StoreError> {
        let directory = match path.is_dir() {
            true => path.to_owned(),
            false => path.parent().unwrap_or(Path::new(".")).to_owned(),
        };
        let storage = Arc::new(DiskStorage::new(&directory));
        let opened = Reader::open(storage).and_then(|mut reader| opened(&mut reader));
        match opened {
            Ok(opened) => Ok(RunRef {
                directory,
                run_id: opened.run_id,
            }),
            Err(source) => Err(StoreError::Foreign {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Its id.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its files.
    pub fn storage(&self) -> Arc<DiskStorage> {
        Arc::new(DiskStorage::new(&self.directory))
    }

    /// Opens it for appending.
    pub fn append(
        &self,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<(Journal, Option<JournalRecovered>), StoreError> {
        Journal::open(self.storage(), clock, options).map_err(|source| self.error(source))
    }

    /// Reads it from record `seq`. Nothing if it is not that long yet.
    pub fn read(&self, seq: u64) -> Result<Option<Reader>, StoreError> {
        Reader::open_at(self.storage(), seq).map_err(|source| self.error(source))
    }

    /// Whether a process has it open exclusively: the run goes on.
    pub fn is_live(&self) -> bool {
        self.storage().is_locked().unwrap_or(false)
    }

    /// An error of this run.
    pub fn error(&self, source: Error) -> StoreError {
        StoreError::Journal {
            run_id: self.run_id.clone(),
            source,
        }
    }
}

fn make_directory(path: &Path, recursive: bool) -> Result<(), StoreError> {
    let made = DirBuilder::new()
        .mode(0o700)
        .recursive(recursive)
        .create(path);
    made.map_err(StoreError::io("make the directory", path))
}

/// A run directory in the making; removed again if it is not published.
struct Draft(PathBuf);

impl Draft {
    fn make(parent: &Path, run_id: &RunId) -> Result<Draft, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{NEW}{run_id}.{}.{number}", std::process::id());
            let path = parent.join(name);
            match make_directory(&path, false) {
                Ok(()) => return Ok(Draft(path)),
                // Left over by a process of the same number that was killed.
                Err(StoreError::Io { source, .. }) if source.kind() == AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn publish(self, directory: &Path, run_id: &RunId) -> Result<(), StoreError> {
        // A directory is never renamed over one that holds something, so of two equal ids one is refused.
        match fs::rename(&self.0, directory) {
            Ok(()) => Ok(()),
            Err(error) if directory.exists() => {
                drop(error);
                Err(StoreError::Exists(run_id.clone()))
            }
            Err(error) => Err(StoreError::io("make", directory)(error)),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After publishing there is nothing of this name.
        drop(fs::remove_dir_all(&self.0));
    }
}
