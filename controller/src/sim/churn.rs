//! Pods that come and go: names used again at once, nothing left behind.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::Value;
use serde_json::json;

use super::Bench;
use super::bench::{Faults, pod};
use crate::facts::{Kind, ObjectRef};

/// Everything that pods leave traces in: rows, memberships, IP objects, counts.
pub(super) fn inventory(bench: &Bench) -> Vec<String> {
    let replica = bench.db.replica();
    let mut lines = Vec::new();
    for table in replica.tables() {
        for row in table.rows() {
            let columns: Vec<String> = row
                .columns()
                .filter(|(name, _)| ***name != *"external_ids" || &**table.name() != "NB_Global")
                .map(|(name, value)| match &**name {
                    // UUIDs differ between incarnations, their number may not.
                    "ports" | "policies" | "static_routes" => {
                        format!("{name}={}", value.as_set().map_or(0, |s| s.len()))
                    }
                    _ => format!("{name}={value:?}"),
                })
                .collect();
            lines.push(format!("{} {}", table.name(), columns.join(" ")));
        }
    }
    lines.extend(bench.api.names(Kind::Ip).iter().map(ToString::to_string));
    for subnet in bench.api.names(Kind::Subnet) {
        let status = &bench.api.get(&subnet).unwrap()["status"];
        let ranges = status["v4usingIPrange"].as_str().unwrap_or_default();
        lines.push(format!("{subnet} {} {ranges}", status["v4usingIPs"].as_i64().unwrap_or_default()));
    }
    let counters = bench.core().counters();
    lines.push(format!("leases {} units {} rows {}", counters.leases, counters.units, counters.rows));
    lines.sort();
    lines
}

#[track_caller]
pub(super) fn same_inventory(bench: &Bench, expected: &[String], context: &str) {
    let found = inventory(bench);
    let more: Vec<_> = found.iter().filter(|line| !expected.contains(line)).collect();
    let less: Vec<_> = expected.iter().filter(|line| !found.contains(line)).collect();
    assert!(more.is_empty() && less.is_empty(), "{context}: left over {more:#?}, missing {less:#?}");
}

fn ports(bench: &Bench) -> BTreeMap<String, String> {
    let replica = bench.db.replica();
    let rows = replica.table("Logical_Switch_Port").unwrap().rows();
    let pods = rows.filter(|row| row.map_get("external_ids", "pod").is_some());
    pods.map(|row| {
        let addresses: Vec<&str> = row.get("addresses").unwrap().set_strings().collect();
        (row.str("name").unwrap().to_owned(), addresses.join(" "))
    })
    .collect()
}

/// Pod, port, IP object and lease say the same, and no address is used twice.
pub(super) fn check_pods(bench: &Bench, context: &str) {
    let ports = ports(bench);
    let mut seen = BTreeSet::new();
    for object in bench.api.names(Kind::Pod) {
        let value = bench.api.get(&object).unwrap();
        if value["metadata"]["deletionTimestamp"].is_string() {
            continue;
        }
        let annotation = |key: &str| {
            let found = bench.api.annotation(&object, &format!("ovn.kubernetes.io/{key}"));
            found.unwrap_or_else(|| panic!("{context}: {object} has no {key}: {value}")).to_owned()
        };
        assert_eq!(annotation("routed"), "true");
        let (ip, mac) = (annotation("ip_address"), annotation("mac_address"));
        let port = format!("{}.{}", object.name, object.namespace);
        assert_eq!(ports.get(&port), Some(&format!("{mac} {ip}")), "{context}: {object}");
        let record = bench.api.get(&ObjectRef::cluster(Kind::Ip, port.as_str())).unwrap();
        assert_eq!(record["spec"]["ipAddress"], ip, "{context}: {object}");
        assert_eq!(record["spec"]["macAddress"], mac, "{context}: {object}");
        assert_eq!(record["spec"]["nodeName"], value["spec"]["nodeName"], "{context}: {object}");
        assert!(seen.insert(ip), "{context}: {object}: address used twice");
        let node = format!("node.{}", value["spec"]["nodeName"].as_str().unwrap().replace('-', "."));
        let replica = bench.db.replica();
        let row = replica.table("Logical_Switch_Port").unwrap();
        let row = row.find_one("name", &Value::string(port.as_str())).unwrap();
        let holds = |group: &str| {
            let group = replica.table("Port_Group").unwrap().find_one("name", &Value::string(group));
            group.unwrap().set("ports").unwrap().contains(&row.uuid.into())
        };
        for name in ["n-1", "n-2"] {
            let group = format!("node.{}", name.replace('-', "."));
            assert_eq!(holds(&group), group == node, "{context}: {object} in {group}");
        }
    }
}

