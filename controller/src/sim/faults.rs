//! Lost transactions, hand-overs, culprits, other people's rows.

use ovsdb::{Operation, Value};
use serde_json::json;

use super::Bench;
use super::bench::{Faults, pod};
use crate::facts::{Kind, ObjectRef};
use crate::io::Input;

#[test]
fn lost_transactions_are_found_out_and_nothing_is_doubled() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut bench = Bench::cluster(2000 + seed);
        bench.faults = Faults { lost: 30, relist: 0, write: 0 };
        for i in 0..10 {
            bench.add_pod(&format!("p-{i}"), "n-1");
            for _ in 0..bench.rng.below(10) {
                bench.step();
            }
        }
        bench.settle();
        assert!(bench.core().quiet(), "seed {seed}: {}", bench.core().status());
        assert_eq!(bench.db.replica().table("Logical_Switch_Port").unwrap().len(), 2 + 2 + 10);
        lost += bench.core().counters().commit.lost;
    }
    assert!(lost > 20, "the fault hardly happened: {lost}");
}

#[test]
fn a_leader_that_wakes_up_after_a_hand_over_writes_nothing() {
    for seed in 0..40 {
        let mut bench = Bench::cluster(2100 + seed);
        for i in 0..4 {
            bench.add_pod(&format!("p-{i}"), "n-1");
        }
        // Suspended in the middle of things, requests and all.
        for _ in 0..bench.rng.below(40) {
            bench.step();
        }
        bench.processes[0].paused = true;
        let second = bench.start();
        bench.elect(second);
        bench.settle();
        assert!(bench.core().quiet(), "seed {seed}");
        bench.api.remove(&pod("web", "p-0"));
        bench.add_pod("p-9", "n-2");
        bench.settle();
        let before = bench.db.replica();
        // What the old leader finds in its buffers and caches is out of date.
        bench.processes[0].paused = false;
        let sent = bench.processes[0].transactions.len();
        bench.settle();
        assert_eq!(bench.db.replica().changes_since(&before), [], "seed {seed}");
        assert!(bench.processes[0].fenced, "seed {seed}: {}", bench.processes[0].core.status());
        // It tried at most what was in its buffers.
        assert!(bench.processes[0].transactions.len() - sent <= 20);
        // And it stays silent.
        bench.add_pod("p-10", "n-1");
        bench.settle();
        let port = Value::string("p-10.web");
        let replica = bench.db.replica();
        assert!(replica.table("Logical_Switch_Port").unwrap().find_one("name", &port).is_some());
        assert!(bench.core().quiet());
    }
}

#[test]
fn a_hand_over_back_and_forth_keeps_one_writer() {
    let mut bench = Bench::cluster(2200);
    let second = bench.start();
    bench.settle();
    for round in 0..10 {
        let (from, to) = if round % 2 == 0 { (0, second) } else { (second, 0) };
        bench.add_pod(&format!("p-{round}"), "n-1");
        for _ in 0..bench.rng.below(30) {
            bench.step();
        }
        bench.input(from, Input::Deposed);
        bench.elect(to);
        bench.settle();
        let routed = bench.api.annotation(&pod("web", &format!("p-{round}")), "ovn.kubernetes.io/routed");
        assert_eq!(routed, Some("true"), "round {round}");
    }
    bench.pass(30_000);
    assert!(bench.core().quiet());
    assert_eq!(bench.api.names(Kind::Ip).len(), 2 + 10);
}

#[test]
fn a_follower_writes_nothing_at_all() {
    let mut bench = Bench::cluster(2300);
    let follower = bench.start();
    for i in 0..5 {
        bench.add_pod(&format!("p-{i}"), "n-1");
    }
    bench.settle();
    assert_eq!(bench.processes[follower].transactions.len(), 0);
    assert!(bench.processes[follower].core.quiet(), "{}", bench.processes[follower].core.status());
    assert_eq!(bench.processes[follower].core.counters().leases, 2 + 5);
}

#[test]
fn one_culprit_does_not_hold_up_the_others() {
    let mut bench = Bench::cluster(2400);
    let switch = {
        let replica = bench.db.replica();
        replica.table("Logical_Switch").unwrap().find_one("name", &Value::string("join")).unwrap().uuid
    };
    // A port of that name hangs elsewhere, marked as somebody else's, and what is
    // ours there can't be had: the name is unique.
    let foreign = ovsdb::Uuid::from_u128(0xf1);
    bench.processes[0].paused = true;
    for i in 0..30 {
        bench.add_pod(&format!("p-{i}"), "n-1");
    }
    bench.processes[0].paused = false;
    while bench.processes[0].transactions.len() < 4 && bench.step() {}
    bench.transact(&[
        Operation::insert("Logical_Switch_Port").uuid(foreign).column("name", "p-7.web.x").build(),
        Operation::mutate("Logical_Switch")
            .by_uuid(switch)
            .insert_set("ports", Value::uuids([foreign]))
            .build(),
    ]);
    bench.settle();
    for i in 0..30 {
        let object = pod("web", &format!("p-{i}"));
        assert_eq!(bench.api.annotation(&object, "ovn.kubernetes.io/routed"), Some("true"));
    }
    assert!(bench.db.replica().row("Logical_Switch_Port", &foreign).is_some());
}

