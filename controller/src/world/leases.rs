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

use super::ask::{Ask, Demand};
use super::{ReadKey, World};
use crate::ipam::{Error, Family, Ipam, Request, mac};
use crate::objects::Meta;
use crate::view::{Lease, LeaseState};

/// Who wants a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Pod(Arc<str>, Arc<str>),
    Node(Arc<str>),
    Vip(Arc<str>),
    Eip(Arc<str>),
    /// An IptablesEIP that has an address.
    Nat(Arc<str>),
    /// An interface beside the default one: namespace and name of the pod, provider.
    Attachment(Arc<str>, Arc<str>, Arc<str>),
    /// The multicast querier of that subnet.
    Querier(Arc<str>),
}

/// Whose port it was: namespace and name of the pod, provider.
pub(super) type Departed = (Arc<str>, Arc<str>, Arc<str>);

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
    pub(super) rows: BTreeSet<Arc<str>>,
    /// Ports whose successor asks for something else than the old lease.
    pub(super) moving: BTreeSet<Arc<str>>,
    refused: BTreeMap<Arc<str>, Refusal>,
    /// Ports that wait for an object that is on its way (their namespace, the
    /// default subnets, the finalizer of a subnet): no refusal, so no warning.
    waiting: BTreeSet<Arc<str>>,
    /// Ports that a leader has to serve; we were none.
    ungiven: BTreeSet<Arc<str>>,
    pub(super) todo: VecDeque<Arc<str>>,
    /// Many are queued, some of which may have an address already: those come first.
    told_first: bool,
    /// Pods that are gone and whose leases are not free yet, by port.
    pub(super) departed: BTreeMap<Arc<str>, Departed>,
    queued: BTreeSet<Arc<str>>,
    /// What full subnets answered those that ask for nothing in particular, while one
    /// queue is worked off: nothing has to be looked for again and again.
    exhausted: BTreeMap<Dynamic, Error>,
}

/// Subnets and family of a request that any address will do for.
type Dynamic = (Vec<Arc<str>>, Option<Family>);

impl Book {
    /// A row of that port is in the replica.
    pub(super) fn has_row(&self, port: &str) -> bool {
        self.rows.contains(port)
    }

    /// Why a port has no address.
    pub(super) fn refusal(&self, port: &str) -> Option<&Arc<str>> {
        self.refused.get(port).map(|refusal| &refusal.message)
    }

    /// What leases are restored from has changed for a port.
    pub(super) fn changed(&mut self, port: Arc<str>) {
        self.stale = true;
        self.queue(port);
    }

    pub(super) fn queue(&mut self, port: Arc<str>) {
        if self.queued.insert(port.clone()) {
            self.todo.push_back(port);
        }
    }

    /// Whoever is meant wants the port no more; of somebody else of its name it stays. Says whether that was so.
    pub(super) fn unwant(&mut self, port: &str, meant: impl FnOnce(&Owner) -> bool) -> bool {
        self.wanted.get(port).is_some_and(meant) && self.wanted.remove(port).is_some()
    }

    /// Something that may help refused ports has changed.
    pub(super) fn retry_refused(&mut self) {
        for port in std::mem::take(&mut self.waiting) {
            self.queue(port);
        }
        for port in self.refused.keys().cloned().collect::<Vec<_>>() {
            self.queue(port);
        }
        self.told_first = true;
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
            return LeaseState::Moving;
        }
        match ipam.lease(port) {
            Some(lease) => LeaseState::Held(lease.clone()),
            None if self.ungiven.contains(port) => LeaseState::Pending,
            None => LeaseState::None,
        }
    }
}

