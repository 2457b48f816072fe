//! A restarted controller writes nothing that is there already, repairs exactly
//! what is not, and serves what came meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::audit;
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::proxy::Proxy;
use e2e::workload::Namespace;
use lab::api;
use lab::progress::{Look, wait_for};
use ovsdb::{Operation, Value};

/// How long a controller must have been silent to count as settled. This is
/// an observation window, not a bound on speed: a controller that would still
/// write has more than enough reason to do so within it.
const SILENCE: Duration = Duration::from_secs(5);

/// Restarts the controller and waits until it is ready and has been silent.
fn restart_and_settle(cluster: &Cluster, proxy: &Proxy<'_>) -> Result<()> {
    cluster.scale_controller(0)?;
    cluster.scale_controller(1)?;
    settle(proxy)
}

/// Waits until a leader has written its token and then nothing for a while.
fn settle(proxy: &Proxy<'_>) -> Result<()> {
    let mut seen = (usize::MAX, std::time::Instant::now());
    wait_for("a settled controller", PATIENCE, || {
        let count = proxy.transactions()?.len();
        if count != seen.0 {
            seen = (count, std::time::Instant::now());
        }
        let silent = count > 0 && seen.1.elapsed() >= SILENCE;
        Ok(if silent { Look::Ready(()) } else { Look::NotYet(format!("{count} transactions")) })
    })
}

#[test]
fn restart_with_100_pods_writes_the_epoch_token_and_nothing_else() -> Result<()> {
    let cluster = Cluster::open()?;
    let proxy = Proxy::start(&cluster)?;
    let namespace = Namespace::create(&cluster, "restart")?;
    let nodes = cluster.nodes()?;
    let pods: Vec<_> = (0..100).map(|i| namespace.pod(&format!("p-{i}"), &nodes[i % 2].name)).collect();
    namespace.apply(&pods)?;
    namespace.wait_ready(100, Duration::from_secs(300))?;
    settle(&proxy)?;

    let (mark, before) = (audit::mark(&cluster.lab)?, proxy.transactions()?.len());
    restart_and_settle(&cluster, &proxy)?;
    let transactions = proxy.transactions()?.split_off(before);
    let writes = audit::weir_writes_since(&cluster.lab, &mark)?;
    println!("restart with 100 pods: {} transactions, {} API writes", transactions.len(), writes.len());
    ensure!(transactions.len() == 1, "expected only the epoch token: {transactions:#?}");
    ensure!(Proxy::is_epoch_token(&transactions[0].1), "not an epoch token: {}", transactions[0].1);
    ensure!(writes.is_empty(), "expected no API write but the Lease's: {writes:#?}");

    // While the controller is down: one column altered, one owned row deleted,
    // one foreign row added. Exactly two repairs.
    cluster.scale_controller(0)?;
    let northbound = cluster.northbound()?;
    let ports = northbound.by_name("Logical_Switch_Port", "name");
    let altered = ports.get("p-0.restart").context("no port of p-0")?;
    let deleted = ports.get("p-1.restart").context("no port of p-1")?;
    let switch = northbound.by_name("Logical_Switch", "name");
    let switch = switch.get("ovn-default").context("no switch ovn-default")?;
    let foreign = ovsdb::Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0001);
    northbound.transact(vec![
        Operation::update("Logical_Switch_Port")
            .by_uuid(altered.uuid)
            .column("addresses", Value::strings(["0a:00:00:00:00:01 10.16.200.200"]))
            .build(),
        Operation::mutate("Logical_Switch")
            .by_uuid(switch.uuid)
            .delete_set("ports", Value::uuids([deleted.uuid]))
            .insert_set("ports", Value::uuids([foreign]))
            .build(),
        Operation::insert("Logical_Switch_Port")
            .uuid(foreign)
            .column("name", Value::string("by-hand"))
            .column("external_ids", Value::string_map([("owner", "somebody else")]))
            .build(),
    ])?;
    let before = proxy.transactions()?.len();
    cluster.scale_controller(1)?;
    wait_for("both repairs", PATIENCE, || {
        let ports = cluster.northbound()?.by_name("Logical_Switch_Port", "name");
        let whole = ports.get("p-0.restart").and_then(|row| row.get("addresses")) == altered.get("addresses")
            && ports.contains_key("p-1.restart");
        Ok(if whole { Look::Ready(()) } else { Look::NotYet("not repaired".into()) })
    })?;
    settle(&proxy)?;
    let transactions = proxy.transactions()?.split_off(before);
    let changed: BTreeSet<String> = transactions
        .iter()
        .filter(|(_, parameters)| !Proxy::is_epoch_token(parameters))
        .flat_map(|(_, parameters)| Proxy::changes(parameters))
        // The repaired row is inserted and put back into its switch and its two groups.
        .filter(|operation| operation["table"] == "Logical_Switch_Port")
        .map(|operation| format!("{} {}", operation["op"], operation["row"]))
        .collect();
    ensure!(changed.len() == 2, "expected exactly two repaired rows: {transactions:#?}");
    let after = cluster.northbound()?;
    ensure!(after.by_name("Logical_Switch_Port", "name").contains_key("by-hand"), "the foreign row is gone");
    after.transact(vec![
        Operation::mutate("Logical_Switch")
            .by_uuid(switch.uuid)
            .delete_set("ports", Value::uuids([foreign]))
            .build(),
    ])?;

    // Running: an owned row that is deleted by hand is back.
    let row = after.by_name("Logical_Switch_Port", "name");
    let row = row.get("p-2.restart").context("no port of p-2")?.clone();
    after.transact(vec![
        Operation::mutate("Logical_Switch")
            .by_uuid(switch.uuid)
            .delete_set("ports", Value::uuids([row.uuid]))
            .build(),
    ])?;
    let deleted_at = std::time::Instant::now();
    wait_for("the deleted row to be back", Duration::from_secs(10), || {
        let back = cluster.northbound()?.by_name("Logical_Switch_Port", "name").contains_key("p-2.restart");
        Ok(if back { Look::Ready(()) } else { Look::NotYet("still gone".into()) })
    })?;
    println!("a row deleted by hand was back after {} ms at most", deleted_at.elapsed().as_millis());
    namespace.delete_pods(true)
}

