//! An in-memory database: executes transactions as a server does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use super::clause::{Clause, is_implicit, version};
use super::commit::{Plan, References};
use super::evaluate::{check_atoms, constraint, mutated, mutation_operand, other, stored};
use crate::error::{OperationResult, TransactError, TransactErrorKind};
use crate::op::{Condition, Mutation, Mutator, Operation, RowValues};
use crate::replica::{Replica, Row, RowChange};
use crate::schema::Schema;
use crate::value::{Atom, Value};

/// An in-memory OVSDB. A value: clone it to branch off, at the price of a few
/// reference counts. Deterministic: UUIDs that the caller does not choose come
/// from a counter.
///
/// It has what makes OVSDB more than a key-value store: garbage collection of
/// non-root rows, dangling strong references refused, weak ones silently
/// dropped, uniqueness of indexes, bounds, enumerations, all-or-nothing.
///
/// ```
/// use ovsdb::{Operation, Value, testing::{Database, northbound}};
/// let mut db = Database::new(northbound());
/// let (port, switch) = (uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2));
/// let insert_port = Operation::insert("Logical_Switch_Port").uuid(port).column("name", "p").build();
/// // A port that no switch refers to does not survive its own transaction.
/// assert!(db.execute(&[insert_port.clone()]).1.is_empty());
/// let insert_switch =
///     Operation::insert("Logical_Switch").uuid(switch).column("name", "s").column("ports", Value::uuids([port]));
/// let (results, changes) = db.execute(&[insert_port, insert_switch.build()]);
/// assert_eq!(results.unwrap()[0].uuid, Some(port));
/// assert_eq!(changes.len(), 2);
/// // Without its switch the port goes too.
/// let (_, changes) = db.execute(&[Operation::delete("Logical_Switch").by_uuid(switch).build()]);
/// assert_eq!(changes.len(), 2);
/// assert_eq!(db.replica().row_count(), 0);
/// ```
#[derive(Clone)]
pub struct Database {
    plan: Arc<Plan>,
    replica: Replica,
    references: References,
    counter: u64,
}

impl Database {
    /// An empty database. What a server makes of its own accord (no row of
    /// `NB_Global`, for instance: that is northd's or the controller's) is not in it.
    pub fn new(schema: Schema) -> Self {
        let schema = Arc::new(schema);
        let tables: BTreeMap<String, Vec<String>> =
            schema.tables.keys().map(|name| (name.clone(), Vec::new())).collect();
        let replica = Replica::new(schema.clone(), &tables, &[]);
        Self { plan: Arc::new(Plan::new(&schema)), replica, references: References::default(), counter: 0 }
    }

    /// The content, all columns of all tables.
    pub fn replica(&self) -> Replica {
        self.replica.clone()
    }

    /// The schema.
    pub fn schema(&self) -> &Arc<Schema> {
        self.replica.schema()
    }

    /// Executes a transaction: either all of it, with its results and the rows
    /// that it changed (collected and pruned ones included, by table and UUID), or
    /// nothing. A `wait` that does not hold fails at once, whatever its timeout.
    pub fn execute(
        &mut self,
        operations: &[Operation],
    ) -> (Result<Vec<OperationResult>, TransactError>, Vec<RowChange>) {
        let mut transaction = self.begin();
        let mut results = Vec::with_capacity(operations.len());
        for (index, operation) in operations.iter().enumerate() {
            match transaction.operation(operation) {
                Ok(result) => results.push(result),
                Err(mut error) => {
                    error.op_index = Some(index);
                    return (Err(error), Vec::new());
                }
            }
        }
        match self.finish(transaction) {
            Ok(changes) => (Ok(results), changes),
            Err(error) => (Err(error), Vec::new()),
        }
    }

    /// Begins a transaction on a copy.
    pub(super) fn begin(&self) -> Transaction {
        Transaction::new(self)
    }

