//! `weir plan` and `weir verify` against a live cluster: they find nothing after
//! churn, show a row that was altered by hand, and see it healed.

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE, SYSTEM};
use e2e::network::Made;
use e2e::workload::Namespace;
use lab::progress::{Look, say, wait_for};
use lab::run::{capture, command};
use ovsdb::{Operation, Value};
use serde_json::json;

/// What `weir ACTION` says of the controller.
fn weir(cluster: &Cluster, action: &str) -> Result<String> {
    cluster.kubectl(&["ko", action])
}

/// Waits until `weir plan` has nothing to do: what was ordered is carried out.
fn wait_nothing_planned(cluster: &Cluster) -> Result<()> {
    wait_for("weir plan to find nothing", PATIENCE, || {
        let plan = weir(cluster, "plan")?;
        Ok(if plan.starts_with("nothing to change") { Look::Ready(()) } else { Look::NotYet(plan) })
    })
}

/// Gives the Lease of the controllers to nobody of ours, or (an empty name) back.
fn give_lease(cluster: &Cluster, holder: &str) -> Result<()> {
    let now = capture(&mut command("date", ["-u", "+%Y-%m-%dT%H:%M:%S.000000Z"]))?;
    let seconds = if holder.is_empty() { 1 } else { 3600 };
    let spec = json!({"spec": {
        "holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": now.trim(), "acquireTime": now.trim(),
    }});
    let patch =
        ["-n", SYSTEM, "patch", "lease", "kube-ovn-controller", "--type=merge", "-p", &spec.to_string()];
    cluster.kubectl(&patch).map(drop)
}

/// Gives the Lease back when dropped.
struct Follower<'a>(&'a Cluster);

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        if let Err(error) = give_lease(self.0, "").and_then(|()| self.0.scale_controller(1)) {
            eprintln!("the controller does not lead again: {error:#}");
        }
    }
}

#[test]
fn plan_and_verify_find_nothing_after_churn_and_a_row_altered_by_hand() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let mut made = Made::new(&cluster);
    let namespace = Namespace::create(&cluster, "plans")?;
    let cidr = cluster.lab.plan.family.join("10.140.0.0/24", "fd00:10:140::/64");
    made.subnet("plans", json!({"cidrBlock": cidr, "private": true, "natOutgoing": true}))?;
    for round in 0..3 {
        let pods: Vec<_> = (0..10)
            .map(|i| {
                let mut pod = namespace.pod(&format!("r{round}-{i}"), &nodes[i % 2].name);
                if i % 3 == 0 {
                    pod["metadata"]["annotations"] = json!({"ovn.kubernetes.io/logical_switch": "plans"});
                }
                pod
            })
            .collect();
        namespace.apply(&pods)?;
        if round > 0 {
            // Some before they have their addresses.
            namespace.wait_ready(10, PATIENCE)?;
        }
        if round < 2 {
            namespace.delete_pods(true)?;
        }
    }
    wait_nothing_planned(&cluster)?;
    let verified = weir(&cluster, "verify")?;
    ensure!(verified.contains("no difference"), "{verified}");
    say(format!("after churn: {}", verified.trim()));

    // A controller that follows: another one holds the Lease.
    cluster.scale_controller(0)?;
    give_lease(&cluster, "somebody-else")?;
    let follower = Follower(&cluster);
    cluster.scale_controller(1)?;
    wait_nothing_planned(&cluster)?;
    let northbound = cluster.northbound()?;
    let ports = northbound.by_name("Logical_Switch_Port", "name");
    let row = ports.get("r2-0.plans").context("no port of r2-0")?.clone();
    northbound.transact(vec![
        Operation::update("Logical_Switch_Port")
            .by_uuid(row.uuid)
            .column("addresses", Value::strings(["0a:00:00:00:00:01 10.140.0.200"]))
            .build(),
    ])?;
    let shown = wait_for("weir plan to show the altered row", PATIENCE, || {
        let plan = weir(&cluster, "plan")?;
        Ok(if plan.starts_with("nothing to change") { Look::NotYet(plan) } else { Look::Ready(plan) })
    })?;
    let lines: Vec<_> = shown.lines().collect();
    ensure!(lines.len() == 1 && lines[0].contains("Logical_Switch_Port r2-0.plans"), "shown: {shown}");
    say(format!("altered by hand: {}", lines[0]));
    let altered = cluster.northbound()?.by_name("Logical_Switch_Port", "name");
    let now = altered.get("r2-0.plans").and_then(|row| row.get("addresses").cloned());
    ensure!(now != row.get("addresses").cloned(), "a controller that does not lead wrote to the database");
    drop(follower);
    wait_for("the altered row to be healed", PATIENCE, || {
        let rows = cluster.northbound()?.by_name("Logical_Switch_Port", "name");
        let healed = rows.get("r2-0.plans").and_then(|now| now.get("addresses").cloned());
        Ok(if healed == row.get("addresses").cloned() {
            Look::Ready(())
        } else {
            Look::NotYet("altered".into())
        })
    })?;
    wait_nothing_planned(&cluster)?;
    let verified = weir(&cluster, "verify")?;
    ensure!(verified.contains("no difference"), "{verified}");
    namespace.delete_pods(true)
}
