//! Nothing of ours that stops or starts is seen by running pods.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::drops::Drops;
use e2e::flow::{Flow, Loss};
use e2e::network::{shell_pod, views};
use e2e::workload::Namespace;
use lab::checks::probe;
use lab::progress::say;
use serde_json::json;

/// Pings between pods on both nodes in each family, and between the nodes beside them: past every switch of ours.
struct Running {
    pods: Vec<Flow>,
    beside: Vec<Flow>,
    drops: Drops,
}

fn start(cluster: &Cluster, namespace: &Namespace<'_>) -> Result<Running> {
    let (nodes, views) = (cluster.nodes()?, views(namespace)?);
    let (mut pods, mut beside) = (Vec::new(), Vec::new());
    for v4 in cluster.lab.plan.family.select(true, false) {
        pods.push(Flow::start(cluster, &views[0], views[1].address(v4)?)?);
        let node = probe::node_address(&cluster.lab, &nodes[1], v4);
        beside.push(Flow::start_on(cluster, &nodes[0], node)?);
    }
    Ok(Running { pods, beside, drops: Drops::take(cluster)? })
}

fn no_outage(cluster: &Cluster, running: Running, what: &str) -> Result<()> {
    let end = |flows: Vec<Flow>| flows.into_iter().map(Flow::end).collect::<Result<Vec<Loss>>>();
    let (pods, beside) = (end(running.pods)?, end(running.beside)?);
    let dropped = Drops::take(cluster)?.since(&running.drops).join(", ");
    let mut wrong = Vec::new();
    for loss in &pods {
        say(format!("{what}: {loss}"));
        let alone = loss.alone(&beside);
        if !alone.is_empty() {
            wrong.push(format!("{loss}; while nothing was lost beside it: {alone:?}"));
        }
    }
    for loss in &beside {
        say(format!("beside, through the kernel alone: {loss}"));
    }
    say(format!("dropped, by those who did: {dropped}"));
    ensure!(wrong.is_empty(), "{what}: {}", wrong.join("; "));
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
        let running = start(&cluster, &namespace)?;
        std::thread::sleep(Duration::from_secs(1));
        let selector = format!("app={app}");
        cluster.kubectl(&["-n", SYSTEM, "delete", "pod", "-l", &selector, "--grace-period=5"])?;
        let back = cluster.wait_system(app, count);
        std::thread::sleep(Duration::from_secs(2));
        no_outage(&cluster, running, &format!("{app} started anew"))?;
        back?;
    }
    namespace.delete_pods(true)
}
