//! Locks of a session (RFC 7047 §4.1.8–4.1.10), without I/O.
//!
//! A lock belongs to one **server**, not to a database and not to a cluster: two
//! clients of two members both hold "the same" lock. Use it to choose among the clients
//! of one server, or together with `leader_only` and a fence that the database itself
//! checks; never as the only guard of a cluster's content.
//!
//! A session keeps the set of locks that its holder wants. They are asked for on every
//! new connection, since the server forgets them with the old one. A stolen lock stays
//! wanted: the server puts the victim at the head of its queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where a wanted lock stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Another client of the server has it; we are in its queue.
    Waiting,
    /// We have it: an [`Operation::Assert`](crate::Operation::Assert) of it holds.
    Held,
    /// Another client took it by force; we are at the head of its queue.
    Stolen,
    /// The connection was lost and the lock with it. It is asked for again.
    Lost,
    /// It was given back, as asked.
    Released,
    /// The server refused it; its reason. It is not asked for again.
    Refused(String),
}

/// A lock's name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a lock: letters, digits and underscores, not a digit first (RFC 7047 §3.1)")]
pub struct LockNameError(pub String);

/// Checks a name against `<id>` of RFC 7047 §3.1.
pub(super) fn check_name(name: &str) -> Result<(), LockNameError> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let fits = name.chars().all(word) && !name.starts_with(|c: char| c.is_ascii_digit());
    if fits && !name.is_empty() { Ok(()) } else { Err(LockNameError(name.to_owned())) }
}

/// A request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LockCall {
    Lock(Arc<str>),
    Steal(Arc<str>),
    Unlock(Arc<str>),
}

#[derive(Debug, Default)]
struct Entry {
    /// Asked for on this connection.
    asked: bool,
    held: bool,
    /// The next request is to take it by force.
    steal: bool,
}

/// The wanted locks.
#[derive(Debug, Default)]
pub(super) struct Locks {
    entries: BTreeMap<Arc<str>, Entry>,
    /// Unlocks not yet answered: what is told of the name until then concerns the
    /// lock given back.
    unlocking: BTreeMap<Arc<str>, usize>,
    connected: bool,
    /// Changes whenever what is held does.
    version: u64,
}

impl Locks {
    /// A number that changes whenever what is held does.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The locks held.
    pub(super) fn held(&self) -> BTreeSet<Arc<str>> {
        self.entries.iter().filter(|(_, entry)| entry.held).map(|(name, _)| name.clone()).collect()
    }

    /// A lock is wanted; what to send.
    pub(super) fn want(&mut self, name: Arc<str>, steal: bool) -> Vec<LockCall> {
        let entry = self.entries.entry(name.clone()).or_default();
        if entry.held || (entry.asked && !steal) {
            return Vec::new();
        }
        entry.steal = steal;
        let again = entry.asked;
        let mut calls = Vec::new();
        if self.connected {
            // A client asks only once for a lock: to steal it leaves the queue first.
            if again {
                calls.push(self.unlocked(name.clone()));
            }
            calls.push(self.ask(name));
        }
        calls
    }

    fn unlocked(&mut self, name: Arc<str>) -> LockCall {
        *self.unlocking.entry(name.clone()).or_default() += 1;
        LockCall::Unlock(name)
    }

    fn ask(&mut self, name: Arc<str>) -> LockCall {
        let Some(entry) = self.entries.get_mut(&name) else { return LockCall::Lock(name) };
        entry.asked = true;
        // Once: a victim of the next connection is not to blame for this one.
        if std::mem::take(&mut entry.steal) { LockCall::Steal(name) } else { LockCall::Lock(name) }
    }

    /// A lock is no longer wanted; what to send, and whether it was wanted at all.
    pub(super) fn give_back(&mut self, name: &Arc<str>) -> (Option<LockCall>, bool) {
        let Some(entry) = self.entries.remove(name) else { return (None, false) };
        self.version += 1;
        let call = (self.connected && entry.asked).then(|| self.unlocked(name.clone()));
        (call, true)
    }

    /// A server was accepted; what to ask of it.
    pub(super) fn connect(&mut self) -> Vec<LockCall> {
        if std::mem::replace(&mut self.connected, true) {
            return Vec::new();
        }
        let names: Vec<Arc<str>> = self.entries.keys().cloned().collect();
        names.into_iter().map(|name| self.ask(name)).collect()
    }

