//! Networks beside the default one (contract §2.1), through the whole pipeline.

use serde_json::{Value, json};

use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

fn add_nad(bench: &mut Bench, name: &str, config: &Value) {
    let object = ObjectRef::namespaced(Kind::Nad, "web", name);
    bench.api.create(&object, json!({ "spec": { "config": config.to_string() } })).unwrap();
}

/// Definitions `ovs` (ours), `vlan` (only the address is ours) and `else`; a subnet
/// whose addresses are for `vlan`.
fn ready() -> Bench {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    add_nad(&mut bench, "ovs", &json!({ "type": "kube-ovn" }));
    add_nad(&mut bench, "vlan", &json!({ "type": "ipvlan", "ipam": { "type": "kube-ovn" } }));
    add_nad(&mut bench, "else", &json!({ "type": "macvlan", "ipam": { "type": "dhcp" } }));
    let spec = json!({ "cidrBlock": "172.20.0.0/24", "gateway": "172.20.0.1", "provider": "vlan.web",
        "excludeIps": ["172.20.0.1"] });
    bench.api.create(&cluster(Kind::Subnet, "plain"), json!({ "spec": spec })).unwrap();
    bench.settle();
    bench
}

fn annotation(bench: &Bench, name: &str, key: &str) -> Option<String> {
    bench.api.annotation(&pod(name), key).map(str::to_owned)
}

fn has_port(bench: &Bench, name: &str) -> bool {
    let replica = bench.db.replica();
    replica.table("Logical_Switch_Port").unwrap().find_one("name", &ovsdb::Value::string(name)).is_some()
}

fn records(bench: &Bench, name: &str) -> Vec<String> {
    let all = bench.api.names(Kind::Ip).into_iter().map(|object| object.name.to_string());
    all.filter(|record| record.starts_with(&format!("{name}."))).collect()
}

#[test]
fn several_interfaces_of_both_kinds() {
    let mut bench = ready();
    let on = json!({
        NETWORKS: "ovs, web/vlan@net2, else",
        "ovs.web.ovn.kubernetes.io/logical_switch": "ovn-default",
        "ovs.web.ovn.kubernetes.io/ip_address": "10.16.5.5",
        "ovs.web.ovn.kubernetes.io/port_security": "true",
        "vlan.web.kubernetes.io/ip_address.net2": "172.20.0.77",
    });
    bench.add_pod_with("a-0", "n-1", on);
    bench.settle();
    bench.pass(2_000);
    assert_eq!(annotation(&bench, "a-0", "ovn.kubernetes.io/routed").as_deref(), Some("true"));
    assert_eq!(annotation(&bench, "a-0", "ovs.web.ovn.kubernetes.io/routed").as_deref(), Some("true"));
    assert_eq!(
        annotation(&bench, "a-0", "ovs.web.ovn.kubernetes.io/ip_address").as_deref(),
        Some("10.16.5.5")
    );
    let value = |name: &str| annotation(&bench, "a-0", &format!("vlan.web.kubernetes.io/{name}"));
    assert_eq!(value("allocated").as_deref(), Some("true"));
    assert_eq!(value("ip_address").as_deref(), Some("172.20.0.77"));
    assert_eq!(
        (value("cidr").as_deref(), value("gateway").as_deref()),
        (Some("172.20.0.0/24"), Some("172.20.0.1"))
    );
    assert_eq!((value("routed"), value("logical_switch")), (None, None), "no route stage, no switch");
    assert!(has_port(&bench, "a-0.web.ovs.web.ovn") && !has_port(&bench, "a-0.web.vlan.web"));
    assert_eq!(records(&bench, "a-0"), ["a-0.web", "a-0.web.ovs.web.ovn", "a-0.web.vlan.web"]);
    let patches = bench.api.writes.iter().filter(|write| write.starts_with("patch Pod web/a-0 ")).count();
    assert_eq!(patches, 1, "{:#?}", bench.api.writes);
    let said = bench.processes.iter().flat_map(|p| &p.events).find(|e| e.object == pod("a-0")).unwrap();
    assert!(
        said.message.contains("; provider=ovs.web.ovn subnet=ovn-default ip=10.16.5.5"),
        "{}",
        said.message
    );
    // A restart finds everything as it is.
    bench.api.writes.clear();
    let second = restart(&mut bench, Families::V4);
    bench.pass(60_000);
    assert_eq!(bench.api.writes, Vec::<String>::new());
    assert_eq!(bench.processes[second].transactions.len(), 1);
    // One is unplugged.
    bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": { NETWORKS: "web/vlan@net2" } } }));
    bench.settle();
    assert!(!has_port(&bench, "a-0.web.ovs.web.ovn"));
    assert_eq!(records(&bench, "a-0"), ["a-0.web", "a-0.web.vlan.web"]);
    let left = bench.api.get(&pod("a-0")).unwrap()["metadata"]["annotations"].to_string();
    assert!(!left.contains("ovs.web.ovn"), "{left}");
    assert_eq!(annotation(&bench, "a-0", "vlan.web.kubernetes.io/allocated").as_deref(), Some("true"));
    bench.api.remove(&pod("a-0"));
    bench.pass(5_000);
    assert_eq!(records(&bench, "a-0"), Vec::<String>::new());
    assert!(bench.core().quiet(), "{}", bench.core().status());
}

