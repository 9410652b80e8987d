//! Which commands run tests. What only lists, compiles or explains them does not.

use std::borrow::Cow;

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
    "-n",
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
    "nox",
    "phpunit",
    "prove",
    "py.test",
    "pytest",
    "rspec",
    "tox",
    "vitest",
];
/// Programs that do so when their first word says `test`.
const WITH_WORD: &[&str] = &[
    "bazel", "bun", "cabal", "cargo", "dart", "deno", "dotnet", "flutter", "go", "lein", "mix",
    "npm", "pnpm", "sbt", "stack", "swift", "yarn", "zig",
];
/// Programs that do so when one of their words is a goal that does.
const WITH_GOAL: &[&str] = &[
    "gmake", "gradle", "gradlew", "just", "make", "meson", "mvn", "mvnw", "ninja", "rake", "task",
];
const GOALS: &[&str] = &["test", "tests", "check", "verify", "spec"];
/// Programs that run a script.
const INTERPRETERS: &[&str] = &[
    "ash", "bash", "bun", "dash", "deno", "ksh", "node", "perl", "ruby", "sh", "zsh",
];

/// Whether a command line, as a person writes it, runs tests.
pub(super) fn is_command(text: &str) -> bool {
    let words: Vec<Cow<'_, str>> = text.split_whitespace().map(Cow::Borrowed).collect();
    is_test(&words)
}

/// Whether a program with these arguments, its own name first, runs tests.
pub(super) fn is_test(argv: &[Cow<'_, str>]) -> bool {
    let assigns = |word: &Cow<'_, str>| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
    };
    let argv = &argv[argv.iter().take_while(|word| assigns(word)).count()..];
    let Some((program, arguments)) = argv.split_first() else {
        return false;
    };
    if arguments.iter().any(|word| IDLE.contains(&word.as_ref())) {
        return false;
    }
    let program = base_name(program);
    let words: Vec<&str> = arguments
        .iter()
        .map(Cow::as_ref)
        .filter(|word| !word.starts_with(['-', '+']))
        .collect();
    let first = words.first().copied().unwrap_or_default();
    let second = words.get(1).copied().unwrap_or_default();
    if RUNNERS.contains(&program) {
        return true;
    }
    if WITH_WORD.contains(&program) && is_test_word(program, first, second) {
        return true;
    }
    if WITH_GOAL.contains(&program) {
        return words.iter().any(|word| GOALS.contains(word));
    }
    if program == "npx" || program == "bunx" {
        return !words.is_empty()
            && is_test(&arguments[arguments.iter().position(|word| word == first).unwrap_or(0)..]);
    }
    if program.starts_with("python") || program.starts_with("pypy") {
        return is_python_test(arguments, first, second);
    }
    if INTERPRETERS.contains(&program) {
        let inline = arguments
            .iter()
            .any(|word| matches!(word.as_ref(), "-c" | "-e" | "-lc" | "-ic"));
        let own = program == "node" && arguments.iter().any(|word| word == "--test");
        return own || !inline && is_test_script(first);
    }
    is_test_script(program) && program != "test"
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

fn is_python_test(arguments: &[Cow<'_, str>], first: &str, second: &str) -> bool {
    let module = arguments.iter().position(|word| word == "-m");
    if let Some(module) = module {
        let name = arguments.get(module + 1).map(Cow::as_ref);
        return matches!(
            name,
            Some("pytest" | "unittest" | "nose2" | "tox" | "nox" | "doctest")
        );
    }
    if arguments.iter().any(|word| word == "-c") {
        return false;
    }
    is_test_script(first) || base_name(first) == "manage.py" && second == "test"
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
            "",
        ] {
            assert!(!is_command(command), "{command}");
        }
    }
}
