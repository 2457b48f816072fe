//! Watches of the API server as snapshots behind channels.
//!
//! In: a watch of a kind. Out: its [`Reflection`]: the objects by key,
//! whether the first list is complete, and a wake-up on every change. A relist
//! replaces the snapshot, so deletions that were missed are delivered too. An
//! object that can't be decoded is logged, counted and left out; its last good
//! version is dropped with it. Projections that come out equal wake nobody.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::facts::{NodeFacts, PodFacts, PodKey, ServiceCidrFacts, SubnetFacts};
use super::underlay::{
    ExternalGatewayFacts, OvnEipFacts, OwnNodeFacts, ProviderNetworkFacts, ServiceFacts, VlanFacts,
};
use super::watched::Watched;

/// A kind of projected object.
pub trait Fact: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// How objects are told apart.
    type Key: Clone + Ord + Hash + Send + Sync + std::fmt::Debug;

    /// From the object as the API server sends it.
    ///
    /// # Errors
    /// When the object lacks what every object of the kind has.
    fn decode(value: &Value) -> Result<Self, String>;

    /// The key in the snapshot, from name and namespace.
    fn key(namespace: &str, name: &str) -> Self::Key;
}

macro_rules! cluster_fact {
    ($($fact:ty),*) => {$(
        impl Fact for $fact {
            type Key = Arc<str>;
            fn decode(value: &Value) -> Result<Self, String> {
                Self::project(value)
            }
            fn key(_: &str, name: &str) -> Arc<str> {
                name.into()
            }
        }
    )*};
}

cluster_fact!(
    NodeFacts,
    SubnetFacts,
    ServiceCidrFacts,
    ProviderNetworkFacts,
    VlanFacts,
    OwnNodeFacts,
    ExternalGatewayFacts,
    OvnEipFacts
);

macro_rules! namespaced_fact {
    ($($fact:ty),*) => {$(
        impl Fact for $fact {
            type Key = PodKey;
            fn decode(value: &Value) -> Result<Self, String> {
                Self::project(value)
            }
            fn key(namespace: &str, name: &str) -> PodKey {
                (namespace.into(), name.into())
            }
        }
    )*};
}

namespaced_fact!(PodFacts, ServiceFacts);

/// A snapshot of one kind.
#[derive(Debug)]
pub struct Loaded<T: Fact> {
    /// The objects.
    pub objects: Arc<BTreeMap<T::Key, Arc<T>>>,
    /// The first list is complete (or the API doesn't have the kind).
    pub synced: bool,
}

impl<T: Fact> Clone for Loaded<T> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), synced: self.synced }
    }
}

impl<T: Fact> Default for Loaded<T> {
    fn default() -> Self {
        Self { objects: Arc::default(), synced: false }
    }
}

/// How a watch is doing, for diagnostics.
#[derive(Clone, Debug, serde::Serialize)]
pub struct WatchStatus {
    /// Plural name of the kind.
    pub kind: &'static str,
    /// The first list is complete.
    pub synced: bool,
    /// Objects held.
    pub objects: usize,
    /// Hash over keys and content: equal on two agents that see the same.
    pub checksum: String,
    /// Seconds since the server was last heard of on this watch (bookmarks count).
    pub age_seconds: Option<u64>,
    /// Objects that could not be decoded.
    pub undecodable: u64,
    /// Times the watch broke.
    pub breaks: u64,
}

/// The current objects of one kind, and a wake-up when they change.
#[derive(Debug)]
pub struct Reflection<T: Fact> {
    kind: &'static str,
    /// The agent can do without the kind.
    optional: bool,
    state: watch::Sender<Loaded<T>>,
    meter: std::sync::Mutex<Meter>,
}

#[derive(Debug, Default)]
struct Meter {
    heard: Option<Instant>,
    undecodable: u64,
    breaks: u64,
}

