//! Every order of creation ends with the same database, and what was compiled
//! step by step equals what a fresh controller compiles.

use std::collections::BTreeMap;

use ovsdb::{Replica, Value};
use serde_json::json;

use super::bench::{Faults, pod};
use super::{Bench, Rng};
use crate::facts::{Kind, ObjectRef};
use crate::objects::IPTABLES_EIPS;

/// Content of the database with names in place of UUIDs, epoch left out.
fn content(replica: &Replica) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut names: BTreeMap<ovsdb::Uuid, String> = BTreeMap::new();
    for table in replica.tables() {
        for row in table.rows() {
            let texts = ["name", "match", "priority", "ip_prefix", "nexthop"];
            let parts: Vec<String> =
                texts.iter().filter_map(|c| row.get(c).map(|v| format!("{v:?}"))).collect();
            names.insert(row.uuid, format!("{} {}", table.name(), parts.join(" ")));
        }
    }
    let shown = |value: &Value| match value.as_set() {
        Some(set) => {
            let mut all: Vec<String> = set
                .iter()
                .map(|atom| match atom.as_uuid() {
                    Some(uuid) => names.get(&uuid).cloned().unwrap_or_else(|| "dangling".into()),
                    None => format!("{atom:?}"),
                })
                .collect();
            all.sort();
            all.join(", ")
        }
        None => format!("{value:?}"),
    };
    let mut rows = BTreeMap::new();
    for table in replica.tables() {
        for row in table.rows() {
            let mut columns: BTreeMap<String, String> =
                row.columns().map(|(name, value)| (name.to_string(), shown(value))).collect();
            if &**table.name() == "NB_Global" {
                columns.remove("external_ids");
            }
            rows.insert(names[&row.uuid].clone(), columns);
        }
    }
    rows
}

enum Thing {
    Node(&'static str, &'static str),
    Namespace(&'static str),
    Pod(&'static str, &'static str, &'static str),
    Leader,
}

fn things() -> Vec<Thing> {
    vec![
        Thing::Leader,
        Thing::Namespace("web"),
        Thing::Node("n-1", "192.0.2.11"),
        Thing::Pod("a-0", "n-1", "10.16.0.10"),
        Thing::Pod("a-1", "n-1", "10.16.0.11"),
        Thing::Node("n-2", "192.0.2.12"),
        Thing::Pod("a-2", "n-2", "10.16.0.12"),
    ]
}

fn build(seed: u64, order: &[usize]) -> Bench {
    let mut bench = Bench::new(seed);
    let things = things();
    for place in order {
        match &things[*place] {
            Thing::Leader => {
                let leader = bench.start();
                bench.elect(leader);
            }
            Thing::Namespace(name) => bench.add_namespace(name),
            Thing::Node(name, ip) => {
                // Its lease exists already, as after a restart: orders then end
                // exactly the same.
                let number = &name[2..];
                bench.add_node_with(
                    name,
                    ip,
                    json!({
                        "ovn.kubernetes.io/allocated": "true",
                        "ovn.kubernetes.io/logical_switch": "join",
                        "ovn.kubernetes.io/ip_address": format!("100.64.0.{number}0"),
                        "ovn.kubernetes.io/mac_address": format!("02:00:00:00:00:0{number}"),
                    }),
                );
            }
            Thing::Pod(name, node, ip) => bench.add_pod_with(
                name,
                node,
                json!({ "ovn.kubernetes.io/ip_address": ip,
                    "ovn.kubernetes.io/mac_address": format!("02:00:00:00:01:{}", &ip[8..]) }),
            ),
        }
        for _ in 0..bench.rng.below(30) {
            bench.step();
        }
    }
    bench.settle();
    bench
}

pub(super) fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for place in 0..n {
            let mut order = shorter.clone();
            order.insert(place, n - 1);
            all.push(order);
        }
    }
    all
}

#[test]
fn every_creation_order_ends_the_same() {
    // All orders of the first five, and a sample of the orders of all seven.
    let all = permutations(5);
    same_from(&all);
    let mut order: Vec<usize> = (0..7).collect();
    let mut rng = Rng::new(7);
    let sample: Vec<Vec<usize>> = (0..40)
        .map(|_| {
            rng.shuffle(&mut order);
            order.clone()
        })
        .collect();
    same_from(&sample);
}

