//! The desired state: the union of all units' facts, by row and by membership.
//!
//! Flows in: units with their facts before and after. Flows out: the rows and
//! memberships that changed, and on demand a row as all units together want it.
//! Facts stay where they are (one `Arc` per unit), contributions point into them.

#[cfg(test)]
mod tests;
mod verify;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::Recompiled;
use crate::facts::{Column, Facts, Keep, MemberFact, RowFact, RowKey, Table};
use crate::view::UnitKey;

/// A set column of references that units fill together.
pub type Group = (RowKey, &'static str);

/// Two units want different things of one column. The smaller unit key wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Conflict {
    /// The row.
    pub row: RowKey,
    /// The column, or `parent`.
    pub column: &'static str,
    /// Whose value is written.
    pub winner: UnitKey,
}

/// What an update touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Rows that are stated differently now, or not any more.
    pub rows: BTreeSet<RowKey>,
    /// Memberships that came or went.
    pub members: BTreeSet<MemberFact>,
    /// What is kept, or not any more.
    pub keeps: BTreeSet<Keep>,
}

#[derive(Clone)]
struct Contribution {
    unit: UnitKey,
    facts: Arc<Facts>,
    index: usize,
}

impl Contribution {
    fn fact(&self) -> Option<&RowFact> {
        self.facts.rows.get(self.index)
    }
}

/// The union of facts.
#[derive(Default)]
pub struct Desired {
    rows: BTreeMap<RowKey, Vec<Contribution>>,
    members: BTreeMap<Group, BTreeMap<RowKey, Vec<UnitKey>>>,
    /// By element, sorted.
    groups_of: BTreeMap<RowKey, Vec<Group>>,
    conflicts: BTreeMap<UnitKey, BTreeSet<Conflict>>,
    /// What stays although no unit states it, and for how many units' sake.
    keeps: BTreeMap<Keep, usize>,
}

impl Desired {
    /// Takes over a unit's new facts.
    pub fn update(&mut self, change: &Recompiled) -> Touched {
        let Recompiled { unit, old, new, .. } = change;
        let mut touched = Touched::default();
        let before = by_key(old);
        let after = by_key(new);
        let gone = before.keys().filter(|key| !after.contains_key(*key));
        for key in gone.chain(after.keys()).copied().collect::<Vec<_>>() {
            let was = before.get(key).and_then(|i| old.rows.get(*i));
            let index = after.get(key).copied();
            let is = index.and_then(|i| new.rows.get(i));
            self.contribute(unit, key, index.map(|index| (new, index)));
            if was != is {
                self.find_conflicts(key);
                touched.rows.insert(key.clone());
            }
        }
        let before: BTreeSet<&MemberFact> = old.members.iter().collect();
        let after: BTreeSet<&MemberFact> = new.members.iter().collect();
        for member in before.difference(&after) {
            if self.withdraw(unit, member) {
                touched.members.insert((*member).clone());
            }
        }
        for member in after.difference(&before) {
            if self.state(unit, member) {
                touched.members.insert((*member).clone());
            }
        }
        for keep in old.keeps.iter().filter(|keep| !new.keeps.contains(keep)) {
            self.keep(keep, false);
            touched.keeps.insert(keep.clone());
        }
        for keep in new.keeps.iter().filter(|keep| !old.keeps.contains(keep)) {
            self.keep(keep, true);
            touched.keeps.insert(keep.clone());
        }
        touched
    }

    /// Asks for something to be kept, or stops asking.
    pub fn keep(&mut self, keep: &Keep, wanted: bool) {
        let count = self.keeps.entry(keep.clone()).or_default();
        *count = if wanted { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.keeps.remove(keep);
        }
    }

