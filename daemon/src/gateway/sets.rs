//! The wanted ipsets (node contract §4.2), and some of our own for the ports that pods are refused: `other-node-addr`, every
//! address of other nodes; `underlay-pods`, prefixes of underlay subnets, and `underlay-hosts`, what in them is no pod.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::inputs::{Inputs, SubnetInput};
use crate::firewall::{Family, SetSpec};

/// Name of a set: `ovn40subnets`, `ovn60subnets` …
pub(super) fn set_name(family: Family, id: &str) -> String {
    match family {
        Family::V4 => format!("ovn40{id}"),
        Family::V6 => format!("ovn60{id}"),
    }
}

/// Names of the sets of one NAT policy rule.
pub(super) fn policy_sets(family: Family, rule: &str) -> (String, String) {
    (set_name(family, &format!("natpr-{rule}-src")), set_name(family, &format!("natpr-{rule}-dst")))
}

/// Whether an unwanted set of ours goes: only those of NAT policy rules come and go, all others are always wanted or
/// belong to a feature that we don't have.
pub(super) fn is_retired(name: &str) -> bool {
    ["ovn40natpr-", "ovn60natpr-"].iter().any(|prefix| name.starts_with(prefix))
}

/// All wanted sets of the families in use.
pub(super) fn wanted(inputs: &Inputs) -> BTreeMap<String, SetSpec> {
    let mut sets = BTreeMap::new();
    for family in inputs.families() {
        let mut add = |id: &str, nets: Vec<IpNet>| {
            sets.insert(set_name(family, id), SetSpec::nets(family, nets));
        };
        let of = |wanted: &dyn Fn(&SubnetInput) -> bool| -> Vec<IpNet> {
            overlay(inputs).filter(|subnet| wanted(subnet)).flat_map(|subnet| subnet.cidrs.clone()).collect()
        };
        let hosts = |ips: &mut dyn Iterator<Item = &std::net::IpAddr>| -> Vec<IpNet> {
            ips.map(|ip| IpNet::from(*ip)).collect()
        };
        add("services", inputs.services.clone());
        let local_dns = inputs.config.node_local_dns.iter().map(|ip| IpNet::from(*ip));
        add("subnets", of(&|_| true).into_iter().chain(local_dns).collect());
        add("underlay-pods", inputs.underlay.pods.iter().copied().collect());
        let own = inputs.node_ips.iter().chain(&inputs.other_node_ips).chain(&inputs.other_node_addresses);
        let hosts_there = own.map(|ip| IpNet::from(*ip)).chain(inputs.underlay.hosts.iter().copied());
        // Only addresses that the other set would take for pods'.
        let confusable = |net: &IpNet| inputs.underlay.pods.iter().any(|pods| pods.contains(net));
        add("underlay-hosts", hosts_there.filter(confusable).collect());
        add("subnets-nat", of(&|subnet| !subnet.deleting && subnet.nat_outgoing));
        add("subnets-nat-policy", of(&SubnetInput::has_nat_policy));
        add("subnets-distributed-gw", of(&|subnet| !subnet.deleting && subnet.distributed));
        add("other-node", hosts(&mut inputs.other_node_ips.iter()));
        let all = inputs.other_node_ips.iter().chain(&inputs.other_node_addresses);
        add("other-node-addr", hosts(&mut all.filter(|ip| !inputs.node_ips.contains(ip))));
        let with_policy = overlay(inputs).filter(|subnet| subnet.has_nat_policy());
        for rule in with_policy.flat_map(|subnet| &subnet.nat_policy) {
            for (text, nets) in [("src", &rule.sources), ("dst", &rule.destinations)] {
                if nets.iter().any(|net| Family::of(&net.addr()) == family) {
                    add(&format!("natpr-{}-{text}", rule.id), nets.clone());
                }
            }
        }
        sets.insert(set_name(family, "local-pod-ip-nat"), SetSpec::no_addresses(family));
    }
    sets
}

/// The subnets that the sets are about: pods behind `ovn0`.
pub(super) fn overlay(inputs: &Inputs) -> impl Iterator<Item = &SubnetInput> {
    inputs.subnets.iter().filter(|subnet| !subnet.underlay)
}