#[test]
fn other_peoples_rows_stay_byte_by_byte() {
    let mut bench = Bench::new(2500);
    let mut legacy = ovsdb::testing::Database::new(ovsdb::testing::northbound());
    let (router, switch) = (ovsdb::Uuid::from_u128(1), ovsdb::Uuid::from_u128(2));
    let ids = |pairs: &[(&'static str, &'static str)]| Value::string_map(pairs.iter().copied());
    let vendor = ids(&[("vendor", "kube-ovn")]);
    let child = |table: &str, n: u128, columns: Vec<(&'static str, Value)>| {
        let uuid = ovsdb::Uuid::from_u128(n);
        (uuid, Operation::insert(table).uuid(uuid).columns(columns).build())
    };
    let nat = child(
        "NAT",
        10,
        vec![
            ("type", "snat".into()),
            ("external_ip", "198.51.100.1".into()),
            ("logical_ip", "10.16.0.0/16".into()),
        ],
    );
    let hand = child(
        "Logical_Router_Policy",
        11,
        vec![
            ("priority", Value::integer(29_600)),
            ("match", "ip4.src == 10.16.7.7".into()),
            ("action", "drop".into()),
        ],
    );
    let route = child(
        "Logical_Router_Static_Route",
        12,
        vec![("ip_prefix", "203.0.113.0/24".into()), ("nexthop", "100.64.0.9".into())],
    );
    let port = child("Logical_Switch_Port", 13, vec![("name", "by-hand".into())]);
    let acl = child(
        "ACL",
        14,
        vec![
            ("priority", Value::integer(1000)),
            ("direction", "to-lport".into()),
            ("match", "ip4".into()),
            ("action", "allow".into()),
        ],
    );
    let group = child(
        "Port_Group",
        15,
        vec![
            ("name", "p.1.web".into()),
            ("external_ids", ids(&[("np", "web/p-1"), ("vendor", "kube-ovn")])),
            ("ports", Value::uuids([port.0])),
        ],
    );
    let balancer = child("Load_Balancer", 16, vec![("name", "cluster-tcp-loadbalancer".into())]);
    let foreign: Vec<_> = [&nat, &hand, &route, &port, &acl, &group, &balancer].map(|(uuid, _)| *uuid).into();
    let mut operations: Vec<Operation> =
        [nat.1, hand.1.clone(), route.1, port.1, acl.1, group.1, balancer.1].into();
    operations.push(
        Operation::insert("Logical_Router")
            .uuid(router)
            .column("name", "ovn-cluster")
            .column("external_ids", vendor.clone())
            .column("nat", Value::uuids([foreign[0]]))
            .column("policies", Value::uuids([foreign[1]]))
            .column("static_routes", Value::uuids([foreign[2]]))
            .build(),
    );
    operations.push(
        Operation::insert("Logical_Switch")
            .uuid(switch)
            .column("name", "ovn-default")
            .column("external_ids", vendor)
            .column("ports", Value::uuids([foreign[3]]))
            .column("acls", Value::uuids([foreign[4]]))
            .column("load_balancer", Value::uuids([foreign[6]]))
            .build(),
    );
    legacy.must(&operations);
    bench.db = legacy;
    let before = bench.db.replica();
    bench.add_namespace("web");
    bench.add_node("n-1", "192.0.2.11");
    let leader = bench.start();
    bench.elect(leader);
    bench.add_pod("a-0", "n-1");
    bench.settle();
    bench.api.remove(&pod("web", "a-0"));
    bench.settle();
    assert!(bench.core().quiet());
    let after = bench.db.replica();
    for table in before.tables() {
        for row in table.rows().filter(|row| foreign.contains(&row.uuid)) {
            assert_eq!(after.row(table.name(), &row.uuid), Some(row));
        }
    }
    // Adopted, not doubled, and still holding what others put there.
    let adopted = after.row("Logical_Router", &router).unwrap();
    assert!(adopted.set("nat").unwrap().contains(&foreign[0].into()));
    assert!(adopted.set("policies").unwrap().contains(&foreign[1].into()));
    assert_eq!(after.table("Logical_Router").unwrap().len(), 1);
    assert!(bench.core().counters().unclaimed_rows >= 3);
}

#[test]
fn a_subnet_that_overlaps_says_so_and_heals() {
    let mut bench = Bench::cluster(2600);
    let extra = ObjectRef::cluster(Kind::Subnet, "aaa");
    bench.api.create(&extra, json!({ "spec": { "cidrBlock": "10.16.8.0/24" } })).unwrap();
    bench.settle();
    let condition = |bench: &Bench| {
        let status = bench.api.get(&extra).unwrap()["status"]["conditions"].clone();
        let list = status.as_array().unwrap().clone();
        list.into_iter().find(|c| c["type"] == "Validated").unwrap()
    };
    assert_eq!(condition(&bench)["status"], "False");
    assert!(condition(&bench)["message"].as_str().unwrap().contains("ovn-default"));
    let switches = |bench: &Bench| bench.db.replica().table("Logical_Switch").unwrap().len();
    assert_eq!(switches(&bench), 2);
    bench
        .api
        .edit(&extra, json!({ "spec": { "cidrBlock": "10.17.8.0/24", "gateway": "", "excludeIps": [] } }));
    bench.settle();
    assert_eq!(condition(&bench)["status"], "True");
    assert_eq!(switches(&bench), 3);
    bench.api.delete(&extra, 0);
    bench.settle();
    assert!(bench.api.get(&extra).is_none());
    assert_eq!(switches(&bench), 2);
}
