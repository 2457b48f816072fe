//! The life of address leases.
//!
//! A lease is given before its port is compiled, once every watch and the replica
//! are loaded and the leases that exist already were put back (truth: annotations,
//! then port rows, then IP objects; [`World::restore_leases`] says why). It is freed when nothing alive wants the
//! port, no row of the port is left in the replica, and the IP object is gone. A
//! successor of the same name inherits it; one that asks for something else waits
//! until the old lease is freed, so that no address is ever in two rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crds::{keys, names};

use super::{ReadKey, World, project};
use crate::ipam::{self, Error, Family, Ipam, Request, mac};
use crate::objects::{Ip, Meta};
use crate::view::{Lease, LeaseState};

/// Who wants a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Pod(Arc<str>, Arc<str>),
    Node(Arc<str>),
}

/// Why a port has no address, and which subnets might help.
struct Refusal {
    reason: Arc<str>,
    message: Arc<str>,
    subnets: Vec<Arc<str>>,
}

/// What is known about ports beside the leases themselves.
#[derive(Default)]
pub(super) struct Book {
    /// Existing leases were put back; leases may change.
    pub(super) started: bool,
    /// Something that leases are restored from has changed since they were.
    pub(super) stale: bool,
    /// Ports that something alive wants.
    pub(super) wanted: BTreeMap<Arc<str>, Owner>,
    /// Names of port rows in the replica.
    rows: BTreeSet<Arc<str>>,
    /// Ports whose successor asks for something else than the old lease.
    moving: BTreeSet<Arc<str>>,
    refused: BTreeMap<Arc<str>, Refusal>,
    /// Ports that wait for an object that is on its way (their namespace, the
    /// default subnets): no refusal, so no warning.
    waiting: BTreeSet<Arc<str>>,
    /// Ports that a leader has to serve; we were none.
    ungiven: BTreeSet<Arc<str>>,
    pub(super) todo: VecDeque<Arc<str>>,
    queued: BTreeSet<Arc<str>>,
}

impl Book {
    /// What leases are restored from has changed for a port.
    fn changed(&mut self, port: Arc<str>) {
        self.stale = true;
        self.queue(port);
    }

    pub(super) fn queue(&mut self, port: Arc<str>) {
        if self.queued.insert(port.clone()) {
            self.todo.push_back(port);
        }
    }

    /// Something that may help refused ports has changed.
    pub(super) fn retry_refused(&mut self) {
        for port in std::mem::take(&mut self.waiting) {
            self.queue(port);
        }
        for port in self.refused.keys().cloned().collect::<Vec<_>>() {
            self.queue(port);
        }
    }

    fn retry_in(&mut self, subnet: &Arc<str>) {
        let ports: Vec<_> =
            self.refused.iter().filter(|(_, r)| r.subnets.contains(subnet)).map(|(p, _)| p.clone()).collect();
        for port in ports {
            self.queue(port);
        }
    }

    pub(super) fn state(&self, ipam: &Ipam, port: &str) -> LeaseState {
        if let Some(refusal) = self.refused.get(port) {
            return LeaseState::Refused(refusal.reason.clone(), refusal.message.clone());
        }
        if self.moving.contains(port) {
            return LeaseState::None;
        }
        ipam.lease(port).map_or(LeaseState::None, |lease| LeaseState::Held(lease.clone()))
    }
}

/// What a port asks for, or why it can't be asked yet.
enum Ask {
    Request(Box<Request>),
    /// Not scheduled, on its way out, or an object is still to come.
    Wait,
    Refuse(Error),
}

impl World {
    pub(super) fn want_pod(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        let port: Arc<str> = names::pod_port(name, namespace, keys::DEFAULT_PROVIDER).into();
        if self.pod(namespace, name).is_some_and(|pod| pod.wants_network) {
            self.leases.wanted.insert(port.clone(), Owner::Pod(namespace.clone(), name.clone()));
        } else {
            self.leases.wanted.remove(&port);
        }
        self.leases.changed(port);
    }

    pub(super) fn want_node(&mut self, name: &Arc<str>) {
        let port: Arc<str> = names::node_port(name).into();
        if self.nodes.contains_key(name) {
            self.leases.wanted.insert(port.clone(), Owner::Node(name.clone()));
        } else {
            self.leases.wanted.remove(&port);
        }
        self.leases.changed(port);
    }

