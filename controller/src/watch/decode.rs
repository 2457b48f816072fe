//! From an object's JSON to its projection: only the fields that Weir uses are
//! read, everything else is skipped without being stored.
//!
//! Flows in: one object's JSON text. Flows out: an [`Object`], or a [`BadObject`]
//! that says which object and which field. Field by field the types are lenient
//! (absent and `null` are defaults): what the API server stores is valid by its
//! schema already, and one odd object must not hide the others.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::facts::Kind;
use crate::objects::{
    Custom, Meta, Nad, NadKind, Namespace, Node, Object, Other, Owner, Pod, StringMap, Workload,
};

/// An object that can't be projected. It is logged, counted and skipped.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{object}: {problem}")]
pub struct BadObject {
    /// Namespace and name as far as they could be read.
    pub object: String,
    /// The field and what is wrong with it.
    pub problem: String,
}

/// Decodes the objects of one kind and shares equal strings between them: label
/// keys, namespaces, node names and annotation keys are the same in thousands of
/// pods.
#[derive(Debug)]
pub struct Decoder {
    kind: Kind,
    strings: HashSet<Arc<str>>,
}

/// Strings shared before the table starts anew. Values that never repeat would
/// otherwise pile up in a process that lives for months.
const SHARED_STRINGS: usize = 32_768;

