//! So many calls in so much time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// At most so many calls in any span of this length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimit {
    /// How many.
    pub(crate) max_calls: u32,
    /// In how many seconds.
    pub(crate) interval_secs: f64,
}

impl RateLimit {
    /// Whether it means anything.
    pub(crate) fn is_sound(&self) -> bool {
        let sound = self.interval_secs > 0.0 && self.interval_secs <= 86_400.0;
        sound && (1..=100_000).contains(&self.max_calls)
    }
}

/// The calls of the last span.
#[derive(Debug)]
pub(crate) struct Rate {
    limit: RateLimit,
    calls: VecDeque<Instant>,
}

impl Rate {
    pub(crate) fn new(limit: RateLimit) -> Rate {
        let calls = VecDeque::new();
        Rate { limit, calls }
    }

    /// Counts a call, or says how long there is none to be had.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let span = Duration::from_secs_f64(self.limit.interval_secs);
        while self
            .calls
            .front()
            .is_some_and(|call| now.duration_since(*call) >= span)
        {
            self.calls.pop_front();
        }
        match self.calls.front() {
            Some(first) if self.calls.len() >= self.limit.max_calls as usize => {
                Err(span - now.duration_since(*first))
            }
            _ => {
                self.calls.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_has_more_calls() {
        let limit = RateLimit {
            max_calls: 2,
            interval_secs: 1.0,
        };
        let (mut rate, start) = (Rate::new(limit), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(rate.take(at(0)).is_ok() && rate.take(at(600)).is_ok());
        assert_eq!(rate.take(at(700)), Err(Duration::from_millis(300)));
        assert!(rate.take(at(1000)).is_ok());
        assert_eq!(rate.take(at(1500)), Err(Duration::from_millis(100)));
    }
}
