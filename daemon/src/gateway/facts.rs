//! From the watched objects to [`Inputs`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::inputs::{
    Config, Inputs, JoinInput, NatPolicy, SubnetInput, UnderlayInput, designated, is_named, prefixes, range,
};
use super::policy::ExternalEgress;
use crate::firewall::Family;
use crate::kube::{NodeFacts, PodFacts, ServiceCidrFacts, SubnetFacts};
use crate::plug::wanted::is_ovn_provider;

/// The objects and flags that a node's gateway follows from.
#[derive(Clone, Debug)]
pub struct Objects<'a> {
    /// All Subnets.
    pub subnets: Vec<&'a SubnetFacts>,
    /// This node.
    pub node: &'a NodeFacts,
    /// All nodes; this one may be among them.
    pub nodes: Vec<&'a NodeFacts>,
    /// All ServiceCIDRs.
    pub service_cidrs: Vec<&'a ServiceCidrFacts>,
    /// `--service-cluster-ip-range`: used while no ServiceCIDR is ready.
    pub service_cluster_ip_range: &'a str,
    /// `--cluster-router`: name of the default VPC.
    pub cluster_router: &'a str,
    /// `--node-switch`: name of the join subnet.
    pub node_switch: &'a str,
    /// Index and addresses of `ovn0`, once it is up.
    pub join: Option<JoinInput>,
    /// Addresses of tunnel peers from the local OVS, where known.
    pub tunnel_peers: BTreeSet<IpAddr>,
    /// From [`super::Gateway::proxy_sets`].
    pub proxy_sets: BTreeSet<String>,
    /// Pods of this node, for policy routing.
    pub pods: Vec<&'a PodFacts>,
    /// This node's labels, where a Subnet selects its gateways by labels.
    pub node_labels: BTreeMap<String, String>,
    /// UIDs of Subnets that [stay](stays) in the default VPC.
    pub staying: BTreeSet<String>,
    /// Settings.
    pub config: Config,
}

impl Objects<'_> {
    fn serves(&self, subnet: &SubnetFacts) -> bool {
        subnet.in_default_vpc(self.cluster_router) || self.staying.contains(&subnet.uid)
    }
}

/// Whether a Subnet that names another VPC is in the default one still: there it is left while addresses of it are in use
/// (D110), and says so by being not validated. `was_here`: this agent has known it there, so that it need not be judged
/// yet. `routed`: an earlier agent has, and this node has the route to it.
pub(crate) fn stays(subnet: &SubnetFacts, was_here: bool, routed: bool) -> bool {
    subnet.in_use && (was_here || (routed && !subnet.validated))
}

impl Inputs {
    /// Parses and selects.
    pub fn gather(objects: Objects<'_>) -> Self {
        let subnets: Vec<SubnetInput> = objects
            .subnets
            .iter()
            // Subnets of other plugins, whose addresses we only manage, have no router of ours.
            .filter(|subnet| objects.serves(subnet) && is_ovn_provider(&subnet.provider))
            .map(|subnet| subnet_input(subnet, &objects))
            .collect();
        let ready: BTreeSet<_> = objects
            .service_cidrs
            .iter()
            .filter(|cidr| cidr.ready)
            .flat_map(|cidr| cidr.cidrs.iter().flat_map(|text| prefixes(text)))
            .collect();
        // Family by family: a cluster on its way to dual stack may have an object for one only.
        let told: BTreeSet<Family> = ready.iter().map(|cidr| Family::of(&cidr.addr())).collect();
        let flag = prefixes(objects.service_cluster_ip_range);
        let flag = flag.into_iter().filter(|cidr| !told.contains(&Family::of(&cidr.addr())));
        let services = ready.iter().copied().chain(flag).collect();
        let others: Vec<_> = objects.nodes.iter().filter(|node| node.name != objects.node.name).collect();
        let other_node_ips: BTreeSet<IpAddr> =
            others.iter().flat_map(|node| node.internal_ips.iter().copied()).collect();
        let mut other_node_addresses: BTreeSet<IpAddr> =
            others.iter().flat_map(|node| node_networks(node)).collect();
        other_node_addresses.extend(&objects.tunnel_peers);
        // The families of the cluster are those of the join subnet, from the first day of a migration to dual stack.
        let families: BTreeSet<Family> = subnets
            .iter()
            .filter(|subnet| subnet.join)
            .flat_map(|subnet| subnet.cidrs.iter().map(|cidr| Family::of(&cidr.addr())))
            .collect();
        let underlay = underlay(objects.subnets.iter().copied().filter(|subnet| subnet.is_underlay()));
        Self {
            underlay,
            ipv4: families.contains(&Family::V4),
            ipv6: families.contains(&Family::V6),
            subnets,
            services,
            node_name: objects.node.name.clone(),
            node_ips: objects.node.internal_ips.clone(),
            other_node_ips,
            other_node_addresses,
            join: objects.join,
            proxy_sets: objects.proxy_sets,
            config: objects.config,
        }
    }
}

