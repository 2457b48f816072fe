//! Order independence: for a set of objects, every order of creation, every
//! interleaving and every restart on the way ends in the same rows, objects and
//! conditions. Exactly where all addresses are static, otherwise given the leases; of
//! two that want the same thing one has it, the other says who, and heals.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::bench::pod;
use super::orders::{permutations, seeds};
use super::{Bench, Rng, canon};
use crate::facts::{Kind, ObjectRef};
use crate::objects::IPTABLES_EIPS;

/// Objects to be created, in any order.
pub(super) type Set = Vec<(ObjectRef, Value)>;

pub(super) fn node(name: &str, number: usize, fixed: bool) -> (ObjectRef, Value) {
    let mut annotations = json!({ "ovn.kubernetes.io/chassis": format!("chassis-{name}") });
    if fixed {
        // Its lease exists already, as after a restart.
        for (key, value) in [
            ("allocated", "true".to_owned()),
            ("logical_switch", "join".to_owned()),
            ("ip_address", format!("100.64.0.{}", 10 + number)),
            ("mac_address", format!("02:00:00:00:00:{:02x}", 10 + number)),
        ] {
            annotations[format!("ovn.kubernetes.io/{key}")] = value.into();
        }
    }
    let body = json!({
        "metadata": { "annotations": annotations },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": format!("192.0.2.{}", 10 + number) }],
            "conditions": [{ "type": "Ready", "status": if number == 3 { "False" } else { "True" } }],
        },
    });
    (ObjectRef::cluster(Kind::Node, name), body)
}

pub(super) fn namespace(name: &str, labels: Value) -> (ObjectRef, Value) {
    (ObjectRef::cluster(Kind::Namespace, name), json!({ "metadata": { "labels": labels } }))
}

pub(super) fn pod_of(namespace: &str, name: &str, node: &str, annotations: Value) -> (ObjectRef, Value) {
    let body = json!({
        "metadata": { "annotations": annotations },
        "spec": { "nodeName": node, "restartPolicy": "Always" },
        "status": { "phase": "Pending" },
    });
    (ObjectRef::namespaced(Kind::Pod, namespace, name), body)
}

pub(super) fn subnet(name: &str, cidr: &str, more: Value) -> (ObjectRef, Value) {
    let mut spec = json!({ "cidrBlock": cidr, "protocol": "IPv4", "provider": "ovn" });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    (ObjectRef::cluster(Kind::Subnet, name), json!({ "spec": spec }))
}

/// An address of a NAT gateway, as Kube-OVN leaves it.
fn nat_eip(name: &str, subnet: &str, ip: &str) -> (ObjectRef, Value) {
    let body = json!({ "metadata": { "labels": { "ovn.kubernetes.io/subnet": subnet } },
        "spec": { "externalSubnet": subnet, "v4ip": ip, "natGwDp": "gw" }, "status": { "ip": ip } });
    (ObjectRef::cluster(Kind::Other(IPTABLES_EIPS), name), body)
}

