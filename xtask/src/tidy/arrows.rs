//! The real arrows between crates against the table in ARCHITECTURE.md.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Crate, Findings, Workspace};

const PAGE: &str = "ARCHITECTURE.md";
const COLUMNS: [&str; 3] = ["crate", "owns", "may use"];

/// A row of the table.
struct Row {
    line: usize,
    name: String,
    may_use: BTreeSet<String>,
}

pub(super) fn check(workspace: &Workspace, findings: &mut Findings) {
    let page = workspace.texts.get(PAGE).map_or("", String::as_str);
    let rows = rows(page);
    if rows.is_empty() {
        let what = format!("write a table of crates here: | {} |", COLUMNS.join(" | "));
        findings.add(PAGE, 1, what);
        return;
    }
    let is_crate = |name: &str| workspace.crates.iter().any(|krate| krate.name == name);
    for row in &rows {
        for name in row.may_use.iter().chain([&row.name]) {
            if !is_crate(name) {
                let what = format!("`{name}` is no crate of the workspace; take it out");
                findings.add(PAGE, row.line, what);
            }
        }
    }
    for krate in &workspace.crates {
        let Some(row) = rows.iter().find(|row| row.name == krate.name) else {
            let what = format!("add a row for `{}` to the table in {PAGE}", krate.name);
            findings.add(&krate.manifest, 1, what);
            continue;
        };
        for used in krate.uses.difference(&row.may_use) {
            let what = format!(
                "`{}` may not use `{used}` ({PAGE}:{}): drop the dependency, or change the table and say why",
                krate.name, row.line
            );
            findings.add(&krate.manifest, 1, what);
        }
    }
}

/// The rows of the first table that has the right columns.
fn rows(page: &str) -> Vec<Row> {
    let mut lines = page.lines().enumerate();
    if !lines.any(|(_, line)| cells(line) == COLUMNS) {
        return Vec::new();
    }
    let table = lines.skip(1).take_while(|(_, line)| line.starts_with('|'));
    table.filter_map(|(at, line)| row(at + 1, line)).collect()
}

fn row(line: usize, text: &str) -> Option<Row> {
    let [name, _, may_use] = cells(text)[..] else {
        return None;
    };
    Some(Row {
        line,
        name: quoted(name).next()?,
        may_use: quoted(may_use).collect(),
    })
}

fn cells(line: &str) -> Vec<&str> {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|');
    line.split('|').map(str::trim).collect()
}

/// The words in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The crates of a workspace, from `cargo metadata`. Nothing if that has another form than expected.
pub(super) fn crates(metadata: &Value) -> Option<Vec<Crate>> {
    let root = metadata["workspace_root"].as_str()?;
    let packages = metadata["packages"].as_array()?;
    let names: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str())
        .collect::<Option<_>>()?;
    let relative = |path: &Value| {
        let path = path.as_str()?.strip_prefix(root)?;
        Some(path.trim_start_matches('/').to_owned())
    };
    let to_crate = |package: &Value| {
        let targets = package["targets"].as_array()?.iter();
        let dependencies = package["dependencies"].as_array()?.iter();
        Some(Crate {
            name: package["name"].as_str()?.to_owned(),
            manifest: relative(&package["manifest_path"])?,
            starts: targets
                .filter(|target| is_start(&target["kind"]))
                .map(|target| relative(&target["src_path"]))
                .collect::<Option<_>>()?,
            uses: dependencies
                .filter(|dependency| dependency["kind"] != "dev")
                .filter_map(|dependency| dependency["name"].as_str())
                .filter(|name| names.contains(name))
                .map(str::to_owned)
                .collect(),
        })
    };
    packages.iter().map(to_crate).collect()
}

fn is_start(kinds: &Value) -> bool {
    let kinds = kinds.as_array().map_or(&[][..], Vec::as_slice);
    kinds.iter().any(|kind| {
        ["lib", "bin", "proc-macro"]
            .iter()
            .any(|start| kind == start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn krate(name: &str, uses: &[&str]) -> Crate {
        Crate {
            name: name.into(),
            manifest: format!("crates/{name}/Cargo.toml"),
            starts: Vec::new(),
            uses: uses.iter().map(|&name| name.into()).collect(),
        }
    }

    fn found(page: &str, crates: Vec<Crate>) -> Vec<String> {
        let mut workspace = Workspace::of(&[(PAGE, page)]);
        workspace.crates = crates;
        let mut findings = Findings::default();
        check(&workspace, &mut findings);
        findings.0.iter().map(ToString::to_string).collect()
    }

    const TABLE: &str = "# A\n\n| crate | owns | may use |\n|---|---|---|\n| `a` | words | – |\n| `b` | files | `a` |\n";

    #[test]
    fn arrows_of_the_table_are_good() {
        assert_eq!(
            found(TABLE, vec![krate("a", &[]), krate("b", &["a"])]),
            [""; 0]
        );
        // What may be used need not be.
        assert_eq!(
            found(TABLE, vec![krate("a", &[]), krate("b", &[])]),
            [""; 0]
        );
    }

    #[test]
    fn an_arrow_against_the_table() {
        let found = found(TABLE, vec![krate("a", &["b"]), krate("b", &["a"])]);
        assert_eq!(
            found,
            [
                "crates/a/Cargo.toml:1: `a` may not use `b` (ARCHITECTURE.md:5): drop the dependency, or change the \
                 table and say why"
            ]
        );
    }

    #[test]
    fn a_crate_without_a_row_and_a_row_without_a_crate() {
        let found = found(TABLE, vec![krate("a", &[]), krate("c", &[])]);
        assert_eq!(
            found,
            [
                "ARCHITECTURE.md:6: `b` is no crate of the workspace; take it out",
                "crates/c/Cargo.toml:1: add a row for `c` to the table in ARCHITECTURE.md"
            ]
        );
    }

    #[test]
    fn no_table() {
        assert_eq!(found("# A\n", vec![krate("a", &[])]).len(), 1);
    }

    #[test]
    fn arrows_come_from_normal_and_build_dependencies() {
        let metadata = json!({
            "workspace_root": "/w",
            "packages": [
                {
                    "name": "a",
                    "manifest_path": "/w/a/Cargo.toml",
                    "targets": [
                        { "kind": ["lib"], "src_path": "/w/a/src/lib.rs" },
                        { "kind": ["test"], "src_path": "/w/a/tests/t.rs" }
                    ],
                    "dependencies": [
                        { "name": "b", "kind": null },
                        { "name": "c", "kind": "build" },
                        { "name": "d", "kind": "dev" },
                        { "name": "serde", "kind": null }
                    ]
                },
                { "name": "b", "manifest_path": "/w/b/Cargo.toml", "targets": [], "dependencies": [] },
                { "name": "c", "manifest_path": "/w/c/Cargo.toml", "targets": [], "dependencies": [] },
                { "name": "d", "manifest_path": "/w/d/Cargo.toml", "targets": [], "dependencies": [] }
            ]
        });
        let crates = crates(&metadata).unwrap();
        assert_eq!(crates[0].manifest, "a/Cargo.toml");
        assert_eq!(crates[0].starts, ["a/src/lib.rs"]);
        assert_eq!(crates[0].uses, BTreeSet::from(["b".into(), "c".into()]));
    }
}
