//! Provider networks where something is in the way: a route that the kernel refuses, names that have changed, ports of
//! somebody else, leftovers. With a real switch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use daemon::kube::{ExternalGatewayFacts, ProviderNetworkFacts};
use daemon::ovs::{BridgeSpec, PortSpec, plan};
use support::underlay::{Agent, CONFIGURE, Wire, carried, plain, sh};
use support::{Node, answers, start_vswitchd, wait_view};

const RECORD: &str = "weir-nic-net1";

async fn set_root(node: &Node, key: &str, value: &str) {
    let ids = [(key.to_owned(), value.to_owned())].into();
    node.ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
}

fn root(node: &Node, key: &str) -> String {
    node.ovs.view().root_external_id(key).unwrap_or_default().to_owned()
}

fn swapped(name: &str) -> ProviderNetworkFacts {
    ProviderNetworkFacts {
        name: name.into(),
        default_interface: "eth1".into(),
        exchange_link_name: true,
        ..ProviderNetworkFacts::default()
    }
}

async fn add_port(node: &Node, bridge: &str, name: &str, kind: &str, vendor: Option<&str>) {
    let port = PortSpec {
        bridge: bridge.into(),
        name: name.into(),
        kind: kind.into(),
        port_external_ids: vendor
            .map(|vendor| ("vendor".to_owned(), vendor.to_owned()))
            .into_iter()
            .collect(),
        ..PortSpec::default()
    };
    node.ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
}

/// What a route speaks of is gone; the kernel has dropped the route, and refuses it. All the others stay, and go home.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_the_kernel_refuses_keeps_no_other_one_away() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = plain(&carried(&node.namespace, "eth1"));
    let source = "ip link add other type veth peer name end && ip link set other up && ip addr add 10.8.0.1/24 dev other";
    sh(&node.namespace, source);
    sh(&node.namespace, "ip route add 10.76.0.0/16 via 10.9.0.1 dev eth1 src 10.8.0.1");
    agent.want("net1", "eth1");
    let mut underlay = agent.start(&node);
    assert!(underlay.pass().await);
    let route = || carried(&node.namespace, "br-net1").contains("10.76.0.0/16 via 10.9.0.1 src 10.8.0.1");
    assert!(route());
    sh(&node.namespace, "ip link del other; ip addr flush dev br-net1 scope global");
    assert!(!carried(&node.namespace, "br-net1").contains("default via 10"), "gone with the addresses");
    assert!(underlay.pass().await, "the network works");
    assert_eq!(plain(&carried(&node.namespace, "br-net1")), before);
    // It comes back with what it speaks of.
    sh(&node.namespace, source);
    assert!(underlay.pass().await && route());
    sh(&node.namespace, "ip link del other");
    agent.drop("net1");
    assert!(underlay.pass().await, "and the NIC can go home");
    assert_eq!(plain(&carried(&node.namespace, "eth1")), before);
    assert_eq!(root(&node, RECORD), "");
}