/// A pod that may answer for a Vip does so by the port that it has in the Vip's subnet, whichever of its interfaces that is.
#[test]
fn a_vip_names_the_ports_in_its_own_subnet() {
    let mut bench = ready();
    let spec = json!({ "cidrBlock": "172.21.0.0/24", "gateway": "172.21.0.1", "provider": "ovs.web.ovn" });
    bench.api.create(&cluster(Kind::Subnet, "second"), json!({ "spec": spec })).unwrap();
    for (name, subnet) in [("first", "ovn-default"), ("other", "second")] {
        let spec = json!({ "subnet": subnet, "namespace": "web" });
        bench.api.create(&cluster(Kind::Vip, name), json!({ "spec": spec })).unwrap();
    }
    let parents = |bench: &Bench, vip: &str| {
        let replica = bench.db.replica();
        let ports = replica.table("Logical_Switch_Port").unwrap();
        let port = ports.find_one("name", &ovsdb::Value::string(vip)).unwrap();
        port.map_get("options", "virtual-parents").unwrap().to_owned()
    };
    let on = |networks: &str| json!({ NETWORKS: networks, "ovn.kubernetes.io/aaps": "first,other" });
    bench.add_pod_with("a-0", "n-1", on("ovs,vlan"));
    bench.add_pod_with("a-1", "n-1", on(""));
    bench.settle();
    assert_eq!(parents(&bench, "first"), "a-0.web,a-1.web");
    assert_eq!(parents(&bench, "other"), "a-0.web.ovs.web.ovn");
    restart(&mut bench, Families::V4);
    bench.settle();
    assert_eq!(parents(&bench, "other"), "a-0.web.ovs.web.ovn");
    // Unplugged; and one without the default network.
    bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": { NETWORKS: "vlan" } } }));
    let mut only = on("");
    only["v1.multus-cni.io/default-network"] = "web/ovs".into();
    bench.add_pod_with("a-2", "n-1", only);
    bench.settle();
    assert_eq!(parents(&bench, "first"), "a-0.web,a-1.web");
    assert_eq!(parents(&bench, "other"), "a-2.web.ovs.web.ovn");
    bench.api.remove(&pod("a-2"));
    bench.settle();
    assert_eq!(parents(&bench, "other"), "");
    // The definition comes after the pod.
    bench.api.remove(&ObjectRef::namespaced(Kind::Nad, "web", "ovs"));
    bench.add_pod_with("a-3", "n-1", on("ovs"));
    bench.settle();
    assert_eq!(parents(&bench, "other"), "");
    add_nad(&mut bench, "ovs", &json!({ "type": "kube-ovn" }));
    bench.settle();
    assert_eq!(parents(&bench, "other"), "a-3.web.ovs.web.ovn");
    assert!(bench.core().quiet(), "{}", bench.core().status());
}

