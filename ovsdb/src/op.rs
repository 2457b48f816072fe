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
//! [`Value::uuids`](crate::Value::uuids). [`TransactionBuilder`] collects operations,
//! also such on typed rows; [`check()`] finds mistakes before a server does.

mod build;
mod check;
mod difference;
mod transaction;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use uuid::Uuid;

use crate::value::Value;

pub use build::{DeleteBuilder, InsertBuilder, MutateBuilder, SelectBuilder, UpdateBuilder, WaitBuilder};
pub use check::{CheckError, check};
pub use difference::difference;
pub use transaction::{Selection, TransactionBuilder};

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
    /// Asks for the answer only when the transaction is on disk.
    Commit {
        /// Whether to wait for the disk.
        durable: bool,
    },
    /// Fails the transaction, after the operations before were checked.
    Abort,
}

impl Operation {
    /// The table it works on, if any.
    pub fn table(&self) -> Option<&Arc<str>> {
        match self {
            Self::Insert { table, .. }
            | Self::Update { table, .. }
            | Self::Mutate { table, .. }
            | Self::Delete { table, .. }
            | Self::Wait { table, .. }
            | Self::Select { table, .. } => Some(table),
            Self::Comment(_) | Self::Assert(_) | Self::Commit { .. } | Self::Abort => None,
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
            Self::Commit { durable } => {
                map.serialize_entry("op", "commit")?;
                map.serialize_entry("durable", durable)?;
            }
            Self::Abort => map.serialize_entry("op", "abort")?,
        }
        map.end()
    }
}
