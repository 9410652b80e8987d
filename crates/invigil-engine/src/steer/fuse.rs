//! Noticing that a run goes round in circles: the same command fails again and again, or nothing changes for long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use invigil_schema::{
    Circle, Event, FileOp, FileOpKind, FuseAction, OpenFlag, OsText, ProcessRef, RepeatFuse,
};

/// More commands and processes than this are not remembered at once.
const MAX_KNOWN: usize = 4096;

/// When somebody is told that a run goes round in circles, and when it is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fuse {
    /// After this many failures of one command in a row, somebody is told.
    pub alert_failures: Option<u64>,
    /// After this many the run is ended.
    pub stop_failures: Option<u64>,
    /// After this time without a change of a file, somebody is told.
    pub alert_idle: Option<Duration>,
    /// After this time the run is ended.
    pub stop_idle: Option<Duration>,
}

impl Default for Fuse {
    /// Told of five failures in a row; never ended.
    fn default() -> Self {
        Fuse {
            alert_failures: Some(5),
            stop_failures: None,
            alert_idle: None,
            stop_idle: None,
        }
    }
}

/// What was loaded into a process: where it was, and its words.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Command {
    cwd: OsText,
    argv: Vec<OsText>,
}

/// Looks at the facts of one run.
#[derive(Debug)]
pub(super) struct Watcher {
    fuse: Fuse,
    loaded: HashMap<ProcessRef, Command>,
    failures: HashMap<Command, u64>,
    changed: Instant,
    /// Somebody was told that nothing changes.
    told: bool,
}

impl Watcher {
    pub(super) fn new(fuse: Fuse) -> Watcher {
        Watcher {
            fuse,
            loaded: HashMap::new(),
            failures: HashMap::new(),
            changed: Instant::now(),
            told: false,
        }
    }

    /// Takes over what a fact says. What is to be told, if it is the last straw.
    pub(super) fn take(&mut self, event: &Event) -> Option<RepeatFuse> {
        match event {
            Event::ProcessExec(exec) => {
                if self.loaded.len() >= MAX_KNOWN {
                    self.loaded.clear();
                }
                let (cwd, argv) = (exec.cwd.clone(), exec.argv.clone());
                self.loaded.insert(exec.process, Command { cwd, argv });
                None
            }
            Event::ProcessExited(exited) => {
                let command = self.loaded.remove(&exited.process)?;
                match exited.exit_code {
                    Some(0) => {
                        self.failures.remove(&command);
                        None
                    }
                    _ => self.failed(command),
                }
            }
            Event::FileOp(op) if op.result.is_ok() && changes(op) => {
                (self.changed, self.told) = (Instant::now(), false);
                None
            }
            _ => None,
        }
    }

    fn failed(&mut self, command: Command) -> Option<RepeatFuse> {
        if self.failures.len() >= MAX_KNOWN {
            self.failures.clear();
        }
        let argv = command.argv.clone();
        let count = self.failures.entry(command).or_default();
        *count += 1;
        let (count, stops_at) = (*count, self.fuse.stop_failures);
        let action = match count {
            count if stops_at == Some(count) => FuseAction::Stop,
            count if self.fuse.alert_failures == Some(count) => FuseAction::Alert,
            _ => return None,
        };
        Some(RepeatFuse {
            circle: Circle::SameFailure,
            action,
            count,
            stops_at,
            command: argv,
        })
    }

    /// The run was paused for this long: it could not change anything.
    pub(super) fn rest(&mut self, time: Duration) {
        self.changed += time;
    }

    /// Looks at the clock.
    pub(super) fn tick(&mut self) -> Option<RepeatFuse> {
        let idle = self.changed.elapsed();
        let past = |limit: Option<Duration>| limit.is_some_and(|limit| idle >= limit);
        let action = match () {
            () if past(self.fuse.stop_idle) => FuseAction::Stop,
            () if past(self.fuse.alert_idle) && !self.told => FuseAction::Alert,
            () => return None,
        };
        self.told = true;
        Some(RepeatFuse {
            circle: Circle::NoChange,
            action,
            count: idle.as_secs(),
            stops_at: self.fuse.stop_idle.map(|limit| limit.as_secs()),
            command: Vec::new(),
        })
    }
}

/// Whether a file that stays is another one now, or may soon be.
fn changes(op: &FileOp) -> bool {
    let no_file = [&b"/dev/"[..], b"/proc/", b"/sys/"];
    let stays = !no_file.iter().any(|at| op.path.as_bytes().starts_with(at));
    stays && (op.op != FileOpKind::Open || op.flags.contains(&OpenFlag::Write))
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_schema::{ProcessExec, ProcessExited};

    fn run(watcher: &mut Watcher, pid: u32, word: &str, code: i32) -> Option<RepeatFuse> {
        let process = ProcessRef { pid, start: 1 };
        let exec = ProcessExec {
            process,
            parent: None,
            executable: "/bin/x".into(),
            requested: None,
            argv: vec![word.into()],
            argv_cut_bytes: 0,
            cwd: "/".into(),
            sha256: None,
        };
        assert_eq!(watcher.take(&exec.into()), None);
        let exited = ProcessExited {
            process,
            exit_code: Some(code),
            signal: None,
            user_us: 0,
            system_us: 0,
            max_rss_kib: 0,
        };
        watcher.take(&exited.into())
    }

    #[test]
    fn failures_in_a_row_are_told_and_then_stopped() {
        let mut watcher = Watcher::new(Fuse {
            alert_failures: Some(2),
            stop_failures: Some(3),
            ..Fuse::default()
        });
        assert_eq!(run(&mut watcher, 1, "a", 1), None);
        assert_eq!(run(&mut watcher, 2, "b", 1), None, "another command");
        assert_eq!(run(&mut watcher, 3, "a", 0), None, "it works again");
        assert_eq!(run(&mut watcher, 4, "a", 1), None);
        let told = run(&mut watcher, 5, "a", 1).unwrap();
        assert_eq!((told.action, told.count), (FuseAction::Alert, 2));
        let told = run(&mut watcher, 6, "a", 1).unwrap();
        assert_eq!((told.action, told.count), (FuseAction::Stop, 3));
        assert_eq!(told.command, ["a".into()]);
    }

    #[test]
    fn no_change_is_told_once_and_paused_time_does_not_count() {
        let mut watcher = Watcher::new(Fuse {
            alert_idle: Some(Duration::from_millis(20)),
            stop_idle: Some(Duration::from_secs(3600)),
            ..Fuse::default()
        });
        std::thread::sleep(Duration::from_millis(30));
        watcher.rest(Duration::from_millis(20));
        assert_eq!(watcher.tick(), None);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(watcher.tick().unwrap().action, FuseAction::Alert);
        assert_eq!(watcher.tick(), None);
    }
}
