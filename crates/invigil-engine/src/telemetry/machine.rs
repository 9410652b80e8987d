//! The machine as a whole: time, processors, load, memory, disk, pressure.

use std::path::Path;

use invigil_schema::{DiskFigures, LoadAverage, MemoryFigures, Pressure, Stall, TaskFigures};

use super::tree::{Tree, decimal, hundredths, lines, number, value, words};
use super::{TelemetryError, required};

/// Processor time since boot, in clock ticks.
pub(super) struct Ticks {
    pub(super) cpus: u32,
    pub(super) busy: u64,
    pub(super) all: u64,
}

/// Reads a file and makes something of it that every Linux has there.
fn parsed<T>(
    proc: &mut Tree,
    name: &str,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, TelemetryError> {
    let found = parse(required(proc, name)?);
    found.ok_or_else(|| TelemetryError::Form {
        path: proc.path(name),
    })
}

pub(super) fn uptime_ms(proc: &mut Tree) -> Result<u64, TelemetryError> {
    parsed(proc, "uptime", |text| {
        let seconds = decimal(words(text).next()?)?;
        Some((seconds * 1000.0).round() as u64)
    })
}

pub(super) fn ticks(proc: &mut Tree) -> Result<Ticks, TelemetryError> {
    parsed(proc, "stat", |text| {
        let mut cpus = lines(text).take_while(|line| line.starts_with(b"cpu"));
        let counts: Vec<u64> = words(cpus.next()?).skip(1).filter_map(number).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice already.
        let all = counts.iter().take(8).sum();
        let idle = counts.get(3)? + counts.get(4).unwrap_or(&0);
        Some(Ticks {
            cpus: u32::try_from(cpus.count()).unwrap_or(u32::MAX),
            busy: all - idle,
            all,
        })
    })
}

pub(super) fn memory(proc: &mut Tree) -> Result<MemoryFigures, TelemetryError> {
    parsed(proc, "meminfo", |text| {
        let bytes = |name| Some(number(words(value(text, name)?).next()?)? * 1024);
        Some(MemoryFigures {
            total_bytes: bytes("MemTotal:")?,
            available_bytes: bytes("MemAvailable:")?,
            swap_total_bytes: bytes("SwapTotal:").unwrap_or(0),
            swap_free_bytes: bytes("SwapFree:").unwrap_or(0),
        })
    })
}

/// The load, and the threads of the machine with their limit.
pub(super) fn load(proc: &mut Tree) -> Result<(LoadAverage, TaskFigures), TelemetryError> {
    let (load, count) = parsed(proc, "loadavg", |text| {
        let mut words = words(text);
        let mut average = || decimal(words.next()?);
        let load = LoadAverage {
            tasks_1min: average()?,
            tasks_5min: average()?,
            tasks_15min: average()?,
        };
        let (_, count) = str::from_utf8(words.next()?).ok()?.split_once('/')?;
        Some((load, number(count.as_bytes())?))
    })?;
    let mut limit = |name: &str| parsed(proc, name, |text| number(text.trim_ascii()));
    let limit = limit("sys/kernel/pid_max")?.min(limit("sys/kernel/threads-max")?);
    let tasks = TaskFigures {
        count,
        limit,
        user_limit: None,
    };
    Ok((load, tasks))
}

pub(super) fn disk(folder: &Path) -> Option<DiskFigures> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some(DiskFigures {
        total_bytes: bytes(disk.f_blocks),
        used_bytes: bytes(disk.f_blocks.saturating_sub(disk.f_bfree)),
        free_bytes: bytes(disk.f_bavail),
    })
}

/// The three files of pressure, which have a prefix and a suffix around `cpu`, `memory` and `io`.
pub(super) fn pressure(tree: &mut Tree, prefix: &str, suffix: &str) -> Option<Pressure> {
    let mut stall = |what: &str| {
        let text = tree.read(format!("{prefix}{what}{suffix}")).ok()?;
        let percent = |kind: &str, over: &str| {
            let shares = value(text, kind)?;
            let share = words(shares).find_map(|word| word.strip_prefix(over.as_bytes()))?;
            decimal(share).map(hundredths)
        };
        Some(Stall {
            some_10s_percent: percent("some ", "avg10=")?,
            some_60s_percent: percent("some ", "avg60=")?,
            full_10s_percent: percent("full ", "avg10="),
            full_60s_percent: percent("full ", "avg60="),
        })
    };
    let pressure = Pressure {
        cpu: stall("cpu"),
        memory: stall("memory"),
        io: stall("io"),
    };
    let Pressure { cpu, memory, io } = pressure;
    cpu.or(memory).or(io).map(|_| pressure)
}

/// What the first processor calls itself. Only the beginning is read: the rest says the same of every other one.
pub(super) fn cpu_model(proc: &mut Tree) -> Option<String> {
    let text = proc.beginning(c"cpuinfo", 4096).ok()?;
    let model = value(text, "model name")?.strip_prefix(b":")?.trim_ascii();
    (!model.is_empty()).then(|| String::from_utf8_lossy(model).into_owned())
}
