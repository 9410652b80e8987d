//! A claim beside what was seen until it was made. It is contradicted by something that was seen, or by its absence where
//! nothing can have been missed. Everything else is unsupported.

use super::passed;
use super::places::{Places, Side, Where};
use super::program::{Run as How, split};
use super::seen::{Act, Change, Command, ContactKind, Ended, Run, Seen};
use super::suites::{self, base_name};
use super::{Claimed, EVENTS_MAX, Finding, ToolDid};
use crate::{ClaimKind, HealthDoc};

/// Shells do these themselves, so that nobody sees a program.
const BUILTINS: &[&str] = &[
    ".", ":", "[", "alias", "bg", "break", "cd", "command", "continue", "echo", "eval", "exec",
    "exit", "export", "false", "fg", "hash", "help", "history", "jobs", "kill", "let", "local",
    "popd", "printf", "pushd", "pwd", "read", "return", "set", "shift", "source", "test", "time",
    "times", "trap", "true", "type", "ulimit", "umask", "unset", "wait",
];

/// What is to be held of a claim, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) finding: Finding,
    pub(super) because: String,
    pub(super) events: Vec<u64>,
    /// How many more there are.
    pub(super) more_events: u64,
    /// It holds only if nothing of these can have been missed in the whole run.
    hangs_on: &'static [ClaimKind],
    /// Nothing speaks against the claim; there is only nothing, or nothing new enough, that speaks for it.
    pub(super) lacks: bool,
}

impl Judgement {
    fn new(finding: Finding, because: impl Into<String>, mut events: Vec<u64>) -> Self {
        let more_events = events.len().saturating_sub(EVENTS_MAX) as u64;
        events.truncate(EVENTS_MAX);
        Judgement {
            finding,
            because: because.into(),
            events,
            more_events,
            hangs_on: &[],
            lacks: false,
        }
    }

    pub(super) fn supported(because: impl Into<String>, events: Vec<u64>) -> Self {
        Judgement::new(Finding::Supported, because, events)
    }

    pub(super) fn contradicted(because: impl Into<String>, events: Vec<u64>) -> Self {
        Judgement::new(Finding::Contradicted, because, events)
    }

    pub(super) fn unsupported(because: impl Into<String>, events: Vec<u64>) -> Self {
        Judgement::new(Finding::Unsupported, because, events)
    }

    /// Nothing speaks against it.
    pub(super) fn lacking(self) -> Self {
        Judgement {
            lacks: true,
            ..self
        }
    }

    /// It says that something was not there: that counts only where nothing can have been missed.
    pub(super) fn if_all_was_seen(self, hangs_on: &'static [ClaimKind], cut: bool) -> Self {
        match cut {
            true => self.doubted(),
            false => Judgement { hangs_on, ..self },
        }
    }

    /// As it stands at the end of the run.
    pub(super) fn by(&self, health: &HealthDoc) -> Judgement {
        match self.hangs_on.iter().all(|claim| health.allows(*claim)) {
            true => self.clone(),
            false => self.clone().doubted(),
        }
    }

    fn doubted(self) -> Self {
        Judgement {
            finding: Finding::Unsupported,
            because: format!("{}, but not everything was seen", self.because),
            hangs_on: &[],
            ..self
        }
    }
}

/// Everything that a judge looks at.
pub(super) struct Judge<'a> {
    pub(super) seen: &'a Seen,
    places: Places<'a>,
}

const PROGRAMS: &[ClaimKind] = &[ClaimKind::NoOtherProgram];
const FILES: &[ClaimKind] = &[ClaimKind::NoOtherFileChanged];
const NETWORK: &[ClaimKind] = &[ClaimKind::NoOtherNetwork];

impl<'a> Judge<'a> {
    pub(super) fn new(seen: &'a Seen) -> Self {
        Judge {
            seen,
            places: Places::of(seen),
        }
    }

