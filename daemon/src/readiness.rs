//! Whether the agent can serve an ADD, and what is missing if not.

use std::sync::Arc;

use tokio::sync::watch;

use crate::daemons::Daemons;
use crate::frame::Objects;
use crate::kube::Cluster;
use crate::node::{NodeStatus, NotYet};
use crate::ovs::{BR_INT, Ovs};

/// Looks at everything that an ADD needs. Cheap to clone.
#[derive(Clone)]
pub struct Readiness {
    /// Watches.
    pub cluster: Arc<Cluster>,
    /// The switch.
    pub ovs: Ovs,
    /// The node's steps.
    pub node: watch::Receiver<NodeStatus>,
    /// Whether the programs beside the agent live.
    pub daemons: watch::Receiver<Daemons>,
    /// The host's routes and firewall were applied once.
    pub host_applied: watch::Receiver<bool>,
}

impl Readiness {
    /// What is missing; empty when ready. The join gateway's silence is told by
    /// the node's condition and keeps no pod waiting.
    pub fn missing(&self) -> Vec<NotYet> {
        let mut missing = Vec::new();
        if !self.ovs.view().is_connected() {
            missing.push(NotYet::new(
                "ovs",
                "no connection to the local OVS database: ovsdb-server is dead or not there yet",
                "is the ovs-ovn pod running on this node?",
            ));
        } else if self.ovs.view().bridge(BR_INT).is_none() {
            missing.push(NotYet::new(
                "br-int",
                "the switch has no bridge br-int",
                "ovn-controller makes it: is the ovs-ovn pod running on this node?",
            ));
        }
        missing.extend(self.daemons.borrow().missing());
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
        if !*self.host_applied.borrow() {
            missing.push(NotYet::new(
                "host",
                "routes and firewall are not applied yet",
                "see the agent's log",
            ));
        }
        missing
    }

    /// Waits until nothing is missing.
    pub async fn ready(&self) {
        let cluster = &self.cluster;
        // All that `missing` looks at.
        let mut objects = Objects::default()
            .and(cluster.pods.subscribe())
            .and(cluster.nodes.subscribe())
            .and(cluster.subnets.subscribe())
            .and(cluster.service_cidrs.subscribe())
            .and(cluster.provider_networks.subscribe())
            .and(cluster.vlans.subscribe())
            .and(cluster.own_node.subscribe())
            .and(cluster.external_gateway.subscribe())
            .and(cluster.ovn_eips.subscribe())
            .and(cluster.services.subscribe());
        let (mut views, mut node, mut host) =
            (self.ovs.subscribe(), self.node.clone(), self.host_applied.clone());
        let mut daemons = self.daemons.clone();
        while !self.missing().is_empty() {
            // A part that ended can't become ready any more: the process ends.
            tokio::select! {
                _ = objects.changed() => {}
                _ = views.changed() => {}
                _ = node.changed() => {}
                _ = host.changed() => {}
                _ = daemons.changed() => {}
            }
        }
    }
}
