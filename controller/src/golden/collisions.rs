//! Names that Kubernetes tells apart and OVN does not (contract, notation and §9): dashes
//! become dots in port groups and address sets, and names of VPCs, subnets and nodes are joined
//! by the characters that they may have themselves. Whoever comes second is refused by name, and heals.

use serde_json::json;

use super::networks::{add, all_rows, names, status, subnet, two_nodes, vpc};
use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::Kind;

#[test]
fn subnets_whose_router_ports_would_share_a_name_collide() {
    // Router port `a-b-c` of both; the switches' ports are `c-a-b` and `b-c-a`.
    let pairs = [(("a", "b-c"), ("a-b", "c")), (("x-y", "s"), ("y", "s-x"))];
    for ((vpc_1, first), (vpc_2, second)) in pairs {
        let mut bench = two_nodes();
        add(&mut bench, &vpc(vpc_1), json!({}));
        add(&mut bench, &vpc(vpc_2), json!({}));
        add(&mut bench, &subnet(first), json!({ "vpc": vpc_1, "cidrBlock": "10.50.0.0/24" }));
        let before = all_rows(&bench);
        add(&mut bench, &subnet(second), json!({ "vpc": vpc_2, "cidrBlock": "10.51.0.0/24" }));
        let said = status(&bench, &subnet(second), "Ready");
        assert!(said.starts_with("False") && said.contains(&format!("subnet {first} (")), "{said}");
        assert_eq!(all_rows(&bench), before, "the first one is as it was");
        restart(&mut bench, Families::V4);
        assert_eq!(all_rows(&bench), before);
        assert!(status(&bench, &subnet(first), "Ready").starts_with("True"));
        bench.api.delete(&subnet(first), 0);
        bench.settle();
        assert!(status(&bench, &subnet(second), "Ready").starts_with("True"), "heals");
    }
}

