//! What subnets and VPCs mean: the binary fills a real northbound database from
//! objects as users write them, a real ovn-northd compiles it, and packets are traced
//! through the result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::time::Duration;

use rig::ovn::{End, Ovn, end, packet};
use rig::{Controller, NODES, PODS, Rig, eventually};
use serde_json::{Value, json};

const SUBNETS: &str = "/apis/kubeovn.io/v1/subnets";
const VPCS: &str = "/apis/kubeovn.io/v1/vpcs";

/// Two nodes, the objects, a controller.
async fn cluster(vpcs: &[(&str, Value)], subnets: &[(&str, Value)]) -> (Rig, Controller) {
    let rig = Rig::new().await;
    rig.node("n-1", "192.0.2.11");
    rig.node("n-2", "192.0.2.12");
    for (name, spec) in vpcs {
        rig.api.create(VPCS, json!({ "metadata": { "name": name }, "spec": spec }));
    }
    for (name, spec) in subnets {
        rig.api.create(SUBNETS, json!({ "metadata": { "name": name }, "spec": spec }));
    }
    let controller = rig.start(&[]).await;
    (rig, controller)
}

/// A pod on a subnet, once it is routed.
async fn pod(rig: &Rig, name: &str, node: &str, subnet: &str, address: &str) -> End {
    rig.api.create(
        PODS,
        json!({
            "metadata": { "name": name, "annotations": {
                "ovn.kubernetes.io/logical_switch": subnet, "ovn.kubernetes.io/ip_address": address,
            } },
            "spec": { "nodeName": node, "restartPolicy": "Always" }, "status": { "phase": "Pending" },
        }),
    );
    end(&format!("{name}.shop"), &rig.routed(name).await)
}

fn node(rig: &Rig, name: &str) -> End {
    let object = rig.api.get(&format!("{NODES}/{name}")).unwrap();
    end(&format!("node-{name}"), &object["metadata"]["annotations"])
}

/// The packet comes out at that port, and nowhere else; with `None` nowhere at all.
#[track_caller]
fn goes(ovn: &Ovn<'_>, switch: &str, packet: &str, port: Option<&End>) {
    let trace = ovn.trace(switch, packet);
    let outputs: Vec<&str> = trace.lines().filter(|line| line.contains("output(")).map(str::trim).collect();
    let wanted: Vec<String> = port.map(|end| format!("output(\"{}\");", end.port)).into_iter().collect();
    assert_eq!(outputs, wanted, "{packet}\n{trace}");
}

async fn stop(controller: Controller) {
    tokio::time::timeout(Duration::from_secs(20), controller.stop()).await.unwrap();
}

/// Subnets of the default VPC reach each other; a private one reaches all, and is
/// entered by itself, by nodes (by both of their addresses) and by what it allows.
#[tokio::test(flavor = "multi_thread")]
async fn real_private_subnets_truth_table() {
    let subnets = [
        ("open", json!({ "cidrBlock": "10.60.0.0/16" })),
        ("friend", json!({ "cidrBlock": "10.61.0.0/16" })),
        ("walled", json!({ "cidrBlock": "10.62.0.0/16", "private": true, "allowSubnets": ["10.61.0.0/16"] })),
        (
            "ruled",
            json!({ "cidrBlock": "10.63.0.0/16", "allowEWTraffic": true, "acls": [
            { "direction": "to-lport", "priority": 1100, "match": "ip4.src == 10.60.0.0/16", "action": "drop" },
        ] }),
        ),
    ];
    let (rig, controller) = cluster(&[], &subnets).await;
    let open = pod(&rig, "open", "n-1", "open", "10.60.0.5").await;
    let friend = pod(&rig, "friend", "n-1", "friend", "10.61.0.5").await;
    let walled = pod(&rig, "walled", "n-2", "walled", "10.62.0.5").await;
    let beside = pod(&rig, "beside", "n-1", "walled", "10.62.0.6").await;
    let ruled = pod(&rig, "ruled", "n-1", "ruled", "10.63.0.5").await;
    controller.quiet().await;
    let host = node(&rig, "n-1");
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let gateway = |subnet: &str| ovn.router_mac(&format!("ovn-cluster-{subnet}"));
    for (switch, from, to, passes) in [
        ("open", &open, &friend, true),
        ("friend", &friend, &walled, true),
        ("open", &open, &walled, false),
        ("walled", &walled, &open, true),
        ("walled", &walled, &friend, true),
        ("walled", &walled, &ruled, true),
        ("ruled", &ruled, &walled, false),
        ("open", &open, &ruled, false),
        ("friend", &friend, &ruled, true),
    ] {
        let packet = packet(from, &gateway(switch), &to.ips[0]);
        goes(&ovn, switch, &packet, passes.then_some(to));
    }
    goes(&ovn, "walled", &packet(&beside, &walled.mac, &walled.ips[0]), Some(&walled));
    goes(&ovn, "join", &packet(&host, &gateway("join"), &walled.ips[0]), Some(&walled));
    // Nodes speak with their own addresses; whoever speaks with another one stays outside.
    for (address, passes) in [("192.0.2.11", true), ("192.0.2.12", true), ("192.0.2.13", false)] {
        let host = End { ips: vec![address.into()], ..node(&rig, "n-1") };
        let packet = packet(&host, &gateway("join"), &walled.ips[0]);
        goes(&ovn, "join", &packet, passes.then_some(&walled));
    }
    // Another node comes: it enters too.
    rig.node("n-3", "192.0.2.13");
    controller.quiet().await;
    ovn.sync();
    let host = End { ips: vec!["192.0.2.13".into()], ..node(&rig, "n-1") };
    goes(&ovn, "join", &packet(&host, &gateway("join"), &walled.ips[0]), Some(&walled));
    drop(ovn);
    stop(controller).await;
}

