//! Where times come from.

use std::time::SystemTime;

use invigil_schema::Stamp;

/// A source of times for records.
pub trait Clock: Send + Sync {
    /// The time now, on both clocks.
    fn now(&self) -> Stamp;
}

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        let mono = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Stamp {
            time: SystemTime::now().into(),
            mono: mono.tv_sec as u64 * 1_000_000_000 + mono.tv_nsec as u64,
        }
    }
}
