//! What a model is told of a repository: what lies at its top, how it is built, how it is tested.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;

/// More entries than this are counted.
const SHOWN: usize = 60;
/// A build file is not read beyond this.
const READ: u64 = 256 * 1024;

/// A short text about the repository in this directory.
pub fn summary(directory: &Path) -> String {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if name == ".git" {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            name.push('/');
        }
        names.insert(name.escape_debug().to_string());
    }
    let mut shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = format!("and {} more", names.len().saturating_sub(SHOWN));
    if names.len() > SHOWN {
        shown.push(&more);
    }
    let shown = match shown.is_empty() {
        true => "nothing".to_owned(),
        false => shown.join(", "),
    };
    let mut lines = vec![format!("Top-level entries: {shown}")];
    let systems = systems(directory, &names);
    for (system, test) in &systems {
        lines.push(format!("Build system: {system}; tests: `{test}`"));
    }
    if systems.is_empty() {
        lines.push("Build system: none that is known".to_owned());
    }
    lines.join("\n")
}

/// The build systems, each with its test command.
fn systems(directory: &Path, names: &BTreeSet<String>) -> Vec<(&'static str, String)> {
    let has = |name: &str| names.contains(name);
    let text = |name: &str| {
        let mut text = String::new();
        let read = fs::File::open(directory.join(name))
            .map(|file| file.take(READ).read_to_string(&mut text));
        read.is_ok_and(|read| read.is_ok()).then_some(text)
    };
    let mut found = Vec::new();
    let mut add = |system, test: &str| found.push((system, test.to_owned()));
    if has("Cargo.toml") {
        add("Cargo (Rust)", "cargo test");
    }
    if has("package.json") {
        let package: serde_json::Value = text("package.json")
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let tool = match () {
            () if has("pnpm-lock.yaml") => "pnpm",
            () if has("yarn.lock") => "yarn",
            () if has("bun.lockb") || has("bun.lock") => "bun run",
            () => "npm",
        };
        match package["scripts"]["test"].is_string() {
            true => add("Node", &format!("{tool} test")),
            false => add("Node", "node --test"),
        }
    }
    if has("deno.json") || has("deno.jsonc") {
        add("Deno", "deno test");
    }
    let python = [
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "pytest.ini",
        "tox.ini",
    ];
    if let Some(first) = python.iter().find(|name| has(name)) {
        let pytest = python
            .iter()
            .filter(|name| has(name))
            .any(|name| text(name).is_some_and(|text| text.contains("pytest")));
        match pytest || *first == "pytest.ini" {
            true => add("Python", "python3 -m pytest"),
            false => add("Python", "python3 -m unittest discover"),
        }
    }
    if has("go.mod") {
        add("Go", "go test ./...");
    }
    if has("pom.xml") {
        add("Maven (Java)", "mvn -q test");
    }
    if has("build.gradle") || has("build.gradle.kts") {
        add("Gradle (Java)", "./gradlew test");
    }
    if has("CMakeLists.txt") {
        add(
            "CMake",
            "cmake -B build && cmake --build build && ctest --test-dir build",
        );
    }
    if has("Gemfile") {
        add("Bundler (Ruby)", "bundle exec rake test");
    }
    for make in ["GNUmakefile", "makefile", "Makefile"] {
        if let Some(text) = text(make) {
            let target = |name: &str| {
                text.lines()
                    .any(|line| line.starts_with(&format!("{name}:")))
            };
            match () {
                () if target("test") => add("make", "make test"),
                () if target("check") => add("make", "make check"),
                () => add("make", "make"),
            }
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_and_how_it_is_tested() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(summary(directory.path()).contains("nothing"));
        fs::create_dir(at("src")).unwrap();
        fs::create_dir(at(".git")).unwrap();
        fs::write(at("Cargo.toml"), "").unwrap();
        fs::write(at("package.json"), r#"{"scripts": {"test": "node t.js"}}"#).unwrap();
        fs::write(at("pyproject.toml"), "[tool.pytest.ini_options]").unwrap();
        fs::write(at("Makefile"), "all:\n\ntest: all\n").unwrap();
        let text = summary(directory.path());
        for words in [
            "Cargo.toml, Makefile, package.json, pyproject.toml, src/",
            "`cargo test`",
            "`npm test`",
            "`python3 -m pytest`",
            "`make test`",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains(".git"));
    }
}
