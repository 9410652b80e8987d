//! Who is alive, for other threads than the observer's, and what they use.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use invigil_schema::ResourceSample;

use crate::table::status_line;

/// The pids of the living processes of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Census(Arc<Mutex<HashSet<u32>>>);

impl Census {
    fn pids(&self) -> MutexGuard<'_, HashSet<u32>> {
        // A set is whole whatever its user was doing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, pid: u32) {
        self.pids().insert(pid);
    }

    pub(crate) fn remove(&self, pid: u32) {
        self.pids().remove(&pid);
    }

    pub(crate) fn contains(&self, pid: u32) -> bool {
        self.pids().contains(&pid)
    }

    /// Everybody.
    pub(crate) fn all(&self) -> Vec<u32> {
        self.pids().iter().copied().collect()
    }

    /// Puts others in the place of everybody.
    pub(crate) fn replace(&self, pids: HashSet<u32>) {
        *self.pids() = pids;
    }

    /// Bytes of memory in use. Pages that are shared are divided among those who share them; this is only looked at,
    /// because it takes long, if more than `enough` is used otherwise.
    pub(crate) fn memory(&self, enough: u64) -> u64 {
        let pids = self.all();
        let resident = pids.iter().map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
            pages.unwrap_or(0) * page_kib() * 1024
        });
        let resident = resident.sum();
        if resident <= enough {
            return resident;
        }
        let share = |pid: &u32| {
            let text = std::fs::read(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = status_line(&text, "Pss").and_then(|line| str::from_utf8(line).ok());
            let kib = line.and_then(|line| line.trim_end_matches("kB").trim().parse::<u64>().ok());
            kib.unwrap_or(0) * 1024
        };
        pids.iter().map(share).sum()
    }

    /// Adds up what `/proc` says. A process that ends meanwhile counts as far as it was read.
    pub(crate) fn sample(&self) -> ResourceSample {
        let mut sample = ResourceSample::default();
        for pid in self.all() {
            add(&mut sample, pid);
        }
        sample
    }
}

fn add(sample: &mut ResourceSample, pid: u32) {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let stat = read("stat");
    let Some(name_end) = stat.iter().rposition(|&b| b == b')') else {
        return;
    };
    // Fields are counted from 1, and the one behind the name is the third.
    let fields: Vec<u64> = stat[name_end + 1..]
        .trim_ascii()
        .split(|&b| b == b' ')
        .map(|text| {
            str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0)
        })
        .collect();
    let field = |n: usize| fields.get(n - 3).copied().unwrap_or(0);
    let number = |text: &[u8], name: &str| -> u64 {
        let line = status_line(text, name).and_then(|line| str::from_utf8(line).ok());
        line.and_then(|line| line.parse().ok()).unwrap_or(0)
    };
    let io = read("io");
    sample.processes += 1;
    sample.threads += field(20);
    sample.cpu_us += (field(14) + field(15)) * tick_us();
    sample.rss_kib += field(24) * page_kib();
    sample.read_bytes += number(&io, "rchar");
    sample.written_bytes += number(&io, "wchar");
}

/// Processor time of a living process and of the children that it has waited for.
pub(crate) fn cpu_with_children(pid: u32) -> Duration {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let name_end = stat.iter().rposition(|&b| b == b')').unwrap_or(0);
    let fields = stat[name_end..].split(|&b| b == b' ').skip(12).take(4);
    let ticks = fields.filter_map(|text| str::from_utf8(text).ok()?.parse::<u64>().ok());
    Duration::from_micros(ticks.sum::<u64>() * tick_us())
}

/// How many threads a user has on this machine.
pub(crate) fn tasks_of(user: u32) -> u64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = processes.filter(|entry| {
        use std::os::unix::fs::MetadataExt;
        entry.metadata().is_ok_and(|data| data.uid() == user)
    });
    let tasks = own.filter_map(|entry| std::fs::read_dir(entry.path().join("task")).ok());
    tasks.map(|tasks| tasks.count() as u64).sum()
}

fn tick_us() -> u64 {
    // SAFETY: plain integers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000 / u64::try_from(ticks).unwrap_or(100).max(1)
}

fn page_kib() -> u64 {
    // SAFETY: plain integers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let census = Census::default();
        census.add(std::process::id());
        let sample = census.sample();
        assert_eq!(sample.processes, 1);
        assert!(sample.threads >= 1 && sample.rss_kib > 0, "{sample:?}");
        census.remove(std::process::id());
        assert_eq!(census.sample(), ResourceSample::default());
    }
}
