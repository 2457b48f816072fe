//! Order statistics.

use std::time::Duration;

/// Times of calls, in order of length.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Sorts.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The percentile by nearest rank; zero if there are no times.
    pub fn at(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_occurred() {
        let times = Times::new((1..=30).rev().map(Duration::from_millis).collect());
        let at = |percent| times.at(percent).as_millis();
        assert_eq!((at(0), at(50), at(90), at(99), at(100)), (1, 15, 27, 30, 30));
        assert_eq!(Times::default().at(50), Duration::ZERO);
    }
}
