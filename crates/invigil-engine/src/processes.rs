//! Which processes belong to a run, as the kernel's facts tell; asked by whoever must know whose word it hears.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use invigil_schema::{Address, CallResult, Event, Hook, NetOp, NetOpKind, OsText, ProcessRef};

/// How long a connection may be there before the fact of it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The processes of a run.
#[derive(Default)]
pub(crate) struct Processes {
    state: Mutex<State>,
    /// The socket that they report to.
    channel: OnceLock<OsText>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    /// The observer connects on their behalf, so that every peer is us.
    through_us: bool,
    /// Who has connected to the channel, as the facts tell, and was not asked for yet.
    callers: VecDeque<ProcessRef>,
    /// By pid, the dead ones too, until the pid is used again.
    known: BTreeMap<u32, ProcessRef>,
    alive: BTreeSet<u32>,
}

impl Processes {
    /// Says where they report to. Where the observer connects on their behalf, the facts tell who it was.
    pub(crate) fn report_to(&self, channel: PathBuf) {
        // Facts have real paths.
        let real = channel.canonicalize().unwrap_or(channel);
        let _ = self.channel.set(real.into_os_string().into());
    }

    /// Who has connected to the channel through the observer, and has not been asked for yet: the oldest first. The
    /// fact of it may be a moment behind the connection.
    fn next_caller(&self) -> Option<ProcessRef> {
        let state = self.state();
        let waited = self
            .called
            .wait_timeout_while(state, PATIENCE, |state| state.callers.is_empty());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.callers.pop_front()
    }

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
            Event::ObserverStarted(started) => {
                let exact = |hook: &Hook| hook.name == "exact_network" && hook.attached;
                self.state().through_us = started.hooks.iter().any(exact);
            }
            Event::NetOp(NetOp {
                process,
                op: NetOpKind::Connect,
                address: Address::Unix { path },
                result: CallResult::Ok,
                ..
            }) if self.channel.get() == Some(path) => {
                let mut state = self.state();
                if state.through_us {
                    state.callers.push_back(*process);
                    self.called.notify_one();
                }
            }
            _ => {}
        }
    }

    /// The process of the run that has this pid, or had it when it died. If it is our own, the one for which we have
    /// connected.
    pub(crate) fn find(&self, pid: u32) -> Option<ProcessRef> {
        if pid == std::process::id() && self.state().through_us {
            return self.next_caller();
        }
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
    use invigil_schema::{ObserverStarted, ProcessExited, ProcessForked, Tier};

    fn forked(pid: u32, start: u64) -> Event {
        ProcessForked {
            process: ProcessRef { pid, start },
            parent: None,
        }
        .into()
    }

    #[test]
    fn whoever_connects_through_us_is_known_by_the_fact() {
        let (processes, me) = (Processes::default(), std::process::id());
        processes.report_to("/run/events".into());
        let started = |exact| {
            let hook = Hook {
                name: "exact_network".into(),
                attached: exact,
                why_not: None,
            };
            Event::from(ObserverStarted {
                tier: Tier::Notify,
                reads: false,
                hooks: vec![hook],
                landlock_abi: None,
                kernel: String::new(),
                privileged: false,
                floor: None,
                limits: Vec::new(),
            })
        };
        let connected = |pid, path: &str, result| {
            Event::from(NetOp {
                process: ProcessRef { pid, start: 1 },
                op: NetOpKind::Connect,
                address: Address::Unix { path: path.into() },
                host: None,
                instead: None,
                result,
            })
        };
        processes.take(&started(false));
        processes.take(&connected(6, "/run/events", CallResult::Ok));
        assert_eq!(processes.find(me), None);
        processes.take(&started(true));
        processes.take(&connected(7, "/run/other", CallResult::Ok));
        let refused = CallResult::Failed(invigil_schema::Errno(111));
        processes.take(&connected(8, "/run/events", refused));
        processes.take(&connected(9, "/run/events", CallResult::Ok));
        let found = || processes.find(me).map(|process| process.pid);
        assert_eq!(found(), Some(9));
        std::thread::scope(|scope| {
            let found = scope.spawn(found);
            processes.take(&connected(10, "/run/events", CallResult::Ok));
            assert_eq!(found.join().unwrap(), Some(10), "the fact may come later");
        });
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
