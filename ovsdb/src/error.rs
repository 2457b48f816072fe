//! What a transaction comes to: results of its operations or a named error.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::value::Value;

/// Result of one operation of a successful transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationResult {
    /// Rows matched, for update, mutate and delete.
    pub count: Option<u64>,
    /// UUID of the new row, for insert.
    pub uuid: Option<Uuid>,
    /// Rows found, for select: columns by name, `_uuid` included.
    pub rows: Option<Vec<BTreeMap<Arc<str>, Value>>>,
}

/// Why a transaction was not committed, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}{}: {details}", op_index.map(|i| format!(" (operation {i})")).unwrap_or_default())]
pub struct TransactError {
    /// What kind of failure.
    pub kind: TransactErrorKind,
    /// The operation at fault; `None` when the commit as a whole failed.
    pub op_index: Option<usize>,
    /// The server's explanation.
    pub details: String,
}

/// Kinds of [`TransactError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactErrorKind {
    /// A value, size or uniqueness constraint of the schema.
    #[error("constraint violation")]
    Constraint,
    /// A strong reference would dangle.
    #[error("referential integrity violation")]
    Referential,
    /// An `insert` with a UUID that exists, or that this transaction deletes.
    #[error("duplicate uuid")]
    DuplicateUuid,
    /// An `assert` of a lock that we do not hold.
    #[error("not owner")]
    NotOwner,
    /// A `wait` whose condition did not come true in time.
    #[error("timed out")]
    WaitTimedOut,
    /// The server could not write its log.
    #[error("I/O error")]
    Io,
    /// It was cancelled. Nothing was committed by a standalone server; a member of a
    /// cluster may have handed it to the others before: re-read, then decide.
    #[error("cancelled")]
    Canceled,
    /// The connection went away, or a reply did not come in time: whether the
    /// transaction was committed is unknown. Re-read, then decide.
    #[error("disconnected")]
    Disconnected,
    /// Any other error, by the server's name for it.
    #[error("{0}")]
    Other(String),
}

impl TransactError {
    /// An error of the commit as a whole.
    pub fn new(kind: TransactErrorKind, details: impl Into<String>) -> Self {
        Self { kind, op_index: None, details: details.into() }
    }

    /// From a server's error string.
    pub(crate) fn from_wire(name: &str, op_index: Option<usize>, details: impl Into<String>) -> Self {
        let kind = match name {
            "constraint violation" => TransactErrorKind::Constraint,
            "referential integrity violation" => TransactErrorKind::Referential,
            "duplicate uuid" => TransactErrorKind::DuplicateUuid,
            "not owner" => TransactErrorKind::NotOwner,
            "timed out" => TransactErrorKind::WaitTimedOut,
            "I/O error" => TransactErrorKind::Io,
            "canceled" => TransactErrorKind::Canceled,
            other => TransactErrorKind::Other(other.into()),
        };
        Self { kind, op_index, details: details.into() }
    }

    /// Whether the same transaction may succeed later without being changed: the
    /// server was in a passing state. A disconnect is not retryable blindly (the
    /// first attempt may have been committed): re-read first.
    pub fn retryable(&self) -> bool {
        match &self.kind {
            TransactErrorKind::Io => true,
            TransactErrorKind::Other(name) => {
                matches!(
                    name.as_str(),
                    "cluster error" | "not leader" | "resources exhausted" | "prerequisite failed"
                )
            }
            _ => false,
        }
    }
}

/// Why a call that only reads (or a change of what is followed) has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server refused it.
    #[error("{method}: {error} {details}")]
    Refused {
        /// The method.
        method: &'static str,
        /// The server's name for the error.
        error: String,
        /// Its explanation, often empty.
        details: String,
    },
    /// No server answered, on any endpoint, within the request timeout for each.
    #[error("{method}: no server answered in time")]
    TimedOut {
        /// The method.
        method: &'static str,
    },
    /// The answer makes no sense.
    #[error("{method}: unreadable answer: {problem}")]
    Unreadable {
        /// The method.
        method: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// What was asked for does not fit the server's schema.
    #[error("the schema does not allow it: {0}")]
    Unfit(String),
    /// The session has ended.
    #[error("the session ended")]
    Ended,
}
