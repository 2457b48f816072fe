//! Names and addresses of a lab, all derived from its index: two labs can't
//! meet on a name, an address or a cgroup.
//!
//! In: name, index, family. Out: names and addresses; pure functions.
//!
//! Networks of lab I (198.18.0.0/15 is set aside for test networks, so it can't
//! collide with a real one):
//!
//! | network | IPv4 | IPv6 | who is on it |
//! |---|---|---|---|
//! | management (eth0) | 198.18.I.0/24 | fd00:198:18:I::/64 | the machine .1, control plane .2, outside host .3, node N .10+N |
//! | underlay (eth1) | 198.19.I.0/24 | fd00:198:19:I::/64 | outside host .3, node N .10+N |
//! | physical (eth2) | 198.19.(100+I).0/24 | fd00:198:20:I::/64 | outside host .3, node N .10+N |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Error, bail};
use serde::{Deserialize, Serialize};

/// Address families of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
    /// Both, IPv4 first.
    Dual,
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "ipv4" => Self::Ipv4,
            "ipv6" => Self::Ipv6,
            "dual" => Self::Dual,
            _ => bail!("unknown family {text:?}: it is ipv4, ipv6 or dual"),
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Dual => "dual",
        })
    }
}

impl Family {
    /// Whether the cluster has IPv4.
    pub fn v4(self) -> bool {
        self != Self::Ipv6
    }

    /// Whether the cluster has IPv6.
    pub fn v6(self) -> bool {
        self != Self::Ipv4
    }

    /// The values of this cluster's families, IPv4 first.
    pub fn select<T>(self, v4: T, v6: T) -> Vec<T> {
        let mut values = Vec::new();
        if self.v4() {
            values.push(v4);
        }
        if self.v6() {
            values.push(v6);
        }
        values
    }

    /// The values of this cluster's families as Kubernetes flags want them:
    /// `"v4"`, `"v6"` or `"v4,v6"`.
    pub fn join(self, v4: &str, v6: &str) -> String {
        self.select(v4, v6).join(",")
    }
}

/// The pod network (Kube-OVN's default subnet `ovn-default`).
pub const POD_CIDR: (&str, &str) = ("10.16.0.0/16", "fd00:10:16::/112");
/// The network between nodes and the logical router (subnet `join`).
pub const JOIN_CIDR: (&str, &str) = ("100.64.0.0/16", "fd00:100:64::/112");
/// Addresses of Services.
pub const SERVICE_CIDR: (&str, &str) = ("10.96.0.0/16", "fd00:10:96::/112");
/// The API server's own Service: the first address of each service network.
pub const SERVICE_KUBERNETES: (&str, &str) = ("10.96.0.1", "fd00:10:96::1");
/// The cluster's DNS Service.
pub const SERVICE_DNS: (&str, &str) = ("10.96.0.10", "fd00:10:96::a");
/// The API server's port.
pub const API_PORT: u16 = 6443;

/// Host number of the machine on the management network.
pub const HOST_MACHINE: u8 = 1;
/// Host number of the control plane on the management network.
pub const HOST_CONTROL: u8 = 2;
/// Host number of the outside host on both networks.
pub const HOST_OUTSIDE: u8 = 3;
/// Node N has host number `HOST_NODES + N`.
pub const HOST_NODES: u8 = 10;
/// The largest node number that the addresses leave room for.
pub const MAX_NODE: u8 = 240;

/// One of a lab's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Net {
    /// eth0 of a node: kubelet and API.
    Management,
    /// eth1 of a node: tunnels.
    Underlay,
    /// eth2 of a node: what provider networks stand on; a cluster uses it only when it is told to.
    Physical,
}

impl Net {
    /// All, eth0 first.
    pub const ALL: [Net; 3] = [Net::Management, Net::Underlay, Net::Physical];

    /// 0 to 2: the number in `eth0`, `eth1`, `eth2` and in names of bridges and ports.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Identity of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What the user calls it.
    pub name: String,
    /// 1 to [`Plan::MAX_INDEX`], unique among the labs of a machine.
    pub index: u8,
    /// Address families.
    pub family: Family,
}

impl Plan {
    /// The largest index.
    pub const MAX_INDEX: u8 = 99;

