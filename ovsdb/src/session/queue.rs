//! The bounded event queue between a connection task and its consumer.
//!
//! The producer never blocks: a connection must go on answering probes whatever
//! its consumer does. When more row changes wait than allowed, the waiting contents
//! of each connection collapse into one, at the place of the first: a resync whose
//! replica is the newest and whose changes are computed when it is taken. Contents
//! only ever move forward, so a reply still comes after the changes that it
//! acknowledges, and a loss of connection after the replies that it caused and
//! before the content of the next connection. Too many connections become one (see
//! `fold`). Replies are never dropped: each keeps
//! its transaction's place among those that may be in flight until it is taken, which
//! bounds them.

mod fold;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Event;
use super::command::Slot;
use super::position::Acknowledged;
use crate::error::TransactErrorKind;
use crate::replica::Replica;

pub(super) use super::position::Position;

/// Most waiting events other than replies, however few changes they carry.
const MAX_OTHERS: usize = 65_536;
/// Most waiting losses of connections, each with a content of its own, before the
/// connections become one.
const MAX_LOSSES: usize = 64;

struct State {
    items: VecDeque<Item>,
    /// Items taken so far: the number of the first one that waits.
    taken: u64,
    /// Number of the collapsed content that takes in newer ones.
    open: Option<u64>,
    /// Row changes in waiting `Updated` events.
    changes: usize,
    /// Waiting items that are no replies.
    others: usize,
    /// Waiting `Disconnected` events.
    losses: usize,
    max_changes: usize,
    /// What the consumer was given last, and its position.
    delivered: Option<Replica>,
    delivered_at: Position,
    /// Position of the newest content.
    newest: Position,
    producers_gone: bool,
    consumer_gone: bool,
    overflows: u64,
}

enum Item {
    Event(Event),
    /// A content with its position.
    Content(Event, Position),
    /// The contents of one connection in one; told by `Resync`, then `Replaced`.
    Collapsed {
        announced: bool,
        replica: Replica,
        position: Position,
    },
    /// A reply, and its transaction's place until it is taken.
    Reply {
        event: Event,
        _place: Option<Slot>,
    },
}

impl Item {
    fn is_reply(&self) -> bool {
        matches!(self, Self::Reply { .. })
    }
    fn is_loss(&self) -> bool {
        matches!(self, Self::Event(Event::Disconnected { .. }))
    }
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
    acknowledged: Acknowledged,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing here panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a queue that holds at most `max_changes` row changes.
pub(super) fn channel(max_changes: usize) -> (Producer, Consumer) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            items: VecDeque::new(),
            taken: 0,
            open: None,
            changes: 0,
            others: 0,
            losses: 0,
            max_changes,
            delivered: None,
            delivered_at: Position::default(),
            newest: Position::default(),
            producers_gone: false,
            consumer_gone: false,
            overflows: 0,
        }),
        wake: Notify::new(),
        acknowledged: Acknowledged::default(),
    });
    (Producer(shared.clone()), Consumer(shared))
}

/// The connection task's end. Clones feed the same queue.
#[derive(Clone)]
pub(super) struct Producer(Arc<Shared>);

impl Producer {
    /// Appends an event; collapses the queue if it is full.
    pub(super) fn push(&self, event: Event) {
        self.push_item(event, None);
    }

    /// Appends a reply, with its transaction's place.
    pub(super) fn push_reply(&self, event: Event, slot: Slot) {
        self.push_item(event, Some(slot));
    }

    fn push_item(&self, event: Event, slot: Option<Slot>) {
        let mut state = self.0.lock();
        if state.consumer_gone {
            return;
        }
        state.push(event, slot);
        drop(state);
        self.0.wake.notify_one();
    }

    /// No further event will come: the consumer ends after those that wait.
    pub(super) fn close(&self) {
        self.0.lock().producers_gone = true;
        self.0.wake.notify_one();
    }

    /// Position of the newest content.
    pub(super) fn newest(&self) -> Position {
        self.0.lock().newest
    }

    /// What the consumer has acknowledged.
    pub(super) fn acknowledged(&self) -> &Acknowledged {
        &self.0.acknowledged
    }

    /// How often the queue has collapsed.
    pub(super) fn overflows(&self) -> u64 {
        self.0.lock().overflows
    }
}

/// Whether later content must stay behind this event: that of another connection,
/// and that by which a consumer finds out what became of an unknown outcome.
fn is_boundary(event: &Event) -> bool {
    match event {
        Event::Connected { .. } | Event::Disconnected { .. } => true,
        Event::Reply { result: Err(error), .. } => error.kind == TransactErrorKind::Disconnected,
        _ => false,
    }
}

