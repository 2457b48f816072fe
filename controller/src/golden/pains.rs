//! What users of other networks suffered from with addresses (`pain.md` §1.1, §1.8).

use rstest::rstest;
use serde_json::json;

use super::{add_node, cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::Kind;
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";

fn ports_with(bench: &Bench, ip: &str) -> usize {
    let replica = bench.db.replica();
    let ports = replica.table("Logical_Switch_Port").unwrap();
    let has = |row: &ovsdb::Row| row.get("addresses").unwrap().set_strings().any(|text| text.ends_with(ip));
    ports.rows().filter(|row| has(row)).count()
}

fn allocated(bench: &Bench, name: &str) -> bool {
    bench.api.annotation(&pod(name), "ovn.kubernetes.io/allocated") == Some("true")
}

#[test]
fn u_01_a_pod_deleted_while_nobody_watched_frees_its_static_address() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    bench.add_pod_with("a", "n-1", json!({ IP: "10.16.0.10" }));
    bench.settle();
    bench.processes.last_mut().unwrap().paused = true;
    bench.api.remove(&pod("a"));
    restart(&mut bench, Families::V4);
    bench.add_pod_with("b", "n-1", json!({ IP: "10.16.0.10" }));
    bench.settle();
    assert!(allocated(&bench, "b"));
    assert_eq!(ports_with(&bench, " 10.16.0.10"), 1);
    assert!(bench.api.get(&cluster(Kind::Ip, "a.web")).is_none());
}

#[test]
fn u_10_a_full_subnet_is_waited_for_in_silence() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let spec = json!({ "cidrBlock": "10.16.0.0/28", "gateway": "10.16.0.1", "excludeIps": ["10.16.0.1"] });
    bench.api.edit(&cluster(Kind::Subnet, "ovn-default"), json!({ "spec": spec }));
    bench.settle();
    let names: Vec<String> = (0..100).map(|n| format!("p-{n}")).collect();
    for name in &names {
        bench.add_pod(name, "n-1");
    }
    bench.settle();
    bench.pass(5_000);
    let served = |bench: &Bench| names.iter().filter(|name| allocated(bench, name)).count();
    assert_eq!(served(&bench), 13);
    let warnings = bench.processes[0].events.iter().filter(|event| event.warning).count();
    assert!(warnings <= 100, "one for each that waits, not one a try: {warnings}");
    // Minutes pass: nothing is compiled, written or said.
    let (before, compiled) = (bench.api.writes.len(), bench.core().counters().compiled);
    bench.pass(300_000);
    assert_eq!((bench.api.writes.len(), bench.core().counters().compiled), (before, compiled));
    assert_eq!(bench.processes[0].events.iter().filter(|event| event.warning).count(), warnings);
    // And five come up as soon as five are gone.
    for name in names.iter().filter(|name| allocated(&bench, name)).take(5).cloned().collect::<Vec<_>>() {
        bench.api.remove(&pod(&name));
    }
    bench.settle();
    assert_eq!(served(&bench), 13);
}

/// Those that were refused before their subnet was full wait for it like those that came after.
#[test]
fn u_10_who_was_refused_for_another_reason_before_waits_for_an_address_too() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let names: Vec<String> = (0..20).map(|n| format!("p-{n:02}")).collect();
    for name in &names {
        bench.add_pod_with(name, "n-1", json!({ "ovn.kubernetes.io/logical_switch": "s" }));
    }
    bench.settle();
    let spec = json!({ "cidrBlock": "10.30.0.0/28" });
    bench.api.create(&cluster(Kind::Subnet, "s"), json!({ "spec": spec })).unwrap();
    bench.settle();
    let served = |bench: &Bench| -> Vec<String> {
        names.iter().filter(|name| allocated(bench, name)).cloned().collect()
    };
    for gone in 0..4 {
        assert_eq!(served(&bench).len(), 13, "{gone} are gone");
        for name in names.iter().filter(|name| bench.api.get(&pod(name)).is_some()) {
            if !allocated(&bench, name) {
                let said = bench.processes[0].events.iter().rfind(|event| event.object == pod(name)).unwrap();
                assert!(said.message.contains("no free IPv4 address"), "{name}: {}", said.message);
            }
        }
        bench.api.remove(&pod(&served(&bench)[0]));
        bench.settle();
    }
    bench.verify();
}

