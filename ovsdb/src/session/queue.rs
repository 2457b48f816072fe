//! The bounded event queue between a connection task and its consumer.
//!
//! The producer never blocks: a connection must go on answering probes whatever
//! its consumer does. When more row changes wait than allowed, the waiting contents
//! of each connection collapse into one, at the place of the first: a resync whose
//! replica is the newest and whose changes are computed when it is taken. Contents
//! only ever move forward, so a reply still comes after the changes that it
//! acknowledges, and a loss of connection after the replies that it caused and
//! before the content of the next connection. Replies are never dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Event;
use crate::error::TransactErrorKind;
use crate::replica::Replica;

/// Most waiting events other than replies, however few changes they carry.
const MAX_OTHERS: usize = 65_536;

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
    max_changes: usize,
    /// What the consumer has seen last.
    delivered: Option<Replica>,
    producers_gone: bool,
    consumer_gone: bool,
    overflows: u64,
}

enum Item {
    Event(Event),
    /// The contents of one connection in one; told by `Resync`, then `Replaced`.
    Collapsed {
        announced: bool,
        replica: Replica,
    },
}

impl Item {
    fn is_reply(&self) -> bool {
        matches!(self, Self::Event(Event::Reply { .. }))
    }
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
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
            max_changes,
            delivered: None,
            producers_gone: false,
            consumer_gone: false,
            overflows: 0,
        }),
        wake: Notify::new(),
    });
    (Producer(shared.clone()), Consumer(shared))
}

/// The connection task's end. Clones feed the same queue.
#[derive(Clone)]
pub(super) struct Producer(Arc<Shared>);

impl Producer {
    /// Appends an event; collapses the queue if it is full.
    pub(super) fn push(&self, event: Event) {
        let mut state = self.0.lock();
        if state.consumer_gone {
            return;
        }
        state.push(event);
        drop(state);
        self.0.wake.notify_one();
    }