    /// A row that no unit states has to stay. `marks` are its external_ids.
    pub fn kept<'a>(&self, key: &RowKey, mut marks: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        if self.keeps.is_empty() {
            return false;
        }
        if self.keeps.contains_key(&Keep::Row(key.clone())) {
            return true;
        }
        // Only those of its table: there may be one for each port of a broken subnet.
        let of_table = self.keeps.range(Keep::Marked(key.table, "", Arc::default())..);
        let marked: BTreeSet<(&str, &str)> = of_table
            .map_while(|(keep, _)| match keep {
                Keep::Marked(table, name, value) if *table == key.table => Some((*name, &**value)),
                _ => None,
            })
            .collect();
        !marked.is_empty() && marks.any(|mark| marked.contains(&mark))
    }

    fn contribute(&mut self, unit: &UnitKey, key: &RowKey, fact: Option<(&Arc<Facts>, usize)>) {
        let list = self.rows.entry(key.clone()).or_default();
        let place = list.binary_search_by(|c| c.unit.cmp(unit));
        match (place, fact) {
            (Ok(at), Some((facts, index))) => {
                if let Some(slot) = list.get_mut(at) {
                    *slot = Contribution { unit: unit.clone(), facts: facts.clone(), index };
                }
            }
            (Err(at), Some((facts, index))) => {
                list.reserve_exact(1);
                list.insert(at, Contribution { unit: unit.clone(), facts: facts.clone(), index });
            }
            (Ok(at), None) => {
                list.remove(at);
            }
            (Err(_), None) => {}
        }
        if list.is_empty() {
            self.rows.remove(key);
        }
    }

    /// Conflicts of a row are rare: looked for only where several units state it.
    fn find_conflicts(&mut self, key: &RowKey) {
        if !self.conflicts.is_empty() {
            for conflicts in self.conflicts.values_mut() {
                conflicts.retain(|c| c.row != *key);
            }
            self.conflicts.retain(|_, conflicts| !conflicts.is_empty());
        }
        let Some(list) = self.rows.get(key).filter(|list| list.len() > 1) else { return };
        let mut found = Vec::new();
        for (place, loser) in list.iter().enumerate() {
            let Some(fact) = loser.fact() else { continue };
            for winner in list.iter().take(place) {
                let Some(first) = winner.fact() else { continue };
                let differ = fact.columns.iter().filter(|(name, column)| {
                    first.columns.get(name).is_some_and(|other| !agree(other, column))
                });
                let mut columns: Vec<&'static str> = differ.map(|(name, _)| *name).collect();
                if first.parent != fact.parent {
                    columns.push("parent");
                }
                found.extend(columns.into_iter().map(|column| {
                    let winner = winner.unit.clone();
                    (loser.unit.clone(), Conflict { row: key.clone(), column, winner })
                }));
            }
        }
        for (unit, conflict) in found {
            self.conflicts.entry(unit).or_default().insert(conflict);
        }
    }

    fn state(&mut self, unit: &UnitKey, member: &MemberFact) -> bool {
        let group = (member.row.clone(), member.column);
        let units = self.members.entry(group.clone()).or_default().entry(member.element.clone()).or_default();
        let first = units.is_empty();
        if let Err(at) = units.binary_search(unit) {
            units.reserve_exact(1);
            units.insert(at, unit.clone());
        }
        if first {
            let groups = self.groups_of.entry(member.element.clone()).or_default();
            if let Err(at) = groups.binary_search(&group) {
                groups.reserve_exact(1);
                groups.insert(at, group);
            }
        }
        first
    }

    fn withdraw(&mut self, unit: &UnitKey, member: &MemberFact) -> bool {
        let group = (member.row.clone(), member.column);
        let Some(elements) = self.members.get_mut(&group) else { return false };
        let Some(units) = elements.get_mut(&member.element) else { return false };
        units.retain(|u| u != unit);
        if !units.is_empty() {
            return false;
        }
        elements.remove(&member.element);
        if elements.is_empty() {
            self.members.remove(&group);
        }
        if let Some(groups) = self.groups_of.get_mut(&member.element) {
            groups.retain(|other| *other != group);
            if groups.is_empty() {
                self.groups_of.remove(&member.element);
            }
        }
        true
    }

    /// The row as all units together want it: each column as the smallest unit key
    /// states it, keys of maps united.
    pub fn row(&self, key: &RowKey) -> Option<Cow<'_, RowFact>> {
        let list = self.rows.get(key)?;
        let mut facts = list.iter().filter_map(Contribution::fact);
        let first = facts.next()?;
        if list.len() == 1 {
            return Some(Cow::Borrowed(first));
        }
        let mut merged = first.clone();
        for fact in facts {
            for (name, column) in &fact.columns {
                match (merged.columns.get_mut(name), column) {
                    (None, _) => {
                        merged.columns.insert(name, column.clone());
                    }
                    (Some(Column::Keys(ours)), Column::Keys(more)) => {
                        *ours = ours.with_missing_of(more);
                    }
                    (Some(_), _) => {}
                }
            }
        }
        Some(Cow::Owned(merged))
    }

    /// The unit that a row belongs to: the smallest of those that state it.
    pub fn owner(&self, key: &RowKey) -> Option<&UnitKey> {
        self.rows.get(key)?.first().map(|c| &c.unit)
    }

    /// Some unit states the row.
    pub fn states(&self, key: &RowKey) -> bool {
        self.rows.contains_key(key)
    }

    /// Some unit states gateways of that router port.
    pub fn has_gateways(&self, port: &str) -> bool {
        let start = RowKey::new(Table::GatewayChassis, format!("{port}-"));
        let mut rows = self
            .rows
            .range(start.clone()..)
            .take_while(|(key, _)| key.table == Table::GatewayChassis && key.key.starts_with(&*start.key));
        rows.any(|(_, list)| {
            let fact = list.first().and_then(Contribution::fact);
            fact.and_then(|fact| fact.parent.as_ref()).is_some_and(|(parent, _)| *parent.key == *port)
        })
    }

    /// All units that state a row.
    pub fn owners(&self, key: &RowKey) -> impl Iterator<Item = &UnitKey> {
        self.rows.get(key).into_iter().flatten().map(|c| &c.unit)
    }

    /// Units that state a membership.
    pub fn member_owners(&self, member: &MemberFact) -> &[UnitKey] {
        let elements = self.members.get(&(member.row.clone(), member.column));
        elements.and_then(|e| e.get(&member.element)).map_or(&[], |units| units)
    }

    /// All memberships that are wanted.
    pub fn members(&self) -> impl Iterator<Item = MemberFact> + '_ {
        self.members.iter().flat_map(|((row, column), elements)| {
            elements.keys().map(|element| MemberFact { row: row.clone(), column, element: element.clone() })
        })
    }

    /// The elements wanted in a set column.
    pub fn elements(&self, row: &RowKey, column: &'static str) -> impl Iterator<Item = &RowKey> {
        self.members.get(&(row.clone(), column)).into_iter().flat_map(BTreeMap::keys)
    }

    /// The set columns that an element is wanted in.
    pub fn groups_of(&self, element: &RowKey) -> impl Iterator<Item = &Group> {
        self.groups_of.get(element).into_iter().flatten()
    }

    /// All rows that are wanted, by key.
    pub fn keys(&self) -> impl Iterator<Item = &RowKey> {
        self.rows.keys()
    }

    /// Units that lost a conflict, and which.
    pub fn conflicts(&self) -> &BTreeMap<UnitKey, BTreeSet<Conflict>> {
        &self.conflicts
    }

    /// Rows and memberships wanted.
    pub fn size(&self) -> (usize, usize) {
        (self.rows.len(), self.members.values().map(BTreeMap::len).sum())
    }
}

/// Positions of a unit's rows; of a row stated twice the first counts.
fn by_key(facts: &Facts) -> BTreeMap<&RowKey, usize> {
    let mut map = BTreeMap::new();
    for (index, fact) in facts.rows.iter().enumerate() {
        map.entry(&fact.row).or_insert(index);
    }
    map
}

/// Both can hold at once.
fn agree(a: &Column, b: &Column) -> bool {
    match (a, b) {
        (Column::Keys(a), Column::Keys(b)) => a.iter().all(|(k, v)| b.get(k).is_none_or(|other| other == v)),
        _ => a == b,
    }
}
