//! Events: each distinct text once per cause. Normal ones are news only when we
//! wrote something (a restart repeats nothing); warnings are always said.

use super::Publish;
use crate::engine::{Statement, event_fingerprint};
use crate::facts::{EventFact, Gate, Kind, ObjectRef};
use crate::view::UnitKey;
use crate::world::World;

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
            self.mark(event.object.clone());
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
        UnitKey::Kept(port) => ObjectRef::cluster(Kind::Ip, port.clone()),
        UnitKey::Globals | UnitKey::Other(..) => return None,
    })
}

/// Pods and nodes have no condition of ours; they get a warning.
pub(super) fn failure_event(unit: &UnitKey, error: &str, world: &World) -> Option<EventFact> {
    if !matches!(unit, UnitKey::Pod(..) | UnitKey::Node(_)) {
        return None;
    }
    let object = object_of(unit)?;
    let uid = world.find(&object).map(|o| o.meta().uid.clone());
    let message = format!("rows of {object} can't be written: {error}");
    Some(EventFact {
        object,
        uid,
        warning: true,
        reason: "CreateOVNPortFailed".into(),
        message: message.into(),
        gate: Gate::Now,
    })
}
