//! The work on a task: baseline, rounds of the agent, the whole contract after each, and what is put to the person.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use invigil_policy::fence;
use invigil_schema::{
    Address, CallResult, CheckResult, Contract, Digest, Event, NetOpKind, Origin, ProcessRef,
    Refused, Stage, TaskChanged, TaskId, TaskProposed, TaskRan, TaskState, Tier,
};
use sha2::{Digest as _, Sha256};

use super::settings::Settings;
use super::verdict::{self, Account};
use super::worktree::{Content, Own, Repository};
use super::{Attended, Open, TaskError, TaskView, Tasks, in_directory, path_of};
use crate::contracts::{Evaluation, all_green, edited_checks};
use crate::control::Control;
use crate::guard::Rules;
use crate::held::{Bell, hold};
use crate::jobs::Cancel;
use crate::run::{End, RunOutcome};
use crate::spec::{Leftovers, RunSpec};

/// More than this of a kind is not listed.
const SHOWN: usize = 64;
/// How a change of times is called when it is refused.
const TIMES: &str = "file.attributes";
/// What is replaced by the intent in the agent's arguments.
pub(super) const INTENT: &str = "{intent}";

/// What an approval is bound to.
pub(crate) fn digest(base: &str, commit: &str, patch: &[u8]) -> Digest {
    let mut hasher = Sha256::new();
    for part in [
        b"invigil.task.v1".as_slice(),
        base.as_bytes(),
        commit.as_bytes(),
    ] {
        hasher.update(part);
        hasher.update([0]);
    }
    hasher.update(patch);
    Digest::from_bytes(hasher.finalize().into())
}

impl Tasks {
    /// Works until a person is needed or the task is over. `said` is what a person wants of the next round.
    pub(super) fn carry_on(
        &self,
        task_id: &TaskId,
        open: Open,
        said: Option<&str>,
        attended: Attended<'_>,
    ) -> Result<TaskView, TaskError> {
        let worked = open.attentive(attended.cancel, || {
            let mut session = self.session(task_id, &open, attended)?;
            session.work(said)
        });
        if let Err(error) = worked {
            let verdict = format!("The task could not be carried on: {error}");
            self.end(&open, task_id, TaskState::Failed, verdict, None)?;
            return Err(error);
        }
        drop(open);
        self.get(task_id.as_str())
    }

    fn session<'a, 'b>(
        &'a self,
        task_id: &'a TaskId,
        open: &'a Open,
        attended: Attended<'b>,
    ) -> Result<Session<'a, 'b>, TaskError> {
        let view = self.get(task_id.as_str())?;
        let directory = open.directory();
        let settings = Settings::read(directory).map_err(in_directory(directory))?;
        let contract = Settings::contract(directory).map_err(in_directory(directory))?;
        let worktree = path_of(&view.worktree);
        let real = fs::canonicalize(&worktree).map_err(in_directory(&worktree))?;
        let repository = Repository::at(&path_of(&view.repository))?;
        let (read, keep) = repository.fence();
        let mut sources = settings.sources();
        sources.push(fence("the person's repository", &read, &keep));
        let rules = Rules::load(settings.mode, sources, settings.places(&real))?;
        Ok(Session {
            own: Own::new(&open.own(), &worktree, &view.base),
            rules: Arc::new(rules),
            tasks: self,
            task_id,
            open,
            attended,
            settings,
            contract,
            worktree: real,
            objects: repository.objects(),
            view,
        })
    }
}

/// A task that is being worked on.
struct Session<'a, 'b> {
    tasks: &'a Tasks,
    task_id: &'a TaskId,
    open: &'a Open,
    attended: Attended<'b>,
    settings: Settings,
    contract: Contract,
    rules: Arc<Rules>,
    worktree: PathBuf,
    /// The person's objects, which the agent's repository borrows.
    objects: PathBuf,
    own: Own,
    view: TaskView,
}

