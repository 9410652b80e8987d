//! From a sentence to what it claims. Few forms are understood, and none that is doubtful: what is denied, asked, hoped
//! for or made to depend on something claims nothing.

use super::Claimed;
use super::passing;
use super::sentence::{Sentence, Word};

/// A sentence with one of these is about something else than what has happened.
const DOUBT: &[&str] = &[
    "if",
    "unless",
    "should",
    "would",
    "could",
    "will",
    "might",
    "may",
    "must",
    "can",
    "i'll",
    "we'll",
    "it'll",
    "shall",
    "let's",
    "let",
    "please",
    "todo",
    "maybe",
    "perhaps",
    "probably",
    "hopefully",
    "likely",
    "try",
    "tried",
    "trying",
    "plan",
    "want",
    "need",
    "needs",
    "needed",
    "expect",
    "expected",
    "assume",
    "assuming",
    "believe",
    "think",
    "until",
    "once",
    "whether",
    "you",
    "your",
    "they",
    "user",
    "going",
    "gonna",
    "i'd",
    "we'd",
    "suppose",
    "verify",
    "ensure",
    "previous",
    "previously",
    "earlier",
    "yesterday",
    "ago",
];
/// With one of these, what is said not to have happened has happened in some other way, or at some other time.
const QUALIFIED: &[&str] = &[
    "again",
    "although",
    "anymore",
    "apart",
    "aside",
    "before",
    "besides",
    "but",
    "deliberately",
    "directly",
    "except",
    "excluding",
    "first",
    "further",
    "hand",
    "however",
    "initially",
    "intentionally",
    "manually",
    "much",
    "myself",
    "originally",
    "otherwise",
    "semantically",
    "significantly",
    "though",
];
/// What turns a sentence around.
const NEGATION: &[&str] = &[
    "not", "no", "never", "none", "cannot", "can't", "don't", "doesn't", "didn't", "won't",
    "isn't", "aren't", "wasn't", "weren't", "haven't", "hasn't", "hadn't", "couldn't", "neither",
    "nor", "without", "nothing", "failed", "fail", "fails", "failing", "failure", "failures",
    "broken", "except", "but", "however", "although", "though", "some", "most", "many", "few",
    "half", "almost", "nearly", "only", "one", "unable", "instead", "skipped", "error", "errors",
];
const DID_NOT: &[&str] = &["didn't", "haven't", "never", "don't"];
const PEOPLE: &[&str] = &["i", "we", "i've", "we've"];
const BETWEEN: &[&str] = &[
    "have",
    "also",
    "then",
    "just",
    "now",
    "already",
    "successfully",
    "first",
    "finally",
    "and",
];
const CREATED: &[&str] = &["created", "wrote", "generated"];
const ADDED: &[&str] = &["added"];
const CHANGED: &[&str] = &[
    "changed",
    "modified",
    "updated",
    "edited",
    "fixed",
    "patched",
    "rewrote",
    "refactored",
    "touched",
];
const DELETED: &[&str] = &["deleted", "removed"];
const RAN: &[&str] = &["ran", "executed"];
const TOUCH: &[&str] = &[
    "touch", "touched", "change", "changed", "modify", "modified", "edit", "edited", "alter",
    "altered", "write", "wrote", "delete", "deleted", "remove", "removed",
];
const UNTOUCHED: &[&str] = &["untouched", "unchanged", "unmodified", "alone"];
const JOINS: &[&str] = &["and", "or", "nor", "plus"];
const KINDS_OF_FILE: &[&str] = &[
    "a",
    "an",
    "the",
    "new",
    "empty",
    "small",
    "file",
    "files",
    "directory",
    "folder",
    "script",
    "module",
    "named",
    "called",
    "existing",
    "both",
    "in",
    "under",
    "inside",
    "within",
    "below",
    "to",
    "of",
    "any",
    "anything",
];
const NETWORK: &[&str] = &["network", "internet"];
const TRAFFIC: &[&str] = &[
    "access",
    "request",
    "requests",
    "call",
    "calls",
    "traffic",
    "connection",
    "connections",
];

