//! Gives memory back after bursts.
//!
//! In: changes of the switch, which every call causes. Out: nothing but a
//! smaller process: what hundreds of calls needed at once lies between what
//! stays, and the allocator gives back only what is free at a heap's end.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::plug::Plugger;
use crate::sys::trim_heap;

/// After a change so much time passes, for those that follow it.
const GATHER: Duration = Duration::from_secs(10);
/// Calls are not disturbed: none has run for so long.
const LULL: Duration = Duration::from_secs(1);

/// Gives memory back after changes, until cancelled.
pub async fn give_back(plugger: Arc<Plugger>, cancel: CancellationToken) {
    let mut views = plugger.ovs.subscribe();
    let work = async {
        while views.changed().await.is_ok() {
            tokio::time::sleep(GATHER).await;
            while plugger.idle() < LULL {
                tokio::time::sleep(LULL).await;
            }
            views.mark_unchanged();
            // It holds the allocator's locks for milliseconds: not on a worker.
            if let Err(error) = tokio::task::spawn_blocking(trim_heap).await {
                tracing::debug!(error = %error, "memory could not be given back");
            }
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = work => {}
    }
}
