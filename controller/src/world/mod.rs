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
mod leases;
mod lookup;
mod machines;
mod nat;
mod networks;
mod news;
mod pools;
mod project;
mod providers;
mod querier;
mod read;
mod renew;
mod restore;
mod retain;
mod sessions;
mod subnets;
#[cfg(test)]
mod tests;
mod verify;
mod vips;
mod virtuals;
mod vlans;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::keys;

use crate::facts::{Kind, ObjectRef, RowKey};
use crate::io::Config;
use crate::ipam::{Ipam, mac};
use crate::objects::{IPTABLES_EIPS, Ip, Meta, Namespace, Node, Object, Other, Pod, StringMap, Subnet, Vpc};
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

/// So many ports that hold addresses of a subnet on its way out are named.
const HOLDERS: usize = 5;

/// Usage of a subnet is projected at most this often: a burst of pods costs the
/// subnet's status one patch a second, not one per pod.
const USAGE_EVERY_MS: u64 = 1000;
/// Of many subnets each waits longer: one costs as much as a new pod or two, and they
/// shall take a few hundredths of the time at most.
const USAGE_EACH_MS: u64 = 20;
/// But not longer than this.
const USAGE_LONGEST_MS: u64 = 10_000;

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

    /// A watch delivered an object.
    pub fn apply(&mut self, unix_s: i64, object: Object) {
        self.store(unix_s, object);
        self.index_nodes();
        self.judge_subnets();
    }

    fn store(&mut self, unix_s: i64, object: Object) {
        let reference = object.reference();
        if let Some(old) = self.find(&reference) {
            self.account(reference.kind, old.meta(), false);
        }
        self.account(reference.kind, object.meta(), true);
        self.touched.insert(reference);
        match object {
            Object::Pod(pod) => self.set_pod(unix_s, pod),
            Object::Node(node) => self.set_node(node),
            Object::Namespace(namespace) => self.set_namespace(namespace),
            Object::Subnet(subnet) => self.set_subnet(subnet),
            Object::Vpc(vpc) => self.set_vpc(vpc),
            Object::Ip(ip) => self.set_ip(ip),
            Object::IpPool(pool) => self.set_pool(pool),
            Object::Vip(vip) => self.set_vip(vip),
            Object::ProviderNetwork(network) => self.set_provider(network),
            Object::OvnEip(eip) => self.set_eip(eip),
            Object::Vlan(vlan) => self.set_vlan(vlan),
            Object::Nad(nad) => self.set_nad(nad),
            Object::Machine(kind, machine) => self.set_machine(kind, machine),
            Object::Migration(migration) => self.set_migration(migration),
            Object::Workload(kind, workload) => self.set_workload(kind, workload),
            Object::Other(plural, other) => {
                let key = (plural, other.meta.namespace.clone(), other.meta.name.clone());
                let uid = other.meta.uid.clone();
                let old = self.others.insert(key.clone(), other.clone());
                self.note_user(old.as_deref(), Some(&other));
                self.note_nat_address(old.as_deref(), Some(&other));
                if old.is_none_or(|old| old.meta.uid != uid) {
                    self.changed.insert(ReadKey::Other(key.0, key.1, key.2));
                }
            }
        }
    }

    /// A watch delivered a deletion.
    pub fn delete(&mut self, object: &ObjectRef) {
        self.drop_object(object);
        self.index_nodes();
        self.judge_subnets();
    }

    fn drop_object(&mut self, object: &ObjectRef) {
        let Some(old) = self.find(object) else { return };
        self.account(object.kind, old.meta(), false);
        self.touched.insert(object.clone());
        let name = &object.name;
        match object.kind {
            Kind::Pod => self.remove_pod(&object.namespace, name),
            Kind::Node => self.remove_node(name),
            Kind::Namespace => {
                self.namespaces.remove(name);
                self.bindings.remove(name);
                self.changed.insert(ReadKey::Namespace(name.clone()));
                self.changed.insert(ReadKey::NamespaceSubnets(name.clone()));
            }
            Kind::Subnet => {
                self.subnets.remove(name);
                self.subnets_stale = true;
                self.vlans.stale = true;
            }
            Kind::Vpc => self.remove_vpc(name),
            Kind::Ip => self.remove_ip(name),
            Kind::IpPool => self.remove_pool(name),
            Kind::Vip => self.remove_vip(name),
            Kind::ProviderNetwork => self.remove_provider(name),
            Kind::OvnEip => self.remove_eip(name),
            Kind::Vlan => self.remove_vlan(name),
            Kind::Nad => self.remove_nad(&(object.namespace.clone(), name.clone())),
            kind @ (Kind::StatefulSet | Kind::Deployment) => {
                self.remove_workload(&(kind, object.namespace.clone(), name.clone()));
            }
            kind @ (Kind::VirtualMachine | Kind::VirtualMachineInstance) => {
                self.remove_machine(kind, &(object.namespace.clone(), name.clone()));
            }
            Kind::Migration => self.remove_migration(&(object.namespace.clone(), name.clone())),
            Kind::Other(plural) => {
                let old = self.others.remove(&(plural, object.namespace.clone(), name.clone()));
                self.note_user(old.as_deref(), None);
                self.note_nat_address(old.as_deref(), None);
                self.changed.insert(ReadKey::Other(plural, object.namespace.clone(), name.clone()));
            }
        }
    }

    /// A watch (re)listed: what is not in the list is gone.
    pub fn list(&mut self, unix_s: i64, kind: Kind, objects: Vec<Object>) {
        let mut gone = self.names(kind);
        let mut objects = objects;
        objects.sort_by_cached_key(Object::reference);
        for object in objects {
            gone.remove(&object.reference());
            self.store(unix_s, object);
        }
        for object in gone {
            self.drop_object(&object);
        }
        // Whether a subnet is used decides whether it stays in its VPC.
        self.subnets_stale |= kind == Kind::Ip;
        self.index_nodes();
        self.judge_subnets();
        self.listed.insert(kind);
        self.sums.entry(kind).or_default();
    }

    /// Looks again at pods whose grace period ended.
    pub fn end_graces(&mut self, unix_s: i64) {
        while let Some(first) = self.graces.first().filter(|(at, ..)| unix_s > *at).cloned() {
            self.graces.remove(&first);
            if let Some(pod) = self.stored_pod(&first.1, &first.2).map(|s| s.object.clone()) {
                self.set_pod(unix_s, pod);
            }
        }
    }

    /// Projects the usage of subnets when it is due. Called with every input, while a
    /// burst of pods leaves many subnets stale: until it is due only those on their way
    /// out are looked at.
    pub fn project_usage(&mut self, now_ms: u64) {
        self.usage_stale.extend(self.ipam.take_changed());
        if self.usage_stale.is_empty() {
            return;
        }
        let now = if self.usage_due(now_ms) <= now_ms {
            self.usage_at_ms = Some(now_ms);
            std::mem::take(&mut self.usage_stale)
        } else {
            // What holds a deletion must be known before the object is let go.
            let stale = &mut self.usage_stale;
            self.leaving.iter().filter(|subnet| stale.remove(*subnet)).cloned().collect()
        };
        for subnet in now {
            let mut usage = self.ipam.usage(&subnet);
            if self.subnet_views.get(&subnet).is_some_and(|view| view.deleting) {
                let mut first: BTreeSet<Arc<str>> = self.ipam.holders(&subnet, HOLDERS).into_iter().collect();
                // Of a subnet that can't be read no lease is known, but there are records. All
                // of them are looked at for the last few addresses only.
                if first.len() < HOLDERS {
                    let recorded = self.ips.values().filter(|ip| *ip.spec.subnet == *subnet);
                    first.extend(recorded.map(|ip| ip.meta.name.clone()));
                }
                usage.holders = first.into_iter().take(HOLDERS).collect();
            }
            renew::renew(&mut self.usage, &mut self.changed, ReadKey::Usage, (subnet.clone(), usage));
            self.project_pool_usage(&subnet);
        }
    }

    /// The usage that units see is the current one.
    pub fn usage_settled(&self) -> bool {
        self.usage_stale.is_empty()
    }

    fn usage_due(&self, now_ms: u64) -> u64 {
        let many = USAGE_EACH_MS * self.usage_stale.len() as u64;
        self.usage_at_ms.map_or(now_ms, |at| at + many.clamp(USAGE_EVERY_MS, USAGE_LONGEST_MS))
    }

    /// When a grace period ends or usage is due next, in milliseconds.
    pub fn wake_at(&self, now_ms: u64, unix_s: i64) -> Option<u64> {
        let grace = self.graces.first().map(|(at, ..)| {
            now_ms + 1000 * u64::try_from(at.saturating_sub(unix_s).saturating_add(1)).unwrap_or(0)
        });
        let usage = (!self.usage_stale.is_empty()).then(|| self.usage_due(now_ms));
        grace.into_iter().chain(usage).chain(self.sessions.wake_at()).min()
    }

    fn account(&mut self, kind: Kind, meta: &Meta, add: bool) {
        // The watch's own measure, so that the two can be compared.
        let hash = crate::watch::fingerprint(meta);
        let (count, sum) = self.sums.entry(kind).or_default();
        if add {
            *count += 1;
            *sum = sum.wrapping_add(hash);
        } else {
            *count = count.saturating_sub(1);
            *sum = sum.wrapping_sub(hash);
        }
    }

    fn set_pod(&mut self, unix_s: i64, pod: Arc<Pod>) {
        let (namespace, name) = (pod.meta.namespace.clone(), pod.meta.name.clone());
        let view = project::pod(&pod, unix_s, self.config.keep_vm_ip);
        let old = self.stored_pod(&namespace, &name).map(|s| (s.view.clone(), s.object.meta.deleting_at));
        let answers = |pod: &Pod| pod.meta.annotations.get(keys::AAPS).cloned();
        let before = self.stored_pod(&namespace, &name).and_then(|s| answers(&s.object));
        let now = answers(&pod);
        if let Some(at) = old.as_ref().and_then(|(_, at)| *at) {
            self.graces.remove(&(at, namespace.clone(), name.clone()));
        }
        if let Some(at) = pod.meta.deleting_at.filter(|_| view.wants_network) {
            self.graces.insert((at, namespace.clone(), name.clone()));
        }
        self.tell_of_security(&pod);
        let same = old.as_ref().is_some_and(|(old, _)| **old == view);
        let view = match old {
            Some((old, _)) if same => old,
            _ => Arc::new(view),
        };
        self.note_agent(&namespace, &name, Some(&pod));
        self.pods.entry(namespace.clone()).or_default().insert(name.clone(), Stored { object: pod, view });
        self.note_machine(&namespace, &name);
        self.project_interfaces(&namespace, &name);
        self.note_virtuals(&namespace, &name);
        if !same {
            self.changed.insert(ReadKey::Pod(namespace.clone(), name.clone()));
            self.want_pod(&namespace, &name);
        }
        if before.is_some() || now.is_some() {
            self.note_answering(&namespace, &name, before.as_deref(), now.as_deref());
        }
    }

    fn remove_pod(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        let Some(pods) = self.pods.get_mut(namespace) else { return };
        let Some(stored) = pods.remove(name) else { return };
        if pods.is_empty() {
            self.pods.remove(namespace);
        }
        if let Some(at) = stored.object.meta.deleting_at {
            self.graces.remove(&(at, namespace.clone(), name.clone()));
        }
        self.note_agent(namespace, name, None);
        self.changed.insert(ReadKey::Pod(namespace.clone(), name.clone()));
        self.project_interfaces(namespace, name);
        self.note_virtuals(namespace, name);
        self.want_pod(namespace, name);
        self.note_machine(namespace, name);
        if let Some(answering) = stored.object.meta.annotations.get(keys::AAPS) {
            self.note_answering(namespace, name, Some(&**answering), None);
        }
    }

    fn set_node(&mut self, node: Arc<Node>) {
        let name = node.meta.name.clone();
        let view = project::node(&node, self.silent.contains(&name), self.namesakes.get(&name).cloned());
        let old = self.nodes.get(&name).map(|s| s.view.clone());
        let same = old.as_ref().is_some_and(|old| **old == view);
        let view = match old {
            Some(old) if same => old,
            _ => Arc::new(view),
        };
        let (labels, asks) = (node.meta.labels.clone(), providers::asks(&node.meta));
        let before = self.nodes.insert(name.clone(), Stored { object: node, view });
        let asked = before.as_ref().map(|before| providers::asks(&before.object.meta)).unwrap_or_default();
        self.providers.stale |= asked != asks;
        self.labels_stale |= before.is_none_or(|before| before.object.meta.labels != labels);
        if !same {
            self.changed.insert(ReadKey::Node(name.clone()));
            self.nodes_stale = true;
            self.want_node(&name);
        }
    }

    fn remove_node(&mut self, name: &Arc<str>) {
        self.nodes.remove(name);
        self.labels_stale = true;
        self.changed.insert(ReadKey::Node(name.clone()));
        self.nodes_stale = true;
        self.want_node(name);
    }

    /// Once for a whole list: each time it takes as long as there are nodes.
    fn index_nodes(&mut self) {
        if !std::mem::take(&mut self.nodes_stale) {
            return;
        }
        if self.node_names.len() != self.nodes.len()
            || self.nodes.keys().any(|n| !self.node_names.contains(n))
        {
            self.node_names = Arc::new(self.nodes.keys().cloned().collect());
            self.changed.insert(ReadKey::NodeNames);
            // Names of port groups are made of both.
            self.subnets_stale = true;
            self.find_namesakes();
        }
        let mut by_ip = BTreeMap::new();
        for (name, stored) in self.nodes.iter().rev() {
            let (v4, v6) = (stored.view.ipv4.map(IpAddr::V4), stored.view.ipv6.map(IpAddr::V6));
            by_ip.extend(v4.into_iter().chain(v6).map(|ip| (ip, name.clone())));
        }
        if by_ip != self.nodes_by_ip {
            self.node_ips = Arc::new(by_ip.keys().copied().collect());
            self.nodes_by_ip = by_ip;
            self.subnets_stale = true;
        }
    }

    /// Of two nodes with one name for port groups (contract, notation) the first by name has them.
    fn find_namesakes(&mut self) {
        let mut first: BTreeMap<String, Arc<str>> = BTreeMap::new();
        let mut found = BTreeMap::new();
        for name in self.nodes.keys() {
            let other = first.entry(crds::names::dot_form(name)).or_insert_with(|| name.clone());
            if other != name {
                found.insert(name.clone(), other.clone());
            }
        }
        let before = std::mem::replace(&mut self.namesakes, found);
        let names: BTreeSet<Arc<str>> = before.keys().chain(self.namesakes.keys()).cloned().collect();
        for name in names {
            if before.get(&name) == self.namesakes.get(&name) {
                continue;
            }
            if let Some(node) = self.nodes.get(&name).map(|stored| stored.object.clone()) {
                self.set_node(node);
            }
        }
    }

    fn set_namespace(&mut self, namespace: Arc<Namespace>) {
        let name = namespace.meta.name.clone();
        let view = (namespace.meta.uid.clone(), namespace.meta.labels.clone());
        let old = self.namespaces.get(&name).map(|s| s.view.clone());
        let known = old.as_ref().is_some_and(|old| old.0 == view.0);
        if old.is_some_and(|old| *old == view) {
            if let Some(stored) = self.namespaces.get_mut(&name) {
                stored.object = namespace;
            }
            return;
        }
        self.namespaces.insert(name.clone(), Stored { object: namespace, view: Arc::new(view) });
        if !known {
            self.changed.insert(ReadKey::Namespace(name.clone()));
        }
        self.bind(&name);
    }

    fn stored_pod(&self, namespace: &str, name: &str) -> Option<&Stored<Pod, PodView>> {
        self.pods.get(namespace)?.get(name)
    }
}
