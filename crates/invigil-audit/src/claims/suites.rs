//! Which commands run tests. What only lists, compiles or explains them does not.

use super::program::{Program, Reading};

/// What a claim calls all tests, whatever runs them.
pub(super) const THE_TESTS: &str = "the tests";

/// Options with which nothing is run.
const IDLE: &[&str] = &[
    "--help",
    "-h",
    "--version",
    "-V",
    "--no-run",
    "--list",
    "--collect-only",
    "--co",
    "--list-tests",
    "--listTests",
    "--dry-run",
];
/// The same for programs with goals. To others these say something else: `pytest -n 4` runs tests.
const IDLE_GOALS: &[&str] = &[
    "-n",
    "--just-print",
    "--recon",
    "-q",
    "--question",
    "-t",
    "--touch",
];
/// Programs that do nothing else.
const RUNNERS: &[&str] = &[
    "ava",
    "bats",
    "ctest",
    "gotestsum",
    "jest",
    "mocha",
    "nose2",
    "nosetests",
    "phpunit",
    "prove",
    "py.test",
    "pytest",
    "rspec",
    "vitest",
];
/// Programs that start them.
const STARTERS: &[&str] = &["nox", "tox"];
/// Programs that do so when their first word says `test`.
const WITH_WORD: &[&str] = &[
    "bazel", "bun", "cabal", "cargo", "dart", "deno", "dotnet", "flutter", "go", "lein", "mix",
    "npm", "pnpm", "sbt", "stack", "swift", "yarn", "zig",
];
/// Those among them that only start what is named elsewhere.
const SCRIPTED: &[&str] = &["npm", "pnpm", "yarn"];
/// Programs that do so when one of their words is a goal that does.
const WITH_GOAL: &[&str] = &[
    "gmake", "gradle", "gradlew", "just", "make", "meson", "mvn", "mvnw", "ninja", "rake", "task",
];
const GOALS: &[&str] = &["test", "tests", "check", "verify", "spec"];
/// Words that say that tests are run, and not which.
const WORDS: &[&str] = &[
    "build", "check", "doctest", "nextest", "nose2", "pytest", "run", "spec", "t", "test", "tests",
    "unittest", "verify",
];
/// Options that choose some of the tests, or say how much is shown of them.
const CHOOSING: &[&str] = &[
    "--",
    "--bin",
    "--exact",
    "--lf",
    "--lib",
    "--nocapture",
    "--package",
    "--quiet",
    "--test",
    "--verbose",
    "-k",
    "-p",
    "-q",
    "-run",
    "-s",
    "-t",
    "-v",
    "-vv",
    "-x",
];

/// What runs tests, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suite {
    /// A program that runs them itself.
    Runner,
    /// A script, or a program that starts others: its exit code is what its author made of theirs.
    Starter,
}

/// Whether programs do nothing with this option but to talk about themselves.
pub(super) fn is_idle(word: &str) -> bool {
    IDLE.contains(&word)
}

/// Whether a command line, as a person writes it, runs tests.
pub(super) fn is_command(text: &str) -> bool {
    let assigns = |word: &&str| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
    };
    let words = text.split_whitespace().skip_while(assigns);
    let argv: Vec<String> = words.map(str::to_owned).collect();
    let Some(executable) = argv.first().cloned() else {
        return false;
    };
    let requested = None;
    suite(&Program {
        executable,
        requested,
        argv,
    })
    .is_some()
}

/// Whether a program runs tests, by the file that was loaded or the script that it interprets; and which of these it is.
pub(super) fn suite(program: &Program) -> Option<(Suite, Reading<'_>)> {
    let readings = program.readings().into_iter();
    let mut suites = readings.filter_map(|reading| {
        let arguments: Vec<&str> = reading.arguments.iter().map(String::as_str).collect();
        Some((kind(reading.name(), &arguments)?, reading))
    });
    suites.next()
}

/// Whether a program with these arguments runs tests.
fn kind(program: &str, arguments: &[&str]) -> Option<Suite> {
    let is = |list: &[&str]| list.contains(&program);
    let has = |list: &[&str]| arguments.iter().any(|word| list.contains(word));
    if has(IDLE) || is(WITH_GOAL) && has(IDLE_GOALS) {
        return None;
    }
    let words = arguments
        .iter()
        .filter(|word| !word.starts_with(['-', '+']));
    let words: Vec<&str> = words.copied().collect();
    let first = words.first().copied().unwrap_or_default();
    let second = words.get(1).copied().unwrap_or_default();
    let some = |runs: bool, suite: Suite| runs.then_some(suite);
    if is(RUNNERS) {
        return Some(Suite::Runner);
    }
    if is(STARTERS) {
        return Some(Suite::Starter);
    }
    if is(WITH_WORD) && is_test_word(program, first, second) {
        let starts = is(SCRIPTED) || first == "run";
        return Some(if starts {
            Suite::Starter
        } else {
            Suite::Runner
        });
    }
    if is(WITH_GOAL) {
        return some(has(GOALS), Suite::Starter);
    }
    if matches!(program, "npx" | "bunx") {
        let at = arguments.iter().position(|word| *word == first)?;
        return kind(base_name(first), &arguments[at + 1..]).map(|_| Suite::Starter);
    }
    if program.starts_with("python") || program.starts_with("pypy") {
        return some(is_python_test(arguments, first, second), Suite::Runner);
    }
    if program == "node" && has(&["--test"]) {
        return Some(Suite::Runner);
    }
    some(is_test_script(program) && program != "test", Suite::Starter)
}

