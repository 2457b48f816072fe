//! Ports made ready ahead of ADD, against a real ovs-vswitchd.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use daemon::kube::{Fact, PodFacts};
use daemon::plug::lost::Suspects;
use daemon::plug::{names, prepared};
use daemon::qos::{Hold, Keeper};
use support::rates::{annotate, told};
use support::{Node, addresses, answers, new_namespace, request, routed_pod, wait_view};
use tokio_util::sync::CancellationToken;

async fn made_ready(node: &Node, n: u8) -> (PodFacts, String) {
    let pod = routed_pod(n);
    node.route_pod(&pod);
    node.plugger.prepare().await;
    let port = names::prepared_nic(&pod.uid, "eth0");
    assert!(node.interface(&port).is_some(), "{:?}", node.pod_ports());
    (pod, port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_takes_over_the_port_that_waits() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, port) = made_ready(&node, 1).await;
    let row = node.interface(&port).unwrap();
    assert_eq!((row.external_id("iface-id"), row.external_id("container_id")), (Some("pod-1.web"), None));
    wait_view(&node.ovs, "installed before ADD", |view| view.installed(&port) == daemon::ovs::Installed::Yes)
        .await;
    let namespace = new_namespace();
    let request = request(&pod, &namespace, 1);
    let answer = node.plugger.add(&request).await.unwrap();
    assert_eq!((answer.nicname.as_str(), answer.mac_address.as_str()), ("eth0", "0a:58:0a:10:00:0b"));
    assert_eq!(answer.mtu, i64::from(support::MTU));
    assert_eq!(addresses(&namespace, "eth0").await, ["10.16.0.11/16", "fd00::11/112"]);
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    assert!(answers(&node.gateway, "gw", "fd00::11").await);
    let taken = node.interface(&port).unwrap();
    assert_eq!(taken.uuid(), row.uuid(), "the same row, and its name for life");
    for (key, value) in [
        ("container_id", request.container_id.as_str()),
        ("ifname", "eth0"),
        ("pod_netns", request.net_ns.as_str()),
        ("pod_uid", "uid-1"),
    ] {
        assert_eq!(taken.external_id(key), Some(value), "{key}");
    }
    assert_eq!(node.plugger.prepared.waiting(), 0);
    // Again: no second one is made, the first is kept.
    node.plugger.prepare().await;
    node.plugger.add(&request).await.unwrap();
    assert_eq!(node.pod_ports(), [port]);
    let mut suspects = Suspects::default();
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], false));
    node.plugger.del(&request).await.unwrap();
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_del_and_gc_do_not_touch_what_waits() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, port) = made_ready(&node, 2).await;
    let namespace = new_namespace();
    node.plugger.del(&request(&pod, &namespace, 7)).await.unwrap();
    let gc = cni::api::GcRequest { network: "kube-ovn".into(), provider: "ovn".into(), ..Default::default() };
    node.plugger.gc(&gc).await.unwrap();
    let mut suspects = Suspects::default();
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], false));
    assert_eq!(node.pod_ports(), [port]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_made_for_a_pod_that_has_an_interface_or_will_not_get_one() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    // An older sandbox holds the logical port.
    let (pod, namespace) = (routed_pod(3), new_namespace());
    node.route_pod(&pod);
    node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
    let before = node.pod_ports();
    let mut others = vec![routed_pod(4), routed_pod(5), routed_pod(6), routed_pod(7)];
    others[0].deleting = true;
    others[1].finished = true;
    others[2].annotations.remove(crds::keys::ROUTED);
    others[3].annotations.insert(crds::keys::pod_key("ovn", "pod_nic_type"), "internal-port".into());
    for pod in &others {
        node.route_pod(pod);
    }
    node.plugger.prepare().await;
    assert_eq!((node.pod_ports(), node.plugger.prepared.waiting()), (before, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_never_comes_leaves_nothing() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    // The pod goes, is deleted, is another of the same name: the loop sees each.
    let cancel = CancellationToken::new();
    let running = tokio::spawn(prepared::run(node.plugger.clone(), cancel.clone()));
    for change in 0..3 {
        let mut pod = routed_pod(8 + change);
        let key = PodFacts::key(&pod.namespace, &pod.name);
        node.route_pod(&pod);
        let port = names::prepared_nic(&pod.uid, "eth0");
        wait_view(&node.ovs, "the port", |view| view.interface(&port).is_some()).await;
        match change {
            0 => node.plugger.cluster.pods.put(key.clone(), None),
            1 => {
                pod.deleting = true;
                node.route_pod(&pod);
            }
            _ => {
                pod.uid = "another".into();
                node.route_pod(&pod);
            }
        }
        wait_view(&node.ovs, "the port is gone", |view| view.interface(&port).is_none()).await;
        node.plugger.cluster.pods.put(key, None);
    }
    // The last one may be in the making still.
    for _ in 0..500 {
        if node.plugger.prepared.waiting() == 0
            && node.pod_links().await.is_empty()
            && node.pod_ports().is_empty()
        {
            cancel.cancel();
            return running.await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left: {:?} {:?} {:?}", node.plugger.prepared, node.pod_ports(), node.pod_links().await);
}

/// The process ends while a port waits: pair and namespace end with it, and the
/// row is found by the clean-up of the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_ends_with_the_process() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    made_ready(&node, 12).await;
    node.restart_agent();
    let mut suspects = Suspects::default();
    for _ in 0..500 {
        node.plugger.clean_lost(&mut suspects).await;
        if node.pod_ports().is_empty() && node.pod_links().await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left: {:?} {:?}", node.pod_ports(), node.pod_links().await);
}

/// Nothing is at its other end that could be limited, or told of: that comes with the ADD.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_port_that_waits_are_judged_at_its_add() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let mut pod = routed_pod(14);
    annotate(&mut pod, &[("egress_rate", "10")]);
    node.route_pod(&pod);
    let told = told(&node, async |plugger| {
        plugger.prepare().await;
        let port = names::prepared_nic(&pod.uid, "eth0");
        wait_view(&node.ovs, "the limit's row", |view| {
            let column = |interface: daemon::ovs::Interface| {
                interface.column("ingress_policing_rate").and_then(ovsdb::Value::as_i64)
            };
            view.interface(&port).and_then(column) == Some(10_000)
        })
        .await;
        let mut keeper = Keeper::new(plugger.clone());
        for _ in 0..2 {
            assert!(!keeper.pass(true).await.again);
            assert!(plugger.limits.all().is_empty(), "{:?}", plugger.limits);
        }
        let namespace = new_namespace();
        plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
        assert_eq!(plugger.limits.get(&port).unwrap().effect.egress, Hold::PodShaper);
        keeper.pass(true).await;
        assert_eq!(plugger.limits.get(&port).unwrap().effect.egress, Hold::PodShaper);
    })
    .await;
    assert!(told.iter().all(|(reason, _)| !reason.contains("QoS")), "{told:?}");
}

/// What ADD wants changed after the port was made ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_no_longer_fits_is_replaced() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, port) = made_ready(&node, 13).await;
    pod.annotations.insert(crds::keys::MAC_ADDRESS.into(), "0a:58:0a:10:00:99".into());
    node.route_pod(&pod);
    let namespace = new_namespace();
    let request = request(&pod, &namespace, 1);
    let answer = node.plugger.add(&request).await.unwrap();
    assert_eq!(answer.mac_address, "0a:58:0a:10:00:99");
    assert!(node.interface(&port).is_none());
    assert_eq!(node.pod_ports(), [names::host_nic(&request.container_id, "eth0")]);
}

/// Thirty ADDs that come while their ports are being made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_adds_and_preparation_do_not_get_in_each_others_way() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let cancel = CancellationToken::new();
    let running = tokio::spawn(prepared::run(node.plugger.clone(), cancel.clone()));
    let pods: Vec<_> = (0..30).map(|n| (routed_pod(n), new_namespace())).collect();
    let mut calls = tokio::task::JoinSet::new();
    for (pod, namespace) in &pods {
        let (plugger, request) = (node.plugger.clone(), request(pod, namespace, 1));
        calls.spawn(async move { plugger.add(&request).await });
        node.route_pod(pod);
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(node.pod_ports().len(), 30);
    assert_eq!(node.plugger.prepared.waiting(), 0);
    let requests = pods.iter().map(|(pod, namespace)| request(pod, namespace, 1));
    let all = requests.map(|request| {
        let plugger = node.plugger.clone();
        async move { plugger.del(&request).await.unwrap() }
    });
    futures::future::join_all(all).await;
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    cancel.cancel();
    running.await.unwrap();
}
