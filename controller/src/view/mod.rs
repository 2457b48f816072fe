//! What compile may look at, and the units that it compiles.
//!
//! A unit is the smallest thing that is compiled: one pod's port, one subnet,
//! one node. `compile(view, key)` is a pure function: no clock, no I/O, no
//! iteration over everything. Each read (absence too) is recorded by the engine,
//! and the unit is compiled again when what it read changes. Reads are of
//! *projections*: a field that is in no projection (status, heartbeats, our own
//! annotations) recompiles nothing.

mod addresses;
mod networks;
mod workloads;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use crate::facts::{Facts, Kind, ObjectRef, RowKey};

pub(crate) use addresses::nat_port;
pub use addresses::{EipType, EipView, IpPoolView, Lease, LeaseState, PoolUsage, Standing, Usage, VipView};
pub(crate) use networks::EXTERNAL_TAKES;
pub use networks::{
    NodeGate, Overlay, ProviderFold, ProviderNode, ProviderView, SubnetView, VlanView, VpcView,
    is_ovn_provider,
};
pub use workloads::{
    INSTANCE, Interface, Interfaces, KeptView, MACHINE, MachineView, NodeView, Placement, PodView,
};

/// The key of a unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum UnitKey {
    /// `NB_Global` options and external_ids that the flags decide.
    Globals,
    /// A Vpc by name: router and default routes.
    Vpc(Arc<str>),
    /// A Subnet by name: switch, router ports, policies, status, defaulting.
    Subnet(Arc<str>),
    /// A Node by name: join port, policies, its port groups, annotations.
    Node(Arc<str>),
    /// A Namespace by name: its annotations.
    Namespace(Arc<str>),
    /// A pod's default interface by namespace and name: port, memberships, IP
    /// object, annotations.
    Pod(Arc<str>, Arc<str>),
    /// An IP object that outlived its owner (its port is gone): finalizer and
    /// deletion.
    Ip(Arc<str>),
    /// An IPPool by name: its address set, status and finalizer.
    IpPool(Arc<str>),
    /// A Vip by name: its port, status and finalizer.
    Vip(Arc<str>),
    /// A ProviderNetwork by name: its status.
    ProviderNetwork(Arc<str>),
    /// An OvnEip by name: its port, labels, status and finalizer.
    OvnEip(Arc<str>),
    /// A Vlan by name: its status.
    Vlan(Arc<str>),
    /// A port that no pod has now and whose address is kept, by name: its row and
    /// IP object.
    Kept(Arc<str>),
    /// An object of a kind that is not acted on yet: (plural, namespace, name).
    Other(&'static str, Arc<str>, Arc<str>),
}

impl UnitKey {
    /// The unit that is about an object; `None` for kinds that have none of their own.
    pub fn of(object: &ObjectRef) -> Option<Self> {
        let name = object.name.clone();
        Some(match object.kind {
            Kind::Pod => Self::Pod(object.namespace.clone(), name),
            Kind::Node => Self::Node(name),
            Kind::Namespace => Self::Namespace(name),
            Kind::Subnet => Self::Subnet(name),
            Kind::Vpc => Self::Vpc(name),
            Kind::Ip => Self::Ip(name),
            Kind::IpPool => Self::IpPool(name),
            Kind::Vip => Self::Vip(name),
            Kind::ProviderNetwork => Self::ProviderNetwork(name),
            Kind::OvnEip => Self::OvnEip(name),
            Kind::Vlan => Self::Vlan(name),
            Kind::StatefulSet
            | Kind::Deployment
            | Kind::Nad
            | Kind::VirtualMachine
            | Kind::VirtualMachineInstance
            | Kind::Migration => return None,
            Kind::Other(plural) => Self::Other(plural, object.namespace.clone(), name),
        })
    }
}

/// Who chooses nodes by their labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selecting {
    /// A centralized subnet, its gateways.
    Gateways(Arc<str>),
    /// A Vpc, the hosts of its BFD port.
    Bfd(Arc<str>),
    /// Whoever has external networks: gateway nodes, by their label.
    External,
}

