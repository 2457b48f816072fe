//! External networks of VPCs mean what they should: the binary fills a real northbound database, a real ovn-northd
//! compiles it and lives through every way of taking it away, and packets are traced through the result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::time::Duration;

use rig::ovn::{Ovn, end, packet};
use rig::{NODES, PODS, Rig, eventually};
use serde_json::{Value, json};

fn path(plural: &str) -> String {
    format!("/apis/kubeovn.io/v1/{plural}")
}

fn create(rig: &Rig, plural: &str, name: &str, spec: Value) {
    rig.api.create(&path(plural), json!({ "metadata": { "name": name }, "spec": spec }));
}

fn get(rig: &Rig, plural: &str, name: &str) -> Value {
    rig.api.get(&format!("{}/{name}", path(plural))).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_a_vpc_leaves_by_nodes_that_answer() {
    let rig = Rig::new().await;
    for (node, ip) in [("n-1", "192.0.2.11"), ("n-2", "192.0.2.12")] {
        rig.node(node, ip);
        let label = json!({ "metadata": { "labels": { "ovn.kubernetes.io/external-gw": "true" } } });
        rig.api.patch(&format!("{NODES}/{node}"), label);
    }
    create(&rig, "provider-networks", "net1", json!({ "defaultInterface": "eth1" }));
    create(&rig, "vlans", "v-7", json!({ "id": 7, "provider": "net1" }));
    create(&rig, "subnets", "wan", json!({ "cidrBlock": "172.18.0.0/24", "vlan": "v-7" }));
    for node in ["n-1", "n-2"] {
        create(&rig, "ovn-eips", node, json!({ "externalSubnet": "wan", "type": "lsp" }));
        // The node's agent says so.
        rig.api.patch(&format!("{}/{node}", path("ovn-eips")), json!({ "status": { "ready": true } }));
    }
    let on = json!({ "extraExternalSubnets": ["wan"], "enableBfd": true });
    create(&rig, "vpcs", "blue", on.clone());
    create(&rig, "subnets", "b-1", json!({ "vpc": "blue", "cidrBlock": "10.50.0.0/24", "enableEcmp": true }));
    create(&rig, "subnets", "b-2", json!({ "vpc": "blue", "cidrBlock": "10.51.0.0/24" }));
    let controller = rig.start(&[]).await;
    let mut pods = Vec::new();
    for (name, subnet) in [("a", "b-1"), ("b", "b-2")] {
        rig.api.create(
            PODS,
            json!({
                "metadata": { "name": name, "annotations": { "ovn.kubernetes.io/logical_switch": subnet } },
                "spec": { "nodeName": "n-1", "restartPolicy": "Always" }, "status": { "phase": "Pending" },
            }),
        );
        pods.push(end(&format!("{name}.shop"), &rig.routed(name).await));
    }
    let connected = async || {
        let status = get(&rig, "vpcs", "blue")["status"].clone();
        status["extraExternalSubnets"] == json!(["wan"]) && status["enableBfd"] == json!(true)
    };
    eventually("the VPC is connected", connected).await;
    controller.quiet().await;
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let gateway = ovn.router_mac("blue-b-1");
    let out = packet(&pods[0], &gateway, "198.51.100.7");
    let within = packet(&pods[0], &gateway, &pods[1].ips[0]);
    let by_node = |trace: &str| trace.contains("output(\"n-1\")") || trace.contains("output(\"n-2\")");
    // No peer answers: there is no way out, and the VPC itself is as it was.
    assert!(!by_node(&ovn.trace("b-1", &out)), "{}", ovn.trace("b-1", &out));
    assert!(ovn.trace("b-1", &within).contains("output(\"b.shop\")"));
    // As their ovn-controllers would say.
    ovn.sessions("up");
    ovn.sync();
    let trace = ovn.trace("b-1", &out);
    assert!(by_node(&trace) && trace.matches("output(").count() == 1, "{trace}");
    assert!(ovn.trace("b-1", &within).contains("output(\"b.shop\")"), "between its subnets nothing leaves");
    // Its first gateway has the port.
    eventually("the first gateway is preferred", async || ovn.priorities() == [101, 99]).await;
    ovn.sessions("down");
    ovn.sync();
    eventually("the next gateway is preferred", async || ovn.priorities() == [99, 95]).await;

    // Off and on, in different ways: northd ends with a session whose port is gone, and never does.
    let vpc = format!("{}/blue", path("vpcs"));
    for round in 0..4 {
        let steps = [json!({ "enableBfd": false }), json!({ "extraExternalSubnets": [] })];
        let whole = json!({ "enableBfd": false, "extraExternalSubnets": [] });
        let steps = match round {
            0 => vec![whole],
            1 => steps.to_vec(),
            2 => steps.iter().rev().cloned().collect(),
            _ => {
                for node in ["n-1", "n-2"] {
                    rig.api.delete(&format!("{}/{node}", path("ovn-eips")));
                }
                steps.iter().rev().cloned().collect()
            }
        };
        for step in steps {
            rig.api.patch(&vpc, json!({ "spec": step }));
        }
        eventually("the port is gone", async || !rig.has_router_port("blue-wan").await).await;
        eventually("its OvnEip too", async || get(&rig, "ovn-eips", "blue-wan").is_null()).await;
        controller.quiet().await;
        ovn.sync();
        if round < 3 {
            rig.api.patch(&vpc, json!({ "spec": on }));
            eventually("the VPC is connected", connected).await;
            controller.quiet().await;
            ovn.sync();
        }
    }
    eventually("nodes' OvnEips are gone", async || get(&rig, "ovn-eips", "n-1").is_null()).await;
    drop(ovn);
    tokio::time::timeout(Duration::from_secs(20), controller.stop()).await.unwrap();
}