/// Two VPCs with the same block keep apart; peers reach each other; a default route
/// to a gateway pod of the subnet is used.
#[tokio::test(flavor = "multi_thread")]
async fn real_vpcs_with_one_block_and_peers() {
    let peer = |remote: &str, address: &str| json!([{ "remoteVpc": remote, "localConnectIP": address }]);
    let vpcs = [
        (
            "red",
            json!({
                "vpcPeerings": peer("blue", "169.254.0.1/30"),
                "staticRoutes": [
                    { "cidr": "10.81.0.0/16", "nextHopIP": "169.254.0.2" },
                    { "cidr": "0.0.0.0/0", "nextHopIP": "10.80.0.254" },
                ],
                "policyRoutes": [{ "priority": 500, "match": "ip4.dst == 198.51.100.66", "action": "drop" }],
            }),
        ),
        (
            "blue",
            json!({
                "vpcPeerings": peer("red", "169.254.0.2/30"),
                "staticRoutes": [{ "cidr": "10.80.0.0/16", "nextHopIP": "169.254.0.1" }],
            }),
        ),
        ("green", json!({})),
    ];
    let subnets = [
        ("red-1", json!({ "vpc": "red", "cidrBlock": "10.80.0.0/16" })),
        ("blue-1", json!({ "vpc": "blue", "cidrBlock": "10.81.0.0/16" })),
        ("green-1", json!({ "vpc": "green", "cidrBlock": "10.80.0.0/16" })),
        ("green-2", json!({ "vpc": "green", "cidrBlock": "10.82.0.0/24" })),
    ];
    let (rig, controller) = cluster(&vpcs, &subnets).await;
    let red = pod(&rig, "red", "n-1", "red-1", "10.80.0.5").await;
    let exit = pod(&rig, "exit", "n-1", "red-1", "10.80.0.254").await;
    let blue = pod(&rig, "blue", "n-2", "blue-1", "10.81.0.5").await;
    let green = pod(&rig, "green", "n-1", "green-1", "10.80.0.5").await;
    let other = pod(&rig, "other", "n-1", "green-2", "10.82.0.5").await;
    controller.quiet().await;
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let (r, b, g) =
        (ovn.router_mac("red-red-1"), ovn.router_mac("blue-blue-1"), ovn.router_mac("green-green-1"));
    goes(&ovn, "red-1", &packet(&red, &r, "10.81.0.5"), Some(&blue));
    goes(&ovn, "blue-1", &packet(&blue, &b, "10.80.0.5"), Some(&red));
    goes(&ovn, "green-1", &packet(&green, &g, "10.82.0.5"), Some(&other));
    goes(&ovn, "green-1", &packet(&green, &g, "10.81.0.5"), None);
    // The world: red has an exit, green has none, and red's policy forbids one address.
    goes(&ovn, "red-1", &packet(&red, &r, "198.51.100.7"), Some(&exit));
    goes(&ovn, "red-1", &packet(&red, &r, "198.51.100.66"), None);
    goes(&ovn, "green-1", &packet(&green, &g, "198.51.100.7"), None);
    drop(ovn);
    stop(controller).await;
}

