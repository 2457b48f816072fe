//! From what a row is to what it should be, by as little as possible.
//!
//! Sets and maps are changed by their differences: a switch with a hundred thousand
//! ports gets one more without the others being sent again, and what another
//! writer adds meanwhile stays.

use std::sync::Arc;

use uuid::Uuid;

use super::{Mutation, Mutator, Operation, RowValues};
use crate::op::Condition;
use crate::schema::{ColumnType, TableSchema, UNLIMITED};
use crate::value::{AtomMap, AtomSet, Value};

/// Operations (at most one `update` and one `mutate`) that make the named columns
/// of a row what `new` says, given that they are what `old` says. A column that
/// `old` lacks is written whole; one that the schema lacks is left out.
pub fn difference(
    table: &Arc<str>,
    uuid: Uuid,
    schema: &TableSchema,
    old: &RowValues,
    new: &RowValues,
) -> Vec<Operation> {
    let (mut row, mut mutations) = (RowValues::new(), Vec::new());
    for (column, value) in new {
        let Some(ty) = schema.columns.get(&**column).map(|c| &c.ty) else { continue };
        // What does not fit is sent as it is: the server (or `check`) will name it.
        let shape = |value: &Value| value.clone().shaped(ty).unwrap_or_else(|| value.clone());
        let (was, value) = (old.get(column).map(shape), shape(value));
        match (was, value) {
            (Some(was), value) if was == value => {}
            (Some(Value::Set(was)), Value::Set(value)) if by_difference(ty) => {
                sets(column, ty, &was, &value, &mut mutations);
            }
            (Some(Value::Map(was)), Value::Map(value)) if by_difference(ty) && ty.min == 0 => {
                maps(column, &was, &value, &mut mutations);
            }
            (_, value) => drop(row.insert(column.clone(), value)),
        }
    }
    let where_ = || vec![Condition::uuid(uuid)];
    let update = (!row.is_empty()).then(|| Operation::Update { table: table.clone(), where_: where_(), row });
    let mutate = (!mutations.is_empty()).then(|| Operation::Mutate {
        table: table.clone(),
        where_: where_(),
        mutations,
    });
    update.into_iter().chain(mutate).collect()
}

/// Whether a column is changed by its difference. A server checks the number of
/// elements after each mutation, so one with an upper bound is written whole: it
/// is small anyway.
fn by_difference(ty: &ColumnType) -> bool {
    ty.max == UNLIMITED
}

fn sets(column: &Arc<str>, ty: &ColumnType, was: &AtomSet, value: &AtomSet, out: &mut Vec<Mutation>) {
    let (gone, come) = was.delta(value);
    let mutation = |mutator, atoms: Vec<_>| {
        let value = Value::Set(atoms.into_iter().collect());
        (!value.is_empty()).then(|| Mutation { column: column.clone(), mutator, value })
    };
    let (delete, insert) = (mutation(Mutator::Delete, gone), mutation(Mutator::Insert, come));
    // One that must not be empty gets the new ones first.
    let (first, second) = if ty.min > 0 { (insert, delete) } else { (delete, insert) };
    out.extend(first.into_iter().chain(second));
}

/// Keys that go or change are deleted whatever their value is by now, since
/// `insert` leaves a key alone that exists.
fn maps(column: &Arc<str>, was: &AtomMap, value: &AtomMap, out: &mut Vec<Mutation>) {
    let keys: AtomSet = was.iter().filter(|(k, v)| value.get(k) != Some(v)).map(|(k, _)| k.clone()).collect();
    let pairs: AtomMap =
        value.iter().filter(|(k, v)| was.get(k) != Some(v)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let mutation = |mutator, value: Value| {
        (!value.is_empty()).then(|| Mutation { column: column.clone(), mutator, value })
    };
    out.extend(mutation(Mutator::Delete, Value::Set(keys)));
    out.extend(mutation(Mutator::Insert, Value::Map(pairs)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::notation::tests::{column_type, value};
    use crate::schema::ColumnSchema;
    use crate::schema::Schema;
    use crate::testing::Database;

    fn schema(ty: &ColumnType) -> Schema {
        let table = TableSchema {
            columns: [("c".to_owned(), ColumnSchema::new(ty.clone()))].into(),
            indexes: Vec::new(),
            is_root: true,
            max_rows: UNLIMITED,
        };
        Schema {
            name: "D".into(),
            version: String::new(),
            cksum: String::new(),
            tables: [("T".to_owned(), table)].into(),
        }
    }

    fn values() -> impl Strategy<Value = (ColumnType, Value, Value)> {
        (column_type(), any::<bool>()).prop_flat_map(|(mut ty, filled)| {
            // Sets that must not be empty too.
            if filled && ty.max == UNLIMITED && !ty.is_map() {
                ty.min = 1;
            }
            let least = ty.min;
            let enough = move |v: &Value| v.as_set().is_none_or(|set| set.len() >= least);
            // No database holds null characters.
            let fit = move |v: &Value| enough(v) && !format!("{v:?}").contains("\\0");
            let some = value(&ty).prop_filter("too few, or null", fit);
            (Just(ty.clone()), some.clone(), some)
        })
    }

    proptest! {
        /// Whatever a row was, the operations make it what it should be; a set or map
        /// without an upper bound is never written whole.
        #[test]
        fn a_difference_leads_from_old_to_new((ty, old, new) in values()) {
            let schema = schema(&ty);
            let (uuid, table): (_, Arc<str>) = (Uuid::from_u128(1), "T".into());
            let row = |value: &Value| RowValues::from([("c".into(), value.clone())]);
            let mut db = Database::new(schema.clone());
            db.must(&[Operation::insert("T").uuid(uuid).columns(row(&old)).build()]);
            let operations = difference(&table, uuid, &schema.tables["T"], &row(&old), &row(&new));
            prop_assert_eq!(super::super::check::check(&operations, &schema), Ok(()));
            prop_assert_eq!(operations.is_empty(), old == new);
            let whole = operations.iter().any(|o| matches!(o, Operation::Update { .. }));
            prop_assert_eq!(whole, old != new && ty.max == 1);
            db.must(&operations);
            let replica = db.replica();
            prop_assert_eq!(replica.row("T", &uuid).unwrap().get("c"), Some(&new));
        }
    }
}
