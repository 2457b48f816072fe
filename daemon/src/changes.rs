//! What happens on the node, as a feed for diagnostics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::sync::broadcast;

/// Changes that a slow subscriber may lag behind.
const BUFFER: usize = 256;

/// The feed. Cheap to clone; saying something that nobody listens to costs
/// nothing.
#[derive(Clone, Debug)]
pub struct Changes {
    sender: broadcast::Sender<Arc<Value>>,
    sequence: Arc<AtomicU64>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(BUFFER), sequence: Arc::default() }
    }
}

impl Changes {
    /// Says that something changed; `details` must be an object.
    pub fn say(&self, change: &str, details: Value) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let mut value = json!({
            "seq": self.sequence.fetch_add(1, Ordering::Relaxed),
            "unix_ms": jiff::Timestamp::now().as_millisecond(),
            "change": change,
        });
        if let (Some(value), Value::Object(details)) = (value.as_object_mut(), details) {
            value.extend(details);
        }
        // The last listener may have gone between the check and now.
        let _ = self.sender.send(Arc::new(value));
    }

    /// Listens.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Value>> {
        self.sender.subscribe()
    }
}
