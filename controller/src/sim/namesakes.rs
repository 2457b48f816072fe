//! A pod whose port would have the name of somebody else's (`world/namesakes.rs`): in every
//! order the other one has it, the pod is told whose it is, and each has its own as soon as
//! the other is gone.

use serde_json::{Value, json};

use super::Bench;
use super::independence::{Set, build, namespace, node, pod_of, subnet};
use super::orders::permutations;
use crate::facts::{Kind, ObjectRef};

/// The switch that has a port of that name.
fn switch_of(bench: &Bench, port: &str) -> Option<String> {
    let replica = bench.db.replica();
    let table = |name: &str| replica.table(name).unwrap();
    let uuid = table("Logical_Switch_Port").find_one("name", &ovsdb::Value::string(port))?.uuid;
    let has = |row: &ovsdb::Row| {
        let mut ports = row.get("ports").and_then(|ports| ports.as_set()).into_iter().flatten();
        ports.any(|atom| atom.as_uuid() == Some(uuid))
    };
    let switch = table("Logical_Switch").rows().find(|row| has(row))?;
    switch.str("name").map(str::to_owned)
}

/// `set` without the last two, which are in every order: the pod, and whose name it would
/// share. `switch` is where the port belongs.
fn quarrel(set: Set, switch: &str, words: &str) {
    let two = &set[set.len() - 2..];
    let [(wanting, _), (other, body)] = two else { unreachable!() };
    let port = format!("{}.{}", wanting.name, wanting.namespace);
    let orders = permutations(set.len());
    let every = orders.len() / 23;
    for (seed, order) in orders.into_iter().enumerate().step_by(every) {
        let mut bench = build(seed as u64, &set, &order, 2);
        let routed =
            |bench: &Bench| bench.api.annotation(wanting, "ovn.kubernetes.io/routed") == Some("true");
        let theirs = |bench: &Bench| switch_of(bench, &port).as_deref() == Some(switch);
        let context = format!("{port}, order {order:?}");
        assert!(theirs(&bench), "{context}: {:?}", switch_of(&bench, &port));
        assert!(bench.warned(wanting, &[words, &port]), "{context}: the pod is told");
        // Without the other one the pod has its port, and gives it back.
        let users = || set.iter().filter(|(object, _)| object.kind == Kind::OvnEip);
        users().for_each(|(user, _)| bench.api.delete(user, 0));
        bench.settle();
        bench.api.delete(other, 0);
        bench.pass(90_000);
        assert!(routed(&bench), "{context}: it heals");
        assert!(switch_of(&bench, &port).is_some() && !theirs(&bench), "{context}");
        bench.verify();
        bench.api.create(other, body.clone()).unwrap();
        for (user, body) in users() {
            bench.api.create(user, body.clone()).unwrap();
        }
        bench.pass(90_000);
        assert!(theirs(&bench), "{context}: who came back, {:?}", switch_of(&bench, &port));
        // What the pod does is nothing to the other one.
        bench.api.remove(wanting);
        bench.pass(90_000);
        assert!(theirs(&bench), "{context}: without the pod");
        bench.verify();
    }
}

fn set_of(more: impl IntoIterator<Item = (ObjectRef, Value)>) -> Set {
    let base = [node("n-1", 1, true), namespace("web", json!({}))];
    base.into_iter().chain(more).collect()
}

#[test]
fn a_nodes_port_is_the_nodes() {
    let set = [namespace("b", json!({})), pod_of("b", "node-a", "n-1", json!({})), node("a.b", 4, true)];
    quarrel(set_of(set), "join", "node a.b");
}

#[test]
fn a_queriers_port_is_the_subnets() {
    let snooping = subnet("wan", "10.40.0.0/24", json!({ "enableMulticastSnoop": true }));
    let set = [namespace("wan", json!({})), pod_of("wan", "mcast-querier", "n-1", json!({})), snooping];
    quarrel(set_of(set), "wan", "Subnet wan");
}

#[test]
fn the_way_to_the_wire_is_the_subnets() {
    let network = (ObjectRef::cluster(Kind::ProviderNetwork, "net1"), json!({ "spec": {} }));
    let vlan = (ObjectRef::cluster(Kind::Vlan, "v-7"), json!({ "spec": { "id": 7, "provider": "net1" } }));
    let wired = subnet("wan", "10.40.0.0/24", json!({ "vlan": "v-7", "gateway": "10.40.0.1" }));
    let spec = json!({ "externalSubnet": "wan", "type": "lsp", "v4Ip": "10.40.0.11", "macAddress": "02:00:00:00:00:c1" });
    let eip = (ObjectRef::cluster(Kind::OvnEip, "n-1"), json!({ "spec": spec }));
    let wanting = pod_of("wan", "localnet", "n-1", json!({}));
    let set = [network, vlan, eip, namespace("wan", json!({})), wanting, wired];
    quarrel(set_of(set), "wan", "Subnet wan");
}

#[test]
fn the_way_to_the_router_is_the_subnets() {
    let dotted = subnet("x.y", "10.40.0.0/24", json!({}));
    let set = [namespace("y-ovn-cluster", json!({})), pod_of("y-ovn-cluster", "x", "n-1", json!({})), dotted];
    quarrel(set_of(set), "x.y", "Subnet x.y");
}

#[test]
fn another_pods_interface_is_that_pods() {
    let config = json!({ "type": "kube-ovn", "provider": "net.web.ovn" }).to_string();
    let nad = (ObjectRef::namespaced(Kind::Nad, "web", "net"), json!({ "spec": { "config": config } }));
    let attached = pod_of("web", "a", "n-1", json!({ "k8s.v1.cni.cncf.io/networks": "net" }));
    let second = subnet("second", "10.40.0.0/24", json!({ "provider": "net.web.ovn" }));
    let dotted = pod_of("ovn", "a.web.net.web", "n-1", json!({}));
    quarrel(set_of([nad, second, namespace("ovn", json!({})), dotted, attached]), "second", "pod web/a");
}
