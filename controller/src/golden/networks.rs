//! Subnets and VPCs through the whole pipeline: collisions, deletions in every order,
//! gateways that fail over, walls that never open.

use ovsdb::Operation;
use rstest::rstest;
use serde_json::{Value, json};

use super::{cluster, condition, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::io::Input;
use crate::sim::Bench;

pub(super) fn subnet(name: &str) -> ObjectRef {
    cluster(Kind::Subnet, name)
}

pub(super) fn vpc(name: &str) -> ObjectRef {
    cluster(Kind::Vpc, name)
}

pub(super) fn add(bench: &mut Bench, object: &ObjectRef, spec: Value) {
    bench.api.create(object, json!({ "spec": spec })).unwrap();
    bench.settle();
}

/// Two nodes, a leading controller.
pub(super) fn two_nodes() -> Bench {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    lead(&mut bench, Families::V4);
    bench
}

pub(super) fn names(bench: &Bench, table: &str) -> Vec<String> {
    let replica = bench.db.replica();
    let mut names: Vec<String> = replica
        .table(table)
        .unwrap()
        .rows()
        .map(|row| row.str("name").unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names
}

pub(super) fn status(bench: &Bench, object: &ObjectRef, kind: &str) -> String {
    let (status, reason, message) = condition(bench, object, kind).unwrap_or_default();
    format!("{status} {reason} {message}")
}

pub(super) fn all_rows(bench: &Bench) -> String {
    let text = super::database::render(&bench.db.replica());
    text.lines().filter(|line| !line.contains("weir-epoch")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_vpc_and_its_subnets_come_and_go_in_every_order() {
    let things = [
        (vpc("blue"), json!({ "staticRoutes": [{ "cidr": "0.0.0.0/0", "nextHopIP": "10.50.0.254" }] })),
        (subnet("b-1"), json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24", "private": true })),
        (subnet("b-2"), json!({ "vpc": "blue", "cidrBlock": "10.51.0.0/24", "enableDHCP": true })),
    ];
    let mut contents = Vec::new();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut bench = two_nodes();
        let empty = all_rows(&bench);
        for at in order {
            add(&mut bench, &things[at].0, things[at].1.clone());
            if at != 0 && bench.api.get(&vpc("blue")).is_none() {
                let said = status(&bench, &things[at].0, "Validated");
                assert!(said.starts_with("False") && said.contains("Vpc blue"), "{said}");
            }
        }
        for (object, _) in &things {
            assert!(
                status(&bench, object, "Ready").starts_with("True"),
                "{object}: {}",
                status(&bench, object, "Ready")
            );
        }
        assert_eq!(bench.api.get(&vpc("blue")).unwrap()["status"]["subnets"], json!(["b-1", "b-2"]));
        contents.push(all_rows(&bench));
        for at in order {
            bench.api.delete(&things[at].0, 0);
            bench.settle();
        }
        for (object, _) in &things {
            assert!(bench.api.get(object).is_none(), "{order:?}: {object} is still there");
        }
        assert_eq!(all_rows(&bench), empty, "{order:?}");
    }
    let macs =
        |text: &str| text.lines().filter(|line| !line.contains("mac")).map(str::to_owned).collect::<Vec<_>>();
    for content in &contents {
        assert_eq!(macs(content), macs(&contents[0]));
    }
}

#[test]
fn a_vpc_waits_for_its_subnets_and_a_subnet_for_its_pods_and_both_say_so() {
    let mut bench = two_nodes();
    add(&mut bench, &vpc("blue"), json!({}));
    add(&mut bench, &subnet("b-1"), json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24" }));
    bench.add_pod_with("a-0", "n-1", json!({ "ovn.kubernetes.io/logical_switch": "b-1" }));
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/routed"), Some("true"));
    assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/logical_router"), Some("blue"));
    // Nodes do not route for it.
    assert!(!names(&bench, "Port_Group").contains(&"b.1.n.1".to_owned()));
    let before = all_rows(&bench);
    bench.api.delete(&vpc("blue"), 0);
    bench.api.delete(&subnet("b-1"), 0);
    bench.settle();
    assert_eq!(all_rows(&bench), before, "nothing is torn down before its time");
    let said = status(&bench, &vpc("blue"), "Ready");
    assert!(said.starts_with("False SubnetsExist") && said.contains("b-1"), "{said}");
    let said = status(&bench, &subnet("b-1"), "Ready");
    assert!(said.starts_with("False AddressesInUse") && said.contains("a-0.web"), "{said}");
    restart(&mut bench, Families::V4);
    assert_eq!(all_rows(&bench), before);
    bench.api.delete(&pod("a-0"), 0);
    bench.settle();
    assert!(bench.api.get(&subnet("b-1")).is_none() && bench.api.get(&vpc("blue")).is_none());
    assert!(!names(&bench, "Logical_Switch").contains(&"b-1".to_owned()));
    assert!(!names(&bench, "Logical_Router").contains(&"blue".to_owned()));
}

#[test]
fn a_router_outlives_its_vpc_while_subnets_need_it() {
    let mut bench = two_nodes();
    add(&mut bench, &vpc("blue"), json!({}));
    add(&mut bench, &subnet("b-1"), json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24" }));
    let before = all_rows(&bench);
    // By force, without its finalizer.
    bench.api.remove(&vpc("blue"));
    bench.settle();
    assert_eq!(all_rows(&bench), before);
    assert!(status(&bench, &subnet("b-1"), "Validated").contains("there is no Vpc blue"));
    add(&mut bench, &vpc("blue"), json!({}));
    assert_eq!(all_rows(&bench), before);
    assert!(status(&bench, &subnet("b-1"), "Ready").starts_with("True"));
}

#[test]
fn of_two_that_overlap_the_served_one_stays_and_the_other_heals() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("m"), json!({ "cidrBlock": "10.60.0.0/16" }));
    for name in ["a", "z"] {
        add(&mut bench, &subnet(name), json!({ "cidrBlock": "10.60.7.0/24" }));
        let said = status(&bench, &subnet(name), "Validated");
        assert!(said.starts_with("False ValidateLogicalSwitchFailed") && said.contains("subnet m"), "{said}");
    }
    // Another VPC is another world.
    add(&mut bench, &vpc("blue"), json!({}));
    add(&mut bench, &subnet("b-1"), json!({ "vpc": "blue", "cidrBlock": "10.60.0.0/16" }));
    assert!(status(&bench, &subnet("b-1"), "Ready").starts_with("True"));
    let before = all_rows(&bench);
    restart(&mut bench, Families::V4);
    assert_eq!(all_rows(&bench), before);
    bench.api.delete(&subnet("m"), 0);
    bench.settle();
    let (first, second) =
        (status(&bench, &subnet("a"), "Validated"), status(&bench, &subnet("z"), "Validated"));
    assert!(first.starts_with("True"), "the older one: {first}");
    assert!(second.contains("subnet a"), "{second}");
    bench.api.edit(
        &subnet("a"),
        json!({ "spec": { "cidrBlock": "10.61.0.0/24", "gateway": "", "excludeIps": [] } }),
    );
    bench.settle();
    assert!(status(&bench, &subnet("z"), "Ready").starts_with("True"));
    // A served one that is edited into another's block loses, though it is older.
    bench.api.edit(
        &subnet("a"),
        json!({ "spec": { "cidrBlock": "10.60.7.0/25", "gateway": "", "excludeIps": [] } }),
    );
    bench.settle();
    assert!(status(&bench, &subnet("a"), "Validated").contains("subnet z"));
    assert!(status(&bench, &subnet("z"), "Validated").starts_with("True"));
}

#[rstest]
#[case(json!({ "cidrBlock": "192.0.2.0/24" }), "node n-1")]
#[case(json!({ "cidrBlock": "10.100.0.0/16" }), "service range")]
#[case(json!({ "cidrBlock": "100.64.9.0/24" }), "subnet join")]
#[case(json!({ "cidrBlock": "10.16.9.0/24" }), "subnet ovn-default")]
#[case(json!({ "cidrBlock": "10.70.0.0/24", "gateway": "10.71.0.1" }), "outside")]
#[case(json!({ "cidrBlock": "10.70.0.0/24", "vpc": "none" }), "Vpc none")]
#[case(json!({ "cidrBlock": "10.70.0.0" }), "CIDR")]
fn u11_a_subnet_that_cannot_work_writes_nothing_and_names_why(#[case] spec: Value, #[case] named: &str) {
    let mut bench = two_nodes();
    let before = all_rows(&bench);
    add(&mut bench, &subnet("wrong"), spec);
    let said = status(&bench, &subnet("wrong"), "Validated");
    assert!(said.starts_with("False ValidateLogicalSwitchFailed") && said.contains(named), "{said}");
    assert!(status(&bench, &subnet("wrong"), "Ready").starts_with("False"));
    assert_eq!(all_rows(&bench), before);
    bench.api.edit(
        &subnet("wrong"),
        json!({ "spec": {
        "cidrBlock": "10.70.0.0/24", "gateway": "10.70.0.1", "vpc": "ovn-cluster", "excludeIps": [],
    } }),
    );
    bench.settle();
    assert!(status(&bench, &subnet("wrong"), "Ready").starts_with("True"));
    bench.api.delete(&subnet("wrong"), 0);
    bench.settle();
    assert_eq!(all_rows(&bench), before);
}

#[test]
fn names_that_would_share_port_groups_collide() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("a-b"), json!({ "cidrBlock": "10.60.0.0/24" }));
    add(&mut bench, &subnet("a.b"), json!({ "cidrBlock": "10.61.0.0/24" }));
    let said = status(&bench, &subnet("a.b"), "Validated");
    assert!(said.contains("subnet a-b") && said.contains("rename"), "{said}");
    add(&mut bench, &subnet("node"), json!({ "cidrBlock": "10.62.0.0/24" }));
    assert!(status(&bench, &subnet("node"), "Validated").contains("another name"));
}

#[test]
fn a_node_that_comes_into_a_served_subnet_is_told_and_breaks_nothing() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": "192.0.3.0/24" }));
    let body = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.3.9" }],
        "conditions": [{ "type": "Ready", "status": "True" }] } });
    bench.api.create(&cluster(Kind::Node, "late"), body).unwrap();
    bench.settle();
    assert!(status(&bench, &subnet("s"), "Validated").starts_with("True"));
    let events = bench.processes.iter().flat_map(|process| &process.events);
    assert!(
        events
            .into_iter()
            .any(|event| &*event.reason == "NodeAddressConflictWithSubnet"
                && event.message.contains("subnet s"))
    );
    restart(&mut bench, Families::V4);
    assert!(status(&bench, &subnet("s"), "Validated").starts_with("True"));
}

