//! Provider networks on a node with a real switch: the NIC in its bridge and home again, with everything that it
//! carries, while a machine on the physical network pings the node every millisecond.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod icmp;
mod support;

use daemon::kube::ProviderNetworkFacts;
use daemon::netlink::Change;
use daemon::ovs::{BridgeSpec, PortSpec, plan};
use support::underlay::{Agent, Wire, carried, changes, plain, sh, until, until_shown};
use support::{Node, answers, start_vswitchd, wait_view};
use tokio_util::sync::CancellationToken;

fn mappings(node: &Node) -> String {
    node.ovs.view().root_external_id("ovn-bridge-mappings").unwrap_or_default().to_owned()
}

async fn set_root(node: &Node, key: &str, value: &str) {
    let ids = [(key.to_owned(), value.to_owned())].into();
    node.ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_093_k_096_k_101_a_nic_moves_into_its_bridge_and_home_again() {
    let node = Node::start().await;
    let wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    set_root(&node, "ovn-bridge-mappings", "physnet1:br-ex, other:br-other").await;
    let before = carried(&node.namespace, "eth1");
    assert!(before.lines().count() >= 14, "{before}");
    let host = node.host.netlink.require_link("eth1").await.unwrap();

    let streams = ["10.9.0.11", "10.9.1.11", "fd09::11"].map(|ip| icmp::stream(&wire.namespace, ip));
    let out = icmp::stream(&node.namespace, "10.9.0.1");
    let mut underlay = agent.start(&node);
    agent.want("net1", "eth1");
    assert!(underlay.pass().await);
    let moved = out.end();
    let streams = streams.map(icmp::Streaming::end);
    println!("into the bridge: from outside {streams:?}, from the node {moved:?}");
    for stream in streams[..2].iter().chain([&moved]) {
        assert!(stream.lost() <= 20 && stream.sent > 20, "{stream:?}");
    }
    // A neighbour asks again after a second: that would show.
    assert!(streams[2].lost() <= 200, "{:?}", streams[2]);

    // K093, K095, K098: the rows.
    let view = node.ovs.view();
    let bridge = view.bridge("br-net1").unwrap();
    assert_eq!(bridge.map_get("external_ids", "vendor"), Some("kube-ovn"));
    assert_eq!(bridge.map_get("external_ids", "exchange-link-name"), Some("false"));
    assert_eq!(bridge.map_get("other_config", "mac-learning-fallback"), Some("false"));
    assert_eq!(bridge.map_get("other_config", "hwaddr"), Some(host.mac.unwrap().to_string().as_str()));
    assert_eq!(view.port_names("br-net1").into_iter().collect::<Vec<_>>(), ["br-net1", "eth1"]);
    assert_eq!(view.port("eth1").unwrap().map_get("external_ids", "vendor"), Some("kube-ovn"));
    assert_eq!(view.port("eth1").unwrap().get("trunks"), Some(&ovsdb::Value::integers([0])));
    // K190: others' mappings are as they were.
    assert_eq!(mappings(&node), "physnet1:br-ex, other:br-other,net1:br-net1");
    let macs = view.root_external_id("ovn-chassis-mac-mappings").unwrap().to_owned();
    assert!(macs.starts_with("net1:"), "{macs}");
    // K096: everything is on the bridge, nothing on the NIC.
    assert_eq!(plain(&carried(&node.namespace, "br-net1")), plain(&before));
    assert_eq!(carried(&node.namespace, "eth1"), "");
    let link = node.host.netlink.require_link("br-net1").await.unwrap();
    assert_eq!((link.mac, link.mtu, link.up), (host.mac, host.mtu, true));
    for gateway in ["10.9.0.1", "10.9.1.1", "fd09::1"] {
        assert!(answers(&node.namespace, "br-net1", gateway).await, "{gateway}");
    }

    // A second pass writes nothing.
    let root = node.ovs.view().root().unwrap().clone();
    assert!(underlay.pass().await);
    assert_eq!(node.ovs.view().root().unwrap(), &root);

    // Nobody hears anything twice.
    let stream = icmp::stream(&wire.namespace, "10.9.0.11");
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(stream.end().repeated, 0, "the kernel still listens on the NIC");

    let streams = ["10.9.0.11", "10.9.1.11", "fd09::11"].map(|ip| icmp::stream(&wire.namespace, ip));
    let out = icmp::stream(&node.namespace, "10.9.0.1");
    agent.drop("net1");
    assert!(underlay.pass().await);
    // The switch ends its packet socket a moment later.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let left = out.end();
    let streams = streams.map(icmp::Streaming::end);
    println!("home: from outside {streams:?}, from the node {left:?}");
    for stream in &streams[..2] {
        assert!(stream.lost() <= 20, "{stream:?}");
    }
    assert!(streams[2].lost() <= 200, "{:?}", streams[2]);
    assert_eq!(carried(&node.namespace, "eth1"), before, "restored exactly");
    assert!(node.host.ethtool.tx_checksum("eth1").unwrap(), "and its offload");
    let view = node.ovs.view();
    assert!(view.bridge("br-net1").is_none() && view.port("eth1").is_none());
    assert_eq!(mappings(&node), "physnet1:br-ex, other:br-other");
    assert!(view.root_external_ids().all(|(key, _)| !key.starts_with("weir-")));
    assert!(node.host.netlink.link("br-net1").await.unwrap().is_none());
}

/// ovs-vswitchd gives a userspace interface its MAC by setting it down and up again, a moment after the kernel shows it.
/// The agent waits for that, or addresses and routes that it puts on the bridge meanwhile would be lost or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_097_what_the_agent_puts_on_the_bridge_is_never_taken_off_by_the_switch() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let marker = node.host.netlink.require_link("gw-port").await.unwrap();
    for round in 1..=10 {
        let mut monitor = node.host.monitor().await.unwrap();
        agent.want("net1", "eth1");
        assert!(agent.start(&node).pass().await, "round {round}");
        node.host.netlink.set_tx_queue_len(marker.index, 500 + round).await.unwrap();
        let (mut states, mut addresses, mut told) = (Vec::new(), 0, false);
        let mut bridge = 0;
        loop {
            let next = tokio::time::timeout(std::time::Duration::from_secs(60), monitor.next());
            let Ok(Some(change)) = next.await else { panic!("round {round}: {addresses} {states:?}") };
            match change {
                Change::LinkChanged(link) if link.name == "br-net1" => {
                    bridge = link.index;
                    states.push(link.up);
                    assert!(link.up || addresses == 0, "round {round}: down with addresses: {states:?}");
                }
                Change::Address(address) if address.index == bridge => {
                    addresses += usize::from(!address.link_scope);
                }
                Change::LinkChanged(link) if link.tx_queue_len == 500 + round => told = true,
                _ => {}
            }
            // The kernel tells of an IPv6 address later, from a queue of its own.
            if told && addresses >= 5 {
                break;
            }
        }
        assert_eq!(states.last(), Some(&true), "round {round}: {addresses} {states:?}");
        agent.drop("net1");
        assert!(agent.start(&node).pass().await, "round {round}");
    }
}

