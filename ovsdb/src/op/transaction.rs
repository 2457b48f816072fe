//! Builds transactions operation by operation.

use std::marker::PhantomData;
use std::sync::Arc;

use uuid::Uuid;

use super::check::{CheckError, check};
use super::difference::difference;
use super::{InsertBuilder, Operation, SelectBuilder};
use crate::error::OperationResult;
use crate::replica::Row;
use crate::schema::Schema;
use crate::typed::{TableRow, TypeError};
use crate::value::Atom;

/// Collects the operations of a transaction. All of them are committed, or none.
///
/// ```
/// use ovsdb::testing::{Database, northbound};
/// use ovsdb::{Operation, TransactionBuilder, Value};
/// ovsdb::table! {
///     #[derive(Clone, Debug, PartialEq)]
///     struct Switch in "Logical_Switch" {
///         name: String,
///         ports: std::collections::BTreeSet<uuid::Uuid>,
///     }
/// }
///
/// let mut db = Database::new(northbound());
/// let mut transaction = TransactionBuilder::new();
/// // Rows get their UUID at once, so later operations refer to them.
/// let port = transaction.insert(Operation::insert("Logical_Switch_Port").column("name", "p"));
/// let old = Switch { uuid: uuid::Uuid::new_v4(), name: "s".into(), ports: [port].into() };
/// transaction.insert_row(&old);
/// transaction.comment("a switch with a port");
/// transaction.check(db.schema())?;
/// db.execute(transaction.operations()).0?;
///
/// // A row is changed by the difference of its old and new version …
/// let mut transaction = TransactionBuilder::new();
/// let second = transaction.insert(Operation::insert("Logical_Switch_Port").column("name", "q"));
/// let mut new = old.clone();
/// new.ports.insert(second);
/// transaction.update_row(&old, &new, db.schema());
/// // … here by adding one element to a set, if nobody renamed the switch meanwhile.
/// let replica = db.replica();
/// transaction.unchanged(replica.row("Logical_Switch", &old.uuid).unwrap(), ["name"]);
/// let found = transaction
///     .select_rows::<Switch>(Operation::select("Logical_Switch").by("name", "s"), db.schema());
/// let results = db.execute(transaction.operations()).0?;
/// assert_eq!(found.read(&results)?, [new]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransactionBuilder {
    operations: Vec<Operation>,
}

impl TransactionBuilder {
    /// No operation yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds any operation; its number, that of its result.
    pub fn push(&mut self, operation: impl Into<Operation>) -> usize {
        self.operations.push(operation.into());
        self.operations.len() - 1
    }
    /// Adds an insert; the row's UUID, chosen here unless the builder names one.
    pub fn insert(&mut self, insert: InsertBuilder) -> Uuid {
        let mut operation = insert.build();
        let chosen = match &mut operation {
            Operation::Insert { uuid, .. } => *uuid.get_or_insert_with(Uuid::new_v4),
            _ => Uuid::nil(),
        };
        self.push(operation);
        chosen
    }
    /// Adds an insert whose UUID the server chooses (its result tells); the name by
    /// which other operations refer to the row. For servers before 2.14.
    pub fn insert_named(&mut self, name: &str, insert: InsertBuilder) -> Atom {
        let name: Arc<str> = name.into();
        self.push(insert.uuid_name(name.clone()));
        Atom::Named(name)
    }
    /// Adds an insert of a typed row, with its UUID.
    pub fn insert_row<R: TableRow>(&mut self, row: &R) {
        self.push(Operation::insert(R::TABLE).uuid(row.uuid()).columns(row.to_columns()));
    }
    /// Adds what turns a typed row into its new version: differences of sets and
    /// maps, new values of other columns, nothing for equal ones.
    pub fn update_row<R: TableRow>(&mut self, old: &R, new: &R, schema: &Schema) {
        let Some(table) = schema.tables.get(R::TABLE) else { return };
        let (old_columns, new_columns) = (old.to_columns(), new.to_columns());
        self.operations.extend(difference(&R::TABLE.into(), old.uuid(), table, &old_columns, &new_columns));
    }
    /// Adds a condition of the whole transaction: these columns of a row are what
    /// they are here. It fails with [`WaitTimedOut`](crate::TransactErrorKind::WaitTimedOut)
    /// otherwise, and when the row is gone. Columns that the row does not hold are
    /// left out.
    pub fn unchanged<'a>(&mut self, row: &Row, columns: impl IntoIterator<Item = &'a str>) {
        let mut wait = Operation::wait(row.table().clone()).by_uuid(row.uuid).timeout(0);
        for column in columns {
            if let Some(value) = row.get(column) {
                wait = wait.column_equals(column, value.clone());
            }
        }
        self.push(wait);
    }
    /// Adds a condition of the whole transaction: we hold a lock. It fails with
    /// [`NotOwner`](crate::TransactErrorKind::NotOwner) otherwise.
    pub fn assert(&mut self, lock: &str) {
        self.push(Operation::Assert(lock.into()));
    }
    /// Adds a remark for the server's log.
    pub fn comment(&mut self, text: &str) {
        self.push(Operation::Comment(text.into()));
    }
    /// Asks the server to answer only once the transaction is on disk.
    pub fn durably(&mut self) {
        self.push(Operation::Commit { durable: true });
    }
    /// Makes the transaction fail ([`Aborted`](crate::TransactErrorKind::Aborted))
    /// after the server has checked the operations before: a trial.
    pub fn abort(&mut self) {
        self.push(Operation::Abort);
    }
    /// Adds a select of typed rows. (Servers refuse to select a column that they
    /// lack, so the schema is asked which there are.)
    pub fn select_rows<R: TableRow>(&mut self, select: SelectBuilder, schema: &Schema) -> Selection<R> {
        let held = R::COLUMNS.iter().filter(|column| schema.column(R::TABLE, column).is_some());
        let columns = ["_uuid"].iter().chain(held).copied();
        Selection { index: self.push(select.columns(columns)), rows: PhantomData }
    }

    /// Checks everything that a schema tells about.
    pub fn check(&self, schema: &Schema) -> Result<(), CheckError> {
        check(&self.operations, schema)
    }
    /// The operations so far.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
    /// The operations, for [`Session::transact`](crate::Session::transact).
    pub fn build(self) -> Vec<Operation> {
        self.operations
    }
}

impl From<TransactionBuilder> for Vec<Operation> {
    fn from(builder: TransactionBuilder) -> Self {
        builder.build()
    }
}

/// Where the rows of a [`TransactionBuilder::select_rows`] will be.
#[derive(Clone, Copy, Debug)]
pub struct Selection<R> {
    index: usize,
    rows: PhantomData<R>,
}

impl<R: TableRow> Selection<R> {
    /// The rows, from the results of the transaction.
    pub fn read(&self, results: &[OperationResult]) -> Result<Vec<R>, TypeError> {
        let rows = results.get(self.index).and_then(|result| result.rows.as_ref());
        let missing =
            || TypeError { table: R::TABLE, column: "_uuid", problem: "no result of the select".into() };
        rows.ok_or_else(missing)?
            .iter()
            .map(|row| {
                let uuid = row.get("_uuid").and_then(|v| v.as_uuid()).ok_or_else(missing)?;
                R::read(uuid, |column| row.get(column))
            })
            .collect()
    }
}