/// Whether a command runs all tests that another one of the same program runs: it names none, and the other one has the
/// same arguments but for some that only choose.
pub(super) fn covers(wide: &[String], narrow: &[String]) -> bool {
    let names_none = |word: &String| word.starts_with('-') || WORDS.contains(&word.as_str());
    let mut left: Vec<&String> = narrow.iter().collect();
    let all = wide.iter().all(|word| {
        let at = left.iter().position(|other| *other == word);
        at.map(|at| left.remove(at)).is_some()
    });
    let chooses = |word: &String| {
        !word.starts_with('-') || CHOOSING.contains(&word.as_str()) || word.starts_with("--tb=")
    };
    all && wide.iter().all(names_none) && left.into_iter().all(chooses)
}

fn is_test_word(program: &str, first: &str, second: &str) -> bool {
    match (program, first) {
        ("cargo", "t") | ("npm", "t") => true,
        ("cargo", "nextest") => matches!(second, "run" | "r"),
        ("npm" | "pnpm" | "yarn" | "bun", "run") => second == "test" || second.starts_with("test:"),
        ("npm" | "pnpm" | "yarn", word) if word.starts_with("test:") => true,
        ("zig", "build") => second == "test",
        (_, word) => word == "test",
    }
}

fn is_python_test(arguments: &[&str], first: &str, second: &str) -> bool {
    let module = arguments.iter().position(|word| *word == "-m");
    if let Some(module) = module {
        return matches!(
            arguments.get(module + 1),
            Some(&("pytest" | "unittest" | "nose2" | "tox" | "nox" | "doctest"))
        );
    }
    !arguments.contains(&"-c") && base_name(first) == "manage.py" && second == "test"
}

/// Whether a script is called after what it tests, or that it does.
fn is_test_script(path: &str) -> bool {
    let name = base_name(path).to_ascii_lowercase();
    let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, ""));
    let runs = ["run-test", "run_test", "runtest"]
        .iter()
        .any(|start| stem.starts_with(start));
    let script = matches!(
        ending,
        "bash" | "js" | "mjs" | "cjs" | "pl" | "py" | "rb" | "sh" | "ts"
    );
    let named = matches!(stem, "test" | "tests")
        || ["test_", "test-", "tests_"]
            .iter()
            .any(|start| stem.starts_with(start))
        || [
            "_test", "-test", "_tests", "-tests", ".test", ".spec", "_spec",
        ]
        .iter()
        .any(|end| stem.ends_with(end));
    runs && (script || ending.is_empty()) || script && named
}

/// The last part of a path.
pub(super) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::program::split;
    use super::*;

    #[test]
    fn commands_that_run_tests() {
        for command in [
            "cargo test",
            "cargo +nightly test -p x",
            "RUST_LOG=debug cargo nextest run",
            "pytest -q tests/",
            "/usr/bin/python3 -m pytest",
            "python3 tests/test_parser.py",
            "npm test",
            "npm run test:unit",
            "npx jest --ci",
            "go test ./...",
            "make -j2 check",
            "./run_tests.sh",
            "sh ./test.sh",
            "/bin/sh tests/run-tests",
            "node --test",
            "./gradlew test",
            "pytest -n 4",
            "python3 /usr/bin/pytest -q",
            "node /usr/bin/npm test",
            "bash -eu run_tests.sh",
        ] {
            assert!(is_command(command), "{command}");
        }
    }

    #[test]
    fn commands_that_do_not() {
        for command in [
            "/usr/bin/test -f x",
            "test",
            "cargo build",
            "cargo test --no-run",
            "pytest --collect-only",
            "pytest --version",
            "sh -c 'cargo test'",
            "python3 -c 'import test'",
            "cat test.sh",
            "make",
            "npm run build",
            "latest.sh",
            "make -n check",
            "bash -n run_tests.sh",
            "echo pytest",
            "",
        ] {
            assert!(!is_command(command), "{command}");
        }
    }

    #[test]
    fn which_tests_another_command_runs_too() {
        let covers = |wide: &str, narrow: &str| covers(&split(wide), &split(narrow));
        assert!(covers("", "a.py"));
        assert!(covers("test", "test parser -- --exact"));
        assert!(covers("test --all", "test --all -p x"));
        assert!(covers("-q", "tests/a.py -q -x"));
        assert!(!covers("a.py", "a.py b.py"));
        assert!(!covers("a.py", "b.py"));
        assert!(!covers("test", "test --workspace"));
        assert!(!covers("", "--runslow"));
    }

    #[test]
    fn the_name_that_a_program_gives_itself_says_nothing() {
        let of = |executable: &str, argv: &str| {
            let program = Program {
                executable: executable.into(),
                requested: None,
                argv: split(argv),
            };
            suite(&program).map(|(suite, _)| suite)
        };
        assert_eq!(of("/bin/true", "pytest"), None);
        assert_eq!(of("/bin/true", "python3 /usr/bin/pytest"), None);
        assert_eq!(
            of("/usr/bin/python3.11", "x /usr/bin/pytest"),
            Some(Suite::Runner)
        );
        assert_eq!(of("/usr/bin/pytest", "x"), Some(Suite::Runner));
        assert_eq!(of("/bin/dash", "sh run_tests.sh"), Some(Suite::Starter));
        assert_eq!(of("/bin/busybox", "sh run_tests.sh"), Some(Suite::Starter));
    }
}
