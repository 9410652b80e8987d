//! What the sandbox itself holds a run to: the outer bound of the policy, limits, and which variables it gets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use invigil_policy::{Action, Bounds, Policy, UnixSocket, Verdict};
use invigil_sandbox::{Confinement, Limits, Network};
use invigil_schema::OsText;

/// What every program reads and no rule is about: the loader, its libraries, itself. What is more than the policy allows
/// the gate refuses all the same.
const NEEDED: [&str; 8] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/proc",
    "/dev",
];
/// Where the dynamic loader is.
const LOADERS: [&str; 6] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
];
/// Devices that are no files.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
    "/proc",
];
/// More ports than this are not named one by one.
const PORTS_MAX: usize = 4096;

/// A policy's bounds, made ready for the sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Bounded {
    pub(crate) bounds: Bounds,
    pub(crate) confinement: Confinement,
    pub(crate) limits: Limits,
}

impl Bounded {
    /// `path` is where commands are looked for, `own` what the run itself needs to read and write.
    pub(crate) fn new(policy: &Policy, path: &[PathBuf], own: &[PathBuf]) -> Bounded {
        let bounds = policy.bounds();
        let execute = bounds.exec_roots.as_ref().map(|exec| {
            let mut roots = exec.roots.clone();
            for name in &exec.names {
                match name.contains(['*', '?', '[', '{']) {
                    true => roots.extend(path.iter().cloned()),
                    false => roots.extend(path.iter().map(|dir| dir.join(name))),
                }
            }
            roots.retain(|root| root.exists());
            roots.extend(there(&LOADERS));
            roots
        });
        let read = bounds.read_roots.clone().map(|mut roots| {
            roots.extend(there(&NEEDED));
            roots.extend(execute.iter().flatten().cloned());
            roots.extend(own.iter().cloned());
            roots
        });
        let write = bounds.write_roots.clone().map(|mut roots| {
            roots.extend(there(&DEVICES));
            roots.extend(own.iter().cloned());
            roots
        });
        let ports = bounds.ports.as_deref().and_then(ports);
        let foreign = UnixSocket::Abstract(b"of-somebody-else");
        let confinement = Confinement {
            read: read.map(fewest),
            write: write.map(fewest),
            execute: execute.map(fewest),
            connect: ports.clone(),
            bind: ports,
            network: match bounds.network_off() {
                true => Network::None,
                false => Network::Unrestricted,
            },
            abstract_sockets: policy.verdict(&Action::Unix(foreign)) != Verdict::Deny,
            audit: false,
        };
        let budget = &bounds.budget;
        let limits = Limits {
            cpu: budget.cpu,
            memory: budget.memory,
            processes: budget
                .processes
                .map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            file_size: budget.file_size,
            data: None,
        };
        Bounded {
            bounds,
            confinement,
            limits,
        }
    }

    /// Takes the variables away that the policy does not let through; their names.
    pub(crate) fn withhold(&self, env: &mut BTreeMap<OsString, OsString>) -> Vec<OsText> {
        let Some(filter) = &self.bounds.env else {
            return Vec::new();
        };
        let withheld = env.extract_if(.., |name, _| !filter.passes(name.as_bytes()));
        withheld.map(|(name, _)| name.into()).collect()
    }
}

fn there(paths: &[&str]) -> impl Iterator<Item = PathBuf> {
    let found = paths.iter().map(PathBuf::from);
    found
        .filter(|path| path.exists())
        .collect::<Vec<_>>()
        .into_iter()
}

/// The same trees with the fewest roots: each once, and none below another. What is not there yet is left as it is.
fn fewest(roots: Vec<PathBuf>) -> Vec<PathBuf> {
    let real = |root: PathBuf| root.canonicalize().unwrap_or(root);
    let mut roots: Vec<PathBuf> = roots.into_iter().map(real).collect();
    // A tree stands in front of what is below it.
    roots.sort_unstable();
    roots.dedup_by(|below, tree| below.starts_with(tree));
    roots
}

/// Single ports; None if there are too many to name.
fn ports(ranges: &[RangeInclusive<u16>]) -> Option<Vec<u16>> {
    let count: usize = ranges.iter().map(|range| range.len()).sum();
    let all = || ranges.iter().cloned().flatten().collect();
    (count <= PORTS_MAX).then(all)
}