    /// Commits a transaction that began on this very content; the rows that it
    /// changed.
    pub(super) fn finish(&mut self, transaction: Transaction) -> Result<Vec<RowChange>, TransactError> {
        let Transaction { mut replica, mut touched, counter, .. } = transaction;
        let mut references = self.references.clone();
        references.commit(&self.plan, &mut replica, &mut touched)?;
        let changes = touched
            .into_iter()
            .filter_map(|((table, uuid), old)| {
                let table = replica.table_at(table);
                let new = table.get(&uuid).cloned();
                (old != new).then(|| RowChange { table: table.name().clone(), uuid, old, new })
            })
            .collect();
        self.replica = replica;
        self.references = references;
        self.counter = counter;
        Ok(changes)
    }

    /// The same rows under another schema: columns and tables that it lacks are
    /// gone, new columns have their default. Fails if the rows do not fit it.
    pub(super) fn converted(&self, schema: Schema) -> Result<Self, TransactError> {
        let mut new = Self { counter: self.counter, ..Self::new(schema) };
        let mut transaction = new.begin();
        for (position, name) in new.replica.schema().tables.keys().enumerate() {
            let layout = new.replica.table_at(position).layout().clone();
            for row in self.replica.table(name).into_iter().flat_map(|t| t.rows()) {
                let values = layout.columns().iter().map(|(column, ty)| match row.get(column) {
                    Some(held) => stored(column, held, ty),
                    None => Ok(ty.default_value()),
                });
                let values = values.collect::<Result<Vec<_>, _>>()?;
                let row = Row::new(row.uuid, layout.clone(), values.into());
                transaction.touched.insert((position, row.uuid), None);
                transaction.replica.table_mut(position).put(Arc::new(row));
            }
        }
        new.finish(transaction)?;
        Ok(new)
    }

    /// Executes a transaction of a test that must succeed.
    ///
    /// # Panics
    /// With the error, if it does not.
    #[allow(clippy::panic)]
    pub fn must(&mut self, operations: &[Operation]) -> Vec<RowChange> {
        match self.execute(operations) {
            (Ok(_), changes) => changes,
            (Err(error), _) => panic!("transaction failed: {error}: {operations:?}"),
        }
    }
}

/// Rows that a transaction touched, with what they were before.
pub(super) type Touched = BTreeMap<(usize, Uuid), Option<Arc<Row>>>;

/// A mutation: position of its column, what to do, checked operand.
type Prepared = (usize, Mutator, Value);

/// A transaction under way: works on a copy.
pub(super) struct Transaction {
    replica: Replica,
    touched: Touched,
    names: BTreeSet<Arc<str>>,
    counter: u64,
}

impl Transaction {
    fn new(db: &Database) -> Self {
        Self {
            replica: db.replica.clone(),
            touched: Touched::new(),
            names: BTreeSet::new(),
            counter: db.counter,
        }
    }

    /// The content as the operations so far leave it.
    pub(super) fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Whether an insert may use a UUID.
    pub(super) fn is_free(&self, table: &str, uuid: Uuid) -> bool {
        self.replica.position(table).is_some_and(|table| {
            self.replica.table_at(table).get(&uuid).is_none() && !self.touched.contains_key(&(table, uuid))
        })
    }

    /// Runs an operation. `assert` holds for nobody and `wait` does not block.
    pub(super) fn operation(&mut self, operation: &Operation) -> Result<OperationResult, TransactError> {
        let table = match operation.table() {
            None => 0,
            Some(name) => self
                .replica
                .position(name)
                .ok_or_else(|| other("unknown table", format!("no table {name}")))?,
        };
        let count = |n: usize| OperationResult { count: Some(n as u64), ..OperationResult::default() };
        match operation {
            Operation::Insert { row, uuid, uuid_name, .. } => {
                self.insert(table, row, *uuid, uuid_name.as_ref())
            }
            Operation::Update { where_, row, .. } => {
                let row = self.columns(table, row, true)?;
                let found = self.select(table, where_)?;
                for old in &found {
                    let mut values = old.values().to_vec();
                    for (position, value) in &row {
                        values[*position] = value.clone();
                    }
                    self.put(table, old, values);
                }
                Ok(count(found.len()))
            }
            Operation::Mutate { where_, mutations, .. } => {
                let mutations = self.mutations(table, mutations)?;
                let found = self.select(table, where_)?;
                for old in &found {
                    self.mutate(table, old, &mutations)?;
                }
                Ok(count(found.len()))
            }
            Operation::Delete { where_, .. } => {
                let found = self.select(table, where_)?;
                for row in &found {
                    self.replica.table_mut(table).take(&row.uuid);
                    self.touched.entry((table, row.uuid)).or_insert_with(|| Some(row.clone()));
                }
                Ok(count(found.len()))
            }
            Operation::Wait { where_, columns, equal, rows, .. } => {
                self.wait(table, where_, columns, *equal, rows)
            }
            Operation::Select { where_, columns, .. } => {
                let found = self.select(table, where_)?;
                // Rows that look the same in the columns asked for are shown once.
                let rows: BTreeSet<_> = found.iter().map(|row| visible(row, columns.as_deref())).collect();
                let rows = rows.into_iter().collect();
                Ok(OperationResult { rows: Some(rows), ..OperationResult::default() })
            }
            Operation::Comment(_) | Operation::Commit { .. } => Ok(OperationResult::default()),
            Operation::Abort => Err(TransactError::new(TransactErrorKind::Aborted, "aborted by request")),
            Operation::Assert(lock) => {
                Err(TransactError::new(TransactErrorKind::NotOwner, format!("lock {lock} is not held")))
            }
        }
    }

