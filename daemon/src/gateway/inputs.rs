//! What the node's gateway state follows from: a value made of the watched objects, with everything parsed.
//!
//! In: facts of Subnets, Nodes and ServiceCIDRs, flags. Out: [`Inputs`], compared as a whole by the caller to see
//! whether anything changed. Text that can't be parsed is left out here; its own object carries the complaint.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::policy::ExternalEgress;
use crate::firewall::Family;

/// Everything that the wanted state depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// Handle IPv4.
    pub ipv4: bool,
    /// Handle IPv6.
    pub ipv6: bool,
    /// Subnets of the default VPC, by name.
    pub subnets: Vec<SubnetInput>,
    /// Prefixes of Services.
    pub services: Vec<IpNet>,
    /// This node's name.
    pub node_name: String,
    /// This node's InternalIPs.
    pub node_ips: Vec<IpAddr>,
    /// InternalIPs of all other nodes.
    pub other_node_ips: BTreeSet<IpAddr>,
    /// More addresses under which other nodes answer (tunnel end points): only used to refuse pods.
    pub other_node_addresses: BTreeSet<IpAddr>,
    /// This node's way into the overlay, once `ovn0` is up.
    pub join: Option<JoinInput>,
    /// Sets of kube-proxy's ipvs mode that exist on this host, from [`super::Gateway::proxy_sets`].
    pub proxy_sets: BTreeSet<String>,
    /// The physical network of underlay pods.
    pub underlay: UnderlayInput,
    /// Settings.
    pub config: Config,
}

/// Where underlay pods may be, as far as their packets can be told from those of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderlayInput {
    /// Prefixes of underlay subnets, in any VPC.
    pub pods: BTreeSet<IpNet>,
    /// Addresses in them that are no pods': gateways, excluded ones.
    pub hosts: BTreeSet<IpNet>,
}

impl Inputs {
    /// The families to handle.
    pub fn families(&self) -> Vec<Family> {
        [(self.ipv4, Family::V4), (self.ipv6, Family::V6)]
            .into_iter()
            .filter_map(|(wanted, family)| wanted.then_some(family))
            .collect()
    }

    /// This node's first InternalIP of a family.
    pub(super) fn node_ip(&self, family: Family) -> Option<IpAddr> {
        self.node_ips.iter().copied().find(|ip| Family::of(ip) == family)
    }
}

/// A Subnet of the default VPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetInput {
    /// Name.
    pub name: String,
    /// UID: names the chain of its NAT policy.
    pub uid: String,
    /// Prefixes, one per family at most.
    pub cidrs: Vec<IpNet>,
    /// Being deleted.
    pub deleting: bool,
    /// Pods sit on the physical network: a VLAN and no logical gateway.
    pub underlay: bool,
    /// Underlay and overlay are connected.
    pub u2o: bool,
    /// Load balancers are attached (`spec.enableLb`).
    pub enable_lb: bool,
    /// The Validated condition is True.
    pub validated: bool,
    /// Translate the source of what leaves.
    pub nat_outgoing: bool,
    /// `gatewayType` is `distributed`.
    pub distributed: bool,
    /// It is the join subnet.
    pub join: bool,
    /// Source address that this node gives to what leaves a centralized subnet (`gatewayNode: n:ip`), where this node
    /// is one of its active gateways.
    pub egress_ips: Vec<IpAddr>,
    /// Exceptions from `natOutgoing`, in their order.
    pub nat_policy: Vec<NatPolicy>,
    /// An external gateway for what leaves untranslated.
    pub external_egress: Option<ExternalEgress>,
}

impl SubnetInput {
    /// Its exceptions count: where nothing is translated, there is nothing to except.
    pub(super) fn has_nat_policy(&self) -> bool {
        self.nat_outgoing && !self.deleting && !self.nat_policy.is_empty()
    }
}

/// One nat-outgoing policy rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatPolicy {
    /// Twelve characters that name its sets.
    pub id: String,
    /// Translate; otherwise forward as it is.
    pub translate: bool,
    /// Sources; empty means any.
    pub sources: Vec<IpNet>,
    /// Destinations; empty means any.
    pub destinations: Vec<IpNet>,
}

/// Addresses of `ovn0`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinInput {
    /// Index of the link.
    pub link: u32,
    /// This node's addresses in the join subnet.
    pub ips: Vec<IpAddr>,
    /// The join subnet's gateways.
    pub gateways: Vec<IpAddr>,
}

