//! Binds each tool call that the agent's framework reports to what the kernel saw while it lasted, and to the process
//! that made it.
//!
//! A call lasts from the record of its start to the record of its completion; records are stamped in their order, so
//! this is a window on the monotonic clock. What cannot be bound beyond doubt is listed by name.

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::{
    Address, Event, NetOpKind, Origin, OsText, PolicyDecision, ProcessRef, RunId, SdkEvent,
    SdkEventType, Tier,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{Ports, stable_address, stable_path};
use crate::outcome::accesses;
use crate::{Binding, Fact, View};

/// Tool calls, and what was seen during each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CorrelationDoc {
    /// Names this form: [`CorrelationDoc::SCHEMA`].
    pub schema: String,
    /// `clean` only if there are calls and nothing is ambiguous.
    pub status: Binding,
    /// The calls, by id.
    pub calls: Vec<CallEntry>,
    /// What cannot be bound beyond doubt.
    pub ambiguities: BTreeSet<Ambiguity>,
}

impl CorrelationDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.correlation.v1";
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallEntry {
    /// What joins the layers.
    pub tool_call_id: String,
    /// The tools that it is said to be a call of; one, unless the reports disagree.
    pub tools: BTreeSet<String>,
    /// What a tool gate decided on it.
    pub decisions: BTreeSet<String>,
    /// The program that reported the call, where the kernel says who it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<OsText>,
    /// What the caller and its descendants did during the call.
    pub by_caller: Seen,
    /// What other processes of the run did during the call. Where the caller is not known, it is all of them.
    pub by_others: Seen,
}

/// What the kernel saw.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Seen {
    /// How many facts of each kind.
    pub facts: BTreeMap<String, u64>,
    /// Paths.
    pub paths: BTreeSet<OsText>,
    /// Programs.
    pub execs: BTreeSet<OsText>,
    /// Addresses.
    pub endpoints: BTreeSet<OsText>,
}

/// Something that cannot be bound beyond doubt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Ambiguity {
    /// What.
    pub name: AmbiguityKind,
    /// The call that it is about, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// What cannot be bound.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AmbiguityKind {
    /// A gate let a call happen, and the kernel saw nothing of it.
    PolicyDecisionWithoutKernelEvents,
    /// A gate refused a call, and the kernel saw something during it all the same.
    DeniedCallWithKernelEvents,
    /// The framework reports a call that no gate was asked about.
    SdkCallWithoutDecision,
    /// A gate was asked about a call that the framework does not report.
    DecisionWithoutSdkCall,
    /// A gate has decided more than once on one call.
    SecondDecision,
    /// The reports disagree on the tool.
    ToolMismatch,
    /// A call has no end.
    StartedWithoutCompleted,
    /// A call has no start.
    CompletedWithoutStarted,
    /// One id was used for more than one call.
    DuplicateCallId,
    /// Two calls lasted at the same time, so that what was seen belongs to either.
    OverlappingWindows,
    /// It is not known which process made the call.
    SdkCallWithoutProcess,
    /// There are calls, and nothing was observed.
    NoKernelLayer,
    /// Facts were lost, or the observer did not finish.
    KernelFactsMissing,
}

#[derive(Debug, Clone, Default)]
struct Call {
    tools: BTreeSet<String>,
    decisions: BTreeSet<String>,
    decided: u64,
    reported: bool,
    started: bool,
    open: bool,
    process: Option<ProcessRef>,
    caller: Option<OsText>,
    by_caller: Window,
    by_others: Window,
}

/// What was seen so far; which ports the kernel chose is known at the end.
#[derive(Debug, Clone, Default)]
struct Window {
    seen: Seen,
    addresses: BTreeSet<(NetOpKind, Address)>,
}

impl Window {
    fn document(&self, ports: &Ports) -> Seen {
        let mut seen = self.seen.clone();
        let addresses = self.addresses.iter();
        seen.endpoints = addresses
            .filter_map(|(op, address)| ports.endpoint(*op, address))
            .collect();
        seen
    }
}

impl Call {
    fn saw_something(&self) -> bool {
        // What others did says nothing of a call whose process is known.
        match self.process {
            Some(_) => !self.by_caller.seen.facts.is_empty(),
            None => !self.by_others.seen.facts.is_empty(),
        }
    }

    fn refused(&self) -> bool {
        !self.decisions.is_empty() && self.decisions.iter().all(|decision| decision == "deny")
    }
}

#[derive(Debug, Clone, Default)]
struct Process {
    parent: Option<ProcessRef>,
    /// Its program, as an index into the list of programs.
    program: Option<usize>,
    exited: bool,
    /// Processes that it made and that are still of interest.
    children: usize,
}

/// Folds facts into a [`CorrelationDoc`].
#[derive(Debug, Clone, Default)]
pub struct Correlation {
    run: Option<RunId>,
    ports: Ports,
    calls: BTreeMap<String, Call>,
    open: BTreeSet<String>,
    processes: BTreeMap<ProcessRef, Process>,
    programs: Vec<OsText>,
    program_index: BTreeMap<OsText, usize>,
    ambiguities: BTreeSet<Ambiguity>,
    observed: bool,
    unfinished: bool,
    lost: bool,
    kernel_facts: bool,
}

