//! The [`View`] that compile gets: answers from the world, and a record of every
//! question.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use ovsdb::Schema;

use crate::facts::RowKey;
use crate::io::Config;
use crate::view::{
    EipView, Interfaces, IpPoolView, KeptView, Lease, LeaseState, MachineView, NodeGate, NodeView, Overlay,
    PodView, PoolUsage, ProviderView, Selecting, Standing, SubnetView, Usage, View, VipView, VlanView,
    VpcView,
};
use crate::world::{ReadKey, World};

/// What compile may know about the database server: its schema.
#[derive(Clone, Default)]
pub struct SchemaFacts(pub Option<Arc<Schema>>);

pub(super) struct Recorder<'a> {
    world: &'a World,
    schema: &'a SchemaFacts,
    /// `None` when nobody wants to know.
    reads: Option<RefCell<Vec<ReadKey>>>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(world: &'a World, schema: &'a SchemaFacts) -> Self {
        Self { world, schema, reads: Some(RefCell::default()) }
    }

    /// For a unit whose reads are known: it is compiled again only to be looked at.
    pub(super) fn silent(world: &'a World, schema: &'a SchemaFacts) -> Self {
        Self { world, schema, reads: None }
    }

    /// Everything that was read, sorted, each once.
    pub(super) fn into_reads(self) -> Vec<ReadKey> {
        let mut reads = self.reads.map(RefCell::into_inner).unwrap_or_default();
        reads.sort_unstable();
        reads.dedup();
        reads
    }

    fn note(&self, key: impl FnOnce() -> ReadKey) {
        if let Some(reads) = &self.reads {
            reads.borrow_mut().push(key());
        }
    }
}

