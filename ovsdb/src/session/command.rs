//! What the holders of a session ask of its connection task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::queue::Position;
use super::wanted::Change;
use crate::endpoint::Endpoint;
use crate::error::{CallError, OperationResult, TransactError, TransactErrorKind};
use crate::op::Operation;

/// A committed transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// The result of every operation.
    pub results: Vec<OperationResult>,
    /// What the transaction changed is in the content with this position, see
    /// [`Session::wait_visible`](super::Session::wait_visible).
    pub position: Position,
}

/// A change of what is followed, made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The content with this position is the first that shows it.
    pub position: Position,
    /// Wanted columns that the server lacks.
    pub missing: Vec<(String, String)>,
}

/// Who waits for a transaction's outcome.
pub(super) enum Requester {
    Tag(u64),
    Call(oneshot::Sender<Result<Committed, TransactError>>),
}

/// A transaction on its way to the connection task, and until it is answered.
pub(super) struct Request {
    pub(super) requester: Requester,
    /// Number within the session, to name it in a cancellation.
    pub(super) number: u64,
    pub(super) operations: Vec<Operation>,
    pub(super) slot: Slot,
}

impl Request {
    /// Whether a cancellation means this one.
    pub(super) fn is(&self, target: Target) -> bool {
        match (target, &self.requester) {
            (Target::Number(number), _) => self.number == number,
            (Target::Tag(tag), Requester::Tag(own)) => *own == tag,
            (Target::Tag(_), Requester::Call(_)) => false,
        }
    }
}

/// A place among the requests that may be in flight.
#[derive(Debug)]
pub(super) struct Slot(Arc<AtomicUsize>);

impl Slot {
    /// Takes a place, if fewer than `most` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let slot = Self(taken.clone());
        (before < most).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A transaction to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Tag(u64),
    Number(u64),
}

/// A call that may be repeated: it reads only.
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) params: serde_json::Value,
    pub(super) respond: oneshot::Sender<Result<Box<RawValue>, CallError>>,
    /// When it is given up, over all connections.
    pub(super) deadline: Instant,
}

/// A change of what is followed and who waits for it.
pub(super) struct ChangeRequest {
    pub(super) change: Change,
    pub(super) respond: oneshot::Sender<Result<Changed, CallError>>,
}

/// Something asked of the connection task.
pub(super) enum Command {
    Transact(Request),
    Cancel(Target),
    Call(Call),
    Change(ChangeRequest),
    Lock { name: Arc<str>, steal: bool },
    Unlock(Arc<str>),
    Endpoints(Vec<Endpoint>),
    Reconnect(String),
}

/// The outcome of a transaction that was never sent.
pub(super) fn not_connected() -> TransactError {
    TransactError::new(TransactErrorKind::Disconnected, "not connected to the database")
}

/// The outcome of a transaction cancelled before it was sent.
pub(super) fn cancelled_unsent() -> TransactError {
    TransactError::new(TransactErrorKind::Canceled, "cancelled before it was sent")
}
