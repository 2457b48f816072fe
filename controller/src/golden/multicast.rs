//! Multicast queriers of subnets (contract §1.1, §4.2) through the whole pipeline.

use ovsdb::Operation;
use rstest::rstest;
use serde_json::json;

use super::networks::{add, all_rows, names, status, subnet, two_nodes};
use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::Kind;
use crate::sim::Bench;

const QUERIER: &str = "mcast-querier.s";

fn switch_config(bench: &Bench) -> Vec<(String, String)> {
    let replica = bench.db.replica();
    let row = replica.table("Logical_Switch").unwrap().find_one("name", &ovsdb::Value::string("s")).cloned();
    let row = row.expect("the switch");
    let mut pairs: Vec<_> = row
        .get("other_config")
        .unwrap()
        .map_strings()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    pairs.sort();
    pairs
}

/// The querier has an address of the subnet, as status, IP object and rows say; it stays
/// over restarts, and everything goes when it is switched off.
#[rstest]
#[case(Families::V4)]
#[case(Families::V6)]
#[case(Families::Dual)]
fn a_multicast_querier_comes_stays_and_goes(#[case] families: Families) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    let cidr = families.pick("10.60.0.0/29", "fd00:60::/125");
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": cidr }));
    let before = all_rows(&bench);
    let switch = |bench: &mut Bench, on: bool| {
        bench.api.edit(&subnet("s"), json!({ "spec": { "enableMulticastSnoop": on } }));
        bench.settle();
        bench.pass(5_000);
    };
    switch(&mut bench, true);
    assert!(status(&bench, &subnet("s"), "Ready").starts_with("True"));
    let told = |bench: &Bench| {
        let status = bench.api.get(&subnet("s")).unwrap()["status"].clone();
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        (text("mcastQuerierIP"), text("mcastQuerierMAC"))
    };
    let (ip, mac) = told(&bench);
    assert_eq!(ip, families.pick("10.60.0.2", "fd00:60::2"));
    let config: std::collections::BTreeMap<_, _> = switch_config(&bench).into_iter().collect();
    let get = |key: &str| config.get(key).map(String::as_str);
    assert_eq!((get("mcast_snoop"), get("mcast_querier")), (Some("true"), Some("true")));
    assert_eq!(get("mcast_eth_src"), Some(&*mac));
    assert_eq!(
        get("mcast_ip4_src"),
        (families != Families::V6).then_some("10.60.0.2"),
        "one address, not two"
    );
    assert_eq!(get("mcast_ip6_src").is_some_and(|ip| ip.starts_with("fe80::")), families != Families::V4);
    let port = |bench: &Bench| names(bench, "Logical_Switch_Port").contains(&QUERIER.to_owned());
    assert!(port(&bench));
    let object = bench.api.get(&cluster(Kind::Ip, QUERIER)).expect("an IP object");
    assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "Subnet");
    assert_eq!((&object["spec"]["ipAddress"], &object["spec"]["macAddress"]), (&json!(ip), &json!(mac)));
    // Nobody gets its address, also after a restart.
    let rows = all_rows(&bench);
    bench.api.writes.clear();
    restart(&mut bench, families);
    bench.pass(5_000);
    assert_eq!((all_rows(&bench), told(&bench)), (rows, (ip.clone(), mac.clone())));
    assert_eq!(bench.api.writes, Vec::<String>::new());
    // A port or setting that somebody takes away comes back.
    let replica = bench.db.replica();
    let row =
        replica.table("Logical_Switch").unwrap().find_one("name", &ovsdb::Value::string("s")).unwrap().uuid;
    let clear =
        Operation::update("Logical_Switch").by_uuid(row).column("other_config", ovsdb::Value::empty_map());
    bench.transact(&[clear.build()]);
    bench.settle();
    assert_eq!(switch_config(&bench).len(), config.len());
    switch(&mut bench, false);
    assert_eq!((switch_config(&bench), port(&bench), told(&bench)), (vec![], false, Default::default()));
    assert!(bench.api.get(&cluster(Kind::Ip, QUERIER)).is_none());
    assert_eq!(all_rows(&bench), before);
    // What somebody sets by hand while it is off is theirs.
    let config = ovsdb::Value::string_map([("mcast_snoop", "true")]);
    bench
        .transact(&[Operation::update("Logical_Switch").by_uuid(row).column("other_config", config).build()]);
    bench.settle();
    restart(&mut bench, families);
    assert_eq!(switch_config(&bench).len(), 1);
    // Switched off while nobody watches, and a subnet that goes takes it along.
    switch(&mut bench, true);
    bench.processes.last_mut().unwrap().paused = true;
    bench.api.edit(&subnet("s"), json!({ "spec": { "enableMulticastSnoop": false } }));
    lead(&mut bench, families);
    bench.pass(5_000);
    assert_eq!((switch_config(&bench), port(&bench), told(&bench)), (vec![], false, Default::default()));
    switch(&mut bench, true);
    assert!(port(&bench));
    bench.api.delete(&subnet("s"), 0);
    bench.settle();
    bench.pass(5_000);
    assert!(bench.api.get(&subnet("s")).is_none() && bench.api.get(&cluster(Kind::Ip, QUERIER)).is_none());
    assert!(!port(&bench) && !names(&bench, "Logical_Switch").contains(&"s".to_owned()));
}

