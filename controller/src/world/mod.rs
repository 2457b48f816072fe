//! The world: every watched object, the projections that compile reads, the
//! indexes it needs, and the address leases.
//!
//! Flows in: objects from watches, names of port rows in the northbound replica,
//! time. Flows out: the keys whose projection changed (nothing when a new object
//! projects to the same value), and the objects themselves for publish to compare
//! with. Owned by the core, no locks, no I/O.

mod ask;
mod attachments;
mod bindings;
mod contest;
mod eips;
mod intake;
mod leases;
mod lookup;
mod machines;
mod namesakes;
mod nat;
mod networks;
mod news;
mod nodes;
mod pods;
mod pools;
mod project;
mod providers;
mod querier;
mod read;
mod records;
mod renew;
mod restore;
mod retain;
mod sessions;
mod subnets;
#[cfg(test)]
mod tests;
mod usage;
mod verify;
mod vips;
mod virtuals;
mod vlans;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::facts::{Kind, ObjectRef, RowKey};
use crate::io::Config;
use crate::ipam::{Ipam, mac};
use crate::objects::{IPTABLES_EIPS, Ip, Namespace, Node, Other, Pod, StringMap, Subnet, Vpc};
use crate::view::{NodeGate, NodeView, Overlay, PodView, Selecting, SubnetView, Usage, VpcView};

pub(crate) use news::details;
pub use news::{News, SECURITY_UPDATED};
pub use read::ReadKey;
pub use restore::PortRow;
pub(crate) use sessions::{FIRST, LOWERED, RAISED, TURN};

/// Kinds that must have been listed once before anything is compiled. Kinds that
/// this version does not act on may be missing from the API server.
pub const NEEDED: [Kind; 22] = [
    Kind::Pod,
    Kind::Node,
    Kind::Namespace,
    Kind::Subnet,
    Kind::Vpc,
    Kind::Ip,
    Kind::IpPool,
    Kind::Vip,
    Kind::ProviderNetwork,
    Kind::OvnEip,
    Kind::Vlan,
    Kind::StatefulSet,
    Kind::Deployment,
    Kind::Nad,
    Kind::VirtualMachine,
    Kind::VirtualMachineInstance,
    Kind::Migration,
    // Only which address they hold.
    Kind::Other(IPTABLES_EIPS),
    // Only what they use of OvnEips.
    Kind::Other("ovn-fips"),
    Kind::Other("ovn-snat-rules"),
    Kind::Other("ovn-dnat-rules"),
    Kind::Other("router-lb-rules"),
];