#[test]
fn distributed_subnets_have_a_group_and_a_policy_on_every_node() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": "10.60.0.0/16", "namespaces": ["web"] }));
    bench.add_pod("a-0", "n-2");
    bench.settle();
    assert_eq!(
        bench.api.annotation(&cluster(Kind::Namespace, "web"), "ovn.kubernetes.io/logical_switch"),
        Some("s")
    );
    assert!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/ip_address").unwrap().starts_with("10.60."));
    let text = all_rows(&bench);
    for line in
        ["s.n.1", "s.n.2", "ip4.src == $s.n.1_ip4", "ip4.src == $s.n.2_ip4", "ip4.dst == 10.60.0.0/16"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let before = text;
    // Everything of it comes back when somebody takes it away (U28).
    let replica = bench.db.replica();
    let switch =
        replica.table("Logical_Switch").unwrap().rows().find(|row| row.str("name") == Some("s")).unwrap();
    let router = replica.table("Logical_Router").unwrap().rows().next().unwrap();
    let operations = [
        Operation::delete("Logical_Switch").by_uuid(switch.uuid).build(),
        Operation::update("Logical_Router")
            .by_uuid(router.uuid)
            .column("policies", ovsdb::Value::empty_set())
            .build(),
    ];
    bench.transact(&operations);
    bench.settle();
    let macs =
        |text: &str| text.lines().filter(|line| !line.contains("mac")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(macs(&all_rows(&bench)), macs(&before));
}

fn gateway_hops(bench: &Bench, matching: &str) -> Vec<String> {
    let replica = bench.db.replica();
    let rows = replica.table("Logical_Router_Policy").unwrap().rows();
    let row = rows.into_iter().find(|row| row.str("match") == Some(matching));
    let mut hops: Vec<String> =
        row.iter().flat_map(|row| row.get("nexthops").unwrap().set_strings()).map(str::to_owned).collect();
    hops.sort();
    hops
}

fn set_ready(bench: &mut Bench, node: &str, ready: bool) {
    let status = if ready { "True" } else { "False" };
    bench.api.edit(
        &cluster(Kind::Node, node),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } }),
    );
    bench.settle();
}

