//! External networks of VPCs through the whole pipeline: OvnEips, routers' ports and their
//! gateways, BFD sessions and the routes that hang on them.

use std::collections::BTreeMap;

use ovsdb::{Operation, Value as Column};
use serde_json::{Value, json};

use super::networks::{add, all_rows, names, status, subnet, two_nodes, vpc};
use super::{cluster, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

pub(super) fn eip(name: &str) -> ObjectRef {
    cluster(Kind::OvnEip, name)
}

pub(super) const NETWORK: Kind = Kind::ProviderNetwork;

/// What has to be there for a VPC with an external network, in an order in which everything
/// is there when it is needed.
fn things() -> Vec<(ObjectRef, Value)> {
    let lsp = |ip: &str, end: u8| {
        json!({ "spec": { "externalSubnet": "wan", "type": "lsp", "v4Ip": ip,
            "macAddress": format!("02:00:00:00:00:{end:02x}") }, "status": { "ready": true } })
    };
    vec![
        (cluster(NETWORK, "net1"), json!({ "spec": { "defaultInterface": "eth1" } })),
        (cluster(Kind::Vlan, "v-7"), json!({ "spec": { "id": 7, "provider": "net1" } })),
        (subnet("wan"), json!({ "spec": { "cidrBlock": "172.18.0.0/24", "vlan": "v-7" } })),
        (eip("n-1"), lsp("172.18.0.11", 0xc1)),
        (eip("n-2"), lsp("172.18.0.12", 0xc2)),
        // Its address is not left to chance.
        (
            eip("blue-wan"),
            json!({ "spec": { "externalSubnet": "wan", "type": "lrp", "v4Ip": "172.18.0.10",
                "macAddress": "02:00:00:00:00:c0" } }),
        ),
        (vpc("blue"), json!({ "spec": { "extraExternalSubnets": ["wan"], "enableBfd": true } })),
        (
            subnet("b-1"),
            json!({ "spec": { "vpc": "blue", "cidrBlock": "10.50.0.0/24", "enableEcmp": true } }),
        ),
    ]
}

pub(super) fn label(bench: &mut Bench, nodes: &[&str]) {
    let label = json!({ "metadata": { "labels": { "ovn.kubernetes.io/external-gw": "true" } } });
    for node in nodes {
        bench.api.edit(&cluster(Kind::Node, node), label.clone());
    }
    bench.settle();
}

pub(super) fn made() -> Bench {
    let mut bench = two_nodes();
    label(&mut bench, &["n-1", "n-2"]);
    for (object, body) in things() {
        bench.api.create(&object, body).unwrap();
        bench.settle();
    }
    bench
}

/// Priorities of the gateways of a router's port, by chassis.
pub(super) fn priorities(bench: &Bench) -> BTreeMap<String, i64> {
    let replica = bench.db.replica();
    let rows = replica.table("Gateway_Chassis").unwrap().rows();
    rows.map(|row| (row.str("chassis_name").unwrap().to_owned(), row.i64("priority").unwrap())).collect()
}

fn tell(bench: &mut Bench, peers: &[(&str, &str)]) {
    for (peer, status) in peers {
        let update = Operation::update("BFD").by("dst_ip", *peer);
        bench.transact(&[update.column("status", Column::optional(Some(*status))).build()]);
    }
    // Without letting time pass.
    while bench.step() {}
}

#[test]
fn rows_and_objects() {
    let bench = made();
    let text = all_rows(&bench);
    let mut parts = Vec::new();
    // Rows of this feature, of a database that has others too.
    for part in text.split("\n").collect::<Vec<_>>().chunk_by(|_, next| next.starts_with(' ')) {
        let of = |word: &str| part.iter().any(|line| line.contains(word));
        if of("wan") || of("172.18.0.") || of("Logical_Router blue") {
            // UUIDs of references that are not named.
            parts.push(part.join("\n"));
        }
    }
    let mut objects = BTreeMap::new();
    for object in bench.api.names(Kind::OvnEip).into_iter().chain([
        vpc("blue"),
        subnet("wan"),
        cluster(Kind::Vlan, "v-7"),
    ]) {
        let mut value = bench.api.get(&object).unwrap().clone();
        for condition in value["status"]["conditions"].as_array_mut().into_iter().flatten() {
            for key in ["lastUpdateTime", "lastTransitionTime", "observedGeneration"] {
                condition.as_object_mut().unwrap().remove(key);
            }
            // Absent or empty, by which write came first.
            if condition["message"] == "" {
                condition.as_object_mut().unwrap().remove("message");
            }
        }
        let meta =
            json!({ "labels": value["metadata"]["labels"], "finalizers": value["metadata"]["finalizers"] });
        objects.insert(object.to_string(), json!({ "metadata": meta, "status": value["status"] }));
    }
    insta::assert_snapshot!(format!(
        "{}\n\n{}",
        parts.join("\n"),
        serde_json::to_string_pretty(&objects).unwrap()
    ));
}

/// In whatever order things come, the end is the same: the port's address is given, so exactly.
#[test]
fn every_order_ends_the_same() {
    let expected = all_rows(&made());
    let count = things().len();
    for seed in 0..15u64 {
        let mut bench = two_nodes();
        let mut order: Vec<usize> = (0..count).collect();
        let mut rng = crate::sim::Rng::new(seed);
        rng.shuffle(&mut order);
        let labelled = rng.below(count);
        for (place, index) in order.iter().enumerate() {
            if place == labelled {
                label(&mut bench, &["n-2", "n-1"]);
            }
            let (object, body) = things()[*index].clone();
            match bench.api.get(&object) {
                // Made by the controller before: then it has an address that chance gave it.
                Some(_) => {
                    bench.api.edit(&vpc("blue"), json!({ "spec": { "extraExternalSubnets": [] } }));
                    bench.settle();
                    bench.api.create(&object, body).unwrap();
                    bench.api.edit(&vpc("blue"), json!({ "spec": { "extraExternalSubnets": ["wan"] } }));
                }
                None => bench.api.create(&object, body).unwrap(),
            }
            if rng.chance(60) {
                bench.settle();
            }
            if rng.chance(20) {
                restart(&mut bench, Families::V4);
            }
        }
        bench.settle();
        let strip = |text: &str| -> String {
            // MAC addresses of other ports are drawn.
            text.lines().filter(|line| !line.contains("mac = ")).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(strip(&all_rows(&bench)), strip(&expected), "seed {seed}, order {order:?}");
        bench.verify();
    }
}

/// Switched off in any order, nothing is left, neither rows nor objects nor addresses.
#[test]
fn nothing_is_left_whatever_goes_first() {
    let before = all_rows(&two_nodes());
    type Step = fn(&mut Bench);
    let steps: [Step; 7] = [
        |bench| bench.api.edit(&vpc("blue"), json!({ "spec": { "enableBfd": false } })),
        |bench| bench.api.edit(&vpc("blue"), json!({ "spec": { "extraExternalSubnets": [] } })),
        |bench| bench.api.delete(&eip("n-1"), 0),
        |bench| bench.api.delete(&eip("n-2"), 0),
        |bench| bench.api.delete(&subnet("b-1"), 0),
        |bench| bench.api.delete(&subnet("wan"), 0),
        |bench| bench.api.delete(&vpc("blue"), 0),
    ];
    for seed in 0..15u64 {
        let mut rng = crate::sim::Rng::new(seed);
        let mut bench = made();
        let mut order: Vec<usize> = (0..steps.len()).collect();
        rng.shuffle(&mut order);
        for index in &order {
            if bench.api.get(&vpc("blue")).is_some() || *index > 1 {
                steps[*index](&mut bench);
            }
            if rng.chance(70) {
                bench.settle();
            }
            if rng.chance(20) {
                restart(&mut bench, Families::V4);
            }
        }
        bench.settle();
        assert_eq!(bench.api.names(Kind::OvnEip), Vec::<ObjectRef>::new(), "seed {seed}, order {order:?}");
        assert!(bench.api.get(&subnet("wan")).is_none(), "seed {seed}, order {order:?}");
        assert_eq!(all_rows(&bench), before, "seed {seed}, order {order:?}");
        bench.verify();
    }
}

/// A session never outlives its port (northd can't do with that): not in any transaction.
#[test]
fn sessions_go_in_the_transaction_of_their_port() {
    for whole in [true, false] {
        let mut bench = made();
        bench.api.delete(&subnet("b-1"), 0);
        bench.settle();
        let sent = bench.processes[0].transactions.len();
        if whole {
            bench.api.delete(&vpc("blue"), 0);
        } else {
            bench
                .api
                .edit(&vpc("blue"), json!({ "spec": { "extraExternalSubnets": [], "enableBfd": false } }));
        }
        bench.settle();
        assert!(bench.db.replica().table("BFD").unwrap().rows().next().is_none());
        for operations in &bench.processes[0].transactions[sent..] {
            let text = format!("{operations:?}");
            let port = text.contains("Logical_Router\"") && text.contains("ports");
            assert!(!port || text.contains("BFD"), "a port went without its sessions: {text}");
        }
    }
}

/// The first gateway has 100, 101 once it reaches a peer, 95 while it reaches none; it gets
/// the port back after a pause, also from another controller.
#[test]
fn priorities_follow_the_sessions() {
    let mut bench = made();
    let first = "chassis-n-1";
    let is = |bench: &Bench, priority: i64| {
        let all = BTreeMap::from([(first.to_owned(), priority), ("chassis-n-2".to_owned(), 99)]);
        assert_eq!(priorities(bench), all);
    };
    is(&bench, 100);
    tell(&mut bench, &[("172.18.0.11", "down"), ("172.18.0.12", "down")]);
    is(&bench, 100);
    tell(&mut bench, &[("172.18.0.11", "up")]);
    is(&bench, 101);
    tell(&mut bench, &[("172.18.0.12", "up")]);
    tell(&mut bench, &[("172.18.0.11", "down")]);
    is(&bench, 101);
    tell(&mut bench, &[("172.18.0.12", "down")]);
    is(&bench, 95);
    restart(&mut bench, Families::V4);
    is(&bench, 95);
    // They are up on the other gateway: the first one is not tried at once.
    tell(&mut bench, &[("172.18.0.11", "up")]);
    is(&bench, 95);
    // It was tried in vain meanwhile, so the pause has grown to its longest.
    bench.pass(961_000);
    is(&bench, 101);
    restart(&mut bench, Families::V4);
    is(&bench, 101);
    // Without sessions nobody knows.
    bench.api.edit(&vpc("blue"), json!({ "spec": { "enableBfd": false } }));
    bench.settle();
    is(&bench, 100);
}

/// What the sessions said was said of the gateway that was the first: another one that becomes
/// the first begins anew, also where it takes over in the middle of a fail-over.
#[test]
fn another_first_gateway_inherits_nothing() {
    let is = |bench: &Bench, all: &[(&str, i64)]| {
        let all: BTreeMap<String, i64> =
            all.iter().map(|(name, p)| (format!("chassis-{name}"), *p)).collect();
        assert_eq!(priorities(bench), all);
    };
    let gateway = |bench: &mut Bench, node: &str, is: &str| {
        let label = json!({ "metadata": { "labels": { "ovn.kubernetes.io/external-gw": is } } });
        bench.api.edit(&cluster(Kind::Node, node), label);
        // Without letting time pass.
        while bench.step() {}
    };
    let both = |status: &'static str| [("172.18.0.11", status), ("172.18.0.12", status)];
    for again in [false, true] {
        let mut bench = made();
        tell(&mut bench, &both("up"));
        tell(&mut bench, &both("down"));
        is(&bench, &[("n-1", 95), ("n-2", 99)]);
        gateway(&mut bench, "n-1", "false");
        is(&bench, &[("n-2", 100)]);
        if again {
            restart(&mut bench, Families::V4);
            is(&bench, &[("n-2", 100)]);
        }
        // It reaches a peer, and then none: that is its own.
        tell(&mut bench, &both("up"));
        is(&bench, &[("n-2", 101)]);
        tell(&mut bench, &both("down"));
        is(&bench, &[("n-2", 95)]);
        // The other one is back, and first: it is neither lowered nor does it wait.
        gateway(&mut bench, "n-1", "true");
        is(&bench, &[("n-1", 100), ("n-2", 99)]);
        tell(&mut bench, &both("up"));
        is(&bench, &[("n-1", 101), ("n-2", 99)]);
        // While it is up, the raised one does not hand its 101 on.
        tell(&mut bench, &[("172.18.0.11", "init"), ("172.18.0.12", "init")]);
        gateway(&mut bench, "n-1", "false");
        is(&bench, &[("n-2", 100)]);
        bench.verify();
    }
}

/// The sixth of many gateways has the priority of a first one that was lowered; nobody takes it
/// for that, whoever starts.
#[test]
fn six_gateways_are_told_apart() {
    let mut bench = made();
    let nodes: Vec<String> = (3..9).map(|n| format!("n-{n}")).collect();
    for (n, name) in nodes.iter().enumerate() {
        super::add_node(&mut bench, Families::V4, name, 20 + u8::try_from(n).unwrap());
    }
    label(&mut bench, &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    let first = |bench: &Bench, priority: i64| {
        let mut all = priorities(bench);
        // One that has its turn left its place for it.
        let lacks = (93..100).find(|place| all.values().all(|has| has != place));
        for (_, turn) in all.iter_mut().filter(|(_, priority)| **priority == 102) {
            *turn = lacks.unwrap();
        }
        let mut values: Vec<i64> = all.values().copied().collect();
        values.sort_unstable();
        let mut expected: Vec<i64> = (93..100).chain([priority]).collect();
        expected.sort_unstable();
        assert_eq!(values, expected, "{all:?}");
        let mut order: Vec<(i64, String)> =
            all.into_iter().map(|(name, priority)| (priority, name)).collect();
        order.sort();
        order
    };
    let before = first(&bench, 100);
    restart(&mut bench, Families::V4);
    assert_eq!(first(&bench, 100), before);
    let both = |status: &'static str| [("172.18.0.11", status), ("172.18.0.12", status)];
    tell(&mut bench, &both("up"));
    first(&bench, 101);
    tell(&mut bench, &both("down"));
    let lowered = first(&bench, 95);
    restart(&mut bench, Families::V4);
    assert_eq!(first(&bench, 95), lowered);
    tell(&mut bench, &both("up"));
    bench.pass(961_000);
    let raised = first(&bench, 101);
    assert_eq!(raised.last().map(|(_, name)| name), before.last().map(|(_, name)| name));
}

/// While the peer on the first gateway's own node does not answer, that gateway is not tried: sessions that are up on
/// another one would go on being told as up (see `world/sessions.rs`). Its pause counts from when the peer is back.
#[test]
fn a_gateway_that_is_cut_is_not_tried_while_another_one_serves() {
    let mut bench = made();
    let is = |bench: &Bench, priority: i64| {
        let all = [("chassis-n-1".to_owned(), priority), ("chassis-n-2".to_owned(), 99)];
        assert_eq!(priorities(bench), BTreeMap::from(all));
    };
    tell(&mut bench, &[("172.18.0.11", "up"), ("172.18.0.12", "up")]);
    is(&bench, 101);
    tell(&mut bench, &[("172.18.0.11", "down"), ("172.18.0.12", "down")]);
    tell(&mut bench, &[("172.18.0.12", "up")]);
    for _ in 0..40 {
        bench.later(60_000);
        is(&bench, 95);
    }
    tell(&mut bench, &[("172.18.0.11", "up")]);
    bench.later(29_000);
    is(&bench, 95);
    bench.later(1_500);
    is(&bench, 101);
    bench.verify();
}

/// Of three gateways only wires are cut, so that all of them live: the third one has its turn too. Each move is a change of
/// two rows at most.
#[test]
fn the_third_gateway_is_tried_while_only_wires_are_cut() {
    let mut bench = made();
    super::add_node(&mut bench, Families::V4, "n-3", 20);
    label(&mut bench, &["n-3"]);
    let mut order: Vec<(i64, String)> =
        priorities(&bench).into_iter().map(|(name, priority)| (-priority, name)).collect();
    order.sort();
    let order: Vec<String> = order.into_iter().map(|(_, name)| name).collect();
    let is = |bench: &Bench, wanted: [i64; 3]| {
        let all: BTreeMap<String, i64> = order.iter().cloned().zip(wanted).collect();
        assert_eq!(priorities(bench), all);
    };
    let both = |status: &'static str| [("172.18.0.11", status), ("172.18.0.12", status)];
    is(&bench, [100, 99, 98]);
    tell(&mut bench, &both("up"));
    is(&bench, [101, 99, 98]);
    tell(&mut bench, &both("down"));
    is(&bench, [95, 99, 98]);
    let sent = bench.processes[0].transactions.len();
    bench.later(5_000);
    is(&bench, [95, 99, 102]);
    let operations: usize = bench.processes[0].transactions[sent..]
        .iter()
        .map(|operations| {
            operations.iter().filter(|one| format!("{one:?}").contains("Gateway_Chassis")).count()
        })
        .sum();
    assert!(operations <= 2, "{operations}");
    tell(&mut bench, &both("up"));
    is(&bench, [95, 99, 102]);
    // The first one is tried in its time, and the port comes back.
    bench.later(30_000);
    is(&bench, [101, 99, 98]);
    tell(&mut bench, &both("down"));
    is(&bench, [95, 99, 102]);
    // It fails as well, and the second one is whole by now.
    tell(&mut bench, &both("up"));
    tell(&mut bench, &both("down"));
    is(&bench, [95, 99, 98]);
    tell(&mut bench, &both("up"));
    is(&bench, [95, 99, 98]);
    // One that is no gateway any more has no turn.
    tell(&mut bench, &both("down"));
    is(&bench, [95, 99, 102]);
    let node = order[2].trim_start_matches("chassis-").to_owned();
    let off = json!({ "metadata": { "labels": { "ovn.kubernetes.io/external-gw": "false" } } });
    bench.api.edit(&cluster(Kind::Node, &node), off);
    while bench.step() {}
    let left: BTreeMap<String, i64> = order.iter().cloned().zip([95, 99]).collect();
    assert_eq!(priorities(&bench), left);
    bench.verify();
}

/// What is missing, and who is in the way, is said by name, and heals.
#[test]
fn everything_that_lacks_is_named() {
    let mut bench = two_nodes();
    let said = |bench: &Bench, words: &[&str]| {
        let said = status(bench, &vpc("blue"), "Ready");
        assert!(said.starts_with("False ExternalNetworkNotReady"), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?} in {said}");
    };
    add(
        &mut bench,
        &vpc("blue"),
        json!({ "enableExternal": true, "extraExternalSubnets": ["wan"], "enableBfd": true }),
    );
    said(
        &bench,
        &[
            "no Subnet external",
            "--external-gateway-switch",
            "no Subnet wan",
            "ovn.kubernetes.io/external-gw=true",
        ],
    );
    bench.api.edit(&vpc("blue"), json!({ "spec": { "enableExternal": false } }));
    add(&mut bench, &subnet("wan"), json!({ "cidrBlock": "172.18.0.0/24" }));
    said(&bench, &["Subnet wan", "vlan"]);
    bench.api.edit(&subnet("wan"), json!({ "spec": { "vlan": "v-7" } }));
    label(&mut bench, &["n-1"]);
    said(&bench, &["no Vlan v-7"]);
    let wan = |bench: &Bench| status(bench, &subnet("wan"), "Ready");
    assert!(wan(&bench).starts_with("False ValidateSubnetVlanFailed"), "{}", wan(&bench));
    // Another one has the id: it was first.
    add(&mut bench, &cluster(Kind::Vlan, "first"), json!({ "id": 7, "provider": "net1" }));
    bench.pass(2_000);
    add(&mut bench, &cluster(Kind::Vlan, "v-7"), json!({ "id": 7, "provider": "net1" }));
    said(&bench, &["Vlan first"]);
    assert_eq!(bench.api.get(&cluster(Kind::Vlan, "v-7")).unwrap()["status"]["conflict"], json!(true));
    bench.api.remove(&cluster(Kind::Vlan, "first"));
    bench.settle();
    said(&bench, &["no ProviderNetwork net1", "no OvnEip of type lsp in Subnet wan is ready"]);
    assert!(names(&bench, "Logical_Switch_Port").contains(&"localnet.wan".to_owned()));
    bench.api.create(&cluster(NETWORK, "net1"), json!({ "spec": {} })).unwrap();
    bench.api.edit(&vpc("blue"), json!({ "spec": { "enableBfd": false } }));
    bench.settle();
    let done = status(&bench, &vpc("blue"), "Ready");
    assert!(done.starts_with("True"), "{done}");
    let status_of = &bench.api.get(&vpc("blue")).unwrap()["status"];
    assert_eq!(
        (&status_of["extraExternalSubnets"], &status_of["enableExternal"]),
        (&json!(["wan"]), &json!(false))
    );
}

/// Where the network is, and its VLAN, also of a port that was there before (contract §9).
#[test]
fn a_localnet_port_altered_by_hand_is_put_right() {
    let mut bench = made();
    let before = all_rows(&bench);
    assert!(before.contains("network_name"), "{before}");
    let change = |tag: Option<i64>, network: &str| {
        Operation::update("Logical_Switch_Port")
            .by("name", "localnet.wan")
            .column("tag", Column::optional(tag))
            .column("options", Column::string_map([("network_name", network)]))
            .build()
    };
    for (tag, network) in [(Some(8), "net1"), (None, "net1"), (Some(7), "other")] {
        bench.transact(&[change(tag, network)]);
        bench.settle();
        assert_eq!(all_rows(&bench), before);
        // And one that is found like that.
        bench.processes.last_mut().unwrap().paused = true;
        bench.transact(&[change(tag, network)]);
        restart(&mut bench, Families::V4);
        assert_eq!(all_rows(&bench), before);
    }
    bench.api.edit(&cluster(Kind::Vlan, "v-7"), json!({ "spec": { "id": 9 } }));
    bench.settle();
    assert!(all_rows(&bench).contains("tag = "), "the Vlan's new id");
    assert_ne!(all_rows(&bench), before);
}
