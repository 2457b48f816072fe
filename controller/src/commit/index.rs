//! The replica by natural key: which row is which, who holds it, whose it is.
//!
//! Flows in: changes of the replica. Flows out: the natural keys and memberships
//! that a change concerns. Rows of tables without an index of their own (policies,
//! static routes) are known by their parent, so the parents' reference columns are
//! kept in reverse.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ovsdb::{AtomSet, Replica, Row, RowChange, Uuid};

use crate::claims;
use crate::facts::{MemberFact, RowKey, Table};
use crate::io::Config;
use crate::verify::Differences;
use crate::world::PortRow;

/// Columns that hold strong references to rows of other tables: parent, column, child.
pub const PARENT_COLUMNS: [(Table, &str, Table); 8] = [
    (Table::LogicalRouter, "policies", Table::Policy),
    (Table::LogicalRouter, "ports", Table::LogicalRouterPort),
    (Table::LogicalRouter, "static_routes", Table::StaticRoute),
    (Table::LogicalSwitch, "ports", Table::LogicalSwitchPort),
    (Table::LogicalSwitch, "acls", Table::Acl),
    (Table::PortGroup, "acls", Table::Acl),
    (Table::HaChassisGroup, "ha_chassis", Table::HaChassis),
    (Table::LogicalRouterPort, "gateway_chassis", Table::GatewayChassis),
];

/// Set columns of weak references that units fill by memberships: holder, column,
/// element.
pub const MEMBER_COLUMNS: [(Table, &str, Table); 1] = [(Table::PortGroup, "ports", Table::LogicalSwitchPort)];

/// The column of `parent` that holds rows of `child`.
pub(super) fn child_column(parent: Table, child: Table) -> Option<&'static str> {
    PARENT_COLUMNS.iter().find(|(p, _, c)| *p == parent && *c == child).map(|(_, column, _)| *column)
}

/// A table by its name in the schema.
pub(super) fn table_of(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|table| table.name() == name)
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    table: Table,
    key: Option<Arc<str>>,
    claimed: bool,
}

impl Known {
    fn row_key(&self) -> Option<RowKey> {
        self.key.as_ref().map(|key| RowKey::new(self.table, key.clone()))
    }
}

/// What a change of the replica concerns.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Natural keys of rows that came, went, changed (in more than what they hold) or moved.
    pub rows: BTreeSet<RowKey>,
    /// Elements that came to or went from a member column: holder, column, element.
    pub members: BTreeSet<(RowKey, &'static str, RowKey)>,
    /// The columns of `NB_Global` changed.
    pub globals: bool,
}

/// The index.
#[derive(Default)]
pub(super) struct Index {
    replica: Option<Replica>,
    known: HashMap<Uuid, Known>,
    /// Sorted; almost always one.
    by_key: BTreeMap<RowKey, Vec<Uuid>>,
    parents: HashMap<Uuid, Vec<(Table, Uuid)>>,
    holders: HashMap<Uuid, Vec<(Table, Uuid)>>,
    unclaimed: BTreeMap<Table, usize>,
}

