//! Vips (contract §1.7) through the whole pipeline.

use rstest::rstest;
use serde_json::{Value, json};

use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";

fn vip(name: &str) -> ObjectRef {
    cluster(Kind::Vip, name)
}

fn add(bench: &mut Bench, name: &str, spec: Value) {
    let mut spec = spec;
    spec["subnet"] = "ovn-default".into();
    bench.api.create(&vip(name), json!({ "spec": spec })).unwrap();
}

fn status(bench: &Bench, name: &str) -> Value {
    bench.api.get(&vip(name)).unwrap()["status"].clone()
}

fn port(bench: &Bench, name: &str) -> Option<std::sync::Arc<ovsdb::Row>> {
    let replica = bench.db.replica();
    let table = replica.table("Logical_Switch_Port").unwrap();
    table.find_one("name", &ovsdb::Value::string(name)).cloned()
}

#[rstest]
#[case(Families::V4, json!({}), "10.16.0.2", "")]
#[case(Families::V4, json!({ "v4ip": "10.16.3.3", "macAddress": "02:00:00:00:00:99" }), "10.16.3.3", "")]
#[case(Families::Dual, json!({ "v6ip": "fd00:10:16::99" }), "10.16.0.2", "fd00:10:16::99")]
fn an_address_of_its_own(
    #[case] families: Families,
    #[case] spec: Value,
    #[case] v4: &str,
    #[case] v6: &str,
) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    add(&mut bench, "v", spec);
    bench.settle();
    let told = status(&bench, "v");
    assert_eq!((&told["v4ip"], &told["v6ip"]), (&json!(v4), &json!(v6)));
    let object = bench.api.get(&vip("v")).unwrap();
    assert_eq!(object["metadata"]["labels"]["ovn.kubernetes.io/subnet"], "ovn-default");
    assert_eq!(object["metadata"]["labels"]["ovn.kubernetes.io/ip_reserved"], "");
    assert_eq!(super::condition(&bench, &vip("v"), "Ready").unwrap().0, "True");
    bench.add_pod("a-0", "n-1");
    restart(&mut bench, families);
    bench.pass(5_000);
    assert_eq!(status(&bench, "v"), told, "it stays over a restart");
    assert_ne!(bench.api.annotation(&pod("a-0"), IP).map(|ip| ip.contains(v4)), Some(true));
    let used = &bench.api.get(&cluster(Kind::Subnet, "ovn-default")).unwrap()["status"]["v4usingIPs"];
    assert_eq!(used, 2);
    bench.api.delete(&vip("v"), 0);
    bench.settle();
    assert!(bench.api.get(&vip("v")).is_none());
    assert_eq!(bench.core().counters().leases, 2, "the pod's and the node's");
}