/// So it is with the addresses of a subnet's `vips`: each interface lists its own, and its port is
/// the one that answers.
#[test]
fn a_subnets_virtual_address_names_the_ports_that_list_it() {
    let mut bench = ready();
    let spec = json!({ "cidrBlock": "172.21.0.0/24", "gateway": "172.21.0.1", "provider": "ovs.web.ovn",
        "vips": ["172.21.0.200"] });
    bench.api.create(&cluster(Kind::Subnet, "second"), json!({ "spec": spec })).unwrap();
    let parents = |bench: &Bench| {
        let replica = bench.db.replica();
        let ports = replica.table("Logical_Switch_Port").unwrap();
        let port = ports.find_one("name", &ovsdb::Value::string("second-vip-172.21.0.200")).unwrap();
        port.map_get("options", "virtual-parents").unwrap_or_default().to_owned()
    };
    let on = |networks: &str, key: &str| json!({ NETWORKS: networks, key: "172.21.0.200" });
    let other = "ovs.web.ovn.kubernetes.io/port_vips";
    bench.add_pod_with("a-0", "n-1", on("ovs", other));
    bench.add_pod_with("a-1", "n-1", on("ovs", other));
    // Its default port is on another switch, where OVN would not find it.
    bench.add_pod_with("a-2", "n-1", on("ovs", "ovn.kubernetes.io/port_vips"));
    bench.settle();
    assert_eq!(parents(&bench), "a-0.web.ovs.web.ovn,a-1.web.ovs.web.ovn");
    restart(&mut bench, Families::V4);
    bench.settle();
    assert_eq!(parents(&bench), "a-0.web.ovs.web.ovn,a-1.web.ovs.web.ovn");
    // Unplugged; gone; and the definition comes after the pod.
    bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": { NETWORKS: "vlan" } } }));
    bench.api.remove(&pod("a-1"));
    bench.settle();
    assert_eq!(parents(&bench), "");
    bench.api.remove(&ObjectRef::namespaced(Kind::Nad, "web", "ovs"));
    bench.add_pod_with("a-3", "n-1", on("ovs", other));
    bench.settle();
    assert_eq!(parents(&bench), "");
    add_nad(&mut bench, "ovs", &json!({ "type": "kube-ovn" }));
    bench.settle();
    assert_eq!(parents(&bench), "a-3.web.ovs.web.ovn");
    bench.api.edit(&pod("a-3"), json!({ "metadata": { "annotations": { other: null } } }));
    bench.settle();
    assert_eq!(parents(&bench), "");
    assert!(bench.core().quiet(), "{}", bench.core().status());
}

#[test]
fn u_04_addresses_of_other_cnis_interfaces_come_back() {
    let mut bench = ready();
    for round in 0..300 {
        let name = format!("p-{}", round % 3);
        bench.add_pod_with(&name, "n-1", json!({ NETWORKS: "vlan" }));
        bench.settle();
        assert!(annotation(&bench, &name, "vlan.web.kubernetes.io/ip_address").is_some(), "round {round}");
        bench.api.remove(&pod(&name));
        bench.settle();
    }
    assert_eq!(bench.core().counters().leases, 1, "the node's");
}