impl Index {
    /// Takes over a new state of the replica.
    pub(super) fn apply(&mut self, config: &Config, replica: Replica, changes: &[RowChange]) -> Effects {
        let mut effects = Effects::default();
        self.replica = Some(replica);
        let mut affected: BTreeSet<(Table, Uuid)> = BTreeSet::new();
        for change in changes {
            let Some(table) = table_of(&change.table) else { continue };
            if !only_links(table, change) {
                affected.insert((table, change.uuid));
            }
            effects.globals |= table == Table::NbGlobal;
            let renamed = name_of(change.old.as_ref()) != name_of(change.new.as_ref());
            for (_, column, child) in PARENT_COLUMNS.iter().filter(|(parent, ..)| *parent == table) {
                let (gone, come) = difference(change, column);
                relate(&mut self.parents, (table, change.uuid), &gone, &come);
                affected.extend(gone.into_iter().chain(come).map(|uuid| (*child, uuid)));
                if renamed {
                    let children = change.new.iter().filter_map(|row| row.set(column)).flat_map(references);
                    affected.extend(children.map(|uuid| (*child, uuid)));
                }
            }
        }
        // Keys of rows that vanish in this batch, for groups that lose them in it.
        let mut vanished: HashMap<Uuid, RowKey> = HashMap::new();
        for (table, uuid) in affected {
            let before = self.known.get(&uuid).cloned();
            let after = self.identify(config, table, uuid);
            if let Some(before) = &before {
                if let Some(key) = before.row_key() {
                    self.forget(&key, uuid);
                    if after.is_none() {
                        vanished.insert(uuid, key.clone());
                    }
                    effects.rows.insert(key);
                }
                if !before.claimed && table != Table::NbGlobal {
                    let count = self.unclaimed.entry(before.table).or_default();
                    *count = count.saturating_sub(1);
                }
            }
            match after {
                Some(after) => {
                    if let Some(key) = after.row_key() {
                        let uuids = self.by_key.entry(key.clone()).or_default();
                        if let Err(at) = uuids.binary_search(&uuid) {
                            uuids.reserve_exact(1);
                            uuids.insert(at, uuid);
                        }
                        effects.rows.insert(key);
                    }
                    if !after.claimed && table != Table::NbGlobal {
                        *self.unclaimed.entry(table).or_default() += 1;
                    }
                    self.known.insert(uuid, after);
                }
                None => {
                    self.known.remove(&uuid);
                }
            }
        }
        for change in changes {
            let Some(table) = table_of(&change.table) else { continue };
            for (_, column, _) in MEMBER_COLUMNS.iter().filter(|(holder, ..)| *holder == table) {
                let (gone, come) = difference(change, column);
                relate(&mut self.holders, (table, change.uuid), &gone, &come);
                let holder = self.key(&change.uuid).or_else(|| vanished.get(&change.uuid).cloned());
                let Some(holder) = holder else { continue };
                for uuid in gone.into_iter().chain(come) {
                    let element = self.key(&uuid).or_else(|| vanished.get(&uuid).cloned());
                    effects.members.extend(element.map(|element| (holder.clone(), *column, element)));
                }
            }
        }
        effects
    }

    fn forget(&mut self, key: &RowKey, uuid: Uuid) {
        if let Some(uuids) = self.by_key.get_mut(key) {
            uuids.retain(|other| *other != uuid);
            if uuids.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    fn identify(&self, config: &Config, table: Table, uuid: Uuid) -> Option<Known> {
        let row = self.replica.as_ref()?.row(table.name(), &uuid)?;
        let parent = self.holder(&uuid);
        let key = claims::natural_key(table, row, parent);
        let claimed = key.is_some() && claims::claim(config, table, row, parent);
        Some(Known { table, key, claimed })
    }

    /// The replica.
    pub(super) fn replica(&self) -> Option<&Replica> {
        self.replica.as_ref()
    }

    /// A row of the replica.
    pub(super) fn row(&self, table: Table, uuid: &Uuid) -> Option<&Arc<Row>> {
        self.replica.as_ref()?.row(table.name(), uuid)
    }

    /// Rows with that natural key; more than one only in tables without an index.
    pub(super) fn find(&self, key: &RowKey) -> impl Iterator<Item = Uuid> + '_ {
        self.by_key.get(key).into_iter().flatten().copied()
    }

    /// All natural keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &RowKey> {
        self.by_key.keys()
    }

    /// All memberships whose holder and element have natural keys.
    pub(super) fn members(&self) -> Vec<MemberFact> {
        let tables: BTreeSet<Table> = MEMBER_COLUMNS.iter().map(|(table, ..)| *table).collect();
        let keys = tables.into_iter().flat_map(|table| {
            self.by_key.range(RowKey::new(table, "")..).take_while(move |(key, _)| key.table == table)
        });
        keys.flat_map(|(key, _)| self.members_of(key)).collect()
    }