fn same_from(orders: &[Vec<usize>]) {
    let first = build(0, &orders[0]);
    let mut expected = content(&first.db.replica());
    strip_macs(&mut expected);
    assert!(expected.keys().any(|k| k.contains("a-0.web")), "{expected:#?}");
    for (seed, order) in orders.iter().enumerate() {
        let bench = build(seed as u64, order);
        let mut found = content(&bench.db.replica());
        strip_macs(&mut found);
        for (row, columns) in &expected {
            assert_eq!(found.get(row), Some(columns), "order {order:?}: {row}");
        }
        assert_eq!(found.len(), expected.len(), "order {order:?}");
    }
}

/// MAC addresses of router ports are drawn when the row is made.
fn strip_macs(content: &mut BTreeMap<String, BTreeMap<String, String>>) {
    for (name, columns) in content.iter_mut() {
        if name.starts_with("Logical_Router_Port") {
            columns.remove("mac");
        }
    }
}

#[test]
fn step_by_step_equals_all_at_once() {
    for seed in seeds(40) {
        let mut bench = Bench::cluster(1000 + seed);
        bench.faults = Faults { lost: 2, relist: 3, write: 3 };
        for _ in 0..60 {
            if bench.rng.chance(20) {
                random_external_change(&mut bench);
            } else if bench.rng.chance(25) {
                random_machine_change(&mut bench);
            } else if bench.rng.chance(30) {
                random_network_change(&mut bench);
            } else {
                random_change(&mut bench);
            }
            for _ in 0..bench.rng.below(12) {
                bench.step();
            }
        }
        // Pods that were given an address of a subnet, but not told before it fell out
        // with another one, are asked anew after a restart.
        let extra = ObjectRef::cluster(Kind::Subnet, "extra");
        if bench.api.get(&extra).is_some() {
            let healed = json!({ "cidrBlock": "10.20.0.0/24", "gateway": "10.20.0.1", "excludeIps": [] });
            bench.api.edit(&extra, json!({ "spec": healed }));
        }
        bench.faults = Faults::default();
        bench.settle();
        assert!(bench.core().quiet(), "seed {seed}: {}\n{:#?}", bench.core().status(), bench.core().plan());
        // A fresh controller, compiling everything from nothing, finds nothing to do.
        let second = bench.succeed();
        assert_eq!(
            bench.processes[second].transactions.len(),
            1,
            "seed {seed}: {:#?}",
            bench.processes[second].transactions
        );
        assert_eq!(bench.api.writes, Vec::<String>::new(), "seed {seed}");
    }
}

/// More seeds on demand, `WEIR_SIM_SEEDS=1000 cargo test sim`, and others: `WEIR_SIM_FIRST` is the
/// first. A failure names its seed.
pub(super) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let first = number("WEIR_SIM_FIRST").unwrap_or(0);
    first..first + number("WEIR_SIM_SEEDS").unwrap_or(usual)
}