    fn insert(
        &mut self,
        table: usize,
        row: &RowValues,
        uuid: Option<Uuid>,
        name: Option<&Arc<str>>,
    ) -> Result<OperationResult, TransactError> {
        if let Some(name) = name
            && !self.names.insert(name.clone())
        {
            return Err(other("duplicate uuid-name", format!("{name} is used twice")));
        }
        let uuid = uuid.unwrap_or_else(|| {
            self.counter += 1;
            Uuid::from_u64_pair(0x7765_6972_0000_4000, 0x8000_0000_0000_0000 | self.counter)
        });
        if self.replica.table_at(table).get(&uuid).is_some() || self.touched.contains_key(&(table, uuid)) {
            return Err(TransactError::new(
                TransactErrorKind::DuplicateUuid,
                format!("{uuid} exists or was deleted in this transaction"),
            ));
        }
        let columns = self.columns(table, row, false)?;
        let layout = self.replica.table_at(table).layout().clone();
        let mut values = layout.defaults();
        for (position, value) in columns {
            values[position] = value;
        }
        // A default may violate a constraint too (an empty string an enumeration).
        for ((name, ty), value) in layout.columns().iter().zip(&values) {
            check_atoms(name, value, ty)?;
        }
        self.replica.table_mut(table).put(Arc::new(Row::new(uuid, layout, values)));
        self.touched.insert((table, uuid), None);
        Ok(OperationResult { uuid: Some(uuid), ..OperationResult::default() })
    }

    /// Checks and places the columns of an insert or update.
    fn columns(
        &self,
        table: usize,
        row: &RowValues,
        update: bool,
    ) -> Result<Vec<(usize, Value)>, TransactError> {
        row.iter()
            .map(|(name, value)| {
                let position = self.column(table, name, update)?;
                let (_, ty) = &self.replica.table_at(table).layout().columns()[position];
                Ok((position, stored(name, value, ty)?))
            })
            .collect()
    }

    fn column(&self, table: usize, name: &str, for_change: bool) -> Result<usize, TransactError> {
        let layout = self.replica.table_at(table).layout();
        let position = layout.position(name).ok_or_else(|| {
            other("unknown column", format!("no column {name} in table {}", layout.table()))
        })?;
        let mutable = self.replica.schema().column(layout.table(), name).is_none_or(|c| c.mutable);
        if for_change && !mutable {
            return Err(constraint(format!("cannot change immutable column {name} of {}", layout.table())));
        }
        Ok(position)
    }

    /// Places and checks mutations, whether or not any row matches.
    fn mutations(&self, table: usize, mutations: &[Mutation]) -> Result<Vec<Prepared>, TransactError> {
        mutations
            .iter()
            .map(|m| {
                let position = self.column(table, &m.column, true)?;
                let (name, ty) = &self.replica.table_at(table).layout().columns()[position];
                Ok((position, m.mutator, mutation_operand(name, m.mutator, &m.value, ty)?))
            })
            .collect()
    }

