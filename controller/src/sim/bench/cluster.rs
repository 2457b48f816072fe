//! What simulated clusters are made of: flags, namespaces, nodes, pods.

use serde_json::json;

use super::Bench;
use crate::compile::tests::fake;
use crate::facts::{Kind, ObjectRef};
use crate::io::Config;

pub(crate) fn config() -> Config {
    Config { version: "v0.0.0".into(), ..fake::config(fake::Families::V4) }
}

pub(crate) fn pod(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef::namespaced(Kind::Pod, namespace, name)
}

impl Bench {
    /// Two nodes, a namespace, a leading controller, all settled.
    pub(crate) fn cluster(seed: u64) -> Self {
        let mut bench = Self::new(seed);
        bench.add_namespace("web");
        bench.add_node("n-1", "192.0.2.11");
        bench.add_node("n-2", "192.0.2.12");
        let leader = bench.start();
        bench.elect(leader);
        bench.settle();
        bench
    }

    pub(crate) fn add_namespace(&mut self, name: &str) {
        self.api.create(&ObjectRef::cluster(Kind::Namespace, name), json!({})).unwrap();
    }

    pub(crate) fn add_node(&mut self, name: &str, ip: &str) {
        self.add_node_with(name, ip, json!({}));
    }

    pub(crate) fn add_node_with(&mut self, name: &str, ip: &str, annotations: serde_json::Value) {
        let mut annotations = annotations;
        annotations["ovn.kubernetes.io/chassis"] = format!("chassis-{name}").into();
        let body = json!({
            "metadata": { "annotations": annotations },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": ip }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        self.api.create(&ObjectRef::cluster(Kind::Node, name), body).unwrap();
    }

    pub(crate) fn add_pod(&mut self, name: &str, node: &str) {
        self.add_pod_with(name, node, json!({}));
    }

    pub(crate) fn add_pod_with(&mut self, name: &str, node: &str, annotations: serde_json::Value) {
        self.create_pod(name, node, json!({ "annotations": annotations }));
    }

    /// A pod that is somebody's from the start.
    pub(crate) fn add_pod_of(
        &mut self,
        name: &str,
        node: &str,
        annotations: serde_json::Value,
        owners: serde_json::Value,
    ) {
        self.create_pod(name, node, json!({ "annotations": annotations, "ownerReferences": owners }));
    }

    /// An object was warned in an event that has all these words.
    pub(crate) fn warned(&self, object: &ObjectRef, words: &[&str]) -> bool {
        let mut events = self.processes.iter().flat_map(|process| &process.events);
        events.any(|event| {
            event.warning && event.object == *object && words.iter().all(|word| event.message.contains(word))
        })
    }

    /// The leader dies, and a fresh one takes over, of whose writes alone is known then.
    pub(crate) fn succeed(&mut self) -> usize {
        self.processes.last_mut().unwrap().paused = true;
        self.api.writes.clear();
        let next = self.start();
        self.elect(next);
        self.pass(60_000);
        next
    }

    fn create_pod(&mut self, name: &str, node: &str, metadata: serde_json::Value) {
        let body = json!({
            "metadata": metadata,
            "spec": { "nodeName": node, "restartPolicy": "Always" },
            "status": { "phase": "Pending" },
        });
        self.api.create(&pod("web", name), body).unwrap();
    }
}
