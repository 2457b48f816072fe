//! Interfaces of running pods that lost a part get it back: the device, the port in the switch, or its marks.
//!
//! With the userspace datapath an internal port's device belongs to one ovs-vswitchd: after its restart there is a new
//! device in the host's namespace and a dead one in the pod. A veth pair knows no such thing, but somebody may delete it,
//! or take its port out of the switch. Looked at when a device comes or goes, when the switch's rows change without our
//! doing, when the database comes back, and slowly otherwise; everything that the interface was made of is in the row's
//! external ids (or was, see [`Memory`]) and in the pod's annotations. What is inside a running pod is its own: where the
//! device is there, only the switch's side is put right. Each port is mended in a task of its own: what one waits for
//! (OVN, a device that does not open) holds up no other, and what can't be mended now is looked at again soon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cni::api::CniRequest;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::add::{Made, Phases, failed};
use super::error::PlugError;
use super::locks::RunningAdd;
use super::lost::says_gone;
use super::memory::{Memory, Seen, request_of};
use super::names::{INTERNAL, is_host_end};
use super::target::Target;
use super::wanted::{NicKind, Readiness, readiness_again};
use super::{CONTAINER_ID, IF_NAME, Plugger, notes, port};
use crate::changes::Changes;
use crate::kube::{EventType, ObjectRef, PodFacts};
use crate::netlink::{Change, Netlink, waiting};
use crate::ovs::{Interface, View, plan, qos};
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
pub(super) fn superseded(view: &View, request: &CniRequest, port: &str) -> bool {
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

/// What became of one port.
struct Ended {
    port: String,
    /// Where the switch's rows told of it.
    seen: Option<Seen>,
    /// Whether it needed mending and was mended.
    mended: Result<bool, PlugError>,
}

/// Finds ports that lost something and mends them.
struct Mender {
    plugger: Arc<Plugger>,
    memory: Memory,
    tasks: JoinSet<Ended>,
    /// Ports that the tasks are at work on.
    at_work: BTreeMap<String, tokio::task::Id>,
    /// Ports to be looked at again soon.
    again: BTreeSet<String>,
}

impl Mender {
    fn new(plugger: Arc<Plugger>) -> Self {
        Self {
            plugger,
            memory: Memory::default(),
            tasks: JoinSet::default(),
            at_work: BTreeMap::default(),
            again: BTreeSet::default(),
        }
    }

    /// Whether anything can be told: which pods live is not known before all are loaded.
    fn can_tell(&self, view: &View) -> bool {
        view.is_connected() && self.plugger.cluster.pods.get().synced
    }

    /// Looks at the devices of pods' ports; with `thorough`, and of the ports in `again`, internal ones that are neither in
    /// the pod nor on the host are noticed too. `false`: it could not look.
    async fn devices(&mut self, thorough: bool, again: &BTreeSet<String>) -> bool {
        let view = self.plugger.ovs.view();
        if !self.can_tell(&view) {
            return false;
        }
        let host: BTreeSet<String> = match self.plugger.host.netlink.links().await {
            Ok(links) => links.into_iter().map(|link| link.name).collect(),
            Err(error) => {
                tracing::warn!(error = %error, "the links can't be listed; ports stay as they are");
                return false;
            }
        };
        let mut suspects = BTreeMap::new();
        for port in view.interfaces().filter(Interface::is_pod_port) {
            let (name, internal) = (port.name().to_owned(), is_internal(&port));
            let there = host.contains(&name);
            let suspect = match internal {
                true => thorough || there || again.contains(&name),
                false => port.kind().is_empty() && !there,
            };
            if let Some(request) = request_of(&port).filter(|_| suspect) {
                suspects.insert(name, (request, internal));
            }
        }
        // Of an agent that died while it mended.
        suspects.extend(notes::all(&view).map(|note| (note.port, (note.request, note.internal))));
        for (port, suspect) in suspects {
            self.begin(&port, suspect, None);
        }
        true
    }

    /// Looks at the switch's rows: ports that others removed or changed since the last look.
    fn rows(&mut self) {
        let view = self.plugger.ovs.view();
        if !view.is_connected() {
            return;
        }
        for (port, seen) in self.memory.look(&view, &self.plugger.own) {
            if self.can_tell(&view) {
                self.begin(&port, (seen.request.clone(), seen.internal), Some(seen));
            } else {
                self.put_back(&port, Some(seen));
            }
        }
    }

    fn put_back(&mut self, port: &str, seen: Option<Seen>) {
        self.again.insert(port.to_owned());
        if let Some(seen) = seen {
            self.memory.put_back(port, seen);
        }
    }

    /// Starts to mend a port, if it has to be and nobody else is at work on it.
    fn begin(&mut self, port: &str, (request, internal): Suspect, seen: Option<Seen>) {
        if self.at_work.contains_key(port) {
            // This may be the task's own doing, or somebody's since.
            return self.put_back(port, seen);
        }
        let namespace = match Namespace::open(Path::new(&request.net_ns)) {
            Ok(namespace) => namespace,
            // The sandbox is gone, or DEL is on its way: nothing to mend.
            Err(error) if says_gone(&error) => return,
            Err(error) => {
                tracing::warn!(port, error = %error, "a pod's namespace can't be opened");
                return self.put_back(port, seen);
            }
        };
        // A DEL that comes from now on ends the waits.
        let running = self.plugger.locks.running(&request.container_id, &request.if_name);
        // An ADD or DEL of the container knows better.
        let Some(lock) = self.plugger.locks.try_lock(&request.container_id) else {
            return self.put_back(port, seen);
        };
        let (plugger, port) = (self.plugger.clone(), port.to_owned());
        let name = port.clone();
        let task = self.tasks.spawn(crate::steps::inherited(async move {
            let _lock = lock;
            let mended = plugger.mend(&request, &port, internal, &namespace, &running).await;
            Ended { port, seen, mended }
        }));
        self.at_work.insert(name, task.id());
    }

    /// The next port that a task is through with; `None` without tasks.
    async fn next(&mut self) -> Option<Ended> {
        loop {
            match self.tasks.join_next().await? {
                Ok(ended) => {
                    self.at_work.remove(&ended.port);
                    return Some(ended);
                }
                Err(error) => {
                    let id = error.id();
                    let ports = self.at_work.extract_if(.., |_, task| *task == id).map(|(port, _)| port);
                    let ports: Vec<String> = ports.collect();
                    tracing::error!(?ports, error = %error, "the mending of a port ended abnormally");
                    self.again.extend(ports);
                }
            }
        }
    }

    /// Takes in what became of a port; the port if it was mended.
    fn end(&mut self, ended: Ended) -> Option<String> {
        match ended.mended {
            Ok(mended) => mended.then_some(ended.port),
            Err(error) => {
                tracing::warn!(port = ended.port, error = %error, "a port of a running pod could not be mended");
                self.put_back(&ended.port, ended.seen);
                None
            }
        }
    }
}

impl Plugger {
    /// One pass over the devices of pods' ports, to its end. With `thorough`, internal devices that are neither in the
    /// pod nor on the host are noticed too.
    pub async fn replug(self: &Arc<Self>, thorough: bool) -> Replugged {
        let mut mender = Mender::new(self.clone());
        mender.devices(thorough, &BTreeSet::new()).await;
        let mut done = Vec::new();
        while let Some(ended) = mender.next().await {
            done.extend(mender.end(ended));
        }
        Replugged { done, failed: mender.again.into_iter().collect() }
    }

    /// Whether the port needed mending and was mended; the container's lock is held.
    async fn mend(
        &self,
        request: &CniRequest,
        port: &str,
        internal: bool,
        namespace: &Namespace,
        running: &RunningAdd,
    ) -> Result<bool, PlugError> {
        let view = self.ovs.view();
        let row = view.interface(port);
        // A path of /proc may mean somebody else's namespace by now; the host's it must never be.
        if *namespace == self.host.namespace || self.own.has_removed(port) || superseded(&view, request, port)
        {
            return Ok(false);
        }
        let alive = |pod: &Arc<PodFacts>| pod.goes_on() && pod.is_called(&request.pod_uid);
        let Some(pod) = self.pod(request).filter(alive) else { return Ok(false) };
        let limits = match (&row, self.limits.get(port)) {
            (None, Some(entry)) => entry.wanted,
            _ => qos::of(&view, port),
        };
        let wanted = match readiness_again(request, &pod, limits) {
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
        let mut target = Target::new(request, &wanted, subnet, &network, node, false)?.of_a_running_pod();
        target.take_port(port);
        let here = self.host.netlink.link(port).await.map_err(failed)?;
        // An agent that died while it made it left nobody knows what.
        let half_made = notes::of(&view, &request.container_id, &request.if_name).next().is_some();
        let device_is_there = match internal {
            _ if half_made => false,
            false => here.is_some(),
            true if here.is_some() || row.is_none() => false,
            true => {
                let inside = Netlink::in_namespace(namespace).await.map_err(failed)?;
                inside.link(&request.if_name).await.map_err(failed)?.is_some()
            }
        };
        let patience = self.patience.installed;
        let waited = if device_is_there {
            let as_wanted = plan::ensure_port(&view, &port::spec(&target)).map_err(failed)?.is_empty();
            if row.is_some() && as_wanted {
                return Ok(false);
            }
            self.ensure_port(&target).await?;
            tokio::select! {
                waited = self.wait_installed(port, patience) => waited,
                // A DEL wants the container.
                () = running.cancelled.cancelled() => return Ok(false),
            }
        } else {
            let spec = port::spec(&target);
            self.ovs.apply(|view| notes::write(view, &spec)).await.map_err(failed)?;
            let mut phase = Phases::start(&request.container_id);
            let (mut container, link) =
                self.make(&target, namespace, &mut Made::default(), &mut phase).await?;
            self.forget_notes(request).await?;
            // Its gateway's silence, and all else that an ADD has to tell, are no news to a running pod.
            let waited = tokio::select! {
                waited = self.settle(&target, &container, &link, patience) => waited,
                () = running.cancelled.cancelled() => return Ok(false),
            };
            if let Some(announcement) =
                container.announcement(&link, target.interface.mac, &target.interface.addresses)
            {
                self.announce(announcement);
            }
            waited
        };
        waited?;
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
    let mut mender = Mender::new(plugger.clone());
    // Devices of ports: whether to look at them, and how.
    let mut devices = Some(true);
    let mut verify = Instant::now() + VERIFY;
    let mut retry = None;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = plugger.ovs.connected() => {}
        }
        views.mark_unchanged();
        let again = devices.map(|_| std::mem::take(&mut mender.again)).unwrap_or_default();
        mender.rows();
        if let Some(thorough) = devices {
            retry = None;
            if mender.devices(thorough, &again).await {
                devices = None;
            } else {
                mender.again.extend(again);
            }
        }
        if retry.is_none() && !(mender.again.is_empty() && devices.is_none()) {
            retry = Some(Instant::now() + RETRY);
        }
        let sleep = tokio::time::sleep_until(retry.unwrap_or(verify).min(verify));
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = &mut sleep => {
                    let due = Instant::now() >= verify;
                    if due {
                        verify = Instant::now() + VERIFY;
                    }
                    devices = Some(devices.unwrap_or_default() || due);
                }
                Some(ended) = mender.next() => {
                    if let Some(port) = mender.end(ended) {
                        tracing::info!(port, "a pod has its port again");
                        feed.say("replug", json!({"ports": [port]}));
                    }
                    if retry.is_none() && !mender.again.is_empty() {
                        let soon = Instant::now() + RETRY;
                        retry = Some(soon);
                        sleep.as_mut().reset(soon.min(verify));
                    }
                    continue;
                }
                changed = views.changed() => if changed.is_err() { return },
                change = changes.recv() => match change {
                    Ok(change) => match look_for(&change, &plugger) {
                        Some(thorough) => devices = Some(devices.unwrap_or_default() || thorough),
                        None => continue,
                    },
                    Err(broadcast::error::RecvError::Lagged(_)) => devices = Some(true),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
            break;
        }
        tokio::time::sleep(GATHER).await;
        for change in waiting(&mut changes) {
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
