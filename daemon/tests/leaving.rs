//! What a person does to a node with an agent: looks at it before, removes files of ours while it runs, changes the
//! log's level, and takes Weir off it for good.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use daemon::ovs::{BridgeSpec, PortSpec, plan};
use serde_json::json;
use support::agent::{Machine, call};
use support::{addresses, answers, new_namespace, request, routed_pod};

/// Runs a script on the node and returns what it printed.
fn on_node(machine: &Machine, script: &'static str) -> String {
    let run = move || Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output();
    let output = machine.namespace.run(run).unwrap().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every rule, chain and set of the host, in order. The empty built-in chains that the system's tools make when they
/// first look at a table are left out.
const FIREWALL: &str =
    "for save in iptables-nft-save ip6tables-nft-save; do $save | grep -E '^-A|^:.* - '; done; ipset save";
/// Routes and the rules that choose among their tables. Of link-local prefixes each link has one; the kernel lists them in
/// the order in which links got IPv6, which a NIC in a bridge is without.
const ROUTES: &str = "ip route; ip -6 route | sed 's/ expires.*//' | grep -v ^fe80; ip -6 route | grep ^fe80 | sort; \
    ip rule; ip -6 rule";
/// Somebody else's rules, among them some in the chains that ours hook into.
const FOREIGN: &str = "iptables-nft -t nat -A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE && \
    iptables-nft -t filter -N SITE && iptables-nft -A FORWARD -j SITE && iptables-nft -A SITE -s 192.0.2.1 -j DROP && \
    ip6tables-nft -A INPUT -s 2001:db8::/32 -j ACCEPT && \
    ipset create site4 hash:net && ipset add site4 192.0.2.0/25";

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..1200 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_looked_at_served_and_left_as_it_was() {
    let machine = Machine::boot().await;
    let (fit, table) = machine.run_agent("--check");
    assert!(fit, "{table}");
    on_node(&machine, FOREIGN);
    let before = on_node(&machine, FIREWALL);
    let routes = on_node(&machine, ROUTES);

    let agent = machine.start_agent();
    machine.wait_ready().await;
    let (pod, namespace) = (routed_pod(1), new_namespace());
    machine.route_pod(&pod);
    let added = request(&pod, &namespace, 1);
    machine.add(&added).await;
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    until("rules of ours", async || on_node(&machine, FIREWALL).contains("OVN-")).await;

    // Files that somebody removes come back, and calls go on.
    let (socket, conflist) = (machine.file("cni.sock"), machine.file("net.d/01-kube-ovn.conflist"));
    until("the configuration", async || conflist.exists()).await;
    std::fs::remove_file(&socket).unwrap();
    std::fs::remove_file(&conflist).unwrap();
    until("the socket is back", async || {
        call(&socket, "GET", "/api/v1/status", &json!({})).await.is_ok_and(|(code, _)| code == 200)
    })
    .await;
    until("the configuration is back", async || conflist.exists()).await;
    assert!(machine.get("/livez").await.contains("200 OK"));

    // The level changes while it runs.
    let told = machine.ask("log", json!({"filter": "info,daemon=trace"})).await;
    assert_eq!(told["filter"], "info,daemon=trace");
    assert_eq!(machine.ask("log", json!({})).await["filter"], "info,daemon=trace");
    assert_eq!(machine.ask("log", json!({"filter": ""})).await["filter"], "info,daemon=debug");

    // An agent that serves would make everything again.
    let (left, why) = machine.run_agent("--cleanup");
    assert!(!left && why.contains("the agent still serves"), "{why}");
    drop(agent);
    std::fs::create_dir_all(machine.file("bin")).unwrap();
    for plugin in ["kube-ovn", "portmap"] {
        std::fs::write(machine.file("bin").join(plugin), "x").unwrap();
    }
    let (left, told) = machine.run_agent("--cleanup");
    assert!(left, "{told}");
    assert!(told.contains("eth1 has its addresses and routes back"), "{told}");
    assert_eq!(on_node(&machine, FIREWALL), before, "others' rules and sets are as they were");
    assert_eq!(addresses(&machine.namespace, "eth1").await, ["10.9.0.11/24", "fd09::11/64"]);
    assert_eq!(on_node(&machine, ROUTES), routes);
    until("bridges and links of ours are gone", async || {
        let links = on_node(&machine, "ip -o link");
        !links.contains("br-phy") && !links.contains("ovn0") && !links.contains("_h@")
    })
    .await;
    let view = machine.ovs.view();
    assert!(view.interface("ovn0").is_none() && view.root_external_id("ovn-encap-ip").is_none());
    assert_eq!(view.root_external_id("system-id"), Some("chassis-1"), "not ours");
    assert!(view.interface("gw-port").is_some(), "not ours");
    assert!(!conflist.exists() && !socket.exists() && !machine.file("bin/kube-ovn").exists());
    assert!(machine.file("bin/portmap").exists(), "the node's");
    // Somebody else's port has the mirror's name, on a bridge of theirs.
    let theirs =
        BridgeSpec { name: "br-site".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    machine.ovs.apply(|view| plan::ensure_bridge(view, &theirs)).await.unwrap();
    let port = PortSpec {
        bridge: "br-site".into(),
        name: "mirror0".into(),
        kind: "internal".into(),
        ..PortSpec::default()
    };
    machine.ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
    let (left, told) = machine.run_agent("--cleanup");
    assert!(left && told.contains("nothing of ours is on this node"), "{told}");
    assert!(machine.ovs.view().port_names("br-site").contains("mirror0"), "not ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradicting_flags_end_the_start_with_the_remedy() {
    let machine = Machine::boot().await;
    for (argument, word) in [
        ("--iface=eth[", "no regular expression"),
        ("--cni-conf-name=kube-ovn.txt", "does not end in .conflist"),
        ("--mirror-iface=br-int", "another purpose"),
    ] {
        let (started, why) = machine.run_agent(argument);
        assert!(!started && (machine.log() + &why).contains(word), "{argument}: {why}");
    }
}
