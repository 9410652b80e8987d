//! Verdicts: how a run ended, whether a check passed, how a task stands. Each follows from what was recorded before it.

use std::collections::BTreeMap;
use std::io::Read as _;

use invigil_audit::Fact;
use invigil_journal::Store;
use invigil_schema::{
    Check, CheckCompleted, CheckResult, CheckStarted, Contract, Event, Origin, ProcessExited,
    ProcessRef, RunFinished, RunId, Stage, TaskAnswered, TaskContract, TaskProposed, TaskState,
};

use super::Came;
use crate::tasks::digest;

/// More output than this is not searched again.
const OUTPUT_MAX: u64 = 64 * 1024 * 1024;
/// The largest patch.
const PATCH_MAX: u64 = 1024 * 1024 * 1024;
/// What is put in the place of a secret.
const HIDDEN: &str = "<redacted:";

/// What verdicts follow from.
pub(super) struct Verdicts<'a> {
    store: &'a Store,
    /// The process that the command itself is.
    root: Option<ProcessRef>,
    ended: Option<ProcessExited>,
    /// The check that goes on.
    check: Option<CheckStarted>,
    task: Option<Task>,
    /// Which checks of the newest round have passed, by their numbers.
    results: BTreeMap<u32, bool>,
    round: u32,
}

/// A task, as far as it has come.
struct Task {
    /// The commit that its work begins with.
    base: String,
    /// A client of the daemon has begun it, and speaks for itself.
    of_client: bool,
    /// What was agreed that "done" means.
    contract: Option<Contract>,
    proposed: Option<TaskProposed>,
    approved: bool,
}

