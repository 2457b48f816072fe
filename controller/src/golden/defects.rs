//! What the contract's last chapter, and `pain.md`, name as defects of others: the right
//! behaviour, through the whole pipeline.

use rstest::rstest;
use serde_json::{Value, json};

use super::networks::{add, all_rows, status, subnet, two_nodes, vpc};
use super::{cluster, condition, kube_ovn, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

const ROUTED: &str = "ovn.kubernetes.io/routed";
const IP: &str = "ovn.kubernetes.io/ip_address";
const SWITCH: &str = "ovn.kubernetes.io/logical_switch";

fn routed(bench: &Bench, name: &str) -> bool {
    bench.api.annotation(&pod(name), ROUTED) == Some("true")
}

fn port(bench: &Bench, name: &str) -> std::sync::Arc<ovsdb::Row> {
    let replica = bench.db.replica();
    let ports = replica.table("Logical_Switch_Port").unwrap();
    ports.find_one("name", &ovsdb::Value::string(name)).unwrap_or_else(|| panic!("no port {name}")).clone()
}

/// U26: the database is lost with everything in it. What the API server knows is there
/// again without a human step, and not a row is another one than before.
#[test]
fn u_26_an_empty_database_is_filled_from_the_api_server() {
    let mut bench = Bench::new(26);
    for (kind, namespace, name, body) in kube_ovn::objects() {
        let object = ObjectRef::namespaced(super::adoption::kind_of(kind), namespace, name);
        bench.api.create(&object, body).unwrap();
    }
    lead(&mut bench, Families::V4);
    assert!(bench.core().quiet(), "{}", bench.core().status());
    let before = all_rows(&bench);
    assert!(before.contains("Logical_Switch_Port db-1.web") && before.contains("Address_Set databases"));
    bench.processes.last_mut().unwrap().paused = true;
    bench.db = Bench::new(1).db;
    bench.api.writes.clear();
    lead(&mut bench, Families::V4);
    bench.pass(60_000);
    let after = all_rows(&bench);
    let only =
        |a: &str, b: &str| a.lines().filter(|line| !b.contains(line)).take(9).collect::<Vec<_>>().join("\n");
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert!(
        sorted(&before) == sorted(&after),
        "gone\n{}\nnew\n{}",
        only(&before, &after),
        only(&after, &before)
    );
    let pods = bench.api.writes.iter().filter(|write| write.contains(" Pod ") || write.contains(" IP "));
    assert_eq!(pods.collect::<Vec<_>>(), Vec::<&String>::new(), "addresses are what they were");
}

/// Marks and columns that a pod asked for go when it asks no more.
#[test]
fn what_a_port_no_longer_asks_for_goes_from_its_row() {
    let mut bench = two_nodes();
    bench.add_pod_with("a-0", "n-1", json!({}));
    bench.settle();
    let plain = port(&bench, "a-0.web");
    let columns = ["external_ids", "addresses", "port_security", "options"];
    let asks = json!({
        "ovn.kubernetes.io/port_security": "true", "ovn.kubernetes.io/port_vips": "10.16.0.77",
        "ovn.kubernetes.io/layer2_forward": "true",
    });
    let gone = json!({
        "ovn.kubernetes.io/port_security": null, "ovn.kubernetes.io/port_vips": null,
        "ovn.kubernetes.io/layer2_forward": null,
    });
    for restarts in [false, true] {
        bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": asks } }));
        bench.settle();
        let asked = port(&bench, "a-0.web");
        for column in &columns[..3] {
            assert_ne!(asked.get(column), plain.get(column), "{column}");
        }
        assert_eq!(asked.map_get("external_ids", "vips"), Some("10.16.0.77"));
        assert_eq!(asked.map_get("external_ids", "attach-vips"), Some("true"));
        if restarts {
            bench.processes.last_mut().unwrap().paused = true;
        }
        bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": gone } }));
        if restarts {
            restart(&mut bench, Families::V4);
        }
        bench.settle();
        for column in columns {
            assert_eq!(
                port(&bench, "a-0.web").get(column),
                plain.get(column),
                "{column}, restarts: {restarts}"
            );
        }
    }
}

/// In a custom VPC a port says that it is not in the group of ports without a group (contract
/// §4.2); whoever has that group says otherwise, and is not contradicted.
#[test]
fn a_port_of_a_custom_vpc_is_not_in_the_default_group_until_somebody_says_so() {
    const GROUP: &str = "associated_sg_default-securitygroup";
    let mut bench = two_nodes();
    add(&mut bench, &vpc("blue"), json!({}));
    add(&mut bench, &subnet("b-1"), json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24" }));
    bench.add_pod_with("a-0", "n-1", json!({ SWITCH: "b-1", "ovn.kubernetes.io/port_vips": "10.50.0.77" }));
    bench.add_pod_with("b-0", "n-1", json!({}));
    bench.settle();
    assert_eq!(port(&bench, "a-0.web").map_get("external_ids", GROUP), Some("false"));
    assert_eq!(port(&bench, "b-0.web").map_get("external_ids", GROUP), None);
    let flip = ovsdb::AtomMap::from_iter([(GROUP.into(), "true".into())]);
    let flip =
        ovsdb::Operation::mutate("Logical_Switch_Port").by("name", "a-0.web").set_map("external_ids", flip);
    bench.transact(&[flip.build()]);
    bench
        .api
        .edit(&pod("a-0"), json!({ "metadata": { "annotations": { "ovn.kubernetes.io/port_vips": null } } }));
    bench.settle();
    restart(&mut bench, Families::V4);
    let row = port(&bench, "a-0.web");
    assert_eq!(row.map_get("external_ids", GROUP), Some("true"));
    assert_eq!(
        (row.map_get("external_ids", "vips"), row.map_get("external_ids", "attach-vips")),
        (None, None)
    );
}

/// "Startup waits for every node to be allocated before any pod": nobody waits for others.
#[test]
fn a_node_without_a_join_address_holds_up_nobody() {
    let mut bench = super::bench(Families::V4);
    for (name, number) in [("n-2", 12), ("n-3", 13), ("n-4", 14)] {
        super::add_node(&mut bench, Families::V4, name, number);
    }
    let spec = json!({ "cidrBlock": "100.64.0.0/30", "gateway": "100.64.0.1" });
    bench.api.create(&subnet("join"), json!({ "spec": spec })).unwrap();
    lead(&mut bench, Families::V4);
    let has = |bench: &Bench, node: &str| {
        bench.api.annotation(&cluster(Kind::Node, node), "ovn.kubernetes.io/allocated") == Some("true")
    };
    let served: Vec<&str> =
        ["n-1", "n-2", "n-3", "n-4"].into_iter().filter(|node| has(&bench, node)).collect();
    assert_eq!(served.len(), 1, "the block has room for one");
    bench.add_pod_with("a-0", served[0], json!({}));
    bench.settle();
    assert!(routed(&bench, "a-0"));
    let events = bench.processes[0].events.iter().filter(|e| e.object.kind == Kind::Node && e.warning);
    let said: std::collections::BTreeMap<_, _> =
        events.map(|event| (event.object.name.to_string(), event.message.to_string())).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said.iter().all(|(node, message)| *node != served[0] && message.contains("subnet join")),
        "{said:?}"
    );
}

/// An IP object records what a port has; what somebody writes there changes no address.
#[test]
fn a_record_changed_by_hand_is_put_back() {
    let mut bench = two_nodes();
    bench.add_pod_with("a-0", "n-1", json!({}));
    bench.settle();
    let record = cluster(Kind::Ip, "a-0.web");
    let (before, row) = (bench.api.get(&record).unwrap()["spec"].clone(), port(&bench, "a-0.web"));
    for wrong in [
        json!({ "v4IpAddress": "10.16.9.9", "ipAddress": "10.16.9.9" }),
        json!({ "subnet": "join" }),
        json!({ "macAddress": "02:00:00:00:00:99" }),
        json!({ "podName": "b-0", "namespace": "other", "podType": "StatefulSet" }),
    ] {
        bench.api.edit(&record, json!({ "spec": wrong }));
        bench.settle();
        restart(&mut bench, Families::V4);
        bench.settle();
        assert_eq!(bench.api.get(&record).unwrap()["spec"], before, "{wrong}");
        assert_eq!(port(&bench, "a-0.web").get("addresses"), row.get("addresses"), "{wrong}");
    }
    bench.add_pod_with("b-0", "n-1", json!({ IP: "10.16.9.9" }));
    bench.settle();
    assert!(routed(&bench, "b-0"), "nothing was taken by it");
}

/// A subnet stays in its VPC (contract §1.1: immutable but from empty to the default one).
#[test]
fn a_subnet_stays_in_its_vpc_while_it_is_used_and_says_so() {
    let mut bench = two_nodes();
    for name in ["blue", "green"] {
        add(&mut bench, &vpc(name), json!({}));
    }
    add(&mut bench, &subnet("s"), json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24" }));
    bench.add_pod_with("a-0", "n-1", json!({ SWITCH: "s" }));
    bench.settle();
    assert!(routed(&bench, "a-0"));
    let before = all_rows(&bench);
    bench.api.edit(&subnet("s"), json!({ "spec": { "vpc": "green" } }));
    for restarts in [false, true] {
        if restarts {
            restart(&mut bench, Families::V4);
        }
        bench.settle();
        assert_eq!(all_rows(&bench), before, "restarts: {restarts}");
        let said = status(&bench, &subnet("s"), "Validated");
        assert!(said.starts_with("False") && said.contains("blue") && said.contains("green"), "{said}");
        assert_eq!(bench.api.get(&vpc("green")).unwrap()["status"]["subnets"], json!([]));
        assert_eq!(bench.api.get(&vpc("blue")).unwrap()["status"]["subnets"], json!(["s"]));
    }
    bench.api.edit(&subnet("s"), json!({ "spec": { "vpc": "blue" } }));
    bench.settle();
    assert!(status(&bench, &subnet("s"), "Validated").starts_with("True"), "heals");
    assert_eq!(all_rows(&bench), before);
}

/// The first subnet of the namespace with a free address; a static one wherever it lies.
#[rstest]
#[case(json!({}), Some(("second", "10.51.0.2")))]
#[case(json!({ IP: "10.51.0.9" }), Some(("second", "10.51.0.9")))]
#[case(json!({ IP: "10.50.0.2" }), Some(("first", "10.50.0.2")))]
#[case(json!({ IP: "10.51.0.5" }), Some(("second", "10.51.0.5")))]
#[case(json!({ IP: "10.52.0.5" }), None)]
#[case(json!({ SWITCH: "second" }), Some(("second", "10.51.0.2")))]
#[case(json!({ SWITCH: "first" }), None)]
fn the_first_subnet_that_can_serves(#[case] asks: Value, #[case] gets: Option<(&str, &str)>) {
    let mut bench = two_nodes();
    let spec = json!({ "cidrBlock": "10.50.0.0/30", "namespaces": ["web"], "excludeIps": ["10.50.0.2"] });
    add(&mut bench, &subnet("first"), spec);
    let spec = json!({ "cidrBlock": "10.51.0.0/24", "namespaces": ["web"], "excludeIps": ["10.51.0.5"] });
    add(&mut bench, &subnet("second"), spec);
    bench.add_pod_with("a-0", "n-1", asks.clone());
    bench.settle();
    let got = routed(&bench, "a-0").then(|| {
        let value = |key| bench.api.annotation(&pod("a-0"), key).unwrap_or_default();
        (value(SWITCH), value(IP))
    });
    assert_eq!(got, gets, "{asks}");
}

/// Provider `b.web.ovn` begins like `b.web.ovn.net1`: taking one network away leaves what is
/// written about the other.
#[test]
fn a_network_whose_name_begins_like_anothers_keeps_its_annotations() {
    const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
    let mut bench = two_nodes();
    let object = ObjectRef::namespaced(Kind::Nad, "web", "b");
    let config = json!({ "type": "kube-ovn" }).to_string();
    bench.api.create(&object, json!({ "spec": { "config": config } })).unwrap();
    let twice =
        json!([{ "name": "b", "interface": "net1" }, { "name": "b", "interface": "net11" }]).to_string();
    let mut asks = json!({ NETWORKS: twice });
    for interface in ["net1", "net11"] {
        asks[format!("b.web.ovn.{interface}.kubernetes.io/logical_switch")] = "ovn-default".into();
    }
    bench.add_pod_with("a-0", "n-1", asks);
    bench.settle();
    let value = |bench: &Bench, interface: &str, key: &str| {
        let key = format!("b.web.ovn.{interface}.kubernetes.io/{key}");
        bench.api.annotation(&pod("a-0"), &key).map(str::to_owned)
    };
    let kept = value(&bench, "net11", "ip_address").expect("has one");
    assert!(value(&bench, "net1", "ip_address").is_some());
    // Named once it has no interface in its provider any more: both of before go, one comes.
    let other =
        json!([{ "name": "b", "interface": "net11" }, { "name": "b", "interface": "net12" }]).to_string();
    bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": { NETWORKS: other } } }));
    bench.settle();
    assert_eq!(value(&bench, "net11", "ip_address"), Some(kept));
    assert_eq!(value(&bench, "net11", "routed").as_deref(), Some("true"));
    let all = &bench.api.get(&pod("a-0")).unwrap()["metadata"]["annotations"];
    let left =
        all.as_object().unwrap().keys().filter(|key| key.starts_with("b.web.ovn.net1.")).collect::<Vec<_>>();
    assert_eq!(left, Vec::<&String>::new());
}

/// One writer of a status, and of it only what is ours: fields of features that are not
/// acted on stay.
#[test]
fn fields_of_a_status_that_are_not_ours_stay() {
    let mut bench = two_nodes();
    add(&mut bench, &vpc("blue"), json!({}));
    for (object, theirs) in [
        (
            subnet("ovn-default"),
            json!({ "u2oInterconnectionIP": "10.16.0.200", "u2oInterconnectionVPC": "blue" }),
        ),
        (vpc("blue"), json!({ "tcpLoadBalancer": "vpc-blue-tcp-load", "udpSessionLoadBalancer": "x" })),
    ] {
        bench.api.edit(&object, json!({ "status": theirs }));
        bench.add_pod_with(&format!("a-{}", object.name), "n-1", json!({}));
        bench.settle();
        restart(&mut bench, Families::V4);
        bench.settle();
        let status = &bench.api.get(&object).unwrap()["status"];
        for (key, value) in theirs.as_object().unwrap() {
            assert_eq!(status[key], *value, "{object}: {key}");
        }
        assert_eq!(condition(&bench, &object, "Ready").unwrap().0, "True");
    }
}

/// A VPC with a subnet whose underlay reaches its overlay learns from ARP requests: the
/// option must not come by a take-over, or hosts on the wire find no way back (contract §4.3).
#[test]
fn a_router_learns_where_the_contract_says_so() {
    let learns = |bench: &Bench| {
        let replica = bench.db.replica();
        let routers = replica.table("Logical_Router").unwrap();
        let router = routers.find_one("name", &ovsdb::Value::string("blue")).unwrap().clone();
        router.map_get("options", "always_learn_from_arp_request") != Some("false")
    };
    let mut bench = two_nodes();
    add(&mut bench, &vpc("blue"), json!({}));
    assert!(!learns(&bench));
    let spec = json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24", "vlan": "v", "u2oInterconnection": true });
    add(&mut bench, &subnet("under"), spec);
    assert!(learns(&bench));
    bench.api.delete(&subnet("under"), 0);
    bench.settle();
    assert!(!learns(&bench));
    bench.api.edit(
        &vpc("blue"),
        json!({ "spec": { "vpcPeerings": [
        { "remoteVpc": "ovn-cluster", "localConnectIP": "169.254.0.1/30" }] } }),
    );
    bench.settle();
    assert!(learns(&bench));
}

/// The cluster's own pods stay where the cluster is, whatever Vpc names their namespace (contract §2.2).
#[test]
fn the_clusters_own_namespace_stays_on_the_clusters_subnet() {
    let mut bench = two_nodes();
    bench.add_namespace("kube-system");
    let namespaces = json!(["web", "kube-system"]);
    add(&mut bench, &vpc("blue"), json!({ "namespaces": namespaces, "defaultSubnet": "b-1" }));
    add(&mut bench, &subnet("b-1"), json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24" }));
    let of = |bench: &Bench, namespace: &str| {
        bench.api.annotation(&cluster(Kind::Namespace, namespace), SWITCH).map(str::to_owned)
    };
    assert_eq!(of(&bench, "web").as_deref(), Some("b-1"));
    assert_eq!(of(&bench, "kube-system").as_deref(), Some("ovn-default"));
}

/// Standard conditions (contract §1): all three are there, and say one thing.
#[test]
fn each_condition_is_there_and_agrees_with_the_others() {
    const WRONG: &str = "ValidateLogicalSwitchFailed";
    const ACL: &str = "SetLogicalSwitchAclsFailed";
    let mut bench = two_nodes();
    add(
        &mut bench,
        &vpc("blue"),
        json!({ "staticRoutes": [{ "cidr": "nonsense", "nextHopIP": "10.50.0.254" }] }),
    );
    let wall = json!([{ "direction": "to-lport", "priority": 1, "match": "(", "action": "drop" }]);
    for (name, spec) in [
        ("good", json!({ "cidrBlock": "10.51.0.0/24" })),
        ("bad", json!({ "cidrBlock": "10.52.0.0/99" })),
        ("odd", json!({ "cidrBlock": "10.53.0.0/24", "gatewayType": "sideways" })),
        ("acl", json!({ "cidrBlock": "10.54.0.0/24", "acls": wall })),
        ("lost", json!({ "cidrBlock": "10.55.0.0/24", "gatewayType": "centralized" })),
    ] {
        add(&mut bench, &subnet(name), spec);
    }
    let said = |bench: &Bench, object: &ObjectRef| -> Vec<String> {
        let of = |kind| condition(bench, object, kind).unwrap_or_else(|| panic!("{object} has no {kind}"));
        ["Validated", "Ready", "Error"].map(|kind| format!("{} {}", of(kind).0, of(kind).1)).into()
    };
    let valid = "True ValidateLogicalSwitchSuccess".to_owned();
    for (name, validated, ready, error) in [
        (
            "good",
            valid.clone(),
            "True ResetLogicalSwitchAclSuccess".to_owned(),
            "False ResetLogicalSwitchAclSuccess".to_owned(),
        ),
        ("bad", format!("False {WRONG}"), format!("False {WRONG}"), format!("True {WRONG}")),
        ("odd", format!("False {WRONG}"), format!("False {WRONG}"), format!("True {WRONG}")),
        ("acl", valid.clone(), format!("False {ACL}"), format!("True {ACL}")),
        ("lost", valid.clone(), "False NoReadyGateway".to_owned(), "True NoReadyGateway".to_owned()),
    ] {
        assert_eq!(said(&bench, &subnet(name)), [validated, ready, error], "{name}");
    }
    let wrong = ["False ValidateVpcFailed", "False ValidateVpcFailed", "True ValidateVpcFailed"];
    assert_eq!(said(&bench, &vpc("blue")), wrong);
    // They heal together.
    bench.api.edit(&vpc("blue"), json!({ "spec": { "staticRoutes": null } }));
    for (name, block) in [("bad", 52), ("odd", 53), ("acl", 54), ("lost", 55)] {
        let spec = json!({ "cidrBlock": format!("10.{block}.0.0/24"), "gatewayType": "distributed", "acls": null,
            "gateway": null, "excludeIps": null });
        bench.api.edit(&subnet(name), json!({ "spec": spec }));
        bench.settle();
        assert_eq!(said(&bench, &subnet(name)), said(&bench, &subnet("good")), "{name}");
    }
    let good = ["True ValidateVpcSuccess", "True ReconcileSuccess", "False ReconcileSuccess"];
    assert_eq!(said(&bench, &vpc("blue")), good);
}
