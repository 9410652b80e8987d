//! The machine and its processes at one moment, read from `/proc` and `/sys` alone; and the guard that refuses to start
//! work when too little is left.
//!
//! Nothing is started and nothing waits. What does not change while a process lives is read once.

mod accelerators;
mod cgroup;
mod guard;
mod listening;
mod machine;
mod processes;
mod reading;
mod tree;

use std::io;
use std::path::{Path, PathBuf};

use invigil_schema::{Accelerator, ProcessSummary, ProcessView, Telemetry};

pub use guard::{ManyZombies, Refused, ResourceGuard, Thresholds};

use cgroup::Groups;
use processes::Census;
use reading::Reading;
use tree::{Tree, number, value, words};

/// Why there is no telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A file that every Linux has cannot be read.
    #[error("cannot read {}: {source}; is it mounted, and may it be read?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A file has another form than any Linux gives it.
    #[error("{} is not what Linux writes there", path.display())]
    Form {
        /// The file.
        path: PathBuf,
    },
}

/// Looks at the machine, and remembers the last look, so that the next one can say how busy it was meanwhile.
#[derive(Debug)]
pub struct Sampler {
    proc: Tree,
    sys: Tree,
    /// Whether the trees are of this machine, and its kernel can be asked what they say only slowly.
    here: bool,
    groups: Groups,
    census: Census,
    last: Option<Reading>,
    /// Whether `last` is other than what was loaded.
    renewed: bool,
    cpu_model: Option<String>,
    accelerators: Vec<Accelerator>,
    user: User,
}

/// Who looks, and what that user may have.
#[derive(Debug)]
struct User {
    uid: u32,
    task_limit: Option<u64>,
}

impl Sampler {
    /// The name of the file in the store that holds the last reading of processor time.
    pub const LAST_READING: &str = "cpu-reading.json";

    /// Of this machine.
    pub fn open() -> Result<Sampler, TelemetryError> {
        let mut sampler = Sampler::open_at(Path::new("/proc"), Path::new("/sys"))?;
        sampler.here = true;
        sampler.proc.keep_open();
        sampler.sys.keep_open();
        Ok(sampler)
    }

    /// Of the machine that these trees show.
    pub fn open_at(proc: &Path, sys: &Path) -> Result<Sampler, TelemetryError> {
        let tree = |path: &Path| {
            Tree::open(path).map_err(|source| TelemetryError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let (mut proc, mut sys) = (tree(proc)?, tree(sys)?);
        let user = user(&mut proc)?;
        Ok(Sampler {
            cpu_model: machine::cpu_model(&mut proc),
            accelerators: accelerators::find(&mut proc, &mut sys),
            groups: Groups::default(),
            census: Census::default(),
            last: None,
            renewed: false,
            here: false,
            user,
            proc,
            sys,
        })
    }

    /// The machine's figures. The disk is that of `working_dir`.
    pub fn machine(&mut self, working_dir: &Path) -> Result<Telemetry, TelemetryError> {
        let uptime_ms = machine::uptime_ms(&mut self.proc)?;
        let ticks = machine::ticks(&mut self.proc)?;
        let memory = machine::memory(&mut self.proc)?;
        let (load, mut tasks) = machine::load(&mut self.proc)?;
        tasks.user_limit = self.user.task_limit;
        let host = cgroup::Host {
            memory_bytes: memory.total_bytes,
            cpus: ticks.cpus,
            tasks: tasks.limit,
        };
        let (mut cgroup, used) = self.groups.figures(&mut self.proc, &mut self.sys, host);
        let now = Reading {
            uptime_ms,
            busy_ticks: ticks.busy,
            all_ticks: ticks.all,
            cgroup: used,
        };
        let last = self.last.as_ref();
        if let Some(cpu) = &mut cgroup.cpu {
            cpu.busy = last.and_then(|last| last.cgroup_busy(&now, cpu.limit_cpus));
        }
        let busy = last.and_then(|last| last.busy(&now));
        if last.is_none_or(|last| reading::worn(last.uptime_ms, uptime_ms)) {
            self.last = Some(now);
            self.renewed = true;
        }
        Ok(Telemetry {
            uptime_ms,
            cpu: invigil_schema::CpuFigures {
                count: ticks.cpus,
                model: self.cpu_model.clone(),
                busy,
            },
            load,
            memory,
            disk: machine::disk(working_dir),
            tasks,
            pressure: machine::pressure(&mut self.proc, "pressure/", ""),
            cgroup,
            accelerators: self.accelerators.clone(),
            listening: listening::ports(&mut self.proc, self.here),
        })
    }

    /// Every process that can be seen, by pid.
    pub fn processes(&mut self) -> Result<Vec<ProcessView>, TelemetryError> {
        self.census.all(&mut self.proc)
    }

    /// How many there are, and the largest.
    pub fn summary(&mut self) -> Result<ProcessSummary, TelemetryError> {
        self.census.summary(&mut self.proc, self.user.uid)
    }

    /// Takes over the reading of processor time that another process has saved, unless there is one. A file that is
    /// missing, damaged or of another boot counts as none.
    pub fn load(&mut self, file: &Path) {
        if self.last.is_none() {
            self.last = reading::load(file, &self.boot_id());
            self.renewed = false;
        }
    }

    /// Leaves the reading of processor time for the next process. Does nothing if it is the one that was loaded.
    pub fn save(&mut self, file: &Path) -> io::Result<()> {
        let boot_id = self.boot_id();
        match &self.last {
            Some(last) if self.renewed => reading::save(file, &boot_id, last)?,
            _ => return Ok(()),
        }
        self.renewed = false;
        Ok(())
    }

    fn boot_id(&mut self) -> String {
        let text = self.proc.read(c"sys/kernel/random/boot_id");
        String::from_utf8_lossy(text.unwrap_or_default().trim_ascii()).into_owned()
    }
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

/// Who runs this process, and the limit on that user's threads, if it holds for this process.
fn user(proc: &mut Tree) -> Result<User, TelemetryError> {
    let status = required(proc, "self/status")?;
    let uid = value(status, "Uid:").and_then(|ids| number(words(ids).next()?));
    let rights = value(status, "CapEff:")
        .and_then(|text| u64::from_str_radix(str::from_utf8(text).ok()?, 16).ok())
        .unwrap_or(0);
    let Some(uid) = uid.and_then(|uid| u32::try_from(uid).ok()) else {
        return Err(TelemetryError::Form {
            path: proc.path("self/status"),
        });
    };
    // Rights in a user namespace of one's own are none over the machine's limits.
    let map = proc.read(c"self/uid_map").unwrap_or_default();
    let machines_own = words(map).eq([&b"0"[..], b"0", b"4294967295"]);
    let has = |capability: u32| rights & (1 << capability) != 0;
    let exempt = machines_own && (uid == 0 || has(CAP_SYS_RESOURCE) || has(CAP_SYS_ADMIN));
    let limits = proc.read(c"self/limits").unwrap_or_default();
    let limit = value(limits, "Max processes").and_then(|line| number(words(line).next()?));
    Ok(User {
        uid,
        task_limit: limit.filter(|_| !exempt),
    })
}

/// A file without which nothing can be said.
fn required<'a>(tree: &'a mut Tree, name: &str) -> Result<&'a [u8], TelemetryError> {
    let path = tree.path(name);
    tree.read(name)
        .map_err(|source| TelemetryError::Read { path, source })
}
