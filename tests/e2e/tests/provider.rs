//! Provider networks (`docs/node-underlay.md`) on a cluster's nodes: their NIC moves into a bridge and home again under
//! a ping a millisecond, and everybody can see how it stands.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::flow::Flow;
use e2e::network::Made;
use lab::api;
use lab::plan::{HOST_OUTSIDE, Net};
use lab::progress::{Look, say, wait_for};
use lab::state::Node;
use serde_json::{Value, json};

/// The NIC on the lab's third network, which nobody uses.
const NIC: &str = "eth2";
const NETWORK: &str = "wires";
const BRIDGE: &str = "br-wires";
/// What somebody else has among the node's mappings.
const FOREIGN: &str = "theirs:br-theirs";
/// The longest outage of a move. Seen are 0 to 2 packets; the machine is shared.
const MOVE: Duration = Duration::from_millis(500);

/// What the NIC of a node carries, wherever that is now.
#[derive(Debug, PartialEq, Eq)]
struct Carried {
    addresses: Vec<String>,
    routes: Vec<String>,
}

fn carried(cluster: &Cluster, node: &Node, link: &str) -> Result<Carried> {
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.retain(|line| !line.is_empty());
        lines.sort();
        lines
    };
    let addresses =
        format!("ip -o address show dev {link} | awk '{{print $3, $4}}' | grep -v 'inet6 fe80' || true");
    let routes = format!(
        "(ip -4 route show table all dev {link}; ip -6 route show table all dev {link}) | sed 's/ expires.*//' | \
         grep -Ev '^(fe80|ff00|multicast|anycast|local|broadcast)|linkdown' || true"
    );
    Ok(Carried {
        addresses: sorted(cluster.sh(node, &addresses)?),
        routes: sorted(cluster.sh(node, &routes)?),
    })
}

/// An external id of a node's switch; empty if it is not there.
fn external_id(cluster: &Cluster, node: &Node, key: &str) -> Result<String> {
    let args = ["ovs-vsctl", "--if-exists", "get", "Open_vSwitch", ".", &format!("external_ids:{key}")];
    Ok(cluster.in_switch(node, &args)?.trim().trim_matches('"').to_owned())
}

/// The node's labels about the network, without its prefix.
fn labels(cluster: &Cluster, node: &Node) -> Result<BTreeMap<String, String>> {
    let object = api::get(&cluster.lab, &format!("/api/v1/nodes/{}", node.name))?;
    let all = object.pointer("/metadata/labels").and_then(Value::as_object);
    let prefix = format!("{NETWORK}.provider-network.kubernetes.io/");
    let ours = all
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value.as_str()?.to_owned())));
    Ok(ours.collect())
}

fn wait_labels(cluster: &Cluster, node: &Node, wanted: &[(&str, &str)]) -> Result<()> {
    let wanted: BTreeMap<String, String> =
        wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    wait_for(&format!("labels {wanted:?} of {}", node.name), PATIENCE, || {
        let now = labels(cluster, node)?;
        Ok(if now == wanted { Look::Ready(()) } else { Look::NotYet(format!("{now:?}")) })
    })
}

const READY: [(&str, &str); 3] = [("interface", NIC), ("mtu", "1500"), ("ready", "true")];

/// Waits until the object's status says this of the nodes, the ready ones and the others.
fn wait_status(cluster: &Cluster, ready: &[&str], not: &[&str]) -> Result<Value> {
    let path = format!("/apis/kubeovn.io/v1/provider-networks/{NETWORK}");
    wait_for(&format!("ready {ready:?}, not {not:?} in the status"), PATIENCE, || {
        let status = api::get(&cluster.lab, &path)?["status"].clone();
        let list = |key: &str| -> Vec<String> {
            let nodes = status[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            nodes.map(str::to_owned).collect()
        };
        let well = list("readyNodes") == ready
            && list("notReadyNodes") == not
            && status["ready"] == json!(not.is_empty());
        Ok(if well { Look::Ready(status) } else { Look::NotYet(status.to_string()) })
    })
}

/// Somebody else's mapping in the switches of all nodes, taken away when dropped.
struct Foreign<'a>(&'a Cluster);

