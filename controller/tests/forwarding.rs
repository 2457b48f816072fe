//! What the rows mean: the binary fills a real northbound database, a real
//! ovn-northd compiles it, and packets are traced through the result. In each
//! family: pod to pod, pod to every node, pod to the world by its own node, node
//! to pod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::time::Duration;

use rig::ovn::{End, Ovn, end, packet};
use rig::{NODES, Rig};
use serde_json::json;

async fn ways(v4: bool, v6: bool) {
    let pick = |a: &str, b: &str| {
        let parts = [(v4, a), (v6, b)];
        parts.iter().filter(|(on, _)| *on).map(|(_, text)| (*text).to_owned()).collect::<Vec<_>>()
    };
    let rig = Rig::new().await;
    for (node, number) in [("n-1", "11"), ("n-2", "12")] {
        let ips = pick(&format!("192.0.2.{number}"), &format!("2001:db8::{number}"));
        let addresses: Vec<_> = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        rig.api.create(
            NODES,
            json!({
                "metadata": {"name": node, "annotations": {"ovn.kubernetes.io/chassis": format!("chassis-{node}")}},
                "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]}
            }),
        );
    }
    for (pod, node) in [("a", "n-1"), ("b", "n-1"), ("c", "n-2")] {
        rig.pod(pod, node);
    }
    let flags = [
        format!("--default-cidr={}", pick("10.16.0.0/16", "fd00:10:16::/112").join(",")),
        format!("--node-switch-cidr={}", pick("100.64.0.0/16", "fd00:100:64::/112").join(",")),
        format!("--service-cluster-ip-range={}", pick("10.96.0.0/12", "fd00:10:96::/112").join(",")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let controller = rig.start(&flags).await;
    let mut pods = Vec::new();
    for pod in ["a", "b", "c"] {
        pods.push(end(&format!("{pod}.shop"), &rig.routed(pod).await));
    }
    controller.quiet().await;
    let [a, b, c] = &pods[..] else { panic!("three pods") };
    let nodes: Vec<End> = ["n-1", "n-2"]
        .iter()
        .map(|node| {
            let object = rig.api.get(&format!("{NODES}/{node}")).unwrap();
            end(&format!("node-{node}"), &object["metadata"]["annotations"])
        })
        .collect();

    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let (default, join) = (ovn.router_mac("ovn-cluster-ovn-default"), ovn.router_mac("ovn-cluster-join"));
    let world = pick("198.51.100.7", "2001:db8:ffff::7");
    let node_ips = [pick("192.0.2.11", "2001:db8::11"), pick("192.0.2.12", "2001:db8::12")];
    let mut expectations: Vec<(&str, String, &str)> = Vec::new();
    for (index, outside) in world.iter().enumerate() {
        for (from, to) in [(a, b), (a, c), (c, a)] {
            expectations.push(("ovn-default", packet(from, &to.mac, &to.ips[index]), &to.port));
        }
        expectations.push(("ovn-default", packet(a, &default, outside), &nodes[0].port));
        expectations.push(("ovn-default", packet(c, &default, outside), &nodes[1].port));
        for (node, ips) in nodes.iter().zip(&node_ips) {
            // The node's own address, and its address on the join switch, from both nodes' pods.
            for pod in [a, c] {
                expectations.push(("ovn-default", packet(pod, &default, &ips[index]), &node.port));
                expectations.push(("ovn-default", packet(pod, &default, &node.ips[index]), &node.port));
            }
            for pod in [a, c] {
                expectations.push(("join", packet(node, &join, &pod.ips[index]), &pod.port));
            }
        }
    }
    for (switch, packet, port) in expectations {
        let trace = ovn.trace(switch, &packet);
        assert!(
            trace.contains(&format!("output(\"{port}\")")),
            "{packet}\nmust come out at {port}:\n{trace}"
        );
        assert_eq!(trace.matches("output(").count(), 1, "{packet}\nonce only:\n{trace}");
    }
    drop(ovn);
    tokio::time::timeout(Duration::from_secs(20), controller.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn real_ways_of_ipv4() {
    ways(true, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_ways_of_ipv6() {
    ways(false, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_ways_of_dual_stack() {
    ways(true, true).await;
}

/// U67: what a pod sends from an address that is not its own is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn real_u67_a_spoofed_source_is_dropped() {
    let rig = Rig::new().await;
    rig.node("n-1", "192.0.2.11");
    rig.pod("secure", "n-1");
    rig.pod("peer", "n-1");
    let opt_out = json!({"ovn.kubernetes.io/port_security": "false"});
    rig.api.create(
        rig::PODS,
        json!({"metadata": {"name": "gateway", "annotations": opt_out},
            "spec": {"nodeName": "n-1", "restartPolicy": "Always"}, "status": {"phase": "Pending"}}),
    );
    let controller = rig.start(&["--enable-port-security"]).await;
    let mut pods = Vec::new();
    for pod in ["secure", "peer", "gateway"] {
        pods.push(end(&format!("{pod}.shop"), &rig.routed(pod).await));
    }
    controller.quiet().await;
    let [secure, peer, gateway] = &pods[..] else { panic!("three pods") };
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let out = |from: &End, mac: &str, ip: &str| {
        let spoof = End { port: from.port.clone(), mac: mac.into(), ips: vec![ip.into()] };
        ovn.trace("ovn-default", &packet(&spoof, &peer.mac, &peer.ips[0])).contains("output(\"peer.shop\")")
    };
    assert!(out(secure, &secure.mac, &secure.ips[0]), "its own address passes");
    assert!(!out(secure, &secure.mac, "10.16.99.99"), "a spoofed IP is dropped");
    assert!(!out(secure, &secure.mac, &gateway.ips[0]), "so is another pod's");
    assert!(!out(secure, "02:00:00:99:99:99", &secure.ips[0]), "so is a spoofed MAC");
    assert!(out(gateway, &gateway.mac, "10.16.99.99"), "a pod that opted out is a gateway for others");
    drop(ovn);
    tokio::time::timeout(Duration::from_secs(20), controller.stop()).await.unwrap();
}