impl<T: Fact> Reflection<T> {
    /// An empty one, not synced.
    pub fn new(kind: &'static str) -> Self {
        Self { kind, optional: false, state: watch::Sender::default(), meter: std::sync::Mutex::default() }
    }

    /// The agent can do without the kind: an API server that lacks it, or
    /// refuses it, counts as having no object of it.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// A snapshot.
    pub fn get(&self) -> Loaded<T> {
        self.state.borrow().clone()
    }

    /// Whether the first list is complete.
    pub fn synced(&self) -> bool {
        self.state.borrow().synced
    }

    /// A receiver that wakes on every change.
    pub fn subscribe(&self) -> watch::Receiver<Loaded<T>> {
        self.state.subscribe()
    }

    /// How many wait on it.
    pub fn subscribers(&self) -> usize {
        self.state.receiver_count()
    }

    /// One object.
    pub fn object(&self, key: &T::Key) -> Option<Arc<T>> {
        self.state.borrow().objects.get(key).cloned()
    }

    /// Puts an object in, or takes it out (tests and watches).
    pub fn put(&self, key: T::Key, object: Option<T>) {
        self.state.send_if_modified(|state| match object {
            Some(object) if state.objects.get(&key).is_some_and(|old| **old == object) => false,
            Some(object) => {
                Arc::make_mut(&mut state.objects).insert(key, Arc::new(object));
                true
            }
            None if state.objects.contains_key(&key) => {
                Arc::make_mut(&mut state.objects).remove(&key);
                true
            }
            None => false,
        });
    }

    /// Replaces everything: a complete list.
    pub fn replace(&self, objects: BTreeMap<T::Key, T>) {
        self.state.send_if_modified(|state| {
            let same = state.synced
                && state.objects.len() == objects.len()
                && state.objects.iter().zip(&objects).all(|((a, old), (b, new))| a == b && **old == *new);
            if !same {
                state.objects =
                    Arc::new(objects.into_iter().map(|(key, new)| (key, Arc::new(new))).collect());
                state.synced = true;
            }
            !same
        });
    }

    /// How the watch is doing.
    pub fn status(&self) -> WatchStatus {
        let state = self.get();
        let mut hash = DefaultHasher::new();
        for (key, object) in state.objects.iter() {
            key.hash(&mut hash);
            format!("{object:?}").hash(&mut hash);
        }
        let meter = self.meter.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        WatchStatus {
            kind: self.kind,
            synced: state.synced,
            objects: state.objects.len(),
            checksum: format!("{:016x}", hash.finish()),
            age_seconds: meter.heard.map(|heard| heard.elapsed().as_secs()),
            undecodable: meter.undecodable,
            breaks: meter.breaks,
        }
    }