#[test]
fn pods_created_and_deleted_while_a_part_is_down_end_right() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let namespace = Namespace::create(&cluster, "downtime")?;
    namespace.apply(&[namespace.pod("old", &nodes[0].name)])?;
    namespace.wait_ready(1, PATIENCE)?;

    // The controller is down: one pod goes, others come.
    cluster.scale_controller(0)?;
    cluster.kubectl(&["-n", &namespace.name, "delete", "pod", "old", "--grace-period=0", "--force"])?;
    let pods: Vec<_> = (0..6).map(|i| namespace.pod(&format!("c-{i}"), &nodes[i % 2].name)).collect();
    namespace.apply(&pods)?;
    cluster.scale_controller(1)?;
    namespace.wait_ready(6, PATIENCE)?;
    wait_for("the port of the deleted pod to be gone", PATIENCE, || {
        let there = cluster.northbound()?.by_name("Logical_Switch_Port", "name").contains_key("old.downtime");
        let ips = api::list(&cluster.lab, "/apis/kubeovn.io/v1/ips")?;
        let ip = ips.iter().any(|ip| api::text(ip, "/metadata/name") == "old.downtime");
        Ok(if there || ip { Look::NotYet(format!("port {there}, IP object {ip}")) } else { Look::Ready(()) })
    })?;

    // The daemons are down: pods are created, the daemons come back.
    let away = r#"{"spec":{"template":{"spec":{"nodeSelector":{"weir-test/nowhere":"true"}}}}}"#;
    let back = r#"{"spec":{"template":{"spec":{"nodeSelector":{"weir-test/nowhere":null}}}}}"#;
    cluster.kubectl(&["-n", SYSTEM, "patch", "daemonset", "kube-ovn-cni", "-p", away])?;
    cluster.wait_system("kube-ovn-cni", 0)?;
    let more: Vec<_> = (0..6).map(|i| namespace.pod(&format!("d-{i}"), &nodes[i % 2].name)).collect();
    namespace.apply(&more)?;
    cluster.kubectl(&["-n", &namespace.name, "delete", "pod", "c-0", "--wait=false"])?;
    cluster.kubectl(&["-n", SYSTEM, "patch", "daemonset", "kube-ovn-cni", "-p", back])?;
    cluster.wait_system("kube-ovn-cni", nodes.len())?;
    namespace.wait_ready(11, PATIENCE)?;
    namespace.delete_pods(true)
}
