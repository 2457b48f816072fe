//! Reads of the world: objects for publish, projections for compile.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::World;
use crate::facts::{Kind, ObjectRef, RowKey};
use crate::io::Config;
use crate::objects::{Object, StringMap};
use crate::view::{
    EipView, Interfaces, IpPoolView, KeptView, Lease, LeaseState, MachineView, NodeGate, NodeView, Overlay,
    PodView, PoolUsage, ProviderView, Selecting, Standing, SubnetView, Usage, VipView, VlanView, VpcView,
};

impl World {
    pub(super) fn names(&self, kind: Kind) -> BTreeSet<ObjectRef> {
        let cluster = |names: &mut dyn Iterator<Item = &Arc<str>>| -> BTreeSet<ObjectRef> {
            names.map(|name| ObjectRef::cluster(kind, name.clone())).collect()
        };
        match kind {
            Kind::Pod => self
                .pods
                .iter()
                .flat_map(|(ns, pods)| {
                    pods.keys().map(move |name| ObjectRef::namespaced(kind, ns.clone(), name.clone()))
                })
                .collect(),
            Kind::Node => cluster(&mut self.nodes.keys()),
            Kind::Namespace => cluster(&mut self.namespaces.keys()),
            Kind::Subnet => cluster(&mut self.subnets.keys()),
            Kind::Vpc => cluster(&mut self.vpcs.keys()),
            Kind::Ip => cluster(&mut self.ips.keys()),
            Kind::IpPool => cluster(&mut self.pools.objects.keys()),
            Kind::Vip => cluster(&mut self.vips.objects.keys()),
            Kind::ProviderNetwork => cluster(&mut self.providers.objects.keys()),
            Kind::OvnEip => cluster(&mut self.eips.objects.keys()),
            Kind::Vlan => cluster(&mut self.vlans.objects.keys()),
            Kind::Nad => self
                .attachments
                .nads
                .keys()
                .map(|(ns, name)| ObjectRef::namespaced(kind, ns.clone(), name.clone()))
                .collect(),
            Kind::StatefulSet | Kind::Deployment => self
                .retention
                .workloads
                .keys()
                .filter(|(of, ..)| *of == kind)
                .map(|(_, ns, name)| ObjectRef::namespaced(kind, ns.clone(), name.clone()))
                .collect(),
            kind @ (Kind::VirtualMachine | Kind::VirtualMachineInstance | Kind::Migration) => {
                self.machines.names(kind)
            }
            Kind::Other(plural) => self
                .others
                .keys()
                .filter(|(p, ..)| *p == plural)
                .map(|(_, ns, name)| ObjectRef::namespaced(kind, ns.clone(), name.clone()))
                .collect(),
        }
    }

    /// The object as the watch delivered it last.
    pub fn find(&self, object: &ObjectRef) -> Option<Object> {
        let name = &object.name;
        Some(match object.kind {
            Kind::Pod => Object::Pod(self.stored_pod(&object.namespace, name)?.object.clone()),
            Kind::Node => Object::Node(self.nodes.get(name)?.object.clone()),
            Kind::Namespace => Object::Namespace(self.namespaces.get(name)?.object.clone()),
            Kind::Subnet => Object::Subnet(self.subnets.get(name)?.clone()),
            Kind::Vpc => Object::Vpc(self.vpcs.get(name)?.object.clone()),
            Kind::Ip => Object::Ip(self.ips.get(name)?.clone()),
            Kind::IpPool => Object::IpPool(self.pools.objects.get(name)?.clone()),
            Kind::Vip => Object::Vip(self.vips.objects.get(name)?.clone()),
            Kind::ProviderNetwork => Object::ProviderNetwork(self.providers.objects.get(name)?.clone()),
            Kind::OvnEip => Object::OvnEip(self.eips.objects.get(name)?.clone()),
            Kind::Vlan => Object::Vlan(self.vlans.objects.get(name)?.clone()),
            Kind::Nad => {
                let key = (object.namespace.clone(), name.clone());
                Object::Nad(self.attachments.nads.get(&key)?.clone())
            }
            kind @ (Kind::StatefulSet | Kind::Deployment) => {
                let key = (kind, object.namespace.clone(), name.clone());
                Object::Workload(kind, self.retention.workloads.get(&key)?.clone())
            }
            kind @ (Kind::VirtualMachine | Kind::VirtualMachineInstance | Kind::Migration) => {
                self.machines.find(kind, &object.namespace, name)?
            }
            Kind::Other(plural) => Object::Other(
                plural,
                self.others.get(&(plural, object.namespace.clone(), name.clone()))?.clone(),
            ),
        })
    }

    // What compile reads; the engine records.

