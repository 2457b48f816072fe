//! Projections of addresses: leases, pools, Vips, OvnEips, and how much is used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde::Serialize;

/// The name of the lease of an IptablesEIP. No port has it, since no object's name has a
/// blank; it is what users read where its address is in the way.
pub(crate) fn nat_port(name: &str) -> String {
    format!("IptablesEIP {name}")
}

/// Projection of an IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpPoolView {
    /// UID.
    pub uid: Arc<str>,
    /// Being deleted.
    pub deleting: bool,
    /// Its subnet.
    pub subnet: Arc<str>,
    /// Namespaces whose pods must use it.
    pub namespaces: Vec<Arc<str>>,
    /// `spec.ips` as they have to be, if the controller has to change them.
    pub fill: Option<Vec<Arc<str>>>,
    /// Its addresses as the fewest CIDRs, while it has an address set.
    pub address_set: Option<Vec<Arc<str>>>,
    /// Why it can't be used, if it can't: reason and message.
    pub invalid: Option<(Arc<str>, Arc<str>)>,
}

/// Usage of an IPPool, from IPAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Counts and ranges.
    pub usage: Usage,
    /// Some of the ports that have its addresses.
    pub holders: Vec<Arc<str>>,
}

/// Projection of a Vip.
#[derive(Clone, Debug, PartialEq)]
pub struct VipView {
    /// UID.
    pub uid: Arc<str>,
    /// Being deleted.
    pub deleting: bool,
    /// Spec.
    pub spec: Arc<crds::VipSpec>,
    /// The port by which its address is leased.
    pub port: Arc<str>,
    /// Port of the pod that carries its addresses now (annotation `vip`).
    pub used_by: Option<Arc<str>>,
    /// The addresses it has, or had while nobody carried them.
    pub lease: Option<Arc<Lease>>,
    /// Ports of the pods that may answer for it (annotation `aaps`), by name, in whatever subnet.
    pub parents: Arc<Vec<Arc<str>>>,
    /// MAC of the router port of its subnet.
    pub router_mac: Option<Arc<str>>,
    /// What the spec asks for otherwise than what it has, and the remedy.
    pub changed: Option<Arc<str>>,
}

/// What an OvnEip is the address of (contract §1.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EipType {
    /// NAT rules.
    #[default]
    Nat,
    /// A router's port in the external network.
    RouterPort,
    /// A port of the external switch, of the node that has its name.
    SwitchPort,
}

impl EipType {
    /// As in `spec.type`; `None` for what is no type.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "nat" => Some(Self::Nat),
            "lrp" => Some(Self::RouterPort),
            "lsp" => Some(Self::SwitchPort),
            _ => None,
        }
    }

    /// As in `status.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::RouterPort => "lrp",
            Self::SwitchPort => "lsp",
        }
    }
}

/// Projection of an OvnEip.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EipView {
    /// UID.
    pub uid: Arc<str>,
    /// Being deleted.
    pub deleting: bool,
    /// Its type; `None` for one that is unknown.
    pub kind: Option<EipType>,
    /// Its external subnet.
    pub subnet: Arc<str>,
    /// The port by which its address is leased.
    pub port: Arc<str>,
    /// The addresses it has.
    pub lease: Option<Arc<Lease>>,
    /// Of a router's port the Vpc, by its name.
    pub vpc: Option<Arc<str>>,
    /// It was made for that Vpc, or has served it.
    pub made: bool,
    /// Its row of OVN is in the database.
    pub row: bool,
    /// NAT rules that use it, as `<plural>/<name>`.
    pub users: Vec<Arc<str>>,
    /// What the spec asks for otherwise than what it has, and the remedy.
    pub changed: Option<Arc<str>>,
}

/// What BFD sessions say of a router port in an external network (contract §4.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nothing yet.
    #[default]
    Unknown,
    /// Its first gateway reaches a peer.
    Up,
    /// It reached none: the second one serves.
    Down,
    /// Nor did those before this chassis, whose turn it is.
    Turn(Arc<str>),
}

/// An address lease of a port, given by IPAM before the port is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// Port name, also the IP object's name.
    pub port: Arc<str>,
    /// The subnet.
    pub subnet: Arc<str>,
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// MAC address, lower case, colon separated.
    pub mac: Arc<str>,
    /// UID of the owner that the lease serves now (changes when a successor of
    /// the same name inherits it).
    pub owner: Arc<str>,
}

/// Result of asking IPAM for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Given.
    Held(Arc<Lease>),
    /// Refused: event reason and message (names the object and the remedy).
    Refused(Arc<str>, Arc<str>),
    /// The port has the lease of who had its name before, which has to go first, and its row with it.
    Moving,
    /// Asked for, and not looked at by a leader yet: whether there is one will turn out.
    Pending,
    /// Nothing asked for yet.
    None,
}

/// Subnet usage for the status, from IPAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Usage {
    pub v4_available: u128,
    pub v4_using: u128,
    pub v6_available: u128,
    pub v6_using: u128,
    pub v4_available_range: String,
    pub v4_using_range: String,
    pub v6_available_range: String,
    pub v6_using_range: String,
    /// Some of the ports that hold addresses, by name; filled in only while the
    /// subnet is being deleted.
    pub holders: Vec<Arc<str>>,
    /// Addresses of `spec.vips` that a port had before they became virtual.
    pub contested_vips: Vec<(IpAddr, Arc<str>)>,
    /// Addresses of `spec.gateway` that a port had before.
    pub contested_gateways: Vec<(IpAddr, Arc<str>)>,
}
