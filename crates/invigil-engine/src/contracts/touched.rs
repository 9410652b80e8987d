//! Which files of the checks an agent has changed. It discloses and does not judge: tests may have to change.

use invigil_schema::{Contract, OsText};

/// A file that was changed.
#[derive(Debug, Clone, Default)]
pub struct Changed {
    /// Its path, relative to where the checks run.
    pub path: OsText,
    /// The lines that were taken away, as far as they are known.
    pub removed: Vec<String>,
}

/// Folders of tests, as they are usually called.
const FOLDERS: [&str; 8] = [
    "test",
    "tests",
    "__tests__",
    "spec",
    "specs",
    "e2e",
    "fixtures",
    "testdata",
];
/// What says how tests are run.
const RUNNERS: [&str; 20] = [
    "makefile",
    "justfile",
    "package.json",
    "cargo.toml",
    "build.rs",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "pytest.ini",
    "tox.ini",
    "noxfile.py",
    "conftest.py",
    "jest.config.js",
    "vitest.config.ts",
    "go.mod",
    "cmakelists.txt",
    "pom.xml",
    "build.gradle",
    ".gitlab-ci.yml",
    "rakefile",
];
/// What runs scripts.
const INTERPRETERS: [&str; 9] = [
    "sh", "bash", "dash", "zsh", "python", "python3", "node", "ruby", "perl",
];
/// What an assertion looks like.
const ASSERTIONS: [&str; 9] = [
    "assert",
    "#[test]",
    "def test_",
    "expect(",
    "it(",
    "test(",
    "t.fatal",
    "t.error",
    "should_panic",
];

/// The changed files that belong to the checks.
pub fn edited_checks(contract: &Contract, changed: &[Changed]) -> Vec<OsText> {
    let belongs = |file: &&Changed| {
        let path = file.path.to_string_lossy();
        named(contract, &path) || is_test(&path) || asserts(&file.removed)
    };
    changed
        .iter()
        .filter(belongs)
        .map(|file| file.path.clone())
        .collect()
}

/// Whether a command of the contract runs the file: as a program, or as a script.
fn named(contract: &Contract, path: &str) -> bool {
    let commands = contract
        .checks
        .iter()
        .flat_map(|check| check.command.split([';', '|', '&', '\n', '(']));
    commands.into_iter().any(|command| {
        let words = command
            .split_whitespace()
            .map(|word| word.trim_matches(['\'', '"']));
        let mut words =
            words.skip_while(|word| word.contains('=') || *word == "!" || *word == "exec");
        let first = words.next().unwrap_or_default();
        let program = first.rsplit('/').next().unwrap_or_default();
        let script = match INTERPRETERS.contains(&program) {
            true => words
                .find(|word| !word.starts_with('-'))
                .unwrap_or_default(),
            false => first,
        };
        script.trim_start_matches("./") == path
    })
}

fn is_test(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    parts.iter().any(|part| FOLDERS.contains(part))
        || RUNNERS.contains(&name)
        || path.starts_with(".github/workflows/")
        || path.starts_with(".cargo/")
        || name.contains(".test.")
        || name.contains(".spec.")
        || stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_spec")
        || stem == "test"
        || stem == "tests"
}

fn asserts(removed: &[String]) -> bool {
    removed.iter().any(|line| {
        let line = line.to_ascii_lowercase();
        ASSERTIONS.iter().any(|sign| line.contains(sign))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_checks() {
        let contract = super::super::parse(
            "checks = [{ name = \"a\", command = \"sh -e ./scripts/verify.sh && A=1 ./run && test -f src/main.rs\" }]",
        )
        .unwrap();
        let changed = |path: &str, removed: &[&str]| Changed {
            path: path.into(),
            removed: removed.iter().map(ToString::to_string).collect(),
        };
        let belongs = |file: Changed| !edited_checks(&contract, &[file]).is_empty();
        for path in [
            "scripts/verify.sh",
            "run",
            "tests/a.rs",
            "src/__tests__/x.js",
            "a/test_x.py",
            "x_test.go",
            "b.spec.ts",
            "Cargo.toml",
            "Makefile",
            ".github/workflows/ci.yml",
            "test.js",
        ] {
            assert!(belongs(changed(path, &[])), "{path}");
        }
        for path in [
            "src/lib.rs",
            "scripts/verify.sh.txt",
            "contest.py",
            "src/main.rs",
            "latest.js",
        ] {
            assert!(!belongs(changed(path, &["let a = 1;"])), "{path}");
        }
        assert!(belongs(changed(
            "src/lib.rs",
            &["        assert_eq!(add(1, 2), 3);"]
        )));
    }
}
