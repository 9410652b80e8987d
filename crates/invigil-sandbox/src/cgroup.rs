//! A cgroup for one run, in either version, where one can be made. It goes when it is dropped.
//!
//! Its name has the pid and the start time of its supervisor. A supervisor that was killed leaves an empty one behind,
//! which whoever comes next recognises and removes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::limits::Limits;
use crate::table::start_time;

const PREFIX: &str = "invigil-";
/// Tasks for each process that is allowed: threads, and the dead that nobody has asked for.
const TASKS_PER_PROCESS: u64 = 32;
/// How often, and how long each time, the end of the last task is waited for.
const PATIENCE: (u32, Duration) = (200, Duration::from_millis(5));

/// What a controller is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Tasks,
    Cpu,
}

/// The two designs of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// Version 2: one hierarchy.
    Unified,
    /// Version 1: one for each controller.
    Separate,
}

/// Groups are one for each controller in version 1, and one for all in version 2.
#[derive(Debug)]
pub(crate) struct Cgroup {
    groups: Vec<(Controller, PathBuf)>,
    unified: bool,
}

/// A mounted hierarchy and where we are in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// Empty for the unified one.
    controllers: Vec<String>,
    mount: PathBuf,
    /// Our group, as a directory.
    own: PathBuf,
}

impl Hierarchy {
    fn unified(&self) -> bool {
        self.controllers.is_empty()
    }
}

/// Reads `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn hierarchies(mounts: &str, groups: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let before: Vec<&str> = before.split(' ').collect();
        let after: Vec<&str> = after.split(' ').collect();
        let (&[_, _, _, root, mount, ..], &[kind, _, options]) = (&before[..], &after[..]) else {
            continue;
        };
        if kind != "cgroup" && kind != "cgroup2" {
            continue;
        }
        let own = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let controllers: Vec<&str> = controllers.split(',').filter(|c| !c.is_empty()).collect();
            let ours = match kind {
                "cgroup2" => controllers.is_empty(),
                _ => {
                    let mounted: Vec<&str> = options.split(',').collect();
                    !controllers.is_empty() && controllers.iter().all(|c| mounted.contains(c))
                }
            };
            let controllers = controllers.into_iter().map(str::to_owned).collect();
            ours.then_some((controllers, path))
        });
        if let Some((controllers, path)) = own
            && let Ok(below) = Path::new(path).strip_prefix(root)
        {
            let mount = PathBuf::from(mount);
            let own = mount.join(below);
            found.push(Hierarchy {
                controllers,
                mount,
                own,
            });
        }
    }
    found
}

fn here() -> Vec<Hierarchy> {
    let read = |name| std::fs::read_to_string(name).unwrap_or_default();
    hierarchies(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

/// Where groups may be made: below our own, or in the unified hierarchy beside it.
fn parents(hierarchy: &Hierarchy) -> Vec<PathBuf> {
    let mut parents = vec![hierarchy.own.clone()];
    if hierarchy.unified()
        && hierarchy.own != hierarchy.mount
        && let Some(above) = hierarchy.own.parent()
    {
        parents.push(above.to_owned());
    }
    parents
}

/// Removes the groups of supervisors that are dead. They are empty: nobody outlives a supervisor.
pub(crate) fn sweep() -> usize {
    let mut removed = 0;
    for parent in here().iter().flat_map(parents) {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let stale = name.to_str().and_then(supervisor);
            if stale.is_some_and(|(pid, start)| start_time(pid) != Some(start)) {
                removed += usize::from(std::fs::remove_dir(entry.path()).is_ok());
            }
        }
    }
    removed
}

/// Whose group a name is.
fn supervisor(name: &str) -> Option<(u32, u64)> {
    let mut numbers = name.strip_prefix(PREFIX)?.split('-');
    let (pid, start) = (numbers.next()?, numbers.next()?);
    Some((pid.parse().ok()?, start.parse().ok()?))
}

fn fresh_name() -> Option<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    Some(format!("{PREFIX}{pid}-{}-{count}", start_time(pid)?))
}

