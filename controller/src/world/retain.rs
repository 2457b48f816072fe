//! Retention: whose address stays when its pod is gone (contract §3.5, and beyond it
//! `docs/addresses.md`).
//!
//! Flows in: StatefulSets and Deployments, pods, IP objects. Flows out: ports without
//! a pod whose lease is kept ([`KeptView`]), and for a new pod of a Deployment the
//! kept port whose address it takes over.
//!
//! The record of an address is its IP object, which says for whom it is kept; a pod
//! that was just here is remembered until its lease is freed. What can't be told (the
//! UID of a set after a restart) speaks for keeping.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{keys, names, net};

use super::{ByName, ReadKey, World};
use crate::facts::Kind;
use crate::ipam::{Error, PoolRequest, Request, pool_request};
use crate::objects::{Ip, Meta, StringMap, Workload};
use crate::view::{INSTANCE, KeptView, Lease, MACHINE};

/// Kind, namespace, name.
pub(super) type WorkloadKey = (Kind, Arc<str>, Arc<str>);

/// How long an address stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// While the workload may have that pod: upstream's way for StatefulSets, and
    /// `immutable`.
    Workload,
    /// Until its IP object is deleted by hand: `never`.
    Never,
}

/// For whom a port's address is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    workload: WorkloadKey,
    /// UID of the workload, if a pod told it.
    uid: Option<Arc<str>>,
    policy: Policy,
    /// What the annotation says, empty without one.
    asked: Arc<str>,
    pod: Arc<str>,
    node: Arc<str>,
    /// Of the port: [`World::record`] reads it from the port's name.
    provider: Arc<str>,
}

/// What is known about retention.
#[derive(Default)]
pub(super) struct Retention {
    pub(super) workloads: BTreeMap<WorkloadKey, Arc<Workload>>,
    pub(super) kept: ByName<Arc<KeptView>>,
    /// By port.
    records: ByName<Record>,
    /// Ports of a workload that have a lease.
    members: BTreeMap<WorkloadKey, BTreeSet<Arc<str>>>,
    /// Those of them that no pod has.
    idle: BTreeMap<WorkloadKey, BTreeSet<Arc<str>>>,
    /// Those of them that a pod has. (What is about to be freed is neither.)
    busy: BTreeMap<WorkloadKey, BTreeSet<Arc<str>>>,
}

/// The workload that a pod is of: its key and, where the pod says it, its UID. A
/// Deployment's name is its ReplicaSet's without the hash that the pod carries.
pub(super) fn workload_of(meta: &Meta) -> Option<(WorkloadKey, Option<Arc<str>>)> {
    meta.owners.iter().find_map(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        match (group, &*owner.kind) {
            ("apps", "StatefulSet") if meta.name.starts_with(&*owner.name) => {
                let key = (Kind::StatefulSet, meta.namespace.clone(), owner.name.clone());
                Some((key, Some(owner.uid.clone())))
            }
            ("apps", "ReplicaSet") => {
                let hash = meta.labels.get("pod-template-hash")?;
                let name = owner.name.strip_suffix(&**hash)?.strip_suffix('-')?;
                Some(((Kind::Deployment, meta.namespace.clone(), name.into()), None))
            }
            _ => None,
        }
    })
}

/// The trailing number of a pod's name (contract §3.3).
pub(super) fn ordinal(pod: &str) -> Option<u64> {
    pod.rsplit_once('-')?.1.parse().ok()
}

/// What the annotation `ip_retain` of a pod asks for.
///
/// # Errors
/// [`Error::InvalidRequest`] for another word, or one that has no meaning for the pod.
pub(super) fn asked(meta: &Meta) -> Result<Option<Policy>, Error> {
    let text = meta.annotations.get(keys::IP_RETAIN).map_or("", |text| text.trim());
    match text {
        "" => Ok(None),
        "never" => Ok(Some(Policy::Never)),
        "immutable" if workload_of(meta).is_some() || instance_of(meta).is_some() => {
            Ok(Some(Policy::Workload))
        }
        "immutable" => Err(Error::InvalidRequest(format!(
            "annotation {}: immutable keeps the addresses of a Deployment or StatefulSet, and this pod is of none; \
             write never to keep the address for a pod of this name, or remove the annotation",
            keys::IP_RETAIN
        ))),
        other => Err(Error::InvalidRequest(format!(
            "annotation {}: {other:?} is unknown; write immutable or never, or remove it",
            keys::IP_RETAIN
        ))),
    }
}

