//! The habits of the source that no lint knows.

use super::{Findings, Workspace};

/// A file that is longer is usually two things.
const MAX_LINES: usize = 800;
/// The one crate that may talk to the kernel without the compiler's help.
const MAY_BE_UNSAFE: &str = "crates/invigil-sandbox/";

/// What a source never holds, and what to do. Written in two pieces so that this file does not hold them either.
const NEVER: [((&str, &str), &str); 5] = [
    (
        ("#[all", "ow("),
        "use #[expect(…, reason = \"…\")] in its place",
    ),
    (
        ("#![all", "ow("),
        "use #![expect(…, reason = \"…\")] in its place",
    ),
    (("todo", "!"), "write it, or return an error"),
    (("FIX", "ME"), "put it right, or say why it is as it is"),
    (("XX", "X"), "put it right, or say why it is as it is"),
];

pub(super) fn check(workspace: &Workspace, findings: &mut Findings) {
    for krate in &workspace.crates {
        for start in &krate.starts {
            let text = workspace.texts.get(start).map_or("", String::as_str);
            if !text.starts_with("//!") {
                let what = "begin with `//!`: what the crate is for, and what it does not do";
                findings.add(start, 1, what);
            }
        }
    }
    for (path, text) in &workspace.texts {
        check_length(path, text, findings);
        if path.ends_with(".rs") {
            check_lines(path, text, findings);
        }
    }
}

fn check_length(path: &str, text: &str, findings: &mut Findings) {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        let what = format!("{lines} lines, at most {MAX_LINES}: it is two things, make two files");
        findings.add(path, MAX_LINES + 1, what);
    }
}

fn check_lines(path: &str, text: &str, findings: &mut Findings) {
    for (at, line) in text.lines().enumerate() {
        for ((begin, end), what_to_do) in NEVER {
            let word = format!("{begin}{end}");
            if holds_word(line, &word) {
                findings.add(path, at + 1, format!("`{word}`: {what_to_do}"));
            }
        }
        if is_unsafe(line) && !path.starts_with(MAY_BE_UNSAFE) {
            let what =
                format!("only {MAY_BE_UNSAFE} may hold unsafe code: find a safe way, or move it");
            findings.add(path, at + 1, what);
        }
    }
}

/// Whether `word` is there and no part of a longer one.
fn holds_word(line: &str, word: &str) -> bool {
    let joins = |a: Option<char>, b: Option<char>| {
        [a, b]
            .iter()
            .all(|c| c.is_some_and(|c| c.is_alphanumeric() || c == '_'))
    };
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joined = joins(before, word.chars().next()) || joins(word.chars().next_back(), after);
        !joined
    })
}

fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices("unsafe").any(|(at, word)| {
        let rest = &code[at + word.len()..];
        let begins = [" {", " fn ", " impl", " trait ", " extern ", "("];
        holds_word(code, word) && begins.iter().any(|begin| rest.starts_with(begin))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Crate;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(&Workspace::of(&[(path, text)]), &mut findings);
        findings.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_a_source_never_holds() {
        for ((begin, end), _) in NEVER {
            let text = format!("//! Good.\n    {begin}{end}x)\n");
            let text = text.replace("Xx", "X x").replace("Ex", "E x");
            let found = found("crates/a/src/lib.rs", &text);
            assert_eq!(found.len(), 1, "{text}{found:?}");
            assert!(found[0].starts_with("crates/a/src/lib.rs:2: "), "{found:?}");
        }
        let longer = ["X", "todo", "allow"].map(|word| word.repeat(6)).join("\n");
        assert_eq!(found("a.rs", &longer), [""; 0]);
    }

    #[test]
    fn unsafe_code_lives_in_one_crate() {
        let word = concat!("un", "safe");
        for code in [
            format!("{word} {{ x }}"),
            format!("{word} fn x() {{}}"),
            format!("#[{word}(no_mangle)]"),
        ] {
            assert_eq!(found("crates/a/src/x.rs", &code).len(), 1, "{code}");
            assert_eq!(found("crates/invigil-sandbox/src/x.rs", &code), [""; 0]);
        }
        let harmless = format!("// {word} {{\nforbid({word}_code) // {word} fn");
        assert_eq!(found("crates/a/src/x.rs", &harmless), [""; 0]);
    }

    #[test]
    fn files_have_an_end() {
        let long = "\n".repeat(MAX_LINES + 1);
        assert!(found("a.rs", &long)[0].starts_with("a.rs:801: 801 lines"));
        assert_eq!(found("a.rs", &"\n".repeat(MAX_LINES)), [""; 0]);
    }

    #[test]
    fn a_crate_says_what_it_is_for() {
        let mut workspace = Workspace::of(&[("a/src/lib.rs", "mod x;\n//! Late.")]);
        workspace.crates.push(Crate {
            name: "a".into(),
            manifest: "a/Cargo.toml".into(),
            starts: vec!["a/src/lib.rs".into()],
            uses: Default::default(),
        });
        let mut findings = Findings::default();
        check(&workspace, &mut findings);
        assert_eq!(findings.0.len(), 1);
        assert_eq!(
            (findings.0[0].file.as_str(), findings.0[0].line),
            ("a/src/lib.rs", 1)
        );
    }
}
