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
#[non_exhaustive]
pub enum TransactErrorKind {
    /// A value, size or uniqueness constraint of the schema. With an operation: its
    /// values alone are wrong. Without one: together with other rows.
    #[error("constraint violation")]
    Constraint,
    /// A strong reference would dangle.
    #[error("referential integrity violation")]
    Referential,
    /// An `insert` with a UUID that exists, or that this transaction deletes.
    #[error("duplicate uuid")]
    DuplicateUuid,
    /// Two inserts with one `uuid-name`.
    #[error("duplicate uuid-name")]
    DuplicateUuidName,
    /// An `assert` of a lock that we do not hold.
    #[error("not owner")]
    NotOwner,
    /// A `wait` whose condition did not come true in time.
    #[error("timed out")]
    WaitTimedOut,
    /// A division by zero in a mutation.
    #[error("domain error")]
    Domain,
    /// A mutation whose result is too big for its type.
    #[error("range error")]
    Range,
    /// The transaction had an `abort`, and nothing else was wrong.
    #[error("aborted")]
    Aborted,
    /// The server could not write its log.
    #[error("I/O error")]
    Io,
    /// The server lacks memory or another resource, or too many transactions wait.
    #[error("resources exhausted")]
    ResourcesExhausted,
    /// The server's access control does not allow it to this client.
    #[error("permission error")]
    Permission,
    /// The server does not have the database (any more).
    #[error("unknown database")]
    UnknownDatabase,
    /// The request makes no sense to the server: an unknown table, a value of the
    /// wrong type. (An unknown column is an `Other`.)
    #[error("syntax error")]
    Syntax,
    /// What was asked for is not possible, such as durability in a database in memory.
    #[error("not supported")]
    NotSupported,
    /// The cluster did not take it, or lost its leader before that was certain.
    #[error("cluster error")]
    Cluster,
    /// It was cancelled. Nothing was committed by a standalone server; a member of a
    /// cluster may have handed it to the others before: re-read, then decide.
    #[error("cancelled")]
    Canceled,
    /// Our own check against the schema refused it; nothing was sent.
    #[error("invalid")]
    Invalid,
    /// The connection went away, or a reply did not come in time: whether the
    /// transaction was committed is unknown. Re-read, then decide.
    #[error("disconnected")]
    Disconnected,
    /// Any other error, by the server's name for it.
    #[error("{0}")]
    Other(String),
}

/// Whether trying again makes sense, and what has to come first: of
/// [`TransactError::retry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same transaction, after a pause: the server was in a passing state, and
    /// nothing was committed.
    Later,
    /// It may have been committed. Wait for content of the database that is newer
    /// than the failure ([`Event::Replaced`](crate::Event::Replaced)), look, then decide.
    Reread,
    /// The content that the transaction was made from is not the server's: rows that
    /// it relies on changed, went or came. Make it anew from the newest content.
    Recompute,
    /// Once the lock is ours again.
    Relock,
    /// Never: it is wrong in itself, or the server will not have it from us.
    Never,
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
            "duplicate uuid-name" => TransactErrorKind::DuplicateUuidName,
            "not owner" => TransactErrorKind::NotOwner,
            "timed out" => TransactErrorKind::WaitTimedOut,
            "domain error" => TransactErrorKind::Domain,
            "range error" => TransactErrorKind::Range,
            "aborted" => TransactErrorKind::Aborted,
            "I/O error" => TransactErrorKind::Io,
            "resources exhausted" => TransactErrorKind::ResourcesExhausted,
            "permission error" => TransactErrorKind::Permission,
            "unknown database" => TransactErrorKind::UnknownDatabase,
            "syntax error" => TransactErrorKind::Syntax,
            "not supported" => TransactErrorKind::NotSupported,
            "cluster error" => TransactErrorKind::Cluster,
            "canceled" => TransactErrorKind::Canceled,
            other => TransactErrorKind::Other(other.into()),
        };
        Self { kind, op_index, details: details.into() }
    }

    /// Whether trying again makes sense, and what has to come first.
    pub fn retry(&self) -> Retry {
        use TransactErrorKind as Kind;
        match &self.kind {
            Kind::Io | Kind::ResourcesExhausted => Retry::Later,
            Kind::Disconnected | Kind::Cluster | Kind::Canceled => Retry::Reread,
            // A value that violates a constraint is found with its operation, a
            // uniqueness that other rows take part in at the commit.
            Kind::Constraint if self.op_index.is_some() => Retry::Never,
            Kind::Constraint | Kind::Referential | Kind::DuplicateUuid | Kind::WaitTimedOut => {
                Retry::Recompute
            }
            // Arithmetic on what the row holds by now.
            Kind::Range | Kind::UnknownDatabase => Retry::Recompute,
            Kind::NotOwner => Retry::Relock,
            Kind::Other(name) if of_cluster(name) => Retry::Reread,
            Kind::DuplicateUuidName
            | Kind::Domain
            | Kind::Aborted
            | Kind::Permission
            | Kind::Syntax
            | Kind::NotSupported
            | Kind::Invalid
            | Kind::Other(_) => Retry::Never,
        }
    }

    /// Whether the same transaction may succeed later without being changed, for a
    /// caller that looks at the content again before it decides: the server or its
    /// cluster was in a passing state. Not after a disconnect, whose
    /// consequences come as events.
    pub fn retryable(&self) -> bool {
        use TransactErrorKind as Kind;
        match &self.kind {
            Kind::Io | Kind::ResourcesExhausted | Kind::Cluster => true,
            Kind::Other(name) => of_cluster(name),
            _ => false,
        }
    }
}

/// Errors of a cluster that is changing its leader, by the names of some servers.
fn of_cluster(name: &str) -> bool {
    matches!(name, "not leader" | "prerequisite failed")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_names_become_kinds_and_kinds_say_what_to_do() {
        for (name, op_index, retry) in [
            ("constraint violation", Some(0), Retry::Never),
            ("constraint violation", None, Retry::Recompute),
            ("referential integrity violation", None, Retry::Recompute),
            ("duplicate uuid", Some(0), Retry::Recompute),
            ("duplicate uuid-name", Some(0), Retry::Never),
            ("not owner", Some(0), Retry::Relock),
            ("timed out", Some(0), Retry::Recompute),
            ("domain error", Some(0), Retry::Never),
            ("range error", Some(0), Retry::Recompute),
            ("aborted", Some(0), Retry::Never),
            ("I/O error", None, Retry::Later),
            ("resources exhausted", None, Retry::Later),
            ("permission error", None, Retry::Never),
            ("unknown database", None, Retry::Recompute),
            ("syntax error", None, Retry::Never),
            ("not supported", None, Retry::Never),
            ("cluster error", None, Retry::Reread),
            ("not leader", None, Retry::Reread),
            ("something new", None, Retry::Never),
        ] {
            let error = TransactError::from_wire(name, op_index, "why");
            assert_eq!(error.retry(), retry, "{error}");
            assert!(error.to_string().starts_with(name), "{error}");
            let other = matches!(name, "not leader" | "something new");
            assert_eq!(error.kind == TransactErrorKind::Other(name.into()), other);
        }
        let unknown = TransactError::new(TransactErrorKind::Disconnected, "");
        assert_eq!((unknown.retry(), unknown.retryable()), (Retry::Reread, false));
    }
}
