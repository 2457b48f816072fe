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
