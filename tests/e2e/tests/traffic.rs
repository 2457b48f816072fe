//! Nothing of ours that stops or starts is seen by running pods.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::flow::Flow;
use e2e::network::{shell_pod, views};
use e2e::workload::Namespace;
use lab::progress::say;
use serde_json::json;

/// Pods on both nodes, pings in both directions and each family.
fn flows(cluster: &Cluster, namespace: &Namespace<'_>) -> Result<Vec<Flow>> {
    let views = views(namespace)?;
    let mut flows = Vec::new();
    for v4 in cluster.lab.plan.family.select(true, false) {
        flows.push(Flow::start(cluster, &views[0], views[1].address(v4)?)?);
    }
    Ok(flows)
}

fn no_outage(flows: Vec<Flow>, what: &str) -> Result<()> {
    let mut lost = Vec::new();
    for flow in flows {
        let loss = flow.end()?;
        say(format!("{what}: {loss}"));
        // A shared machine drops a packet of a flood now and then; an outage is a run of them.
        if loss.longest > 20 {
            lost.push(loss.to_string());
        }
    }
    ensure!(lost.is_empty(), "{what}: {}", lost.join("; "));
    Ok(())
}

#[test]
fn u19_traffic_goes_on_while_our_processes_start_anew() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "calm")?;
    namespace.apply(&[
        shell_pod(&namespace, "a", &nodes[0].name, &json!({})),
        shell_pod(&namespace, "b", &nodes[1].name, &json!({})),
    ])?;
    namespace.wait_ready(2, PATIENCE)?;
    for (app, count) in [("kube-ovn-cni", nodes.len()), ("kube-ovn-controller", 1), ("ovn-central", 1)] {
        let running = flows(&cluster, &namespace)?;
        std::thread::sleep(Duration::from_secs(1));
        let selector = format!("app={app}");
        cluster.kubectl(&["-n", SYSTEM, "delete", "pod", "-l", &selector, "--grace-period=5"])?;
        let back = cluster.wait_system(app, count);
        std::thread::sleep(Duration::from_secs(2));
        no_outage(running, &format!("{app} started anew"))?;
        back?;
    }
    namespace.delete_pods(true)
}
