//! Internal ports that lost their device get it back.
//!
//! With the userspace datapath an internal port's device belongs to one
//! ovs-vswitchd: after its restart there is a new device in the host's
//! namespace and a dead one in the pod. A veth pair knows no such thing. Looked at
//! when such a device appears on the host, when the database comes back, and
//! slowly otherwise; everything that the interface was made of is in the row's
//! external ids and the pod's annotations.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cni::api::{CniRequest, PLUGIN_TYPE};
use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::add::{Made, Phases, failed};
use super::error::PlugError;
use super::names::INTERNAL;
use super::target::Target;
use super::wanted::{NicKind, Readiness, readiness};
use super::{CONTAINER_ID, IF_NAME, NETWORK, PROVIDER, Plugger, ROUTES};
use crate::changes::Changes;
use crate::kube::{EventType, ObjectRef};
use crate::netlink::{Change, Netlink};
use crate::ovs::{Interface, View};
use crate::sys::Namespace;

/// All internal ports are looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// Pause after a pass that could not mend everything.
const RETRY: Duration = Duration::from_secs(2);
/// Devices come in bunches, and go into their pods a moment later by themselves.
const GATHER: Duration = Duration::from_millis(100);

/// Whether a row is an internal port of a pod.
pub(super) fn is_internal(interface: &Interface) -> bool {
    interface.is_pod_port() && interface.kind() == "internal"
}

/// The call that made a port, as far as the row tells. `None`: a port that
/// Weir has not made.
fn request_of(interface: &Interface) -> Option<CniRequest> {
    let id = |key| interface.external_id(key).map(str::to_owned);
    Some(CniRequest {
        cni_type: PLUGIN_TYPE.to_owned(),
        pod_name: id("pod_name")?,
        pod_namespace: id("pod_namespace")?,
        container_id: id(CONTAINER_ID)?,
        if_name: id(IF_NAME)?,
        net_ns: id("pod_netns")?,
        provider: id(PROVIDER)?,
        network: id(NETWORK).unwrap_or_default(),
        routes: id(ROUTES).and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default(),
        pod_uid: id(super::POD_UID).unwrap_or_default(),
        ..CniRequest::default()
    })
}

fn internal_ports(view: &View) -> Vec<Interface> {
    view.interfaces().filter(is_internal).collect()
}

/// What a pass came to.
#[derive(Debug, Default)]
pub struct Replugged {
    /// Ports whose device is in its pod again.
    pub done: Vec<String>,
    /// Ports that could not be mended.
    pub failed: Vec<String>,
}

impl Plugger {
    /// One pass. With `thorough`, devices that are neither in the pod nor on
    /// the host are noticed too.
    pub async fn replug(&self, thorough: bool) -> Replugged {
        let mut result = Replugged::default();
        let view = self.ovs.view();
        let ports = internal_ports(&view);
        if ports.is_empty() || !view.is_connected() {
            return result;
        }
        let host: BTreeSet<String> = match self.host.netlink.links().await {
            Ok(links) => links.into_iter().map(|link| link.name).collect(),
            Err(error) => {
                tracing::warn!(error = %error, "the links can't be listed; internal ports stay as they are");
                result.failed = ports.iter().map(|port| port.name().to_owned()).collect();
                return result;
            }
        };
        let suspects = ports.into_iter().filter(|port| thorough || host.contains(port.name()));
        let work =
            suspects.filter_map(|port| {
                let request = request_of(&port)?;
                // The sandbox is gone, or DEL is on its way: nothing to mend.
                let namespace = Namespace::open(Path::new(&request.net_ns)).ok()?;
                Some(async move {
                    (port.name().to_owned(), self.replug_one(&request, port.name(), &namespace).await)
                })
            });
        for (port, outcome) in futures::future::join_all(work).await {
            match outcome {
                Ok(false) => {}
                Ok(true) => result.done.push(port),
                Err(error) => {
                    tracing::warn!(port, error = %error, "an internal port could not be put into its pod again");
                    result.failed.push(port);
                }
            }
        }
        result
    }

    /// Whether the port needed mending and was mended.
    async fn replug_one(
        &self,
        request: &CniRequest,
        port: &str,
        namespace: &Namespace,
    ) -> Result<bool, PlugError> {
        // An ADD or DEL of the container knows better.
        let _lock = self.locks.lock(&request.container_id).await;
        if self.ovs.view().interface(port).is_none_or(|interface| !is_internal(&interface)) {
            return Ok(false);
        }
        let here = self.host.netlink.link(port).await.map_err(failed)?;
        if here.is_none() {
            let inside = Netlink::in_namespace(namespace).await.map_err(failed)?;
            if inside.link(&request.if_name).await.map_err(failed)?.is_some() {
                return Ok(false);
            }
        }
        let Some(pod) = self.pod(request).filter(|pod| !pod.deleting) else { return Ok(false) };
        let wanted = match readiness(request, &pod) {
            Readiness::Ready(wanted) if wanted.nic == NicKind::Internal => *wanted,
            // The annotation was changed; the pod's successor obeys it.
            Readiness::Ready(mut wanted) => {
                wanted.nic = NicKind::Internal;
                *wanted
            }
            Readiness::Failed(error) => return Err(error),
            Readiness::Waiting(stage, reason) => return Err(PlugError::new(stage, reason)),
        };
        let subnets = self.cluster.subnets.get();
        let subnet = subnets
            .objects
            .get(wanted.subnet.as_str())
            .ok_or_else(|| failed(format!("subnet {:?} is not known", wanted.subnet)))?;
        let network = self.network.borrow().clone();
        let network = network.ok_or_else(|| failed("the node's network is not initialised yet"))?;
        let nodes = self.cluster.nodes.get();
        let node = nodes.objects.get(self.node.as_str()).map(|node| &**node);
        let mut target = Target::new(request, &wanted, subnet, &network, node, false)?;
        target.port = port.to_owned();
        let mut phase = Phases::start(&request.container_id);
        let mut plugged = self.make(&target, namespace, &mut Made::default(), &mut phase).await?;
        self.finish(&target, namespace, &mut plugged, &mut phase).await?;
        let object = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &wanted.pod_uid);
        let message = format!("interface={} node={}", request.if_name, self.node);
        self.recorder.record(object, EventType::Normal, "PodNetworkRestored", message);
        Ok(true)
    }
}

/// Mends internal ports until cancelled.
pub async fn run(
    plugger: Arc<Plugger>,
    mut changes: broadcast::Receiver<Change>,
    feed: Changes,
    cancel: CancellationToken,
) {
    let mut thorough = true;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = plugger.ovs.connected() => {}
        }
        let result = plugger.replug(thorough).await;
        if !result.done.is_empty() {
            tracing::info!(ports = ?result.done, "internal ports are in their pods again");
            feed.say("replug", json!({"ports": result.done}));
        }
        let sleep = tokio::time::sleep(if result.failed.is_empty() { VERIFY } else { RETRY });
        tokio::pin!(sleep);
        loop {
            thorough = tokio::select! {
                () = cancel.cancelled() => return,
                () = &mut sleep => true,
                change = changes.recv() => match change {
                    Ok(Change::LinkChanged(link)) if link.name.ends_with(INTERNAL) => false,
                    Ok(Change::Lost) | Err(broadcast::error::RecvError::Lagged(_)) => true,
                    Ok(_) => continue,
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            };
            break;
        }
        tokio::time::sleep(GATHER).await;
        while let Ok(change) = changes.try_recv() {
            thorough |= change == Change::Lost;
        }
    }
}