#[test]
fn a_name_used_again_two_hundred_times_always_serves_the_new_pod() {
    for seed in 0..4 {
        let mut bench = Bench::cluster(100 + seed);
        let empty = inventory(&bench);
        for round in 0..200 {
            let node = if bench.rng.chance(50) { "n-1" } else { "n-2" };
            bench.add_pod("a-0", node);
            for _ in 0..bench.rng.below(40) {
                bench.step();
            }
            if round % 20 == 19 {
                bench.settle();
                check_pods(&bench, &format!("seed {seed} round {round}"));
            }
            bench.api.remove(&pod("web", "a-0"));
            for _ in 0..bench.rng.below(10) {
                bench.step();
            }
        }
        bench.add_pod("a-0", "n-1");
        bench.settle();
        check_pods(&bench, &format!("seed {seed} at the end"));
        bench.api.remove(&pod("web", "a-0"));
        bench.pass(10_000);
        same_inventory(&bench, &empty, &format!("seed {seed}"));
    }
}

#[test]
fn a_successor_that_asks_for_another_address_gets_it() {
    for seed in 0..20 {
        let mut bench = Bench::cluster(200 + seed);
        bench.add_pod_with("a-0", "n-1", json!({ "ovn.kubernetes.io/ip_address": "10.16.0.77" }));
        for _ in 0..bench.rng.below(60) {
            bench.step();
        }
        bench.api.remove(&pod("web", "a-0"));
        bench.add_pod_with("a-0", "n-2", json!({ "ovn.kubernetes.io/ip_address": "10.16.0.88" }));
        bench.settle();
        check_pods(&bench, &format!("seed {seed}"));
        let ip = bench.api.annotation(&pod("web", "a-0"), "ovn.kubernetes.io/ip_address");
        assert_eq!(ip, Some("10.16.0.88"), "seed {seed}");
        // The old one is free again.
        bench.add_pod_with("b-0", "n-2", json!({ "ovn.kubernetes.io/ip_address": "10.16.0.77" }));
        bench.settle();
        check_pods(&bench, &format!("seed {seed}"));
    }
}

#[test]
fn a_conflicting_request_is_refused_by_name_and_heals() {
    let mut bench = Bench::cluster(300);
    let wish = json!({ "ovn.kubernetes.io/ip_address": "10.16.0.77" });
    bench.add_pod_with("a-0", "n-1", wish.clone());
    bench.settle();
    bench.add_pod_with("b-0", "n-1", wish);
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("web", "b-0"), "ovn.kubernetes.io/routed"), None);
    let warnings: Vec<_> = bench.processes[0].events.iter().filter(|e| e.warning).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].message.contains("a-0.web"), "{}", warnings[0].message);
    bench.api.remove(&pod("web", "a-0"));
    bench.settle();
    check_pods(&bench, "healed");
}

