//! Commit's part in leadership: taking over by the epoch token, and stopping when
//! another token replaces ours.

use std::sync::Arc;

use ovsdb::{Row, TransactError, TransactErrorKind};

use super::epoch::{self, Epoch};
use super::{BackOff, Commit};
use crate::facts::Table;

impl Commit {
    /// We are the leader.
    pub fn elected(&mut self, token: Arc<str>) {
        self.fenced = false;
        self.token_refused = None;
        self.epoch = Epoch::Elected(token);
        self.resolve_epoch();
    }

    /// We are not the leader any more. What is in flight is behind the fence.
    pub fn deposed(&mut self) {
        self.epoch = Epoch::Follower;
        for (_, flight) in std::mem::take(&mut self.flights) {
            self.land(&flight.groups);
        }
        self.isolate.clear();
    }

    /// Our token is in the database.
    pub fn writing(&self) -> bool {
        matches!(self.epoch, Epoch::Held(_))
    }

    pub(super) fn global(&self) -> Option<&Arc<Row>> {
        self.index.replica()?.table(Table::NbGlobal.name())?.rows().next()
    }

    /// After a reload: did the token make it before the connection was lost?
    pub(super) fn resolve_epoch(&mut self) {
        if let Epoch::Elected(token) = &self.epoch
            && self.connected
            && epoch::token(self.global()) == Some(token)
        {
            self.epoch = Epoch::Held(token.clone());
        }
        self.watch_epoch();
    }

    pub(super) fn watch_epoch(&mut self) {
        if let Epoch::Held(token) = &self.epoch
            && epoch::token(self.global()) != Some(token)
        {
            self.fence_off();
        }
    }

    pub(super) fn fence_off(&mut self) {
        self.fenced |= self.epoch != Epoch::Fenced;
        self.epoch = Epoch::Fenced;
    }

    /// The token's transaction was answered. A database that refuses it is asked again, but not at once.
    pub(super) fn epoch_reply(&mut self, now_ms: u64, error: Option<TransactError>) {
        let Epoch::Writing(_, token, replaced) = std::mem::take(&mut self.epoch) else { return };
        let now = epoch::token(self.global());
        match error {
            None => {
                self.epoch = Epoch::Held(token);
                self.token_refused = None;
            }
            // Somebody else took over after us; the Lease knows who is right.
            Some(e) if e.kind == TransactErrorKind::WaitTimedOut && now != replaced.as_deref() => {
                self.fence_off();
            }
            Some(e) => {
                self.connected &= e.kind != TransactErrorKind::Disconnected;
                self.epoch = Epoch::Elected(token);
                if e.kind != TransactErrorKind::Disconnected {
                    self.counters.failures += 1;
                    let before = self.token_refused.take().map_or(0, |back_off| back_off.failures);
                    self.token_refused = Some(BackOff::after(before + 1, now_ms, e.to_string()));
                }
            }
        }
    }
}
