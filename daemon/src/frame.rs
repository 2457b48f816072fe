//! The frame of the node's loops: a pass, a pause, and what ends the pause.
//!
//! A loop looks at everything in each pass, so an event need not say what happened, only that something did. What comes
//! during a pass is looked at after it.

use std::time::Duration;

use futures::future::{BoxFuture, select_all};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::kube::{Fact, Loaded};
use crate::netlink::{Change, waiting};
use crate::ovs::{Ovs, View};

/// How long a loop waits without an event.
#[derive(Debug)]
pub struct Pace {
    verify: Duration,
    first: Duration,
    last: Duration,
    retry: Duration,
}

impl Pace {
    /// Everything is looked at every `verify`; a pass that failed is repeated after `first`, a pause that doubles up to
    /// `last`.
    pub fn new(verify: Duration, first: Duration, last: Duration) -> Self {
        Self { verify, first, last, retry: first }
    }

    /// The pause after a pass.
    pub fn after(&mut self, well: bool) -> Duration {
        if well {
            self.retry = self.first;
            return self.verify;
        }
        let next = (self.retry * 2).min(self.last);
        std::mem::replace(&mut self.retry, next)
    }
}

trait Source: Send {
    fn mark_unchanged(&mut self);
    fn changed(&mut self) -> BoxFuture<'_, bool>;
}

impl<T: Fact> Source for watch::Receiver<Loaded<T>> {
    fn mark_unchanged(&mut self) {
        watch::Receiver::mark_unchanged(self);
    }

    fn changed(&mut self) -> BoxFuture<'_, bool> {
        Box::pin(async { watch::Receiver::changed(self).await.is_ok() })
    }
}

/// The kinds of objects that a loop follows.
#[derive(Default)]
pub struct Objects(Vec<Box<dyn Source>>);

impl Objects {
    /// One kind more.
    #[must_use]
    pub fn and<T: Fact>(mut self, kind: watch::Receiver<Loaded<T>>) -> Self {
        self.0.push(Box::new(kind));
        self
    }

    /// What was is known.
    pub fn mark_unchanged(&mut self) {
        self.0.iter_mut().for_each(|kind| kind.mark_unchanged());
    }

    /// Waits until an object comes, goes or changes; `false` when nobody watches any more.
    pub async fn changed(&mut self) -> bool {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.0.iter_mut().map(|kind| kind.changed())).await.0
    }
}

/// What ends the pauses of a loop.
pub struct Frame {
    /// Kinds that it follows.
    pub objects: Objects,
    views: watch::Receiver<View>,
    changes: broadcast::Receiver<Change>,
    pace: Pace,
    cancel: CancellationToken,
}

impl Frame {
    /// For a loop on `ovs` and what the kernel reports, until `cancel`.
    pub fn new(
        objects: Objects,
        ovs: &Ovs,
        changes: broadcast::Receiver<Change>,
        pace: Pace,
        cancel: CancellationToken,
    ) -> Self {
        Self { objects, views: ovs.subscribe(), changes, pace, cancel }
    }

    /// Runs a pass; whether all of it could be done, `None` if it was cut off by the end. It sees what has come until it
    /// begins: a bunch of events is one pass.
    pub async fn pass(&mut self, pass: impl Future<Output = bool>) -> Option<bool> {
        self.objects.mark_unchanged();
        waiting(&mut self.changes).for_each(drop);
        self.cancel.run_until_cancelled(pass).await
    }

    /// The database as it is.
    pub fn view(&self) -> View {
        self.views.borrow().clone()
    }

    /// Waits after a pass until there is something to look at: an object, a view of the database that `is_news`, a change
    /// of the host's network that `concerns` the loop, `other`, or the pause's end. `false` when it is over.
    pub async fn wait(
        &mut self,
        well: bool,
        is_news: impl Fn(&View) -> bool,
        concerns: impl Fn(&Change) -> bool,
        other: impl Future<Output = ()>,
    ) -> bool {
        // What changed since the pass looked.
        if is_news(&self.views.borrow_and_update()) {
            return true;
        }
        let pause = tokio::time::sleep(self.pace.after(well));
        tokio::pin!(pause, other);
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => return false,
                () = &mut pause => return true,
                () = &mut other => return true,
                watched = self.objects.changed() => return watched,
                changed = self.views.changed() => {
                    if changed.is_err() { return false }
                    if is_news(&self.views.borrow_and_update()) { return true }
                }
                change = self.changes.recv() => match change {
                    Ok(change) if concerns(&change) => return true,
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(_)) => return true,
                    Err(broadcast::error::RecvError::Closed) => return false,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kube::{Cluster, VlanFacts};

    #[test]
    fn a_failure_is_repeated_ever_later_and_success_forgets_it() {
        let seconds = Duration::from_secs;
        let mut pace = Pace::new(seconds(60), seconds(1), seconds(5));
        let pauses = [false, false, false, false, true, false].map(|well| pace.after(well).as_secs());
        assert_eq!(pauses, [1, 2, 4, 5, 60, 1]);
    }

    /// As many as an IPVS proxy makes at once, more than the channel holds.
    #[tokio::test]
    async fn a_bunch_of_events_is_one_pass() {
        let ovs = Ovs::connect(Vec::new());
        let (feed, changes) = broadcast::channel(512);
        let pace = Pace::new(Duration::from_secs(3600), Duration::from_secs(3600), Duration::from_secs(3600));
        let cancel = CancellationToken::new();
        let mut frame = Frame::new(Objects::default(), &ovs, changes, pace, cancel.clone());
        let mut passes = 0;
        for burst in [100, 1000] {
            for _ in 0..burst {
                feed.send(Change::Rule).unwrap();
            }
            assert!(frame.wait(true, |_| false, |_| true, std::future::pending()).await);
            assert_eq!(frame.pass(async { true }).await, Some(true));
            passes += 1;
        }
        // Nothing is left of them; what comes during a pass is looked at after it.
        let quiet = frame.wait(true, |_| false, |_| true, std::future::ready(()));
        assert!(quiet.await && passes == 2);
        assert_eq!(frame.changes.len(), 0);
        frame.pass(async { feed.send(Change::Rule).is_ok() }).await;
        assert!(frame.wait(true, |_| false, |_| true, std::future::pending()).await);
        cancel.cancel();
    }

    #[tokio::test]
    async fn any_kind_of_object_ends_the_wait() {
        let cluster = Arc::new(Cluster::default());
        let mut objects = Objects::default().and(cluster.subnets.subscribe()).and(cluster.vlans.subscribe());
        let vlan = |id| Some(VlanFacts { id, ..VlanFacts::default() });
        cluster.vlans.put("v".into(), vlan(1));
        assert!(objects.changed().await);
        cluster.vlans.put("v".into(), vlan(2));
        objects.mark_unchanged();
        let waiting = tokio::time::timeout(Duration::from_millis(20), objects.changed());
        assert!(waiting.await.is_err(), "it is known");
        drop(cluster);
        assert!(!objects.changed().await);
    }
}