    /// Judges by everything that was seen until now; what a tool did, by the records from `from` on.
    pub(super) fn on(&self, claim: &Claimed, from: u64) -> Judgement {
        match claim {
            Claimed::TestsPass => passed::tests_pass(self.seen),
            Claimed::Ran { command } if command == suites::THE_TESTS => {
                passed::ran_tests(self.seen)
            }
            Claimed::Ran { command } => self.ran(command),
            Claimed::Created { path } => {
                self.file(path, "made", |at, act| at == Where::Itself && act.is_made())
            }
            Claimed::Changed { path } => self.file(path, "changed", |at, act| {
                at != Where::Above && (act.is_made() || act == Act::Written)
            }),
            Claimed::Deleted { path } => self.file(path, "removed", |at, act| {
                at == Where::Itself && act == Act::Deleted
            }),
            Claimed::Untouched { path } => self.untouched(path),
            Claimed::OnlyTouched { paths } => self.only(paths),
            Claimed::NoNetwork => self.no_network(),
            Claimed::ToolResult { did, .. } => match did {
                ToolDid::Command {
                    command,
                    exit_code,
                    ok,
                } => self.tool_command(command, *exit_code, *ok, from),
                ToolDid::Write { path, ok } => self.tool_write(path, *ok, from),
            },
        }
    }

    fn ran(&self, command: &str) -> Judgement {
        let runs = self.runs_of(command, 0, How::More);
        if !runs.is_empty() {
            let events = runs.iter().map(|run| run.seq).collect();
            return Judgement::supported("it was seen to run", events);
        }
        let words = split(command);
        let Some(program) = words.first().map(|word| base_name(word)) else {
            return Judgement::unsupported("there is no command in it", Vec::new());
        };
        let others = self.mentions(program);
        if !others.is_empty() {
            let because =
                format!("`{program}` was named by what ran, but this was not seen to run");
            return Judgement::unsupported(because, others);
        }
        let mut programs = self.seen.commands.iter().map(|command| &command.program);
        let inside = programs.any(|program| program.is_all_in_one_shell());
        if inside || BUILTINS.contains(&program) || !is_plain_command(command) {
            let because = "a shell can do this without a program that could be seen";
            return Judgement::unsupported(because, Vec::new());
        }
        Judgement::contradicted(format!("`{program}` was never run"), Vec::new())
            .if_all_was_seen(PROGRAMS, self.seen.commands_cut)
    }