impl<'a> Verdicts<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Verdicts {
            store,
            root: None,
            ended: None,
            check: None,
            task: None,
            results: BTreeMap::new(),
            round: 0,
        }
    }

    /// Whether the client that has begun the task speaks here. It agrees and sends back, but does not approve.
    pub(super) fn is_of_client(&self, fact: &Fact<'_>) -> bool {
        let speaks = match fact.event {
            Event::TaskContract(contract) => contract.confirmed,
            Event::TaskAnswered(answered) => !answered.approved,
            _ => false,
        };
        let of_client = self.task.as_ref().is_some_and(|task| task.of_client);
        speaks && of_client && fact.origin == Origin::Client
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
            Event::CheckStarted(started) => self.started(started),
            Event::CheckCompleted(completed) => Some(self.checked(completed)),
            Event::TaskStarted(started) => {
                self.task = Some(Task {
                    base: started.base.clone(),
                    of_client: started.agent_id.is_some(),
                    contract: None,
                    proposed: None,
                    approved: false,
                });
                None
            }
            Event::TaskContract(agreed) if agreed.confirmed => self.agreed(agreed),
            Event::TaskProposed(proposed) => Some(self.proposed(proposed)),
            Event::TaskAnswered(answered) if answered.approved => Some(self.approved(answered)),
            Event::TaskChanged(changed) => self.stands(changed.state, Some(changed.round), None),
            Event::TaskEnded(ended) => self.stands(ended.state, None, ended.commit.as_deref()),
            _ => None,
        };
        came.map(|came| (fact.seq, came))
    }

    /// What "done" means is agreed on once.
    fn agreed(&mut self, agreed: &TaskContract) -> Option<Came> {
        let what = "what the task is about";
        let Some(task) = &mut self.task else {
            return Some(Came::differs(what, "a contract", "there is no task"));
        };
        if task.contract.is_some() {
            let derived = "a contract was agreed on before";
            return Some(Came::differs(what, "another contract", derived));
        }
        task.contract = Some(agreed.contract.clone());
        None
    }

    /// What is checked in a task is what its contract says.
    fn started(&mut self, started: &CheckStarted) -> Option<Came> {
        if started.stage == Stage::Verify && started.number <= 1 {
            self.results.clear();
            self.round = started.round;
        }
        self.check = Some(started.clone());
        let task = self.task.as_ref()?;
        let what = format!("check {}", started.check.name);
        let recorded = format!("number {} of {}", started.number, started.of);
        let Some(contract) = &task.contract else {
            let derived = "no contract was agreed on";
            return Some(Came::differs(what, recorded, derived));
        };
        let place = (started.number as usize).checked_sub(1);
        let agreed = place.and_then(|place| contract.checks.get(place));
        let fits = agreed.is_some_and(|agreed| is_same(agreed, &started.check));
        let all = contract.checks.len() == started.of as usize;
        (!fits || !all).then(|| {
            let derived = "the contract has another check at this place";
            Came::differs(what, recorded, derived)
        })
    }

    /// What is proposed has the digest that an approval is bound to.
    fn proposed(&mut self, proposed: &TaskProposed) -> Came {
        let what = "what is proposed";
        let Some(task) = &mut self.task else {
            return Came::differs(what, proposed.digest.to_string(), "there is no task");
        };
        task.proposed = Some(proposed.clone());
        task.approved = false;
        let blobs = self.store.blobs().ok();
        let patch = blobs.and_then(|blobs| blobs.get(&proposed.patch, PATCH_MAX).ok());
        let Some(patch) = patch else {
            return Came::InPart;
        };
        let derived = digest(&task.base, &proposed.commit, &patch);
        match derived == proposed.digest {
            true => Came::Same,
            false => Came::differs(what, proposed.digest.to_string(), derived.to_string()),
        }
    }

    fn approved(&mut self, answered: &TaskAnswered) -> Came {
        let task = self.task.as_mut();
        let proposed = task.as_ref().and_then(|task| task.proposed.as_ref());
        let shown = proposed.map(|proposed| proposed.digest);
        if shown != Some(answered.digest) {
            let derived = shown.map_or_else(
                || "nothing was proposed".to_owned(),
                |digest| digest.to_string(),
            );
            return Came::differs("an approval", answered.digest.to_string(), derived);
        }
        if let Some(task) = task {
            task.approved = true;
        }
        Came::Same
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
        let what = format!("check {}", result.name);
        let Some(started) = self.check.take() else {
            return Came::differs(what, "it was completed", "it was never started");
        };
        let same = (started.stage, started.round) == (completed.stage, completed.round);
        if started.check.name.trim() != result.name || !same {
            let derived = format!("check {} was started", started.check.name);
            return Came::differs(what, "it was completed", derived);
        }
        if completed.stage == Stage::Verify {
            self.results.insert(started.number, result.passed);
        }
        let passed = match self.derive(&started.check, result) {
            Some(passed) => passed,
            None => return Came::InPart,
        };
        let Some((code, stopped)) = self.own_run(result) else {
            // Its own run is gone, or it had none: then it has not passed.
            let may = !result.passed || result.run.is_some();
            return match may && passed == result.passed {
                true => Came::InPart,
                false => Came::differs(what, word(result.passed), word(false)),
            };
        };
        if result.passed != (passed && !stopped) {
            return Came::differs(what, word(result.passed), word(passed && !stopped));
        }
        match result.exit_code.is_some() && code != result.exit_code {
            true => Came::differs(what, ended((result.exit_code, None)), ended((code, None))),
            false => Came::Same,
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
        let whole = (output.len() as u64) < OUTPUT_MAX && !output.contains(HIDDEN);
        (found || whole).then_some(found)
    }

    /// The exit code in the journal of the check's own run, if that is still there, and whether it was stopped.
    fn own_run(&self, result: &CheckResult) -> Option<(Option<i32>, bool)> {
        let run_id: &RunId = result.run.as_ref()?;
        let run = self.store.run(run_id).ok()?;
        let mut end = None;
        crate::evidence::each(&run, |fact| {
            if let Some(Event::RunFinished(finished)) = fact.vouched() {
                end = Some((finished.exit_code, finished.stopped.is_some()));
            }
        })
        .ok()?;
        end
    }

    /// A task is worked on only with a contract, green only with every check of it green, and merged only with an
    /// approval of what was proposed.
    fn stands(
        &mut self,
        state: TaskState,
        round: Option<u32>,
        commit: Option<&str>,
    ) -> Option<Came> {
        let differs = |derived: &str| {
            Some(Came::differs(
                "how the task stands",
                state.as_str(),
                derived,
            ))
        };
        let Some(task) = &mut self.task else {
            return differs("there is no task");
        };
        if state == TaskState::Running {
            (task.proposed, task.approved) = (None, false);
            self.results.clear();
        }
        let checks = task.contract.as_ref().map(|contract| contract.checks.len());
        let all = checks == Some(self.results.len()) && checks != Some(0);
        let green = all && self.results.values().all(|passed| *passed);
        let proposed = task.proposed.as_ref();
        match state {
            TaskState::Running | TaskState::Verifying if checks.is_none() => {
                differs("no contract was agreed on")
            }
            TaskState::NeedsApproval | TaskState::Reported | TaskState::Merged if !all => {
                differs("not all of its checks were run")
            }
            TaskState::NeedsApproval | TaskState::Reported | TaskState::Merged if !green => {
                differs("its checks are red")
            }
            TaskState::NeedsApproval if round != Some(self.round) => {
                differs("its checks are of another round")
            }
            TaskState::NeedsApproval if proposed.is_none() => differs("nothing was proposed"),
            TaskState::Merged if !task.approved => differs("nobody has approved it"),
            TaskState::Merged if commit != proposed.map(|proposed| proposed.commit.as_str()) => {
                differs("another commit was proposed")
            }
            TaskState::NeedsApproval | TaskState::Reported | TaskState::Merged => Some(Came::Same),
            _ => None,
        }
    }
}

/// Whether a check is the one that was agreed on, as far as both are recorded.
fn is_same(agreed: &Check, run: &Check) -> bool {
    let hidden = |check: &Check| {
        let texts = [&check.name, &check.command]
            .into_iter()
            .chain(&check.output_contains);
        texts.into_iter().any(|text| text.contains(HIDDEN))
    };
    agreed == run || hidden(agreed) && hidden(run)
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
