//! Notices that an observer is stuck, and kills its run then.
//!
//! What an observer does for a caller can depend on another process of the same run, such as one that serves a file
//! system. That process may wait for the observer. Nobody would ever go on; so after a while the run is ended instead.
//! One thread looks after all observers of this process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::census::Census;
use crate::sys;

/// An observer, as the thread sees it.
#[derive(Debug)]
struct Watched {
    start: Instant,
    patience: Duration,
    census: Census,
    /// Milliseconds after `start` at which the work on one thing began; 0 while there is none.
    busy_since: AtomicU64,
    bitten: AtomicBool,
}

/// All that are watched, and how long the thread sleeps between its looks at them; as long as nobody wakes it, if it has
/// nothing to look at.
#[derive(Debug)]
struct Kennel {
    watched: Vec<Arc<Watched>>,
    pause: Option<Duration>,
    dog: Option<Thread>,
}

static KENNEL: Mutex<Kennel> = Mutex::new(Kennel {
    watched: Vec::new(),
    pause: None,
    dog: None,
});

fn kennel() -> MutexGuard<'static, Kennel> {
    KENNEL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kennel {
    /// The thread that looks at them. Nothing is watched as long as none can be had.
    fn dog(&mut self) -> Option<Thread> {
        if self.dog.is_none() {
            let dog = thread::Builder::new()
                .name("invigil-watchdog".into())
                .stack_size(64 * 1024)
                .spawn(watch);
            self.dog = dog.ok().map(|dog| dog.thread().clone());
        }
        self.dog.clone()
    }
}

/// Watches the observer that has it.
#[derive(Debug)]
pub(crate) struct Watchdog(Arc<Watched>);

impl Watchdog {
    /// Begins to watch.
    pub(crate) fn new(patience: Duration, census: Census) -> Watchdog {
        let watched = Arc::new(Watched {
            start: Instant::now(),
            patience,
            census,
            busy_since: AtomicU64::new(0),
            bitten: AtomicBool::new(false),
        });
        let mut kennel = kennel();
        kennel.watched.push(Arc::clone(&watched));
        let late = kennel.pause.is_none_or(|pause| pause > patience / 4);
        let dog = late.then(|| kennel.dog()).flatten();
        drop(kennel);
        if let Some(dog) = dog {
            dog.unpark();
        }
        Watchdog(watched)
    }

    /// The observer begins to work on something.
    pub(crate) fn work(&self) {
        let now = self.0.start.elapsed().as_millis() as u64;
        self.0.busy_since.store(now.max(1), Ordering::Relaxed);
    }

    /// The observer waits, or somebody else works whose time does not count.
    pub(crate) fn rest(&self) {
        self.0.busy_since.store(0, Ordering::Relaxed);
    }

    /// Whether the run was killed.
    pub(crate) fn has_bitten(&self) -> bool {
        self.0.bitten.load(Ordering::Relaxed)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        kennel()
            .watched
            .retain(|watched| !Arc::ptr_eq(watched, &self.0));
    }
}

impl Watched {
    fn look(&self) {
        let since = self.busy_since.load(Ordering::Relaxed);
        let now = self.start.elapsed().as_millis() as u64;
        if since != 0 && u128::from(now.saturating_sub(since)) > self.patience.as_millis() {
            self.bitten.store(true, Ordering::Relaxed);
            for pid in self.census.all() {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
    }
}

fn watch() {
    loop {
        let mut kennel = kennel();
        kennel.watched.iter().for_each(|watched| watched.look());
        let patience = kennel.watched.iter().map(|watched| watched.patience).min();
        kennel.pause = patience.map(|patience| patience / 4);
        let pause = kennel.pause;
        drop(kennel);
        match pause {
            Some(pause) => thread::park_timeout(pause),
            None => thread::park(),
        }
    }
}