    /// See [`crate::view::View::config`].
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// See [`crate::view::View::pod`].
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodView>> {
        self.stored_pod(namespace, name).map(|s| s.view.clone())
    }
    /// Namespace and name of a pod as the world has them in memory already.
    pub(crate) fn pod_name(&self, namespace: &str, name: &str) -> (Arc<str>, Arc<str>) {
        match self.stored_pod(namespace, name) {
            Some(stored) => (stored.object.meta.namespace.clone(), stored.object.meta.name.clone()),
            None => (namespace.into(), name.into()),
        }
    }
    /// See [`crate::view::View::node`].
    pub fn node(&self, name: &str) -> Option<Arc<NodeView>> {
        self.nodes.get(name).map(|s| s.view.clone())
    }
    /// See [`crate::view::View::provider_network`].
    pub fn provider_network(&self, name: &str) -> Option<Arc<ProviderView>> {
        self.providers.views.get(name).cloned()
    }
    /// See [`crate::view::View::subnet`].
    pub fn subnet(&self, name: &str) -> Option<Arc<SubnetView>> {
        self.subnet_views.get(name).cloned()
    }
    /// See [`crate::view::View::vpc`].
    pub fn vpc(&self, name: &str) -> Option<Arc<VpcView>> {
        self.vpcs.get(name).map(|s| s.view.clone())
    }
    /// See [`crate::view::View::vpc_subnets`].
    pub fn vpc_subnets(&self, vpc: &str) -> Arc<BTreeSet<Arc<str>>> {
        self.vpc_subnets.get(vpc).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::overlays`].
    pub fn overlays(&self) -> Arc<Vec<Overlay>> {
        self.overlays.clone()
    }
    /// See [`crate::view::View::node_gate`].
    pub fn node_gate(&self) -> Arc<NodeGate> {
        self.node_gate.clone()
    }
    /// See [`crate::view::View::selected_nodes`].
    pub fn selected_nodes(&self, who: &Selecting) -> Arc<Vec<Arc<str>>> {
        self.selections.get(who).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::active_gateway`].
    pub fn active_gateway(&self, subnet: &str) -> Option<Arc<str>> {
        let active = &*self.subnets.get(subnet)?.status.activate_gateway;
        (!active.is_empty()).then(|| active.into())
    }
    /// See [`crate::view::View::had_querier`].
    pub fn had_querier(&self, subnet: &str) -> bool {
        self.subnets.get(subnet).is_some_and(|subnet| super::querier::has(subnet))
    }
    /// See [`crate::view::View::row_uuid`].
    pub fn row_uuid(&self, row: &RowKey) -> Option<Arc<str>> {
        self.row_uuids.get(row).cloned()
    }
    /// See [`crate::view::View::vip_ports`].
    pub fn vip_ports(&self, address: &str) -> Arc<BTreeSet<Arc<str>>> {
        Arc::new(self.virtuals.ports(address))
    }
    /// UID and labels of a namespace, see [`crate::view::View::namespace`].
    pub fn namespace(&self, name: &str) -> Option<Arc<(Arc<str>, StringMap)>> {
        self.namespaces.get(name).map(|s| s.view.clone())
    }
    /// See [`crate::view::View::lease`].
    pub fn lease(&self, port: &str) -> LeaseState {
        self.leases.state(&self.ipam, port)
    }
    /// See [`crate::view::View::usage`].
    pub fn usage(&self, subnet: &str) -> Arc<Usage> {
        self.usage.get(subnet).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::node_names`].
    pub fn node_names(&self) -> Arc<BTreeSet<Arc<str>>> {
        self.node_names.clone()
    }
    /// See [`crate::view::View::namespace_subnets`].
    pub fn namespace_subnets(&self, namespace: &str) -> Arc<Vec<Arc<str>>> {
        self.bindings.get(namespace).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::orphan_ip`].
    pub fn orphan_ip(&self, name: &str) -> Option<Arc<str>> {
        self.orphans.get(name).cloned()
    }
    /// See [`crate::view::View::machine`].
    pub fn machine(&self, namespace: &str, name: &str) -> Option<Arc<MachineView>> {
        self.machines.view(namespace, name)
    }
    /// See [`crate::view::View::interfaces`].
    pub fn interfaces(&self, namespace: &str, name: &str) -> Option<Arc<Interfaces>> {
        if self.attachments.pods.is_empty() {
            return None;
        }
        self.attachments.pods.get(&(namespace.into(), name.into())).cloned()
    }
    /// See [`crate::view::View::ippool`].
    pub fn ippool(&self, name: &str) -> Option<Arc<IpPoolView>> {
        self.pools.views.get(name).cloned()
    }
    /// See [`crate::view::View::pool_usage`].
    pub fn pool_usage(&self, name: &str) -> Arc<PoolUsage> {
        self.pools.usage.get(name).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::namespace_pools`].
    pub fn namespace_pools(&self, namespace: &str) -> Arc<Vec<Arc<str>>> {
        self.pools.by_namespace.get(namespace).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::vip`].
    pub fn vip(&self, name: &str) -> Option<Arc<VipView>> {
        self.vips.views.get(name).cloned()
    }
    /// See [`crate::view::View::ovn_eip`].
    pub fn ovn_eip(&self, name: &str) -> Option<Arc<EipView>> {
        self.eips.views.get(name).cloned()
    }
    /// See [`crate::view::View::peers`].
    pub fn peers(&self, subnet: &str) -> Arc<Vec<Arc<Lease>>> {
        self.eips.peers.get(subnet).cloned().unwrap_or_default()
    }
    /// See [`crate::view::View::vlan`].
    pub fn vlan(&self, name: &str) -> Option<Arc<VlanView>> {
        self.vlans.views.get(name).cloned()
    }
    /// See [`crate::view::View::standing`].
    pub fn standing(&self, port: &str, chassis: &str) -> Standing {
        self.sessions.standing(port, chassis)
    }
    /// See [`crate::view::View::kept`].
    pub fn kept(&self, port: &str) -> Option<Arc<KeptView>> {
        self.retention.kept.get(port).cloned()
    }
    /// See [`crate::view::View::other`].
    pub fn other(&self, plural: &'static str, namespace: &str, name: &str) -> Option<Arc<str>> {
        let key = (plural, Arc::from(namespace), Arc::from(name));
        self.others.get(&key).map(|other| other.meta.uid.clone())
    }
}
