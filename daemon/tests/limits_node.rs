//! Limits of the node's own port against a real ovs-vswitchd (userspace datapath), with measured rates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use daemon::kube::NodeFacts;
use daemon::ovs::{BR_INT, PortSpec, plan};
use daemon::qos::Hold;
use ovsdb::Value;
use support::rates::{effect, is_near, keep_told, mbits, until};
use support::{Node, wait_view};

const SHAPER: &str = "ovn0_ifb";

/// Where the kernel polices nothing: the rate holds within 10%, changes, and what somebody takes away is back.
async fn led_through_a_shaper(node: &Node, facts: &impl Fn(&[(&str, &str)]) -> NodeFacts) {
    let host = &node.host.netlink;
    let asked = facts(&[("ingress_rate", "20"), ("ingress_burst", "1"), ("egress_rate", "8")]);
    node.plugger.cluster.nodes.put("n1".into(), Some(asked));
    until("the new limit", async || {
        node.plugger.limits.get("ovn0").is_some_and(|entry| entry.wanted.policing_rate == 20_000)
    })
    .await;
    assert_eq!(effect(node, "ovn0").unwrap().ingress, Hold::NodeShaper);
    let down = mbits(&node.gateway, &node.namespace, "10.16.0.99");
    println!("into the node {down:.2} of 20 Mbit/s, led through {SHAPER}");
    assert!(is_near(down, 20.0), "{down}");
    let port = host.require_link("ovn0").await.unwrap();
    for what in ["link", "filter", "discipline"] {
        let before = host.require_link(SHAPER).await.unwrap();
        match what {
            "link" => host.delete_link(SHAPER).await.unwrap(),
            "filter" => host.end_lead(port.index).await.unwrap(),
            _ => host.delete_root_qdisc(before.index, 0x5745).await.unwrap(),
        }
        until(what, async || {
            let Some(link) = host.link(SHAPER).await.unwrap() else { return false };
            let shapes = host.qdiscs(link.index).await.unwrap().iter().any(|qdisc| qdisc.tbf.is_some());
            shapes && link.up && host.ingress_led_to(port.index).await.unwrap() == Some(link.index)
        })
        .await;
    }
    let down = mbits(&node.gateway, &node.namespace, "10.16.0.99");
    println!("and {down:.2} of 20 Mbit/s after each piece was taken away");
    assert!(is_near(down, 20.0), "{down}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_131_the_nodes_annotations_limit_ovn0() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let ovn0 = PortSpec {
        bridge: BR_INT.into(),
        name: "ovn0".into(),
        kind: "internal".into(),
        external_ids: [("iface-id".to_owned(), "node-n1".to_owned())].into(),
        ..PortSpec::default()
    };
    node.ovs.apply(|view| plan::ensure_port(view, &ovn0)).await.unwrap();
    let facts = |pairs: &[(&str, &str)]| NodeFacts {
        name: "n1".into(),
        annotations: pairs
            .iter()
            .map(|(key, value)| (crds::keys::pod_key("ovn", key), (*value).to_owned()))
            .collect(),
        ..NodeFacts::default()
    };
    let nodes = &node.plugger.cluster.nodes;
    nodes.put("n1".into(), Some(facts(&[("ingress_rate", "50"), ("egress_rate", "8")])));
    let feed = support::underlay::changes(&node).await;
    tokio::spawn(daemon::heal::listen(node.host.clone(), feed.clone()));
    let _keeper = keep_told(&node.plugger, &[], feed);
    until("the node's limits", async || effect(&node, "ovn0").is_some()).await;
    let interface = node.interface("ovn0").unwrap();
    let column = |name| interface.column(name).and_then(Value::as_i64);
    // The device is the host's own: what is filtered on the way in, the node receives.
    assert_eq!(column("ingress_policing_rate"), Some(50_000));
    assert_eq!(column("ingress_policing_burst"), Some(40_000));
    let view = node.ovs.view();
    let qos = view.port("ovn0").unwrap().get("qos").unwrap().set_uuids().next().unwrap();
    assert_eq!(view.qos(&qos).unwrap().map_get("external_ids", "iface-id"), Some("node-n1"));
    assert_eq!(view.qos(&qos).unwrap().map_get("other_config", "max-rate"), Some("8000000"));
    let held = effect(&node, "ovn0").unwrap();
    println!("ovn0: {held:?}");
    assert_eq!(held.egress, Hold::Htb);
    // What is said to hold does; what does not is said to be missing.
    let host = &node.host.netlink;
    node.host.ethtool.tx_checksum_off("ovn0").unwrap();
    let link = host.require_link("ovn0").await.unwrap().index;
    host.set_up(link).await.unwrap();
    host.add_address(link, "10.16.0.99/16".parse().unwrap(), true).await.unwrap();
    let up = mbits(&node.namespace, &node.gateway, "10.16.0.1");
    let down = mbits(&node.gateway, &node.namespace, "10.16.0.99");
    println!("out of the node {up:.2} of 8, into it {down:.2} of 50 Mbit/s");
    assert!(is_near(up, 8.0), "{up}");
    match &held.ingress {
        Hold::Police => assert!(down < 50.0 * 1.1, "{down}"),
        Hold::NodeShaper => led_through_a_shaper(&node, &facts).await,
        Hold::Missing(reason) => assert!(reason.contains("act_police") && down > 60.0, "{down} {reason}"),
        other => panic!("{other:?}"),
    }
    // The node's loop wants its port again.
    let policing =
        |node: &Node| node.interface("ovn0").unwrap().column("ingress_policing_rate").and_then(Value::as_i64);
    let before = policing(&node);
    node.ovs.apply(|view| plan::ensure_port(view, &ovn0)).await.unwrap();
    assert_eq!(policing(&node), before, "the limits are not its business");
    nodes.put("n1".into(), Some(facts(&[])));
    until("their end", async || effect(&node, "ovn0").is_none()).await;
    assert!(host.link(SHAPER).await.unwrap().is_none(), "nothing of them stays");
    assert_eq!(host.ingress_led_to(link).await.unwrap(), None);
    wait_view(&node.ovs, "no rows", |view| view.all_qos().count() + view.all_queues().count() == 0).await;
}
