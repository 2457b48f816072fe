//! Updates of a monitor: read from `update2`/`update3` notation and applied to a
//! replica.
//!
//! An update names what happened to each row: `initial` or `insert` with all
//! columns that differ from their default, `modify` with differences, `delete`.
//! The difference of a set or map is its symmetric difference with the old value
//! (for a map, a pair whose key exists with another value sets it); that of a
//! column with at most one value is the new value.
//!
//! The plain `update` of RFC 7047, for servers that know no newer monitor, names the
//! columns of the old row that changed and the whole new row.
//!
//! What does not fit (an unknown table, column or row) is an error: the caller
//! must load afresh, since a replica that misses something is worse than none.

mod read;

use std::sync::Arc;

use uuid::Uuid;

use crate::notation::Interner;
use crate::replica::{Replica, Row, RowChange};
use crate::schema::ColumnType;
use crate::value::Value;

/// What happened to one row.
#[derive(Debug)]
pub(crate) enum RowDelta {
    Present {
        initial: bool,
        values: Box<[Value]>,
    },
    /// Differences by column.
    Modify(Vec<(usize, Value)>),
    /// New values by column.
    Rewrite(Vec<(usize, Value)>),
    Delete,
}

/// The rows of one table, by its position in the replica.
pub(crate) struct TableDelta {
    table: usize,
    rows: Vec<(Uuid, RowDelta)>,
}

/// An update that does not fit the replica.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// No update notation, or a table, column or type that is not monitored.
    #[error("unreadable update: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A row that is not there was modified or deleted.
    #[error("{1} of unknown row {2} in {0}")]
    UnknownRow(Arc<str>, &'static str, Uuid),
    /// A row that is there was inserted.
    #[error("insert of row {1} in {0}, which exists")]
    Exists(Arc<str>, Uuid),
}

/// Reads `<table-updates2>`.
pub(crate) fn parse(
    json: &str,
    replica: &Replica,
    interner: &mut Interner,
) -> Result<Vec<TableDelta>, UpdateError> {
    Ok(read::tables(json, replica, interner, read::Notation::Differences)?)
}

/// Reads `<table-updates>`.
pub(crate) fn parse_plain(
    json: &str,
    replica: &Replica,
    interner: &mut Interner,
) -> Result<Vec<TableDelta>, UpdateError> {
    Ok(read::tables(json, replica, interner, read::Notation::Plain)?)
}

/// Applies an update: all of it, or (on an error) an unspecified part of it; the
/// replica is then to be thrown away.
pub(crate) fn apply(replica: &mut Replica, deltas: Vec<TableDelta>) -> Result<Vec<RowChange>, UpdateError> {
    let mut changes = Vec::with_capacity(deltas.iter().map(|d| d.rows.len()).sum());
    for delta in deltas {
        let table = replica.table_mut(delta.table);
        let name = table.name().clone();
        let layout = table.layout().clone();
        for (uuid, row) in delta.rows {
            let change = match row {
                RowDelta::Present { initial, values } => {
                    let new = Arc::new(Row::new(uuid, layout.clone(), values));
                    let old = table.put(new.clone());
                    if old.is_some() && !initial {
                        return Err(UpdateError::Exists(name, uuid));
                    }
                    (old, Some(new))
                }
                RowDelta::Modify(columns) => {
                    let old = table.get(&uuid).cloned();
                    let old = old.ok_or_else(|| unknown(&name, "modification", uuid))?;
                    let mut values: Box<[Value]> = old.values().into();
                    for (position, difference) in columns {
                        modify(&mut values[position], difference, &layout.columns()[position].1);
                    }
                    let new = Arc::new(Row::new(uuid, layout.clone(), values));
                    table.put(new.clone());
                    (Some(old), Some(new))
                }
                RowDelta::Rewrite(columns) => {
                    let old = table.get(&uuid).cloned();
                    let old = old.ok_or_else(|| unknown(&name, "modification", uuid))?;
                    let mut values: Box<[Value]> = old.values().into();
                    for (position, value) in columns {
                        values[position] = value;
                    }
                    let new = Arc::new(Row::new(uuid, layout.clone(), values));
                    table.put(new.clone());
                    (Some(old), Some(new))
                }
                RowDelta::Delete => match table.take(&uuid) {
                    Some(old) => (Some(old), None),
                    None => return Err(unknown(&name, "deletion", uuid)),
                },
            };
            changes.push(RowChange { table: name.clone(), uuid, old: change.0, new: change.1 });
        }
    }
    Ok(changes)
}

fn unknown(table: &Arc<str>, what: &'static str, uuid: Uuid) -> UpdateError {
    UpdateError::UnknownRow(table.clone(), what, uuid)
}

