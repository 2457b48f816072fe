//! How far a consumer has come in a session's change stream.
//!
//! Every content that a session tells ([`Event::Replaced`](super::Event::Replaced),
//! [`Event::Updated`](super::Event::Updated)) has a [`Position`]. A consumer
//! acknowledges one by asking for the event after it. So anyone can wait until "my
//! transaction is visible" to whoever keeps a replica from the stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// The place of a content in the change stream of one session: later contents have
/// greater positions, across reconnects too. Nothing has been told at the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The session or its event stream is gone, so nobody will come to see a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event stream ended before the position was reached")]
pub struct StreamEnded;

/// What the consumer has acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    position: AtomicU64,
    ended: AtomicBool,
    moved: Notify,
}

impl Acknowledged {
    pub(super) fn position(&self) -> Position {
        Position(self.position.load(Ordering::Acquire))
    }

    /// The consumer has dealt with everything up to there.
    pub(super) fn advance(&self, position: Position) {
        if self.position.swap(position.0, Ordering::AcqRel) != position.0 {
            self.moved.notify_waiters();
        }
    }

    /// No further position will be acknowledged.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Waits until a position is acknowledged.
    pub(super) async fn reached(&self, position: Position) -> Result<(), StreamEnded> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            // Counted as waiting before looking, so that no move is missed.
            moved.as_mut().enable();
            if self.position() >= position {
                return Ok(());
            }
            if self.ended.load(Ordering::Acquire) {
                return Err(StreamEnded);
            }
            moved.await;
        }
    }
}
