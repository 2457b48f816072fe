//! What watches deliver: objects, deletions and whole lists. Each goes to its kind; what
//! depends on all objects of a kind is worked out once per delivery.

use super::{ReadKey, World};
use crate::facts::{Kind, ObjectRef};
use crate::objects::{Meta, Object};

impl World {
    /// A watch delivered an object.
    pub fn apply(&mut self, unix_s: i64, object: Object) {
        self.store(unix_s, object);
        self.index_nodes();
        self.judge_subnets();
    }

    pub(super) fn store(&mut self, unix_s: i64, object: Object) {
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

    pub(super) fn drop_object(&mut self, object: &ObjectRef) {
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
                let old = self.subnets.remove(name);
                self.subnet_names(old.as_deref(), None);
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

    pub(super) fn account(&mut self, kind: Kind, meta: &Meta, add: bool) {
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
}
