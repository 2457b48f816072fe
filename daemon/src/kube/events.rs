//! Kubernetes Events, off the critical path.
//!
//! In: what happened, from requests. Out: one Event object per (object,
//! reason, message); repetitions raise its count. Normal events are limited
//! and dropped under load, warnings are always sent. Messages must carry no
//! container id or namespace path, or nothing would aggregate.
//!
//! What every node finds is told once: such an event's name follows from what
//! it says, and the API server refuses the second one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use sha2::Digest;
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
    /// Other nodes find the same, and one of them is enough to tell it.
    everywhere: bool,
}

impl Occurrence {
    /// The name of its event, made at `nanoseconds` since 1970.
    fn event_name(&self, nanoseconds: i128) -> String {
        let object = &self.object.name;
        if !self.everywhere {
            return format!("{object}.{nanoseconds:x}");
        }
        let said =
            [&self.object.uid, self.reason, &self.message].map(|part| sha2::Sha256::digest(part.as_bytes()));
        let digest = sha2::Sha256::digest(said.concat());
        let short: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{object}.{short}")
    }
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
        self.hand_in(Occurrence { object, kind, reason, message, everywhere: false });
    }

    /// Records an event that all nodes find alike: it is one for the cluster, and names none of them.
    pub fn record_once(&self, object: ObjectRef, kind: EventType, reason: &'static str, message: String) {
        self.hand_in(Occurrence { object, kind, reason, message, everywhere: true });
    }

    fn hand_in(&self, occurrence: Occurrence) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send(occurrence).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Events that were not sent, because of load.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Source component of what no single node tells.
const COMPONENT: &str = "kube-ovn-cni";
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
            && !occurrence.everywhere
            && now.duration_since(sent.at) < AGGREGATION
        {
            let count = sent.count + 1;
            let patch = json!({"count": count, "lastTimestamp": stamp});
            match api.patch(&sent.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {
                    (sent.count, sent.at) = (count, now);
                    return Ok(());
                }
                // Somebody deleted it: what happens now is to be seen all the same.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let name = occurrence.event_name(time.as_nanosecond());
        let source = match occurrence.everywhere {
            true => json!({"component": COMPONENT}),
            false => json!({"component": self.component, "host": self.component}),
        };
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
            "source": source,
            "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
        }));
        let Ok(event) = event else { return Ok(()) };
        match api.create(&PostParams::default(), &event).await {
            // Another node was first, or this one before its restart.
            Err(kube::Error::Api(status)) if occurrence.everywhere && status.code == 409 => return Ok(()),
            created => created?,
        };
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
    fn what_all_nodes_find_has_one_name() {
        let said = |uid: &str, message: &str, everywhere| Occurrence {
            object: ObjectRef::service("web", "front", uid),
            kind: EventType::Warning,
            reason: "R",
            message: message.into(),
            everywhere,
        };
        let once = said("u", "m", true).event_name(1);
        assert_eq!(once, said("u", "m", true).event_name(2));
        assert!(once.starts_with("front.") && once.len() == "front.".len() + 16, "{once}");
        for other in [said("v", "m", true), said("u", "n", true), said("um", "", true)] {
            assert_ne!(other.event_name(1), once);
        }
        assert_ne!(said("u", "m", false).event_name(1), said("u", "m", false).event_name(2));
    }

    #[tokio::test]
    async fn a_repetition_of_an_event_that_was_deleted_is_a_new_event() {
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let mut asked = log.lock().unwrap();
            asked.push((request.method().to_string(), path));
            // The second request is the first repetition.
            let (code, body) = match asked.len() {
                2 => (
                    404,
                    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "", "code": 404}),
                ),
                _ => {
                    (200, json!({"apiVersion": "v1", "kind": "Event", "metadata": {}, "involvedObject": {}}))
                }
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            std::future::ready(hyper::Response::builder().status(code).body(body))
        });
        let (sink, recorder) = EventSink::new(Client::new(service, "default"), "n");
        for _ in 0..3 {
            recorder.record(ObjectRef::pod("web", "p", "u"), EventType::Warning, "R", "m".into());
        }
        drop(recorder);
        sink.run().await;
        let asked = asked.lock().unwrap();
        let methods: Vec<&str> = asked.iter().map(|(method, _)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "POST", "PATCH"]);
        assert_ne!(asked[1].1, asked[3].1, "the new one's count is raised from then on");
    }

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
