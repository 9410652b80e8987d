//! The processes and threads of a run.

use std::collections::HashMap;

use invigil_schema::{FileOp, NetOp, OsText, ProcessRef};

use crate::api::Exec;
use crate::paths::{Cwd, Held};
use crate::sys::Sys;
use crate::sys::fs::{self, At, cstring};

/// Whether a process may do exactly what we may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// It may.
    Ours,
    /// It has tried to change something about itself; to be looked at before the next call.
    Unchecked,
    /// It may not, or may more: other credentials, root, namespaces, or a sandbox of its own.
    Different,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: ProcessRef,
    pub(crate) parent: Option<ProcessRef>,
    pub(crate) identity: Identity,
    pub(crate) umask: u32,
    pub(crate) threads: u32,
    /// Its working directory; None while a thread of it is changing it.
    pub(crate) cwd: Option<Cwd>,
    /// Itself, held.
    pub(crate) held: Held,
    /// Its next child is in other namespaces.
    pub(crate) child_differs: bool,
    /// It was told that a file of it would have become too long.
    pub(crate) told_of_length: bool,
    /// A signal has stopped it.
    pub(crate) stopped: bool,
}

/// A thread.
#[derive(Debug)]
pub(crate) struct Task {
    /// Its process.
    pub(crate) pid: u32,
    /// It is stopped, or will be, at its first instruction.
    pub(crate) newborn: bool,
    /// A call that the kernel carries out and whose result is awaited.
    pub(crate) pending: Option<Pending>,
    /// The call that it is in was let through, and may be interrupted by signals like any other.
    pub(crate) native: bool,
    /// A call that waits for somebody, followed to its end by stops at its beginning and its end.
    pub(crate) followed: Option<Followed>,
}

/// How far a call is that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// It is to be made again; its number.
    Again(i64),
    /// It has begun.
    Begun,
}

/// A fact whose result is awaited.
#[derive(Debug)]
pub(crate) enum Pending {
    File(FileOp),
    Net(Vec<NetOp>),
    /// Not a fact: the working directory changes.
    Chdir,
    /// Not a fact, unless it is refused: it wants other rights, by a call of this name.
    Rights(ProcessRef, &'static str),
    Exec(Wanted),
}

/// A program that somebody wants to load.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// What was asked for, made absolute.
    pub(crate) asked: OsText,
    /// The file that it led to.
    pub(crate) found: OsText,
    /// What was asked for, letter for letter.
    pub(crate) name: OsText,
    /// The arguments as far as they were read, and whether there are more.
    pub(crate) arguments: (Vec<OsText>, bool),
}

impl Wanted {
    /// As the gate sees it.
    pub(crate) fn request(&self) -> Exec<'_> {
        Exec {
            loaded: false,
            program: &self.found,
            asked: &self.asked,
            name: &self.name,
            argv: &self.arguments.0,
            cut: self.arguments.1,
            sha256: None,
        }
    }
}

/// Everything alive.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) tasks: HashMap<u32, Task>,
    pub(crate) processes: HashMap<u32, Process>,
}

impl Table {
    /// Adds a thread of a known process.
    pub(crate) fn add_task(&mut self, tid: u32, pid: u32, newborn: bool) {
        let task = Task {
            pid,
            newborn,
            pending: None,
            native: false,
            followed: None,
        };
        self.tasks.insert(tid, task);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads += 1;
        }
    }

    /// Adds a process that `parent` has made.
    pub(crate) fn add_process(&mut self, pid: u32, parent: Option<u32>, umask: u32) -> ProcessRef {
        let id = ProcessRef {
            pid,
            start: start_time(pid).unwrap_or_default(),
        };
        let mut process = Process {
            id,
            parent: None,
            identity: Identity::Ours,
            umask,
            threads: 0,
            cwd: Some(Cwd::default()),
            held: Held::default(),
            child_differs: false,
            told_of_length: false,
            stopped: false,
        };
        if let Some(parent) = parent.and_then(|p| self.processes.get_mut(&p)) {
            process.parent = Some(parent.id);
            process.umask = parent.umask;
            if let Some(cwd) = &parent.cwd {
                process.cwd = Some(Cwd::clone(cwd));
            }
            process.identity = parent.identity;
            if std::mem::take(&mut parent.child_differs) && process.identity == Identity::Ours {
                process.identity = Identity::Unchecked;
            }
        }
        self.processes.insert(pid, process);
        id
    }

    /// Removes a thread, and says which process it belonged to.
    pub(crate) fn remove_task(&mut self, tid: u32) -> Option<Task> {
        let task = self.tasks.remove(&tid)?;
        if let Some(process) = self.processes.get_mut(&task.pid) {
            process.threads = process.threads.saturating_sub(1);
        }
        Some(task)
    }

    /// After a program was loaded only the leader is left.
    pub(crate) fn keep_leader(&mut self, pid: u32) {
        self.tasks
            .retain(|tid, task| task.pid != pid || *tid == pid);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads = 1;
        }
    }
}

/// Field 22 of `/proc/PID/stat`. The name in front of it may hold anything, brackets and spaces included.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_dense(&cstring(format!("/proc/{pid}/stat")).ok()?).ok()?;
    let after_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let field = stat[after_name..].split(|&b| b == b' ').nth(20)?;
    str::from_utf8(field).ok()?.parse().ok()
}

/// A line of `/proc/TID/status`, without its name.
pub(crate) fn status_line<'a>(status: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let line = status
        .split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(name.as_bytes()))?;
    Some(line.strip_prefix(b":").unwrap_or(line).trim_ascii())
}

/// What decides what a thread may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    credentials: Vec<Vec<u8>>,
    places: Vec<Vec<u8>>,
}

impl Rights {
    /// Looks at a thread.
    pub(crate) fn of(tid: &str) -> Sys<Rights> {
        Rights::with(&status_of(tid)?, tid)
    }

    /// The same for one whose status is known.
    pub(crate) fn with(status: &[u8], tid: &str) -> Sys<Rights> {
        let lines = ["Uid", "Gid", "Groups", "CapEff", "CapPrm"];
        let credentials = lines
            .iter()
            .filter_map(|name| status_line(status, name))
            .map(<[u8]>::to_vec)
            .collect();
        let mut places = Vec::new();
        for place in ["ns/mnt", "ns/user", "root"] {
            places.push(fs::readlink(
                At::Cwd,
                &cstring(format!("/proc/{tid}/{place}"))?,
            )?);
        }
        Ok(Rights {
            credentials,
            places,
        })
    }
}

/// The umask of a process whose status this is.
pub(crate) fn umask_of(status: &[u8]) -> u32 {
    let mask = status_line(status, "Umask").and_then(|text| str::from_utf8(text).ok());
    mask.and_then(|text| u32::from_str_radix(text, 8).ok())
        .unwrap_or(0o022)
}

/// `/proc/TID/status`. The kernel takes a while to write it.
pub(crate) fn status_of(tid: &str) -> Sys<Vec<u8>> {
    fs::read_dense(&cstring(format!("/proc/{tid}/status"))?)
}
