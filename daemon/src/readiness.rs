//! Whether the agent can serve an ADD, and what is missing if not.

use std::sync::Arc;

use tokio::sync::watch;

use crate::daemons::Daemons;
use crate::kube::{Cluster, Unknown};
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
        missing.extend(unloaded(&self.cluster.unknown()));
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

    /// Waits until nothing is missing; `false` if a part has ended, which leaves things missing for ever.
    pub async fn ready(&self) -> bool {
        let mut objects = self.cluster.objects();
        let (mut views, mut node, mut host) =
            (self.ovs.subscribe(), self.node.clone(), self.host_applied.clone());
        let mut daemons = self.daemons.clone();
        loop {
            objects.mark_unchanged();
            if self.missing().is_empty() {
                return true;
            }
            let goes_on = tokio::select! {
                goes_on = objects.changed() => goes_on,
                changed = views.changed() => changed.is_ok(),
                changed = node.changed() => changed.is_ok(),
                changed = host.changed() => changed.is_ok(),
                changed = daemons.changed() => changed.is_ok(),
            };
            if !goes_on {
                return false;
            }
        }
    }
}

/// What is missing of the API server's objects. A kind that is refused is told with who can help.
fn unloaded(unknown: &[Unknown]) -> Option<NotYet> {
    let named = |kind: &Unknown| match kind.refused {
        Some(code) => format!("{} (the API server refuses it: {code})", kind.kind),
        None => kind.kind.to_owned(),
    };
    let names: Vec<String> = unknown.iter().map(named).collect();
    let refused: Vec<&str> =
        unknown.iter().filter(|kind| kind.refused.is_some()).map(|kind| kind.kind).collect();
    let remedy = match refused.is_empty() {
        true => "check the API server and the agent's permissions".to_owned(),
        false => permit(&refused),
    };
    (!names.is_empty())
        .then(|| NotYet::new("watches", format!("not loaded yet: {}", names.join(", ")), remedy))
}

/// What helps when the API server forbids to see these kinds.
pub fn permit(kinds: &[&str]) -> String {
    let resources = kinds.iter().map(|kind| if *kind == "own-node" { "nodes" } else { kind });
    let resources = resources.collect::<Vec<_>>().join(", ");
    format!("let the agent's ClusterRole (system:kube-ovn-cni) get, list and watch {resources}")
}