/// A pod leaves by the next hop that it names, and by its node once it names none; what
/// OVN tells hosts about multicast is what the subnet's status says.
#[tokio::test(flavor = "multi_thread")]
async fn real_next_hop_of_a_pod_and_multicast_querier() {
    const NORTH: &str = "ovn.kubernetes.io/north_gateway";
    let spec = json!({ "cidrBlock": "10.60.0.0/16,fd00:60::/64", "enableMulticastSnoop": true });
    let (rig, controller) = cluster(&[], &[("s", spec)]).await;
    let exit = pod(&rig, "exit", "n-2", "s", "10.60.0.254").await;
    let inside = pod(&rig, "inside", "n-1", "s", "10.60.0.5").await;
    let annotate = |value: Value| {
        rig.api.patch(&format!("{PODS}/inside"), json!({ "metadata": { "annotations": { NORTH: value } } }));
    };
    annotate(json!("10.60.0.254"));
    controller.quiet().await;
    let host = node(&rig, "n-1");
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let out = packet(&inside, &ovn.router_mac("ovn-cluster-s"), "198.51.100.7");
    eventually("the pod leaves by its own next hop", async || {
        ovn.sync();
        ovn.trace("s", &out).contains(&format!("output(\"{}\")", exit.port))
    })
    .await;
    goes(&ovn, "s", &out, Some(&exit));
    annotate(Value::Null);
    eventually("the pod leaves by its node", async || {
        ovn.sync();
        ovn.trace("s", &out).contains(&format!("output(\"{}\")", host.port))
    })
    .await;
    goes(&ovn, "s", &out, Some(&host));
    eventually("the status names the querier", async || {
        let subnet = rig.api.get(&format!("{SUBNETS}/s")).unwrap();
        subnet["status"]["mcastQuerierIP"].as_str().is_some_and(|ip| !ip.is_empty())
    })
    .await;
    let status = rig.api.get(&format!("{SUBNETS}/s")).unwrap()["status"].clone();
    let text = |key: &str| status[key].as_str().unwrap().to_owned();
    let (ips, mac) = (text("mcastQuerierIP"), text("mcastQuerierMAC"));
    let told = ovn.multicast();
    let wanted = ["true", &*mac, ips.split(',').next().unwrap(), "fe80::"];
    assert!(wanted.iter().all(|part| told.contains(part)), "{told}");
    drop(ovn);
    stop(controller).await;
}

/// Traffic of a centralized subnet leaves by its gateway node, whichever node its pod
/// is on, and by the other one when that one fails.
#[tokio::test(flavor = "multi_thread")]
async fn real_centralized_gateway_fails_over() {
    let spec = json!({ "cidrBlock": "10.60.0.0/16", "gatewayType": "centralized", "gatewayNode": "n-2,n-1" });
    let (rig, controller) = cluster(&[], &[("central", spec)]).await;
    let pod = pod(&rig, "a", "n-1", "central", "10.60.0.5").await;
    controller.quiet().await;
    let (first, second) = (node(&rig, "n-2"), node(&rig, "n-1"));
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let out = packet(&pod, &ovn.router_mac("ovn-cluster-central"), "198.51.100.7");
    goes(&ovn, "central", &out, Some(&first));
    let fail = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    rig.api.patch(&format!("{NODES}/n-2"), fail);
    eventually("the other node is active", async || {
        rig.api.get(&format!("{SUBNETS}/central")).unwrap()["status"]["activateGateway"] == "n-1"
    })
    .await;
    ovn.sync();
    goes(&ovn, "central", &out, Some(&second));
    // Back to every node's own way.
    rig.api.patch(&format!("{SUBNETS}/central"), json!({ "spec": { "gatewayType": "distributed" } }));
    controller.quiet().await;
    eventually("no central policy is left", async || {
        ovn.sync();
        ovn.trace("central", &out).contains(&second.port)
            && controller.call("plan", json!([])).await.as_array().is_none_or(Vec::is_empty)
    })
    .await;
    goes(&ovn, "central", &out, Some(&second));
    drop(ovn);
    stop(controller).await;
}

/// OVN answers DHCP and router solicitations from what the subnet says.
#[tokio::test(flavor = "multi_thread")]
async fn real_dhcp_and_router_advertisements() {
    let spec = json!({ "cidrBlock": "10.60.0.0/16,fd00:60::/64", "enableDHCP": true, "enableIPv6RA": true,
        "dhcpV4Options": "dns_server={10.96.0.10},lease_time=600" });
    let (rig, controller) = cluster(&[], &[("auto", spec)]).await;
    let pod = pod(&rig, "a", "n-1", "auto", "10.60.0.5,fd00:60::5").await;
    controller.quiet().await;
    let ovn = Ovn::start(&rig.database);
    ovn.sync();
    let (port, mac) = (&pod.port, &pod.mac);
    let discover = format!(
        "inport == \"{port}\" && eth.src == {mac} && eth.dst == ff:ff:ff:ff:ff:ff && ip4.src == 0.0.0.0 && ip4.dst == \
         255.255.255.255 && ip.ttl == 64 && udp.src == 68 && udp.dst == 67"
    );
    let trace = ovn.trace("auto", &discover);
    assert!(
        trace.contains("put_dhcp_opts") && trace.contains("10.60.0.5") && trace.contains("10.96.0.10"),
        "{trace}"
    );
    let solicit = format!(
        "inport == \"{port}\" && eth.src == {mac} && eth.dst == 33:33:00:00:00:02 && ip6.src == fe80::1 && ip6.dst == \
         ff02::2 && ip.ttl == 255 && icmp6.type == 133 && icmp6.code == 0"
    );
    let trace = ovn.trace("auto", &solicit);
    assert!(trace.contains("put_nd_ra_opts") && trace.contains("fd00:60::/64"), "{trace}");
    drop(ovn);
    stop(controller).await;
}
