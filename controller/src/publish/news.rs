//! Events: each distinct text once per cause. Normal ones are news only when we
//! wrote something (a restart repeats nothing); warnings are always said.

use std::collections::VecDeque;

use super::Publish;
use crate::engine::{Statement, event_fingerprint};
use crate::facts::{EventFact, Gate, Kind, ObjectRef};
use crate::io::KubeWrite;
use crate::objects::Object;
use crate::view::UnitKey;
use crate::world::{News, SECURITY_UPDATED, World};

impl Publish {
    pub(super) fn unit_events(&mut self, unit: &UnitKey, statement: &Statement) {
        let Statement { objects_before, events_before, facts } = statement;
        for object in objects_before {
            if let Some(unsaid) = self.unsaid.get_mut(object) {
                unsaid.retain(|(by, event)| by != unit || facts.events.contains(event));
                if unsaid.is_empty() {
                    self.unsaid.remove(object);
                }
            }
        }
        for event in facts.events.iter().filter(|e| !events_before.contains(&event_fingerprint(e))) {
            self.unsaid.entry(event.object.clone()).or_default().push((unit.clone(), event.clone()));
            if event.gate == Gate::Now {
                self.mark(event.object.clone());
            }
        }
    }

    /// A write of ours was acknowledged: what units have to say about it is news.
    pub(super) fn speak(&mut self, object: &ObjectRef) {
        self.say(object, |_| true);
    }

    /// Nothing had to be written: normal events about it were said by an earlier
    /// leader, or are about nothing. Warnings are always said.
    pub(super) fn old_news(&mut self, object: &ObjectRef) {
        self.say(object, |event| event.warning);
        let Some(unsaid) = self.unsaid.get_mut(object) else { return };
        unsaid.retain(|(unit, _)| self.open.contains(unit));
        if unsaid.is_empty() {
            self.unsaid.remove(object);
        }
    }

    fn say(&mut self, object: &ObjectRef, which: impl Fn(&EventFact) -> bool) {
        let Some(unsaid) = self.unsaid.get_mut(object) else { return };
        unsaid.retain(|(unit, event)| {
            let due = which(event) && (event.gate == Gate::Now || !self.open.contains(unit));
            if due {
                self.outbox.push(event.clone());
            }
            !due
        });
        if unsaid.is_empty() {
            self.unsaid.remove(object);
        }
    }
}

/// News that wait for a unit at most; of more the oldest is forgotten.
const NEWS: usize = 4096;

impl Publish {
    /// Takes news of the world. Only a leader's are told.
    pub fn tell(&mut self, news: News) {
        if self.active {
            self.news.push_back(news);
            if self.news.len() > NEWS {
                self.news.pop_front();
            }
        }
    }

    /// Tells what is in the database.
    pub(super) fn release_news(&mut self) {
        let (due, later) =
            std::mem::take(&mut self.news).into_iter().partition(|n| !self.open.contains(&n.unit));
        self.news = later;
        let due: VecDeque<News> = due;
        self.outbox.extend(due.into_iter().map(|news| news.event));
    }

    /// The security of a pod's ports is being changed.
    pub(super) fn secures(&self, unit: &UnitKey) -> bool {
        self.news.iter().any(|news| news.unit == *unit && &*news.event.reason == SECURITY_UPDATED)
    }

    /// The API server refused what an object should say.
    pub(super) fn refused_event(&mut self, write: &KubeWrite, message: &str) {
        let (object, uid) = match write {
            KubeWrite::Patch { object, uid, .. } if object.kind == Kind::Pod => {
                (object.clone(), Some(uid.clone()))
            }
            KubeWrite::Create { object, body } if object.kind == Kind::Ip => {
                let text = |field: &str| body["spec"][field].as_str().unwrap_or_default();
                if text("namespace").is_empty() || text("podType") == "VirtualMachine" {
                    return;
                }
                (ObjectRef::namespaced(Kind::Pod, text("namespace"), text("podName")), None)
            }
            _ => return,
        };
        let message = format!("the API server refuses what {object} should say about its network: {message}");
        self.outbox.push(EventFact {
            object,
            uid,
            warning: true,
            reason: "PodNetworkAllocationFailed".into(),
            message: message.into(),
            gate: Gate::Now,
        });
    }
}

