//! Whether a contract can prove anything, and how it reads.

use std::collections::HashMap;
use std::fmt;

use invigil_schema::{Check, Contract};

/// The name that prompts use as an example.
const PLACEHOLDER: &str = "unique_snake_case_label";
const TOOLS: [&str; 25] = [
    "cargo", "rustc", "rustup", "node", "npm", "npx", "yarn", "pnpm", "python", "python3", "pip",
    "pip3", "go", "java", "javac", "ruby", "gem", "dotnet", "deno", "bun", "tsc", "gcc", "clang",
    "make", "cmake",
];
const FLAGS: [&str; 6] = ["--version", "-V", "-v", "--help", "-h", "version"];

/// Something that makes a contract worthless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which check it is about, from 0; none if it is about the contract.
    pub check: Option<usize>,
    /// Which field of it: `name`, `command`, or none.
    pub field: Option<&'static str>,
    /// What is wrong, with the check's name.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a contract.
pub fn validate(contract: &Contract) -> Vec<Problem> {
    let mut problems = Vec::new();
    if contract.checks.is_empty() {
        problems.push(Problem {
            check: None,
            field: None,
            message: "no checks: a contract needs at least one".to_owned(),
        });
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (at, check) in contract.checks.iter().enumerate() {
        let name = check.name.trim();
        let who = match name {
            "" => format!("check {}", at + 1),
            name => format!("check {} `{name}`", at + 1),
        };
        let mut say = |field: Option<&'static str>, what: String| {
            problems.push(Problem {
                check: Some(at),
                field,
                message: format!("{who}: {what}"),
            });
        };
        match name {
            "" => say(Some("name"), "empty name".to_owned()),
            PLACEHOLDER => say(
                Some("name"),
                "placeholder name; say what the check is about".to_owned(),
            ),
            name => match names.get(name) {
                Some(first) => say(
                    Some("name"),
                    format!("duplicate name; check {} has it too", first + 1),
                ),
                None => drop(names.insert(name, at)),
            },
        }
        if check.command.trim().is_empty() {
            say(Some("command"), "empty command".to_owned());
        } else if only_toolchain(&check.command) {
            say(
                Some("command"),
                format!(
                    "toolchain-only no-op: `{}` says nothing about the task",
                    check.command.trim()
                ),
            );
        }
        if !check.expect_exit_zero && check.text().is_none() {
            say(
                None,
                "asserts nothing: expect exit 0, or a text in the output".to_owned(),
            );
        }
    }
    problems
}

/// A tool that is asked for its version or its help, and nothing else.
fn only_toolchain(command: &str) -> bool {
    if command.trim().contains(['|', ';', '\n']) || command.contains("&&") {
        return false;
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    matches!(words[..], [tool, flag] if TOOLS.contains(&tool) && FLAGS.contains(&flag))
}

/// The contract for prompts and for people.
pub fn render(contract: &Contract) -> String {
    let lines = contract.checks.iter().map(line);
    let description = contract.description.trim();
    let mut all: Vec<String> = Vec::new();
    if !description.is_empty() {
        all.push(description.to_owned());
    }
    all.extend(lines);
    all.join("\n")
}

fn line(check: &Check) -> String {
    let mut expected = Vec::new();
    if check.expect_exit_zero {
        expected.push("exit 0".to_owned());
    }
    if let Some(text) = check.text() {
        expected.push(format!("output contains {text:?}"));
    }
    if expected.is_empty() {
        expected.push("nothing".to_owned());
    }
    let (name, command) = (check.name.trim(), check.command.trim());
    format!("- {name}: `{command}` (expects {})", expected.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, command: &str) -> Check {
        Check {
            name: name.into(),
            command: command.into(),
            expect_exit_zero: true,
            output_contains: None,
            timeout_secs: 120,
        }
    }

    fn said(checks: Vec<Check>) -> Vec<String> {
        let description = String::new();
        let problems = validate(&Contract {
            description,
            checks,
        });
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_contract_has_no_problems() {
        assert!(said(vec![check("a", "cargo test"), check("b", "test -f x")]).is_empty());
    }

    #[test]
    fn each_problem_has_its_words_and_its_check() {
        let nothing = Check {
            expect_exit_zero: false,
            ..check("n", "true")
        };
        let cases = [
            (vec![], "no checks", ""),
            (vec![check(" \t", "true")], "empty name", "check 1"),
            (
                vec![check("unique_snake_case_label ", "true")],
                "placeholder name",
                "check 1",
            ),
            (vec![check("a", " \n")], "empty command", "check 1 `a`"),
            (
                vec![check("v", " rustc  --version ")],
                "toolchain-only no-op",
                "check 1 `v`",
            ),
            (
                vec![check("a", "true"), check(" a ", "true")],
                "duplicate",
                "check 2 `a`",
            ),
            (vec![nothing.clone()], "asserts nothing", "check 1 `n`"),
            (
                vec![Check {
                    output_contains: Some(String::new()),
                    ..nothing
                }],
                "asserts nothing",
                "check 1",
            ),
        ];
        for (checks, words, who) in cases {
            let said = said(checks);
            assert_eq!(said.len(), 1, "{words}: {said:?}");
            assert!(said[0].contains(words) && said[0].contains(who), "{said:?}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let bad = Check {
            expect_exit_zero: false,
            ..check("", "")
        };
        let said = said(vec![bad, check("x", "npm -v"), check("x", "true")]);
        assert_eq!(said.len(), 5, "{said:?}");
    }

    #[test]
    fn what_only_asks_a_tool_for_its_version() {
        for tool in TOOLS {
            for flag in FLAGS {
                assert!(only_toolchain(&format!("{tool} {flag}")), "{tool} {flag}");
            }
        }
        for real in [
            "cargo run -- --version",
            "cargo --version && cargo build",
            "cargo --version || true",
            "cargo --version | grep 1",
            "cargo --version; true",
            "cargo --version\ntrue",
            "./target/debug/x --version",
            "test -f x",
            "mytool --version",
            "cargo test",
            "cargo",
        ] {
            assert!(!only_toolchain(real), "{real}");
        }
    }

    #[test]
    fn how_a_contract_reads() {
        let both = Check {
            output_contains: Some("ok".into()),
            ..check(" tests_pass ", "cargo test")
        };
        let text = Check {
            expect_exit_zero: false,
            ..both.clone()
        };
        let contract = Contract {
            description: "It adds.".into(),
            checks: vec![both, check("b", "true"), text],
        };
        assert_eq!(
            render(&contract),
            "It adds.\n\
             - tests_pass: `cargo test` (expects exit 0, output contains \"ok\")\n\
             - b: `true` (expects exit 0)\n\
             - tests_pass: `cargo test` (expects output contains \"ok\")"
        );
    }
}