type ByName<T> = BTreeMap<Arc<str>, T>;
/// UID and labels.
type NamespaceView = (Arc<str>, StringMap);
/// Plural, namespace, name.
type OtherKey = (&'static str, Arc<str>, Arc<str>);

/// An object and its projection.
struct Stored<T, V> {
    object: Arc<T>,
    view: Arc<V>,
}

/// Everything known about the cluster.
pub struct World {
    config: Arc<Config>,
    pods: ByName<ByName<Stored<Pod, PodView>>>,
    nodes: ByName<Stored<Node, NodeView>>,
    namespaces: ByName<Stored<Namespace, NamespaceView>>,
    subnets: ByName<Arc<Subnet>>,
    subnet_views: ByName<Arc<SubnetView>>,
    vpcs: ByName<Stored<Vpc, VpcView>>,
    ips: ByName<Arc<Ip>>,
    pools: pools::Pools,
    vips: vips::Vips,
    providers: providers::Providers,
    eips: eips::Eips,
    vlans: vlans::Vlans,
    sessions: sessions::Sessions,
    /// Subnets that Vpcs and OvnEips name as external networks, and how often.
    externals: ByName<usize>,
    retention: retain::Retention,
    attachments: attachments::Attachments,
    machines: machines::Machines,
    others: BTreeMap<OtherKey, Arc<Other>>,

    node_names: Arc<BTreeSet<Arc<str>>>,
    /// Nodes whose port groups have the names of another's, by name, and that one.
    namesakes: ByName<Arc<str>>,
    vpc_subnets: ByName<Arc<BTreeSet<Arc<str>>>>,
    overlays: Arc<Vec<Overlay>>,
    node_gate: Arc<NodeGate>,
    bindings: ByName<Arc<Vec<Arc<str>>>>,
    node_ips: Arc<BTreeSet<IpAddr>>,
    /// The same with the nodes; of two nodes with one address the first by name.
    nodes_by_ip: BTreeMap<IpAddr, Arc<str>>,
    /// Nodes or their addresses have changed since they were indexed.
    nodes_stale: bool,
    /// What subnets are judged by has changed since they were.
    subnets_stale: bool,
    /// What binds namespaces to subnets has changed since they were bound.
    bindings_stale: bool,
    /// Nodes that selectors choose, and whether nodes or labels have changed since.
    selections: BTreeMap<Selecting, Arc<Vec<Arc<str>>>>,
    labels_stale: bool,
    /// Nodes that give no answer as gateways.
    silent: crate::gateways::Silent,
    /// UUIDs of rows that statuses name.
    row_uuids: BTreeMap<RowKey, Arc<str>>,
    virtuals: virtuals::Virtuals,
    /// Pods whose grace period ends at that second.
    graces: BTreeSet<(i64, Arc<str>, Arc<str>)>,

    ipam: Ipam,
    leases: leases::Book,
    /// MAC addresses of router ports in the database, by port.
    router_macs: ByName<mac::Mac>,
    /// Which subnet a router port is of.
    router_ports: ByName<Arc<str>>,
    orphans: ByName<Arc<str>>,
    foreign_ports: BTreeSet<Arc<str>>,
    foreign_changes: Vec<(Arc<str>, bool)>,
    usage: ByName<Arc<Usage>>,
    usage_stale: BTreeSet<Arc<str>>,
    usage_at_ms: Option<u64>,
    /// Subnets whose addresses were laid out anew since usage was looked at.
    laid_out: BTreeSet<Arc<str>>,
    /// Subnets on their way out.
    leaving: BTreeSet<Arc<str>>,

    listed: BTreeSet<Kind>,
    sums: BTreeMap<Kind, (usize, u64)>,
    changed: BTreeSet<ReadKey>,
    touched: BTreeSet<ObjectRef>,
    news: Vec<News>,
}

impl World {
    /// An empty world.
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            ipam: Ipam::new(config.seed),
            config,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            subnets: BTreeMap::new(),
            subnet_views: BTreeMap::new(),
            vpcs: BTreeMap::new(),
            ips: BTreeMap::new(),
            pools: pools::Pools::default(),
            vips: vips::Vips::default(),
            providers: providers::Providers::default(),
            eips: eips::Eips::default(),
            vlans: vlans::Vlans::default(),
            sessions: sessions::Sessions::default(),
            externals: BTreeMap::new(),
            retention: retain::Retention::default(),
            attachments: attachments::Attachments::default(),
            machines: machines::Machines::default(),
            others: BTreeMap::new(),
            node_names: Arc::default(),
            namesakes: BTreeMap::new(),
            vpc_subnets: BTreeMap::new(),
            overlays: Arc::default(),
            node_gate: Arc::default(),
            bindings: BTreeMap::new(),
            node_ips: Arc::default(),
            nodes_by_ip: BTreeMap::new(),
            nodes_stale: false,
            subnets_stale: false,
            bindings_stale: false,
            selections: BTreeMap::new(),
            labels_stale: false,
            silent: Arc::default(),
            row_uuids: BTreeMap::new(),
            virtuals: virtuals::Virtuals::default(),
            graces: BTreeSet::new(),
            leases: leases::Book::default(),
            router_macs: BTreeMap::new(),
            router_ports: BTreeMap::new(),
            orphans: BTreeMap::new(),
            foreign_ports: BTreeSet::new(),
            foreign_changes: Vec::new(),
            usage: BTreeMap::new(),
            usage_stale: BTreeSet::new(),
            usage_at_ms: None,
            laid_out: BTreeSet::new(),
            leaving: BTreeSet::new(),
            listed: BTreeSet::new(),
            sums: BTreeMap::new(),
            changed: BTreeSet::new(),
            touched: BTreeSet::new(),
            news: Vec::new(),
        }
    }

    /// For [`crate::core::Core::take_apart`].
    pub(crate) fn take_apart(self) -> Vec<(&'static str, Box<dyn std::any::Any>)> {
        let Self { pods, ips, leases, ipam, .. } = self;
        vec![
            ("pods", Box::new(pods)),
            ("IP objects", Box::new(ips)),
            ("book of leases", Box::new(leases)),
            ("leases", Box::new(ipam)),
        ]
    }

    /// Every needed kind has been listed.
    pub fn loaded(&self) -> bool {
        NEEDED.iter().all(|kind| self.listed.contains(kind))
    }

    /// Kinds still to be listed.
    pub fn missing(&self) -> impl Iterator<Item = Kind> + '_ {
        NEEDED.into_iter().filter(|kind| !self.listed.contains(kind))
    }

    /// Projections that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<ReadKey> {
        std::mem::take(&mut self.changed)
    }

    /// What there is to tell about changes since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Objects that changed in any way since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<ObjectRef> {
        std::mem::take(&mut self.touched)
    }

    /// Ports that belong to features this version lacks, by the IP objects of their
    /// name: came (`true`) or went since the last call. Their rows must stay.
    pub fn take_foreign_ports(&mut self) -> Vec<(Arc<str>, bool)> {
        std::mem::take(&mut self.foreign_changes)
    }

    /// Number of objects per kind and an order-independent checksum of their
    /// identities and versions.
    pub fn checksums(&self) -> &BTreeMap<Kind, (usize, u64)> {
        &self.sums
    }

    /// When a grace period ends or usage is due next, in milliseconds.
    pub fn wake_at(&self, now_ms: u64, unix_s: i64) -> Option<u64> {
        let grace = self.graces.first().map(|(at, ..)| {
            now_ms + 1000 * u64::try_from(at.saturating_sub(unix_s).saturating_add(1)).unwrap_or(0)
        });
        let usage = (!self.usage_stale.is_empty()).then(|| self.usage_due(now_ms));
        grace.into_iter().chain(usage).chain(self.sessions.wake_at()).min()
    }
}
