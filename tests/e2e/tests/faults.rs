//! Connections that die without a word, and leaders that sleep.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::workload::Namespace;
use lab::api;
use lab::netns;
use lab::plan::Net;
use lab::progress::{Look, say, wait_for};
use ovsdb::{Operation, Value};

/// How long packets vanish. Longer than every lease and probe interval.
const DARKNESS: Duration = Duration::from_secs(60);
/// After healing everything must be right again within this.
const RECOVERY: Duration = Duration::from_secs(10);

fn port_exists(cluster: &Cluster, name: &str) -> Result<bool> {
    Ok(cluster.northbound()?.by_name("Logical_Switch_Port", "name").contains_key(name))
}

#[test]
fn deletions_missed_in_a_silent_minute_are_delivered() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "darkness")?;
    namespace.apply(&[namespace.pod("victim", &nodes[1].name), namespace.pod("other", &nodes[1].name)])?;
    namespace.wait_ready(2, PATIENCE)?;

    // The node of the controller and the databases loses the API server: no RST,
    // packets just vanish.
    netns::cut(&cluster.lab.plan, &nodes[0].member(), &[Net::Management])?;
    let cut = Instant::now();
    let during =
        cluster.kubectl(&["-n", &namespace.name, "delete", "pod", "victim", "--grace-period=0", "--force"]);
    let before = cluster.northbound().map(|nb| nb.by_name("Logical_Switch_Port", "name").len());
    while cut.elapsed() < DARKNESS {
        std::thread::sleep(Duration::from_secs(1));
    }
    let after = cluster.northbound().map(|nb| nb.by_name("Logical_Switch_Port", "name").len());
    netns::heal(&cluster.lab.plan, &nodes[0].member(), &[Net::Management])?;
    let healed = Instant::now();
    during?;
    ensure!(before? == after?, "a controller without the API server wrote to the database");
    wait_for("the port of the pod deleted meanwhile to be gone", RECOVERY, || {
        Ok(if port_exists(&cluster, "victim.darkness")? {
            Look::NotYet("still there".into())
        } else {
            Look::Ready(())
        })
    })?;
    say(format!("missed deletion carried out {} ms after healing", healed.elapsed().as_millis()));
    cluster.wait_system("kube-ovn-controller", 1)?;
    namespace.delete_pods(true)
}

#[test]
fn a_silent_database_connection_is_noticed() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "silence")?;
    namespace.apply(&[namespace.pod("p", &nodes[1].name)])?;
    namespace.wait_ready(1, PATIENCE)?;
    let port = 6641;
    let rule = |verb: &str| -> Result<()> {
        for (program, wanted) in [("iptables", true), ("ip6tables", cluster.lab.plan.family.v6())] {
            for side in ["--dport", "--sport"] {
                if wanted {
                    cluster
                        .sh(&nodes[0], &format!("{program} -w {verb} INPUT -p tcp {side} {port} -j DROP"))?;
                }
            }
        }
        Ok(())
    };
    rule("-I")?;
    let begun = Instant::now();
    let altered = (|| -> Result<()> {
        let northbound = cluster.northbound()?;
        let switch = northbound.by_name("Logical_Switch", "name");
        let row = northbound.by_name("Logical_Switch_Port", "name");
        northbound.transact(vec![
            Operation::mutate("Logical_Switch")
                .by_uuid(switch.get("ovn-default").context("no switch")?.uuid)
                .delete_set("ports", Value::uuids([row.get("p.silence").context("no port")?.uuid]))
                .build(),
        ])?;
        while begun.elapsed() < DARKNESS {
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    })();
    rule("-D")?;
    let healed = Instant::now();
    altered?;
    wait_for("the row deleted meanwhile to be back", RECOVERY, || {
        Ok(if port_exists(&cluster, "p.silence")? {
            Look::Ready(())
        } else {
            Look::NotYet("still gone".into())
        })
    })?;
    say(format!("repaired {} ms after healing", healed.elapsed().as_millis()));
    namespace.delete_pods(true)
}