impl Cgroup {
    /// Makes a group that holds as many of the limits as it can. The error says why there is none. `counted` says that
    /// somebody else counts processes, and the group only has to hold what that one does not see.
    pub(crate) fn new(limits: &Limits, counted: bool) -> Result<Cgroup, String> {
        Cgroup::of(Version::Unified, limits, counted).or_else(|unified| {
            let separate = Cgroup::of(Version::Separate, limits, counted);
            separate.map_err(|separate| format!("{unified}; {separate}"))
        })
    }

    /// The same in one of the versions.
    pub(crate) fn of(version: Version, limits: &Limits, counted: bool) -> Result<Cgroup, String> {
        sweep();
        let tasks = |processes: u32| match counted {
            true => u64::from(processes) * TASKS_PER_PROCESS,
            // One more than is allowed, so that it can be seen.
            false => u64::from(processes) + 1,
        };
        let wanted: Vec<_> = [
            (Controller::Memory, limits.memory),
            (Controller::Tasks, limits.processes.map(tasks)),
            (Controller::Cpu, limits.cpu.map(|_| 0)),
        ]
        .into_iter()
        .filter_map(|(controller, limit)| Some((controller, limit?)))
        .collect();
        let hierarchies = here();
        let name = fresh_name().ok_or("/proc does not say when this process started")?;
        match version {
            Version::Unified => {
                let unified = hierarchies.iter().filter(|h| h.unified());
                let mut problem = "there is no unified hierarchy".to_owned();
                for parent in unified.flat_map(parents) {
                    match Cgroup::unified(&parent.join(&name), &wanted) {
                        Ok(cgroup) => return Ok(cgroup),
                        Err(why) => problem = why,
                    }
                }
                Err(problem)
            }
            Version::Separate => Cgroup::separate(&hierarchies, &name, &wanted),
        }
    }

    fn unified(group: &Path, wanted: &[(Controller, u64)]) -> Result<Cgroup, String> {
        let parent = group.parent().unwrap_or(group);
        let enabled = std::fs::read_to_string(parent.join("cgroup.subtree_control"));
        let enabled = enabled.unwrap_or_default();
        let has = |name: &str| enabled.split_ascii_whitespace().any(|c| c == name);
        let held = wanted.iter().filter(|(controller, _)| match controller {
            Controller::Memory => has("memory"),
            Controller::Tasks => has("pids"),
            // Time is accounted for without a controller.
            Controller::Cpu => true,
        });
        let held: Vec<_> = held.copied().collect();
        if held.len() < wanted.len() {
            return Err(format!(
                "{}: the controllers are not delegated",
                parent.display()
            ));
        }
        let failed = |error| format!("{}: {error}", group.display());
        std::fs::create_dir(group).map_err(failed)?;
        let cgroup = Cgroup {
            groups: held.iter().map(|(c, _)| (*c, group.to_owned())).collect(),
            unified: true,
        };
        for (controller, limit) in held {
            cgroup.set(controller, limit).map_err(failed)?;
        }
        Ok(cgroup)
    }

    fn separate(
        hierarchies: &[Hierarchy],
        name: &str,
        wanted: &[(Controller, u64)],
    ) -> Result<Cgroup, String> {
        let mut problem = "no hierarchy has the controllers".to_owned();
        let mut cgroup = Cgroup {
            groups: Vec::new(),
            unified: false,
        };
        for (controller, limit) in wanted {
            let wanted = match controller {
                Controller::Memory => "memory",
                Controller::Tasks => "pids",
                Controller::Cpu => "cpuacct",
            };
            let hierarchy = hierarchies
                .iter()
                .find(|h| h.controllers.iter().any(|c| c == wanted));
            let Some(hierarchy) = hierarchy else { continue };
            let group = hierarchy.own.join(name);
            if let Err(error) = std::fs::create_dir(&group) {
                // Two controllers can share a hierarchy.
                if !cgroup.groups.iter().any(|(_, made)| *made == group) {
                    problem = format!("{}: {error}", group.display());
                    continue;
                }
            }
            cgroup.groups.push((*controller, group.clone()));
            if let Err(error) = cgroup.set(*controller, *limit) {
                problem = format!("{}: {error}", group.display());
                cgroup.groups.pop();
                let _ = std::fs::remove_dir(group);
            }
        }
        match cgroup.groups.is_empty() {
            true => Err(problem),
            false => Ok(cgroup),
        }
    }

