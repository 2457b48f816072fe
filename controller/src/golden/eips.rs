//! OvnEips, and the external network that flags and Kube-OVN's ConfigMap name.

use std::collections::BTreeMap;

use ovsdb::{Operation, Value as Column};
use serde_json::json;

use super::external::{NETWORK, eip, label, made, priorities};
use super::networks::{add, all_rows, names, status, subnet, two_nodes, vpc};
use super::{cluster, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

/// An address that somebody has; a name that is taken; a type that does not exist. Each says
/// who or what, and heals.
#[test]
fn ovneips_name_their_opponent() {
    let mut bench = made();
    let said = |bench: &Bench, name: &str| status(bench, &eip(name), "Ready");
    add(&mut bench, &eip("second"), json!({ "externalSubnet": "wan", "v4Ip": "172.18.0.10" }));
    let text = said(&bench, "second");
    assert!(
        text.starts_with("False") && text.contains("OvnEip blue-wan") && text.contains("172.18.0.10"),
        "{text}"
    );
    bench.api.edit(&eip("second"), json!({ "spec": { "v4Ip": "172.18.0.200" } }));
    bench.settle();
    assert!(said(&bench, "second").starts_with("True"), "{}", said(&bench, "second"));
    let second = bench.api.get(&eip("second")).unwrap();
    assert_eq!(
        (&second["status"]["v4Ip"], &second["status"]["ready"]),
        (&json!("172.18.0.200"), &json!(true))
    );
    assert_eq!(second["metadata"]["labels"]["ovn.kubernetes.io/ovn_eip_type"], json!("nat"));
    // What it has it keeps.
    bench.api.edit(&eip("second"), json!({ "spec": { "v4Ip": "172.18.0.201" } }));
    bench.settle();
    let text = status(&bench, &eip("second"), "Error");
    assert!(text.starts_with("True AddressImmutable") && text.contains("172.18.0.200"), "{text}");
    for (name, spec, word) in [
        ("odd", json!({ "externalSubnet": "wan", "type": "odd" }), "odd"),
        ("far", json!({ "externalSubnet": "wan", "v4Ip": "10.0.0.1" }), "10.0.0.1"),
        ("text", json!({ "externalSubnet": "wan", "v4Ip": "x" }), "v4Ip"),
        ("lost", json!({ "externalSubnet": "gone" }), "gone"),
        ("overlay", json!({ "externalSubnet": "b-1" }), "b-1"),
        ("none", json!({}), "external"),
        ("mac", json!({ "externalSubnet": "wan", "macAddress": "x" }), "macAddress"),
    ] {
        add(&mut bench, &eip(name), spec);
        let text = said(&bench, name);
        assert!(text.starts_with("False") && text.contains(word), "{name}: {text}");
        bench.api.delete(&eip(name), 0);
        bench.settle();
        assert!(bench.api.get(&eip(name)).is_none(), "{name}");
    }
    // The name of a router's port that another OvnEip has.
    add(&mut bench, &eip("red-wan"), json!({ "externalSubnet": "wan" }));
    add(&mut bench, &vpc("red"), json!({ "extraExternalSubnets": ["wan"] }));
    let text = status(&bench, &vpc("red"), "Ready");
    assert!(text.starts_with("False") && text.contains("OvnEip red-wan") && text.contains("nat"), "{text}");
    bench.api.delete(&eip("red-wan"), 0);
    bench.settle();
    assert!(status(&bench, &vpc("red"), "Ready").starts_with("True"));
}

/// A Vip that goes leaves the pod of its name what that wants.
#[test]
fn a_vip_that_goes_takes_nothing_from_the_pod_of_its_name() {
    let mut bench = made();
    let vip = cluster(Kind::Vip, "a-1");
    bench.add_pod("a-1", "n-1");
    bench.settle();
    add(&mut bench, &vip, json!({ "subnet": "ovn-default", "namespace": "web", "v4ip": "10.16.7.7" }));
    assert!(status(&bench, &vip, "Ready").starts_with("False NameInUse"));
    bench.api.delete(&vip, 0);
    bench.settle();
    bench.verify();
}

/// The port of a pod comes before one of that name that an OvnEip or a Vip would have, whichever
/// was there first; who gave way says so, and gets its own when the pod is gone.
#[test]
fn a_name_that_a_pod_has_is_free_when_the_pod_goes() {
    for (pod_first, again) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut bench = made();
        let (eip, vip) = (eip("a-0.web"), cluster(Kind::Vip, "a-1"));
        let others = |bench: &mut Bench| {
            add(bench, &eip, json!({ "externalSubnet": "wan", "type": "lsp", "v4Ip": "172.18.0.77" }));
            add(bench, &vip, json!({ "subnet": "ovn-default", "namespace": "web", "v4ip": "10.16.7.7" }));
        };
        let pods = |bench: &mut Bench| {
            ["a-0", "a-1"].iter().for_each(|name| bench.add_pod(name, "n-1"));
            bench.settle();
        };
        if pod_first {
            pods(&mut bench);
            others(&mut bench);
        } else {
            others(&mut bench);
            pods(&mut bench);
        }
        for name in ["a-0", "a-1"] {
            let routed = bench.api.annotation(&super::pod(name), "ovn.kubernetes.io/routed");
            assert_eq!(routed, Some("true"), "{name}, the pods first: {pod_first}");
        }
        if again {
            restart(&mut bench, Families::V4);
        }
        for object in [&eip, &vip] {
            let text = status(&bench, object, "Ready");
            assert!(text.starts_with("False NameInUse"), "{object}: {text}, the pods first: {pod_first}");
        }
        bench.verify();
        bench.api.remove(&super::pod("a-0"));
        bench.api.remove(&super::pod("a-1"));
        bench.settle();
        for object in [&eip, &vip] {
            let text = status(&bench, object, "Ready");
            assert!(text.starts_with("True"), "{object}: {text}, the pods first: {pod_first}");
        }
        let replica = bench.db.replica();
        let ports = replica.table("Logical_Switch_Port").unwrap();
        let port = ports.find_one("name", &ovsdb::Value::string("a-0.web")).unwrap();
        assert!(format!("{:?}", port.get("addresses")).contains("172.18.0.77"), "{port:?}");
        assert_eq!(bench.api.get(&vip).unwrap()["status"]["v4ip"], "10.16.7.7");
        let left: Vec<_> =
            bench.api.names(Kind::Ip).into_iter().filter(|ip| ip.name.ends_with(".web")).collect();
        assert_eq!(left, Vec::<ObjectRef>::new(), "records of the pods are gone");
        bench.verify();
    }
}

