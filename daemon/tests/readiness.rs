//! Who waits for the agent's readiness is woken by whatever was missing, against a real switch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use daemon::daemons::Daemons;
use daemon::kube::Cluster;
use daemon::node::NodeStatus;
use daemon::readiness::Readiness;
use futures::FutureExt;
use support::Node;
use tokio::sync::watch;

/// The kinds, each as the first list of its watch loads it.
const KINDS: [fn(&Cluster); 10] = [
    |cluster| cluster.pods.replace(BTreeMap::new()),
    |cluster| cluster.nodes.replace(BTreeMap::new()),
    |cluster| cluster.subnets.replace(BTreeMap::new()),
    |cluster| cluster.service_cidrs.replace(BTreeMap::new()),
    |cluster| cluster.provider_networks.replace(BTreeMap::new()),
    |cluster| cluster.vlans.replace(BTreeMap::new()),
    |cluster| cluster.own_node.replace(BTreeMap::new()),
    |cluster| cluster.external_gateway.replace(BTreeMap::new()),
    |cluster| cluster.ovn_eips.replace(BTreeMap::new()),
    |cluster| cluster.services.replace(BTreeMap::new()),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_watch_is_loaded_last_ends_the_wait() {
    let node = Node::start().await;
    let status = watch::Sender::new(NodeStatus { ready: true, ..NodeStatus::default() });
    let (daemons, host) = (watch::Sender::new(Daemons::default()), watch::Sender::new(true));
    for (last, load_last) in KINDS.iter().enumerate() {
        let cluster = Arc::new(Cluster::default());
        assert_eq!(cluster.status().len(), KINDS.len());
        let readiness = Readiness {
            cluster: cluster.clone(),
            ovs: node.ovs.clone(),
            node: status.subscribe(),
            daemons: daemons.subscribe(),
            host_applied: host.subscribe(),
        };
        for (kind, load) in KINDS.iter().enumerate() {
            if kind != last {
                load(&cluster);
            }
        }
        let mut ready = std::pin::pin!(readiness.ready());
        assert!(ready.as_mut().now_or_never().is_none(), "{last}: {:?}", readiness.missing());
        load_last(&cluster);
        let ended = tokio::time::timeout(Duration::from_secs(60), ready).await;
        assert!(ended.is_ok(), "{last} wakes nobody");
    }
}
