//! What becomes of a queue whose consumer sleeps through many connections: one
//! connection, whose content is the newest.

use std::collections::{BTreeMap, VecDeque};

use super::{Item, is_boundary};
use crate::session::Event;

/// Folds the connections of a collapsed queue, the last of which was just lost, into one.
/// Replies stay: those of unknown outcome at its end, before the content of the next
/// connection that resolves them, all others behind the content that they acknowledge.
pub(super) fn into_one_connection(items: VecDeque<Item>) -> VecDeque<Item> {
    let (mut before, mut connected, mut content, mut ended) = (None, None, None, None);
    let (mut unknown, mut known, mut schemas) = (Vec::new(), Vec::new(), Vec::new());
    let mut locks = BTreeMap::new();
    for item in items {
        match item {
            Item::Event(Event::Connected { .. }) => connected = Some(item),
            // The end of the connection that the consumer knows.
            Item::Event(Event::Disconnected { .. }) if connected.is_none() => before = Some(item),
            Item::Event(Event::Disconnected { .. }) => ended = Some(item),
            Item::Event(Event::Lock { ref name, .. }) => {
                locks.insert(name.clone(), item);
            }
            Item::Event(_) => schemas.push(item),
            Item::Reply { ref event, .. } if is_boundary(event) => unknown.push(item),
            Item::Reply { .. } => known.push(item),
            Item::Content(..) => content = Some(item),
            Item::Collapsed { replica, position, .. } => {
                content = Some(Item::Collapsed { announced: false, replica, position });
            }
        }
    }
    let mut folded: VecDeque<Item> = before.into_iter().chain(connected).collect();
    folded.extend(schemas.into_iter().chain(content).chain(known).chain(locks.into_values()));
    folded.extend(unknown.into_iter().chain(ended));
    folded
}