#[test]
fn a_multicast_querier_without_a_free_address_is_named_and_heals() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": "10.60.0.0/30", "namespaces": ["web"] }));
    bench.add_pod("a", "n-1");
    bench.settle();
    bench.api.edit(&subnet("s"), json!({ "spec": { "enableMulticastSnoop": true } }));
    bench.settle();
    let said = status(&bench, &subnet("s"), "Ready");
    assert!(
        said.starts_with("False") && said.contains("enableMulticastSnoop") && said.contains("no free"),
        "{said}"
    );
    assert!(switch_config(&bench).is_empty());
    bench.api.delete(&pod("a"), 0);
    bench.settle();
    bench.pass(5_000);
    assert!(status(&bench, &subnet("s"), "Ready").starts_with("True"));
    assert_eq!(bench.api.get(&subnet("s")).unwrap()["status"]["mcastQuerierIP"], "10.60.0.2");
}

/// A querier that Kube-OVN made is taken over; of a dual-stack subnet its source address
/// is put right.
#[test]
fn a_multicast_querier_of_kube_ovn_is_taken_over() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": "10.60.0.0/24,fd00:60::/64" }));
    bench.processes.last_mut().unwrap().paused = true;
    let spec = json!({ "enableMulticastSnoop": true });
    let told = json!({ "mcastQuerierIP": "10.60.0.77,fd00:60::77", "mcastQuerierMAC": "02:00:00:00:00:77" });
    bench.api.edit(&subnet("s"), json!({ "spec": spec, "status": told }));
    let labels =
        json!({ "ovn.kubernetes.io/subnet": "s", "ovn.kubernetes.io/ip_reserved": "false", "s": "" });
    let owner = json!([{ "apiVersion": "kubeovn.io/v1", "kind": "Subnet", "name": "s",
        "uid": bench.api.get(&subnet("s")).unwrap()["metadata"]["uid"] }]);
    let body = json!({
        "metadata": { "labels": labels, "finalizers": ["kubeovn.io/kube-ovn-controller"], "ownerReferences": owner },
        "spec": {
            "podName": QUERIER, "namespace": "default", "subnet": "s", "nodeName": "", "podType": "",
            "ipAddress": "10.60.0.77,fd00:60::77", "v4IpAddress": "10.60.0.77", "v6IpAddress": "fd00:60::77",
            "macAddress": "02:00:00:00:00:77", "attachSubnets": [], "attachIps": [], "attachMacs": [], "containerID": "",
        },
    });
    bench.api.create(&cluster(Kind::Ip, QUERIER), body).unwrap();
    let switch = bench.db.replica();
    let switch =
        switch.table("Logical_Switch").unwrap().find_one("name", &ovsdb::Value::string("s")).unwrap().uuid;
    let port = ovsdb::Uuid::new_v5(&ovsdb::Uuid::NAMESPACE_OID, b"querier");
    let ids = [("vendor", "kube-ovn"), ("ls", "s"), ("pod", "default/mcast-querier.s")];
    let config = [
        ("mcast_snoop", "true"),
        ("mcast_querier", "true"),
        ("mcast_ip4_src", "10.60.0.77,fd00:60::77"),
        ("mcast_eth_src", "02:00:00:00:00:77"),
    ];
    bench.transact(&[
        Operation::insert("Logical_Switch_Port")
            .uuid(port)
            .column("name", ovsdb::Value::string(QUERIER))
            .column("addresses", ovsdb::Value::strings(["02:00:00:00:00:77 10.60.0.77 fd00:60::77"]))
            .column("external_ids", ovsdb::Value::string_map(ids))
            .build(),
        Operation::mutate("Logical_Switch")
            .by_uuid(switch)
            .insert_set("ports", ovsdb::Value::uuids([port]))
            .build(),
        Operation::update("Logical_Switch")
            .by_uuid(switch)
            .column("other_config", ovsdb::Value::string_map(config))
            .build(),
    ]);
    let before = bench.db.replica().row("Logical_Switch_Port", &port).cloned();
    bench.api.writes.clear();
    lead(&mut bench, Families::V4);
    bench.pass(5_000);
    assert_eq!(bench.db.replica().row("Logical_Switch_Port", &port).cloned(), before, "not touched");
    let config: std::collections::BTreeMap<_, _> = switch_config(&bench).into_iter().collect();
    assert_eq!(config["mcast_ip4_src"], "10.60.0.77");
    assert_eq!(config["mcast_ip6_src"], "fe80::ff:fe00:77");
    let about = bench.api.writes.iter().filter(|write| write.contains(" IP "));
    assert_eq!(about.count(), 0, "{:#?}", bench.api.writes);
    assert_eq!(bench.api.get(&subnet("s")).unwrap()["status"]["mcastQuerierIP"], told["mcastQuerierIP"]);
}
