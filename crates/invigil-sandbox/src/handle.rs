//! A run, from the outside.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use invigil_schema::{ProcessRef, ResourceSample, Tier};

use crate::api::{Decision, Gate, LaunchError, LaunchSpec, Line, Outcome, Sink};
use crate::census::Census;
use crate::launch::prepare;
use crate::sys;
use crate::table::start_time;
use crate::waker::{Mailbox, Order};
use crate::{contract, observer};

/// A run that has been started. Dropping it kills the whole tree.
#[derive(Debug)]
pub struct Handle {
    mailbox: Arc<Mailbox>,
    pid: u32,
    census: Census,
    ended: Arc<Ended>,
}

#[derive(Debug, Default)]
pub(crate) struct Ended {
    outcome: Mutex<Option<Outcome>>,
    changed: Condvar,
}

impl Ended {
    pub(crate) fn set(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.changed.notify_all();
    }
}

/// How the observer's thread says that the command runs, or why it does not.
pub(crate) type Started = mpsc::SyncSender<Result<Begun, LaunchError>>;

/// What a run that has begun is known by.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) pid: u32,
    pub(crate) census: Census,
}

/// Starts a command under watch. Returns when the command has been loaded, or could not be.
pub fn launch(
    spec: LaunchSpec,
    sink: impl Sink + 'static,
    gate: impl Gate + 'static,
) -> Result<Handle, LaunchError> {
    let step = |step| move |error| LaunchError::System { step, error };
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(step("becoming a subreaper"))?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(step("becoming undumpable"))?;
    let (tier, reads, exact, patience) = (spec.tier, spec.reads, spec.exact, spec.patience);
    let (protected, digests) = (spec.protected.clone(), spec.digests);
    let prepared = prepare(spec)?;
    let ended = Arc::new(Ended::default());
    let (started, starting) = mpsc::sync_channel(1);
    let result = Arc::clone(&ended);
    let watch = move || match tier {
        Tier::ContractOnly => contract::run(prepared, Box::new(sink), &result, &started),
        Tier::Ptrace | Tier::Notify => {
            let config = observer::Config {
                tier,
                reads,
                exact,
                protected,
                patience,
                digests,
            };
            observer::run(
                prepared,
                config,
                Box::new(sink),
                Box::new(gate),
                &result,
                &started,
            );
        }
    };
    std::thread::Builder::new()
        .name("invigil-observer".into())
        .spawn(watch)
        .map_err(|e| LaunchError::System {
            step: "starting the observer",
            error: invigil_schema::Errno(e.raw_os_error().unwrap_or(libc::EAGAIN)),
        })?;
    let gone = LaunchError::System {
        step: "the observer",
        error: invigil_schema::Errno(libc::ECHILD),
    };
    let Begun {
        mailbox,
        pid,
        census,
    } = starting.recv().unwrap_or(Err(gone))?;
    Ok(Handle {
        mailbox,
        pid,
        census,
        ended,
    })
}

impl Handle {
    /// The pid of the command.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Steers the run, also from where this handle is not.
    pub fn line(&self) -> Line {
        Line(Arc::clone(&self.mailbox))
    }

    /// Sends a signal to every process of the run.
    pub fn signal(&self, signal: i32) {
        self.mailbox.post(Order::Signal(signal));
    }

    /// Kills every process of the run.
    pub fn kill(&self) {
        self.mailbox.post(Order::Kill);
    }

    /// Answers a request that the gate has left open. Without effect if nobody waits for it any more.
    pub fn answer(&self, request: u64, decision: Decision) {
        self.mailbox.post(Order::Answer(request, decision));
    }

    /// What the living processes of the run use now.
    pub fn sample(&self) -> ResourceSample {
        self.census.sample()
    }

    /// Whether a process of the run has this pid: who may speak for it.
    pub fn contains(&self, pid: u32) -> bool {
        self.census.contains(pid)
    }

    /// Waits until the last process of the run is dead; None if the time is over first.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Outcome> {
        let deadline = timeout.map(|t| Instant::now() + t);
        let mut outcome = self
            .ended
            .outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return Some(outcome.clone());
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            outcome = match left {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    let waited = self.ended.changed.wait_timeout(outcome, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .ended
                    .changed
                    .wait(outcome)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.mailbox.post(Order::Kill);
    }
}

/// A descriptor of another process, duplicated. It must be that very process, and one that we may trace.
pub fn descriptor_of(process: ProcessRef, descriptor: i32) -> std::io::Result<OwnedFd> {
    let system = |error: invigil_schema::Errno| std::io::Error::from_raw_os_error(error.0);
    let held = sys::pidfd_open(process.pid, false).map_err(system)?;
    // Asked when it is held: from here on the number cannot be anybody else's.
    if start_time(process.pid) != Some(process.start) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    sys::pidfd_getfd(held.as_fd(), descriptor).map_err(system)
}
