//! Projections of Kubernetes objects: only the fields that the agent uses, so
//! that a change elsewhere in an object is no change here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

/// Namespace and name of a pod or a Service.
pub type PodKey = (Arc<str>, Arc<str>);

/// A pod of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: tells a pod from its successor of the same name.
    pub uid: String,
    /// The UID by which kubelet and runtime know a static pod, whose mirror this is; else empty.
    pub mirror_of: String,
    /// Annotations of the `kubernetes.io` family and Multus's.
    pub annotations: BTreeMap<String, String>,
    /// Being deleted.
    pub deleting: bool,
    /// Succeeded or Failed: its sandbox has no network any more.
    pub finished: bool,
}

impl PodFacts {
    /// Whether a call with this UID (`K8S_POD_UID`; empty when the runtime gives none) is about this pod.
    pub fn is_called(&self, uid: &str) -> bool {
        uid.is_empty() || uid == self.uid || uid == self.mirror_of
    }

    /// It has a use for its network: neither deleted nor finished.
    pub fn goes_on(&self) -> bool {
        !self.deleting && !self.finished
    }

    /// The annotation `<provider>.kubernetes.io/<key>`, unless empty.
    pub fn annotation(&self, provider: &str, key: &str) -> Option<&str> {
        self.annotations
            .get(&crds::keys::pod_key(provider, key))
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

/// The node condition `NetworkUnavailable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnavailableCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable reason.
    pub reason: String,
    /// Text for people.
    pub message: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Addresses of type InternalIP, in their order.
    pub internal_ips: Vec<IpAddr>,
    /// Annotations `ovn.kubernetes.io/…`.
    pub annotations: BTreeMap<String, String>,
    /// Labels of Kube-OVN.
    pub labels: BTreeMap<String, String>,
    /// The condition, if the node has it.
    pub network_unavailable: Option<UnavailableCondition>,
}

impl NodeFacts {
    /// An annotation, unless empty.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// An exception from `natOutgoing`, with its id from the Subnet's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatPolicyRule {
    /// Twelve hex digits that name its sets.
    pub id: String,
    /// `nat` or `forward`.
    pub action: String,
    /// Sources, comma-separated; empty means any.
    pub sources: String,
    /// Destinations, comma-separated; empty means any.
    pub destinations: String,
}

/// A Subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetFacts {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Being deleted.
    pub deleting: bool,
    /// VPC; empty is the default VPC.
    pub vpc: String,
    /// `v4`, `v6` or `v4,v6`.
    pub cidr_block: String,
    /// Gateway address(es).
    pub gateway: String,
    /// Provider; empty is `ovn`.
    pub provider: String,
    /// `distributed` or `centralized`.
    pub gateway_type: String,
    /// Gateway nodes, `n1,n2` or `n1:ip,…`.
    pub gateway_node: String,
    /// Label selectors of gateway nodes, used when `gateway_node` is empty.
    pub gateway_node_selectors: Vec<Value>,
    /// Addresses and ranges that are no pods'.
    pub exclude_ips: Vec<String>,
    /// Equal-cost routes over gateway nodes.
    pub enable_ecmp: bool,
    /// Translate the source of traffic that leaves.
    pub nat_outgoing: bool,
    /// External gateway for traffic that leaves untranslated.
    pub external_egress_gateway: String,
    /// Its rule's priority.
    pub policy_routing_priority: u32,
    /// Its routing table.
    pub policy_routing_table_id: u32,
    /// MTU of pods, 0 derives it.
    pub mtu: u32,
    /// Vlan object: an underlay subnet.
    pub vlan: String,
    /// Underlay whose gateway is a logical router.
    pub logical_gateway: bool,
    /// Don't insist on an answer of the gateway.
    pub disable_gateway_check: bool,
    /// Underlay and overlay are connected.
    pub u2o_interconnection: bool,
    /// Load balancers of the VPC are attached; absent means the controller's flag.
    pub enable_lb: Option<bool>,
    /// Node network that carries its tunnels.
    pub node_network: String,
    /// Its addresses may be those of Services of type LoadBalancer.
    pub external_lb_addresses: bool,
    /// Status: the active node of a centralized subnet.
    pub activate_gateway: String,
    /// Status: address of the underlay-to-overlay port.
    pub u2o_interconnection_ip: String,
    /// Status: MAC of the underlay-to-overlay port.
    pub u2o_interconnection_mac: String,
    /// Status: it has addresses in use.
    pub in_use: bool,
    /// Status: the Validated condition is True.
    pub validated: bool,
    /// Status: NAT exceptions with ids.
    pub nat_policy_rules: Vec<NatPolicyRule>,
}

