//! A cluster as Kube-OVN 1.12 leaves it is taken over: no flow of any node changes, no
//! pod is written to, and who talks goes on talking.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::audit;
use e2e::cluster::{Cluster, PATIENCE};
use e2e::flow::Flow;
use e2e::network::{Made, shell_pod, view, views};
use e2e::workload::Namespace;
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use ovsdb::Operation;
use serde_json::json;

/// The finalizer of versions before 1.13, which Kube-OVN's own next version replaces.
const OLD_FINALIZER: &str = "kube-ovn-controller";
/// Marks of rows that Kube-OVN does not write (docs/compatibility.md), by table and column.
const MARKS: [(&str, &str, &[&str]); 5] = [
    ("NB_Global", "external_ids", &["weir-epoch"]),
    ("NB_Global", "options", &["northd-backoff-interval-ms"]),
    ("Logical_Switch_Port", "external_ids", &["provider", "vip"]),
    ("Logical_Router_Static_Route", "external_ids", &["weir-route"]),
    ("DHCP_Options", "external_ids", &["weir-owner"]),
];

/// Flows of a node's bridge and its groups, without what OVN learns from traffic and
/// without the numbers of rows.
fn flows(cluster: &Cluster, on: &Node) -> Result<Vec<String>> {
    let southbound = cluster.southbound()?;
    let learned = ["MAC_Binding", "FDB"].into_iter().filter_map(|table| southbound.replica.table(table));
    let learned: BTreeSet<String> = learned
        .flat_map(|table| table.rows())
        .map(|row| row.uuid.simple().to_string()[..8].trim_start_matches('0').to_owned())
        .collect();
    let dump = |what: &str| {
        cluster.in_switch(on, &["ovs-ofctl", "-OOpenFlow15", "--no-stats", "--no-names", what, "br-int"])
    };
    let text = format!("{}\n{}", dump("dump-flows")?, dump("dump-groups")?);
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("OFPST_")) {
        let parts: Vec<&str> = line.split(", ").collect();
        let cookie = parts.iter().find_map(|part| part.strip_prefix("cookie=0x"));
        if cookie.is_some_and(|cookie| learned.contains(cookie)) {
            continue;
        }
        let kept: Vec<&str> = parts.into_iter().filter(|part| !part.starts_with("cookie=")).collect();
        lines.push(kept.join(", "));
    }
    lines.sort();
    Ok(lines)
}

/// Flows of all nodes once nothing changes any more.
fn settled(cluster: &Cluster, nodes: &[Node]) -> Result<Vec<Vec<String>>> {
    let mut last = Vec::new();
    wait_for("flows that stay as they are", PATIENCE, || {
        cluster.settle_flows()?;
        let now = nodes.iter().map(|node| flows(cluster, node)).collect::<Result<Vec<_>>>()?;
        let still = now == last;
        let counts: Vec<usize> = now.iter().map(Vec::len).collect();
        last = now;
        Ok(if still { Look::Ready(()) } else { Look::NotYet(format!("{counts:?} flows")) })
    })?;
    Ok(last)
}

/// Takes away what only Weir writes.
fn leave_as_kube_ovn_does(cluster: &Cluster, subnets: &[&str]) -> Result<usize> {
    let northbound = cluster.northbound()?;
    let mut operations = Vec::new();
    for (table, column, keys) in MARKS {
        for row in northbound.replica.table(table).into_iter().flat_map(|table| table.rows()) {
            let has = keys.iter().filter(|key| row.map_get(column, key).is_some()).copied();
            let gone: Vec<&str> = has.collect();
            if !gone.is_empty() {
                let mutation = Operation::mutate(table).by_uuid(row.uuid);
                operations.push(mutation.delete_map_keys(column, gone).build());
            }
        }
    }
    let changed = operations.len();
    northbound.transact(operations)?;
    for name in subnets {
        let patch = json!({ "metadata": { "finalizers": [OLD_FINALIZER] } }).to_string();
        cluster.kubectl(&["patch", "subnet", name, "--type=merge", "-p", &patch])?;
    }
    Ok(changed)
}

