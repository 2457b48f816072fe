//! An OVSDB server in this process: the real protocol in front of a
//! [`Database`](super::Database), with faults on demand.
//!
//! Flow inside: `connection` moves bytes; `core` takes requests in one order and
//! decides which `fault` befalls them; `methods` carries them out, reading
//! operations by `parse` and showing changes by `monitor`; `hosted` keeps transaction
//! ids, history and the `_Server` database.

mod connection;
mod core;
mod fault;
mod hosted;
mod members;
mod methods;
mod monitor;
mod parse;
mod schema;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::core::Core;
pub use self::fault::Fault;
use super::Database;
use crate::endpoint::Endpoint;
use crate::error::{OperationResult, TransactError};
use crate::op::Operation;
use crate::replica::Replica;
use crate::schema::Schema;

/// Whether databases are standalone or clustered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// No transaction ids: whoever reconnects loads everything again.
    Standalone,
    /// Transaction ids and a history: whoever reconnects can resume.
    #[default]
    Clustered,
}

/// How fast, and in what pieces, bytes are sent to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Most bytes that are written at once.
    pub piece: usize,
    /// Pause between pieces.
    pub pause: Duration,
}

/// What went over the wire so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that clients tried to make.
    pub attempts: u64,
    /// Connections that were taken.
    pub connections: u64,
    /// Requests by method.
    pub requests: BTreeMap<String, u64>,
    /// Transactions that changed something.
    pub commits: u64,
    /// Monitors that were given their whole content.
    pub loads: u64,
    /// Monitors that were given only what came since their last transaction.
    pub resumes: u64,
}

impl Traffic {
    /// Requests of one method.
    pub fn of(&self, method: &str) -> u64 {
        self.requests.get(method).copied().unwrap_or_default()
    }
}

/// Starts a [`MemoryServer`] that is not as usual.
pub struct MemoryServerBuilder {
    databases: Vec<Database>,
    model: Model,
    members: usize,
    history: usize,
    tcp: bool,
}

impl MemoryServerBuilder {
    /// Serves one more database.
    pub fn database(mut self, database: Database) -> Self {
        self.databases.push(database);
        self
    }
    /// Standalone or clustered (the default).
    pub fn model(mut self, model: Model) -> Self {
        self.model = model;
        self
    }
    /// So many members, each with an endpoint, a `_Server` database and locks of its
    /// own. They share the content: a follower is never behind.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members.max(1);
        self
    }
    /// Transactions that can be resumed from (100 in a real server and here).
    pub fn history(mut self, transactions: usize) -> Self {
        self.history = transactions;
        self
    }
    /// Listens on TCP ports of 127.0.0.1 instead of unix sockets.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Starts to listen. To be called within a tokio runtime, on which the server then
    /// runs.
    ///
    /// # Errors
    /// When no socket can be had.
    pub fn start(self) -> std::io::Result<MemoryServer> {
        let core = Core::new(self.databases, self.model, self.members, self.history);
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            pace: watch::channel(None).0,
            deadline: Notify::new(),
            traffic: watch::channel(Traffic::default()).0,
        });
        // The server owns what was begun even if a later member fails.
        let mut server = MemoryServer {
            shared: shared.clone(),
            endpoints: Vec::new(),
            tasks: Vec::new(),
            directory: None,
        };
        if !self.tcp {
            let directory = std::env::temp_dir().join(format!("weir-{}", uuid::Uuid::new_v4().simple()));
            std::fs::create_dir(&directory)?;
            server.directory = Some(directory);
        }
        for member in 0..self.members {
            let task = match &server.directory {
                Some(directory) => {
                    let path = directory.join(format!("{member}.sock"));
                    let listener = UnixListener::bind(&path)?;
                    server.endpoints.push(Endpoint::Unix(path));
                    tokio::spawn(connection::accept_unix(shared.clone(), member, listener))
                }
                None => {
                    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                    listener.set_nonblocking(true)?;
                    let port = listener.local_addr()?.port();
                    server.endpoints.push(Endpoint::Tcp { host: Ipv4Addr::LOCALHOST.to_string(), port });
                    tokio::spawn(connection::accept_tcp(
                        shared.clone(),
                        member,
                        TcpListener::from_std(listener)?,
                    ))
                }
            };
            server.tasks.push(task);
        }
        server.tasks.push(tokio::spawn(connection::watch_deadlines(shared)));
        Ok(server)
    }
}

/// What tasks and handle share.
#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    pace: watch::Sender<Option<Pace>>,
    /// A transaction began or ceased to wait.
    deadline: Notify,
    traffic: watch::Sender<Traffic>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        // A test that panics elsewhere must not hide its reason behind this lock.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the core, then tells who waits for what came of it.
    fn with<T>(&self, work: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let result = work(&mut core);
        self.traffic.send_if_modified(|seen| {
            let changed = *seen != core.traffic;
            if changed {
                *seen = core.traffic.clone();
            }
            changed
        });
        drop(core);
        self.deadline.notify_one();
        result
    }
}

