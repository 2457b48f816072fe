//! Time: deadlines of requests, probes of a silent server.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{Failure, MAX_LOAD_DOUBLINGS, MAX_PATIENCE, Pending, Phase, Protocol};
use crate::session::wire;

/// A server is given a second for so many bytes of transactions: an eighth of what
/// it was measured to do (10,000 ports, 2.5 MB, in 0.6 s), for slow machines.
const BYTES_PER_SECOND: u64 = 512 << 10;

impl Protocol<'_> {
    /// When [`Self::on_time`] wants to be called.
    pub(in crate::session) fn next_timer(&self) -> Option<Instant> {
        self.next_deadline.into_iter().chain(self.next_probe()).min()
    }

    /// Half an interval of silence leads to an echo, a whole one to the end; or twice
    /// what the initial load took if that is longer: a server of a very big database
    /// has pauses too (it compacts its log, it drops another client). A server does
    /// one thing at a time, so transactions in flight give it time by their size.
    /// While it loads for us only the bound of the load counts (and a dead network is
    /// noticed all the same, see [`Endpoint`]'s `connect`).
    fn next_probe(&self) -> Option<Instant> {
        let interval = self.options.probe_interval;
        if interval.is_zero() {
            return None;
        }
        if !self.probing {
            return Some(self.last_activity + interval / 2);
        }
        if self.phase == Phase::Loading || self.switch.is_some() {
            return None;
        }
        Some(self.last_activity + self.silence_allowed())
    }

    /// How long a server that follows with us may be silent.
    fn silence_allowed(&self) -> Duration {
        let work = Duration::from_millis(self.bytes_in_flight.saturating_mul(1000) / BYTES_PER_SECOND);
        (self.options.probe_interval.max(self.patience) + work)
            .min(MAX_PATIENCE.max(self.options.probe_interval))
    }

    /// Time has come.
    pub(in crate::session) fn on_time(&mut self, now: Instant) -> Result<(), Failure> {
        if self.next_deadline.is_some_and(|d| d <= now) {
            let late = self.waiting.values().find(|w| w.deadline.is_some_and(|d| d <= now));
            if let Some(late) = late {
                if matches!(late.what, Pending::Load { .. }) {
                    self.content.load_timeouts = (self.content.load_timeouts + 1).min(MAX_LOAD_DOUBLINGS);
                }
                return Err(format!("no reply to {} in time", late.method));
            }
            self.next_deadline = self.waiting.values().filter_map(|w| w.deadline).min();
        }
        if self.next_probe().is_some_and(|p| p <= now) {
            if self.probing {
                return Err(format!("no sign of life for {:?}", now - self.last_activity));
            }
            self.probing = true;
            let id = self.register(Pending::Echo, "echo", None);
            wire::write_request(&mut self.out, id, "echo", json!([]));
        }
        Ok(())
    }
}
