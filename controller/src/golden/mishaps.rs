//! Mistakes, and what must survive them: the network of running pods.

use serde_json::json;

use super::{cluster, condition, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::Kind;
use crate::sim::Bench;

fn with_pods() -> Bench {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    for name in ["a-0", "a-1"] {
        bench.add_pod(name, "n-1");
    }
    bench.settle();
    bench
}

/// The database without the epoch token, which every leader writes.
fn rows(bench: &Bench) -> String {
    let text = super::database::render(&bench.db.replica());
    text.lines().filter(|line| !line.contains("weir-epoch")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_typing_error_in_a_subnet_tears_nothing_down_not_even_after_a_restart() {
    for (subnet, good) in [("ovn-default", "10.16.0.0/16"), ("join", "100.64.0.0/16")] {
        let mut bench = with_pods();
        let before = rows(&bench);
        let object = cluster(Kind::Subnet, subnet);
        bench.api.edit(&object, json!({ "spec": { "cidrBlock": "10.16.0.0/99" } }));
        bench.settle();
        assert_eq!(rows(&bench), before, "{subnet}");
        let (status, reason, message) = condition(&bench, &object, "Validated").unwrap();
        assert_eq!((&*status, &*reason), ("False", "ValidateLogicalSwitchFailed"));
        assert!(message.contains(subnet) && message.contains("10.16.0.0/99"), "{message}");
        restart(&mut bench, Families::V4);
        bench.pass(120_000);
        assert_eq!(rows(&bench), before, "{subnet} after a restart");
        assert_eq!(bench.api.names(Kind::Ip).len(), 3, "{subnet}: IP objects stay");
        bench.api.edit(&object, json!({ "spec": { "cidrBlock": good } }));
        bench.settle();
        assert_eq!(rows(&bench), before, "{subnet} repaired");
        assert_eq!(condition(&bench, &object, "Validated").unwrap().0, "True");
        bench.add_pod("later", "n-1");
        bench.settle();
        assert_eq!(bench.api.annotation(&pod("later"), "ovn.kubernetes.io/routed"), Some("true"), "{subnet}");
    }
}

#[test]
fn an_overlapping_newcomer_is_refused_and_switches_nothing_off() {
    let mut bench = with_pods();
    let before = rows(&bench);
    let newcomer = cluster(Kind::Subnet, "a-newcomer");
    let spec = json!({ "vpc": "ovn-cluster", "cidrBlock": "10.16.128.0/24", "provider": "ovn" });
    bench.api.create(&newcomer, json!({ "spec": spec })).unwrap();
    bench.settle();
    assert_eq!(rows(&bench), before);
    let (status, _, message) = condition(&bench, &newcomer, "Validated").unwrap();
    assert_eq!(status, "False");
    assert!(message.contains("ovn-default"), "{message}");
    let ours = cluster(Kind::Subnet, "ovn-default");
    assert_eq!(condition(&bench, &ours, "Validated").unwrap().0, "True");
}

#[test]
fn the_default_objects_come_back() {
    let mut bench = with_pods();
    let before = rows(&bench);
    for (kind, name) in [(Kind::Vpc, "ovn-cluster"), (Kind::Subnet, "ovn-default"), (Kind::Subnet, "join")] {
        let object = cluster(kind, name);
        // A deletion that finalizers refuse while the subnet is used …
        bench.api.delete(&object, 0);
        bench.settle();
        assert!(bench.api.get(&object).is_some(), "{name} is in use");
        // … and one by force.
        bench.api.remove(&object);
        bench.settle();
        assert!(bench.api.get(&object).is_some(), "{name} is made again");
        assert_eq!(rows(&bench), before, "{name}");
    }
    assert!(bench.core().quiet());
}

#[test]
fn users_changes_to_default_objects_stay() {
    let mut bench = with_pods();
    let object = cluster(Kind::Subnet, "ovn-default");
    bench
        .api
        .edit(&object, json!({ "spec": { "natOutgoing": false, "excludeIps": ["10.16.0.9..10.16.0.12"] } }));
    bench.settle();
    restart(&mut bench, Families::V4);
    let spec = &bench.api.get(&object).unwrap()["spec"];
    assert_eq!(spec["natOutgoing"], false);
    assert_eq!(
        spec["excludeIps"],
        json!(["10.16.0.1", "10.16.0.9..10.16.0.12"]),
        "the gateway is always in it"
    );
}

#[test]
fn a_smaller_block_keeps_the_addresses_of_running_pods() {
    let mut bench = with_pods();
    let address = |bench: &Bench, name: &str| {
        bench.api.annotation(&pod(name), "ovn.kubernetes.io/ip_address").unwrap().to_owned()
    };
    let before = [address(&bench, "a-0"), address(&bench, "a-1")];
    let object = cluster(Kind::Subnet, "ovn-default");
    let spec = json!({ "cidrBlock": "10.16.4.0/24", "gateway": "10.16.4.1", "excludeIps": ["10.16.4.1"] });
    bench.api.edit(&object, json!({ "spec": spec }));
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.add_pod("later", "n-1");
    bench.settle();
    assert_eq!(before, [address(&bench, "a-0"), address(&bench, "a-1")]);
    for name in ["a-0.web", "a-1.web"] {
        let text = rows(&bench);
        assert!(text.contains(&format!("Logical_Switch_Port {name}")), "{text}");
    }
    assert_eq!(address(&bench, "later"), "10.16.4.2");
    let status = &bench.api.get(&object).unwrap()["status"];
    assert_eq!(status["v4usingIPrange"], "10.16.4.2");
}

/// A subnet that can't work states no rows, and its pods' ports wait for none of them: what
/// is wrong with a port is put right meanwhile.
#[test]
fn ports_wait_for_no_rows_of_a_subnet_that_can_not_work() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let object = cluster(Kind::Subnet, "s");
    let spec = json!({ "cidrBlock": "10.60.0.0/24", "namespaces": ["web"], "gatewayType": "centralized",
        "gatewayNode": "n-1" });
    bench.api.create(&object, json!({ "spec": spec })).unwrap();
    bench.settle();
    bench.add_pod("a-0", "n-1");
    bench.settle();
    // Options and port groups would be new, but the block is another subnet's.
    let wrong = json!({ "cidrBlock": "10.16.7.0/24", "gateway": "", "excludeIps": [], "enableDHCP": true,
        "gatewayType": "distributed" });
    bench.api.edit(&object, json!({ "spec": wrong }));
    bench.settle();
    assert_eq!(condition(&bench, &object, "Validated").unwrap().0, "False");
    assert!(bench.core().quiet(), "{:#?}", bench.core().plan());
    let port = |bench: &Bench| {
        let replica = bench.db.replica();
        let table = replica.table("Logical_Switch_Port").unwrap();
        table.rows().find(|row| row.str("name") == Some("a-0.web")).unwrap().clone()
    };
    let before = port(&bench);
    let damage = ovsdb::Value::strings(["02:00:00:00:00:99 10.16.200.200"]);
    let damage =
        ovsdb::Operation::update("Logical_Switch_Port").by_uuid(before.uuid).column("addresses", damage);
    bench.transact(&[damage.build()]);
    bench.settle();
    assert_eq!(port(&bench), before);
    // Healed, it has all of it.
    let good = json!({ "cidrBlock": "10.60.0.0/24", "gateway": "10.60.0.1", "excludeIps": [] });
    bench.api.edit(&object, json!({ "spec": good }));
    bench.settle();
    assert!(bench.core().quiet(), "{:#?}", bench.core().plan());
    assert!(port(&bench).reference("dhcpv4_options").is_some());
    let text = rows(&bench);
    assert!(text.contains("Port_Group s.n.1"), "{text}");
}

/// The pod was there first: its neighbours must not find the router at its address.
#[test]
fn a_gateway_that_is_moved_onto_a_pods_address_waits_for_it() {
    let mut bench = with_pods();
    let object = cluster(Kind::Subnet, "ovn-default");
    let router = |bench: &Bench| -> Vec<String> {
        let replica = bench.db.replica();
        let ports = replica.table("Logical_Router_Port").unwrap();
        let row = ports.find_one("name", &ovsdb::Value::string("ovn-cluster-ovn-default")).unwrap();
        row.get("networks").unwrap().set_strings().map(str::to_owned).collect()
    };
    let ip = bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/ip_address").unwrap().to_owned();
    bench.api.edit(&object, json!({ "spec": { "gateway": ip } }));
    while bench.step() {
        assert_eq!(router(&bench), ["10.16.0.1/16"]);
    }
    bench.settle();
    for restarted in [false, true] {
        if restarted {
            restart(&mut bench, Families::V4);
            bench.settle();
        }
        assert_eq!(router(&bench), ["10.16.0.1/16"], "restarted {restarted}");
        let (state, _, message) = condition(&bench, &object, "Ready").unwrap();
        assert_eq!(state, "False", "restarted {restarted}");
        assert!(message.contains(&ip) && message.contains("a-0.web"), "{message}");
        assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/ip_address"), Some(&*ip));
    }
    bench.api.remove(&pod("a-0"));
    bench.settle();
    bench.pass(2_000);
    assert_eq!(router(&bench), [format!("{ip}/16")]);
    assert_eq!(condition(&bench, &object, "Ready").unwrap().0, "True");
}

#[test]
fn an_overlay_subnet_in_use_does_not_become_another_cnis() {
    let mut bench = with_pods();
    let object = cluster(Kind::Subnet, "s");
    bench.api.create(&object, json!({ "spec": { "cidrBlock": "10.30.0.0/24" } })).unwrap();
    bench.settle();
    bench.add_pod_with("x", "n-1", json!({ "ovn.kubernetes.io/logical_switch": "s" }));
    bench.settle();
    let before = rows(&bench);
    bench.api.edit(&object, json!({ "spec": { "provider": "vlan.web" } }));
    bench.settle();
    for restarted in [false, true] {
        if restarted {
            restart(&mut bench, Families::V4);
            bench.pass(60_000);
        }
        assert_eq!(rows(&bench), before, "restarted {restarted}");
        let (state, _, message) = condition(&bench, &object, "Validated").unwrap();
        assert_eq!(state, "False");
        assert!(message.contains("provider is vlan.web") && message.contains("write ovn"), "{message}");
        assert_eq!(bench.api.get(&object).unwrap()["spec"]["provider"], "vlan.web");
    }
    // It is another CNI's as soon as nobody has an address.
    bench.api.remove(&pod("x"));
    bench.settle();
    bench.pass(2_000);
    let replica = bench.db.replica();
    let switches = replica.table("Logical_Switch").unwrap();
    assert!(switches.find_one("name", &ovsdb::Value::string("s")).is_none());
    assert_eq!(condition(&bench, &object, "Ready").unwrap().0, "True");
    assert!(bench.core().quiet(), "{}", bench.core().status());
}
