//! The least tier: the command is started and waited for, and so are the orphans it leaves; nothing else is seen.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use invigil_schema::{Errno, Hook, ObserverFinished, ObserverStarted, Origin, Tier};

use crate::api::{Killed, LaunchError, Outcome, Sink};
use crate::census::Census;
use crate::handle::{Begun, Ended, Started};
use crate::launch::Prepared;
use crate::limits::{Gauges, Ledger, Meter};
use crate::sys::{self, ptrace};
use crate::waker::{Mailbox, Order};

/// How often a tree that is to be killed is stopped before.
const ROUNDS: usize = 100;
/// How often orphans are looked for.
const TICK: Duration = Duration::from_millis(20);

/// Starts the command and returns when its last descendant is dead.
pub(crate) fn run(prepared: Prepared, mut sink: Box<dyn Sink>, ended: &Ended, started: &Started) {
    let start = Instant::now();
    let mut begin = || -> Result<_, LaunchError> {
        let mailbox = Mailbox::for_this_thread().map_err(|error| LaunchError::System {
            step: "eventfd",
            error,
        })?;
        let why_not = Some("contract_only".to_owned());
        let hook = |name: &str| Hook {
            name: name.into(),
            attached: false,
            why_not: why_not.clone(),
        };
        let event = ObserverStarted {
            tier: Tier::ContractOnly,
            reads: false,
            hooks: ["processes", "files", "network"].map(hook).into(),
            landlock_abi: None,
            kernel: sys::kernel_release(),
            privileged: false,
            floor: None,
            limits: Vec::new(),
        };
        let child = prepared.start()?;
        let cgroup = child.cgroup.as_ref().ok().cloned();
        let limits = prepared.limits.in_force(cgroup.as_deref(), false);
        let event = ObserverStarted {
            limits: limits.clone(),
            ..event
        };
        if let Err(error) = sink.fact(Origin::Runtime, event.into()) {
            let _ = sys::kill(child.pid, libc::SIGKILL);
            let _ = ptrace::wait_for(child.pid as i32, true, 0);
            return Err(LaunchError::Sink(error.to_string()));
        }
        let gauges = Gauges {
            limits,
            cgroup,
            census: Census::default(),
            ledger: Ledger::default(),
        };
        Ok((Arc::new(mailbox), child, gauges))
    };
    let (mailbox, child, gauges) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    // The pipe ends when the command is loaded, and says why when it is not.
    if let Some(error) = prepared.exec_failure(&child.status) {
        let _ = ptrace::wait_for(child.pid as i32, true, 0);
        let _ = started.send(Err(error));
        return;
    }
    let census = gauges.census.clone();
    census.add(child.pid);
    let Ok(meter) = Meter::start(gauges.clone(), Arc::clone(&mailbox)) else {
        let _ = sys::kill(child.pid, libc::SIGKILL);
        let _ = ptrace::wait_for(child.pid as i32, true, 0);
        let _ = started.send(Err(LaunchError::System {
            step: "starting to keep limits",
            error: Errno(libc::EAGAIN),
        }));
        return;
    };
    let _ = started.send(Ok(Begun {
        mailbox: Arc::clone(&mailbox),
        pid: child.pid,
        census: census.clone(),
    }));
    let mut watch = Watch {
        others: adopted(&HashSet::new()),
        root: child.pid,
        status: None,
        killed: None,
    };
    let mask = sys::current_mask(Some(libc::SIGCHLD));
    while watch.tick() {
        if !gauges.limits.is_empty() {
            census.replace(watch.tree().into_iter().collect());
        }
        let mut fds = [poll(&mailbox)];
        let _ = sys::wait_ready(&mut fds, Some(TICK), &mask);
        sys::silence(mailbox.bell());
        while let Some(order) = mailbox.take() {
            match order {
                Order::Signal(signal) => watch.signal(signal),
                Order::Kill => watch.killed = Some(Killed::Asked),
                // Whoever is stopped by a signal can be continued by another; there is nothing better here.
                Order::Pause(tell) => {
                    watch.hold();
                    let _ = tell.try_send(());
                }
                Order::Resume => watch.signal(libc::SIGCONT),
                Order::Limit(limited, measured) => {
                    watch.killed = Some(Killed::Limit { limited, measured });
                }
                // Nobody knows. Whoever asks is not kept waiting.
                Order::Kin(_, tell) => drop(tell.try_send(false)),
                Order::Answer(..) | Order::Connected(..) | Order::Opened(..) => {}
            }
        }
    }
    drop(meter);
    if let Some(cgroup) = &gauges.cgroup {
        if watch.killed.is_none()
            && let Some((limited, measured)) = gauges.exceeded()
        {
            watch.killed = Some(Killed::Limit { limited, measured });
        }
        cgroup.remove();
    }
    let (exit_code, signal) = match watch.status {
        Some(ptrace::Change::Exited(code)) => (Some(code), None),
        Some(ptrace::Change::Killed(signal)) => (None, Some(signal)),
        _ => (None, None),
    };
    let observed = ObserverFinished::default();
    let told = sink.fact(Origin::Runtime, observed.clone().into());
    let failed = told.err().map(|e| Killed::SinkFailed(e.to_string()));
    let killed = watch.killed.or(failed);
    ended.set(Outcome {
        exit_code,
        signal,
        elapsed: start.elapsed(),
        observed,
        killed,
    });
}

