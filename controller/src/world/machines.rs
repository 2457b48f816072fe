//! Virtual machines of KubeVirt (contract §2.1, §3.5, §3.6).
//!
//! Flows in: VirtualMachines, VirtualMachineInstances, migrations, and the pods that
//! run instances. Flows out: which of a machine's pods counts and where its ports may
//! be bound ([`MachineView`]), which ports its pods want, and whether the addresses of
//! a machine without pods are kept.
//!
//! All of it follows from the objects of the moment, so a restart in the middle of a
//! migration, or a missed event, ends like any other order of events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{keys, names};
use sha2::{Digest, Sha256};

use super::leases::Owner;
use super::retain::WorkloadKey;
use super::{ReadKey, World, project};
use crate::facts::{Kind, ObjectRef};
use crate::objects::{Machine, Migration, Object, Pod};
use crate::view::{Lease, MACHINE, MachineView, Placement};

/// Namespace and name.
type Name = (Arc<str>, Arc<str>);

/// What is known about machines.
#[derive(Default)]
pub(super) struct Machines {
    machines: BTreeMap<Name, Arc<Machine>>,
    instances: BTreeMap<Name, Arc<Machine>>,
    migrations: BTreeMap<Name, Arc<Migration>>,
    /// Pods by machine, and the other way round.
    pods: BTreeMap<Name, BTreeSet<Arc<str>>>,
    of_pod: BTreeMap<Name, Arc<str>>,
    /// Ports that pods of a machine want.
    ports: BTreeMap<Name, BTreeSet<Arc<str>>>,
    pub(super) views: BTreeMap<Name, Arc<MachineView>>,
}

impl Machines {
    fn of(&self, kind: Kind) -> &BTreeMap<Name, Arc<Machine>> {
        if kind == Kind::VirtualMachine { &self.machines } else { &self.instances }
    }

    pub(super) fn names(&self, kind: Kind) -> BTreeSet<ObjectRef> {
        let all = |names: &mut dyn Iterator<Item = &Name>| {
            names.map(|(ns, name)| ObjectRef::namespaced(kind, ns.clone(), name.clone())).collect()
        };
        match kind {
            Kind::Migration => all(&mut self.migrations.keys()),
            kind => all(&mut self.of(kind).keys()),
        }
    }

    pub(super) fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Object> {
        let key = (namespace.into(), name.into());
        match kind {
            Kind::Migration => self.migrations.get(&key).cloned().map(Object::Migration),
            kind => self.of(kind).get(&key).map(|machine| Object::Machine(kind, machine.clone())),
        }
    }

    pub(super) fn view(&self, namespace: &str, name: &str) -> Option<Arc<MachineView>> {
        self.views.get(&(namespace.into(), name.into())).cloned()
    }

    /// The machine that a pod runs.
    pub(super) fn of_pod(&self, namespace: &str, pod: &str) -> Option<&Arc<str>> {
        if self.of_pod.is_empty() {
            return None;
        }
        self.of_pod.get(&(namespace.into(), pod.into()))
    }
}

fn deleting(machine: &Machine) -> bool {
    machine.meta.deleting_at.is_some()
}

impl World {
    pub(super) fn set_machine(&mut self, kind: Kind, machine: Arc<Machine>) {
        let name: Name = (machine.meta.namespace.clone(), machine.meta.name.clone());
        let index = &mut self.machines;
        let known = if kind == Kind::VirtualMachine { &mut index.machines } else { &mut index.instances };
        let old = known.insert(name.clone(), machine.clone());
        let key = workload(&name);
        if kind == Kind::VirtualMachine
            && let Some(old) = old.as_ref().filter(|old| old.meta.uid != machine.meta.uid)
        {
            // Made anew: what the old one left is not this one's.
            self.made_anew(&key, &old.meta.uid);
        }
        let decides = |machine: &Machine| {
            let meta = &machine.meta;
            (meta.uid.clone(), deleting(machine), meta.owners.clone(), machine.networks.clone())
        };
        let same = old
            .as_ref()
            .is_some_and(|old| decides(old) == decides(&machine) && old.template == machine.template);
        if !same {
            self.queue_idle(&key);
        }
        if old.is_none_or(|old| old.node != machine.node) {
            self.project_machine(&name);
        }
    }

