//! Subnets and VPCs of the world: when they are judged anew, and what depends on
//! the verdict (pools, bindings of namespaces, lists that units read).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, names, net};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::contest::{self, Surroundings};
use super::{ReadKey, Stored, World, bindings, eips, querier};
use crate::facts::RowKey;
use crate::ipam::mac;
use crate::objects::{StringMap, Subnet, Vpc};
use crate::view::{NodeGate, Overlay, Selecting, SubnetView, VpcView, is_ovn_provider};

/// Our finalizer is on it: it stays until we let it go.
pub(super) fn guarded(subnet: &Subnet) -> bool {
    subnet.meta.finalizers.iter().any(|f| [keys::FINALIZER, keys::DEPRECATED_FINALIZER].contains(&&**f))
}

impl World {
    /// A status patch judges nothing anew, except for the condition that says who
    /// was served first.
    pub(super) fn set_subnet(&mut self, subnet: Arc<Subnet>) {
        let name = subnet.meta.name.clone();
        let old = self.subnets.insert(name.clone(), subnet.clone());
        if let Some(old) = &old {
            self.tell_of_gateway(old, &subnet);
        }
        self.subnet_names(old.as_deref(), Some(&subnet));
        if old.as_ref().is_none_or(|old| old.status.activate_gateway != subnet.status.activate_gateway) {
            self.changed.insert(ReadKey::ActiveGateway(name.clone()));
        }
        if old.as_ref().is_none_or(|old| querier::has(old) != querier::has(&subnet)) {
            self.changed.insert(ReadKey::HadQuerier(name));
        }
        if guarded(&subnet) && !old.as_deref().is_some_and(guarded) {
            // Ports wait for that.
            self.leases.retry_refused();
        }
        let decides = |subnet: &Subnet| {
            let meta = &subnet.meta;
            (meta.uid.clone(), meta.created_at, meta.deleting_at.is_some(), contest::is_validated(subnet))
        };
        let same = old.is_some_and(|old| decides(&old) == decides(&subnet) && old.spec == subnet.spec);
        self.subnets_stale |= !same;
        self.vlans.stale |= !same;
    }

    /// The gateway nodes that give no answer are these.
    pub fn set_silent(&mut self, silent: crate::gateways::Silent) {
        let before = std::mem::replace(&mut self.silent, silent);
        let changed: Vec<Arc<str>> = before.symmetric_difference(&self.silent).cloned().collect();
        for name in changed {
            if let Some(node) = self.nodes.get(&name).map(|stored| stored.object.clone()) {
                self.set_node(node);
            }
        }
        self.index_nodes();
    }

    pub(super) fn set_vpc(&mut self, vpc: Arc<Vpc>) {
        let name = vpc.meta.name.clone();
        let view = Arc::new(VpcView::of(&vpc));
        let lists = vpc.status.subnets.clone();
        let old = self.vpcs.insert(name.clone(), Stored { object: vpc, view: view.clone() });
        self.subnets_stale |= old.as_ref().is_none_or(|old| old.object.status.subnets != lists);
        let switch = self.config.external_gateway_switch.clone();
        let before = eips::externals(old.as_ref().map(|old| &*old.view), &switch);
        self.note_externals(before, eips::externals(Some(&view), &switch));
        self.select_nodes(&Selecting::Bfd(name.clone()));
        self.select_nodes(&Selecting::External);
        let Some(old) = old.filter(|old| old.view.uid == view.uid) else {
            self.subnets_stale = true;
            self.changed.insert(ReadKey::Vpc(name));
            self.bindings_stale = true;
            return;
        };
        if old.view == view {
            return;
        }
        self.subnets_stale |=
            old.view.mirrored != view.mirrored || old.view.spec.vpc_peerings != view.spec.vpc_peerings;
        let binds = |view: &VpcView| (view.spec.namespaces.clone(), view.spec.default_subnet.clone());
        self.bindings_stale |= binds(&old.view) != binds(&view) || old.view.mirrored != view.mirrored;
        self.changed.insert(ReadKey::Vpc(name));
    }

    pub(super) fn remove_vpc(&mut self, name: &Arc<str>) {
        let old = self.vpcs.remove(name);
        let switch = self.config.external_gateway_switch.clone();
        let before = eips::externals(old.as_ref().map(|old| &*old.view), &switch);
        self.note_externals(before, Vec::new());
        self.select_nodes(&Selecting::Bfd(name.clone()));
        self.select_nodes(&Selecting::External);
        self.subnets_stale = true;
        self.bindings_stale = true;
        self.changed.insert(ReadKey::Vpc(name.clone()));
    }

