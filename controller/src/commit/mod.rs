//! Commit: makes the northbound database equal to the desired state, row by row,
//! for the rows that were touched.
//!
//! Flows in: touched rows and memberships, changes of the replica, replies, time.
//! Flows out: transactions (each behind the epoch fence), and the units whose rows
//! became, or ceased to be, what they should be. Level-triggered: a row is compared
//! with the live replica, so a restart, a lost reply and a change by hand are the
//! same case. At most one wave of transactions is in flight; meanwhile changes
//! gather, so batches grow with load by themselves.

mod build;
mod diff;
mod epoch;
mod flights;
mod index;
mod inspect;
mod judge;
mod leadership;
mod pending;
mod plan;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ovsdb::{Replica, RowChange, Schema, Uuid};

use crate::desired::{Desired, Touched};
use crate::facts::{Facts, Keep, MemberFact, RowKey, Table};
use crate::io::{Config, Output};
use crate::view::UnitKey;

pub use epoch::EPOCH_KEY;
use epoch::Epoch;
use index::{Effects, Index};
pub use index::{MEMBER_COLUMNS, PARENT_COLUMNS};
use pending::{Group, Item, Pending, Phase};

/// First and longest back-off after a failure, milliseconds.
const BACK_OFF_MS: (u64, u64) = (500, 60_000);
/// An acknowledged group whose rows still differ is sent again this often before
/// it counts as failing (the desired state may simply have moved on meanwhile).
const UNCONVERGED: u32 = 3;

/// A group after a failure.
struct BackOff {
    until_ms: u64,
    failures: u32,
    error: String,
}

impl BackOff {
    /// After that many failures one after the other.
    fn after(failures: u32, now_ms: u64, error: String) -> Self {
        let delay = BACK_OFF_MS.0.saturating_mul(1 << failures.min(8).saturating_sub(1)).min(BACK_OFF_MS.1);
        Self { until_ms: now_ms + delay, failures, error }
    }
}

/// Groups that wait for a row.
#[derive(Default)]
struct Blocked {
    groups: BTreeSet<Group>,
    /// More than these are checked for being still there.
    checked: usize,
}

/// A transaction in flight.
struct Flight {
    groups: Vec<Group>,
    /// Transactions of the same wave that make rows this one refers to.
    after: BTreeSet<u64>,
}

/// Numbers since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Transactions sent, epoch tokens included.
    pub transactions: u64,
    /// Operations in them, fences not counted.
    pub operations: u64,
    /// Transactions that the server refused.
    pub failures: u64,
    /// Transactions whose outcome was lost with the connection.
    pub lost: u64,
    /// Groups that had to be sent again although they were acknowledged.
    pub unconverged: u64,
}

/// The stage.
#[derive(Default)]
pub struct Commit {
    index: Index,
    schema: Option<Arc<Schema>>,
    connected: bool,
    /// The desired state is complete; rows are compared from now on.
    live: bool,
    /// Everything is being compared for the first time.
    starting: bool,
    epoch: Epoch,
    pending: Pending,
    strays: BTreeMap<RowKey, BTreeSet<Uuid>>,
    blocked_on: BTreeMap<RowKey, Blocked>,
    back_offs: BTreeMap<Group, BackOff>,
    due: BTreeSet<(u64, Group)>,
    unconverged: BTreeMap<Group, u32>,
    flights: BTreeMap<u64, Flight>,
    failed: BTreeSet<u64>,
    /// Groups of failed transactions, to be sent on their own.
    isolate: VecDeque<Vec<Group>>,
    tag: u64,
    incarnations: u64,
    /// The database refused our epoch token: when it is tried again, and why it must be.
    token_refused: Option<BackOff>,
    notify: BTreeSet<UnitKey>,
    counters: Counters,
    fenced: bool,
}

