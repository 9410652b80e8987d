//! Limits of the control groups that this process is in, in either version of them, or in both at once.
//!
//! A limit holds for everything below the group that has it, so all groups up to the root are looked at, and the one
//! that is nearest to its limit counts.

use std::collections::HashMap;

use invigil_schema::{CgroupCpu, CgroupFigures, CgroupMemory, CgroupTasks};

use super::machine;
use super::reading::CgroupReading;
use super::tree::{Tree, hundredths, number, value, words};

/// Where control groups are below `/sys`.
const MOUNT: &str = "fs/cgroup";

/// What the machine has: limits above are none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host {
    pub(super) memory_bytes: u64,
    pub(super) cpus: u32,
    pub(super) tasks: u64,
}

/// The groups of this process, found anew when it is moved to others.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// `/proc/self/cgroup`, from which the rest was made.
    membership: Vec<u8>,
    /// Of each controller of version 1, the folders from the own group to the root.
    first: HashMap<&'static str, Vec<String>>,
    /// The same for version 2.
    second: Vec<String>,
    /// The own folder of version 2, unless it is the root of the machine, which says what `/proc/pressure` says.
    own: Option<String>,
}

/// The controllers that matter.
const CONTROLLERS: [&str; 4] = ["memory", "cpu", "cpuacct", "pids"];

impl Groups {
    /// What is limited, and the processor time of the group where that is limited.
    pub(super) fn figures(
        &mut self,
        proc: &mut Tree,
        sys: &mut Tree,
        host: Host,
    ) -> (CgroupFigures, Option<CgroupReading>) {
        // A kernel without control groups has no such file, and one that has them may show an empty one.
        let membership = proc.read(c"self/cgroup").unwrap_or_default();
        if membership != self.membership {
            *self = Groups::find(membership.to_owned(), sys);
        }
        let (cpu, used) = self.cpu(sys, host).unzip();
        let figures = CgroupFigures {
            memory: self.memory(sys, host),
            cpu,
            tasks: self.tasks(sys, host),
            pressure: self
                .own
                .as_ref()
                .and_then(|own| machine::pressure(sys, &format!("{own}/"), ".pressure")),
        };
        (figures, used.flatten())
    }