    pub(super) fn set_ip(&mut self, ip: Arc<Ip>) {
        let name = ip.meta.name.clone();
        self.ips.insert(name.clone(), ip);
        self.leases.changed(name);
    }

    /// A port's row stays although no unit states it: its IP object belongs to a
    /// feature of its own, or its pod runs with an address that can't be leased now
    /// (its subnet is broken, or not one that this version serves).
    fn reckon_kept(&mut self, port: &Arc<str>) {
        let elsewhere = self.ips.get(port).is_some_and(|ip| belongs_elsewhere(ip));
        let owner = self.leases.wanted.get(port).and_then(|owner| self.owner_meta(owner));
        let told = owner.is_some_and(project::allocated);
        let held = matches!(self.leases.state(&self.ipam, port), LeaseState::Held(_));
        let kept = elsewhere || (told && !held);
        let changed =
            if kept { self.foreign_ports.insert(port.clone()) } else { self.foreign_ports.remove(port) };
        if changed {
            self.foreign_changes.push((port.clone(), kept));
        }
    }

    pub(super) fn remove_ip(&mut self, name: &Arc<str>) {
        self.ips.remove(name);
        self.leases.changed(name.clone());
    }

    /// A port row appeared in the replica, or the last of that name is gone.
    pub fn port_row(&mut self, name: Arc<str>, present: bool) {
        let changed =
            if present { self.leases.rows.insert(name.clone()) } else { self.leases.rows.remove(&name) };
        if changed {
            self.leases.changed(name);
        }
    }

    /// A router port of the replica has this MAC address, or is gone: no port of its
    /// switch may ask for the same (contract §3.3).
    pub fn router_port_row(&mut self, name: &str, mac: Option<&str>) {
        let config = self.config.clone();
        let switches = [&config.node_switch, &config.default_ls];
        let of = |switch: &&Arc<str>| names::router_port(&config.cluster_router, switch) == name;
        let Some(switch) = switches.into_iter().find(of) else { return };
        let mac = mac.and_then(mac::parse);
        match mac {
            Some(mac) => self.router_macs.insert(switch.clone(), mac),
            None => self.router_macs.remove(switch),
        };
        self.ipam.set_router_mac(switch, mac);
    }

    /// Restoring leases again might give another result.
    pub fn leases_stale(&self) -> bool {
        self.leases.stale
    }

    /// Leases may be looked at: everything is loaded.
    pub fn started(&self) -> bool {
        self.leases.started
    }

    /// Ports in different states, for diagnostics: held, refused, waiting to move.
    pub fn lease_counts(&self) -> (usize, usize, usize) {
        (self.ipam.leases().count(), self.leases.refused.len(), self.leases.moving.len())
    }

    pub(super) fn owner_meta(&self, owner: &Owner) -> Option<&Meta> {
        match owner {
            Owner::Pod(namespace, name) => Some(&self.stored_pod(namespace, name)?.object.meta),
            Owner::Node(name) => Some(&self.nodes.get(name)?.object.meta),
        }
    }

    /// Brings every queued port's lease in line. Only a leader (`give`) draws new
    /// addresses; a follower learns them from the IP objects that the leader makes.
    pub fn settle_leases(&mut self, give: bool) {
        if !self.leases.started {
            return;
        }
        if give {
            for port in std::mem::take(&mut self.leases.ungiven) {
                self.leases.queue(port);
            }
        }
        let mut exhausted = BTreeSet::new();
        while let Some(port) = self.leases.todo.pop_front() {
            self.leases.queued.remove(&port);
            self.learn(&port, give);
            self.settle_port(&port, give, &mut exhausted);
            self.reckon_orphan(&port);
            self.reckon_kept(&port);
        }
    }

    /// An IP object whose lease is not known: made by the leader that we follow, or
    /// by a user who reserves an address.
    fn learn(&mut self, port: &Arc<str>, give: bool) {
        let Some(lease) = self.ips.get(port).and_then(|ip| self.of_ip(ip)) else { return };
        let held = self.ipam.lease(port);
        let differs = |held: &Lease| (&held.subnet, held.v4, held.v6) != (&lease.subnet, lease.v4, lease.v6);
        let owner = self.leases.wanted.get(port).and_then(|owner| self.owner_meta(owner));
        let better = owner.is_some_and(project::allocated) || self.leases.rows.contains(port);
        if !give && !better && held.is_some_and(|held| differs(held)) {
            self.ipam.release(port);
            self.changed.insert(ReadKey::Lease(port.clone()));
        }
        self.restore(lease);
    }

