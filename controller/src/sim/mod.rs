//! A deterministic simulator: the core among a fake API server, an in-memory
//! database and faults, with every interleaving drawn from a seed.
//!
//! `api` is the API server (objects, watches with delays and relists, UIDs,
//! finalizers, graceful deletion, merge patches, preconditions, counted writes),
//! `bench` the controllers and the scheduler, the rest are the properties.

mod api;
mod bench;
mod canon;
mod churn;
mod constant;
mod faults;
mod handover;
mod independence;
mod namesakes;
mod orders;
mod real;
mod restarts;
mod soak;

pub(crate) use api::Api;
pub(crate) use bench::{Bench, Faults, config};

/// A small seeded generator (xorshift64*): the same seed is the same run.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % n.max(1)
    }
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
