//! What was seen, as far as a claim could be about it: commands and their ends, changes of files, traffic.
//!
//! It remembers different things, not events: of what repeats, the first and the newest.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use invigil_schema::{
    Address, CheckCompleted, CheckStarted, Event, FileOp, FileOpKind, NetOp, NetOpKind, OsText,
    ProcessExec, ProcessExited, ProcessRef, Stage,
};

use super::suites;
use crate::name::endpoint;
use crate::outcome::{Access, Outcome, accesses};
use crate::summary::is_plain;

/// Runs of one command that are remembered: the newest.
const RUNS_MAX: usize = 64;
/// Changes of one file that are remembered: the first few, and the newest.
const CHANGES_MAX: usize = 16;
const FIRST_CHANGES: usize = 4;
/// Different commands and different files. Past these, absence says nothing any more.
const COMMANDS_MAX: usize = 50_000;
const FILES_MAX: usize = 200_000;
const CONTACTS_MAX: usize = 64;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) seq: u64,
    /// Absent if a signal ended it.
    pub(super) code: Option<i32>,
}

/// One run of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) seq: u64,
    pub(super) ended: Option<Ended>,
    /// It runs tests, and nothing that runs tests has started it.
    pub(super) is_suite: bool,
    /// Invigil itself has run it, on what the agent left.
    pub(super) is_check: bool,
}

/// A command line in one directory, and when it ran.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) argv: Vec<String>,
    pub(super) runs: VecDeque<Run>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Created,
    Written,
    MovedHere,
    MovedAway,
    Deleted,
    Attributes,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) seq: u64,
    pub(super) act: Act,
    /// Whether it is known to have succeeded.
    pub(super) sure: bool,
}

/// A connection, or a message to an address.
#[derive(Debug, Clone)]
pub(super) struct Contact {
    pub(super) seq: u64,
    pub(super) endpoint: String,
    pub(super) kind: ContactKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContactKind {
    /// Beyond this machine, and something was sent.
    Outside,
    /// Beyond this machine, and it failed.
    Failed,
}

#[derive(Debug, Clone, Default)]
struct Process {
    /// Runs, each as its command and its record.
    runs: Vec<(usize, u64)>,
    in_suite: bool,
}

/// Everything that was seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) cwd: Option<String>,
    pub(super) home: Option<String>,
    pub(super) commands: Vec<Command>,
    places: BTreeMap<(Vec<u8>, OsText), usize>,
    processes: BTreeMap<ProcessRef, Process>,
    pub(super) files: BTreeMap<OsText, Vec<Change>>,
    pub(super) contacts: Vec<Contact>,
    /// Checks that were begun: which number, and when.
    check: Option<(usize, u64)>,
    pub(super) commands_cut: bool,
    pub(super) files_cut: bool,
}

impl Seen {
    /// Takes in an event for which the right one vouches.
    pub(super) fn take(&mut self, seq: u64, event: &Event) {
        match event {
            Event::RunStarted(started) => {
                self.cwd = Some(started.cwd.to_string_lossy().into_owned());
            }
            Event::PolicyLoaded(loaded) => {
                self.home = Some(loaded.places.home.to_string_lossy().into_owned());
            }
            Event::ProcessForked(forked) => {
                let maker = forked.parent.and_then(|parent| self.processes.get(&parent));
                let in_suite = maker.is_some_and(|maker| maker.in_suite);
                self.processes.entry(forked.process).or_default().in_suite |= in_suite;
            }
            Event::ProcessExec(exec) => self.exec(seq, exec),
            Event::ProcessExited(exited) => self.exited(seq, exited),
            Event::FileOp(op) => self.file(seq, op),
            Event::NetOp(op) => self.net(seq, op),
            Event::CheckStarted(started) => self.check_started(seq, started),
            Event::CheckCompleted(completed) => self.check_completed(seq, completed),
            _ => {}
        }
    }

    fn exec(&mut self, seq: u64, exec: &ProcessExec) {
        let argv: Vec<Cow<'_, str>> = exec.argv.iter().map(OsText::to_string_lossy).collect();
        let tests = suites::is_test(&argv);
        let in_suite = self
            .processes
            .get(&exec.process)
            .is_some_and(|process| process.in_suite);
        let run = Run {
            seq,
            ended: None,
            is_suite: tests && !in_suite,
            is_check: false,
        };
        let mut key = Vec::new();
        for word in &exec.argv {
            key.extend_from_slice(word.as_bytes());
            key.push(0);
        }
        let argv = || argv.iter().map(|word| word.clone().into_owned()).collect();
        let place = self.command((key, exec.cwd.clone()), argv, run);
        let process = self.processes.entry(exec.process).or_default();
        process.in_suite |= tests;
        process.runs.extend(place.map(|place| (place, seq)));
    }