/// An OvnEip goes when nothing uses it any more: a router's port, NAT rules.
#[test]
fn an_ovneip_in_use_waits() {
    let mut bench = made();
    bench.api.delete(&eip("blue-wan"), 0);
    bench.settle();
    let text = status(&bench, &eip("blue-wan"), "Ready");
    assert!(text.starts_with("False InUse") && text.contains("Vpc blue"), "{text}");
    assert!(names(&bench, "Logical_Router_Port").contains(&"blue-wan".to_owned()));
    bench.api.edit(&vpc("blue"), json!({ "spec": { "extraExternalSubnets": [], "enableBfd": false } }));
    bench.settle();
    assert!(bench.api.get(&eip("blue-wan")).is_none());
    add(&mut bench, &eip("fip"), json!({ "externalSubnet": "wan" }));
    let rule = cluster(Kind::Other("ovn-fips"), "web");
    add(&mut bench, &rule, json!({ "ovnEip": "fip" }));
    bench.api.delete(&eip("fip"), 0);
    bench.settle();
    let text = status(&bench, &eip("fip"), "Ready");
    assert!(text.starts_with("False InUse") && text.contains("ovn-fips/web"), "{text}");
    bench.api.remove(&rule);
    bench.settle();
    assert!(bench.api.get(&eip("fip")).is_none());
    // One that nobody asks for yet is nobody's to delete.
    add(
        &mut bench,
        &eip("red-wan"),
        json!({ "externalSubnet": "wan", "type": "lrp", "v4Ip": "172.18.0.99" }),
    );
    assert!(status(&bench, &eip("red-wan"), "Ready").starts_with("False NotUsed"));
    restart(&mut bench, Families::V4);
    assert!(bench.api.get(&eip("red-wan")).is_some());
    add(&mut bench, &vpc("red"), json!({ "extraExternalSubnets": ["wan"] }));
    let replica = bench.db.replica();
    let port =
        replica.table("Logical_Router_Port").unwrap().rows().find(|row| row.str("name") == Some("red-wan"));
    assert!(format!("{:?}", port.unwrap().get("networks")).contains("172.18.0.99/24"), "its address counts");
}

/// The network of the flags needs no Vlan. A Subnet of that name is an overlay as long as
/// nobody names it as external network.
#[test]
fn the_network_of_the_flags() {
    let mut bench = two_nodes();
    label(&mut bench, &["n-1"]);
    let before = all_rows(&bench);
    add(&mut bench, &subnet("external"), json!({ "cidrBlock": "172.19.0.0/24" }));
    let overlay = all_rows(&bench);
    add(&mut bench, &vpc("blue"), json!({ "enableExternal": true }));
    let ready = status(&bench, &vpc("blue"), "Ready");
    assert!(ready.starts_with("True"), "{ready}");
    assert_eq!(bench.api.get(&vpc("blue")).unwrap()["status"]["enableExternal"], json!(true));
    let ports = names(&bench, "Logical_Switch_Port");
    let here: Vec<_> = ports.iter().filter(|name| name.contains("external")).collect();
    assert_eq!(here, ["external-blue", "localnet.external"], "its gateway is a router outside");
    assert!(all_rows(&bench).contains("network_name"));
    // Off again: an overlay as before, then nothing.
    bench.api.delete(&vpc("blue"), 0);
    bench.settle();
    let blind =
        |text: &str| text.lines().filter(|line| !line.contains("mac = ")).collect::<Vec<_>>().join("\n");
    assert_eq!(blind(&all_rows(&bench)), blind(&overlay));
    restart(&mut bench, Families::V4);
    bench.api.delete(&subnet("external"), 0);
    bench.settle();
    assert_eq!(all_rows(&bench), before);
}