/// A server of in-memory databases over the real protocol, for tests of whatever
/// contains an OVSDB client.
///
/// It checks constraints as a real server does (types, ranges, enumerations, sizes,
/// references, indexes, immutable columns; unreferred rows are collected), speaks every
/// method of the protocol, and can be made to fail in ways that a real one rarely
/// does when asked. `tests/parity.rs` runs the same random requests on it and on
/// a real ovsdb-server and compares replies, updates and contents.
///
/// Ends when dropped: connections are closed, sockets removed.
///
/// ```
/// use ovsdb::testing::{Database, Fault, MemoryServer, northbound};
/// use ovsdb::{Event, Operation, Options, Session, TransactErrorKind};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let server = MemoryServer::start(Database::new(northbound())).unwrap();
/// let options = Options::new(server.endpoints(), "OVN_Northbound").table("Logical_Switch", ["name"]);
/// let (session, mut events) = Session::connect(options);
/// session.synced().await;
///
/// // The commit happens, but its reply is lost with the connection.
/// server.on("transact", Fault::DropAfter);
/// let insert = Operation::insert("Logical_Switch").column("name", "s").build();
/// let error = session.transact(vec![insert]).await.unwrap_err();
/// assert_eq!(error.kind, TransactErrorKind::Disconnected);
///
/// // After the reconnect the session sees what became of it, without a full load.
/// loop {
///     match events.next().await.unwrap() {
///         Event::Replaced { replica, .. } if replica.row_count() == 1 => break,
///         _ => {}
///     }
/// }
/// assert_eq!(server.traffic().resumes, 1);
/// assert_eq!(server.replica("OVN_Northbound").unwrap().row_count(), 1);
/// # });
/// ```
#[derive(Debug)]
pub struct MemoryServer {
    shared: Arc<Shared>,
    endpoints: Vec<Endpoint>,
    tasks: Vec<JoinHandle<()>>,
    directory: Option<PathBuf>,
}

impl MemoryServer {
    /// Serves a database as a cluster of one on a unix socket.
    ///
    /// # Errors
    /// When no socket can be had.
    pub fn start(database: Database) -> std::io::Result<Self> {
        Self::builder(database).start()
    }

    /// Prepares something less usual.
    pub fn builder(database: Database) -> MemoryServerBuilder {
        MemoryServerBuilder {
            databases: vec![database],
            model: Model::Clustered,
            members: 1,
            history: 100,
            tcp: false,
        }
    }

    /// Where its members listen.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.endpoints.clone()
    }

    /// The content of a database; `None` if there is none of that name.
    pub fn replica(&self, database: &str) -> Option<Replica> {
        self.shared.lock().databases.get(database).map(|h| h.database.replica())
    }

    /// Runs a transaction as another client would; everybody who follows the
    /// database is told.
    ///
    /// # Errors
    /// Those of [`Database::execute`], and `unknown database`.
    pub fn transact(
        &self,
        database: &str,
        operations: &[Operation],
    ) -> Result<Vec<OperationResult>, TransactError> {
        self.shared.with(|core| {
            let Some(hosted) = core.databases.get_mut(database) else {
                return Err(TransactError::from_wire("unknown database", None, database));
            };
            let (result, changes) = hosted.database.execute(operations);
            core.committed(database, &changes);
            core.retry(Instant::now());
            result
        })
    }

    /// What went over the wire so far.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().traffic.clone()
    }

    /// Waits until what went over the wire fulfils a condition.
    pub async fn traffic_until(&self, holds: impl FnMut(&Traffic) -> bool) -> Traffic {
        let mut seen = self.shared.traffic.subscribe();
        let traffic = seen.wait_for(holds).await.map(|t| t.clone());
        // The sender lives as long as `self`.
        traffic.unwrap_or_default()
    }

    /// Makes a fault befall the next request of a method. Several for one method come one
    /// after the other.
    pub fn on(&self, method: &str, fault: Fault) {
        self.on_nth(method, 0, fault);
    }

    /// The same after `skip` requests of that method went well.
    pub fn on_nth(&self, method: &str, skip: u64, fault: Fault) {
        self.shared.lock().script.add(method, skip, fault);
    }

    /// Whether every fault that was asked for has come.
    pub fn is_script_done(&self) -> bool {
        self.shared.lock().script.is_empty()
    }

    /// Sends bytes in pieces with pauses, or (`None`) as fast as they go.
    pub fn set_pace(&self, pace: Option<Pace>) {
        self.shared.pace.send_replace(pace);
    }

    /// Reads requests and forgets them, probes included, as a stopped process
    /// would; or goes on.
    pub fn freeze(&self, frozen: bool) {
        self.shared.with(|core| core.frozen = frozen);
    }

    /// Drops every connection.
    pub fn disconnect(&self) {
        self.shared.with(|core| core.disconnect(None));
    }

    /// Drops the connections to a member and refuses new ones, or takes them again.
    pub fn set_down(&self, member: usize, down: bool) {
        self.shared.with(|core| {
            if let Some(member) = core.members.get_mut(member) {
                member.down = down;
            }
            if down {
                core.disconnect(Some(member));
            }
        });
    }

    /// Makes a member the leader.
    pub fn lead(&self, member: usize) {
        self.shared.with(|core| core.lead(member));
    }

    /// Cuts a member off from its cluster: it says so, and answers no transaction until
    /// it is back.
    pub fn set_connected(&self, member: usize, connected: bool) {
        self.shared.with(|core| {
            if let Some(member) = core.members.get_mut(member) {
                member.connected = connected;
            }
            core.tell_all();
            core.retry(Instant::now());
        });
    }

    /// Forgets which transactions there were, as a restart from a snapshot does:
    /// nobody can resume from before.
    pub fn forget_history(&self) {
        self.shared.with(|core| core.databases.values_mut().for_each(hosted::Hosted::forget));
    }

    /// Sends every monitor the deletion of a row that never was.
    pub fn send_unknown_row(&self) {
        self.shared.with(|core| core.nonsense());
    }

    /// Changes the schema of a database under its clients.
    ///
    /// # Errors
    /// When there is no such database or its rows do not fit.
    pub fn convert(&self, database: &str, schema: Schema) -> Result<(), TransactError> {
        self.shared.with(|core| core.convert(database, schema))
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.shared.lock().disconnect(None);
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}
