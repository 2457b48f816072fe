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
mod event;
mod handshake;
mod options;
mod protocol;
mod queue;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{OperationResult, TransactError, TransactErrorKind};
use crate::op::Operation;

pub use event::{Event, SessionState};
pub use options::Options;

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
