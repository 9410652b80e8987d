//! Whether a sentence says that the tests pass: all of them, here and now. Of what says so of some, of other times, or of
//! other places it makes nothing.

use super::sentence::Word;
use super::suites;

const PASS: &[&str] = &[
    "pass",
    "passes",
    "passed",
    "passing",
    "succeed",
    "succeeds",
    "succeeded",
    "green",
];
/// Words with which a sentence is about some tests, another time, another place, a wish, or the words of others.
const ELSEWHERE: &[&str] = &[
    "aim",
    "apart",
    "aside",
    "barring",
    "before",
    "besides",
    "ci",
    "claim",
    "claimed",
    "claims",
    "criteria",
    "criterion",
    "definition",
    "earlier",
    "example",
    "excluding",
    "flaky",
    "formerly",
    "goal",
    "goals",
    "had",
    "ignoring",
    "initially",
    "latter",
    "main",
    "master",
    "modulo",
    "objective",
    "only",
    "originally",
    "other",
    "others",
    "partially",
    "previously",
    "remaining",
    "report",
    "reported",
    "requirement",
    "requirements",
    "rest",
    "said",
    "say",
    "says",
    "several",
    "than",
    "told",
    "unrelated",
    "upstream",
    "used",
    "when",
    "whenever",
    "where",
    "yesterday",
];
/// What can stand between the beginning of what is said and the word `tests`.
const WHOSE: &[&str] = &[
    "all",
    "and",
    "complete",
    "entire",
    "every",
    "existing",
    "full",
    "my",
    "of",
    "our",
    "project",
    "project's",
    "the",
    "these",
    "unit",
    "whole",
];
/// What can stand before that.
const LEADS: &[&str] = &[
    "and",
    "checked",
    "confirmed",
    "now",
    "see",
    "so",
    "that",
    "verified",
];
/// What can stand between the tests and that they pass.
const BETWEEN: &[&str] = &[
    "all",
    "are",
    "has",
    "have",
    "is",
    "now",
    "still",
    "successfully",
    "suite",
    "suites",
];
/// What can follow.
const AFTER: &[&str] = &[
    "after",
    "again",
    "and",
    "as",
    "cleanly",
    "locally",
    "now",
    "since",
    "so",
    "successfully",
    "too",
    "well",
    "with",
];
const ZERO: &[&str] = &["0", "no", "zero"];
const FAILURES: &[&str] = &[
    "failed", "failure", "failures", "failing", "error", "errors", "skipped",
];

/// `All 12 tests pass`, `the test suite is green`, `` `cargo test` passes ``.
pub(super) fn says_so(words: &[Word<'_>], denies: impl Fn(&[Word<'_>]) -> bool) -> bool {
    let kept = without_zero_failures(words);
    let none_failed = kept.len() < words.len();
    if denies(&kept) || kept.iter().any(|word| word.is_one_of(ELSEWHERE)) || is_fraction(&kept) {
        return false;
    }
    (0..kept.len()).any(|at| {
        let subject = match &kept[at] {
            Word::Plain(word) => match word.as_str() {
                "tests" => are_all(&kept[..at], none_failed),
                "test" => is_whole(&kept, at),
                _ => false,
            },
            Word::Quoted(command) => suites::is_command(command) && leads(&kept[..at]),
            _ => false,
        };
        subject && do_pass(&kept[at + 1..])
    })
}

/// Whether what stands before `tests` means all of them.
fn are_all(before: &[Word<'_>], none_failed: bool) -> bool {
    let number =
        |word: &Word<'_>| matches!(word, Word::Plain(plain) if plain.parse::<u64>().is_ok());
    let whose = |word: &&Word<'_>| word.is_one_of(WHOSE) || number(word);
    let chain = before.iter().rev().take_while(whose).count();
    let (lead, chain) = before.split_at(before.len() - chain);
    // What a conjunction joins is said before it.
    let from = chain
        .iter()
        .rposition(|word| word.is("and"))
        .map_or(0, |at| at + 1);
    let (joined, chain) = chain.split_at(from);
    let all = chain
        .first()
        .is_some_and(|word| word.is_one_of(&["all", "every"]));
    // `12 tests pass` can be said of 12 out of 15.
    let some = chain.iter().any(|word| number(word) || word.is("of")) && !all && !none_failed;
    let none = chain.iter().any(|word| word.is_one_of(ZERO));
    !some && !none && (!joined.is_empty() || leads(lead))
}

/// `the test suite`, `every test`.
fn is_whole(words: &[Word<'_>], at: usize) -> bool {
    let behind = words.get(at + 1);
    let suite = behind.is_some_and(|word| word.is_one_of(&["suite", "suites"]));
    let every = at > 0 && words[at - 1].is_one_of(&["every", "each"]);
    (suite || every) && are_all(&words[..at], false)
}

/// Whether what stands before a claim lets it be one.
fn leads(before: &[Word<'_>]) -> bool {
    let last = before.iter().rev().find(|word| !word.is("the"));
    match last {
        None | Some(Word::Break) => true,
        Some(word) => word.is_one_of(LEADS),
    }
}

fn do_pass(behind: &[Word<'_>]) -> bool {
    let mut behind = behind.iter().skip_while(|word| word.is_one_of(BETWEEN));
    let pass = behind.next().is_some_and(|word| word.is_one_of(PASS));
    let follows = |word: &Word<'_>| *word == Word::Break || word.is_one_of(AFTER);
    let (next, then) = (behind.next(), behind.next());
    // `with 0 failures`, whose end is not there any more, but not `with the old parser`.
    let with =
        next.is_some_and(|word| word.is("with")) && then.is_some_and(|word| *word != Word::Break);
    pass && next.is_none_or(follows) && !with
}

/// `3 of 12`, `3 out of 12`, `3/12`, `25%`: some, and not all.
fn is_fraction(words: &[Word<'_>]) -> bool {
    let text = |word: &&Word<'_>| !word.is_one_of(&["out", "the"]);
    let plain = words.iter().filter(text).map(|word| match word {
        Word::Plain(plain) => plain.as_str(),
        _ => "",
    });
    let plain: Vec<&str> = plain.collect();
    let numbers = |one: &str, other: &str| {
        let number = |text: &str| text.parse::<u64>().ok();
        matches!((number(one), number(other)), (Some(one), Some(other)) if one != other)
    };
    let said = |three: &[&str]| three[1] == "of" && numbers(three[0], three[2]);
    let said = plain.windows(3).any(said);
    let written = |word: &&str| {
        let parts = word.split_once('/');
        let part = word.strip_suffix('%').is_some_and(|number| number != "100");
        part || parts.is_some_and(|(one, other)| numbers(one, other))
    };
    said || plain.iter().any(written)
}

/// `12 passed, 0 failed` denies nothing.
fn without_zero_failures<'a>(words: &[Word<'a>]) -> Vec<Word<'a>> {
    let mut kept: Vec<Word<'a>> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let follows = words.get(at + 1);
        let failures = follows.is_some_and(|word| word.is_one_of(FAILURES));
        if words[at].is_one_of(ZERO) && failures {
            at += 2;
            continue;
        }
        kept.push(words[at].clone());
        at += 1;
    }
    kept
}