    fn mutate(&mut self, table: usize, old: &Arc<Row>, mutations: &[Prepared]) -> Result<(), TransactError> {
        let mut values = old.values().to_vec();
        for (position, mutator, operand) in mutations {
            let (name, ty) = &old.layout().columns()[*position];
            values[*position] = mutated(name, &values[*position], *mutator, operand, ty)?;
        }
        self.put(table, old, values);
        Ok(())
    }

    fn put(&mut self, table: usize, old: &Arc<Row>, values: Vec<Value>) {
        if values == old.values() {
            return;
        }
        let row = Row::new(old.uuid, old.layout().clone(), values.into());
        self.replica.table_mut(table).put(Arc::new(row));
        self.touched.entry((table, old.uuid)).or_insert_with(|| Some(old.clone()));
    }

    fn select(&self, table: usize, conditions: &[Condition]) -> Result<Vec<Arc<Row>>, TransactError> {
        let content = self.replica.table_at(table);
        let clauses =
            conditions.iter().map(|c| Clause::new(content, c)).collect::<Result<Vec<Clause>, _>>()?;
        let matches = |row: &Arc<Row>| clauses.iter().all(|clause| clause.matches(row));
        let one = clauses.iter().find_map(Clause::row);
        let equal = clauses.iter().find_map(Clause::equal);
        // The usual conditions name one row, or the value of an indexed column.
        let mut found: Vec<Arc<Row>> = if let Some(uuid) = one {
            content.get(&uuid).into_iter().filter(|row| matches(row)).cloned().collect()
        } else if let Some((position, value)) = equal {
            let name = &content.layout().columns()[position].0;
            content.find_by(name, value).filter(|row| matches(row)).cloned().collect()
        } else {
            content.rows().filter(|row| matches(row)).cloned().collect()
        };
        found.sort_unstable_by_key(|row| row.uuid);
        Ok(found)
    }

    fn wait(
        &self,
        table: usize,
        where_: &[Condition],
        columns: &[Arc<str>],
        equal: bool,
        rows: &[RowValues],
    ) -> Result<OperationResult, TransactError> {
        let layout = self.replica.table_at(table).layout();
        let id = |uuid: Uuid| Value::Atom(Atom::Uuid(uuid));
        let mut wanted = BTreeSet::new();
        for row in rows {
            let implicit = |name: &str| row.get(name).cloned().unwrap_or_else(|| id(Uuid::nil()));
            let mut explicit = row.clone();
            explicit.retain(|name, _| !is_implicit(name));
            let given: BTreeMap<usize, Value> = self.columns(table, &explicit, false)?.into_iter().collect();
            let cut = columns
                .iter()
                .map(|name| {
                    if is_implicit(name) {
                        return Ok(implicit(name));
                    }
                    let position = self.column(table, name, false)?;
                    let value = given.get(&position).cloned();
                    Ok(value.unwrap_or_else(|| layout.columns()[position].1.default_value()))
                })
                .collect::<Result<Vec<Value>, TransactError>>()?;
            wanted.insert(cut);
        }
        for name in columns.iter().filter(|name| !is_implicit(name)) {
            self.column(table, name, false)?;
        }
        let shown = |row: &Row, name: &str| match name {
            "_uuid" => id(row.uuid),
            "_version" => id(version(row)),
            name => row.get(name).cloned().unwrap_or_else(Value::empty_set),
        };
        let found: BTreeSet<Vec<Value>> = self
            .select(table, where_)?
            .iter()
            .map(|row| columns.iter().map(|name| shown(row, name)).collect())
            .collect();
        if (found == wanted) == equal {
            Ok(OperationResult::default())
        } else {
            Err(TransactError::new(TransactErrorKind::WaitTimedOut, "the condition does not hold"))
        }
    }
}

/// A row as `select` shows it.
fn visible(row: &Row, columns: Option<&[Arc<str>]>) -> BTreeMap<Arc<str>, Value> {
    let shown = |name: &str| columns.is_none_or(|c| c.iter().any(|c| &**c == name));
    let mut out: BTreeMap<Arc<str>, Value> = row
        .columns()
        .filter(|(name, _)| shown(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if shown("_uuid") {
        out.insert("_uuid".into(), Value::Atom(Atom::Uuid(row.uuid)));
    }
    if shown("_version") {
        out.insert("_version".into(), Value::Atom(Atom::Uuid(version(row))));
    }
    out
}