fn join_address(bench: &Bench, node: &str) -> String {
    bench.api.annotation(&cluster(Kind::Node, node), "ovn.kubernetes.io/ip_address").unwrap().to_owned()
}

#[test]
fn a_centralized_gateway_fails_over_in_one_change() {
    let mut bench = two_nodes();
    let spec = json!({ "cidrBlock": "10.60.0.0/16", "gatewayType": "centralized", "gatewayNode": "n-1,n-2" });
    add(&mut bench, &subnet("s"), spec);
    let matching = "ip4.src == 10.60.0.0/16";
    let (first, second) = (join_address(&bench, "n-1"), join_address(&bench, "n-2"));
    assert_eq!(gateway_hops(&bench, matching), [&*first]);
    assert_eq!(bench.api.get(&subnet("s")).unwrap()["status"]["activateGateway"], "n-1");
    let sent = bench.processes[0].transactions.len();
    set_ready(&mut bench, "n-1", false);
    assert_eq!(gateway_hops(&bench, matching), [&*second]);
    let changes: Vec<String> =
        bench.processes[0].transactions[sent..].iter().map(|operations| format!("{operations:?}")).collect();
    let touching: Vec<_> = changes.iter().filter(|text| text.contains("Logical_Router_Policy")).collect();
    assert_eq!(touching.len(), 1, "the new hop comes with the old one's end: {changes:#?}");
    assert_eq!(bench.api.get(&subnet("s")).unwrap()["status"]["activateGateway"], "n-2");
    // It stays where it is, also after a restart.
    set_ready(&mut bench, "n-1", true);
    restart(&mut bench, Families::V4);
    assert_eq!(gateway_hops(&bench, matching), [&*second]);
    // With no node ready what is there stays, and the subnet says so.
    set_ready(&mut bench, "n-1", false);
    set_ready(&mut bench, "n-2", false);
    assert_eq!(gateway_hops(&bench, matching), [&*second]);
    assert!(status(&bench, &subnet("s"), "Ready").starts_with("False NoActiveGatewayFound"));
    set_ready(&mut bench, "n-1", true);
    assert_eq!(gateway_hops(&bench, matching), [&*first]);
    assert!(status(&bench, &subnet("s"), "Ready").starts_with("True"));
    // ECMP: both, then the one that is left.
    set_ready(&mut bench, "n-2", true);
    bench.api.edit(&subnet("s"), json!({ "spec": { "enableEcmp": true } }));
    bench.settle();
    let mut both = [first.clone(), second.clone()];
    both.sort();
    assert_eq!(gateway_hops(&bench, matching), both);
    // One that is ready and gives no answer is left out, and back when it does.
    let process = bench.processes.len() - 1;
    let silent = |nodes: &[&str]| {
        Input::Silent(std::sync::Arc::new(nodes.iter().map(|node| (*node).into()).collect()))
    };
    bench.input(process, silent(&["n-2", "gone"]));
    bench.settle();
    assert_eq!(gateway_hops(&bench, matching), [&*first]);
    bench.input(process, silent(&["n-1", "n-2"]));
    bench.settle();
    assert_eq!(gateway_hops(&bench, matching), both, "that all are silent is no reason to stop");
    bench.input(process, silent(&[]));
    bench.settle();
    assert_eq!(gateway_hops(&bench, matching), both);
    bench.api.remove(&cluster(Kind::Node, "n-2"));
    bench.settle();
    assert_eq!(gateway_hops(&bench, matching), [first]);
}

