//! A claim beside what was seen. It is contradicted by something that was seen, or by its absence where nothing can have
//! been missed. Everything else is unsupported.

use super::places::{Places, Side};
use super::seen::{Act, Change, Command, ContactKind, Ended, Run, Seen};
use super::suites::{self, base_name};
use super::{Claimed, Finding, ToolDid};
use crate::{ClaimKind, HealthDoc};

/// Shells do these themselves, so that nobody sees a program.
const BUILTINS: &[&str] = &[
    ".", ":", "[", "alias", "bg", "break", "cd", "command", "continue", "echo", "eval", "exec",
    "exit", "export", "false", "fg", "hash", "help", "history", "jobs", "kill", "let", "local",
    "popd", "printf", "pushd", "pwd", "read", "return", "set", "shift", "source", "test", "time",
    "times", "trap", "true", "type", "ulimit", "umask", "unset", "wait",
];

/// What is to be held of a claim, and why.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) finding: Finding,
    pub(super) because: String,
    pub(super) events: Vec<u64>,
}

impl Judgement {
    fn new(finding: Finding, because: impl Into<String>, events: Vec<u64>) -> Self {
        let because = because.into();
        Judgement {
            finding,
            because,
            events,
        }
    }

    fn supported(because: impl Into<String>, events: Vec<u64>) -> Self {
        Judgement::new(Finding::Supported, because, events)
    }

    fn contradicted(because: impl Into<String>, events: Vec<u64>) -> Self {
        Judgement::new(Finding::Contradicted, because, events)
    }

    fn unsupported(because: impl Into<String>, events: Vec<u64>) -> Self {
        Judgement::new(Finding::Unsupported, because, events)
    }

    /// Nothing was seen of it: that contradicts it only where nothing can have been missed.
    fn absent(complete: bool, because: &str) -> Self {
        match complete {
            true => Judgement::contradicted(because, Vec::new()),
            false => Judgement::unsupported(
                format!("{because}, but not everything was seen"),
                Vec::new(),
            ),
        }
    }
}

