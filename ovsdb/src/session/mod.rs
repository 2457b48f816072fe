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
//!   a resync): it shows what became of the transaction (of a standalone server; in
//!   a cluster a commit may, rarely, come later still: see the facts in the crate's head);
//! - after each [`Event::Connected`] comes one [`Event::Replaced`], whose changes
//!   are the difference to the replica before: it says "in sync again";
//! - a change of what is followed ([`Session::change`]) leads to updates, or to one more
//!   [`Event::Replaced`], and disturbs nothing else;
//! - a consumer that is too slow loses no state: queued updates collapse into
//!   [`Event::Resync`] and one [`Event::Replaced`].
//!
//! A session is one connection with one monitor. Several sessions of one database share
//! nothing, so that none notices when another loses its connection.
//!
//! # Who waits for whom
//!
//! A caller that commits and then needs what it wrote in the replica that another task
//! keeps waits for its [`Committed::position`] with [`Session::wait_visible`]. The
//! consumer of the events acknowledges a content by asking for the event after it.
//!
//! # Flow inside
//!
//! `driver` moves bytes and time, `protocol` is the sans-I/O state machine, `queue` the
//! bounded event queue with its `position`s; `parked` keeps what waits for a connection,
//! `locks` what locks are wanted, `wanted` and `filter` what is followed, `backoff` when
//! to try again.

mod backoff;
mod command;
mod driver;
mod event;
mod filter;
mod handshake;
mod locks;
mod options;
mod parked;
mod position;
mod protocol;
mod queue;
mod wanted;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use self::command::{Call, ChangeRequest, Command, Request, Requester, Slot, Target};
use crate::endpoint::Endpoint;
use crate::error::{CallError, OperationResult, TransactError, TransactErrorKind};
use crate::op::Operation;
use crate::schema::Schema;

pub use command::{Changed, Committed};
pub use event::{Event, SessionState};
pub use filter::{Filter, FilterError};
pub use locks::{LockNameError, LockState};
pub use options::Options;
pub use position::{Position, StreamEnded};
pub use wanted::Change;

/// Most transactions that may wait, be in flight, or be answered without their reply
/// having been taken; further ones are refused at once.
const MAX_REQUESTS: usize = 65_536;

/// Handle of a session; clones share it. The session ends when all are dropped.
#[derive(Clone)]
pub struct Session {
    commands: mpsc::UnboundedSender<Command>,
    waiting: Arc<AtomicUsize>,
    numbers: Arc<AtomicU64>,
    state: watch::Receiver<SessionState>,
    events: queue::Producer,
    /// How long a call may take over all endpoints.
    call_patience: Duration,
}

/// A transaction under way, made by [`Session::begin`].
#[must_use = "its outcome tells whether it was committed"]
pub struct Transaction {
    number: u64,
    commands: mpsc::UnboundedSender<Command>,
    outcome: oneshot::Receiver<Result<Committed, TransactError>>,
}