#[test]
fn gateways_by_selector_follow_labels() {
    let mut bench = two_nodes();
    let spec = json!({ "cidrBlock": "10.60.0.0/16", "gatewayType": "centralized",
        "gatewayNodeSelectors": [{ "matchLabels": { "gw": "yes" } }] });
    add(&mut bench, &subnet("s"), spec);
    assert!(status(&bench, &subnet("s"), "Ready").starts_with("False NoReadyGateway"));
    let matching = "ip4.src == 10.60.0.0/16";
    assert!(gateway_hops(&bench, matching).is_empty());
    bench.api.edit(&cluster(Kind::Node, "n-2"), json!({ "metadata": { "labels": { "gw": "yes" } } }));
    bench.settle();
    assert_eq!(gateway_hops(&bench, matching), [join_address(&bench, "n-2")]);
    let compiled = bench.core().counters().compiled;
    bench.api.edit(&cluster(Kind::Node, "n-1"), json!({ "metadata": { "labels": { "other": "x" } } }));
    bench.settle();
    assert_eq!(bench.core().counters().compiled, compiled, "a label that nobody selects by compiles nothing");
}

/// Places of the first transactions that contain these texts.
fn places(bench: &Bench, from: usize, texts: &[&str]) -> Vec<Option<usize>> {
    let sent: Vec<String> =
        bench.processes[0].transactions[from..].iter().map(|operations| format!("{operations:?}")).collect();
    texts.iter().map(|text| sent.iter().position(|transaction| transaction.contains(text))).collect()
}