    /// Judges all subnets if what they are judged by has changed: one's validity
    /// depends on the others.
    pub(super) fn judge_subnets(&mut self) {
        if std::mem::take(&mut self.labels_stale) {
            self.providers.stale = true;
            for who in self.selections.keys().cloned().collect::<Vec<_>>() {
                self.select_nodes(&who);
            }
        }
        self.project_providers();
        if std::mem::take(&mut self.subnets_stale) {
            self.judge_all();
        }
        self.project_vlans();
        if std::mem::take(&mut self.bindings_stale) {
            for namespace in self.namespaces.keys().cloned().collect::<Vec<_>>() {
                self.bind(&namespace);
            }
        }
    }

    fn judge_all(&mut self) {
        let vpc = |name: &str| self.vpc(name);
        let stays_in = |subnet: &Subnet, asked: &str| self.stays_in(subnet, asked);
        let stays_ours = |subnet: &Subnet| self.stays_ours(subnet);
        let around = Surroundings {
            config: &self.config,
            subnets: &self.subnets,
            vpc: &vpc,
            nodes: &self.nodes_by_ip,
            node_names: &self.node_names,
            before: &self.subnet_views,
            externals: &self.externals,
            stays_in: &stays_in,
            stays_ours: &stays_ours,
        };
        let views = contest::project(&around);
        let gone: Vec<_> = self.subnet_views.keys().filter(|n| !views.contains_key(*n)).cloned().collect();
        let mut rebind = !gone.is_empty();
        for name in gone {
            self.forget_subnet(name);
        }
        let mut moved = false;
        for (name, view) in views {
            let old = self.subnet_views.get(&name).cloned();
            if old.as_ref().is_some_and(|old| **old == view) {
                continue;
            }
            let binds = |view: &SubnetView| {
                let spec = &view.spec;
                let by = (spec.namespaces.clone(), spec.namespace_selectors.clone());
                (by, spec.provider.clone(), spec.vpc.clone(), view.deleting)
            };
            rebind |= old.as_ref().is_none_or(|old| binds(old) != binds(&view));
            moved |= old.as_ref().is_none_or(|old| old.spec.vpc != view.spec.vpc);
            self.adopt_view(name, old.as_deref(), view);
        }
        if rebind || moved {
            self.index_networks();
        }
        self.list_overlays();
        self.bindings_stale |= rebind;
    }

    /// See [`Surroundings::stays_in`]. A subnet without conditions was never served: one of its
    /// name may have been.
    fn stays_in(&self, subnet: &Subnet, asked: &str) -> Option<Arc<str>> {
        if asked.is_empty() || subnet.status.conditions.is_empty() {
            return None;
        }
        let name = &subnet.meta.name;
        let lists = |vpc: &Vpc| vpc.status.subnets.iter().any(|listed| **listed == **name);
        if self.vpcs.get(asked).is_some_and(|stored| lists(&stored.object)) {
            return None;
        }
        let (home, _) = self.vpcs.iter().find(|(_, stored)| lists(&stored.object))?;
        let used = self.ips.values().any(|ip| *ip.spec.subnet == **name);
        used.then(|| home.clone())
    }

    fn forget_subnet(&mut self, name: Arc<str>) {
        self.subnet_views.remove(&name);
        self.want_querier(&name);
        self.select_nodes(&Selecting::Gateways(name.clone()));
        self.changed.insert(ReadKey::Subnet(name.clone()));
        for port in self.ipam.remove_subnet(&name) {
            self.changed.insert(ReadKey::Lease(port.clone()));
            self.leases.queue(port);
        }
        self.usage.remove(&name);
        self.leaving.remove(&name);
        self.changed.insert(ReadKey::Usage(name.clone()));
        // Who was refused because of it is told what is in the way now.
        self.leases.retry_refused();
        self.requeue_kept(|_, lease| lease.subnet == name);
        self.project_pools(&name);
    }

    /// See [`Surroundings::stays_ours`]. That it was OVN's a VPC's status says.
    fn stays_ours(&self, subnet: &Subnet) -> Option<Arc<str>> {
        let (name, asked) = (&subnet.meta.name, &subnet.spec.provider);
        if asked.is_empty() || is_ovn_provider(asked) || subnet.status.conditions.is_empty() {
            return None;
        }
        let mut vpcs = self.vpcs.values().flat_map(|stored| &stored.object.status.subnets);
        let stays =
            vpcs.any(|listed| **listed == **name) && self.ips.values().any(|ip| *ip.spec.subnet == **name);
        let before = self.subnet_views.get(name).filter(|view| view.is_ovn());
        stays.then(|| before.map_or(keys::DEFAULT_PROVIDER, |view| &view.spec.provider).into())
    }

