//! Nothing leaks: whatever is created, deleted and broken, afterwards everything
//! is as before.

use std::time::Duration;

use anyhow::Result;
use e2e::cluster::Cluster;
use e2e::inventory::Inventory;
use e2e::workload::Namespace;
use lab::netns;
use lab::plan::Net;
use lab::progress::say;

#[test]
fn ten_times_thirty_pods_leave_nothing_behind() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "churn")?;
    let before = Inventory::take(&cluster)?;
    for round in 0..10 {
        let pods: Vec<_> =
            (0..30).map(|i| namespace.pod(&format!("r{round}-{i}"), &nodes[i % 2].name)).collect();
        namespace.apply(&pods)?;
        match round {
            // Deleted while they are still being made, nobody waits for anything.
            1 | 4 | 8 => {}
            // A node's runtime dies in the middle; its supervisor starts it again.
            2 => drop(cluster.sh(&nodes[1], "pkill -KILL -x containerd")?),
            // A node is cut off in the middle, and deleted pods are forgotten by
            // the API while their node can't hear of it.
            6 => {
                netns::cut(&cluster.lab.plan, &nodes[1].member(), &Net::ALL)?;
                let deleted = namespace.delete_pods(true);
                netns::heal(&cluster.lab.plan, &nodes[1].member(), &Net::ALL)?;
                deleted?;
            }
            _ => drop(namespace.wait_ready(30, Duration::from_secs(240))?),
        }
        namespace.delete_pods(round % 3 != 0)?;
        say(format!("churn: round {round} done"));
    }
    before.wait_restored(&cluster)
}
