//! A ProviderNetwork (contract §1.5): its status. What it does is the nodes' business, and they say how it stands there.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Kind, NodeCondition, ObjectRef};
use crate::view::{ProviderNode, View};

/// Reasons of the condition of a node.
const SUCCEEDED: &str = "InitOVSBridgeSucceeded";
const FAILED: &str = "InitOVSBridgeFailed";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(network) = view.provider_network(name) else { return facts };
    let object = ObjectRef::cluster(Kind::ProviderNetwork, name.clone());
    let names = |ready: bool| -> Vec<Arc<str>> {
        let nodes = network.nodes.iter().filter(|node| node.ready == ready);
        nodes.map(|node| node.name.clone()).collect()
    };
    let (ready, not) = (names(true), names(false));
    let status = BTreeMap::from([
        ("ready".into(), json!(not.is_empty())),
        ("readyNodes".into(), json!(ready)),
        ("notReadyNodes".into(), json!(not)),
    ]);
    rows::kube(&mut facts, &object, &network.uid, Gate::Now, Fields::Status(status));
    let conditions = network.nodes.iter().map(condition).collect();
    rows::kube(&mut facts, &object, &network.uid, Gate::Now, Fields::NodeConditions(conditions));
    facts
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
