//! Kubernetes events: best effort, aggregated, rate limited, off the critical path.
//!
//! Flows in: [`EventFact`]s that the core releases. Flows out: `v1` Events of the
//! component `kube-ovn-controller`. A full queue drops, a failed write is counted
//! and forgotten: nothing waits for an event.
//!
//! Equal events of one object are one Event whose count grows, at most once a
//! minute. Normal events share a token bucket; warnings do not, since they are what
//! a person looks for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::debug;

use crate::facts::EventFact;
use crate::kube_io::client::Api;
use crate::kube_io::resource::Resource;
use crate::lease::Authority;
use crate::metrics::Metrics;

/// Component named in events (contract §8.8, Kube-OVN's).
const COMPONENT: &str = "kube-ovn-controller";
/// Reasons of Kube-OVN's events (contract §8.8): tools and people look for them.
pub const CONTRACT_REASONS: &[&str] = &[
    // pods
    "ValidatePodNetworkFailed",
    "AcquireAddressFailed",
    "GetVlanInfoFailed",
    "CreateOVNPortFailed",
    "SetOVNPortL2ForwardFailed",
    "PodNetworkAllocationFailed",
    "PodNetworkAllocated",
    "PodNetworkUpdated",
    "PodNetworkUpdateFailed",
    "PodNetworkReleased",
    "PodNetworkReleaseFailed",
    "PodSecurityUpdated",
    "PodSecurityUpdateFailed",
    // subnets
    "ValidateLogicalSwitchFailed",
    "ValidateLogicalSwitchSuccess",
    "ValidateSubnetVlanFailed",
    "SetPrivateLogicalSwitchSuccess",
    "SetPrivateLogicalSwitchFailed",
    "ResetLogicalSwitchAclSuccess",
    "ResetLogicalSwitchAclFailed",
    "SetLogicalSwitchAclsFailed",
    "AddLbToLogicalSwitchFailed",
    "SetNonOvnSubnetSuccess",
    "ReconcileCentralizedGatewaySuccess",
    "NoActiveGatewayFound",
    "NoReadyGateway",
    "ChangeToDistributedGw",
    "SubnetGatewayTypeChanged",
    "SubnetGatewayNodeChanged",
    // pools and nodes
    "UpdateIPAMSucceeded",
    "UpdateIPAMFailed",
    "ReconcileAddressSetFailed",
    "NodeAddressConflictWithSubnet",
];

/// Reasons that Kube-OVN has no name for.
pub const OWN_REASONS: &[&str] = &[
    // The object asks for something that this version does not do.
    "NotYetSupported",
    // Rows can't be written to the database.
    "CommitFailed",
    // A rollout waits for addresses that its own old pods hold.
    "RolloutDeadlock",
    // A subnet can't change or go because of the addresses named.
    "AddressesInUse",
    // The spec of a Vip or OvnEip asks for other addresses than it has.
    "AddressImmutable",
    // VPCs have conditions upstream, and no events.
    "ValidateVpcFailed",
    // A VPC can't go because of the subnets named.
    "SubnetsExist",
    // What an external network of a VPC lacks; who uses an OvnEip, or has the name of its port;
    // which Vlan was there first.
    "ExternalNetworkNotReady",
    "InUse",
    "NameInUse",
    "Conflict",
    // A node's former chassis was deleted; two nodes announce one chassis.
    "DuplicateChassis",
    "ChassisConflict",
    // A node's port groups have the names of another's.
    "NodeNameConflict",
];

/// Events that may wait to be sent.
const QUEUE: usize = 4_096;
/// Distinct events remembered for aggregation.
const REMEMBERED: usize = 4_096;
/// Time between two writes about one and the same event.
const REPEAT_MS: u64 = 60_000;
/// Normal events: tokens per second and the most that pile up.
const NORMAL: (f64, f64) = (20.0, 200.0);
/// Longest message that the API server takes.
const MESSAGE_LIMIT: usize = 1_024;
/// How long one event's write may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Takes events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<EventFact>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    /// Starts the task that sends events. `instance` is this pod's name.
    pub fn start(api: Api, authority: Authority, metrics: Arc<Metrics>, instance: String) -> Self {
        let (queue, mut waiting) = mpsc::channel::<EventFact>(QUEUE);
        let counted = metrics.clone();
        tokio::spawn(async move {
            let mut aggregator = Aggregator::new();
            while let Some(fact) = waiting.recv().await {
                if !authority.valid() {
                    continue;
                }
                let now = jiff::Timestamp::now();
                let action = aggregator.decide(authority.now_ms(), now, &fact, &instance);
                let (outcome, result) = match action {
                    Action::Create { path, body } => ("sent", api.create(&path, &body, TIMEOUT).await),
                    Action::Bump { path, patch } => ("sent", api.merge_patch(&path, &patch, TIMEOUT).await),
                    Action::Aggregated => ("aggregated", Ok(Vec::new())),
                    Action::Limited => ("limited", Ok(Vec::new())),
                };
                match result {
                    Ok(_) => counted.event(outcome),
                    Err(error) => {
                        debug!(%error, reason = &*fact.reason, "event not recorded");
                        counted.event("failed");
                        aggregator.forget(&fact);
                    }
                }
            }
        });
        Self { queue, metrics }
    }

    /// Queues an event; drops it when the queue is full.
    pub fn record(&self, fact: EventFact) {
        if self.queue.try_send(fact).is_err() {
            self.metrics.event("overflow");
        }
    }
}