/// A cluster of about thirty objects drawn from a seed. All requests can be met: what
/// collides has tests of its own.
fn generated(rng: &mut Rng, fixed: bool) -> Set {
    let mut set = Set::new();
    for number in 1..=3 {
        set.push(node(&format!("n-{number}"), number, fixed));
    }
    set.push(namespace("web", json!({})));
    set.push(namespace("team", json!({ "team": "a" })));
    set.push(namespace("picked", json!({ "tier": "front", "team": "b" })));
    set.push((ObjectRef::cluster(Kind::Vpc, "vpc-1"), json!({ "spec": { "namespaces": ["isolated"] } })));
    set.push(namespace("isolated", json!({})));
    set.push(subnet("named", "10.20.0.0/24", json!({ "namespaces": ["team"] })));
    let selector = json!({ "namespaceSelectors": [{ "matchLabels": { "tier": "front" } }],
        "private": rng.chance(50), "allowSubnets": ["10.20.0.0/24"] });
    set.push(subnet("selected", "10.21.0.0/24", selector));
    // The same block as a subnet of the default VPC.
    // (With dynamic addresses another one: which lease is whose is told by the address.)
    let apart = if fixed { "10.20.0.0/24" } else { "10.25.0.0/24" };
    set.push(subnet("apart", apart, json!({ "vpc": "vpc-1", "namespaces": ["isolated"] })));
    // Of several gateways the one that served first stays: history, by contract.
    let central = json!({ "gatewayType": "centralized", "gatewayNode": "n-1", "namespaces": ["far"] });
    set.push(subnet("central", "10.22.0.0/24", central));
    set.push(namespace("far", json!({})));
    set.push(nat_eip("nat", "named", "10.20.0.230"));
    set.push((
        ObjectRef::cluster(Kind::IpPool, "pool"),
        json!({ "spec": { "subnet": "named", "ips": ["10.20.0.200..10.20.0.209"], "namespaces": ["nobody"] } }),
    ));
    set.push((
        ObjectRef::cluster(Kind::Vip, "vip"),
        json!({ "spec": { "subnet": "named", "v4ip": "10.20.0.220", "macAddress": "02:00:00:00:02:20" } }),
    ));
    let blocks = [
        ("web", "10.16.7", "ovn-default"),
        ("team", "10.20.0", "named"),
        ("picked", "10.21.0", "selected"),
        ("isolated", if fixed { "10.20.0" } else { "10.25.0" }, "apart"),
        ("far", "10.22.0", "central"),
    ];
    for index in 0..14 {
        let (namespace, block, switch) = blocks[rng.below(blocks.len())];
        let host = format!("n-{}", 1 + rng.below(3));
        let wants = json!({
            "ovn.kubernetes.io/ip_address": format!("{block}.{}", 100 + index),
            "ovn.kubernetes.io/mac_address": format!("02:00:00:00:01:{index:02x}"),
        });
        // A pod without wishes is served by the subnets that its namespace has at that
        // moment; one that names its subnet waits for it.
        let named = json!({ "ovn.kubernetes.io/logical_switch": switch });
        let annotations = if fixed || rng.chance(30) { wants } else { named };
        set.push(pod_of(namespace, &format!("p-{index}"), &host, annotations));
    }
    machine(rng, fixed, &mut set);
    // One that waits for a node that never comes.
    set.push(pod_of(
        "web",
        "lost",
        "n-9",
        if fixed {
            json!({ "ovn.kubernetes.io/ip_address": "10.16.7.9",
        "ovn.kubernetes.io/mac_address": "02:00:00:00:01:99" })
        } else {
            json!({})
        },
    ));
    set
}

/// A virtual machine on its way from one node to another, in any phase.
fn machine(rng: &mut Rng, fixed: bool, set: &mut Set) {
    let of = |kind: Kind, name: &str| ObjectRef::namespaced(kind, "web", name);
    let phase = ["Pending", "Scheduling", "Running", "Succeeded", "Failed"][rng.below(5)];
    let at = if phase == "Succeeded" { "n-2" } else { "n-1" };
    set.push((of(Kind::VirtualMachine, "vm"), json!({ "spec": { "template": {} } })));
    let owner =
        |kind: &str| json!([{ "apiVersion": "kubevirt.io/v1", "kind": kind, "name": "vm", "uid": "vm" }]);
    let instance = json!({ "metadata": { "ownerReferences": owner("VirtualMachine") }, "spec": {},
        "status": { "nodeName": at } });
    set.push((of(Kind::VirtualMachineInstance, "vm"), instance));
    let migration = json!({ "spec": { "vmiName": "vm" },
        "status": { "phase": phase, "migrationState": { "sourceNode": "n-1" } } });
    set.push((of(Kind::Migration, "move"), migration));
    for (name, node, job) in [("from", "n-1", None), ("to", "n-2", Some("move"))] {
        let mut annotations = if fixed {
            json!({ "ovn.kubernetes.io/ip_address": "10.16.7.200", "ovn.kubernetes.io/mac_address": "02:00:00:00:02:00" })
        } else {
            json!({ "ovn.kubernetes.io/logical_switch": "ovn-default" })
        };
        if let Some(job) = job {
            annotations["kubevirt.io/migrationJobName"] = job.into();
        }
        let (object, mut body) = pod_of("web", name, node, annotations);
        body["metadata"]["ownerReferences"] = owner("VirtualMachineInstance");
        set.push((object, body));
    }
}

