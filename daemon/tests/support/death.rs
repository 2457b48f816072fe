//! An agent that dies in the middle of its work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use daemon::ovs::plan;
use daemon::steps::{Death, dying};
use tokio::sync::Notify;

use super::Node;

/// Runs `work` until it has made `steps` changes. `None`: it came to its end before; otherwise the step at which it died.
pub async fn killed_after<T>(steps: usize, work: impl Future<Output = T>) -> Option<String> {
    let count = AtomicUsize::new(0);
    let died = Arc::new((Notify::new(), std::sync::Mutex::new(String::new())));
    let seen = died.clone();
    let death: Death = Arc::new(move |step| {
        let dies = count.fetch_add(1, Ordering::Relaxed) + 1 >= steps;
        if dies {
            step.clone_into(&mut seen.1.lock().unwrap());
            seen.0.notify_one();
        }
        dies
    });
    tokio::select! {
        _ = dying(death, work) => None,
        () = died.0.notified() => Some(died.1.lock().unwrap().clone()),
    }
}

/// What the dead process had sent to the switch's database has arrived before its successor begins: the server answers
/// one connection's requests in order. (Here both are one process with one connection.)
pub async fn settle(node: &Node) {
    let ids = [("settled".to_owned(), uuid::Uuid::new_v4().to_string())].into();
    node.ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
}
