//! Ports made ready ahead of ADD.
//!
//! Once the controller has routed a pod of this node, everything about its
//! interface is known except the sandbox. So the veth pair, the OVS port and
//! with it OVN's flows are made while the runtime still makes the sandbox; ADD
//! then moves the waiting end into the pod, names the container in the row,
//! and finds the flows installed.
//!
//! In: the pods of this node, the switch's view. Out: ports named `wp<hash>`
//! with one end in a namespace that only this process has; [`Prepared::claim`]
//! hands one to the ADD of its pod. What no ADD claims is taken away: when the
//! pod goes or has waited too long, or, if this process ends, by the clean-up
//! of lost interfaces, since the namespace and the pair in it end with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cni::api::{CniRequest, PLUGIN_TYPE};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::add::failed;
use super::error::PlugError;
use super::target::Target;
use super::wanted::{NicKind, Readiness, Wanted, readiness};
use super::{Plugger, names, port};
use crate::kube::PodFacts;
use crate::netlink::{Mac, Netlink, Veth};
use crate::ovs::{View, plan};
use crate::sys::{EthtoolSocket, Namespace};

/// A port that no ADD has claimed for so long goes again.
const WAIT: Duration = Duration::from_secs(60);
/// As many ports wait at most. Moving a waiting end into its pod makes the
/// kernel wait for all processors with its big lock held (17 ms where this was
/// measured), which making a pair in the pod does not: one pod gains 12 ms of
/// 50, of thirty at once each that was made ready costs the others 17.
const CAP: usize = 2;
/// The interface that every pod has; others are known only to its ADD.
const INTERFACE: &str = "eth0";

/// Where the other ends wait.
struct Home {
    namespace: Namespace,
    netlink: Netlink,
}

/// What a port was made with. An ADD that wants something else makes its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    port_name: String,
    mac: Mac,
    mtu: Option<u32>,
}

/// A port of a pod: held while it is being made or handed over.
#[derive(Debug, Default)]
struct Slot(Option<Shape>);

/// The ports that wait, by the pod's UID.
#[derive(Default)]
pub struct Prepared {
    home: OnceCell<Home>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    slots: HashMap<String, (Arc<tokio::sync::Mutex<Slot>>, Instant)>,
    /// Pods that had their chance: claimed, dropped, or plugged without.
    done: HashSet<String>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("waiting", &self.waiting()).finish()
    }
}

impl Prepared {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many ports wait.
    pub fn waiting(&self) -> usize {
        self.inner().slots.len()
    }

    async fn home(&self) -> Result<&Home, PlugError> {
        self.home
            .get_or_try_init(async || {
                let namespace = Namespace::fresh().map_err(failed)?;
                let netlink = Netlink::in_namespace(&namespace).await.map_err(failed)?;
                Ok(Home { namespace, netlink })
            })
            .await
    }

    /// Takes a pod's slot; from now on none is made for it.
    fn take(&self, uid: &str) -> Option<Arc<tokio::sync::Mutex<Slot>>> {
        let mut inner = self.inner();
        inner.done.insert(uid.to_owned());
        inner.slots.remove(uid).map(|(slot, _)| slot)
    }
}

impl Plugger {
    /// The port that waits for this interface, if it is as wanted. Waits for
    /// one that is being made.
    pub(super) async fn claim(&self, target: &Target<'_>) -> Option<String> {
        let uid = &target.wanted.pod_uid;
        if target.interface.name != INTERFACE || target.wanted.provider != crds::keys::DEFAULT_PROVIDER {
            return None;
        }
        let slot = self.prepared.take(uid)?;
        let made = slot.lock().await.0.take()?;
        let port = names::prepared_nic(uid, INTERFACE);
        if made == Shape::of(target) && target.wanted.nic == NicKind::Veth && !target.detect {
            return Some(port);
        }
        self.take_away(&port).await;
        None
    }