    fn settle_port(&mut self, port: &Arc<str>, give: bool, exhausted: &mut BTreeSet<Arc<str>>) {
        let before = self.leases.state(&self.ipam, port);
        let leftovers = self.leases.rows.contains(port) || self.ips.contains_key(port);
        let held = self.ipam.lease(port).cloned();
        let Some(owner) = self.leases.wanted.get(port).cloned() else {
            self.leases.refused.remove(port);
            self.leases.waiting.remove(port);
            self.leases.moving.remove(port);
            if let Some(lease) = held.filter(|_| !leftovers) {
                self.free(&lease);
            }
            return self.note_lease(port, &before);
        };
        let uid = self.owner_meta(&owner).map(|meta| meta.uid.clone()).unwrap_or_default();
        let ask = self.ask(port, &owner, &uid);
        if let Some(lease) = held {
            if lease.owner == uid && !self.leases.moving.contains(port) {
                self.leases.refused.remove(port);
                return self.note_lease(port, &before);
            }
            let inherited = match &ask {
                Ask::Request(request) => fits(&lease, request) && self.ipam.allocate(request).is_ok(),
                Ask::Wait => return self.note_lease(port, &before),
                Ask::Refuse(_) => false,
            };
            if inherited {
                self.leases.moving.remove(port);
                self.leases.refused.remove(port);
                return self.note_lease(port, &before);
            }
            if leftovers {
                self.leases.moving.insert(port.clone());
                if let Ask::Refuse(error) = ask {
                    self.refuse(port, &error, Vec::new());
                }
                return self.note_lease(port, &before);
            }
            self.leases.moving.remove(port);
            self.free(&lease);
        }
        match ask {
            Ask::Wait => {
                self.leases.waiting.insert(port.clone());
            }
            Ask::Refuse(error) => self.refuse(port, &error, Vec::new()),
            Ask::Request(_) if !give => {
                self.leases.ungiven.insert(port.clone());
            }
            Ask::Request(request) => {
                let dynamic = request.v4.is_none() && request.v6.is_none() && request.mac.is_none();
                let hopeless = dynamic && request.subnets.iter().all(|s| exhausted.contains(s));
                if hopeless && self.leases.refused.contains_key(port) {
                    return;
                }
                match self.ipam.allocate(&request) {
                    Ok(_) => {
                        self.leases.refused.remove(port);
                        self.leases.waiting.remove(port);
                    }
                    Err(error) => {
                        if dynamic && matches!(error, Error::Exhausted { .. }) {
                            exhausted.extend(request.subnets.iter().cloned());
                        }
                        self.refuse(port, &error, request.subnets.clone());
                    }
                }
            }
        }
        self.note_lease(port, &before);
    }

    fn refuse(&mut self, port: &Arc<str>, error: &Error, subnets: Vec<Arc<str>>) {
        let refusal = Refusal { reason: error.reason().into(), message: error.to_string().into(), subnets };
        self.leases.refused.insert(port.clone(), refusal);
    }

    fn free(&mut self, lease: &Lease) {
        self.ipam.release(&lease.port);
        self.leases.retry_in(&lease.subnet);
    }

    fn note_lease(&mut self, port: &Arc<str>, before: &LeaseState) {
        if self.leases.state(&self.ipam, port) != *before {
            self.changed.insert(ReadKey::Lease(port.clone()));
        }
    }

