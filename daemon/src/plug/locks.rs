//! One lock per container, so that its calls run one after another while
//! other containers' run in parallel; and a way for a DEL to end an ADD that
//! still runs, instead of waiting for what nobody wants any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

/// Locks by container id; those that nobody holds are forgotten.
#[derive(Debug, Default)]
pub struct Locks {
    containers: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
    running: Mutex<Running>,
}

/// Tokens of running ADDs by container and interface.
type Running = HashMap<(String, String), CancellationToken>;

/// A running ADD. Forgotten when dropped.
#[derive(Debug)]
pub struct RunningAdd<'a> {
    locks: &'a Locks,
    key: (String, String),
    /// Cancelled when a DEL wants the container.
    pub cancelled: CancellationToken,
}

impl Drop for RunningAdd<'_> {
    fn drop(&mut self) {
        self.locks.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Locks {
    /// Waits for the container's lock.
    pub async fn lock(&self, container: &str) -> OwnedMutexGuard<()> {
        self.entry(container).lock_owned().await
    }

    /// The container's lock if nobody holds it.
    pub fn try_lock(&self, container: &str) -> Option<OwnedMutexGuard<()>> {
        self.entry(container).try_lock_owned().ok()
    }

    /// Registers an ADD that holds the lock.
    pub fn running(&self, container: &str, interface: &str) -> RunningAdd<'_> {
        let (key, cancelled) = ((container.to_owned(), interface.to_owned()), CancellationToken::new());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.insert(key.clone(), cancelled.clone());
        RunningAdd { locks: self, key, cancelled }
    }

    /// Tells a running ADD of the interface to give up.
    pub fn cancel_add(&self, container: &str, interface: &str) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = running.get(&(container.to_owned(), interface.to_owned())) {
            token.cancel();
        }
    }

    fn entry(&self, container: &str) -> Arc<AsyncMutex<()>> {
        let mut map = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = map.get(container).and_then(Weak::upgrade) {
            return lock;
        }
        map.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::default());
        map.insert(container.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_container_at_a_time_others_freely() {
        let locks = Locks::default();
        let held = locks.lock("a").await;
        assert!(locks.try_lock("a").is_none());
        assert!(locks.try_lock("b").is_some());
        drop(held);
        assert!(locks.try_lock("a").is_some());
        assert!(locks.containers.lock().unwrap().len() <= 2);
    }

    #[test]
    fn a_running_add_can_be_told_to_give_up() {
        let locks = Locks::default();
        let add = locks.running("a", "eth0");
        locks.cancel_add("a", "net1");
        assert!(!add.cancelled.is_cancelled());
        locks.cancel_add("a", "eth0");
        assert!(add.cancelled.is_cancelled());
        drop(add);
        locks.cancel_add("a", "eth0");
        assert!(locks.running.lock().unwrap().is_empty());
    }
}
