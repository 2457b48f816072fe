//! Which interface carries tunnels, with which address, and what MTU is left
//! for pods (node contract §3.2). Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use regex::Regex;

use super::NotYet;
use crate::flags::{Flags, NetworkType};
use crate::kube::NodeFacts;
use crate::netlink::{Address, Link, MAIN_TABLE, Route, Scope};

/// The host's network as read by netlink.
#[derive(Clone, Debug, Default)]
pub struct HostView {
    /// Links.
    pub links: Vec<Link>,
    /// Addresses.
    pub addresses: Vec<Address>,
    /// Routes.
    pub routes: Vec<Route>,
}

impl HostView {
    /// The link of that name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Addresses of a link.
    pub fn addresses_of(&self, index: u32) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |address| address.index == index)
    }

    /// The link that owns an address, of those that may carry tunnels.
    pub fn link_with(&self, ip: IpAddr) -> Option<&Link> {
        let owners = self.addresses.iter().filter(|address| address.net.addr() == ip);
        let links = owners.filter_map(|owner| self.links.iter().find(|link| link.index == owner.index));
        links.into_iter().find(|link| !never_carries_tunnels(link))
    }
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Interface.
    pub interface: String,
    /// Encapsulation address.
    pub encap_ip: IpAddr,
    /// MTU of pods in bytes.
    pub mtu: u32,
}

/// What names the tunnel's NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A name, or regular expressions.
    Named(String),
    /// The interface that owns the node's own address.
    OwnerOf(IpAddr),
}

/// Who names the NIC: the node's annotation, then `--iface`, then the node's
/// own address. That is what the agent's environment says, as long as a link
/// has it: the environment is of the pod's start, and the Node is told of a
/// new address.
///
/// # Errors
/// When the node's address is not known either.
pub fn wish(flags: &Flags, host: &HostView, node: Option<&NodeFacts>) -> Result<Wish, NotYet> {
    let annotated = node.and_then(|node| node.annotation(crds::keys::TUNNEL_INTERFACE));
    if let Some(name) = annotated {
        return Ok(Wish::Named(name.to_owned()));
    }
    if !flags.iface.is_empty() {
        return Ok(Wish::Named(flags.iface.clone()));
    }
    let told = flags.pod_ip();
    let internal = || {
        let ips = &node?.internal_ips;
        ips.iter().find(|ip| ip.is_ipv4()).or_else(|| ips.first()).copied()
    };
    let own = told.filter(|ip| host.link_with(*ip).is_some()).or_else(internal).or(told);
    own.map(Wish::OwnerOf).ok_or_else(|| {
        NotYet::new("tunnel", "neither --iface nor the node's address is known", "set --iface or POD_IP")
    })
}

/// Links that carry no tunnels, whoever names them: the loopback, our own and OVS's, and those on which kube-proxy and the
/// node-local DNS cache keep addresses that exist on every node.
pub(super) fn never_carries_tunnels(link: &Link) -> bool {
    const NAMES: [&str; 8] = [
        "lo",
        "ovn0",
        "ovnext0",
        "mirror0",
        "kube-ipvs0",
        "nodelocaldns",
        "genev_sys_6081",
        "vxlan_sys_4789",
    ];
    // Pods' ends of our veth pairs and OVS's own devices.
    let ours = link.name.ends_with("_h") || link.name.starts_with("ovs-") || link.name == crate::ovs::BR_INT;
    NAMES.contains(&link.name.as_str()) || ours
}

/// The link that a wish means: an exact name, else the first link in kernel
/// order that one of the expressions matches.
pub fn find_link<'a>(host: &'a HostView, wish: &Wish) -> Option<&'a Link> {
    match wish {
        Wish::OwnerOf(ip) => host.link_with(*ip),
        Wish::Named(text) => host.link(text).filter(|link| !never_carries_tunnels(link)).or_else(|| {
            let patterns: Vec<Regex> = text
                .split(',')
                .map(str::trim)
                .filter(|pattern| !pattern.is_empty())
                .filter_map(|pattern| Regex::new(&format!("^(?:{pattern})$")).ok())
                .collect();
            let named = |link: &&Link| patterns.iter().any(|pattern| pattern.is_match(&link.name));
            host.links.iter().filter(|link| !never_carries_tunnels(link)).find(named)
        }),
    }
}

/// The encapsulation address on a link: the first that is no host address
/// (unless `--host-tunnel-src`), not link-local, not loopback, and a preferred
/// source if the link's on-link routes have any.
pub fn encap_ip(host: &HostView, link: &Link, host_source_allowed: bool) -> Option<IpAddr> {
    let sources: Vec<IpAddr> = host
        .routes
        .iter()
        .filter(|route| route.table == MAIN_TABLE && route.link == Some(link.index))
        .filter(|route| route.scope == Scope::Link)
        .filter_map(|route| route.source)
        .collect();
    host.addresses_of(link.index)
        .filter(|address| !address.link_scope && !address.net.addr().is_loopback())
        .filter(|address| host_source_allowed || address.net.prefix_len() < address.net.max_prefix_len())
        .map(|address| address.net.addr())
        .find(|ip| sources.is_empty() || sources.contains(ip))
}