/// The instance of a virtual machine that a pod runs.
fn instance_of(meta: &Meta) -> Option<Arc<str>> {
    super::project::owner(meta).filter(|(kind, _)| &**kind == INSTANCE).map(|(_, name)| name)
}

fn record_of_pod(meta: &Meta, node: &Arc<str>, keep_vm_ip: bool) -> Option<Record> {
    let asked = asked(meta).ok()?;
    if let Some(machine) = instance_of(meta).filter(|_| keep_vm_ip) {
        return Some(Record {
            workload: (Kind::VirtualMachine, meta.namespace.clone(), machine.clone()),
            uid: None,
            policy: asked.unwrap_or(Policy::Workload),
            asked: meta.annotations.get(keys::IP_RETAIN).cloned().unwrap_or_default(),
            pod: machine,
            node: node.clone(),
            provider: Arc::default(),
        });
    }
    if asked.is_none() && !meta.owners.iter().any(|owner| &*owner.kind == "StatefulSet") {
        return None;
    }
    let (workload, uid) = match workload_of(meta) {
        Some((key, uid)) if key.0 == Kind::StatefulSet || asked.is_some() => (key, uid),
        _ => {
            asked.filter(|policy| *policy == Policy::Never)?;
            ((Kind::Pod, meta.namespace.clone(), meta.name.clone()), None)
        }
    };
    Some(Record {
        workload,
        uid,
        policy: asked.unwrap_or(Policy::Workload),
        asked: meta.annotations.get(keys::IP_RETAIN).cloned().unwrap_or_default(),
        pod: meta.name.clone(),
        node: node.clone(),
        provider: Arc::default(),
    })
}

fn record_of_ip(ip: &Ip, keep_vm_ip: bool) -> Option<Record> {
    let namespace = ip.spec.namespace.clone();
    let asked = ip.meta.annotations.get(keys::IP_RETAIN).cloned().unwrap_or_default();
    let named = ip.meta.annotations.get(keys::IP_RETAIN_FOR).and_then(|text| text.split_once('/'));
    let workload = match named {
        Some(("Deployment", name)) => (Kind::Deployment, namespace, name.into()),
        Some(("StatefulSet", name)) => (Kind::StatefulSet, namespace, name.into()),
        Some((MACHINE, name)) => (Kind::VirtualMachine, namespace, name.into()),
        Some(("Pod", name)) => (Kind::Pod, namespace, name.into()),
        _ if &*ip.spec.pod_type == MACHINE && keep_vm_ip => {
            (Kind::VirtualMachine, namespace, ip.spec.pod_name.clone())
        }
        _ if &*ip.spec.pod_type == "StatefulSet" => {
            let (set, number) = ip.spec.pod_name.rsplit_once('-')?;
            number.parse::<u64>().ok()?;
            (Kind::StatefulSet, namespace, set.into())
        }
        _ => return None,
    };
    Some(Record {
        workload,
        uid: None,
        policy: if &*asked == "never" { Policy::Never } else { Policy::Workload },
        asked,
        pod: ip.spec.pod_name.clone(),
        node: ip.spec.node_name.clone(),
        provider: Arc::default(),
    })
}

impl Record {
    /// Annotations of the IP object by which it is known after a restart. A
    /// StatefulSet's or machine's needs none: the object's type and name say it, as upstream.
    fn annotations(&self) -> StringMap {
        if self.asked.is_empty() {
            return StringMap::new();
        }
        let kind = match self.workload.0 {
            Kind::StatefulSet => "StatefulSet",
            Kind::Deployment => "Deployment",
            Kind::VirtualMachine => MACHINE,
            _ => "Pod",
        };
        StringMap::from([
            (keys::IP_RETAIN.into(), self.asked.clone()),
            (keys::IP_RETAIN_FOR.into(), format!("{kind}/{}", self.workload.2).into()),
        ])
    }
}

/// Annotations that the IP object of a pod needs to be kept after it.
pub(super) fn annotations(meta: &Meta, keep_vm_ip: bool) -> StringMap {
    record_of_pod(meta, &"".into(), keep_vm_ip).map(|record| record.annotations()).unwrap_or_default()
}

/// Nobody but a user makes an IP object with neither our finalizer nor our label (one
/// that we are about to delete has lost the finalizer only).
pub(super) fn made_by_user(ip: &Ip) -> bool {
    let ours = |f: &Arc<str>| matches!(&**f, keys::FINALIZER | keys::DEPRECATED_FINALIZER);
    !ip.meta.finalizers.iter().any(ours) && !ip.meta.labels.contains_key(keys::IP_RESERVED_LABEL)
}

