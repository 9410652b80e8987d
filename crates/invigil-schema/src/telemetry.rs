//! What a machine and its processes look like at one moment, and what the resource guard says of it.
//!
//! Every figure is a number with its unit in its name. What a machine does not have or does not tell is absent, never
//! zero. These are no events; events of jobs hold them.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{OsText, ProcessRef};

/// The machine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Telemetry {
    /// Since boot, with the time that it slept.
    pub uptime_ms: u64,
    /// The processors.
    pub cpu: CpuFigures,
    /// Tasks that ran, waited to run or waited for a disk, on average.
    pub load: LoadAverage,
    /// Main memory.
    pub memory: MemoryFigures,
    /// The file system that holds the working directory; absent if it cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskFigures>,
    /// Threads of the whole machine, and how many there may be.
    pub tasks: TaskFigures,
    /// How long tasks had to wait; absent if the kernel does not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
    /// Where the control group of this process allows less than the machine has.
    #[serde(default, skip_serializing_if = "CgroupFigures::is_empty")]
    pub cgroup: CgroupFigures,
    /// Graphics and other processors that can be computed with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accelerators: Vec<Accelerator>,
    /// TCP ports that somebody listens at, by port and address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listening: Vec<ListeningPort>,
}

/// The processors of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuFigures {
    /// Logical processors that are on.
    pub count: u32,
    /// What the first one calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How busy all of them together were; absent if there was no earlier reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<CpuBusy>,
}

/// Processor time between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuBusy {
    /// The share that was used. Of a process it is the share of one processor, and may be more than 100.
    pub percent: f64,
    /// The time between the readings.
    pub over_ms: u64,
}

/// The load averages, in tasks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadAverage {
    /// Over one minute.
    pub tasks_1min: f64,
    /// Over five minutes.
    pub tasks_5min: f64,
    /// Over fifteen minutes.
    pub tasks_15min: f64,
}

/// Main memory and swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryFigures {
    /// All that the kernel can give out.
    pub total_bytes: u64,
    /// What could be had without swapping, as the kernel estimates it.
    pub available_bytes: u64,
    /// Swap space; zero if there is none.
    pub swap_total_bytes: u64,
    /// Swap space that is not in use.
    pub swap_free_bytes: u64,
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskFigures {
    /// Its size.
    pub total_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// What an ordinary user may still fill. Less than the rest: some is reserved for root.
    pub free_bytes: u64,
}

/// Threads, which is what the kernel counts when it limits processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskFigures {
    /// Threads of all processes.
    pub count: u64,
    /// How many there may be on this machine.
    pub limit: u64,
    /// How many the user of this process may have; absent if there is no limit or it does not hold for this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_limit: Option<u64>,
}

/// How long tasks waited for what they needed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pressure {
    /// For a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Stall>,
    /// For memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Stall>,
    /// For disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<Stall>,
}

/// The share of time in which tasks waited.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// At least one task waited, over ten seconds.
    pub some_10s_percent: f64,
    /// The same over a minute.
    pub some_60s_percent: f64,
    /// All tasks that had something to do waited, over ten seconds; absent where the kernel does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_10s_percent: Option<f64>,
    /// The same over a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_60s_percent: Option<f64>,
}

/// Limits of the control groups that this process is in, each at the level that is nearest to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CgroupFigures {
    /// Memory; absent unless it is less than the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<CgroupMemory>,
    /// Processor time; absent unless it is less than the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CgroupCpu>,
    /// Threads; absent unless there may be fewer than on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<CgroupTasks>,
    /// How long its own tasks waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
}

impl CgroupFigures {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == CgroupFigures::default()
    }
}

/// Memory of a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupMemory {
    /// How much it may use.
    pub limit_bytes: u64,
    /// How much it uses, without cached files that the kernel would drop first.
    pub used_bytes: u64,
}

/// Processor time of a control group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupCpu {
    /// How many processors' time it may use.
    pub limit_cpus: f64,
    /// The share of that which it used; absent if there was no earlier reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<CpuBusy>,
}

/// Threads of a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupTasks {
    /// How many there are.
    pub count: u64,
    /// How many there may be.
    pub limit: u64,
}

/// A processor beside the main ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accelerator {
    /// The kernel's name for it: `renderD128`, `accel0`, or its place on the bus.
    pub name: String,
    /// What it calls itself, if its driver says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The number of its maker on the PCI bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_id: Option<u32>,
    /// The maker's number for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<u32>,
}

/// A TCP port that somebody listens at.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct ListeningPort {
    /// The port.
    pub port: u16,
    /// The address; `0.0.0.0` or `::` for all.
    pub address: IpAddr,
}

