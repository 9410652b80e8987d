//! What Invigil's own events mean for the snapshot.

use invigil_schema::{
    ChildRunEnded, Event, RunFinished, RunResumed, RunSuspended, SignalDisposed, StopReason,
    SuspendReason, TaskState,
};

use super::{
    AgentProcess, AnomalyKind, BudgetRow, MilestoneState, OsView, RunState, SignalRow, Suspension,
};

/// Why a run waits for a person.
const ASK_USER: &str = "ask_user";

/// Whether a rule looks into events of this kind. All others are counted by their name alone.
pub(super) fn is_of_interest(kind: &str) -> bool {
    matches!(
        kind,
        "journal_opened"
            | "run_started"
            | "run_forked"
            | "run_finished"
            | "run_failed"
            | "process_forked"
            | "process_exec"
            | "process_exited"
            | "process_stopped"
            | "process_continued"
            | "approval_requested"
            | "approval_answered"
            | "tool_asked"
            | "tool_answered"
            | "client_run_started"
            | "client_run_ended"
            | "task_started"
            | "task_changed"
            | "task_ended"
            | "run_suspended"
            | "run_resumed"
            | "signal_disposed"
            | "budget_exceeded"
            | "checkpoint_taken"
            | "rollbacked"
            | "milestones_set"
            | "milestone_advanced"
            | "milestone_blocked"
            | "milestones_missed"
            | "child_run_started"
            | "child_run_ended"
    )
}

/// Whether records of this kind may stand behind the end of a run: what it left is checked, or put back.
pub(super) fn may_follow_the_end(kind: &str) -> bool {
    matches!(
        kind,
        "journal_recovered"
            | "check_started"
            | "check_completed"
            | "order_taken"
            | "order_ended"
            | "order_refused"
            | "checkpoint_taken"
            | "rollback_started"
            | "rollbacked"
    )
}

impl OsView {
    /// Takes in an event of interest for which the right one vouches.
    pub(super) fn own(&mut self, seq: u64, event: &Event) {
        if self.is_over() && !may_follow_the_end(event.kind()) {
            let anomaly = match event {
                Event::RunFinished(_)
                | Event::RunFailed(_)
                | Event::ClientRunEnded(_)
                | Event::TaskEnded(_) => AnomalyKind::DuplicateCompletion,
                _ => AnomalyKind::AfterEnd,
            };
            return self.anomaly(seq, anomaly, event.kind());
        }
        match event {
            Event::JournalOpened(opened) => {
                self.own_id = opened.run_id.to_string();
                self.run_state = Some(RunState::Starting);
            }
            Event::RunStarted(started) => {
                let lineage = started.lineage.as_ref();
                self.begin(seq, lineage.map(|lineage| lineage.parent.to_string()));
            }
            Event::RunForked(forked) => {
                let parent = forked.parent.to_string();
                self.agent(seq, Some(parent), "forked");
            }
            Event::ClientRunStarted(_) | Event::TaskStarted(_) => self.begin(seq, None),
            Event::RunFinished(finished) => self.finish(seq, finished),
            Event::RunFailed(_) => self.end(seq, "failed"),
            Event::ClientRunEnded(ended) => {
                let state = match ended.termination.word().as_str() {
                    "cancelled" => "cancelled",
                    "incomplete" => "lost",
                    _ => "completed",
                };
                self.end(seq, state);
            }
            Event::TaskChanged(changed) => self.task(seq, changed.state),
            Event::TaskEnded(ended) => self.end(seq, task_end(ended.state)),
            Event::ApprovalRequested(asked) => {
                self.counts.tool_gated += 1;
                let process = asked.process;
                self.waiting.ask(seq, ASK_USER, &asked.id, Some(process));
                self.processes.waits(seq, process, true);
            }
            Event::ToolAsked(asked) => {
                self.counts.tool_gated += 1;
                self.waiting.ask(seq, ASK_USER, &asked.id, None);
            }
            Event::ApprovalAnswered(answered) => self.answered(seq, &answered.id),
            Event::ToolAnswered(answered) => self.answered(seq, &answered.id),
            other => self.processes_and_steps(seq, other),
        }
    }

    fn processes_and_steps(&mut self, seq: u64, event: &Event) {
        match event {
            Event::ProcessForked(forked) => self.processes.forked(seq, forked),
            Event::ProcessExec(exec) => {
                let done = self.processes.exec(seq, exec);
                let what = || format!("process {} loads a program", exec.process.pid);
                self.apply(seq, what, done);
            }
            Event::ProcessExited(exited) => {
                let done = self.processes.exited(seq, exited);
                self.apply(seq, || format!("process {} ends", exited.process.pid), done);
            }
            Event::ProcessStopped(stopped) => {
                self.processes.stop_one(seq, stopped.process, true);
            }
            Event::ProcessContinued(continued) => {
                self.processes.stop_one(seq, continued.process, false);
            }
            Event::RunSuspended(suspended) => self.suspended(seq, suspended),
            Event::RunResumed(resumed) => self.resumed(seq, resumed),
            Event::SignalDisposed(disposed) => self.signal(seq, disposed),
            Event::BudgetExceeded(exceeded) => self.budgets.push(BudgetRow {
                turn: seq,
                budget: exceeded.budget.as_str().to_owned(),
            }),
            Event::CheckpointTaken(taken) => self.steps.checkpoint(seq, taken),
            Event::Rollbacked(back) => self.steps.rollback(seq, back),
            Event::MilestonesSet(set) => self.steps.phases(seq, set),
            Event::MilestoneAdvanced(reached) => {
                let state = MilestoneState::Advanced;
                self.steps.phase(seq, &reached.phase, state);
            }
            Event::MilestoneBlocked(blocked) => {
                let state = MilestoneState::Blocked;
                self.steps.phase(seq, &blocked.phase, state);
            }
            Event::MilestonesMissed(missed) => {
                for phase in &missed.phases {
                    self.steps.phase(seq, phase, MilestoneState::Missed);
                }
            }
            Event::ChildRunStarted(child) => {
                let done = self.agents.changed(AgentProcess {
                    turn: seq,
                    agent_id: child.run_id.to_string(),
                    parent_session_id: self.own_id.clone(),
                    state: "running".to_owned(),
                });
                self.apply(seq, || format!("run {} begins", child.run_id), done);
            }
            Event::ChildRunEnded(child) => self.child_ended(seq, child),
            _ => {}
        }
    }

