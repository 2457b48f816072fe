//! Judgement: what of the desired state differs from the replica.
//!
//! Flows in: one natural key or membership. Flows out: items opened or closed, and
//! the units to be told. The judgement itself is a pure function of the desired
//! state and the replica, so that it can be checked as a whole ([`Commit::verify`]).

use std::borrow::Cow;
use std::collections::BTreeSet;

use ovsdb::Uuid;

use super::pending::{Group, Item};
use super::{Commit, diff};
use crate::claims::Governor;
use crate::desired::Desired;
use crate::facts::{MemberFact, RowFact, RowKey, Table};

impl Commit {
    pub(super) fn touch_row(&mut self, desired: &Desired, key: &RowKey) {
        let item = Item::Row(key.clone());
        let (clean, strays) = self.judged_row(desired, key);
        match (clean, desired.owner(key)) {
            (Some(false), Some(owner)) => self.pending.open(item, Group::Unit(owner.clone()), false),
            _ => self.close(&item),
        }
        // At the start every unit is looked at anyway.
        if !self.starting {
            self.notify.extend(desired.owners(key).cloned());
        }
        if strays.is_empty() && self.strays.is_empty() {
            return;
        }
        let before = self.strays.remove(key).unwrap_or_default();
        for uuid in before.difference(&strays) {
            self.close(&Item::Stray(key.table, *uuid));
        }
        for uuid in &strays {
            self.pending.open(Item::Stray(key.table, *uuid), Group::Stray(key.table, *uuid), true);
        }
        if !strays.is_empty() {
            self.strays.insert(key.clone(), strays);
        }
    }

    /// Whether a row is as it is wanted (`None` when no unit states it), and the rows
    /// of that key that have to go.
    pub(super) fn judged_row(&self, desired: &Desired, key: &RowKey) -> (Option<bool>, BTreeSet<Uuid>) {
        let fact = desired.row(key);
        let chosen = fact.as_deref().and_then(|fact| self.choose(fact));
        let clean =
            fact.as_deref().map(|fact| chosen.is_some_and(|uuid| self.row_holds(desired, fact, &uuid)));
        // Of several rows with the key one is enough; a claimed row nobody wants goes.
        let strays = self
            .index
            .find(key)
            .filter(|uuid| Some(*uuid) != chosen)
            .filter(|uuid| self.index.claimed(uuid) || self.governed(desired, key, uuid))
            .filter(|uuid| !self.kept(desired, key, uuid))
            .collect();
        (clean, strays)
    }

    /// A row without marks of what a unit states.
    fn governed(&self, desired: &Desired, key: &RowKey, uuid: &Uuid) -> bool {
        match self.index.governor(key.table, uuid) {
            // Stated, or kept as long as nobody knows what it leads to.
            Some(Governor::External(switch)) => {
                let wire = RowKey::new(Table::LogicalSwitchPort, crds::names::localnet_port(&switch));
                let kept = || desired.kept(&wire, std::iter::empty());
                desired.states(&wire)
                    || (desired.states(&RowKey::new(Table::LogicalSwitch, switch)) && kept())
            }
            Some(Governor::Gateways(port)) => desired.has_gateways(&port),
            None => false,
        }
    }

    /// Whether rows without marks are ours may change with this one.
    pub(super) fn touch_governed(&mut self, desired: &Desired, key: &RowKey) {
        match key.table {
            Table::LogicalSwitchPort => {
                if let Some(switch) = key.key.strip_prefix(crds::names::LOCALNET_PREFIX) {
                    self.touch_external(desired, &RowKey::new(Table::LogicalSwitch, switch));
                }
            }
            Table::GatewayChassis => self.touch_gateways(desired, key),
            _ => {}
        }
    }

    /// The gateways and sessions without marks of the router port that a stated one is of.
    fn touch_gateways(&mut self, desired: &Desired, key: &RowKey) {
        let Some(RowFact { parent: Some((port, _)), .. }) = desired.row(key).map(Cow::into_owned) else {
            return;
        };
        let sessions = self.index.beginning(Table::Bfd, &format!("{}|", port.key));
        let gateways = self.index.beginning(Table::GatewayChassis, &format!("{}-", port.key));
        for key in sessions.into_iter().chain(gateways) {
            self.touch_row(desired, &key);
        }
    }

    /// The ports without marks of a switch that has become an external network's, or is none any more.
    fn touch_external(&mut self, desired: &Desired, switch: &RowKey) {
        let rows = self.index.find(switch).filter_map(|uuid| self.index.row(switch.table, &uuid));
        let ports = rows.filter_map(|row| row.set("ports")).flatten().filter_map(|port| port.as_uuid());
        let without_marks = ports
            .filter(|port| {
                matches!(self.index.governor(Table::LogicalSwitchPort, port), Some(Governor::External(_)))
            })
            .filter_map(|port| self.index.key(&port));
        for key in without_marks.collect::<Vec<_>>() {
            self.touch_row(desired, &key);
        }
    }