#[derive(Deserialize)]
struct Wire<'a> {
    metadata: WireMeta,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<String>,
    labels: Option<BTreeMap<String, Option<String>>>,
    annotations: Option<BTreeMap<String, Option<String>>>,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<String>,
    owner_references: Option<Vec<WireOwner>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireOwner {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePodSpec {
    node_name: Option<String>,
    host_network: Option<bool>,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePodStatus {
    phase: Option<String>,
    reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireWorkload {
    replicas: Option<u64>,
    ordinals: Option<WireOrdinals>,
    strategy: Option<WireStrategy>,
    template: Option<WireTemplate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireOrdinals {
    start: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireStrategy {
    r#type: Option<String>,
    rolling_update: Option<WireRolling>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireRolling {
    max_surge: Option<serde_json::Value>,
    max_unavailable: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTemplate {
    metadata: Option<WireMeta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNad {
    config: Option<String>,
}

/// What a CNI configuration (one plug-in, or a list of them) has to do with us.
fn nad_kind(config: &str) -> NadKind {
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let listed = config.get("plugins").and_then(|plugins| plugins.as_array());
    let plugins: Vec<&serde_json::Value> = listed.map_or_else(|| vec![&config], |list| list.iter().collect());
    let is = |value: Option<&serde_json::Value>| value.is_some_and(|value| value == "kube-ovn");
    if plugins.iter().any(|plugin| is(plugin.get("type"))) {
        NadKind::Ovn
    } else if plugins.iter().any(|plugin| is(plugin.pointer("/ipam/type"))) {
        NadKind::Ipam
    } else {
        NadKind::Other
    }
}

/// A number of pods, or a share of the replicas (Kubernetes' default is 25%).
fn pods(value: Option<&serde_json::Value>, replicas: u64, up: bool) -> u64 {
    let share = |percent: u64| {
        let parts = replicas.saturating_mul(percent);
        if up { parts.div_ceil(100) } else { parts / 100 }
    };
    match value {
        None => share(25),
        Some(value) => match value.as_u64() {
            Some(number) => number,
            None => {
                let text = value.as_str().unwrap_or_default();
                text.strip_suffix('%').and_then(|text| text.trim().parse().ok()).map_or(0, share)
            }
        },
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeStatus {
    addresses: Option<Vec<WireTyped>>,
    conditions: Option<Vec<WireTyped>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTyped {
    r#type: Option<String>,
    address: Option<String>,
    status: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireConditions {
    conditions: Option<Vec<crds::Condition>>,
}

/// Annotations that Weir reads: those of any provider (`<provider>.kubernetes.io/…`)
/// and Multus'. kubectl's copy of the whole object is not among them.
fn wanted_annotation(key: &str) -> bool {
    (key.contains("kubernetes.io/") && !key.starts_with("kubectl.kubernetes.io/"))
        || key.starts_with("k8s.")
        || key.contains("multus")
}

fn part<T: DeserializeOwned + Default>(raw: Option<&RawValue>) -> Result<T, serde_json::Error> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(T::default()),
        Some(text) => serde_json::from_str(text),
    }
}

impl Decoder {
    /// A decoder for one kind.
    pub fn new(kind: Kind) -> Self {
        Self { kind, strings: HashSet::new() }
    }

    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.strings.get(text) {
            return shared.clone();
        }
        if self.strings.len() >= SHARED_STRINGS {
            self.strings.clear();
        }
        let shared: Arc<str> = text.into();
        self.strings.insert(shared.clone());
        shared
    }

    fn optional(&mut self, text: Option<String>) -> Arc<str> {
        self.share(&text.unwrap_or_default())
    }

    fn map(&mut self, map: Option<BTreeMap<String, Option<String>>>, labels: bool) -> StringMap {
        let mut kept = StringMap::new();
        for (key, value) in map.unwrap_or_default() {
            if labels || wanted_annotation(&key) {
                let value = value.unwrap_or_default();
                // Addresses are each their own; what else annotations say many pods have in common.
                let own = !labels && (key.ends_with("/ip_address") || key.ends_with("/mac_address"));
                let value = if own { value.into() } else { self.share(&value) };
                kept.insert(self.share(&key), value);
            }
        }
        kept
    }

    fn meta(&mut self, wire: WireMeta) -> Result<Meta, BadObject> {
        let bad = |object: String, problem: &str| BadObject { object, problem: problem.to_owned() };
        let Some(name) = wire.name.filter(|name| !name.is_empty()) else {
            return Err(bad("an object without name".to_owned(), "metadata.name is missing"));
        };
        let namespace = self.optional(wire.namespace);
        let full = || if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
        let Some(uid) = wire.uid.filter(|uid| !uid.is_empty()) else {
            return Err(bad(full(), "metadata.uid is missing"));
        };
        let deleting_at = match &wire.deletion_timestamp {
            None => None,
            Some(text) => match text.parse::<jiff::Timestamp>() {
                Ok(time) => Some(time.as_second()),
                Err(_) => return Err(bad(full(), "metadata.deletionTimestamp is no time")),
            },
        };
        // Only the order of objects depends on it: one that can't be read is no reason
        // to lose the object.
        let created =
            wire.creation_timestamp.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let owners = wire.owner_references.unwrap_or_default().into_iter();
        let owners = owners
            .map(|owner| Owner {
                api_version: self.share(&owner.api_version),
                kind: self.share(&owner.kind),
                name: self.share(&owner.name),
                uid: self.share(&owner.uid),
            })
            .collect();
        let finalizers = wire.finalizers.unwrap_or_default().iter().map(|text| self.share(text)).collect();
        Ok(Meta {
            name: name.into(),
            uid: uid.into(),
            resource_version: wire.resource_version.unwrap_or_default().into(),
            generation: wire.generation.unwrap_or_default(),
            created_at: created.map_or(0, |time| time.as_second()),
            labels: self.map(wire.labels, true),
            annotations: self.map(wire.annotations, false),
            finalizers,
            deleting_at,
            owners,
            namespace,
        })
    }

    fn workload(&mut self, kind: Kind, meta: Meta, spec: WireWorkload) -> Workload {
        let replicas = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.unwrap_or_default();
        let rolling = kind == Kind::Deployment && strategy.r#type.as_deref() != Some("Recreate");
        let (mut surge, mut unavailable) = (0, replicas);
        if rolling {
            let limits = strategy.rolling_update.unwrap_or_default();
            surge = pods(limits.max_surge.as_ref(), replicas, true);
            unavailable = pods(limits.max_unavailable.as_ref(), replicas, false);
            if surge == 0 && unavailable == 0 {
                unavailable = 1;
            }
        }
        let template = spec.template.and_then(|template| template.metadata).unwrap_or_default();
        Workload {
            meta,
            replicas,
            start: spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0),
            surge,
            unavailable,
            template: self.map(template.annotations, false),
        }
    }

    /// Reads the metadata alone, which is all that a deletion needs.
    ///
    /// # Errors
    /// [`BadObject`].
    pub fn metadata(&mut self, json: &str) -> Result<Meta, BadObject> {
        #[derive(Deserialize)]
        struct Only {
            metadata: WireMeta,
        }
        let only: Only = serde_json::from_str(json)
            .map_err(|error| BadObject { object: guess_name(json), problem: format!("metadata: {error}") })?;
        self.meta(only.metadata)
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`BadObject`].
    pub fn object(&mut self, json: &str) -> Result<Object, BadObject> {
        let wire: Wire<'_> = serde_json::from_str(json)
            .map_err(|error| BadObject { object: guess_name(json), problem: error.to_string() })?;
        let meta = self.meta(wire.metadata)?;
        let full = if meta.namespace.is_empty() {
            meta.name.to_string()
        } else {
            format!("{}/{}", meta.namespace, meta.name)
        };
        let bad = |field: &str, error: serde_json::Error| BadObject {
            object: full.clone(),
            problem: format!("{field}: {error}"),
        };
        Ok(match self.kind {
            Kind::Pod => {
                let spec: WirePodSpec = part(wire.spec).map_err(|error| bad("spec", error))?;
                let status: WirePodStatus = part(wire.status).map_err(|error| bad("status", error))?;
                Object::Pod(Arc::new(Pod {
                    meta,
                    node: self.optional(spec.node_name),
                    host_network: spec.host_network.unwrap_or_default(),
                    restart_always: spec.restart_policy.as_deref().is_none_or(|policy| policy == "Always"),
                    restart_never: spec.restart_policy.as_deref() == Some("Never"),
                    phase: self.optional(status.phase),
                    reason: self.optional(status.reason),
                }))
            }
            Kind::Node => {
                let status: WireNodeStatus = part(wire.status).map_err(|error| bad("status", error))?;
                let is = |typed: &WireTyped, name: &str| typed.r#type.as_deref() == Some(name);
                let ready = status.conditions.unwrap_or_default();
                Object::Node(Arc::new(Node {
                    meta,
                    internal_ips: status
                        .addresses
                        .unwrap_or_default()
                        .into_iter()
                        .filter(|typed| is(typed, "InternalIP"))
                        .filter_map(|typed| typed.address)
                        .map(Into::into)
                        .collect(),
                    ready: ready
                        .iter()
                        .any(|typed| is(typed, "Ready") && typed.status.as_deref() == Some("True")),
                }))
            }
            Kind::Namespace => Object::Namespace(Arc::new(Namespace { meta })),
            Kind::Subnet => Object::Subnet(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Vpc => Object::Vpc(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Ip => {
                let spec = part(wire.spec).map_err(|error| bad("spec", error))?;
                Object::Ip(Arc::new(Custom { meta, spec, status: () }))
            }
            Kind::IpPool => Object::IpPool(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Vip => Object::Vip(Arc::new(custom(meta, &wire.spec, &wire.status, &bad)?)),
            Kind::Nad => {
                let spec: WireNad = part(wire.spec).map_err(|error| bad("spec", error))?;
                Object::Nad(Arc::new(Nad { meta, kind: nad_kind(&spec.config.unwrap_or_default()) }))
            }
            kind @ (Kind::StatefulSet | Kind::Deployment) => {
                let spec: WireWorkload = part(wire.spec).map_err(|error| bad("spec", error))?;
                Object::Workload(kind, Arc::new(self.workload(kind, meta, spec)))
            }
            Kind::Other(plural) => {
                // Status is only looked at for conditions of our own; an odd one is no loss.
                let status: WireConditions = part(wire.status).unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                Object::Other(plural, Arc::new(Other { plural: plural.into(), meta, conditions }))
            }
        })
    }
}

/// A status that can't be read counts as none: it is ours to write, and the spec
/// is what matters.
fn custom<S, T>(
    meta: Meta,
    spec: &Option<&RawValue>,
    status: &Option<&RawValue>,
    bad: &impl Fn(&str, serde_json::Error) -> BadObject,
) -> Result<Custom<S, T>, BadObject>
where
    S: DeserializeOwned + Default,
    T: DeserializeOwned + Default,
{
    Ok(Custom {
        meta,
        spec: part(*spec).map_err(|error| bad("spec", error))?,
        status: part(*status).unwrap_or_default(),
    })
}

/// The name in a JSON text that does not fit the types, for the log.
fn guess_name(json: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let field =
        |name: &str| value.pointer(&format!("/metadata/{name}")).and_then(|v| v.as_str().map(str::to_owned));
    match (field("namespace"), field("name")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (None, Some(name)) => name,
        _ => "an object without name".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn decode(kind: Kind, json: serde_json::Value) -> Result<Object, BadObject> {
        Decoder::new(kind).object(&json.to_string())
    }

    fn pod_json() -> serde_json::Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u1", "resourceVersion": "42", "generation": 1,
                "labels": {"app": "web"},
                "annotations": {
                    "ovn.kubernetes.io/ip_address": "10.16.0.9",
                    "net1.shop.ovn.kubernetes.io/logical_switch": "s",
                    "k8s.v1.cni.cncf.io/networks": "net1",
                    "v1.multus-cni.io/default-network": "x",
                    "kubectl.kubernetes.io/last-applied-configuration": "{…}",
                    "prometheus.io/scrape": "true"
                },
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u0", "controller": true}],
                "deletionTimestamp": "2026-11-30T01:02:03Z",
                "finalizers": ["a/b"],
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
            },
            "spec": {"nodeName": "n1", "hostNetwork": true, "restartPolicy": "Never", "containers": [{"name": "c"}]},
            "status": {"phase": "Failed", "reason": "Evicted", "containerStatuses": []}
        })
    }

    #[test]
    fn a_pod_keeps_what_is_used() {
        let Object::Pod(pod) = decode(Kind::Pod, pod_json()).unwrap() else { panic!() };
        assert_eq!((&*pod.node, &*pod.phase, &*pod.reason), ("n1", "Failed", "Evicted"));
        assert!(pod.host_network && pod.restart_never && !pod.restart_always);
        assert_eq!(pod.meta.deleting_at, Some(1_796_000_523));
        assert_eq!(&*pod.meta.owners[0].kind, "StatefulSet");
        assert_eq!(
            pod.meta.annotations.keys().map(|key| &**key).collect::<Vec<_>>(),
            [
                "k8s.v1.cni.cncf.io/networks",
                "net1.shop.ovn.kubernetes.io/logical_switch",
                "ovn.kubernetes.io/ip_address",
                "v1.multus-cni.io/default-network"
            ]
        );
    }

    #[test]
    fn absent_and_null_fields_are_defaults() {
        let bare = json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": null, "finalizers": null,
            "annotations": null, "ownerReferences": null, "deletionTimestamp": null}, "spec": {"nodeName": null}, "status": null});
        let Object::Pod(pod) = decode(Kind::Pod, bare).unwrap() else { panic!() };
        assert!(pod.restart_always, "Always is the API's default");
        assert!(pod.node.is_empty() && pod.meta.labels.is_empty() && pod.meta.deleting_at.is_none());
    }

    #[test]
    fn a_node_keeps_internal_addresses_in_order_and_readiness() {
        let node = json!({"metadata": {"name": "n1", "uid": "u"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.9"}, {"type": "Hostname", "address": "n1"},
                          {"type": "InternalIP", "address": "2001:db8::9"}],
            "conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": "True"}]}});
        let Object::Node(node) = decode(Kind::Node, node).unwrap() else { panic!() };
        assert!(node.ready);
        assert_eq!(
            node.internal_ips.iter().map(|ip| &**ip).collect::<Vec<_>>(),
            ["192.0.2.9", "2001:db8::9"]
        );
    }

    #[test]
    fn custom_kinds_decode() {
        let subnet = json!({"metadata": {"name": "s", "uid": "u", "generation": 4}, "spec": {"cidrBlock": "10.1.0.0/16"}});
        let Object::Subnet(subnet) = decode(Kind::Subnet, subnet).unwrap() else { panic!() };
        assert_eq!((subnet.spec.cidr_block.as_str(), subnet.meta.generation), ("10.1.0.0/16", 4));
        let vpc = json!({"metadata": {"name": "v", "uid": "u"}, "status": {"standby": "not a boolean"}});
        assert!(
            matches!(decode(Kind::Vpc, vpc).unwrap(), Object::Vpc(_)),
            "an odd status is no reason to lose a Vpc"
        );
        let vlan = json!({"metadata": {"name": "v", "uid": "u"}, "spec": 7, "status": {"conditions": 3}});
        assert!(matches!(decode(Kind::Other("vlans"), vlan).unwrap(), Object::Other("vlans", _)));
    }

    #[rstest]
    #[case(r#"{"type":"kube-ovn"}"#, NadKind::Ovn)]
    #[case(r#"{"plugins":[{"type":"tuning"},{"type":"kube-ovn"}]}"#, NadKind::Ovn)]
    #[case(r#"{"type":"macvlan","ipam":{"type":"kube-ovn"}}"#, NadKind::Ipam)]
    #[case(r#"{"type":"macvlan","ipam":{"type":"dhcp"}}"#, NadKind::Other)]
    #[case("not JSON", NadKind::Other)]
    fn definitions_are_ours_or_not(#[case] config: &str, #[case] kind: NadKind) {
        let object =
            json!({"metadata": {"name": "a", "namespace": "b", "uid": "u"}, "spec": {"config": config}});
        let Object::Nad(nad) = decode(Kind::Nad, object).unwrap() else { panic!() };
        assert_eq!(nad.kind, kind);
    }

    #[rstest]
    #[case(Kind::Deployment, json!({}), (1, 0, 1, 0))]
    #[case(Kind::Deployment, json!({"replicas": 10}), (10, 0, 3, 2))]
    #[case(Kind::Deployment, json!({"replicas": 4, "strategy": {"type": "Recreate"}}), (4, 0, 0, 4))]
    #[case(Kind::Deployment, json!({"replicas": 4, "strategy": {"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}}}), (4, 0, 2, 0))]
    #[case(Kind::Deployment, json!({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}}), (2, 0, 0, 1))]
    #[case(Kind::StatefulSet, json!({"replicas": 3, "ordinals": {"start": 5}}), (3, 5, 0, 3))]
    fn workloads_keep_what_retention_needs(
        #[case] kind: Kind,
        #[case] spec: serde_json::Value,
        #[case] expected: (u64, u64, u64, u64),
    ) {
        let mut spec = spec;
        let annotations = json!({"ovn.kubernetes.io/ip_retain": "never", "prometheus.io/scrape": "true"});
        spec["template"] = json!({"metadata": {"annotations": annotations}});
        let object = json!({"metadata": {"name": "w", "namespace": "n", "uid": "u"}, "spec": spec});
        let Object::Workload(found, workload) = decode(kind, object).unwrap() else { panic!() };
        let numbers = (workload.replicas, workload.start, workload.surge, workload.unavailable);
        assert_eq!((found, numbers), (kind, expected));
        assert_eq!(workload.template.len(), 1);
    }

    #[rstest]
    #[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b", "uid": "u"}, "spec": {"nodeName": 7}}), "b/a")]
    #[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b"}}), "b/a")]
    #[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "deletionTimestamp": "soon"}}), "b/a")]
    #[case(Kind::Pod, json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": 3}}), "b/a")]
    #[case(Kind::Subnet, json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"cidrBlock": {}}}), "s")]
    #[case(Kind::Node, json!({"metadata": {}}), "without name")]
    #[case(Kind::Node, json!([1, 2]), "without name")]
    fn bad_objects_are_named(#[case] kind: Kind, #[case] json: serde_json::Value, #[case] name: &str) {
        let bad = decode(kind, json).unwrap_err();
        assert!(bad.object.contains(name), "{bad}");
        assert!(!bad.problem.is_empty());
    }

    #[test]
    fn equal_strings_are_shared_and_the_table_is_bounded() {
        let mut decoder = Decoder::new(Kind::Pod);
        let (a, b) = (decoder.share("app"), decoder.share("app"));
        assert!(Arc::ptr_eq(&a, &b));
        for number in 0..SHARED_STRINGS * 2 {
            decoder.share(&number.to_string());
        }
        assert!(decoder.strings.len() <= SHARED_STRINGS);
    }

    #[test]
    fn a_deletion_needs_no_valid_spec() {
        let json = json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"cidrBlock": {}}}).to_string();
        assert_eq!(&*Decoder::new(Kind::Subnet).metadata(&json).unwrap().name, "s");
    }
}
