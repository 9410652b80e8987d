//! Notices that the observer is stuck, and kills the run then.
//!
//! What the observer does for a caller can depend on another process of the same run, such as one that serves a file
//! system. That process may wait for the observer. Nobody would ever go on; so after a while the run is ended instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::census::Census;
use crate::sys;

#[derive(Debug)]
struct State {
    start: Instant,
    /// Milliseconds after `start` at which the work on one thing began; 0 while there is none.
    busy_since: AtomicU64,
    bitten: AtomicBool,
    over: AtomicBool,
}

/// Watches the observer.
#[derive(Debug)]
pub(crate) struct Watchdog {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Begins to watch. Nothing is watched if no thread can be had.
    pub(crate) fn new(patience: Duration, census: Census) -> Watchdog {
        let state = Arc::new(State {
            start: Instant::now(),
            busy_since: AtomicU64::new(0),
            bitten: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let watched = Arc::clone(&state);
        let thread = thread::Builder::new()
            .name("invigil-watchdog".into())
            .stack_size(64 * 1024)
            .spawn(move || watch(&watched, patience, &census))
            .ok();
        Watchdog { state, thread }
    }

    /// The observer begins to work on something.
    pub(crate) fn work(&self) {
        let now = self.state.start.elapsed().as_millis() as u64;
        self.state.busy_since.store(now.max(1), Ordering::Relaxed);
    }

    /// The observer waits, or somebody else works whose time does not count.
    pub(crate) fn rest(&self) {
        self.state.busy_since.store(0, Ordering::Relaxed);
    }

    /// Whether the run was killed.
    pub(crate) fn has_bitten(&self) -> bool {
        self.state.bitten.load(Ordering::Relaxed)
    }
}

fn watch(state: &State, patience: Duration, census: &Census) {
    while !state.over.load(Ordering::Relaxed) {
        thread::park_timeout(patience / 4);
        let since = state.busy_since.load(Ordering::Relaxed);
        let now = state.start.elapsed().as_millis() as u64;
        if since != 0 && u128::from(now.saturating_sub(since)) > patience.as_millis() {
            state.bitten.store(true, Ordering::Relaxed);
            for pid in census.all() {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