#[test]
fn types_have_their_ports() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    add(&mut bench, "lb", json!({ "type": "switch_lb_vip", "namespace": "web" }));
    add(&mut bench, "vm", json!({ "type": "kube_host_vm_vip" }));
    add(&mut bench, "plain", json!({ "namespace": "web", "selector": ["app:x"] }));
    bench.settle();
    let replica = bench.db.replica();
    let router = replica.table("Logical_Router_Port").unwrap();
    let router = router.find_one("name", &ovsdb::Value::string("ovn-cluster-ovn-default")).unwrap();
    let mac = router.str("mac").unwrap().to_owned();
    let lb = port(&bench, "lb.web").unwrap();
    let ip = status(&bench, "lb")["v4ip"].as_str().unwrap().to_owned();
    let addresses = |row: &ovsdb::Row| -> Vec<String> {
        row.get("addresses").unwrap().set_strings().map(str::to_owned).collect()
    };
    assert_eq!(addresses(&lb), [format!("{mac} {ip}")]);
    assert_eq!(lb.map_get("options", "arp_proxy"), Some("true"));
    assert_eq!(status(&bench, "lb")["mac"], mac);
    assert_eq!(port(&bench, "lb").unwrap().str("type"), Some("virtual"));
    let vm = port(&bench, "vm.").unwrap();
    assert_eq!(vm.map_get("options", "arp_proxy"), None);
    assert!(port(&bench, "vm").is_none() && port(&bench, "plain.web").is_none());
    let plain = port(&bench, "plain").unwrap();
    let ip = status(&bench, "plain")["v4ip"].as_str().unwrap().to_owned();
    assert_eq!(plain.map_get("options", "virtual-ip"), Some(&*ip));
    assert_eq!(plain.map_get("options", "virtual-parents"), Some(""));
    // Pods of the namespace that match and list it, and no others.
    for (name, labels, aaps) in [
        ("yes-1", json!({ "app": "x" }), "other,plain"),
        ("yes-2", json!({ "app": "x" }), "plain"),
        ("unlabelled", json!({}), "plain"),
        ("unlisted", json!({ "app": "x" }), "other"),
    ] {
        bench.add_pod_with(name, "n-1", json!({ "ovn.kubernetes.io/aaps": aaps }));
        bench.api.edit(&pod(name), json!({ "metadata": { "labels": labels } }));
    }
    bench.settle();
    let parents = |bench: &Bench| {
        port(bench, "plain").unwrap().map_get("options", "virtual-parents").map(str::to_owned)
    };
    assert_eq!(parents(&bench).as_deref(), Some("yes-1.web,yes-2.web"));
    bench.api.edit(&pod("yes-1"), json!({ "metadata": { "labels": { "app": "y" } } }));
    bench.settle();
    assert_eq!(parents(&bench).as_deref(), Some("yes-2.web"));
    bench.api.remove(&pod("yes-2"));
    bench.settle();
    assert_eq!(parents(&bench).as_deref(), Some(""));
    for name in ["lb", "vm", "plain"] {
        bench.api.delete(&vip(name), 0);
    }
    bench.settle();
    for name in ["lb.web", "lb", "vm.", "plain"] {
        assert!(port(&bench, name).is_none(), "{name} is left over");
    }
    assert!(bench.core().quiet());
}

#[test]
fn a_pod_carries_a_vip_and_gives_it_back() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    add(&mut bench, "v", json!({ "namespace": "web" }));
    bench.settle();
    let told = status(&bench, "v");
    let label = |bench: &Bench| {
        bench.api.get(&vip("v")).unwrap()["metadata"]["labels"]["ovn.kubernetes.io/ip_reserved"].clone()
    };
    for round in 0..3 {
        let name = format!("a-{round}");
        bench.add_pod_with(&name, "n-1", json!({ "ovn.kubernetes.io/vip": "v" }));
        bench.settle();
        assert_eq!(bench.api.annotation(&pod(&name), IP), told["v4ip"].as_str());
        assert_eq!(bench.api.annotation(&pod(&name), "ovn.kubernetes.io/mac_address"), told["mac"].as_str());
        assert_eq!(label(&bench), format!("{name}.web"));
        // A second one has to wait, and says for whom.
        bench.add_pod_with("second", "n-1", json!({ "ovn.kubernetes.io/vip": "v" }));
        restart(&mut bench, Families::V4);
        bench.pass(2_000);
        assert_eq!(bench.api.annotation(&pod("second"), IP), None);
        let events = bench.processes.iter().flat_map(|p| &p.events);
        let said: Vec<_> = events.filter(|e| e.object == pod("second")).collect();
        assert!(said.iter().any(|event| event.message.contains(&format!("{name}.web"))), "{said:?}");
        bench.api.remove(&pod("second"));
        bench.api.remove(&pod(&name));
        bench.settle();
        assert_eq!(label(&bench), "", "round {round}");
        assert_eq!(status(&bench, "v"), told);
    }
    // Nobody draws it meanwhile.
    bench.add_pod_with("thief", "n-1", json!({ IP: told["v4ip"] }));
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("thief"), "ovn.kubernetes.io/allocated"), None);
    assert!(bench.core().quiet());
}

