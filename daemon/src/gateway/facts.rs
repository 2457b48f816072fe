//! From the watched objects to [`Inputs`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::inputs::{Config, Inputs, JoinInput, NatPolicy, SubnetInput, designated, prefixes};
use crate::firewall::Family;
use crate::kube::{NodeFacts, ServiceCidrFacts, SubnetFacts};

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
    /// Settings.
    pub config: Config,
}

impl Inputs {
    /// Parses and selects.
    pub fn gather(objects: Objects<'_>) -> Self {
        let subnets: Vec<SubnetInput> = objects
            .subnets
            .iter()
            .filter(|subnet| subnet.in_default_vpc(objects.cluster_router))
            .map(|subnet| subnet_input(subnet, &objects))
            .collect();
        let ready: BTreeSet<_> = objects
            .service_cidrs
            .iter()
            .filter(|cidr| cidr.ready)
            .flat_map(|cidr| cidr.cidrs.iter().flat_map(|text| prefixes(text)))
            .collect();
        let services = if ready.is_empty() {
            prefixes(objects.service_cluster_ip_range)
        } else {
            ready.into_iter().collect()
        };
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
        Self {
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
    let active = subnet.enable_ecmp || subnet.activate_gateway == *node;
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
    }
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
        let join = subnet("join", "", "100.64.0.0/16");
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
            config: Config::default(),
        };
        let inputs = Inputs::gather(objects(vec![&not_ready]));
        assert_eq!((inputs.ipv4, inputs.ipv6), (true, false), "the join subnet decides");
        assert_eq!(inputs.subnets.len(), 2);
        assert_eq!(inputs.subnets[0].egress_ips, ["172.30.0.100".parse::<IpAddr>().unwrap()]);
        assert!(inputs.subnets[1].join && inputs.subnets[1].egress_ips.is_empty());
        assert_eq!(inputs.services, prefixes("10.96.0.0/12"));
        assert_eq!(inputs.other_node_ips, BTreeSet::from(["172.30.0.12".parse().unwrap()]));
        assert_eq!(inputs.other_node_addresses.len(), 2);
        assert_eq!(Inputs::gather(objects(vec![&ready, &not_ready])).services, prefixes("10.100.0.0/16"));
    }
}