    /// No further event will come: the consumer ends after those that wait.
    pub(super) fn close(&self) {
        self.0.lock().producers_gone = true;
        self.0.wake.notify_one();
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
    fn push(&mut self, event: Event) {
        match &event {
            Event::Updated { replica, .. } | Event::Replaced { replica, .. } if self.fold(replica) => return,
            Event::Updated { changes, .. } => self.changes += changes.len(),
            event if is_boundary(event) => self.open = None,
            // The collapsed content that waits says it already.
            Event::Resync { .. } if self.open.is_some() => return,
            _ => {}
        }
        let item = Item::Event(event);
        self.others += usize::from(!item.is_reply());
        self.items.push_back(item);
        if self.changes > self.max_changes || self.others > MAX_OTHERS {
            self.collapse();
        }
    }

    /// Takes a newer content into the collapsed one that waits for it, if any.
    fn fold(&mut self, newer: &Replica) -> bool {
        let index = self.open.and_then(|n| usize::try_from(n.checked_sub(self.taken)?).ok());
        match index.and_then(|i| self.items.get_mut(i)) {
            Some(Item::Collapsed { replica, .. }) => {
                *replica = newer.clone();
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
            let (newer, told) = match item {
                Item::Event(Event::Updated { replica, .. } | Event::Replaced { replica, .. }) => {
                    (replica, false)
                }
                Item::Collapsed { announced, replica } => (replica, announced),
                Item::Event(Event::Resync { .. }) => continue,
                Item::Event(event) => {
                    if is_boundary(&event) {
                        content = None;
                    }
                    kept.push_back(Item::Event(event));
                    continue;
                }
            };
            match content.and_then(|at| kept.get_mut(at)) {
                Some(Item::Collapsed { replica, .. }) => *replica = newer,
                _ => {
                    content = Some(kept.len());
                    kept.push_back(Item::Collapsed { announced: told, replica: newer });
                }
            }
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
        let event = match item {
            Item::Event(event) => event,
            Item::Collapsed { replica, .. } => {
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
        self.0.lock().pop()
    }

    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            {
                let mut state = self.0.lock();
                if let Some(event) = state.pop() {
                    return Some(event);
                }
                if state.producers_gone {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::op::Operation;
    use crate::testing::{Database, northbound};

    /// A database whose every transaction becomes an event.
    struct Source(Database, Producer);

    impl Source {
        fn update(&mut self, name: &str) {
            let changes = self.0.must(&[Operation::insert("Logical_Switch").column("name", name).build()]);
            self.1.push(Event::Updated { replica: self.0.replica(), changes });
        }
        fn reply(&self, tag: u64) {
            self.1.push(Event::Reply { tag, result: Ok(Vec::new()) });
        }
        fn connected(&self) {
            let (endpoint, schema) = (Endpoint::Unix("s".into()), self.0.schema().clone());
            self.1.push(Event::Connected { endpoint, schema, missing: Vec::new() });
            self.1.push(Event::Replaced { replica: self.0.replica(), changes: Vec::new() });
        }
        fn disconnected(&self) {
            self.1.push(Event::Disconnected { reason: "gone".into() });
        }
    }

    fn queue(max: usize) -> (Source, Consumer) {
        let (producer, consumer) = channel(max);
        (Source(Database::new(northbound()), producer), consumer)
    }

    /// A letter for each event; contents with the number of their rows.
    fn drain(consumer: &mut Consumer) -> String {
        let one = |event| match event {
            Event::Connected { .. } => "C".to_owned(),
            Event::Disconnected { .. } => "D".into(),
            Event::Resync { .. } => "S".into(),
            Event::Replaced { replica, changes } => format!("R{}({})", replica.row_count(), changes.len()),
            Event::Updated { replica, .. } => format!("U{}", replica.row_count()),
            Event::Reply { tag, .. } => format!("r{tag}"),
        };
        std::iter::from_fn(|| consumer.try_next()).map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_fits_comes_as_it_was_sent() {
        let (mut source, mut consumer) = queue(10);
        source.connected();
        source.update("a");
        source.reply(1);
        source.disconnected();
        assert_eq!(drain(&mut consumer), "C R0(0) U1 r1 D");
    }

    #[test]
    fn overflow_collapses_contents_and_keeps_replies_after_them() {
        let (mut source, mut consumer) = queue(2);
        source.connected();
        source.update("a");
        assert_eq!(drain(&mut consumer), "C R0(0) U1");
        for i in 0..5 {
            source.update(&format!("b{i}"));
            source.reply(i);
        }
        // All five rows come as one difference to what was delivered, then replies.
        assert_eq!(drain(&mut consumer), "S R6(5) r0 r1 r2 r3 r4");
        assert_eq!(source.1.overflows(), 1);
        source.update("c");
        assert_eq!(drain(&mut consumer), "U7");
    }

    #[test]
    fn each_connection_within_an_overflow_has_its_own_content() {
        let (mut source, mut consumer) = queue(2);
        source.connected();
        source.update("a0");
        source.reply(1);
        source.disconnected();
        source.connected();
        (1..5).for_each(|i| source.update(&format!("a{i}")));
        source.reply(2);
        // What comes later on the same connection is taken in.
        source.update("a5");
        assert_eq!(drain(&mut consumer), "C S R1(1) r1 D C S R6(5) r2");
        (6..10).for_each(|i| source.update(&format!("a{i}")));
        assert!(matches!(consumer.try_next(), Some(Event::Resync { .. })));
        // Even after it was announced, but not across connections.
        source.update("b");
        source.disconnected();
        source.connected();
        source.update("c");
        assert_eq!(drain(&mut consumer), "R11(5) D C R11(0) U12");
    }

    #[test]
    fn content_that_resolves_an_unknown_outcome_stays_behind_it() {
        let (mut source, mut consumer) = queue(1);
        source.connected();
        (0..3).for_each(|i| source.update(&format!("a{i}")));
        let error = crate::TransactError::new(TransactErrorKind::Disconnected, "not in sync");
        source.1.push(Event::Reply { tag: 1, result: Err(error) });
        (3..6).for_each(|i| source.update(&format!("a{i}")));
        assert_eq!(drain(&mut consumer), "C S R3(3) r1 S R6(3)");
    }

    #[tokio::test]
    async fn the_end_comes_after_what_waits() {
        let (source, mut consumer) = queue(2);
        source.reply(1);
        source.1.close();
        assert!(matches!(consumer.next().await, Some(Event::Reply { tag: 1, .. })));
        assert!(consumer.next().await.is_none());
    }
}