    fn adopt_view(&mut self, name: Arc<str>, old: Option<&SubnetView>, mut view: SubnetView) {
        let pool = |view: &SubnetView| (view.supported || view.external) && view.invalid.is_none();
        let (usable, pooled) = (pool(&view), old.is_some_and(pool));
        if usable && old.is_none_or(|old| !pooled || old.spec != view.spec) {
            self.laid_out.insert(name.clone());
            if let Err(error) = self.ipam.set_subnet(&name, &view.spec) {
                view.invalid = Some((error.reason().into(), error.to_string().into()));
            }
            let port = names::router_port(&view.spec.vpc, &name);
            let mac = self.router_macs.get(&*port).copied();
            self.ipam.set_router_mac(&name, mac);
            self.leases.retry_refused();
        } else if old.is_none_or(|old| {
            (old.deleting, &old.invalid, old.external) != (view.deleting, &view.invalid, view.external)
        }) {
            self.leases.retry_refused();
        }
        if view.deleting || old.is_some_and(|old| old.deleting) {
            // Who holds its addresses becomes part of the usage.
            self.usage_stale.insert(name.clone());
        }
        if view.deleting {
            self.leaving.insert(name.clone());
        } else {
            self.leaving.remove(&name);
        }
        self.subnet_views.insert(name.clone(), Arc::new(view));
        self.want_querier(&name);
        self.select_nodes(&Selecting::Gateways(name.clone()));
        self.changed.insert(ReadKey::Subnet(name.clone()));
        self.requeue_kept(|_, lease| lease.subnet == name);
        self.project_pools(&name);
    }

    /// A record of an address came or went: it may hold a subnet on its way out.
    pub(super) fn note_holder(&mut self, subnet: &str) {
        let Some((name, view)) = self.subnet_views.get_key_value(subnet) else { return };
        if view.deleting {
            self.usage_stale.insert(name.clone());
        }
        // It may go where its user wants it to be.
        self.subnets_stale |= view.stays;
    }

    /// MAC address of a subnet's router port, as the database has it.
    pub(super) fn router_mac(&self, subnet: &str) -> Option<mac::Mac> {
        let view = self.subnet_views.get(subnet)?;
        self.router_macs.get(&*names::router_port(&view.spec.vpc, subnet)).copied()
    }

    /// Chooses nodes anew for one that has selectors.
    fn select_nodes(&mut self, who: &Selecting) {
        let chosen = self.nodes_for(who).map(Arc::new);
        if self.selections.get(who) == chosen.as_ref() {
            return;
        }
        match chosen {
            Some(chosen) => self.selections.insert(who.clone(), chosen),
            None => self.selections.remove(who),
        };
        self.changed.insert(ReadKey::SelectedNodes(who.clone()));
    }

    /// `None` for one that does not choose nodes by selectors.
    fn nodes_for(&self, who: &Selecting) -> Option<Vec<Arc<str>>> {
        let matching = |selectors: &[LabelSelector]| -> Vec<Arc<str>> {
            let nodes = self.nodes.iter().filter(|(_, node)| {
                selectors.iter().any(|selector| bindings::matches(selector, &node.object.meta.labels))
            });
            nodes.map(|(name, _)| name.clone()).collect()
        };
        match who {
            Selecting::Gateways(subnet) => {
                let spec = &self.subnet_views.get(subnet)?.spec;
                let selecting = spec.gateway_type == "centralized" && !spec.gateway_node_selectors.is_empty();
                selecting.then(|| matching(&spec.gateway_node_selectors))
            }
            Selecting::Bfd(vpc) => {
                let vpc = &self.vpcs.get(vpc)?.view;
                let port = vpc.spec.bfd_port.as_ref().filter(|port| port.enabled)?;
                Some(match &port.node_selector {
                    Some(selector) => matching(std::slice::from_ref(selector)),
                    None => self.nodes.keys().cloned().collect(),
                })
            }
            Selecting::External => {
                let external =
                    |spec: &crds::VpcSpec| spec.enable_external || !spec.extra_external_subnets.is_empty();
                self.vpcs.values().any(|vpc| external(&vpc.view.spec)).then(|| {
                    let gateway = |labels: &StringMap| {
                        labels.get(keys::EXTERNAL_GW_LABEL).is_some_and(|value| &**value == "true")
                    };
                    let nodes = self.nodes.iter().filter(|(_, node)| gateway(&node.object.meta.labels));
                    nodes.map(|(name, _)| name.clone()).collect()
                })
            }
        }
    }

