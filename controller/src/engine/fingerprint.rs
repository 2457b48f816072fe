//! What is kept of a unit's facts about Kubernetes objects: enough to notice that
//! they changed.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::facts::{EventFact, Facts, ObjectRef};

/// What is kept of the facts about Kubernetes objects.
pub(super) struct Fingerprints {
    pub(super) objects: Box<[ObjectRef]>,
    pub(super) kube: u64,
    pub(super) events: Box<[u64]>,
}

impl Fingerprints {
    pub(super) fn of(facts: &Facts) -> Self {
        let objects = facts.kube.iter().map(|fact| &fact.object);
        let objects: BTreeSet<_> = objects.chain(facts.events.iter().map(|event| &event.object)).collect();
        Self {
            objects: objects.into_iter().cloned().collect(),
            kube: if facts.kube.is_empty() { 0 } else { fingerprint(&facts.kube) },
            events: facts.events.iter().map(event_fingerprint).collect(),
        }
    }
}

/// Identity of an event's text.
pub fn event_fingerprint(event: &EventFact) -> u64 {
    let mut hasher = DefaultHasher::new();
    event.hash(&mut hasher);
    hasher.finish()
}

fn fingerprint(value: &impl serde::Serialize) -> u64 {
    thread_local! {
        // JSON comes in many small pieces, which a hasher takes at a high price each.
        static TEXT: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    TEXT.with_borrow_mut(|text| {
        text.clear();
        // Facts serialise without fail, and memory takes everything.
        let _ = serde_json::to_writer(&mut *text, value);
        let mut hasher = DefaultHasher::new();
        hasher.write(text);
        hasher.finish()
    })
}
