//! What is not yet as it should be, in atomic groups.
//!
//! An item is one row, one membership or one row too many. Items of one unit make a
//! group that is never split over transactions. A group waits in one of a few
//! phases; ready ones are taken by class, then in the order in which they came: the
//! port path, then everything else that adds or changes, then what only takes away.
//! So a new way is there before the old one goes.

use std::collections::BTreeMap;

use ovsdb::Uuid;

use crate::facts::{MemberFact, RowKey, Table};
use crate::view::UnitKey;

/// One thing that may differ from the replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// A wanted row.
    Row(RowKey),
    /// A membership, wanted or not.
    Member(MemberFact),
    /// A claimed row that nothing wants.
    Stray(Table, Uuid),
}

/// An atomic group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Everything that one unit states.
    Unit(UnitKey),
    /// A row too many.
    Stray(Table, Uuid),
    /// Memberships to be removed of a row that no unit states.
    Leftover(RowKey),
}

impl Group {
    /// The unit, if it is one's.
    pub(super) fn unit(&self) -> Option<&UnitKey> {
        match self {
            Self::Unit(unit) => Some(unit),
            _ => None,
        }
    }
}

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its turn.
    Ready(u8, u64),
    /// A reply.
    InFlight,
    /// A row it refers to.
    Blocked,
    /// Time to pass after a failure.
    BackOff,
}

struct State {
    /// Each with whether it only takes something away.
    items: BTreeMap<Item, bool>,
    phase: Phase,
}

/// The port path, everything else, and what goes last.
const PORTS: u8 = 0;
const OTHERS: u8 = 1;
const LAST: u8 = 2;

fn class(group: &Group, items: &BTreeMap<Item, bool>) -> u8 {
    match group {
        Group::Stray(..) => LAST,
        Group::Unit(UnitKey::Pod(..) | UnitKey::Node(_)) if items.values().any(|retires| !retires) => PORTS,
        Group::Unit(_) | Group::Leftover(_) => OTHERS,
    }
}

/// All open groups.
#[derive(Default)]
pub(super) struct Pending {
    items: BTreeMap<Item, Group>,
    groups: BTreeMap<Group, State>,
    ready: BTreeMap<(u8, u64), Group>,
    sequence: u64,
}

impl Pending {
    /// The item differs; it belongs to this group now. `retires`: it is there and must
    /// not be.
    pub(super) fn open(&mut self, item: Item, group: Group, retires: bool) {
        match self.items.get(&item) {
            Some(old) if *old == group => {}
            Some(_) => {
                self.close(&item);
            }
            None => {}
        }
        self.items.insert(item.clone(), group.clone());
        let blocked = match self.groups.get_mut(&group) {
            Some(state) => {
                state.items.insert(item, retires);
                let late = matches!(state.phase, Phase::Ready(had, _) if had > class(&group, &state.items));
                state.phase == Phase::Blocked || late
            }
            None => {
                let state = State { items: [(item, retires)].into(), phase: Phase::Blocked };
                self.groups.insert(group.clone(), state);
                true
            }
        };
        if blocked {
            self.set_ready(&group);
        }
    }

    /// The item is as it should be. Returns the group that has no item left by
    /// that.
    pub(super) fn close(&mut self, item: &Item) -> Option<Group> {
        let group = self.items.remove(item)?;
        let state = self.groups.get_mut(&group)?;
        state.items.remove(item);
        if !state.items.is_empty() || state.phase == Phase::InFlight {
            // It may have been this item that needed the row which the group waits for, and
            // that row may never come: the others are looked at again without it.
            if state.phase == Phase::Blocked {
                self.set_ready(&group);
            }
            return None;
        }
        self.forget(&group);
        Some(group)
    }

    /// Drops a group without items.
    pub(super) fn forget(&mut self, group: &Group) {
        if let Some(State { phase: Phase::Ready(class, sequence), .. }) = self.groups.remove(group) {
            self.ready.remove(&(class, sequence));
        }
    }

    /// Nothing is open.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.groups.is_empty()
    }

    /// The item differs from the replica.
    pub(super) fn has(&self, item: &Item) -> bool {
        self.items.contains_key(item)
    }

    /// The group of an open item.
    pub(super) fn group_of(&self, item: &Item) -> Option<&Group> {
        self.items.get(item)
    }

    /// Phase of an open group.
    pub(super) fn phase(&self, group: &Group) -> Option<Phase> {
        self.groups.get(group).map(|state| state.phase)
    }

    /// Items of an open group: rows, memberships, strays.
    pub(super) fn items(&self, group: &Group) -> Vec<Item> {
        self.groups.get(group).map(|state| state.items.keys().cloned().collect()).unwrap_or_default()
    }

    /// Puts a group at the end of its class' queue.
    pub(super) fn set_ready(&mut self, group: &Group) {
        let Some(state) = self.groups.get(group) else { return };
        let class = class(group, &state.items);
        self.sequence += 1;
        self.set_phase(group, Phase::Ready(class, self.sequence));
    }

    /// Puts a group into a phase.
    pub(super) fn set_phase(&mut self, group: &Group, phase: Phase) {
        let Some(state) = self.groups.get_mut(group) else { return };
        if let Phase::Ready(class, sequence) = std::mem::replace(&mut state.phase, phase) {
            self.ready.remove(&(class, sequence));
        }
        if let Phase::Ready(class, sequence) = phase {
            self.ready.insert((class, sequence), group.clone());
        }
    }

    /// The ready group that comes after a place in the queue.
    pub(super) fn next_ready(&self, after: (u8, u64)) -> Option<((u8, u64), Group)> {
        let next = (after.0, after.1.saturating_add(1));
        self.ready.range(next..).next().map(|(place, group)| (*place, group.clone()))
    }

    /// Open groups and items.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.groups.len(), self.items.len())
    }

    /// Groups in a phase, for diagnostics.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&Group, Phase)> {
        self.groups.iter().map(|(group, state)| (group, state.phase))
    }
}