    fn find(membership: Vec<u8>, sys: &Tree) -> Groups {
        let mut groups = Groups::default();
        for line in String::from_utf8_lossy(&membership).lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            if controllers.is_empty() {
                // Beside version 1 it has a folder of its own.
                let alone = sys.has(&format!("{MOUNT}/cgroup.controllers"));
                let mount = match alone {
                    true => MOUNT.to_owned(),
                    false => format!("{MOUNT}/unified"),
                };
                groups.second = folders(sys, &mount, path);
                let own = groups.second.first();
                let below_root = |own: &&String| sys.has(&format!("{own}/cgroup.type"));
                groups.own = own.filter(below_root).cloned();
            }
            for controller in CONTROLLERS {
                if controllers.split(',').any(|name| name == controller) {
                    let alone = format!("{MOUNT}/{controller}");
                    let together = format!("{MOUNT}/{controllers}");
                    let found = [alone, together]
                        .map(|mount| folders(sys, &mount, path))
                        .into_iter()
                        .find(|folders| !folders.is_empty());
                    groups.first.insert(controller, found.unwrap_or_default());
                }
            }
        }
        groups.membership = membership;
        groups
    }

    fn memory(&self, sys: &mut Tree, host: Host) -> Option<CgroupMemory> {
        let first = self.first.get("memory");
        let (limits, used, cached) = match first {
            Some(_) => (
                &["memory.limit_in_bytes"][..],
                "memory.usage_in_bytes",
                "total_inactive_file ",
            ),
            None => (
                &["memory.max", "memory.high"][..],
                "memory.current",
                "inactive_file ",
            ),
        };
        let figures = first.unwrap_or(&self.second).iter().filter_map(|folder| {
            let limits = limits.iter().filter_map(|name| amount(sys, folder, name));
            let limit_bytes = limits.min().filter(|limit| *limit < host.memory_bytes)?;
            let all = amount(sys, folder, used)?;
            let stat = sys.read(format!("{folder}/memory.stat"));
            let cached = value(stat.unwrap_or_default(), cached).and_then(number);
            Some(CgroupMemory {
                limit_bytes,
                used_bytes: all.saturating_sub(cached.unwrap_or(0)),
            })
        });
        figures.max_by(|a, b| {
            share(a.used_bytes, a.limit_bytes).total_cmp(&share(b.used_bytes, b.limit_bytes))
        })
    }

    fn tasks(&self, sys: &mut Tree, host: Host) -> Option<CgroupTasks> {
        let folders = self.first.get("pids").unwrap_or(&self.second);
        let figures = folders.iter().filter_map(|folder| {
            let limit = amount(sys, folder, "pids.max").filter(|limit| *limit < host.tasks)?;
            let count = amount(sys, folder, "pids.current")?;
            Some(CgroupTasks { count, limit })
        });
        figures.max_by(|a, b| share(a.count, a.limit).total_cmp(&share(b.count, b.limit)))
    }

    /// The tightest limit, and how much time the group with it has used.
    fn cpu(&self, sys: &mut Tree, host: Host) -> Option<(CgroupCpu, Option<CgroupReading>)> {
        let first = self.first.get("cpu");
        let limited = first.unwrap_or(&self.second).iter().filter_map(|folder| {
            let (quota, period) = match first {
                Some(_) => (
                    amount(sys, folder, "cpu.cfs_quota_us")?,
                    amount(sys, folder, "cpu.cfs_period_us")?,
                ),
                None => {
                    let text = sys.read(format!("{folder}/cpu.max")).ok()?;
                    let mut words = words(text).map(number);
                    (words.next()??, words.next()??)
                }
            };
            let limit = hundredths(quota as f64 / period as f64);
            (limit < f64::from(host.cpus)).then_some((folder, limit))
        });
        let (folder, limit_cpus) = limited.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let used_us = match first {
            Some(_) => self.accounted_us(sys, folder),
            None => {
                let stat = sys.read(format!("{folder}/cpu.stat")).unwrap_or_default();
                value(stat, "usage_usec ").and_then(number)
            }
        };
        let reading = used_us.map(|used_us| CgroupReading {
            path: folder.clone(),
            used_us,
        });
        let busy = None;
        Some((CgroupCpu { limit_cpus, busy }, reading))
    }

    /// Processor time of a group of version 1, where it is counted beside it: in the same folder, or in the folder of
    /// the same name in a hierarchy of its own.
    fn accounted_us(&self, sys: &mut Tree, folder: &str) -> Option<u64> {
        let own = amount(sys, folder, "cpuacct.usage");
        let nanoseconds = own.or_else(|| {
            let up = self.first.get("cpu")?.iter().position(|of| of == folder)?;
            amount(sys, self.first.get("cpuacct")?.get(up)?, "cpuacct.usage")
        });
        Some(nanoseconds? / 1000)
    }
}

/// The folders of a group and of all above it, the own one first. What is mounted may begin at the group itself, where
/// the whole path is of no use: then it is the only one. None if nothing is mounted there.
fn folders(sys: &Tree, mount: &str, path: &str) -> Vec<String> {
    let mut folder = format!("{mount}{}", path.trim_end_matches('/'));
    if path.split('/').any(|part| part == "..") || !sys.has(&folder) {
        folder = mount.to_owned();
        if !sys.has(mount) {
            return Vec::new();
        }
    }
    let mut folders = vec![folder.clone()];
    while folder.len() > mount.len() {
        folder.truncate(folder.rfind('/').unwrap_or(mount.len()));
        folders.push(folder.clone());
    }
    folders
}

/// A number in a file of a group; nothing if it is `max`, `-1`, or not there.
fn amount(sys: &mut Tree, folder: &str, name: &str) -> Option<u64> {
    let text = sys.read(format!("{folder}/{name}")).ok()?;
    number(text.trim_ascii())
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