#[test]
fn a_change_of_the_gateway_type_makes_the_new_way_before_it_breaks_the_old_one() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": "10.60.0.0/16", "namespaces": ["web"] }));
    for at in 0..150 {
        bench.add_pod(&format!("p-{at}"), "n-1");
    }
    bench.settle();
    let writes = bench.api.writes.iter().filter(|write| write.contains(" Pod ")).count();
    let uuid = |bench: &Bench, table: &str, column: &str, value: &str| {
        let replica = bench.db.replica();
        let mut rows = replica.table(table).unwrap().rows();
        rows.find(|row| row.str(column) == Some(value)).map(|row| row.uuid.to_string())
    };
    let group = uuid(&bench, "Port_Group", "name", "s.n.1").unwrap();
    let old = uuid(&bench, "Logical_Router_Policy", "match", "ip4.src == $s.n.1_ip4").unwrap();
    let from = bench.processes[0].transactions.len();
    bench.api.edit(&subnet("s"), json!({ "spec": { "gatewayType": "centralized", "gatewayNode": "n-2" } }));
    bench.settle();
    let new = "ip4.src == 10.60.0.0/16";
    let [Some(made), Some(emptied), Some(broken)] = places(&bench, from, &[new, &group, &old])[..] else {
        panic!("{:?}", places(&bench, from, &[new, &group, &old]));
    };
    assert!(made <= emptied && emptied <= broken, "{made} {emptied} {broken}");
    assert!(!names(&bench, "Port_Group").contains(&"s.n.1".to_owned()));
    // And back: every pod is in its group before the central way goes.
    let central = uuid(&bench, "Logical_Router_Policy", "match", new).unwrap();
    let from = bench.processes[0].transactions.len();
    bench.api.edit(&subnet("s"), json!({ "spec": { "gatewayType": "distributed" } }));
    bench.settle();
    let last_pod = bench.processes[0].transactions[from..]
        .iter()
        .rposition(|operations| format!("{operations:?}").contains("\"ports\""))
        .unwrap_or_default();
    let [Some(made), Some(broken)] = places(&bench, from, &["ip4.src == $s.n.1_ip4", &central])[..] else {
        panic!("no change");
    };
    assert!(made <= broken && last_pod <= broken, "{made} {last_pod} {broken}");
    let after = bench.api.writes.iter().filter(|write| write.contains(" Pod ")).count();
    assert_eq!(after, writes, "no pod is written to");
    assert!(bench.api.get(&subnet("s")).unwrap()["spec"]["gatewayNode"].as_str().is_none_or(str::is_empty));
}

