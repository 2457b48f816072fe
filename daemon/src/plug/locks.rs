//! One lock per container, so that its calls run one after another while
//! other containers' run in parallel; and a way for a DEL to end an ADD that
//! still runs, instead of waiting for what nobody wants any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

/// Locks by container id; those that nobody holds are forgotten.
#[derive(Debug, Default)]
pub struct Locks {
    containers: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
    running: Arc<Mutex<Running>>,
}

/// Tokens of ADDs, by a number of their own, by container and interface.
#[derive(Debug, Default)]
struct Running {
    last: u64,
    adds: HashMap<(String, String), BTreeMap<u64, CancellationToken>>,
}

/// An ADD that runs, or waits for the container's lock. Forgotten when dropped.
#[derive(Debug)]
pub struct RunningAdd {
    all: Arc<Mutex<Running>>,
    key: (String, String),
    number: u64,
    /// Cancelled when a DEL wants the container.
    pub cancelled: CancellationToken,
}

impl Drop for RunningAdd {
    fn drop(&mut self) {
        let mut running = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(adds) = running.adds.get_mut(&self.key) {
            adds.remove(&self.number);
            if adds.is_empty() {
                running.adds.remove(&self.key);
            }
        }
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

    /// Registers an ADD, before it waits for the lock: a DEL ends all that came before it, and none that come after.
    pub fn running(&self, container: &str, interface: &str) -> RunningAdd {
        let (key, cancelled) = ((container.to_owned(), interface.to_owned()), CancellationToken::new());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.last += 1;
        let number = running.last;
        running.adds.entry(key.clone()).or_default().insert(number, cancelled.clone());
        RunningAdd { all: self.running.clone(), key, number, cancelled }
    }

    /// Tells all ADDs of the interface to give up.
    pub fn cancel_add(&self, container: &str, interface: &str) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(adds) = running.adds.get(&(container.to_owned(), interface.to_owned())) {
            adds.values().for_each(CancellationToken::cancel);
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
    fn a_running_add_can_be_told_to_give_up_and_one_that_waits_too() {
        let locks = Locks::default();
        let [add, queued] = [locks.running("a", "eth0"), locks.running("a", "eth0")];
        locks.cancel_add("a", "net1");
        assert!(!add.cancelled.is_cancelled());
        locks.cancel_add("a", "eth0");
        assert!(add.cancelled.is_cancelled() && queued.cancelled.is_cancelled());
        // Of another sandbox's life, as it were.
        let next = locks.running("a", "eth0");
        drop((add, queued));
        assert!(!next.cancelled.is_cancelled());
        drop(next);
        locks.cancel_add("a", "eth0");
        assert!(locks.running.lock().unwrap().adds.is_empty());
    }
}
