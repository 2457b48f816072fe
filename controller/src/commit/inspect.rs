//! Read-only views of commit, for diagnostics, metrics and leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use ovsdb::Replica;

use super::pending::{Item, Phase};
use super::{Commit, Counters};
use crate::desired::Desired;
use crate::facts::{RowKey, Table};
use crate::world::PortRow;

impl Commit {
    /// Numbers since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Open groups and items, transactions in flight, groups in back-off.
    pub fn backlog(&self) -> (usize, usize, usize, usize) {
        let (groups, items) = self.pending.len();
        (groups, items, self.flights.len(), self.back_offs.len())
    }

    /// Rows of known tables that are not ours.
    pub fn unclaimed(&self) -> &BTreeMap<Table, usize> {
        self.index.unclaimed()
    }

    /// Port rows, for leases.
    pub fn ports(&self) -> Vec<PortRow> {
        self.index.ports()
    }

    /// MAC address of a router port.
    pub fn router_port_mac(&self, key: &RowKey) -> Option<&str> {
        let uuid = self.index.find(key).next()?;
        self.index.row(key.table, &uuid)?.str("mac")
    }

    /// The router port of a gateway, and the gateway's priority.
    pub fn gateway(&self, key: &RowKey) -> Option<(Arc<str>, Arc<str>, i64)> {
        let uuid = self.index.find(key).next()?;
        let (table, parent) = self.index.parent(&uuid)?;
        let port = self.index.row(table, &parent)?.str("name")?;
        let row = self.index.row(key.table, &uuid)?;
        Some((port.into(), row.str("chassis_name")?.into(), row.i64("priority")?))
    }

    /// What OVN says of a BFD session: `up`, `down`, `init`, `admin_down`; `None` for one that
    /// is not there.
    pub fn session(&self, key: &RowKey) -> Option<&str> {
        let uuid = self.index.find(key).next()?;
        Some(self.index.row(key.table, &uuid)?.str("status").unwrap_or_default())
    }

    /// UUID of the row with that natural key.
    pub fn uuid_of(&self, key: &RowKey) -> Option<ovsdb::Uuid> {
        self.index.find(key).next()
    }

    /// A row with that natural key is in the replica.
    pub fn present(&self, key: &RowKey) -> bool {
        self.index.find(key).next().is_some()
    }

    /// The replica, once loaded.
    pub fn replica(&self) -> Option<&Replica> {
        self.index.replica()
    }

    /// The database is connected and loaded.
    pub fn connected(&self) -> bool {
        self.connected
    }

    /// State of one wanted row in a word.
    pub fn state_of(&self, key: &RowKey) -> &'static str {
        let group = self.pending.group_of(&Item::Row(key.clone()));
        match group.and_then(|group| self.pending.phase(group)) {
            None if self.present(key) => "in the database",
            None => "absent",
            Some(Phase::Ready(..)) => "to be written",
            Some(Phase::InFlight) => "being written",
            Some(Phase::Blocked) => "waits for a row it refers to",
            Some(Phase::BackOff) => "failed, will be tried again",
        }
    }

    /// What would change, in words, without writing anything (`weir plan`).
    pub fn plan(&self, desired: &Desired) -> Vec<String> {
        let mut lines = Vec::new();
        for (group, _) in self.pending.groups() {
            for item in self.pending.items(group) {
                lines.push(match item {
                    Item::Row(key) if self.present(&key) => format!("change {key}"),
                    Item::Row(key) => format!("add {key}"),
                    Item::Member(m) if self.member_present(desired, &m) => {
                        format!("take {} out of {} {}", m.element, m.row, m.column)
                    }
                    Item::Member(m) => format!("put {} into {} {}", m.element, m.row, m.column),
                    Item::Stray(table, uuid) => match self.index.key(&uuid) {
                        Some(key) => format!("delete {key}"),
                        None => format!("delete {} {uuid}", table.name()),
                    },
                });
            }
        }
        lines.sort();
        lines
    }
}