/// A user keeps the address by hand.
pub(super) fn reserved(ip: &Ip) -> bool {
    ip.meta.labels.get(keys::IP_RESERVED_LABEL).is_some_and(|value| &**value == "true")
}

impl World {
    pub(super) fn set_workload(&mut self, kind: Kind, workload: Arc<Workload>) {
        let key = (kind, workload.meta.namespace.clone(), workload.meta.name.clone());
        let old = self.retention.workloads.insert(key.clone(), workload.clone());
        let same = old.is_some_and(|old| {
            (old.replicas, old.start, old.surge, old.unavailable, &old.template, &old.meta.uid)
                == (
                    workload.replicas,
                    workload.start,
                    workload.surge,
                    workload.unavailable,
                    &workload.template,
                    &workload.meta.uid,
                )
                && old.meta.deleting_at.is_some() == workload.meta.deleting_at.is_some()
        });
        if !same {
            self.queue_idle(&key);
        }
    }

    pub(super) fn remove_workload(&mut self, key: &WorkloadKey) {
        self.retention.workloads.remove(key);
        self.queue_idle(key);
    }

    /// What decides whether addresses are kept changed: a subnet, or the subnets of a
    /// namespace.
    pub(super) fn requeue_kept(&mut self, concerned: impl Fn(&KeptView, &Lease) -> bool) {
        let kept = self
            .retention
            .kept
            .iter()
            .filter(|(port, view)| self.ipam.lease(port).is_some_and(|lease| concerned(view, lease)));
        for port in kept.map(|(port, _)| port.clone()).collect::<Vec<_>>() {
            self.leases.queue(port);
        }
    }

    /// The workload of that UID is gone: one of its name inherits nothing.
    pub(super) fn made_anew(&mut self, key: &WorkloadKey, old: &Arc<str>) {
        for port in self.retention.idle.get(key).into_iter().flatten() {
            if let Some(record) = self.retention.records.get_mut(port) {
                record.uid = Some(old.clone());
            }
        }
    }

    pub(super) fn queue_idle(&mut self, key: &WorkloadKey) {
        for port in self.retention.idle.get(key).cloned().unwrap_or_default() {
            self.leases.queue(port);
        }
    }

    /// A pod is here: for whom its address will be kept.
    pub(super) fn note_owner_of(&mut self, port: &Arc<str>, namespace: &str, name: &str) {
        let Some(stored) = self.stored_pod(namespace, name) else { return };
        let record = record_of_pod(&stored.object.meta, &stored.object.node, self.config.keep_vm_ip);
        match record {
            Some(record) => self.record(port, record),
            None => self.forget(port),
        }
    }

    fn record(&mut self, port: &Arc<str>, record: Record) {
        let provider = names::provider_in(port, &record.pod, &record.workload.1);
        let record = Record { provider: provider.unwrap_or(keys::DEFAULT_PROVIDER).into(), ..record };
        let moved = self.retention.records.get(port).is_some_and(|old| old.workload != record.workload);
        if moved {
            self.forget(port);
        }
        self.retention.records.insert(port.clone(), record);
    }

    /// An IP object is here. What a pod told counts more, also that it asks for nothing.
    pub(super) fn note_record(&mut self, ip: &Ip) {
        if !self.retention.records.contains_key(&ip.meta.name)
            && !self.leases.wanted.contains_key(&ip.meta.name)
            && let Some(record) = record_of_ip(ip, self.config.keep_vm_ip)
        {
            self.record(&ip.meta.name.clone(), record);
        }
    }

    pub(super) fn forget(&mut self, port: &Arc<str>) {
        let Some(record) = self.retention.records.remove(port) else { return };
        for index in [&mut self.retention.members, &mut self.retention.idle, &mut self.retention.busy] {
            if let Some(ports) = index.get_mut(&record.workload) {
                ports.remove(port);
                if ports.is_empty() {
                    index.remove(&record.workload);
                }
            }
        }
    }

