//! Looks at the machine before and after each job, shared by those who would see the same.
//!
//! A look costs some milliseconds where there are many processes. Who comes while one is under way waits, and then all who
//! waited share the next: whatever is shared began after everybody who gets it had asked for it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use invigil_schema::Snapshot;

use crate::redact::Redactor;
use crate::telemetry::{Sampler, TelemetryError};

/// So old may be what a job finds when it begins: usually what the one before it has left.
const FRESH: Duration = Duration::from_millis(20);

pub(super) struct Looks(Mutex<Looking>);

struct Looking {
    sampler: Sampler,
    last: Option<Taken>,
}

struct Taken {
    began: Instant,
    working_dir: PathBuf,
    snapshot: Snapshot,
}

impl Looks {
    pub(super) fn new(sampler: Sampler) -> Looks {
        Looks(Mutex::new(Looking {
            sampler,
            last: None,
        }))
    }

    fn looking(&self) -> MutexGuard<'_, Looking> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there when a job begins.
    pub(super) fn before(
        &self,
        working_dir: &Path,
        redactor: &Redactor,
    ) -> Result<Snapshot, TelemetryError> {
        let now = Instant::now();
        let since = now.checked_sub(FRESH).unwrap_or(now);
        self.since(since, working_dir, redactor)
    }

    /// What is there now that a job has done its work.
    pub(super) fn after(
        &self,
        working_dir: &Path,
        redactor: &Redactor,
    ) -> Result<Snapshot, TelemetryError> {
        self.since(Instant::now(), working_dir, redactor)
    }

    /// A look that did not begin before `since`.
    fn since(
        &self,
        since: Instant,
        working_dir: &Path,
        redactor: &Redactor,
    ) -> Result<Snapshot, TelemetryError> {
        let mut looking = self.looking();
        let fits = |taken: &&Taken| taken.began >= since && taken.working_dir == working_dir;
        if let Some(taken) = looking.last.as_ref().filter(fits) {
            return Ok(taken.snapshot.clone());
        }
        let began = Instant::now();
        let mut snapshot = Snapshot {
            telemetry: looking.sampler.machine(working_dir)?,
            processes: looking.sampler.summary()?,
        };
        // Whoever asked for the job is told of other processes, and not their secrets.
        redactor.snapshot(&mut snapshot);
        looking.last = Some(Taken {
            began,
            working_dir: working_dir.to_owned(),
            snapshot: snapshot.clone(),
        });
        Ok(snapshot)
    }

    /// Leaves the last reading for the next process.
    pub(super) fn save(&self, file: &Path) {
        // The next process has no figure for the processors then; nothing else depends on it.
        drop(self.looking().sampler.save(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uptime(look: Result<Snapshot, TelemetryError>) -> u64 {
        look.unwrap().telemetry.uptime_ms
    }

    #[test]
    fn what_is_found_may_be_what_was_left_and_never_the_other_way_round() {
        let looks = Looks::new(Sampler::open().unwrap());
        let redactor = Redactor::new([0; 32]);
        let here = Path::new("/");
        let pause = || std::thread::sleep(Duration::from_millis(11));
        let left = uptime(looks.after(here, &redactor));
        let elsewhere = Path::new("/proc");
        assert!(uptime(looks.before(here, &redactor)) >= left);
        pause();
        // It began before this was asked for.
        assert!(uptime(looks.after(here, &redactor)) > left);
        std::thread::sleep(FRESH);
        pause();
        assert!(uptime(looks.before(here, &redactor)) > left);
        let disk = looks.before(elsewhere, &redactor).unwrap().telemetry.disk;
        assert_ne!(
            disk,
            looks.before(here, &redactor).unwrap().telemetry.disk,
            "another file system was looked at"
        );
    }
}