impl State {
    fn push(&mut self, event: Event, slot: Option<Slot>) {
        if let Event::Updated { replica, .. } | Event::Replaced { replica, .. } = &event {
            self.newest = self.newest.next();
            if self.fold(replica) {
                return;
            }
        }
        match &event {
            Event::Updated { changes, .. } => self.changes += changes.len(),
            event if is_boundary(event) => self.open = None,
            // The collapsed content that waits says it already.
            Event::Resync { .. } if self.open.is_some() => return,
            _ => {}
        }
        let item = match event {
            Event::Updated { .. } | Event::Replaced { .. } => Item::Content(event, self.newest),
            Event::Reply { .. } => Item::Reply { event, _place: slot },
            _ => Item::Event(event),
        };
        self.others += usize::from(!item.is_reply());
        self.losses += usize::from(item.is_loss());
        self.items.push_back(item);
        if self.changes > self.max_changes || self.others > MAX_OTHERS || self.losses > MAX_LOSSES {
            self.collapse();
        }
    }

    /// Takes a newer content into the collapsed one that waits for it, if any.
    fn fold(&mut self, newer: &Replica) -> bool {
        let index = self.open.and_then(|n| usize::try_from(n.checked_sub(self.taken)?).ok());
        match index.and_then(|i| self.items.get_mut(i)) {
            Some(Item::Collapsed { replica, position, .. }) => {
                *replica = newer.clone();
                *position = self.newest;
                true
            }
            _ => false,
        }
    }

    /// Makes one of all waiting contents of each connection.
    fn collapse(&mut self) {
        let mut kept: VecDeque<Item> = VecDeque::new();
        let mut content: Option<usize> = None;
        for item in self.items.drain(..) {
            let (newer, told, at) = match item {
                Item::Content(Event::Updated { replica, .. } | Event::Replaced { replica, .. }, at) => {
                    (replica, false, at)
                }
                Item::Collapsed { announced, replica, position } => (replica, announced, position),
                Item::Event(Event::Resync { .. }) => continue,
                Item::Event(ref event) | Item::Reply { ref event, .. } | Item::Content(ref event, _) => {
                    if is_boundary(event) {
                        content = None;
                    }
                    kept.push_back(item);
                    continue;
                }
            };
            match content.and_then(|at| kept.get_mut(at)) {
                Some(Item::Collapsed { replica, position, .. }) => {
                    *replica = newer;
                    *position = at;
                }
                _ => {
                    content = Some(kept.len());
                    kept.push_back(Item::Collapsed { announced: told, replica: newer, position: at });
                }
            }
        }
        if self.losses > MAX_LOSSES {
            kept = fold::into_one_connection(kept);
            // What comes next is of another connection.
            content = None;
            self.losses = kept.iter().filter(|item| item.is_loss()).count();
        }
        self.open = content.map(|at| self.taken + at as u64);
        self.others = kept.iter().filter(|item| !item.is_reply()).count();
        self.items = kept;
        self.changes = 0;
        self.overflows += 1;
    }

    fn pop(&mut self) -> Option<Event> {
        if let Some(Item::Collapsed { announced: announced @ false, .. }) = self.items.front_mut() {
            *announced = true;
            return Some(Event::Resync { reason: "the consumer is too slow: updates collapsed".into() });
        }
        let item = self.items.pop_front()?;
        self.taken += 1;
        self.others -= usize::from(!item.is_reply());
        self.losses -= usize::from(item.is_loss());
        let event = match item {
            Item::Event(event) | Item::Reply { event, .. } => event,
            Item::Content(event, position) => {
                self.delivered_at = position;
                event
            }
            Item::Collapsed { replica, position, .. } => {
                self.delivered_at = position;
                let changes = match &self.delivered {
                    Some(old) => replica.changes_since(old),
                    None => replica.changes_since(&replica.emptied()),
                };
                Event::Replaced { replica, changes }
            }
        };
        match &event {
            Event::Updated { replica, changes } => {
                self.changes -= changes.len();
                self.delivered = Some(replica.clone());
            }
            Event::Replaced { replica, .. } => self.delivered = Some(replica.clone()),
            _ => {}
        }
        Some(event)
    }
}

/// The consumer's end.
pub(super) struct Consumer(Arc<Shared>);

impl Consumer {
    pub(super) fn try_next(&mut self) -> Option<Event> {
        let mut state = self.0.lock();
        self.0.acknowledged.advance(state.delivered_at);
        state.pop()
    }

    /// Position of the last content taken.
    pub(super) fn position(&self) -> Position {
        self.0.lock().delivered_at
    }

    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            {
                let mut state = self.0.lock();
                self.0.acknowledged.advance(state.delivered_at);
                if let Some(event) = state.pop() {
                    return Some(event);
                }
                if state.producers_gone {
                    self.0.acknowledged.end();
                    return None;
                }
            }
            // A notification sent since the lock was released is kept: there is
            // one waiter, and `notify_one` stores a permit.
            self.0.wake.notified().await;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.consumer_gone = true;
        state.items.clear();
        state.delivered = None;
        drop(state);
        self.0.acknowledged.end();
    }
}

#[cfg(test)]
mod tests;