#[test]
fn u_06_static_addresses_per_interface_come_back() {
    let mut bench = ready();
    let on = json!({
        NETWORKS: r#"[{"name":"ovs","interface":"net1"},{"name":"ovs","interface":"net2","ips":["10.16.6.3"]}]"#,
        "ovs.web.ovn.net1.kubernetes.io/logical_switch": "ovn-default",
        "ovs.web.ovn.net2.kubernetes.io/logical_switch": "ovn-default",
        "ovs.web.kubernetes.io/ip_address.net1": "10.16.6.2",
        "ovs.web.kubernetes.io/mac_address.net1": "02:00:00:00:06:02",
    });
    for round in 0..3 {
        bench.add_pod_with("a-0", "n-1", on.clone());
        bench.settle();
        let value = |of: &str| annotation(&bench, "a-0", &format!("ovs.web.ovn.{of}"));
        assert_eq!(value("net1.kubernetes.io/ip_address").as_deref(), Some("10.16.6.2"), "round {round}");
        assert_eq!(value("net1.kubernetes.io/mac_address").as_deref(), Some("02:00:00:00:06:02"));
        assert_eq!(value("net2.kubernetes.io/ip_address").as_deref(), Some("10.16.6.3"));
        bench.api.remove(&pod("a-0"));
        bench.settle();
        assert_eq!(bench.core().counters().leases, 1, "the node's");
    }
}

#[test]
fn a_network_that_is_missing_is_named_and_harms_nobody() {
    let mut bench = ready();
    bench.add_pod_with("a-0", "n-1", json!({ NETWORKS: "later" }));
    bench.add_pod_with("a-1", "n-1", json!({ NETWORKS: "vlan" }));
    bench.add_pod_with("a-2", "n-1", json!({ NETWORKS: "[{" }));
    bench.settle();
    let said = |bench: &Bench, name: &str| -> String {
        let events = bench.processes.iter().flat_map(|p| &p.events);
        events.filter(|e| e.warning && e.object == pod(name)).map(|e| e.message.to_string()).collect()
    };
    assert!(said(&bench, "a-0").contains("NetworkAttachmentDefinition web/later does not exist"));
    assert!(said(&bench, "a-2").contains(NETWORKS));
    // The definition of a running pod's network vanishes: the pod keeps what it has.
    bench.api.remove(&ObjectRef::namespaced(Kind::Nad, "web", "vlan"));
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.pass(5_000);
    assert_eq!(records(&bench, "a-1"), ["a-1.web", "a-1.web.vlan.web"]);
    // And the other one heals.
    add_nad(&mut bench, "later", &json!({ "type": "ipvlan", "ipam": { "type": "kube-ovn" } }));
    bench.api.edit(&cluster(Kind::Subnet, "plain"), json!({ "spec": { "provider": "later.web" } }));
    bench.settle();
    assert!(annotation(&bench, "a-0", "later.web.kubernetes.io/ip_address").is_some());
}

#[test]
fn another_network_may_replace_the_default_one() {
    let mut bench = ready();
    let on = json!({
        "v1.multus-cni.io/default-network": "web/ovs",
        "ovs.web.ovn.kubernetes.io/logical_switch": "ovn-default",
    });
    bench.add_pod_with("a-0", "n-1", on);
    bench.settle();
    assert_eq!(records(&bench, "a-0"), ["a-0.web.ovs.web.ovn"]);
    assert_eq!(annotation(&bench, "a-0", "ovn.kubernetes.io/allocated"), None);
    assert_eq!(annotation(&bench, "a-0", "ovs.web.ovn.kubernetes.io/routed").as_deref(), Some("true"));
    bench.api.remove(&pod("a-0"));
    bench.settle();
    assert_eq!(records(&bench, "a-0"), Vec::<String>::new());
}

/// What another CNI's interface of a pod was told.
fn told() -> serde_json::Value {
    json!({
        NETWORKS: "vlan",
        "vlan.web.kubernetes.io/allocated": "true",
        "vlan.web.kubernetes.io/ip_address": "172.20.0.2",
        "vlan.web.kubernetes.io/cidr": "172.20.0.0/24",
        "vlan.web.kubernetes.io/gateway": "172.20.0.1",
    })
}

