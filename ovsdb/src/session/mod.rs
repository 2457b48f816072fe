//! Sessions: a connection to one database that heals itself.
//!
//! [`Session::connect`] starts one task. It connects to the first endpoint that
//! serves the database (and leads it, if asked for), loads the wanted tables,
//! follows their changes, answers the server's probes and sends its own, and
//! starts again with the next endpoint when anything goes wrong. Whoever holds the
//! [`Session`] submits transactions; whoever holds the [`EventStream`] sees, in one
//! order, what happened:
//!
//! - a transaction's [`Event::Reply`] comes after the updates that it caused;
//! - after [`Event::Disconnected`] every transaction in flight has got a reply
//!   of kind `Disconnected`: its outcome is unknown;
//! - after a reply of kind `Disconnected` comes an [`Event::Replaced`], as soon as there
//!   is a connection (or the connection is in sync again, for one submitted during
//!   a resync): it shows what became of the transaction;
//! - after each [`Event::Connected`] comes one [`Event::Replaced`], whose changes
//!   are the difference to the replica before: it says "in sync again";
//! - a consumer that is too slow loses no state: queued updates collapse into
//!   [`Event::Resync`] and one [`Event::Replaced`].
//!
//! Flow inside: `driver` moves bytes and time, `protocol` is the sans-I/O
//! state machine, `queue` the bounded event queue.

mod driver;
mod handshake;
mod protocol;
mod queue;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::endpoint::Endpoint;
use crate::error::{OperationResult, TransactError, TransactErrorKind};
use crate::op::Operation;
use crate::replica::{Replica, RowChange};
use crate::schema::Schema;

/// How to connect and what to follow.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers, tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// Database, for instance `OVN_Northbound`.
    pub database: String,
    /// Wanted columns by table; an empty list wants all. Those the server lacks are
    /// dropped and reported in [`Event::Connected`]. Without any table nothing is
    /// monitored and the session only transacts.
    pub tables: BTreeMap<String, Vec<String>>,
    /// Columns (table, column) to index beside the schema's own indexes.
    pub indexes: Vec<(String, String)>,
    /// Use only the leader of a clustered database: for writers.
    pub leader_only: bool,
    /// An idle connection without a sign of life for this long is given up; half of
    /// it passes before the server is probed. While requests are in flight the
    /// server may be busy with them, so then `request_timeout` decides; a TCP peer
    /// whose kernel does not acknowledge is given up within this interval anyway.
    /// If the initial load took long, up to twice its time is allowed. Zero switches
    /// probing off.
    pub probe_interval: Duration,
    /// Bound of one attempt to connect.
    pub connect_timeout: Duration,
    /// Bound of every request. The initial load may take a multiple of it when
    /// it timed out before, so that a big database on a slow machine gets loaded.
    pub request_timeout: Duration,
    /// Longest pause between rounds over all endpoints.
    pub max_backoff: Duration,
    /// Row changes that may wait for a slow consumer before they collapse.
    pub max_queued_changes: usize,
    /// Names this client in logs and as monitor id.
    pub client_name: String,
}

impl Options {
    /// Options with the defaults: any server, probes within 5 s, connects within
    /// 3 s, requests within 10 s.
    pub fn new(endpoints: Vec<Endpoint>, database: impl Into<String>) -> Self {
        Self {
            endpoints,
            database: database.into(),
            tables: BTreeMap::new(),
            indexes: Vec::new(),
            leader_only: false,
            probe_interval: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(10),
            max_backoff: Duration::from_secs(2),
            max_queued_changes: 100_000,
            client_name: "weir".into(),
        }
    }
    /// Adds a table and its wanted columns (none: all).
    pub fn table<'a>(mut self, table: &str, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.tables.entry(table.into()).or_default().extend(columns.into_iter().map(str::to_owned));
        self
    }
    /// Declares an index on a column.
    pub fn index(mut self, table: &str, column: &str) -> Self {
        self.indexes.push((table.into(), column.into()));
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(Vec::new(), "")
    }
}

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
    /// The content was loaded, or brought up to date after a gap.
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
    /// The outcome of a [`Session::submit`].
    Reply {
        /// The number given with it.
        tag: u64,
        /// The result of every operation, or why nothing was committed.
        result: Result<Vec<OperationResult>, TransactError>,
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
    /// Why the last connection or attempt failed.
    pub last_error: Option<String>,
}