    fn measure(&self, change: impl FnOnce(&mut Meter)) {
        change(&mut self.meter.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Follows the watch until cancelled.
    pub(super) async fn follow(
        &self,
        api: Api<Watched<T>>,
        config: watcher::Config,
        cancel: CancellationToken,
    ) {
        let mut stream = pin!(watcher(api, config));
        let mut listing: Option<BTreeMap<T::Key, T>> = None;
        let mut pause = RETRY_MIN;
        // One line per outage, however often it is tried.
        let mut broken: Option<Instant> = None;
        loop {
            let event = tokio::select! {
                () = cancel.cancelled() => return,
                event = stream.next() => event,
            };
            match event {
                None => return,
                Some(Ok(event)) => {
                    pause = RETRY_MIN;
                    if let Some(since) = broken.take() {
                        let seconds = since.elapsed().as_secs_f32();
                        tracing::info!(kind = self.kind, seconds, "the watch works again");
                    }
                    self.measure(|meter| meter.heard = Some(Instant::now()));
                    match event {
                        watcher::Event::Init => listing = Some(BTreeMap::new()),
                        watcher::Event::InitApply(object) => {
                            if let (Some((key, Some(fact))), Some(listing)) =
                                (self.take(object), &mut listing)
                            {
                                listing.insert(key, fact);
                            }
                        }
                        watcher::Event::InitDone => self.replace(listing.take().unwrap_or_default()),
                        watcher::Event::Apply(object) => {
                            if let Some((key, fact)) = self.take(object) {
                                self.put(key, fact);
                            }
                        }
                        watcher::Event::Delete(object) => {
                            if let Some(key) = object.key() {
                                self.put(key, None);
                            }
                        }
                    }
                }
                Some(Err(error)) => {
                    self.measure(|meter| meter.breaks += 1);
                    if self.optional && is_refused(&error) {
                        tracing::info!(kind = self.kind, error = %error, "the API server does not offer this kind");
                        self.replace(BTreeMap::new());
                        pause = RETRY_UNKNOWN_KIND;
                    } else {
                        if broken.is_none() {
                            tracing::warn!(kind = self.kind, error = %error, "the watch broke; trying again");
                        }
                        broken.get_or_insert_with(Instant::now);
                    }
                    tokio::select! {
                        () = cancel.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    fn take(&self, object: Watched<T>) -> Option<(T::Key, Option<T>)> {
        let key = object.key();
        match (key, object.fact) {
            (Some(key), Ok(fact)) => Some((key, Some(fact))),
            (key, Err(error)) => {
                self.measure(|meter| meter.undecodable += 1);
                tracing::warn!(kind = self.kind, object = ?key, error, "an object can't be decoded; left out");
                key.map(|key| (key, None))
            }
            (None, Ok(_)) => None,
        }
    }
}

/// First pause after a break, doubled up to [`RETRY_MAX`]: an outage's end is
/// noticed soon.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// A kind that the API server doesn't have may come with its upgrade.
const RETRY_UNKNOWN_KIND: Duration = Duration::from_secs(60);

fn is_refused(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if matches!(status.code, 403 | 404)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str) -> NodeFacts {
        NodeFacts { name: name.into(), internal_ips: vec![address.parse().unwrap()], ..NodeFacts::default() }
    }

    #[test]
    fn equal_content_wakes_nobody() {
        let nodes = Reflection::<NodeFacts>::new("nodes");
        nodes.put("a".into(), Some(node("a", "10.0.0.1")));
        let mut receiver = nodes.subscribe();
        nodes.put("a".into(), Some(node("a", "10.0.0.1")));
        nodes.put("b".into(), None);
        assert!(!receiver.has_changed().unwrap());
        nodes.put("a".into(), Some(node("a", "10.0.0.2")));
        assert!(receiver.has_changed().unwrap());
        receiver.mark_unchanged();
        let held = receiver.borrow().objects.clone();
        nodes.put("a".into(), None);
        // A snapshot that someone holds never changes under him.
        assert_eq!(held.len(), 1);
        assert!(nodes.get().objects.is_empty());
    }

    #[test]
    fn a_relist_delivers_deletions() {
        let nodes = Reflection::<NodeFacts>::new("nodes");
        nodes.put("gone".into(), Some(node("gone", "10.0.0.1")));
        nodes.replace(BTreeMap::from([("kept".into(), node("kept", "10.0.0.2"))]));
        let state = nodes.get();
        assert!(state.synced);
        assert_eq!(state.objects.keys().map(|key| &**key).collect::<Vec<_>>(), ["kept"]);
    }

    #[test]
    fn a_bad_object_is_counted_and_left_out() {
        let subnets = Reflection::<SubnetFacts>::new("subnets");
        let bad: Watched<SubnetFacts> = serde_json::from_str(r#"{"spec": 3}"#).unwrap();
        assert!(subnets.take(bad).is_none());
        assert_eq!(subnets.status().undecodable, 1);
        let good: Watched<SubnetFacts> =
            serde_json::from_str(r#"{"metadata": {"name": "s"}, "spec": {"cidrBlock": "10.16.0.0/16"}}"#)
                .unwrap();
        assert!(subnets.take(good).unwrap().1.is_some());
    }
}
