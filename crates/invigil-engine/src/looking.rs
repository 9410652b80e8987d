//! Looking at a run: how it stood at any record, and what its agent said of it.
//!
//! The state of the snapshot's fold is kept every so many records, so that a look at a long run does not read all of it.
//! That is a cache beside the index: it can be deleted, and it is believed only where the journal still has the record
//! that it was made behind, by its hash.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use invigil_audit::{Claims, ClaimsDoc, OsView, Summary, SummaryDoc, View};
use invigil_journal::{Error, Reader, RunRef, Store, StoreError};
use invigil_schema::Digest;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::evidence::{each, each_of_first};

/// A state is kept behind every record whose number is one less than a multiple of this.
const STRIDE: u64 = 32_768;
/// More states than this are not kept of one run.
const STATES_MAX: usize = 4096;
/// Names the form of the file. Another version of the fold has another one.
const SCHEMA: &str = "invigil.folds.os.v1";

/// How a run stands after its first `count` records; after all of them, if nothing is said or there are fewer.
///
/// The fold that comes back can be gone on with, line by line.
pub fn os_view(store: &Store, run: &RunRef, count: Option<u64>) -> Result<OsView, StoreError> {
    view_by(store, run, count, STRIDE)
}

fn view_by(
    store: &Store,
    run: &RunRef,
    count: Option<u64>,
    stride: u64,
) -> Result<OsView, StoreError> {
    let cache = run.directory().starts_with(store.home());
    let mut kept = match cache {
        true => Kept::load(store, run),
        false => Kept::default(),
    };
    let until = count.unwrap_or(u64::MAX);
    let view = fold(run, until, stride, &mut kept).map_err(|error| run.error(error))?;
    if cache && kept.changed {
        // It is a cache: where it cannot be written, the next look takes longer.
        drop(kept.store(store, run));
    }
    Ok(view)
}

fn fold(run: &RunRef, until: u64, stride: u64, kept: &mut Kept) -> Result<OsView, Error> {
    let (mut view, mut reader) = match kept.nearest(run, until)? {
        Some((view, reader)) => (view, reader),
        None => (OsView::default(), Reader::open(run.storage())?),
    };
    while view.events() < until {
        let Some(record) = reader.next()? else {
            break;
        };
        let (seq, hash) = (record.seq, record.hash);
        let taken = view.take_line(record.line());
        taken.map_err(|error| Error::Foreign(format!("record {seq}: {error}")))?;
        if view.events().is_multiple_of(stride) {
            kept.add(seq, hash, &view);
        }
    }
    Ok(view)
}

/// What a person wants to know of a run as it stood after its first `count` records.
pub fn summary_at(run: &RunRef, count: u64) -> Result<SummaryDoc, StoreError> {
    let mut summary = Summary::default();
    each_of_first(run, count, |fact| summary.take(fact))?;
    Ok(summary.document())
}

/// What the agent of a run said, in its reports and in these texts, beside what was seen.
pub fn claims(run: &RunRef, said: &[(String, String)]) -> Result<ClaimsDoc, StoreError> {
    let mut claims = Claims::default();
    each(run, |fact| claims.take(fact))?;
    for (file, text) in said {
        claims.said(file, text);
    }
    Ok(claims.document())
}

/// The states that are kept of one run, in the order of its records.
#[derive(Default)]
struct Kept {
    states: Vec<String>,
    changed: bool,
}

#[derive(Serialize, Deserialize)]
struct State<'a> {
    schema: String,
    /// The record behind which the fold stood.
    seq: u64,
    /// Its hash.
    hash: Digest,
    #[serde(borrow)]
    view: &'a RawValue,
}

impl Kept {
    fn path(store: &Store, run: &RunRef) -> PathBuf {
        store.folds().join(format!("{}.ndjson", run.run_id()))
    }

    fn load(store: &Store, run: &RunRef) -> Kept {
        let text = fs::read_to_string(Kept::path(store, run)).unwrap_or_default();
        Kept {
            states: text.lines().map(str::to_owned).collect(),
            changed: false,
        }
    }

