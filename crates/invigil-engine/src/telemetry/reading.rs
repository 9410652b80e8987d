//! Counters of processor time at one moment. Two of them make a figure.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use invigil_schema::CpuBusy;
use serde::{Deserialize, Serialize};

use super::tree::percent;

/// The kernel counts in steps of 10 ms: a figure over less than this says nothing.
const SHORTEST_MS: u64 = 100;

/// A reading is compared with until it is this old, so that frequent looks are not all over short times.
const RENEWED_AFTER_MS: u64 = 1_000;

/// What the counters showed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reading {
    pub(super) uptime_ms: u64,
    /// Ticks of all processors in which they did something.
    pub(super) busy_ticks: u64,
    /// All ticks of all processors.
    pub(super) all_ticks: u64,
    /// The control group whose processor time is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cgroup: Option<CgroupReading>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CgroupReading {
    pub(super) path: String,
    pub(super) used_us: u64,
}

impl Reading {
    /// How busy all processors were since then. Nothing if it was just now, or the counters went backwards.
    pub(super) fn busy(&self, now: &Reading) -> Option<CpuBusy> {
        let over_ms = since(self.uptime_ms, now.uptime_ms)?;
        let all = now.all_ticks.checked_sub(self.all_ticks)?;
        // Processors that are switched off take their ticks along.
        let busy = now.busy_ticks.checked_sub(self.busy_ticks)?.min(all);
        (all > 0).then(|| CpuBusy {
            percent: percent(busy as f64, all as f64),
            over_ms,
        })
    }

    /// How much of `limit_cpus` processors the control group used since then.
    pub(super) fn cgroup_busy(&self, now: &Reading, limit_cpus: f64) -> Option<CpuBusy> {
        let over_ms = since(self.uptime_ms, now.uptime_ms)?;
        let (before, now) = (self.cgroup.as_ref()?, now.cgroup.as_ref()?);
        if before.path != now.path {
            return None;
        }
        let used_ms = now.used_us.checked_sub(before.used_us)? as f64 / 1000.0;
        Some(CpuBusy {
            percent: percent(used_ms, over_ms as f64 * limit_cpus),
            over_ms,
        })
    }
}

/// The time between two readings, if it is long enough to say something.
pub(super) fn since(before_ms: u64, now_ms: u64) -> Option<u64> {
    now_ms
        .checked_sub(before_ms)
        .filter(|over| *over >= SHORTEST_MS)
}

/// Whether a reading has served long enough, or is of a time that has not come.
pub(super) fn worn(before_ms: u64, now_ms: u64) -> bool {
    now_ms
        .checked_sub(before_ms)
        .is_none_or(|over| over >= RENEWED_AFTER_MS)
}

/// A reading as it is kept for the next process.
#[derive(Serialize, Deserialize)]
struct Kept {
    boot_id: String,
    reading: Reading,
}

/// The reading in a file. Nothing if there is none, if it is not one, or if the machine was started since.
pub(super) fn load(file: &Path, boot_id: &str) -> Option<Reading> {
    let kept: Kept = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (kept.boot_id == boot_id).then_some(kept.reading)
}

/// Puts a reading in the place of the file. Others who do the same at once see a whole one.
pub(super) fn save(file: &Path, boot_id: &str, reading: &Reading) -> io::Result<()> {
    let kept = Kept {
        boot_id: boot_id.to_owned(),
        reading: reading.clone(),
    };
    let own = file.with_extension(format!("{}.tmp", std::process::id()));
    let json = serde_json::to_vec(&kept)?;
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&own);
    let written = made
        .and_then(|mut made| made.write_all(&json))
        .and_then(|()| fs::rename(&own, file));
    written.inspect_err(|_| drop(fs::remove_file(&own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(uptime_ms: u64, busy_ticks: u64, all_ticks: u64) -> Reading {
        Reading {
            uptime_ms,
            busy_ticks,
            all_ticks,
            cgroup: None,
        }
    }

    #[test]
    fn a_figure_needs_time_and_counters_that_go_forward() {
        let before = reading(1_000, 100, 1_000);
        let busy = |now| before.busy(&now).map(|busy| (busy.percent, busy.over_ms));
        assert_eq!(busy(reading(3_000, 150, 1_400)), Some((12.5, 2_000)));
        assert_eq!(busy(reading(1_099, 150, 1_400)), None);
        assert_eq!(busy(reading(3_000, 99, 1_400)), None);
        assert_eq!(busy(reading(3_000, 100, 1_000)), None);
        assert_eq!(busy(reading(500, 150, 1_400)), None);
    }

    #[test]
    fn a_kept_reading_is_only_for_the_same_boot() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("reading.json");
        assert_eq!(load(&file, "one"), None);
        save(&file, "one", &reading(1, 2, 3)).unwrap();
        assert_eq!(load(&file, "one"), Some(reading(1, 2, 3)));
        assert_eq!(load(&file, "two"), None);
        fs::write(&file, "{").unwrap();
        assert_eq!(load(&file, "one"), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(
            save(
                &directory.path().join("none/reading"),
                "one",
                &reading(1, 2, 3)
            )
            .is_err()
        );
    }
}