    pub(super) fn remove_machine(&mut self, kind: Kind, name: &Name) {
        let index = &mut self.machines;
        let known = if kind == Kind::VirtualMachine { &mut index.machines } else { &mut index.instances };
        let old = known.remove(name);
        let key = workload(name);
        if let Some(old) = old.filter(|_| kind == Kind::VirtualMachine) {
            self.made_anew(&key, &old.meta.uid);
        }
        self.queue_idle(&key);
        self.project_machine(name);
    }

    pub(super) fn set_migration(&mut self, migration: Arc<Migration>) {
        let name: Name = (migration.meta.namespace.clone(), migration.meta.name.clone());
        let concerned = (name.0.clone(), migration.instance.clone());
        let old = self.machines.migrations.insert(name, migration);
        if let Some(old) = old.filter(|old| old.instance != concerned.1) {
            self.project_machine(&(concerned.0.clone(), old.instance.clone()));
        }
        self.project_machine(&concerned);
    }

    pub(super) fn remove_migration(&mut self, name: &Name) {
        if let Some(old) = self.machines.migrations.remove(name) {
            self.project_machine(&(name.0.clone(), old.instance.clone()));
        }
    }

    /// A pod came, changed, or went: the index of machines' pods.
    pub(super) fn note_machine(&mut self, namespace: &Arc<str>, pod: &Arc<str>) {
        let config = self.config.clone();
        let view = self.pod(namespace, pod);
        let now = view.as_ref().and_then(|view| view.machine(&config)).cloned();
        let key: Name = (namespace.clone(), pod.clone());
        let before = self.machines.of_pod(namespace, pod).cloned();
        if let Some(old) = before.filter(|old| Some(old) != now.as_ref()) {
            self.machines.of_pod.remove(&key);
            let machine = (namespace.clone(), old);
            if let Some(pods) = self.machines.pods.get_mut(&machine) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.machines.pods.remove(&machine);
                }
            }
            self.project_machine(&machine);
            self.want_machine(&machine);
        }
        if let Some(now) = now {
            let machine = (namespace.clone(), now.clone());
            if !self.machines.of_pod.contains_key(&key) {
                self.unwant_own(namespace, pod);
            }
            self.machines.of_pod.insert(key, now);
            self.machines.pods.entry(machine.clone()).or_default().insert(pod.clone());
            self.project_machine(&machine);
        }
    }

    /// A pod that was taken for a plain one has no ports of its own.
    fn unwant_own(&mut self, namespace: &Arc<str>, pod: &Arc<str>) {
        let interfaces = self.interfaces(namespace, pod);
        let others = interfaces.iter().flat_map(|interfaces| &interfaces.list).map(|i| i.port.clone());
        let own: Arc<str> = names::pod_port(pod, namespace, keys::DEFAULT_PROVIDER).into();
        for port in others.chain([own]) {
            self.unwant_of_pods(&port);
        }
    }

    /// Pods do not want it any more; who else has a port of that name keeps it.
    fn unwant_of_pods(&mut self, port: &Arc<str>) {
        if self.leases.unwant(port, |owner| matches!(owner, Owner::Pod(..) | Owner::Attachment(..))) {
            self.leases.changed(port.clone());
        }
    }

    /// The pods of a machine.
    pub(super) fn pods_of_machine(&self, machine: &Name) -> Vec<Arc<str>> {
        self.machines.pods.get(machine).into_iter().flatten().cloned().collect()
    }

    /// What the names of a pod's ports begin with: the machine that it runs, or itself.
    pub(super) fn base_name(&self, namespace: &str, pod: &str) -> Arc<str> {
        self.machines.of_pod(namespace, pod).cloned().unwrap_or_else(|| pod.into())
    }

    fn project_machine(&mut self, machine: &Name) {
        let view = self.machine_view(machine);
        let old = self.machines.views.get(machine).cloned();
        if old.as_deref() != view.as_ref() {
            match view {
                Some(view) => self.machines.views.insert(machine.clone(), Arc::new(view)),
                None => self.machines.views.remove(machine),
            };
            self.changed.insert(ReadKey::Machine(machine.0.clone(), machine.1.clone()));
            self.want_machine(machine);
        }
    }

    /// Living pods of a machine, the one that counts first: where the instance says that
    /// it runs, then whoever has its address, then the oldest.
    fn living(&self, machine: &Name) -> Vec<Arc<str>> {
        let node = self.machines.instances.get(machine).map(|instance| instance.node.clone());
        let pods = self.machines.pods.get(machine).into_iter().flatten();
        let mut living: Vec<_> = pods
            .filter_map(|name| {
                let stored = self.stored_pod(&machine.0, name).filter(|s| s.view.wants_network)?;
                let meta = &stored.object.meta;
                let told = project::allocated(meta) || project::told_providers(meta).next().is_some();
                let here = told && node.as_ref() == Some(&stored.object.node);
                Some(((!here, !told, meta.created_at, name.clone()), name.clone()))
            })
            .collect();
        living.sort();
        living.into_iter().map(|(_, name)| name).collect()
    }

    fn machine_view(&self, machine: &Name) -> Option<MachineView> {
        let living = self.living(machine);
        let active = living.first()?.clone();
        Some(MachineView { active, placement: self.placement(machine, &living) })
    }

    /// Where a migration has the ports (contract §3.6). With one pod left they are free:
    /// its interface is the only one there is.
    fn placement(&self, machine: &Name, living: &[Arc<str>]) -> Placement {
        if !self.config.live_migration {
            return Placement::Free;
        }
        let pods = self.machines.pods.get(machine).into_iter().flatten();
        let pods: Vec<&Arc<Pod>> =
            pods.filter_map(|name| Some(&self.stored_pod(&machine.0, name)?.object)).collect();
        if pods.len() < 2 {
            return Placement::Free;
        }
        let job_of =
            |pod: &Pod| pod.meta.annotations.get(keys::MIGRATION_JOB).filter(|j| !j.is_empty()).cloned();
        let targets = pods.iter().filter_map(|pod| Some((*pod, job_of(pod)?)));
        let newest = targets.max_by(|(a, _), (b, _)| {
            (a.meta.created_at, &a.meta.name).cmp(&(b.meta.created_at, &b.meta.name))
        });
        let Some((target, job)) = newest else { return Placement::Free };
        let job = self.machines.migrations.get(&(machine.0.clone(), job));
        let at = self.machines.instances.get(machine).map(|instance| instance.node.clone());
        let to = target.node.clone();
        let elsewhere = |node: &Arc<str>| !node.is_empty() && *node != to;
        let source = job.map(|job| job.source.clone()).filter(elsewhere);
        let source = source.or_else(|| at.clone().filter(elsewhere)).or_else(|| {
            let others = living.iter().filter(|name| **name != target.meta.name);
            others
                .filter_map(|name| Some(self.stored_pod(&machine.0, name)?.object.node.clone()))
                .find(elsewhere)
        });
        let fixed = |node: Option<Arc<str>>| node.map_or(Placement::Free, Placement::Fixed);
        let arrived = || Some(to.clone()).filter(|node| !node.is_empty());
        match job.map_or("", |job| &*job.phase) {
            "Failed" => fixed(source),
            "Succeeded" => fixed(arrived()),
            // Its record is gone and the machine is there: it went well.
            _ if job.is_none() && at.as_ref() == Some(&to) => fixed(arrived()),
            _ if !living.contains(&target.meta.name) => fixed(source),
            _ => match (source, arrived()) {
                (Some(from), Some(to)) => Placement::Moving(from, to),
                _ => Placement::Free,
            },
        }
    }

    /// Which ports the pods of a machine want: of those that share one, the active pod's
    /// word counts.
    pub(super) fn want_machine(&mut self, machine: &Name) {
        let (namespace, name) = machine;
        let mut wanted: BTreeMap<Arc<str>, Owner> = BTreeMap::new();
        for pod in self.living(machine) {
            let interfaces = self.interfaces(namespace, &pod);
            if interfaces.as_ref().is_none_or(|interfaces| interfaces.default) {
                let port = names::pod_port(name, namespace, keys::DEFAULT_PROVIDER);
                wanted.entry(port.into()).or_insert_with(|| Owner::Pod(namespace.clone(), pod.clone()));
            }
            for interface in interfaces.iter().flat_map(|interfaces| &interfaces.list) {
                wanted.entry(interface.port.clone()).or_insert_with(|| {
                    Owner::Attachment(namespace.clone(), pod.clone(), interface.provider.clone())
                });
            }
        }
        let now: BTreeSet<Arc<str>> = wanted.keys().cloned().collect();
        let before = if now.is_empty() {
            self.machines.ports.remove(machine)
        } else {
            self.machines.ports.insert(machine.clone(), now.clone())
        };
        for port in before.unwrap_or_default().difference(&now) {
            self.unwant_of_pods(port);
        }
        for (port, owner) in wanted {
            if let Owner::Pod(namespace, pod) | Owner::Attachment(namespace, pod, _) = &owner {
                self.note_owner_of(&port, namespace, pod);
            }
            self.leases.wanted.insert(port.clone(), owner);
            self.leases.changed(port);
        }
    }

    /// Contract §3.5: whether a machine without pods keeps the address of a port.
    /// `uid` is the machine that the address was kept for, if that one is gone.
    pub(super) fn machine_retains(
        &self,
        port: &str,
        key: &WorkloadKey,
        uid: Option<&Arc<str>>,
        lease: &Lease,
    ) -> bool {
        let name: Name = (key.1.clone(), key.2.clone());
        let machine = self.machines.machines.get(&name);
        let machine = machine.filter(|machine| uid.is_none_or(|uid| *uid == machine.meta.uid));
        let instance = self.machines.instances.get(&name);
        let gone = |machine: Option<&Arc<Machine>>| machine.is_none_or(|machine| deleting(machine));
        let owned = instance.is_some_and(|instance| {
            let mut owners = instance.meta.owners.iter();
            owners.any(|owner| &*owner.kind == MACHINE && owner.api_version.starts_with("kubevirt.io/"))
        });
        let ended = instance.is_some_and(|instance| deleting(instance)) && !owned;
        if ended || (gone(instance) && gone(machine)) {
            return false;
        }
        let Some(next) = machine.or(instance) else { return false };
        let provider = names::provider_in(port, &name.1, &name.0);
        provider.is_none_or(|provider| lists(next, provider))
            && self.still_served(&name.0, &next.template, lease)
    }
}

