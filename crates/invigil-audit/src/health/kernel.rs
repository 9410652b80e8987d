//! How much of a run was seen from outside.

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::{Event, Hook, Note, ObserverFinished, ObserverStarted, ProcessRef, Tier};

use super::claim::{Class, Missing};
use super::{Binding, Coverage, KernelHealth};

/// What the observer says of itself, and whether the facts agree.
#[derive(Debug, Clone, Default)]
pub(super) struct Kernel {
    tier: Option<Tier>,
    reads: bool,
    hooks: BTreeMap<String, Hook>,
    privileged: bool,
    /// An observer has started and not finished.
    open: bool,
    interrupted: bool,
    finished: Option<ObserverFinished>,
    recovered: bool,
    notes: BTreeSet<Note>,
    unreadable: BTreeSet<String>,
    /// A program had more arguments than were recorded.
    arguments_cut: bool,
    processes: BTreeSet<ProcessRef>,
    /// Processes with a fact, of which no beginning was seen yet.
    strays: BTreeSet<ProcessRef>,
}

impl Kernel {
    pub(super) fn take(&mut self, event: &Event) {
        match event {
            Event::ObserverStarted(started) => self.started(started),
            Event::ObserverFinished(finished) => self.finished(finished),
            Event::ObserverNote(note) => _ = self.notes.insert(note.note),
            Event::JournalRecovered(_) => self.recovered = true,
            Event::ProcessForked(forked) => self.known(forked.process),
            Event::ProcessExec(exec) => {
                self.known(exec.process);
                self.arguments_cut |= exec.argv_cut_bytes > 0;
            }
            Event::ExecFailed(failed) => self.seen(failed.process),
            Event::ProcessExited(exited) => self.seen(exited.process),
            Event::FileOp(op) => self.seen(op.process),
            Event::NetOp(op) => self.seen(op.process),
            _ => {}
        }
    }

    /// More than one observer in a run counts as its weakest.
    fn started(&mut self, started: &ObserverStarted) {
        self.interrupted |= self.open;
        self.open = true;
        self.reads = started.reads && (self.reads || self.tier.is_none());
        self.tier = Some(
            self.tier
                .map_or(started.tier, |tier| tier.min(started.tier)),
        );
        self.privileged |= started.privileged;
        for hook in &started.hooks {
            let weaker = |known: &Hook| known.attached && !hook.attached;
            if self.hooks.get(&hook.name).is_none_or(weaker) {
                self.hooks.insert(hook.name.clone(), hook.clone());
            }
        }
    }

    fn finished(&mut self, finished: &ObserverFinished) {
        self.open = false;
        let sum = self.finished.get_or_insert_default();
        sum.emitted = sum.emitted.saturating_add(finished.emitted);
        sum.received = sum.received.saturating_add(finished.received);
        sum.processes = sum.processes.saturating_add(finished.processes);
        for (cause, lost) in &finished.lost {
            let sum = sum.lost.entry(cause.clone()).or_default();
            *sum = sum.saturating_add(*lost);
        }
    }

    /// The record of a beginning can come after the first fact of the new process.
    fn known(&mut self, process: ProcessRef) {
        self.strays.remove(&process);
        self.processes.insert(process);
    }

    fn seen(&mut self, process: ProcessRef) {
        if !self.processes.contains(&process) {
            self.strays.insert(process);
        }
    }

    pub(super) fn unreadable(&mut self, kind: &str) {
        self.unreadable.insert(kind.to_owned());
    }

    fn tier(&self, intended: Option<Tier>) -> Option<Tier> {
        self.tier.or(intended)
    }

    fn observed(&self, intended: Option<Tier>) -> bool {
        let facts = !self.processes.is_empty() || !self.strays.is_empty();
        self.tier(intended) != Some(Tier::ContractOnly) && (self.tier.is_some() || facts)
    }