pub(super) fn object_of(unit: &UnitKey) -> Option<ObjectRef> {
    Some(match unit {
        UnitKey::Vpc(name) => ObjectRef::cluster(Kind::Vpc, name.clone()),
        UnitKey::Subnet(name) => ObjectRef::cluster(Kind::Subnet, name.clone()),
        UnitKey::Node(name) => ObjectRef::cluster(Kind::Node, name.clone()),
        UnitKey::Namespace(name) => ObjectRef::cluster(Kind::Namespace, name.clone()),
        UnitKey::Pod(namespace, name) => ObjectRef::namespaced(Kind::Pod, namespace.clone(), name.clone()),
        UnitKey::Ip(name) => ObjectRef::cluster(Kind::Ip, name.clone()),
        UnitKey::IpPool(name) => ObjectRef::cluster(Kind::IpPool, name.clone()),
        UnitKey::Vip(name) => ObjectRef::cluster(Kind::Vip, name.clone()),
        UnitKey::ProviderNetwork(name) => ObjectRef::cluster(Kind::ProviderNetwork, name.clone()),
        UnitKey::OvnEip(name) => ObjectRef::cluster(Kind::OvnEip, name.clone()),
        UnitKey::Vlan(name) => ObjectRef::cluster(Kind::Vlan, name.clone()),
        UnitKey::Kept(port) => ObjectRef::cluster(Kind::Ip, port.clone()),
        UnitKey::Globals | UnitKey::Other(..) => return None,
    })
}

/// Who is told that rows of a unit can't be written, and how contract §8.8 calls it.
/// `secured`: a pod's ports are about to be secured otherwise.
pub(super) fn failure_event(unit: &UnitKey, error: &str, secured: bool, world: &World) -> Option<EventFact> {
    let object = object_of(unit)?;
    let found = world.find(&object);
    let reason = match (unit, &found) {
        (UnitKey::Node(_), _) => "CreateOVNPortFailed",
        (UnitKey::Pod(..), Some(pod)) if allocated(pod) => {
            if secured {
                "PodSecurityUpdateFailed"
            } else {
                "PodNetworkUpdateFailed"
            }
        }
        (UnitKey::Pod(..), _) => "CreateOVNPortFailed",
        (UnitKey::Subnet(_), Some(Object::Subnet(subnet))) => match &subnet.spec {
            spec if spec.private => "SetPrivateLogicalSwitchFailed",
            spec if !spec.acls.is_empty() => "SetLogicalSwitchAclsFailed",
            _ => "ResetLogicalSwitchAclFailed",
        },
        (UnitKey::IpPool(_), _) => "ReconcileAddressSetFailed",
        _ => return None,
    };
    let message = format!("rows of {object} can't be written: {error}");
    Some(EventFact {
        uid: found.map(|object| object.meta().uid.clone()),
        object,
        warning: true,
        reason: reason.into(),
        message: message.into(),
        gate: Gate::Now,
    })
}

/// The pod was told its address.
fn allocated(pod: &Object) -> bool {
    pod.meta().annotations.get(crds::keys::ALLOCATED).is_some_and(|value| &**value == "true")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::objects::{Meta, Pod};

    fn world(allocated: &str) -> World {
        let mut world = World::new(Arc::new(crate::sim::config()));
        let annotations = crate::objects::StringMap::from([(crds::keys::ALLOCATED.into(), allocated.into())]);
        let meta = Meta {
            name: "a".into(),
            namespace: "web".into(),
            uid: "u".into(),
            annotations,
            ..Meta::default()
        };
        world.apply(0, Object::Pod(Arc::new(Pod { meta, ..Pod::default() })));
        world
    }

    #[test]
    fn failures_of_pods_are_called_by_what_was_tried() {
        let unit = UnitKey::Pod("web".into(), "a".into());
        for (allocated, secured, reason) in [
            ("", false, "CreateOVNPortFailed"),
            ("true", false, "PodNetworkUpdateFailed"),
            ("true", true, "PodSecurityUpdateFailed"),
        ] {
            let event = failure_event(&unit, "no", secured, &world(allocated)).expect("told");
            assert_eq!((&*event.reason, event.uid.as_deref()), (reason, Some("u")));
        }
        assert_eq!(failure_event(&UnitKey::Globals, "no", false, &world("")), None);
    }

    #[test]
    fn what_the_api_server_refuses_is_told_to_the_pod() {
        let mut publish = Publish::default();
        let pod = ObjectRef::namespaced(Kind::Pod, "web", "a");
        let patch =
            KubeWrite::Patch { object: pod.clone(), uid: "u".into(), status: false, patch: json!({}) };
        publish.refused_event(&patch, "too long");
        let body =
            |pod_type: &str| json!({ "spec": { "podName": "a", "namespace": "web", "podType": pod_type } });
        let ip = ObjectRef::cluster(Kind::Ip, "a.web");
        for kind in ["", "VirtualMachine"] {
            publish.refused_event(&KubeWrite::Create { object: ip.clone(), body: body(kind) }, "too long");
        }
        assert_eq!(publish.outbox.len(), 2, "a machine is no pod");
        for event in &publish.outbox {
            assert_eq!((&event.object, &*event.reason), (&pod, "PodNetworkAllocationFailed"));
        }
    }
}