    fn ask(&self, port: &Arc<str>, owner: &Owner, uid: &Arc<str>) -> Ask {
        let Some(meta) = self.owner_meta(owner) else { return Ask::Wait };
        let annotation = |key: &str| meta.annotations.get(key).map(|v| &**v);
        let mut request = Request { port: port.clone(), owner: uid.clone(), ..Request::default() };
        request.avoid = self.node_ips.clone();
        let told = project::allocated(meta);
        match owner {
            Owner::Node(_) => request.subnets = vec![self.config.node_switch.clone()],
            Owner::Pod(namespace, name) => {
                let Some(pod) = self.pod(namespace, name) else { return Ask::Wait };
                if !told && (pod.node.is_empty() || pod.terminating) {
                    return Ask::Wait;
                }
                let machine = pod.owner.as_ref().is_some_and(|(kind, _)| &**kind == "VirtualMachineInstance");
                if (!told || machine)
                    && let Some(error) = ipam::unsupported(&pod.requests, pod.owner.as_ref())
                {
                    return Ask::Refuse(error);
                }
                match annotation(keys::LOGICAL_SWITCH).filter(|text| !text.trim().is_empty()) {
                    Some(text) => request.subnets = text.split(',').map(|s| s.trim().into()).collect(),
                    None if self.namespaces.contains_key(namespace) => {
                        request.subnets = self.candidates(namespace);
                    }
                    None => return Ask::Wait,
                }
            }
        }
        // Subnets that we make ourselves are on their way.
        let ours = [&self.config.node_switch, &self.config.default_ls];
        if request.subnets.iter().all(|s| ours.contains(&s) && !self.subnet_views.contains_key(s)) {
            return Ask::Wait;
        }
        let requested = |key: &str| {
            // What a node's annotations say is our own answer, never a request.
            annotation(key).filter(|_| told || matches!(owner, Owner::Pod(..)))
        };
        let asked = request.with_annotations(
            requested(keys::IP_ADDRESS),
            requested(keys::MAC_ADDRESS),
            annotation(keys::IP_FAMILY),
        );
        asked.map_or_else(Ask::Refuse, |request| Ask::Request(Box::new(request)))
    }

    /// The namespace's subnets that can give addresses; all of them when none can,
    /// so that the refusal names them.
    fn candidates(&self, namespace: &str) -> Vec<Arc<str>> {
        let bound = self.namespace_subnets(namespace);
        let usable = |name: &&Arc<str>| {
            self.subnet_views.get(*name).is_some_and(|s| s.supported && s.invalid.is_none() && !s.deleting)
        };
        let usable: Vec<_> = bound.iter().filter(usable).cloned().collect();
        if usable.is_empty() { bound.to_vec() } else { usable }
    }

    /// An IP object is an orphan when nothing needs it and no row of its port is
    /// left. One that is being deleted is let go even if its port lives on: it is a
    /// record, and is written anew.
    fn reckon_orphan(&mut self, name: &Arc<str>) {
        let needed = self.leases.wanted.contains_key(name) && !self.leases.moving.contains(name);
        let row = self.leases.rows.contains(name);
        let orphan = self.ips.get(name).filter(|ip| {
            let deleting = ip.meta.deleting_at.is_some();
            if needed { deleting } else { !row && (deleting || is_ours(ip)) }
        });
        let uid = orphan.map(|ip| ip.meta.uid.clone());
        if self.orphans.get(name) != uid.as_ref() {
            match uid {
                Some(uid) => self.orphans.insert(name.clone(), uid),
                None => self.orphans.remove(name),
            };
            self.changed.insert(ReadKey::OrphanIp(name.clone()));
        }
    }
}

/// Made for a pod's default interface or a node, and not kept by a user.
fn is_ours(ip: &Ip) -> bool {
    let reserved = ip.meta.labels.get(keys::IP_RESERVED_LABEL).is_some_and(|v| &**v == "true");
    !reserved && !belongs_elsewhere(ip)
}

/// Objects of attachments, virtual machines and virtual addresses belong to
/// features of their own, whose owners this version can't see: they and their rows
/// stay.
fn belongs_elsewhere(ip: &Ip) -> bool {
    let spec = &ip.spec;
    let expected = if spec.namespace.is_empty() {
        names::node_port(&spec.pod_name)
    } else {
        names::pod_port(&spec.pod_name, &spec.namespace, keys::DEFAULT_PROVIDER)
    };
    spec.pod_type == "VirtualMachine" || *ip.meta.name != *expected
}

fn fits(lease: &Lease, request: &Request) -> bool {
    let family = match request.family {
        Some(Family::V4) => lease.v6.is_none(),
        Some(Family::V6) => lease.v4.is_none(),
        None => true,
    };
    family
        && request.subnets.contains(&lease.subnet)
        && request.v4.is_none_or(|ip| lease.v4 == Some(ip))
        && request.v6.is_none_or(|ip| lease.v6 == Some(ip))
        && request.mac.is_none_or(|wish| mac::parse(&lease.mac) == Some(wish))
}
