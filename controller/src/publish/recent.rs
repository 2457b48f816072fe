//! Facts at hand while their objects are being brought in line.
//!
//! All facts of a unit are looked at a few times in a row (its pod and its IP object,
//! before and after each write) and then not for months, so they are compiled again
//! when needed and kept for that while only. In a burst far more units wait than are
//! kept: those that are being written now are what it is for, not those that came last.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::facts::Facts;
use crate::view::UnitKey;

/// Units whose facts are kept at most.
const MOST: usize = 2048;

/// The facts, and the order in which they came.
#[derive(Default)]
pub(super) struct Recent {
    facts: BTreeMap<UnitKey, (u64, Arc<Facts>)>,
    order: BTreeMap<u64, UnitKey>,
    sequence: u64,
}

impl Recent {
    /// What is kept of a unit.
    pub(super) fn get(&self, unit: &UnitKey) -> Option<&Arc<Facts>> {
        self.facts.get(unit).map(|(_, facts)| facts)
    }

    /// A unit's new facts: what was kept of it is worth nothing any more. Those of another
    /// unit do not make room for them.
    pub(super) fn offer(&mut self, unit: &UnitKey, facts: &Arc<Facts>) {
        if let Some((_, kept)) = self.facts.get_mut(unit) {
            *kept = facts.clone();
        } else if self.facts.len() < MOST {
            self.keep(unit, facts);
        }
    }

    /// Keeps facts that are needed now, in place of the oldest ones.
    pub(super) fn keep(&mut self, unit: &UnitKey, facts: &Arc<Facts>) {
        self.remove(unit);
        self.sequence += 1;
        self.facts.insert(unit.clone(), (self.sequence, facts.clone()));
        self.order.insert(self.sequence, unit.clone());
        if self.facts.len() > MOST
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.facts.remove(&oldest);
        }
    }

    /// Nobody needs them now.
    pub(super) fn remove(&mut self, unit: &UnitKey) {
        if let Some((place, _)) = self.facts.remove(unit) {
            self.order.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Keep, RowKey, Table};

    fn facts(name: &str) -> Arc<Facts> {
        let keeps = vec![Keep::Row(RowKey::new(Table::PortGroup, name))];
        Arc::new(Facts { keeps, ..Facts::default() })
    }

    #[test]
    fn offers_do_not_push_out_what_is_in_use() {
        let unit = |n: usize| UnitKey::Node(n.to_string().into());
        let mut recent = Recent::default();
        (0..MOST + 10).for_each(|n| recent.offer(&unit(n), &facts("a")));
        assert!(recent.get(&unit(0)).is_some() && recent.get(&unit(MOST)).is_none());
        // A known one is never stale.
        recent.offer(&unit(0), &facts("b"));
        assert_eq!(recent.get(&unit(0)), Some(&facts("b")));
        // What is needed takes the place of the oldest, and stays for as long as others.
        recent.keep(&unit(MOST), &facts("c"));
        assert!(recent.get(&unit(0)).is_none() && recent.get(&unit(MOST)).is_some());
        recent.keep(&unit(1), &facts("d"));
        assert_eq!((recent.get(&unit(1)), recent.get(&unit(2))), (Some(&facts("d")), Some(&facts("a"))));
        assert_eq!((recent.facts.len(), recent.order.len()), (MOST, MOST));
        (0..=MOST).for_each(|n| recent.remove(&unit(n)));
        assert!(recent.facts.is_empty() && recent.order.is_empty());
    }
}
