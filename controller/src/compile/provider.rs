//! A ProviderNetwork (contract §1.5): its status, what annotations of nodes make of its spec, and that it outlives its
//! Vlans. What it does is the nodes' business, and they say how it stands there.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Kind, NodeCondition, ObjectRef};
use crate::view::{ProviderNode, ProviderView, View};

/// Reasons of the condition of a node.
const SUCCEEDED: &str = "InitOVSBridgeSucceeded";
const FAILED: &str = "InitOVSBridgeFailed";
/// Reason of one that is being deleted and waits for its Vlans.
const IN_USE: &str = "InUse";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(network) = view.provider_network(name) else { return facts };
    let object = ObjectRef::cluster(Kind::ProviderNetwork, name.clone());
    let names = |ready: bool| -> Vec<Arc<str>> {
        let nodes = network.nodes.iter().filter(|node| node.ready == ready);
        nodes.map(|node| node.name.clone()).collect()
    };
    let (ready, not) = (names(true), names(false));
    // Of two Vlans with one id the second is not in use.
    let counts = |vlan: &&Arc<str>| view.vlan(vlan).is_some_and(|vlan| vlan.conflict.is_none());
    let vlans: Vec<&Arc<str>> = network.users.iter().filter(counts).collect();
    let status = BTreeMap::from([
        ("ready".into(), json!(not.is_empty())),
        ("readyNodes".into(), json!(ready)),
        ("notReadyNodes".into(), json!(not)),
        ("vlans".into(), json!(vlans)),
    ]);
    rows::kube(&mut facts, &object, &network.uid, Gate::Now, Fields::Status(status));
    rows::kube(&mut facts, &object, &network.uid, Gate::Now, Fields::Finalizer(!network.users.is_empty()));
    if network.deleting && !network.users.is_empty() {
        let message = format!(
            "being deleted, waits for Vlan {}; delete what uses it, or give it another provider",
            network.users.join(", ")
        );
        rows::condition(&mut facts, &object, &network.uid, Gate::Now, ("Ready", false), (IN_USE, &message));
        rows::warning(&mut facts, &object, &network.uid, IN_USE, &message);
        return facts;
    }
    fold(&network, &object, &mut facts);
    let conditions = network.nodes.iter().map(condition).collect();
    rows::kube(&mut facts, &object, &network.uid, Gate::Now, Fields::NodeConditions(conditions));
    facts
}

/// The spec first; an annotation goes when the spec says the same.
fn fold(network: &ProviderView, object: &ObjectRef, facts: &mut Facts) {
    let mut spec = BTreeMap::new();
    if let Some(nodes) = &network.fold.exclude_nodes {
        spec.insert("excludeNodes".into(), json!(nodes));
    }
    if let Some(custom) = &network.fold.custom_interfaces {
        spec.insert("customInterfaces".into(), json!(custom));
    }
    if !spec.is_empty() {
        rows::kube(facts, object, &network.uid, Gate::Now, Fields::Spec(spec));
    }
    for (node, uid, key) in &network.fold.done {
        let gone = Fields::Annotations(BTreeMap::from([(key.clone(), None)]));
        rows::kube(facts, &ObjectRef::cluster(Kind::Node, node.clone()), uid, Gate::Now, gone);
    }
}

fn condition(node: &ProviderNode) -> NodeCondition {
    let waiting = "the node's agent has not said that the network works there; look at its log".into();
    let (reason, message) = match (node.ready, node.error.is_empty()) {
        (true, _) => (SUCCEEDED, Arc::default()),
        (false, true) => (FAILED, waiting),
        (false, false) => (FAILED, node.error.clone()),
    };
    NodeCondition { node: node.name.clone(), status: node.ready, reason: reason.into(), message }
}
