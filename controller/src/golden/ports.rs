//! What pods ask of their port beside an address (contract §2.1), through the whole
//! pipeline: it comes, changes and goes with the annotation.

use rstest::rstest;
use serde_json::json;

use super::requests::warnings;
use super::{lead, pod};
use crate::compile::tests::fake::Families;
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";

fn named(bench: &Bench, table: &str, name: &str) -> Option<std::sync::Arc<ovsdb::Row>> {
    let replica = bench.db.replica();
    replica.table(table).unwrap().find_one("name", &ovsdb::Value::string(name)).cloned()
}

/// Policies of single pods: match and next hop.
fn own_ways(bench: &Bench) -> Vec<(String, String)> {
    let replica = bench.db.replica();
    let rows = replica.table("Logical_Router_Policy").unwrap().rows();
    let mut ways: Vec<_> = rows
        .filter(|row| row.i64("priority") == Some(29250))
        .map(|row| {
            let hops: Vec<&str> = row.get("nexthops").unwrap().set_strings().collect();
            (row.str("match").unwrap_or_default().to_owned(), hops.join(","))
        })
        .collect();
    ways.sort();
    ways
}

fn members(bench: &Bench, group: &str) -> usize {
    named(bench, "Port_Group", group).unwrap().get("ports").unwrap().set_uuids().count()
}

fn annotate(bench: &mut Bench, key: &str, value: serde_json::Value) {
    bench.api.edit(&pod("a-0"), json!({ "metadata": { "annotations": { key: value } } }));
    bench.settle();
}

const NORTH: &str = "ovn.kubernetes.io/north_gateway";

#[test]
fn a_next_hop_of_the_pods_own_comes_changes_and_goes() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    bench.add_pod_with("a-0", "n-1", json!({ IP: "10.16.9.9", NORTH: "10.16.0.77" }));
    bench.settle();
    let way = |hop: &str| vec![("ip4.src == 10.16.9.9".to_owned(), hop.to_owned())];
    assert_eq!(own_ways(&bench), way("10.16.0.77"));
    assert_eq!((members(&bench, "ovn.default.n.1"), members(&bench, "node.n.1")), (0, 1));
    annotate(&mut bench, NORTH, json!("10.16.0.78"));
    assert_eq!(own_ways(&bench), way("10.16.0.78"));
    // One that can't be read: the pod leaves by its node, and is told.
    annotate(&mut bench, NORTH, json!("there"));
    assert_eq!((own_ways(&bench), members(&bench, "ovn.default.n.1")), (vec![], 1));
    assert!(warnings(&bench, "a-0").iter().any(|(_, message)| message.contains("north_gateway")));
    annotate(&mut bench, NORTH, json!("10.16.0.79"));
    super::restart(&mut bench, Families::V4);
    assert_eq!((own_ways(&bench), members(&bench, "ovn.default.n.1")), (way("10.16.0.79"), 0));
    annotate(&mut bench, NORTH, json!(null));
    assert_eq!((own_ways(&bench), members(&bench, "ovn.default.n.1")), (vec![], 1));
    annotate(&mut bench, NORTH, json!("10.16.0.79"));
    bench.api.delete(&pod("a-0"), 0);
    bench.settle();
    assert_eq!(own_ways(&bench), vec![]);
}