#[test]
fn k9_a_wall_is_never_down_for_a_moment() {
    let mut bench = two_nodes();
    let acl = json!({ "direction": "to-lport", "priority": 1500, "match": "tcp.dst == 80", "action": "allow-related" });
    let spec = json!({ "cidrBlock": "10.60.0.0/16", "private": true, "acls": [acl] });
    add(&mut bench, &subnet("s"), spec);
    let acls = |bench: &Bench| bench.db.replica().table("ACL").unwrap().len();
    assert_eq!(acls(&bench), 6);
    let from = bench.processes[0].transactions.len();
    // A change of the list touches what changes, in one transaction.
    bench.api.edit(&subnet("s"), json!({ "spec": { "allowSubnets": ["10.16.0.0/16"] } }));
    bench.settle();
    assert_eq!(acls(&bench), 7);
    let sent: Vec<String> =
        bench.processes[0].transactions[from..].iter().map(|operations| format!("{operations:?}")).collect();
    assert!(!sent.iter().any(|text| text.contains("Delete") && text.contains("acls")), "{sent:#?}");
    // An ACL that somebody added by hand to our switch stays; one of ours comes back.
    let replica = bench.db.replica();
    let switch = replica
        .table("Logical_Switch")
        .unwrap()
        .rows()
        .find(|row| row.str("name") == Some("s"))
        .unwrap()
        .uuid;
    let by_hand = ovsdb::Uuid::new_v5(&ovsdb::Uuid::NAMESPACE_OID, b"by hand");
    let columns = [
        ("action", ovsdb::Value::string("drop")),
        ("direction", ovsdb::Value::string("to-lport")),
        ("priority", ovsdb::Value::integer(5)),
        ("match", ovsdb::Value::string("icmp4")),
    ];
    bench.transact(&[
        Operation::insert("ACL").uuid(by_hand).columns(columns).build(),
        Operation::mutate("Logical_Switch")
            .by_uuid(switch)
            .insert_set("acls", ovsdb::Value::uuids([by_hand]))
            .build(),
    ]);
    bench.settle();
    assert_eq!(acls(&bench), 8);
    bench.api.edit(&subnet("s"), json!({ "spec": { "private": false, "acls": [] } }));
    bench.settle();
    assert_eq!(acls(&bench), 1);
    assert!(bench.db.replica().row("ACL", &by_hand).is_some());
}