#[rstest]
#[case(json!({ "v4ip": "10.99.0.1" }), "10.99.0.1")]
#[case(json!({ "v4ip": "fd00::1" }), "no IPv4 address")]
#[case(json!({ "macAddress": "x" }), "spec.macAddress")]
#[case(json!({ "type": "odd" }), "switch_lb_vip")]
#[case(json!({ "v6ip": "FD00::1" }), "lower case")]
fn what_cannot_be_is_said(#[case] spec: Value, #[case] needle: &str) {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    add(&mut bench, "v", spec);
    bench.add_pod_with("a-0", "n-1", json!({ "ovn.kubernetes.io/vip": "v" }));
    bench.add_pod_with("a-1", "n-1", json!({ "ovn.kubernetes.io/vip": "missing" }));
    bench.settle();
    let (state, _, message) = super::condition(&bench, &vip("v"), "Ready").unwrap();
    assert_eq!(state, "False");
    assert!(message.contains(needle), "{message}");
    for (name, word) in [("a-0", "Vip v"), ("a-1", "Vip missing does not exist")] {
        let events = bench.processes.iter().flat_map(|p| &p.events);
        let said: Vec<_> = events.filter(|e| e.object == pod(name)).collect();
        assert!(said.iter().any(|event| event.message.contains(word)), "{said:?}");
    }
    let good = json!({ "v4ip": null, "v6ip": null, "macAddress": null, "type": null });
    bench.api.edit(&vip("v"), json!({ "spec": good }));
    bench.settle();
    assert_eq!(super::condition(&bench, &vip("v"), "Ready").unwrap().0, "True");
    assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/routed"), Some("true"), "heals");
}

/// What a Vip has once it keeps: a spec that asks for something else is answered, and
/// changes nothing, not even after a restart.
#[rstest]
#[case(json!({ "v4ip": "10.16.7.7" }), "spec.v4ip is 10.16.7.7")]
#[case(json!({ "v6ip": "fd00::7" }), "spec.v6ip is fd00::7")]
#[case(json!({ "macAddress": "02:00:00:00:00:99" }), "spec.macAddress")]
#[case(json!({ "subnet": "other" }), "spec.subnet is other")]
fn addresses_stay_as_they_were_given(#[case] change: Value, #[case] said: &str) {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let other = json!({ "spec": { "cidrBlock": "10.60.0.0/24" } });
    bench.api.create(&cluster(Kind::Subnet, "other"), other).unwrap();
    add(&mut bench, "v", json!({ "namespace": "web", "type": "kube_host_vm_vip" }));
    bench.settle();
    let (told, row) = (status(&bench, "v"), port(&bench, "v.web"));
    let addresses = |told: &Value| ["v4ip", "v6ip", "mac"].map(|key| told[key].clone());
    bench.api.edit(&vip("v"), json!({ "spec": change }));
    bench.settle();
    for _ in 0..2 {
        let (state, reason, message) = super::condition(&bench, &vip("v"), "Error").unwrap();
        assert_eq!((&*state, &*reason), ("True", "AddressImmutable"));
        assert!(message.contains(said) && message.contains("delete the Vip"), "{message}");
        assert_eq!(super::condition(&bench, &vip("v"), "Ready").unwrap().0, "True", "it works");
        let events = bench.processes.iter().flat_map(|p| &p.events);
        assert!(events.into_iter().any(|e| e.object == vip("v") && &*e.reason == "AddressImmutable"));
        assert_eq!(addresses(&status(&bench, "v")), addresses(&told));
        assert_eq!(port(&bench, "v.web"), row);
        restart(&mut bench, Families::V4);
        bench.pass(2_000);
    }
    let back = json!({ "v4ip": told["v4ip"], "v6ip": null, "macAddress": null, "subnet": "ovn-default" });
    bench.api.edit(&vip("v"), json!({ "spec": back }));
    bench.settle();
    assert_eq!(super::condition(&bench, &vip("v"), "Error").unwrap().0, "False");
}

#[test]
fn subnets_to_attach_are_named_and_the_vip_is_served() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    add(&mut bench, "lb", json!({ "type": "switch_lb_vip", "attachSubnets": ["ovn-default"] }));
    add(&mut bench, "plain", json!({ "attachSubnets": ["ovn-default"] }));
    bench.settle();
    for (name, word) in [("lb", "load balancers"), ("plain", "switch_lb_vip only")] {
        let (state, _, message) = super::condition(&bench, &vip(name), "Ready").unwrap();
        assert!(state == "True" && message.contains("attachSubnets") && message.contains(word), "{message}");
    }
    bench.api.edit(&vip("plain"), json!({ "spec": { "attachSubnets": [] } }));
    bench.settle();
    assert_eq!(super::condition(&bench, &vip("plain"), "Ready").unwrap().2, "");
}