    fn begin(&mut self, seq: u64, parent: Option<String>) {
        self.run_state = Some(RunState::Running);
        self.agent(seq, parent, "running");
    }

    /// The run itself. Who it comes from stays.
    fn agent(&mut self, seq: u64, parent: Option<String>, state: &str) {
        let known = self
            .agents
            .rows()
            .iter()
            .find(|row| row.agent_id == self.own_id);
        let known = known.map(|row| row.parent_session_id.clone());
        let begun = self.agents.changed(AgentProcess {
            turn: seq,
            agent_id: self.own_id.clone(),
            parent_session_id: parent.or(known).unwrap_or_default(),
            state: state.to_owned(),
        });
        self.apply(seq, || format!("the run is {state}"), begun);
    }

    fn finish(&mut self, seq: u64, finished: &RunFinished) {
        if finished.stopped == Some(StopReason::Budget) && self.budgets.rows.is_empty() {
            let budget = finished.why.clone().unwrap_or_default();
            self.budgets.push(BudgetRow { turn: seq, budget });
        }
        self.end(seq, end_of(finished.stopped, finished.success));
    }

    fn end(&mut self, seq: u64, state: &str) {
        self.run_state = Some(RunState::Ended);
        self.processes.end(seq);
        self.waiting.end();
        // What never began has no row.
        _ = self.agents.now(seq, &self.own_id.clone(), state);
    }

    fn child_ended(&mut self, seq: u64, child: &ChildRunEnded) {
        let state = end_of(child.stopped, child.success);
        let done = self.agents.now(seq, child.run_id.as_str(), state);
        self.apply(seq, || format!("run {} ends", child.run_id), done);
    }

    fn answered(&mut self, seq: u64, id: &str) {
        match self.waiting.close(seq, id) {
            Ok(Some(process)) if !self.waiting.waits(process) => {
                self.processes.waits(seq, process, false);
            }
            Ok(_) => {}
            Err(anomaly) => self.anomaly(seq, anomaly, format!("an answer to question {id}")),
        }
    }

    fn suspended(&mut self, seq: u64, suspended: &RunSuspended) {
        let mut pending = suspended.pending.clone();
        if pending.is_empty() {
            pending.push(suspended.id.clone());
        }
        let suspension = Suspension {
            turn: seq,
            reason: suspended.reason.as_str().to_owned(),
            pending_calls: pending,
        };
        self.waiting.suspend(Some(&suspended.id), suspension);
        if stops(suspended.reason) {
            self.run_state = Some(RunState::Paused);
            self.processes.stop(seq, true);
        }
    }

    fn resumed(&mut self, seq: u64, resumed: &RunResumed) {
        if let Err(anomaly) = self.waiting.close(seq, &resumed.id) {
            let what = format!("the end of suspension {}", resumed.id);
            return self.anomaly(seq, anomaly, what);
        }
        let stopping = [SuspendReason::Pause, SuspendReason::Files].map(SuspendReason::as_str);
        if stops(resumed.reason) && !self.waiting.has(&stopping) {
            self.run_state = Some(RunState::Running);
            self.processes.stop(seq, false);
        }
    }

    fn signal(&mut self, seq: u64, disposed: &SignalDisposed) {
        self.signals.push(SignalRow {
            turn: seq,
            signal_id: disposed.signal.id.clone(),
            disposition: disposed.disposition.as_str().to_owned(),
            queue_depth: disposed.queue_depth,
        });
    }

    /// A task that waits for a person is suspended; the next thing that happens to it resumes it.
    fn task(&mut self, seq: u64, state: TaskState) {
        let task = self.own_id.clone();
        if self.waiting.open().next().is_some() {
            // It is the only thing that waits in the journal of a task.
            _ = self.waiting.close(seq, &task);
        }
        if state.waits() {
            self.waiting.ask(seq, state.as_str(), &task, None);
        }
    }
}

/// Whether every process is stopped.
fn stops(reason: SuspendReason) -> bool {
    matches!(reason, SuspendReason::Pause | SuspendReason::Files)
}

fn end_of(stopped: Option<StopReason>, success: bool) -> &'static str {
    match (stopped, success) {
        (Some(_), _) => "terminated",
        (None, true) => "exited",
        (None, false) => "failed",
    }
}

fn task_end(state: TaskState) -> &'static str {
    match state {
        TaskState::Failed => "failed",
        TaskState::Abandoned => "cancelled",
        _ => "completed",
    }
}