    /// Decides anew whether a port that no pod wants is kept (`wanted` tells).
    pub(super) fn reckon_retained(&mut self, port: &Arc<str>, wanted: bool) -> bool {
        let kept = if wanted { None } else { self.keep(port) };
        let is_kept = kept.is_some();
        let leased = self.ipam.lease(port).is_some();
        if let Some(workload) = self.retention.records.get(port).map(|record| record.workload.clone()) {
            let put = |index: &mut BTreeMap<WorkloadKey, BTreeSet<Arc<str>>>, inside: bool| {
                let ports = index.entry(workload.clone()).or_default();
                let changed = if inside { ports.insert(port.clone()) } else { ports.remove(port) };
                if ports.is_empty() {
                    index.remove(&workload);
                }
                changed
            };
            let mut joined = put(&mut self.retention.members, leased) && leased;
            // Also one that is kept again after all, as when a pod ends while another's address is let go.
            joined |= put(&mut self.retention.idle, leased && is_kept) && leased && is_kept;
            put(&mut self.retention.busy, leased && wanted);
            // One more may be one too many: the last of those that nobody uses goes.
            let provider = self.provider_of(port);
            let last = self.retention.idle.get(&workload).filter(|_| joined).and_then(|idle| {
                idle.iter().rev().find(|other| self.provider_of(other) == provider).cloned()
            });
            if let Some(last) = last.filter(|last| last != port) {
                self.leases.queue(last);
            }
        }
        if self.retention.kept.get(port).map(|old| &**old) != kept.as_ref() {
            match kept {
                Some(kept) => self.retention.kept.insert(port.clone(), Arc::new(kept)),
                None => self.retention.kept.remove(port),
            };
            self.changed.insert(ReadKey::Kept(port.clone()));
        }
        is_kept
    }

    /// The address of a port that nobody wants is kept for somebody.
    pub(super) fn keeps(&self, port: &Arc<str>) -> bool {
        self.keep(port).is_some()
    }

    fn keep(&self, port: &Arc<str>) -> Option<KeptView> {
        let ip = self.ips.get(port);
        if ip.is_some_and(|ip| ip.meta.deleting_at.is_some()) {
            return None;
        }
        let uid = ip.map(|ip| ip.meta.uid.clone());
        if let Some(ip) = ip.filter(|ip| reserved(ip) || (made_by_user(ip) && !self.leases.has_row(port))) {
            return Some(KeptView {
                pod: ip.spec.pod_name.clone(),
                namespace: ip.spec.namespace.clone(),
                pod_type: ip.spec.pod_type.clone(),
                node: ip.spec.node_name.clone(),
                reserved: true,
                row: false,
                annotations: StringMap::new(),
                uid,
            });
        }
        let lease = self.ipam.lease(port)?;
        let record = self.retention.records.get(port)?;
        if !self.retains(port, record, lease) {
            return None;
        }
        let pod_type = match record.workload.0 {
            Kind::StatefulSet => "StatefulSet",
            Kind::VirtualMachine => MACHINE,
            _ => "",
        };
        Some(KeptView {
            pod: record.pod.clone(),
            namespace: record.workload.1.clone(),
            pod_type: pod_type.into(),
            node: record.node.clone(),
            reserved: false,
            // Another CNI's interface has none.
            row: record.workload.0 != Kind::Deployment && self.of_ovn(&lease.subnet),
            annotations: record.annotations(),
            uid,
        })
    }

    fn retains(&self, port: &Arc<str>, record: &Record, lease: &Lease) -> bool {
        if record.policy == Policy::Never {
            return true;
        }
        if record.workload.0 == Kind::VirtualMachine {
            return self.machine_retains(port, &record.workload, record.uid.as_ref(), lease);
        }
        let Some(workload) = self.retention.workloads.get(&record.workload) else { return false };
        let same = record.uid.as_ref().is_none_or(|uid| *uid == workload.meta.uid);
        if !same
            || workload.meta.deleting_at.is_some()
            || !self.still_served(&record.workload.1, &workload.template, lease)
        {
            return false;
        }
        if record.workload.0 == Kind::StatefulSet {
            if !self.still_has(port, record) {
                return false;
            }
            let range = workload.start..workload.start.saturating_add(workload.replicas);
            return ordinal(&record.pod).is_some_and(|ordinal| range.contains(&ordinal));
        }
        // As many as there may be pods, for each network that they are on.
        let same = |other: &&Arc<str>| *self.provider_of(other) == *record.provider;
        let idle = self.retention.idle.get(&record.workload).into_iter();
        let busy = self.retention.busy.get(&record.workload).into_iter().flatten();
        let busy = busy.filter(|other| *other != port).filter(same).count();
        let may = usize::try_from(workload.replicas.saturating_add(workload.surge)).unwrap_or(usize::MAX);
        let rank = idle.flat_map(|idle| idle.range(..port.clone())).filter(same).count();
        rank < may.saturating_sub(busy)
    }

