//! What `ipset` is run for, counted for the whole process: Kube-OVN's library has metrics of that.

use std::sync::atomic::{AtomicU64, Ordering};

use super::command::Result;
use super::ipset::SavedSets;

static CALLS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);
static LINES: AtomicU64 = AtomicU64::new(0);
static SETS: AtomicU64 = AtomicU64::new(0);
static OURS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpsetCounts {
    /// Runs of the program.
    pub calls: u64,
    /// Runs that failed.
    pub errors: u64,
    /// Lines given to `ipset restore`.
    pub lines: u64,
    /// Sets of the host, everybody's.
    pub sets: u64,
    /// Ours by family: `inet`, `inet6`.
    pub ours: [u64; 2],
}

/// The counts until now.
pub fn ipset_counts() -> IpsetCounts {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    IpsetCounts {
        calls: get(&CALLS),
        errors: get(&ERRORS),
        lines: get(&LINES),
        sets: get(&SETS),
        ours: OURS.each_ref().map(get),
    }
}

/// A program was run; only `ipset` is counted.
pub(super) fn ran<T>(program: &str, input: Option<&str>, result: &Result<T>) {
    if program != "ipset" {
        return;
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
    ERRORS.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
    let lines = input.map_or(0, |input| input.lines().count());
    LINES.fetch_add(u64::try_from(lines).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The host's sets were read.
pub(super) fn read(saved: &SavedSets) {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    SETS.store(count(saved.ours.len() + saved.others.len()), Ordering::Relaxed);
    for (counter, family) in OURS.iter().zip(["inet", "inet6"]) {
        let ours = saved.ours.values().filter(|set| set.family == family).count();
        counter.store(count(ours), Ordering::Relaxed);
    }
}