/// An interface of another CNI is told its address and no switch, and its record comes after it:
/// a leader that dies in between leaves the annotation alone. Nobody else gets the address, and
/// the record is made.
#[test]
fn what_another_cnis_interface_was_told_is_known_without_its_record() {
    let mut bench = ready();
    let mut told = told();
    told["vlan.web.kubernetes.io/mac_address"] = "02:00:00:00:00:77".into();
    bench.processes.last_mut().unwrap().paused = true;
    // Looked at before the other one, by its name.
    bench.add_pod_with("a-0", "n-1", json!({ NETWORKS: "vlan" }));
    bench.add_pod_with("b-0", "n-1", told);
    lead(&mut bench, Families::V4);
    bench.pass(2_000);
    let given = |name: &str| annotation(&bench, name, "vlan.web.kubernetes.io/ip_address");
    assert_eq!(given("b-0").as_deref(), Some("172.20.0.2"));
    assert_eq!(given("a-0").as_deref(), Some("172.20.0.3"));
    assert_eq!(records(&bench, "b-0"), ["b-0.web", "b-0.web.vlan.web"]);
    bench.verify();
}

/// Kube-OVN writes no MAC for such an interface unless one was asked for (contract §3.3).
#[test]
fn what_kube_ovn_told_another_cnis_interface_is_known_without_a_mac() {
    let mut bench = ready();
    let told = told();
    bench.processes.last_mut().unwrap().paused = true;
    bench.add_pod_with("a-0", "n-1", json!({ NETWORKS: "vlan" }));
    bench.add_pod_with("b-0", "n-1", told);
    // Of a StatefulSet, without a pod at the moment.
    let set = ObjectRef::namespaced(Kind::StatefulSet, "web", "db");
    bench.api.create(&set, json!({ "spec": { "replicas": 1 } })).unwrap();
    let record = cluster(Kind::Ip, "db-0.web.vlan.web");
    let spec = json!({ "podName": "db-0", "namespace": "web", "subnet": "plain", "podType": "StatefulSet",
        "ipAddress": "172.20.0.3", "v4IpAddress": "172.20.0.3", "macAddress": "" });
    let metadata = json!({ "finalizers": ["kubeovn.io/kube-ovn-controller"],
        "labels": { "ovn.kubernetes.io/ip_reserved": "false" } });
    bench.api.create(&record, json!({ "metadata": metadata, "spec": spec })).unwrap();
    lead(&mut bench, Families::V4);
    bench.pass(2_000);
    let given = |name: &str| annotation(&bench, name, "vlan.web.kubernetes.io/ip_address");
    assert_eq!(given("b-0").as_deref(), Some("172.20.0.2"));
    assert_eq!(given("a-0").as_deref(), Some("172.20.0.4"), "the first that nobody has");
    assert_eq!(bench.api.get(&record).unwrap()["spec"]["ipAddress"], "172.20.0.3");
    assert!(!has_port(&bench, "db-0.web.vlan.web"), "it is no port of OVN");
    assert!(bench.core().quiet(), "{}", bench.core().status());
}

/// Contract §5.7: the external interface of a gateway without an address of its own is marked so.
#[test]
fn an_interface_that_is_marked_without_an_address_gets_none() {
    let mut bench = ready();
    let marked = json!({ NETWORKS: "vlan", "vlan.web.kubernetes.io/allocated": "true" });
    bench.add_pod_with("a-0", "n-1", marked);
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.pass(2_000);
    assert_eq!(annotation(&bench, "a-0", "vlan.web.kubernetes.io/ip_address"), None);
    assert_eq!(records(&bench, "a-0"), ["a-0.web"]);
    assert_eq!(annotation(&bench, "a-0", "ovn.kubernetes.io/routed").as_deref(), Some("true"));
    assert!(bench.core().quiet(), "{}", bench.core().status());
}
