//! What is appended: facts as a kernel observer reports them, in records of about 300 bytes.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use invigil_journal::{DiskStorage, Journal, Options, SystemClock};
use invigil_schema::{Event, Origin, RunId};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// A folder on the disk of the workspace, gone at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch> {
        let path = crate::root().join(format!("target/bench.{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// An empty folder; what had the name before is gone.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

pub(super) fn storage(folder: &Path) -> Arc<DiskStorage> {
    Arc::new(DiskStorage::new(folder))
}

pub(super) fn create(folder: &Path, options: Options) -> Result<Journal> {
    let run_id = RunId::new("bench")?;
    let clock = Arc::new(SystemClock);
    Ok(Journal::create(
        storage(folder),
        clock,
        options,
        &run_id,
        "xtask bench",
    )?)
}

/// A journal of `count` sample records behind its first one.
pub(super) fn write(folder: &Path, count: usize, options: Options) -> Result {
    let journal = create(folder, options)?;
    let events = events();
    for event in events.iter().cycle().take(count) {
        drop(journal.append(Origin::Kernel, event)?);
    }
    journal.close()?;
    Ok(())
}

/// Different enough that no line is like the one before.
pub(super) fn events() -> Vec<Event> {
    let paths = [
        "src/main.rs",
        "Cargo.lock",
        "target/debug/deps/lib.rmeta",
        "README.md",
    ];
    let event = |n: usize| {
        let data = format!(
            r#"{{"pid":{},"tid":{},"path":"/home/user/work/{}","flags":["read","cloexec"],"result":{}}}"#,
            4_194_000 + n,
            4_194_000 + n,
            paths[n % paths.len()],
            n % 97,
        );
        Ok(Event::Unknown {
            kind: "file_opened".into(),
            data: serde_json::value::RawValue::from_string(data)?,
        })
    };
    let events: Result<Vec<Event>> = (0..64).map(event).collect();
    events.unwrap_or_default()
}

/// The exact bytes of journal records, to give to others.
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Lines {
    /// The lines that a journal of `count` sample records holds behind its first one.
    pub(super) fn new(scratch: &Scratch, count: usize) -> Result<Lines> {
        let folder = scratch.folder("lines")?;
        let one_segment = Options {
            segment_bytes: u64::MAX,
            ..Options::default()
        };
        write(&folder, count, one_segment)?;
        let mut bytes = fs::read(folder.join("journal.ndjson"))?;
        fs::remove_dir_all(folder)?;
        let first = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(0);
        bytes.drain(..=first);
        let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let ends: Vec<usize> = newlines.map(|(at, _)| at + 1).collect();
        assert_eq!(ends.len(), count, "one line per record");
        Ok(Lines { bytes, ends })
    }

    /// Some lines that follow each other.
    pub(super) fn range(&self, lines: Range<usize>) -> &[u8] {
        &self.bytes[self.begin(lines.start)..self.begin(lines.end)]
    }

    pub(super) fn mean_size(&self) -> f64 {
        self.bytes.len() as f64 / self.ends.len() as f64
    }

    fn begin(&self, line: usize) -> usize {
        line.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// Runs `what` and every thread that it starts on one core.
pub(super) fn on_one_core<T>(what: impl FnOnce() -> Result<T>) -> Result<T> {
    let all = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| all.is_set(cpu));
    let mut one = CpuSet::new();
    one.set(last.ok_or("this process may run on no core")?);
    sched_setaffinity(None, &one)?;
    let result = what();
    sched_setaffinity(None, &all)?;
    result
}
