//! Projections of networks: subnets, Vpcs, provider networks and VLANs.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crds::net::DualNets;

/// What a subnet has to be like to be an external network, in the words of conditions.
pub(crate) const EXTERNAL_TAKES: &str =
    "that takes a vlan, a cidrBlock, and neither logicalGateway nor u2oInterconnection";

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
