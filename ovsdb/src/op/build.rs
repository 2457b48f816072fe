//! Builders of operations, made by the constructors of [`Operation`].

use std::sync::Arc;

use uuid::Uuid;

use super::{Condition, Function, Mutation, Mutator, Operation, RowValues};
use crate::value::{AtomMap, AtomSet, Value};

impl Operation {
    /// Builds an `insert`.
    pub fn insert(table: impl Into<Arc<str>>) -> InsertBuilder {
        InsertBuilder { table: table.into(), row: RowValues::new(), uuid: None, uuid_name: None }
    }
    /// Builds an `update`.
    pub fn update(table: impl Into<Arc<str>>) -> UpdateBuilder {
        UpdateBuilder { table: table.into(), where_: Vec::new(), row: RowValues::new() }
    }
    /// Builds a `mutate`.
    pub fn mutate(table: impl Into<Arc<str>>) -> MutateBuilder {
        MutateBuilder { table: table.into(), where_: Vec::new(), mutations: Vec::new() }
    }
    /// Builds a `delete`.
    pub fn delete(table: impl Into<Arc<str>>) -> DeleteBuilder {
        DeleteBuilder { table: table.into(), where_: Vec::new() }
    }
    /// Builds a `wait`.
    pub fn wait(table: impl Into<Arc<str>>) -> WaitBuilder {
        WaitBuilder {
            table: table.into(),
            where_: Vec::new(),
            row: RowValues::new(),
            equal: true,
            timeout: None,
        }
    }
    /// Builds a `select`.
    pub fn select(table: impl Into<Arc<str>>) -> SelectBuilder {
        SelectBuilder { table: table.into(), where_: Vec::new(), columns: None }
    }
}

macro_rules! where_methods {
    () => {
        /// Only the row with this UUID.
        pub fn by_uuid(mut self, uuid: Uuid) -> Self {
            self.where_.push(Condition::uuid(uuid));
            self
        }
        /// Only rows whose column equals a value.
        pub fn by(self, column: impl Into<Arc<str>>, value: impl Into<Value>) -> Self {
            self.filter(column, Function::Equal, value)
        }
        /// Only rows for which the comparison holds.
        pub fn filter(
            mut self,
            column: impl Into<Arc<str>>,
            function: Function,
            value: impl Into<Value>,
        ) -> Self {
            self.where_.push(Condition::new(column, function, value));
            self
        }
    };
}

macro_rules! builds {
    ($builder:ty) => {
        impl From<$builder> for Operation {
            fn from(b: $builder) -> Operation {
                b.build()
            }
        }
    };
}

/// Builder of [`Operation::Insert`].
#[derive(Clone, Debug)]
pub struct InsertBuilder {
    table: Arc<str>,
    row: RowValues,
    uuid: Option<Uuid>,
    uuid_name: Option<Arc<str>>,
}

impl InsertBuilder {
    /// Chooses the row's UUID.
    pub fn uuid(mut self, uuid: Uuid) -> Self {
        self.uuid = Some(uuid);
        self
    }
    /// Names the row for references within the transaction.
    pub fn uuid_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.uuid_name = Some(name.into());
        self
    }
    /// Sets a column.
    pub fn column(mut self, column: impl Into<Arc<str>>, value: impl Into<Value>) -> Self {
        self.row.insert(column.into(), value.into());
        self
    }
    /// Sets several columns.
    pub fn columns<N: Into<Arc<str>>>(mut self, columns: impl IntoIterator<Item = (N, Value)>) -> Self {
        self.row.extend(columns.into_iter().map(|(name, value)| (name.into(), value)));
        self
    }
    /// The operation.
    pub fn build(self) -> Operation {
        Operation::Insert { table: self.table, row: self.row, uuid: self.uuid, uuid_name: self.uuid_name }
    }
}
builds!(InsertBuilder);

/// Builder of [`Operation::Update`].
#[derive(Clone, Debug)]
pub struct UpdateBuilder {
    table: Arc<str>,
    where_: Vec<Condition>,
    row: RowValues,
}

impl UpdateBuilder {
    where_methods!();
    /// Overwrites a column.
    pub fn column(mut self, column: impl Into<Arc<str>>, value: impl Into<Value>) -> Self {
        self.row.insert(column.into(), value.into());
        self
    }
    /// Overwrites several columns.
    pub fn columns<N: Into<Arc<str>>>(mut self, columns: impl IntoIterator<Item = (N, Value)>) -> Self {
        self.row.extend(columns.into_iter().map(|(name, value)| (name.into(), value)));
        self
    }
    /// The operation.
    pub fn build(self) -> Operation {
        Operation::Update { table: self.table, where_: self.where_, row: self.row }
    }
}
builds!(UpdateBuilder);