    /// The memberships in the sets of the rows with that natural key.
    pub(super) fn members_of(&self, row: &RowKey) -> Vec<MemberFact> {
        let mut members = Vec::new();
        for (table, column, _) in MEMBER_COLUMNS.iter().filter(|(table, ..)| *table == row.table) {
            for uuid in self.find(row) {
                let set = self.row(*table, &uuid).and_then(|row| row.set(column));
                let elements = set.into_iter().flat_map(references).filter_map(|uuid| self.key(&uuid));
                members.extend(elements.map(|element| MemberFact { row: row.clone(), column, element }));
            }
        }
        members
    }

    /// Natural key of a row.
    pub(super) fn key(&self, uuid: &Uuid) -> Option<RowKey> {
        self.known.get(uuid)?.row_key()
    }

    /// The row is of a class that an enabled kind of unit owns.
    pub(super) fn claimed(&self, uuid: &Uuid) -> bool {
        self.known.get(uuid).is_some_and(|known| known.claimed)
    }

    /// On what it depends whether a row without marks is ours.
    pub(super) fn governor(&self, table: Table, uuid: &Uuid) -> Option<claims::Governor> {
        let row = self.row(table, uuid)?;
        claims::governor(table, row, self.holder(uuid))
    }

    /// Natural keys of a table that begin like that.
    pub(super) fn beginning(&self, table: Table, start: &str) -> Vec<RowKey> {
        let keys = self.by_key.range(RowKey::new(table, start)..).map(|(key, _)| key);
        keys.take_while(|key| key.table == table && key.key.starts_with(start)).cloned().collect()
    }

    fn holder(&self, uuid: &Uuid) -> Option<claims::Holder<'_>> {
        let (table, uuid) = self.parent(uuid)?;
        let name = self.row(table, &uuid)?.str("name")?;
        Some(claims::Holder { table, name })
    }

    /// The row that holds the strong reference; the first of several.
    pub(super) fn parent(&self, uuid: &Uuid) -> Option<(Table, Uuid)> {
        self.parents.get(uuid)?.first().copied()
    }

    /// All rows that hold a strong reference to it.
    pub(super) fn parents(&self, uuid: &Uuid) -> &[(Table, Uuid)] {
        self.parents.get(uuid).map_or(&[], Vec::as_slice)
    }

    /// Memberships of the rows with that natural key.
    pub(super) fn memberships(&self, key: &RowKey) -> Vec<(RowKey, &'static str)> {
        let holders = self.find(key).filter_map(|uuid| self.holders.get(&uuid)).flatten();
        let columns = holders.filter_map(|(table, uuid)| {
            let (_, column, _) = MEMBER_COLUMNS
                .iter()
                .find(|(holder, _, element)| holder == table && *element == key.table)?;
            Some((self.key(uuid)?, *column))
        });
        columns.collect()
    }

    /// Natural keys of the rows of a table whose `external_ids` have that pair.
    pub(super) fn marked(&self, table: Table, name: &str, value: &str) -> Vec<RowKey> {
        let keys = self.by_key.range(RowKey::new(table, "")..).take_while(|(key, _)| key.table == table);
        let marked = keys.filter(|(_, uuids)| {
            uuids.iter().any(|uuid| {
                self.row(table, uuid).is_some_and(|row| row.map_get("external_ids", name) == Some(value))
            })
        });
        marked.map(|(key, _)| key.clone()).collect()
    }

    /// `element` is in `holder.column`.
    pub(super) fn has(&self, holder: (Table, &Uuid), column: &str, element: Uuid) -> bool {
        self.row(holder.0, holder.1)
            .and_then(|row| row.set(column))
            .is_some_and(|set| set.contains(&element.into()))
    }

    /// Port rows with their addresses, by name (for leases).
    pub(super) fn ports(&self) -> Vec<PortRow> {
        let first = RowKey::new(Table::LogicalSwitchPort, "");
        let ports = self.by_key.range(first..).take_while(|(key, _)| key.table == Table::LogicalSwitchPort);
        let rows = ports.filter_map(|(key, uuids)| {
            let uuid = uuids.first()?;
            let (table, parent) = self.parent(uuid)?;
            let switch = self.row(table, &parent)?.str("name")?.into();
            // Router and localnet ports have no address of their own.
            let row = self.row(Table::LogicalSwitchPort, uuid)?;
            row.str("type").filter(|kind| kind.is_empty())?;
            let addresses = row.get("addresses")?.set_strings().map(Arc::from).collect();
            Some(PortRow { name: key.key.clone(), switch, addresses })
        });
        rows.collect()
    }

    /// Compares with an index of the same replica, made at once.
    pub(super) fn verify(&self, fresh: &Index, found: &mut Differences) {
        fn sorted<V>(map: &HashMap<Uuid, V>) -> BTreeMap<&Uuid, &V> {
            map.iter().collect()
        }
        let (kept, anew) = (sorted(&self.known), sorted(&fresh.known));
        found.maps("identity of row", kept.iter().map(|(k, v)| (*k, *v)), anew.iter().map(|(k, v)| (*k, *v)));
        found.maps("rows of key", &self.by_key, &fresh.by_key);
        for (what, kept, anew) in [
            ("parents of", &self.parents, &fresh.parents),
            ("groups that hold", &self.holders, &fresh.holders),
        ] {
            let (kept, anew) = (sorted(kept), sorted(anew));
            found.maps(what, kept.iter().map(|(k, v)| (*k, *v)), anew.iter().map(|(k, v)| (*k, *v)));
        }
        let counts = |index: &Index| -> BTreeMap<Table, usize> {
            index
                .unclaimed
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(table, count)| (*table, *count))
                .collect()
        };
        found.same(|| "rows of no class".into(), &counts(self), &counts(fresh));
    }

    /// Rows of known tables that are not ours, by table.
    pub(super) fn unclaimed(&self) -> &BTreeMap<Table, usize> {
        &self.unclaimed
    }
}

