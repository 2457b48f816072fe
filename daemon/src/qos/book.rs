//! What holds the limits of each port now: for `explain`, metrics and the decision whether to look again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::effect::Effect;
use crate::ovs::PortQos;

/// A limited port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// What is asked for.
    pub wanted: PortQos,
    /// How it is held.
    pub effect: Effect,
}

/// Limited ports by the name of their interface in the switch.
#[derive(Debug, Default)]
pub struct Book(Mutex<BTreeMap<String, Entry>>);

impl Book {
    /// A port's entry.
    pub fn get(&self, name: &str) -> Option<Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Notes what was found; a port without limits is forgotten. Returns whether that is news.
    pub fn put(&self, name: &str, wanted: &PortQos, effect: Effect) -> bool {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted == PortQos::default() {
            return entries.remove(name).is_some();
        }
        let entry = Entry { wanted: wanted.clone(), effect };
        let news = entries.get(name) != Some(&entry);
        entries.insert(name.to_owned(), entry);
        news
    }

    /// Forgets a port. Returns whether it was known.
    pub fn forget(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }

    /// Forgets ports that are gone. Returns whether there was one.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) -> bool {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = entries.len();
        entries.retain(|name, _| exists(name));
        entries.len() != before
    }

    /// All entries.
    pub fn all(&self) -> BTreeMap<String, Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of limited ports by direction and mechanism.
    pub fn counts(&self) -> BTreeMap<(&'static str, &'static str), i64> {
        let mut counts = BTreeMap::new();
        for entry in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            for (direction, hold) in [("egress", &entry.effect.egress), ("ingress", &entry.effect.ingress)] {
                *counts.entry((direction, hold.as_str())).or_default() += 1;
            }
        }
        counts
    }
}