    /// The connection is gone; the locks lost with it.
    pub(super) fn disconnect(&mut self) -> Vec<Arc<str>> {
        self.connected = false;
        self.unlocking.clear();
        self.version += 1;
        let mut lost = Vec::new();
        for (name, entry) in &mut self.entries {
            entry.asked = false;
            if std::mem::take(&mut entry.held) {
                lost.push(name.clone());
            }
        }
        lost
    }

    /// A lock or steal was answered; what became of it, if it is still wanted.
    pub(super) fn answered(&mut self, name: &Arc<str>, locked: Result<bool, String>) -> Option<LockState> {
        if self.unlocking.contains_key(name) {
            return None;
        }
        self.version += 1;
        match locked {
            Ok(locked) => {
                let entry = self.entries.get_mut(name)?;
                entry.held = locked;
                Some(if locked { LockState::Held } else { LockState::Waiting })
            }
            Err(reason) => {
                self.entries.remove(name)?;
                Some(LockState::Refused(reason))
            }
        }
    }

    /// An unlock was answered.
    pub(super) fn unlock_answered(&mut self, name: &Arc<str>) {
        if let Some(count) = self.unlocking.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.unlocking.remove(name);
            }
        }
    }

    /// A notification `locked` or `stolen` came.
    pub(super) fn notified(&mut self, name: &str, held: bool) -> Option<(Arc<str>, LockState)> {
        if self.unlocking.contains_key(name) {
            return None;
        }
        let key = self.entries.get_key_value(name)?.0.clone();
        let entry = self.entries.get_mut(name)?;
        if entry.held == held {
            return None;
        }
        entry.held = held;
        self.version += 1;
        Some((key, if held { LockState::Held } else { LockState::Stolen }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Arc<str> {
        "l".into()
    }

    #[test]
    fn a_wanted_lock_is_asked_for_on_every_connection_and_stolen_once() {
        let mut locks = Locks::default();
        assert_eq!(locks.want(name(), true), []);
        assert_eq!(locks.connect(), [LockCall::Steal(name())]);
        assert_eq!(locks.connect(), [], "one connection, one request");
        assert_eq!(locks.answered(&name(), Ok(true)), Some(LockState::Held));
        assert_eq!(locks.held().len(), 1);
        assert_eq!(locks.disconnect(), [name()]);
        assert!(locks.held().is_empty());
        assert_eq!(locks.connect(), [LockCall::Lock(name())]);
        assert_eq!(locks.answered(&name(), Ok(false)), Some(LockState::Waiting));
        assert_eq!(locks.disconnect(), Vec::<Arc<str>>::new());
    }

    #[test]
    fn notifications_move_a_lock() {
        let mut locks = Locks::default();
        locks.connect();
        assert_eq!(locks.want(name(), false), [LockCall::Lock(name())]);
        assert_eq!(locks.want(name(), false), [], "already in the queue");
        locks.answered(&name(), Ok(false));
        assert_eq!(locks.notified("l", true), Some((name(), LockState::Held)));
        assert_eq!(locks.notified("l", true), None);
        assert_eq!(locks.notified("l", false), Some((name(), LockState::Stolen)));
        assert_eq!(locks.notified("other", true), None);
        // To take it back by force it has to leave the queue.
        assert_eq!(locks.want(name(), true), [LockCall::Unlock(name()), LockCall::Steal(name())]);
    }

    #[test]
    fn what_concerns_a_lock_given_back_is_ignored() {
        let mut locks = Locks::default();
        locks.connect();
        locks.want(name(), false);
        assert_eq!(locks.give_back(&name()), (Some(LockCall::Unlock(name())), true));
        assert_eq!(locks.give_back(&name()), (None, false));
        assert_eq!(locks.want(name(), false), [LockCall::Lock(name())]);
        // The server granted the first request before it saw the unlock.
        assert_eq!(locks.answered(&name(), Ok(true)), None);
        assert_eq!(locks.notified("l", true), None);
        locks.unlock_answered(&name());
        assert_eq!(locks.answered(&name(), Ok(false)), Some(LockState::Waiting));
        assert_eq!(locks.answered(&name(), Err("no".into())), Some(LockState::Refused("no".into())));
        assert!(locks.connect().is_empty());
    }

    #[test]
    fn names_are_ids() {
        for good in ["a", "_", "ovn_northd", "A1"] {
            check_name(good).unwrap();
        }
        for bad in ["", "1a", "a-b", "ä", "a b"] {
            assert_eq!(check_name(bad).unwrap_err().0, bad);
        }
    }
}
