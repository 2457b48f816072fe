//! Watches: the API server's objects as inputs of the pipeline.
//!
//! Flows in: lists and watch streams of every kind. Flows out: [`Input::Listed`],
//! [`Input::Applied`], [`Input::Deleted`] in the order of each kind's stream, and a
//! [`WatchStatus`] per kind for readiness, metrics and diagnostics.
//!
//! Each kind has one task ([`stream`]) that lists page by page, projects every object
//! at once ([`decode`]) and then follows the watch. A copy of the projected objects
//! (shared with the world, so a few dozen bytes each) is kept to tell real changes
//! from repeated ones, to keep the last good version of an object that turned bad,
//! and for the checksum.
//!
//! # Why a mute watch is noticed
//!
//! A watch that shows nothing is normal, so silence proves nothing. Every watch is
//! therefore asked for with a window ([`WINDOW`]): the server itself ends it then. A
//! watch that neither ended nor spoke a little after its window is dead, whatever
//! stands between us and the server. The sockets below notice a silent network much
//! sooner ([`crate::kube_io::client`]); the window is for everything that their
//! means can't see. A new attempt never reuses the connection of one that failed:
//! dropping the unfinished answer closes it. The server sends a bookmark before
//! it ends a window, so going on costs one small request and no list.

pub mod decode;
pub mod stream;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::facts::Kind;
use crate::io::Input;
use crate::kube_io::client::Api;
use crate::kube_io::resource::Resource;
use crate::objects::Meta;

/// How long the server serves one watch request at most.
pub const WINDOW: Duration = Duration::from_secs(30);
/// How long after its window a watch may still be open.
pub const WINDOW_GRACE: Duration = Duration::from_secs(3);

/// What is known of one watch.
#[derive(Clone, Debug)]
pub struct WatchStatus {
    /// Everything was listed at least once (or the kind is not installed and need
    /// not be).
    pub loaded: bool,
    /// The kind is not installed, or not ours to see (`problem` tells).
    pub absent: bool,
    /// The last proof that the connection works: a page, an event, a bookmark, or
    /// the end of a window.
    pub proof: Option<Instant>,
    /// Objects.
    pub objects: usize,
    /// Order-independent checksum of identities and versions, see [`fingerprint`].
    pub checksum: u64,
    /// Resource version that the watch has reached.
    pub version: String,
    /// Lists so far.
    pub lists: u64,
    /// Events so far.
    pub events: u64,
    /// Bad objects seen so far.
    pub bad: u64,
    /// Attempts that failed so far.
    pub failures: u64,
    /// Why the last attempt failed; `None` while it works.
    pub problem: Option<String>,
}

impl WatchStatus {
    fn new() -> Self {
        Self {
            loaded: false,
            absent: false,
            proof: None,
            objects: 0,
            checksum: 0,
            version: String::new(),
            lists: 0,
            events: 0,
            bad: 0,
            failures: 0,
            problem: None,
        }
    }
}

/// Contribution of one object to its kind's checksum: the first eight bytes of
/// SHA-256 over `namespace/name/uid/resourceVersion`; contributions are added up
/// with wrap-around. Anything that sees the same objects gets the same number.
pub fn fingerprint(meta: &Meta) -> u64 {
    let mut hash = Sha256::new();
    for part in [&meta.namespace, &meta.name, &meta.uid] {
        hash.update(part.as_bytes());
        hash.update(b"/");
    }
    hash.update(meta.resource_version.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 8];
    first.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    u64::from_be_bytes(first)
}

/// An input with the time at which it was received, so that waiting can be measured.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// When it was received.
    pub at: Instant,
    /// The input.
    pub input: Input,
}

/// Status of all watches. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Statuses {
    inner: Arc<Mutex<BTreeMap<Kind, WatchStatus>>>,
}

impl Statuses {
    fn with<T>(&self, kind: Kind, change: impl FnOnce(&mut WatchStatus) -> T) -> T {
        let mut all = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(kind).or_insert_with(WatchStatus::new))
    }

    /// A copy of all.
    pub fn all(&self) -> BTreeMap<Kind, WatchStatus> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Some watch fails for a reason that it may share with others (the connection).
    pub fn any_failing(&self) -> bool {
        let all = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|status| status.problem.is_some() && !status.absent)
    }

    /// Kinds that are not loaded yet, with the reason as far as known.
    pub fn missing(&self) -> Vec<(Kind, String)> {
        let all = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = all.iter().filter(|(_, status)| !status.loaded);
        missing.map(|(kind, status)| (*kind, status.problem.clone().unwrap_or_default())).collect()
    }
}

/// Lets watches list anew. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Refresher {
    asked: Arc<BTreeMap<Kind, watch::Sender<u64>>>,
}

impl Refresher {
    /// That kind is listed anew, from the API server's own store and not from what it or we
    /// have in memory; [`Input::Fresh`] with the number comes behind the list. A list that is
    /// on its way already does not count.
    pub fn ask(&self, kind: Kind, number: u64) {
        if let Some(asked) = self.asked.get(&kind) {
            asked.send_replace(number);
        }
    }
}

/// A started set of watches.
pub struct Watches {
    /// Status of each.
    pub statuses: Statuses,
    /// Lets them list anew.
    pub refresher: Refresher,
    tasks: TaskTracker,
}

impl Watches {
    /// Starts one watch per resource. Inputs go to `inputs`; when nobody takes them,
    /// watches wait (the server buffers, and ends a watch that lags too far, which
    /// leads to a new list).
    pub fn start(
        api: &Api,
        resources: Vec<Resource>,
        inputs: &mpsc::Sender<Delivery>,
        stop: &CancellationToken,
    ) -> Self {
        let statuses = Statuses::default();
        let tasks = TaskTracker::new();
        let mut refreshing = BTreeMap::new();
        for resource in resources {
            statuses.with(resource.kind, |_| ());
            let (ask, asked) = watch::channel(0);
            refreshing.insert(resource.kind, ask);
            let watch = stream::Watch::new(api.clone(), resource, inputs.clone(), statuses.clone(), asked);
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = watch.run() => {}
                }
            });
        }
        tasks.close();
        Self { statuses, refresher: Refresher { asked: Arc::new(refreshing) }, tasks }
    }

    /// Waits until all watches have ended.
    pub async fn ended(&self) {
        self.tasks.wait().await;
    }
}

/// The name of a kind in metrics, logs and diagnostics: its plural.
pub fn plural(kind: Kind) -> &'static str {
    Resource::of(kind).map_or("unknown", |resource| resource.plural)
}
