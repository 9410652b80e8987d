//! Verdicts: how a run ended, whether a check passed, how a task stands. Each follows from what was recorded before it.

use std::collections::BTreeMap;
use std::io::Read as _;

use invigil_audit::Fact;
use invigil_journal::Store;
use invigil_schema::{
    Check, CheckCompleted, CheckResult, Digest, Event, ProcessExited, ProcessRef, RunFinished,
    RunId, Stage, TaskState,
};

use super::Came;

/// More output than this is not searched again.
const OUTPUT_MAX: u64 = 64 * 1024 * 1024;

/// What verdicts follow from.
pub(super) struct Verdicts<'a> {
    store: &'a Store,
    /// The process that the command itself is.
    root: Option<ProcessRef>,
    ended: Option<ProcessExited>,
    /// The check that goes on.
    check: Option<Check>,
    /// The newest results of each round, by the name of the check.
    results: BTreeMap<String, bool>,
    round: u32,
    proposed: Option<Digest>,
    approved: bool,
}

impl<'a> Verdicts<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Verdicts {
            store,
            root: None,
            ended: None,
            check: None,
            results: BTreeMap::new(),
            round: 0,
            proposed: None,
            approved: false,
        }
    }

    /// What comes of the verdict that this fact is.
    pub(super) fn take(&mut self, fact: &Fact<'_>) -> Option<(u64, Came)> {
        let came = match fact.event {
            Event::ProcessForked(forked) if forked.parent.is_none() => {
                self.root.get_or_insert(forked.process);
                None
            }
            Event::ProcessExited(exited) if self.root == Some(exited.process) => {
                self.ended = Some(exited.clone());
                None
            }
            Event::RunFinished(finished) => Some(self.finished(finished)),
            Event::CheckStarted(started) => {
                self.check = Some(started.check.clone());
                None
            }
            Event::CheckCompleted(completed) => Some(self.checked(completed)),
            Event::TaskProposed(proposed) => {
                self.proposed = Some(proposed.digest);
                self.approved = false;
                None
            }
            Event::TaskAnswered(answered) if answered.approved => {
                self.approved = true;
                let same = self.proposed == Some(answered.digest);
                Some(match same {
                    true => Came::Same,
                    false => Came::differs(
                        "an approval",
                        answered.digest.to_string(),
                        shown(self.proposed),
                    ),
                })
            }
            Event::TaskChanged(changed) => self.task(changed.state),
            Event::TaskEnded(ended) => self.task(ended.state),
            _ => None,
        };
        came.map(|came| (fact.seq, came))
    }

    fn finished(&self, finished: &RunFinished) -> Came {
        let what = "the end of the run";
        let success = finished.exit_code == Some(0) && finished.stopped.is_none();
        if finished.success != success {
            return Came::differs(what, word(finished.success), word(success));
        }
        // Where only the start and the end of the command are known, there is nothing else to compare with.
        let Some(seen) = &self.ended else {
            return Came::InPart;
        };
        let (recorded, derived) = (
            (finished.exit_code, finished.signal),
            (seen.exit_code, seen.signal),
        );
        match recorded == derived {
            true => Came::Same,
            false => Came::differs(what, ended(recorded), ended(derived)),
        }
    }

    fn checked(&mut self, completed: &CheckCompleted) -> Came {
        let result = &completed.result;
        if completed.stage == Stage::Verify {
            if completed.round != self.round {
                self.results.clear();
            }
            self.round = completed.round;
            self.results.insert(result.name.clone(), result.passed);
        }
        let Some(check) = self.check.take() else {
            return Came::differs("a check", "it was completed", "it was never started");
        };
        let what = format!("check {}", result.name);
        let passed = match self.derive(&check, result) {
            Some(passed) => passed,
            None => return Came::InPart,
        };
        if passed != result.passed {
            return Came::differs(what, word(result.passed), word(passed));
        }
        match self.own_run(result) {
            Some(code) if result.exit_code.is_some() && code != result.exit_code => {
                Came::differs(what, ended((result.exit_code, None)), ended((code, None)))
            }
            _ => Came::Same,
        }
    }

    /// Whether a check has passed. Nothing if that hangs on output that was not kept.
    fn derive(&self, check: &Check, result: &CheckResult) -> Option<bool> {
        let exit = match check.expect_exit_zero {
            true => result.exit_code == Some(0),
            false => result.exit_code.is_some(),
        };
        if !exit || result.timed_out {
            return Some(false);
        }
        let Some(text) = check.text() else {
            return Some(true);
        };
        match self.printed(result, text) {
            Some(found) => Some(found),
            None if result.tail.contains(text) => Some(true),
            None => None,
        }
    }

    /// Whether the output that was kept has a text. Secrets in it are hidden, and a text that is one is not found.
    fn printed(&self, result: &CheckResult, text: &str) -> Option<bool> {
        let blobs = self.store.blobs().ok()?;
        let mut output = Vec::new();
        let blob = blobs.open(result.output.as_ref()?).ok()?;
        blob.take(OUTPUT_MAX).read_to_end(&mut output).ok()?;
        let output = String::from_utf8_lossy(&output);
        let found = output.contains(text);
        let whole = (output.len() as u64) < OUTPUT_MAX && !output.contains("<redacted:");
        (found || whole).then_some(found)
    }

    /// The exit code in the journal of the check's own run, if that is still there.
    fn own_run(&self, result: &CheckResult) -> Option<Option<i32>> {
        let run_id: &RunId = result.run.as_ref()?;
        let run = self.store.run(run_id).ok()?;
        let mut code = None;
        crate::evidence::each(&run, |fact| {
            if let Event::RunFinished(finished) = fact.event {
                code = Some(finished.exit_code);
            }
        })
        .ok()?;
        code
    }

    /// A task is green only with green checks, and merged only with an approval.
    fn task(&self, state: TaskState) -> Option<Came> {
        let green = !self.results.is_empty() && self.results.values().all(|passed| *passed);
        let what = "how the task stands";
        match state {
            TaskState::NeedsApproval | TaskState::Reported | TaskState::Merged if !green => {
                Some(Came::differs(what, state.as_str(), "its checks are red"))
            }
            TaskState::Merged if !self.approved => Some(Came::differs(
                what,
                state.as_str(),
                "nobody has approved it",
            )),
            TaskState::NeedsApproval | TaskState::Reported | TaskState::Merged => Some(Came::Same),
            _ => None,
        }
    }
}

fn word(good: bool) -> &'static str {
    match good {
        true => "passed",
        false => "failed",
    }
}

fn ended((code, signal): (Option<i32>, Option<i32>)) -> String {
    match (code, signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

fn shown(digest: Option<Digest>) -> String {
    digest.map_or_else(
        || "nothing was proposed".to_owned(),
        |digest| digest.to_string(),
    )
}