/// Everything that a judge looks at.
pub(super) struct Judge<'a> {
    pub(super) seen: &'a Seen,
    pub(super) health: &'a HealthDoc,
    pub(super) places: Places<'a>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(seen: &'a Seen, health: &'a HealthDoc) -> Self {
        Judge {
            seen,
            health,
            places: Places::of(seen),
        }
    }

    /// Judges by the records from `from` up to, and without, `until`.
    pub(super) fn on(&self, claim: &Claimed, from: u64, until: u64) -> Judgement {
        match claim {
            Claimed::TestsPass => self.tests_pass(until),
            Claimed::Ran { command } if command == suites::THE_TESTS => self.ran_tests(until),
            Claimed::Ran { command } => self.ran(command, until),
            Claimed::Created { path } => self.file(path, until, "made", |act| {
                matches!(act, Act::Created | Act::MovedHere)
            }),
            Claimed::Changed { path } => self.file(path, until, "changed", |act| {
                matches!(act, Act::Created | Act::MovedHere | Act::Written)
            }),
            Claimed::Deleted { path } => self.file(path, until, "removed", |act| {
                matches!(act, Act::Deleted | Act::MovedAway)
            }),
            Claimed::Untouched { path } => self.untouched(path, until),
            Claimed::OnlyTouched { paths } => self.only(paths, until),
            Claimed::NoNetwork => self.no_network(until),
            Claimed::ToolResult { did, .. } => match did {
                ToolDid::Command {
                    command,
                    exit_code,
                    ok,
                } => self.tool_command(command, *exit_code, *ok, from, until),
                ToolDid::Write { path, ok } => self.tool_write(path, *ok, from, until),
            },
        }
    }

    fn programs_complete(&self) -> bool {
        self.health.allows(ClaimKind::NoOtherProgram) && !self.seen.commands_cut
    }

    fn files_complete(&self) -> bool {
        self.health.allows(ClaimKind::NoOtherFileChanged) && !self.seen.files_cut
    }

    /// The newest run of each command that runs tests, by the end of the runs.
    fn suites(&self, until: u64) -> Vec<(&'a Command, Run, Option<Ended>)> {
        // Checks are run on what the agent left: they count if nothing has changed since it spoke.
        let checks_it =
            |run: &Run| run.is_check && self.places.work_between(until, run.seq).is_none();
        let newest = |command: &'a Command| {
            let mut runs = command.runs.iter().rev();
            let run = runs.find(|run| run.is_suite && (run.seq < until || checks_it(run)))?;
            let ended = run.ended.filter(|ended| ended.seq < until || run.is_check);
            Some((command, *run, ended))
        };
        let mut suites: Vec<_> = self.seen.commands.iter().filter_map(newest).collect();
        suites.sort_by_key(|(_, run, ended)| ended.map_or(run.seq, |ended| ended.seq));
        suites
    }

    /// Every command that runs tests ended well the last time, and nothing has changed since.
    fn tests_pass(&self, until: u64) -> Judgement {
        let suites = self.suites(until);
        let Some((last, last_run, last_end)) = suites.last() else {
            return Judgement::unsupported(
                "no command that runs tests was seen before",
                Vec::new(),
            );
        };
        let Some(last_end) = last_end else {
            let because = format!("`{}` had not ended", shown(&last.argv));
            return Judgement::unsupported(because, vec![last_run.seq]);
        };
        let mut doubt = None;
        for (command, run, ended) in &suites {
            let Some(ended) = ended.filter(|ended| ended.code != Some(0)) else {
                continue;
            };
            let because = format!("`{}` {}", shown(&command.argv), how(ended));
            let events = vec![run.seq, ended.seq];
            // The same command with fewer arguments runs these tests, too.
            let covers = |(other, _, end): &(&Command, Run, Option<Ended>)| {
                let later = end.is_some_and(|end| end.seq > ended.seq && end.code == Some(0));
                later && command.argv.starts_with(&other.argv)
            };
            if suites.iter().any(covers) {
                continue;
            }
            let since = self.places.work_between(ended.seq, until);
            if ended.seq == last_end.seq || since.is_none() {
                return Judgement::contradicted(because, events);
            }
            let because = format!("{because}, and other tests passed later");
            doubt.get_or_insert(Judgement::unsupported(because, events));
        }
        if let Some(doubt) = doubt {
            return doubt;
        }
        let events = suites.iter();
        let events =
            events.flat_map(|(_, run, ended)| [Some(run.seq), ended.map(|ended| ended.seq)]);
        let mut events: Vec<u64> = events.flatten().collect();
        if let Some((path, change)) = self.places.work_between(last_end.seq, until) {
            events.push(change.seq);
            let because = format!(
                "`{}` passed, but {path} was changed after that",
                shown(&last.argv)
            );
            return Judgement::unsupported(because, events);
        }
        Judgement::supported(format!("`{}` exited with 0", shown(&last.argv)), events)
    }

    fn ran_tests(&self, until: u64) -> Judgement {
        let suites = self.suites(until);
        let events: Vec<u64> = suites.iter().map(|(_, run, _)| run.seq).collect();
        match suites.last() {
            Some((command, ..)) => {
                Judgement::supported(format!("`{}` ran", shown(&command.argv)), events)
            }
            // There are more ways to run tests than anybody knows.
            None => Judgement::unsupported("no command that runs tests was seen before", events),
        }
    }

    fn ran(&self, command: &str, until: u64) -> Judgement {
        let runs = self.runs_of(command, 0, until);
        if !runs.is_empty() {
            let events = runs.iter().map(|run| run.seq).collect();
            return Judgement::supported("it was seen to run", events);
        }
        let words = split(command);
        let Some(program) = words.first().map(|word| base_name(word)) else {
            return Judgement::unsupported("there is no command in it", Vec::new());
        };
        let others = self.mentions(program, until);
        if !others.is_empty() {
            let because = format!("`{program}` ran with other arguments");
            return Judgement::unsupported(because, others);
        }
        if BUILTINS.contains(&program) || !is_plain_command(command) {
            let because = "a shell can do this without a program that could be seen";
            return Judgement::unsupported(because, Vec::new());
        }
        Judgement::absent(
            self.programs_complete(),
            &format!("`{program}` was never run"),
        )
    }

    /// Runs of a command line: as it is, or given to a shell.
    fn runs_of(&self, command: &str, from: u64, until: u64) -> Vec<Run> {
        let words = split(command);
        let within = |run: &&Run| run.seq >= from && run.seq < until;
        let of = |other: &'a Command| {
            let fits = is_given_to_shell(&other.argv, command) || is_run_as(&other.argv, &words);
            let runs = other.runs.iter().filter(within).copied();
            runs.filter(move |_| fits)
        };
        let mut runs: Vec<Run> = self.seen.commands.iter().flat_map(of).collect();
        runs.sort_by_key(|run| run.seq);
        runs
    }

    /// Runs of anything that names a program, in whatever way.
    fn mentions(&self, program: &str, until: u64) -> Vec<u64> {
        let names = |word: &String| {
            let mut parts = word.split(|c: char| c.is_whitespace() || ";|&()'\"".contains(c));
            parts.any(|part| base_name(part) == program)
        };
        let commands = self.seen.commands.iter();
        let commands = commands.filter(|command| command.argv.iter().any(names));
        let first = |command: &Command| command.runs.front().map(|run| run.seq);
        let mut events: Vec<u64> = commands
            .filter_map(first)
            .filter(|seq| *seq < until)
            .collect();
        events.sort_unstable();
        events
    }

    /// Whether a file was made, changed or removed.
    fn file(&self, path: &str, until: u64, word: &str, fits: impl Fn(Act) -> bool) -> Judgement {
        let Some(place) = self.places.resolve(path) else {
            return Judgement::unsupported("it is not known where the command ran", Vec::new());
        };
        let changes: Vec<Change> = self.places.changes(&place, until);
        let events = |list: &[Change]| list.iter().map(|change| change.seq).collect::<Vec<u64>>();
        let fitting: Vec<Change> = changes
            .iter()
            .filter(|change| fits(change.act))
            .copied()
            .collect();
        if let (Some(last), Some(fit)) = (changes.last(), fitting.last()) {
            let gone = |act| matches!(act, Act::Deleted | Act::MovedAway);
            let turned = gone(last.act) != gone(fit.act) && !place.is_directory;
            return match (turned, fitting.iter().any(|change| change.sure)) {
                (true, _) => Judgement::unsupported(
                    format!("it was {word}, and then the opposite happened"),
                    events(&changes),
                ),
                (false, true) => Judgement::supported(format!("it was {word}"), events(&fitting)),
                (false, false) => {
                    Judgement::unsupported("whether it succeeded was not seen", events(&fitting))
                }
            };
        }
        if !changes.is_empty() {
            let because = format!("something happened to it, but it was not {word}");
            return Judgement::unsupported(because, events(&changes));
        }
        if let Some((other, change)) = self.places.namesake(path, until) {
            let because = format!("{other} is called like it, and is another file");
            return Judgement::unsupported(because, vec![change.seq]);
        }
        Judgement::absent(
            self.files_complete(),
            &format!("no file of this name was {word}"),
        )
    }

    fn untouched(&self, path: &str, until: u64) -> Judgement {
        let Some(place) = self.places.resolve(path) else {
            return Judgement::unsupported("it is not known where the command ran", Vec::new());
        };
        let changes = self.places.changes(&place, until);
        let of = |wanted: fn(&Change) -> bool| -> Vec<u64> {
            changes
                .iter()
                .filter(|change| wanted(change))
                .map(|change| change.seq)
                .collect()
        };
        let content = of(|change| change.sure && change.act != Act::Attributes);
        if !content.is_empty() {
            return Judgement::contradicted("it was changed", content);
        }
        if !changes.is_empty() {
            let because = "it may have been changed, or only its permissions or times were";
            return Judgement::unsupported(because, of(|_| true));
        }
        match self.files_complete() {
            true => Judgement::supported(
                "nothing was seen that changed it, and nothing can have been missed",
                Vec::new(),
            ),
            false => Judgement::unsupported(
                "nothing was seen that changed it, but not everything was seen",
                Vec::new(),
            ),
        }
    }

    fn only(&self, paths: &[String], until: u64) -> Judgement {
        let resolved: Option<Vec<_>> = paths.iter().map(|path| self.places.resolve(path)).collect();
        let Some(resolved) = resolved else {
            return Judgement::unsupported("it is not known where the command ran", Vec::new());
        };
        let outside = self.places.outside(&resolved, until);
        let of = |side: Side| outside.iter().filter(move |(_, _, other)| *other == side);
        if let Some((path, ..)) = of(Side::Work).next() {
            let events = of(Side::Work).map(|(_, change, _)| change.seq).collect();
            let more = of(Side::Work).count() - 1;
            let because = match more {
                0 => format!("{path} was changed, too"),
                more => format!("{path} and {more} more were changed, too"),
            };
            return Judgement::contradicted(because, events);
        }
        if let Some((path, ..)) = of(Side::Settings).next() {
            let events = of(Side::Settings)
                .map(|(_, change, _)| change.seq)
                .collect();
            let because = format!("{path} was changed, too, which may be a program's own");
            return Judgement::unsupported(because, events);
        }
        match self.files_complete() {
            true => Judgement::supported(
                "nothing else was changed but what tools keep for themselves",
                Vec::new(),
            ),
            false => Judgement::unsupported(
                "nothing else was seen to change, but not everything was seen",
                Vec::new(),
            ),
        }
    }

    fn no_network(&self, until: u64) -> Judgement {
        let contacts = self
            .seen
            .contacts
            .iter()
            .filter(|contact| contact.seq < until);
        let of = |kind: ContactKind| contacts.clone().filter(move |contact| contact.kind == kind);
        if let Some(first) = of(ContactKind::Outside).next() {
            let events = of(ContactKind::Outside)
                .map(|contact| contact.seq)
                .collect();
            return Judgement::contradicted(format!("{} was talked to", first.endpoint), events);
        }
        if let Some(first) = of(ContactKind::Failed).next() {
            let events = of(ContactKind::Failed).map(|contact| contact.seq).collect();
            return Judgement::unsupported(
                format!("{} was tried and did not answer", first.endpoint),
                events,
            );
        }
        match self.health.allows(ClaimKind::NoOtherNetwork) {
            true => Judgement::supported(
                "nothing beyond this machine was talked to, and nothing can have been missed",
                Vec::new(),
            ),
            false => Judgement::unsupported("nothing was seen, but not everything was", Vec::new()),
        }
    }

    fn tool_command(
        &self,
        command: &str,
        code: Option<i64>,
        ok: Option<bool>,
        from: u64,
        until: u64,
    ) -> Judgement {
        let runs = self.runs_of(command, from, until);
        let Some(run) = runs.last() else {
            return match self.ran(command, until) {
                judged if judged.finding == Finding::Supported => {
                    let because = "it was seen to run, but not during the call";
                    Judgement::unsupported(because, judged.events)
                }
                judged => judged,
            };
        };
        let Some(ended) = run.ended.filter(|ended| ended.seq < until) else {
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

    fn tool_write(&self, path: &str, ok: Option<bool>, from: u64, until: u64) -> Judgement {
        let Some(place) = self.places.resolve(path) else {
            return Judgement::unsupported("it is not known where the command ran", Vec::new());
        };
        let changes = self.places.changes(&place, until);
        let within = changes
            .iter()
            .filter(|change| change.seq >= from && change.act != Act::Attributes);
        let events: Vec<u64> = within.map(|change| change.seq).collect();
        match (events.is_empty(), ok) {
            (false, Some(false)) => Judgement::contradicted(
                "it is reported to have failed, and the file was changed",
                events,
            ),
            (false, _) => Judgement::supported("the file was changed during the call", events),
            (true, Some(false)) => Judgement::supported(
                "it is reported to have failed, and nothing was changed",
                events,
            ),
            (true, _) => {
                if let Some((other, change)) = self.places.namesake(path, until) {
                    let because = format!("{other} is called like it, and is another file");
                    return Judgement::unsupported(because, vec![change.seq]);
                }
                Judgement::absent(
                    self.files_complete(),
                    "the file was not changed during the call",
                )
            }
        }
    }
}

fn how(ended: Ended) -> String {
    match ended.code {
        Some(code) => format!("exited with {code}"),
        None => "was ended by a signal".to_owned(),
    }
}

/// A command line in short.
fn shown(argv: &[String]) -> String {
    const SHOWN: usize = 80;
    let text = argv.join(" ");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The words of a command line, as a shell would see them if it were simple.
fn split(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    for c in command.chars() {
        match (quote, c) {
            (None, '\'' | '"') => (quote, begun) = (Some(c), true),
            (Some(end), c) if c == end => quote = None,
            (None, c) if c.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (_, c) => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// Whether it is one program with its arguments, without anything that only a shell understands.
fn is_plain_command(command: &str) -> bool {
    !command.contains([';', '|', '&', '<', '>', '$', '`', '(', '*', '\n', '='])
}

/// `sh -c COMMAND`, by whatever shell and with whatever options.
fn is_given_to_shell(argv: &[String], command: &str) -> bool {
    let shell = argv.first().map(|program| base_name(program));
    let is_shell = shell.is_some_and(|shell| {
        matches!(
            shell,
            "ash" | "bash" | "dash" | "fish" | "ksh" | "sh" | "zsh"
        )
    });
    let given = argv
        .iter()
        .skip(1)
        .skip_while(|word| !(word.starts_with('-') && word.ends_with('c')));
    is_shell
        && given
            .skip(1)
            .find(|word| *word != "--")
            .is_some_and(|text| text.trim() == command.trim())
}

/// Whether these arguments are a run of these words: the same program, and its arguments at the beginning. A script has
/// its interpreter in front.
fn is_run_as(argv: &[String], words: &[String]) -> bool {
    const IN_FRONT: usize = 3;
    let Some((program, rest)) = words.split_first() else {
        return false;
    };
    let program = base_name(program);
    (0..argv.len().min(IN_FRONT)).any(|at| {
        let fits = base_name(&argv[at]) == program && argv[at + 1..].starts_with(rest);
        fits && (at == 0 || argv[..at].iter().skip(1).all(|word| word.starts_with('-')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        split(text)
    }

    #[test]
    fn words_of_a_command_line() {
        assert_eq!(words("a 'b c' \"d\" e'f'"), ["a", "b c", "d", "ef"]);
        assert_eq!(words("  "), Vec::<String>::new());
        assert_eq!(words("x ''"), ["x", ""]);
    }

    #[test]
    fn a_run_of_a_command() {
        let run = |argv: &str, claim: &str| is_run_as(&words(argv), &words(claim));
        assert!(run("/usr/bin/cargo test --all", "cargo test"));
        assert!(run("/bin/sh ./build.sh x", "./build.sh x"));
        assert!(run("python3 -u tool.py", "tool.py"));
        assert!(!run("cargo build", "cargo test"));
        assert!(!run("echo cargo test", "test"));
        assert!(!run("cat a b build.sh", "build.sh"));
        assert!(is_given_to_shell(&words("bash -lc 'make x'"), "make x"));
        assert!(!is_given_to_shell(&words("bash -lc 'make xy'"), "make x"));
    }
}