/// All processes that can be seen, counted, and the few largest.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProcessSummary {
    /// Processes, with those that have ended and were not waited for.
    pub total: u64,
    /// On a processor or waiting for one.
    pub running: u64,
    /// Waiting for something that cannot be interrupted, mostly a disk.
    pub blocked: u64,
    /// Stopped by a signal or a tracer.
    pub stopped: u64,
    /// Ended, and not waited for by their parents.
    pub zombies: u64,
    /// Threads of all of them.
    pub threads: u64,
    /// Threads of the user that this process runs as.
    pub user_threads: u64,
    /// Memory of all of them. Pages that are shared count once for each process.
    pub rss_bytes: u64,
    /// The largest first.
    pub most_memory: Vec<ProcessView>,
    /// Those that used most processor time since the last reading; since their start if there was none.
    pub most_cpu: Vec<ProcessView>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessView {
    /// The process.
    pub process: ProcessRef,
    /// The pid of its parent; 0 if that cannot be seen.
    pub parent: u32,
    /// The user whose rights it has.
    pub uid: u32,
    /// What it does.
    pub state: ProcessState,
    /// Its threads.
    pub threads: u32,
    /// Processor time since its start, user and kernel.
    pub cpu_ms: u64,
    /// Processor time since the last reading; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<CpuBusy>,
    /// Memory in use.
    pub rss_bytes: u64,
    /// When it started, after boot.
    pub started_ms: u64,
    /// The kernel's short name for it.
    pub name: OsText,
    /// Its arguments, with its own name for itself first. Empty for threads of the kernel and for zombies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<OsText>,
    /// Whether the command is longer than what is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub command_cut: bool,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// On a processor or waiting for one.
    Running,
    /// Waiting for something, and can be interrupted.
    Sleeping,
    /// Waiting for something that cannot be interrupted.
    Blocked,
    /// Stopped by a signal or a tracer.
    Stopped,
    /// Ended, and not waited for by its parent.
    Zombie,
    /// A thread of the kernel with nothing to do.
    Idle,
    /// A letter that this version does not know.
    Other,
}

impl ProcessState {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ProcessState::Running => "running",
            ProcessState::Sleeping => "sleeping",
            ProcessState::Blocked => "blocked",
            ProcessState::Stopped => "stopped",
            ProcessState::Zombie => "zombie",
            ProcessState::Idle => "idle",
            ProcessState::Other => "other",
        }
    }
}

/// A figure that the resource guard looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Guarded {
    /// Memory in use.
    Memory,
    /// Processor time in use.
    Cpu,
    /// The file system of the working directory.
    Disk,
    /// Threads of processes.
    Processes,
    /// Time that tasks wait for a processor.
    CpuPressure,
    /// Time that tasks wait for memory.
    MemoryPressure,
    /// Time that tasks wait for disks.
    IoPressure,
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Guarded::Memory => "memory",
            Guarded::Cpu => "cpu",
            Guarded::Disk => "disk",
            Guarded::Processes => "process count",
            Guarded::CpuPressure => "cpu pressure",
            Guarded::MemoryPressure => "memory pressure",
            Guarded::IoPressure => "i/o pressure",
        })
    }
}

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardScope {
    /// The machine's.
    Host,
    /// The control group's.
    Cgroup,
    /// The user's.
    User,
}

impl fmt::Display for GuardScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GuardScope::Host => "the machine",
            GuardScope::Cgroup => "the control group",
            GuardScope::User => "the user",
        })
    }
}

/// A figure past its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exceeded {
    /// Which figure.
    pub figure: Guarded,
    /// Whose limit.
    pub of: GuardScope,
    /// How much of it is in use.
    pub percent: f64,
    /// From how much on nothing is started.
    pub threshold_percent: f64,
    /// Bytes that are left, of memory and disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_bytes: Option<u64>,
    /// Over which time, of what is used by the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_ms: Option<u64>,
}

/// `memory of the machine is at 91.2 %, past 80 % (2.1 GiB left)`
impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} is at {:.1} %, past {} %",
            self.figure, self.of, self.percent, self.threshold_percent
        )?;
        if let Some(left) = self.left_bytes {
            let gib = left as f64 / f64::from(1 << 30);
            write!(f, " ({gib:.1} GiB left)")?;
        }
        if let Some(over) = self.over_ms {
            write!(f, " (over {:.1} s)", over as f64 / 1000.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_past_its_threshold_says_all_in_one_line() {
        let mut exceeded = Exceeded {
            figure: Guarded::Memory,
            of: GuardScope::Cgroup,
            percent: 91.24,
            threshold_percent: 80.0,
            left_bytes: Some(2_254_857_830),
            over_ms: None,
        };
        let text = "memory of the control group is at 91.2 %, past 80 % (2.1 GiB left)";
        assert_eq!(exceeded.to_string(), text);
        exceeded.figure = Guarded::Cpu;
        exceeded.of = GuardScope::Host;
        (exceeded.left_bytes, exceeded.over_ms) = (None, Some(1_260));
        let text = "cpu of the machine is at 91.2 %, past 80 % (over 1.3 s)";
        assert_eq!(exceeded.to_string(), text);
    }

    #[test]
    fn what_a_machine_does_not_have_is_not_written_and_comes_back() {
        let process = ProcessView {
            process: ProcessRef { pid: 7, start: 9 },
            parent: 1,
            uid: 1000,
            state: ProcessState::Zombie,
            threads: 1,
            cpu_ms: 20,
            busy: None,
            rss_bytes: 0,
            started_ms: 90,
            name: OsText::from(vec![b'a', 0xff]),
            command: Vec::new(),
            command_cut: false,
        };
        let json = serde_json::to_value(&process).unwrap();
        let text = r#"{"process":{"pid":7,"start":9},"parent":1,"uid":1000,"state":"zombie","threads":1,"cpu_ms":20,
            "rss_bytes":0,"started_ms":90,"name":{"base64":"Yf8="}}"#;
        assert_eq!(
            json,
            serde_json::from_str::<serde_json::Value>(text).unwrap()
        );
        assert_eq!(
            serde_json::from_value::<ProcessView>(json).unwrap(),
            process
        );
        assert_eq!(ProcessState::Zombie.as_str(), "zombie");
    }
}
