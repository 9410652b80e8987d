//! A command that is given its input, whose output is collected, and which ends in time.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use invigil_schema::StopReason;

use crate::control::Control;
use crate::run::{Engine, RunError, RunOutcome};
use crate::spec::{Input, RunSpec};

/// How long a command has between the request to end and its death.
const GRACE: Duration = Duration::from_millis(250);

/// A command that has ended.
pub(crate) struct Held<T> {
    pub(crate) ran: Result<RunOutcome, RunError>,
    /// What the reader has made of the output.
    pub(crate) read: Option<T>,
    pub(crate) timed_out: bool,
}

/// Runs a command to its end or until its time is up. `read` takes its output in a thread of its own; `over` rings when
/// the command has ended.
pub(crate) fn hold<T: Send>(
    engine: &Engine,
    mut spec: RunSpec,
    control: &Control,
    input: &[u8],
    timeout: Option<Duration>,
    over: &Bell,
    read: impl FnOnce() -> T + Send,
) -> io::Result<Held<T>> {
    let (its_in, mut into) = io::pipe()?;
    spec.stdin = Input::From(Arc::new(OwnedFd::from(its_in)));
    Ok(thread::scope(|scope| {
        let reader = scope.spawn(read);
        // A command that does not read is not waited for: its end closes the pipe.
        scope.spawn(move || drop(into.write_all(input)));
        let clock = timeout.map(|timeout| scope.spawn(move || end_in_time(control, timeout, over)));
        let ran = engine.run(&spec, control);
        over.ring();
        // Ours are the last ends of the pipes.
        drop(spec);
        let timed_out = clock.is_some_and(|clock| clock.join().unwrap_or(false));
        Held {
            ran,
            read: reader.join().ok(),
            timed_out,
        }
    }))
}

/// Asks the command to end when its time is up, and kills it soon after. Whether that was necessary.
fn end_in_time(control: &Control, timeout: Duration, over: &Bell) -> bool {
    if over.wait(timeout) {
        return false;
    }
    let why = format!("it took longer than {timeout:?}");
    control.terminate(StopReason::Timeout, &why);
    if !over.wait(GRACE) {
        control.end(StopReason::Timeout, &why);
    }
    true
}

/// Rings once.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether it rings in this time.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(rung, left);
            rung = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