/// Only the family that has a next hop of its own leaves by it; the other one leaves by
/// the node. Ways that Kube-OVN made for floating addresses stay.
#[test]
fn a_next_hop_of_one_family_of_a_dual_stack_pod() {
    let mut bench = super::bench(Families::Dual);
    lead(&mut bench, Families::Dual);
    let router = named(&bench, "Logical_Router", "ovn-cluster").unwrap().uuid;
    let theirs = ovsdb::Uuid::new_v5(&ovsdb::Uuid::NAMESPACE_OID, b"theirs");
    let columns = [
        ("priority", ovsdb::Value::integer(29250)),
        ("match", ovsdb::Value::string("ip4.src == 10.16.7.7")),
        ("action", ovsdb::Value::string("reroute")),
        ("nexthops", ovsdb::Value::strings(["172.16.0.1"])),
        ("external_ids", ovsdb::Value::string_map([("vendor", "kube-ovn"), ("subnet", "ovn-default")])),
    ];
    bench.transact(&[
        ovsdb::Operation::insert("Logical_Router_Policy").uuid(theirs).columns(columns).build(),
        ovsdb::Operation::mutate("Logical_Router")
            .by_uuid(router)
            .insert_set("policies", ovsdb::Value::uuids([theirs]))
            .build(),
    ]);
    bench.add_pod_with("a-0", "n-1", json!({ IP: "10.16.9.9,fd00:10:16::99", NORTH: "fd00:10:16::77" }));
    bench.settle();
    let their_way = ("ip4.src == 10.16.7.7".to_owned(), "172.16.0.1".to_owned());
    let way = ("ip6.src == fd00:10:16::99".to_owned(), "fd00:10:16::77".to_owned());
    assert_eq!(own_ways(&bench), [their_way.clone(), way]);
    assert_eq!(members(&bench, "ovn.default.n.1"), 1);
    annotate(&mut bench, NORTH, json!("10.16.0.77,fd00:10:16::77"));
    assert_eq!((own_ways(&bench).len(), members(&bench, "ovn.default.n.1")), (3, 0));
    bench.api.delete(&pod("a-0"), 0);
    bench.settle();
    super::restart(&mut bench, Families::Dual);
    assert_eq!(own_ways(&bench), [their_way]);
}

/// Options of its own replace the subnet's, also where the subnet has none.
#[rstest]
#[case(false)]
#[case(true)]
fn dhcp_options_of_a_single_port_come_change_and_go(#[case] subnet_too: bool) {
    const OWN: &str = "ovn.kubernetes.io/dhcp-v4-options";
    let mut bench = super::bench(Families::Dual);
    lead(&mut bench, Families::Dual);
    let subnet = super::cluster(crate::facts::Kind::Subnet, "ovn-default");
    bench.api.edit(&subnet, json!({ "spec": { "enableDHCP": subnet_too } }));
    bench.add_pod_with("a-0", "n-1", json!({ OWN: "lease_time=60,dns_server={8.8.8.8,1.1.1.1}" }));
    bench.settle();
    let of_port = |bench: &Bench, family: &str| {
        let port = named(bench, "Logical_Switch_Port", "a-0.web").unwrap();
        let uuid = port.reference(&format!("dhcp{family}_options"))?;
        bench.db.replica().row("DHCP_Options", &uuid).cloned()
    };
    let row = of_port(&bench, "v4").expect("options of its own");
    let option = |row: &ovsdb::Row, key: &str| row.map_get("options", key).unwrap_or_default().to_owned();
    assert_eq!((&*option(&row, "lease_time"), &*option(&row, "dns_server")), ("60", "{8.8.8.8,1.1.1.1}"));
    assert_eq!((&*option(&row, "router"), &*option(&row, "mtu")), ("10.16.0.1", "1400"), "filled in");
    assert_eq!(row.map_get("external_ids", "port"), Some("a-0.web"));
    assert_eq!(of_port(&bench, "v6").is_some(), subnet_too, "the subnet's, if it has any");
    let rows = |bench: &Bench| bench.db.replica().table("DHCP_Options").unwrap().len();
    let subnets = if subnet_too { 2 } else { 0 };
    assert_eq!(rows(&bench), subnets + 1);
    annotate(&mut bench, OWN, json!("lease_time=61"));
    let changed = of_port(&bench, "v4").expect("still its own");
    assert_eq!(changed.uuid, row.uuid);
    assert_eq!((&*option(&changed, "lease_time"), &*option(&changed, "dns_server")), ("61", ""));
    assert_eq!(option(&changed, "server_mac"), option(&row, "server_mac"), "the server stays who it is");
    annotate(&mut bench, OWN, json!("lease_time"));
    assert!(warnings(&bench, "a-0").iter().any(|(_, message)| message.contains("dhcp-v4-options")));
    assert_eq!((rows(&bench), of_port(&bench, "v4").is_some()), (subnets, subnet_too));
    annotate(&mut bench, OWN, json!("lease_time=62"));
    super::restart(&mut bench, Families::Dual);
    assert_eq!(option(&of_port(&bench, "v4").unwrap(), "lease_time"), "62");
    annotate(&mut bench, OWN, json!(null));
    assert_eq!((rows(&bench), of_port(&bench, "v4").is_some()), (subnets, subnet_too));
    annotate(&mut bench, OWN, json!("lease_time=63"));
    bench.api.delete(&pod("a-0"), 0);
    bench.settle();
    assert_eq!(rows(&bench), subnets);
}

