//! A directory to work in, and a keeper in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use invigil_engine::capabilities::{
    Context, Failure, Invalid, Keeper, Output, Plan, Registry, Roots, temporary_prefix,
};
use invigil_schema::{Digest, JobId, Kept};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

/// Keeps everything in memory.
#[derive(Default)]
pub(crate) struct Memory {
    blobs: BTreeMap<Digest, Vec<u8>>,
    announced: Vec<Kept>,
    settled: Vec<Kept>,
    /// Called when everything is durable, right before the first change.
    pub(crate) before_changes: Option<Box<dyn FnMut()>>,
}

impl Keeper for Memory {
    fn keep(&mut self, kept: Kept, content: Option<&mut dyn Read>) -> io::Result<()> {
        assert!(
            self.settled.is_empty(),
            "announced after the changes began: {kept:?}"
        );
        if let Some(content) = content {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes)?;
            let digest = sha256(&bytes);
            if kept.before.sha256() != Some(&digest) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.blobs.insert(digest, bytes);
        }
        self.announced.push(kept);
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        self.settled.append(&mut self.announced);
        if let Some(act) = &mut self.before_changes {
            act();
        }
        Ok(())
    }

    fn fetch(&mut self, sha256: &Digest, into: &mut dyn Write) -> io::Result<()> {
        let blob = self.blobs.get(sha256).ok_or(io::ErrorKind::NotFound)?;
        into.write_all(blob)
    }
}

/// A job that was run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) kept: Vec<Kept>,
    pub(crate) result: Result<Output, Failure>,
}

impl Job {
    /// What came of it.
    pub(crate) fn data(&self) -> &Value {
        match &self.result {
            Ok(output) => &output.data,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Why it failed.
    pub(crate) fn failure(&self) -> String {
        match &self.result {
            Ok(output) => panic!("it did not fail: {output:?}"),
            Err(failure) => failure.to_string(),
        }
    }
}

/// A working directory and what has been kept of it.
pub(crate) struct World {
    _temporary: TempDir,
    pub(crate) dir: PathBuf,
    pub(crate) more: Vec<PathBuf>,
    pub(crate) keeper: Memory,
    registry: Registry,
    jobs: usize,
}

impl World {
    pub(crate) fn new() -> Self {
        let temporary = TempDir::new().unwrap();
        let dir = temporary.path().canonicalize().unwrap().join("work");
        fs::create_dir(&dir).unwrap();
        World {
            _temporary: temporary,
            dir,
            more: Vec::new(),
            keeper: Memory::default(),
            registry: Registry::standard(),
            jobs: 0,
        }
    }

    /// A path beside the working directory, outside of it.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.dir.parent().unwrap().join(name)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn read(&self, name: impl AsRef<Path>) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    pub(crate) fn check(&self, name: &str, args: Value) -> Result<Plan, Invalid> {
        self.registry.get(name).unwrap().check(&args)
    }

    /// The field that is refused.
    pub(crate) fn refused(&self, name: &str, args: Value) -> String {
        match self.check(name, args.clone()) {
            Ok(plan) => panic!("{name} {args} is not refused: {plan:?}"),
            Err(invalid) => invalid.field,
        }
    }

    pub(crate) fn run(&mut self, name: &str, args: Value) -> Job {
        self.execute(name, args, false, Vec::new())
    }

    /// Runs it dry; nothing may be different afterwards, and nothing kept.
    pub(crate) fn dry_run(&mut self, name: &str, args: Value) -> Job {
        let before = tree(&self.dir);
        let job = self.execute(name, args, true, Vec::new());
        assert_eq!(tree(&self.dir), before, "a dry run changed something");
        assert_eq!(job.kept, [], "a dry run kept something");
        job
    }

    pub(crate) fn undo(&mut self, job: &Job) -> Job {
        self.undo_with(job, json!({}))
    }

    pub(crate) fn undo_with(&mut self, job: &Job, more: Value) -> Job {
        self.undo_dry(job, more, false)
    }

    pub(crate) fn undo_dry(&mut self, job: &Job, mut args: Value, dry_run: bool) -> Job {
        args["job_id"] = json!(job.id);
        let kept = job.kept.iter().rev().cloned().collect();
        self.execute("undo", args, dry_run, kept)
    }

    fn execute(&mut self, name: &str, args: Value, dry_run: bool, undo: Vec<Kept>) -> Job {
        self.jobs += 1;
        let id = JobId::new(format!("job-{}", self.jobs)).unwrap();
        let roots = Roots::open(&self.dir, &self.more).unwrap();
        let mut context = Context {
            dry_run,
            job_id: &id,
            working_dir: &self.dir,
            roots: &roots,
            keeper: &mut self.keeper,
            undo,
        };
        let result = match self.registry.get(name).unwrap().check(&args) {
            Ok(_) => self
                .registry
                .get(name)
                .unwrap()
                .execute(&args, &mut context),
            Err(invalid) => panic!("{name} {args}: {invalid}"),
        };
        let kept = std::mem::take(&mut self.keeper.settled);
        self.keeper.announced.clear();
        let temporary = temporary_prefix(&id);
        let left: Vec<OsString> = names(self.dir.parent().unwrap())
            .into_iter()
            .filter(|name| {
                name.to_string_lossy()
                    .contains(temporary.trim_start_matches('.'))
            })
            .collect();
        assert_eq!(left, [""; 0], "temporary files are left");
        Job { id, kept, result }
    }
}

/// Everything below a directory: modes, contents, links, attributes.
pub(crate) fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for path in paths(dir) {
        let meta = fs::symlink_metadata(&path).unwrap();
        let what = if meta.is_symlink() {
            format!("-> {:?}", fs::read_link(&path).unwrap())
        } else if meta.is_dir() {
            format!("dir {:o} {}", meta.permissions().mode(), attributes(&path))
        } else if meta.is_file() {
            let content = fs::read(&path).map(|bytes| sha256(&bytes).to_string());
            let content = content.unwrap_or_else(|error| error.to_string());
            format!("file {:o} {content} {}", meta.mode(), attributes(&path))
        } else {
            format!("other {:o}", meta.mode())
        };
        let owner = format!("{}:{}", meta.uid(), meta.gid());
        all.insert(
            path.strip_prefix(dir).unwrap().to_owned(),
            format!("{what} {owner}"),
        );
    }
    all
}

fn attributes(path: &Path) -> String {
    let mut value = [0; 256];
    match rustix::fs::getxattr(path, "user.test", &mut value[..]) {
        Ok(length) => format!("\"{}\"", value[..length].escape_ascii()),
        Err(_) => String::new(),
    }
}

fn paths(dir: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let Ok(entries) = fs::read_dir(dir) else {
        return all;
    };
    for entry in entries {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            all.extend(paths(&entry.path()));
        }
        all.insert(entry.path());
    }
    all
}

fn names(dir: &Path) -> Vec<OsString> {
    let paths = paths(dir);
    let names = paths.iter().filter_map(|path| path.file_name());
    names.map(OsString::from).collect()
}

/// The permissions of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
