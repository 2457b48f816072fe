//! Kubernetes Events, off the critical path.
//!
//! In: what happened, from requests. Out: one Event object per (object,
//! reason, message); repetitions raise its count. Normal events are limited
//! and dropped under load, warnings are always sent. Messages must carry no
//! container id or namespace path, or nothing would aggregate.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Someone should look.
    Warning,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// API version.
    pub api_version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Namespace; empty for cluster objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID, if known.
    pub uid: String,
}

impl ObjectRef {
    /// A pod.
    pub fn pod(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            api_version: "v1",
            kind: "Pod",
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
        }
    }

    /// A Service.
    pub fn service(namespace: &str, name: &str, uid: &str) -> Self {
        Self { kind: "Service", ..Self::pod(namespace, name, uid) }
    }

    /// A node.
    pub fn node(name: &str, uid: &str) -> Self {
        Self { api_version: "v1", kind: "Node", namespace: String::new(), name: name.into(), uid: uid.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Occurrence {
    object: ObjectRef,
    kind: EventType,
    reason: &'static str,
    message: String,
}

/// Where events are handed in. Cheap to clone; never blocks.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Option<mpsc::Sender<Occurrence>>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// A recorder that forgets everything (tests, no API server).
    pub fn disabled() -> Self {
        Self { queue: None, dropped: Arc::default() }
    }

    /// Records an event.
    pub fn record(&self, object: ObjectRef, kind: EventType, reason: &'static str, message: String) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send(Occurrence { object, kind, reason, message }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Events that were not sent, because of load.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Events waiting to be sent.
const QUEUE: usize = 1024;
/// Occurrences remembered for counting.
const REMEMBERED: usize = 1024;
/// How long a repetition raises an old event's count instead of making a new one.
const AGGREGATION: Duration = Duration::from_secs(600);
/// Normal events per second, with this many saved up.
const NORMAL_RATE: f64 = 2.0;
const NORMAL_BURST: f64 = 25.0;

/// Sends what recorders hand in.
pub struct EventSink {
    client: Client,
    /// Source component, the node's name (node contract §2.2).
    component: String,
    queue: mpsc::Receiver<Occurrence>,
    dropped: Arc<AtomicU64>,
    sent: HashMap<Occurrence, Sent>,
    tokens: f64,
    refilled: Instant,
}

struct Sent {
    name: String,
    count: i32,
    at: Instant,
}

impl EventSink {
    /// A sink and its recorder. [`EventSink::run`] must be spawned.
    pub fn new(client: Client, component: &str) -> (Self, Recorder) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let sink = Self {
            client,
            component: component.to_owned(),
            queue,
            dropped: dropped.clone(),
            sent: HashMap::new(),
            tokens: NORMAL_BURST,
            refilled: Instant::now(),
        };
        (sink, Recorder { queue: Some(sender), dropped })
    }

    /// Sends until the last recorder is gone.
    pub async fn run(mut self) {
        while let Some(occurrence) = self.queue.recv().await {
            let now = Instant::now();
            if occurrence.kind == EventType::Normal && !self.take_token(now) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if let Err(error) = self.send(occurrence, now).await {
                // An event is a courtesy: logged, never retried.
                tracing::debug!(error = %error, "an event could not be sent");
            }
        }
    }

    fn take_token(&mut self, now: Instant) -> bool {
        let refill = now.duration_since(self.refilled).as_secs_f64() * NORMAL_RATE;
        self.tokens = (self.tokens + refill).min(NORMAL_BURST);
        self.refilled = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    async fn send(&mut self, occurrence: Occurrence, now: Instant) -> Result<(), kube::Error> {
        let namespace =
            if occurrence.object.namespace.is_empty() { "default" } else { &occurrence.object.namespace };
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let time = jiff::Timestamp::now();
        let stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if let Some(sent) = self.sent.get_mut(&occurrence)
            && now.duration_since(sent.at) < AGGREGATION
        {
            sent.count += 1;
            sent.at = now;
            let patch = json!({"count": sent.count, "lastTimestamp": stamp});
            api.patch(&sent.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            return Ok(());
        }
        let name = format!("{}.{:x}", occurrence.object.name, time.as_nanosecond());
        let event = serde_json::from_value::<Event>(json!({
            "apiVersion": Event::api_version(&()), "kind": Event::kind(&()),
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": occurrence.object.api_version, "kind": occurrence.object.kind,
                "namespace": occurrence.object.namespace, "name": occurrence.object.name,
                "uid": occurrence.object.uid,
            },
            "type": match occurrence.kind { EventType::Normal => "Normal", EventType::Warning => "Warning" },
            "reason": occurrence.reason, "message": occurrence.message,
            "source": {"component": self.component, "host": self.component},
            "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
        }));
        let Ok(event) = event else { return Ok(()) };
        api.create(&PostParams::default(), &event).await?;
        if self.sent.len() >= REMEMBERED {
            self.sent.retain(|_, sent| now.duration_since(sent.at) < AGGREGATION);
        }
        if self.sent.len() < REMEMBERED {
            self.sent.insert(occurrence, Sent { name, count: 1, at: now });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (sender, _queue) = mpsc::channel(1);
        let recorder = Recorder { queue: Some(sender), dropped: Arc::default() };
        for _ in 0..3 {
            recorder.record(ObjectRef::pod("n", "p", "u"), EventType::Normal, "R", "m".into());
        }
        assert_eq!(recorder.dropped(), 2);
    }
}