    /// Puts the waiting end into the pod.
    pub(super) async fn hand_over(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
    ) -> Result<(), PlugError> {
        let home = self.prepared.home().await?;
        let link = home.netlink.require_link(&target.port).await.map_err(failed)?;
        home.netlink
            .move_link(link.index, namespace, Some(&target.interface.name), &target.interface.alias)
            .await
            .map_err(failed)
    }

    async fn take_away(&self, port: &str) {
        if let Err(error) = self.unplug(&[port.to_owned()]).await {
            // The clean-up of lost interfaces comes by later.
            tracing::warn!(port, error = %error, "a port that nobody claimed could not be removed");
        }
    }

    /// One pass: drops ports that nobody will claim, makes those that are due.
    /// Says when the next waiting port has waited long enough.
    pub async fn prepare(&self) -> Option<Instant> {
        let pods = self.cluster.pods.get();
        let by_uid: BTreeMap<&str, &Arc<PodFacts>> =
            pods.objects.values().map(|pod| (pod.uid.as_str(), pod)).collect();
        let wanted_still = |uid: &str| by_uid.get(uid).is_some_and(|pod| pod.goes_on());
        let (dropped, next) = {
            let mut inner = self.prepared.inner();
            let now = Instant::now();
            let gone: Vec<String> = inner
                .slots
                .iter()
                .filter(|(uid, (_, since))| !wanted_still(uid) || now.duration_since(*since) >= WAIT)
                .map(|(uid, _)| uid.clone())
                .collect();
            let dropped: Vec<_> =
                gone.into_iter().filter_map(|uid| Some((inner.slots.remove(&uid)?.0, uid))).collect();
            inner.done.extend(dropped.iter().map(|(_, uid)| uid.clone()));
            if pods.synced {
                inner.done.retain(|uid| by_uid.contains_key(uid.as_str()));
            }
            (dropped, inner.slots.values().map(|(_, since)| *since + WAIT).min())
        };
        for (slot, uid) in dropped {
            if slot.lock().await.0.take().is_some() {
                self.take_away(&names::prepared_nic(&uid, INTERFACE)).await;
            }
        }
        if self.network.borrow().is_none() {
            return next;
        }
        let view = self.ovs.view();
        let due: Vec<(String, CniRequest, Wanted)> = by_uid
            .iter()
            .filter(|(uid, _)| wanted_still(uid) && !self.prepared.inner().done.contains(**uid))
            .filter_map(|(uid, pod)| self.due(uid, pod))
            .filter(|(uid, _, wanted)| {
                let taken = is_taken(&view, wanted) && !self.prepared.inner().slots.contains_key(uid);
                // It has its interface: most pods, after a restart of the agent.
                taken.then(|| self.prepared.take(uid)).is_none()
            })
            .collect();
        let mut next = next;
        let work = due.iter().filter_map(|(uid, request, wanted)| {
            let slot = {
                let mut inner = self.prepared.inner();
                if inner.slots.len() >= CAP || inner.slots.contains_key(uid) || inner.done.contains(uid) {
                    return None;
                }
                let slot = Arc::<tokio::sync::Mutex<Slot>>::default();
                inner.slots.insert(uid.clone(), (slot.clone(), Instant::now()));
                slot
            };
            // Held before anyone can see it: a claim waits for the result.
            let guard = slot.try_lock_owned().ok()?;
            Some(async move {
                let mut guard = guard;
                match self.make_ready(request, wanted).await {
                    Ok(made) => guard.0 = made,
                    Err(error) => {
                        tracing::debug!(pod = request.pod_name, error = %error, "a port could not be made ready");
                        self.take_away(&names::prepared_nic(uid, INTERFACE)).await;
                    }
                }
                if guard.0.is_none() {
                    self.prepared.take(uid);
                }
            })
        });
        let before = Instant::now();
        let made = futures::future::join_all(work).await.len();
        if made > 0 {
            next = Some(next.unwrap_or(before + WAIT).min(before + WAIT));
        }
        next
    }

