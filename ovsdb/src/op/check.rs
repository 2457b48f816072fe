//! Checks a transaction against a schema before it is sent.
//!
//! A server checks everything itself; to ask here first gives an error that names
//! table, column and value without a round trip, and before anything else of a
//! batch is sent. Nothing is refused here that a server would take; what depends on
//! rows that exist (uniqueness, references to them, arithmetic) only the server can tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::{Condition, Function, Mutation, Mutator, Operation, RowValues};
use crate::error::{TransactError, TransactErrorKind};
use crate::schema::{AtomType, BaseType, ColumnSchema, ColumnType, Schema, TableSchema};
use crate::value::{Atom, Value};

/// What is wrong with a transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {op_index}: {table}{}: {problem}", column.as_ref().map(|c| format!(".{c}")).unwrap_or_default())]
pub struct CheckError {
    /// The operation at fault.
    pub op_index: usize,
    /// Its table; empty for an operation without one.
    pub table: Arc<str>,
    /// The column at fault.
    pub column: Option<Arc<str>>,
    /// The value and what is wrong with it.
    pub problem: String,
}

impl From<CheckError> for TransactError {
    fn from(error: CheckError) -> Self {
        let details = error.to_string();
        Self { kind: TransactErrorKind::Invalid, op_index: Some(error.op_index), details }
    }
}

/// Checks every operation.
pub fn check(operations: &[Operation], schema: &Schema) -> Result<(), CheckError> {
    let mut known = Known::default();
    for (index, operation) in operations.iter().enumerate() {
        known.insert(operation).map_err(|problem| at(index, operation, None, problem))?;
    }
    for (index, operation) in operations.iter().enumerate() {
        let Some(table) = operation.table() else { continue };
        let result = match schema.tables.get(&**table) {
            None => Err((None, format!("{} has no such table", schema.name))),
            Some(table) => Checker { table, known: &known }.operation(operation),
        };
        result.map_err(|(column, problem)| at(index, operation, column, problem))?;
    }
    Ok(())
}

fn at(op_index: usize, operation: &Operation, column: Option<Arc<str>>, problem: String) -> CheckError {
    CheckError { op_index, table: operation.table().cloned().unwrap_or_default(), column, problem }
}

/// Rows that the transaction inserts, with their tables.
#[derive(Default)]
struct Known {
    names: BTreeMap<Arc<str>, Arc<str>>,
    uuids: BTreeMap<Uuid, Arc<str>>,
}

impl Known {
    fn insert(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::Insert { table, uuid, uuid_name, .. } = operation else { return Ok(()) };
        if let Some(name) = uuid_name {
            if !is_id(name) {
                return Err(format!("uuid-name {name:?} is not letters, digits and underscores"));
            }
            if self.names.insert(name.clone(), table.clone()).is_some() {
                return Err(format!("uuid-name {name:?} is used twice"));
            }
        }
        if let Some(uuid) = uuid
            && self.uuids.get(uuid).is_some_and(|other| other == table)
        {
            return Err(format!("row {uuid} is inserted twice"));
        }
        if let Some(uuid) = uuid {
            self.uuids.insert(*uuid, table.clone());
        }
        Ok(())
    }
}

/// `<id>` of RFC 7047 §3.1.
fn is_id(name: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(begins) && name.chars().all(|c| begins(c) || c.is_ascii_digit())
}

/// The column at fault and what is wrong.
type Problem = (Option<Arc<str>>, String);

struct Checker<'a> {
    table: &'a TableSchema,
    known: &'a Known,
}

