//! Clauses of a `where`, checked against a table and ready to be asked about rows.

use std::hash::{DefaultHasher, Hash, Hasher};

use uuid::Uuid;

use super::evaluate::{condition_operand, holds, other};
use crate::error::TransactError;
use crate::op::{Condition, Function};
use crate::replica::{Row, Table};
use crate::schema::{AtomType, BaseType, ColumnType};
use crate::value::{Atom, Value};

/// Whether a column is one that every table has: `_uuid` and `_version`.
pub(super) fn is_implicit(name: &str) -> bool {
    matches!(name, "_uuid" | "_version")
}

/// The type of the implicit columns.
pub(super) fn implicit_type() -> ColumnType {
    ColumnType::scalar(BaseType::plain(AtomType::Uuid))
}

/// The `_version` of a row: another one whenever its content is another.
pub(super) fn version(row: &Row) -> Uuid {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, row.uuid, row.values()).hash(&mut hasher);
        hasher.finish()
    };
    Uuid::from_u64_pair(half(0), half(1))
}

/// One clause.
#[derive(Debug)]
pub(super) enum Clause {
    /// Holds for every row, or for none (conditions of a monitor may be booleans).
    Always(bool),
    /// About the row's UUID.
    Uuid(Function, Value),
    /// About the row's version.
    Version(Function, Value),
    /// About the column at a position.
    Column(usize, Function, Value),
}

impl Clause {
    /// Checks a condition against a table.
    pub(super) fn new(table: &Table, condition: &Condition) -> Result<Self, TransactError> {
        let Condition { column, function, value } = condition;
        if is_implicit(column) {
            let operand = condition_operand(column, *function, value, &implicit_type())?;
            return Ok(match &**column {
                "_uuid" => Self::Uuid(*function, operand),
                _ => Self::Version(*function, operand),
            });
        }
        let layout = table.layout();
        let position = layout.position(column).ok_or_else(|| {
            other("unknown column", format!("no column {column} in table {}", layout.table()))
        })?;
        let (name, ty) = &layout.columns()[position];
        Ok(Self::Column(position, *function, condition_operand(name, *function, value, ty)?))
    }

    /// Whether it holds for a row.
    pub(super) fn matches(&self, row: &Row) -> bool {
        let id = |uuid| Value::Atom(Atom::Uuid(uuid));
        match self {
            Self::Always(holds) => *holds,
            Self::Uuid(function, operand) => holds(&id(row.uuid), *function, operand),
            Self::Version(function, operand) => holds(&id(version(row)), *function, operand),
            Self::Column(position, function, operand) => holds(&row.values()[*position], *function, operand),
        }
    }

    /// The one row that it can hold for.
    pub(super) fn row(&self) -> Option<Uuid> {
        match self {
            Self::Uuid(Function::Equal | Function::Includes, operand) => operand.as_uuid(),
            _ => None,
        }
    }

    /// The column whose value it prescribes, and that value.
    pub(super) fn equal(&self) -> Option<(usize, &Value)> {
        match self {
            Self::Column(position, Function::Equal, operand) => Some((*position, operand)),
            _ => None,
        }
    }
}
