//! Plugging pods: ADD, DEL, CHECK, GC.
//!
//! In: requests of the CNI executable, snapshots of pods and subnets, views of
//! the local OVS database. Out: a veth pair, an OVS port, addresses and
//! routes; answers and events. Calls are serialised per container and run in
//! parallel otherwise; a repeated ADD converges, a failed one is rolled back in
//! reverse, DEL works from the container id alone. No process is started.

mod add;
mod announce;
mod check;
mod choices;
pub(crate) mod conflict;
pub mod container;
mod del;
mod device;
pub mod error;
mod finish;
mod gc;
mod locks;
pub mod lost;
pub mod memory;
pub mod names;
mod notes;
mod port;
pub mod prepared;
mod reaper;
pub mod replug;
mod target;
mod waits;
pub mod wanted;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use error::{PlugError, Stage};
pub use locks::Locks;

use crate::hostnet::HostNet;
use crate::kube::{Cluster, PodLookup, Recorder};
use crate::metrics::Metrics;
use crate::ovs::Ovs;

/// What the node's initialisation has found out and every ADD needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    /// MTU of pods in subnets that don't set one.
    pub mtu: u32,
    /// Pods are switched in userspace.
    pub userspace: bool,
    /// Address of each node network on this node.
    pub node_networks: std::collections::BTreeMap<String, IpAddr>,
}

/// As many interfaces are made at the same time; further calls queue.
const AT_ONCE: usize = 128;

/// How long a call waits for the switch's database before it looks at it: longer than a restart of OVS.
const SWITCH: Duration = Duration::from_secs(10);

/// How long calls wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a pod that exists to come by the watch, which lags on a busy machine.
    pub watch: Duration,
    /// Until the API server is asked whether a pod that the watch does not know exists; doubled from question to
    /// question, up to [`ASK_AT_LEAST`].
    pub unknown_pod: Duration,
    /// For the pod's address and route, together, once the pod is known.
    pub annotations: Duration,
    /// For `ovn-installed`.
    pub installed: Duration,
    /// For an answer of the gateways.
    pub gateway: Duration,
    /// For the kernel's verdict that IPv6 addresses are unique.
    pub unique: Duration,
    /// For all of an ADD: less than its caller waits, or nobody would read why it failed.
    pub whole: Duration,
}

impl Patience {
    /// The same for what the switch has to do.
    fn for_switch(&self, spent: Duration) -> Duration {
        self.whole.saturating_sub(spent).max(Duration::from_secs(1)).min(self.installed)
    }

    /// How long the gateways, which come last, may be silent when a call has run for `spent` already. Never nothing: a
    /// question takes a moment.
    fn for_gateway(&self, spent: Duration) -> Duration {
        self.whole
            .saturating_sub(spent)
            .clamp(Duration::from_secs(1), self.gateway.max(Duration::from_secs(1)))
    }
}

/// The longest pause between two questions about an unknown pod (node contract §2.4: every 5 s).
const ASK_AT_LEAST: Duration = Duration::from_secs(5);

// `whole` stays below what the CNI executable waits (`cni::plugin::ADD_TIMEOUT`), and that below kubelet's.
impl Default for Patience {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(30),
            unknown_pod: Duration::from_millis(500),
            annotations: Duration::from_secs(20),
            installed: Duration::from_secs(30),
            // A burst of hundreds of pods keeps the switch of a busy machine busy for a minute; Kube-OVN asks 200 times,
            // a second apart.
            gateway: Duration::from_secs(60),
            unique: Duration::from_secs(5),
            whole: Duration::from_secs(100),
        }
    }
}

