//! Descriptors are handed over on one processor.
//!
//! To put a descriptor into a caller the kernel wakes it, waits until it has taken the descriptor, and wakes us again.
//! Unlike every other answer this one has no synchronous form: where a second processor is idle the kernel wakes the
//! caller there and us here, and each of these wake-ups costs several times what the whole call does. So where handing
//! over turns out to be slow, the caller is kept on this processor while it lasts. (To keep ourselves here as well costs
//! more than it saves: by then the caller goes on, and we only clean up.)

use std::time::{Duration, Instant};

use crate::sys::{self, Sys};

/// Longer than this is not what handing over takes where both are on one processor.
const SLOW: Duration = Duration::from_micros(30);
/// How many times the caller is kept here after one that was slow.
const KEPT: u32 = 256;

/// How handing over goes at present.
#[derive(Debug, Default)]
pub(crate) struct Together {
    left: u32,
}

impl Together {
    /// Hands over to the thread `tid`.
    pub(crate) fn hand_over<T>(&mut self, tid: u32, give: impl FnOnce() -> Sys<T>) -> Sys<T> {
        if self.left == 0 {
            let start = Instant::now();
            let given = give();
            if start.elapsed() > SLOW {
                self.left = KEPT;
            }
            return given;
        }
        self.left -= 1;
        let here = sys::current_processor();
        let it = here.and_then(|here| sys::Processors::keep(tid, here));
        let given = give();
        if let Some(it) = it {
            it.release();
        }
        given
    }
}
