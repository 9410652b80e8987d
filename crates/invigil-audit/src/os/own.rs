//! What Invigil's own events mean for the snapshot.

use invigil_schema::{Event, RunFinished, TaskState};

use super::{AgentProcess, AnomalyKind, BudgetRow, OsView, RunState};

/// Why a run waits for a person.
const ASK_USER: &str = "ask_user";

/// Whether a rule looks into events of this kind. All others are counted by their name alone.
pub(super) fn is_of_interest(kind: &str) -> bool {
    matches!(
        kind,
        "journal_opened"
            | "run_started"
            | "run_finished"
            | "run_failed"
            | "process_forked"
            | "process_exec"
            | "process_exited"
            | "approval_requested"
            | "approval_answered"
            | "tool_asked"
            | "tool_answered"
            | "client_run_started"
            | "client_run_ended"
            | "task_started"
            | "task_changed"
            | "task_ended"
    )
}

/// Whether records of this kind may stand behind the end of a run.
pub(super) fn may_follow_the_end(kind: &str) -> bool {
    matches!(kind, "journal_recovered")
}

impl OsView {
    /// Takes in an event of interest for which the right one vouches.
    pub(super) fn own(&mut self, seq: u64, event: &Event) {
        if self.is_over() {
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
            Event::RunStarted(_) => self.begin(seq),
            Event::RunFinished(finished) => self.finish(seq, finished),
            Event::RunFailed(_) => self.end(seq, "failed"),
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
            Event::ApprovalRequested(asked) => {
                self.counts.tool_gated += 1;
                self.waiting
                    .ask(seq, ASK_USER, &asked.id, Some(asked.process));
                self.processes.waits(seq, asked.process, true);
            }
            Event::ApprovalAnswered(answered) => self.answered(seq, &answered.id),
            Event::ToolAsked(asked) => {
                self.counts.tool_gated += 1;
                self.waiting.ask(seq, ASK_USER, &asked.id, None);
            }
            Event::ToolAnswered(answered) => self.answered(seq, &answered.id),
            Event::ClientRunStarted(_) => self.begin(seq),
            Event::ClientRunEnded(ended) => {
                let state = match ended.termination.word().as_str() {
                    "cancelled" => "cancelled",
                    "incomplete" => "lost",
                    _ => "completed",
                };
                self.end(seq, state);
            }
            Event::TaskStarted(_) => self.begin(seq),
            Event::TaskChanged(changed) => self.task(seq, changed.state),
            Event::TaskEnded(ended) => self.end(
                seq,
                match ended.state {
                    TaskState::Failed => "failed",
                    TaskState::Abandoned => "cancelled",
                    _ => "completed",
                },
            ),
            _ => {}
        }
    }

    fn begin(&mut self, seq: u64) {
        self.run_state = Some(RunState::Running);
        let begun = self.agents.changed(AgentProcess {
            turn: seq,
            agent_id: self.own_id.clone(),
            parent_session_id: String::new(),
            state: "running".to_owned(),
        });
        self.apply(seq, || "the run begins".to_owned(), begun);
    }

    fn finish(&mut self, seq: u64, finished: &RunFinished) {
        use invigil_schema::StopReason;
        if finished.stopped == Some(StopReason::Budget) {
            let budget = finished.why.clone().unwrap_or_default();
            self.budgets.push(BudgetRow { turn: seq, budget });
        }
        let state = match (finished.stopped, finished.success) {
            (Some(_), _) => "terminated",
            (None, true) => "exited",
            (None, false) => "failed",
        };
        self.end(seq, state);
    }

    fn end(&mut self, seq: u64, state: &str) {
        self.run_state = Some(RunState::Ended);
        self.processes.end(seq);
        self.waiting.end();
        // A run that was refused before it began has no row.
        drop(self.agents.now(seq, &self.own_id.clone(), state));
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

    /// A task that waits for a person is suspended; the next thing that happens to it resumes it.
    fn task(&mut self, seq: u64, state: TaskState) {
        let task = self.own_id.clone();
        let waited = self.waiting.open.iter().any(|open| open.pending_calls == [task.as_str()]);
        if waited {
            // It is open: this cannot fail.
            drop(self.waiting.close(seq, &task));
        }
        if state.waits() {
            self.waiting.ask(seq, state.as_str(), &task, None);
        }
    }
}