pub(super) fn random_change(bench: &mut Bench) {
    let name = format!("p-{}", bench.rng.below(8));
    let object = pod("web", &name);
    let node = if bench.rng.chance(50) { "n-1" } else { "n-3" };
    match bench.rng.below(9) {
        0..=2 if bench.api.get(&object).is_none() => bench.add_pod(&name, node),
        3 => bench.api.remove(&object),
        4 => bench.api.delete(&object, 30),
        5 if bench.api.get(&object).is_some() => {
            bench.api.edit(&object, json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
        }
        6 => {
            let node = ObjectRef::cluster(Kind::Node, "n-3");
            if bench.api.get(&node).is_some() {
                bench.api.remove(&node);
            } else {
                bench.add_node("n-3", "192.0.2.13");
            }
        }
        7 => {
            let subnet = ObjectRef::cluster(Kind::Subnet, "extra");
            if bench.api.get(&subnet).is_none() {
                let spec = json!({ "cidrBlock": "10.20.0.0/24", "namespaces": ["web"] });
                bench.api.create(&subnet, json!({ "spec": spec })).unwrap();
            } else {
                bench.api.delete(&subnet, 0);
            }
        }
        _ => {
            let at = bench.rng.below(5);
            let ports: Vec<_> = {
                let replica = bench.db.replica();
                let table = replica.table("Logical_Switch_Port").unwrap();
                table.rows().map(|row| row.uuid).collect()
            };
            if let Some(uuid) = ports.get(at) {
                let wrong = Value::strings(["02:00:00:00:00:99 10.16.200.200"]);
                bench.transact(&[ovsdb::Operation::update("Logical_Switch_Port")
                    .by_uuid(*uuid)
                    .column("addresses", wrong)
                    .build()]);
            }
        }
    }
}

/// A virtual machine that starts, stops, moves, fails, comes and goes, its parts in
/// whatever order.
fn random_machine_change(bench: &mut Bench) {
    let of = |kind: Kind, name: &str| ObjectRef::namespaced(kind, "web", name);
    let vm = of(Kind::VirtualMachine, "vm");
    let vmi = of(Kind::VirtualMachineInstance, "vm");
    let migration = of(Kind::Migration, "move");
    let owner =
        |kind: &str| json!([{ "apiVersion": "kubevirt.io/v1", "kind": kind, "name": "vm", "uid": "vm" }]);
    let coin = bench.rng.chance(50);
    match bench.rng.below(9) {
        0 if bench.api.get(&vm).is_none() => {
            bench.api.create(&vm, json!({ "spec": { "template": {} } })).unwrap();
        }
        1 => bench.api.remove(&vm),
        2 if bench.api.get(&vmi).is_none() => {
            let owners = if coin { owner("VirtualMachine") } else { json!([]) };
            bench.api.create(&vmi, json!({ "metadata": { "ownerReferences": owners }, "spec": {} })).unwrap();
        }
        3 if bench.api.get(&vmi).is_some() => {
            let node = if coin { "n-1" } else { "n-3" };
            bench.api.edit(&vmi, json!({ "status": { "nodeName": node } }));
        }
        4 => bench.api.remove(&vmi),
        5 if bench.api.get(&migration).is_none() => {
            bench.api.create(&migration, json!({ "spec": { "vmiName": "vm" } })).unwrap();
        }
        6 if bench.api.get(&migration).is_some() => {
            let phase = ["Scheduling", "Running", "Succeeded", "Failed"][bench.rng.below(4)];
            let status = json!({ "phase": phase, "migrationState": { "sourceNode": "n-1" } });
            bench.api.edit(&migration, json!({ "status": status }));
        }
        at => {
            let (name, node) = if coin { ("from", "n-1") } else { ("to", "n-3") };
            if at == 7 || bench.api.get(&pod("web", name)).is_some() {
                bench.api.remove(&pod("web", name));
                return;
            }
            let annotations =
                if coin { json!({}) } else { json!({ "kubevirt.io/migrationJobName": "move" }) };
            // With its owner from the start, as KubeVirt makes it: a pod that is taken for a plain one
            // is told another port's address.
            let owners = owner("VirtualMachineInstance");
            bench.add_pod_of(name, node, annotations, owners);
        }
    }
}

/// External networks and what they need, in whatever order.
fn random_external_change(bench: &mut Bench) {
    let vpc = ObjectRef::cluster(Kind::Vpc, "blue");
    let spec =
        |cidr: &str| json!({ "spec": { "cidrBlock": cidr, "vlan": "v-7", "gatewayType": "distributed" } });
    let eip = |kind: &str| json!({ "spec": { "externalSubnet": "wan", "type": kind }, "status": { "ready": true } });
    let nat = |asked: &str, given: &str| json!({ "spec": { "externalSubnet": "ovn-default", "v4ip": asked }, "status": { "ip": given } });
    let things = [
        (ObjectRef::cluster(Kind::ProviderNetwork, "net1"), json!({ "spec": {} })),
        (ObjectRef::cluster(Kind::Vlan, "v-7"), json!({ "spec": { "id": 7, "provider": "net1" } })),
        (ObjectRef::cluster(Kind::Vlan, "v-8"), json!({ "spec": { "id": 7, "provider": "net1" } })),
        (ObjectRef::cluster(Kind::Subnet, "wan"), spec("172.18.0.0/24")),
        (ObjectRef::cluster(Kind::OvnEip, "n-1"), eip("lsp")),
        (ObjectRef::cluster(Kind::OvnEip, "n-3"), eip("lsp")),
        (ObjectRef::cluster(Kind::OvnEip, "fip"), eip("nat")),
        // Addresses of NAT gateways that pods are given too.
        (ObjectRef::cluster(Kind::Other(IPTABLES_EIPS), "given"), nat("10.16.0.3", "10.16.0.3")),
        (ObjectRef::cluster(Kind::Other(IPTABLES_EIPS), "asked"), nat("10.16.0.5", "")),
    ];
    let edits = [
        json!({ "extraExternalSubnets": ["wan"] }),
        json!({ "extraExternalSubnets": [] }),
        json!({ "enableBfd": true }),
        json!({ "enableBfd": false, "enableExternal": true }),
    ];
    match bench.rng.below(14) {
        at @ 0..=8 => {
            let (object, body) = &things[at];
            if bench.api.get(object).is_none() {
                bench.api.create(object, body.clone()).unwrap();
            } else if bench.rng.chance(40) {
                bench.api.delete(object, 0);
            }
        }
        at @ 9..=12 if bench.api.get(&vpc).is_some() => {
            bench.api.edit(&vpc, json!({ "spec": edits[at - 9] }));
        }
        _ => {
            let value = if bench.rng.chance(70) { "true" } else { "false" };
            let label = json!({ "metadata": { "labels": { "ovn.kubernetes.io/external-gw": value } } });
            bench.api.edit(&ObjectRef::cluster(Kind::Node, "n-1"), label);
        }
    }
}

/// Subnets, VPCs and gateway nodes that change, with any quarrel.
fn random_network_change(bench: &mut Bench) {
    let extra = ObjectRef::cluster(Kind::Subnet, "extra");
    let vpc = ObjectRef::cluster(Kind::Vpc, "blue");
    let subnet = ObjectRef::cluster(Kind::Subnet, if bench.rng.chance(50) { "b-1" } else { "b-2" });
    let edits = [
        json!({ "private": true, "allowSubnets": ["10.16.0.0/16"] }),
        json!({ "private": false, "gatewayType": "centralized", "gatewayNode": "n-3,n-1" }),
        json!({ "gatewayType": "distributed", "enableDHCP": true }),
        json!({ "enableDHCP": false, "cidrBlock": "10.16.7.0/24", "gateway": "", "excludeIps": [] }),
        json!({ "cidrBlock": "10.20.0.0/24", "gateway": "10.20.0.1", "excludeIps": [] }),
        json!({ "enableEcmp": true }),
    ];
    match bench.rng.below(9) {
        0..=2 if bench.api.get(&extra).is_some() => {
            let at = bench.rng.below(edits.len());
            bench.api.edit(&extra, json!({ "spec": edits[at] }));
        }
        3 => {
            let ready = if bench.rng.chance(50) { "True" } else { "False" };
            let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
            bench.api.edit(&ObjectRef::cluster(Kind::Node, "n-1"), status);
        }
        4 if bench.api.get(&vpc).is_none() => bench.api.create(&vpc, json!({ "spec": {} })).unwrap(),
        5 if bench.api.get(&vpc).is_some() => {
            let spec = json!({ "staticRoutes": [{ "cidr": "0.0.0.0/0", "nextHopIP": "10.20.0.9" }],
                "policyRoutes": [{ "priority": 9, "match": "ip4", "action": "drop" }] });
            bench.api.edit(&vpc, json!({ "spec": spec }));
        }
        6 => bench.api.delete(&vpc, 0),
        7 if bench.api.get(&subnet).is_none() => {
            let spec = json!({ "vpc": "blue", "cidrBlock": "10.20.0.0/24", "private": true });
            bench.api.create(&subnet, json!({ "spec": spec })).unwrap();
        }
        _ => bench.api.delete(&subnet, 0),
    }
}
