//! What was seen, as far as a claim could be about it: commands and their ends, changes of files, traffic.
//!
//! It remembers different things, not events: of what repeats, the first and the newest. Claims are judged when they are
//! made, so that what was before them is still there.

use std::collections::{BTreeMap, VecDeque};

use invigil_schema::{
    Address, CallResult, CheckCompleted, CheckStarted, Event, FileOp, FileOpKind, NetOp, NetOpKind,
    OsText, ProcessExec, ProcessExited, ProcessRef, Stage,
};

use super::names::{Names, above};
use super::places;
use super::program::Program;
use super::suites::{self, Suite};
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
/// Contacts of each kind.
const CONTACTS_MAX: usize = 64;
const CHECKS_MAX: usize = 1024;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) seq: u64,
    /// Absent if a signal ended it.
    pub(super) code: Option<i32>,
}

/// A run of one command: which one, and the record of its beginning.
type RunOf = (usize, u64);

/// One run of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) seq: u64,
    pub(super) ended: Option<Ended>,
    pub(super) tests: Option<Tests>,
}

/// A run of tests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tests {
    pub(super) suite: Suite,
    /// What has started it, if that runs tests, too: the nearest, and the run of the outermost.
    pub(super) within: Option<Within>,
    /// The run itself has made the program.
    pub(super) homemade: bool,
    /// The process has become another program, whose end says nothing of tests.
    pub(super) replaced: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Within {
    pub(super) nearest: Suite,
    pub(super) outermost: Option<RunOf>,
}

/// A command line in one directory, and when it ran.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) program: Program,
    pub(super) cwd: OsText,
    pub(super) runs: VecDeque<Run>,
}

impl Command {
    /// The newest run that runs tests.
    pub(super) fn newest_tests(&self) -> Option<(Run, Tests)> {
        let mut runs = self.runs.iter().rev();
        runs.find_map(|run| Some((*run, run.tests?)))
    }
}

/// A check of the contract that runs tests: Invigil itself has run it, on what the agent left.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) seq: u64,
    name: String,
    pub(super) command: String,
    /// The newest change of the project by then.
    pub(super) work: u64,
    /// The record of its end, and whether it was as expected.
    pub(super) ended: Option<(u64, bool)>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Created,
    /// Made as a symbolic link: what is done below it is done elsewhere.
    Pointed,
    Written,
    MovedHere,
    MovedAway,
    Deleted,
    Attributes,
    /// Something else is in its place, for some.
    Covered,
}

impl Act {
    pub(super) fn is_gone(self) -> bool {
        matches!(self, Act::Deleted | Act::MovedAway)
    }

    pub(super) fn is_made(self) -> bool {
        matches!(self, Act::Created | Act::Pointed | Act::MovedHere)
    }

    /// Whether what is below such a directory is not what it was, or is somewhere else.
    pub(super) fn turns_what_is_below(self) -> bool {
        matches!(
            self,
            Act::Pointed | Act::MovedHere | Act::MovedAway | Act::Covered
        )
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) seq: u64,
    pub(super) act: Act,
    /// Whether it is known to have succeeded.
    pub(super) sure: bool,
}

/// A connection, a message to an address, or an address at which others can connect.
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
    /// Whether anything left the machine is not known.
    Unsure,
    /// Others could connect.
    Open,
}

#[derive(Debug, Clone, Default)]
struct Process {
    runs: Vec<RunOf>,
    within: Option<Within>,
}

