//! Rounds in which all contestants take turns, and what is said about them.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Result;

/// One of those who are compared. Gets the number of the round and says how long it took.
pub(super) type Contestant<'a> = &'a mut dyn FnMut(usize) -> Result<Duration>;

/// Lets each contestant run once a round, each time in another order. Round 0 warms up and does not count.
pub(super) fn interleaved<const N: usize>(
    rounds: usize,
    contestants: [Contestant<'_>; N],
) -> Result<[Samples; N]> {
    let mut samples = [const { Samples(Vec::new()) }; N];
    for round in 0..=rounds {
        for turn in 0..N {
            let who = (round + turn) % N;
            let seconds = contestants[who](round)?.as_secs_f64();
            if round > 0 {
                samples[who].0.push(seconds);
            }
        }
    }
    Ok(samples)
}

/// How long something takes.
pub(super) fn timed(what: impl FnOnce() -> Result) -> Result<Duration> {
    let begun = Instant::now();
    what()?;
    Ok(begun.elapsed())
}

/// One number per round.
#[derive(Debug, Clone)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    /// Times that were taken elsewhere.
    pub(super) fn of(times: &[Duration]) -> Samples {
        Samples(times.iter().map(Duration::as_secs_f64).collect())
    }

    /// Seconds to something a second, or the like.
    pub(super) fn map(&self, change: impl Fn(f64) -> f64) -> Samples {
        Samples(self.0.iter().copied().map(change).collect())
    }

    /// How many times faster `self` was than `other`, round by round. Both are seconds.
    pub(super) fn speed_of(&self, other: &Samples) -> Samples {
        let pairs = self.0.iter().zip(&other.0);
        Samples(pairs.map(|(mine, theirs)| theirs / mine).collect())
    }

    /// How many times as long as `other` it took, round by round. Both are seconds.
    pub(super) fn over(&self, other: &Samples) -> Samples {
        other.speed_of(self)
    }

    /// How much longer than `other` it took, round by round.
    pub(super) fn minus(&self, other: &Samples) -> Samples {
        let pairs = self.0.iter().zip(&other.0);
        Samples(pairs.map(|(mine, theirs)| mine - theirs).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(super) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = part * (sorted.len() - 1) as f64;
        let (below, above) = (
            sorted[place.floor() as usize],
            sorted[place.ceil() as usize],
        );
        below + (above - below) * place.fract()
    }
}

/// The median, and the quartiles in brackets.
impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| number(self.quantile(part)));
        write!(f, "{middle} [{low}–{high}]")
    }
}

/// Three digits that mean something, with marks between thousands.
pub(super) fn number(value: f64) -> String {
    if value < 0.0 {
        return format!("−{}", number(-value));
    }
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_pairs() {
        let ours = Samples(vec![1.0, 10.0, 2.0]);
        let theirs = Samples(vec![2.0, 20.0, 1.0]);
        assert_eq!(ours.speed_of(&theirs).median(), 2.0);
        assert_eq!(ours.to_string(), "2.00 [1.50–6.00]");
    }

    #[test]
    fn numbers_for_people() {
        let texts = [0.666, 12.34, 999.6, 1_234_567.0, -1_234.5].map(number);
        assert_eq!(texts, ["0.67", "12.3", "1,000", "1,234,567", "−1,234"]);
    }

    #[test]
    fn everybody_is_first_once() {
        let order = std::cell::RefCell::new(Vec::new());
        let turn = |who: usize| {
            let order = &order;
            move |_| {
                order.borrow_mut().push(who);
                Ok(Duration::ZERO)
            }
        };
        interleaved(2, [&mut turn(0), &mut turn(1), &mut turn(2)]).unwrap();
        assert_eq!(*order.borrow(), [0, 1, 2, 1, 2, 0, 2, 0, 1]);
    }
}