/// Creates a set in an order, with steps between drawn from the seed, and restarts.
pub(super) fn build(seed: u64, set: &Set, order: &[usize], restarts: usize) -> Bench {
    let mut bench = Bench::new(seed);
    bench.verify_every = 101;
    let mut leader = bench.start();
    bench.elect(leader);
    for place in order {
        let (object, body) = &set[*place];
        bench.api.create(object, body.clone()).unwrap();
        for _ in 0..bench.rng.below(25) {
            bench.step();
            if bench.rng.chance(restarts) {
                bench.processes[leader].paused = true;
                leader = bench.start();
                bench.elect(leader);
            }
        }
    }
    bench.pass(90_000);
    assert!(bench.core().quiet(), "seed {seed}: {}", bench.core().status());
    bench
}

fn same(fixed: bool, seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let mut rng = Rng::new(seed / 4 + 77);
        let set = generated(&mut rng, fixed);
        let mut order: Vec<usize> = (0..set.len()).collect();
        let expected = canon::content(&build(1, &set, &order, 0), !fixed);
        let mut rng = Rng::new(seed);
        rng.shuffle(&mut order);
        let found = canon::content(&build(seed, &set, &order, 1), !fixed);
        let differences = canon::differences(&expected, &found);
        assert!(differences.is_empty(), "seed {seed}, order {order:?}:\n{}", differences.join("\n"));
    }
}

#[test]
fn with_static_addresses_every_interleaving_ends_exactly_the_same() {
    same(true, seeds(16));
}

#[test]
fn with_dynamic_addresses_every_interleaving_ends_the_same_given_the_leases() {
    same(false, seeds(16).map(|seed| 10_000 + seed));
}