#[rstest]
#[case(Families::V4, "10.16.0.1")]
#[case(Families::V6, "fd00:10:16::1")]
#[case(Families::Dual, "10.16.5.5,fd00:10:16::1")]
fn u_11_nobody_gets_the_gateway(#[case] families: Families, #[case] asked: &str) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    bench.add_pod_with("a", "n-1", json!({ IP: asked }));
    bench.settle();
    assert!(!allocated(&bench, "a"));
    let said = bench.processes[0].events.iter().find(|event| event.object == pod("a")).unwrap();
    assert!(said.message.contains("its gateway"), "{}", said.message);
    assert_eq!(ports_with(&bench, "5.5"), 0, "no half of it");
}

/// Not by a record of one's own either, nor by saying that one was told it.
#[test]
fn u_11_nobody_claims_the_gateway() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let record = cluster(Kind::Ip, "b.web");
    let spec = json!({ "subnet": "ovn-default", "ipAddress": "10.16.0.1", "podName": "b", "namespace": "web",
        "macAddress": "02:00:00:00:33:33" });
    bench.api.create(&record, json!({ "spec": spec })).unwrap();
    bench.settle();
    let said = |bench: &Bench, object: &crate::facts::ObjectRef| -> String {
        let events = bench.processes.iter().flat_map(|process| &process.events);
        events.filter(|event| event.object == *object).map(|event| event.message.to_string()).collect()
    };
    assert!(said(&bench, &record).contains("its gateway"), "{}", said(&bench, &record));
    bench.processes.last_mut().unwrap().paused = true;
    let told = json!({
        "ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/routed": "true",
        IP: "10.16.0.1", "ovn.kubernetes.io/mac_address": "02:00:00:00:00:42",
        "ovn.kubernetes.io/logical_switch": "ovn-default",
    });
    bench.add_pod_with("a", "n-1", told);
    bench.add_pod("b", "n-1");
    lead(&mut bench, Families::V4);
    bench.settle();
    assert!(said(&bench, &pod("a")).contains("its gateway"), "{}", said(&bench, &pod("a")));
    assert_eq!(bench.api.annotation(&pod("b"), IP), Some("10.16.0.2"));
    assert_eq!(ports_with(&bench, " 10.16.0.1"), 0);
    assert!(bench.core().quiet(), "{}", bench.core().status());
}

/// The families never touch each other's addresses, whatever order nodes have theirs in.
#[rstest]
#[case(Families::V4)]
#[case(Families::V6)]
#[case(Families::Dual)]
fn u_48_addresses_of_each_family_stand_alone(#[case] families: Families) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    add_node(&mut bench, families, "n-2", 12);
    if families == Families::Dual {
        let list = json!([
            { "type": "InternalIP", "address": "2001:db8::13" }, { "type": "InternalIP", "address": "192.0.2.13" },
        ]);
        let body = json!({ "status": { "addresses": list } });
        bench.api.create(&cluster(Kind::Node, "n-3"), body).unwrap();
    }
    for n in 0..6 {
        bench.add_pod(&format!("p-{n}"), if n % 2 == 0 { "n-1" } else { "n-2" });
    }
    bench.settle();
    let addresses = |bench: &Bench| -> Vec<String> {
        let of = |n| bench.api.annotation(&pod(&format!("p-{n}")), IP).unwrap_or_default().to_owned();
        (0..6).map(of).collect()
    };
    let before = addresses(&bench);
    let expected = match families {
        Families::V4 | Families::V6 => 1,
        Families::Dual => 2,
    };
    assert!(before.iter().all(|ips| ips.split(',').count() == expected), "{before:?}");
    restart(&mut bench, families);
    bench.api.remove(&pod("p-5"));
    bench.pass(5_000);
    assert_eq!(addresses(&bench)[..5], before[..5]);
    let status = &bench.api.get(&cluster(Kind::Subnet, "ovn-default")).unwrap()["status"];
    let (v4, v6) = (&status["v4usingIPs"], &status["v6usingIPs"]);
    match families {
        Families::V4 => assert_eq!((v4, v6), (&json!(5), &json!(0))),
        Families::V6 => assert_eq!((v4, v6), (&json!(0), &json!(5))),
        Families::Dual => assert_eq!((v4, v6), (&json!(5), &json!(5))),
    }
}

