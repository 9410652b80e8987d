//! How a task stands: a fold over its journal.

use invigil_journal::{RunRef, StoreError};
use invigil_schema::{
    CheckResult, Contract, Event, OsText, Stage, TaskId, TaskProposed, TaskRan, TaskState,
    Timestamp,
};
use schemars::JsonSchema;
use serde::Serialize;

/// A task, as its journal tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TaskView {
    /// The task.
    pub task_id: TaskId,
    /// How it stands.
    pub state: TaskState,
    /// Whether a process works on it.
    pub live: bool,
    /// When it was begun.
    pub started_at: Timestamp,
    /// What the person wants.
    pub intent: String,
    /// The person's repository.
    pub repository: OsText,
    /// The commit that the work begins with.
    pub base: String,
    /// Where the work happens.
    pub worktree: OsText,
    /// The agent's command, without secrets.
    pub agent: Vec<OsText>,
    /// Whose it is, if a client of the daemon began it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How often red checks go back to the agent.
    pub max_rounds: u32,
    /// The round of the agent's work; 0 before the first.
    pub round: u32,
    /// What "done" means.
    pub contract: Option<Contract>,
    /// Whether a model has written it.
    pub derived: bool,
    /// The checks on the untouched tree.
    pub baseline: Vec<CheckResult>,
    /// The checks on what the agent left last.
    pub checks: Vec<CheckResult>,
    /// The same, with the files of the checks that the agent changed as they were before; empty if it changed none.
    pub originals: Vec<CheckResult>,
    /// The agent's runs.
    pub runs: Vec<TaskRan>,
    /// What waits for approval, or was approved.
    pub proposed: Option<TaskProposed>,
    /// What the person should know of the repository.
    pub notes: Vec<String>,
    /// What came of it, in one sentence.
    pub verdict: Option<String>,
    /// Where the work is.
    pub branch: Option<String>,
    /// The last record.
    pub seq: u64,
}

impl TaskView {
    /// Reads the journal of a task.
    pub(super) fn read(journal: &RunRef) -> Result<Option<TaskView>, StoreError> {
        let Some(mut reader) = journal.read(0)? else {
            return Ok(None);
        };
        let mut view = None;
        while let Some(record) = reader.next().map_err(|error| journal.error(error))? {
            let envelope = record.envelope().map_err(|error| journal.error(error))?;
            match (&mut view, envelope.event()) {
                (None, Event::TaskStarted(started)) => {
                    view = Some(TaskView {
                        task_id: started.task_id,
                        state: TaskState::Created,
                        live: journal.is_live(),
                        started_at: envelope.time,
                        intent: started.intent,
                        repository: started.repository,
                        base: started.base,
                        worktree: started.worktree,
                        agent: started.agent,
                        agent_id: started.agent_id,
                        max_rounds: started.max_rounds,
                        round: 0,
                        contract: None,
                        derived: false,
                        baseline: Vec::new(),
                        checks: Vec::new(),
                        originals: Vec::new(),
                        runs: Vec::new(),
                        proposed: None,
                        notes: started.notes,
                        verdict: None,
                        branch: None,
                        seq: 0,
                    });
                }
                (None, _) => {}
                (Some(view), event) => view.take(event),
            }
            if let Some(view) = &mut view {
                view.seq = record.seq;
            }
        }
        Ok(view)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::TaskContract(data) => {
                self.state = match data.confirmed {
                    true => TaskState::ContractConfirmed,
                    false => TaskState::ContractProposed,
                };
                self.derived |= data.derived;
                self.contract = Some(data.contract);
            }
            Event::TaskChanged(data) => {
                (self.state, self.round) = (data.state, data.round);
                if data.state == TaskState::Verifying {
                    self.checks.clear();
                    self.originals.clear();
                }
                self.verdict = data.why;
            }
            Event::CheckCompleted(data) => match data.stage {
                Stage::Baseline => self.baseline.push(data.result),
                Stage::Verify => self.checks.push(data.result),
                Stage::Original => self.originals.push(data.result),
            },
            Event::TaskRan(ran) => self.runs.push(ran),
            Event::TaskProposed(proposed) => self.proposed = Some(proposed),
            Event::TaskEnded(ended) => {
                self.state = ended.state;
                self.verdict = Some(ended.verdict);
                self.branch = ended.branch;
            }
            _ => {}
        }
    }
}