/// Another program writes its own key of the map at the moment at which a mapping is edited: the edit is planned again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_190_an_edit_that_meets_anothers_write_is_planned_again() {
    let node = Node::start().await;
    let stale = node.ovs.view();
    set_root(&node, "ovn-bridge-mappings", "physnet1:br-ex").await;
    let planned = std::sync::atomic::AtomicUsize::new(0);
    let edit = |now: &dyn Fn(&str) -> Option<String>| {
        let old = now("ovn-bridge-mappings");
        let new = old.map_or_else(|| "net1:br-net1".to_owned(), |old| format!("{old},net1:br-net1"));
        vec![("ovn-bridge-mappings".to_owned(), Some(new))]
    };
    let wish = |view: &daemon::ovs::View| {
        let first = planned.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        plan::edit_root_external_ids(if first { &stale } else { view }, edit)
    };
    node.ovs.apply(wish).await.unwrap();
    assert_eq!(planned.into_inner(), 2);
    assert_eq!(mappings(&node), "physnet1:br-ex,net1:br-net1", "nobody's entry is lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nic_and_bridge_swap_names_and_swap_back() {
    let node = Node::start().await;
    let wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = carried(&node.namespace, "eth1");
    let stream = icmp::stream(&wire.namespace, "10.9.0.11");
    let mut underlay = agent.start(&node);
    agent.put(ProviderNetworkFacts {
        name: "net1".into(),
        default_interface: "eth1".into(),
        exchange_link_name: true,
        ..ProviderNetworkFacts::default()
    });
    assert!(underlay.pass().await);
    println!("swapped: {:?}", stream.end());
    assert_eq!(plain(&carried(&node.namespace, "eth1")), plain(&before), "now the bridge's");
    assert_eq!(node.ovs.view().port_names("eth1").into_iter().collect::<Vec<_>>(), ["br-net1", "eth1"]);
    assert_eq!(mappings(&node), "net1:eth1");
    assert_eq!(
        node.host.netlink.require_link("br-net1").await.unwrap().kind.as_deref(),
        Some("veth"),
        "the NIC has the bridge's name"
    );
    assert!(underlay.pass().await, "and stays so");
    assert!(answers(&node.namespace, "eth1", "10.9.0.1").await);
    // Back to the usual names: the NIC goes home in between.
    agent.want("net1", "eth1");
    assert!(underlay.pass().await);
    assert_eq!(plain(&carried(&node.namespace, "br-net1")), plain(&before));
    agent.drop("net1");
    assert!(underlay.pass().await);
    assert_eq!(plain(&carried(&node.namespace, "eth1")), plain(&before));
    assert_eq!(node.host.netlink.require_link("eth1").await.unwrap().kind.as_deref(), Some("veth"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_094_another_nic_and_exclusion_send_the_first_one_home() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let _other = Wire::bare(&node, "eth2").await;
    let agent = Agent::new(&node);
    let before = carried(&node.namespace, "eth1");
    let mut underlay = agent.start(&node);
    agent.want("net1", "eth1");
    assert!(underlay.pass().await);
    agent.want("net1", "eth2");
    assert!(underlay.pass().await);
    assert_eq!(carried(&node.namespace, "eth1"), before);
    assert!(node.ovs.view().port_names("br-net1").contains("eth2"));
    agent.put(ProviderNetworkFacts {
        name: "net1".into(),
        default_interface: "eth2".into(),
        exclude_nodes: vec!["n1".into()],
        ..ProviderNetworkFacts::default()
    });
    assert!(underlay.pass().await);
    assert!(node.ovs.view().bridge("br-net1").is_none());
    assert_eq!(mappings(&node), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_others_is_refused_and_left_alone() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let foreign =
        BridgeSpec { name: "br-ex".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    node.ovs.apply(|view| plan::ensure_bridge(view, &foreign)).await.unwrap();
    let port = PortSpec { bridge: "br-ex".into(), name: "eth1".into(), ..PortSpec::default() };
    node.ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
    let before = carried(&node.namespace, "eth1");
    let mut underlay = agent.start(&node);
    agent.want("net1", "eth1");
    assert!(!underlay.pass().await);
    let wish = daemon::underlay::member::Wish {
        network: "net1".into(),
        nic: "eth1".into(),
        ..daemon::underlay::member::Wish::default()
    };
    let error = underlay.ensure(&wish).await.unwrap_err();
    assert!(error.to_string().contains("eth1 is a port of bridge br-ex"), "{error}");
    assert_eq!(carried(&node.namespace, "eth1"), before);
    // A bridge of that name that somebody else made.
    let taken =
        BridgeSpec { name: "br-net2".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    node.ovs.apply(|view| plan::ensure_bridge(view, &taken)).await.unwrap();
    let _other = Wire::bare(&node, "eth2").await;
    let wish = daemon::underlay::member::Wish { network: "net2".into(), nic: "eth2".into(), ..wish };
    let error = underlay.ensure(&wish).await.unwrap_err();
    assert!(error.to_string().contains("br-net2 was made by somebody else"), "{error}");
    agent.drop("net1");
    assert!(underlay.pass().await);
    let view = node.ovs.view();
    assert!(view.bridge("br-ex").is_some() && view.bridge("br-net2").is_some());
    // K191: a network that is unknown leaves the mappings as they are.
    set_root(&node, "ovn-bridge-mappings", "a:br-a,b:br-b").await;
    assert!(!underlay.leave("unknown").await.unwrap());
    assert_eq!(mappings(&node), "a:br-a,b:br-b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u46_what_is_deleted_by_hand_comes_back_and_a_late_nic_is_taken_by_its_event() {
    let mut node = Node::start().await;
    let agent = Agent::new(&node);
    let feed = changes(&node).await;
    let cancel = CancellationToken::new();
    agent.want("net1", "eth1");
    let loop_ = tokio::spawn(agent.start(&node).run(feed.subscribe(), cancel.clone()));
    // The interface appears: nothing but the kernel's event tells.
    let wire = Wire::plug_at_once(&node.namespace, &node.host, "eth1").await;
    let ns = node.namespace.clone();
    let shown = || {
        let kernel = sh(&ns, "ip -o addr; ip route show table all; ip -6 route show table all");
        format!("{kernel}{:?}", node.ovs.view().root_external_id("weir-nic-net1"))
    };
    let complete = || carried(&ns, "eth1").is_empty() && carried(&ns, "br-net1").lines().count() >= 14;
    until("the NIC is in its bridge", || node.ovs.view().port("eth1").is_some() && complete()).await;
    let whole = plain(&carried(&node.namespace, "br-net1"));
    for damage in [
        "ip addr del 10.9.1.11/24 dev br-net1",
        "ip route del default dev br-net1",
        "ip -6 route del default dev br-net1",
        "ip addr flush dev br-net1 scope global",
        "ip route flush table 100",
        "ip link set br-net1 down",
    ] {
        sh(&node.namespace, damage);
        until(damage, || plain(&carried(&ns, "br-net1")) == whole).await;
    }
    // The switch restarts: its interface is a new one, without anything.
    node.vswitchd = None;
    until("the NIC stands in", || carried(&ns, "eth1").lines().count() >= 14).await;
    assert!(
        answers(&wire.namespace, "wire", "10.9.0.11").await,
        "the node is cut off while the switch is dead"
    );
    node.vswitchd = Some(start_vswitchd(&node.namespace, &node.server));
    until("after a restart of the switch", || {
        plain(&carried(&ns, "br-net1")) == whole && carried(&ns, "eth1").is_empty()
    })
    .await;
    assert!(answers(&wire.namespace, "wire", "10.9.0.11").await);
    // The host is configured anew (netplan apply): its word counts.
    sh(
        &node.namespace,
        "ip addr add 10.9.0.99/24 dev eth1 && ip route add 10.79.0.0/16 via 10.9.0.1 dev eth1",
    );
    let reads_anew = || {
        let now = carried(&ns, "br-net1");
        now.contains("10.9.0.99/24")
            && now.contains("10.79.0.0/16")
            && !now.contains("10.9.0.11/24")
            && now.contains("fd09::11/64")
            && now.contains("default via 10.9.0.1")
            && carried(&ns, "eth1").is_empty()
    };
    until_shown("the new address is on the bridge, the old ones are not", reads_anew, shown).await;
    cancel.cancel();
    loop_.await.unwrap();
}

/// Somebody configures the NIC step by step, and slowly: an address that the kernel took is on the bridge in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u46_no_address_is_lost_between_two_steps_and_a_reboots_word_is_the_whole() {
    let node = Node::start().await;
    let agent = Agent::new(&node);
    let feed = changes(&node).await;
    let cancel = CancellationToken::new();
    let _wire = Wire::plug(&node, "eth1").await;
    agent.want("net1", "eth1");
    let loop_ = tokio::spawn(agent.start(&node).run(feed.subscribe(), cancel.clone()));
    let ns = node.namespace.clone();
    let on_bridge = |address: &str| carried(&ns, "br-net1").contains(address);
    let shown = || format!("NIC:\n{}bridge:\n{}", carried(&ns, "eth1"), carried(&ns, "br-net1"));
    let silent = || sh(&ns, "sysctl -n net.ipv6.conf.eth1.disable_ipv6").trim() == "1";
    until("the NIC is in its bridge", || {
        on_bridge("fd09::11/64") && carried(&ns, "eth1").is_empty() && silent()
    })
    .await;
    // A pass of the agent takes some ten milliseconds: the second step comes before it, within, and after it.
    let pauses = [0, 1, 2, 4, 6, 9, 13, 20, 40, 80, 280];
    for (round, pause) in (20..).zip(pauses) {
        let script = format!(
            "sysctl -qw net.ipv6.conf.eth1.disable_ipv6=0; ip addr add 10.9.0.{round}/24 dev eth1; sleep 0.{pause:03}
            ip addr add fd09::{round}/64 dev eth1 nodad && echo taken"
        );
        // IPv6 stays on for who has switched it on, so that no step fails. (Of somebody who comes while it is on still from
        // the time before nobody knows.)
        until_shown("IPv6 is off again", silent, shown).await;
        assert!(sh(&ns, &script).contains("taken"), "{round}");
        let v6 = format!("fd09::{round}/64");
        let all_there = || on_bridge(&format!("10.9.0.{round}/24")) && on_bridge(&v6);
        until_shown(&format!("{round}"), || all_there() && carried(&ns, "eth1").is_empty(), shown).await;
    }
    until_shown("IPv6 is off again once the NIC is quiet", silent, shown).await;
    // The machine boots with another configuration, in which IPv4 is no more.
    let record = node.ovs.view().root_external_id("weir-nic-net1").unwrap().to_owned();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(record.contains(boot.trim()), "{record}");
    set_root(&node, "weir-nic-net1", &record.replace(boot.trim(), "before")).await;
    sh(&ns, "sysctl -qw net.ipv6.conf.eth1.disable_ipv6=0; ip addr add fd09::77/64 dev eth1 nodad");
    let renewed = || on_bridge("fd09::77/64") && !carried(&ns, "br-net1").contains("inet 10.9.");
    until_shown("the bridge has what the NIC had, and no more", renewed, shown).await;
    cancel.cancel();
    loop_.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_097_a_bridge_of_kube_ovn_is_taken_over_without_a_touch() {
    let node = Node::start().await;
    let wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = carried(&node.namespace, "eth1");
    let mut underlay = agent.start(&node);
    agent.want("net1", "eth1");
    assert!(underlay.pass().await);
    // Without the record it is as Kube-OVN leaves it.
    node.ovs.apply(|view| plan::delete_root_external_ids(view, &["weir-nic-net1"])).await.unwrap();
    let stream = icmp::stream(&wire.namespace, "10.9.0.11");
    let mut underlay = agent.start(&node);
    assert!(underlay.pass().await);
    let stream = stream.end();
    assert_eq!(stream.lost(), 0, "{stream:?}");
    agent.drop("net1");
    assert!(underlay.pass().await);
    assert_eq!(plain(&carried(&node.namespace, "eth1")), plain(&before));
    wait_view(&node.ovs, "no record", |view| {
        view.root_external_ids().all(|(key, _)| !key.starts_with("weir-"))
    })
    .await;
}
