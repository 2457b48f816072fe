//! The difference between a wanted row and a row of the replica, column by column.

use std::collections::BTreeMap;

use ovsdb::schema::UNLIMITED;
use ovsdb::{Atom, AtomMap, AtomSet, ColumnType, Row, Schema, Uuid, Value};

use crate::facts::{Column, Gone, MapColumn, RowFact, RowKey};
use crate::strings::StringMap;

/// How a column has to change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Overwrite it.
    Set(Value),
    /// Add and remove elements.
    Elements {
        /// To be added.
        add: AtomSet,
        /// To be removed.
        remove: AtomSet,
    },
    /// Set and remove keys.
    Keys {
        /// To be set, new or with another value.
        set: AtomMap,
        /// To be removed.
        remove: AtomSet,
    },
}

/// UUID of a row by its natural key, if there is one.
pub(super) type Find<'a> = &'a mut dyn FnMut(&RowKey) -> Option<Uuid>;

/// What has to change in `row`. Columns that the server or the monitor lacks, and
/// values that don't fit their column's type, can't be judged and are left alone.
pub(super) fn columns(
    schema: &Schema,
    fact: &RowFact,
    row: &Row,
    find: Find<'_>,
) -> BTreeMap<&'static str, Change> {
    let mut changes = BTreeMap::new();
    for (name, column) in &fact.columns {
        let Some(ty) = schema.column(fact.row.table.name(), name).map(|c| &c.ty) else { continue };
        let Some(current) = row.get(name) else { continue };
        if let Some(change) = one(column, ty, current, find) {
            changes.insert(*name, change);
        }
    }
    changes
}

fn one(column: &Column, ty: &ColumnType, current: &Value, find: Find<'_>) -> Option<Change> {
    match column {
        Column::Initial(_) => None,
        Column::Keys(wanted) => {
            let current = current.as_map()?;
            let set: AtomMap = pairs(wanted).filter(|(k, v)| current.get(k) != Some(v)).collect();
            (!set.is_empty()).then(|| Change::Keys { set, remove: AtomSet::new() })
        }
        Column::Refs(rows) => {
            let found: Vec<Uuid> = rows.iter().filter_map(&mut *find).collect();
            // With a row missing the column can't be right yet.
            let missing = found.len() < rows.len();
            let change = one(&Column::Whole(Value::uuids(found)), ty, current, find);
            change.or_else(|| missing.then(|| Change::Set(current.clone())))
        }
        Column::Map(map) => {
            let MapColumn { keys, initial, gone } = &**map;
            let current = current.as_map()?;
            let wrong = pairs(keys).filter(|(k, v)| current.get(k) != Some(v));
            let missing = pairs(initial).filter(|(k, _)| !current.contains_key(k));
            let set: AtomMap = wrong.chain(missing).collect();
            let remove: AtomSet = match gone {
                Gone::Keys(gone) => {
                    let gone = gone.iter().filter(|key| !keys.contains_key(key)).map(|key| Atom::from(*key));
                    gone.filter(|key| current.contains_key(key)).collect()
                }
                Gone::Others => {
                    let named: AtomSet = keys.keys().chain(initial.keys()).map(Atom::from).collect();
                    current.keys().filter(|key| !named.contains(key)).cloned().collect()
                }
            };
            (!set.is_empty() || !remove.is_empty()).then_some(Change::Keys { set, remove })
        }
        Column::Whole(wanted) => {
            let wanted = wanted.clone().shaped(ty)?;
            if wanted == *current {
                return None;
            }
            Some(match (&wanted, current) {
                (Value::Map(wanted), Value::Map(current)) => Change::Keys {
                    set: wanted
                        .iter()
                        .filter(|(k, v)| current.get(k) != Some(v))
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect(),
                    remove: current.keys().filter(|k| !wanted.contains_key(k)).cloned().collect(),
                },
                // Of a bounded set the server checks the size after each mutation.
                (Value::Set(wanted), Value::Set(current)) if ty.max == UNLIMITED => Change::Elements {
                    add: wanted.difference(current).cloned().collect(),
                    remove: current.difference(wanted).cloned().collect(),
                },
                _ => Change::Set(wanted),
            })
        }
    }
}

/// The columns of a new row.
pub(super) fn initial(schema: &Schema, fact: &RowFact, find: Find<'_>) -> BTreeMap<&'static str, Value> {
    let table = fact.row.table.name();
    let columns = fact.columns.iter().filter_map(|(name, column)| {
        let ty = &schema.column(table, name)?.ty;
        let value = match column {
            Column::Whole(value) | Column::Initial(value) => value.clone().shaped(ty)?,
            Column::Keys(keys) => Value::Map(pairs(keys).collect()),
            Column::Refs(rows) => Value::uuids(rows.iter().filter_map(&mut *find)).shaped(ty)?,
            Column::Map(map) => Value::Map(pairs(&map.initial).chain(pairs(&map.keys)).collect()),
        };
        Some((*name, value))
    });
    columns.collect()
}

fn pairs(keys: &StringMap) -> impl Iterator<Item = (Atom, Atom)> + '_ {
    keys.iter().map(|(k, v)| (Atom::from(k), Atom::from(v)))
}