    pub(super) fn touch_member(&mut self, desired: &Desired, member: MemberFact) {
        if !self.starting {
            self.notify.extend(desired.member_owners(&member).iter().cloned());
        }
        let retires = desired.member_owners(&member).is_empty();
        match self.judged_member(desired, &member) {
            Some((clean, group)) => self.judge(Item::Member(member), clean, group, retires),
            None => self.close(&Item::Member(member)),
        }
    }

    /// Whether a membership is as it is wanted, and the group that would change it;
    /// `None` when it is nobody's.
    pub(super) fn judged_member(&self, desired: &Desired, member: &MemberFact) -> Option<(bool, Group)> {
        let owners = desired.member_owners(member);
        let present = self.member_present(desired, member);
        let group = match owners.first() {
            Some(owner) => Group::Unit(owner.clone()),
            // Only rows of ours are taken out, and only of sets that are ours to fill.
            None if present && self.is_ours(desired, member) => match desired.owner(&member.element) {
                Some(owner) => Group::Unit(owner.clone()),
                None => Group::Leftover(member.element.clone()),
            },
            None => return None,
        };
        Some((present != owners.is_empty(), group))
    }

    fn is_ours(&self, desired: &Desired, member: &MemberFact) -> bool {
        let key = &member.element;
        let ours = |uuid: &Uuid| self.index.claimed(uuid) && !self.kept(desired, key, uuid);
        desired.owner(&member.row).is_some() && self.index.find(key).any(|uuid| ours(&uuid))
    }

    fn judge(&mut self, item: Item, clean: bool, group: Group, retires: bool) {
        if clean {
            self.close(&item);
        } else {
            self.pending.open(item, group, retires);
        }
    }

    fn close(&mut self, item: &Item) {
        if let Some(group) = self.pending.close(item) {
            self.settled(&group);
        }
    }

    /// Looks at everything of a group once more.
    pub(super) fn judge_again(&mut self, desired: &Desired, group: &Group) {
        for item in self.pending.items(group) {
            match item {
                Item::Row(key) => self.touch_row(desired, &key),
                Item::Member(member) => self.touch_member(desired, member),
                Item::Stray(table, uuid) => match self.index.key(&uuid) {
                    Some(key) => self.touch_row(desired, &key),
                    None => self.close(&Item::Stray(table, uuid)),
                },
            }
        }
    }

    /// Nothing is left to do for a group.
    pub(super) fn settled(&mut self, group: &Group) {
        if let Some(back_off) = self.back_offs.remove(group) {
            self.due.remove(&(back_off.until_ms, group.clone()));
        }
        self.unconverged.remove(group);
        self.notify.extend(group.unit().cloned());
    }

    /// Of several rows with the same natural key, the one to keep: ours before
    /// others', held by the right parent, with the fewest differences.
    pub(super) fn choose(&self, fact: &RowFact) -> Option<Uuid> {
        let mut rows = self.index.find(&fact.row);
        let first = rows.next()?;
        let Some(second) = rows.next() else { return Some(first) };
        let rank = |uuid: &Uuid| {
            let row = self.index.row(fact.row.table, uuid);
            let differences = match (&self.schema, row) {
                (Some(schema), Some(row)) => {
                    diff::columns(schema, fact, row, &mut |key| self.find(key)).len()
                }
                _ => usize::MAX,
            };
            (!self.index.claimed(uuid), !self.held_by(fact, uuid), differences, *uuid)
        };
        [first, second].into_iter().chain(rows).min_by_key(rank)
    }

    fn held_by(&self, fact: &RowFact, uuid: &Uuid) -> bool {
        let parents = self.index.parents(uuid);
        match &fact.parent {
            None => parents.is_empty(),
            Some((parent, _)) => {
                let wanted = self.index.find(parent).find(|p| parents.contains(&(parent.table, *p)));
                wanted.is_some() && parents.len() == 1
            }
        }
    }

    /// UUID of a row with that natural key.
    fn find(&self, key: &RowKey) -> Option<Uuid> {
        self.index.find(key).next()
    }

    /// The row that others mean by that natural key; of several the one that stays, by the planner's rule: judged by
    /// another, what refers to it would never be as the plan makes it.
    pub(super) fn meant(&self, desired: &Desired, key: &RowKey) -> Option<Uuid> {
        let mut rows = self.index.find(key);
        let first = rows.next()?;
        let Some(_) = rows.next() else { return Some(first) };
        match desired.row(key) {
            Some(fact) => self.choose(&fact),
            None => Some(first),
        }
    }

    fn row_holds(&self, desired: &Desired, fact: &RowFact, uuid: &Uuid) -> bool {
        let row = self.index.row(fact.row.table, uuid);
        let (Some(schema), Some(row)) = (&self.schema, row) else { return false };
        self.held_by(fact, uuid)
            && diff::columns(schema, fact, row, &mut |key| self.meant(desired, key)).is_empty()
    }

    pub(super) fn member_present(&self, desired: &Desired, member: &MemberFact) -> bool {
        let element = self.meant(desired, &member.element);
        let holder = self.meant(desired, &member.row);
        let (Some(element), Some(holder)) = (element, holder) else { return false };
        self.index.has((member.row.table, &holder), member.column, element)
    }
}
