//! Measures CNI executables from outside, whoever made them: the clock runs
//! from exec to exit, and what counts is also that the pod's first packet after
//! that is answered.
//!
//! In: an executable, a network configuration, pods that exist. Out: times of
//! every call ([`Times`]), failures with the plugin's words. The program
//! `cni-bench` runs it on a node; the agent's benchmark (`make bench`) runs it
//! on a node made of namespaces.

mod call;
mod namespace;
mod times;

pub use call::{Attachment, Outcome, Plugin};
pub use namespace::Sandbox;
pub use times::Times;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// What a series of calls came to.
#[derive(Debug)]
pub struct Series {
    /// How long each call took.
    pub times: Times,
    /// From the first exec to the last exit.
    pub wall: Duration,
    /// What failed, in the plugin's words.
    pub failures: Vec<String>,
}

impl Series {
    fn of(outcomes: Vec<Outcome>, wall: Duration) -> Self {
        let failures = outcomes.iter().filter_map(|outcome| outcome.failure.clone()).collect();
        Self { times: Times::new(outcomes.into_iter().map(|outcome| outcome.took).collect()), wall, failures }
    }

    /// One line of a table.
    pub fn row(&self, name: &str) -> String {
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1000.0);
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            self.times.len(),
            ms(self.times.at(50)),
            ms(self.times.at(90)),
            ms(self.times.at(99)),
            ms(self.times.at(100)),
            ms(self.wall),
            self.failures.len()
        )
    }

    /// The head of the table that [`Series::row`] makes lines of. Times are in milliseconds.
    pub const HEAD: &str =
        "| run | calls | p50 | p90 | p99 | max | wall | failed |\n|---|---|---|---|---|---|---|---|";
}

/// Calls one after another. `before` runs ahead of each call, outside of its
/// time; `after` when it succeeded.
pub fn one_by_one(
    plugin: &Plugin,
    verb: &str,
    attachments: &[Attachment],
    mut before: impl FnMut(&Attachment),
    mut after: impl FnMut(&Attachment) -> Result<(), String>,
) -> Series {
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    for attachment in attachments {
        before(attachment);
        let mut outcome = plugin.call(verb, attachment);
        if outcome.failure.is_none() {
            outcome.failure = after(attachment).err();
        }
        outcomes.push(outcome);
    }
    let wall = begin.elapsed();
    Series::of(outcomes, wall)
}

/// Calls all at once.
pub fn at_once(plugin: &Plugin, verb: &str, attachments: &[Attachment]) -> Series {
    let barrier = Arc::new(Barrier::new(attachments.len() + 1));
    std::thread::scope(|scope| {
        let calls: Vec<_> = attachments
            .iter()
            .map(|attachment| {
                let barrier = barrier.clone();
                scope.spawn(move || {
                    barrier.wait();
                    plugin.call(verb, attachment)
                })
            })
            .collect();
        barrier.wait();
        let begin = Instant::now();
        let outcomes = calls
            .into_iter()
            .map(|call| call.join().unwrap_or_else(|_| Outcome::failed("the caller panicked")))
            .collect();
        Series::of(outcomes, begin.elapsed())
    })
}