impl<'a> Foreign<'a> {
    fn set(cluster: &'a Cluster) -> Result<Self> {
        let foreign = Self(cluster);
        for node in cluster.nodes()? {
            for key in ["ovn-bridge-mappings", "ovn-chassis-mac-mappings"] {
                let value = if key.contains("mac") { "theirs:02:00:00:00:00:07" } else { FOREIGN };
                ensure!(external_id(cluster, &node, key)?.is_empty(), "{} has {key} already", node.name);
                let setting = format!("external_ids:{key}=\"{value}\"");
                cluster.in_switch(&node, &["ovs-vsctl", "set", "Open_vSwitch", ".", &setting])?;
            }
        }
        Ok(foreign)
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        let gone = (|| -> Result<()> {
            for node in self.0.nodes()? {
                let keys = ["ovn-bridge-mappings", "ovn-chassis-mac-mappings"];
                let args = ["ovs-vsctl", "remove", "Open_vSwitch", ".", "external_ids"];
                self.0.in_switch(&node, &[&args[..], &keys].concat())?;
                self.0.sh(&node, "ip route del 198.51.100.0/24 2>/dev/null; true")?;
            }
            Ok(())
        })();
        if let Err(error) = gone {
            eprintln!("a foreign mapping or route is left: {error:#}");
        }
    }
}

