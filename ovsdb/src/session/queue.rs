//! The bounded event queue between a connection task and its consumer.
//!
//! The producer never blocks: a connection must go on answering probes whatever
//! its consumer does. When more row changes wait than allowed, all waiting
//! updates collapse into one resync whose replica is the newest and whose changes
//! are computed when it is taken. Replies are never dropped (they are bounded by
//! the requests in flight) and still come after the changes that they acknowledge.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Event;
use crate::replica::Replica;

/// Most waiting events other than replies, however few changes they carry.
const MAX_OTHERS: usize = 65_536;

struct State {
    events: VecDeque<Event>,
    /// Row changes in waiting `Updated` events.
    changes: usize,
    /// Waiting events that are no replies.
    others: usize,
    max_changes: usize,
    /// What the consumer has seen last.
    delivered: Option<Replica>,
    /// What to bring the consumer to after a collapse; delivered before `events`.
    collapsed: Option<Collapsed>,
    producers_gone: bool,
    consumer_gone: bool,
    overflows: u64,
}

#[derive(Default)]
struct Collapsed {
    /// Connected events that lead up to the replica.
    before: Vec<Event>,
    announced: bool,
    replica: Option<Replica>,
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
            events: VecDeque::new(),
            changes: 0,
            others: 0,
            max_changes,
            delivered: None,
            collapsed: None,
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

impl State {
    fn push(&mut self, event: Event) {
        match &event {
            Event::Updated { replica, changes } => {
                if self.fold_into_collapsed(replica) {
                    return;
                }
                self.changes += changes.len();
            }
            Event::Replaced { replica, .. } if self.fold_into_collapsed(replica) => return,
            _ => {}
        }
        self.others += usize::from(!matches!(event, Event::Reply { .. }));
        self.events.push_back(event);
        if self.changes > self.max_changes || self.others > MAX_OTHERS {
            self.collapse();
        }
    }

    /// While a collapsed replica waits at the front it takes newer ones in. A
    /// later connection in the queue ends that: its content must come after it.
    fn fold_into_collapsed(&mut self, replica: &Replica) -> bool {
        let reconnected = self.events.iter().any(|e| matches!(e, Event::Connected { .. }));
        match &mut self.collapsed {
            Some(collapsed) if !reconnected => {
                collapsed.replica = Some(replica.clone());
                true
            }
            _ => false,
        }
    }

    /// Drops all waiting contents but the newest, keeps replies in order.
    fn collapse(&mut self) {
        let mut newest = None;
        let mut connection = Vec::new();
        let mut kept = VecDeque::new();
        for event in self.events.drain(..) {
            match event {
                Event::Updated { replica, .. } | Event::Replaced { replica, .. } => newest = Some(replica),
                Event::Resync { .. } => {}
                Event::Connected { .. } => connection = vec![event],
                Event::Disconnected { .. } => {
                    // Only the last state of the connection matters by now, but a
                    // loss that nothing follows must be told after the replies.
                    connection.clear();
                    kept.retain(|e| !matches!(e, Event::Disconnected { .. }));
                    kept.push_back(event);
                }
                Event::Reply { .. } => kept.push_back(event),
            }
        }
        if !connection.is_empty() {
            kept.retain(|e| !matches!(e, Event::Disconnected { .. }));
        }
        let earlier = self.collapsed.take().unwrap_or_default();
        self.collapsed = Some(Collapsed {
            before: if connection.is_empty() { earlier.before } else { connection },
            announced: earlier.announced,
            replica: newest.or(earlier.replica),
        });
        self.others = kept.iter().filter(|e| !matches!(e, Event::Reply { .. })).count();
        self.events = kept;
        self.changes = 0;
        self.overflows += 1;
    }

    fn pop(&mut self) -> Option<Event> {
        if let Some(collapsed) = &mut self.collapsed {
            if let Some(event) = collapsed.before.pop() {
                return Some(event);
            }
            if !collapsed.announced {
                collapsed.announced = true;
                return Some(Event::Resync { reason: "the consumer is too slow: updates collapsed".into() });
            }
            if let Some(replica) = self.collapsed.take().and_then(|c| c.replica) {
                let changes = match &self.delivered {
                    Some(old) => replica.changes_since(old),
                    None => replica.changes_since(&replica.emptied()),
                };
                self.delivered = Some(replica.clone());
                return Some(Event::Replaced { replica, changes });
            }
        }
        let event = self.events.pop_front()?;
        self.others -= usize::from(!matches!(event, Event::Reply { .. }));
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
        state.events.clear();
        state.collapsed = None;
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
    fn connections_within_an_overflow_end_in_the_last_state() {
        let (mut source, mut consumer) = queue(2);
        source.connected();
        source.disconnected();
        source.connected();
        (0..4).for_each(|i| source.update(&format!("a{i}")));
        // A second overflow before the first is taken.
        source.disconnected();
        source.connected();
        (4..8).for_each(|i| source.update(&format!("a{i}")));
        assert_eq!(drain(&mut consumer), "C S R8(8)");
        (8..12).for_each(|i| source.update(&format!("a{i}")));
        source.reply(1);
        source.disconnected();
        assert_eq!(drain(&mut consumer), "S R12(4) r1 D");
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
