//! Projections of what runs: pods, machines, nodes, and ports that are kept.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::objects::StringMap;

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
