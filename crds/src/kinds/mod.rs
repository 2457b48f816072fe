//! The kinds of `kubeovn.io/v1` as Rust types.
//!
//! JSON names are exactly the original API's, odd spellings included. Types say
//! what a field can hold; what it means, its defaults and its validation are the
//! business of the unit that acts on the kind.

mod bgp;
mod common;
mod dns;
mod egress_gateway;
mod ip;
mod ippool;
mod iptables_nat;
mod lb_rules;
mod nat_gateway;
mod ovn_nat;
mod qos;
mod security_group;
mod subnet;
mod underlay;
mod vip;
mod vpc;

pub use bgp::*;
pub use common::*;
pub use dns::*;
pub use egress_gateway::*;
pub use ip::*;
pub use ippool::*;
pub use iptables_nat::*;
pub use lb_rules::*;
pub use nat_gateway::*;
pub use ovn_nat::*;
pub use qos::*;
pub use security_group::*;
pub use subnet::*;
pub use underlay::*;
pub use vip::*;
pub use vpc::*;

use crate::object::{Kind, KindInfo};

/// All kinds of the group.
pub const KINDS: &[KindInfo] = &[
    Subnet::INFO,
    Ip::INFO,
    IpPool::INFO,
    Vpc::INFO,
    ProviderNetwork::INFO,
    Vlan::INFO,
    Vip::INFO,
    SecurityGroup::INFO,
    VpcNatGateway::INFO,
    IptablesEip::INFO,
    IptablesFipRule::INFO,
    IptablesDnatRule::INFO,
    IptablesSnatRule::INFO,
    OvnEip::INFO,
    OvnFip::INFO,
    OvnSnatRule::INFO,
    OvnDnatRule::INFO,
    SwitchLbRule::INFO,
    RouterLbRule::INFO,
    VpcDns::INFO,
    QosPolicy::INFO,
    VpcEgressGateway::INFO,
    BgpConf::INFO,
    EvpnConf::INFO,
    DnsNameResolver::INFO,
];

/// Facts about a kind by its plural name.
pub fn kind_by_plural(plural: &str) -> Option<&'static KindInfo> {
    KINDS.iter().find(|info| info.plural == plural)
}