/// What rows say in which a family shows: policies, routes, ACLs, networks of router ports,
/// DHCP, addresses of sets.
fn families_rows(families: Families) -> std::collections::BTreeSet<String> {
    let mut bench = super::bench(families);
    add_node(&mut bench, families, "n-2", 12);
    lead(&mut bench, families);
    let pick = |v4: &str, v6: &str| families.pick(v4, v6);
    let spec = json!({ "cidrBlock": pick("10.50.0.0/24", "fd00:50::/112"), "private": true, "enableDHCP": true,
        "allowSubnets": pick("10.60.0.0/16", "fd00:60::/64").split(',').collect::<Vec<_>>(),
        "acls": [{ "direction": "to-lport", "priority": 5, "match": "tcp", "action": "drop" }], "allowEWTraffic": true });
    bench.api.create(&cluster(Kind::Subnet, "walled"), json!({ "spec": spec })).unwrap();
    let spec = json!({ "cidrBlock": pick("10.51.0.0/24", "fd00:51::/112"), "gatewayType": "centralized",
        "gatewayNode": "n-1,n-2", "enableEcmp": true });
    bench.api.create(&cluster(Kind::Subnet, "central"), json!({ "spec": spec })).unwrap();
    let spec = json!({ "bfdPort": { "enabled": true, "ip": pick("10.255.255.254", "fd00:ff::fe") },
        "vpcPeerings": [{ "remoteVpc": "ovn-cluster", "localConnectIP": pick("169.254.0.1/30", "fd00:fe::1/126") }] });
    bench.api.create(&cluster(Kind::Vpc, "blue"), json!({ "spec": spec })).unwrap();
    bench.add_pod("a", "n-1");
    bench.settle();
    assert!(bench.core().quiet(), "{}", bench.core().status());
    let replica = bench.db.replica();
    let mut found = std::collections::BTreeSet::new();
    let mut take = |table: &str, columns: &[&str], sets: &[&str]| {
        for row in replica.table(table).unwrap().rows() {
            let fixed: Vec<String> = columns.iter().map(|c| format!("{:?}", row.get(c).unwrap())).collect();
            let values: Vec<&str> = sets.iter().flat_map(|c| row.get(c).unwrap().set_strings()).collect();
            // Of a column with both families each is one.
            let each = if sets.is_empty() { vec![""] } else { values };
            found.extend(each.into_iter().map(|value| format!("{table} {} {value}", fixed.join(" "))));
        }
    };
    take("Logical_Router_Policy", &["priority", "match", "action", "nexthops"], &[]);
    take("Logical_Router_Static_Route", &["ip_prefix", "nexthop", "policy"], &[]);
    take("ACL", &["priority", "direction", "match", "action"], &[]);
    take("DHCP_Options", &["cidr"], &[]);
    take("Logical_Router_Port", &["name"], &["networks"]);
    take("Address_Set", &["name"], &["addresses"]);
    found
}

/// A dual-stack cluster's rows are those of an IPv4 one and those of an IPv6 one, not one more
/// or less: neither family decides about the other's.
#[test]
fn u_48_the_rows_of_both_families_are_those_of_each() {
    let (v4, v6) = (families_rows(Families::V4), families_rows(Families::V6));
    let both: std::collections::BTreeSet<_> = v4.union(&v6).cloned().collect();
    let dual = families_rows(Families::Dual);
    let only = |a: &std::collections::BTreeSet<String>, b: &std::collections::BTreeSet<String>| {
        a.difference(b).cloned().collect::<Vec<_>>().join("\n")
    };
    assert!(dual == both, "of dual stack only\n{}\nof one only\n{}", only(&dual, &both), only(&both, &dual));
    assert!(v4.len() > 20 && v4.intersection(&v6).count() < v4.len() / 2, "{v4:#?}");
}

