//! Who enters private subnets, and what a subnet keeps for itself, through the whole
//! pipeline.

use rstest::rstest;
use serde_json::json;

use super::networks::{add, all_rows, names, status, subnet, two_nodes, vpc};
use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::Kind;
use crate::sim::Bench;

/// Nodes enter private subnets by their own addresses: one set for all of them, which
/// follows the nodes, and is there only while a private subnet needs it.
#[rstest]
#[case(Families::V4, &["weir_nodes_v4"])]
#[case(Families::V6, &["weir_nodes_v6"])]
#[case(Families::Dual, &["weir_nodes_v4", "weir_nodes_v6"])]
fn nodes_enter_private_subnets_by_one_set_of_their_addresses(
    #[case] families: Families,
    #[case] sets: &[&str],
) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    let before = all_rows(&bench);
    let spec = |n: u8| {
        let cidr = families.pick(&format!("10.6{n}.0.0/16"), &format!("fd00:6{n}::/64"));
        json!({ "cidrBlock": cidr, "private": true })
    };
    add(&mut bench, &subnet("s"), spec(0));
    assert_eq!(names(&bench, "Address_Set"), sets);
    let content = |bench: &Bench| {
        let replica = bench.db.replica();
        let rows = replica.table("Address_Set").unwrap().rows();
        let mut all: Vec<String> =
            rows.flat_map(|row| row.get("addresses").unwrap().set_strings()).map(str::to_owned).collect();
        all.sort();
        all.join(",")
    };
    assert_eq!(content(&bench), families.pick("192.0.2.11", "2001:db8::11"));
    // Wall, way out, and for each family itself, join and nodes.
    let acls = |bench: &Bench| bench.db.replica().table("ACL").unwrap().len();
    let one = acls(&bench);
    assert_eq!(one, 2 + 3 * sets.len());
    // A node costs an element of the set, no row and no other unit of subnets.
    let rows = bench.db.replica().table("ACL").unwrap().len();
    super::add_node(&mut bench, families, "n-2", 12);
    bench.settle();
    assert_eq!(bench.db.replica().table("ACL").unwrap().len(), rows);
    assert!(content(&bench).contains(families.pick("192.0.2.12", "2001:db8::12").split(',').next().unwrap()));
    bench.api.remove(&cluster(Kind::Node, "n-2"));
    add(&mut bench, &subnet("t"), spec(1));
    assert_eq!(
        (names(&bench, "Address_Set"), acls(&bench)),
        (sets.iter().map(ToString::to_string).collect(), 2 * one)
    );
    assert_eq!(content(&bench), families.pick("192.0.2.11", "2001:db8::11"));
    for name in ["s", "t"] {
        bench.api.edit(&subnet(name), json!({ "spec": { "private": false } }));
        bench.settle();
        bench.api.delete(&subnet(name), 0);
        bench.settle();
    }
    assert_eq!(all_rows(&bench), before);
    // A custom VPC's pods may have a node's address: no set for it.
    add(&mut bench, &vpc("blue"), json!({}));
    let mut spec = spec(2);
    spec["vpc"] = json!("blue");
    add(&mut bench, &subnet("b"), spec);
    assert!(names(&bench, "Address_Set").is_empty());
}

/// Virtual addresses are nobody's own: none is drawn, none can be asked for, and one
/// that a pod has already becomes virtual when that pod is gone.
#[test]
fn virtual_addresses_of_a_subnet_are_reserved() {
    let mut bench = two_nodes();
    let spec =
        json!({ "cidrBlock": "10.60.0.0/29", "namespaces": ["web"], "vips": ["10.60.0.2", "10.60.0.4"] });
    add(&mut bench, &subnet("s"), spec);
    let ip = |bench: &Bench, name: &str| {
        bench.api.annotation(&pod(name), "ovn.kubernetes.io/ip_address").unwrap_or_default().to_owned()
    };
    for name in ["a", "b"] {
        bench.add_pod(name, "n-1");
        bench.settle();
    }
    assert_eq!((&*ip(&bench, "a"), &*ip(&bench, "b")), ("10.60.0.3", "10.60.0.5"));
    bench.add_pod_with("c", "n-1", json!({ "ovn.kubernetes.io/ip_address": "10.60.0.4" }));
    bench.settle();
    let said = bench.processes[0].events.iter().find(|event| event.object == pod("c")).expect("an event");
    assert!(said.message.contains("10.60.0.4") && said.message.contains("spec.vips"), "{}", said.message);
    let ports = |bench: &Bench| {
        let all = names(bench, "Logical_Switch_Port").into_iter();
        all.filter(|name| name.starts_with("s-vip-")).collect::<Vec<_>>()
    };
    assert_eq!(ports(&bench), ["s-vip-10.60.0.2", "s-vip-10.60.0.4"]);
    assert!(status(&bench, &subnet("s"), "Ready").starts_with("True"));
    // The waiting pod gets it once it is no virtual one any more; a's address becomes one.
    bench.api.edit(&subnet("s"), json!({ "spec": { "vips": ["10.60.0.2", "10.60.0.3"] } }));
    bench.settle();
    bench.pass(5_000);
    assert_eq!((&*ip(&bench, "c"), &*ip(&bench, "a")), ("10.60.0.4", "10.60.0.3"));
    assert_eq!(ports(&bench), ["s-vip-10.60.0.2"], "a answers for it");
    let said = status(&bench, &subnet("s"), "Validated");
    assert!(said.starts_with("False") && said.contains("10.60.0.3") && said.contains("a.web"), "{said}");
    restart(&mut bench, Families::V4);
    bench.pass(5_000);
    assert_eq!(ip(&bench, "a"), "10.60.0.3", "a running pod keeps what it has");
    assert_eq!(ports(&bench), ["s-vip-10.60.0.2"]);
    assert!(status(&bench, &subnet("s"), "Validated").starts_with("False"));
    bench.api.delete(&pod("a"), 0);
    bench.settle();
    bench.pass(5_000);
    assert_eq!(ports(&bench), ["s-vip-10.60.0.2", "s-vip-10.60.0.3"]);
    assert!(status(&bench, &subnet("s"), "Validated").starts_with("True"));
    // What is left: one address.
    for name in ["d", "e"] {
        bench.add_pod(name, "n-1");
    }
    bench.settle();
    let both = [ip(&bench, "d"), ip(&bench, "e")];
    assert!(both.contains(&"10.60.0.6".to_owned()) && both.contains(&String::new()), "{both:?}");
}
