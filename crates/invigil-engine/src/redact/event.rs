//! Which fields of an event are free text.

use std::borrow::Cow;

use invigil_schema::{
    Address, Asked, Check, Event, JobEnd, JobOutput, LeftOut, Order, OsText, Signal, Snapshot,
    Termination,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::markers::MARKERS;
use super::{Redactor, names};

/// Members of a reported body that are ids: they join events, and are checked where they enter.
const IDS: &[&str] = &[
    "schema",
    "run_id",
    "event_type",
    "tool_call_id",
    "id",
    "seq",
];

pub(super) fn redact<'a>(redactor: &Redactor, event: &'a Event) -> Cow<'a, Event> {
    if quiet(event) {
        return Cow::Borrowed(event);
    }
    let mut copy = event.clone();
    let mut pass = Pass {
        redactor,
        changed: false,
    };
    pass.event(&mut copy);
    match pass.changed {
        true => Cow::Owned(copy),
        false => Cow::Borrowed(event),
    }
}

pub(super) fn redact_value(redactor: &Redactor, mut value: Value) -> Value {
    let mut pass = Pass {
        redactor,
        changed: false,
    };
    pass.value(&mut value);
    value
}

pub(super) fn redact_snapshot(redactor: &Redactor, snapshot: &mut Snapshot) {
    let mut pass = Pass {
        redactor,
        changed: false,
    };
    pass.snapshot(snapshot);
}

/// Whether there is no marker in it. Looks only at the kinds that come in great numbers.
fn quiet(event: &Event) -> bool {
    let still = |text: &OsText| !MARKERS.any(text.as_bytes());
    let still_too = |text: &Option<OsText>| text.as_ref().is_none_or(still);
    match event {
        Event::FileOp(op) => still(&op.path) && still_too(&op.to) && still_too(&op.detail),
        Event::ProcessExec(exec) => {
            still(&exec.executable)
                && still_too(&exec.requested)
                && still(&exec.cwd)
                && exec.argv.iter().all(still)
        }
        Event::ExecFailed(failed) => still(&failed.path),
        Event::FileFinal(last) => still(&last.path) && last.why_not.is_none(),
        Event::NetOp(op) if op.host.is_some() => false,
        Event::NetOp(op) => match &op.address {
            Address::Unix { path } => still(path),
            Address::Abstract { name } => still(name),
            Address::Inet { .. } | Address::Inet6 { .. } => true,
            Address::Unnamed | Address::Other { .. } => true,
        },
        Event::ProcessForked(_) | Event::ProcessExited(_) | Event::ResourceSample(_) => true,
        _ => false,
    }
}

struct Pass<'r> {
    redactor: &'r Redactor,
    changed: bool,
}