/// What follows from Kube-OVN's ConfigMap in the default VPC is another feature's, and stays
/// beside what Vpcs ask for, until the default VPC itself asks.
#[test]
fn rows_of_the_configmap_stay() {
    let mut bench = two_nodes();
    label(&mut bench, &["n-1"]);
    let marks = |pairs: &[(&str, &str)]| Column::string_map(pairs.iter().copied());
    let router = bench.db.replica().table("Logical_Router").unwrap().rows().next().unwrap().uuid;
    let [port, chassis, switch, pair] = [77, 78, 79, 80].map(ovsdb::Uuid::from_u128);
    bench.transact(&[
        Operation::insert("Gateway_Chassis")
            .uuid(chassis)
            .column("name", "ovn-cluster-external-chassis-n-2")
            .column("chassis_name", "chassis-n-2")
            .build(),
        Operation::insert("Logical_Router_Port")
            .uuid(port)
            .column("name", "ovn-cluster-external")
            .column("mac", "02:00:00:00:00:aa")
            .column("networks", Column::strings(["172.19.0.9/24"]))
            .column("gateway_chassis", Column::uuids([chassis]))
            .column("external_ids", marks(&[("vendor", "kube-ovn"), ("lr", "ovn-cluster")]))
            .build(),
        Operation::mutate("Logical_Router")
            .by_uuid(router)
            .insert_set("ports", Column::uuids([port]))
            .build(),
        Operation::insert("Logical_Switch_Port")
            .uuid(pair)
            .column("name", "external-ovn-cluster")
            .column("type", "router")
            .column("options", marks(&[("router-port", "ovn-cluster-external")]))
            .column("external_ids", marks(&[("vendor", "kube-ovn"), ("ls", "external")]))
            .build(),
        Operation::insert("Logical_Switch")
            .uuid(switch)
            .column("name", "external")
            .column("ports", Column::uuids([pair]))
            .column("external_ids", marks(&[("vendor", "kube-ovn")]))
            .build(),
    ]);
    bench.settle();
    let stays = |bench: &Bench| {
        let replica = bench.db.replica();
        let row = |table: &str, uuid| replica.row(table, uuid).is_some();
        assert!(row("Logical_Router_Port", &port) && row("Gateway_Chassis", &chassis));
        assert!(row("Logical_Switch_Port", &pair) && row("Logical_Switch", &switch));
        let kept = replica.row("Logical_Router_Port", &port).unwrap();
        assert!(format!("{:?}", kept.get("networks")).contains("172.19.0.9/24"));
    };
    stays(&bench);
    bench.api.create(&cluster(NETWORK, "net1"), json!({ "spec": {} })).unwrap();
    add(&mut bench, &cluster(Kind::Vlan, "v-7"), json!({ "id": 7, "provider": "net1" }));
    add(&mut bench, &subnet("external"), json!({ "cidrBlock": "172.19.0.0/24", "vlan": "v-7" }));
    add(&mut bench, &vpc("blue"), json!({ "enableExternal": true }));
    let ready = status(&bench, &vpc("blue"), "Ready");
    assert!(ready.starts_with("True"), "{ready}");
    stays(&bench);
    bench.api.delete(&vpc("blue"), 0);
    bench.settle();
    assert!(!names(&bench, "Logical_Switch_Port").contains(&"external-blue".to_owned()));
    stays(&bench);
    // The default VPC asks: then the port is the Vpc's, and goes with its wish.
    bench.api.edit(&vpc("ovn-cluster"), json!({ "spec": { "enableExternal": true } }));
    bench.settle();
    assert_eq!(priorities(&bench), BTreeMap::from([("chassis-n-1".to_owned(), 100)]));
    bench.api.edit(&vpc("ovn-cluster"), json!({ "spec": { "enableExternal": false } }));
    bench.settle();
    assert!(!names(&bench, "Logical_Router_Port").contains(&"ovn-cluster-external".to_owned()));
    assert_eq!(bench.api.names(Kind::OvnEip), Vec::<ObjectRef>::new());
}
