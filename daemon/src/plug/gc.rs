//! GC: everything of one network that the runtime does not know goes.

use std::collections::BTreeSet;

use cni::api::GcRequest;

use super::del::ports_of;
use super::error::{PlugError, Stage};
use super::{CONTAINER_ID, NETWORK, Plugger, names};
use crate::ovs::{Interface, View};

/// Ports of the request's network that no valid attachment names. A port that
/// an older Kube-OVN made says no network; it belongs to the default one.
fn stale_ports(view: &View, request: &GcRequest) -> Vec<(String, Option<String>)> {
    let valid: BTreeSet<String> = request
        .valid_attachments
        .iter()
        // Which pod's it is the list does not say: one that may be valid is.
        .flat_map(|attachment| ports_of(view, &attachment.container_id, &attachment.if_name, |_| true))
        .collect();
    // A port made ready for a pod has no container yet, and an end of its own.
    let plugged = |interface: &Interface| {
        interface.external_id(CONTAINER_ID).is_some()
            || [names::HOST, names::INTERNAL].iter().any(|end| interface.name().ends_with(end))
    };
    let default = request.provider.is_empty() || request.provider == crds::keys::DEFAULT_PROVIDER;
    let belongs = |interface: &Interface| match interface.external_id(NETWORK) {
        Some(network) => network == request.network,
        None => {
            let pod = interface.external_id("pod_name").unwrap_or_default();
            let namespace = interface.external_id("pod_namespace").unwrap_or_default();
            default && interface.external_id("iface-id") == Some(&format!("{pod}.{namespace}"))
        }
    };
    view.interfaces()
        .filter(|interface| interface.is_pod_port() && plugged(interface))
        .filter(|interface| belongs(interface) && !valid.contains(interface.name()))
        .map(|interface| {
            (interface.name().to_owned(), interface.external_id(CONTAINER_ID).map(str::to_owned))
        })
        .collect()
}

impl Plugger {
    /// Removes what the runtime does not know any more. A container with a
    /// call in flight is newer than the runtime's list, and left alone.
    ///
    /// # Errors
    /// The first refusal; the rest is removed all the same.
    pub async fn gc(&self, request: &GcRequest) -> Result<(), PlugError> {
        if !self.switch_is_known().await {
            return Err(PlugError::new(Stage::DeleteNic, "the local OVS database is not there")
                .remedy("see whether ovsdb-server runs on this node; the runtime tries again")
                .about_network(&request.network));
        }
        let mut result = Ok(());
        for (host_nic, container) in stale_ports(&self.ovs.view(), request) {
            let _lock = match container {
                Some(container) => match self.locks.try_lock(&container) {
                    Some(lock) => Some(lock),
                    None => continue,
                },
                None => None,
            };
            tracing::info!(port = host_nic, "garbage collection removes a port");
            if let Err(error) = self.unplug(std::slice::from_ref(&host_nic)).await {
                result = result.and(Err(error.about_network(&request.network)));
            }
        }
        result
    }
}