impl Commit {
    /// The database is connected and loaded. Returns port rows whose presence may
    /// have changed.
    pub fn loaded(
        &mut self,
        config: &Config,
        desired: &Desired,
        replica: Replica,
        changes: &[RowChange],
        schema: Arc<Schema>,
    ) -> BTreeSet<RowKey> {
        // Another version of the server may know columns that could not be judged.
        let other = self.schema.as_ref().is_some_and(|old| *old != schema);
        self.schema = Some(schema);
        self.connected = true;
        let keys = self.changed(config, desired, replica, changes);
        if other && self.live {
            for key in desired.keys() {
                self.touch_row(desired, key);
            }
        }
        self.resolve_epoch();
        keys
    }

    /// The database changed. Returns the natural keys concerned.
    pub fn changed(
        &mut self,
        config: &Config,
        desired: &Desired,
        replica: Replica,
        changes: &[RowChange],
    ) -> BTreeSet<RowKey> {
        let effects = self.index.apply(config, replica, changes);
        if effects.globals {
            self.watch_epoch();
        }
        if self.live {
            self.absorb(desired, &effects);
        }
        effects.rows
    }

    /// The desired state is complete for the first time: everything is compared
    /// once. Before, every row would look unwanted.
    pub fn start(&mut self, desired: &Desired) {
        (self.live, self.starting) = (true, true);
        for key in desired.keys() {
            self.touch_row(desired, key);
        }
        let unstated: Vec<RowKey> = self.index.keys().filter(|key| !desired.states(key)).cloned().collect();
        for key in &unstated {
            self.touch_row(desired, key);
        }
        for member in desired.members() {
            self.touch_member(desired, member);
        }
        for member in self.index.members() {
            if desired.member_owners(&member).is_empty() {
                self.touch_member(desired, member);
            }
        }
        self.starting = false;
    }

    fn absorb(&mut self, desired: &Desired, effects: &Effects) {
        for key in &effects.rows {
            self.touch_row(desired, key);
            self.touch_memberships(desired, key);
            if self.index.find(key).next().is_some() {
                for group in self.blocked_on.remove(key).into_iter().flat_map(|blocked| blocked.groups) {
                    if self.pending.phase(&group) == Some(Phase::Blocked) {
                        self.pending.set_ready(&group);
                    }
                }
            }
        }
        for (row, column, element) in &effects.members {
            self.touch_member(desired, MemberFact { row: row.clone(), column, element: element.clone() });
        }
    }

    /// Units changed their facts.
    pub fn touch(&mut self, desired: &Desired, unit: &UnitKey, touched: &Touched) {
        if !self.live {
            return;
        }
        for key in &touched.rows {
            self.touch_row(desired, key);
            self.touch_governed(desired, key);
            // Whose row it is decides who may be taken out of its sets, and where a row may
            // be taken out of.
            self.touch_memberships(desired, key);
            for member in self.index.members_of(key) {
                self.touch_member(desired, member);
            }
        }
        for member in &touched.members {
            self.touch_member(desired, member.clone());
        }
        for keep in &touched.keeps {
            self.touch_kept(desired, keep);
        }
        // New facts deserve a new attempt at once.
        let group = Group::Unit(unit.clone());
        if (!touched.rows.is_empty() || !touched.members.is_empty())
            && self.pending.phase(&group) == Some(Phase::BackOff)
        {
            self.pending.set_ready(&group);
        }
        self.unconverged.remove(&group);
    }

    /// Something has to be kept although no unit states it, or not any more.
    pub fn touch_kept(&mut self, desired: &Desired, keep: &Keep) {
        if !self.live {
            return;
        }
        let keys = match keep {
            Keep::Row(key) => vec![key.clone()],
            Keep::Marked(table, name, value) => self.index.marked(*table, name, value),
        };
        for key in keys {
            self.touch_row(desired, &key);
            self.touch_memberships(desired, &key);
        }
    }