/// Applies the difference that a `modify` gives for one column.
pub(crate) fn modify(held: &mut Value, difference: Value, ty: &ColumnType) {
    if ty.max == 1 {
        *held = difference;
        return;
    }
    match (held, difference) {
        (Value::Set(held), Value::Set(difference)) => held.symmetric_difference_with(&difference),
        (Value::Map(held), Value::Map(difference)) => {
            for (key, value) in &difference {
                if held.get(key) == Some(value) {
                    held.remove(key);
                } else {
                    held.insert(key.clone(), value.clone());
                }
            }
        }
        (held, difference) => *held = difference,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::notation::tests::{column_type, value};
    use crate::schema::{ColumnSchema, Schema, TableSchema, UNLIMITED};

    /// The difference that a server sends, by the letter of its manual.
    fn difference(old: &Value, new: &Value, ty: &ColumnType) -> Value {
        match (old, new) {
            _ if ty.max == 1 => new.clone(),
            (Value::Set(old), Value::Set(new)) => {
                Value::Set(old.difference(new).chain(new.difference(old)).cloned().collect())
            }
            (Value::Map(old), Value::Map(new)) => {
                let gone = old.iter().filter(|(k, _)| !new.contains_key(k));
                let set = new.iter().filter(|(k, v)| old.get(k) != Some(v));
                Value::Map(gone.chain(set).map(|(k, v)| (k.clone(), v.clone())).collect())
            }
            _ => unreachable!("shapes differ"),
        }
    }

    fn replica(ty: &ColumnType) -> Replica {
        let table = TableSchema {
            columns: [("c".to_owned(), ColumnSchema::new(ty.clone()))].into(),
            indexes: vec![vec!["c".into()]],
            is_root: true,
            max_rows: UNLIMITED,
        };
        let schema = Schema {
            name: "D".into(),
            version: String::new(),
            cksum: String::new(),
            tables: [("T".to_owned(), table)].into(),
        };
        Replica::new(Arc::new(schema), &[("T".to_owned(), Vec::new())].into(), &[])
    }

    fn steps() -> impl Strategy<Value = (ColumnType, Vec<(u8, Option<Value>)>)> {
        column_type().prop_flat_map(|ty| {
            let step = (0..5u8, prop::option::weighted(0.8, value(&ty)));
            (Just(ty), prop::collection::vec(step, 1..25))
        })
    }

    proptest! {
        /// Rows come, change and go; after each update the replica, its index and
        /// the changes told are what a model says.
        #[test]
        fn updates_match_a_model((ty, steps) in steps()) {
            let mut replica = replica(&ty);
            let mut model: BTreeMap<Uuid, Value> = BTreeMap::new();
            let mut interner = Interner::default();
            for (row, new) in steps {
                let uuid = Uuid::from_u128(row.into());
                let update = match (model.get(&uuid), &new) {
                    (None, None) => continue,
                    (None, Some(new)) if *new == ty.default_value() => json!({"insert": {}}),
                    (None, Some(new)) => json!({"insert": {"c": new.to_json()}}),
                    (Some(_), None) => json!({"delete": null}),
                    (Some(old), Some(new)) => json!({"modify": {"c": difference(old, new, &ty).to_json()}}),
                };
                let before = replica.clone();
                let text = json!({"T": {uuid.to_string(): update}}).to_string();
                let changes = replica.apply_updates(&text, &mut interner).unwrap();
                let old = match new {
                    Some(new) => model.insert(uuid, new),
                    None => model.remove(&uuid),
                };
                prop_assert_eq!(changes.len(), 1);
                let held = |row: &Option<Arc<Row>>| row.as_ref().and_then(|r| r.get("c").cloned());
                prop_assert_eq!(held(&changes[0].old), old);
                prop_assert_eq!(held(&changes[0].new), model.get(&uuid).cloned());
                let table = replica.table("T").unwrap();
                prop_assert_eq!(table.len(), model.len());
                for (uuid, value) in &model {
                    prop_assert_eq!(table.get(uuid).unwrap().get("c"), Some(value));
                    let found: Vec<Uuid> = table.find_by("c", value).map(|r| r.uuid).collect();
                    let expected: Vec<Uuid> = model.iter().filter(|(_, v)| *v == value).map(|(u, _)| *u).collect();
                    prop_assert_eq!(found, expected);
                }
                let really: Vec<RowChange> = changes.into_iter().filter(|c| c.old != c.new).collect();
                prop_assert_eq!(replica.changes_since(&before), really);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let ty = ColumnType::set(crate::schema::BaseType::plain(crate::schema::AtomType::String));
        let uuid = Uuid::from_u128(1).to_string();
        for update in [
            json!({"Nope": {}}),
            json!({"T": {&uuid: {"modify": {"c": "x"}}}}),
            json!({"T": {&uuid: {"delete": null}}}),
            json!({"T": {&uuid: {"insert": {"nope": 1}}}}),
            json!({"T": {&uuid: {"insert": {"c": 1}}}}),
            json!({"T": {&uuid: {"replace": {"c": "x"}}}}),
            json!({"T": {&uuid: {}}}),
            json!({"T": {"no uuid": {"insert": {}}}}),
            json!([]),
        ] {
            let mut replica = replica(&ty);
            assert!(replica.apply_updates(&update.to_string(), &mut Interner::off()).is_err(), "{update}");
        }
        let mut replica = replica(&ty);
        let insert = json!({"T": {&uuid: {"insert": {"c": "x"}}}}).to_string();
        replica.apply_updates(&insert, &mut Interner::off()).unwrap();
        let again = replica.apply_updates(&insert, &mut Interner::off());
        assert!(matches!(again, Err(UpdateError::Exists(..))));
    }
}