#[test]
fn a_subnet_and_a_peer_of_its_vpc_do_not_share_a_router_port() {
    let peering = json!({ "vpcPeerings": [{ "remoteVpc": "b", "localConnectIP": "169.254.0.1/30" }] });
    // The subnet is there first.
    let mut bench = two_nodes();
    add(&mut bench, &vpc("b"), json!({}));
    add(&mut bench, &vpc("a"), json!({}));
    add(&mut bench, &subnet("b"), json!({ "vpc": "a", "cidrBlock": "10.50.0.0/24" }));
    let before = all_rows(&bench);
    bench.api.edit(&vpc("a"), json!({ "spec": peering }));
    bench.settle();
    let said = status(&bench, &vpc("a"), "Validated");
    assert!(said.starts_with("False") && said.contains("subnet b (a-b)"), "{said}");
    let port = |text: &str| {
        let lines = text.lines().skip_while(|line| *line != "Logical_Router_Port a-b").skip(1);
        lines.take_while(|line| line.starts_with(' ')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(port(&all_rows(&bench)), port(&before));
    restart(&mut bench, Families::V4);
    assert_eq!(port(&all_rows(&bench)), port(&before));
    bench.api.delete(&subnet("b"), 0);
    bench.settle();
    assert!(status(&bench, &vpc("a"), "Validated").starts_with("True"), "heals");
    assert!(port(&all_rows(&bench)).iter().any(|line| line.contains("169.254.0.1/30")));
    // Now the peering is.
    add(&mut bench, &subnet("b"), json!({ "vpc": "a", "cidrBlock": "10.50.0.0/24" }));
    let said = status(&bench, &subnet("b"), "Validated");
    assert!(said.starts_with("False") && said.contains("Vpc b"), "{said}");
    assert!(port(&all_rows(&bench)).iter().any(|line| line.contains("169.254.0.1/30")));
    bench.api.edit(&vpc("a"), json!({ "spec": { "vpcPeerings": null } }));
    bench.settle();
    assert!(status(&bench, &subnet("b"), "Ready").starts_with("True"), "heals");
}

#[test]
fn pools_whose_address_sets_would_share_a_name_collide() {
    let mut bench = two_nodes();
    add(&mut bench, &subnet("s-2"), json!({ "cidrBlock": "10.51.0.0/24" }));
    let pool = |name: &str| cluster(Kind::IpPool, name);
    let spec = |subnet: &str, ip: &str| json!({ "subnet": subnet, "ips": [ip], "enableAddressSet": true });
    add(&mut bench, &pool("p.1"), spec("ovn-default", "10.16.5.5"));
    add(&mut bench, &pool("p-1"), spec("s-2", "10.51.0.9"));
    let said = status(&bench, &pool("p-1"), "Ready");
    assert!(said.starts_with("False UpdateIPAMFailed") && said.contains("IPPool p.1 (p.1)"), "{said}");
    restart(&mut bench, Families::V4);
    assert!(status(&bench, &pool("p.1"), "Ready").starts_with("True"), "the one that works keeps it");
    let addresses = |bench: &crate::sim::Bench| {
        let replica = bench.db.replica();
        let sets = replica.table("Address_Set").unwrap();
        let set = sets.rows().find(|row| row.str("name") == Some("p.1")).cloned();
        set.map(|row| row.get("addresses").unwrap().set_strings().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(addresses(&bench), Some(vec!["10.16.5.5".to_owned()]));
    // Without a set of its own it has nothing to share.
    bench.api.edit(&pool("p-1"), json!({ "spec": { "enableAddressSet": false } }));
    bench.settle();
    assert!(status(&bench, &pool("p-1"), "Ready").starts_with("True"));
    bench.api.edit(&pool("p-1"), json!({ "spec": { "enableAddressSet": true } }));
    bench.settle();
    bench.api.delete(&pool("p.1"), 0);
    bench.settle();
    assert!(status(&bench, &pool("p-1"), "Ready").starts_with("True"), "heals");
    assert_eq!(addresses(&bench), Some(vec!["10.51.0.9".to_owned()]));
}

/// `web` on node `n-1` and `web-n` on node `1`: both groups are `web.n.1`.
#[test]
fn a_subnet_and_a_node_do_not_make_anothers_port_group() {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "1", 12);
    lead(&mut bench, Families::V4);
    add(&mut bench, &subnet("web"), json!({ "cidrBlock": "10.50.0.0/24" }));
    add(&mut bench, &subnet("web-n"), json!({ "cidrBlock": "10.51.0.0/24" }));
    let said = status(&bench, &subnet("web-n"), "Ready");
    assert!(said.starts_with("False") && said.contains("of subnet web for node n-1 too (web.n.1)"), "{said}");
    assert!(!names(&bench, "Logical_Switch").contains(&"web-n".to_owned()));
    // Groups of all pods on a node are `node.<node>`: those of subnet node-n on node 1 too.
    add(&mut bench, &subnet("node-n"), json!({ "cidrBlock": "10.52.0.0/24" }));
    let said = status(&bench, &subnet("node-n"), "Ready");
    assert!(said.starts_with("False") && said.contains("of all pods on node n-1 too (node.n.1)"), "{said}");
    // Without the node there is nothing to share.
    bench.api.remove(&cluster(Kind::Node, "1"));
    bench.settle();
    for name in ["web-n", "node-n"] {
        assert!(status(&bench, &subnet(name), "Ready").starts_with("True"), "{name} heals");
    }
    // A node that comes later switches off nothing that is served, and is no secret.
    bench.add_pod_with("a-0", "n-1", json!({ "ovn.kubernetes.io/logical_switch": "web-n" }));
    bench.settle();
    super::add_node(&mut bench, Families::V4, "1", 12);
    bench.settle();
    let said = status(&bench, &subnet("web-n"), "Validated");
    assert!(said.starts_with("False") && said.contains("(web.n.1)"), "{said}");
    bench.add_pod_with("a-1", "n-1", json!({ "ovn.kubernetes.io/logical_switch": "web-n" }));
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.add_pod_with("a-2", "n-1", json!({ "ovn.kubernetes.io/logical_switch": "web-n" }));
    bench.settle();
    for name in ["a-0", "a-1", "a-2"] {
        assert_eq!(bench.api.annotation(&pod(name), "ovn.kubernetes.io/routed"), Some("true"), "{name}");
    }
}

/// `n-1` and `n.1` have one port group, `node.n.1`.
#[test]
fn nodes_whose_port_groups_would_share_a_name_are_told() {
    let mut bench = two_nodes();
    super::add_node(&mut bench, Families::V4, "n.1", 13);
    bench.settle();
    let told = |bench: &crate::sim::Bench| -> Vec<(String, String)> {
        let events = bench.processes.iter().flat_map(|process| &process.events);
        let events = events.filter(|event| &*event.reason == "NodeNameConflict");
        events.map(|event| (event.object.name.to_string(), event.message.to_string())).collect()
    };
    let said = told(&bench);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].0 == "n.1" && said[0].1.contains("node n-1 (node.n.1)"), "{said:?}");
    // What is there for the first one stays as it is, in every order.
    let groups = |bench: &crate::sim::Bench| {
        let text = all_rows(bench);
        let lines = text.lines().skip_while(|line| *line != "Port_Group node.n.1").take(4);
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(groups(&bench).iter().any(|line| line.contains("n-1")), "{:?}", groups(&bench));
    let before = all_rows(&bench);
    restart(&mut bench, Families::V4);
    bench.pass(60_000);
    assert_eq!(all_rows(&bench), before);
    bench.api.remove(&cluster(Kind::Node, "n-1"));
    bench.settle();
    assert!(groups(&bench).iter().any(|line| line.contains("node/n.1")), "{:?}", groups(&bench));
    assert!(bench.core().quiet(), "{}", bench.core().status());
}
