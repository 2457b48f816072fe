//! Changes that are worth an event by themselves (contract §8.8), whatever the units
//! state: they need what was before, which compile does not know. A start tells nothing.

use std::sync::Arc;

use crds::{keys, names};

use super::World;
use crate::facts::{EventFact, Gate, Kind, ObjectRef};
use crate::objects::{Pod, Subnet};
use crate::view::{Lease, UnitKey};

/// Something to tell once the unit's rows are in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The unit.
    pub unit: UnitKey,
    /// What to tell.
    pub event: EventFact,
}

/// Security of a pod's ports was changed.
pub const SECURITY_UPDATED: &str = "PodSecurityUpdated";

/// A lease as events of pods have it.
pub(crate) fn details(provider: &str, lease: &Lease) -> String {
    format!(
        "provider={provider} subnet={} ip={} mac={} logicalSwitchPort={}",
        lease.subnet,
        crate::compile::rows::joined(lease, ","),
        lease.mac,
        lease.port
    )
}

/// Annotations by which a pod's ports are secured, of all interfaces.
fn security(pod: &Pod) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
    let names = ["port_security", "port_vips", "security_groups"];
    pod.meta.annotations.iter().filter(move |(key, _)| {
        &***key == keys::AAPS
            || key.split_once(".kubernetes.io/").is_some_and(|(_, name)| names.contains(&name))
    })
}

impl World {
    fn tell(&mut self, object: ObjectRef, uid: &Arc<str>, reason: &str, message: String) {
        let Some(unit) = UnitKey::of(&object) else { return };
        let event = EventFact {
            object,
            uid: Some(uid.clone()),
            warning: false,
            reason: reason.into(),
            message: message.into(),
            gate: Gate::Committed,
        };
        self.news.push(News { unit, event });
    }

    /// A subnet's gateway was changed: by its user, who may look for the event, or to
    /// distributed, which is told when nothing of the central one is left.
    pub(super) fn tell_of_gateway(&mut self, old: &Subnet, new: &Subnet) {
        if old.meta.uid != new.meta.uid {
            return;
        }
        let mut told = Vec::new();
        let (was, is) = (&old.spec.gateway_type, &new.spec.gateway_type);
        // An empty one is filled in by us.
        if was != is && !was.is_empty() {
            told.push((
                "SubnetGatewayTypeChanged",
                format!("subnet gateway type changes from {was:?} to {is:?}"),
            ));
        }
        let (was, is) = (&old.spec.gateway_node, &new.spec.gateway_node);
        if was != is {
            told.push(("SubnetGatewayNodeChanged", format!("gateway node changes from {was:?} to {is:?}")));
        }
        let central = |subnet: &Subnet| {
            !subnet.spec.gateway_node.is_empty() || !subnet.status.activate_gateway.is_empty()
        };
        if new.spec.gateway_type == "distributed" && central(old) && !central(new) {
            told.push(("ChangeToDistributedGw", String::new()));
        }
        for (reason, message) in told {
            self.tell(
                ObjectRef::cluster(Kind::Subnet, new.meta.name.clone()),
                &new.meta.uid,
                reason,
                message,
            );
        }
    }

    /// A pod that has its network asks for another security of its ports. To be called
    /// before the pod replaces the one that is known.
    pub(super) fn tell_of_security(&mut self, pod: &Pod) {
        let (namespace, name) = (&pod.meta.namespace, &pod.meta.name);
        let Some(old) = self.stored_pod(namespace, name) else { return };
        let same = old.object.meta.uid == pod.meta.uid && security(&old.object).ne(security(pod));
        if !same || !old.view.wants_network {
            return;
        }
        let interfaces = self.interfaces(namespace, name);
        let others = interfaces.iter().flat_map(|interfaces| &interfaces.list);
        let mut ports = vec![(keys::DEFAULT_PROVIDER.to_owned(), names::pod_port(name, namespace, ""))];
        ports.extend(
            others
                .filter(|other| other.ovn)
                .map(|other| (other.provider.to_string(), other.port.to_string())),
        );
        let told: Vec<String> = ports
            .iter()
            .filter_map(|(provider, port)| Some(details(provider, self.ipam.lease(port)?)))
            .collect();
        if !told.is_empty() {
            let object = ObjectRef::namespaced(Kind::Pod, namespace.clone(), name.clone());
            self.tell(object, &pod.meta.uid, SECURITY_UPDATED, told.join("; "));
        }
    }

    /// The addresses of a pod that is gone are free.
    pub(super) fn tell_of_release(&mut self, lease: &Lease) {
        let Some((namespace, name, provider)) = self.leases.departed.remove(&lease.port) else { return };
        let object = ObjectRef::namespaced(Kind::Pod, namespace, name);
        self.tell(object, &lease.owner, "PodNetworkReleased", details(&provider, lease));
    }
}
