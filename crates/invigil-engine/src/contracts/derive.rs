//! From an intent to a contract, by asking a model until the answer holds.

use invigil_schema::Contract;
use serde_json::value::RawValue;

use super::validate::validate;

/// A contract that a model has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    /// It passes [`validate`].
    pub contract: Contract,
    /// How often the model was asked.
    pub calls: u32,
}

/// There is no contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no usable contract after {attempts} attempts: {problem}; try again, say more exactly what you want, or write one \
     yourself (--contract FILE)"
)]
pub struct DeriveError {
    /// How often the model was asked.
    pub attempts: u32,
    /// What was wrong the last time.
    pub problem: String,
}

/// More than this of an answer is not looked at.
const LONGEST_ANSWER: usize = 256 * 1024;

/// Asks for a contract. What is wrong with an answer is in the next prompt; if there was no answer, the same prompt is
/// sent again. 0 attempts are 1.
pub fn derive<E: std::fmt::Display>(
    mut generate: impl FnMut(&str) -> Result<String, E>,
    intent: &str,
    repository: &str,
    max_attempts: u32,
) -> Result<Derived, DeriveError> {
    let attempts = max_attempts.max(1);
    let first = prompt(intent, repository);
    let mut next = first.clone();
    let mut problem = String::new();
    for call in 1..=attempts {
        let answer = match generate(&next) {
            Ok(answer) => answer,
            Err(error) => {
                problem = format!("no answer: {error}");
                continue;
            }
        };
        match read(&answer) {
            Ok(contract) => {
                return Ok(Derived {
                    contract,
                    calls: call,
                });
            }
            Err(problems) => {
                problem = problems.join("; ");
                next = repair(&first, &problems);
            }
        }
    }
    Err(DeriveError { attempts, problem })
}

fn prompt(intent: &str, repository: &str) -> String {
    format!(
        "Somebody wants a change in a source repository. Write the acceptance checks by which anyone can tell, without \
         trusting whoever does the work, that the change was really made.\n\
         \n\
         What they want:\n\
         {intent}\n\
         \n\
         What is known of the repository:\n\
         {repository}\n\
         \n\
         Answer with only a JSON object, without markdown fences and without any other text, in exactly this form:\n\
         {{\"description\": \"one sentence that says what done means\", \"checks\": [{{\"name\": \
         \"unique_snake_case_label\", \"command\": \"a shell command\", \"expect_exit_zero\": true, \
         \"output_contains\": null, \"timeout_secs\": 120}}]}}\n\
         \n\
         Rules:\n\
         - Write 1 to 5 checks.\n\
         - Each check must verify this very task. A check that only shows that a tool is installed, such as \
         `rustc --version`, proves nothing and is refused.\n\
         - `name` is a real label that says what is checked, different for each check; never the placeholder \
         `unique_snake_case_label`.\n\
         - `command` runs with `sh -c` in the root of the repository, without a terminal and without anybody who could \
         type something, and ends by itself.\n\
         - Set `output_contains` only to text that is certain to appear in the output; otherwise leave it null.\n\
         - A check expects exit 0, or a text, or both.\n\
         - Never push, use the network, use sudo, or change or delete anything outside of the checkout.\n",
        intent = intent.trim(),
        repository = repository.trim(),
    )
}

fn repair(first: &str, problems: &[String]) -> String {
    let list: String = problems
        .iter()
        .map(|problem| format!("- {problem}\n"))
        .collect();
    format!(
        "{first}\nYour last attempt failed validation. These are all of its problems:\n{list}Answer again with only the \
         corrected JSON object.\n"
    )
}