impl View for Recorder<'_> {
    fn config(&self) -> &Config {
        self.world.config()
    }
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodView>> {
        let (namespace, name) = self.world.pod_name(namespace, name);
        let view = self.world.pod(&namespace, &name);
        self.note(|| ReadKey::Pod(namespace, name));
        view
    }
    fn node(&self, name: &str) -> Option<Arc<NodeView>> {
        self.note(|| ReadKey::Node(name.into()));
        self.world.node(name)
    }
    fn subnet(&self, name: &str) -> Option<Arc<SubnetView>> {
        self.note(|| ReadKey::Subnet(name.into()));
        self.world.subnet(name)
    }
    fn vpc(&self, name: &str) -> Option<Arc<VpcView>> {
        self.note(|| ReadKey::Vpc(name.into()));
        self.world.vpc(name)
    }
    fn vpc_subnets(&self, vpc: &str) -> Arc<BTreeSet<Arc<str>>> {
        self.note(|| ReadKey::VpcSubnets(vpc.into()));
        self.world.vpc_subnets(vpc)
    }
    fn overlays(&self) -> Arc<Vec<Overlay>> {
        self.note(|| ReadKey::Overlays);
        self.world.overlays()
    }
    fn node_gate(&self) -> Arc<NodeGate> {
        self.note(|| ReadKey::NodeGate);
        self.world.node_gate()
    }
    fn selected_nodes(&self, who: &Selecting) -> Arc<Vec<Arc<str>>> {
        self.note(|| ReadKey::SelectedNodes(who.clone()));
        self.world.selected_nodes(who)
    }
    fn active_gateway(&self, subnet: &str) -> Option<Arc<str>> {
        self.note(|| ReadKey::ActiveGateway(subnet.into()));
        self.world.active_gateway(subnet)
    }
    fn had_querier(&self, subnet: &str) -> bool {
        self.note(|| ReadKey::HadQuerier(subnet.into()));
        self.world.had_querier(subnet)
    }
    fn row_uuid(&self, row: &RowKey) -> Option<Arc<str>> {
        self.note(|| ReadKey::RowUuid(row.clone()));
        self.world.row_uuid(row)
    }
    fn vip_ports(&self, address: &str) -> Arc<BTreeSet<Arc<str>>> {
        self.note(|| ReadKey::VipPorts(address.into()));
        self.world.vip_ports(address)
    }
    fn namespace(&self, name: &str) -> Option<Arc<str>> {
        self.note(|| ReadKey::Namespace(name.into()));
        self.world.namespace(name).map(|namespace| namespace.0.clone())
    }
    fn lease(&self, port: &str) -> LeaseState {
        let state = self.world.lease(port);
        let port = match &state {
            LeaseState::Held(lease) => lease.port.clone(),
            _ => port.into(),
        };
        self.note(|| ReadKey::Lease(port));
        state
    }
    fn usage(&self, subnet: &str) -> Arc<Usage> {
        self.note(|| ReadKey::Usage(subnet.into()));
        self.world.usage(subnet)
    }
    fn node_names(&self) -> Arc<BTreeSet<Arc<str>>> {
        self.note(|| ReadKey::NodeNames);
        self.world.node_names()
    }
    fn namespace_subnets(&self, namespace: &str) -> Arc<Vec<Arc<str>>> {
        self.note(|| ReadKey::NamespaceSubnets(namespace.into()));
        self.world.namespace_subnets(namespace)
    }
    fn orphan_ip(&self, name: &str) -> Option<Arc<str>> {
        self.note(|| ReadKey::OrphanIp(name.into()));
        self.world.orphan_ip(name)
    }
    fn other(&self, plural: &'static str, namespace: &str, name: &str) -> Option<Arc<str>> {
        self.note(|| ReadKey::Other(plural, namespace.into(), name.into()));
        self.world.other(plural, namespace, name)
    }
    fn machine(&self, namespace: &str, name: &str) -> Option<Arc<MachineView>> {
        self.note(|| ReadKey::Machine(namespace.into(), name.into()));
        self.world.machine(namespace, name)
    }
    fn interfaces(&self, namespace: &str, name: &str) -> Option<Arc<Interfaces>> {
        self.note(|| ReadKey::Interfaces(namespace.into(), name.into()));
        self.world.interfaces(namespace, name)
    }
    fn ippool(&self, name: &str) -> Option<Arc<IpPoolView>> {
        self.note(|| ReadKey::IpPool(name.into()));
        self.world.ippool(name)
    }
    fn pool_usage(&self, name: &str) -> Arc<PoolUsage> {
        self.note(|| ReadKey::PoolUsage(name.into()));
        self.world.pool_usage(name)
    }
    fn namespace_pools(&self, namespace: &str) -> Arc<Vec<Arc<str>>> {
        self.note(|| ReadKey::NamespacePools(namespace.into()));
        self.world.namespace_pools(namespace)
    }
    fn provider_network(&self, name: &str) -> Option<Arc<ProviderView>> {
        self.note(|| ReadKey::ProviderNetwork(name.into()));
        self.world.provider_network(name)
    }
    fn vip(&self, name: &str) -> Option<Arc<VipView>> {
        self.note(|| ReadKey::Vip(name.into()));
        self.world.vip(name)
    }
    fn ovn_eip(&self, name: &str) -> Option<Arc<EipView>> {
        self.note(|| ReadKey::OvnEip(name.into()));
        self.world.ovn_eip(name)
    }
    fn peers(&self, subnet: &str) -> Arc<Vec<Arc<Lease>>> {
        self.note(|| ReadKey::Peers(subnet.into()));
        self.world.peers(subnet)
    }
    fn vlan(&self, name: &str) -> Option<Arc<VlanView>> {
        self.note(|| ReadKey::Vlan(name.into()));
        self.world.vlan(name)
    }
    fn standing(&self, port: &str, chassis: &str) -> Standing {
        self.note(|| ReadKey::Standing(port.into()));
        self.world.standing(port, chassis)
    }
    fn kept(&self, port: &str) -> Option<Arc<KeptView>> {
        self.note(|| ReadKey::Kept(port.into()));
        self.world.kept(port)
    }
    fn has_column(&self, table: &str, column: &str) -> bool {
        self.note(|| ReadKey::Schema);
        self.schema.0.as_ref().is_some_and(|schema| schema.column(table, column).is_some())
    }
}
