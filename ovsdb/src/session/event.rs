//! What a session tells: its events, and where it stands.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::locks::LockState;
use crate::endpoint::Endpoint;
use crate::error::{OperationResult, TransactError};
use crate::replica::{Replica, RowChange};
use crate::schema::Schema;

/// What a session tells its consumer, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// A server was found and its schema read. [`Event::Replaced`] follows.
    Connected {
        /// The server.
        endpoint: Endpoint,
        /// Its schema.
        schema: Arc<Schema>,
        /// Wanted (table, column) pairs that it lacks; all columns of a table that
        /// does not exist.
        missing: Vec<(String, String)>,
    },
    /// The server's schema is not the one known before: it was converted, or this is
    /// another server. Comes after [`Event::Connected`], not for the first schema.
    SchemaChanged {
        /// The schema.
        schema: Arc<Schema>,
        /// Wanted (table, column) pairs that are there now, or have another type.
        present: Vec<(String, String)>,
        /// Wanted pairs that were there before.
        absent: Vec<(String, String)>,
    },
    /// The content was loaded, or brought up to date after a gap or after a change
    /// of what is followed.
    Replaced {
        /// The content.
        replica: Replica,
        /// What differs from the replica before (from nothing, at first).
        changes: Vec<RowChange>,
    },
    /// A change.
    Updated {
        /// The content after it.
        replica: Replica,
        /// The rows it touched.
        changes: Vec<RowChange>,
    },
    /// The outcome of a [`Session::submit`](super::Session::submit).
    Reply {
        /// The number given with it.
        tag: u64,
        /// The result of every operation, or why nothing was committed.
        result: Result<Vec<OperationResult>, TransactError>,
    },
    /// A lock asked for by [`Session::lock`](super::Session::lock) or
    /// [`Session::steal`](super::Session::steal) changed hands.
    Lock {
        /// Its name.
        name: Arc<str>,
        /// What became of it.
        state: LockState,
    },
    /// The connection was lost or given up.
    Disconnected {
        /// Why.
        reason: String,
    },
    /// Updates were lost or did not fit; [`Event::Replaced`] follows.
    Resync {
        /// Why.
        reason: String,
    },
}

/// Where a session stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// The server in use; `None` while there is none.
    pub endpoint: Option<Endpoint>,
    /// Whether the content is loaded and followed.
    pub synced: bool,
    /// Connections that reached the synced state.
    pub connections: u64,
    /// Times that updates did not fit or the consumer was too slow.
    pub resyncs: u64,
    /// Locks held, by name; only on the server in use.
    pub locks: BTreeSet<Arc<str>>,
    /// Times that the whole content was loaded, the first included.
    pub loads: u64,
    /// Times that a server knew our last transaction and sent only what came since.
    pub resumes: u64,
    /// Why the last connection or attempt failed.
    pub last_error: Option<String>,
}