/// Builder of [`Operation::Mutate`].
#[derive(Clone, Debug)]
pub struct MutateBuilder {
    table: Arc<str>,
    where_: Vec<Condition>,
    mutations: Vec<Mutation>,
}

impl MutateBuilder {
    where_methods!();
    /// Any mutation.
    pub fn mutation(
        mut self,
        column: impl Into<Arc<str>>,
        mutator: Mutator,
        value: impl Into<Value>,
    ) -> Self {
        self.mutations.push(Mutation { column: column.into(), mutator, value: value.into() });
        self
    }
    /// Adds elements to a set column.
    pub fn insert_set(self, column: impl Into<Arc<str>>, elements: impl Into<Value>) -> Self {
        self.mutation(column, Mutator::Insert, elements)
    }
    /// Removes elements from a set column.
    pub fn delete_set(self, column: impl Into<Arc<str>>, elements: impl Into<Value>) -> Self {
        self.mutation(column, Mutator::Delete, elements)
    }
    /// Adds pairs to a map column. Keys that exist keep their value: to change
    /// one, delete the key first (in the same `mutate`), see [`Self::set_map`].
    pub fn insert_map(self, column: impl Into<Arc<str>>, pairs: impl Into<Value>) -> Self {
        self.mutation(column, Mutator::Insert, pairs)
    }
    /// Removes keys from a map column whatever their values are.
    pub fn delete_map_keys<I>(self, column: impl Into<Arc<str>>, keys: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        self.mutation(column, Mutator::Delete, Value::strings(keys))
    }
    /// Sets keys of a map column: deletes the keys, then inserts the pairs.
    pub fn set_map(self, column: impl Into<Arc<str>>, pairs: AtomMap) -> Self {
        let column = column.into();
        let keys: AtomSet = pairs.keys().cloned().collect();
        self.mutation(column.clone(), Mutator::Delete, keys).mutation(column, Mutator::Insert, pairs)
    }
    /// The operation.
    pub fn build(self) -> Operation {
        Operation::Mutate { table: self.table, where_: self.where_, mutations: self.mutations }
    }
}
builds!(MutateBuilder);

/// Builder of [`Operation::Delete`].
#[derive(Clone, Debug)]
pub struct DeleteBuilder {
    table: Arc<str>,
    where_: Vec<Condition>,
}

impl DeleteBuilder {
    where_methods!();
    /// The operation. Without a condition it deletes every row of the table.
    pub fn build(self) -> Operation {
        Operation::Delete { table: self.table, where_: self.where_ }
    }
}
builds!(DeleteBuilder);

/// Builder of [`Operation::Wait`] for one row.
#[derive(Clone, Debug)]
pub struct WaitBuilder {
    table: Arc<str>,
    where_: Vec<Condition>,
    row: RowValues,
    equal: bool,
    timeout: Option<u64>,
}

impl WaitBuilder {
    where_methods!();
    /// Until the row's column equals this value (one row must match).
    pub fn column_equals(mut self, column: impl Into<Arc<str>>, value: impl Into<Value>) -> Self {
        self.row.insert(column.into(), value.into());
        self
    }
    /// Until the rows differ from the columns given, instead of equal them.
    pub fn differs(mut self) -> Self {
        self.equal = false;
        self
    }
    /// In milliseconds; 0 only checks.
    pub fn timeout(mut self, milliseconds: u64) -> Self {
        self.timeout = Some(milliseconds);
        self
    }
    /// The operation.
    pub fn build(self) -> Operation {
        Operation::Wait {
            table: self.table,
            where_: self.where_,
            columns: self.row.keys().cloned().collect(),
            equal: self.equal,
            rows: vec![self.row],
            timeout: self.timeout,
        }
    }
}
builds!(WaitBuilder);

/// Builder of [`Operation::Select`].
#[derive(Clone, Debug)]
pub struct SelectBuilder {
    table: Arc<str>,
    where_: Vec<Condition>,
    columns: Option<Vec<Arc<str>>>,
}

impl SelectBuilder {
    where_methods!();
    /// Only these columns.
    pub fn columns<N: Into<Arc<str>>>(mut self, columns: impl IntoIterator<Item = N>) -> Self {
        self.columns = Some(columns.into_iter().map(Into::into).collect());
        self
    }
    /// The operation.
    pub fn build(self) -> Operation {
        Operation::Select { table: self.table, where_: self.where_, columns: self.columns }
    }
}
builds!(SelectBuilder);