/// What to do with an event.
#[derive(Debug, PartialEq)]
enum Action {
    Create { path: String, body: Value },
    Bump { path: String, patch: Value },
    Aggregated,
    Limited,
}

struct Seen {
    path: String,
    count: u64,
    sent_at: u64,
}

/// Decides, with the time as input.
struct Aggregator {
    seen: HashMap<EventFact, Seen>,
    tokens: f64,
    refilled_at: u64,
}

impl Aggregator {
    fn new() -> Self {
        Self { seen: HashMap::new(), tokens: NORMAL.1, refilled_at: 0 }
    }

    fn decide(&mut self, now_ms: u64, now: jiff::Timestamp, fact: &EventFact, instance: &str) -> Action {
        let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if let Some(seen) = self.seen.get_mut(fact) {
            seen.count += 1;
            if now_ms < seen.sent_at + REPEAT_MS {
                return Action::Aggregated;
            }
            seen.sent_at = now_ms;
            return Action::Bump {
                path: seen.path.clone(),
                patch: json!({ "count": seen.count, "lastTimestamp": time }),
            };
        }
        let elapsed = now_ms.saturating_sub(self.refilled_at);
        self.refilled_at = now_ms;
        #[allow(clippy::cast_precision_loss)]
        let refill = elapsed as f64 / 1_000.0 * NORMAL.0;
        self.tokens = (self.tokens + refill).min(NORMAL.1);
        if !fact.warning {
            if self.tokens < 1.0 {
                return Action::Limited;
            }
            self.tokens -= 1.0;
        }
        if self.seen.len() >= REMEMBERED {
            // Forget what was quiet longest; half at once, so that this is rare.
            let mut times: Vec<u64> = self.seen.values().map(|seen| seen.sent_at).collect();
            times.sort_unstable();
            let median = times.get(times.len() / 2).copied().unwrap_or(u64::MAX);
            self.seen.retain(|_, seen| seen.sent_at > median);
        }
        let (path, body) = new_event(fact, &time, instance);
        let name = body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let own_path = format!("{path}/{name}");
        self.seen.insert(fact.clone(), Seen { path: own_path, count: 1, sent_at: now_ms });
        Action::Create { path, body }
    }

    /// The write failed: the next one of its kind starts anew.
    fn forget(&mut self, fact: &EventFact) {
        self.seen.remove(fact);
    }
}

