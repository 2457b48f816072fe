//! One lock per container, so that its calls run one after another while
//! other containers' run in parallel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks by container id; those that nobody holds are forgotten.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

impl Locks {
    /// Waits for the container's lock.
    pub async fn lock(&self, container: &str) -> OwnedMutexGuard<()> {
        self.entry(container).lock_owned().await
    }

    /// The container's lock if nobody holds it.
    pub fn try_lock(&self, container: &str) -> Option<OwnedMutexGuard<()>> {
        self.entry(container).try_lock_owned().ok()
    }

    fn entry(&self, container: &str) -> Arc<AsyncMutex<()>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = map.get(container).and_then(Weak::upgrade) {
            return lock;
        }
        map.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::new(()));
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
        assert!(locks.0.lock().unwrap().len() <= 2);
    }
}
