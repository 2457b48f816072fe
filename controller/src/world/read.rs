//! What compile can read, as keys: the nodes of the dependency graph. The world
//! names the keys whose projection changed, the engine knows who read them.

use std::sync::Arc;

use crate::facts::RowKey;
use crate::view::{Selecting, UnitKey};

/// One readable projection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadKey {
    /// [`crate::view::View::pod`].
    Pod(Arc<str>, Arc<str>),
    /// [`crate::view::View::node`].
    Node(Arc<str>),
    /// [`crate::view::View::subnet`].
    Subnet(Arc<str>),
    /// [`crate::view::View::vpc`].
    Vpc(Arc<str>),
    /// [`crate::view::View::namespace`].
    Namespace(Arc<str>),
    /// [`crate::view::View::lease`].
    Lease(Arc<str>),
    /// [`crate::view::View::usage`].
    Usage(Arc<str>),
    /// [`crate::view::View::node_names`].
    NodeNames,
    /// [`crate::view::View::vpc_subnets`].
    VpcSubnets(Arc<str>),
    /// [`crate::view::View::overlays`].
    Overlays,
    /// [`crate::view::View::node_gate`].
    NodeGate,
    /// [`crate::view::View::selected_nodes`].
    SelectedNodes(Selecting),
    /// [`crate::view::View::active_gateway`].
    ActiveGateway(Arc<str>),
    /// [`crate::view::View::had_querier`].
    HadQuerier(Arc<str>),
    /// [`crate::view::View::row_uuid`].
    RowUuid(RowKey),
    /// [`crate::view::View::vip_ports`].
    VipPorts(Arc<str>),
    /// [`crate::view::View::namespace_subnets`].
    NamespaceSubnets(Arc<str>),
    /// [`crate::view::View::orphan_ip`].
    OrphanIp(Arc<str>),
    /// [`crate::view::View::machine`].
    Machine(Arc<str>, Arc<str>),
    /// [`crate::view::View::interfaces`].
    Interfaces(Arc<str>, Arc<str>),
    /// [`crate::view::View::ippool`].
    IpPool(Arc<str>),
    /// [`crate::view::View::pool_usage`].
    PoolUsage(Arc<str>),
    /// [`crate::view::View::namespace_pools`].
    NamespacePools(Arc<str>),
    /// [`crate::view::View::vip`].
    Vip(Arc<str>),
    /// [`crate::view::View::provider_network`].
    ProviderNetwork(Arc<str>),
    /// [`crate::view::View::ovn_eip`].
    OvnEip(Arc<str>),
    /// [`crate::view::View::peers`].
    Peers(Arc<str>),
    /// [`crate::view::View::vlan`].
    Vlan(Arc<str>),
    /// [`crate::view::View::standing`].
    Standing(Arc<str>),
    /// [`crate::view::View::kept`].
    Kept(Arc<str>),
    /// [`crate::view::View::other`].
    Other(&'static str, Arc<str>, Arc<str>),
    /// [`crate::view::View::has_column`]: the schema as a whole, which changes
    /// with the server's version only.
    Schema,
}

impl ReadKey {
    /// The unit that exists because this object does, if the key is an object's.
    pub fn unit(&self) -> Option<UnitKey> {
        Some(match self {
            Self::Pod(namespace, name) => UnitKey::Pod(namespace.clone(), name.clone()),
            Self::Node(name) => UnitKey::Node(name.clone()),
            Self::Subnet(name) => UnitKey::Subnet(name.clone()),
            Self::Vpc(name) => UnitKey::Vpc(name.clone()),
            Self::Namespace(name) => UnitKey::Namespace(name.clone()),
            Self::OrphanIp(name) => UnitKey::Ip(name.clone()),
            Self::IpPool(name) => UnitKey::IpPool(name.clone()),
            Self::Vip(name) => UnitKey::Vip(name.clone()),
            Self::ProviderNetwork(name) => UnitKey::ProviderNetwork(name.clone()),
            Self::OvnEip(name) => UnitKey::OvnEip(name.clone()),
            Self::Vlan(name) => UnitKey::Vlan(name.clone()),
            Self::Kept(port) => UnitKey::Kept(port.clone()),
            Self::Other(plural, namespace, name) => UnitKey::Other(plural, namespace.clone(), name.clone()),
            Self::Lease(_)
            | Self::Usage(_)
            | Self::NodeNames
            | Self::VpcSubnets(_)
            | Self::Overlays
            | Self::NodeGate
            | Self::SelectedNodes(_)
            | Self::ActiveGateway(_)
            | Self::HadQuerier(_)
            | Self::RowUuid(_)
            | Self::VipPorts(_)
            | Self::NamespaceSubnets(_)
            | Self::Machine(..)
            | Self::Interfaces(..)
            | Self::PoolUsage(_)
            | Self::NamespacePools(_)
            | Self::Peers(_)
            | Self::Standing(_)
            | Self::Schema => return None,
        })
    }
}