/// The collection and content of a new Event.
fn new_event(fact: &EventFact, time: &str, instance: &str) -> (String, Value) {
    let object = &fact.object;
    // Events about cluster-scoped objects live in `default`, as everywhere in Kubernetes.
    let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
    let (api_version, kind) =
        Resource::of(object.kind).map_or(("v1", "Object"), |resource| (resource.api_version, resource.name));
    let mut message = fact.message.to_string();
    if message.len() > MESSAGE_LIMIT {
        let mut end = MESSAGE_LIMIT - 3;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str("...");
    }
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": namespace,
            "name": format!("{}.{:016x}", object.name, rand::random::<u64>()),
        },
        "involvedObject": {
            "apiVersion": api_version,
            "kind": kind,
            "namespace": if object.namespace.is_empty() { Value::Null } else { Value::from(&*object.namespace) },
            "name": &*object.name,
            "uid": fact.uid.as_deref(),
        },
        "type": if fact.warning { "Warning" } else { "Normal" },
        "reason": &*fact.reason,
        "message": message,
        "source": { "component": COMPONENT },
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    });
    (format!("/api/v1/namespaces/{namespace}/events"), body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Gate, Kind, ObjectRef};

    fn fact(name: &str, warning: bool, message: &str) -> EventFact {
        EventFact {
            object: ObjectRef::namespaced(Kind::Pod, "a", name),
            uid: Some("u".into()),
            warning,
            reason: "PodNetworkAllocated".into(),
            message: message.into(),
            gate: Gate::Now,
        }
    }

    fn decide(aggregator: &mut Aggregator, at: u64, fact: &EventFact) -> Action {
        aggregator.decide(at, jiff::Timestamp::UNIX_EPOCH, fact, "me")
    }

    #[test]
    fn reasons_are_camel_case_and_listed_once() {
        let all: Vec<&str> = CONTRACT_REASONS.iter().chain(OWN_REASONS).copied().collect();
        let distinct: std::collections::BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(
            all.iter().all(|r| r.starts_with(char::is_uppercase) && r.chars().all(char::is_alphanumeric))
        );
    }

    /// The list of contract §8.8 for the kinds of issue 5, as it stands there: a slip in a name
    /// shows here. (Its abbreviations `Success/Failed` written out.)
    #[test]
    fn reasons_are_the_contracts() {
        let contract = "ValidatePodNetworkFailed AcquireAddressFailed GetVlanInfoFailed CreateOVNPortFailed \
            SetOVNPortL2ForwardFailed PodNetworkAllocationFailed PodNetworkAllocated PodNetworkUpdated \
            PodNetworkUpdateFailed PodNetworkReleased PodNetworkReleaseFailed PodSecurityUpdated PodSecurityUpdateFailed \
            ValidateLogicalSwitchFailed ValidateLogicalSwitchSuccess ValidateSubnetVlanFailed \
            SetPrivateLogicalSwitchSuccess SetPrivateLogicalSwitchFailed ResetLogicalSwitchAclSuccess \
            ResetLogicalSwitchAclFailed SetLogicalSwitchAclsFailed AddLbToLogicalSwitchFailed SetNonOvnSubnetSuccess \
            ReconcileCentralizedGatewaySuccess NoActiveGatewayFound NoReadyGateway ChangeToDistributedGw \
            SubnetGatewayTypeChanged SubnetGatewayNodeChanged UpdateIPAMSucceeded UpdateIPAMFailed \
            ReconcileAddressSetFailed NodeAddressConflictWithSubnet";
        assert_eq!(CONTRACT_REASONS, contract.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_new_event_is_complete() {
        let Action::Create { path, body } = decide(&mut Aggregator::new(), 0, &fact("p", false, "m")) else {
            panic!()
        };
        assert_eq!(path, "/api/v1/namespaces/a/events");
        assert!(body["metadata"]["name"].as_str().unwrap().starts_with("p."));
        assert_eq!(body["involvedObject"]["kind"], "Pod");
        assert_eq!((&body["type"], &body["source"]["component"]), (&json!("Normal"), &json!(COMPONENT)));
        assert_eq!(body["firstTimestamp"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn cluster_scoped_objects_have_events_in_default() {
        let mut about = fact("s", true, "m");
        about.object = ObjectRef::cluster(Kind::Subnet, "s");
        let Action::Create { path, body } = decide(&mut Aggregator::new(), 0, &about) else { panic!() };
        assert_eq!(path, "/api/v1/namespaces/default/events");
        assert_eq!(body["involvedObject"]["apiVersion"], "kubeovn.io/v1");
        assert!(body["involvedObject"]["namespace"].is_null());
    }

    #[test]
    fn repeats_are_counted_and_written_once_a_minute() {
        let mut aggregator = Aggregator::new();
        let about = fact("p", true, "m");
        assert!(matches!(decide(&mut aggregator, 0, &about), Action::Create { .. }));
        assert_eq!(decide(&mut aggregator, 1_000, &about), Action::Aggregated);
        let Action::Bump { path, patch } = decide(&mut aggregator, REPEAT_MS, &about) else { panic!() };
        assert!(path.starts_with("/api/v1/namespaces/a/events/p."));
        assert_eq!(patch["count"], 3);
        aggregator.forget(&about);
        assert!(matches!(decide(&mut aggregator, REPEAT_MS + 1, &about), Action::Create { .. }));
    }

    #[test]
    fn normal_events_are_limited_and_warnings_are_not() {
        let mut aggregator = Aggregator::new();
        let limited = (0..1_000)
            .filter(|n| decide(&mut aggregator, 0, &fact(&format!("p{n}"), false, "m")) == Action::Limited);
        assert_eq!(limited.count(), 800);
        for n in 0..1_000 {
            let warning = fact(&format!("w{n}"), true, "m");
            assert!(matches!(decide(&mut aggregator, 0, &warning), Action::Create { .. }));
        }
        assert!(matches!(decide(&mut aggregator, 100, &fact("later", false, "m")), Action::Create { .. }));
    }

    #[test]
    fn memory_is_bounded_and_messages_are_cut_between_characters() {
        let mut aggregator = Aggregator::new();
        for n in 0..10_000_u64 {
            decide(&mut aggregator, n, &fact(&format!("w{n}"), true, "m"));
        }
        assert!(aggregator.seen.len() <= REMEMBERED);
        let long = "é".repeat(2_000);
        let (_, body) = new_event(&fact("p", true, &long), "t", "me");
        assert!(body["message"].as_str().unwrap().len() <= MESSAGE_LIMIT);
    }
}