impl World {
    pub(super) fn want_pod(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        if let Some(machine) = self.machines.of_pod(namespace, name).cloned() {
            return self.want_machine(&(namespace.clone(), machine));
        }
        self.requeue_kept_of(namespace, name);
        let port: Arc<str> = names::pod_port(name, namespace, keys::DEFAULT_PROVIDER).into();
        let interfaces = self.interfaces(namespace, name);
        let replaced = interfaces.is_some_and(|interfaces| !interfaces.default);
        if !replaced && self.pod(namespace, name).is_some_and(|pod| pod.wants_network) {
            self.note_owner_of(&port, namespace, name);
            self.leases.wanted.insert(port.clone(), Owner::Pod(namespace.clone(), name.clone()));
            self.leases.departed.remove(&port);
        } else if self.leases.unwant(&port, |owner| matches!(owner, Owner::Pod(..)))
            && self.ipam.lease(&port).is_some()
        {
            let provider = keys::DEFAULT_PROVIDER.into();
            self.leases.departed.insert(port.clone(), (namespace.clone(), name.clone(), provider));
        }
        self.leases.changed(port);
    }

    pub(super) fn want_node(&mut self, name: &Arc<str>) {
        let port: Arc<str> = names::node_port(name).into();
        if self.nodes.contains_key(name) {
            self.claim(&port, Owner::Node(name.clone()));
        } else {
            self.leases.wanted.remove(&port);
            self.reconsider_name(&port);
        }
        self.leases.changed(port);
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
        (self.ipam.len(), self.leases.refused.len(), self.leases.moving.len())
    }

    pub(super) fn owner_meta(&self, owner: &Owner) -> Option<&Meta> {
        match owner {
            Owner::Pod(namespace, name) | Owner::Attachment(namespace, name, _) => {
                Some(&self.stored_pod(namespace, name)?.object.meta)
            }
            Owner::Node(name) => Some(&self.nodes.get(name)?.object.meta),
            Owner::Vip(name) => Some(&self.vips.objects.get(name)?.meta),
            Owner::Eip(name) => Some(&self.eips.objects.get(name)?.meta),
            Owner::Nat(name) => Some(&self.nat_eip(name)?.meta),
            Owner::Querier(subnet) => Some(&self.subnets.get(subnet)?.meta),
        }
    }

    /// Brings every queued port's lease in line. Only a leader (`give`) draws new
    /// addresses; a follower learns them from the IP objects that the leader makes.
    pub fn settle_leases(&mut self, give: bool) {
        if !self.leases.started {
            return;
        }
        if give {
            for port in self.leases.ungiven.iter().cloned().collect::<Vec<_>>() {
                self.leases.queue(port);
            }
        }
        if std::mem::take(&mut self.leases.told_first) {
            let mut todo = std::mem::take(&mut self.leases.todo);
            todo.make_contiguous().sort_by_cached_key(|port| !self.told(port));
            self.leases.todo = todo;
        }
        self.leases.exhausted.clear();
        while let Some(port) = self.leases.todo.pop_front() {
            self.leases.queued.remove(&port);
            self.learn(&port, give);
            self.settle_port(&port, give);
            self.reckon_orphan(&port);
            self.reckon_kept(&port);
        }
    }

    /// An IP object whose lease is not known: made by the leader that we follow, or
    /// by a user who reserves an address.
    fn learn(&mut self, port: &Arc<str>, give: bool) {
        // A leader's lease is older than its record.
        if (give && self.ipam.lease(port).is_some()) || self.vip_of_port(port).is_some() {
            return;
        }
        let Some(lease) = self.ips.get(port).and_then(|ip| self.of_ip(ip)) else { return };
        let held = self.ipam.lease(port);
        let differs = |held: &Lease| (&held.subnet, held.v4, held.v6) != (&lease.subnet, lease.v4, lease.v6);
        let better = self.told(port) || self.leases.rows.contains(port);
        if !give && !better && held.is_some_and(|held| differs(held)) {
            self.ipam.release(port);
            self.changed.insert(ReadKey::Lease(port.clone()));
        }
        self.restore(lease);
    }

