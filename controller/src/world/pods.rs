//! Pods and namespaces: their projections, and whom a change of them concerns.

use std::sync::Arc;

use crds::keys;

use super::{ReadKey, Stored, World, project};
use crate::objects::{Namespace, Pod};
use crate::view::PodView;

impl World {
    pub(super) fn set_pod(&mut self, unix_s: i64, pod: Arc<Pod>) {
        let (namespace, name) = (pod.meta.namespace.clone(), pod.meta.name.clone());
        let mut view = project::pod(&pod, unix_s, self.config.keep_vm_ip);
        view.networks |= self.port_taken(&namespace, view.machine(&self.config).unwrap_or(&name)).is_some();
        let old = self.stored_pod(&namespace, &name).map(|s| (s.view.clone(), s.object.meta.deleting_at));
        let answers = |pod: &Pod| pod.meta.annotations.get(keys::AAPS).cloned();
        let before = self.stored_pod(&namespace, &name).and_then(|s| answers(&s.object));
        let now = answers(&pod);
        if let Some(at) = old.as_ref().and_then(|(_, at)| *at) {
            self.graces.remove(&(at, namespace.clone(), name.clone()));
        }
        if let Some(at) = pod.meta.deleting_at.filter(|_| view.wants_network) {
            self.graces.insert((at, namespace.clone(), name.clone()));
        }
        self.tell_of_security(&pod);
        let same = old.as_ref().is_some_and(|(old, _)| **old == view);
        let view = match old {
            Some((old, _)) if same => old,
            _ => Arc::new(view),
        };
        self.note_agent(&namespace, &name, Some(&pod));
        self.pods.entry(namespace.clone()).or_default().insert(name.clone(), Stored { object: pod, view });
        self.note_machine(&namespace, &name);
        self.project_interfaces(&namespace, &name);
        self.note_virtuals(&namespace, &name);
        if !same {
            self.changed.insert(ReadKey::Pod(namespace.clone(), name.clone()));
            self.want_pod(&namespace, &name);
        }
        if before.is_some() || now.is_some() {
            self.note_answering(&namespace, &name, before.as_deref(), now.as_deref());
        }
    }

    pub(super) fn remove_pod(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        let Some(pods) = self.pods.get_mut(namespace) else { return };
        let Some(stored) = pods.remove(name) else { return };
        if pods.is_empty() {
            self.pods.remove(namespace);
        }
        if let Some(at) = stored.object.meta.deleting_at {
            self.graces.remove(&(at, namespace.clone(), name.clone()));
        }
        self.note_agent(namespace, name, None);
        self.changed.insert(ReadKey::Pod(namespace.clone(), name.clone()));
        self.project_interfaces(namespace, name);
        self.note_virtuals(namespace, name);
        self.want_pod(namespace, name);
        self.note_machine(namespace, name);
        if let Some(answering) = stored.object.meta.annotations.get(keys::AAPS) {
            self.note_answering(namespace, name, Some(&**answering), None);
        }
    }

    pub(super) fn set_namespace(&mut self, namespace: Arc<Namespace>) {
        let name = namespace.meta.name.clone();
        let view = (namespace.meta.uid.clone(), namespace.meta.labels.clone());
        let old = self.namespaces.get(&name).map(|s| s.view.clone());
        let known = old.as_ref().is_some_and(|old| old.0 == view.0);
        if old.is_some_and(|old| *old == view) {
            if let Some(stored) = self.namespaces.get_mut(&name) {
                stored.object = namespace;
            }
            return;
        }
        self.namespaces.insert(name.clone(), Stored { object: namespace, view: Arc::new(view) });
        if !known {
            self.changed.insert(ReadKey::Namespace(name.clone()));
        }
        self.bind(&name);
    }

    pub(super) fn stored_pod(&self, namespace: &str, name: &str) -> Option<&Stored<Pod, PodView>> {
        self.pods.get(namespace)?.get(name)
    }
}
