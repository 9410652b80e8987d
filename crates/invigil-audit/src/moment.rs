//! How a run stands at one moment: who lives, what is open, how much has happened.
//!
//! Small on purpose: a copy of it is put aside every few thousand records, so that any moment is found quickly. It grows
//! with the number of processes that are alive and of questions that are open, and with nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use invigil_schema::{
    Event, OsText, ProcessExec, ProcessRef, ResourceSample, RunFailed, RunFinished,
};

use crate::outcome::accesses;
use crate::{Fact, Notable, View};

/// How a run stands after some record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MomentDoc {
    /// How many records there are up to here.
    pub records: u64,
    /// How much time has passed since the first one, in nanoseconds of one boot.
    pub elapsed_ns: u64,
    /// Who lives, each behind its parent.
    pub processes: Vec<LivingProcess>,
    /// How many have lived.
    pub ended: u64,
    /// Programs loaded.
    pub programs: u64,
    /// Files opened for reading.
    pub reads: u64,
    /// Other operations on files.
    pub changes: u64,
    /// Operations on the network.
    pub network: u64,
    /// Refusals.
    pub refused: u64,
    /// The record of the last one.
    pub last_refused: Option<u64>,
    /// Reports of the agent.
    pub reports: u64,
    /// Checks that passed.
    pub passed: u64,
    /// Checks that did not.
    pub not_passed: u64,
    /// Questions that wait for a person.
    pub questions: Vec<OpenQuestion>,
    /// What the run used when it was last looked at.
    pub sample: Option<ResourceSample>,
    /// How it ended, if it has.
    pub finished: Option<RunFinished>,
    /// Why it was not started, if it was not.
    pub failed: Option<RunFailed>,
    /// Kinds that this version does not know.
    pub unknown: u64,
}

/// A process that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivingProcess {
    /// How many of its ancestors are alive.
    pub depth: usize,
    /// Which.
    pub process: ProcessRef,
    /// What it runs, or what its parent did if it has loaded nothing itself.
    pub argv: Option<Arc<Vec<OsText>>>,
    /// Whether it has loaded a program itself.
    pub loaded: bool,
    /// The record in which it appeared.
    pub since: u64,
}

/// A question that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenQuestion {
    /// What an answer is addressed to.
    pub id: String,
    /// The record that asks.
    pub seq: u64,
}

#[derive(Debug, Clone)]
struct Living {
    parent: Option<ProcessRef>,
    argv: Option<Arc<Vec<OsText>>>,
    loaded: bool,
    since: u64,
}

/// Folds facts into a [`MomentDoc`].
#[derive(Debug, Clone, Default)]
pub struct Moment {
    /// Without processes and questions.
    so_far: MomentDoc,
    mono: Option<u64>,
    living: BTreeMap<ProcessRef, Living>,
    questions: BTreeMap<String, u64>,
}

impl Moment {
    fn begin(&mut self, process: ProcessRef, parent: Option<ProcessRef>, seq: u64) -> &mut Living {
        let inherited = parent.and_then(|parent| self.living.get(&parent)?.argv.clone());
        self.living.entry(process).or_insert(Living {
            parent,
            argv: inherited,
            loaded: false,
            since: seq,
        })
    }

    fn exec(&mut self, exec: &ProcessExec, seq: u64) {
        self.so_far.programs += 1;
        let living = self.begin(exec.process, exec.parent, seq);
        living.argv = Some(Arc::new(exec.argv.clone()));
        living.loaded = true;
    }

    /// Each behind its parent; whoever has lost it stands at the root.
    fn processes(&self) -> Vec<LivingProcess> {
        let mut children: BTreeMap<Option<ProcessRef>, Vec<ProcessRef>> = BTreeMap::new();
        for (&process, living) in &self.living {
            let parent = living.parent.filter(|up| self.living.contains_key(up));
            children.entry(parent).or_default().push(process);
        }
        let mut pending: Vec<(usize, ProcessRef)> = Vec::new();
        let mut push = |pending: &mut Vec<_>, depth, parent| {
            let below = children.remove(&parent).unwrap_or_default();
            pending.extend(below.into_iter().rev().map(|process| (depth, process)));
        };
        push(&mut pending, 0, None);
        let mut all = Vec::with_capacity(self.living.len());
        while let Some((depth, process)) = pending.pop() {
            push(&mut pending, depth + 1, Some(process));
            let Some(living) = self.living.get(&process) else {
                continue;
            };
            all.push(LivingProcess {
                depth,
                process,
                argv: living.argv.clone(),
                loaded: living.loaded,
                since: living.since,
            });
        }
        all
    }
}

impl View for Moment {
    type Document = MomentDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        let since = fact
            .stamp
            .mono
            .saturating_sub(self.mono.unwrap_or(fact.stamp.mono));
        self.mono = Some(fact.stamp.mono);
        let so_far = &mut self.so_far;
        so_far.elapsed_ns = so_far.elapsed_ns.saturating_add(since);
        so_far.records += 1;
        if matches!(fact.event, Event::Unknown { .. }) {
            so_far.unknown += 1;
        }
        if fact.notable() == Some(Notable::Refused) {
            so_far.refused += 1;
            so_far.last_refused = Some(fact.seq);
        }
        match fact.vouched() {
            Some(Event::ProcessForked(forked)) => {
                self.begin(forked.process, forked.parent, fact.seq);
            }
            Some(Event::ProcessExec(exec)) => self.exec(exec, fact.seq),
            Some(Event::ProcessExited(exited)) => {
                so_far.ended += 1;
                self.living.remove(&exited.process);
            }
            Some(Event::FileOp(op)) => {
                match accesses(op).iter().all(|(_, access)| access.is_read()) {
                    true => so_far.reads += 1,
                    false => so_far.changes += 1,
                }
            }
            Some(Event::NetOp(_)) => so_far.network += 1,
            Some(Event::SdkEvent(_)) => so_far.reports += 1,
            Some(Event::CheckCompleted(check)) => match check.result.passed {
                true => so_far.passed += 1,
                false => so_far.not_passed += 1,
            },
            Some(Event::ApprovalRequested(asked)) => {
                self.questions.insert(asked.id.clone(), fact.seq);
            }
            Some(Event::ToolAsked(asked)) => {
                self.questions.insert(asked.id.clone(), fact.seq);
            }
            Some(Event::ApprovalAnswered(answered)) => {
                self.questions.remove(&answered.id);
            }
            Some(Event::ToolAnswered(answered)) => {
                self.questions.remove(&answered.id);
            }
            Some(Event::ResourceSample(sample)) => so_far.sample = Some(sample.clone()),
            Some(Event::RunFinished(finished)) => {
                so_far.finished = Some(finished.clone());
                self.living.clear();
            }
            Some(Event::RunFailed(failed)) => so_far.failed = Some(failed.clone()),
            _ => {}
        }
    }

    fn document(&self) -> MomentDoc {
        let questions = self.questions.iter();
        let mut questions: Vec<OpenQuestion> = questions
            .map(|(id, &seq)| OpenQuestion {
                id: id.clone(),
                seq,
            })
            .collect();
        questions.sort_by_key(|question| question.seq);
        MomentDoc {
            processes: self.processes(),
            questions,
            ..self.so_far.clone()
        }
    }
}
