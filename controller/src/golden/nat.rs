//! IptablesEIPs: gateways are not acted on, and yet nobody else gets their addresses
//! (contract §3.7, §5.7, §8.3).

use serde_json::{Value, json};

use super::networks::{add, status, subnet};
use super::{bench, cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::objects::IPTABLES_EIPS;
use crate::sim::Bench;

fn eip(name: &str) -> ObjectRef {
    cluster(Kind::Other(IPTABLES_EIPS), name)
}

/// As Kube-OVN leaves one.
fn given(ip: &str, subnet: &str) -> Value {
    json!({
        "metadata": { "finalizers": ["kubeovn.io/kube-ovn-controller"],
            "labels": { "ovn.kubernetes.io/subnet": subnet } },
        "spec": { "v4ip": ip, "macAddress": "02:00:00:00:00:e1", "natGwDp": "gw", "externalSubnet": subnet },
        "status": { "ready": true, "ip": ip },
    })
}

/// A network of macvlan interfaces with our addresses, as gateways have it.
fn network(bench: &mut Bench, name: &str, block: &str) {
    let config = json!({ "type": "macvlan", "ipam": { "type": "kube-ovn" } }).to_string();
    let nad = ObjectRef::namespaced(Kind::Nad, "web", name);
    bench.api.create(&nad, json!({ "spec": { "config": config } })).unwrap();
    let spec = json!({ "cidrBlock": block, "provider": format!("{name}.web") });
    bench.api.create(&subnet(name), json!({ "spec": spec })).unwrap();
}

fn add_pod(bench: &mut Bench, name: &str, network: &str, ip: Option<&str>) {
    let mut wants = json!({ "k8s.v1.cni.cncf.io/networks": network });
    if let Some(ip) = ip {
        wants[format!("{network}.web.kubernetes.io/ip_address")] = ip.into();
    }
    bench.add_pod_with(name, "n-1", wants);
    bench.settle();
}

fn address(bench: &Bench, name: &str, network: &str) -> String {
    let object = pod(name);
    let of = |key: &str| bench.api.annotation(&object, &format!("{network}.web.kubernetes.io/{key}"));
    let given = of("allocated").and_then(|_| of("ip_address"));
    given.unwrap_or_default().to_owned()
}

/// Whether the controller is there before or comes after, and once more after a restart.
#[test]
fn an_address_of_an_iptables_eip_is_nobody_elses() {
    for first in [true, false] {
        let mut bench = bench(Families::V4);
        if first {
            lead(&mut bench, Families::V4);
        }
        network(&mut bench, "wan", "172.20.0.0/24");
        bench.api.create(&eip("e-1"), given("172.20.0.2", "wan")).unwrap();
        // Only asked for, in a subnet that its label does not name yet.
        let asked = json!({ "spec": { "v4ip": "172.20.0.3", "externalSubnet": "wan" } });
        bench.api.create(&eip("e-2"), asked).unwrap();
        // One that Kube-OVN has not come to: none is chosen for it.
        bench.api.create(&eip("e-3"), json!({ "spec": { "externalSubnet": "wan" } })).unwrap();
        if !first {
            lead(&mut bench, Families::V4);
        }
        bench.settle();
        for round in 0..2 {
            let (dynamic, fixed) = (format!("d-{round}"), format!("f-{round}"));
            add_pod(&mut bench, &dynamic, "wan", None);
            assert_eq!(address(&bench, &dynamic, "wan"), format!("172.20.0.{}", 4 + round), "first: {first}");
            add_pod(&mut bench, &fixed, "wan", Some("172.20.0.2"));
            assert_eq!(address(&bench, &fixed, "wan"), "");
            assert!(bench.warned(&pod(&fixed), &["172.20.0.2", "IptablesEIP e-1"]), "{round}");
            let used = &bench.api.get(&subnet("wan")).unwrap()["status"]["v4usingIPs"];
            assert_eq!(*used, json!(3 + round), "the two and the pods");
            for (name, reason) in
                [("e-1", "AddressReserved"), ("e-2", "AddressReserved"), ("e-3", "NoAddress")]
            {
                assert_eq!(status(&bench, &eip(name), "Error"), format!("False {reason} "), "{name}");
            }
            assert_eq!(bench.api.get(&eip("e-1")).unwrap()["spec"], given("172.20.0.2", "wan")["spec"]);
            bench.verify();
            restart(&mut bench, Families::V4);
        }
        // It goes, and whoever asked for its address has it.
        bench.api.remove(&eip("e-1"));
        bench.settle();
        assert_eq!(address(&bench, "f-0", "wan") + &address(&bench, "f-1", "wan"), "172.20.0.2");
        bench.verify();
    }
}

/// Whoever was there first keeps it; the other is told who that is, and heals.
#[test]
fn of_a_pod_and_an_iptables_eip_the_first_keeps_the_address() {
    for gone in [true, false] {
        let mut bench = bench(Families::V4);
        lead(&mut bench, Families::V4);
        network(&mut bench, "wan", "172.20.0.0/24");
        add_pod(&mut bench, "a-0", "wan", Some("172.20.0.9"));
        bench.api.create(&eip("e-1"), given("172.20.0.9", "wan")).unwrap();
        bench.settle();
        for _ in 0..2 {
            assert_eq!(address(&bench, "a-0", "wan"), "172.20.0.9");
            let text = status(&bench, &eip("e-1"), "Error");
            assert!(
                text.starts_with("True AcquireAddressFailed") && text.contains("a-0.web.wan.web"),
                "{text}"
            );
            assert!(bench.warned(&eip("e-1"), &["172.20.0.9", "a-0.web.wan.web"]));
            restart(&mut bench, Families::V4);
        }
        if gone {
            bench.api.remove(&pod("a-0"));
        } else {
            bench.api.edit(
                &eip("e-1"),
                json!({ "spec": { "v4ip": "172.20.0.8" }, "status": { "ip": "172.20.0.8" } }),
            );
        }
        bench.settle();
        assert_eq!(status(&bench, &eip("e-1"), "Error"), "False AddressReserved ");
        let ip = if gone { "172.20.0.9" } else { "172.20.0.8" };
        add_pod(&mut bench, "b-0", "wan", Some(ip));
        assert!(bench.warned(&pod("b-0"), &[ip, "IptablesEIP e-1"]));
        // What it has no more is free at once.
        bench
            .api
            .edit(&eip("e-1"), json!({ "spec": { "v4ip": "172.20.0.7" }, "status": { "ip": "172.20.0.7" } }));
        bench.settle();
        assert_eq!(address(&bench, "b-0", "wan"), ip);
        bench.verify();
    }
}

/// A deletion of the subnet waits for it, says so, and goes on when it is gone; in every order of
/// the three.
#[test]
fn a_subnet_waits_for_its_iptables_eips() {
    let mut bench = bench(Families::V4);
    lead(&mut bench, Families::V4);
    // The label counts once there is an address; the default subnet where none is named.
    bench.api.create(&eip("e-1"), given("172.20.0.2", "ovn-vpc-external-network")).unwrap();
    bench.api.edit(&eip("e-1"), json!({ "spec": { "externalSubnet": "" } }));
    bench.settle();
    network(&mut bench, "ovn-vpc-external-network", "172.20.0.0/24");
    bench.settle();
    let network = subnet("ovn-vpc-external-network");
    assert_eq!(status(&bench, &eip("e-1"), "Error"), "False AddressReserved ");
    bench.api.delete(&network, 0);
    bench.pass(5_000);
    let text = status(&bench, &network, "Ready");
    assert!(text.starts_with("False AddressesInUse") && text.contains("IptablesEIP e-1"), "{text}");
    restart(&mut bench, Families::V4);
    bench.pass(5_000);
    assert!(bench.api.get(&network).is_some());
    bench.api.remove(&eip("e-1"));
    bench.pass(5_000);
    assert!(bench.api.get(&network).is_none());
    bench.verify();
}

/// Addresses that can't be: each says what is wrong with it, and nothing else suffers.
#[test]
fn what_an_iptables_eip_says_is_checked() {
    let mut bench = bench(Families::Dual);
    lead(&mut bench, Families::Dual);
    network(&mut bench, "wan", "172.20.0.0/24,fd20::/64");
    bench.settle();
    for (name, body, word) in [
        ("text", json!({ "spec": { "externalSubnet": "wan", "v4ip": "x" } }), "spec.v4ip"),
        ("other", json!({ "spec": { "externalSubnet": "wan", "v6ip": "172.20.0.4" } }), "spec.v6ip"),
        ("given", json!({ "spec": { "externalSubnet": "wan" }, "status": { "ip": "y" } }), "status.ip"),
        ("far", json!({ "spec": { "externalSubnet": "wan", "v4ip": "10.9.9.9" } }), "10.9.9.9"),
        ("gateway", json!({ "spec": { "externalSubnet": "wan", "v4ip": "172.20.0.1" } }), "172.20.0.1"),
    ] {
        bench.api.create(&eip(name), body).unwrap();
        bench.settle();
        let text = status(&bench, &eip(name), "Error");
        assert!(text.starts_with("True") && text.contains(word), "{name}: {text}");
        bench.api.remove(&eip(name));
    }
    // Of a dual-stack subnet it has what it says, in one family or both.
    bench.api.create(&eip("one"), given("172.20.0.2", "wan")).unwrap();
    add(&mut bench, &eip("six"), json!({ "externalSubnet": "wan", "v6ip": "fd20::2" }));
    add_pod(&mut bench, "a-0", "wan", None);
    assert_eq!(address(&bench, "a-0", "wan"), "172.20.0.3,fd20::3");
    let both = json!({ "v6ip": "fd20::9" });
    bench.api.edit(&eip("one"), json!({ "spec": both }));
    bench.settle();
    add_pod(&mut bench, "b-0", "wan", Some("fd20::9"));
    assert!(bench.warned(&pod("b-0"), &["fd20::9", "IptablesEIP one"]));
    bench.verify();
}
