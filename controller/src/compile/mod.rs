//! Compile: from projections of Kubernetes objects to facts, one pure function
//! per kind of unit.
//!
//! Flows in: a [`View`] whose every read the engine records. Flows out: [`Facts`].
//! No clock, no I/O, no order dependence, no panic, no iteration over pods. Names,
//! priorities and external_ids are the contract's (§2, §4, §5); one file per kind:
//!
//! | unit | states |
//! |---|---|
//! | globals | `NB_Global` options, the default Vpc and Subnets as objects |
//! | vpc | router, static and policy routes, its half of peerings, BFD port, status |
//! | subnet | switch, router ports, ACLs, DHCP, policies of its CIDR and of its central gateway, virtual ports, defaults, status |
//! | node | join port, policies to and by the node, its port groups, annotations |
//! | namespace | annotations |
//! | pod | port, memberships, IP object, annotations |
//! | ip | end of an IP object that outlived its port |
//! | ippool | address set, status, finalizer of an IPPool |
//! | vip | port, status, finalizer of a Vip |
//! | provider | status of a ProviderNetwork |
//! | eip | port of an OvnEip, labels, status, finalizer |
//! | vlan | status of a Vlan |
//! | kept | row and IP object of a port whose pod is gone and whose address stays |
//! | other | a word on kinds that this version does not act on |

pub(crate) mod dhcp;
mod eip;
pub(crate) mod globals;
mod ip;
mod ippool;
mod kept;
mod namespace;
mod node;
mod other;
mod pod;
mod provider;
pub(crate) mod rows;
mod subnet;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod vip;
mod vlan;
mod vpc;

pub(crate) use subnet::gateway::listed as gateway_nodes;
pub(crate) use subnet::querier;
pub(crate) use vpc::{bfd, routes};

use crate::facts::Facts;
use crate::view::{UnitKey, View};

/// Compiles one unit. A unit whose object is gone states nothing.
pub fn compile(view: &dyn View, key: &UnitKey) -> Facts {
    match key {
        UnitKey::Globals => globals::compile(view),
        UnitKey::Vpc(name) => vpc::compile(view, name),
        UnitKey::Subnet(name) => subnet::compile(view, name),
        UnitKey::Node(name) => node::compile(view, name),
        UnitKey::Namespace(name) => namespace::compile(view, name),
        UnitKey::Pod(namespace, name) => pod::compile(view, namespace, name),
        UnitKey::Ip(name) => ip::compile(view, name),
        UnitKey::IpPool(name) => ippool::compile(view, name),
        UnitKey::Vip(name) => vip::compile(view, name),
        UnitKey::ProviderNetwork(name) => provider::compile(view, name),
        UnitKey::OvnEip(name) => eip::compile(view, name),
        UnitKey::Vlan(name) => vlan::compile(view, name),
        UnitKey::Kept(port) => kept::compile(view, port),
        UnitKey::Other(plural, namespace, name) => other::compile(view, plural, namespace, name),
    }
}