impl Checker<'_> {
    fn operation(&self, operation: &Operation) -> Result<(), Problem> {
        match operation {
            Operation::Insert { row, .. } => {
                self.row(row, false)?;
                self.defaults(row)
            }
            Operation::Update { where_, row, .. } => {
                self.conditions(where_)?;
                self.row(row, true)
            }
            Operation::Mutate { where_, mutations, .. } => {
                self.conditions(where_)?;
                mutations.iter().try_for_each(|m| self.mutation(m).map_err(|p| (Some(m.column.clone()), p)))
            }
            Operation::Delete { where_, .. } => self.conditions(where_),
            Operation::Wait { where_, columns, rows, .. } => {
                self.conditions(where_)?;
                columns.iter().try_for_each(|c| self.known_column(c))?;
                rows.iter().flatten().filter(|(c, _)| !is_implicit(c)).try_for_each(|(column, value)| {
                    let check = || self.column(column)?.ty.check_shape(value).map(drop);
                    check().map_err(|p| (Some(column.clone()), p))
                })
            }
            Operation::Select { where_, columns, .. } => {
                self.conditions(where_)?;
                columns.iter().flatten().try_for_each(|c| self.known_column(c))
            }
            Operation::Comment(_) | Operation::Assert(_) | Operation::Commit { .. } | Operation::Abort => {
                Ok(())
            }
        }
    }

    fn column(&self, name: &str) -> Result<&ColumnSchema, String> {
        self.table.columns.get(name).ok_or_else(|| match is_implicit(name) {
            true => "the server sets it, it cannot be written".to_owned(),
            false => "the table has no such column".into(),
        })
    }

    fn known_column(&self, name: &Arc<str>) -> Result<(), Problem> {
        if is_implicit(name) {
            return Ok(());
        }
        self.column(name).map(drop).map_err(|p| (Some(name.clone()), p))
    }

    fn row(&self, row: &RowValues, update: bool) -> Result<(), Problem> {
        row.iter().try_for_each(|(name, value)| {
            let check = || {
                let column = self.column(name)?;
                if update && !column.mutable {
                    return Err(format!("{value:?}: the column may not change after the row's insertion"));
                }
                column.ty.check(value)?;
                self.references(&column.ty, value)
            };
            check().map_err(|p| (Some(name.clone()), p))
        })
    }

    /// What an `insert` leaves out gets a default, which may violate a constraint.
    fn defaults(&self, row: &RowValues) -> Result<(), Problem> {
        for (name, column) in self.table.columns.iter().filter(|(name, _)| !row.contains_key(name.as_str())) {
            let default = column.ty.default_value();
            let dangling = column.ty.min > 0 && column.ty.key.reference.as_ref().is_some_and(|r| r.strong);
            let problem = match column.ty.check(&default) {
                Err(problem) => format!("not given, and its default does not do: {problem}"),
                Ok(()) if dangling => "not given, and it must refer to a row".into(),
                Ok(()) => continue,
            };
            return Err((Some(name.as_str().into()), problem));
        }
        Ok(())
    }

    /// References to rows of this very transaction: to the right table, by a name
    /// that there is.
    fn references(&self, ty: &ColumnType, value: &Value) -> Result<(), String> {
        if let (Value::Map(map), Some(value)) = (value, &ty.value) {
            return map
                .iter()
                .try_for_each(|(k, v)| self.reference(&ty.key, k).and_then(|()| self.reference(value, v)));
        }
        value.atoms().try_for_each(|atom| self.reference(&ty.key, atom))
    }

    fn reference(&self, base: &BaseType, atom: &Atom) -> Result<(), String> {
        let inserted = match atom {
            Atom::Named(name) => match self.known.names.get(name) {
                None => return Err(format!("{atom:?}: no insert of this transaction has that uuid-name")),
                found => found,
            },
            Atom::Uuid(uuid) => self.known.uuids.get(uuid),
            _ => None,
        };
        match (inserted, &base.reference) {
            (Some(table), Some(reference)) if **table != *reference.table => Err(format!(
                "{atom:?} is inserted into {table} here, but the column refers to {}",
                reference.table
            )),
            _ => Ok(()),
        }
    }

    fn conditions(&self, conditions: &[Condition]) -> Result<(), Problem> {
        conditions.iter().try_for_each(|c| self.condition(c).map_err(|p| (Some(c.column.clone()), p)))
    }

    fn condition(&self, condition: &Condition) -> Result<(), String> {
        let implicit = ColumnType::scalar(BaseType::plain(AtomType::Uuid));
        let ty = if is_implicit(&condition.column) { &implicit } else { &self.column(&condition.column)?.ty };
        match condition.function {
            Function::Equal | Function::NotEqual | Function::Includes | Function::Excludes => {
                let subset = matches!(condition.function, Function::Includes | Function::Excludes);
                let relaxed = ColumnType { min: 0, ..ty.clone() };
                // A scalar column is also asked whether it includes nothing.
                ty.check_shape(&condition.value).map(drop).or_else(|problem| match subset {
                    true => relaxed.check_shape(&condition.value).map(drop),
                    false => Err(problem),
                })
            }
            order => {
                let number = matches!(ty.key.atom, AtomType::Integer | AtomType::Real);
                if !number || ty.is_map() || ty.max != 1 {
                    return Err(format!("{} needs a column with one number", order.as_str()));
                }
                ty.check_shape(&condition.value).map(drop)
            }
        }
    }

    fn mutation(&self, mutation: &Mutation) -> Result<(), String> {
        let column = self.column(&mutation.column)?;
        let (ty, value, name) = (&column.ty, &mutation.value, mutation.mutator.as_str());
        if !column.mutable {
            return Err(format!("{name} {value:?}: the column may not change after the row's insertion"));
        }
        match mutation.mutator {
            Mutator::Insert | Mutator::Delete if ty.is_scalar() => {
                Err(format!("{name} {value:?}: the column is neither set nor map"))
            }
            Mutator::Insert => {
                let shaped = ty.check_shape(value)?;
                ColumnType { min: 0, max: usize::MAX, ..ty.clone() }.check(&shaped)?;
                self.references(ty, &shaped)
            }
            Mutator::Delete => {
                let keys = ColumnType::set(ty.key.clone());
                let by_key = ty.is_map() && keys.check_shape(value).is_ok();
                if by_key { Ok(()) } else { ty.check_shape(value).map(drop) }
            }
            arithmetic => {
                let integer = ty.key.atom == AtomType::Integer;
                let number = integer || (ty.key.atom == AtomType::Real && arithmetic != Mutator::Modulo);
                if !number || ty.is_map() {
                    return Err(format!("{name} {value:?}: the column holds no such numbers"));
                }
                ColumnType::scalar(BaseType::plain(ty.key.atom)).check_shape(value).map(drop)
            }
        }
    }
}

