//! Which processes belong to a run, as the kernel's facts tell; asked by whoever must know whose word it hears.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use invigil_schema::{Event, ProcessRef};

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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the process that has this pid now was started: field 22 of `/proc/PID/stat`. The second field is a name that may
/// contain anything.
fn start_of(pid: u32) -> Option<u64> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let behind = text.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(text.get(behind + 2..)?).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
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
}