    fn group(&self, controller: Controller) -> Option<&Path> {
        let mut groups = self.groups.iter();
        groups.find_map(|(c, group)| (*c == controller).then_some(group.as_path()))
    }

    /// Whether a controller does its work here.
    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.group(controller).is_some()
    }

    fn set(&self, controller: Controller, limit: u64) -> std::io::Result<()> {
        let Some(group) = self.group(controller) else {
            return Ok(());
        };
        let write = |name: &str, value: &str| std::fs::write(group.join(name), value);
        let limit = limit.to_string();
        match (controller, self.unified) {
            (Controller::Memory, true) => {
                write("memory.max", &limit)?;
                // Without swap these two are not there.
                let _ = write("memory.swap.max", "0");
                let _ = write("memory.oom.group", "1");
                Ok(())
            }
            (Controller::Memory, false) => {
                write("memory.limit_in_bytes", &limit)?;
                let _ = write("memory.memsw.limit_in_bytes", &limit);
                Ok(())
            }
            (Controller::Tasks, _) => write("pids.max", &limit),
            (Controller::Cpu, _) => Ok(()),
        }
    }

    /// Moves a process into the group.
    pub(crate) fn take_in(&self, pid: u32) -> std::io::Result<()> {
        for (_, group) in &self.groups {
            std::fs::write(group.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// How much memory there was when the kernel ended somebody for it; None as long as it has not.
    pub(crate) fn out_of_memory(&self) -> Option<u64> {
        let group = self.group(Controller::Memory)?;
        let read = |name: &str| std::fs::read_to_string(group.join(name)).unwrap_or_default();
        let (events, peak) = match self.unified {
            true => (read("memory.events"), read("memory.peak")),
            false => (
                read("memory.oom_control"),
                read("memory.max_usage_in_bytes"),
            ),
        };
        let killed = line(&events, "oom_kill").unwrap_or(0);
        (killed > 0).then(|| peak.trim().parse().unwrap_or(0))
    }

    /// Processor time so far, of the living and the dead.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let group = self.group(Controller::Cpu)?;
        if self.unified {
            let stat = std::fs::read_to_string(group.join("cpu.stat")).ok()?;
            return line(&stat, "usage_usec").map(Duration::from_micros);
        }
        let usage = std::fs::read_to_string(group.join("cpuacct.usage")).ok()?;
        usage.trim().parse().ok().map(Duration::from_nanos)
    }
}

/// The number behind a name at the beginning of a line.
fn line(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find_map(|(key, value)| (key == name).then(|| value.trim().parse().ok())?)
}

impl Cgroup {
    /// Removes the group, in which nobody lives any more.
    pub(crate) fn remove(&self) {
        for (_, group) in &self.groups {
            // A task that was just reaped can still be counted.
            for _ in 0..PATIENCE.0 {
                match std::fs::remove_dir(group) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(PATIENCE.1);
                    }
                    _ => break,
                }
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_groups_can_be_made() {
        let mounts = "\
26 25 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
27 26 0:23 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
28 26 0:24 /box /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
29 26 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
30 26 0:26 /elsewhere /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        let groups = "4:memory:/agent\n3:cpu,cpuacct:/box/agent\n2:pids:/\n0::/user.slice/app";
        let found = hierarchies(mounts, groups);
        let own: Vec<_> = found.iter().map(|h| h.own.to_str().unwrap()).collect();
        assert_eq!(
            own,
            [
                "/sys/fs/cgroup/memory/agent",
                "/sys/fs/cgroup/cpu,cpuacct/agent",
                "/sys/fs/cgroup/unified/user.slice/app",
            ]
        );
        assert_eq!(parents(&found[0]).len(), 1);
        assert_eq!(
            parents(&found[2])[1],
            Path::new("/sys/fs/cgroup/unified/user.slice")
        );
    }

    #[test]
    fn whose_a_group_is() {
        assert_eq!(supervisor("invigil-12-3456-0"), Some((12, 3456)));
        assert_eq!(supervisor("invigil-probe-12"), None);
        assert_eq!(supervisor("other-12-3456-0"), None);
    }
}