    /// Runs of a command line: as it is, or with more arguments, or given to a shell that could run it.
    fn runs_of(&self, command: &str, from: u64, least: How) -> Vec<Run> {
        const NOT_RUN: [Option<i32>; 2] = [Some(126), Some(127)];
        let words = split(command);
        let fitting = |other: &'a Command| {
            let plain = other.program.runs(&words).is_some_and(|how| how <= least);
            let given = other.program.is_given(command);
            let runs = other.runs.iter().filter(move |run| {
                let refused = run.ended.is_some_and(|ended| NOT_RUN.contains(&ended.code));
                plain || given && !refused
            });
            runs.copied()
        };
        let runs = self.seen.commands.iter().flat_map(fitting);
        let mut runs: Vec<Run> = runs.filter(|run| run.seq >= from).collect();
        runs.sort_by_key(|run| run.seq);
        runs
    }

    /// Runs of anything that names a program, in whatever way.
    fn mentions(&self, program: &str) -> Vec<u64> {
        let commands = self.seen.commands.iter();
        let commands = commands.filter(|command| command.program.mentions(program));
        let mut events: Vec<u64> = commands
            .filter_map(|command| command.runs.front().map(|run| run.seq))
            .collect();
        events.sort_unstable();
        events
    }

    /// Whether a file was made, changed or removed, and still is.
    fn file(&self, path: &str, word: &str, fits: impl Fn(Where, Act) -> bool) -> Judgement {
        let Some(place) = self.places.resolve(path) else {
            return unplaced();
        };
        let changes = self.places.changes(&place);
        let fitting = changes.iter().filter(|(at, change)| fits(*at, change.act));
        let fitting: Vec<Change> = fitting.map(|(_, change)| *change).collect();
        if let Some(fit) = fitting.last() {
            let since = changes.iter().filter(|(_, change)| change.seq > fit.seq);
            let turned = since.clone().any(|(at, change)| match at {
                Where::Itself => change.act.is_gone() != fit.act.is_gone(),
                Where::Inside => false,
                Where::Above => true,
            });
            let turned_back = self.seen.turned_back.filter(|seq| *seq > fit.seq);
            return match (turned || turned_back.is_some(), fit.sure) {
                (true, _) => {
                    let mut events = numbers(changes.iter().map(|(_, change)| change));
                    events.extend(turned_back);
                    let because = format!("it was {word}, and that may have been undone since");
                    Judgement::unsupported(because, events)
                }
                (false, true) => Judgement::supported(format!("it was {word}"), numbers(&fitting)),
                (false, false) => {
                    Judgement::unsupported("whether it succeeded was not seen", numbers(&fitting))
                }
            };
        }
        if !changes.is_empty() {
            let because = format!("something happened to it, but it was not seen to be {word}");
            return Judgement::unsupported(
                because,
                numbers(changes.iter().map(|(_, change)| change)),
            );
        }
        if let Some((other, change)) = self.places.namesake(path) {
            let because = format!("{other} is called like it, and is another file");
            return Judgement::unsupported(because, vec![change.seq]);
        }
        Judgement::contradicted(format!("no file of this name was {word}"), Vec::new())
            .if_all_was_seen(FILES, self.seen.files_cut())
    }

    fn untouched(&self, path: &str) -> Judgement {
        let Some(place) = self.places.resolve(path) else {
            return unplaced();
        };
        let changes = self.places.changes(&place);
        let content = changes.iter().filter(|(at, change)| {
            *at != Where::Above && change.sure && change.act != Act::Attributes
        });
        let content = numbers(content.map(|(_, change)| change));
        if !content.is_empty() {
            return Judgement::contradicted("it was changed", content);
        }
        if !changes.is_empty() {
            let because = match changes.iter().any(|(at, _)| *at == Where::Above) {
                true => "a directory above it was renamed or replaced",
                false => "it may have been changed, or only its permissions or times were",
            };
            return Judgement::unsupported(
                because,
                numbers(changes.iter().map(|(_, change)| change)),
            );
        }
        if let Some((other, change)) = self.places.linked_namesake(path) {
            let because = format!("{other} was changed, to which a link may lead");
            return Judgement::unsupported(because, vec![change.seq]);
        }
        Judgement::supported("nothing was seen that changed it", Vec::new())
            .if_all_was_seen(FILES, self.seen.files_cut())
    }

    fn only(&self, paths: &[String]) -> Judgement {
        let resolved: Option<Vec<_>> = paths.iter().map(|path| self.places.resolve(path)).collect();
        let Some(resolved) = resolved else {
            return unplaced();
        };
        let outside = self.places.outside(&resolved);
        let of = |side: Side| {
            let of: Vec<_> = outside
                .iter()
                .filter(|(_, _, other)| *other == side)
                .collect();
            let events = of.iter().map(|(_, change, _)| change.seq).collect();
            of.first().map(|(path, ..)| (path, of.len() - 1, events))
        };
        if let Some((path, more, events)) = of(Side::Work) {
            let because = match more {
                0 => format!("{path} was changed, too"),
                more => format!("{path} and {more} more were changed, too"),
            };
            return Judgement::contradicted(because, events);
        }
        if let Some((path, _, events)) = of(Side::Settings) {
            let because = format!("{path} was changed, too, which may be a program's own");
            return Judgement::unsupported(because, events);
        }
        if let Some((path, _, events)) = of(Side::Unsure) {
            let because = format!("{path} may have been changed, too");
            return Judgement::unsupported(because, events);
        }
        let because = "nothing else was changed but what tools keep for themselves";
        Judgement::supported(because, Vec::new()).if_all_was_seen(FILES, self.seen.files_cut())
    }

    fn no_network(&self) -> Judgement {
        let of = |kind: ContactKind| {
            let contacts = self.seen.contacts.iter();
            let of: Vec<_> = contacts.filter(|contact| contact.kind == kind).collect();
            let events = of.iter().map(|contact| contact.seq).collect();
            of.first().map(|first| (&first.endpoint, events))
        };
        if let Some((endpoint, events)) = of(ContactKind::Outside) {
            return Judgement::contradicted(format!("{endpoint} was talked to"), events);
        }
        for (kind, words) in [
            (ContactKind::Unsure, "may have been talked to"),
            (ContactKind::Failed, "was tried and did not answer"),
            (ContactKind::Open, "was open to other machines"),
        ] {
            if let Some((endpoint, events)) = of(kind) {
                return Judgement::unsupported(format!("{endpoint} {words}"), events);
            }
        }
        Judgement::supported("nothing beyond this machine was talked to", Vec::new())
            .if_all_was_seen(NETWORK, false)
    }

    fn tool_command(
        &self,
        command: &str,
        code: Option<i64>,
        ok: Option<bool>,
        from: u64,
    ) -> Judgement {
        let runs = self.runs_of(command, from, How::Exact);
        let Some(run) = runs.last() else {
            return match self.ran(command) {
                judged if judged.finding == Finding::Supported => {
                    let because = "it was seen to run, but not during the call, or not like this";
                    Judgement::unsupported(because, judged.events)
                }
                judged => judged,
            };
        };
        let Some(ended) = run.ended else {
            return match (code, ok) {
                (None, None) => Judgement::supported("it was seen to run", vec![run.seq]),
                _ => Judgement::unsupported("it had not ended", vec![run.seq]),
            };
        };
        let events = vec![run.seq, ended.seq];
        let real = ended.code.map(i64::from);
        let agrees = match (code, ok) {
            // A shell says 128 and the signal where a signal was.
            (Some(code), _) if real.is_none() => code != 0,
            (Some(code), _) => Some(code) == real,
            (None, Some(ok)) => ok == (real == Some(0)),
            (None, None) => return Judgement::supported("it was seen to run", events),
        };
        match (agrees, code, ok) {
            (true, ..) => Judgement::supported(format!("it {}", how(ended)), events),
            (false, Some(code), _) => Judgement::contradicted(
                format!(
                    "it is reported to have exited with {code}, and it {}",
                    how(ended)
                ),
                events,
            ),
            // A tool may have gone well although its command did not.
            (false, None, Some(true)) => Judgement::contradicted(
                format!("it is reported to have gone well, and it {}", how(ended)),
                events,
            ),
            (false, None, _) => Judgement::unsupported(format!("it {}", how(ended)), events),
        }
    }

    /// What is true of a file at the end of the call that is said to have written it.
    fn tool_write(&self, path: &str, ok: Option<bool>, from: u64) -> Judgement {
        let Some(place) = self.places.resolve(path) else {
            return unplaced();
        };
        let changes = self.places.changes(&place).into_iter();
        let within = changes.filter(|(at, change)| {
            *at != Where::Inside && change.seq >= from && change.act != Act::Attributes
        });
        let within: Vec<(Where, Change)> = within.collect();
        let events = numbers(within.iter().map(|(_, change)| change));
        let failed = ok == Some(false);
        let Some((at, last)) = within.last() else {
            if failed {
                let because = "it is reported to have failed, and nothing was changed";
                return Judgement::supported(because, events)
                    .if_all_was_seen(FILES, self.seen.files_cut());
            }
            if let Some((other, change)) = self.places.namesake(path) {
                let because = format!("{other} is called like it, and is another file");
                return Judgement::unsupported(because, vec![change.seq]);
            }
            let because = "the file was not changed during the call";
            return Judgement::contradicted(because, events)
                .if_all_was_seen(FILES, self.seen.files_cut());
        };
        match () {
            () if *at == Where::Above || !last.sure => {
                Judgement::unsupported("whether the file was changed is not certain", events)
            }
            () if failed => Judgement::contradicted(
                "it is reported to have failed, and the file was changed",
                events,
            ),
            () if last.act.is_gone() => Judgement::unsupported(
                "the file was changed during the call, and was gone at its end",
                events,
            ),
            () => Judgement::supported("the file was changed during the call", events),
        }
    }
}

fn unplaced() -> Judgement {
    Judgement::unsupported("it is not known where that is", Vec::new())
}

fn numbers<'c>(changes: impl IntoIterator<Item = &'c Change>) -> Vec<u64> {
    let mut numbers: Vec<u64> = changes.into_iter().map(|change| change.seq).collect();
    numbers.dedup();
    numbers
}

pub(super) fn how(ended: Ended) -> String {
    match ended.code {
        Some(code) => format!("exited with {code}"),
        None => "was ended by a signal".to_owned(),
    }
}

/// Whether it is one program with its arguments, without anything that only a shell understands.
fn is_plain_command(command: &str) -> bool {
    !command.contains([';', '|', '&', '<', '>', '$', '`', '(', '*', '\n', '='])
}
