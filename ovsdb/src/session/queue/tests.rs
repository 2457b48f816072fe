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
        other => format!("{other:?}"),
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

#[tokio::test]
async fn asking_for_more_acknowledges_what_was_taken() {
    let (mut source, mut consumer) = queue(100);
    source.update("a");
    let first = source.1.newest();
    source.update("b");
    let second = source.1.newest();
    assert!(Position::default() < first && first < second);
    let seen = source.1.acknowledged();
    consumer.next().await.unwrap();
    assert_eq!((consumer.position(), seen.position()), (first, Position::default()));
    consumer.next().await.unwrap();
    assert_eq!((consumer.position(), seen.position()), (second, first));
    seen.reached(first).await.unwrap();
    let mut waiting = Box::pin(seen.reached(second));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert!(consumer.try_next().is_none());
    waiting.await.unwrap();
    drop(consumer);
    assert!(seen.reached(second.next()).await.is_err());
}

#[test]
fn a_collapsed_content_has_the_position_of_its_newest() {
    let (mut source, mut consumer) = queue(2);
    (0..5).for_each(|i| source.update(&format!("a{i}")));
    let newest = source.1.newest();
    assert_eq!(drain(&mut consumer), "S R5(5)");
    assert_eq!(consumer.position(), newest);
    assert_eq!(source.1.acknowledged().position(), newest);
}

#[test]
fn replies_keep_their_place_until_they_are_taken() {
    let (source, mut consumer) = queue(2);
    let taken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for tag in 0..2 {
        let slot = Slot::take(&taken, 2).unwrap();
        source.1.push_reply(Event::Reply { tag, result: Ok(Vec::new()) }, slot);
    }
    assert!(Slot::take(&taken, 2).is_none());
    consumer.try_next().unwrap();
    assert!(Slot::take(&taken, 2).is_some());
}

#[test]
fn a_consumer_that_sleeps_through_everything_costs_a_bounded_queue() {
    let (mut source, mut consumer) = queue(10);
    let lost = || Err(crate::TransactError::new(TransactErrorKind::Disconnected, "gone"));
    source.connected();
    assert_eq!(drain(&mut consumer), "C R0(0)");
    let mut most = 0;
    for round in 0..1000u64 {
        (0..8).for_each(|i| source.update(&format!("{round}.{i}")));
        source.reply(round * 2);
        source.1.push(Event::Reply { tag: round * 2 + 1, result: lost() });
        source.disconnected();
        source.connected();
        most = most.max(consumer.0.lock().others);
    }
    // Contents, connections and losses; replies are bounded by their places.
    assert!(most < 5 * MAX_LOSSES, "{most} waiting events");
    let rows = source.0.replica().row_count();
    let told = drain(&mut consumer);
    let (mut connected, mut seen, mut replies) = (true, 0, 0);
    let mut unresolved = false;
    for event in told.split(' ') {
        match event.split_at(1) {
            ("C", _) => connected = true,
            ("D", _) => connected = false,
            ("S", _) => {}
            ("R" | "U", content) => {
                assert!(connected, "a content without a connection");
                seen = content.split('(').next().unwrap().parse().unwrap();
                unresolved = false;
            }
            ("r", tag) => {
                let tag: usize = tag.parse().unwrap();
                replies += 1;
                unresolved |= tag % 2 == 1;
                // A reply comes after the eight rows of its round and of those before.
                assert!(tag % 2 == 1 || seen >= (tag / 2 + 1) * 8, "reply {tag} before its content");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((replies, seen, unresolved), (2000, rows, false));
}
