//! DEL (node contract §2.5), by container id alone.

use std::sync::Arc;

use cni::api::CniRequest;

use super::error::{PlugError, Stage};
use super::{Plugger, choices, names};
use crate::kube::{EventType, Fact, ObjectRef, PodFacts};
use crate::ovs::plan;

impl Plugger {
    /// Unplugs an interface. The name on the host follows from container id
    /// and interface, so neither pod, namespace nor API server are needed, and
    /// a late call for an old sandbox can't touch a newer one. What is gone
    /// already is fine.
    ///
    /// # Errors
    /// When the kernel or the switch refuses; the runtime tries again.
    pub async fn del(&self, request: &CniRequest) -> Result<(), PlugError> {
        if !choices::is_container_id(&request.container_id) {
            return Err(PlugError::new(Stage::ValidateRequest, "container_id is invalid").code(4));
        }
        let _running = self.begin();
        self.locks.cancel_add(&request.container_id, &request.if_name);
        let _lock = self.locks.lock(&request.container_id).await;
        let host_nic = names::host_nic(&request.container_id, &request.if_name);
        let had = self.ovs.view().port(&host_nic).is_some();
        let result = self.unplug(&host_nic).await;
        let key = PodFacts::key(&request.pod_namespace, &request.pod_name);
        let pod: Option<Arc<PodFacts>> = self.cluster.pods.object(&key);
        if let Some(pod) = pod {
            let object = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &pod.uid);
            match &result {
                Ok(()) if had => {
                    let message = format!("interface={} node={}", request.if_name, self.node);
                    self.recorder.record(object, EventType::Normal, "PodNetworkRemoved", message);
                }
                Ok(()) => {}
                Err(error) => {
                    let message = format!("stage={} node={}", error.stage.as_str(), self.node);
                    self.recorder.record(object, EventType::Warning, "PodNetworkRemoveFailed", message);
                }
            }
        }
        result
    }

    /// Removes port and link. Both are tried even if one fails.
    pub(super) async fn unplug(&self, host_nic: &str) -> Result<(), PlugError> {
        let error = |error: &dyn std::fmt::Display| PlugError::new(Stage::DeleteNic, error.to_string());
        // The port first: ovn-controller releases the logical port while the
        // link still stands, as upstream.
        let port = self.ovs.apply(|view| Ok(plan::remove_port(view, host_nic))).await;
        let link = self.host.netlink.delete_link(host_nic).await;
        port.map_err(|e| error(&e))?;
        link.map_err(|e| error(&e))
    }
}
