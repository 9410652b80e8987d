//! What Invigil keeps: journals, tokens, questions and answers.

use crate::world::{Case, Suite, untried, works};

const POLICY: &str = r#"
version = 1
default = "allow"
[[exec]]
program = "witness"
decision = "ask"
reason = "only a person knows"
"#;

const fn suite(cases: &[Case]) -> Suite<'_> {
    Suite {
        program: "store",
        policy: POLICY,
        options: &["--ask-timeout", "2s", "--timeout", "20s"],
        cases,
    }
}

#[test]
fn journals() {
    suite(&[
        works("append", "invigil protects itself"),
        untried("append_to_own", "invigil protects itself"),
        works("by_link", "invigil protects itself"),
        works("by_descriptor", "invigil protects itself"),
        works("by_reading_descriptor", "invigil protects itself"),
        untried("by_supervisor_descriptor", "invigil protects itself"),
        works("hard_link", "invigil protects itself"),
        works("truncated", "invigil protects itself"),
        works("removed", "invigil protects itself"),
        works("renamed", "invigil protects itself"),
        works("renamed_store", "invigil protects itself"),
        works("replaced", "invigil protects itself"),
        works("exchanged", "invigil protects itself"),
        works("made", "invigil protects itself"),
        works("mode", "invigil protects itself"),
        works("by_own_descriptor_mode", "invigil protects itself"),
        works("index_written", "invigil protects itself"),
        untried("mounted_over", "confined:mount | invigil protects itself"),
        untried("locked", ""),
        untried("leased", "confined:lease"),
    ])
    .hold();
}

#[test]
fn answers() {
    suite(&[
        untried("answer_file", "invigil protects itself"),
        untried("answer_linked", "invigil protects itself"),
        untried("answer_renamed", "invigil protects itself"),
        untried("question_changed", "invigil protects itself"),
        works("user_policy", "policy.toml"),
    ])
    .hold();
}
