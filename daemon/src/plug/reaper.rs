//! Deletes links for many calls at once.
//!
//! The kernel takes tens of milliseconds for a deletion, one after another,
//! and hardly more for many in one request. So while one request runs, what
//! else is to be deleted gathers for the next: a node that is drained is done
//! in two or three of them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::netlink::Netlink;

type Waiting = Vec<(String, oneshot::Sender<Result<(), String>>)>;

#[derive(Debug, Default)]
struct Queue {
    waiting: Waiting,
    running: bool,
}

/// Deletes links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaper(Arc<Mutex<Queue>>);

impl Reaper {
    /// Deletes a link and returns when it is gone; a missing one is a success.
    ///
    /// # Errors
    /// The kernel's refusal, in words.
    pub(crate) async fn delete(&self, netlink: &Netlink, name: &str) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        let lead = {
            let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            queue.waiting.push((name.to_owned(), sender));
            !std::mem::replace(&mut queue.running, true)
        };
        if lead {
            // In a task of its own: others depend on it, whatever becomes of this call.
            tokio::spawn(self.clone().work(netlink.clone()));
        }
        receiver.await.unwrap_or_else(|_| Err("the deletion was given up".into()))
    }

    fn take(&self) -> Option<Waiting> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = std::mem::take(&mut queue.waiting);
        queue.running = !batch.is_empty();
        queue.running.then_some(batch)
    }

    async fn work(self, netlink: Netlink) {
        while let Some(batch) = self.take() {
            let (names, senders): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let together = netlink.delete_links(&names).await;
            for (name, sender) in names.iter().zip(senders) {
                let result = match &together {
                    Ok(()) => Ok(()),
                    // Whose fault was it?
                    Err(_) => netlink.delete_link(name).await.map_err(|error| error.to_string()),
                };
                // The call may have been given up.
                let _ = sender.send(result);
            }
        }
    }
}
