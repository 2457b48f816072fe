//! What compile may look at, and the units that it compiles.
//!
//! A unit is the smallest thing that is compiled: one pod's port, one subnet,
//! one node. `compile(view, key)` is a pure function: no clock, no I/O, no
//! iteration over everything. Each read (absence too) is recorded by the engine,
//! and the unit is compiled again when what it read changes. Reads are of
//! *projections*: a field that is in no projection (status, heartbeats, our own
//! annotations) recompiles nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crds::net::DualNets;
use serde::Serialize;

use crate::facts::{Facts, Kind, ObjectRef, RowKey};
use crate::objects::StringMap;

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

/// Projection of a pod: what its port depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// UID.
    pub uid: Arc<str>,
    /// Node, empty until scheduled.
    pub node: Arc<str>,
    /// The pod is alive (contract §3.1) and not on the host network: it has, or
    /// wants, an address.
    pub wants_network: bool,
    /// It is being deleted or finished: keep what is there, create nothing new.
    pub terminating: bool,
    /// Annotations users set as requests, without those the controller writes:
    /// `ip_address`/`mac_address` count only while the pod is not `allocated`.
    pub requests: StringMap,
    /// Owner kind/name when StatefulSet or VirtualMachineInstance.
    pub owner: Option<(Arc<str>, Arc<str>)>,
    /// Annotations of its IP object by which its address is kept after it.
    pub kept: StringMap,
    /// It names networks beside the default one, or has been on some.
    pub networks: bool,
}

impl PodView {
    /// The virtual machine that the pod runs and whose name its ports have (flag
    /// `--keep-vm-ip`).
    pub fn machine(&self, config: &crate::io::Config) -> Option<&Arc<str>> {
        let (kind, name) = self.owner.as_ref()?;
        (config.keep_vm_ip && &**kind == INSTANCE).then_some(name)
    }
}

/// The name of the lease of an IptablesEIP. No port has it, since no object's name has a
/// blank; it is what users read where its address is in the way.
pub(crate) fn nat_port(name: &str) -> String {
    format!("IptablesEIP {name}")
}

/// What a subnet has to be like to be an external network, in the words of conditions.
pub(crate) const EXTERNAL_TAKES: &str =
    "that takes a vlan, a cidrBlock, and neither logicalGateway nor u2oInterconnection";

/// Owner kind of a pod that runs a virtual machine.
pub const INSTANCE: &str = "VirtualMachineInstance";
/// `spec.podType` of a virtual machine's IP objects.
pub const MACHINE: &str = "VirtualMachine";

/// Where a port may be bound (contract §3.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Wherever its interface is.
    #[default]
    Free,
    /// On this node only.
    Fixed(Arc<str>),
    /// On both, the second of which takes over with the first packet that its guest sends.
    Moving(Arc<str>, Arc<str>),
}

/// Projection of a virtual machine: which of its pods counts, and where it moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineView {
    /// The pod in which the guest runs; its ports are as that pod asks.
    pub active: Arc<str>,
    /// Where its ports may be bound.
    pub placement: Placement,
}

/// Projection of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// UID.
    pub uid: Arc<str>,
    /// First InternalIP per family.
    pub ipv4: Option<Ipv4Addr>,
    /// First IPv6 InternalIP.
    pub ipv6: Option<Ipv6Addr>,
    /// `ovn.kubernetes.io/chassis`, as the daemon wrote it.
    pub chassis: Option<Arc<str>>,
    /// Condition Ready.
    pub ready: bool,
    /// As a gateway it gives no answer ([`crate::gateways`]).
    pub silent: bool,
    /// The node that has port groups of the same names: dashes and dots of names are one there.
    pub namesake: Option<Arc<str>>,
}

/// Projection of a subnet: what others need to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SubnetView {
    /// UID.
    pub uid: Arc<str>,
    /// The spec after normalisation and defaulting (contract §1.1).
    pub spec: Arc<crds::SubnetSpec>,
    /// Being deleted.
    pub deleting: bool,
    /// It is one that this version acts on.
    pub supported: bool,
    /// It is an external network (contract §5.4): its switch reaches the wire, and its
    /// addresses are those of OvnEips. What that takes: [`EXTERNAL_TAKES`].
    pub external: bool,
    /// Why it can't work, if it can't (`Validated`=False with this reason).
    pub invalid: Option<(Arc<str>, Arc<str>)>,
    /// What is wrong beside, in view of other objects: it says so and serves on.
    pub problem: Option<Arc<str>>,
    /// The object names another VPC than the one of `spec`, where it stays while it is used.
    pub stays: bool,
}

impl SubnetView {
    /// Handled by OVN; of other providers only addresses are managed (contract,
    /// notation).
    pub fn is_ovn(&self) -> bool {
        is_ovn_provider(&self.spec.provider)
    }
}

