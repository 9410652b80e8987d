//! Links between pages: each leads somewhere, and each page of the documentation is found.

use std::collections::BTreeSet;

use super::{Findings, Workspace};

/// Where readers begin.
const DOORS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

pub(super) fn check(workspace: &Workspace, findings: &mut Findings) {
    for (path, text) in pages(workspace) {
        for (line, link) in links(text) {
            if !workspace.paths.contains(&resolve(path, link)) {
                let what =
                    format!("the link `{link}` leads nowhere: write the path from this file");
                findings.add(path, line, what);
            }
        }
    }
    let found = reachable(workspace);
    for (path, _) in pages(workspace).filter(|(path, _)| path.starts_with("docs/")) {
        if !found.contains(path) {
            let what = format!(
                "nobody finds this page: link to it from {}",
                DOORS.join(" or ")
            );
            findings.add(path, 1, what);
        }
    }
}

fn pages(workspace: &Workspace) -> impl Iterator<Item = (&str, &str)> {
    let texts = workspace.texts.iter();
    texts
        .filter(|(path, _)| path.ends_with(".md"))
        .map(|(path, text)| (path.as_str(), text.as_str()))
}

fn reachable(workspace: &Workspace) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<String> = DOORS.map(String::from).to_vec();
    while let Some(page) = open.pop() {
        if let Some(text) = workspace.texts.get(&page) {
            open.extend(links(text).map(|(_, link)| resolve(&page, link)));
            open.retain(|page| !found.contains(page));
            found.insert(page);
        }
    }
    found
}

/// The relative links of a page, with their lines. Code is left out.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let prose = text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !fence && !in_code
    });
    prose.flat_map(|(at, line)| {
        // Every second piece is code; a link whose text is code is cut in two, and its second half still has the `](`.
        let pieces = line.split('`').step_by(2);
        let ends = pieces.flat_map(|piece| piece.split("](").skip(1));
        let targets = ends.filter_map(|end| end.split_once(')'));
        targets
            .map(|(target, _)| target.split('#').next().unwrap_or_default())
            .filter(|target| !target.is_empty() && !target.contains(':'))
            .map(move |target| (at + 1, target))
    })
}

/// The path of `link` from the root, as it stands in `page`.
fn resolve(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." if parts.pop().is_none() => return String::from("outside of the repository"),
            ".." => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut findings = Findings::default();
        check(&Workspace::of(files), &mut findings);
        findings.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_lead_somewhere() {
        let readme = "[a](docs/a.md) [`x`](docs/) [b](./docs/a.md#part) [c](https://c.example/x.md) [d](#here)";
        assert_eq!(
            found(&[
                ("README.md", readme),
                ("docs/a.md", "[up](../README.md) [b](b.md)"),
                ("docs/b.md", "")
            ]),
            [""; 0]
        );
    }

    #[test]
    fn links_that_lead_nowhere() {
        let found = found(&[(
            "README.md",
            "fine\n[a](b.md), [`x`](y/z.rs) and [out](../x.md)",
        )]);
        let places: Vec<_> = found
            .iter()
            .map(|what| what.split(':').take(2).collect())
            .collect::<Vec<Vec<_>>>();
        assert_eq!(places, [["README.md", "2"]; 3], "{found:?}");
    }

    #[test]
    fn links_in_code_are_no_links() {
        let text = "```\n[a](b.md)\n```\nand `[a](b.md)`\n";
        assert_eq!(found(&[("README.md", text)]), [""; 0]);
    }

    #[test]
    fn a_page_that_nobody_finds() {
        let found = found(&[
            ("ARCHITECTURE.md", "[a](docs/a.md)"),
            ("docs/a.md", ""),
            ("docs/lost.md", "[me](lost.md)"),
        ]);
        assert_eq!(
            found,
            [
                "docs/lost.md:1: nobody finds this page: link to it from README.md or ARCHITECTURE.md"
            ]
        );
    }
}