    /// The sets that a row is in, or is wanted in.
    fn touch_memberships(&mut self, desired: &Desired, key: &RowKey) {
        let wanted = desired.groups_of(key).cloned();
        let groups: BTreeSet<_> = wanted.chain(self.index.memberships(key)).collect();
        for (row, column) in groups {
            self.touch_member(desired, MemberFact { row, column, element: key.clone() });
        }
    }

    fn kept(&self, desired: &Desired, key: &RowKey, uuid: &Uuid) -> bool {
        let ids = self.index.row(key.table, uuid).and_then(|row| row.get("external_ids"));
        desired.kept(key, ids.into_iter().flat_map(ovsdb::Value::map_strings))
    }

    /// Everything that a unit states is in the replica, and nothing of it is on its
    /// way to be changed.
    pub fn committed(&self, unit: &UnitKey, facts: &Facts) -> bool {
        if self.pending.is_empty() {
            return true;
        }
        let group = Group::Unit(unit.clone());
        self.pending.phase(&group).is_none()
            && facts.rows.iter().all(|fact| !self.pending.has(&Item::Row(fact.row.clone())))
            && facts.members.iter().all(|member| !self.pending.has(&Item::Member(member.clone())))
    }

    /// Units whose state may have changed since the last call.
    pub fn take_notified(&mut self) -> BTreeSet<UnitKey> {
        std::mem::take(&mut self.notify)
    }

    /// Transactions to send now, and whether the fence refused us since the last
    /// call. Nothing but the epoch token is written before [`Commit::start`].
    pub fn outputs(&mut self, now_ms: u64, desired: &Desired) -> Vec<Output> {
        let mut outputs = Vec::new();
        if std::mem::take(&mut self.fenced) {
            outputs.push(Output::Fenced);
        }
        while let Some((until, group)) = self.due.first().filter(|(until, _)| *until <= now_ms).cloned() {
            self.due.remove(&(until, group.clone()));
            if self.pending.phase(&group) == Some(Phase::BackOff) {
                self.pending.set_ready(&group);
            }
        }
        if !self.connected {
            return outputs;
        }
        match self.epoch.clone() {
            Epoch::Elected(token) if self.token_refused.as_ref().is_none_or(|b| b.until_ms <= now_ms) => {
                let fresh = self.fresh_uuid(&RowKey::new(Table::NbGlobal, "."));
                let row = self.global().cloned();
                let replaced = epoch::token(row.as_ref()).map(Arc::from);
                let operations = epoch::take_over(row.as_ref(), &token, fresh);
                self.tag += 1;
                self.counters.transactions += 1;
                self.epoch = Epoch::Writing(self.tag, token, replaced);
                outputs.push(Output::Transact { tag: self.tag, operations });
            }
            Epoch::Held(token) if self.live && self.flights.is_empty() => {
                outputs.extend(self.plan_wave(desired, &token));
            }
            _ => {}
        }
        outputs
    }

    /// When [`Commit::outputs`] has something to do next.
    pub fn wake_at(&self) -> Option<u64> {
        let token = match self.epoch {
            Epoch::Elected(_) => self.token_refused.as_ref().map(|back_off| back_off.until_ms),
            _ => None,
        };
        self.due.first().map(|(until, _)| *until).into_iter().chain(token).min()
    }

    /// A UUID that no row has ever had: v5 of the row's identity, our leadership and
    /// a counter, so that a row that was deleted never comes back under its old UUID
    /// (northd loses such load balancers).
    fn fresh_uuid(&mut self, key: &RowKey) -> Uuid {
        self.incarnations += 1;
        let epoch = match &self.epoch {
            Epoch::Held(token) | Epoch::Elected(token) | Epoch::Writing(_, token, _) => &**token,
            Epoch::Follower | Epoch::Fenced => "",
        };
        let name = format!("{}|{}|{epoch}|{}", key.table.name(), key.key, self.incarnations);
        Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes())
    }
}