    fn settle_port(&mut self, port: &Arc<str>, give: bool) {
        let before = self.leases.state(&self.ipam, port);
        self.leases.ungiven.remove(port);
        let leftovers = self.leases.rows.contains(port) || self.ips.contains_key(port) || self.eip_row(port);
        let wanted = self.leases.wanted.get(port).cloned();
        if give && wanted.is_some() && self.ipam.lease(port).is_none() && self.awaited(port) {
            // It was reserved for whoever has come meanwhile.
            self.reserve(port, give);
        }
        let held = self.ipam.lease(port).cloned();
        let Some(owner) = wanted.or_else(|| self.pass_on(port)) else {
            self.leases.waiting.remove(port);
            self.leases.moving.remove(port);
            let kept = self.reckon_retained(port, false);
            if !kept {
                self.leases.refused.remove(port);
            }
            match held {
                Some(lease) if !kept && !leftovers => self.free(&lease),
                None if kept => self.reserve(port, give),
                _ => {}
            }
            if self.ipam.lease(port).is_none() {
                self.reckon_retained(port, false);
            }
            return self.note_lease(port, &before);
        };
        self.settle_wanted(port, &owner, (held, leftovers), give);
        self.reckon_retained(port, true);
        self.note_lease(port, &before);
    }

    /// A port that nobody wants any more may have the name of an object that gave way to who
    /// had it: a Vip's or an OvnEip's, to a pod.
    fn pass_on(&mut self, port: &Arc<str>) -> Option<Owner> {
        let heir = self.eip_heir(port).or_else(|| self.vip_heir(port))?;
        if self.keeps(port) {
            return None;
        }
        self.leases.wanted.insert(port.clone(), heir.clone());
        match &heir {
            Owner::Eip(name) => self.project_eip(name),
            Owner::Vip(name) => self.project_vip(name),
            _ => {}
        }
        Some(heir)
    }

    /// A user's reservation is still to be served.
    fn awaited(&self, port: &Arc<str>) -> bool {
        self.ips.get(port).is_some_and(|ip| ip.meta.deleting_at.is_none() && self.unserved(ip))
    }

    /// A user's reservation whose address is not taken yet.
    fn reserve(&mut self, port: &Arc<str>, give: bool) {
        if !give {
            self.leases.ungiven.insert(port.clone());
            return;
        }
        let asked = self.ask_reservation(port);
        if let Some(Ok(request)) = &asked
            && request.subnets.iter().any(|subnet| self.unguarded(subnet))
        {
            self.leases.waiting.insert(port.clone());
            return;
        }
        let result = match asked {
            Some(Ok(request)) => self.ipam.allocate(&request).map_err(|error| (error, request.subnets)),
            Some(Err(error)) => Err((error, Vec::new())),
            None => return,
        };
        match result {
            Ok(_) => {
                self.leases.refused.remove(port);
            }
            Err((error, subnets)) => self.refuse(port, &error, subnets),
        }
    }

    fn settle_wanted(
        &mut self,
        port: &Arc<str>,
        owner: &Owner,
        (held, leftovers): (Option<Arc<Lease>>, bool),
        give: bool,
    ) {
        let uid = self.owner_meta(owner).map(|meta| meta.uid.clone()).unwrap_or_default();
        let serves = held.as_ref().is_some_and(|lease| lease.owner == uid);
        if serves && !self.leases.moving.contains(port) {
            self.leases.refused.remove(port);
            return;
        }
        let ask = self.ask(port, owner, &uid);
        if let Some(lease) = held {
            let inherited = match &ask {
                Ask::Demand(demand) => {
                    fits(&lease, &demand.request) && self.ipam.allocate(&demand.request).is_ok()
                }
                Ask::Wait => {
                    self.leases.waiting.insert(port.clone());
                    return;
                }
                Ask::Refuse(_) => false,
            };
            if inherited {
                self.leases.waiting.remove(port);
                self.leases.moving.remove(port);
                self.leases.refused.remove(port);
                return;
            }
            if leftovers {
                self.leases.moving.insert(port.clone());
                if let Ask::Refuse(error) = ask {
                    self.refuse(port, &error, Vec::new());
                }
                return;
            }
            self.leases.moving.remove(port);
            self.free(&lease);
        }
        match ask {
            Ask::Wait => {
                self.leases.waiting.insert(port.clone());
            }
            Ask::Refuse(error) => self.refuse(port, &error, Vec::new()),
            Ask::Demand(_) if !give => {
                self.leases.ungiven.insert(port.clone());
            }
            Ask::Demand(demand) => self.give(port, owner, &uid, &demand),
        }
    }