#[test]
fn dhcp_rows_are_in_the_status_and_their_ports_refer_to_them() {
    let mut bench = two_nodes();
    add(
        &mut bench,
        &subnet("s"),
        json!({ "cidrBlock": "10.60.0.0/16", "enableDHCP": true, "namespaces": ["web"] }),
    );
    bench.add_pod("a-0", "n-1");
    bench.settle();
    let dhcp = |bench: &Bench| {
        let replica = bench.db.replica();
        replica.table("DHCP_Options").unwrap().rows().map(|row| row.uuid).collect::<Vec<_>>()
    };
    let rows = dhcp(&bench);
    assert_eq!(rows.len(), 1);
    let in_status = |bench: &Bench| {
        bench.api.get(&subnet("s")).unwrap()["status"]["dhcpV4OptionsUUID"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(in_status(&bench), rows[0].to_string());
    let reference = |bench: &Bench| {
        let replica = bench.db.replica();
        let port = replica
            .table("Logical_Switch_Port")
            .unwrap()
            .rows()
            .find(|row| row.str("name") == Some("a-0.web"))
            .unwrap()
            .clone();
        port.reference("dhcpv4_options")
    };
    assert_eq!(reference(&bench), Some(rows[0]));
    let mac = |bench: &Bench| {
        let replica = bench.db.replica();
        let row = replica.table("DHCP_Options").unwrap().rows().next().unwrap().clone();
        row.map_get("options", "server_mac").unwrap().to_owned()
    };
    let before = mac(&bench);
    bench.api.edit(&subnet("s"), json!({ "spec": { "dhcpV4Options": "lease_time=60" } }));
    bench.settle();
    assert_eq!((mac(&bench), reference(&bench)), (before, Some(rows[0])), "the server stays who it is");
    // Its row is deleted by somebody: it comes back, and so do the references.
    bench.transact(&[Operation::delete("DHCP_Options").by_uuid(rows[0]).build()]);
    bench.settle();
    let again = dhcp(&bench);
    assert_eq!((again.len(), reference(&bench)), (1, Some(again[0])));
    assert_eq!(in_status(&bench), again[0].to_string());
    bench.api.edit(&subnet("s"), json!({ "spec": { "enableDHCP": false } }));
    bench.settle();
    assert_eq!((dhcp(&bench).len(), reference(&bench), in_status(&bench)), (0, None, String::new()));
}

#[test]
fn peers_and_policies_go_with_the_spec_also_while_nobody_watches() {
    let mut bench = two_nodes();
    add(
        &mut bench,
        &vpc("blue"),
        json!({ "vpcPeerings": [{ "remoteVpc": "red", "localConnectIP": "169.254.0.1/30" }] }),
    );
    assert!(status(&bench, &vpc("blue"), "Ready").contains("no peering back"));
    add(
        &mut bench,
        &vpc("red"),
        json!({ "vpcPeerings": [{ "remoteVpc": "blue", "localConnectIP": "169.254.0.2/30" }] }),
    );
    assert_eq!(status(&bench, &vpc("blue"), "Ready"), "True ReconcileSuccess ");
    assert_eq!(bench.api.get(&vpc("red")).unwrap()["status"]["vpcPeerings"], json!(["blue"]));
    assert!(names(&bench, "Logical_Router_Port").contains(&"blue-red".to_owned()));
    let policy = json!([{ "priority": 50, "match": "ip4.src == 10.16.0.0/24", "action": "drop" }]);
    bench.api.edit(&vpc("ovn-cluster"), json!({ "spec": { "policyRoutes": policy } }));
    bench.settle();
    assert!(all_rows(&bench).contains("ip4.src == 10.16.0.0/24"));
    bench.processes[0].paused = true;
    bench.api.edit(&vpc("ovn-cluster"), json!({ "spec": { "policyRoutes": [] } }));
    bench.api.edit(&vpc("blue"), json!({ "spec": { "vpcPeerings": [] } }));
    lead(&mut bench, Families::V4);
    assert!(!all_rows(&bench).contains("ip4.src == 10.16.0.0/24"));
    assert!(!names(&bench, "Logical_Router_Port").contains(&"blue-red".to_owned()));
}

#[test]
fn namespaces_get_the_default_subnet_of_their_vpc_first_and_aligned_lists() {
    let mut bench = two_nodes();
    add(&mut bench, &vpc("blue"), json!({ "namespaces": ["web"], "defaultSubnet": "b-2" }));
    add(
        &mut bench,
        &subnet("b-1"),
        json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24", "namespaces": ["web"] }),
    );
    add(&mut bench, &subnet("b-2"), json!({ "vpc": "blue", "cidrBlock": "10.51.0.0/24" }));
    let value = |bench: &Bench, key: &str| {
        let key = format!("ovn.kubernetes.io/{key}");
        bench.api.annotation(&cluster(Kind::Namespace, "web"), &key).unwrap_or_default().to_owned()
    };
    assert_eq!(value(&bench, "logical_switch"), "b-2,b-1");
    assert_eq!(value(&bench, "cidr"), "10.51.0.0/24;10.50.0.0/24");
    assert_eq!(value(&bench, "exclude_ips"), "10.51.0.1;10.50.0.1");
    assert_eq!(bench.api.get(&vpc("blue")).unwrap()["status"]["defaultLogicalSwitch"], "b-2");
    bench.add_pod("a-0", "n-1");
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/logical_switch"), Some("b-2"));
}

#[test]
fn bfd_ports_are_hosted_by_nodes_with_a_chassis() {
    let mut bench = two_nodes();
    add(
        &mut bench,
        &vpc("blue"),
        json!({ "bfdPort": { "enabled": true, "ip": "10.255.255.255",
        "nodeSelector": { "matchLabels": { "bfd": "yes" } } } }),
    );
    let said = status(&bench, &vpc("blue"), "Validated");
    assert!(said.starts_with("False") && said.contains("bfdPort"), "{said}");
    for node in ["n-1", "n-2"] {
        bench.api.edit(&cluster(Kind::Node, node), json!({ "metadata": { "labels": { "bfd": "yes" } } }));
    }
    bench.settle();
    assert_eq!(bench.api.get(&vpc("blue")).unwrap()["status"]["bfdPort"]["nodes"], json!(["n-1", "n-2"]));
    assert_eq!(names(&bench, "HA_Chassis_Group"), ["bfd@blue"]);
    assert_eq!(bench.db.replica().table("HA_Chassis").unwrap().len(), 2);
    bench.api.remove(&cluster(Kind::Node, "n-1"));
    bench.settle();
    assert_eq!(bench.db.replica().table("HA_Chassis").unwrap().len(), 1);
    bench.api.edit(&vpc("blue"), json!({ "spec": { "bfdPort": { "enabled": false } } }));
    bench.settle();
    assert!(names(&bench, "HA_Chassis_Group").is_empty());
    assert!(!names(&bench, "Logical_Router_Port").contains(&"bfd@blue".to_owned()));
}

#[test]
fn tables_of_egress_gateways_must_differ() {
    let mut bench = two_nodes();
    let spec = |cidr: &str| {
        json!({ "cidrBlock": cidr, "externalEgressGateway": "192.0.2.254",
        "policyRoutingTableID": 100, "policyRoutingPriority": 1000 })
    };
    add(&mut bench, &subnet("a"), spec("10.60.0.0/24"));
    add(&mut bench, &subnet("b"), spec("10.61.0.0/24"));
    assert!(status(&bench, &subnet("a"), "Validated").starts_with("True"));
    let said = status(&bench, &subnet("b"), "Validated");
    assert!(said.starts_with("False") && said.contains("subnet a") && said.contains("100"), "{said}");
    bench.api.delete(&subnet("a"), 0);
    bench.settle();
    assert!(status(&bench, &subnet("b"), "Validated").starts_with("True"));
}

#[test]
fn a_subnet_that_cannot_be_read_is_not_let_go_while_pods_run_on_it_not_even_after_a_restart() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s"), json!({ "cidrBlock": "10.60.0.0/16", "namespaces": ["web"] }));
    bench.add_pod("a-0", "n-1");
    bench.settle();
    let before = all_rows(&bench);
    bench.api.edit(&subnet("s"), json!({ "spec": { "cidrBlock": "10.60.0.0/61" } }));
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.api.delete(&subnet("s"), 0);
    bench.settle();
    restart(&mut bench, Families::V4);
    assert!(bench.api.get(&subnet("s")).is_some(), "a-0 runs on it");
    assert_eq!(all_rows(&bench), before);
    bench.api.delete(&pod("a-0"), 0);
    bench.settle();
    assert!(bench.api.get(&subnet("s")).is_none());
    assert!(!names(&bench, "Logical_Switch").contains(&"s".to_owned()));
}

/// A BFD session without its port ends northd: whoever made it, it goes with the port, in
/// one transaction; others stay.
#[test]
fn sessions_go_with_their_router_port() {
    for whole in [true, false] {
        let mut bench = two_nodes();
        add(&mut bench, &vpc("blue"), json!({ "bfdPort": { "enabled": true, "ip": "10.255.255.254" } }));
        for (port, ip) in
            [("bfd@blue", "10.50.0.7"), ("bfd@blue", "10.50.0.8"), ("ovn-cluster-join", "100.64.0.9")]
        {
            bench.transact(&[Operation::insert("BFD")
                .column("logical_port", port)
                .column("dst_ip", ip)
                .build()]);
        }
        let sent = bench.processes[0].transactions.len();
        if whole {
            bench.api.delete(&vpc("blue"), 0);
        } else {
            bench.api.edit(&vpc("blue"), json!({ "spec": { "bfdPort": { "enabled": false } } }));
        }
        bench.settle();
        assert!(!names(&bench, "Logical_Router_Port").contains(&"bfd@blue".to_owned()));
        let replica = bench.db.replica();
        let left: Vec<_> = replica.table("BFD").unwrap().rows().map(|row| row.str("logical_port")).collect();
        assert_eq!(left, [Some("ovn-cluster-join")], "whole: {whole}");
        let ends = |operations: &Vec<Operation>| format!("{operations:?}").contains("BFD");
        let with: Vec<_> = bench.processes[0].transactions[sent..].iter().filter(|ops| ends(ops)).collect();
        assert!(!with.is_empty());
        for operations in with {
            let text = format!("{operations:?}");
            assert!(text.contains("Logical_Router"), "the port goes in the same transaction: {text}");
        }
    }
}