impl Correlation {
    fn ambiguous(&mut self, name: AmbiguityKind, id: &str) {
        let tool_call_id = Some(id.to_owned());
        self.ambiguities.insert(Ambiguity { name, tool_call_id });
    }

    fn sdk(&mut self, event: &SdkEvent) {
        let Some(id) = &event.tool_call_id else {
            return;
        };
        let call = match event.event_type {
            SdkEventType::ToolCallStarted => self.start(id, event),
            SdkEventType::ToolCallCompleted => self.complete(id),
            _ => return,
        };
        call.reported = true;
        call.tools.extend(event.tool.clone());
    }

    fn start(&mut self, id: &str, event: &SdkEvent) -> &mut Call {
        let others: Vec<String> = self
            .open
            .iter()
            .filter(|open| *open != id)
            .cloned()
            .collect();
        for other in &others {
            self.ambiguous(AmbiguityKind::OverlappingWindows, other);
            self.ambiguous(AmbiguityKind::OverlappingWindows, id);
        }
        if self.calls.get(id).is_some_and(|call| call.started) {
            self.ambiguous(AmbiguityKind::DuplicateCallId, id);
        }
        if event.process.is_none() {
            self.ambiguous(AmbiguityKind::SdkCallWithoutProcess, id);
        }
        let caller = event.process.and_then(|process| self.program(process));
        self.open.insert(id.to_owned());
        let call = self.calls.entry(id.to_owned()).or_default();
        call.started = true;
        call.open = true;
        call.process = event.process;
        call.caller = caller;
        call
    }

    fn complete(&mut self, id: &str) -> &mut Call {
        if !self.open.remove(id) {
            let twice = self.calls.get(id).is_some_and(|call| call.started);
            let name = match twice {
                true => AmbiguityKind::DuplicateCallId,
                false => AmbiguityKind::CompletedWithoutStarted,
            };
            self.ambiguous(name, id);
        }
        let call = self.calls.entry(id.to_owned()).or_default();
        call.open = false;
        call
    }

    fn decided(&mut self, decided: &PolicyDecision) {
        let id = &decided.tool_call_id;
        let call = self.calls.entry(id.clone()).or_default();
        call.decided += 1;
        call.tools.insert(decided.tool.clone());
        call.decisions.insert(decided.decision.clone());
        if call.decided > 1 {
            self.ambiguous(AmbiguityKind::SecondDecision, id);
        }
    }

    fn program(&self, process: ProcessRef) -> Option<OsText> {
        let index = self.processes.get(&process)?.program?;
        self.programs.get(index).cloned()
    }

    /// A new process runs its parent's program until it loads another.
    fn forked(&mut self, process: ProcessRef, parent: Option<ProcessRef>) {
        let program = parent.and_then(|parent| self.processes.get(&parent)?.program);
        if self.processes.contains_key(&process) {
            return;
        }
        self.adopt(parent);
        let known = Process {
            parent,
            program,
            ..Process::default()
        };
        self.processes.insert(process, known);
    }

    fn adopt(&mut self, parent: Option<ProcessRef>) {
        if let Some(parent) = parent.and_then(|parent| self.processes.get_mut(&parent)) {
            parent.children += 1;
        }
    }

    /// A process is of interest as long as it, or something that it has started, can still do something.
    fn exited(&mut self, mut process: ProcessRef) {
        if let Some(known) = self.processes.get_mut(&process) {
            known.exited = true;
        }
        while let Some(known) = self.processes.get(&process)
            && known.exited
            && known.children == 0
            && let Some(gone) = self.processes.remove(&process)
            && let Some(parent) = gone.parent
            && let Some(known) = self.processes.get_mut(&parent)
        {
            known.children = known.children.saturating_sub(1);
            process = parent;
        }
    }

    fn loaded(&mut self, process: ProcessRef, parent: Option<ProcessRef>, executable: OsText) {
        let next = self.programs.len();
        let index = *self.program_index.entry(executable.clone()).or_insert(next);
        if index == next {
            self.programs.push(executable);
        }
        self.forked(process, parent);
        if let Some(known) = self.processes.get_mut(&process) {
            known.program = Some(index);
        }
    }

    fn descends(&self, mut process: ProcessRef, from: ProcessRef) -> bool {
        // A journal made by hand can hold a circle.
        for _ in 0..=self.processes.len() {
            if process == from {
                return true;
            }
            match self.processes.get(&process).and_then(|known| known.parent) {
                Some(parent) => process = parent,
                None => return false,
            }
        }
        false
    }

    /// Adds one fact to every call that lasts.
    fn seen(&mut self, process: ProcessRef, kind: &str, add: impl Fn(&mut Window)) {
        self.kernel_facts = true;
        for id in self.open.clone() {
            let caller = self.calls.get(&id).and_then(|call| call.process);
            let own = caller.is_some_and(|caller| self.descends(process, caller));
            let Some(call) = self.calls.get_mut(&id) else {
                continue;
            };
            let window = match own {
                true => &mut call.by_caller,
                false => &mut call.by_others,
            };
            *window.seen.facts.entry(kind.to_owned()).or_default() += 1;
            add(window);
        }
    }

