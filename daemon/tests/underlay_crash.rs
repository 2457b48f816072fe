//! The agent dies after every single step of moving the node's NIC into a bridge, and of moving it home; at each of these
//! moments the node has its addresses and its default route, and whatever the next process is told to do, it comes to
//! the right end. Against a real ovs-vswitchd.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use daemon::kube::ProviderNetworkFacts;
use support::Node;
use support::death::{killed_after, settle};
use support::underlay::{Agent, CONFIGURE, Wire, carried, plain, reachable, sh};

const RECORD: &str = "weir-nic-net1";

fn network(exchange: bool) -> ProviderNetworkFacts {
    ProviderNetworkFacts {
        name: "net1".into(),
        default_interface: "eth1".into(),
        exchange_link_name: exchange,
        ..ProviderNetworkFacts::default()
    }
}

async fn every_step(exchange: bool) {
    // Why a pass failed is in the log.
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init();
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = carried(&node.namespace, "eth1");
    let bridge = if exchange { "eth1" } else { "br-net1" };
    let mut survived = [0, 0];
    // Dies while it moves the NIC in (0) or home (1); then the next process goes on, or turns back.
    for dies_at in [0, 1] {
        for turn in [false, true] {
            for steps in 1.. {
                if dies_at == 1 {
                    agent.put(network(exchange));
                    assert!(agent.start(&node).pass().await, "in, before step {steps}");
                }
                let wanted =
                    |there: bool| if there { agent.put(network(exchange)) } else { agent.drop("net1") };
                wanted(dies_at == 0);
                let mut underlay = agent.start(&node);
                let died = killed_after(steps, underlay.pass()).await;
                drop(underlay);
                settle(&node).await;
                let what = format!(
                    "exchange {exchange}, {dies_at}, died after step {steps} ({died:?}), turn {turn}"
                );
                reachable(&node, RECORD, &what, dies_at == 1);
                let there = (dies_at == 0) != turn;
                wanted(there);
                assert!(agent.start(&node).pass().await, "{what}");
                reachable(&node, RECORD, &what, false);
                if there {
                    assert_eq!(plain(&carried(&node.namespace, bridge)), plain(&before), "{what}");
                    agent.drop("net1");
                    assert!(agent.start(&node).pass().await, "{what}");
                }
                assert_eq!(plain(&carried(&node.namespace, "eth1")), plain(&before), "{what}");
                if !exchange {
                    assert_eq!(carried(&node.namespace, "eth1"), before, "{what}");
                }
                let view = node.ovs.view();
                assert!(view.bridge(bridge).is_none() && view.port("eth1").is_none(), "{what}");
                assert!(view.root_external_ids().all(|(key, _)| !key.starts_with("weir-")), "{what}");
                assert!(view.root_external_id("ovn-bridge-mappings").is_none(), "{what}");
                if died.is_none() {
                    break;
                }
                survived[dies_at] += 1;
            }
        }
    }
    println!("exchange {exchange}: deaths survived: {survived:?}");
    assert!(survived[0] >= 40 && survived[1] >= 20, "{survived:?}");
}

/// The host has given the NIC what it had, as at each boot and while the switch is gone: the record says that the move came
/// to its end. The agent dies while it empties the NIC once more, for a new bridge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_097_the_agent_dies_after_every_step_of_a_nics_move_that_had_come_to_its_end() {
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init();
    let node = Node::start().await;
    let _wire = Wire::plug(&node, "eth1").await;
    let agent = Agent::new(&node);
    let before = plain(&carried(&node.namespace, "eth1"));
    agent.put(network(false));
    for steps in 1.. {
        assert!(agent.start(&node).pass().await, "before step {steps}");
        let record = node.ovs.view().root_external_id(RECORD).unwrap().to_owned();
        assert!(record.contains(r#""moved":true"#), "{record}");
        let anew = "sysctl -qw net.ipv6.conf.eth1.disable_ipv6=0; ip addr flush dev br-net1 scope global
            ip -6 route flush dev br-net1; ip -6 route flush table 100";
        sh(&node.namespace, anew);
        sh(&node.namespace, &CONFIGURE.replace("NIC", "eth1"));
        let mut underlay = agent.start(&node);
        let died = killed_after(steps, underlay.pass()).await;
        drop(underlay);
        settle(&node).await;
        let what = format!("died after step {steps} ({died:?})");
        reachable(&node, RECORD, &what, false);
        assert!(agent.start(&node).pass().await, "{what}");
        reachable(&node, RECORD, &what, false);
        assert_eq!(plain(&carried(&node.namespace, "br-net1")), before, "{what}");
        if died.is_none() {
            assert!(steps > 25, "{steps}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_097_the_agent_dies_after_every_step_of_the_nics_move() {
    every_step(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_097_the_agent_dies_after_every_step_of_the_nics_move_with_names_swapped() {
    every_step(true).await;
}