    /// A row that statuses name came (with its UUID) or went.
    pub fn note_row(&mut self, row: &RowKey, uuid: Option<ovsdb::Uuid>) {
        let uuid: Option<Arc<str>> = uuid.map(|uuid| uuid.to_string().into());
        if self.row_uuids.get(row) == uuid.as_ref() {
            return;
        }
        match uuid {
            Some(uuid) => self.row_uuids.insert(row.clone(), uuid),
            None => self.row_uuids.remove(row),
        };
        self.changed.insert(ReadKey::RowUuid(row.clone()));
    }

    /// Which subnets a VPC has, and which subnet a router port belongs to.
    pub(super) fn index_networks(&mut self) {
        let mut index: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
        self.router_ports.clear();
        for (name, view) in self.subnet_views.iter().filter(|(_, view)| !view.spec.vpc.is_empty()) {
            index.entry(view.spec.vpc.as_str().into()).or_default().insert(name.clone());
            self.router_ports.insert(names::router_port(&view.spec.vpc, name).into(), name.clone());
        }
        let vpcs: BTreeSet<Arc<str>> = index.keys().chain(self.vpc_subnets.keys()).cloned().collect();
        for vpc in vpcs {
            let new = index.remove(&vpc).unwrap_or_default();
            if self.vpc_subnets.get(&vpc).is_some_and(|old| **old == new) {
                continue;
            }
            if new.is_empty() {
                self.vpc_subnets.remove(&vpc);
            } else {
                self.vpc_subnets.insert(vpc.clone(), Arc::new(new));
            }
            self.changed.insert(ReadKey::VpcSubnets(vpc));
        }
    }

    fn list_overlays(&mut self) {
        let served = self.subnet_views.iter().filter(|(_, view)| {
            view.supported
                && view.invalid.is_none()
                && view.is_ovn()
                && *view.spec.vpc == *self.config.cluster_router
        });
        let list: Vec<Overlay> = served
            .map(|(name, view)| Overlay {
                name: name.clone(),
                nets: net::parse_dual_cidrs(&view.spec.cidr_block).unwrap_or_default(),
                distributed: view.spec.gateway_type != "centralized" && *name != self.config.node_switch,
            })
            .collect();
        if *self.overlays != list {
            self.overlays = Arc::new(list);
            self.changed.insert(ReadKey::Overlays);
        }
        self.open_gate();
    }

    /// Which addresses of nodes private subnets let in.
    fn open_gate(&mut self) {
        let private = self
            .overlays
            .iter()
            .filter(|overlay| self.subnet_views.get(&overlay.name).is_some_and(|view| view.spec.private));
        let (mut v4, mut v6) = (false, false);
        for overlay in private {
            v4 |= overlay.nets.v4.is_some();
            v6 |= overlay.nets.v6.is_some();
        }
        let mut gate = NodeGate { v4: v4.then(BTreeSet::new), v6: v6.then(BTreeSet::new) };
        if v4 || v6 {
            for ip in self.node_ips.iter() {
                match ip {
                    IpAddr::V4(ip) => gate.v4.as_mut().map(|set| set.insert(*ip)),
                    IpAddr::V6(ip) => gate.v6.as_mut().map(|set| set.insert(*ip)),
                };
            }
        }
        if *self.node_gate != gate {
            self.node_gate = Arc::new(gate);
            self.changed.insert(ReadKey::NodeGate);
        }
    }

    pub(super) fn bind(&mut self, namespace: &Arc<str>) {
        let Some(labels) = self.namespaces.get(namespace).map(|s| s.view.clone()) else { return };
        let vpcs = self.vpcs.iter().map(|(name, stored)| (name, &*stored.view));
        let bound = bindings::bound(&self.config, &self.subnet_views, vpcs, namespace, &labels.1);
        if self.bindings.get(namespace).is_none_or(|old| **old != bound) {
            self.bindings.insert(namespace.clone(), Arc::new(bound));
            self.changed.insert(ReadKey::NamespaceSubnets(namespace.clone()));
            self.requeue_kept(|kept, _| kept.namespace == *namespace);
            self.leases.retry_refused();
        }
    }
}