    fn command(
        &mut self,
        key: (Vec<u8>, OsText),
        argv: impl FnOnce() -> Vec<String>,
        run: Run,
    ) -> Option<usize> {
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.commands.len() >= COMMANDS_MAX => {
                self.commands_cut = true;
                return None;
            }
            None => {
                self.places.insert(key, self.commands.len());
                self.commands.push(Command {
                    argv: argv(),
                    runs: VecDeque::new(),
                });
                self.commands.len() - 1
            }
        };
        let runs = &mut self.commands[place].runs;
        if runs.len() >= RUNS_MAX {
            runs.pop_front();
        }
        runs.push_back(run);
        Some(place)
    }

    fn exited(&mut self, seq: u64, exited: &ProcessExited) {
        let code = exited.exit_code;
        let process = self.processes.remove(&exited.process).unwrap_or_default();
        for (place, began) in process.runs {
            self.end(place, began, Ended { seq, code });
        }
    }

    fn end(&mut self, place: usize, began: u64, ended: Ended) {
        let mut runs = self.commands[place].runs.iter_mut().rev();
        if let Some(run) = runs.find(|run| run.seq == began) {
            run.ended = Some(ended);
        }
    }

    /// A check of a contract is a command like any other, but Invigil itself has run it.
    fn check_started(&mut self, seq: u64, started: &CheckStarted) {
        if started.stage != Stage::Verify {
            return;
        }
        let command = &started.check.command;
        let run = Run {
            seq,
            ended: None,
            is_suite: suites::is_command(command),
            is_check: true,
        };
        let key = (command.clone().into_bytes(), OsText::default());
        let argv = || command.split_whitespace().map(str::to_owned).collect();
        self.check = self.command(key, argv, run).map(|place| (place, seq));
    }

    fn check_completed(&mut self, seq: u64, completed: &CheckCompleted) {
        let Some((place, began)) = self.check.take() else {
            return;
        };
        // What counts is whether it was as expected.
        let code = match completed.result.passed {
            true => Some(0),
            false => completed
                .result
                .exit_code
                .filter(|code| *code != 0)
                .or(Some(1)),
        };
        self.end(place, began, Ended { seq, code });
    }

    fn file(&mut self, seq: u64, op: &FileOp) {
        let outcome = Outcome::from(op.result);
        if outcome == Outcome::Failed {
            return;
        }
        let sure = outcome == Outcome::Succeeded;
        let existed = op.op == FileOpKind::Open;
        for (path, access) in accesses(op) {
            let act = match access {
                // It was there, whatever was asked for.
                Access::Create if existed => continue,
                Access::Create => Act::Created,
                Access::Write => Act::Written,
                Access::Delete => Act::Deleted,
                Access::RenameFrom => Act::MovedAway,
                Access::RenameTo => Act::MovedHere,
                Access::Attributes => Act::Attributes,
                Access::Read | Access::Handle | Access::Link | Access::Mount | Access::Chroot => {
                    continue;
                }
            };
            self.change(path, Change { seq, act, sure });
        }
    }

    fn change(&mut self, path: &OsText, change: Change) {
        if !is_plain(path) {
            return;
        }
        if let Some(changes) = self.files.get_mut(path) {
            // Made and written in one call is one change.
            if changes.last().is_some_and(|last| last.seq == change.seq) {
                return;
            }
            if changes.len() >= CHANGES_MAX {
                changes.remove(FIRST_CHANGES);
            }
            changes.push(change);
        } else if self.files.len() < FILES_MAX {
            self.files.insert(path.clone(), vec![change]);
        } else {
            self.files_cut = true;
        }
    }

    fn net(&mut self, seq: u64, op: &NetOp) {
        if !matches!(op.op, NetOpKind::Connect | NetOpKind::Send) {
            return;
        }
        let (ip, port): (std::net::IpAddr, u16) = match &op.address {
            Address::Inet { ip, port } => ((*ip).into(), *port),
            Address::Inet6 { ip, port, .. } => (std::net::IpAddr::V6(*ip).to_canonical(), *port),
            _ => return,
        };
        // Nothing is sent to no port. Whoever asks a resolver of this machine for a name lets it ask others.
        let inside = (ip.is_loopback() || ip.is_unspecified()) && port != 53;
        if port == 0 || inside || self.contacts.len() >= CONTACTS_MAX {
            return;
        }
        let address = endpoint(&op.address).unwrap_or_default();
        let address = address.to_string_lossy();
        let endpoint = match &op.host {
            Some(host) => format!("{host} ({address})"),
            None => address.into_owned(),
        };
        let kind = match Outcome::from(op.result) {
            Outcome::Failed => ContactKind::Failed,
            Outcome::Unknown | Outcome::Succeeded => ContactKind::Outside,
        };
        self.contacts.push(Contact {
            seq,
            endpoint,
            kind,
        });
    }
}
