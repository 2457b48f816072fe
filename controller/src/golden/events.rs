//! Events of contract §8.8 through the whole pipeline: which are told, when, and that a
//! restart repeats none.

use serde_json::{Value, json};

use super::networks::{add, subnet, two_nodes, vpc};
use super::{cluster, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

/// Reasons and messages about an object, in order; of all processes.
fn told(bench: &Bench, object: &ObjectRef) -> Vec<(String, String)> {
    let events = bench.processes.iter().flat_map(|process| &process.events);
    let about = events.filter(|event| event.object == *object);
    about.map(|event| (event.reason.to_string(), event.message.to_string())).collect()
}

fn reasons(bench: &Bench, object: &ObjectRef) -> Vec<String> {
    told(bench, object).into_iter().map(|(reason, _)| reason).collect()
}

/// What is told about an object from now on.
fn during(bench: &mut Bench, object: &ObjectRef, change: impl FnOnce(&mut Bench)) -> Vec<(String, String)> {
    let before = told(bench, object).len();
    change(bench);
    bench.settle();
    bench.pass(2_000);
    told(bench, object).split_off(before)
}

fn edit(object: &ObjectRef, spec: Value) -> impl FnOnce(&mut Bench) + use<> {
    let object = object.clone();
    move |bench| bench.api.edit(&object, json!({ "spec": spec }))
}

fn names(events: &[(String, String)]) -> Vec<&str> {
    events.iter().map(|(reason, _)| reason.as_str()).collect()
}

#[test]
fn a_subnet_tells_what_became_of_it() {
    let mut bench = two_nodes();
    let s = subnet("s");
    add(&mut bench, &s, json!({ "cidrBlock": "10.60.0.0/24" }));
    let mut first = reasons(&bench, &s);
    first.sort();
    assert_eq!(first, ["ResetLogicalSwitchAclSuccess", "ValidateLogicalSwitchSuccess"]);
    let private = during(&mut bench, &s, edit(&s, json!({ "private": true })));
    assert_eq!(names(&private), ["SetPrivateLogicalSwitchSuccess"]);
    let acl = json!([{ "direction": "in", "priority": 1, "match": "ip", "action": "drop" }]);
    let wrong = during(&mut bench, &s, edit(&s, json!({ "acls": acl })));
    assert_eq!(names(&wrong), ["SetLogicalSwitchAclsFailed"]);
    assert!(wrong[0].1.contains("acls[0]"), "{wrong:?}");
    during(&mut bench, &s, edit(&s, json!({ "acls": [], "private": false })));
    let central = json!({ "gatewayType": "centralized", "gatewayNode": "n-1" });
    let central = during(&mut bench, &s, edit(&s, central));
    assert_eq!(
        names(&central),
        ["SubnetGatewayTypeChanged", "SubnetGatewayNodeChanged", "ReconcileCentralizedGatewaySuccess"]
    );
    assert_eq!(central[0].1, r#"subnet gateway type changes from "distributed" to "centralized""#);
    assert_eq!(central[1].1, r#"gateway node changes from "" to "n-1""#);
    let none = during(&mut bench, &s, edit(&s, json!({ "gatewayNode": "gone" })));
    assert_eq!(names(&none), ["SubnetGatewayNodeChanged", "NoActiveGatewayFound"]);
    let none = during(&mut bench, &s, edit(&s, json!({ "gatewayNode": "" })));
    assert_eq!(names(&none), ["SubnetGatewayNodeChanged", "NoReadyGateway"]);
    during(&mut bench, &s, edit(&s, json!({ "gatewayNode": "n-2" })));
    let back = during(&mut bench, &s, edit(&s, json!({ "gatewayType": "distributed" })));
    for reason in ["SubnetGatewayTypeChanged", "SubnetGatewayNodeChanged", "ChangeToDistributedGw"] {
        assert_eq!(names(&back).iter().filter(|name| **name == reason).count(), 1, "{reason}: {back:?}");
    }
    let again = during(&mut bench, &s, |bench| {
        restart(bench, Families::V4);
    });
    assert_eq!(again, []);
    // Addresses for another CNI.
    let plain = subnet("plain");
    add(&mut bench, &plain, json!({ "cidrBlock": "172.20.0.0/24", "provider": "vlan.web" }));
    assert!(reasons(&bench, &plain).contains(&"SetNonOvnSubnetSuccess".to_owned()));
}

#[test]
fn a_pod_tells_when_its_network_comes_changes_and_goes() {
    let mut bench = two_nodes();
    let p = pod("a-0");
    let ask = json!({ "ovn.kubernetes.io/ip_address": "10.16.9.9", "ovn.kubernetes.io/mac_address": "02:00:00:00:00:99" });
    let came = during(&mut bench, &p, |bench| bench.add_pod_with("a-0", "n-1", ask));
    let details =
        "provider=ovn subnet=ovn-default ip=10.16.9.9 mac=02:00:00:00:00:99 logicalSwitchPort=a-0.web";
    let one = |reason: &str| vec![(reason.to_owned(), details.to_owned())];
    assert_eq!(came, one("PodNetworkAllocated"));
    let port = |bench: &Bench| {
        let replica = bench.db.replica();
        let table = replica.table("Logical_Switch_Port").unwrap();
        table.find_one("name", &ovsdb::Value::string("a-0.web")).unwrap().get("port_security").cloned()
    };
    let annotate = |key: &'static str, value: Value| {
        move |bench: &mut Bench| {
            bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": { key: value } } }))
        }
    };
    let secured = during(&mut bench, &p, annotate("ovn.kubernetes.io/port_security", json!("true")));
    assert_eq!(secured, one("PodSecurityUpdated"));
    assert!(!port(&bench).unwrap().is_empty(), "it is so when it is told");
    assert_eq!(during(&mut bench, &p, annotate("example.com/color", json!("blue"))), []);
    let again = during(&mut bench, &p, |bench| {
        restart(bench, Families::V4);
    });
    assert_eq!(again, []);
    let gone = during(&mut bench, &p, |bench| bench.api.delete(&pod("a-0"), 0));
    assert_eq!(gone, one("PodNetworkReleased"));
    // Deleted while nobody watches: there is no pod to tell it of.
    bench.add_pod("a-1", "n-1");
    bench.settle();
    bench.processes.last_mut().unwrap().paused = true;
    bench.api.remove(&pod("a-1"));
    let unseen = during(&mut bench, &pod("a-1"), |bench| {
        restart(bench, Families::V4);
    });
    assert_eq!(unseen, []);
}

/// An address that stays is not released.
#[test]
fn a_pod_whose_address_is_kept_releases_nothing() {
    let mut bench = two_nodes();
    let set = ObjectRef::namespaced(Kind::StatefulSet, "web", "db");
    bench.api.create(&set, json!({ "spec": { "replicas": 1 } })).unwrap();
    let uid = bench.api.get(&set).unwrap()["metadata"]["uid"].clone();
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": uid }]);
    bench.add_pod("db-0", "n-1");
    bench.api.edit(&pod("db-0"), json!({ "metadata": { "ownerReferences": owner } }));
    bench.settle();
    let went = during(&mut bench, &pod("db-0"), |bench| bench.api.delete(&pod("db-0"), 0));
    assert_eq!(went, []);
    let freed = during(&mut bench, &pod("db-0"), |bench| bench.api.delete(&set, 0));
    assert_eq!(names(&freed), ["PodNetworkReleased"]);
}

/// Rows that can't be written: each kind calls it as Kube-OVN does.
#[test]
fn what_cannot_be_written_is_told_by_its_name() {
    let mut bench = two_nodes();
    super::external::label(&mut bench, &["n-1", "n-2"]);
    add(&mut bench, &cluster(super::external::NETWORK, "net1"), json!({ "defaultInterface": "eth1" }));
    for (vlan, id) in [("v-7", 7), ("v-8", 8)] {
        add(&mut bench, &cluster(Kind::Vlan, vlan), json!({ "id": id, "provider": "net1" }));
    }
    add(&mut bench, &subnet("x"), json!({ "cidrBlock": "172.19.0.0/24", "vlan": "v-8" }));
    // The port of external network x to router y.web has the name of pod x-y in namespace web.
    bench.add_pod("x-y", "n-1");
    bench.settle();
    let both = during(&mut bench, &pod("x-y"), |bench| {
        add(bench, &vpc("y.web"), json!({ "extraExternalSubnets": ["x"] }));
    });
    assert_eq!(names(&both), ["PodNetworkUpdateFailed"]);
    assert!(both[0].1.contains("x-y.web"), "{both:?}");
    bench.api.delete(&pod("x-y"), 0);
    bench.settle();
    let new = during(&mut bench, &pod("x-y"), |bench| bench.add_pod("x-y", "n-1"));
    assert_eq!(names(&new), ["CreateOVNPortFailed"]);
    assert_eq!(bench.api.annotation(&pod("x-y"), "ovn.kubernetes.io/routed"), None, "its port is a router's");
    let healed = during(&mut bench, &pod("x-y"), |bench| {
        bench.api.edit(&vpc("y.web"), json!({ "spec": { "extraExternalSubnets": [] } }));
    });
    assert_eq!(names(&healed), ["PodNetworkAllocated"]);
    // A router port of a subnet with the name of one in an external network.
    add(&mut bench, &subnet("b-c"), json!({ "cidrBlock": "172.18.0.0/24", "vlan": "v-7" }));
    add(&mut bench, &vpc("a"), json!({ "extraExternalSubnets": ["b-c"] }));
    add(&mut bench, &vpc("a-b"), json!({}));
    let spec = json!({ "vpc": "a-b", "cidrBlock": "10.62.0.0/24", "private": true });
    add(&mut bench, &subnet("c"), spec);
    let all = reasons(&bench, &subnet("c"));
    let failed =
        all.iter().any(|r| r == "SetPrivateLogicalSwitchFailed" || r == "ResetLogicalSwitchAclFailed");
    assert!(failed, "{all:?}");
    // An address set of a pool with the name of the nodes'.
    add(&mut bench, &subnet("walled"), json!({ "cidrBlock": "10.64.0.0/24", "private": true }));
    for (name, ip) in [("p-1", "10.16.70.1"), ("weir_nodes_v4", "10.16.70.2")] {
        let spec = json!({ "subnet": "ovn-default", "ips": [ip], "enableAddressSet": true });
        bench.api.create(&cluster(Kind::IpPool, name), json!({ "spec": spec })).unwrap();
        bench.settle();
    }
    let of = |bench: &Bench, name: &str| reasons(bench, &cluster(Kind::IpPool, name));
    assert!(of(&bench, "p-1").contains(&"UpdateIPAMSucceeded".to_owned()));
    assert!(of(&bench, "weir_nodes_v4").contains(&"ReconcileAddressSetFailed".to_owned()));
}