fn subnet_input(subnet: &SubnetFacts, objects: &Objects<'_>) -> SubnetInput {
    let node = &objects.node.name;
    // No node is the active one where the controller shares between all of them, and where none is ready.
    let active = subnet.enable_ecmp || subnet.activate_gateway.is_empty() || subnet.activate_gateway == *node;
    SubnetInput {
        name: subnet.name.clone(),
        uid: subnet.uid.clone(),
        cidrs: prefixes(&subnet.cidr_block),
        deleting: subnet.deleting,
        underlay: subnet.is_underlay(),
        u2o: subnet.u2o_interconnection,
        enable_lb: subnet.enable_lb.unwrap_or_default(),
        validated: subnet.validated,
        nat_outgoing: subnet.nat_outgoing,
        distributed: subnet.gateway_type == "distributed",
        join: subnet.name == objects.node_switch,
        egress_ips: if active { designated(&subnet.gateway_node, node) } else { Vec::new() },
        nat_policy: subnet
            .nat_policy_rules
            .iter()
            .filter(|rule| matches!(rule.action.as_str(), "nat" | "forward"))
            .map(|rule| NatPolicy {
                id: rule.id.clone(),
                translate: rule.action == "nat",
                sources: prefixes(&rule.sources),
                destinations: prefixes(&rule.destinations),
            })
            .collect(),
        external_egress: external_egress(subnet, objects),
    }
}

fn external_egress(subnet: &SubnetFacts, objects: &Objects<'_>) -> Option<ExternalEgress> {
    let gateways: Vec<IpAddr> =
        subnet.external_egress_gateway.split(',').filter_map(|ip| ip.trim().parse().ok()).collect();
    if gateways.is_empty() || subnet.nat_outgoing {
        return None;
    }
    let distributed = subnet.gateway_type == "distributed";
    let selected = || {
        subnet.gateway_node.trim().is_empty()
            && subnet.gateway_node_selectors.iter().any(|selector| selects(selector, &objects.node_labels))
    };
    // One that is being deleted still sends, for as long as its grace lasts.
    let local_pods = objects.pods.iter().filter(|pod| distributed && !pod.finished);
    Some(ExternalEgress {
        gateways,
        table: subnet.policy_routing_table_id,
        priority: subnet.policy_routing_priority,
        gateway_here: is_named(&subnet.gateway_node, &objects.node.name) || selected(),
        local_pods: local_pods.flat_map(|pod| addresses_in(pod, &subnet.name)).collect(),
    })
}

/// A pod's addresses in a subnet, by whichever attachment.
fn addresses_in(pod: &PodFacts, subnet: &str) -> Vec<IpAddr> {
    pod.annotations
        .iter()
        .filter_map(|(key, value)| {
            let provider = key.strip_suffix(".kubernetes.io/logical_switch")?;
            (value == subnet).then(|| pod.annotation(provider, "ip_address"))?
        })
        .flat_map(|ips| ips.split(',').filter_map(|ip| ip.trim().parse().ok()))
        .collect()
}

/// Kubernetes' label selector; an empty one selects everything, an unknown operator nothing.
pub(crate) fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let equal = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    equal
        && expressions.into_iter().flatten().all(|expression| {
            let label = labels.get(&text(expression, "key"));
            let values = expression.get("values").and_then(Value::as_array);
            let listed = |label: &String| {
                values.into_iter().flatten().any(|value| value.as_str() == Some(label.as_str()))
            };
            match text(expression, "operator").as_str() {
                "In" => label.is_some_and(listed),
                "NotIn" => !label.is_some_and(listed),
                "Exists" => label.is_some(),
                "DoesNotExist" => label.is_none(),
                _ => false,
            }
        })
}

/// Where underlay pods may be. Addresses that no pod gets are not theirs.
fn underlay<'a>(subnets: impl Iterator<Item = &'a SubnetFacts>) -> UnderlayInput {
    let mut underlay = UnderlayInput::default();
    for subnet in subnets {
        underlay.pods.extend(prefixes(&subnet.cidr_block));
        underlay.hosts.extend(prefixes(&subnet.gateway));
        underlay.hosts.extend(subnet.exclude_ips.iter().flat_map(|text| range(text)));
    }
    underlay
}