    /// The call that the runtime will make for a pod, if everything about its
    /// interface is known by now.
    fn due(&self, uid: &str, pod: &PodFacts) -> Option<(String, CniRequest, Wanted)> {
        let request = CniRequest {
            cni_type: PLUGIN_TYPE.to_owned(),
            pod_name: pod.name.clone(),
            pod_namespace: pod.namespace.clone(),
            if_name: INTERFACE.to_owned(),
            provider: crds::keys::DEFAULT_PROVIDER.to_owned(),
            pod_uid: uid.to_owned(),
            ..CniRequest::default()
        };
        let Readiness::Ready(wanted) = readiness(&request, pod) else { return None };
        let plain = wanted.is_ovn && wanted.nic == NicKind::Veth && !wanted.migrating;
        let known = self.cluster.subnets.get().objects.contains_key(wanted.subnet.as_str());
        (plain && known).then(|| (uid.to_owned(), request, *wanted))
    }

    /// Makes pair and port. `None`: the pod has, or had, an interface elsewhere,
    /// or is of a kind that is not made ready.
    async fn make_ready(&self, request: &CniRequest, wanted: &Wanted) -> Result<Option<Shape>, PlugError> {
        let network = self.network.borrow().clone();
        let subnets = self.cluster.subnets.get();
        let nodes = self.cluster.nodes.get();
        let node = nodes.objects.get(self.node.as_str()).map(|node| &**node);
        let (Some(network), Some(subnet)) = (network, subnets.objects.get(wanted.subnet.as_str())) else {
            return Ok(None);
        };
        let mut target = Target::new(request, wanted, subnet, &network, node, self.detect_conflicts)?;
        if target.detect || is_taken(&self.ovs.view(), wanted) {
            return Ok(None);
        }
        target.port = names::prepared_nic(&wanted.pod_uid, INTERFACE);
        let home = self.prepared.home().await?;
        let veth = Veth {
            name: &target.port,
            peer: &target.port,
            peer_mac: Some(target.interface.mac),
            peer_namespace: Some(&home.namespace),
            mtu: target.interface.mtu,
        };
        self.host.add_port_veth(&veth, target.userspace).await.map_err(failed)?;
        if target.userspace {
            let name = target.port.clone();
            let off = move || EthtoolSocket::open().and_then(|socket| socket.tx_checksum_off(&name));
            home.namespace.run_async(off).await.and_then(|result| result).map_err(failed)?;
        }
        let spec = port::spec(&target);
        let committed = self.ovs.apply(|view| {
            // ADD takes the logical port from others; we never do.
            if is_taken(view, wanted) {
                return Ok(Vec::new());
            }
            plan::ensure_port(view, &spec)
        });
        committed.await.map_err(failed)?;
        if self.ovs.view().port(&target.port).is_none() {
            self.take_away(&target.port).await;
            return Ok(None);
        }
        Ok(Some(Shape::of(&target)))
    }
}

/// Whether an interface carries the pod's logical port already: of an older
/// sandbox, or of the source of a migration.
fn is_taken(view: &View, wanted: &Wanted) -> bool {
    view.interfaces().any(|interface| interface.external_id("iface-id") == Some(&wanted.port_name))
}

impl Shape {
    fn of(target: &Target<'_>) -> Self {
        Self {
            port_name: target.wanted.port_name.clone(),
            mac: target.interface.mac,
            mtu: target.interface.mtu,
        }
    }
}

/// Makes ports ready until cancelled.
pub async fn run(plugger: Arc<Plugger>, cancel: CancellationToken) {
    let mut pods = plugger.cluster.pods.subscribe();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = plugger.ovs.connected() => {}
        }
        pods.mark_unchanged();
        let next = plugger.prepare().await;
        let idle = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = pods.changed() => if changed.is_err() { return },
            () = idle => {}
        }
    }
}
