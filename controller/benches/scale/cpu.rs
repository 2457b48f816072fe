//! Processor time of this thread, which a busy machine hardly changes.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Since the thread began.
pub(crate) fn spent() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has that clock"))
}