/// A boot: the NIC has its own name and what the host gives it, while the database says that the bridge has that name.
async fn boot(node: &mut Node) {
    node.vswitchd = None;
    let script = "ip link del eth1; ip link set br-net1 down; ip link set br-net1 name eth1; ip link set eth1 up
        ip addr flush dev eth1 scope global; sysctl -qw net.ipv6.conf.eth1.disable_ipv6=0 net.ipv4.conf.eth1.rp_filter=0";
    sh(&node.namespace, script);
    sh(&node.namespace, &CONFIGURE.replace("NIC", "eth1"));
    let now = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    set_root(node, RECORD, &root(node, RECORD).replace(now.trim(), "before")).await;
    node.vswitchd = Some(start_vswitchd(&node.namespace, &node.server));
    wait_view(&node.ovs, "br-int", |view| view.interface("gw-port").is_some_and(|i| i.ofport() > Some(0)))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swapped_names_survive_a_boot_and_so_does_the_way_home() {
    let mut node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = plain(&carried(&node.namespace, "eth1"));
    agent.put(swapped("net1"));
    assert!(agent.start(&node).pass().await);
    boot(&mut node).await;
    assert!(agent.start(&node).pass().await);
    assert_eq!(plain(&carried(&node.namespace, "eth1")), before, "now the bridge's");
    let nic = node.host.netlink.require_link("br-net1").await.unwrap();
    assert_eq!(nic.kind.as_deref(), Some("veth"), "the NIC has the bridge's name");
    assert_eq!(root(&node, "ovn-bridge-mappings"), "net1:eth1");
    assert!(answers(&node.namespace, "eth1", "10.9.0.1").await);
    // The object is deleted while the node is down.
    boot(&mut node).await;
    agent.drop("net1");
    assert!(agent.start(&node).pass().await);
    assert_eq!(plain(&carried(&node.namespace, "eth1")), before);
    assert_eq!(node.host.netlink.require_link("eth1").await.unwrap().kind.as_deref(), Some("veth"));
    assert!(node.ovs.view().bridge("eth1").is_none() && root(&node, RECORD).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nic_that_is_renamed_stays_in_its_bridge() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = plain(&carried(&node.namespace, "eth1"));
    agent.want("net1", "eth1");
    let mut underlay = agent.start(&node);
    assert!(underlay.pass().await);
    sh(&node.namespace, "ip link set eth1 down; ip link set eth1 name lan1; ip link set lan1 up");
    assert!(!underlay.pass().await, "the spec names another one");
    agent.want("net1", "lan1");
    assert!(underlay.pass().await);
    assert_eq!(plain(&carried(&node.namespace, "br-net1")), before);
    let ports = node.ovs.view().port_names("br-net1").into_iter().collect::<Vec<_>>();
    assert_eq!(ports, ["br-net1", "lan1"]);
    assert!(answers(&node.namespace, "br-net1", "10.9.0.1").await);
    agent.drop("net1");
    assert!(underlay.pass().await);
    // But for a label, which says what the NIC was called.
    assert_eq!(plain(&carried(&node.namespace, "lan1").replace("eth1:1", "LINK:1")), before);
}

/// Node contract §3.5 step 7: another NIC of ours leaves the bridge, what has another owner stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nics_of_ours_leave_the_bridge() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let _others = [Wire::bare(&node, "eth2").await, Wire::bare(&node, "eth3").await];
    let agent = Agent::new(&node);
    agent.want("net1", "eth1");
    let mut underlay = agent.start(&node);
    assert!(underlay.pass().await);
    add_port(&node, "br-net1", "eth2", "", Some("kube-ovn")).await;
    add_port(&node, "br-net1", "eth3", "", Some("site")).await;
    assert!(underlay.pass().await);
    let ports = node.ovs.view().port_names("br-net1").into_iter().collect::<Vec<_>>();
    assert_eq!(ports, ["br-net1", "eth1", "eth3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_up_does_all_that_it_can_and_names_the_rest() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let _other = Wire::bare(&node, "eth2").await;
    sh(&node.namespace, "ip addr add 10.5.0.11/24 dev eth2");
    let agent = Agent::new(&node);
    let mut underlay = agent.start(&node);
    agent.want("net1", "eth1");
    agent.want("net2", "eth2");
    assert!(underlay.pass().await);
    add_port(&node, "br-net1", "theirs", "internal", None).await;
    set_root(&node, "weir-nic-a", "junk").await;
    let mut done = Vec::new();
    let left = agent.start(&node).clean_up(&mut done).await;
    assert!(done.len() == 1 && done[0].contains("net2"), "{done:?}");
    assert!(left.len() == 2, "{left:?}");
    assert!(left[0].contains("weir-nic-a can't be read"), "{left:?}");
    assert!(left[1].contains("bridge br-net1 has port theirs"), "{left:?}");
    assert!(carried(&node.namespace, "eth2").contains("10.5.0.11/24"));
    let view = node.ovs.view();
    assert!(view.bridge("br-net2").is_none() && view.port_names("br-net1").contains("theirs"));
    // While the switch is gone, a record that can't be read keeps the others' NICs from nothing.
    let mut node = node;
    node.vswitchd = None;
    support::underlay::until("the bridge hears nothing", || {
        sh(&node.namespace, "ip -o link show br-net1").contains("NO-CARRIER")
    })
    .await;
    agent.start(&node).pass().await;
    assert!(carried(&node.namespace, "eth1").contains("10.9.0.11/24"), "the NIC stands in");
}

/// The external gateway's switch may have a provider network's name; its mapping is the network's then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_network_of_the_external_gateways_name_keeps_its_mapping() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = plain(&carried(&node.namespace, "eth1"));
    agent.put(swapped("external"));
    let mut underlay = agent.start(&node);
    for _ in 0..2 {
        assert!(underlay.pass().await);
        assert_eq!(root(&node, "ovn-bridge-mappings"), "external:eth1");
    }
    agent.drop("external");
    assert!(underlay.pass().await);
    assert_eq!(root(&node, "ovn-bridge-mappings"), "");
    assert_eq!(plain(&carried(&node.namespace, "eth1")), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_133_a_bridge_of_the_external_gateways_name_that_somebody_else_made_is_left_alone() {
    let node = Node::start().await;
    let _wires = [Wire::bare(&node, "eth2").await, Wire::bare(&node, "eth3").await];
    let agent = Agent::new(&node);
    let theirs = BridgeSpec {
        name: "br-external".into(),
        datapath_type: "netdev".into(),
        external_ids: BTreeMap::from([("site".to_owned(), "a".to_owned())]),
        ..BridgeSpec::default()
    };
    node.ovs.apply(|view| plan::ensure_bridge(view, &theirs)).await.unwrap();
    add_port(&node, "br-external", "eth3", "", None).await;
    let row = || {
        let row = node.ovs.view().bridge("br-external").unwrap().clone();
        ["ports", "external_ids", "other_config", "datapath_type"]
            .map(|column| format!("{:?}", row.get(column)))
    };
    let before = row();
    let facts = ExternalGatewayFacts { nic: "eth2".into() };
    agent.cluster.external_gateway.put("ovn-external-gw-config".into(), Some(facts));
    let mut underlay = agent.start(&node);
    for on in ["true", "false"] {
        agent.label(&[(crds::keys::EXTERNAL_GW_LABEL, on)]);
        assert_eq!(underlay.pass().await, on == "false", "it is refused");
        assert_eq!(row(), before);
        assert_eq!(root(&node, "ovn-bridge-mappings"), "");
    }
}