impl SubnetFacts {
    /// Underlay: pods sit on the physical network.
    pub fn is_underlay(&self) -> bool {
        !self.vlan.is_empty() && !self.logical_gateway
    }

    /// Belongs to the VPC of router `cluster_router`, the default one.
    pub fn in_default_vpc(&self, cluster_router: &str) -> bool {
        self.vpc.is_empty() || self.vpc == cluster_router
    }
}

/// A ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCidrFacts {
    /// Its prefixes.
    pub cidrs: Vec<String>,
    /// The Ready condition is True.
    pub ready: bool,
}

pub(super) fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

pub(super) fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> u32 {
    value.pointer(pointer).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or_default()
}

pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn map(value: &Value, pointer: &str, keep: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    value
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(key, _)| keep(key))
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    list(value, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind)
}

/// An object without what every object of its kind has.
pub(super) fn named(value: &Value) -> Result<String, String> {
    match text(value, "/metadata/name") {
        name if name.is_empty() => Err("the object has no name".into()),
        name => Ok(name),
    }
}

impl PodFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        Ok(Self {
            name: named(value)?,
            namespace: text(value, "/metadata/namespace"),
            uid: text(value, "/metadata/uid"),
            mirror_of: text(value, "/metadata/annotations/kubernetes.io~1config.mirror"),
            annotations: map(value, "/metadata/annotations", |key| {
                (key.contains(".kubernetes.io/") && !key.starts_with("kubectl.kubernetes.io/"))
                    || key.starts_with("kubevirt.io/")
            }),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            finished: matches!(text(value, "/status/phase").as_str(), "Succeeded" | "Failed"),
        })
    }
}

impl NodeFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        Ok(Self {
            name: named(value)?,
            uid: text(value, "/metadata/uid"),
            internal_ips: list(value, "/status/addresses")
                .iter()
                .filter(|address| text(address, "/type") == "InternalIP")
                .filter_map(|address| text(address, "/address").parse().ok())
                .collect(),
            annotations: map(value, "/metadata/annotations", |key| key.starts_with("ovn.kubernetes.io/")),
            labels: map(value, "/metadata/labels", |key| {
                key.starts_with("ovn.kubernetes.io/") || key.contains(".provider-network.kubernetes.io/")
            }),
            network_unavailable: condition(value, "NetworkUnavailable").map(|condition| {
                UnavailableCondition {
                    status: text(condition, "/status"),
                    reason: text(condition, "/reason"),
                    message: text(condition, "/message"),
                }
            }),
        })
    }
}

impl SubnetFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        Ok(Self {
            name: named(value)?,
            uid: text(value, "/metadata/uid"),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            vpc: text(value, "/spec/vpc"),
            cidr_block: text(value, "/spec/cidrBlock"),
            gateway: text(value, "/spec/gateway"),
            provider: text(value, "/spec/provider"),
            gateway_type: text(value, "/spec/gatewayType"),
            gateway_node: text(value, "/spec/gatewayNode"),
            gateway_node_selectors: list(value, "/spec/gatewayNodeSelectors").to_vec(),
            exclude_ips: list(value, "/spec/excludeIps")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            enable_ecmp: flag(value, "/spec/enableEcmp"),
            nat_outgoing: flag(value, "/spec/natOutgoing"),
            external_egress_gateway: text(value, "/spec/externalEgressGateway"),
            policy_routing_priority: number(value, "/spec/policyRoutingPriority"),
            policy_routing_table_id: number(value, "/spec/policyRoutingTableID"),
            mtu: number(value, "/spec/mtu"),
            vlan: text(value, "/spec/vlan"),
            logical_gateway: flag(value, "/spec/logicalGateway"),
            disable_gateway_check: flag(value, "/spec/disableGatewayCheck"),
            u2o_interconnection: flag(value, "/spec/u2oInterconnection"),
            enable_lb: value.pointer("/spec/enableLb").and_then(Value::as_bool),
            node_network: text(value, "/spec/nodeNetwork"),
            external_lb_addresses: flag(value, "/spec/enableExternalLBAddress"),
            activate_gateway: text(value, "/status/activateGateway"),
            u2o_interconnection_ip: text(value, "/status/u2oInterconnectionIP"),
            u2o_interconnection_mac: text(value, "/status/u2oInterconnectionMAC"),
            in_use: ["/status/v4usingIPs", "/status/v6usingIPs"]
                .iter()
                .any(|path| value.pointer(path).and_then(Value::as_f64).is_some_and(|count| count > 0.0)),
            validated: condition(value, "Validated").is_some_and(|c| text(c, "/status") == "True"),
            nat_policy_rules: list(value, "/status/natOutgoingPolicyRules")
                .iter()
                .map(|rule| NatPolicyRule {
                    id: text(rule, "/ruleID"),
                    action: text(rule, "/action"),
                    sources: text(rule, "/match/srcIPs"),
                    destinations: text(rule, "/match/dstIPs"),
                })
                .collect(),
        })
    }
}

