//! What the node contract says of nodes and what other files' tests do not look at (docs/node-checks.md).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use daemon::netlink::Veth;
use serde_json::json;
use support::agent::{Machine, until};
use support::heal::run;
use support::new_namespace;
use support::underlay::sh;

/// §4.1, §5.1 `--non-primary-cni-mode`: another plugin has the host's firewall and the node's condition. What an agent in
/// primary mode left is taken away once, what others have stays, routes to pods are kept as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_another_plugin_there_are_routes_and_no_rules() {
    let machine = Machine::boot().await;
    {
        let _before = machine.start_agent();
        machine.wait_ready().await;
    }
    let rules = || {
        let tools = ["iptables-nft-save", "iptables-legacy-save", "ip6tables-nft-save"];
        tools.map(|tool| run(&machine.namespace, tool)).concat()
    };
    assert!(rules().contains("OVN-POSTROUTING"));
    sh(&machine.namespace, "iptables-nft -w 30 -t nat -N OTHERS && ipset create OTHERS hash:ip");
    let route = "10.16.0.0/16 via 100.64.0.1";
    let routes = || run(&machine.namespace, "ip route show dev ovn0");
    assert!(routes().contains(route), "{}", routes());
    let theirs = json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False",
        "reason": "OtherPluginIsUp", "message": "of another plugin"}]}});
    machine.api.edit("nodes", "", "n1", &theirs).unwrap();

    let _agent = machine.start_agent_with(&["--non-primary-cni-mode"]);
    machine.wait_ready().await;
    until(&machine, "our rules go", async || !rules().contains("OVN-")).await;
    let sets = run(&machine.namespace, "ipset list -n");
    assert!(sets.contains("OTHERS") && !sets.contains("ovn40"), "{sets}");
    assert!(rules().contains("OTHERS"));
    sh(&machine.namespace, "ip route del 10.16.0.0/16 dev ovn0");
    until(&machine, "the route is back", async || routes().contains(route)).await;
    assert!(!rules().contains("OVN-"), "a pass makes none");
    let node = machine.api.get("nodes", "", "n1").unwrap();
    assert_eq!(node["status"]["conditions"][0]["reason"], "OtherPluginIsUp", "{node}");
}

/// §3.1 step 9, §4.1 `loopTunnelCheck`: the kernel's tunnel devices are up and compute no checksums on the way out,
/// whenever they appear and whoever sets them down; VXLAN's keeps its checksums unless the flag says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnel_devices_are_up_and_without_checksum_offload() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let elsewhere = new_namespace();
    let host = &machine.host;
    for name in ["genev_sys_6081", "vxlan_sys_4789"] {
        // A stand-in: what matters here is its name.
        let veth = Veth { name, peer: name, peer_mac: None, peer_namespace: Some(&elsewhere), mtu: None };
        host.netlink.add_veth(&veth).await.unwrap();
        let up = async || host.netlink.require_link(name).await.unwrap().up;
        run(&machine.namespace, &format!("ip link set {name} down"));
        until(&machine, "a device that is down is set up", &up).await;
        run(&machine.namespace, &format!("ip link set {name} down"));
        until(&machine, "again", &up).await;
    }
    until(&machine, "geneve's checksums are off", async || {
        !host.ethtool.tx_checksum("genev_sys_6081").unwrap()
    })
    .await;
    assert!(host.ethtool.tx_checksum("vxlan_sys_4789").unwrap(), "--set-vxlan-tx-off is false");
}
