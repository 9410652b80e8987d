//! Agents, each as its last event left it, in the order in which they were first named.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{AgentProcess, AnomalyKind};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<AgentProcess>", into = "Vec<AgentProcess>")]
pub(super) struct Agents {
    rows: Vec<AgentProcess>,
    places: BTreeMap<String, usize>,
}

impl From<Vec<AgentProcess>> for Agents {
    fn from(rows: Vec<AgentProcess>) -> Self {
        let places = rows.iter().zip(0..);
        let places = places.map(|(row, place)| (row.agent_id.clone(), place));
        Agents {
            places: places.collect(),
            rows,
        }
    }
}

impl From<Agents> for Vec<AgentProcess> {
    fn from(agents: Agents) -> Self {
        agents.rows
    }
}

impl Agents {
    pub(super) fn rows(&self) -> &[AgentProcess] {
        &self.rows
    }

    /// The last event wins, at the first place; but nothing that is over begins again or ends once more, and what never
    /// began cannot end.
    pub(super) fn changed(&mut self, new: AgentProcess) -> Result<(), AnomalyKind> {
        let Some(&place) = self.places.get(&new.agent_id) else {
            if is_end(&new.state) {
                return Err(AnomalyKind::UnknownAgent);
            }
            self.places.insert(new.agent_id.clone(), self.rows.len());
            self.rows.push(new);
            return Ok(());
        };
        let row = &mut self.rows[place];
        match (is_end(&row.state), is_end(&new.state)) {
            (true, true) => Err(AnomalyKind::DuplicateCompletion),
            (true, false) => Err(AnomalyKind::AfterEnd),
            (false, _) => {
                *row = new;
                Ok(())
            }
        }
    }

    /// A known agent is in another state.
    pub(super) fn now(
        &mut self,
        turn: u64,
        agent_id: &str,
        state: &str,
    ) -> Result<(), AnomalyKind> {
        let place = self.places.get(agent_id);
        let row = place.and_then(|&place| self.rows.get(place));
        let Some(row) = row else {
            return Err(AnomalyKind::UnknownAgent);
        };
        let parent_session_id = row.parent_session_id.clone();
        self.changed(AgentProcess {
            turn,
            agent_id: agent_id.to_owned(),
            parent_session_id,
            state: state.to_owned(),
        })
    }
}

/// Whether an agent in this state does nothing any more.
fn is_end(state: &str) -> bool {
    matches!(
        state,
        "joined"
            | "completed"
            | "done"
            | "exited"
            | "failed"
            | "error"
            | "killed"
            | "cancelled"
            | "canceled"
            | "aborted"
            | "terminated"
            | "timed_out"
            | "lost"
    )
}
