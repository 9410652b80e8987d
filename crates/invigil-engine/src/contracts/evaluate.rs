//! Running the checks of a contract, each as a run of its own under the policy of the run that it judges.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use invigil_schema::{
    Check, CheckCompleted, CheckResult, CheckStarted, Contract, Event, RunFinished, Stage, Tier,
};

use super::output::{self, Printed};
use crate::approvals::Asking;
use crate::control::Control;
use crate::guard::Rules;
use crate::held::{Bell, hold};
use crate::jobs::Cancel;
use crate::redact::Redactor;
use crate::run::{End, Engine, RunOutcome, random};
use crate::spec::{Leftovers, Output, RunSpec};

/// What the tail of a check begins with that could not be run.
pub const CANNOT_RUN: &str = "check failed to run:";

/// How and where a contract is evaluated.
pub struct Evaluation<'a> {
    /// What runs the checks.
    pub engine: &'a Engine,
    /// What the checks may do: what the run itself may.
    pub rules: Option<Arc<Rules>>,
    /// How a person is asked.
    pub asking: Asking,
    /// Where they run.
    pub cwd: PathBuf,
    /// The runs of the checks are called this and a number.
    pub prefix: String,
    /// Nothing below this tier.
    pub require_tier: Option<Tier>,
    /// When.
    pub stage: Stage,
    /// Which round of the agent's work is judged.
    pub round: u32,
}

/// Whether every check has passed.
pub fn all_green(results: &[CheckResult]) -> bool {
    results.iter().all(|result| result.passed)
}

impl Evaluation<'_> {
    /// Runs every check, also after a failure. Whoever listens hears of the beginning and the end of each.
    pub fn run(
        &self,
        contract: &Contract,
        cancel: &Cancel,
        listen: &mut dyn FnMut(Event),
    ) -> Vec<CheckResult> {
        let of = contract.checks.len() as u32;
        let checks = contract.checks.iter().zip(1u32..);
        let mut results = Vec::new();
        for (check, number) in checks {
            let started = CheckStarted {
                stage: self.stage,
                round: self.round,
                number,
                of,
                check: check.clone(),
            };
            listen(started.into());
            let begun = Instant::now();
            let mut result = match self.check(check, number, cancel) {
                Ok(result) => result,
                Err(why) => failed_to_run(check, &why),
            };
            result.duration_ms = begun.elapsed().as_millis() as u64;
            let completed = CheckCompleted {
                stage: self.stage,
                round: self.round,
                result: result.clone(),
            };
            listen(completed.into());
            results.push(result);
        }
        results
    }

    fn check(&self, check: &Check, number: u32, cancel: &Cancel) -> Result<CheckResult, String> {
        if cancel.is_cancelled() {
            return Err("it was cancelled".to_owned());
        }
        let cannot = |error: io::Error| error.to_string();
        let (pipe, end) = io::pipe().map_err(cannot)?;
        let end = Arc::new(end.into());
        let spec = RunSpec {
            run_id: Some(format!("{}-{number}", self.prefix)),
            cwd: Some(self.cwd.clone()),
            // One pipe for both, so that the order stays.
            stdout: Output::Into {
                stdout: Arc::clone(&end),
                stderr: end,
            },
            leftovers: Leftovers::Kill,
            rules: self.rules.clone(),
            asking: self.asking.clone(),
            require_tier: self.require_tier,
            ..RunSpec::new(["sh", "-c", &check.command])
        };
        let redactor = Redactor::new(random().map_err(cannot)?);
        let blobs = self.engine.store.blobs().ok();
        let (control, over) = (Control::new(), Bell::default());
        cancel.steers(&control);
        let timeout = Duration::from_secs(check.bounded_secs());
        let read = || output::read(pipe, &over, check.text(), blobs.as_ref(), &redactor);
        let held = hold(self.engine, spec, &control, b"", Some(timeout), &over, read);
        let held = held.map_err(cannot)?;
        let outcome = held.ran.map_err(|error| error.to_string())?;
        let printed = held.read.unwrap_or_default();
        Ok(judge(check, &outcome, printed, held.timed_out))
    }
}

/// What a check that has run says.
fn judge(check: &Check, outcome: &RunOutcome, printed: Printed, timed_out: bool) -> CheckResult {
    let finished = match &outcome.end {
        End::NotStarted(failed) => {
            return CheckResult {
                run: Some(outcome.run.run_id().clone()),
                ..failed_to_run(check, &failed.reason)
            };
        }
        End::Finished(finished) => finished,
    };
    let stopped = finished.stopped.is_some();
    let exit = match check.expect_exit_zero {
        true => finished.exit_code == Some(0),
        // Any end will do, as long as it is the check's own.
        false => finished.exit_code.is_some(),
    };
    let passed = exit && printed.found && !timed_out && !stopped;
    let denied = match passed || timed_out {
        true => None,
        false => refused(outcome, finished),
    };
    let tail = match &denied {
        Some(why) => format!("{CANNOT_RUN} {why}\n{}", printed.tail),
        None => printed.tail,
    };
    CheckResult {
        name: check.name.trim().to_owned(),
        passed,
        exit_code: finished
            .exit_code
            .filter(|_| denied.is_none() && !timed_out && !stopped),
        timed_out,
        tail,
        duration_ms: 0,
        output: printed.blob,
        run: Some(outcome.run.run_id().clone()),
    }
}

/// The program that the policy did not let a check run, if that is so: then its exit code says nothing.
fn refused(outcome: &RunOutcome, finished: &RunFinished) -> Option<String> {
    let mut reader = outcome.run.read(0).ok()??;
    let mut why = None;
    while let Ok(Some(record)) = reader.next() {
        if let Ok(envelope) = record.envelope()
            && envelope.kind == "access_denied"
            && let Event::AccessDenied(denied) = envelope.event()
            && denied.what.starts_with("exec")
        {
            why = Some(format!(
                "the policy does not let {} run: {}",
                denied.target.to_string_lossy(),
                denied.rule
            ));
        }
    }
    why.or_else(|| finished.stopped.and(finished.why.clone()))
}

fn failed_to_run(check: &Check, why: &str) -> CheckResult {
    CheckResult {
        name: check.name.trim().to_owned(),
        passed: false,
        exit_code: None,
        timed_out: false,
        tail: format!("{CANNOT_RUN} {why}"),
        duration_ms: 0,
        output: None,
        run: None,
    }
}