/// Reads of compile. Implemented by the engine; every call is recorded.
pub trait View {
    /// The controller's configuration. Constant for the process, not recorded.
    fn config(&self) -> &crate::io::Config;
    /// A pod.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodView>>;
    /// A node.
    fn node(&self, name: &str) -> Option<Arc<NodeView>>;
    /// A subnet.
    fn subnet(&self, name: &str) -> Option<Arc<SubnetView>>;
    /// A Vpc.
    fn vpc(&self, name: &str) -> Option<Arc<VpcView>>;
    /// Names of the subnets whose spec names the VPC.
    fn vpc_subnets(&self, vpc: &str) -> Arc<BTreeSet<Arc<str>>>;
    /// The served overlay subnets of the default VPC, by name.
    fn overlays(&self) -> Arc<Vec<Overlay>>;
    /// Addresses of nodes that private subnets let in.
    fn node_gate(&self) -> Arc<NodeGate>;
    /// The nodes that a selector chooses, by name; all nodes where a Vpc's BFD port has
    /// no selector.
    fn selected_nodes(&self, who: &Selecting) -> Arc<Vec<Arc<str>>>;
    /// The gateway node that a subnet's status names.
    fn active_gateway(&self, subnet: &str) -> Option<Arc<str>>;
    /// A subnet's status says that it has a multicast querier.
    fn had_querier(&self, subnet: &str) -> bool;
    /// UUID of a row in the database, for statuses that name it (`DHCP_Options` of
    /// subnets only).
    fn row_uuid(&self, row: &RowKey) -> Option<Arc<str>>;
    /// Ports of pods that list the address among their virtual ones.
    fn vip_ports(&self, address: &str) -> Arc<BTreeSet<Arc<str>>>;
    /// UID of a namespace. Its labels decide by [`View::namespace_subnets`] and its like,
    /// so that an unrelated label compiles nothing.
    fn namespace(&self, name: &str) -> Option<Arc<str>>;
    /// The lease of a port.
    fn lease(&self, port: &str) -> LeaseState;
    /// Usage of a subnet.
    fn usage(&self, subnet: &str) -> Arc<Usage>;
    /// Names of all nodes (an index, changes only when a node comes or goes).
    fn node_names(&self) -> Arc<BTreeSet<Arc<str>>>;
    /// Names of the subnets bound to a namespace by `spec.namespaces` or selectors,
    /// or the default subnet when there is none (contract §2.2).
    fn namespace_subnets(&self, namespace: &str) -> Arc<Vec<Arc<str>>>;
    /// UID of the IP object of that name that exists while no port needs it, or
    /// while it is being deleted.
    fn orphan_ip(&self, name: &str) -> Option<Arc<str>>;
    /// A virtual machine that has pods.
    fn machine(&self, namespace: &str, name: &str) -> Option<Arc<MachineView>>;
    /// Interfaces of a pod that names networks.
    fn interfaces(&self, namespace: &str, name: &str) -> Option<Arc<Interfaces>>;
    /// An IPPool.
    fn ippool(&self, name: &str) -> Option<Arc<IpPoolView>>;
    /// Usage of an IPPool.
    fn pool_usage(&self, name: &str) -> Arc<PoolUsage>;
    /// Names of the IPPools that pods of a namespace must use, by name.
    fn namespace_pools(&self, namespace: &str) -> Arc<Vec<Arc<str>>>;
    /// A Vip.
    fn vip(&self, name: &str) -> Option<Arc<VipView>>;
    /// A ProviderNetwork.
    fn provider_network(&self, name: &str) -> Option<Arc<ProviderView>>;
    /// An OvnEip.
    fn ovn_eip(&self, name: &str) -> Option<Arc<EipView>>;
    /// OvnEips of type `lsp` of an external subnet whose nodes are ready for them, by name.
    fn peers(&self, subnet: &str) -> Arc<Vec<Arc<Lease>>>;
    /// A Vlan.
    fn vlan(&self, name: &str) -> Option<Arc<VlanView>>;
    /// What BFD sessions say of a router port whose first gateway is that chassis.
    fn standing(&self, port: &str, chassis: &str) -> Standing;
    /// What a port without a pod is kept for.
    fn kept(&self, port: &str) -> Option<Arc<KeptView>>;
    /// An object of a kind that is not acted on: its UID and whether its schema
    /// has conditions.
    fn other(&self, plural: &'static str, namespace: &str, name: &str) -> Option<Arc<str>>;
    /// Whether the northbound schema has that column.
    fn has_column(&self, table: &str, column: &str) -> bool;
}

/// The signature of a compile function.
pub type Compile = fn(&dyn View, &UnitKey) -> Facts;
