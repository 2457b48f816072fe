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
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::fact::Fact;
use super::refusal::{self, Bounds, Refusals, Verdict};
use super::watched::Watched;
use crate::frame::Objects;

/// A snapshot of one kind.
#[derive(Debug)]
pub struct Loaded<T: Fact> {
    /// The objects.
    pub objects: Arc<BTreeMap<T::Key, Arc<T>>>,
    /// The first list is complete (or the API doesn't have the kind). What is not there then is gone.
    pub synced: bool,
    /// The API server does not let the agent see the kind: nobody waits for it, and nothing of it counts as gone.
    pub denied: bool,
}

impl<T: Fact> Loaded<T> {
    /// Whether waiting for more makes no sense.
    pub fn settled(&self) -> bool {
        self.synced || self.denied
    }
}

impl<T: Fact> Clone for Loaded<T> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), synced: self.synced, denied: self.denied }
    }
}

impl<T: Fact> Default for Loaded<T> {
    fn default() -> Self {
        Self { objects: Arc::default(), synced: false, denied: false }
    }
}

/// How a watch is doing, for diagnostics.
#[derive(Clone, Debug, serde::Serialize)]
pub struct WatchStatus {
    /// Plural name of the kind.
    pub kind: &'static str,
    /// The first list is complete.
    pub synced: bool,
    /// Status with which the API server refuses the kind now (403, 404).
    pub refused: Option<u16>,
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
    bounds: Bounds,
    state: watch::Sender<Loaded<T>>,
    meter: std::sync::Mutex<Meter>,
}

#[derive(Debug, Default)]
struct Meter {
    heard: Option<Instant>,
    undecodable: u64,
    breaks: u64,
    refused: Option<u16>,
}

/// A kind of which nothing is known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Plural name of the kind.
    pub kind: &'static str,
    /// Status with which the API server refuses it.
    pub refused: Option<u16>,
}

/// A watch, whatever its kind.
pub(super) trait Followed {
    /// What it waits for, if it does.
    fn unknown(&self) -> Option<Unknown>;
    /// The API server forbids to see the kind.
    fn forbidden(&self) -> Option<&'static str>;
    /// How it is doing.
    fn status(&self) -> WatchStatus;
    /// Has it wake those who follow these kinds.
    fn add_to(&self, objects: Objects) -> Objects;
}

impl<T: Fact> Followed for Reflection<T> {
    fn unknown(&self) -> Option<Unknown> {
        let settled = self.state.borrow().settled();
        (!settled).then(|| Unknown { kind: self.kind, refused: self.meter().refused })
    }

    fn forbidden(&self) -> Option<&'static str> {
        (self.meter().refused == Some(refusal::FORBIDDEN)).then_some(self.kind)
    }

    fn status(&self) -> WatchStatus {
        Self::status(self)
    }

    fn add_to(&self, objects: Objects) -> Objects {
        objects.and(self.subscribe())
    }
}

impl<T: Fact> Reflection<T> {
    /// An empty one, not synced.
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            optional: false,
            bounds: Bounds::default(),
            state: watch::Sender::default(),
            meter: std::sync::Mutex::default(),
        }
    }

    /// The agent can do without the kind: see [`Refusals`].
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
                state.denied = false;
            }
            !same
        });
    }

    /// Nothing is going to be known of the kind; whether that is news.
    fn deny(&self) -> bool {
        self.state.send_if_modified(|state| !state.synced && !std::mem::replace(&mut state.denied, true))
    }

    /// How the watch is doing.
    pub fn status(&self) -> WatchStatus {
        let state = self.get();
        let mut hash = DefaultHasher::new();
        for (key, object) in state.objects.iter() {
            key.hash(&mut hash);
            format!("{object:?}").hash(&mut hash);
        }
        let meter = self.meter();
        WatchStatus {
            kind: self.kind,
            synced: state.synced,
            refused: meter.refused,
            objects: state.objects.len(),
            checksum: format!("{:016x}", hash.finish()),
            age_seconds: meter.heard.map(|heard| heard.elapsed().as_secs()),
            undecodable: meter.undecodable,
            breaks: meter.breaks,
        }
    }

    fn meter(&self) -> std::sync::MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn measure(&self, change: impl FnOnce(&mut Meter)) {
        change(&mut self.meter());
    }

    /// Follows the watch until cancelled.
    pub(super) async fn follow(
        &self,
        api: Api<Watched<T>>,
        config: watcher::Config,
        cancel: CancellationToken,
    ) {
        let start = || watcher(api.clone(), config.clone());
        let mut stream = pin!(start());
        let mut listing: Option<BTreeMap<T::Key, T>> = None;
        let mut pause = RETRY_MIN;
        let mut refusals = Refusals::new(self.bounds);
        // One line per outage, however often it is tried.
        let mut broken: Option<Instant> = None;
        loop {
            let event = tokio::select! {
                () = cancel.cancelled() => return,
                event = stream.next() => event,
            };
            let error = match event {
                None => return,
                // Said before the server is asked for a list: no word of it.
                Some(Ok(watcher::Event::Init)) => {
                    listing = Some(BTreeMap::new());
                    continue;
                }
                Some(Ok(event)) => {
                    pause = RETRY_MIN;
                    refusals.over();
                    if let Some(since) = broken.take() {
                        let seconds = since.elapsed().as_secs_f32();
                        tracing::info!(kind = self.kind, seconds, "the watch works again");
                    }
                    self.measure(|meter| (meter.heard, meter.refused) = (Some(Instant::now()), None));
                    self.hear(event, &mut listing);
                    continue;
                }
                Some(Err(error)) => error,
            };
            let refused = refusal::code(&error);
            self.measure(|meter| (meter.breaks, meter.refused) = (meter.breaks + 1, refused));
            let verdict = match refused.filter(|_| self.optional) {
                Some(code) => refusals.judge(code, &self.state.borrow(), Instant::now()),
                None => Verdict::Retry,
            };
            let wait = match verdict {
                Verdict::Retry => {
                    if broken.is_none() {
                        tracing::warn!(kind = self.kind, error = %error, "the watch broke; trying again");
                    }
                    broken.get_or_insert_with(Instant::now);
                    let most = if refused.is_some() { RETRY_REFUSED } else { RETRY_MAX };
                    let now = pause;
                    pause = (pause * 2).min(most);
                    now
                }
                Verdict::Denied => {
                    if self.deny() {
                        tracing::warn!(
                            kind = self.kind, error = %error,
                            "the API server does not let the agent see this kind; nothing of it is taken for gone"
                        );
                    }
                    self.bounds.again
                }
                Verdict::Absent => {
                    let had = self.get();
                    if !had.synced || !had.objects.is_empty() {
                        let objects = had.objects.len();
                        tracing::warn!(kind = self.kind, error = %error, objects, "the API server does not have this kind");
                    }
                    self.replace(BTreeMap::new());
                    // A watch that goes on where it was would not tell of what is there when the kind comes.
                    stream.set(start());
                    self.bounds.again
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Takes over what the server says.
    fn hear(&self, event: watcher::Event<Watched<T>>, listing: &mut Option<BTreeMap<T::Key, T>>) {
        match event {
            watcher::Event::Init => *listing = Some(BTreeMap::new()),
            watcher::Event::InitApply(object) => {
                if let (Some((key, Some(fact))), Some(listing)) = (self.take(object), listing) {
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
/// The same for refusals: they come at once and cost the server little, but from every node.
const RETRY_REFUSED: Duration = Duration::from_secs(10);

#[cfg(test)]
#[path = "reflect_tests.rs"]
mod tests;