/// One pod is one transaction; of many that come at once none takes more.
#[test]
fn u_30_a_pod_is_one_transaction_and_many_take_no_more() {
    let mut bench = super::bench(Families::Dual);
    lead(&mut bench, Families::Dual);
    let count = |bench: &Bench| bench.processes[0].transactions.len();
    let before = count(&bench);
    bench.add_pod("one", "n-1");
    bench.settle();
    assert!(allocated(&bench, "one"));
    assert_eq!(count(&bench), before + 1);
    for n in 0..200 {
        bench.add_pod(&format!("p-{n}"), "n-1");
    }
    bench.settle();
    assert!((0..200).all(|n| allocated(&bench, &format!("p-{n}"))));
    let of_many = count(&bench) - before - 1;
    assert!(of_many <= 200, "{of_many} transactions for 200 pods");
}

/// Pods that come and go leave nothing that grows.
#[test]
fn u_25_churn_leaves_nothing_in_memory() {
    let mut bench = super::bench(Families::Dual);
    lead(&mut bench, Families::Dual);
    bench.verify_every = u64::MAX;
    let held = |bench: &Bench| {
        let counters = bench.core().counters();
        let graph = [counters.units, counters.reads, counters.edges, counters.rows, counters.members];
        (graph, counters.leases, counters.refused, counters.publish_backlog, counters.commit_groups)
    };
    let mut known = Vec::new();
    for wave in 0..12 {
        for n in 0..50 {
            let asks =
                if n % 5 == 0 { json!({ "ovn.kubernetes.io/port_vips": "10.16.0.77" }) } else { json!({}) };
            bench.add_pod_with(&format!("p-{wave}-{n}"), "n-1", asks);
        }
        bench.settle();
        for n in 0..50 {
            bench.api.remove(&pod(&format!("p-{wave}-{n}")));
        }
        bench.pass(5_000);
        bench.settle();
        known.push((held(&bench), bench.core().counters().graph_bytes));
    }
    assert!(known.iter().all(|(held, _)| *held == known[0].0), "{known:?}");
    assert!(known.iter().all(|(_, bytes)| *bytes <= 2 * known[0].1), "{known:?}");
    assert_eq!(bench.api.names(Kind::Ip).len(), 1, "the node's");
    bench.verify();
}

/// Galaxy's shared pool: Deployments that take turns in its addresses (blue and green), never
/// more than it has.
#[test]
fn gi_23_deployments_that_share_a_pool_hand_its_addresses_on() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let spec = json!({ "subnet": "ovn-default", "ips": ["10.16.7.1..10.16.7.3"] });
    bench.api.create(&cluster(Kind::IpPool, "shared"), json!({ "spec": spec })).unwrap();
    bench.settle();
    let add = |bench: &mut Bench, name: &str| {
        bench.add_pod_with(name, "n-1", json!({ "ovn.kubernetes.io/ip_pool": "shared" }));
        bench.settle();
    };
    let given = |bench: &Bench| -> Vec<String> {
        let all = bench.api.names(Kind::Ip).into_iter().filter(|ip| &*ip.name != "node-n-1");
        let ips =
            all.map(|ip| bench.api.get(&ip).unwrap()["spec"]["v4IpAddress"].as_str().unwrap().to_owned());
        let mut ips: Vec<String> = ips.collect();
        ips.sort();
        ips
    };
    let pool = ["10.16.7.1", "10.16.7.2", "10.16.7.3"];
    for n in 0..3 {
        add(&mut bench, &format!("blue-{n}"));
    }
    assert_eq!(given(&bench), pool);
    for n in 0..3 {
        add(&mut bench, &format!("green-{n}"));
        assert!(!allocated(&bench, &format!("green-{n}")), "there is none left");
        bench.api.remove(&pod(&format!("blue-{n}")));
        bench.settle();
        assert!(allocated(&bench, &format!("green-{n}")), "the one that blue-{n} had");
        assert_eq!(given(&bench), pool);
    }
}
