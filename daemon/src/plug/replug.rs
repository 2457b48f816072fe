//! Interfaces of running pods that lost a part get it back: the device, the port in the switch, or its marks.
//!
//! With the userspace datapath an internal port's device belongs to one ovs-vswitchd: after its restart there is a new
//! device in the host's namespace and a dead one in the pod. A veth pair knows no such thing, but somebody may delete it,
//! or take its port out of the switch. Looked at when a device comes or goes, when the switch's rows change without our
//! doing, when the database comes back, and slowly otherwise; everything that the interface was made of is in the row's
//! external ids (or was, see [`Memory`]) and in the pod's annotations. What is inside a running pod is its own: where the
//! device is there, only the switch's side is put right.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cni::api::CniRequest;
use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::add::{Made, Phases, failed};
use super::error::PlugError;
use super::memory::{Memory, request_of};
use super::names::{INTERNAL, is_host_end};
use super::target::Target;
use super::wanted::{NicKind, Readiness, readiness};
use super::{CONTAINER_ID, IF_NAME, Plugger, port};
use crate::changes::Changes;
use crate::kube::{EventType, ObjectRef, PodFacts};
use crate::netlink::{Change, Netlink};
use crate::ovs::{Interface, View, plan};
use crate::sys::Namespace;

/// All ports are looked at this often even if nothing happened.
const VERIFY: Duration = Duration::from_secs(60);
/// Pause after a pass that could not mend everything.
const RETRY: Duration = Duration::from_secs(2);
/// Devices come in bunches, and go into their pods a moment later by themselves.
const GATHER: Duration = Duration::from_millis(100);

/// Whether a row is an internal port of a pod.
pub(super) fn is_internal(interface: &Interface) -> bool {
    interface.is_pod_port() && interface.kind() == "internal"
}

/// Another sandbox of the pod has this interface now.
fn superseded(view: &View, request: &CniRequest, port: &str) -> bool {
    view.interfaces().any(|other| {
        other.name() != port
            && other.external_id("iface-id").is_some()
            && other.external_id("pod_name") == Some(&request.pod_name)
            && other.external_id("pod_namespace") == Some(&request.pod_namespace)
            && other.external_id(IF_NAME) == Some(&request.if_name)
            && other.external_id(CONTAINER_ID) != Some(&request.container_id)
    })
}

/// What a pass came to.
#[derive(Debug, Default)]
pub struct Replugged {
    /// Ports that were mended.
    pub done: Vec<String>,
    /// Ports that could not be mended.
    pub failed: Vec<String>,
}

/// A port to look at: the call that made it, and whether its device is ovs-vswitchd's.
type Suspect = (CniRequest, bool);

impl Plugger {
    /// One pass over the devices of pods' ports. With `thorough`, internal devices that are neither in the pod nor on
    /// the host are noticed too.
    pub async fn replug(&self, thorough: bool) -> Replugged {
        let view = self.ovs.view();
        let ports: Vec<Interface> = view.interfaces().filter(|interface| interface.is_pod_port()).collect();
        if ports.is_empty() || !view.is_connected() {
            return Replugged::default();
        }
        let host: BTreeSet<String> = match self.host.netlink.links().await {
            Ok(links) => links.into_iter().map(|link| link.name).collect(),
            Err(error) => {
                tracing::warn!(error = %error, "the links can't be listed; ports stay as they are");
                let failed = ports.iter().map(|port| port.name().to_owned()).collect();
                return Replugged { failed, ..Replugged::default() };
            }
        };
        let suspects = ports.into_iter().filter_map(|port| {
            let there = host.contains(port.name());
            let suspect =
                if is_internal(&port) { thorough || there } else { port.kind().is_empty() && !there };
            let request = request_of(&port).filter(|_| suspect)?;
            Some((port.name().to_owned(), (request, is_internal(&port))))
        });
        self.mend(suspects.collect()).await
    }

    /// One pass over the switch's rows: ports that others removed or changed since the last.
    pub async fn restore(&self, memory: &mut Memory) -> Replugged {
        let view = self.ovs.view();
        if !view.is_connected() {
            return Replugged::default();
        }
        let mut touched = memory.look(&view, &self.own);
        let suspects =
            touched.iter().map(|(port, seen)| (port.clone(), (seen.request.clone(), seen.internal)));
        let result = self.mend(suspects.collect()).await;
        for port in &result.failed {
            if let Some(seen) = touched.remove(port) {
                memory.put_back(port, seen);
            }
        }
        result
    }

    async fn mend(&self, suspects: BTreeMap<String, Suspect>) -> Replugged {
        let mut result = Replugged::default();
        let work = suspects.into_iter().filter_map(|(port, (request, internal))| {
            // The sandbox is gone, or DEL is on its way: nothing to mend.
            let namespace = Namespace::open(Path::new(&request.net_ns)).ok()?;
            Some(async move {
                let mended = self.mend_one(&request, &port, internal, &namespace).await;
                (port, mended)
            })
        });
        for (port, outcome) in futures::future::join_all(work).await {
            match outcome {
                Ok(false) => {}
                Ok(true) => result.done.push(port),
                Err(error) => {
                    tracing::warn!(port, error = %error, "a port of a running pod could not be mended");
                    result.failed.push(port);
                }
            }
        }
        result
    }