impl ServiceCidrFacts {
    /// From the object as the API server sends it.
    pub(super) fn project(value: &Value) -> Result<Self, String> {
        named(value)?;
        Ok(Self {
            cidrs: list(value, "/spec/cidrs").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            ready: condition(value, "Ready").is_some_and(|c| text(c, "/status") == "True"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_heartbeat_or_a_foreign_label_is_no_change_of_a_node() {
        let node = |heartbeat: &str, label: &str| {
            NodeFacts::project(&json!({
                "metadata": {"name": "n1", "uid": "u", "resourceVersion": heartbeat, "labels": {"team": label},
                    "annotations": {"ovn.kubernetes.io/ip_address": "100.64.0.2", "other/x": label}},
                "status": {"addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "172.30.0.11"}],
                    "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]}
            }))
            .unwrap()
        };
        assert_eq!(node("1", "a"), node("2", "b"));
        assert_eq!(node("1", "a").internal_ips, ["172.30.0.11".parse::<IpAddr>().unwrap()]);
        assert_eq!(node("1", "a").annotation("ovn.kubernetes.io/ip_address"), Some("100.64.0.2"));
    }

    #[test]
    fn a_counter_in_the_status_is_no_change_of_a_subnet() {
        let subnet = |using: u32| {
            SubnetFacts::project(&json!({
                "metadata": {"name": "ovn-default"},
                "spec": {"cidrBlock": "10.16.0.0/16", "natOutgoing": true, "vlan": "", "gatewayType": "distributed"},
                "status": {"v4usingIPs": using, "conditions": [{"type": "Validated", "status": "True"}]}
            }))
            .unwrap()
        };
        assert_eq!(subnet(1), subnet(2));
        assert!(subnet(1).in_use && !subnet(0).in_use);
        assert!(subnet(1).validated && !subnet(1).is_underlay() && subnet(1).in_default_vpc("ovn-cluster"));
    }

    /// The runtime calls a static pod by the UID that the kubelet made from its file; the API server gives the mirror
    /// another one.
    #[test]
    fn a_static_pod_is_known_by_its_mirror() {
        let pod = |annotations| {
            let metadata = json!({"name": "p", "namespace": "n", "uid": "u-api", "annotations": annotations});
            PodFacts::project(&json!({ "metadata": metadata })).unwrap()
        };
        let mirror =
            pod(json!({"kubernetes.io/config.mirror": "u-file", "kubernetes.io/config.source": "file"}));
        assert!(mirror.is_called("u-file") && mirror.is_called("u-api") && mirror.is_called(""));
        assert!(!mirror.is_called("u-other"));
        let usual = pod(json!({}));
        assert!(usual.is_called("u-api") && usual.is_called("") && !usual.is_called("u-file"));
    }

    #[test]
    fn odd_types_do_not_fail_a_projection() {
        let pod = PodFacts::project(&json!({
            "metadata": {"name": "p", "namespace": "n", "annotations": {"ovn.kubernetes.io/routed": 7, "ovn.kubernetes.io/mac_address": "m"}},
            "status": {"phase": 3}
        }))
        .unwrap();
        assert_eq!(pod.annotation("ovn", "mac_address"), Some("m"));
        assert_eq!(pod.annotation("ovn", "routed"), None);
        assert!(PodFacts::project(&json!({})).is_err());
    }
}
