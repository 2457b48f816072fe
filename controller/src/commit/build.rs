//! One transaction under construction: changes by row, merged, so that a hundred
//! ports of one switch cost one `mutate` of that switch.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::{AtomMap, AtomSet, Mutator, Operation, Uuid, Value};

use super::diff::Change;
use crate::facts::Table;

#[derive(Default)]
struct Mutation {
    add: AtomSet,
    remove: AtomSet,
    set_keys: AtomMap,
    remove_keys: AtomSet,
}

/// The builder.
#[derive(Default)]
pub(super) struct Builder {
    inserts: BTreeMap<(Table, Uuid), BTreeMap<&'static str, Value>>,
    updates: BTreeMap<(Table, Uuid), BTreeMap<&'static str, Value>>,
    mutations: BTreeMap<(Table, Uuid), BTreeMap<&'static str, Mutation>>,
    deletes: BTreeSet<(Table, Uuid)>,
    /// Router ports that go, whose BFD sessions have to go along.
    ports: BTreeSet<String>,
}

impl Builder {
    /// Nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.operations_len() == 0
    }

    /// Operations so far.
    pub(super) fn operations_len(&self) -> usize {
        self.inserts.len() + self.updates.len() + self.mutations.len() + self.deletes.len() + self.ports.len()
    }

    /// A new row.
    pub(super) fn insert(&mut self, table: Table, uuid: Uuid, columns: BTreeMap<&'static str, Value>) {
        self.inserts.insert((table, uuid), columns);
    }

    /// A root row goes, with everything that only it holds.
    pub(super) fn delete(&mut self, table: Table, uuid: Uuid) {
        self.deletes.insert((table, uuid));
    }

    /// A router port goes. BFD sessions name their port and are held by nothing; northd
    /// (25.03) ends with a segmentation fault on one whose port is not there, and again at
    /// each start. So they go in the same transaction, whoever made them.
    pub(super) fn end_sessions(&mut self, port: &str) {
        self.ports.insert(port.to_owned());
    }

    /// A column changes.
    pub(super) fn change(&mut self, table: Table, uuid: Uuid, column: &'static str, change: Change) {
        match change {
            Change::Set(value) => {
                self.updates.entry((table, uuid)).or_default().insert(column, value);
            }
            Change::Elements { add, remove } => {
                let mutation = self.mutation(table, uuid, column);
                mutation.add.extend(add);
                mutation.remove.extend(remove);
            }
            Change::Keys { set, remove } => {
                let mutation = self.mutation(table, uuid, column);
                mutation.remove_keys.extend(remove);
                for (key, value) in &set {
                    mutation.set_keys.insert(key.clone(), value.clone());
                }
            }
        }
    }

    /// A reference is added to a set column, of a row that may be new itself.
    pub(super) fn refer(&mut self, table: Table, uuid: Uuid, column: &'static str, element: Uuid) {
        if let Some(row) = self.inserts.get_mut(&(table, uuid)) {
            let value = row.entry(column).or_insert_with(Value::empty_set);
            if let Value::Set(set) = value {
                set.insert(element.into());
            }
            return;
        }
        self.mutation(table, uuid, column).add.insert(element.into());
    }

    /// A reference is removed from a set column.
    pub(super) fn drop_reference(&mut self, table: Table, uuid: Uuid, column: &'static str, element: Uuid) {
        self.mutation(table, uuid, column).remove.insert(element.into());
    }

    fn mutation(&mut self, table: Table, uuid: Uuid, column: &'static str) -> &mut Mutation {
        self.mutations.entry((table, uuid)).or_default().entry(column).or_default()
    }

    /// The operations: new rows, changes, deletions.
    pub(super) fn finish(self) -> Vec<Operation> {
        let mut operations = Vec::with_capacity(self.operations_len());
        for ((table, uuid), columns) in self.inserts {
            operations.push(Operation::insert(table.name()).uuid(uuid).columns(columns).build());
        }
        for ((table, uuid), columns) in self.updates {
            operations.push(Operation::update(table.name()).by_uuid(uuid).columns(columns).build());
        }
        for ((table, uuid), columns) in self.mutations {
            let mut mutate = Operation::mutate(table.name()).by_uuid(uuid);
            for (column, change) in columns {
                // Elements first come, then go: a set with a minimum stays above it.
                if !change.add.is_empty() {
                    mutate = mutate.insert_set(column, change.add);
                }
                if !change.remove.is_empty() {
                    mutate = mutate.delete_set(column, change.remove);
                }
                // `insert` leaves keys that exist alone, so they go first.
                let mut gone = change.remove_keys;
                gone.extend(change.set_keys.keys().cloned());
                if !gone.is_empty() {
                    mutate = mutate.mutation(column, Mutator::Delete, gone);
                }
                if !change.set_keys.is_empty() {
                    mutate = mutate.insert_map(column, change.set_keys);
                }
            }
            operations.push(mutate.build());
        }
        for (table, uuid) in self.deletes {
            operations.push(Operation::delete(table.name()).by_uuid(uuid).build());
        }
        for port in self.ports {
            operations.push(Operation::delete("BFD").by("logical_port", port).build());
        }
        operations
    }
}
