//! DEL (node contract §2.5), by container id alone.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cni::api::CniRequest;
use ovsdb::Operation;

use super::device::delete_inside;
use super::error::{PlugError, Stage};
use super::{CONTAINER_ID, Plugger, choices, names, notes};
use crate::kube::{EventType, Fact, ObjectRef, PodFacts};
use crate::ovs::{Interface, View, plan};

impl Plugger {
    /// Unplugs an interface. Its ports follow from container id and interface, so neither pod, namespace nor API server are needed, and
    /// a late call for an old sandbox can't touch a newer one. What is gone
    /// already is fine.
    ///
    /// # Errors
    /// When the kernel or the switch refuses; the runtime tries again.
    pub async fn del(&self, request: &CniRequest) -> Result<(), PlugError> {
        if !choices::is_container_id(&request.container_id) {
            let message = format!("container_id {:?} is invalid", request.container_id);
            return Err(PlugError::new(Stage::ValidateRequest, message).code(4).about(request));
        }
        let _running = self.begin();
        self.locks.cancel_add(&request.container_id, &request.if_name);
        let _lock = self.locks.lock(&request.container_id).await;
        // Without its rows a port that has another name than the usual would be left.
        self.switch_is_known().await;
        let had = AtomicBool::new(false);
        let (ports, result) = self
            .unplug_all(|view| {
                let ports = ports_of_call(view, request);
                had.fetch_or(ports.iter().any(|port| view.port(port).is_some()), Ordering::Relaxed);
                ports
            })
            .await;
        let had = had.into_inner();
        delete_inside(request, &ports).await;
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
                    let message = self.failure(error, request);
                    self.recorder.record(object, EventType::Warning, "PodNetworkRemoveFailed", message);
                }
            }
        }
        result.map_err(|error| error.about(request))
    }

    /// Removes ports and links. All are tried even if one fails.
    pub(super) async fn unplug(&self, ports: &[String]) -> Result<(), PlugError> {
        self.unplug_all(|_| ports.to_vec()).await.1
    }

    /// The same for the ports that `find` finds whenever the switch is looked at; says which they were.
    async fn unplug_all(&self, find: impl Fn(&View) -> Vec<String>) -> (Vec<String>, Result<(), PlugError>) {
        let error = |error: &dyn std::fmt::Display| PlugError::new(Stage::DeleteNic, error.to_string());
        let all = Mutex::new(BTreeSet::new());
        let look = |view: &View| {
            let ports = find(view);
            ports.iter().for_each(|port| self.own.removes(port));
            all.lock().unwrap_or_else(PoisonError::into_inner).extend(ports.iter().cloned());
            ports
        };
        // There are links without ports, also while the switch is away.
        look(&self.ovs.view());
        // The port first: ovn-controller releases the logical port while the
        // link still stands, as upstream.
        let wish =
            |view: &View| Ok(look(view).iter().flat_map(|port| without_port(view, port)).collect::<Vec<_>>());
        let begin = Instant::now();
        let mut result = self.ovs.apply(wish).await.map_err(|e| error(&e));
        let ports: Vec<String> =
            all.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
        let took = |begin: Instant| begin.elapsed().as_secs_f64() * 1000.0;
        tracing::debug!(phase = "unport", took_ms = took(begin));
        let begin = Instant::now();
        // An internal port's device goes with the port.
        for link in ports.iter().filter(|port| !port.ends_with(names::INTERNAL)) {
            let deleted = self.reaper.delete(&self.host.netlink, link).await.map_err(|e| error(&e));
            result = result.and(deleted);
        }
        tracing::debug!(phase = "unlink", took_ms = took(begin));
        crate::steps::done("unplug").await;
        (ports, result)
    }
}

/// Takes a port away, and what was noted of it.
pub(super) fn without_port(view: &View, port: &str) -> Vec<Operation> {
    let mut operations = plan::remove_port(view, port);
    operations.extend(notes::erase(view, std::iter::once(port)));
    operations
}

/// The ports that an interface may have: by its names, where no other interface has them, and by what ADD wrote into the
/// row. Names that Kube-OVN cuts to a few digits of the id say little: `is_pods` tells whether such a row is the pod's.
pub(super) fn ports_of(
    view: &View,
    container_id: &str,
    if_name: &str,
    is_pods: impl Fn(&Interface) -> bool,
) -> Vec<String> {
    // Without a row there may be a link all the same.
    let mut ports = vec![names::free(view, container_id, if_name, names::HOST)];
    let internal = names::free(view, container_id, if_name, names::INTERNAL);
    if view.port(&internal).is_some() {
        ports.push(internal);
    }
    let cut = [names::HOST, names::INTERNAL].map(|suffix| names::cut(container_id, if_name, suffix));
    let unmarked = cut.into_iter().flatten().filter(|name| {
        let row = view.interface(name).filter(|row| row.external_id(CONTAINER_ID).is_none());
        row.is_some_and(|row| row.is_pod_port() && is_pods(&row))
    });
    ports.extend(unmarked);
    let named = view.interfaces().filter(|row| names::is_marked(row, container_id, if_name));
    ports.extend(named.map(|interface| interface.name().to_owned()));
    ports.extend(notes::of(view, container_id, if_name));
    ports.sort();
    ports.dedup();
    ports
}

/// The ports of a call's interface.
pub(super) fn ports_of_call(view: &View, request: &CniRequest) -> Vec<String> {
    ports_of(view, &request.container_id, &request.if_name, |row| {
        row.external_id("pod_name") == Some(&request.pod_name)
            && row.external_id("pod_namespace") == Some(&request.pod_namespace)
    })
}