    fn kernel(&mut self, event: &Event) {
        let kind = event.kind();
        let run = self.run.take();
        let name = |path: &OsText, process| stable_path(path, process, run.as_ref()).into_owned();
        match event {
            Event::ProcessForked(forked) => {
                self.forked(forked.process, forked.parent);
                self.seen(forked.process, kind, |_| {});
            }
            Event::ProcessExec(exec) => {
                let executable = name(&exec.executable, exec.process);
                self.loaded(exec.process, exec.parent, executable.clone());
                self.seen(exec.process, kind, |window| {
                    window.seen.execs.insert(executable.clone());
                });
            }
            Event::ExecFailed(failed) => self.seen(failed.process, kind, |window| {
                let path = name(&failed.path, failed.process);
                window.seen.execs.insert(path);
            }),
            Event::ProcessExited(exited) => {
                self.seen(exited.process, kind, |_| {});
                self.exited(exited.process);
            }
            Event::FileOp(op) => self.seen(op.process, kind, |window| {
                let paths = accesses(op).into_iter();
                let paths = paths.map(|(path, _)| name(path, op.process));
                window.seen.paths.extend(paths);
            }),
            Event::NetOp(op) => {
                self.ports.take(op);
                self.seen(op.process, kind, |window| {
                    let address = stable_address(op, run.as_ref());
                    window.addresses.insert((op.op, address));
                });
            }
            Event::AccessDenied(denied) => self.seen(denied.process, kind, |_| {}),
            _ => {}
        }
        self.run = run;
    }

    fn all_ambiguities(&self) -> BTreeSet<Ambiguity> {
        let mut all = self.ambiguities.clone();
        let mut add = |name, id: Option<&String>| {
            let tool_call_id = id.cloned();
            all.insert(Ambiguity { name, tool_call_id });
        };
        for (id, call) in &self.calls {
            for name in ambiguities_of(call, self.kernel_facts) {
                add(name, Some(id));
            }
        }
        if !self.calls.is_empty() {
            if !self.observed {
                add(AmbiguityKind::NoKernelLayer, None);
            } else if self.unfinished || self.lost {
                add(AmbiguityKind::KernelFactsMissing, None);
            }
        }
        all
    }
}

fn ambiguities_of(call: &Call, kernel_facts: bool) -> Vec<AmbiguityKind> {
    let mut names = Vec::new();
    let decided = call.decided > 0;
    if decided && !call.reported {
        names.push(AmbiguityKind::DecisionWithoutSdkCall);
    }
    if !decided {
        names.push(AmbiguityKind::SdkCallWithoutDecision);
    }
    if call.tools.len() > 1 {
        names.push(AmbiguityKind::ToolMismatch);
    }
    if call.open {
        names.push(AmbiguityKind::StartedWithoutCompleted);
    }
    let bound = call.saw_something();
    if call.refused() && bound {
        names.push(AmbiguityKind::DeniedCallWithKernelEvents);
    }
    // Without a window nobody can say which facts are the call's, unless there is no fact at all.
    if decided && !call.refused() && !bound && (call.started || !kernel_facts) {
        names.push(AmbiguityKind::PolicyDecisionWithoutKernelEvents);
    }
    names
}

impl View for Correlation {
    type Document = CorrelationDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        let Some(event) = fact.vouched() else {
            return;
        };
        match event {
            Event::JournalOpened(opened) => self.run = Some(opened.run_id.clone()),
            Event::ObserverStarted(started) if started.tier != Tier::ContractOnly => {
                self.observed = true;
                self.unfinished = true;
            }
            Event::ObserverFinished(finished) => {
                self.unfinished = false;
                self.lost |= finished.emitted != finished.received || !finished.lost.is_empty();
            }
            Event::SdkEvent(event) => self.sdk(event),
            Event::PolicyDecision(decided) => self.decided(decided),
            kernel if fact.origin == Origin::Kernel => self.kernel(kernel),
            denied @ Event::AccessDenied(_) => self.kernel(denied),
            _ => {}
        }
    }

    fn document(&self) -> CorrelationDoc {
        let ambiguities = self.all_ambiguities();
        let status = match (self.calls.is_empty(), ambiguities.is_empty()) {
            (true, _) => Binding::NotApplicable,
            (false, true) => Binding::Clean,
            (false, false) => Binding::Partial,
        };
        let calls = self.calls.iter().map(|(id, call)| CallEntry {
            tool_call_id: id.clone(),
            tools: call.tools.clone(),
            decisions: call.decisions.clone(),
            caller: call.caller.clone(),
            by_caller: call.by_caller.document(&self.ports),
            by_others: call.by_others.document(&self.ports),
        });
        CorrelationDoc {
            schema: CorrelationDoc::SCHEMA.to_owned(),
            status,
            calls: calls.collect(),
            ambiguities,
        }
    }
}
