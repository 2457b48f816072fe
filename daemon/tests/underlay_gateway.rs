//! A node as a gateway: interconnection, the external gateway's bridge, static MAC entries; with a real switch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use daemon::kube::{ExternalGatewayFacts, SubnetFacts, VlanFacts};
use daemon::ovs::{BridgeSpec, PortSpec, plan};
use ovsdb::Value;
use support::Node;
use support::underlay::{Agent, Wire, carried, patch};

const EXTERNAL: (&str, &str) = (crds::keys::EXTERNAL_GW_LABEL, "true");

fn mappings(node: &Node) -> String {
    node.ovs.view().root_external_id("ovn-bridge-mappings").unwrap_or_default().to_owned()
}

async fn set_mappings(node: &Node, value: &str) {
    let ids = [("ovn-bridge-mappings".to_owned(), value.to_owned())].into();
    node.ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_132_the_interconnection_is_written_once() {
    let node = Node::start().await;
    let agent = Agent::new(&node);
    let mut underlay = agent.start(&node);
    let is = |value: &str| node.ovs.view().root_external_id("ovn-is-interconn") == Some(value);
    assert!(underlay.pass().await && is("false"));
    agent.label(&[(crds::keys::IC_GW_LABEL, "true")]);
    assert!(underlay.pass().await && is("true"));
    // No write when unchanged: the session counts its transactions.
    let mut views = node.ovs.subscribe();
    views.mark_unchanged();
    for _ in 0..3 {
        assert!(underlay.pass().await);
    }
    assert!(!views.has_changed().unwrap(), "something was written");
    agent.label(&[]);
    assert!(underlay.pass().await && is("false"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_133_k_190_the_external_gateway_comes_and_goes_and_nothing_of_others_does() {
    let node = Node::start().await;
    let _wire = Wire::bare(&node, "eth2").await;
    let agent = Agent::new(&node);
    set_mappings(&node, "net1:br-net1,other:br-other").await;
    let mut underlay = agent.start(&node);
    agent.label(&[EXTERNAL]);
    assert!(!underlay.pass().await, "the ConfigMap names no NIC");
    let config = |nic: &str| {
        let facts = ExternalGatewayFacts { nic: nic.into() };
        agent.cluster.external_gateway.put("ovn-external-gw-config".into(), Some(facts));
    };
    config("eth2");
    for _ in 0..3 {
        assert!(underlay.pass().await);
        assert_eq!(mappings(&node), "net1:br-net1,other:br-other,external:br-external");
    }
    let ports = node.ovs.view().port_names("br-external").into_iter().collect::<Vec<_>>();
    assert_eq!(ports, ["br-external", "eth2"]);
    agent.label(&[]);
    assert!(underlay.pass().await);
    assert_eq!(mappings(&node), "net1:br-net1,other:br-other");
    assert!(node.ovs.view().bridge("br-external").is_none());
    // As Kube-OVN leaves it: known by its mapping alone.
    let theirs =
        BridgeSpec { name: "br-external".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    node.ovs.apply(|view| plan::ensure_bridge(view, &theirs)).await.unwrap();
    assert!(underlay.pass().await);
    assert!(node.ovs.view().bridge("br-external").is_some(), "nothing says that it is ours");
    set_mappings(&node, "external:br-external").await;
    assert!(underlay.pass().await);
    assert!(node.ovs.view().bridge("br-external").is_none());
    assert_eq!(mappings(&node), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_191_a_network_that_nobody_knows_takes_no_mapping_with_it() {
    let node = Node::start().await;
    let agent = Agent::new(&node);
    let underlay = agent.start(&node);
    for list in ["net1:br-net1,other:br-other", "other:br-other", ""] {
        set_mappings(&node, list).await;
        assert!(!underlay.leave("unknown").await.unwrap(), "there was nothing");
        assert_eq!(mappings(&node), list);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_133_anothers_bridge_and_a_nic_with_addresses_are_left_alone() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let _other = Wire::bare(&node, "eth2").await;
    let agent = Agent::new(&node);
    let before = carried(&node.namespace, "eth1");
    let config = |nic: &str| {
        let facts = ExternalGatewayFacts { nic: nic.into() };
        agent.cluster.external_gateway.put("ovn-external-gw-config".into(), Some(facts));
    };
    agent.label(&[EXTERNAL]);
    config("eth1");
    let mut underlay = agent.start(&node);
    assert!(!underlay.pass().await, "its addresses would be lost");
    assert_eq!(carried(&node.namespace, "eth1"), before);
    assert!(node.ovs.view().bridge("br-external").is_none());
    // In somebody's bridge.
    let foreign =
        BridgeSpec { name: "br-ex".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    node.ovs.apply(|view| plan::ensure_bridge(view, &foreign)).await.unwrap();
    let port = PortSpec { bridge: "br-ex".into(), name: "eth2".into(), ..PortSpec::default() };
    node.ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
    config("eth2");
    assert!(!underlay.pass().await);
    assert!(node.ovs.view().port_names("br-ex").contains("eth2"));
    // In a provider network's bridge: that leads there as well.
    agent.want("net1", "eth1");
    config("eth1");
    underlay.pass().await;
    assert!(underlay.pass().await);
    assert_eq!(mappings(&node), "net1:br-net1,external:br-net1");
    agent.label(&[]);
    assert!(underlay.pass().await);
    assert_eq!(mappings(&node), "net1:br-net1");
    assert!(node.ovs.view().port_names("br-net1").contains("eth1"));
    agent.drop("net1");
    assert!(underlay.pass().await);
    assert_eq!(carried(&node.namespace, "eth1"), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interconnected_subnet_has_its_static_mac_entry() {
    let node = Node::start().await;
    let _wire = Wire::bare(&node, "eth1").await;
    let folder = node.server.directory();
    let agent = Agent::new(&node);
    agent.want("net1", "eth1");
    agent.cluster.vlans.put("v100".into(), Some(VlanFacts { id: 100, provider: "net1".into() }));
    let subnet = SubnetFacts {
        name: "u1".into(),
        vlan: "v100".into(),
        u2o_interconnection: true,
        u2o_interconnection_mac: "00:00:00:aa:bb:01".into(),
        ..SubnetFacts::default()
    };
    agent.cluster.subnets.put("u1".into(), Some(subnet.clone()));
    let mut underlay = agent.start(&node);
    assert!(underlay.pass().await, "the patch port may come later");
    assert_eq!(node.ovs.view().port("eth1").unwrap().get("trunks"), Some(&Value::integers([0, 100])));
    patch(&node, "br-net1", "patch-localnet.u1-to-br-int", "br-int", "patch-br-int-to-localnet.u1").await;
    underlay.entries().await.unwrap();
    assert!(underlay.pass().await);
    let show = async || {
        let socket = ovsdb::unixctl::socket_of(folder, "ovs-vswitchd").unwrap();
        ovsdb::unixctl::call(&socket, "fdb/show", &["br-net1"], Duration::from_secs(5)).await.unwrap()
    };
    let shown = show().await;
    assert!(
        shown.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1..) == Some(&["100", "00:00:00:aa:bb:01", "static"])
        }),
        "{shown}"
    );
    // Another MAC: the old entry goes.
    let mac = "00:00:00:aa:bb:02".into();
    agent
        .cluster
        .subnets
        .put("u1".into(), Some(SubnetFacts { u2o_interconnection_mac: mac, ..subnet.clone() }));
    assert!(underlay.pass().await);
    let shown = show().await;
    assert!(shown.contains("aa:bb:02") && !shown.contains("aa:bb:01"), "{shown}");
    agent.cluster.subnets.put("u1".into(), None);
    assert!(underlay.pass().await);
    let shown = show().await;
    assert!(!shown.contains("static"), "{shown}");
}