    fn give(&mut self, port: &Arc<str>, owner: &Owner, uid: &Arc<str>, demand: &Demand) {
        let request = &demand.request;
        let dynamic = request.v4.is_none()
            && request.v6.is_none()
            && request.mac.is_none()
            && request.choices.is_empty()
            && request.pools.is_empty();
        let handed = demand.from.as_ref().and_then(|from| {
            let lease = self.ipam.hand_to(from, port, uid)?;
            Some((from.clone(), lease))
        });
        if let Some((from, _)) = handed {
            self.leases.refused.remove(port);
            self.leases.waiting.remove(port);
            self.vip_taken(&from, port);
            self.forget(&from);
            self.leases.departed.remove(&from);
            self.changed.insert(ReadKey::Lease(from.clone()));
            self.leases.changed(from);
            return;
        }
        let kind: Option<Dynamic> = dynamic.then(|| (request.subnets.clone(), request.family));
        let known = kind.as_ref().and_then(|kind| self.leases.exhausted.get(kind).cloned());
        match known.map_or_else(|| self.ipam.allocate(request), Err) {
            Ok(_) => {
                self.leases.refused.remove(port);
                self.leases.waiting.remove(port);
            }
            Err(error) => {
                if let Some(kind) = kind.filter(|_| matches!(error, Error::Exhausted { .. })) {
                    self.leases.exhausted.insert(kind, error.clone());
                }
                let stuck = self.owner_meta(owner).and_then(|meta| self.dead_lock(meta, &error));
                self.refuse(port, &error, request.subnets.clone());
                if let Some((message, refusal)) = stuck.zip(self.leases.refused.get_mut(port)) {
                    (refusal.reason, refusal.message) = ("RolloutDeadlock".into(), message);
                }
            }
        }
    }

    fn refuse(&mut self, port: &Arc<str>, error: &Error, subnets: Vec<Arc<str>>) {
        let refusal = Refusal { reason: error.reason().into(), message: error.to_string().into(), subnets };
        self.leases.refused.insert(port.clone(), refusal);
    }

    pub(super) fn free(&mut self, lease: &Lease) {
        self.tell_of_release(lease);
        if !self.vip_returns(&lease.port) {
            self.ipam.release(&lease.port);
        }
        if !self.leases.wanted.contains_key(&lease.port) {
            self.forget(&lease.port);
        }
        self.leases.exhausted.retain(|(subnets, _), _| !subnets.contains(&lease.subnet));
        self.leases.retry_in(&lease.subnet);
    }

    fn note_lease(&mut self, port: &Arc<str>, before: &LeaseState) {
        if self.leases.state(&self.ipam, port) != *before {
            self.changed.insert(ReadKey::Lease(port.clone()));
            if let Some(vip) = self.vip_of_port(port).cloned() {
                self.project_vip(&vip);
                self.leases.retry_refused();
            }
            if let Some(eip) = self.eip_of_port(port).cloned() {
                self.project_eip(&eip);
            }
        }
    }
}

pub(super) fn fits(lease: &Lease, request: &Request) -> bool {
    let family = match request.family {
        Some(Family::V4) => lease.v6.is_none(),
        Some(Family::V6) => lease.v4.is_none(),
        None => true,
    };
    family
        && request.subnets.contains(&lease.subnet)
        && request.v4.is_none_or(|ip| lease.v4 == Some(ip))
        && request.v6.is_none_or(|ip| lease.v6 == Some(ip))
        && (request.choices.is_empty()
            || request.choices.iter().any(|choice| {
                (choice.v4.is_none() || choice.v4 == lease.v4)
                    && (choice.v6.is_none() || choice.v6 == lease.v6)
            }))
        && request.mac.is_none_or(|wish| mac::parse(&lease.mac) == Some(wish))
}
