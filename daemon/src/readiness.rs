//! Whether the agent can serve an ADD, and what is missing if not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::kube::Cluster;
use crate::node::{NodeStatus, NotYet};
use crate::ovs::Ovs;

/// Looks at everything that an ADD needs. Cheap to clone.
#[derive(Clone)]
pub struct Readiness {
    /// Watches.
    pub cluster: Arc<Cluster>,
    /// The switch.
    pub ovs: Ovs,
    /// The node's steps.
    pub node: watch::Receiver<NodeStatus>,
    /// The host's routes and firewall were applied once.
    pub host_applied: Arc<AtomicBool>,
}

impl Readiness {
    /// What is missing; empty when ready. The join gateway's silence is told by
    /// the node's condition and keeps no pod waiting.
    pub fn missing(&self) -> Vec<NotYet> {
        let mut missing = Vec::new();
        if !self.ovs.view().is_connected() {
            missing.push(NotYet::new(
                "ovs",
                "no connection to the local OVS database",
                "is the ovs-ovn pod running on this node?",
            ));
        }
        let unsynced: Vec<&str> =
            self.cluster.status().into_iter().filter(|watch| !watch.synced).map(|watch| watch.kind).collect();
        if !unsynced.is_empty() {
            missing.push(NotYet::new(
                "watches",
                format!("not loaded yet: {}", unsynced.join(", ")),
                "check the API server and the agent's permissions",
            ));
        }
        let node = self.node.borrow();
        if node.missing.is_empty() && !node.ready {
            missing.push(NotYet::new("node", "initialisation has not run yet", ""));
        }
        missing.extend(node.missing.values().filter(|step| step.step != "ovs").cloned());
        if !self.host_applied.load(Ordering::Relaxed) {
            missing.push(NotYet::new(
                "host",
                "routes and firewall are not applied yet",
                "see the agent's log",
            ));
        }
        missing
    }
}
