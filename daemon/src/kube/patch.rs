//! The few writes of the agent: annotations and one condition of its node.
//!
//! Merge patches carry only our own fields; nothing is sent when the cached
//! object already says it (the callers compare).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// A refused or lost write. Retrying is right unless the object is gone.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {source}")]
pub struct KubeError {
    operation: &'static str,
    source: Box<kube::Error>,
}

impl KubeError {
    pub(super) fn new(operation: &'static str, source: kube::Error) -> Self {
        Self { operation, source: Box::new(source) }
    }
}

/// Sets one annotation of a node.
///
/// # Errors
/// When the API server refuses or can't be reached.
pub async fn annotate_node(client: &Client, node: &str, key: &str, value: &str) -> Result<(), KubeError> {
    let patch = json!({"metadata": {"annotations": {key: value}}});
    Api::<Node>::all(client.clone())
        .patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .map_err(|error| KubeError::new("annotate the node", error))
}

/// Sets labels of a node; `None` takes one away.
///
/// # Errors
/// When the API server refuses or can't be reached.
pub async fn label_node(
    client: &Client,
    node: &str,
    labels: &BTreeMap<String, Option<String>>,
) -> Result<(), KubeError> {
    let patch = json!({"metadata": {"labels": labels}});
    Api::<Node>::all(client.clone())
        .patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .map_err(|error| KubeError::new("label the node", error))
}

/// Says in an OvnEip's status that its port is ready. `uid`: whose, so that a successor of the name is not told.
///
/// # Errors
/// When the API server refuses or can't be reached.
pub async fn ovn_eip_ready(client: &Client, name: &str, uid: &str) -> Result<(), KubeError> {
    let patch = json!({"metadata": {"uid": uid}, "status": {"ready": true}});
    let resource = super::cluster::resource(crds::GROUP, "v1", "OvnEip", "ovn-eips");
    Api::<kube::core::DynamicObject>::all_with(client.clone(), &resource)
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .map_err(|error| KubeError::new("say that the OvnEip is ready", error))
}

/// Sets annotations of a pod; `None` takes one away.
///
/// # Errors
/// When the API server refuses or can't be reached.
pub async fn annotate_pod(
    client: &Client,
    namespace: &str,
    pod: &str,
    annotations: &BTreeMap<String, Option<String>>,
) -> Result<(), KubeError> {
    let patch = json!({"metadata": {"annotations": annotations}});
    Api::<Pod>::namespaced(client.clone(), namespace)
        .patch_metadata(pod, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .map_err(|error| KubeError::new("annotate the agent's pod", error))
}

/// Sets the node condition `NetworkUnavailable`. Conditions are a list keyed
/// by type, so a strategic merge leaves kubelet's alone.
///
/// # Errors
/// When the API server refuses or can't be reached.
pub async fn set_network_unavailable(
    client: &Client,
    node: &str,
    unavailable: bool,
    reason: &str,
    message: &str,
) -> Result<(), KubeError> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let patch = json!({"status": {"conditions": [{
        "type": "NetworkUnavailable",
        "status": if unavailable { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }]}});
    Api::<Node>::all(client.clone())
        .patch_status(node, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .map(|_| ())
        .map_err(|error| KubeError::new("set the node's condition", error))
}
