//! Judging a run by a contract: the checks before it, the checks after it, and what is said of them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use invigil_engine::contracts::{Changed, Evaluation, all_green, edited_checks, parse, render};
use invigil_engine::{Cancel, Engine, RunOutcome, RunSpec};
use invigil_journal::{Index, Options};
use invigil_schema::{CheckResult, CheckStarted, Contract, Event, Origin, OsText, Stage};
use serde::Serialize;

use crate::describe;
use crate::error::CliError;
use crate::executor::text_of;
use crate::ui::{self, BAD, BOLD, DIM, GOOD};

/// The contract in a file that a person named.
pub(crate) fn contract(path: &Path) -> Result<Contract, CliError> {
    parse(&text_of(path)?).map_err(|flaws| CliError::Contract {
        path: path.to_owned(),
        flaws,
    })
}

/// Shows what a contract asks for.
pub(crate) fn show_contract(contract: &Contract) {
    for line in render(contract).lines() {
        ui::say(format_args!("  {}", ui::harmless(line)));
    }
}

/// Tells of the checks as they go.
pub(crate) fn tell(event: &Event) {
    match event {
        Event::CheckStarted(started) => ui::say(format_args!("{DIM}{}{DIM:#}", began(started))),
        Event::CheckCompleted(completed) => {
            ui::say(format_args!("  {}", describe::check(&completed.result)));
        }
        _ => {}
    }
}

fn began(started: &CheckStarted) -> String {
    let when = match (started.stage, started.round) {
        (Stage::Baseline, _) => "before".to_owned(),
        (Stage::Original, _) => "with the check files as they were".to_owned(),
        (Stage::Verify, 0 | 1) => "after".to_owned(),
        (Stage::Verify, round) => format!("round {round}"),
    };
    let (name, command) = (started.check.name.trim(), started.check.command.trim());
    let most = ui::duration(Duration::from_secs(started.check.bounded_secs()));
    format!(
        "check {}/{} {when}: {} `{}` (at most {most})",
        started.number,
        started.of,
        ui::harmless(name),
        ui::shorten(&ui::harmless(command), 60)
    )
}

/// What came of all checks.
#[derive(Debug, Serialize)]
pub(crate) struct Judged {
    /// Every check has passed.
    pub(crate) met: bool,
    /// Every check had passed before, too.
    proves_nothing: bool,
    baseline: Vec<CheckResult>,
    checks: Vec<CheckResult>,
    edited_checks: Vec<OsText>,
}

/// Judges one run.
pub(crate) struct Judge<'a> {
    contract: Contract,
    engine: &'a Engine,
    spec: &'a RunSpec,
    cwd: PathBuf,
    /// What was heard while the run had no journal yet.
    heard: Vec<Event>,
    before: Vec<CheckResult>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(
        path: &Path,
        engine: &'a Engine,
        spec: &'a RunSpec,
        cwd: PathBuf,
    ) -> Result<Judge<'a>, CliError> {
        Ok(Judge {
            contract: contract(path)?,
            engine,
            spec,
            cwd: crate::policies::resolve(&cwd),
            heard: Vec::new(),
            before: Vec::new(),
        })
    }

    fn evaluate(
        &self,
        stage: Stage,
        prefix: String,
        cancel: &Cancel,
        heard: &mut Vec<Event>,
    ) -> Vec<CheckResult> {
        let evaluation = Evaluation {
            engine: self.engine,
            rules: self.spec.rules.clone(),
            asking: self.spec.asking.clone(),
            cwd: self.cwd.clone(),
            prefix,
            require_tier: self.spec.require_tier.or(self.spec.tier),
            stage,
            round: u32::from(stage == Stage::Verify),
        };
        evaluation.run(&self.contract, cancel, &mut |event| {
            tell(&event);
            heard.push(event);
        })
    }

    /// Runs the checks on the untouched tree.
    pub(crate) fn baseline(mut self, cancel: &Cancel) -> Result<Judge<'a>, CliError> {
        let prefix = format!("before_{}", uuid::Uuid::now_v7().simple());
        let mut heard = Vec::new();
        self.before = self.evaluate(Stage::Baseline, prefix, cancel, &mut heard);
        self.heard = heard;
        if cancel.is_cancelled() {
            return Err(CliError::Cancelled);
        }
        if all_green(&self.before) {
            ui::warning(PROVES_NOTHING);
        }
        Ok(self)
    }

    /// Runs the checks on what the run has left, and adds all of it to its journal.
    pub(crate) fn judge(
        mut self,
        outcome: &RunOutcome,
        cancel: &Cancel,
    ) -> Result<Judged, CliError> {
        let mut heard = std::mem::take(&mut self.heard);
        let prefix = format!("{}-check", outcome.run.run_id());
        let after = self.evaluate(Stage::Verify, prefix, cancel, &mut heard);
        let clock = self.engine.clock.clone();
        let (journal, _) = outcome.run.append(clock, Options::default())?;
        let redactor = invigil_engine::redactor().map_err(CliError::Random)?;
        for event in &heard {
            let ticket = journal.append(Origin::Runtime, &redactor.event(event))?;
            ticket.written()?;
        }
        journal.close()?;
        Index::note(&self.engine.store, &outcome.run)?;
        let judged = Judged {
            met: all_green(&after),
            proves_nothing: all_green(&self.before),
            baseline: self.before,
            checks: after,
            edited_checks: edited_checks(&self.contract, &changed(outcome, &self.cwd)),
        };
        judged.tell();
        Ok(judged)
    }
}

/// What a person is told of checks that are green from the beginning.
pub(crate) const PROVES_NOTHING: &str =
    "every check is green already, before anything was done: the contract proves nothing";

impl Judged {
    fn tell(&self) {
        let green = self.checks.iter().filter(|check| check.passed).count();
        let of = self.checks.len();
        match self.met {
            true => ui::say(format_args!(
                "{GOOD}contract met{GOOD:#}: {of} of {of} checks pass"
            )),
            false => ui::say(format_args!(
                "{BAD}contract not met{BAD:#}: {green} of {of} checks pass"
            )),
        }
        tell_edited(&self.edited_checks);
    }
}

/// Discloses which files of the checks were changed.
pub(crate) fn tell_edited(edited: &[OsText]) {
    if edited.is_empty() {
        return;
    }
    let names: Vec<String> = edited.iter().map(describe::text).collect();
    ui::warning(&format!(
        "files that the checks depend on were changed: {BOLD}{}{BOLD:#}; look at them before you believe the result",
        names.join(", ")
    ));
}

/// The files below the directory that a run has changed.
fn changed(outcome: &RunOutcome, below: &Path) -> Vec<Changed> {
    let mut files = Vec::new();
    let Ok(Some(mut reader)) = outcome.run.read(0) else {
        return files;
    };
    while let Ok(Some(record)) = reader.next() {
        if let Ok(envelope) = record.envelope()
            && envelope.kind == "file_final"
            && let Event::FileFinal(file) = envelope.event()
            && let Ok(path) = Path::new(OsStr::from_bytes(file.path.as_bytes())).strip_prefix(below)
        {
            files.push(Changed {
                path: path.as_os_str().to_owned().into(),
                removed: Vec::new(),
            });
        }
    }
    files
}
