//! How much a run may use, and who sees to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use invigil_schema::{EnforcedBy, LimitKind, Limited};

use crate::census::{self, Census};
use crate::cgroup::{Cgroup, Controller};
use crate::waker::{Mailbox, Order};

/// How much the whole tree of a run may use; it is killed when it uses more. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Processor time of all processes together.
    pub cpu: Option<Duration>,
    /// Bytes of memory of all processes together.
    pub memory: Option<u64>,
    /// Processes alive at once; threads do not count.
    pub processes: Option<u32>,
    /// Bytes of one file. A process that writes more gets `SIGXFSZ` or `EFBIG`, as with `ulimit -f`.
    pub file_size: Option<u64>,
    /// Bytes of private memory of each process. One that asks for more gets `ENOMEM`, as with `ulimit -d`.
    pub data: Option<u64>,
}

/// So few processes need no cgroup.
const FEW: u64 = 2;

impl Limits {
    /// The same for a run that needs but one process and shares no memory: a second, which may be about to be refused
    /// its program, and what the kernel limits for each of the two. To move a process into a cgroup costs several
    /// milliseconds, and whoever does so waits for everybody else who does.
    pub fn without_cgroup(self) -> Limits {
        let each = self.memory.map(|memory| memory / FEW);
        Limits {
            memory: None,
            processes: Some(FEW as u32),
            data: [self.data, each].into_iter().flatten().min(),
            ..self
        }
    }

    /// Whether a cgroup could hold one of them.
    pub(crate) fn want_cgroup(&self) -> bool {
        self.in_force(None, true).iter().any(wants_cgroup)
    }

    /// Each limit, and who sees to it. `counted` says that the observer hears of each birth.
    pub(crate) fn in_force(&self, cgroup: Option<&Cgroup>, counted: bool) -> Vec<Limited> {
        let held = |controller| match cgroup {
            Some(cgroup) if cgroup.has(controller) => EnforcedBy::Cgroup,
            _ => EnforcedBy::Sampled,
        };
        let counting = match counted {
            true => EnforcedBy::Observer,
            false => EnforcedBy::Sampled,
        };
        let cpu = self.cpu.map(|cpu| cpu.as_micros() as u64);
        let processes = self.processes.map(u64::from);
        [
            (LimitKind::Cpu, cpu, held(Controller::Cpu)),
            (LimitKind::Memory, self.memory, held(Controller::Memory)),
            (LimitKind::Processes, processes, counting),
            (LimitKind::FileSize, self.file_size, EnforcedBy::Rlimit),
            (LimitKind::Memory, self.data, EnforcedBy::Rlimit),
        ]
        .into_iter()
        .filter_map(|(what, limit, by)| {
            let limit = limit?;
            Some(Limited { what, limit, by })
        })
        .collect()
    }
}

/// Whether a cgroup would hold it better than anybody else.
pub(crate) fn wants_cgroup(limited: &Limited) -> bool {
    match limited.what {
        LimitKind::Processes => limited.limit > FEW,
        LimitKind::Cpu | LimitKind::Memory | LimitKind::FileSize => {
            limited.by != EnforcedBy::Rlimit
        }
    }
}

/// Processor time of the dead, where no cgroup keeps it.
///
/// The kernel's account of a dead process includes the children that it has waited for, and does not say how much of it
/// is theirs. What is kept here is never too much: of a family, the account of the parent or the sum of those of its
/// dead children, whichever is greater.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Accounts>>);

#[derive(Debug, Default)]
struct Accounts {
    /// Of the dead children of the living.
    children: HashMap<u32, Duration>,
    /// Of those whose parents were dead before them.
    orphans: Duration,
}

impl Ledger {
    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has died; its parent, if that is alive.
    pub(crate) fn ended(&self, pid: u32, parent: Option<u32>, used: Duration) {
        let mut accounts = self.accounts();
        let family = accounts.children.remove(&pid).unwrap_or_default();
        let used = used.max(family);
        match parent {
            Some(parent) => *accounts.children.entry(parent).or_default() += used,
            None => accounts.orphans += used,
        }
    }

    fn total(&self, living: &[u32]) -> Duration {
        let accounts = self.accounts();
        living.iter().fold(accounts.orphans, |sum, pid| {
            let dead = accounts.children.get(pid).copied().unwrap_or_default();
            sum + census::cpu_with_children(*pid).max(dead)
        })
    }
}

/// How often a run is looked at.
const TICK: Duration = Duration::from_millis(50);

/// What a run is measured by.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    pub(crate) limits: Vec<Limited>,
    pub(crate) cgroup: Option<Arc<Cgroup>>,
    pub(crate) census: Census,
    pub(crate) ledger: Ledger,
}

impl Gauges {
    /// The first limit that is exceeded now, and how much is used.
    pub(crate) fn exceeded(&self) -> Option<(Limited, u64)> {
        self.limits.iter().find_map(|limited| {
            let used = self.used(limited)?;
            // The kernel lets nobody exceed what it holds, and says nothing before somebody died of it.
            let died = (limited.what, limited.by) == (LimitKind::Memory, EnforcedBy::Cgroup);
            (died || used > limited.limit).then_some((*limited, used))
        })
    }

    fn used(&self, limited: &Limited) -> Option<u64> {
        let cgroup = self.cgroup.as_deref();
        match (limited.what, limited.by) {
            (LimitKind::Memory, EnforcedBy::Cgroup) => cgroup?.out_of_memory(),
            (_, EnforcedBy::Rlimit) => None,
            (LimitKind::Memory, _) => Some(self.census.memory(limited.limit)),
            (LimitKind::Cpu, EnforcedBy::Cgroup) => Some(cgroup?.cpu()?.as_micros() as u64),
            (LimitKind::Cpu, _) => {
                let living = self.census.all();
                Some(self.ledger.total(&living).as_micros() as u64)
            }
            (LimitKind::Processes, EnforcedBy::Sampled) => Some(self.census.all().len() as u64),
            (LimitKind::Processes | LimitKind::FileSize, _) => None,
        }
    }
}

/// Looks at a run from time to time, and tells its observer when it has used too much.
#[derive(Debug)]
pub(crate) struct Meter {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    /// Begins to look, if there is something to look at.
    pub(crate) fn start(gauges: Gauges, mailbox: Arc<Mailbox>) -> std::io::Result<Meter> {
        let over = Arc::new(AtomicBool::new(false));
        let looked_at = |limited: &Limited| match limited.by {
            EnforcedBy::Cgroup | EnforcedBy::Sampled => true,
            EnforcedBy::Observer | EnforcedBy::Rlimit => false,
        };
        if !gauges.limits.iter().any(looked_at) {
            return Ok(Meter { over, thread: None });
        }
        let stop = Arc::clone(&over);
        let look = move || {
            while !stop.load(Ordering::Relaxed) {
                thread::park_timeout(TICK);
                if let Some((limited, measured)) = gauges.exceeded() {
                    mailbox.post(Order::Limit(limited, measured));
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("invigil-limits".into())
            .stack_size(128 * 1024)
            .spawn(look)?;
        Ok(Meter {
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_counted_once() {
        let ledger = Ledger::default();
        let ms = Duration::from_millis;
        // 11 waited for 12, so its account includes that; 13 nobody waited for.
        ledger.ended(12, Some(11), ms(30));
        ledger.ended(11, Some(10), ms(50));
        ledger.ended(13, Some(10), ms(5));
        assert_eq!(ledger.total(&[]), ms(0));
        ledger.ended(10, None, ms(20));
        assert_eq!(ledger.total(&[]), ms(55));
    }
}