    /// Everything that is missing, or may be.
    pub(super) fn missing(&self, intended: Option<Tier>) -> BTreeSet<Missing> {
        let mut missing = BTreeSet::new();
        if self.tier(intended) == Some(Tier::ContractOnly) {
            missing.insert(Missing::all(CONTRACT_ONLY));
            return missing;
        }
        if self.tier.is_none() {
            missing.insert(Missing::all(
                "no_observer: nothing has begun to observe the run",
            ));
        } else {
            missing.extend(self.missing_hooks());
        }
        if self.open || self.interrupted {
            missing.insert(Missing::all("interrupted: the observer did not finish"));
        }
        if self.recovered {
            missing.insert(Missing::all(
                "journal_recovered: a torn tail was cut off after a crash",
            ));
        }
        missing.extend(self.missing_facts());
        missing.extend(self.notes.iter().filter_map(|&note| self.bearing(note)));
        missing
    }

    fn missing_hooks(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        let absent = |hook: &&Hook| !hook.attached && !Class::is_aid(&hook.name);
        for hook in self.hooks.values().filter(absent) {
            let class = Class::of_hook(&hook.name);
            let mut one = Missing::one(class, format!("hook_not_attached: {}", hook.name));
            one.wanted = class != Some(Class::Reads) || self.reads;
            missing.push(one);
        }
        for class in Class::REQUIRED {
            let of_class = |hook: &&Hook| Class::of_hook(&hook.name) == Some(class);
            if !self.hooks.values().any(|hook| of_class(&hook)) {
                let text = format!("not_observed: there is no hook for {}", class.as_str());
                missing.push(Missing::one(Some(class), text));
            }
        }
        if !self.reads {
            let mut reads = Missing::one(
                Some(Class::Reads),
                "reads_off: opens for reading are not recorded",
            );
            reads.wanted = false;
            missing.push(reads);
        }
        missing
    }

    fn missing_facts(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        if let Some(finished) = &self.finished {
            let causes = finished.lost.iter().filter(|(_, lost)| **lost > 0);
            missing.extend(causes.map(|(cause, _)| Missing::all(format!("facts_lost: {cause}"))));
            let causes = finished.lost.values();
            let explained = causes.fold(0, |sum: u64, lost| sum.saturating_add(*lost));
            if finished.emitted != finished.received.saturating_add(explained) {
                missing.push(Missing::all(
                    "facts_lost: emitted and received do not agree",
                ));
            }
        }
        for kind in &self.unreadable {
            missing.push(Missing::all(format!("unreadable: an event of kind {kind}")));
        }
        if self.arguments_cut {
            let text = "arguments_cut: a program had more arguments than were recorded";
            missing.push(Missing::one(Some(Class::Programs), text));
        }
        if !self.strays.is_empty() {
            let text = "stray_process: a fact of a process whose beginning was not seen";
            missing.push(Missing::one(Some(Class::Programs), text));
        }
        missing
    }

    /// Whether a note means that something could have been missed. What was refused has not happened, so it was not
    /// missed either.
    fn bearing(&self, note: Note) -> Option<Missing> {
        let missed = match note {
            Note::Continued
            | Note::SupervisorLimit
            | Note::Privileged
            | Note::ForeignArchitecture => true,
            // A listener comes before a tracer: it could hide calls from this tier.
            Note::ForeignListener => self.tier == Some(Tier::Ptrace),
            Note::IoUringDenied
            | Note::DebuggerInside
            | Note::DetachedMount
            | Note::ExecMismatch
            | Note::OpenMismatch
            | Note::RightsNotLent
            | Note::TreeKilled
            | Note::LesserTier => false,
        };
        missed.then(|| Missing::all(words(note)))
    }

    pub(super) fn coverage(&self, intended: Option<Tier>, missing: &BTreeSet<Missing>) -> Coverage {
        if !self.observed(intended) {
            Coverage::Absent
        } else if missing.iter().any(|missing| missing.wanted) {
            Coverage::Partial
        } else {
            Coverage::Complete
        }
    }

