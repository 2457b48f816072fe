//! The tunnel NIC of the userspace datapath in its bridge and home again: by the steps of provider networks, so a death
//! after any of them loses nothing; and what an older agent recorded is taken over. Against a real ovs-vswitchd.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use daemon::node::NotYet;
use daemon::ovs::{BridgeSpec, PortSpec, plan};
use daemon::underlay::{Underlay, tunnel_is_recorded};
use support::Node;
use support::death::{killed_after, settle};
use support::underlay::{Agent, Wire, carried, plain, reachable, sh};

const BRIDGE: &str = "br-phy";
const RECORD: &str = "weir-tunnel-nic";

async fn moves_in(node: &Node, underlay: &Underlay) -> Result<(), NotYet> {
    let recorded = underlay.tunnel_record(&node.ovs.view(), BRIDGE).await?;
    let nic = node.host.netlink.require_link("eth1").await.unwrap();
    underlay.tunnel_in(BRIDGE, &nic, recorded).await
}

async fn goes_home(node: &Node, underlay: &Underlay) -> Result<(), NotYet> {
    match underlay.tunnel_record(&node.ovs.view(), BRIDGE).await? {
        Some(journal) => underlay.tunnel_home(BRIDGE, journal).await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_065_the_agent_dies_after_every_step_of_the_tunnel_nics_move() {
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = carried(&node.namespace, "eth1");
    let mut survived = [0, 0];
    // Dies on the way in (0) or home (1); then the next process goes on, or turns back.
    for dies_at in [0, 1] {
        for turn in [false, true] {
            for steps in 1.. {
                let underlay = agent.start(&node);
                if dies_at == 1 {
                    moves_in(&node, &underlay).await.unwrap();
                }
                let died = match dies_at {
                    0 => killed_after(steps, moves_in(&node, &underlay)).await,
                    _ => killed_after(steps, goes_home(&node, &underlay)).await,
                };
                settle(&node).await;
                let what = format!("{dies_at}, died after step {steps} ({died:?}), turn {turn}");
                reachable(&node, RECORD, &what, dies_at == 1);
                let underlay = agent.start(&node);
                if (dies_at == 0) != turn {
                    moves_in(&node, &underlay).await.unwrap();
                    assert_eq!(plain(&carried(&node.namespace, BRIDGE)), plain(&before), "{what}");
                    assert_eq!(carried(&node.namespace, "eth1"), "", "{what}");
                }
                goes_home(&node, &underlay).await.unwrap();
                reachable(&node, RECORD, &what, false);
                assert_eq!(carried(&node.namespace, "eth1"), before, "{what}");
                let view = node.ovs.view();
                assert!(view.bridge(BRIDGE).is_none() && !tunnel_is_recorded(&view, BRIDGE), "{what}");
                if died.is_none() {
                    break;
                }
                survived[dies_at] += 1;
            }
        }
    }
    println!("deaths survived: {survived:?}");
    assert!(survived[0] >= 40 && survived[1] >= 20, "{survived:?}");
}

/// The bridge's row says what there was; the switch has been restarted since, so that it is nowhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_agent_recorded_is_taken_over() {
    let node = Node::start().await;
    let _wire = Wire::bare(&node, "eth1").await;
    let agent = Agent::new(&node);
    let old = [
        ("vendor", "kube-ovn"),
        ("weir-nic", "eth1"),
        ("weir-nic-addresses", "10.9.0.11/24,fd09::11/64"),
        (
            "weir-nic-routes",
            r#"[{"destination":"0.0.0.0/0","gateway":"10.9.0.1","table":254,"protocol":4,"link_scope":false,"onlink":false}]"#,
        ),
    ];
    let bridge = BridgeSpec {
        name: BRIDGE.into(),
        datapath_type: "netdev".into(),
        external_ids: old.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..BridgeSpec::default()
    };
    node.ovs.apply(|view| plan::ensure_bridge(view, &bridge)).await.unwrap();
    let port = PortSpec { bridge: BRIDGE.into(), name: "eth1".into(), ..PortSpec::default() };
    node.ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
    let underlay = agent.start(&node);
    moves_in(&node, &underlay).await.unwrap();
    let carries = |link: &str| {
        let text = sh(&node.namespace, &format!("ip -o addr show dev {link}; ip route show dev {link}"));
        ["10.9.0.11/24", "fd09::11/64", "default via 10.9.0.1"].map(|needed| text.contains(needed))
    };
    assert_eq!(carries(BRIDGE), [true; 3]);
    let row = node.ovs.view().bridge(BRIDGE).unwrap().clone();
    let left: BTreeMap<&str, Option<&str>> =
        old.iter().map(|(key, _)| (*key, row.map_get("external_ids", key))).collect();
    assert_eq!(left.values().flatten().collect::<Vec<_>>(), [&"kube-ovn"], "{left:?}");
    assert!(node.ovs.view().root_external_id(RECORD).is_some());
    goes_home(&node, &underlay).await.unwrap();
    assert_eq!(carries("eth1"), [true; 3]);
    assert!(!tunnel_is_recorded(&node.ovs.view(), BRIDGE));
}