/// MTU of pods: the flag, else what the encapsulation leaves of the link's.
pub fn pod_mtu(flag: u32, kind: NetworkType, link_mtu: u32, encap_ip: IpAddr) -> u32 {
    if flag > 0 { flag } else { link_mtu.saturating_sub(kind.overhead(encap_ip.is_ipv6())) }
}

/// The choice on the link that carries tunnels (a bridge, with the userspace
/// datapath).
///
/// # Errors
/// When the link has no usable address.
pub fn choose(flags: &Flags, host: &HostView, link: &Link, wish: &Wish) -> Result<Tunnel, NotYet> {
    let encap = match wish {
        Wish::OwnerOf(ip) if host.addresses_of(link.index).any(|a| a.net.addr() == *ip) => Some(*ip),
        _ => encap_ip(host, link, flags.host_tunnel_src),
    };
    let encap_ip = encap.ok_or_else(|| {
        NotYet::new(
            "tunnel",
            format!("interface {} has no address for tunnels", link.name),
            "give it an address with a prefix shorter than a host's, or set --host-tunnel-src",
        )
    })?;
    Ok(Tunnel {
        interface: link.name.clone(),
        encap_ip,
        mtu: pod_mtu(flags.mtu, flags.network_type, link.mtu, encap_ip),
    })
}

/// The node's address in each node network; junk counts as empty (§3.2).
pub fn node_networks(node: Option<&NodeFacts>) -> BTreeMap<String, IpAddr> {
    node.and_then(|node| node.annotation(crds::keys::NODE_NETWORKS))
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default()
}