/// Everything that was seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Where the command ran, as it was said and as it is without links.
    pub(super) cwd: Option<String>,
    pub(super) real_cwd: Option<String>,
    pub(super) home: Option<String>,
    pub(super) commands: Vec<Command>,
    places: BTreeMap<(Vec<u8>, OsText), usize>,
    processes: BTreeMap<ProcessRef, Process>,
    pub(super) files: BTreeMap<OsText, Vec<Change>>,
    names: Names,
    /// The newest change of the project.
    pub(super) work: Option<(u64, String)>,
    /// When files were last turned back to a checkpoint.
    pub(super) turned_back: Option<u64>,
    pub(super) contacts: Vec<Contact>,
    pub(super) checks: Vec<Check>,
    pub(super) commands_cut: bool,
    files_cut: bool,
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
                let within = maker.and_then(|maker| maker.within);
                let process = self.processes.entry(forked.process).or_default();
                process.within = process.within.or(within);
            }
            Event::ProcessExec(exec) => self.exec(seq, exec),
            Event::ProcessExited(exited) => self.exited(seq, exited),
            Event::FileOp(op) => self.file(seq, op),
            Event::Rollbacked(_) => {
                self.turned_back = Some(seq);
                self.work = Some((seq, "what was turned back to a checkpoint".to_owned()));
            }
            Event::NetOp(op) => self.net(seq, op),
            Event::CheckStarted(started) => self.check_started(seq, started),
            Event::CheckCompleted(completed) => self.check_completed(seq, completed),
            _ => {}
        }
    }

    /// Whether there was more than is remembered of files.
    pub(super) fn files_cut(&self) -> bool {
        self.files_cut || self.names.cut
    }

    /// The number of the newest change of the project.
    pub(super) fn worked(&self) -> u64 {
        self.work.as_ref().map_or(0, |(seq, _)| *seq)
    }

    /// Where the command ran, without links.
    pub(super) fn workspace(&self) -> Option<&str> {
        self.real_cwd.as_deref().or(self.cwd.as_deref())
    }

    fn exec(&mut self, seq: u64, exec: &ProcessExec) {
        let text = |text: &OsText| text.to_string_lossy().into_owned();
        if self.real_cwd.is_none() && exec.cwd.as_bytes().starts_with(b"/") {
            self.real_cwd = Some(text(&exec.cwd));
        }
        // A link that the run has made says what the run wants it to say.
        let requested = exec.requested.as_ref();
        let requested = requested.filter(|path| !self.files.contains_key(*path));
        let program = Program {
            executable: text(&exec.executable),
            requested: requested.map(text),
            argv: exec.argv.iter().map(text).collect(),
        };
        let process = self.processes.get(&exec.process);
        let within = process.and_then(|process| process.within);
        let tests = suites::suite(&program).map(|(suite, reading)| Tests {
            suite,
            within,
            homemade: self.is_homemade(suite, reading.path, &exec.cwd),
            replaced: false,
        });
        let run = Run {
            seq,
            ended: None,
            tests,
        };
        let place = self.command(exec, program, run);
        let process = self.processes.entry(exec.process).or_default();
        let before = process.runs.clone();
        process.runs.extend(place.map(|place| (place, seq)));
        if let Some(tests) = tests {
            let own = place.map(|place| (place, seq));
            let outermost = within.map_or(own, |within| within.outermost);
            process.within = Some(Within {
                nearest: tests.suite,
                outermost,
            });
        }
        self.become_other(&before, tests.is_none());
    }

    /// A process that ran tests is something else now. For a script that is a usual way to end, and for a runner if what
    /// it becomes runs tests.
    fn become_other(&mut self, runs: &[RunOf], replaced: bool) {
        for &(place, began) in runs {
            if let Some(run) = self.run(place, began)
                && let Some(tests) = &mut run.tests
            {
                tests.replaced = replaced && tests.suite == Suite::Runner;
            }
        }
    }

    /// Whether the run has made, or changed, a program. Scripts of the project are its own business.
    fn is_homemade(&self, suite: Suite, path: &str, cwd: &OsText) -> bool {
        let path = match path.starts_with('/') {
            true => places::plain(path),
            false => places::plain(&format!("{}/{path}", cwd.to_string_lossy())),
        };
        let workspace = self.workspace().unwrap_or_default();
        let own = suite == Suite::Starter && places::inside(&path, workspace).is_some();
        let changes = self.files.get(&OsText::from(path.as_str()));
        let mut changes = changes.into_iter().flatten();
        !own && changes.any(|change| change.act == Act::Written || change.act.is_made())
    }

    fn command(&mut self, exec: &ProcessExec, program: Program, run: Run) -> Option<usize> {
        let mut key = exec.executable.as_bytes().to_vec();
        let words = exec.argv.iter().map(OsText::as_bytes);
        let requested = program.requested.as_deref().unwrap_or_default();
        for word in [requested.as_bytes()].into_iter().chain(words) {
            key.push(0);
            key.extend_from_slice(word);
        }
        let key = (key, exec.cwd.clone());
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.commands.len() >= COMMANDS_MAX => {
                self.commands_cut = true;
                return None;
            }
            None => {
                self.places.insert(key, self.commands.len());
                self.commands.push(Command {
                    program,
                    cwd: exec.cwd.clone(),
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

    fn run(&mut self, place: usize, began: u64) -> Option<&mut Run> {
        let mut runs = self.commands[place].runs.iter_mut().rev();
        runs.find(|run| run.seq == began)
    }

    fn exited(&mut self, seq: u64, exited: &ProcessExited) {
        let code = exited.exit_code;
        let process = self.processes.remove(&exited.process).unwrap_or_default();
        for (place, began) in process.runs {
            if let Some(run) = self.run(place, began) {
                run.ended = Some(Ended { seq, code });
            }
        }
    }

    fn check_started(&mut self, seq: u64, started: &CheckStarted) {
        let command = &started.check.command;
        let counts = started.stage == Stage::Verify && suites::is_command(command);
        if counts && self.checks.len() < CHECKS_MAX {
            self.checks.push(Check {
                seq,
                name: started.check.name.clone(),
                command: command.clone(),
                work: self.worked(),
                ended: None,
            });
        }
    }

    fn check_completed(&mut self, seq: u64, completed: &CheckCompleted) {
        let result = &completed.result;
        let open = |check: &&mut Check| check.ended.is_none() && check.name == result.name;
        if completed.stage == Stage::Verify
            && let Some(check) = self.checks.last_mut().filter(open)
        {
            check.ended = Some((seq, result.passed));
        }
    }

    fn file(&mut self, seq: u64, op: &FileOp) {
        let outcome = Outcome::from(op.result);
        if outcome == Outcome::Failed {
            return;
        }
        let sure = outcome == Outcome::Succeeded;
        let existed = op.op == FileOpKind::Open;
        for (path, access) in accesses(op) {
            let (act, sure) = match access {
                // It was there, whatever was asked for.
                Access::Create if existed => continue,
                Access::Create if op.op == FileOpKind::Symlink => (Act::Pointed, sure),
                Access::Create => (Act::Created, sure),
                Access::Write => (Act::Written, sure),
                Access::Delete => (Act::Deleted, sure),
                Access::RenameFrom => (Act::MovedAway, sure),
                Access::RenameTo => (Act::MovedHere, sure),
                Access::Attributes => (Act::Attributes, sure),
                Access::Mount => (Act::Covered, false),
                Access::Read | Access::Handle | Access::Link | Access::Chroot => continue,
            };
            self.change(path, Change { seq, act, sure });
        }
        self.name(op);
    }

    /// What is called otherwise from here on.
    fn name(&mut self, op: &FileOp) {
        match (op.op, &op.to) {
            (FileOpKind::Link, Some(to)) => self.names.link(&op.path, to),
            (FileOpKind::Rename, Some(to)) => {
                // What the run has made, and what is plainly a file, has nothing inside that was there before.
                let first = self.files.get(&op.path).and_then(|changes| changes.first());
                let own = first.is_some_and(|first| {
                    matches!(first.act, Act::Created | Act::Pointed | Act::Written)
                });
                self.names.rename(&op.path, to, !own);
            }
            (FileOpKind::Exchange, Some(to)) => self.names.exchange(&op.path, to),
            (FileOpKind::Unlink | FileOpKind::Rmdir, _) => self.names.remove(&op.path),
            _ => {}
        }
    }

    /// Notes a change of a file under all of its names.
    fn change(&mut self, path: &OsText, change: Change) {
        if !is_plain(path) {
            return;
        }
        let content = matches!(change.act, Act::Written | Act::Attributes);
        for other in self.names.others(path, content) {
            self.change_of(&other, change);
        }
        self.change_of(path, change);
    }

    fn change_of(&mut self, path: &OsText, change: Change) {
        if self.is_work(path, change.act) {
            self.work = Some((change.seq, path.to_string_lossy().into_owned()));
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

    /// Whether a change is one of the project, and not of what tools keep for themselves.
    fn is_work(&self, path: &OsText, act: Act) -> bool {
        let Some(workspace) = self.workspace() else {
            return false;
        };
        let path = path.to_string_lossy();
        if let Some(inside) = places::inside(&path, workspace) {
            let itself = inside.is_empty() && !act.turns_what_is_below();
            return act != Act::Attributes && !itself && !places::is_kept_by_tools(inside);
        }
        act.turns_what_is_below() && places::inside(workspace, &path).is_some()
    }

    /// What was done to the directories above a file that makes its name mean something else.
    pub(super) fn above(&self, path: &OsText) -> Vec<Change> {
        let changes = above(path).filter_map(|directory| self.files.get(&directory));
        let changes = changes
            .flatten()
            .filter(|change| change.act.turns_what_is_below());
        changes.copied().collect()
    }

    fn net(&mut self, seq: u64, op: &NetOp) {
        let Some(kind) = contact(op) else {
            return;
        };
        let same = self.contacts.iter().filter(|contact| contact.kind == kind);
        if same.count() >= CONTACTS_MAX {
            return;
        }
        let address = endpoint(&op.address).unwrap_or_default();
        let address = address.to_string_lossy();
        let endpoint = match &op.host {
            Some(host) => format!("{host} ({address})"),
            None => address.into_owned(),
        };
        self.contacts.push(Contact {
            seq,
            endpoint,
            kind,
        });
    }
}

/// What a call says of traffic beyond this machine.
fn contact(op: &NetOp) -> Option<ContactKind> {
    const NETLINK: u16 = 16;
    const CRYPTO: u16 = 38;
    let outcome = Outcome::from(op.result);
    let (ip, port): (std::net::IpAddr, u16) = match &op.address {
        Address::Inet { ip, port } => ((*ip).into(), *port),
        Address::Inet6 { ip, port, .. } => (std::net::IpAddr::V6(*ip).to_canonical(), *port),
        // Radio, virtual machines, raw packets; but not the kernel itself.
        Address::Other { number, .. } if !matches!(*number, NETLINK | CRYPTO) => {
            let sends = matches!(op.op, NetOpKind::Connect | NetOpKind::Send);
            return (sends && outcome != Outcome::Failed).then_some(ContactKind::Unsure);
        }
        _ => return None,
    };
    match op.op {
        NetOpKind::Bind => None,
        NetOpKind::Listen => {
            let open = !ip.is_loopback() && outcome != Outcome::Failed;
            open.then_some(ContactKind::Open)
        }
        // Nothing is sent to no port. Whoever asks a resolver of this machine for a name lets it ask others.
        NetOpKind::Connect | NetOpKind::Send => {
            let inside = (ip.is_loopback() || ip.is_unspecified()) && port != 53;
            let kind = match (outcome, op.result) {
                (Outcome::Failed, _) => ContactKind::Failed,
                (_, CallResult::Unknown) => ContactKind::Unsure,
                _ => ContactKind::Outside,
            };
            (port != 0 && !inside).then_some(kind)
        }
    }
}