/// Everything that a sentence claims.
pub(super) fn claims(sentence: &Sentence<'_>) -> Vec<Claimed> {
    let words = &sentence.words;
    if words.iter().any(|word| word.is_one_of(DOUBT)) {
        return Vec::new();
    }
    let absent = absence(words);
    if !absent.is_empty() {
        return absent;
    }
    let mut claims = Vec::new();
    if passing::says_so(words, denies) {
        claims.push(Claimed::TestsPass);
    }
    claims.extend(ran(words));
    claims.extend(active(words));
    claims.extend(passive(words));
    claims
}

fn denies(words: &[Word<'_>]) -> bool {
    words.iter().any(|word| word.is_one_of(NEGATION))
}

/// Where somebody says of themselves that they have done one of these: `I have also created`, or `Created` at the start.
fn did(words: &[Word<'_>], verbs: &[&str]) -> Option<usize> {
    let verb = |at: usize| words.get(at).is_some_and(|word| word.is_one_of(verbs));
    if verb(0) {
        return Some(0);
    }
    let people = (0..words.len()).filter(|&at| words[at].is_one_of(PEOPLE));
    let behind = people.map(|at| {
        let skipped = words[at + 1..].iter();
        at + 1 + skipped.take_while(|word| word.is_one_of(BETWEEN)).count()
    });
    let mut behind = behind;
    behind.find(|&at| verb(at)).or_else(|| joined(words, verbs))
}

/// `I created a.txt and ran …`: a second verb behind one that somebody did.
fn joined(words: &[Word<'_>], verbs: &[&str]) -> Option<usize> {
    let begins = words.first()?.is_one_of(PEOPLE);
    let joins = |at: usize| {
        let before = words[..at].iter().rev();
        let mut before = before.skip_while(|word| word.is_one_of(&["then", "also"]));
        before
            .next()
            .is_some_and(|word| word.is("and") || *word == Word::Break)
    };
    let mut verbs_at = (1..words.len()).filter(|&at| words[at].is_one_of(verbs));
    verbs_at.find(|&at| begins && joins(at))
}

/// ``I ran `make check` ``, `I ran the tests`.
fn ran(words: &[Word<'_>]) -> Vec<Claimed> {
    let Some(at) = did(words, RAN) else {
        return Vec::new();
    };
    let behind = &words[at + 1..];
    let command = |command: &str| Claimed::Ran {
        command: command.to_owned(),
    };
    let quoted = behind.iter().take_while(|word| match word {
        Word::Quoted(_) | Word::Break => true,
        word => word.is("and") || word.is("the"),
    });
    let quoted: Vec<Claimed> = quoted
        .filter_map(|word| match word {
            Word::Quoted(text) if is_command_like(text) => Some(command(text)),
            _ => None,
        })
        .collect();
    if !quoted.is_empty() {
        return quoted;
    }
    let filler = [
        "the",
        "all",
        "full",
        "entire",
        "whole",
        "unit",
        "integration",
        "my",
        "our",
        "of",
    ];
    let mut rest = behind.iter().skip_while(|word| word.is_one_of(&filler));
    let tests = rest
        .next()
        .is_some_and(|word| word.is_one_of(&["tests", "test"]));
    match tests {
        true => vec![command(super::suites::THE_TESTS)],
        false => Vec::new(),
    }
}

fn is_command_like(text: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '~');
    text.starts_with(starts) && text.len() <= 500 && !text.contains(['\n', '…'])
}

/// Verbs, what they claim of a file, and whether nothing may follow it.
type Form = (&'static [&'static str], fn(String) -> Claimed, bool);

/// `I created src/a.rs and src/b.rs`.
fn active(words: &[Word<'_>]) -> Vec<Claimed> {
    let forms: [Form; 4] = [
        (CREATED, |path| Claimed::Created { path }, false),
        (ADDED, |path| Claimed::Created { path }, true),
        (CHANGED, |path| Claimed::Changed { path }, false),
        (DELETED, |path| Claimed::Deleted { path }, true),
    ];
    let mut claims = Vec::new();
    for (verbs, claim, strict) in forms {
        let Some(at) = did(words, verbs) else {
            continue;
        };
        let (paths, rest) = paths(&words[at + 1..]);
        // `removed x.rs from the list` and `added x.rs to it` say nothing of the file.
        let ends = rest.is_none_or(|word| {
            word.is_one_of(&["and", "because", "since", "entirely", "completely", "too"])
        });
        if !strict || ends {
            claims.extend(paths.into_iter().map(claim));
        }
    }
    claims
}

/// `src/a.rs was created`.
fn passive(words: &[Word<'_>]) -> Vec<Claimed> {
    if denies(words) {
        return Vec::new();
    }
    let mut claims = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some(path) = word.path() else {
            continue;
        };
        let behind = words[at + 1..].iter();
        let helps = ["was", "were", "has", "have", "been", "is", "now"];
        let mut behind = behind.skip_while(|word| word.is_one_of(&helps)).peekable();
        let helped = words.get(at + 1).is_some_and(|word| word.is_one_of(&helps));
        let (Some(verb), path) = (behind.next(), path.to_owned()) else {
            continue;
        };
        let ends = behind.peek().is_none_or(|word| **word == Word::Break);
        match verb {
            _ if !helped => {}
            verb if verb.is_one_of(CREATED) => claims.push(Claimed::Created { path }),
            verb if verb.is_one_of(DELETED) && ends => claims.push(Claimed::Deleted { path }),
            verb if verb.is_one_of(CHANGED) => claims.push(Claimed::Changed { path }),
            _ => {}
        }
    }
    claims
}

/// The names of files at the beginning of some words, and the word behind them.
fn paths<'a, 'b>(words: &'b [Word<'a>]) -> (Vec<String>, Option<&'b Word<'a>>) {
    let mut paths = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if let Some(path) = word.path() {
            paths.push(path.to_owned());
            continue;
        }
        let joins = |word: &Word<'_>| word.is_one_of(JOINS) || *word == Word::Break;
        // Behind the last of them a conjunction begins something else.
        let goes_on = words[at + 1..].iter().find(|next| !joins(next));
        let more = goes_on.is_some_and(|next| next.path().is_some());
        match paths.is_empty() {
            true if word.is_one_of(KINDS_OF_FILE) || *word == Word::Break => {}
            false if joins(word) && more => {}
            // `a.rs to …`: it is over.
            _ => return (paths, Some(word).filter(|word| **word != Word::Break)),
        }
    }
    (paths, None)
}

/// The same, if these are all names of files that the words have: `src/, the tests and docs/` are not understood.
fn all_paths(words: &[Word<'_>]) -> Option<Vec<String>> {
    let (paths, _) = paths(words);
    let named = words.iter().filter(|word| word.path().is_some()).count();
    (!paths.is_empty() && paths.len() == named).then_some(paths)
}

/// What is said not to have happened.
fn absence(words: &[Word<'_>]) -> Vec<Claimed> {
    if words.iter().any(|word| word.is_one_of(QUALIFIED)) {
        return Vec::new();
    }
    if no_network(words) {
        return vec![Claimed::NoNetwork];
    }
    if let Some(paths) = only(words) {
        return vec![Claimed::OnlyTouched { paths }];
    }
    let paths = untouched(words);
    let each = paths.into_iter();
    each.map(|path| Claimed::Untouched { path }).collect()
}

/// `I made no network requests`, `without any network access`, `I did not use the network`.
fn no_network(words: &[Word<'_>]) -> bool {
    let Some(at) = words.iter().position(|word| word.is_one_of(NETWORK)) else {
        return false;
    };
    let before: Vec<&Word<'_>> = words[..at].iter().rev().collect();
    let filler = [
        "any",
        "the",
        "using",
        "accessing",
        "use",
        "used",
        "access",
        "accessed",
        "make",
        "made",
        "making",
        "touch",
        "touched",
    ];
    let Some(turn) = before.iter().find(|word| !word.is_one_of(&filler)) else {
        return false;
    };
    let behind: Vec<&Word<'_>> = words[at + 1..]
        .iter()
        .skip_while(|word| word.is_one_of(TRAFFIC))
        .collect();
    let done = ["was", "were", "made", "used", "performed", "at", "all"];
    let ends = behind
        .iter()
        .all(|word| word.is_one_of(&done) || **word == Word::Break);
    let follows = behind.first().is_none_or(|word| {
        **word == Word::Break || word.is_one_of(&done) || word.is_one_of(&["and", "during", "in"])
    });
    match turn {
        turn if turn.is("no") => {
            let said = before.get(1).is_none_or(|word| {
                word.is_one_of(&["made", "used", "was", "were", "there"]) || **word == Word::Break
            });
            said && ends
        }
        turn if turn.is("without") => follows,
        turn if turn.is_one_of(DID_NOT) => follows,
        turn if turn.is("not") => {
            let helps = ["did", "have", "has"];
            let verb = before
                .iter()
                .take_while(|word| !word.is("not"))
                .any(|word| !word.is_one_of(&["any", "the"]));
            verb && follows
                && before
                    .iter()
                    .skip_while(|word| !word.is("not"))
                    .nth(1)
                    .is_some_and(|word| word.is_one_of(&helps))
        }
        _ => false,
    }
}

/// `I only touched src/`, `nothing outside src/ was changed`, `all changes are limited to src/`.
fn only(words: &[Word<'_>]) -> Option<Vec<String>> {
    let has = |list: &[&str]| words.iter().any(|word| word.is_one_of(list));
    let at = |word: &str| words.iter().position(|other| other.is(word));
    if let Some(only) = at("only") {
        let behind = &words[only + 1..];
        let people = words[..only].iter().any(|word| word.is_one_of(PEOPLE));
        if people && behind.first().is_some_and(|word| word.is_one_of(CHANGED)) {
            return whole(&behind[1..]);
        }
        // `Only src/a.rs was changed`, `the only file that I changed is a.rs`.
        if only == 0 && has(CHANGED) {
            return all_paths(behind);
        }
        let filler = ["file", "files", "that", "i", "i've", "we", "have"];
        let verb = behind.iter().position(|word| !word.is_one_of(&filler))?;
        let is = behind
            .get(verb + 1)?
            .is_one_of(&["is", "are", "was", "were"]);
        return match behind[verb].is_one_of(CHANGED) && is && verb > 0 {
            true => all_paths(&behind[verb + 2..]),
            false => None,
        };
    }
    if let Some(outside) = at("outside") {
        let denied = words[..outside]
            .iter()
            .any(|word| word.is_one_of(DID_NOT) || word.is_one_of(&["not", "nothing", "no"]));
        return match denied && has(TOUCH) {
            true => all_paths(&words[outside + 1..]),
            false => None,
        };
    }
    let confined = words
        .iter()
        .position(|word| word.is_one_of(&["confined", "limited", "restricted"]))?;
    let changes = words[..confined]
        .iter()
        .any(|word| word.is_one_of(&["changes", "edits", "modifications"]));
    match changes && !has(&["not", "aren't", "isn't"]) {
        true => all_paths(&words[confined + 1..]),
        false => None,
    }
}

/// The paths, if nothing else is named behind them: `I only changed a.rs and the tests` is not understood.
fn whole(words: &[Word<'_>]) -> Option<Vec<String>> {
    let (_, rest) = paths(words);
    let ends =
        rest.is_none_or(|word| word.is_one_of(&["because", "since", "as", "for", "to", "so"]));
    all_paths(words).filter(|_| ends)
}

/// `I did not touch a.rs`, `a.rs was left untouched`, `without changing a.rs`.
fn untouched(words: &[Word<'_>]) -> Vec<String> {
    for (at, word) in words.iter().enumerate() {
        let not = word.is("not") && at > 0 && words[at - 1].is_one_of(&["did", "have"]);
        let verb = words.get(at + 1).is_some_and(|verb| verb.is_one_of(TOUCH));
        let ing = ["touching", "changing", "modifying", "editing", "altering"];
        let without =
            word.is("without") && words.get(at + 1).is_some_and(|verb| verb.is_one_of(&ing));
        let people = words[..at].iter().any(|word| word.is_one_of(PEOPLE));
        if (people && verb && (not || word.is_one_of(DID_NOT))) || without {
            return all_paths(&words[at + 2..]).unwrap_or_default();
        }
        if word.is_one_of(&["left", "leaving"]) {
            let (found, rest) = paths(&words[at + 1..]);
            if rest.is_some_and(|word| word.is_one_of(UNTOUCHED)) {
                return found;
            }
        }
        if word.path().is_some() && !words[..at].iter().any(|word| word.path().is_some()) {
            let (found, rest) = paths(&words[at..]);
            let stays = rest.is_some_and(|word| {
                word.is_one_of(&["is", "are", "was", "were", "remains", "remain"])
            });
            let behind = words[at..].iter().skip_while(|word| {
                !word.is_one_of(&["is", "are", "was", "were", "remains", "remain"])
            });
            let mut behind = behind
                .skip(1)
                .skip_while(|word| word.is_one_of(&["left", "still", "completely"]));
            let (first, second) = (behind.next(), behind.next());
            let plainly = first.is_some_and(|word| word.is_one_of(UNTOUCHED));
            let denied = first.is_some_and(|word| word.is("not"))
                && second.is_some_and(|word| word.is_one_of(TOUCH));
            if stays && (plainly || denied) {
                return found;
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::super::sentence::sentences;
    use super::*;

    fn of(text: &str) -> Vec<Claimed> {
        sentences(text).iter().flat_map(claims).collect()
    }

    fn ran(command: &str) -> Claimed {
        let command = command.to_owned();
        Claimed::Ran { command }
    }

    fn created(path: &str) -> Claimed {
        let path = path.to_owned();
        Claimed::Created { path }
    }

    fn changed(path: &str) -> Claimed {
        let path = path.to_owned();
        Claimed::Changed { path }
    }

    fn deleted(path: &str) -> Claimed {
        let path = path.to_owned();
        Claimed::Deleted { path }
    }

    fn left(path: &str) -> Claimed {
        let path = path.to_owned();
        Claimed::Untouched { path }
    }

    fn only(paths: &[&str]) -> Claimed {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        Claimed::OnlyTouched { paths }
    }

    #[test]
    fn tests_that_are_said_to_pass() {
        for text in [
            "All tests pass.",
            "All 12 tests pass",
            "the test suite passes",
            "✅ Tests are passing!",
            "All unit tests now pass, 0 failures.",
            "12 tests passed, 0 failed",
            "`cargo test` passes",
            "Everything is done and all tests are green.",
            "I verified that all of the tests pass.",
            "All tests passed with 0 failures.",
            "With that, all tests pass again.",
            "Every test passes",
        ] {
            assert_eq!(of(text), [Claimed::TestsPass], "{text}");
        }
    }

    #[test]
    fn what_is_not_claimed_of_tests() {
        for text in [
            "Not all tests pass.",
            "The tests do not pass.",
            "Most tests pass",
            "Two tests fail and the other tests pass",
            "All tests pass except one",
            "Do all tests pass?",
            "If all tests pass, commit.",
            "The tests should pass now.",
            "I will make sure all tests pass.",
            "The user said \"all tests pass\".",
            "> all tests pass",
            "```\nall tests pass\n```",
            "I passed the test file to the parser.",
            "`ls` passes",
            "3 of 12 tests pass",
            "3 out of the 12 tests passed.",
            "3/12 tests pass",
            "Tests passed: 3 of 12",
            "80% of the tests pass",
            "0 tests pass",
            "Zero tests passed.",
            "7 tests pass",
            "tests pass a flag to the parser",
            "The tests pass `--verbose` to it.",
            "Before my change all tests passed.",
            "All tests passed before.",
            "All tests had passed",
            "All tests pass on main.",
            "All tests pass in CI",
            "All tests pass with the old parser",
            "The goal: all tests pass.",
            "When all tests pass, I stop",
            "Apart from two, all tests pass",
            "The new tests pass.",
            "The integration tests pass.",
            "The test passes.",
            "The remaining tests pass",
            "The README says that all tests pass.",
            "Tests were green when I started",
        ] {
            assert_eq!(of(text), [], "{text}");
        }
    }

    #[test]
    fn commands_that_are_said_to_have_run() {
        assert_eq!(of("I ran `cargo test --all`."), [ran("cargo test --all")]);
        assert_eq!(
            of("I have also executed `make` and `make check`."),
            [ran("make"), ran("make check")]
        );
        assert_eq!(of("Ran `./build.sh`"), [ran("./build.sh")]);
        assert_eq!(of("I ran the full test suite."), [ran("the tests")]);
        assert_eq!(
            of("I ran the tests and all tests pass."),
            [Claimed::TestsPass, ran("the tests")]
        );
        for text in [
            "I did not run `make`.",
            "I never ran `make`",
            "You ran `make`",
            "I ran into a problem with `make`",
            "Running `make` would help",
        ] {
            assert_eq!(of(text), [], "{text}");
        }
    }

    #[test]
    fn files_that_are_said_to_be_different() {
        assert_eq!(of("I created `a.txt`."), [created("a.txt")]);
        assert_eq!(
            of("Created a new file named src/b.rs"),
            [created("src/b.rs")]
        );
        assert_eq!(
            of("I've updated a.rs, b.rs and c.rs to use it."),
            [changed("a.rs"), changed("b.rs"), changed("c.rs")]
        );
        assert_eq!(of("I deleted `old.py`."), [deleted("old.py")]);
        assert_eq!(of("`src/x.py` was created."), [created("src/x.py")]);
        assert_eq!(
            of("I created a.txt and ran `make`."),
            [ran("make"), created("a.txt")]
        );
        assert_eq!(
            of("- Updated `Cargo.toml`\n- Removed `old/`"),
            [changed("Cargo.toml"), deleted("old/")]
        );
        for text in [
            "I removed `a.rs` from the list",
            "I added a.rs to the index",
            "I updated `Config.parse`",
            "I have not created a.txt",
            "I created a.txt in the previous session",
            "I would have created a.txt",
            "a.txt was not created",
            "I created a function in the parser",
        ] {
            assert_eq!(of(text), [], "{text}");
        }
    }

    #[test]
    fn what_is_said_to_be_left_alone() {
        assert_eq!(of("I did not touch `config.toml`."), [left("config.toml")]);
        assert_eq!(of("I didn't modify any files in tests/."), [left("tests/")]);
        assert_eq!(of("Cargo.lock was left unchanged."), [left("Cargo.lock")]);
        assert_eq!(
            of("I left `a.rs` and `b.rs` untouched."),
            [left("a.rs"), left("b.rs")]
        );
        assert_eq!(
            of("I did not touch a.rs or b.rs."),
            [left("a.rs"), left("b.rs")]
        );
        assert_eq!(
            of("I did not touch anything outside src/ or docs/."),
            [only(&["src/", "docs/"])]
        );
        assert_eq!(of("I only touched src/."), [only(&["src/"])]);
        assert_eq!(
            of("I only changed files in `src/` and `docs/`."),
            [only(&["src/", "docs/"])]
        );
        assert_eq!(
            of("I did not touch anything outside of src/"),
            [only(&["src/"])]
        );
        assert_eq!(of("All changes are confined to src/."), [only(&["src/"])]);
        assert_eq!(of("The only file I changed is a.rs"), [only(&["a.rs"])]);
        assert_eq!(of("Only `a.rs` was modified."), [only(&["a.rs"])]);
        for text in [
            "I only touched src/ and the tests",
            "I only touched src/ as well as docs/",
            "I did not touch a.rs, the tests, or b.rs",
            "I did not touch the tests",
            "I did not touch a.rs at first",
            "I did not edit a.rs by hand",
            "I did not touch a.rs, except for a comment",
            "Nothing outside src/ was changed, apart from the lock file",
            "Initially I did not change a.rs",
            "I could not touch a.rs",
            "Changes are not limited to src/",
        ] {
            assert_eq!(of(text), [], "{text}");
        }
    }

    #[test]
    fn networks_that_are_said_not_to_be_used() {
        for text in [
            "I made no network requests.",
            "No network access was used",
            "I did not use the network",
            "I didn't make any network calls.",
            "I did everything without network access.",
            "I never accessed the internet.",
            "No network calls",
        ] {
            assert_eq!(of(text), [Claimed::NoNetwork], "{text}");
        }
        for text in [
            "There is no network access available here",
            "The network is down",
            "No network interface was found",
            "I did not use the network, except to install things",
            "I used the network",
        ] {
            assert_eq!(of(text), [], "{text}");
        }
    }
}