/// Keeps a reverse index of references.
fn relate(
    index: &mut HashMap<Uuid, Vec<(Table, Uuid)>>,
    holder: (Table, Uuid),
    gone: &[Uuid],
    come: &[Uuid],
) {
    for uuid in gone {
        if let Some(holders) = index.get_mut(uuid) {
            holders.retain(|other| *other != holder);
            if holders.is_empty() {
                index.remove(uuid);
            }
        }
    }
    for uuid in come {
        let holders = index.entry(*uuid).or_default();
        if let Err(place) = holders.binary_search(&holder) {
            holders.reserve_exact(1);
            holders.insert(place, holder);
        }
    }
}

/// Nothing of the row changed but what it holds: children or elements, which are judged by
/// themselves. So is each pod's switch with each of its pods.
fn only_links(table: Table, change: &RowChange) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return false };
    let link = |name: &str| {
        let links = PARENT_COLUMNS.iter().chain(&MEMBER_COLUMNS);
        links.into_iter().any(|(holder, column, _)| *holder == table && *column == name)
    };
    let count = old.columns().count();
    count == new.columns().count()
        && old
            .columns()
            .zip(new.columns())
            .all(|((name, before), (other, after))| name == other && (link(name) || before == after))
}

fn name_of(row: Option<&Arc<Row>>) -> Option<&str> {
    row.and_then(|row| row.str("name"))
}

fn references(set: &AtomSet) -> impl Iterator<Item = Uuid> + '_ {
    set.iter().filter_map(ovsdb::Atom::as_uuid)
}

/// References that a change removed from and added to a column.
fn difference(change: &RowChange, column: &str) -> (Vec<Uuid>, Vec<Uuid>) {
    let empty = AtomSet::new();
    let of = |row: &Option<Arc<Row>>| row.as_ref().and_then(|row| row.set(column)).cloned();
    let (old, new) = (of(&change.old), of(&change.new));
    let (gone, come) = old.as_ref().unwrap_or(&empty).delta(new.as_ref().unwrap_or(&empty));
    let uuids = |atoms: Vec<ovsdb::Atom>| atoms.iter().filter_map(ovsdb::Atom::as_uuid).collect();
    (uuids(gone), uuids(come))
}