    pub(super) fn network(&self, kernel: Coverage, missing: &BTreeSet<Missing>) -> Coverage {
        let mut hooks = self.hooks.values();
        let attached =
            hooks.any(|hook| hook.attached && Class::of_hook(&hook.name) == Some(Class::Network));
        if kernel == Coverage::Absent || !attached {
            Coverage::Absent
        } else if missing
            .iter()
            .any(|missing| missing.bears_on(Class::Network))
        {
            Coverage::Partial
        } else {
            Coverage::Complete
        }
    }

    pub(super) fn binding(&self, intended: Option<Tier>, missing: &BTreeSet<Missing>) -> Binding {
        if self.tier(intended) == Some(Tier::ContractOnly) {
            return Binding::Partial;
        }
        match (self.processes.is_empty(), self.strays.is_empty()) {
            (true, true) => Binding::NotApplicable,
            (true, false) => Binding::Failed,
            (false, _)
                if missing
                    .iter()
                    .any(|missing| missing.bears_on(Class::Programs)) =>
            {
                Binding::Partial
            }
            (false, _) => Binding::Clean,
        }
    }

    pub(super) fn document(
        &self,
        intended: Option<Tier>,
        missing: &BTreeSet<Missing>,
    ) -> KernelHealth {
        let wanted = missing.iter().filter(|missing| missing.wanted);
        KernelHealth {
            tier: self.tier(intended),
            reads: self.reads,
            hooks: self.hooks.values().cloned().collect(),
            emitted: self.finished.as_ref().map(|finished| finished.emitted),
            received: self.finished.as_ref().map(|finished| finished.received),
            lost: self
                .finished
                .as_ref()
                .map(|finished| finished.lost.clone())
                .unwrap_or_default(),
            missing: wanted.map(|missing| missing.text.clone()).collect(),
        }
    }

    pub(super) fn notes(&self, intended: Option<Tier>) -> BTreeSet<String> {
        let mut notes: BTreeSet<String> = self
            .notes
            .iter()
            .map(|&note| words(note).to_owned())
            .collect();
        let wanted = self
            .missing(intended)
            .into_iter()
            .filter(|missing| missing.wanted);
        notes.extend(wanted.map(|missing| missing.text));
        let aids = self.hooks.values();
        for aid in aids.filter(|hook| !hook.attached && Class::is_aid(&hook.name)) {
            notes.insert(format!("aid_not_attached: {}", aid.name));
        }
        if self.privileged {
            notes.insert("privileged_run: self-protection was best effort".to_owned());
        }
        if let (Some(tier), Some(intended)) = (self.tier, intended)
            && tier < intended
        {
            let (tier, intended) = (tier.as_str(), intended.as_str());
            notes.insert(format!(
                "tier_lowered: {intended} was intended, {tier} is in force"
            ));
        }
        notes
    }
}

const CONTRACT_ONLY: &str =
    "contract_only_mode: only the start and the end of the command are known, nothing was observed";

/// The same words for the same note, whatever the details: those have pids and stand in the journal.
fn words(note: Note) -> &'static str {
    match note {
        Note::ForeignListener => "foreign_listener: a program wanted a seccomp listener of its own",
        Note::IoUringDenied => "io_uring_denied: a program wanted io_uring and did not get it",
        Note::DebuggerInside => "debugger_inside: a program wanted to trace another and could not",
        Note::ForeignArchitecture => {
            "foreign_architecture: a program wanted system calls that are not observed"
        }
        Note::Continued => "continued: a call was let through and its result was not seen",
        Note::SupervisorLimit => "supervisor_limit: a limit of the supervisor was met",
        Note::Privileged => "privileged: an operation that can go past the observer",
        Note::ExecMismatch => "exec_mismatch: what was loaded is not what was decided on",
        Note::OpenMismatch => "open_mismatch: what was opened is not what was decided on",
        Note::DetachedMount => {
            "detached_mount: a file system or a copy of a tree was prepared for mounting"
        }
        Note::RightsNotLent => {
            "rights_not_lent: a program that lends the rights of its owner was loaded without them"
        }
        Note::TreeKilled => "tree_killed: all processes of the run were killed",
        Note::LesserTier => "lesser_tier: a better tier could not be had",
    }
}