/// Most requests that may wait or be in flight; further ones are refused at once.
const MAX_REQUESTS: usize = 65_536;

/// Who waits for a transaction's outcome.
enum Requester {
    Tag(u64),
    Call(oneshot::Sender<Result<Vec<OperationResult>, TransactError>>),
}

/// A transaction on its way to the connection task, and until it is answered.
struct Request {
    requester: Requester,
    operations: Vec<Operation>,
    _slot: Slot,
}

/// A place among the requests that may be in flight.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Handle of a session; clones share it. The session ends when all are dropped.
#[derive(Clone)]
pub struct Session {
    requests: mpsc::UnboundedSender<Request>,
    waiting: Arc<AtomicUsize>,
    state: watch::Receiver<SessionState>,
    events: queue::Producer,
}

impl Session {
    /// Starts a session. Never fails: what goes wrong is told by events and
    /// tried again.
    pub fn connect(options: Options) -> (Session, EventStream) {
        let (requests, incoming) = mpsc::unbounded_channel();
        let (producer, consumer) = queue::channel(options.max_queued_changes);
        let (state_sender, state) = watch::channel(SessionState::default());
        let waiting = Arc::new(AtomicUsize::new(0));
        let task = driver::Driver::new(options, incoming, producer.clone(), state_sender);
        tokio::spawn(task.run());
        (Session { requests, waiting, state, events: producer }, EventStream(consumer))
    }

    /// Sends a transaction without waiting; its outcome comes as
    /// [`Event::Reply`] with this tag. While there is no synced connection the
    /// outcome is `Disconnected` at once.
    pub fn submit(&self, tag: u64, operations: Vec<Operation>) {
        if let Err(error) = self.send(Requester::Tag(tag), operations) {
            self.events.push(Event::Reply { tag, result: Err(error) });
        }
    }

    /// Runs a transaction and waits for its outcome. While there is no synced
    /// connection it waits for one, at most the request timeout.
    pub async fn transact(&self, operations: Vec<Operation>) -> Result<Vec<OperationResult>, TransactError> {
        let (sender, receiver) = oneshot::channel();
        self.send(Requester::Call(sender), operations)?;
        let ended = |_| TransactError::new(TransactErrorKind::Disconnected, "session ended");
        receiver.await.map_err(ended)?
    }

    /// Where the session stands.
    pub fn state(&self) -> SessionState {
        self.state.borrow().clone()
    }

    /// Waits until the session is synced; `false` if it ended.
    pub async fn synced(&self) -> bool {
        self.state.clone().wait_for(|s| s.synced).await.is_ok()
    }

    fn send(&self, requester: Requester, operations: Vec<Operation>) -> Result<(), TransactError> {
        let taken = self.waiting.fetch_add(1, Ordering::Relaxed);
        let slot = Slot(self.waiting.clone());
        if taken >= MAX_REQUESTS {
            let kind = TransactErrorKind::Other("resources exhausted".into());
            return Err(TransactError::new(kind, "too many transactions in flight"));
        }
        self.requests
            .send(Request { requester, operations, _slot: slot })
            .map_err(|_| TransactError::new(TransactErrorKind::Disconnected, "session ended"))
    }
}

/// The events of a session, in order.
pub struct EventStream(queue::Consumer);

impl EventStream {
    /// The next event; `None` once the session has ended. Safe to cancel.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.next().await
    }

    /// The next event if one is waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_next()
    }
}
