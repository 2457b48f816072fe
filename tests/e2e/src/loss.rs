//! A node that dies under a test, and comes back.
//!
//! In: a running cluster and one of its nodes. Out: the node is seen as dead, or
//! serves pods again.

use anyhow::Result;
use lab::progress::{Look, wait_for};
use lab::state::Node;
use lab::{api, life, node};

use crate::cluster::{Cluster, PATIENCE, SYSTEM};

/// Sees to it that the controller is not on the node that is about to die: its pod would only be replaced after
/// minutes, which is Kubernetes' business and not what is looked at.
pub fn controller_elsewhere(cluster: &Cluster, doomed: &Node) -> Result<()> {
    let pods = cluster.system_pods("kube-ovn-controller")?;
    if pods.iter().any(|pod| api::text(pod, "/spec/nodeName") == doomed.name) {
        cluster.kubectl(&["cordon", &doomed.name])?;
        let moved = cluster
            .kubectl(&["-n", SYSTEM, "delete", "pod", "-l", "app=kube-ovn-controller"])
            .and_then(|_| cluster.wait_system("kube-ovn-controller", 1));
        cluster.kubectl(&["uncordon", &doomed.name])?;
        moved?;
    }
    Ok(())
}

/// Waits until the API server takes a node for dead.
pub fn wait_not_ready(cluster: &Cluster, node: &Node) -> Result<()> {
    wait_for("the node to be seen as NotReady", PATIENCE, || {
        let object = api::get(&cluster.lab, &format!("/api/v1/nodes/{}", node.name))?;
        let ready = api::condition(&object, "Ready").to_owned();
        Ok(if ready == "True" { Look::NotYet(ready) } else { Look::Ready(()) })
    })
}

/// Starts a node that is off, and waits until it serves pods.
pub fn bring_back(cluster: &Cluster, node: &Node) -> Result<()> {
    node::start(&cluster.lab, node)?;
    life::wait_nodes_ready(&cluster.lab, PATIENCE)?;
    cluster.wait_system("kube-ovn-cni", cluster.nodes()?.len()).map(drop)
}