impl Transaction {
    /// Asks to give it up (RFC 7047 §4.1.4). [`Self::outcome`] tells whether that came in
    /// time: then it is `Canceled`.
    pub fn cancel(&self) {
        // A session that ended has answered everything.
        let _ = self.commands.send(Command::Cancel(Target::Number(self.number)));
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// Why it was not committed, or is not known to be.
    pub async fn outcome(self) -> Result<Committed, TransactError> {
        self.outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Session {
    /// Starts a session. Never fails: what goes wrong is told by events and
    /// tried again.
    pub fn connect(options: Options) -> (Session, EventStream) {
        let (commands, incoming) = mpsc::unbounded_channel();
        let (producer, consumer) = queue::channel(options.max_queued_changes);
        let (state_sender, state) = watch::channel(SessionState::default());
        let attempts = u32::try_from(options.endpoints.len()).unwrap_or(u32::MAX).clamp(1, 8) + 1;
        let session = Session {
            commands,
            waiting: Arc::new(AtomicUsize::new(0)),
            numbers: Arc::new(AtomicU64::new(0)),
            state,
            events: producer.clone(),
            call_patience: options.request_timeout.saturating_mul(attempts),
        };
        let task = driver::Driver::new(options, incoming, producer, state_sender);
        tokio::spawn(task.run());
        (session, EventStream(consumer))
    }

    /// Sends a transaction without waiting; its outcome comes as
    /// [`Event::Reply`] with this tag. While there is no synced connection the
    /// outcome is `Disconnected` at once.
    pub fn submit(&self, tag: u64, operations: Vec<Operation>) {
        if let Err(error) = self.send(Requester::Tag(tag), operations) {
            self.events.push(Event::Reply { tag, result: Err(error) });
        }
    }

    /// Asks to give up the transactions submitted with a tag (RFC 7047 §4.1.4). Their
    /// replies come all the same: `Canceled`, or whatever was faster.
    pub fn cancel(&self, tag: u64) {
        // A session that ended has answered everything.
        let _ = self.commands.send(Command::Cancel(Target::Tag(tag)));
    }

    /// Runs a transaction and waits for its outcome. While there is no synced
    /// connection it waits for one, at most the request timeout.
    ///
    /// # Errors
    /// Why it was not committed, or is not known to be.
    pub async fn transact(&self, operations: Vec<Operation>) -> Result<Vec<OperationResult>, TransactError> {
        Ok(self.begin(operations)?.outcome().await?.results)
    }

    /// Like [`Self::transact`], and tells where in the change stream the transaction is.
    ///
    /// # Errors
    /// Why it was not committed, or is not known to be.
    pub async fn commit(&self, operations: Vec<Operation>) -> Result<Committed, TransactError> {
        self.begin(operations)?.outcome().await
    }

    /// Begins a transaction that can be cancelled. It goes on if the handle is dropped.
    ///
    /// # Errors
    /// Too many transactions are in flight, or the session has ended.
    pub fn begin(&self, operations: Vec<Operation>) -> Result<Transaction, TransactError> {
        let (sender, outcome) = oneshot::channel();
        let number = self.send(Requester::Call(sender), operations)?;
        Ok(Transaction { number, commands: self.commands.clone(), outcome })
    }

    /// Waits until the consumer of the event stream has dealt with everything up to a
    /// position: until then, to its replica, the transaction has not happened. Never to
    /// be awaited by that consumer itself.
    ///
    /// # Errors
    /// The stream ended before.
    pub async fn wait_visible(&self, position: Position) -> Result<(), StreamEnded> {
        self.events.acknowledged().reached(position).await
    }

    /// Position of the newest content told, taken or not.
    pub fn position(&self) -> Position {
        self.events.newest()
    }

    /// What the consumer of the event stream has dealt with.
    pub fn acknowledged(&self) -> Position {
        self.events.acknowledged().position()
    }

    /// Changes what is followed, and waits until it is so. See [`Change`].
    ///
    /// ```no_run
    /// # async fn demo(session: ovsdb::Session) -> Result<(), ovsdb::CallError> {
    /// use ovsdb::{Change, Filter};
    /// let ports = Filter::equals("type", "").or_includes("addresses", "unknown");
    /// session.change(Change::new().filter("Logical_Switch_Port", ports)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A filter does not fit the schema, or the server refused it: then all is as before.
    pub async fn change(&self, change: Change) -> Result<Changed, CallError> {
        let (respond, answer) = oneshot::channel();
        self.tell(Command::Change(ChangeRequest { change, respond }))?;
        answer.await.unwrap_or(Err(CallError::Ended))
    }

    /// Wants a lock (RFC 7047 §4.1.8), now and after every reconnect, until
    /// [`Self::unlock`]. [`Event::Lock`] tells when it is held. **Locks are per server**:
    /// clients of two members of a cluster hold "the same" lock at the same time.
    ///
    /// # Errors
    /// The name is none.
    pub fn lock(&self, name: &str) -> Result<(), LockNameError> {
        self.want(name, false)
    }

    /// Like [`Self::lock`], but takes it from whoever has it, once (RFC 7047 §4.1.8).
    ///
    /// # Errors
    /// The name is none.
    pub fn steal(&self, name: &str) -> Result<(), LockNameError> {
        self.want(name, true)
    }

    fn want(&self, name: &str, steal: bool) -> Result<(), LockNameError> {
        locks::check_name(name)?;
        // A session that ended holds nothing.
        let _ = self.commands.send(Command::Lock { name: name.into(), steal });
        Ok(())
    }

    /// Gives a lock back, or leaves its queue.
    pub fn unlock(&self, name: &str) {
        let _ = self.commands.send(Command::Unlock(name.into()));
    }

    /// Uses other servers from now on. The connection in use goes on if its endpoint is
    /// still among them, else it is left at once; an empty list leaves every server.
    pub fn set_endpoints(&self, endpoints: Vec<Endpoint>) {
        let _ = self.commands.send(Command::Endpoints(endpoints));
    }

    /// Leaves the connection in use and connects anew, to the same server if it answers.
    pub fn reconnect(&self, reason: &str) {
        let _ = self.commands.send(Command::Reconnect(reason.to_owned()));
    }

    /// Names of the server's databases (RFC 7047 §4.1.1).
    ///
    /// # Errors
    /// No server answered, or none that makes sense.
    pub async fn list_databases(&self) -> Result<Vec<String>, CallError> {
        self.call("list_dbs", json!([])).await
    }

    /// The schema of a database of the server (RFC 7047 §4.1.2).
    ///
    /// # Errors
    /// No server answered, it has no such database, or the schema makes no sense.
    pub async fn get_schema(&self, database: &str) -> Result<Schema, CallError> {
        let method = "get_schema";
        let json: serde_json::Value = self.call(method, json!([database])).await?;
        Schema::parse(&json).map_err(|e| CallError::Unreadable { method, problem: e.to_string() })
    }

    /// The server's own UUID, another after each of its starts (ovsdb-server(7),
    /// "Get Server Id").
    ///
    /// # Errors
    /// No server answered, or it is older than 2.7.
    pub async fn server_id(&self) -> Result<uuid::Uuid, CallError> {
        self.call("get_server_id", json!([])).await
    }

    /// Has the server send a value back (RFC 7047 §4.1.11); how long that took.
    ///
    /// # Errors
    /// No server answered.
    pub async fn echo(&self) -> Result<Duration, CallError> {
        let begin = Instant::now();
        let _: serde_json::Value = self.call("echo", json!(["weir"])).await?;
        Ok(begin.elapsed())
    }

    /// A call that only reads. When its connection fails it is made again on the next.
    async fn call<T: serde::de::DeserializeOwned>(
        &self,
        method: &'static str,
        params: serde_json::Value,
    ) -> Result<T, CallError> {
        let (respond, answer) = oneshot::channel();
        let deadline = Instant::now() + self.call_patience;
        self.tell(Command::Call(Call { method, params, respond, deadline }))?;
        let json = answer.await.unwrap_or(Err(CallError::Ended))?;
        serde_json::from_str(json.get()).map_err(|e| CallError::Unreadable { method, problem: e.to_string() })
    }

    /// Where the session stands.
    pub fn state(&self) -> SessionState {
        let mut state = self.state.borrow().clone();
        state.resyncs += self.events.overflows();
        state
    }

    /// Waits until the session is synced; `false` if it ended.
    pub async fn synced(&self) -> bool {
        self.state.clone().wait_for(|s| s.synced).await.is_ok()
    }

    fn tell(&self, command: Command) -> Result<(), CallError> {
        self.commands.send(command).map_err(|_| CallError::Ended)
    }

    fn send(&self, requester: Requester, operations: Vec<Operation>) -> Result<u64, TransactError> {
        let Some(slot) = Slot::take(&self.waiting, MAX_REQUESTS) else {
            let kind = TransactErrorKind::ResourcesExhausted;
            return Err(TransactError::new(kind, "too many transactions in flight"));
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let request = Request { requester, number, operations, slot };
        self.commands.send(Command::Transact(request)).map_err(|_| ended())?;
        Ok(number)
    }
}

fn ended() -> TransactError {
    TransactError::new(TransactErrorKind::Disconnected, "session ended")
}

/// The events of a session, in order.
pub struct EventStream(queue::Consumer);

impl EventStream {
    /// The next event; `None` once the session has ended. Asking for it acknowledges
    /// the one before. Safe to cancel.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.next().await
    }

    /// The next event if one is waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_next()
    }

    /// Position of the last content taken.
    pub fn position(&self) -> Position {
        self.0.position()
    }
}
