//! What is due by the clock: budgets, and the fuse.

use std::sync::atomic::Ordering;
use std::time::Instant;

use invigil_schema::{
    BudgetExceeded, BudgetKind, Circle, FuseAction, Origin, RepeatFuse, StopReason,
};

use super::{Inner, lock};
use crate::steer::children::{Left, amounts};

/// Measuring takes at most one part in this many of the time.
const MEASURE_SHARE: u32 = 20;

impl Inner {
    /// What is due by the clock.
    pub(super) fn tick(&self) {
        let (rested, paused) = self.control.rested();
        if paused {
            return;
        }
        let since = std::mem::replace(&mut self.state().rested, rested);
        let mut watcher = lock(&self.watcher);
        watcher.rest(rested.saturating_sub(since));
        let fuse = watcher.tick();
        drop(watcher);
        if let Some(fuse) = fuse {
            self.blow(fuse);
        }
        let begun = Instant::now();
        if self.state().measure_at.is_none_or(|at| at <= begun) {
            self.measure();
            self.state().measure_at = Some(begun + begun.elapsed() * MEASURE_SHARE);
        }
    }

    /// Looks at what nobody tells.
    fn measure(&self) {
        for (budget, limit) in amounts(&self.budget) {
            // What is set aside for children is not the run's own. The sandbox sees to the rest of what it measures.
            let taken = lock(&self.children).taken(budget);
            if taken == 0 && budget != BudgetKind::Disk {
                continue;
            }
            let used = self.spent(budget).saturating_add(taken);
            if used > limit {
                let exceeded = BudgetExceeded {
                    budget,
                    limit,
                    used,
                };
                let name = budget.as_str();
                let why = format!("its budget of {name} is {limit}, and it used {used}");
                self.control.end_over_budget(exceeded, &why);
            }
        }
    }

    /// The run goes round in circles: somebody is told, or it is ended.
    pub(super) fn blow(&self, fuse: RepeatFuse) {
        let stops = fuse.action == FuseAction::Stop;
        let why = match fuse.circle {
            Circle::SameFailure => format!("the same command failed {} times", fuse.count),
            Circle::NoChange => format!("nothing has changed for {} s", fuse.count),
        };
        if self.state().blown {
            return;
        }
        if self.record(Origin::Runtime, fuse).is_ok() && stops {
            self.state().blown = true;
            self.interrupt(StopReason::Fuse, &why);
        }
    }

    /// How much of a budget the run itself uses or has used.
    pub(super) fn spent(&self, budget: BudgetKind) -> u64 {
        let sample = lock(&self.sample);
        let sample = sample.as_ref();
        match budget {
            BudgetKind::Cpu => {
                let now = sample.map_or(0, |sample| sample.cpu_us);
                now.max(self.cpu_us.load(Ordering::Relaxed))
            }
            BudgetKind::Memory => sample.map_or(0, |sample| sample.rss_kib * 1024),
            BudgetKind::Processes => sample.map_or(0, |sample| sample.processes),
            BudgetKind::Disk => self.disk.as_ref().map_or(0, |disk| lock(disk).grown()),
            budget => self.usage.used(budget),
        }
    }

    /// How much is left of each budget that there is.
    pub(super) fn left(&self) -> Left {
        let children = lock(&self.children);
        let left = |(budget, limit): (BudgetKind, u64)| {
            let taken = self.spent(budget).saturating_add(children.taken(budget));
            (budget, limit.saturating_sub(taken))
        };
        amounts(&self.budget).into_iter().map(left).collect()
    }
}
