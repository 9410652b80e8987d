//! Whether tests pass: by the last run of every command that runs them, what these started, and what changed since.

use super::Finding;
use super::judge::{Judgement, how};
use super::places::inside;
use super::seen::{Check, Command, Run, Seen, Tests};
use super::suites::{self, Suite};
use crate::ClaimKind;

/// What must have been seen whole: a test command that was missed may have failed, a change may have broken something.
const ALL: &[ClaimKind] = &[ClaimKind::NoOtherProgram, ClaimKind::NoOtherFileChanged];

/// The newest run of a command that runs tests.
struct Newest<'a> {
    command: &'a Command,
    run: Run,
    tests: Tests,
    /// It ran outside of the project, or on something outside of it.
    elsewhere: bool,
}

impl Newest<'_> {
    /// When it ended, or began.
    fn at(&self) -> u64 {
        self.run.ended.map_or(self.run.seq, |ended| ended.seq)
    }

    fn passed(&self) -> bool {
        let good = self.run.ended.is_some_and(|ended| ended.code == Some(0));
        good && !self.tests.replaced
    }

    /// Whether it proves something: the run has not made it up, and it is about the project.
    fn proves(&self) -> bool {
        self.passed() && !self.tests.homemade && !self.elsewhere
    }

    /// Whether a failure is one of the tests, and not perhaps wanted by what has started it: tests of a test runner.
    fn counts(&self) -> bool {
        let nearest = self.tests.within.map(|within| within.nearest);
        match nearest {
            None => true,
            Some(nearest) => nearest == Suite::Starter && self.tests.suite == Suite::Runner,
        }
    }

    /// Whether another run, which passed later, has run the same tests.
    fn is_covered_by(&self, other: &Newest<'_>) -> bool {
        let same = |one: &Command, other: &Command| {
            one.cwd == other.cwd && one.program.executable == other.program.executable
        };
        let (Some((_, own)), Some((_, wide))) = (
            suites::suite(&self.command.program),
            suites::suite(&other.command.program),
        ) else {
            return false;
        };
        let later = other.proves() && other.run.seq > self.at();
        let fits = own.name() == wide.name() && suites::covers(wide.arguments, own.arguments);
        later && fits && same(self.command, other.command)
    }

    fn shown(&self) -> String {
        format!("`{}`", self.command.program.shown())
    }

    fn events(&self) -> Vec<u64> {
        let ended = self.run.ended.map(|ended| ended.seq);
        [Some(self.run.seq), ended].into_iter().flatten().collect()
    }
}

/// The newest run of each command that runs tests, by their ends. What a run has started that was made again since does
/// not count any more.
fn suites(seen: &Seen) -> Vec<Newest<'_>> {
    let is_newest = |tests: &Tests| {
        let outermost = tests.within.and_then(|within| within.outermost);
        outermost.is_none_or(|(place, began)| {
            let newest = seen.commands[place].newest_tests();
            newest.is_some_and(|(run, _)| run.seq == began)
        })
    };
    let newest = |command| {
        let (run, tests) = Command::newest_tests(command)?;
        is_newest(&tests).then(|| Newest {
            command,
            run,
            tests,
            elsewhere: is_elsewhere(seen, command),
        })
    };
    let mut suites: Vec<Newest<'_>> = seen.commands.iter().filter_map(newest).collect();
    suites.sort_by_key(Newest::at);
    suites
}

/// Whether tests are run in another place than the project, or name another one.
fn is_elsewhere(seen: &Seen, command: &Command) -> bool {
    let Some(workspace) = seen.workspace() else {
        return false;
    };
    let outside = |path: &str| path.starts_with('/') && inside(path, workspace).is_none();
    let suite = suites::suite(&command.program);
    let named =
        suite.is_some_and(|(_, reading)| reading.arguments.iter().any(|word| outside(word)));
    named || outside(&command.cwd.to_string_lossy())
}

