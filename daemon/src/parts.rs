//! What each loop of the node works with.

use std::sync::Arc;

use tokio::sync::watch;

use crate::changes::Changes;
use crate::hostnet::HostNet;
use crate::kube::{Cluster, Recorder};
use crate::node::NodeStatus;
use crate::ovs::Ovs;

/// The parts. Cheap to clone.
#[derive(Clone)]
pub struct NodeParts {
    /// This node.
    pub node: String,
    /// The API server; `None` writes nothing (tests, clean-up).
    pub client: Option<kube::Client>,
    /// Watched objects.
    pub cluster: Arc<Cluster>,
    /// The local switch.
    pub ovs: Ovs,
    /// The host's network.
    pub host: HostNet,
    /// Events.
    pub recorder: Recorder,
    /// Where the node stands: its MTU, whether packets need complete checksums.
    pub status: watch::Receiver<NodeStatus>,
    /// The feed of diagnostics.
    pub feed: Changes,
}

impl NodeParts {
    /// For work on the node alone: no object is known, nothing is written or told.
    pub fn alone(node: String, ovs: Ovs, host: HostNet, status: watch::Receiver<NodeStatus>) -> Self {
        Self {
            node,
            client: None,
            cluster: Arc::default(),
            ovs,
            host,
            recorder: Recorder::disabled(),
            status,
            feed: Changes::default(),
        }
    }
}
