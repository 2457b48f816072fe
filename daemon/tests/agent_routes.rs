//! Routes of the node and sets of the gateway follow every kind of Subnet, and the node's own gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::json;
use support::agent::{Machine, until};

/// A Subnet of the default VPC with some fields of its own.
fn subnet(name: &str, cidr: &str, fields: &serde_json::Value) -> serde_json::Value {
    let mut spec = json!({
        "cidrBlock": cidr, "natOutgoing": true, "gatewayType": "distributed", "provider": "ovn", "vpc": "ovn-cluster",
    });
    for (key, value) in fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": spec,
        "status": {"conditions": [{"type": "Validated", "status": "True"}]},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_111_routes_follow_every_kind_of_subnet_and_the_nodes_gateway() {
    let machine = Machine::boot().await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    for (name, cidr, fields) in [
        ("central", "10.20.0.0/16", json!({"gatewayType": "centralized", "gatewayNode": "n2"})),
        ("second", "10.21.0.0/16", json!({"provider": "net.web.ovn"})),
        ("custom", "10.22.0.0/16", json!({"vpc": "tenant"})),
        ("vlan", "10.23.0.0/16", json!({"vlan": "vlan10"})),
        (
            "connected",
            "10.24.0.0/16",
            json!({"vlan": "vlan10", "u2oInterconnection": true, "enableLb": false}),
        ),
        ("logical", "10.25.0.0/16", json!({"vlan": "vlan10", "logicalGateway": true})),
        ("ipam", "10.26.0.0/16", json!({"provider": "macvlan.web", "vpc": ""})),
    ] {
        machine.api.put("subnets", subnet(name, cidr, &fields));
    }
    let mut refused = subnet("refused", "10.27.0.0/16", &json!({}));
    refused["status"]["conditions"][0]["status"] = json!("False");
    machine.api.put("subnets", refused);
    let ovn0 = machine.host.netlink.require_link("ovn0").await.unwrap().index;
    // Second numbers of the routes to pods, with the gateway's last number.
    let routes = async || -> Vec<String> {
        let all = machine.host.netlink.routes().await.unwrap();
        let mut shown: Vec<String> = all
            .iter()
            .filter(|route| route.link == Some(ovn0) && route.gateway.is_some_and(|ip| ip.is_ipv4()))
            .map(|route| format!("{} {}", route.destination, route.gateway.unwrap()))
            .collect();
        shown.sort();
        shown
    };
    let via = |gateway: &str, numbers: &[u8]| -> Vec<String> {
        numbers.iter().map(|number| format!("10.{number}.0.0/16 {gateway}")).collect()
    };
    let wanted = via("100.64.0.1", &[16, 20, 21, 24, 25]);
    until(&machine, "the routes", async || routes().await == wanted).await;
    let sets = || {
        let save =
            || std::process::Command::new("ipset").args(["save", "ovn40subnets"]).output().unwrap().stdout;
        String::from_utf8(machine.namespace.run(save).unwrap()).unwrap()
    };
    until(&machine, "the set", async || sets().contains("10.25.0.0/16")).await;
    let set = sets();
    for (number, overlay) in
        [(16, true), (20, true), (21, true), (22, false), (23, false), (24, false), (26, false)]
    {
        assert_eq!(set.contains(&format!("10.{number}.0.0/16")), overlay, "{number}: {set}");
    }
    machine.api.delete("subnets", "", "second");
    let wanted = via("100.64.0.1", &[16, 20, 24, 25]);
    until(&machine, "one route less", async || routes().await == wanted).await;
    // What is not good any more serves on, and so does what names another VPC while it is used (D110).
    let invalid = json!({"status": {"conditions": [{"type": "Validated", "status": "False"}]}});
    machine.api.edit("subnets", "", "central", &invalid);
    let edit = |name: &str, fields: serde_json::Value| machine.api.edit("subnets", "", name, &fields);
    edit("logical", json!({"status": {"v4usingIPs": 2}}));
    edit("logical", json!({"spec": {"vpc": "tenant"}}));
    edit("logical", invalid.clone());
    edit("central", invalid);
    // The next pass is known by what it does.
    edit("connected", json!({"spec": {"u2oInterconnection": false}}));
    let wanted = via("100.64.0.1", &[16, 20, 25]);
    until(&machine, "one route less again", async || routes().await == wanted).await;
    assert!(sets().contains("10.25.0.0/16") && sets().contains("10.20.0.0/16"));
    // A new agent goes by what it finds.
    drop(agent);
    let agent = machine.start_agent();
    machine.wait_ready().await;
    assert_eq!(routes().await, wanted);
    assert!(sets().contains("10.25.0.0/16"));
    // The last address is free: the Subnet moves.
    edit(
        "logical",
        json!({"status": {"v4usingIPs": 0, "conditions": [{"type": "Validated", "status": "True"}]}}),
    );
    let wanted = via("100.64.0.1", &[16, 20]);
    until(&machine, "the move", async || routes().await == wanted && !sets().contains("10.25.0.0/16")).await;
    // The join subnet's gateway moves: every route follows.
    let mut node = machine.api.get("nodes", "", "n1").unwrap();
    node["metadata"]["annotations"][crds::keys::GATEWAY] = json!("100.64.0.254,fd00:100::fe");
    machine.api.put("nodes", node);
    let wanted = via("100.64.0.254", &[16, 20]);
    until(&machine, "the new gateway", async || routes().await == wanted).await;
    drop(agent);
}
