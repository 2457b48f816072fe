//! Operations, conditions and values as they come over the wire, read as strictly as
//! a real server reads them: what it calls a syntax error, an unknown column or a
//! constraint violation is called so here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::members::{Members, id, is_id, syntax};
use crate::error::{TransactError, TransactErrorKind};
use crate::op::{Condition, Function, Mutation, Mutator, Operation, RowValues};
use crate::replica::{Replica, Table, TableLayout};
use crate::schema::{AtomType, BaseType, ColumnType};
use crate::testing::clause::{Clause, implicit_type, is_implicit};
use crate::testing::evaluate::{condition_type, constraint, mutation_types, other};
use crate::value::{Atom, AtomMap, AtomSet, Value};

type Result<T> = std::result::Result<T, TransactError>;

/// An operation of a transaction, beyond what [`Operation`] knows.
pub(super) enum Step {
    /// To be run by the database.
    Run(Operation),
    /// `commit`: nothing to do, everything is durable (or nothing).
    Commit,
    /// `abort`.
    Abort,
}

/// Names of rows within one transaction.
#[derive(Default)]
pub(super) struct Symbols {
    uuids: BTreeMap<String, Uuid>,
    /// Names that an `insert` gave.
    given: BTreeSet<String>,
}

impl Symbols {
    fn get(&mut self, name: &str) -> Uuid {
        *self.uuids.entry(name.to_owned()).or_insert_with(Uuid::new_v4)
    }
}

/// Reads the operations of one transaction, against the content that those before
/// left.
pub(super) struct Reader<'a> {
    pub(super) symbols: &'a mut Symbols,
    pub(super) replica: &'a Replica,
    /// Whether an insert may use a UUID: the row neither exists nor did before the
    /// transaction.
    pub(super) is_free: &'a dyn Fn(&str, Uuid) -> bool,
}

