//! Refuses to start work when too little of the machine is left.
//!
//! It has no memory: it looks at figures of one moment, and admits again as soon as they are better. What is not known
//! is no reason to refuse.

use std::fmt;
use std::ops::RangeInclusive;

use invigil_schema::{
    CpuBusy, Exceeded, GuardScope, Guarded, Pressure, ProcessSummary, Stall, Telemetry,
};

use super::tree::percent;

/// How much may be in use.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// Memory that is not available, in percent of all.
    pub memory_percent: f64,
    /// Processor time, in percent of all processors.
    pub cpu_percent: f64,
    /// The file system of the working directory, in percent. Refused only if less than `disk_free_bytes` is free too.
    pub disk_percent: f64,
    /// So much free space is enough on any disk.
    pub disk_free_bytes: u64,
    /// Threads, in percent of how many there may be.
    pub processes_percent: f64,
    /// Time that tasks waited, in percent of the last ten seconds.
    pub pressure_percent: f64,
    /// More processes than these that have ended and were not waited for are worth a word.
    pub zombies: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            memory_percent: 80.0,
            cpu_percent: 80.0,
            disk_percent: 80.0,
            disk_free_bytes: 5 << 30,
            processes_percent: 80.0,
            pressure_percent: 80.0,
            zombies: 20,
        }
    }
}

/// The guard, or none.
#[derive(Debug, Clone)]
pub struct ResourceGuard(Option<Thresholds>);

impl Default for ResourceGuard {
    fn default() -> Self {
        ResourceGuard::new(Thresholds::default())
    }
}

/// Nothing is started: these figures are past their thresholds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the machine is too busy to start work: {}; try again when it is less",
    list(exceeded)
)]
pub struct Refused {
    /// At least one.
    pub exceeded: Vec<Exceeded>,
}

/// Many processes have ended and were not waited for. A word to somebody, and no reason to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManyZombies {
    /// How many there are.
    pub count: u64,
    /// How many are nothing to speak of.
    pub threshold: u64,
}

impl fmt::Display for ManyZombies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} processes have ended and were not waited for, more than {}: their parents do not do their work",
            self.count, self.threshold
        )
    }
}

/// Over less than a second a processor may well be busy; what was a minute ago is not the present.
const JUDGED_MS: RangeInclusive<u64> = 1_000..=60_000;

impl ResourceGuard {
    /// With these thresholds.
    pub fn new(thresholds: Thresholds) -> Self {
        ResourceGuard(Some(thresholds))
    }

    /// Admits everything and has nothing to say.
    pub fn off() -> Self {
        ResourceGuard(None)
    }

    /// Whether work may be started now.
    pub fn check(&self, machine: &Telemetry, processes: &ProcessSummary) -> Result<(), Refused> {
        let Some(thresholds) = &self.0 else {
            return Ok(());
        };
        let figures = [
            memory(machine, thresholds),
            cpu(machine, thresholds),
            disk(machine, thresholds),
            tasks(machine, processes, thresholds),
            pressure(machine, thresholds, Guarded::CpuPressure),
            pressure(machine, thresholds, Guarded::MemoryPressure),
            pressure(machine, thresholds, Guarded::IoPressure),
        ];
        let exceeded: Vec<Exceeded> = figures.into_iter().flatten().collect();
        match exceeded.is_empty() {
            true => Ok(()),
            false => Err(Refused { exceeded }),
        }
    }

    /// Whether there are so many zombies that somebody should know.
    pub fn zombies(&self, processes: &ProcessSummary) -> Option<ManyZombies> {
        let threshold = self.0.as_ref()?.zombies;
        let count = processes.zombies;
        (count > threshold).then_some(ManyZombies { count, threshold })
    }
}

/// A figure of the machine, of the control group or of the user.
fn figure(figure: Guarded, of: GuardScope, percent: f64, threshold_percent: f64) -> Exceeded {
    Exceeded {
        figure,
        of,
        percent,
        threshold_percent,
        left_bytes: None,
        over_ms: None,
    }
}