fn condition(bench: &Bench, name: &str, kind: &str) -> (String, String) {
    let value = bench.api.get(&ObjectRef::cluster(Kind::Subnet, name)).unwrap();
    let all = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

/// All orders of a small set in which two subnets want one block and two pods one
/// address.
#[test]
fn of_conflicting_requests_one_wins_in_every_order_and_the_other_heals() {
    let wish = json!({ "ovn.kubernetes.io/ip_address": "10.16.0.77", "ovn.kubernetes.io/mac_address": "02:00:00:00:01:77" });
    let set: Set = vec![
        namespace("web", json!({})),
        pod_of("web", "a", "n-1", wish.clone()),
        pod_of("web", "b", "n-1", wish),
        subnet("s-a", "10.30.0.0/24", json!({})),
        subnet("s-b", "10.30.0.0/24", json!({})),
    ];
    let mut healed: Option<BTreeMap<String, String>> = None;
    for (seed, order) in permutations(set.len()).into_iter().enumerate() {
        let mut full = vec![node("n-1", 1, true)];
        full.extend(order.iter().map(|place| set[*place].clone()));
        let identity: Vec<usize> = (0..full.len()).collect();
        let mut bench = build(seed as u64, &full, &identity, 2);
        let routed = |bench: &Bench, name: &str| {
            bench.api.annotation(&pod("web", name), "ovn.kubernetes.io/routed") == Some("true")
        };
        let (winner, loser) = if routed(&bench, "a") { ("a", "b") } else { ("b", "a") };
        assert!(routed(&bench, winner) && !routed(&bench, loser), "order {order:?}");
        let told = bench.warned(&pod("web", loser), &[&format!("{winner}.web"), "10.16.0.77"]);
        assert!(told, "order {order:?}: {loser} is told of {winner}");
        let (valid, invalid) =
            if condition(&bench, "s-a", "Validated").0 == "True" { ("s-a", "s-b") } else { ("s-b", "s-a") };
        assert_eq!(condition(&bench, valid, "Validated").0, "True", "order {order:?}");
        let (status, message) = condition(&bench, invalid, "Validated");
        assert_eq!(status, "False", "order {order:?}");
        assert!(message.contains(valid), "order {order:?}: {message}");
        // The winners go: the others have it, and then all orders are the same again.
        bench.api.delete(&ObjectRef::cluster(Kind::Subnet, valid), 0);
        bench.api.remove(&pod("web", winner));
        bench.pass(90_000);
        assert!(routed(&bench, loser), "order {order:?}");
        assert_eq!(condition(&bench, invalid, "Validated").0, "True", "order {order:?}");
        let blind = |text: String| {
            let text = text.replace(invalid, "s-x").replace(&invalid.replace('-', "."), "s.x");
            text.replace(&format!("{loser}.web"), "x.web").replace(&format!("web/{loser}"), "web/x")
        };
        let left: BTreeMap<String, String> = canon::content(&bench, true)
            .into_iter()
            .filter(|(name, _)| !name.starts_with("Subnet s-") && !name.starts_with("IP "))
            .map(|(name, text)| (blind(name), blind(text)))
            .collect();
        let expected = healed.get_or_insert_with(|| left.clone());
        let differences = canon::differences(expected, &left);
        assert!(differences.is_empty(), "order {order:?}:\n{}", differences.join("\n"));
    }
}

/// All orders of a macvlan network's objects in which a pod asks for the address that a NAT
/// gateway has, with restarts: one has it, the other is told who that is, and heals.
#[test]
fn an_iptables_eip_and_a_pod_quarrel_alike_in_every_order() {
    let config = json!({ "type": "macvlan", "ipam": { "type": "kube-ovn" } }).to_string();
    let nad = (ObjectRef::namespaced(Kind::Nad, "web", "wan"), json!({ "spec": { "config": config } }));
    let wish =
        json!({ "k8s.v1.cni.cncf.io/networks": "wan", "wan.web.kubernetes.io/ip_address": "172.20.0.2" });
    let set: Set = vec![
        namespace("web", json!({})),
        nad,
        subnet("wan", "172.20.0.0/24", json!({ "provider": "wan.web" })),
        pod_of("web", "a", "n-1", wish),
        nat_eip("e-1", "wan", "172.20.0.2"),
    ];
    let eip = ObjectRef::cluster(Kind::Other(IPTABLES_EIPS), "e-1");
    let mut winners = [0, 0];
    for (seed, order) in permutations(set.len()).into_iter().enumerate() {
        let mut full = vec![node("n-1", 1, true)];
        full.extend(order.iter().map(|place| set[*place].clone()));
        let identity: Vec<usize> = (0..full.len()).collect();
        let mut bench = build(seed as u64, &full, &identity, 2);
        let error = |bench: &Bench| {
            let conditions = bench.api.get(&eip).unwrap()["status"]["conditions"].clone();
            let all = conditions.as_array().cloned().unwrap_or_default();
            all.iter().any(|condition| condition["type"] == "Error" && condition["status"] == "True")
        };
        let given = |bench: &Bench| {
            bench.api.annotation(&pod("web", "a"), "wan.web.kubernetes.io/allocated") == Some("true")
        };
        assert_eq!(given(&bench), error(&bench), "order {order:?}: one of the two has it");
        let (loser, winner) =
            if given(&bench) { (eip.clone(), "a.web.wan.web") } else { (pod("web", "a"), "IptablesEIP e-1") };
        winners[usize::from(given(&bench))] += 1;
        assert!(bench.warned(&loser, &[winner]), "order {order:?}: {loser} is told of {winner}");
        // A new leader, which does not know yet who is refused, takes nothing back meanwhile.
        bench.succeed();
        assert_eq!(bench.api.writes, Vec::<String>::new(), "order {order:?}: a restart");
        if given(&bench) {
            bench.api.remove(&pod("web", "a"));
        } else {
            bench.api.remove(&eip);
        }
        bench.pass(90_000);
        assert!(if loser == eip { !error(&bench) } else { given(&bench) }, "order {order:?}: it heals");
        bench.verify();
    }
    assert!(winners.iter().all(|count| *count > 0), "{winners:?}");
}