#[test]
fn an_activation_strategy_holds_the_port_to_its_node() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    bench.add_pod_with("a-0", "n-1", json!({ "ovn.kubernetes.io/activation_strategy": "rarp" }));
    bench.add_pod("a-1", "n-1");
    bench.settle();
    let option = |port: &str, key: &str| {
        let row = named(&bench, "Logical_Switch_Port", port).unwrap();
        row.map_get("options", key).map(str::to_owned)
    };
    assert_eq!(option("a-0.web", "requested-chassis").as_deref(), Some("n-1,n-1"));
    assert_eq!(option("a-0.web", "activation-strategy").as_deref(), Some("rarp"));
    assert_eq!(option("a-1.web", "requested-chassis"), None);
}

/// A subnet that a pod names has to be there, whole and staying; why it isn't is said
/// anew whenever that changes, and the pod is served as soon as it is.
#[test]
fn a_subnet_that_is_named_and_cannot_serve_is_refused_by_name_and_heals() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    let subnet = |name: &str| super::cluster(crate::facts::Kind::Subnet, name);
    let create = |bench: &mut Bench, name: &str, cidr: &str| {
        bench.api.create(&subnet(name), json!({ "spec": { "cidrBlock": cidr } })).unwrap();
        bench.settle();
    };
    let said = |bench: &Bench, name: &str| {
        let (reason, message) = warnings(bench, name).pop().unwrap_or_default();
        assert_eq!(reason, "AcquireAddressFailed", "{message}");
        assert!(message.contains("logical_switch") && message.contains("subnet s"), "{message}");
        message
    };
    let served = |bench: &Bench, name: &str| bench.api.annotation(&pod(name), IP).is_some();
    let ask = json!({ "ovn.kubernetes.io/logical_switch": "s" });
    bench.add_pod_with("a-0", "n-1", ask.clone());
    bench.settle();
    assert!(said(&bench, "a-0").contains("does not exist"));
    create(&mut bench, "s", "10.16.7.0/24");
    assert!(said(&bench, "a-0").contains("subnet ovn-default"), "what it collides with");
    assert!(!served(&bench, "a-0"));
    let spec = json!({ "cidrBlock": "10.60.0.0/24", "gateway": "", "excludeIps": [] });
    bench.api.edit(&subnet("s"), json!({ "spec": spec }));
    bench.settle();
    assert!(served(&bench, "a-0"));
    // One that became invalid takes no new pods; those that it has stay.
    bench.api.edit(&subnet("s"), json!({ "spec": { "cidrBlock": "10.60.0.0/99" } }));
    bench.settle();
    bench.add_pod_with("a-1", "n-1", ask.clone());
    bench.settle();
    assert!(said(&bench, "a-1").contains("10.60.0.0/99") && !served(&bench, "a-1"));
    bench.api.edit(&subnet("s"), json!({ "spec": spec }));
    bench.settle();
    assert!(served(&bench, "a-1"));
    // One on its way out neither.
    bench.api.delete(&subnet("s"), 0);
    bench.settle();
    bench.add_pod_with("a-2", "n-1", ask);
    bench.settle();
    assert!(said(&bench, "a-2").contains("being deleted") && !served(&bench, "a-2"));
    for name in ["a-0", "a-1"] {
        bench.api.delete(&pod(name), 0);
    }
    bench.settle();
    assert!(bench.api.get(&subnet("s")).is_none(), "a-2 does not hold it");
    assert!(said(&bench, "a-2").contains("does not exist"));
    create(&mut bench, "s", "10.60.0.0/24");
    assert!(served(&bench, "a-2"));
}
