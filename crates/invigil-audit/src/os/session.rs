//! What the events of other runtimes mean for the snapshot.

use invigil_schema::{SessionEvent, SessionKind, SessionRecord};

use super::{AgentProcess, AnomalyKind, BudgetRow, OsView, RunState, SignalRow, Suspension};

impl OsView {
    pub(super) fn session(&mut self, seq: u64, record: &SessionRecord) {
        let Some(kind) = record.kind() else {
            return;
        };
        if self.is_over() {
            let anomaly = match kind {
                SessionKind::RunTerminal => AnomalyKind::DuplicateCompletion,
                _ => AnomalyKind::AfterEnd,
            };
            return self.anomaly(seq, anomaly, kind.as_str());
        }
        match &record.event {
            SessionEvent::Suspended {
                turn,
                reason,
                pending_calls,
            } => {
                let suspension = Suspension {
                    turn: *turn,
                    reason: reason.clone(),
                    pending_calls: pending_calls.clone(),
                };
                self.waiting.suspend(None, suspension);
            }
            SessionEvent::Resumed {
                turn,
                approved,
                denied,
            } => {
                let resumed = self.waiting.resume(*turn, approved.iter().chain(denied));
                self.apply(seq, || format!("resumed in turn {turn}"), resumed);
            }
            SessionEvent::ToolGated { .. } => self.counts.tool_gated += 1,
            SessionEvent::AgentProcessChanged(changed) => {
                let done = self.agents.changed(AgentProcess {
                    turn: changed.turn,
                    agent_id: changed.agent_id.clone(),
                    parent_session_id: changed.parent_session_id.clone(),
                    state: changed.state.clone(),
                });
                let what = || format!("agent {} is {}", changed.agent_id, changed.state);
                self.apply(seq, what, done);
            }
            SessionEvent::SignalDisposed {
                turn,
                signal_id,
                disposition,
                queue_depth,
            } => self.signals.push(SignalRow {
                turn: *turn,
                signal_id: signal_id.clone(),
                disposition: disposition.clone(),
                queue_depth: *queue_depth,
            }),
            SessionEvent::BudgetExceeded { turn, budget } => self.budgets.push(BudgetRow {
                turn: *turn,
                budget: budget.clone(),
            }),
            SessionEvent::Plain(kind) => self.session_plain(*kind),
            SessionEvent::Unknown { .. } => {}
        }
    }

    fn session_plain(&mut self, kind: SessionKind) {
        let counts = &mut self.counts;
        match kind {
            SessionKind::PageOut => counts.page_out += 1,
            SessionKind::PageIn => counts.page_in += 1,
            SessionKind::MemoryWritten => counts.memory_written += 1,
            SessionKind::MemoryQueried => counts.memory_queried += 1,
            SessionKind::MemoryValidationFailed => counts.memory_validation_failed += 1,
            SessionKind::MemoryRetrievalResult => counts.memory_retrieval_result += 1,
            SessionKind::CheckpointTaken => self.steps.checkpoints += 1,
            SessionKind::Rollbacked => self.steps.rollbacks += 1,
            SessionKind::RunStarted => self.run_state = Some(RunState::Running),
            SessionKind::RunTerminal => {
                self.run_state = Some(RunState::Ended);
                self.waiting.end();
            }
            SessionKind::Compressed
            | SessionKind::CapabilityChanged
            | SessionKind::ContextRenewed
            | SessionKind::Suspended
            | SessionKind::Resumed
            | SessionKind::ToolGated
            | SessionKind::SignalDisposed
            | SessionKind::BudgetExceeded
            | SessionKind::AgentProcessChanged
            | SessionKind::MilestoneAdvanced
            | SessionKind::MilestoneBlocked
            | SessionKind::MilestoneEvidence
            | SessionKind::LlmCompleted
            | SessionKind::ToolRequested
            | SessionKind::ToolCompleted => {}
        }
    }
}