/// The name and node of the pod that leads.
fn leader(cluster: &Cluster) -> Result<String> {
    let lease = api::get(
        &cluster.lab,
        &format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/kube-ovn-controller"),
    )?;
    Ok(api::text(&lease, "/spec/holderIdentity").to_owned())
}

#[test]
fn a_leader_that_slept_through_a_hand_over_writes_nothing() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "sleeper")?;
    cluster.kubectl(&["label", "node", "--all", "kube-ovn/role=master", "--overwrite"])?;
    cluster.scale_controller(2)?;
    let old = leader(&cluster)?;
    let pods = cluster.system_pods("kube-ovn-controller")?;
    let sleeper = pods
        .iter()
        .find(|pod| {
            old.contains(api::text(pod, "/metadata/name")) || old.contains(api::text(pod, "/metadata/uid"))
        })
        .with_context(|| format!("no pod is the leader {old}"))?;
    let on = cluster.lab.node(api::text(sleeper, "/spec/nodeName"))?;
    // A pod of the old leader's time, and a request that reaches it asleep.
    namespace.apply(&[namespace.pod("first", &nodes[0].name)])?;
    namespace.wait_ready(1, PATIENCE)?;
    cluster.sh(&on, "pkill -STOP -x kube-ovn-contro || pkill -STOP -f '^/kube-ovn/kube-ovn-controller'")?;
    let handed_over = (|| {
        cluster.kubectl(&["-n", &namespace.name, "delete", "pod", "first", "--grace-period=0", "--force"])?;
        wait_for("another leader", PATIENCE, || {
            let now = leader(&cluster)?;
            Ok(if now == old || now.is_empty() { Look::NotYet(now) } else { Look::Ready(()) })
        })?;
        // The new leader works: its pods are served, the old one's port is gone.
        namespace.apply(&[namespace.pod("second", &nodes[1].name)])?;
        namespace.wait_ready(1, PATIENCE)
    })();
    let token = |cluster: &Cluster| -> Result<Option<String>> {
        let northbound = cluster.northbound()?;
        let global = northbound.replica.table("NB_Global").and_then(|table| table.rows().next().cloned());
        Ok(global.and_then(|row| row.map_get("external_ids", "weir-epoch").map(str::to_owned)))
    };
    let epoch = token(&cluster);
    cluster.sh(&on, "pkill -CONT -x kube-ovn-contro || pkill -CONT -f '^/kube-ovn/kube-ovn-controller'")?;
    handed_over?;
    // The sleeper wakes up, sees that it is not the leader any more and starts anew.
    wait_for("the old leader to have started anew", PATIENCE, || {
        let pods = cluster.system_pods("kube-ovn-controller")?;
        let woken = pods.iter().find(|pod| pod["metadata"]["name"] == sleeper["metadata"]["name"]);
        let count = |pod: &serde_json::Value| {
            pod.pointer("/status/containerStatuses/0/restartCount").and_then(serde_json::Value::as_u64)
        };
        let (restarts, before) = (woken.and_then(count), count(sleeper));
        let ready = woken.is_some_and(|pod| api::condition(pod, "Ready") == "True");
        Ok(if restarts > before && ready { Look::Ready(()) } else { Look::NotYet(format!("{restarts:?}")) })
    })?;
    ensure!(token(&cluster)? == epoch?, "the old leader took the epoch back");
    ensure!(!port_exists(&cluster, "first.sleeper")?, "the old leader brought its port back");
    ensure!(port_exists(&cluster, "second.sleeper")?, "the new leader's port is gone");
    namespace.delete_pods(true)?;
    cluster.scale_controller(1)?;
    for node in &nodes[1..] {
        cluster.kubectl(&["label", "node", &node.name, "kube-ovn/role-"])?;
    }
    Ok(())
}
