//! Small real repositories, made with git, for whoever the test is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Invigil, NOBODY};

pub(crate) fn own(invigil: &Invigil, path: &Path) {
    if invigil.nobody {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// A file in the directory of the test.
pub(crate) fn put(invigil: &Invigil, name: &str, text: &str) {
    let path = invigil.directory.path().join(name);
    fs::write(&path, text).unwrap();
    own(invigil, &path);
}

/// Runs a script as the user of the test.
#[track_caller]
pub(crate) fn sh(invigil: &Invigil, directory: &Path, script: &str) -> String {
    let mut command = Command::new(if invigil.nobody { "setpriv" } else { "sh" });
    if invigil.nobody {
        let nobody = NOBODY.to_string();
        command.args([
            "--reuid",
            &nobody,
            "--regid",
            &nobody,
            "--clear-groups",
            "sh",
        ]);
    }
    let output: Output = command
        .args(["-e", "-c", script])
        .current_dir(directory)
        .env("HOME", invigil.directory.path())
        .envs([
            ("GIT_AUTHOR_NAME", "A"),
            ("GIT_AUTHOR_EMAIL", "a@example.com"),
            ("GIT_COMMITTER_NAME", "A"),
            ("GIT_COMMITTER_EMAIL", "a@example.com"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
        ])
        .output()
        .unwrap();
    let (out, err) = (
        output.stdout,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{script}\n{err}");
    String::from_utf8_lossy(&out).into_owned()
}

/// A Python package with a failing test, a hook, a stash and a configuration.
pub(crate) const PYTHON: &str = r#"
git init -q -b main .
mkdir calc tests
printf 'def add(a, b):\n    return a - b\n' > calc/__init__.py
touch tests/__init__.py
cat > tests/test_calc.py <<'END'
import unittest
from calc import add

class Adds(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(add(2, 3), 5)
END
printf '__pycache__/\n' > .gitignore
echo stashed > README
git add . && git commit -qm first
echo changed > README && git stash -q
git config user.nickname somebody
printf '#!/bin/sh\ntouch hook-has-run\n' > .git/hooks/post-checkout
chmod +x .git/hooks/post-checkout
cp .git/hooks/post-checkout .git/hooks/reference-transaction
"#;

pub(crate) const PYTHON_CONTRACT: &str = r#"{"description": "add adds", "checks": [
    {"name": "tests_pass", "command": "/usr/bin/python3 -m unittest discover -t . -s tests"},
    {"name": "still_there", "command": "test -f calc/__init__.py"}]}"#;

pub(crate) const NODE: &str = r#"
git init -q -b main .
printf 'exports.add = (a, b) => a - b;\n' > index.js
printf 'const { add } = require("./index.js");\nrequire("assert").strictEqual(add(2, 3), 5);\n' > test.js
printf '{"name": "calc", "version": "1.0.0", "scripts": {"test": "node test.js"}}\n' > package.json
git add . && git commit -qm first
"#;

pub(crate) const NODE_CONTRACT: &str =
    r#"{"checks": [{"name": "tests_pass", "command": "node test.js"}]}"#;

pub(crate) const RUST: &str = r#"
git init -q -b main .
mkdir src tests
printf '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n' > Cargo.toml
printf 'pub fn add(a: i32, b: i32) -> i32 {\n    a - b\n}\n' > src/lib.rs
printf '#[test]\nfn adds() {\n    assert_eq!(calc::add(2, 3), 5);\n}\n' > tests/adds.rs
printf '/target\nCargo.lock\n' > .gitignore
git add . && git commit -qm first
"#;

pub(crate) const RUST_CONTRACT: &str = r#"{"checks": [{"name": "tests_pass", "command": "cargo test --offline -q", "timeout_secs": 600}]}"#;

/// Makes a repository called `repo` by a script.
pub(crate) fn make(invigil: &Invigil, script: &str) -> PathBuf {
    let path = invigil.directory.path().join("repo");
    fs::create_dir(&path).unwrap();
    own(invigil, &path);
    sh(invigil, &path, script);
    path
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}