impl Pass<'_> {
    fn event(&mut self, event: &mut Event) {
        match event {
            Event::RunStarted(data) => {
                self.argv(&mut data.command);
                self.os(&mut data.cwd);
            }
            Event::RunFailed(data) => self.string(&mut data.reason),
            Event::RunFinished(data) => {
                if let Some(why) = &mut data.why {
                    self.string(why);
                }
            }
            Event::ObserverNote(data) => self.string(&mut data.detail),
            Event::ProcessExec(data) => {
                self.os(&mut data.executable);
                self.maybe(&mut data.requested);
                self.argv(&mut data.argv);
                self.os(&mut data.cwd);
            }
            Event::ExecFailed(data) => self.os(&mut data.path),
            Event::FileOp(data) => {
                self.os(&mut data.path);
                self.maybe(&mut data.to);
                self.maybe(&mut data.detail);
            }
            Event::FileFinal(data) => {
                self.os(&mut data.path);
                if let Some(reason) = &mut data.why_not {
                    self.string(reason);
                }
            }
            Event::NetOp(data) => {
                if let Some(host) = &mut data.host {
                    self.string(host);
                }
                self.address(&mut data.address);
            }
            Event::AccessDenied(data) => self.os(&mut data.target),
            Event::SdkEvent(data) => {
                self.string(&mut data.source);
                if let Some(tool) = &mut data.tool {
                    self.string(tool);
                }
                self.body(&mut data.body);
            }
            Event::SdkRejected(data) => {
                self.string(&mut data.reason);
                self.os(&mut data.text);
            }
            Event::PolicyDecision(data) => {
                self.string(&mut data.source);
                self.string(&mut data.tool);
                self.string(&mut data.decision);
                self.body(&mut data.body);
            }
            Event::PolicyFlagged(data) => {
                self.string(&mut data.reason);
                self.os(&mut data.text);
            }
            Event::ApprovalRequested(data) => {
                self.asked(&mut data.what);
                self.string(&mut data.rule);
                if let Some(reason) = &mut data.reason {
                    self.string(reason);
                }
            }
            Event::ApprovalAnswered(data) => {
                let added = data.added.as_mut().map(|added| &mut added.text);
                let texts = [data.reason.as_mut(), added, data.not_added.as_mut()];
                for text in texts.into_iter().flatten() {
                    self.string(text);
                }
            }
            Event::ApprovalRefused(data) => self.string(&mut data.why),
            Event::JobStarted(data) => {
                self.value(&mut data.arguments);
                self.os(&mut data.working_dir);
                data.allowed.iter_mut().for_each(|path| self.os(path));
                self.snapshot(&mut data.before);
            }
            Event::JobRefused(data) => self.snapshot(&mut data.before),
            Event::JobCompleted(data) => {
                self.job_end(&mut data.end);
                self.job_output(&mut data.output);
            }
            Event::JobFailed(data) => {
                self.job_end(&mut data.end);
                self.string(&mut data.error);
                data.output
                    .iter_mut()
                    .for_each(|output| self.job_output(output));
            }
            Event::JobDenied(data) => {
                self.job_end(&mut data.end);
                self.string(&mut data.error);
            }
            Event::JobTimedOut(data) => {
                self.job_end(&mut data.end);
                data.output
                    .iter_mut()
                    .for_each(|output| self.job_output(output));
            }
            Event::JobCancelled(data) => {
                self.job_end(&mut data.end);
                data.output
                    .iter_mut()
                    .for_each(|output| self.job_output(output));
            }
            Event::SessionChanged(data) => {
                if let Some(title) = &mut data.title {
                    self.string(title);
                }
            }
            Event::ClientRunStarted(data) => {
                self.string(&mut data.intent);
                let texts = [data.outcome_description.as_mut(), data.agent_name.as_mut()];
                texts
                    .into_iter()
                    .flatten()
                    .for_each(|text| self.string(text));
            }
            Event::ClientRunEnded(data) => {
                if let Termination::Outcome { outcome, .. } = &mut data.termination {
                    outcome
                        .summary
                        .iter_mut()
                        .for_each(|text| self.string(text));
                    outcome
                        .evidence
                        .iter_mut()
                        .for_each(|item| self.value(item));
                    outcome.metrics.iter_mut().for_each(|item| self.value(item));
                }
            }
            Event::ActionStarted(data) => {
                self.value(&mut data.parameters);
                data.source.iter_mut().for_each(|text| self.string(text));
                data.context
                    .iter_mut()
                    .for_each(|context| self.value(context));
            }
            Event::Turn(data) => {
                let texts = [data.prompt.as_mut(), data.error.as_mut()];
                texts
                    .into_iter()
                    .flatten()
                    .for_each(|text| self.string(text));
                self.value(&mut data.parameters);
                data.output.iter_mut().for_each(|output| self.value(output));
            }
            Event::ToolAsked(data) => {
                self.value(&mut data.parameters);
                self.string(&mut data.rule);
            }
            Event::CheckStarted(data) => self.check(&mut data.check),
            Event::CheckCompleted(data) => self.string(&mut data.result.tail),
            Event::TaskStarted(data) => {
                self.string(&mut data.intent);
                self.argv(&mut data.agent);
            }
            Event::TaskContract(data) => {
                self.string(&mut data.contract.description);
                let checks = data.contract.checks.iter_mut();
                checks.for_each(|check| self.check(check));
            }
            Event::TaskChanged(data) => data.why.iter_mut().for_each(|why| self.string(why)),
            Event::TaskRan(data) => {
                data.why.iter_mut().for_each(|why| self.string(why));
                for refused in &mut data.refused {
                    self.os(&mut refused.target);
                }
            }
            Event::TaskAnswered(data) => data.text.iter_mut().for_each(|text| self.string(text)),
            Event::TaskEnded(data) => self.string(&mut data.verdict),
            Event::OrderTaken(data) => self.order(&mut data.what),
            Event::OrderEnded(data) => data.why.iter_mut().for_each(|why| self.string(why)),
            Event::OrderRefused(data) => {
                self.string(&mut data.name);
                self.string(&mut data.why);
            }
            Event::RunSuspended(data) => data.why.iter_mut().for_each(|why| self.string(why)),
            Event::SignalDisposed(data) => self.string(&mut data.signal.text),
            Event::CheckpointTaken(data) => {
                data.label.iter_mut().for_each(|label| self.string(label));
                self.os(&mut data.workspace);
                self.left_out(&mut data.left_out);
            }
            Event::Rollbacked(data) => self.left_out(&mut data.failed),
            Event::MilestoneEvidence(data) => {
                self.os(&mut data.evidence);
                data.why.iter_mut().for_each(|why| self.string(why));
            }
            Event::MilestoneBlocked(data) => {
                data.missing.iter_mut().for_each(|text| self.string(text));
            }
            Event::RepeatFuse(data) => self.argv(&mut data.command),
            Event::ChildRunStarted(data) => self.argv(&mut data.command),
            Event::ChildRunRefused(data) => self.string(&mut data.why),
            Event::Unknown { data, .. } => self.raw(data),
            // What was proposed is bound to a digest.
            Event::TaskProposed(_) => {}
            // What was kept must be found again under its own name.
            Event::JobKept(_)
            | Event::ToolAnswered(_)
            | Event::JournalOpened(_)
            | Event::RunForked(_)
            | Event::JournalRecovered(_)
            | Event::PolicyLoaded(_)
            | Event::PolicyEnforced(_)
            | Event::ObserverStarted(_)
            | Event::ObserverFinished(_)
            | Event::ProcessForked(_)
            | Event::ProcessExited(_)
            | Event::ProcessStopped(_)
            | Event::ProcessContinued(_)
            | Event::RunResumed(_)
            | Event::BudgetExceeded(_)
            | Event::RollbackStarted(_)
            | Event::MilestonesSet(_)
            | Event::MilestonesMissed(_)
            | Event::MilestoneAdvanced(_)
            | Event::ChildRunEnded(_)
            | Event::ResourceSample(_) => {}
        }
    }

    fn order(&mut self, order: &mut Order) {
        match order {
            Order::Pause { why: Some(text) }
            | Order::Checkpoint { label: Some(text) }
            | Order::Signal(Signal { text, .. }) => self.string(text),
            Order::Pause { why: None }
            | Order::Checkpoint { label: None }
            | Order::Resume
            | Order::Rollback { .. }
            | Order::Milestone { .. } => {}
        }
    }

    fn left_out(&mut self, paths: &mut [LeftOut]) {
        for left in paths {
            self.os(&mut left.path);
            self.string(&mut left.why);
        }
    }

    fn check(&mut self, check: &mut Check) {
        self.string(&mut check.command);
        check
            .output_contains
            .iter_mut()
            .for_each(|text| self.string(text));
    }

    fn job_end(&mut self, end: &mut JobEnd) {
        for spawned in &mut end.spawned {
            self.maybe(&mut spawned.program);
        }
        for refused in &mut end.refused {
            self.os(&mut refused.target);
        }
        let snapshots = [end.before.as_mut(), end.after.as_mut()];
        for snapshot in snapshots.into_iter().flatten() {
            self.snapshot(snapshot);
        }
    }

    /// The commands of other processes, which may be told secrets too.
    fn snapshot(&mut self, snapshot: &mut Snapshot) {
        let processes = &mut snapshot.processes;
        for view in processes
            .most_memory
            .iter_mut()
            .chain(&mut processes.most_cpu)
        {
            self.argv(&mut view.command);
        }
    }

    fn job_output(&mut self, output: &mut JobOutput) {
        self.value(&mut output.data);
        if let Some(message) = &mut output.message {
            self.string(message);
        }
    }

    fn asked(&mut self, what: &mut Asked) {
        match what {
            Asked::Exec { program, argv, cwd } => {
                self.os(program);
                self.argv(argv);
                self.os(cwd);
            }
            Asked::File {
                path, to, detail, ..
            } => {
                self.os(path);
                self.maybe(to);
                self.maybe(detail);
            }
            Asked::Net { address, .. } => self.address(address),
        }
    }

    fn address(&mut self, address: &mut Address) {
        match address {
            Address::Unix { path: text } | Address::Abstract { name: text } => self.os(text),
            _ => {}
        }
    }

    fn os(&mut self, text: &mut OsText) {
        if let Cow::Owned(redacted) = self.redactor.bytes(text.as_bytes()) {
            *text = redacted.into();
            self.changed = true;
        }
    }

    fn maybe(&mut self, text: &mut Option<OsText>) {
        if let Some(text) = text {
            self.os(text);
        }
    }

    fn string(&mut self, text: &mut String) {
        if let Cow::Owned(redacted) = self.redactor.text(text) {
            *text = redacted;
            self.changed = true;
        }
    }

    fn argv(&mut self, argv: &mut Vec<OsText>) {
        let redacted = self.redactor.argv(argv);
        if redacted != *argv {
            *argv = redacted;
            self.changed = true;
        }
    }

    fn raw(&mut self, data: &mut Box<RawValue>) {
        let Ok(mut value) = serde_json::from_str::<Value>(data.get()) else {
            return;
        };
        let mut inner = Pass {
            redactor: self.redactor,
            changed: false,
        };
        inner.value(&mut value);
        if inner.changed
            && let Ok(text) = serde_json::to_string(&value)
            && let Ok(redacted) = RawValue::from_string(text)
        {
            *data = redacted;
            self.changed = true;
        }
    }

    /// What somebody reported, but for the ids in it.
    fn body(&mut self, body: &mut Value) {
        match body {
            Value::Object(members) => {
                for (name, value) in members.iter_mut() {
                    if !IDS.contains(&name.as_str()) {
                        self.member(name, value);
                    }
                }
            }
            other => self.value(other),
        }
    }

    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => self.items(items),
            Value::Object(members) => {
                for (name, value) in members.iter_mut() {
                    self.member(name, value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// A list of texts may be a command.
    fn items(&mut self, items: &mut [Value]) {
        let words: Option<Vec<&[u8]>> = items
            .iter()
            .map(|item| item.as_str().map(str::as_bytes))
            .collect();
        let Some(words) = words else {
            return items.iter_mut().for_each(|item| self.value(item));
        };
        let redacted = self.redactor.words(&words);
        for (item, word) in items.iter_mut().zip(redacted) {
            if item.as_str().map(str::as_bytes) != Some(&word) {
                *item = Value::String(String::from_utf8_lossy(&word).into_owned());
                self.changed = true;
            }
        }
    }

    /// A value that is given to the name of a secret is one.
    fn member(&mut self, name: &str, value: &mut Value) {
        let secret = names::secret_name(name.as_bytes());
        match value {
            Value::String(text)
                if secret.is_some_and(|name| names::given(text.as_bytes(), name)) =>
            {
                let word = [b"SECRET=", text.as_bytes()].concat();
                let redacted = self.redactor.words(&[&word]).pop();
                let redacted = redacted
                    .as_deref()
                    .and_then(|word| word.strip_prefix(b"SECRET="));
                if let Some(redacted) = redacted.filter(|word| *word != text.as_bytes()) {
                    *text = String::from_utf8_lossy(redacted).into_owned();
                    self.changed = true;
                }
            }
            Value::Number(number) if secret == Some(names::Name::Password) => {
                let word = format!("PASSWORD={number}");
                if let Some(redacted) = self.redactor.words(&[word.as_bytes()]).pop() {
                    let text = String::from_utf8_lossy(&redacted[b"PASSWORD=".len()..]);
                    *value = Value::String(text.into_owned());
                    self.changed = true;
                }
            }
            _ => self.value(value),
        }
    }
}