    /// Whether the port needed mending and was mended.
    async fn mend_one(
        &self,
        request: &CniRequest,
        port: &str,
        internal: bool,
        namespace: &Namespace,
    ) -> Result<bool, PlugError> {
        // An ADD or DEL of the container knows better.
        let _lock = self.locks.lock(&request.container_id).await;
        let running = self.locks.running(&request.container_id, &request.if_name);
        let view = self.ovs.view();
        let row = view.interface(port);
        // A path of /proc may mean somebody else's namespace by now; the host's it must never be.
        if *namespace == self.host.namespace || self.own.has_removed(port) || superseded(&view, request, port)
        {
            return Ok(false);
        }
        let alive = |pod: &Arc<PodFacts>| !pod.deleting && !pod.finished && pod.is_called(&request.pod_uid);
        let Some(pod) = self.pod(request).filter(alive) else { return Ok(false) };
        let wanted = match readiness(request, &pod) {
            // An annotation that was changed since is obeyed by the pod's successor.
            Readiness::Ready(mut wanted) => {
                wanted.nic = if internal { NicKind::Internal } else { NicKind::Veth };
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
        target.take_port(port);
        let here = self.host.netlink.link(port).await.map_err(failed)?;
        let device_is_there = match internal {
            false => here.is_some(),
            true if here.is_some() || row.is_none() => false,
            true => {
                let inside = Netlink::in_namespace(namespace).await.map_err(failed)?;
                inside.link(&request.if_name).await.map_err(failed)?.is_some()
            }
        };
        if device_is_there {
            let as_wanted = plan::ensure_port(&view, &port::spec(&target)).map_err(failed)?.is_empty();
            if row.is_some() && as_wanted {
                return Ok(false);
            }
            self.ensure_port(&target).await?;
            tokio::select! {
                installed = self.wait_installed(port) => installed?,
                // A DEL wants the container.
                () = running.cancelled.cancelled() => return Ok(false),
            }
        } else {
            let mut phase = Phases::start(&request.container_id);
            let mut plugged = self.make(&target, namespace, &mut Made::default(), &mut phase).await?;
            tokio::select! {
                finished = self.finish(&target, namespace, &mut plugged, &mut phase) => finished?,
                () = running.cancelled.cancelled() => return Ok(false),
            }
        }
        self.own.made(&port::spec(&target), request);
        let object = ObjectRef::pod(&request.pod_namespace, &request.pod_name, &wanted.pod_uid);
        let message = format!("interface={} node={}", request.if_name, self.node);
        self.recorder.record(object, EventType::Normal, "PodNetworkRestored", message);
        Ok(true)
    }
}

/// Mends ports until cancelled.
pub async fn run(
    plugger: Arc<Plugger>,
    mut changes: broadcast::Receiver<Change>,
    feed: Changes,
    cancel: CancellationToken,
) {
    let mut views = plugger.ovs.subscribe();
    let mut memory = Memory::default();
    // Devices of ports: whether to look at them, and how.
    let mut devices = Some(true);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = plugger.ovs.connected() => {}
        }
        views.mark_unchanged();
        let mut result = plugger.restore(&mut memory).await;
        if let Some(thorough) = devices.take() {
            let more = plugger.replug(thorough).await;
            result.done.extend(more.done);
            result.failed.extend(more.failed);
        }
        if !result.done.is_empty() {
            tracing::info!(ports = ?result.done, "pods have their ports again");
            feed.say("replug", json!({"ports": result.done}));
        }
        let sleep = tokio::time::sleep(if result.failed.is_empty() { VERIFY } else { RETRY });
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = &mut sleep => devices = Some(true),
                changed = views.changed() => if changed.is_err() { return },
                change = changes.recv() => match change {
                    Ok(change) => match look_for(&change, &plugger) {
                        Some(thorough) => devices = Some(thorough),
                        None => continue,
                    },
                    Err(broadcast::error::RecvError::Lagged(_)) => devices = Some(true),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
            break;
        }
        tokio::time::sleep(GATHER).await;
        while let Ok(change) = changes.try_recv() {
            if let Some(thorough) = look_for(&change, &plugger) {
                devices = Some(devices.unwrap_or_default() || thorough);
            }
        }
    }
}

/// Whether a change of the host's links asks for a look at devices, and at all of them.
fn look_for(change: &Change, plugger: &Plugger) -> Option<bool> {
    match change {
        Change::LinkChanged(link) if link.name.ends_with(INTERNAL) => Some(false),
        // DEL takes the port before the link.
        Change::LinkGone(link) if is_host_end(&link.name) => {
            plugger.ovs.view().port(&link.name).is_some().then_some(false)
        }
        Change::Lost => Some(true),
        _ => None,
    }
}