    /// The last state that is not behind `until` and that the journal agrees with, and a reader that stands there.
    fn nearest(&mut self, run: &RunRef, until: u64) -> Result<Option<(OsView, Reader)>, Error> {
        for line in self.states.iter().rev() {
            let Ok(state) = serde_json::from_str::<State<'_>>(line) else {
                continue;
            };
            if state.schema != SCHEMA || state.seq >= until {
                continue;
            }
            let Some(reader) = Reader::open_at(run.storage(), state.seq + 1)? else {
                continue;
            };
            let agrees = reader.head().is_some_and(|head| head.hash == state.hash);
            let view = serde_json::from_str::<OsView>(state.view.get());
            if let (true, Ok(view)) = (agrees, view)
                && view.events() == state.seq + 1
            {
                return Ok(Some((view, reader)));
            }
            // It is of another journal, and so are the others.
            self.states.clear();
            return Ok(None);
        }
        Ok(None)
    }

    fn add(&mut self, seq: u64, hash: Digest, view: &OsView) {
        let state = || -> serde_json::Result<String> {
            let view = serde_json::value::to_raw_value(view)?;
            serde_json::to_string(&State {
                schema: SCHEMA.to_owned(),
                seq,
                hash,
                view: &view,
            })
        };
        if self.states.len() < STATES_MAX
            && let Ok(state) = state()
        {
            self.states.push(state);
            self.changed = true;
        }
    }

    /// Replaces the file. States that another process has kept meanwhile are lost, and made again when they are wanted.
    fn store(&self, store: &Store, run: &RunRef) -> io::Result<()> {
        let path = Kept::path(store, run);
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        make_private(&store.folds())?;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?;
        let written = self
            .states
            .iter()
            .try_for_each(|state| writeln!(file, "{state}"));
        let done = written.and_then(|()| fs::rename(&draft, &path));
        done.inspect_err(|_| drop(fs::remove_file(&draft)))
    }
}

fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700).recursive(true).create(directory)
}

#[cfg(test)]
mod tests {
    use super::{Kept, OsView, RunRef, Store, StoreError, fold, fs, view_by};
    use invigil_journal::{Options, SystemClock};
    use invigil_schema::{
        Event, Origin, ProcessExited, ProcessForked, ProcessRef, ResourceSample, RunId,
    };
    use std::sync::Arc;

    /// Short, so that a test needs few records.
    const STRIDE: u64 = 64;

    fn os_view(store: &Store, run: &RunRef, count: Option<u64>) -> Result<OsView, StoreError> {
        view_by(store, run, count, STRIDE)
    }

    /// A store with one run of some more than two strides.
    fn long_run() -> (tempfile::TempDir, Store, RunRef, u64) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("home"));
        let run_id = RunId::new("long").unwrap();
        let (run, journal) = store
            .create(&run_id, Arc::new(SystemClock), Options::default(), "test")
            .unwrap();
        let count = 2 * STRIDE + 10;
        for number in 1..count {
            let process = ProcessRef {
                pid: number as u32,
                start: number / 4,
            };
            let event: Event = match number % 4 {
                0 => ProcessForked {
                    process,
                    parent: None,
                }
                .into(),
                1 => ProcessExited {
                    process: ProcessRef {
                        pid: process.pid - 1,
                        ..process
                    },
                    exit_code: Some(0),
                    signal: None,
                    user_us: 0,
                    system_us: 0,
                    max_rss_kib: 0,
                }
                .into(),
                _ => ResourceSample::default().into(),
            };
            drop(journal.append(Origin::Kernel, &event).unwrap());
        }
        journal.close().unwrap();
        (directory, store, run, count)
    }

    fn plain(run: &RunRef, count: u64) -> OsView {
        fold(run, count, STRIDE, &mut Kept::default()).unwrap()
    }

    #[test]
    fn a_look_is_the_same_with_the_cache_and_without() {
        let (_directory, store, run, count) = long_run();
        let points = [
            0,
            1,
            STRIDE - 1,
            STRIDE,
            STRIDE + 1,
            2 * STRIDE,
            count,
            count + 9,
        ];
        let cached = Kept::path(&store, &run);
        // Without it, with it, and with one that was made on the way to an early point.
        for early in [0, STRIDE + 5] {
            drop(fs::remove_file(&cached));
            os_view(&store, &run, Some(early)).unwrap();
            for _ in 0..2 {
                for point in points {
                    let view = os_view(&store, &run, Some(point)).unwrap();
                    assert_eq!(view, plain(&run, point), "{point}");
                }
            }
            assert_eq!(os_view(&store, &run, None).unwrap().events(), count);
            let kept = fs::read_to_string(&cached).unwrap();
            assert_eq!(kept.lines().count(), 2);
        }
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(&cached).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        store.remove(&run).unwrap();
        assert!(!cached.exists());
    }

    #[test]
    fn a_cache_of_something_else_is_not_believed() {
        let (_directory, store, run, count) = long_run();
        let right = os_view(&store, &run, None).unwrap();
        let cached = Kept::path(&store, &run);
        let kept = fs::read_to_string(&cached).unwrap();
        let hash = kept.split("\"hash\":\"").nth(2).unwrap();
        let hash = &hash[..64];
        let other = kept
            .replace(hash, &"ab".repeat(32))
            .replace("\"started\":", "\"started\":1");
        for wrong in [other.as_str(), "nonsense\n", "", &kept[..kept.len() / 2]] {
            fs::write(&cached, wrong).unwrap();
            assert_eq!(os_view(&store, &run, None).unwrap(), right);
            assert_eq!(os_view(&store, &run, Some(count)).unwrap(), right);
        }
    }
}