impl Reader<'_> {
    /// One operation.
    pub(super) fn step(&mut self, json: &Json) -> Result<Step> {
        let mut members = Members::new("operation", json)?;
        let op = members.required("op", id)?;
        let step = match op {
            "insert" => return self.insert(members),
            "select" => {
                let (name, table) = self.table(&mut members)?;
                let columns = members.optional("columns", Json::as_array)?;
                let sort = members.optional("sort", Json::as_array)?;
                let where_ = members.required("where", Json::as_array)?;
                members.end()?;
                let columns = columns.map(|c| columns_of(&table, c)).transpose()?;
                sort.map(|c| columns_of(&table, c)).transpose()?;
                let where_ = self.conditions(&table, where_)?;
                return Ok(Step::Run(Operation::Select { table: name, where_, columns }));
            }
            "update" => {
                let (name, table) = self.table(&mut members)?;
                let row = members.required("row", Json::as_object)?;
                let where_ = members.required("where", Json::as_array)?;
                members.end()?;
                if let Some(column) = row.keys().find(|c| is_implicit(c)) {
                    return Err(constraint(format!("cannot update immutable column {column}")));
                }
                let row = self.row(&table, row)?;
                let where_ = self.conditions(&table, where_)?;
                return Ok(Step::Run(Operation::Update { table: name, where_, row }));
            }
            "mutate" => {
                let (name, table) = self.table(&mut members)?;
                let mutations = members.required("mutations", Json::as_array)?;
                let where_ = members.required("where", Json::as_array)?;
                members.end()?;
                let mutations =
                    mutations.iter().map(|m| self.mutation(&table, m)).collect::<Result<Vec<_>>>()?;
                let where_ = self.conditions(&table, where_)?;
                return Ok(Step::Run(Operation::Mutate { table: name, where_, mutations }));
            }
            "delete" => {
                let (name, table) = self.table(&mut members)?;
                let where_ = members.required("where", Json::as_array)?;
                members.end()?;
                let where_ = self.conditions(&table, where_)?;
                return Ok(Step::Run(Operation::Delete { table: name, where_ }));
            }
            "wait" => return self.wait(members),
            "commit" => {
                members.required("durable", Json::as_bool)?;
                Step::Commit
            }
            "abort" => Step::Abort,
            "comment" => Step::Run(Operation::Comment(members.required("comment", Json::as_str)?.to_owned())),
            "assert" => Step::Run(Operation::Assert(members.required("lock", id)?.to_owned())),
            other => return Err(syntax(format!("no operation {other:?}"))),
        };
        members.end()?;
        Ok(step)
    }

    fn table(&self, members: &mut Members<'_>) -> Result<(Arc<str>, Arc<TableLayout>)> {
        let name = members.required("table", id)?;
        let table = self.replica.table(name).ok_or_else(|| syntax(format!("no table named {name}")))?;
        Ok((table.name().clone(), table.layout().clone()))
    }

    fn insert(&mut self, mut members: Members<'_>) -> Result<Step> {
        let (name, table) = self.table(&mut members)?;
        let uuid = members.optional("uuid", Json::as_str)?;
        let uuid_name = members.optional("uuid-name", id)?;
        let row = members.required("row", Json::as_object)?;
        members.end()?;
        let uuid = uuid.map(|text| Uuid::try_parse(text).map_err(|_| syntax("bad uuid"))).transpose()?;
        if uuid.is_some_and(|uuid| !(self.is_free)(&name, uuid)) {
            return Err(TransactError::new(TransactErrorKind::DuplicateUuid, "this UUID is or was in use"));
        }
        if let Some(name) = uuid_name
            && !self.symbols.given.insert(name.to_owned())
        {
            return Err(other("duplicate uuid-name", format!("{name} appeared on an earlier insert")));
        }
        let uuid = match (uuid, uuid_name) {
            (Some(uuid), Some(name)) => {
                self.symbols.uuids.insert(name.to_owned(), uuid);
                Some(uuid)
            }
            (None, Some(name)) => Some(self.symbols.get(name)),
            // Never one that a failed transaction had: a server's are random.
            (uuid, None) => Some(uuid.unwrap_or_else(Uuid::new_v4)),
        };
        // A server reads the implicit columns and then has its own opinion.
        let row = self.row(&table, row)?.into_iter().filter(|(column, _)| !is_implicit(column)).collect();
        Ok(Step::Run(Operation::Insert { table: name, row, uuid, uuid_name: uuid_name.map(Arc::from) }))
    }

    fn wait(&mut self, mut members: Members<'_>) -> Result<Step> {
        let (name, table) = self.table(&mut members)?;
        let timeout = members.optional("timeout", number)?;
        let where_ = members.required("where", Json::as_array)?;
        let columns = members.optional("columns", Json::as_array)?;
        let until = members.required("until", Json::as_str)?;
        let rows = members.required("rows", Json::as_array)?;
        members.end()?;
        let timeout = timeout.map(|t| u64::try_from(t).map_err(|_| syntax("timeout must be nonnegative")));
        let timeout = timeout.transpose()?;
        let where_ = self.conditions(&table, where_)?;
        let columns = match columns {
            Some(columns) => columns_of(&table, columns)?,
            None => {
                let named = table.columns().iter().map(|(name, _)| name.clone());
                named.chain(["_uuid".into(), "_version".into()]).collect()
            }
        };
        let equal = match until {
            "==" => true,
            "!=" => false,
            _ => return Err(syntax("until must be == or !=")),
        };
        let rows = rows.iter().map(|row| {
            let row = row.as_object().ok_or_else(|| syntax("a row must be an object"))?;
            self.row(&table, row)
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        Ok(Step::Run(Operation::Wait { table: name, where_, columns, equal, rows, timeout }))
    }

    fn row(&mut self, table: &TableLayout, row: &Map<String, Json>) -> Result<RowValues> {
        row.iter()
            .map(|(name, json)| {
                let (name, ty) = column_of(table, name)?;
                Ok((name, self.value(json, &ty)?))
            })
            .collect()
    }

    fn conditions(&mut self, table: &TableLayout, json: &[Json]) -> Result<Vec<Condition>> {
        let mut conditions = Vec::with_capacity(json.len());
        for clause in json {
            match clause {
                Json::Bool(true) => {}
                Json::Bool(false) => conditions.extend(never()),
                clause => conditions.push(self.condition(table, clause)?),
            }
        }
        Ok(conditions)
    }

    fn condition(&mut self, table: &TableLayout, json: &Json) -> Result<Condition> {
        let (column, function, operand) = three(json, "condition")?;
        let (column, ty) = column_of(table, column)?;
        let function = function_named(function)
            .ok_or_else(|| other("unknown function", format!("no function named {function}")))?;
        let ty = condition_type(&column, function, &ty)?;
        Ok(Condition { column, function, value: self.value(operand, &ty)? })
    }

    /// The clauses of a monitor, of which one must hold; none: always.
    pub(super) fn clauses(&mut self, table: &Table, json: &[Json]) -> Result<Vec<Clause>> {
        json.iter()
            .map(|clause| match clause {
                Json::Bool(holds) => Ok(Clause::Always(*holds)),
                clause => Clause::new(table, &self.condition(table.layout(), clause)?),
            })
            .collect()
    }

    fn mutation(&mut self, table: &TableLayout, json: &Json) -> Result<Mutation> {
        let (column, mutator, operand) = three(json, "mutation")?;
        let (column, ty) = column_of(table, column)?;
        let schema = self.replica.schema().column(table.table(), &column);
        if is_implicit(&column) || schema.is_some_and(|c| !c.mutable) {
            return Err(constraint(format!("cannot mutate immutable column {column}")));
        }
        let mutator = mutator_named(mutator)
            .ok_or_else(|| other("unknown mutator", format!("no mutator named {mutator}")))?;
        let mut failed = None;
        for ty in mutation_types(&column, mutator, &ty)? {
            match self.value(operand, &ty) {
                Ok(value) => return Ok(Mutation { column, mutator, value }),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| syntax("no operand")))
    }

    /// A value: number of elements first, then each atom, then duplicates.
    fn value(&mut self, json: &Json, ty: &ColumnType) -> Result<Value> {
        let tagged = |tag: &str| match json.as_array().map(Vec::as_slice) {
            Some([Json::String(t), Json::Array(items)]) if t == tag => Some(items),
            _ => None,
        };
        let fits = |count: usize| match count >= ty.min && count <= ty.max {
            true => Ok(()),
            false => Err(syntax(format!("{count} members where {} to {} may be", ty.min, ty.max))),
        };
        if let Some(value_type) = &ty.value {
            let items = tagged("map").ok_or_else(|| syntax("expected [\"map\", <array>]"))?;
            fits(items.len())?;
            let mut map = AtomMap::new();
            for item in items {
                let [key, value] = item.as_array().map(Vec::as_slice).unwrap_or_default() else {
                    return Err(syntax("expected 2-element array"));
                };
                map.insert(self.atom(key, &ty.key)?, self.atom(value, value_type)?);
            }
            let distinct = map.len() == items.len();
            return if distinct { Ok(Value::Map(map)) } else { Err(twice("map contains duplicate key")) };
        }
        let Some(items) = tagged("set") else {
            let atom = self.atom(json, &ty.key)?;
            return Ok(if ty.is_scalar() { Value::Atom(atom) } else { Value::Set(AtomSet::from([atom])) });
        };
        fits(items.len())?;
        let atoms = items.iter().map(|item| self.atom(item, &ty.key)).collect::<Result<Vec<_>>>()?;
        let set: AtomSet = atoms.into_iter().collect();
        match (set.len() == items.len(), ty.is_scalar(), set.first()) {
            (false, ..) => Err(twice("set contains duplicate")),
            (true, true, Some(atom)) => Ok(Value::Atom(atom.clone())),
            (true, ..) => Ok(Value::Set(set)),
        }
    }

    fn atom(&mut self, json: &Json, base: &BaseType) -> Result<Atom> {
        let expected = || syntax(format!("expected {:?}, not {json}", base.atom));
        let atom = match (base.atom, json) {
            (AtomType::Integer, json) => number(json).map(Atom::Integer),
            (AtomType::Real, Json::Number(n)) => n.as_f64().map(Atom::from),
            (AtomType::Boolean, Json::Bool(b)) => Some(Atom::Boolean(*b)),
            (AtomType::String, Json::String(s)) => Some(Atom::from(s.as_str())),
            (AtomType::Uuid, Json::Array(pair)) => match pair.as_slice() {
                [Json::String(tag), Json::String(text)] if tag == "uuid" => {
                    Uuid::try_parse(text).ok().map(Atom::Uuid)
                }
                [Json::String(tag), Json::String(name)] if tag == "named-uuid" && is_id(name) => {
                    Some(Atom::Uuid(self.symbols.get(name)))
                }
                _ => None,
            },
            _ => None,
        };
        let atom = atom.ok_or_else(expected)?;
        base.check(&atom).map_err(constraint)?;
        Ok(atom)
    }
}

/// A real server's own name for it.
fn twice(details: &str) -> TransactError {
    other("ovsdb error", details)
}

/// An integer; `1.0` is one too.
fn number(json: &Json) -> Option<i64> {
    json.as_i64().or_else(|| {
        let real = json.as_f64().filter(|r| r.fract() == 0.0 && r.abs() < 9e15)?;
        // Exact: whole and well within 64 bits.
        Some(real as i64)
    })
}

/// Column, what to do with it, operand.
fn three<'a>(json: &'a Json, what: &str) -> Result<(&'a str, &'a str, &'a Json)> {
    match json.as_array().map(Vec::as_slice) {
        Some([Json::String(column), Json::String(verb), operand]) => Ok((column, verb, operand)),
        _ => Err(syntax(format!("parse error in {what}"))),
    }
}