impl Session<'_, '_> {
    fn work(&mut self, said: Option<&str>) -> Result<(), TaskError> {
        let mut content = self.own.content()?;
        let mut baseline = self.view.baseline.clone();
        if baseline.is_empty() {
            baseline = self.evaluate(Stage::Baseline, 0)?;
            self.own.restore(&content)?;
        }
        let mut round = self.view.round;
        let last = round + 1 + self.settings.max_rounds;
        let mut words = match said {
            Some(text) => verdict::sent_back(&self.settings.intent, text),
            None => self.settings.intent.clone(),
        };
        loop {
            if self.cancelled() {
                return self.abandon();
            }
            round += 1;
            self.stands(TaskState::Running, round, None)?;
            let ran = self.agent(round, &words)?;
            self.record(Origin::Runtime, ran.clone().into())?;
            self.view.runs.push(ran.clone());
            if self.cancelled() {
                return self.abandon();
            }
            content = self.own.content()?;
            self.stands(TaskState::Verifying, round, None)?;
            let checks = self.evaluate(Stage::Verify, round)?;
            if self.cancelled() {
                return self.abandon();
            }
            self.own.restore(&content)?;
            if all_green(&checks) {
                return self.propose(&content, round, &baseline, &checks);
            }
            if round >= last {
                let account = Account {
                    runs: &self.view.runs,
                    baseline: &baseline,
                    checks: &checks,
                    edited: &[],
                    originals: &[],
                };
                return self.end(TaskState::Failed, account.red());
            }
            words = verdict::repair(&self.settings.intent, &self.contract, &checks);
        }
    }

    fn cancelled(&self) -> bool {
        self.attended.cancel.is_cancelled()
    }

    fn abandon(&mut self) -> Result<(), TaskError> {
        self.end(TaskState::Abandoned, self.open.stopped())
    }

    fn end(&mut self, state: TaskState, verdict: String) -> Result<(), TaskError> {
        let ended = self
            .tasks
            .end(self.open, self.task_id, state, verdict, None)?;
        (self.attended.listen)(&ended);
        Ok(())
    }

    fn record(&mut self, origin: Origin, event: Event) -> Result<(), TaskError> {
        self.open.append(origin, &event)?;
        (self.attended.listen)(&event);
        Ok(())
    }

    fn stands(
        &mut self,
        state: TaskState,
        round: u32,
        why: Option<String>,
    ) -> Result<(), TaskError> {
        self.record(Origin::Runtime, TaskChanged { state, round, why }.into())
    }