#[test]
fn a_cluster_as_kube_ovn_leaves_it_is_taken_over_without_a_flow_changed() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let mut made = Made::new(&cluster);
    let family = &cluster.lab.plan.family;
    made.vpc(
        "taken",
        json!({ "staticRoutes": [{ "policy": "policyDst", "cidr": family.join("10.99.0.0/16", "fd00:99::/64").split(',').next(),
            "nextHopIP": family.join("10.142.0.254", "fd00:10:142::fe").split(',').next() }],
            "policyRoutes": [{ "priority": 200, "match": "ip && tcp.dst == 7", "action": "drop" }] }),
    )?;
    let central = json!({ "cidrBlock": family.join("10.141.0.0/24", "fd00:10:141::/112"), "gatewayType": "centralized",
        "gatewayNode": nodes[1].name, "natOutgoing": true, "enableDHCP": true });
    made.subnet("taken-central", central)?;
    let custom = json!({ "cidrBlock": family.join("10.142.0.0/24", "fd00:10:142::/112"), "vpc": "taken" });
    made.subnet("taken-custom", custom)?;
    let addresses = family.join("10.141.0.64/28", "fd00:10:141::40/124");
    let ips: Vec<&str> = addresses.split(',').collect();
    let pool = json!({ "subnet": "taken-central", "ips": ips, "enableAddressSet": true });
    made.object("IPPool", "ippools", "taken-pool", pool)?;
    made.object(
        "Vip",
        "vips",
        "taken-vip",
        json!({ "subnet": "taken-central", "type": "kube_host_vm_vip" }),
    )?;
    let namespace = Namespace::create(&cluster, "taken")?;
    let mut pods = Vec::new();
    for (at, node) in nodes.iter().take(2).enumerate() {
        for subnet in ["", "taken-central", "taken-custom"] {
            let mut asks = json!({});
            if !subnet.is_empty() {
                asks["ovn.kubernetes.io/logical_switch"] = subnet.into();
            }
            if at == 0 && subnet == "taken-central" {
                asks["ovn.kubernetes.io/ip_pool"] = "taken-pool".into();
            }
            let name = format!("p{at}-{}", if subnet.is_empty() { "default" } else { &subnet[6..] });
            pods.push(shell_pod(&namespace, &name, &node.name, &asks));
        }
    }
    namespace.apply(&pods)?;
    namespace.wait_ready(pods.len(), PATIENCE)?;
    let annotations = |pods: &[serde_json::Value]| -> Vec<String> {
        pods.iter().map(|pod| pod["metadata"]["annotations"].to_string()).collect()
    };
    let seen = annotations(&namespace.pods()?);

    cluster.scale_controller(0)?;
    let changed = leave_as_kube_ovn_does(&cluster, &["taken-central", "taken-custom"])?;
    let before = settled(&cluster, &nodes)?;
    ensure!(before.iter().all(|flows| flows.len() > 500), "nodes have their flows");
    let all = views(&namespace)?;
    let to = view(&all, "p1-default")?.addresses.first().copied().context("no address")?;
    let flow = Flow::start(&cluster, view(&all, "p0-default")?, to)?;
    let mark = audit::mark(&cluster.lab)?;
    cluster.scale_controller(1)?;
    wait_for("the take-over", PATIENCE, || {
        let plan = cluster.kubectl(&["ko", "plan"])?;
        Ok(if plan.starts_with("nothing to change") { Look::Ready(()) } else { Look::NotYet(plan) })
    })?;
    let after = settled(&cluster, &nodes)?;
    let lost = flow.end()?;
    for ((before, after), node) in before.iter().zip(&after).zip(&nodes) {
        let only = |a: &[String], b: &[String]| {
            a.iter().filter(|line| !b.contains(line)).take(10).cloned().collect::<Vec<_>>().join("\n")
        };
        ensure!(
            before == after,
            "{}: flows are gone\n{}\nand new\n{}",
            node.name,
            only(before, after),
            only(after, before)
        );
    }
    let writes = audit::weir_writes_since(&cluster.lab, &mark)?;
    let forbidden = ["pods/ ", "pods/status ", "nodes/ ", "namespaces/ ", "ips/ "];
    let told: Vec<_> =
        writes.iter().filter(|write| forbidden.iter().any(|begin| write.target.starts_with(begin))).collect();
    ensure!(told.is_empty(), "nobody had to be told anything: {told:#?}");
    ensure!(annotations(&namespace.pods()?) == seen, "annotations of pods changed");
    // The old finalizer would keep them for ever.
    for name in ["taken-central", "taken-custom"] {
        let finalizers =
            cluster.kubectl(&["get", "subnet", name, "-o", "jsonpath={.metadata.finalizers}"])?;
        ensure!(finalizers.trim() == r#"["kubeovn.io/kube-ovn-controller"]"#, "{name}: {finalizers}");
    }
    say(format!(
        "taken over: {changed} rows had marks of ours, {} flows as before, {} API writes, {lost:?}",
        before.iter().map(Vec::len).sum::<usize>(),
        writes.len(),
    ));
    // The comparison can fail: a pod less is seen on its node.
    namespace.delete_pods(true)?;
    let fewer = settled(&cluster, &nodes)?;
    ensure!(
        fewer.iter().zip(&after).all(|(fewer, before)| fewer != before),
        "a pod less makes no difference"
    );
    drop(made);
    cluster.settle_flows()?;
    Ok(())
}
