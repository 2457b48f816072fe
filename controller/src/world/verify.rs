//! The projections and indexes kept step by step against a world that lists the
//! same objects once. Leases are no function of objects: what exists already is the
//! truth about them, so they are not made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::leases::Owner;
use super::{Stored, World};
use crate::facts::Kind;
use crate::verify::Differences;
use crate::view::UnitKey;

impl World {
    /// Every unit that exists because an object (or the flags) says so.
    pub fn units(&self) -> BTreeSet<UnitKey> {
        let config = &self.config;
        let mut units: BTreeSet<UnitKey> = [
            UnitKey::Globals,
            UnitKey::Vpc(config.cluster_router.clone()),
            UnitKey::Subnet(config.node_switch.clone()),
            UnitKey::Subnet(config.default_ls.clone()),
        ]
        .into();
        let kinds: Vec<Kind> = self.listed.iter().copied().filter(|kind| *kind != Kind::Ip).collect();
        for object in kinds.into_iter().flat_map(|kind| self.names(kind)) {
            units.extend(UnitKey::of(&object));
        }
        units.extend(self.orphans.keys().map(|name| UnitKey::Ip(name.clone())));
        units.extend(self.retention.kept.keys().map(|port| UnitKey::Kept(port.clone())));
        units
    }

    /// Ports whose rows stay although no unit states them.
    pub fn foreign_ports(&self) -> impl Iterator<Item = &Arc<str>> {
        self.foreign_ports.iter()
    }

    /// Compares with a world made anew from the same objects.
    pub fn verify(&self, unix_s: i64, found: &mut Differences) {
        let mut fresh = World::new(self.config.clone());
        // No object says who is silent.
        fresh.silent = self.silent.clone();
        for kind in &self.listed {
            let objects = self.names(*kind).iter().filter_map(|object| self.find(object)).collect();
            fresh.list(unix_s, *kind, objects);
        }
        // Which of two subnets was there first is history until their status says so.
        fresh.subnet_views = self.subnet_views.clone();
        fresh.subnets_stale = true;
        fresh.judge_subnets();
        fresh.index_networks();
        found.same(|| "namespaces with pods".into(), &self.pods.len(), &fresh.pods.len());
        for (namespace, pods) in &self.pods {
            let anew = fresh.pods.get(namespace);
            found.maps(
                &format!("pod of {namespace}"),
                pods.iter().map(|(name, stored)| (name, &stored.view)),
                anew.into_iter().flatten().map(|(name, stored)| (name, &stored.view)),
            );
        }
        found.maps("node", views(&self.nodes), views(&fresh.nodes));
        found.maps("namespace", views(&self.namespaces), views(&fresh.namespaces));
        found.maps("VPC", views(&self.vpcs), views(&fresh.vpcs));
        found.maps("subnet", &self.subnet_views, &fresh.subnet_views);
        let leaving = self.subnet_views.iter().filter(|(_, view)| view.deleting);
        let leaving: BTreeSet<Arc<str>> = leaving.map(|(name, _)| name.clone()).collect();
        found.same(|| "subnets on their way out".into(), &self.leaving, &leaving);
        found.maps("subnets of namespace", &self.bindings, &fresh.bindings);
        found.same(|| "names of nodes".into(), &self.node_names, &fresh.node_names);
        found.maps("subnets of VPC", &self.vpc_subnets, &fresh.vpc_subnets);
        found.same(|| "overlays".into(), &self.overlays, &fresh.overlays);
        found.same(|| "addresses that private subnets let in".into(), &self.node_gate, &fresh.node_gate);
        found.maps("subnet of router port", &self.router_ports, &fresh.router_ports);
        found.same(|| "addresses of nodes".into(), &self.node_ips, &fresh.node_ips);
        found.same(|| "checksums".into(), &self.sums, &fresh.sums);
        // Who carries a Vip is known from leases, so a Vip may not want its port here.
        let wanted = |world: &World| -> BTreeMap<Arc<str>, Owner> {
            let all = world.leases.wanted.iter().filter(|(_, owner)| !matches!(owner, Owner::Vip(_)));
            all.map(|(port, owner)| (port.clone(), owner.clone())).collect()
        };
        found.same(|| "ports wanted".into(), &wanted(self), &wanted(&fresh));
        found.maps("ports of virtual address", self.virtuals.all(), fresh.virtuals.all());
        found.maps("provider network", &self.providers.views, &fresh.providers.views);
        // What a pool chooses depends on leases.
        let settled = |world: &World| -> BTreeMap<Arc<str>, Arc<crate::view::IpPoolView>> {
            let views = world.pools.views.iter();
            let views = views.filter(|(_, view)| !self.pools.lacking.contains(&view.subnet));
            views.map(|(name, view)| (name.clone(), view.clone())).collect()
        };
        found.maps("IPPool", &settled(self), &settled(&fresh));
        let machines = |world: &World| -> BTreeMap<String, Arc<crate::view::MachineView>> {
            let views = world.machines.views.iter();
            views.map(|((namespace, name), view)| (format!("{namespace}/{name}"), view.clone())).collect()
        };
        found.maps("machine", &machines(self), &machines(&fresh));
        found.maps("IPPools of namespace", &self.pools.by_namespace, &fresh.pools.by_namespace);
        if self.usage_settled() {
            for (subnet, kept) in &self.usage {
                // Who holds addresses is only asked for while the subnet is being deleted.
                let kept = crate::view::Usage { holders: Vec::new(), ..(**kept).clone() };
                found.same(|| format!("usage of {subnet}"), &kept, &self.ipam.usage(subnet));
            }
        }
    }
}

fn views<T, V>(stored: &super::ByName<Stored<T, V>>) -> impl Iterator<Item = (&Arc<str>, &Arc<V>)> {
    stored.iter().map(|(name, stored)| (name, &stored.view))
}