    /// The provider of a port with a record.
    fn provider_of(&self, port: &str) -> &str {
        self.retention.records.get(port).map_or(keys::DEFAULT_PROVIDER, |record| &record.provider)
    }

    /// The pod of that port lives and has it, or there is none to say otherwise: another interface
    /// may have been taken out of the template. (One whose definition is missing is on its way.)
    fn still_has(&self, port: &Arc<str>, record: &Record) -> bool {
        let (namespace, name) = (&record.workload.1, &record.pod);
        if !self.pod(namespace, name).is_some_and(|pod| pod.wants_network) {
            return true;
        }
        let interfaces = self.interfaces(namespace, name);
        let of_default = *record.provider == *keys::DEFAULT_PROVIDER;
        let Some(interfaces) = interfaces else { return of_default };
        (of_default && interfaces.default)
            || interfaces.problem.is_some()
            || interfaces.list.iter().any(|other| other.port == *port)
    }

    /// A pod came or changed: ports of its name that are kept may be none of its any more.
    pub(super) fn requeue_kept_of(&mut self, namespace: &str, name: &str) {
        let base: Arc<str> = names::pod_port(name, namespace, keys::DEFAULT_PROVIDER).into();
        let kept = self.retention.kept.range(base.clone()..).map(|(port, _)| port);
        let kept: Vec<_> = kept.take_while(|port| port.starts_with(&*base)).cloned().collect();
        for port in kept {
            self.leases.queue(port);
        }
    }

    /// The next pod would be on this subnet again, and could have the address.
    pub(super) fn still_served(&self, namespace: &str, template: &StringMap, lease: &Lease) -> bool {
        let Some(subnet) = self.subnet_views.get(&lease.subnet) else { return false };
        let nets = net::parse_dual_cidrs(&subnet.spec.cidr_block).unwrap_or_default();
        let inside = |ip: std::net::IpAddr| subnet.invalid.is_some() || nets.contains(&ip);
        if ![lease.v4.map(Into::into), lease.v6.map(Into::into)].into_iter().flatten().all(inside) {
            return false;
        }
        if subnet.spec.provider != keys::DEFAULT_PROVIDER {
            // An attachment's subnet is its provider's.
            return true;
        }
        let asks = |key: &str| template.get(key).map_or("", |text| text.trim());
        let switch = asks(keys::LOGICAL_SWITCH);
        if !switch.is_empty() {
            return switch.split(',').any(|name| name.trim() == &*lease.subnet);
        }
        if let Ok(PoolRequest::Named(pool)) = pool_request(asks(keys::IP_POOL))
            && let Some(subnet) = self.subnet_of_pool(&pool)
        {
            return subnet == lease.subnet;
        }
        self.namespace_subnets(namespace).contains(&lease.subnet)
    }

    /// The kept port whose address a new pod of a Deployment takes over.
    pub(super) fn spare_of(&self, meta: &Meta, provider: &str, request: &Request) -> Option<Arc<str>> {
        asked(meta).ok()??;
        let (workload, _) = workload_of(meta).filter(|(key, _)| key.0 == Kind::Deployment)?;
        let idle = self.retention.idle.get(&workload)?;
        let fits = |port: &&Arc<str>| {
            let lease = self.ipam.lease(port);
            self.provider_of(port) == provider
                && !self.leases.has_row(port)
                && lease.is_some_and(|lease| super::leases::fits(lease, request))
        };
        idle.iter().find(fits).cloned()
    }

    /// What to add to a refusal: the pod's rollout can't go on by itself.
    pub(super) fn dead_lock(&self, meta: &Meta, error: &Error) -> Option<Arc<str>> {
        if !matches!(error, Error::PoolExhausted { .. } | Error::ListExhausted { .. }) {
            return None;
        }
        let (key, _) = workload_of(meta).filter(|(key, _)| key.0 == Kind::Deployment)?;
        let workload = self.retention.workloads.get(&key)?;
        (workload.unavailable == 0 && workload.surge > 0).then(|| {
            format!(
                "{error}. Deployment {} starts new pods before it ends old ones (maxUnavailable 0, maxSurge {}), and \
                 there is no address for those: its rollout can't go on. Add {} addresses, or set maxSurge 0 and \
                 maxUnavailable 1",
                key.2, workload.surge, workload.surge
            )
            .into()
        })
    }
}
