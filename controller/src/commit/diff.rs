//! The difference between a wanted row and a row of the replica, column by column.

use std::collections::BTreeMap;
use std::sync::Arc;

use ovsdb::schema::UNLIMITED;
use ovsdb::{Atom, AtomMap, AtomSet, ColumnType, Row, Schema, Value};

use crate::facts::{Column, RowFact};

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

/// What has to change in `row`. Columns that the server or the monitor lacks, and
/// values that don't fit their column's type, can't be judged and are left alone.
pub(super) fn columns(schema: &Schema, fact: &RowFact, row: &Row) -> BTreeMap<&'static str, Change> {
    let mut changes = BTreeMap::new();
    for (name, column) in &fact.columns {
        let Some(ty) = schema.column(fact.row.table.name(), name).map(|c| &c.ty) else { continue };
        let Some(current) = row.get(name) else { continue };
        if let Some(change) = one(column, ty, current) {
            changes.insert(*name, change);
        }
    }
    changes
}

fn one(column: &Column, ty: &ColumnType, current: &Value) -> Option<Change> {
    match column {
        Column::Initial(_) => None,
        Column::Keys(wanted) => {
            let current = current.as_map()?;
            let set: AtomMap = pairs(wanted).filter(|(k, v)| current.get(k) != Some(v)).collect();
            (!set.is_empty()).then(|| Change::Keys { set, remove: AtomSet::new() })
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
pub(super) fn initial(schema: &Schema, fact: &RowFact) -> BTreeMap<&'static str, Value> {
    let table = fact.row.table.name();
    let columns = fact.columns.iter().filter_map(|(name, column)| {
        let ty = &schema.column(table, name)?.ty;
        let value = match column {
            Column::Whole(value) | Column::Initial(value) => value.clone().shaped(ty)?,
            Column::Keys(keys) => Value::Map(pairs(keys).collect()),
        };
        Some((*name, value))
    });
    columns.collect()
}

fn pairs(keys: &BTreeMap<Arc<str>, Arc<str>>) -> impl Iterator<Item = (Atom, Atom)> + '_ {
    keys.iter().map(|(k, v)| (Atom::from(k), Atom::from(v)))
}