fn is_implicit(column: &str) -> bool {
    matches!(column, "_uuid" | "_version")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::testing::{SchemaBuilder, integer, reference, string};

    fn schema() -> Schema {
        SchemaBuilder::new("Shop", "1.0.0")
            .table("Shelf", |t| {
                t.root()
                    .scalar("name", string())
                    .scalar("kind", string().one_of(["cold", "warm"]))
                    .optional("level", integer().range(0, 9))
                    .set("items", reference("Item"))
                    .strings("labels")
                    .immutable("name")
            })
            .table("Item", |t| t.scalar("price", integer()).bounded("parts", integer(), 1, 3))
            .table("Use", |t| t.root().scalar("item", reference("Item")))
            .build()
    }

    fn shelf() -> super::super::InsertBuilder {
        Operation::insert("Shelf").column("kind", "cold")
    }

    const A: Uuid = Uuid::from_u128(0xa);

    #[rstest]
    #[case(vec![Operation::insert("Nope").into()], "operation 0: Nope: Shop has no such table")]
    #[case(vec![shelf().column("nope", 1i64).into()], "operation 0: Shelf.nope: the table has no such column")]
    #[case(vec![shelf().column("_uuid", A).into()], "operation 0: Shelf._uuid: the server sets it, it cannot be written")]
    #[case(vec![Operation::Comment("c".into()), shelf().column("level", 10i64).into()], "operation 1: Shelf.level: 10 is not within 0 to 9")]
    #[case(vec![shelf().column("level", Value::integers([1, 2])).into()], "operation 0: Shelf.level: 2 elements, allowed are 0 to 1")]
    #[case(vec![shelf().column("kind", "hot").into()], "operation 0: Shelf.kind: \"hot\" is not one of {\"cold\", \"warm\"}")]
    #[case(vec![Operation::insert("Shelf").into()], "operation 0: Shelf.kind: not given, and its default does not do: \"\" is not one of {\"cold\", \"warm\"}")]
    #[case(vec![Operation::insert("Use").into()], "operation 0: Use.item: not given, and it must refer to a row")]
    #[case(vec![shelf().column("items", Atom::named("i")).into()], "operation 0: Shelf.items: named i: no insert of this transaction has that uuid-name")]
    #[case(vec![shelf().uuid_name("s").column("items", Atom::named("s")).into()], "operation 0: Shelf.items: named s is inserted into Shelf here, but the column refers to Item")]
    #[case(vec![shelf().uuid(A).column("items", A).into()], "operation 0: Shelf.items: 00000000-0000-0000-0000-00000000000a is inserted into Shelf here, but the column refers to Item")]
    #[case(vec![shelf().uuid(A).into(), shelf().uuid(A).into()], "operation 1: Shelf: row 00000000-0000-0000-0000-00000000000a is inserted twice")]
    #[case(vec![shelf().uuid_name("a").into(), shelf().uuid_name("a").into()], "operation 1: Shelf: uuid-name \"a\" is used twice")]
    #[case(vec![shelf().uuid_name("a-b").into()], "operation 0: Shelf: uuid-name \"a-b\" is not letters, digits and underscores")]
    #[case(vec![Operation::update("Shelf").column("name", "n").into()], "operation 0: Shelf.name: \"n\": the column may not change after the row's insertion")]
    #[case(vec![Operation::mutate("Shelf").insert_set("kind", "cold").into()], "operation 0: Shelf.kind: insert \"cold\": the column is neither set nor map")]
    #[case(vec![Operation::mutate("Item").mutation("price", Mutator::Add, "x").into()], "operation 0: Item.price: \"x\" is not of type integer")]
    #[case(vec![Operation::mutate("Shelf").mutation("labels", Mutator::Add, 1i64).into()], "operation 0: Shelf.labels: += 1: the column holds no such numbers")]
    #[case(vec![Operation::delete("Shelf").filter("kind", Function::Less, "x").into()], "operation 0: Shelf.kind: < needs a column with one number")]
    #[case(vec![Operation::delete("Shelf").by("level", "x").into()], "operation 0: Shelf.level: \"x\" is not of type integer")]
    #[case(vec![Operation::select("Shelf").columns(["nope"]).into()], "operation 0: Shelf.nope: the table has no such column")]
    #[case(vec![Operation::wait("Shelf").column_equals("labels", "x").into()], "operation 0: Shelf.labels: \"x\" is not a map")]
    fn errors_name_operation_table_column_and_value(
        #[case] operations: Vec<Operation>,
        #[case] message: &str,
    ) {
        let error = check(&operations, &schema()).unwrap_err();
        assert_eq!(error.to_string(), message);
        let error = TransactError::from(error);
        assert_eq!((error.kind, error.details.as_str()), (TransactErrorKind::Invalid, message));
    }

    #[test]
    fn what_servers_take_passes() {
        let operations = [
            shelf().column("items", Value::Set([Atom::named("i"), Atom::Uuid(A)].into())).build(),
            Operation::insert("Item").uuid_name("i").build(),
            Operation::insert("Item").uuid(A).column("parts", Value::integers([1, 2, 3])).build(),
            Operation::insert("Use").column("item", A).build(),
            Operation::mutate("Shelf").by("name", "n").delete_map_keys("labels", ["k"]).build(),
            Operation::mutate("Shelf").delete_set("level", Value::integers([99])).build(),
            Operation::delete("Shelf").filter("level", Function::GreaterOrEqual, 3i64).build(),
            Operation::select("Shelf").filter("items", Function::Includes, Value::empty_set()).build(),
            Operation::Abort,
        ];
        assert_eq!(check(&operations, &schema()), Ok(()));
    }
}