/// The key under which a machine's addresses are kept.
pub(super) fn workload((namespace, name): &Name) -> WorkloadKey {
    (Kind::VirtualMachine, namespace.clone(), name.clone())
}

/// The machine still has that network (contract §3.5: it may be unplugged while it
/// runs). Of a network that it has twice the interface tells which: KubeVirt names it after
/// the network in the machine's spec.
fn lists(machine: &Machine, provider: &str) -> bool {
    machine.networks.iter().any(|(name, target)| {
        let Some((namespace, nad)) = target.split_once('/') else { return false };
        let Some(rest) = provider.strip_prefix(&format!("{nad}.{namespace}")) else { return false };
        match rest.strip_prefix(".ovn").unwrap_or(rest).strip_prefix('.') {
            Some(interface) if interface.starts_with("pod") => interface == interface_of(name),
            // By order (`net1`, …) in older versions of KubeVirt: not to be told.
            Some(_) => true,
            None => rest.is_empty() || rest == ".ovn",
        }
    })
}

/// KubeVirt's name for the interface of a network.
fn interface_of(network: &str) -> String {
    let digest = Sha256::digest(network.as_bytes());
    let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("pod{}", hex.get(..11).unwrap_or(&hex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("net.web.ovn", true)]
    #[case("net.web", true)]
    #[case("net.other.ovn", false)]
    #[case("ne.web.ovn", false)]
    #[case("net.webs.ovn", false)]
    #[case("net.web.ovn.net1", true)]
    #[case("net.web.ovn.pod00000000000", false)]
    fn networks_of_a_machine(#[case] provider: &str, #[case] listed: bool) {
        let networks = vec![("blue".into(), "web/net".into())];
        let machine = Machine { networks, ..Machine::default() };
        assert_eq!(lists(&machine, provider), listed);
        let own = format!("net.web.ovn.{}", interface_of("blue"));
        assert!(lists(&machine, &own));
    }

    /// The example of KubeVirt's documentation of its naming scheme.
    #[test]
    fn interfaces_are_named_after_networks() {
        assert_eq!(interface_of("blue"), "pod16477688c0e");
    }
}