fn function_named(name: &str) -> Option<Function> {
    use Function::*;
    let all = [Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual, Includes, Excludes];
    all.into_iter().find(|f| f.as_str() == name)
}

fn mutator_named(name: &str) -> Option<Mutator> {
    use Mutator::*;
    [Add, Subtract, Multiply, Divide, Modulo, Insert, Delete].into_iter().find(|m| m.as_str() == name)
}

/// Conditions that hold for no row.
fn never() -> [Condition; 2] {
    [Function::Equal, Function::NotEqual].map(|function| Condition::new("_uuid", function, Uuid::nil()))
}

/// A column and its type, the implicit ones included.
pub(super) fn column_of(table: &TableLayout, name: &str) -> Result<(Arc<str>, ColumnType)> {
    if is_implicit(name) {
        return Ok((name.into(), implicit_type()));
    }
    let position = table.position(name);
    let found = position.and_then(|p| table.columns().get(p)).cloned();
    found.ok_or_else(|| other("unknown column", format!("no column {name} in table {}", table.table())))
}

/// A list of distinct columns.
pub(super) fn columns_of(table: &TableLayout, json: &[Json]) -> Result<Vec<Arc<str>>> {
    let mut names = Vec::with_capacity(json.len());
    for name in json {
        let name = name.as_str().ok_or_else(|| syntax("array of column names expected"))?;
        let valid = |_| syntax(format!("{name} is not a valid column name"));
        let (name, _) = column_of(table, name).map_err(valid)?;
        if names.contains(&name) {
            return Err(syntax("array of distinct column names expected"));
        }
        names.push(name);
    }
    Ok(names)
}

/// An error as a reply carries it.
pub(super) fn error_json(error: &TransactError) -> Json {
    // Kinds print as their names on the wire.
    let name = match &error.kind {
        TransactErrorKind::Other(name) => name.clone(),
        kind => kind.to_string(),
    };
    serde_json::json!({"error": name, "details": error.details})
}
