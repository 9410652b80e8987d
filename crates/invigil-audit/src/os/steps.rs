//! The steps of a run that somebody can go back to, or has to reach.

use invigil_schema::{CheckpointTaken, MilestonesSet, Rollbacked};
use serde::{Deserialize, Serialize};

use super::{CheckpointRow, MilestoneRow, MilestoneState, ROWS_MAX};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Steps {
    pub(super) checkpoints: u64,
    pub(super) last_checkpoint: Option<CheckpointRow>,
    pub(super) rollbacks: u64,
    pub(super) last_rollback: Option<CheckpointRow>,
    pub(super) milestones: Vec<MilestoneRow>,
}

impl Steps {
    pub(super) fn checkpoint(&mut self, turn: u64, taken: &CheckpointTaken) {
        self.checkpoints += 1;
        let id = taken.id.clone();
        self.last_checkpoint = Some(CheckpointRow { turn, id });
    }

    pub(super) fn rollback(&mut self, turn: u64, back: &Rollbacked) {
        self.rollbacks += 1;
        let id = back.checkpoint.clone();
        self.last_rollback = Some(CheckpointRow { turn, id });
    }

    pub(super) fn phases(&mut self, turn: u64, set: &MilestonesSet) {
        let phases = set.phases.iter().take(ROWS_MAX);
        let open = phases.map(|phase| MilestoneRow {
            turn,
            phase: phase.clone(),
            state: MilestoneState::Open,
        });
        self.milestones = open.collect();
    }

    /// What is known of a phase now. One that was not announced is added.
    pub(super) fn phase(&mut self, turn: u64, phase: &str, state: MilestoneState) {
        let full = self.milestones.len() >= ROWS_MAX;
        let known = self.milestones.iter_mut().find(|row| row.phase == phase);
        match known {
            Some(row) => (row.turn, row.state) = (turn, state),
            None if !full => self.milestones.push(MilestoneRow {
                turn,
                phase: phase.to_owned(),
                state,
            }),
            None => {}
        }
    }
}