/// Pings from every node to the outside host on the physical network.
fn pings(cluster: &Cluster) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for node in cluster.nodes()? {
        for target in cluster.lab.plan.addresses(Net::Physical, HOST_OUTSIDE) {
            flows.push(Flow::start_on(cluster, &node, target)?);
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(flows)
}

fn count(flows: Vec<Flow>, what: &str, allowed: Duration) -> Result<()> {
    let mut wrong = Vec::new();
    for flow in flows {
        let loss = flow.end()?;
        say(format!("{what}: {loss}"));
        if loss.outage > allowed {
            wrong.push(loss.to_string());
        }
    }
    ensure!(wrong.is_empty(), "{what}, more than {allowed:?}: {}", wrong.join("; "));
    Ok(())
}

/// The NIC is in its bridge, which has what the NIC had.
fn moved(cluster: &Cluster, node: &Node, before: &Carried) -> Result<()> {
    let bridge = cluster.in_switch(node, &["ovs-vsctl", "port-to-br", NIC])?;
    ensure!(bridge.trim() == BRIDGE, "{NIC} of {} is in {bridge}", node.name);
    let now = carried(cluster, node, BRIDGE)?;
    ensure!(now == *before, "{}: {before:?} on {NIC}, then {now:?} on {BRIDGE}", node.name);
    let nic = carried(cluster, node, NIC)?;
    ensure!(nic.addresses.is_empty(), "{}: {NIC} has {nic:?}", node.name);
    let mappings = external_id(cluster, node, "ovn-bridge-mappings")?;
    let mut entries: Vec<&str> = mappings.split(',').collect();
    entries.sort_unstable();
    ensure!(entries == [FOREIGN, &format!("{NETWORK}:{BRIDGE}")], "{}: {mappings}", node.name);
    let macs = external_id(cluster, node, "ovn-chassis-mac-mappings")?;
    ensure!(macs.split(',').any(|entry| entry == "theirs:02:00:00:00:00:07"), "{}: {macs}", node.name);
    Ok(())
}

/// Nothing of the network is left on a node.
fn home(cluster: &Cluster, node: &Node, before: &Carried) -> Result<()> {
    let now = carried(cluster, node, NIC)?;
    ensure!(now == *before, "{}: {before:?} before, {now:?} after", node.name);
    let bridges = cluster.in_switch(node, &["ovs-vsctl", "list-br"])?;
    ensure!(!bridges.lines().any(|bridge| bridge == BRIDGE), "{}: {bridges}", node.name);
    let links = cluster.sh(node, "ip -o link")?;
    ensure!(!links.contains(BRIDGE), "{}: {links}", node.name);
    for (key, value) in
        [("ovn-bridge-mappings", FOREIGN), ("ovn-chassis-mac-mappings", "theirs:02:00:00:00:00:07")]
    {
        let left = external_id(cluster, node, key)?;
        ensure!(left == value, "{}: {key} is {left}, somebody else's was {value}", node.name);
    }
    Ok(())
}

#[test]
fn a_nic_moves_into_its_provider_network_and_home_again() -> Result<()> {
    let cluster = Cluster::open()?;
    let nodes = cluster.nodes()?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let _foreign = Foreign::set(&cluster)?;
    let mut before = Vec::new();
    for node in &nodes {
        if cluster.lab.plan.family.v4() {
            let world = cluster.lab.plan.v4(Net::Physical, HOST_OUTSIDE);
            cluster.sh(node, &format!("ip route replace 198.51.100.0/24 via {world} dev {NIC} metric 77"))?;
        }
        before.push(carried(&cluster, node, NIC)?);
        ensure!(!before.last().is_none_or(|all| all.addresses.is_empty()), "{} has no {NIC}", node.name);
    }

    // A NIC that is not there: who looks at the object is told why.
    let mut made = Made::new(&cluster);
    made.object("ProviderNetwork", "provider-networks", NETWORK, json!({"defaultInterface": "eth9"}))?;
    wait_status(&cluster, &[], &names)?;
    wait_for("the reason in the status", PATIENCE, || {
        let path = format!("/apis/kubeovn.io/v1/provider-networks/{NETWORK}");
        let status = api::get(&cluster.lab, &path)?["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let told = conditions.iter().filter(|condition| {
            condition["reason"] == "InitOVSBridgeFailed" && condition["message"].to_string().contains("eth9")
        });
        let all = told.count() == nodes.len();
        Ok(if all { Look::Ready(()) } else { Look::NotYet(json!(conditions).to_string()) })
    })?;

    // The right one, by a change of the object.
    let flows = pings(&cluster)?;
    let patch = |spec: Value| {
        let patch = json!({"spec": spec}).to_string();
        cluster.kubectl(&["patch", "provider-network", NETWORK, "--type=merge", "-p", &patch])
    };
    patch(json!({"defaultInterface": NIC}))?;
    for (node, before) in nodes.iter().zip(&before) {
        wait_labels(&cluster, node, &READY)?;
        moved(&cluster, node, before)?;
    }
    wait_status(&cluster, &names, &[])?;
    count(flows, "into the bridge", MOVE)?;

    // Agents that start anew find it as it is.
    let flows = pings(&cluster)?;
    cluster.kubectl(&["-n", e2e::cluster::SYSTEM, "delete", "pod", "-l", "app=kube-ovn-cni"])?;
    cluster.wait_system("kube-ovn-cni", nodes.len())?;
    std::thread::sleep(Duration::from_secs(3));
    for (node, before) in nodes.iter().zip(&before) {
        moved(&cluster, node, before)?;
    }
    count(flows, "agents started anew", Duration::from_millis(200))?;

    // One node leaves it, the other stays.
    let flows = pings(&cluster)?;
    let last = nodes.last().context("no node")?;
    patch(json!({"excludeNodes": [last.name]}))?;
    wait_labels(&cluster, last, &[("exclude", "true")])?;
    home(&cluster, last, &before[nodes.len() - 1])?;
    moved(&cluster, &nodes[0], &before[0])?;
    wait_status(&cluster, &names[..nodes.len() - 1], &[])?;
    count(flows, "one node excluded", MOVE)?;
    patch(json!({"excludeNodes": []}))?;
    wait_labels(&cluster, last, &READY)?;
    moved(&cluster, last, &before[nodes.len() - 1])?;

    // Deleted.
    let flows = pings(&cluster)?;
    drop(made);
    for (node, before) in nodes.iter().zip(&before) {
        wait_labels(&cluster, node, &[])?;
        home(&cluster, node, before)?;
    }
    count(flows, "home again", MOVE)
}