    /// Runs every check on what is there.
    fn evaluate(&mut self, stage: Stage, round: u32) -> Result<Vec<CheckResult>, TaskError> {
        let phase = match stage {
            Stage::Baseline => "before".to_owned(),
            Stage::Verify => format!("round{round}"),
            Stage::Original => format!("original{round}"),
        };
        let evaluation = Evaluation {
            engine: &self.tasks.engine,
            rules: Some(Arc::clone(&self.rules)),
            asking: self.attended.asking.clone(),
            cwd: self.worktree.clone(),
            prefix: format!("{}-{phase}", self.task_id),
            require_tier: Some(Tier::Ptrace),
            stage,
            round,
        };
        let (open, mut failed) = (self.open, None);
        let listen = &mut *self.attended.listen;
        let cancel: Cancel = self.attended.cancel.clone();
        let results = evaluation.run(&self.contract, &cancel, &mut |event| {
            if let Err(error) = open.append(Origin::Runtime, &event) {
                failed.get_or_insert(error);
                // What cannot be recorded does not go on.
                cancel.cancel();
            }
            listen(&event);
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(results),
        }
    }

    /// Lets the agent work.
    fn agent(&mut self, round: u32, words: &str) -> Result<TaskRan, TaskError> {
        let given = |word: &invigil_schema::OsText| {
            let text = word.to_string_lossy();
            match text.contains(INTENT) {
                true => text.replace(INTENT, words).into(),
                false => path_of(word).into_os_string(),
            }
        };
        let command: Vec<_> = self.settings.agent.iter().map(given).collect();
        let in_arguments = self
            .settings
            .agent
            .iter()
            .any(|word| word.to_string_lossy().contains(INTENT));
        let input = match in_arguments {
            true => "",
            false => words,
        };
        let spec = RunSpec {
            run_id: Some(format!("{}-agent{round}", self.task_id)),
            cwd: Some(self.worktree.clone()),
            stdout: self.attended.output.clone(),
            leftovers: Leftovers::Kill,
            rules: Some(Arc::clone(&self.rules)),
            asking: self.attended.asking.clone(),
            require_tier: Some(Tier::Ptrace),
            ..RunSpec::new(command)
        };
        let (control, over) = (Control::new(), Bell::default());
        self.attended.cancel.steers(&control);
        let begun = Instant::now();
        let (engine, timeout) = (&self.tasks.engine, self.settings.timeout);
        let held = hold(
            engine,
            spec,
            &control,
            input.as_bytes(),
            timeout,
            &over,
            || (),
        );
        let held = held.map_err(in_directory(Path::new("a pipe")))?;
        let outcome = held
            .ran
            .map_err(|error| TaskError::Agent(error.to_string()))?;
        let mut ran = TaskRan {
            round,
            run: outcome.run.run_id().clone(),
            exit_code: None,
            why: None,
            refused: Vec::new(),
            processes: 0,
            left_running: 0,
            reached: Vec::new(),
            duration_ms: begun.elapsed().as_millis() as u64,
        };
        match &outcome.end {
            End::NotStarted(failed) => return Err(TaskError::Agent(failed.reason.clone())),
            End::Finished(finished) => {
                ran.exit_code = finished.exit_code;
                ran.why = match (finished.why.clone(), finished.signal) {
                    (None, Some(signal)) => Some(format!("it was ended by signal {signal}")),
                    (why, _) => why,
                };
            }
        }
        look(&outcome, &self.objects, &mut ran);
        Ok(ran)
    }

    /// Puts what the agent has done to the person, if it has done anything.
    fn propose(
        &mut self,
        content: &Content,
        round: u32,
        baseline: &[CheckResult],
        checks: &[CheckResult],
    ) -> Result<(), TaskError> {
        let intent = self.settings.intent.trim();
        let title = intent.lines().next().unwrap_or_default();
        let message = format!(
            "{title}\n\nDone by an agent under Invigil, task {}.\n",
            self.task_id
        );
        let change = self.own.change(content, &message)?;
        let edited = match &change {
            Some(change) => edited_checks(&self.contract, &change.files),
            None => Vec::new(),
        };
        let mut originals = Vec::new();
        if !edited.is_empty() {
            self.own.revert(&edited)?;
            originals = self.evaluate(Stage::Original, round)?;
            self.own.restore(content)?;
            if self.cancelled() {
                return self.abandon();
            }
        }
        let runs = std::mem::take(&mut self.view.runs);
        let account = Account {
            runs: &runs,
            baseline,
            checks,
            edited: &edited,
            originals: &originals,
        };
        let Some(change) = change else {
            return self.end(TaskState::Reported, account.unchanged());
        };
        let patch = self.tasks.engine.store.blobs()?.put(&change.patch)?;
        let proposed = TaskProposed {
            digest: digest(&self.view.base, &change.commit, &change.patch),
            commit: change.commit,
            tree: content.tree.clone(),
            patch,
            files: change.files.into_iter().map(|file| file.path).collect(),
            commits: change.commits,
            edited_checks: edited.clone(),
            notes: content.notes.clone(),
        };
        let verdict = account.green();
        self.record(Origin::Runtime, proposed.into())?;
        self.stands(TaskState::NeedsApproval, round, Some(verdict))
    }
}

/// What was seen of the agent's work, in short.
fn look(outcome: &RunOutcome, borrowed: &Path, ran: &mut TaskRan) {
    let Ok(Some(mut reader)) = outcome.run.read(0) else {
        return;
    };
    let (mut first, mut over): (Option<ProcessRef>, bool) = (None, false);
    let mut reached = BTreeSet::new();
    while let Ok(Some(record)) = reader.next() {
        let Ok(envelope) = record.envelope() else {
            continue;
        };
        match envelope.event() {
            Event::ProcessForked(forked) => {
                ran.processes += 1;
                if forked.parent.is_none() {
                    first = Some(forked.process);
                }
            }
            Event::ProcessExited(exited) if Some(exited.process) == first => over = true,
            Event::ProcessExited(exited) if over && exited.signal == Some(9) => {
                ran.left_running += 1;
            }
            // git marks objects that it finds as used, and does without if it may not.
            Event::AccessDenied(denied)
                if path_of(&denied.target).starts_with(borrowed) && denied.what == TIMES => {}
            Event::AccessDenied(denied) if ran.refused.len() < SHOWN => {
                // Each question has its own number; what was refused is the same.
                let rule = denied.rule.split(" (question ").next().unwrap_or_default();
                let refused = Refused {
                    target: denied.target,
                    rule: rule.to_owned(),
                };
                if !ran.refused.contains(&refused) {
                    ran.refused.push(refused);
                }
            }
            Event::NetOp(op)
                if op.op == NetOpKind::Connect && !matches!(op.result, CallResult::Unknown) =>
            {
                let (ip, port) = match op.address {
                    Address::Inet { ip, port } => (ip.to_string(), port),
                    Address::Inet6 { ip, port, .. } => (format!("[{ip}]"), port),
                    _ => continue,
                };
                if reached.len() < SHOWN {
                    reached.insert(format!("{}:{port}", op.host.unwrap_or(ip)));
                }
            }
            _ => {}
        }
    }
    ran.reached = reached.into_iter().collect();
}