fn poll(mailbox: &Mailbox) -> libc::pollfd {
    let fd = std::os::fd::AsRawFd::as_raw_fd(&mailbox.bell());
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

struct Watch {
    /// Children that were there before; they are somebody else's.
    others: HashSet<u32>,
    root: u32,
    status: Option<ptrace::Change>,
    killed: Option<Killed>,
}

impl Watch {
    /// False when nothing of the run is left.
    fn tick(&mut self) -> bool {
        if self.status.is_none()
            && let Ok(Some(waited)) = ptrace::wait_for(self.root as i32, false, 0)
        {
            self.status = Some(waited.change);
        }
        if self.killed.is_some() {
            self.hold();
            self.signal(libc::SIGKILL);
        }
        if self.status.is_none() {
            return true;
        }
        // Orphans are ours, because we are the subreaper. Other children of this process wait for themselves.
        let mut left = false;
        for pid in adopted(&self.others) {
            left |= matches!(ptrace::wait_for(pid as i32, false, 0), Ok(None));
        }
        left
    }

    fn signal(&self, signal: i32) {
        for pid in self.tree() {
            let _ = sys::kill(pid, signal);
        }
    }

    /// Stops everybody, until nobody is new. Whoever is killed makes room for another; whoever is stopped does not.
    fn hold(&self) {
        let mut held = HashSet::new();
        for _ in 0..ROUNDS {
            let before = held.len();
            held.extend(self.tree());
            if held.len() == before {
                break;
            }
            self.signal(libc::SIGSTOP);
        }
    }

    /// Everybody of the run.
    fn tree(&self) -> Vec<u32> {
        let mut all = if self.status.is_none() {
            vec![self.root]
        } else {
            Vec::new()
        };
        if self.status.is_some() {
            all.extend(adopted(&self.others));
        }
        let mut next = 0;
        while let Some(pid) = all.get(next).copied() {
            all.extend(children(pid));
            next += 1;
        }
        all
    }
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .flat_map(str::parse)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Children of this process' main thread, to which orphans come.
fn adopted(others: &HashSet<u32>) -> HashSet<u32> {
    let ours = std::process::id();
    let list = std::fs::read_to_string(format!("/proc/{ours}/task/{ours}/children"));
    let all = list.unwrap_or_default();
    all.split_ascii_whitespace()
        .flat_map(str::parse)
        .filter(|pid| !others.contains(pid))
        .collect()
}