/// The keys of `Open_vSwitch:external_ids` that the agent owns here.
pub fn external_ids(
    tunnel: &Tunnel,
    node_networks: &BTreeMap<String, IpAddr>,
    checksum: bool,
) -> BTreeMap<String, String> {
    let default = tunnel.encap_ip.to_string();
    let mut others: Vec<IpAddr> =
        node_networks.values().copied().filter(|ip| *ip != tunnel.encap_ip).collect();
    others.sort_unstable();
    others.dedup();
    let all = std::iter::once(default.clone()).chain(others.iter().map(ToString::to_string));
    BTreeMap::from([
        ("ovn-encap-ip".to_owned(), all.collect::<Vec<_>>().join(",")),
        ("ovn-encap-ip-default".to_owned(), default),
        ("ovn-encap-csum".to_owned(), checksum.to_string()),
    ])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        Link {
            index,
            name: name.into(),
            mac: None,
            mtu,
            up: true,
            running: true,
            kind: None,
            peer: None,
            controller: None,
            tx_queue_len: 0,
            alias: None,
        }
    }

    pub(in crate::node) fn address(index: u32, net: &str) -> Address {
        let net: ipnet::IpNet = net.parse().unwrap();
        let link_scope = match net.addr() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        Address {
            index,
            net,
            peer: None,
            link_scope,
            tentative: false,
            duplicate: false,
            permanent: true,
            secondary: false,
            label: None,
        }
    }

    fn host() -> HostView {
        HostView {
            links: vec![link(1, "lo", 65536), link(2, "eth0", 1500), link(3, "eth1", 1600)],
            addresses: vec![
                address(2, "172.30.0.11/24"),
                address(3, "fe80::1/64"),
                address(3, "10.9.0.9/32"),
                address(3, "10.9.0.11/24"),
                address(3, "fd09::11/64"),
            ],
            routes: Vec::new(),
        }
    }

    fn flags(arguments: &[&str]) -> Flags {
        Flags::parse_from(std::iter::once("x").chain(arguments.iter().copied()))
    }

    #[test]
    fn the_annotation_beats_the_flag_beats_the_nodes_address() {
        let mut node =
            NodeFacts { internal_ips: vec!["172.30.0.11".parse().unwrap()], ..NodeFacts::default() };
        let f = flags(&[]);
        let host = host();
        assert_eq!(wish(&f, &host, None).unwrap_err().step, "tunnel");
        assert_eq!(wish(&f, &host, Some(&node)).unwrap(), Wish::OwnerOf("172.30.0.11".parse().unwrap()));
        let f = flags(&["--iface=eth1"]);
        assert_eq!(wish(&f, &host, Some(&node)).unwrap(), Wish::Named("eth1".into()));
        node.annotations.insert(crds::keys::TUNNEL_INTERFACE.into(), "eth2".into());
        assert_eq!(wish(&f, &host, Some(&node)).unwrap(), Wish::Named("eth2".into()));
    }

    #[test]
    fn a_nodes_new_address_is_followed() {
        let mut f = flags(&[]);
        f.env.pod_ip = Some("172.30.0.11".into());
        let node = NodeFacts { internal_ips: vec!["172.30.0.12".parse().unwrap()], ..NodeFacts::default() };
        let mut host = host();
        let owner = |host: &HostView, node: Option<&NodeFacts>| match wish(&f, host, node).unwrap() {
            Wish::OwnerOf(ip) => ip.to_string(),
            Wish::Named(name) => name,
        };
        assert_eq!(owner(&host, Some(&node)), "172.30.0.11", "the node has it still");
        host.addresses[0] = address(2, "172.30.0.12/24");
        assert_eq!(owner(&host, Some(&node)), "172.30.0.12");
        assert_eq!(owner(&host, None), "172.30.0.11", "nobody knows better");
        // kube-proxy keeps it for a Service.
        host.links.push(link(9, "kube-ipvs0", 1500));
        host.addresses.insert(0, address(9, "172.30.0.11/32"));
        host.addresses.insert(0, address(9, "172.30.0.12/32"));
        assert_eq!(owner(&host, Some(&node)), "172.30.0.12");
        let found = find_link(&host, &wish(&f, &host, Some(&node)).unwrap()).map(|link| link.name.as_str());
        assert_eq!(found, Some("eth0"));
    }

    #[test]
    fn names_may_be_expressions() {
        let host = host();
        let named = |text: &str| find_link(&host, &Wish::Named(text.into())).map(|link| link.name.clone());
        assert_eq!(named("eth1").as_deref(), Some("eth1"));
        assert_eq!(named("bond.*,eth[1-9]").as_deref(), Some("eth1"));
        assert_eq!(named("eth").as_deref(), None);
        assert_eq!(named("(").as_deref(), None);
        let mut host = host;
        host.links.insert(0, link(9, "kube-ipvs0", 1500));
        host.links.insert(0, link(8, "ovn0", 1400));
        host.links.insert(0, link(7, "abc123_h", 1400));
        let any = find_link(&host, &Wish::Named(".*".into())).map(|link| link.name.clone());
        assert_eq!(find_link(&host, &Wish::Named("ovn0".into())), None, "not by its name either");
        assert_eq!(any.as_deref(), Some("eth0"), "never the loopback, our own links or kube-proxy's");
    }

    #[test]
    fn host_addresses_are_skipped_unless_allowed() {
        let host = host();
        let eth1 = host.link("eth1").unwrap();
        assert_eq!(encap_ip(&host, eth1, false), Some("10.9.0.11".parse().unwrap()));
        assert_eq!(encap_ip(&host, eth1, true), Some("10.9.0.9".parse().unwrap()));
        assert_eq!(encap_ip(&host, host.link("lo").unwrap(), true), None);
    }

    #[test]
    fn a_preferred_source_decides() {
        let mut host = host();
        let mut route = Route::new("10.9.0.0/24".parse().unwrap());
        route.link = Some(3);
        route.scope = Scope::Link;
        route.source = Some("10.9.0.12".parse().unwrap());
        host.routes.push(route);
        host.addresses.push(address(3, "10.9.0.12/24"));
        let eth1 = host.link("eth1").unwrap();
        assert_eq!(encap_ip(&host, eth1, false), Some("10.9.0.12".parse().unwrap()));
    }

    #[test]
    fn the_mtu_is_what_the_encapsulation_leaves() {
        let v4 = "10.9.0.11".parse().unwrap();
        let v6 = "fd09::11".parse().unwrap();
        assert_eq!(pod_mtu(0, NetworkType::Geneve, 1500, v4), 1400);
        assert_eq!(pod_mtu(0, NetworkType::Geneve, 1500, v6), 1380);
        assert_eq!(pod_mtu(1300, NetworkType::Geneve, 1500, v6), 1300);
    }

    #[test]
    fn node_networks_follow_the_default_address() {
        let mut node = NodeFacts::default();
        node.annotations.insert(
            crds::keys::NODE_NETWORKS.into(),
            r#"{"b":"10.9.0.30","a":"10.9.0.20","same":"10.9.0.11"}"#.into(),
        );
        let tunnel = Tunnel { interface: "eth1".into(), encap_ip: "10.9.0.11".parse().unwrap(), mtu: 1400 };
        let ids = external_ids(&tunnel, &node_networks(Some(&node)), true);
        assert_eq!(ids["ovn-encap-ip"], "10.9.0.11,10.9.0.20,10.9.0.30");
        assert_eq!(ids["ovn-encap-ip-default"], "10.9.0.11");
        let csum = |wanted| external_ids(&tunnel, &BTreeMap::new(), wanted)["ovn-encap-csum"].clone();
        assert_eq!([csum(true), csum(false)], ["true", "false"], "K043");
        node.annotations.insert(crds::keys::NODE_NETWORKS.into(), "junk".into());
        assert!(node_networks(Some(&node)).is_empty());
    }
}