    /// Name of one of the lab's network namespaces: `net` (the switches), `cp`
    /// (control plane), `out` (outside host) or a node's name.
    pub fn netns(&self, what: &str) -> String {
        format!("weir{}-{what}", self.index)
    }

    /// The machine's own link into the management network (in the machine's
    /// namespace; at most 15 bytes).
    pub fn machine_link(&self) -> String {
        format!("weirlab{}", self.index)
    }

    /// A cgroup of the lab, relative to a hierarchy's root.
    pub fn cgroup(&self, what: &str) -> String {
        format!("{}/{what}", self.cgroup_root())
    }

    /// The cgroup that all of the lab's cgroups are in.
    pub fn cgroup_root(&self) -> String {
        format!("weirlab{}", self.index)
    }

    /// An IPv4 address on one of the lab's networks, cluster family or not.
    pub fn v4(&self, net: Net, host: u8) -> Ipv4Addr {
        match net {
            Net::Management => Ipv4Addr::new(198, 18, self.index, host),
            Net::Underlay => Ipv4Addr::new(198, 19, self.index, host),
            // 198.18.0.0/15 has no third /16; indexes end below 100.
            Net::Physical => Ipv4Addr::new(198, 19, 100 + self.index, host),
        }
    }

    /// An IPv6 address on one of the lab's networks, cluster family or not.
    pub fn v6(&self, net: Net, host: u8) -> Ipv6Addr {
        // The decimal number is written in hex digits, so that a person reads
        // the same number in both families: .12 and ::12.
        let digits = |number: u8| {
            let number = u16::from(number);
            ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
        };
        let net = match net {
            Net::Management => 0x18,
            Net::Underlay => 0x19,
            Net::Physical => 0x20,
        };
        Ipv6Addr::new(0xfd00, 0x198, net, digits(self.index), 0, 0, 0, digits(host))
    }

    /// The addresses of the cluster's families, IPv4 first.
    pub fn addresses(&self, net: Net, host: u8) -> Vec<IpAddr> {
        self.family.select(self.v4(net, host).into(), self.v6(net, host).into())
    }

    /// The same with prefix lengths, as `ip address add` wants them.
    pub fn prefixes(&self, net: Net, host: u8) -> Vec<String> {
        self.addresses(net, host)
            .into_iter()
            .map(|address| format!("{address}/{}", prefix(address)))
            .collect()
    }

    /// The first address of the cluster's families: what a node or server is
    /// advertised by.
    pub fn primary(&self, net: Net, host: u8) -> IpAddr {
        match self.family {
            Family::Ipv6 => self.v6(net, host).into(),
            Family::Ipv4 | Family::Dual => self.v4(net, host).into(),
        }
    }

    /// The API server's URL, reachable from the machine and from nodes.
    pub fn api_url(&self) -> String {
        format!("https://{}", socket(self.primary(Net::Management, HOST_CONTROL), API_PORT))
    }
}

/// Prefix length of a lab network.
fn prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

/// `address:port`, with brackets around IPv6.
pub fn socket(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_come_from_the_index() {
        let plan = Plan { name: "x".into(), index: 12, family: Family::Dual };
        assert_eq!(plan.prefixes(Net::Management, 2), ["198.18.12.2/24", "fd00:198:18:12::2/64"]);
        assert_eq!(plan.prefixes(Net::Underlay, 110), ["198.19.12.110/24", "fd00:198:19:12::110/64"]);
        assert_eq!(plan.prefixes(Net::Physical, 11), ["198.19.112.11/24", "fd00:198:20:12::11/64"]);
        assert_eq!(plan.api_url(), "https://198.18.12.2:6443");
        assert!(Plan { index: Plan::MAX_INDEX, ..plan.clone() }.machine_link().len() <= 15);
        let six = Plan { family: Family::Ipv6, ..plan };
        assert_eq!(six.api_url(), "https://[fd00:198:18:12::2]:6443");
        assert_eq!(six.addresses(Net::Management, 1).len(), 1);
    }

    #[test]
    fn families_select_and_join() {
        assert_eq!(Family::Dual.join("a", "b"), "a,b");
        assert_eq!("ipv6".parse::<Family>().unwrap().join("a", "b"), "b");
        assert!("ipv5".parse::<Family>().is_err());
    }
}