/// The highest of some figures, if it is past its threshold: whoever has less left decides.
fn tightest(figures: impl IntoIterator<Item = Exceeded>) -> Option<Exceeded> {
    figures
        .into_iter()
        .max_by(|a, b| a.percent.total_cmp(&b.percent))
        .filter(|figure| figure.percent > figure.threshold_percent)
}

fn memory(machine: &Telemetry, thresholds: &Thresholds) -> Option<Exceeded> {
    let of = |scope, total: u64, left: u64| Exceeded {
        left_bytes: Some(left),
        ..figure(
            Guarded::Memory,
            scope,
            percent(total.saturating_sub(left) as f64, total as f64),
            thresholds.memory_percent,
        )
    };
    let host = &machine.memory;
    let group = machine.cgroup.memory.map(|group| {
        let left = group.limit_bytes.saturating_sub(group.used_bytes);
        of(GuardScope::Cgroup, group.limit_bytes, left)
    });
    let host = of(GuardScope::Host, host.total_bytes, host.available_bytes);
    tightest([host].into_iter().chain(group))
}

fn cpu(machine: &Telemetry, thresholds: &Thresholds) -> Option<Exceeded> {
    let of = |scope, busy: CpuBusy| Exceeded {
        over_ms: Some(busy.over_ms),
        ..figure(Guarded::Cpu, scope, busy.percent, thresholds.cpu_percent)
    };
    let judged = |busy: &CpuBusy| JUDGED_MS.contains(&busy.over_ms);
    let host = machine.cpu.busy.filter(judged);
    let group = machine.cgroup.cpu.and_then(|group| group.busy);
    let host = host.map(|busy| of(GuardScope::Host, busy));
    let group = group
        .filter(judged)
        .map(|busy| of(GuardScope::Cgroup, busy));
    tightest(host.into_iter().chain(group))
}

fn disk(machine: &Telemetry, thresholds: &Thresholds) -> Option<Exceeded> {
    let disk = machine.disk?;
    // What is reserved for root is neither used nor free for others.
    let usable = disk.used_bytes + disk.free_bytes;
    let used = percent(disk.used_bytes as f64, usable as f64);
    let figure = Exceeded {
        left_bytes: Some(disk.free_bytes),
        ..figure(
            Guarded::Disk,
            GuardScope::Host,
            used,
            thresholds.disk_percent,
        )
    };
    tightest([figure]).filter(|_| disk.free_bytes < thresholds.disk_free_bytes)
}

fn tasks(
    machine: &Telemetry,
    processes: &ProcessSummary,
    thresholds: &Thresholds,
) -> Option<Exceeded> {
    let of = |scope, count: u64, limit: u64| {
        let used = percent(count as f64, limit as f64);
        figure(
            Guarded::Processes,
            scope,
            used,
            thresholds.processes_percent,
        )
    };
    let host = of(GuardScope::Host, machine.tasks.count, machine.tasks.limit);
    let user = machine.tasks.user_limit;
    let user = user.map(|limit| of(GuardScope::User, processes.user_threads, limit));
    let group = machine.cgroup.tasks;
    let group = group.map(|group| of(GuardScope::Cgroup, group.count, group.limit));
    tightest([host].into_iter().chain(user).chain(group))
}

fn pressure(machine: &Telemetry, thresholds: &Thresholds, kind: Guarded) -> Option<Exceeded> {
    // One copy of a large file makes somebody wait for the disk all the time; only when nobody gets on is it too much.
    let share = |pressure: Pressure| match kind {
        Guarded::IoPressure => pressure.io?.full_10s_percent,
        Guarded::MemoryPressure => pressure.memory.map(some),
        _ => pressure.cpu.map(some),
    };
    let of = |scope, pressure: Option<Pressure>| {
        let share = share(pressure?)?;
        Some(Exceeded {
            over_ms: Some(10_000),
            ..figure(kind, scope, share, thresholds.pressure_percent)
        })
    };
    let host = of(GuardScope::Host, machine.pressure);
    let group = of(GuardScope::Cgroup, machine.cgroup.pressure);
    tightest(host.into_iter().chain(group))
}

fn some(stall: Stall) -> f64 {
    stall.some_10s_percent
}

fn list(exceeded: &[Exceeded]) -> String {
    let texts: Vec<String> = exceeded.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