/// Addresses of a node in further tunnel networks: annotation `node_networks`, a JSON object of name → address.
fn node_networks(node: &NodeFacts) -> Vec<IpAddr> {
    node.annotation("ovn.kubernetes.io/node_networks")
        .and_then(|text| serde_json::from_str::<std::collections::BTreeMap<String, String>>(text).ok())
        .into_iter()
        .flat_map(std::collections::BTreeMap::into_values)
        .filter_map(|ip| ip.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_what_counts() {
        let subnet = |name: &str, vpc: &str, cidr: &str| SubnetFacts {
            name: name.into(),
            vpc: vpc.into(),
            cidr_block: cidr.into(),
            validated: true,
            nat_outgoing: true,
            gateway_type: "centralized".into(),
            gateway_node: "n1:172.30.0.100".into(),
            ..SubnetFacts::default()
        };
        let default = SubnetFacts {
            activate_gateway: "n1".into(),
            ..subnet("ovn-default", "ovn-cluster", "10.16.0.0/16,fd00:10:16::/112")
        };
        let join = SubnetFacts { activate_gateway: "n2".into(), ..subnet("join", "", "100.64.0.0/16") };
        let custom = subnet("custom", "vpc1", "10.99.0.0/16");
        let node = |name: &str, ip: &str, networks: &str| NodeFacts {
            name: name.into(),
            internal_ips: vec![ip.parse().unwrap()],
            annotations: [("ovn.kubernetes.io/node_networks".to_owned(), networks.to_owned())].into(),
            ..NodeFacts::default()
        };
        let (n1, n2) =
            (node("n1", "172.30.0.11", ""), node("n2", "172.30.0.12", r#"{"storage":"172.31.0.12"}"#));
        let not_ready = ServiceCidrFacts { cidrs: vec!["10.200.0.0/16".into()], ready: false };
        let ready = ServiceCidrFacts { cidrs: vec!["10.100.0.0/16".into()], ready: true };
        let objects = |service_cidrs| Objects {
            subnets: vec![&default, &join, &custom],
            node: &n1,
            nodes: vec![&n1, &n2],
            service_cidrs,
            service_cluster_ip_range: "10.96.0.0/12",
            cluster_router: "ovn-cluster",
            node_switch: "join",
            join: None,
            tunnel_peers: BTreeSet::from(["172.32.0.12".parse().unwrap()]),
            proxy_sets: BTreeSet::new(),
            pods: Vec::new(),
            node_labels: BTreeMap::new(),
            staying: BTreeSet::new(),
            config: Config::default(),
        };
        let inputs = Inputs::gather(objects(vec![&not_ready]));
        assert_eq!((inputs.ipv4, inputs.ipv6), (true, false), "the join subnet decides");
        assert_eq!(inputs.subnets.len(), 2);
        assert_eq!(inputs.subnets[0].egress_ips, ["172.30.0.100".parse::<IpAddr>().unwrap()]);
        assert!(inputs.subnets[1].join && inputs.subnets[1].egress_ips.is_empty());
        let shared = SubnetFacts { activate_gateway: String::new(), ..default.clone() };
        let inputs = Inputs::gather(Objects { subnets: vec![&shared], ..objects(vec![&not_ready]) });
        assert_eq!(
            inputs.subnets[0].egress_ips.len(),
            1,
            "shared between all, or none is ready: each has its own"
        );
        let inputs = Inputs::gather(objects(vec![&not_ready]));
        assert_eq!(inputs.services, prefixes("10.96.0.0/12"));
        assert_eq!(inputs.other_node_ips, BTreeSet::from(["172.30.0.12".parse().unwrap()]));
        assert_eq!(inputs.other_node_addresses.len(), 2);
        assert_eq!(Inputs::gather(objects(vec![&ready, &not_ready])).services, prefixes("10.100.0.0/16"));
        let both =
            Objects { service_cluster_ip_range: "10.96.0.0/12,fd00:96::/112", ..objects(vec![&ready]) };
        assert_eq!(
            Inputs::gather(both).services,
            prefixes("10.100.0.0/16,fd00:96::/112"),
            "family by family"
        );
    }

    fn gathered(subnets: &[SubnetFacts], pods: &[PodFacts], labels: &[(&str, &str)]) -> Inputs {
        let node = NodeFacts { name: "n1".into(), ..NodeFacts::default() };
        Inputs::gather(Objects {
            subnets: subnets.iter().collect(),
            node: &node,
            nodes: Vec::new(),
            service_cidrs: Vec::new(),
            service_cluster_ip_range: "10.96.0.0/12",
            cluster_router: "ovn-cluster",
            node_switch: "join",
            join: None,
            tunnel_peers: BTreeSet::new(),
            proxy_sets: BTreeSet::new(),
            pods: pods.iter().collect(),
            node_labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            staying: BTreeSet::new(),
            config: Config::default(),
        })
    }

    #[test]
    fn a_subnet_stays_where_it_is_used() {
        let moved = |in_use, validated| SubnetFacts { in_use, validated, ..SubnetFacts::default() };
        assert!(stays(&moved(true, true), true, true), "the controller has yet to say so");
        assert!(stays(&moved(true, false), false, true), "the agent has restarted");
        assert!(!stays(&moved(true, true), false, true), "the route is a leftover");
        assert!(!stays(&moved(true, false), false, false), "it was never here");
        assert!(!stays(&moved(false, false), true, true), "nobody uses it");
    }

    #[test]
    fn subnets_of_other_plugins_are_none_of_ours() {
        let subnet = |name: &str, provider: &str| SubnetFacts {
            name: name.into(),
            provider: provider.into(),
            cidr_block: "10.60.0.0/16".into(),
            ..SubnetFacts::default()
        };
        let inputs = gathered(
            &[subnet("ipam", "macvlan.web"), subnet("second", "net.web.ovn"), subnet("first", "ovn")],
            &[],
            &[],
        );
        let names: Vec<&str> = inputs.subnets.iter().map(|subnet| subnet.name.as_str()).collect();
        assert_eq!(names, ["second", "first"]);
    }

    #[test]
    fn underlay_pods_are_told_from_hosts() {
        let subnet = SubnetFacts {
            name: "vlan10".into(),
            vpc: "custom".into(),
            vlan: "vlan10".into(),
            cidr_block: "172.30.0.0/24".into(),
            gateway: "172.30.0.1".into(),
            exclude_ips: vec!["172.30.0.8..172.30.0.15".into(), "172.30.0.254".into()],
            ..SubnetFacts::default()
        };
        let logical = SubnetFacts { name: "v".into(), logical_gateway: true, ..subnet.clone() };
        let underlay = gathered(&[subnet, logical], &[], &[]).underlay;
        let shown = |nets: &BTreeSet<ipnet::IpNet>| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&underlay.pods), ["172.30.0.0/24"]);
        assert_eq!(shown(&underlay.hosts), ["172.30.0.1/32", "172.30.0.8/29", "172.30.0.254/32"]);
    }

    #[test]
    fn gateways_and_pods_of_an_external_egress() {
        let subnet = SubnetFacts {
            name: "out".into(),
            cidr_block: "10.17.0.0/16".into(),
            gateway_type: "distributed".into(),
            external_egress_gateway: "172.30.0.9, fd00:172::9".into(),
            policy_routing_table_id: 1000,
            policy_routing_priority: 900,
            ..SubnetFacts::default()
        };
        let pod = |name: &str, provider: &str, ip: &str| PodFacts {
            name: name.into(),
            annotations: BTreeMap::from([
                (crds::keys::pod_key(provider, "logical_switch"), "out".to_owned()),
                (crds::keys::pod_key(provider, "ip_address"), ip.to_owned()),
            ]),
            ..PodFacts::default()
        };
        let finished = PodFacts { finished: true, ..pod("finished", "ovn", "10.17.0.9") };
        let leaving = PodFacts { deleting: true, ..pod("b", "net.web.ovn", "10.17.0.6") };
        let pods = [pod("a", "ovn", "10.17.0.5,fd00::5"), leaving, finished];
        let egress = |subnet: &SubnetFacts, labels: &[(&str, &str)]| {
            gathered(std::slice::from_ref(subnet), &pods, labels).subnets[0].external_egress.clone()
        };
        let found = egress(&subnet, &[]).unwrap();
        assert_eq!((found.table, found.priority, found.gateways.len()), (1000, 900, 2));
        let ips: Vec<String> = found.local_pods.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.17.0.5", "10.17.0.6", "fd00::5"]);
        assert_eq!(egress(&SubnetFacts { nat_outgoing: true, ..subnet.clone() }, &[]), None);

        let central = SubnetFacts { gateway_type: "centralized".into(), ..subnet };
        let here =
            |subnet: &SubnetFacts, labels: &[(&str, &str)]| egress(subnet, labels).unwrap().gateway_here;
        assert!(!here(&central, &[]) && egress(&central, &[]).unwrap().local_pods.is_empty());
        assert!(here(&SubnetFacts { gateway_node: "n2,n1:172.30.0.1".into(), ..central.clone() }, &[]));
        let selectors = vec![serde_json::json!({
            "matchLabels": {"zone": "a"},
            "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}, {"key": "r", "operator": "In", "values": ["x"]}],
        })];
        let selected = SubnetFacts { gateway_node_selectors: selectors, ..central };
        assert!(here(&selected, &[("zone", "a"), ("r", "x")]));
        for labels in [
            vec![("zone", "b"), ("r", "x")],
            vec![("zone", "a")],
            vec![("zone", "a"), ("r", "x"), ("old", "")],
        ] {
            assert!(!here(&selected, &labels), "{labels:?}");
        }
        let named = SubnetFacts { gateway_node: "n2".into(), ..selected };
        assert!(!here(&named, &[("zone", "a"), ("r", "x")]), "names win over selectors");
    }
}