/// Everything that calls share.
pub struct Plugger {
    /// This node.
    pub node: String,
    /// Watched objects.
    pub cluster: Arc<Cluster>,
    /// The local switch.
    pub ovs: Ovs,
    /// The host's network.
    pub host: HostNet,
    /// What initialisation has found out; `None` until then.
    pub network: watch::Receiver<Option<NodeNetwork>>,
    /// Events.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// How long to wait.
    pub patience: Patience,
    /// Asks for pods that the watch does not know; without it such pods are just waited for.
    pub lookup: Option<PodLookup>,
    /// Look for other owners of addresses on underlay subnets.
    pub detect_conflicts: bool,
    /// Ports made ready ahead of ADD.
    pub prepared: prepared::Prepared,
    /// Interfaces that are being made at the same time: each costs sockets, a
    /// thread for a moment and buffers, and a node may start hundreds of pods at once.
    pub at_once: tokio::sync::Semaphore,
    /// Deletes links.
    pub(crate) reaper: reaper::Reaper,
    /// One call per container.
    pub locks: Locks,
    /// What holds the limits of ports.
    pub limits: crate::qos::Book,
    /// Ports that we made and removed ourselves.
    pub(crate) own: memory::Own,
    /// Calls running now.
    pub(crate) running: Arc<AtomicUsize>,
    /// When the last call ended.
    pub(crate) last_call: Mutex<Instant>,
}

/// Counts a call as running until dropped.
pub(crate) struct Running<'a>(&'a Plugger);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.last_call.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Plugger {
    /// Everything that calls share.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        node: String,
        cluster: Arc<Cluster>,
        ovs: Ovs,
        host: HostNet,
        network: watch::Receiver<Option<NodeNetwork>>,
        recorder: Recorder,
        metrics: Arc<Metrics>,
        patience: Patience,
        locks: Locks,
    ) -> Self {
        Self {
            node,
            cluster,
            ovs,
            host,
            network,
            recorder,
            metrics,
            patience,
            lookup: None,
            detect_conflicts: true,
            prepared: prepared::Prepared::default(),
            at_once: tokio::sync::Semaphore::new(AT_ONCE),
            reaper: reaper::Reaper::default(),
            locks,
            limits: crate::qos::Book::default(),
            own: memory::Own::default(),
            running: Arc::default(),
            last_call: Mutex::new(Instant::now()),
        }
    }

    /// Waits until the switch's database has been loaded: what is not in an empty view may be there.
    async fn switch_is_known(&self) -> bool {
        tokio::time::timeout(SWITCH, self.ovs.connected()).await.is_ok()
    }

    fn begin(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }
}

/// External id that holds the pod's UID (Weir's addition).
pub const POD_UID: &str = "pod_uid";
/// External id that holds the container id (Weir's addition).
pub const CONTAINER_ID: &str = "container_id";
/// External id that holds the name inside the pod (Weir's addition).
pub const IF_NAME: &str = "ifname";
/// External id that holds the CNI network's name (Weir's addition).
pub const NETWORK: &str = "cni_network";
/// External id that holds the provider of the attachment (Weir's addition).
pub const PROVIDER: &str = "cni_provider";
/// External id that holds the routes of the network configuration, as JSON:
/// the interface may have to be made again (Weir's addition).
pub const ROUTES: &str = "cni_routes";

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits longest gives up last: the agent answers in words before the executable stops listening.
    #[test]
    fn all_waits_of_an_add_end_before_its_caller_gives_up() {
        let patience = Patience::default();
        assert!(patience.whole < cni::plugin::ADD_TIMEOUT);
        // Without a queue every wait has its whole length, and the gateways what is left.
        let before = patience.watch + patience.annotations + patience.installed + patience.unique;
        assert!(patience.for_gateway(before) >= Duration::from_secs(10));
        assert_eq!(patience.for_gateway(Duration::ZERO), patience.gateway);
        assert_eq!(patience.for_gateway(Duration::from_secs(1000)), Duration::from_secs(1));
        // After a queue the switch has what is left.
        assert_eq!(patience.for_switch(Duration::ZERO), patience.installed);
        assert_eq!(patience.for_switch(Duration::from_secs(90)), Duration::from_secs(10));
        assert_eq!(patience.for_switch(Duration::from_secs(1000)), Duration::from_secs(1));
        assert!(SWITCH + patience.installed < cni::plugin::CHECK_TIMEOUT);
        // Kubelet waits four minutes for a sandbox (twice its runtime-request-timeout).
        assert!(cni::plugin::ADD_TIMEOUT < Duration::from_secs(240));
    }
}