/// Settings that come from flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// TCP ports of nodes that pods may not reach: databases of OVN and metrics of our own programs.
    pub refused_tcp: Vec<(u16, u16)>,
    /// UDP ports of nodes that pods may not reach: a pod that can send to a tunnel's port can forge any sender.
    pub refused_udp: Vec<(u16, u16)>,
    /// Masquerade with random ports (`--random-fully`, in every iptables since 1.6.2).
    pub random_fully: bool,
    /// Addresses of the node-local DNS cache: pods' traffic to them stays untranslated.
    pub node_local_dns: Vec<IpAddr>,
    /// Clamp the segment size of TCP connections that leave by this link.
    pub clamp: Option<Clamp>,
    /// Count what passes the node between each subnet and the world.
    pub counters: bool,
}

/// Segment sizes are clamped to what fits the pods' MTU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clamp {
    /// The tunnel's link.
    pub link: String,
    /// MTU of pods in bytes.
    pub mtu: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Northbound, southbound, their raft ports, and the four of the interconnection; controller, monitor, daemon;
            // STT.
            refused_tcp: vec![(6641, 6648), (7471, 7471), (10660, 10661), (10665, 10665)],
            // VXLAN, Geneve.
            refused_udp: vec![(4789, 4789), (6081, 6081)],
            random_fully: true,
            node_local_dns: Vec::new(),
            clamp: None,
            counters: true,
        }
    }
}

/// `v4,v6` as prefixes; what is none is left out.
pub(crate) fn prefixes(text: &str) -> Vec<IpNet> {
    let one =
        |part: &str| part.parse::<IpNet>().ok().or_else(|| Some(IpNet::from(part.parse::<IpAddr>().ok()?)));
    text.split(',').map(str::trim).filter_map(one).map(|net| net.trunc()).collect()
}

/// This node's address in `gatewayNode` (`n1:ip,n2:[v6],n1:v6`): everything behind the first colon of an entry that
/// names the node. (Kube-OVN splits at every colon and so never finds an IPv6 address.)
pub(super) fn designated(gateway_node: &str, node: &str) -> Vec<IpAddr> {
    gateway_node
        .split(',')
        .filter_map(|entry| {
            let (name, address) = entry.trim().split_once(':')?;
            let address = address.trim().trim_start_matches('[').trim_end_matches(']');
            if name == node { address.parse().ok() } else { None }
        })
        .collect()
}

/// Whether a node is named in `gatewayNode`, with an address or without.
pub(super) fn is_named(gateway_node: &str, node: &str) -> bool {
    gateway_node.split(',').any(|entry| entry.trim().split(':').next() == Some(node))
}

/// An address or a range `a..b` as prefixes; what is neither is left out.
pub(super) fn range(text: &str) -> Vec<IpNet> {
    match text.split_once("..") {
        None => prefixes(text),
        Some((first, last)) => match (first.trim().parse(), last.trim().parse()) {
            (Ok(IpAddr::V4(first)), Ok(IpAddr::V4(last))) if first <= last => {
                ipnet::Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
            }
            (Ok(IpAddr::V6(first)), Ok(IpAddr::V6(last))) if first <= last => {
                ipnet::Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
            }
            _ => Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designated_addresses_of_both_families() {
        let text = "n1:172.30.0.100, n2:172.30.0.101,n1:fd00::64,n1:[fd00::65],n1";
        let ips = designated(text, "n1");
        let wanted: Vec<IpAddr> =
            ["172.30.0.100", "fd00::64", "fd00::65"].iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(ips, wanted);
        assert!(designated(text, "n").is_empty());
    }

    #[test]
    fn nodes_are_named_with_and_without_addresses() {
        for (text, named) in
            [("n1,n2", true), ("n2:172.30.0.1,n1:fd00::1", true), ("n11,n2", false), ("", false)]
        {
            assert_eq!(is_named(text, "n1"), named, "{text}");
        }
    }

    #[test]
    fn ranges_become_prefixes() {
        let shown = |text| range(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown("10.50.0.1..10.50.0.4"), ["10.50.0.1/32", "10.50.0.2/31", "10.50.0.4/32"]);
        assert_eq!(shown("10.50.0.9"), ["10.50.0.9/32"]);
        assert_eq!(shown("fd00::..fd00::ff"), ["fd00::/120"]);
        for junk in ["10.50.0.4..10.50.0.1", "a..b", "fd00::..10.0.0.1", ".."] {
            assert_eq!(shown(junk), Vec::<String>::new(), "{junk}");
        }
    }

    #[test]
    fn prefixes_are_truncated_and_junk_is_left_out() {
        let nets: Vec<String> =
            prefixes("10.16.0.7/16, fd00::1,junk,").iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.16.0.0/16", "fd00::1/128"]);
    }
}
