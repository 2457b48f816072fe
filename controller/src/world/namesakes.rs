//! Names of ports that a pod would share with somebody else. Ports of a switch have one
//! name in the whole database, and names of Kubernetes objects may have dots: the port of
//! pod `node-a` in Namespace `b` is called like that of node `a.b`, and pod `localnet` in
//! Namespace `wan` like the way of Subnet `wan` to the wire. Whoever may create pods must
//! not take from others what they live by: the pod gives way whoever came first, is told
//! so, and has its port as soon as the other one is gone.

use std::sync::Arc;

use crds::{keys, names};

use super::leases::Owner;
use super::{ReadKey, World, project};
use crate::objects::Subnet;

impl World {
    /// Why a pod's default interface can't have a port of its name. `base`: its name, or that of the machine that it runs.
    pub(super) fn port_taken(&self, namespace: &str, base: &str) -> Option<String> {
        let port = names::pod_port(base, namespace, keys::DEFAULT_PROVIDER);
        let whose = if let Some(node) = self.nodes_namesake(&port) {
            format!("node {node}; give the pod another name")
        } else if let Some(subnet) = self.subnets_namesake(&port, namespace, base) {
            format!("Subnet {subnet}; give the pod another name")
        } else {
            let Owner::Attachment(of, pod, provider) = self.leases.wanted.get(&*port)? else { return None };
            format!("interface {provider} of pod {of}/{pod}; give one of the pods another name")
        };
        Some(format!("its port would be called {port}, as is that of {whose}"))
    }

    fn nodes_namesake(&self, port: &str) -> Option<&Arc<str>> {
        let (node, _) = self.nodes.get_key_value(port.strip_prefix("node-")?)?;
        Some(node)
    }

    /// A subnet's ports: to the wire, of the querier, and to the router.
    fn subnets_namesake(&self, port: &str, namespace: &str, name: &str) -> Option<&Arc<str>> {
        let named = self.subnets.get_key_value(namespace);
        let taken = named.filter(|(_, subnet)| match name {
            "localnet" => !subnet.spec.vlan.is_empty(),
            "mcast-querier" => subnet.spec.enable_multicast_snoop,
            _ => false,
        });
        if let Some((subnet, _)) = taken {
            return Some(subnet);
        }
        let mut dashes = port.match_indices('-').filter_map(|(at, _)| {
            let (subnet, object) = self.subnets.get_key_value(&port[..at])?;
            (*self.router_of(object) == port[at + 1..]).then_some(subnet)
        });
        dashes.next()
    }

    fn router_of<'a>(&'a self, subnet: &'a Subnet) -> &'a str {
        if subnet.spec.vpc.is_empty() { &self.config.cluster_router } else { &subnet.spec.vpc }
    }

    /// A subnet came, went, or has other ports.
    pub(super) fn subnet_names(&mut self, old: Option<&Subnet>, new: Option<&Subnet>) {
        let of = |world: &Self, subnet: &Subnet| {
            let (name, spec) = (&subnet.meta.name, &subnet.spec);
            [
                Some(names::switch_port(name, world.router_of(subnet))),
                (!spec.vlan.is_empty()).then(|| names::localnet_port(name)),
                spec.enable_multicast_snoop.then(|| names::mcast_querier(name)),
            ]
        };
        let before = old.map(|subnet| of(self, subnet)).unwrap_or_default();
        let now = new.map(|subnet| of(self, subnet)).unwrap_or_default();
        for (before, now) in before.into_iter().zip(now).filter(|(before, now)| before != now) {
            for port in [before, now].into_iter().flatten() {
                self.reconsider_name(&port);
            }
        }
    }

    /// An owner whose name counts more than a pod's wants a port.
    pub(super) fn claim(&mut self, port: &Arc<str>, owner: Owner) {
        match self.leases.wanted.insert(port.clone(), owner) {
            Some(Owner::Pod(..)) => {
                // Whatever its address is, it is not the new owner's.
                if self.ipam.lease(port).is_some() {
                    self.leases.moving.insert(port.clone());
                }
                self.reconsider_name(port);
            }
            None => self.reconsider_name(port),
            Some(_) => {}
        }
    }

    /// Somebody whose name counts more than a pod's has a port of that name, or has it no more.
    pub(super) fn reconsider_name(&mut self, port: &str) {
        let Some((name, namespace)) = port.rsplit_once('.') else { return };
        let (namespace, name): (Arc<str>, Arc<str>) = (namespace.into(), name.into());
        let mut pods = self.pods_of_machine(&(namespace.clone(), name.clone()));
        pods.push(name);
        let free = !self.leases.wanted.contains_key(port);
        for pod in pods {
            self.reconsider_pod(&namespace, &pod);
        }
        if free && self.leases.wanted.contains_key(port) && self.ipam.lease(port).is_some() {
            self.leases.moving.insert(port.into());
        }
    }

    fn reconsider_pod(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        let Some(stored) = self.stored_pod(namespace, name) else { return };
        let networks = project::names_networks(&stored.object.meta)
            || self.port_taken(namespace, &self.base_name(namespace, name)).is_some();
        let Some(stored) = self.pods.get_mut(namespace).and_then(|pods| pods.get_mut(name)) else { return };
        if stored.view.networks != networks {
            Arc::make_mut(&mut stored.view).networks = networks;
            self.changed.insert(ReadKey::Pod(namespace.clone(), name.clone()));
        }
        self.project_interfaces(namespace, name);
        self.want_pod(namespace, name);
    }
}