#[test]
fn ended_pods_give_back_what_they_had() {
    let mut bench = Bench::cluster(400);
    let empty = inventory(&bench);
    for name in ["deleted", "evicted", "completed", "lost"] {
        bench.add_pod(name, "n-1");
    }
    bench.settle();
    check_pods(&bench, "up");
    bench.api.remove(&pod("web", "deleted"));
    bench.api.edit(&pod("web", "evicted"), json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
    let done = json!({ "spec": { "restartPolicy": "Never" }, "status": { "phase": "Succeeded" } });
    bench.api.edit(&pod("web", "completed"), done);
    // Its node is lost: the object stays, but its grace period ends.
    bench.api.delete(&pod("web", "lost"), 30);
    bench.step();
    assert!(ports(&bench).contains_key("lost.web"));
    bench.pass(40_000);
    assert_eq!(ports(&bench), BTreeMap::new());
    let names = |line: &String| !line.starts_with("leases");
    let now: Vec<_> = inventory(&bench).into_iter().filter(names).collect();
    assert_eq!(now, empty.iter().filter(|l| names(l)).cloned().collect::<Vec<_>>());
    for name in ["evicted", "completed", "lost"] {
        bench.api.remove(&pod("web", name));
    }
    bench.pass(10_000);
    same_inventory(&bench, &empty, "at the end");
}

#[test]
fn a_terminating_pod_keeps_its_port_for_its_grace_period() {
    let mut bench = Bench::cluster(500);
    bench.add_pod("a-0", "n-1");
    bench.settle();
    bench.api.delete(&pod("web", "a-0"), 30);
    // Everything but time.
    while bench.step() {}
    assert!(ports(&bench).contains_key("a-0.web"));
    bench.api.remove(&pod("web", "a-0"));
    bench.settle();
    assert!(!ports(&bench).contains_key("a-0.web"));
}

#[test]
fn thirty_pods_ten_times_with_faults_leave_nothing() {
    for seed in 0..6 {
        let mut bench = Bench::cluster(600 + seed);
        let empty = inventory(&bench);
        bench.faults = Faults { lost: 3, relist: 5, write: 5 };
        for round in 0..10 {
            for i in 0..30 {
                bench.add_pod(&format!("p-{i}"), if i % 2 == 0 { "n-1" } else { "n-2" });
                for _ in 0..bench.rng.below(4) {
                    bench.step();
                }
            }
            if round % 3 == 0 {
                bench.settle();
                check_pods(&bench, &format!("seed {seed} round {round}"));
            }
            for i in 0..30 {
                let object = pod("web", &format!("p-{i}"));
                if bench.rng.chance(50) {
                    bench.api.delete(&object, 30);
                    bench.step();
                }
                bench.api.remove(&object);
                bench.step();
            }
        }
        bench.pass(120_000);
        same_inventory(&bench, &empty, &format!("seed {seed}"));
        assert!(bench.core().quiet());
    }
}

#[test]
fn nodes_come_and_go() {
    let mut bench = Bench::cluster(700);
    let empty = inventory(&bench);
    bench.add_node("n-3", "192.0.2.13");
    bench.add_pod("a-0", "n-3");
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("web", "a-0"), "ovn.kubernetes.io/routed"), Some("true"));
    bench.api.remove(&ObjectRef::cluster(Kind::Node, "n-3"));
    bench.api.remove(&pod("web", "a-0"));
    bench.pass(10_000);
    same_inventory(&bench, &empty, "at the end");
}

#[test]
fn a_deleted_ip_object_of_a_living_pod_is_written_anew() {
    let mut bench = Bench::cluster(800);
    bench.add_pod("a-0", "n-1");
    bench.settle();
    bench.api.delete(&ObjectRef::cluster(Kind::Ip, "a-0.web"), 0);
    bench.pass(10_000);
    check_pods(&bench, "again");
    let record = bench.api.get(&ObjectRef::cluster(Kind::Ip, "a-0.web")).unwrap();
    assert!(record["metadata"]["deletionTimestamp"].is_null());
}

/// A subnet that is deleted before its finalizer is on it is gone at once: nobody may have
/// been told an address of it.
#[test]
fn a_subnet_deleted_as_soon_as_it_is_made_takes_no_pod_along() {
    let extra = ObjectRef::cluster(Kind::Subnet, "extra");
    let mut outcomes = BTreeSet::new();
    for seed in 0..60 {
        let mut bench = Bench::cluster(900 + seed);
        let spec = json!({ "cidrBlock": "10.20.0.0/24", "namespaces": ["web"] });
        bench.api.create(&extra, json!({ "spec": spec })).unwrap();
        bench.add_pod("a-0", "n-1");
        // The finalizer may be late. At any moment, or as soon as the pod was told its address.
        bench.faults = Faults { write: 40, ..Faults::default() };
        let told =
            |bench: &Bench| bench.api.annotation(&pod("web", "a-0"), "ovn.kubernetes.io/routed").is_some();
        let steps = if seed % 3 == 0 { bench.rng.below(40) } else { 400 };
        for _ in 0..steps {
            if told(&bench) || !bench.step() {
                break;
            }
        }
        bench.api.delete(&extra, 0);
        bench.faults = Faults::default();
        bench.settle();
        let context = format!("seed {seed}");
        check_pods(&bench, &context);
        let told = bench.api.annotation(&pod("web", "a-0"), "ovn.kubernetes.io/logical_switch").unwrap();
        let here = bench.api.get(&ObjectRef::cluster(Kind::Subnet, told)).is_some();
        assert!(here, "{context}: {told} is gone");
        assert!(bench.core().quiet(), "{context}: {}", bench.core().status());
        outcomes.insert(told.to_owned());
    }
    assert_eq!(outcomes.len(), 2, "{outcomes:?}: before the pod had an address, and after");
}
