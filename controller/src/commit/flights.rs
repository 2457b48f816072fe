//! What happens to transactions in flight: answers, failures, lost connections.

use ovsdb::{OperationResult, TransactError, TransactErrorKind};

use super::epoch::Epoch;
use super::pending::{Group, Phase};
use super::{BackOff, Commit, Flight, UNCONVERGED};
use crate::view::UnitKey;

impl Commit {
    /// The connection is lost: what was in flight may or may not have happened. The
    /// next load tells.
    pub fn lost(&mut self) {
        self.connected = false;
        if let Epoch::Writing(_, token, _) = &self.epoch {
            self.epoch = Epoch::Elected(token.clone());
        }
        for (_, flight) in std::mem::take(&mut self.flights) {
            self.counters.lost += 1;
            self.land(&flight.groups);
        }
        self.failed.clear();
        self.isolate.clear();
    }

    /// Groups whose transaction is over: done, or ready again.
    pub(super) fn land(&mut self, groups: &[Group]) {
        for group in groups {
            if self.pending.items(group).is_empty() {
                self.pending.forget(group);
                self.settled(group);
            } else if self.pending.phase(group) == Some(Phase::InFlight) {
                self.pending.set_ready(group);
            }
        }
    }

    /// A transaction was answered; its updates are in the replica already.
    pub fn reply(&mut self, now_ms: u64, tag: u64, result: Result<Vec<OperationResult>, TransactError>) {
        if let Epoch::Writing(ours, ..) = &self.epoch
            && *ours == tag
        {
            return self.epoch_reply(now_ms, result.err());
        }
        let Some(flight) = self.flights.remove(&tag) else { return };
        match result {
            // Without the row it referred to, it was carried out to no effect.
            Ok(_) if flight.after.iter().any(|tag| self.failed.contains(tag)) => {
                self.failed.insert(tag);
                self.land(&flight.groups);
            }
            Ok(_) => {
                for group in &flight.groups {
                    if self.pending.items(group).is_empty() {
                        continue;
                    }
                    self.counters.unconverged += 1;
                    let times = self.unconverged.entry(group.clone()).or_default();
                    *times += 1;
                    if *times >= UNCONVERGED {
                        let error = "acknowledged, but the database does not show it; another writer \
                                     may be changing the same rows";
                        self.back_off(now_ms, group, error.to_owned());
                    }
                }
                self.land(&flight.groups);
            }
            Err(error) => self.refused(now_ms, tag, &flight, &error),
        }
        if self.flights.is_empty() {
            self.failed.clear();
        }
    }

    pub(super) fn refused(&mut self, now_ms: u64, tag: u64, flight: &Flight, error: &TransactError) {
        self.failed.insert(tag);
        match error.kind {
            // The only waits are fences.
            TransactErrorKind::WaitTimedOut => {
                self.land(&flight.groups);
                self.fence_off();
            }
            TransactErrorKind::Disconnected => {
                self.counters.lost += 1;
                self.connected = false;
                self.land(&flight.groups);
            }
            _ if error.retryable() => {
                self.counters.failures += 1;
                for group in &flight.groups {
                    self.back_off(now_ms, group, error.to_string());
                }
                self.land(&flight.groups);
            }
            // It referred to rows of a transaction that failed: no fault of its own.
            _ if flight.after.iter().any(|tag| self.failed.contains(tag)) => {
                self.counters.failures += 1;
                self.land(&flight.groups);
            }
            _ => {
                self.counters.failures += 1;
                match flight.groups.as_slice() {
                    [culprit] => self.back_off(now_ms, culprit, error.to_string()),
                    several => {
                        let (a, b) = several.split_at(several.len() / 2);
                        self.isolate.push_back(a.to_vec());
                        self.isolate.push_back(b.to_vec());
                    }
                }
                self.land(&flight.groups);
            }
        }
    }

    pub(super) fn back_off(&mut self, now_ms: u64, group: &Group, error: String) {
        let failures = self.back_offs.get(group).map_or(0, |b| b.failures) + 1;
        let back_off = BackOff::after(failures, now_ms, error);
        let until_ms = back_off.until_ms;
        if let Some(old) = self.back_offs.insert(group.clone(), back_off) {
            self.due.remove(&(old.until_ms, group.clone()));
        }
        self.due.insert((until_ms, group.clone()));
        self.pending.set_phase(group, Phase::BackOff);
        self.notify.extend(group.unit().cloned());
    }

    /// Why a unit's rows can't be written, if they can't.
    pub fn error(&self, unit: &UnitKey) -> Option<&str> {
        self.back_offs.get(&Group::Unit(unit.clone())).map(|b| b.error.as_str())
    }
}
