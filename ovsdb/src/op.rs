//! Operations of a transaction (RFC 7047 §5.2) and builders for them.
//!
//! ```
//! use ovsdb::{Operation, Value};
//! let port = uuid::Uuid::from_u128(7);
//! let switch = uuid::Uuid::from_u128(8);
//! let ops = vec![
//!     Operation::insert("Logical_Switch_Port").uuid(port).column("name", Value::string("p0")).build(),
//!     Operation::mutate("Logical_Switch").by_uuid(switch).insert_set("ports", Value::uuids([port])).build(),
//! ];
//! assert_eq!(
//!     serde_json::to_string(&ops[1].to_json()).unwrap(),
//!     r#"{"mutations":[["ports","insert",["uuid","00000000-0000-0000-0000-000000000007"]]],"op":"mutate","table":"Logical_Switch","where":[["_uuid","==",["uuid","00000000-0000-0000-0000-000000000008"]]]}"#,
//! );
//! ```
//!
//! Rows get UUIDs chosen by the client (`uuid` member of `insert`), so later
//! operations and later transactions refer to them at once, by ordinary
//! [`Value::uuids`](crate::Value::uuids).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use uuid::Uuid;

use crate::value::{AtomMap, AtomSet, Value};

/// Columns to write, by name.
pub type RowValues = BTreeMap<Arc<str>, Value>;

/// Comparison in a [`Condition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// The column has all these elements.
    Includes,
    /// The column has none of these elements.
    Excludes,
}

impl Function {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Includes => "includes",
            Self::Excludes => "excludes",
        }
    }
}

/// A clause of a `where`; all clauses must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The column, `_uuid` included.
    pub column: Arc<str>,
    /// How to compare.
    pub function: Function,
    /// With what.
    pub value: Value,
}

impl Condition {
    /// A clause.
    pub fn new(column: impl Into<Arc<str>>, function: Function, value: impl Into<Value>) -> Self {
        Self { column: column.into(), function, value: value.into() }
    }
    /// Selects one row.
    pub fn uuid(uuid: Uuid) -> Self {
        Self::new("_uuid", Function::Equal, uuid)
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (&self.column, self.function.as_str(), &self.value).serialize(s)
    }
}

/// How a [`Mutation`] changes a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutator {
    /// `+=`
    Add,
    /// `-=`
    Subtract,
    /// `*=`
    Multiply,
    /// `/=`
    Divide,
    /// `%=`
    Modulo,
    /// Add elements, or pairs whose keys are new.
    Insert,
    /// Remove elements, pairs, or (given a set) keys.
    Delete,
}

impl Mutator {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Subtract => "-=",
            Self::Multiply => "*=",
            Self::Divide => "/=",
            Self::Modulo => "%=",
            Self::Insert => "insert",
            Self::Delete => "delete",
        }
    }
}

/// One change of one column.
#[derive(Clone, Debug, PartialEq)]
pub struct Mutation {
    /// The column.
    pub column: Arc<str>,
    /// The change.
    pub mutator: Mutator,
    /// Its operand.
    pub value: Value,
}

impl Serialize for Mutation {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (&self.column, self.mutator.as_str(), &self.value).serialize(s)
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Adds a row.
    Insert {
        /// The table.
        table: Arc<str>,
        /// Columns; others get their type's default.
        row: RowValues,
        /// UUID chosen by us (servers since 2.14).
        uuid: Option<Uuid>,
        /// Name for references within the transaction.
        uuid_name: Option<Arc<str>>,
    },
    /// Overwrites columns of matching rows.
    Update {
        /// The table.
        table: Arc<str>,
        /// Which rows.
        where_: Vec<Condition>,
        /// Columns.
        row: RowValues,
    },
    /// Changes columns of matching rows by difference.
    Mutate {
        /// The table.
        table: Arc<str>,
        /// Which rows.
        where_: Vec<Condition>,
        /// The changes, in order.
        mutations: Vec<Mutation>,
    },
    /// Deletes matching rows.
    Delete {
        /// The table.
        table: Arc<str>,
        /// Which rows.
        where_: Vec<Condition>,
    },
    /// Blocks until matching rows, cut down to `columns`, equal (or differ from) `rows`.
    Wait {
        /// The table.
        table: Arc<str>,
        /// Which rows.
        where_: Vec<Condition>,
        /// Which columns are compared.
        columns: Vec<Arc<str>>,
        /// `true`: until equal; `false`: until different.
        equal: bool,
        /// The rows compared with.
        rows: Vec<RowValues>,
        /// In milliseconds; `None` waits for ever.
        timeout: Option<u64>,
    },
    /// Reads matching rows.
    Select {
        /// The table.
        table: Arc<str>,
        /// Which rows.
        where_: Vec<Condition>,
        /// Which columns, `None` for all.
        columns: Option<Vec<Arc<str>>>,
    },
    /// A remark for the server's log.
    Comment(String),
    /// Fails unless we hold a lock.
    Assert(String),
}

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

    /// The table it works on, if any.
    pub fn table(&self) -> Option<&Arc<str>> {
        match self {
            Self::Insert { table, .. }
            | Self::Update { table, .. }
            | Self::Mutate { table, .. }
            | Self::Delete { table, .. }
            | Self::Wait { table, .. }
            | Self::Select { table, .. } => Some(table),
            Self::Comment(_) | Self::Assert(_) => None,
        }
    }

    /// The exact RFC 7047 notation.
    pub fn to_json(&self) -> serde_json::Value {
        // `Serialize` below makes only maps with string keys.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        match self {
            Self::Insert { table, row, uuid, uuid_name } => {
                map.serialize_entry("op", "insert")?;
                map.serialize_entry("table", table)?;
                map.serialize_entry("row", row)?;
                if let Some(uuid) = uuid {
                    map.serialize_entry("uuid", uuid)?;
                }
                if let Some(name) = uuid_name {
                    map.serialize_entry("uuid-name", name)?;
                }
            }
            Self::Update { table, where_, row } => {
                map.serialize_entry("op", "update")?;
                map.serialize_entry("table", table)?;
                map.serialize_entry("where", where_)?;
                map.serialize_entry("row", row)?;
            }
            Self::Mutate { table, where_, mutations } => {
                map.serialize_entry("op", "mutate")?;
                map.serialize_entry("table", table)?;
                map.serialize_entry("where", where_)?;
                map.serialize_entry("mutations", mutations)?;
            }
            Self::Delete { table, where_ } => {
                map.serialize_entry("op", "delete")?;
                map.serialize_entry("table", table)?;
                map.serialize_entry("where", where_)?;
            }
            Self::Wait { table, where_, columns, equal, rows, timeout } => {
                map.serialize_entry("op", "wait")?;
                map.serialize_entry("table", table)?;
                map.serialize_entry("where", where_)?;
                map.serialize_entry("columns", columns)?;
                map.serialize_entry("until", if *equal { "==" } else { "!=" })?;
                map.serialize_entry("rows", rows)?;
                if let Some(timeout) = timeout {
                    map.serialize_entry("timeout", timeout)?;
                }
            }
            Self::Select { table, where_, columns } => {
                map.serialize_entry("op", "select")?;
                map.serialize_entry("table", table)?;
                map.serialize_entry("where", where_)?;
                if let Some(columns) = columns {
                    map.serialize_entry("columns", columns)?;
                }
            }
            Self::Comment(text) => {
                map.serialize_entry("op", "comment")?;
                map.serialize_entry("comment", text)?;
            }
            Self::Assert(lock) => {
                map.serialize_entry("op", "assert")?;
                map.serialize_entry("lock", lock)?;
            }
        }
        map.end()
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
