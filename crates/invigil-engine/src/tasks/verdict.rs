//! What is said of a task: to the agent when checks are red, and to the person in a sentence or two.

use invigil_schema::{CheckResult, Contract, OsText, TaskRan};

use crate::contracts::{CANNOT_RUN, all_green};

/// What the agent is told of red checks: only what fails.
pub(super) fn repair(intent: &str, contract: &Contract, checks: &[CheckResult]) -> String {
    let red: String = contract
        .checks
        .iter()
        .zip(checks)
        .filter(|(_, result)| !result.passed)
        .map(|(check, result)| {
            format!(
                "\n## {}: `{}`\n{}\n{}\n",
                result.name,
                check.command.trim(),
                how(result),
                result.tail.trim_end()
            )
        })
        .collect();
    format!(
        "{}\n\nYour work so far was checked, and these checks fail. Repair it; do not change the checks.\n{red}",
        intent.trim()
    )
}

/// What the agent is told when a person wants something else.
pub(super) fn sent_back(intent: &str, text: &str) -> String {
    format!(
        "{}\n\nYour work so far was looked at, and this is wanted instead:\n{}\n",
        intent.trim(),
        text.trim()
    )
}

/// Why a check is red.
fn how(result: &CheckResult) -> String {
    match result.exit_code {
        _ if result.timed_out => "its time was up".to_owned(),
        Some(0) => "it exits with 0, but the expected text is not in its output".to_owned(),
        Some(code) => format!("it exits with {code}"),
        None if result.tail.starts_with(CANNOT_RUN) => "it could not be run".to_owned(),
        None => "it was ended by a signal".to_owned(),
    }
}

/// What is known of a task's work.
pub(super) struct Account<'a> {
    pub(super) runs: &'a [TaskRan],
    pub(super) baseline: &'a [CheckResult],
    pub(super) checks: &'a [CheckResult],
    pub(super) edited: &'a [OsText],
    /// The checks with those files as they were.
    pub(super) originals: &'a [CheckResult],
}

impl Account<'_> {
    /// The checks are red.
    pub(super) fn red(&self) -> String {
        let red: Vec<&CheckResult> = self.checks.iter().filter(|check| !check.passed).collect();
        let agent = match self.runs.last() {
            Some(TaskRan { why: Some(why), .. }) => format!("The agent was stopped ({why}), and"),
            Some(ran) if ran.exit_code == Some(0) => {
                "The agent says that it is done, but".to_owned()
            }
            Some(TaskRan {
                exit_code: Some(code),
                ..
            }) => format!("The agent gave up with exit {code}, and"),
            _ => "The agent has ended, but".to_owned(),
        };
        let names: Vec<String> = red
            .iter()
            .take(3)
            .map(|check| format!("{} ({})", check.name, how(check)))
            .collect();
        let fail = match (red.len(), self.checks.len()) {
            (_, 1) => "the one check fails".to_owned(),
            (1, all) => format!("1 of {all} checks fails"),
            (some, all) => format!("{some} of {all} checks fail"),
        };
        self.with_more(format!("{agent} {fail}: {}.", names.join(", ")))
    }

    /// The checks are green, and something was changed.
    pub(super) fn green(&self) -> String {
        let pass = self.pass();
        let turned = self
            .baseline
            .iter()
            .zip(self.checks)
            .filter(|(before, after)| !before.passed && after.passed)
            .count();
        let first = match (all_green(self.baseline), self.checks.len()) {
            (true, 1) => format!("{pass}, as it did before: that proves nothing."),
            (true, _) => format!("{pass}, as they did before: that proves nothing."),
            (false, 1) => format!("{pass}; it failed before."),
            (false, _) => format!("{pass}; {turned} of them failed before."),
        };
        self.with_more(first)
    }

    /// The checks are green, and nothing was changed.
    pub(super) fn unchanged(&self) -> String {
        let pass = self.pass();
        self.with_more(format!("{pass}, and the agent has changed nothing."))
    }

    fn pass(&self) -> String {
        match self.checks.len() {
            1 => "The one check passes".to_owned(),
            all => format!("All {all} checks pass"),
        }
    }

    /// What a person must know besides.
    fn with_more(&self, mut text: String) -> String {
        if !self.edited.is_empty() {
            let names: Vec<_> = self
                .edited
                .iter()
                .take(5)
                .map(OsText::to_string_lossy)
                .collect();
            text += &format!(
                " But the agent changed what the checks depend on: {}.",
                names.join(", ")
            );
            let red = self.originals.iter().filter(|check| !check.passed);
            let all = self.originals.len();
            text += &match red.count() {
                0 => " With those as they were, all checks pass too.".to_owned(),
                1 => format!(" With those as they were, 1 of {all} checks fails."),
                red => format!(" With those as they were, {red} of {all} checks fail."),
            };
        }
        let mut rules: Vec<String> = Vec::new();
        for refused in self.runs.iter().flat_map(|ran| &ran.refused) {
            let by = format!(", by {}", refused.rule);
            if !rules.iter().any(|said| said.ends_with(&by)) {
                rules.push(format!("{}{by}", refused.target.to_string_lossy()));
            }
        }
        if !rules.is_empty() {
            let more = match rules.len() {
                0..=2 => String::new(),
                many => format!("; and {} more", many - 2),
            };
            rules.truncate(2);
            text += &format!(" The policy refused this: {}{more}.", rules.join("; "));
        }
        let left: u64 = self.runs.iter().map(|ran| ran.left_running).sum();
        if left > 0 {
            let processes = match left {
                1 => "A process that it left running was".to_owned(),
                many => format!("{many} processes that it left running were"),
            };
            text += &format!(" {processes} killed.");
        }
        text
    }
}