/// The contract in an answer, or everything that is wrong with it.
fn read(answer: &str) -> Result<Contract, Vec<String>> {
    let answer = &answer[..answer.floor_char_boundary(LONGEST_ANSWER)];
    let mut problems = vec!["the answer has no JSON object with `checks`".to_owned()];
    let mut at = 0;
    while let Some(brace) = answer[at..].find('{') {
        let begin = at + brace;
        at = begin + 1;
        let mut values = serde_json::Deserializer::from_str(&answer[begin..]).into_iter();
        let object: &RawValue = match values.next() {
            Some(Ok(object)) => object,
            Some(Err(error)) if error.is_eof() => {
                problems = vec![format!("the JSON object ends too early: {error}")];
                continue;
            }
            _ => continue,
        };
        let checks = serde_json::from_str::<serde_json::Value>(object.get());
        if !checks.is_ok_and(|value| value.get("checks").is_some()) {
            // It may be wrapped in another object.
            continue;
        }
        at = begin + object.get().len();
        match serde_json::from_str::<Contract>(object.get()) {
            Ok(contract) => {
                let found = validate(&contract);
                if found.is_empty() {
                    return Ok(contract);
                }
                problems = found.iter().map(ToString::to_string).collect();
            }
            Err(error) => problems = vec![format!("the JSON does not fit: {error}")],
        }
    }
    Err(problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const GOOD: &str =
        r#"{"description": "d", "checks": [{"name": "t", "command": "cargo test"}]}"#;

    /// Gives these answers in turn; what was asked, and what came of it.
    fn asked(
        answers: &[Result<&str, &str>],
        most: u32,
    ) -> (Vec<String>, Result<Derived, DeriveError>) {
        let prompts = RefCell::new(Vec::new());
        let derived = derive(
            |prompt| {
                prompts.borrow_mut().push(prompt.to_owned());
                let answer = answers[prompts.borrow().len() - 1];
                answer.map(str::to_owned).map_err(str::to_owned)
            },
            "make it add",
            "Cargo.toml; cargo test",
            most,
        );
        (prompts.into_inner(), derived)
    }

    #[test]
    fn the_prompt_says_what_matters() {
        let (prompts, derived) = asked(&[Ok(GOOD)], 3);
        assert_eq!(derived.unwrap().calls, 1);
        for words in [
            "make it add",
            "Cargo.toml; cargo test",
            "only a JSON object",
            "without markdown fences",
            "1 to 5 checks",
            "rustc --version",
            "never the placeholder",
            "ends by itself",
            "certain to appear",
            "Never push",
            "network",
            "sudo",
            "outside of the checkout",
        ] {
            assert!(prompts[0].contains(words), "{words}");
        }
    }

    #[test]
    fn json_is_found_in_all_kinds_of_answers() {
        for answer in [
            GOOD.to_owned(),
            format!("```json\n{GOOD}\n```"),
            format!("Sure! In {{braces}}: {GOOD} Anything else? {{}}"),
            format!("{{\"contract\": {GOOD}}}"),
            format!("{{\"note\": 1}}\n```\n{GOOD}\n```\n```\n{{\"checks\": []}}\n```"),
        ] {
            assert!(read(&answer).is_ok(), "{answer}");
        }
        assert!(read("I cannot do that.").is_err());
        assert!(read(&GOOD[..GOOD.len() - 3]).unwrap_err()[0].contains("too early"));
        assert!(read(&"{".repeat(300_000)).is_err());
    }

    #[test]
    fn a_bad_answer_is_repaired_in_exactly_two_calls() {
        let bad = r#"{"checks": [{"name": "", "command": "rustc --version"}]}"#;
        let (prompts, derived) = asked(&[Ok(bad), Ok(GOOD)], 3);
        assert_eq!(derived.unwrap().calls, 2);
        assert_eq!(prompts.len(), 2);
        assert!(prompts[1].starts_with(&prompts[0]));
        for words in ["failed validation", "empty name", "toolchain-only no-op"] {
            assert!(prompts[1].contains(words), "{words}");
        }
    }

    #[test]
    fn new_problems_replace_old_ones_and_silence_keeps_them() {
        let (unnamed, silent, odd) = (
            r#"{"checks": [{"name": "", "command": "true"}]}"#,
            Err("HTTP 500"),
            r#"{"checks": [{"name": "x"}]}"#,
        );
        let (prompts, derived) = asked(&[silent, Ok(unnamed), silent, Ok(odd), Ok("no")], 5);
        assert_eq!(prompts[0], prompts[1]);
        assert!(prompts[2].contains("empty name"));
        assert_eq!(prompts[2], prompts[3]);
        assert!(
            prompts[4].contains("missing field `command`") && !prompts[4].contains("empty name")
        );
        let error = derived.unwrap_err();
        assert!(error.to_string().contains("after 5 attempts"), "{error}");
        assert!(error.problem.contains("no JSON object"), "{error}");
    }

    #[test]
    fn no_attempts_are_one() {
        let (prompts, derived) = asked(&[Err("gone")], 0);
        assert_eq!(prompts.len(), 1);
        let error = derived.unwrap_err().to_string();
        assert!(
            error.contains("after 1 attempts") && error.contains("gone"),
            "{error}"
        );
    }
}
