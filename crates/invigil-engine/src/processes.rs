//! Which processes belong to a run, as the kernel's facts tell; asked by whoever must know whose word it hears.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use invigil_schema::{Event, ProcessRef, ResourceSample};

/// The processes of a run.
#[derive(Default)]
pub(crate) struct Processes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By pid, the dead ones too, until the pid is used again.
    known: BTreeMap<u32, ProcessRef>,
    alive: BTreeSet<u32>,
}

impl Processes {
    /// Takes over what a fact says.
    pub(crate) fn take(&self, event: &Event) {
        match event {
            Event::ProcessForked(forked) => {
                let mut state = self.state();
                state.known.insert(forked.process.pid, forked.process);
                state.alive.insert(forked.process.pid);
            }
            Event::ProcessExited(exited) => {
                self.state().alive.remove(&exited.process.pid);
            }
            _ => {}
        }
    }

    /// The process of the run that has this pid, or had it when it died.
    pub(crate) fn find(&self, pid: u32) -> Option<ProcessRef> {
        let (known, alive) = {
            let state = self.state();
            (*state.known.get(&pid)?, state.alive.contains(&pid))
        };
        // A dead process's pid may be somebody else's by now.
        let somebody_else = !alive && start_of(pid).is_some_and(|start| start != known.start);
        (!somebody_else).then_some(known)
    }

    /// What all living processes use now.
    pub(crate) fn sample(&self) -> ResourceSample {
        let alive: Vec<u32> = self.state().alive.iter().copied().collect();
        let mut total = ResourceSample::default();
        for pid in alive {
            add(&mut total, pid);
        }
        total
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fields of `/proc/PID/stat` from the third on: the second holds a name that may contain anything.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let behind = text.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(text.get(behind + 2..)?).ok()?;
    let number = |field: &str| field.parse().unwrap_or(0);
    Some(fields.split_ascii_whitespace().map(number).collect())
}

fn start_of(pid: u32) -> Option<u64> {
    stat(pid)?.get(19).copied()
}

/// Adds what one process uses. One that has just died uses nothing.
fn add(total: &mut ResourceSample, pid: u32) {
    /// What the kernel reports processor time in, on every architecture.
    const TICK_US: u64 = 10_000;
    let Some(fields) = stat(pid) else {
        return;
    };
    let field = |at: usize| fields.get(at).copied().unwrap_or(0);
    total.processes += 1;
    total.threads += field(17);
    total.cpu_us += (field(11) + field(12)) * TICK_US;
    total.rss_kib += field(21) * (rustix::param::page_size() as u64 / 1024);
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let value = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    total.read_bytes += value("rchar:");
    total.written_bytes += value("wchar:");
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_schema::{ProcessExited, ProcessForked};

    fn forked(pid: u32, start: u64) -> Event {
        ProcessForked {
            process: ProcessRef { pid, start },
            parent: None,
        }
        .into()
    }

    #[test]
    fn knows_its_own_and_no_one_else() {
        let (processes, me) = (Processes::default(), std::process::id());
        let start = start_of(me).unwrap();
        assert_eq!(processes.find(me), None);
        processes.take(&forked(me, start));
        assert_eq!(processes.find(me), Some(ProcessRef { pid: me, start }));
        let exited = |start| ProcessExited {
            process: ProcessRef { pid: me, start },
            exit_code: Some(0),
            signal: None,
            user_us: 0,
            system_us: 0,
            max_rss_kib: 0,
        };
        processes.take(&exited(start).into());
        assert!(processes.find(me).is_some(), "its last words still count");
        processes.take(&forked(me, start - 1));
        processes.take(&exited(start - 1).into());
        assert_eq!(
            processes.find(me),
            None,
            "the pid is somebody else's by now"
        );
    }

    #[test]
    fn a_sample_has_numbers_in_it() {
        let processes = Processes::default();
        assert_eq!(processes.sample(), ResourceSample::default());
        processes.take(&forked(std::process::id(), 0));
        let sample = processes.sample();
        assert_eq!(sample.processes, 1);
        assert!(
            sample.threads >= 1 && sample.rss_kib > 100 && sample.read_bytes > 0,
            "{sample:?}"
        );
    }
}