/// `ovn`, or `<nad>.<namespace>.ovn`.
pub fn is_ovn_provider(provider: &str) -> bool {
    let mut parts = provider.split('.');
    provider == crds::keys::DEFAULT_PROVIDER
        || (parts.clone().count() == 3 && parts.next_back() == Some(crds::keys::DEFAULT_PROVIDER))
}

/// One interface of a pod beside the default one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its provider, which scopes annotations and names (contract §2.1).
    pub provider: Arc<str>,
    /// Its port, also the name of its IP object.
    pub port: Arc<str>,
    /// It is a port of OVN; otherwise another CNI plugs it and only the address is ours.
    pub ovn: bool,
    /// What users ask for, under the keys of the default interface.
    pub requests: StringMap,
}

/// The interfaces of a pod that names networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// It has the default interface too.
    pub default: bool,
    /// The others.
    pub list: Vec<Interface>,
    /// Why one of them can't be made.
    pub problem: Option<Arc<str>>,
    /// Annotations of interfaces that it has no more.
    pub stale: Vec<Arc<str>>,
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

/// Projection of a ProviderNetwork.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderView {
    /// UID.
    pub uid: Arc<str>,
    /// Being deleted.
    pub deleting: bool,
    /// Its member nodes, by name.
    pub nodes: Vec<ProviderNode>,
    /// Vlans that name it.
    pub users: Vec<Arc<str>>,
    /// What its spec has to become, since nodes' annotations ask for it.
    pub fold: ProviderFold,
}

/// What nodes' annotations make of a ProviderNetwork's spec (contract §1.5).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderFold {
    /// `excludeNodes`, if it has to change.
    pub exclude_nodes: Option<Vec<String>>,
    /// `customInterfaces`, if it has to change.
    pub custom_interfaces: Option<Vec<crds::CustomInterface>>,
    /// Node, its UID and the annotation that the spec says already.
    pub done: Vec<(Arc<str>, Arc<str>, Arc<str>)>,
}

/// A member node of a ProviderNetwork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderNode {
    /// Name.
    pub name: Arc<str>,
    /// Its label says that the network works there.
    pub ready: bool,
    /// What its agent says is wrong; empty if nothing was said.
    pub error: Arc<str>,
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

/// Projection of a Vlan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VlanView {
    /// UID.
    pub uid: Arc<str>,
    /// Being deleted.
    pub deleting: bool,
    /// 0 is untagged.
    pub id: i32,
    /// ProviderNetwork.
    pub provider: Arc<str>,
    /// The Vlan that had its provider and id before.
    pub conflict: Option<Arc<str>>,
    /// Subnets that name it.
    pub subnets: Vec<Arc<str>>,
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

/// A port that no pod has now and whose address is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptView {
    /// For whom: pod, its namespace, and `spec.podType` of the IP object.
    pub pod: Arc<str>,
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// `StatefulSet`, `VirtualMachine` or empty.
    pub pod_type: Arc<str>,
    /// Node that it was on last.
    pub node: Arc<str>,
    /// A user's reservation: an IP object that somebody else made.
    pub reserved: bool,
    /// The next pod of the same name finds its port as it was.
    pub row: bool,
    /// Annotations of the IP object that say for whom it is kept.
    pub annotations: StringMap,
    /// The IP object, if it exists.
    pub uid: Option<Arc<str>>,
}

/// Projection of a Vpc: what its router depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VpcView {
    /// UID.
    pub uid: Arc<str>,
    /// Being deleted.
    pub deleting: bool,
    /// Mirrored from a router that is not ours (label `vpc_external`): nobody acts
    /// on it (contract §1.4).
    pub mirrored: bool,
    /// The spec as it is.
    pub spec: Arc<crds::VpcSpec>,
}

impl VpcView {
    /// The projection of an object.
    pub fn of(vpc: &crate::objects::Vpc) -> Self {
        let mirrored = vpc.meta.labels.get(crds::keys::VPC_EXTERNAL_LABEL);
        Self {
            uid: vpc.meta.uid.clone(),
            deleting: vpc.meta.deleting_at.is_some(),
            mirrored: mirrored.is_some_and(|value| &**value == "true"),
            spec: Arc::new(vpc.spec.clone()),
        }
    }
}

/// The nodes' InternalIPs, of each family that some private subnet that nodes route for
/// has. `None` where no subnet has a use for them, so that a node costs nothing then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NodeGate {
    pub v4: Option<BTreeSet<Ipv4Addr>>,
    pub v6: Option<BTreeSet<Ipv6Addr>>,
}

/// A subnet that nodes route for: a served overlay of the default VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// Name of the subnet.
    pub name: Arc<str>,
    /// Its blocks.
    pub nets: DualNets,
    /// Its pods leave through the node that they are on.
    pub distributed: bool,
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