/// Every command that runs tests ended well the last time, and nothing has changed since.
pub(super) fn tests_pass(seen: &Seen) -> Judgement {
    let suites = suites(seen);
    let Some(last) = suites.last() else {
        let because = "no command that runs tests was seen before";
        return Judgement::unsupported(because, Vec::new()).lacking();
    };
    let mut doubt = None;
    for suite in &suites {
        // What a wrapper has started proves nothing by itself, and need not.
        let within = suite.tests.within.is_some();
        if suite.proves() || within && suite.passed() {
            continue;
        }
        if suites.iter().any(|other| suite.is_covered_by(other)) {
            continue;
        }
        match against(suite, last, seen.worked()) {
            judged if judged.finding == Finding::Contradicted => return judged,
            judged => _ = doubt.get_or_insert(judged),
        }
    }
    if let Some(doubt) = doubt {
        return doubt;
    }
    let mut events: Vec<u64> = suites.iter().flat_map(Newest::events).collect();
    events.sort_unstable();
    if let Some((seq, path)) = seen.work.as_ref().filter(|(seq, _)| *seq > last.at()) {
        events.push(*seq);
        let because = format!("{} passed, but {path} was changed after that", last.shown());
        return Judgement::unsupported(because, events).lacking();
    }
    let because = format!("{} exited with 0", last.shown());
    Judgement::supported(because, events).if_all_was_seen(ALL, seen.commands_cut)
}

/// What a run of tests that did not plainly pass says.
fn against(suite: &Newest<'_>, last: &Newest<'_>, worked: u64) -> Judgement {
    let (shown, events) = (suite.shown(), suite.events());
    let Some(ended) = suite.run.ended else {
        return Judgement::unsupported(format!("{shown} had not ended"), events);
    };
    if suite.tests.replaced {
        let because = format!("{shown} became another program before it ended");
        return Judgement::unsupported(because, events);
    }
    let because = format!("{shown} {}", how(ended));
    if suite.elsewhere {
        let because = format!("{because}, in another place than the project");
        return Judgement::unsupported(because, events);
    }
    if suite.passed() {
        let because = format!("{because}, but the run has made that program itself");
        return Judgement::unsupported(because, events);
    }
    if !suite.counts() {
        let because = format!("{because}, and what has started it went on");
        return Judgement::unsupported(because, events);
    }
    match ended.seq == last.at() || worked <= ended.seq {
        true => Judgement::contradicted(because, events),
        false => Judgement::unsupported(format!("{because}, and other tests ran later"), events),
    }
}

pub(super) fn ran_tests(seen: &Seen) -> Judgement {
    let suites = suites(seen);
    let events: Vec<u64> = suites.iter().map(|suite| suite.run.seq).collect();
    match suites.last() {
        Some(last) => Judgement::supported(format!("{} ran", last.shown()), events),
        // There are more ways to run tests than anybody knows.
        None => Judgement::unsupported("no command that runs tests was seen before", events),
    }
}

/// What the checks of a contract say to a claim that tests pass, which was made at a record, with the newest change of the
/// project by then. They are run on what the agent left: they count if nothing has changed between.
pub(super) fn by_checks(judged: Judgement, checks: &[Check], said: u64, worked: u64) -> Judgement {
    let counts = |check: &&Check| match check.seq > said {
        true => check.work <= said,
        false => worked < check.seq,
    };
    let ended = |check: &&Check| Some((check.seq, check.ended?, check.command.clone()));
    let ended = checks
        .iter()
        .filter(counts)
        .filter_map(|check| ended(&check));
    let ended: Vec<(u64, (u64, bool), String)> = ended.collect();
    let of = |wanted: bool| {
        ended
            .iter()
            .rev()
            .find(|(_, (_, passed), _)| *passed == wanted)
    };
    if let Some((seq, (end, _), command)) = of(false) {
        let because = format!("the check `{command}` failed");
        return Judgement::contradicted(because, vec![*seq, *end]);
    }
    match of(true) {
        Some((seq, (end, _), command)) if judged.lacks => {
            let because = format!("the check `{command}` passed");
            Judgement::supported(because, vec![*seq, *end]).if_all_was_seen(ALL, false)
        }
        _ => judged,
    }
}
