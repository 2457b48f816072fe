//! Pauses between attempts to connect.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// First pause after all endpoints failed.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause within a round over the endpoints.
const WITHIN_ROUND: Duration = Duration::from_millis(25);

/// How long to wait before the next attempt: hardly at all within a round over the
/// endpoints, doubling between rounds, always with jitter so that many clients do not
/// come back at the same instant.
pub(super) struct Backoff {
    random: StdRng,
    max: Duration,
    /// Attempts in a row that failed, or whose connection was short-lived.
    failures: u32,
}

impl Backoff {
    /// Pauses up to `max`; the same seed gives the same pauses.
    pub(super) fn new(seed: Option<u64>, max: Duration) -> Self {
        Self { random: StdRng::seed_from_u64(seed.unwrap_or_else(rand::random)), max, failures: 0 }
    }

    /// A connection served well.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// An attempt failed; the failures in a row.
    pub(super) fn failed(&mut self) -> u32 {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// The pause before the next attempt, with so many endpoints.
    pub(super) fn pause(&mut self, endpoints: usize) -> Duration {
        let jitter: f64 = self.random.random();
        let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX).max(1);
        if self.failures == 0 || !self.failures.is_multiple_of(endpoints) {
            return WITHIN_ROUND.mul_f64(jitter).min(self.max);
        }
        let doublings = (self.failures / endpoints - 1).min(16);
        let bound = FIRST.saturating_mul(2u32.pow(doublings)).min(self.max);
        bound.mul_f64(0.5 + jitter / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(2);

    fn after(failures: u32) -> Duration {
        let mut backoff = Backoff::new(Some(7), MAX);
        backoff.failures = failures;
        backoff.pause(3)
    }

    #[test]
    fn pauses_grow_by_round_and_are_bounded() {
        for failures in [0, 1, 2, 4, 5] {
            assert!(after(failures) <= WITHIN_ROUND);
        }
        for (failures, bound) in [(3, 100), (6, 200), (9, 400), (300, 2000), (u32::MAX / 3 * 3, 2000)] {
            let pause = after(failures);
            assert!(pause <= Duration::from_millis(bound) && pause >= Duration::from_millis(bound / 2));
        }
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(Some(seed), MAX);
            std::iter::repeat_with(|| {
                backoff.failed();
                backoff.pause(1)
            })
            .take(8)
            .collect::<Vec<_>>()
        };
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }

    #[test]
    fn a_served_connection_begins_anew() {
        let mut backoff = Backoff::new(Some(1), MAX);
        for _ in 0..20 {
            backoff.failed();
        }
        assert!(backoff.pause(1) >= MAX / 2);
        backoff.reset();
        assert!(backoff.pause(1) <= WITHIN_ROUND);
        assert_eq!(backoff.failed(), 1);
    }
}
