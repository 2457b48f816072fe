//! ADD, DEL, CHECK and GC against a real ovs-vswitchd and real namespaces.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use cni::api::{Attachment, CheckRequest, ExpectedState, GcRequest};
use daemon::kube::{Fact, PodFacts};
use daemon::netlink::Netlink;
use daemon::plug::lost::Suspects;
use daemon::plug::{Stage, names};
use support::{MTU, Node, addresses, answers, new_namespace, request, routed_pod, wait_view};

fn host_nic(request: &cni::api::CniRequest) -> String {
    names::host_nic(&request.container_id, &request.if_name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_gives_a_pod_everything_and_del_takes_it_away() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (routed_pod(1), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let answer = node.plugger.add(&request).await.unwrap();

    assert_eq!(answer.nicname, "eth0");
    assert_eq!(answer.mac_address, "0a:58:0a:10:00:0b");
    assert_eq!(answer.mtu, i64::from(MTU));
    assert_eq!(answer.ips.iter().map(|ip| ip.ip.as_str()).collect::<Vec<_>>(), ["10.16.0.11", "fd00::11"]);
    assert_eq!(answer.ips[0].gateway, "10.16.0.1");
    let routes: BTreeSet<(&str, &str)> =
        answer.routes.iter().map(|r| (r.dst.as_str(), r.gw.as_str())).collect();
    assert_eq!(
        routes,
        BTreeSet::from([("", "10.16.0.1"), ("", "fd00::1"), ("10.16.0.0/16", ""), ("fd00::/112", "")])
    );

    assert_eq!(addresses(&namespace, "eth0").await, ["10.16.0.11/16", "fd00::11/112"]);
    let interface = node.interface(&host_nic(&request)).unwrap();
    for (key, value) in [
        ("iface-id", "pod-1.web"),
        ("vendor", "kube-ovn"),
        ("pod_name", "pod-1"),
        ("pod_namespace", "web"),
        ("pod_netns", request.net_ns.as_str()),
        ("ip", "10.16.0.11,fd00::11"),
        ("pod_uid", "uid-1"),
        ("container_id", request.container_id.as_str()),
        ("ifname", "eth0"),
    ] {
        assert_eq!(interface.external_id(key), Some(value), "{key}");
    }
    // Both directions pass, in both families, with offloads as the datapath needs them.
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    assert!(answers(&node.gateway, "gw", "10.16.0.11").await);
    assert!(answers(&node.gateway, "gw", "fd00::11").await);
    assert!(!node.host.ethtool.tx_checksum(&host_nic(&request)).unwrap());
    let inside = namespace.run(|| daemon::sys::EthtoolSocket::open().unwrap().tx_checksum("eth0").unwrap());
    assert!(!inside.unwrap());

    let check = CheckRequest {
        request: request.clone(),
        expected: ExpectedState {
            mac_address: answer.mac_address.clone(),
            addresses: vec!["10.16.0.11/16".into(), "fd00::11/112".into()],
            routes: answer.routes.clone(),
            mtu: answer.mtu,
        },
    };
    node.plugger.check(&check).await.unwrap();

    node.plugger.del(&request).await.unwrap();
    assert!(node.plugger.check(&check).await.is_err());
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    assert!(addresses(&namespace, "eth0").await.is_empty());
    // Again, and once more without any of pod, namespace, provider.
    node.plugger.del(&request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_add_converges() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (routed_pod(2), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let first = node.plugger.add(&request).await.unwrap();
    let uuid = node.interface(&host_nic(&request)).unwrap().uuid();
    // Someone meddles with the pod's side meanwhile.
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let link = inside.require_link("eth0").await.unwrap();
    inside.delete_address(link.index, "10.16.0.12/16".parse().unwrap()).await.unwrap();
    inside.add_address(link.index, "10.99.0.1/24".parse().unwrap(), true).await.unwrap();
    let second = node.plugger.add(&request).await.unwrap();
    assert_eq!(first.ips, second.ips);
    assert_eq!(addresses(&namespace, "eth0").await, ["10.16.0.12/16", "fd00::12/112"]);
    assert_eq!(node.interface(&host_nic(&request)).unwrap().uuid(), uuid);
    assert_eq!(node.pod_ports().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_fails_leaves_nothing() {
    let mut node = Node::start().await;
    let (pod, namespace) = (routed_pod(3), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    // Nobody plays ovn-controller.
    let plugger = std::sync::Arc::get_mut(&mut node.plugger).unwrap();
    plugger.patience.installed = Duration::from_millis(300);
    let error = node.plugger.add(&request).await.unwrap_err();
    assert_eq!(error.stage, Stage::ConfigureNic);
    assert!(error.message.contains("not ready"), "{error}");
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    assert!(addresses(&namespace, "eth0").await.is_empty());
}

/// K151: whoever waits in vain is told for whom, and where to look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_151_an_add_without_address_points_at_the_controller() {
    let mut node = Node::start().await;
    std::sync::Arc::get_mut(&mut node.plugger).unwrap().patience.annotations = Duration::from_millis(300);
    let (mut pod, namespace) = (routed_pod(18), new_namespace());
    let all = std::mem::take(&mut pod.annotations);
    let mut allocated = all.clone();
    allocated.remove(crds::keys::ROUTED);
    for (annotations, stage, words) in [
        (Default::default(), Stage::WaitAddress, "has given no address yet (waited"),
        (allocated, Stage::WaitRoute, "has not routed the pod yet (waited"),
    ] {
        pod.annotations = annotations;
        node.route_pod(&pod);
        let error = node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap_err();
        assert_eq!((error.stage, error.code), (stage, 0), "try again later");
        assert!(error.message.starts_with("pod web/pod-18 interface eth0: "), "{error}");
        assert!(error.message.contains(words), "{error}");
        assert!(error.remedy.contains("logs deploy/kube-ovn-controller"), "{}", error.remedy);
    }
    assert!(node.pod_ports().is_empty());
}

/// K192: a veth pair of our name that a crash, or another program, left behind is no obstacle to the first ADD.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_192_a_left_over_veth_is_no_obstacle() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (routed_pod(17), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let left = daemon::netlink::Veth {
        name: &host_nic(&request),
        peer: "left",
        peer_mac: None,
        peer_namespace: None,
        mtu: None,
    };
    node.host.netlink.add_veth(&left).await.unwrap();
    node.plugger.add(&request).await.unwrap();
    assert!(node.host.netlink.link("left").await.unwrap().is_none(), "the old pair is gone");
    assert_eq!(addresses(&namespace, "eth0").await, ["10.16.0.27/16", "fd00::21/112"]);
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interface_of_another_plugin_is_not_touched() {
    let node = Node::start().await;
    let (pod, namespace) = (routed_pod(4), new_namespace());
    node.route_pod(&pod);
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let veth = daemon::netlink::Veth {
        name: "eth0",
        peer: "other",
        peer_mac: None,
        peer_namespace: None,
        mtu: None,
    };
    inside.add_veth(&veth).await.unwrap();
    let error = node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap_err();
    assert_eq!(error.code, 7, "{error}");
    assert!(inside.link("eth0").await.unwrap().is_some());
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_waits_for_the_controller() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (routed_pod(5), new_namespace());
    let request = request(&pod, &namespace, 1);
    let plugger = node.plugger.clone();
    let call = request.clone();
    let add = tokio::spawn(async move { plugger.add(&call).await });
    // Known, then allocated, then routed: each wakes the waiting ADD.
    let mut bare = pod.clone();
    bare.annotations.clear();
    node.route_pod(&bare);
    tokio::task::yield_now().await;
    let mut allocated = pod.clone();
    allocated.annotations.remove(crds::keys::ROUTED);
    node.route_pod(&allocated);
    tokio::task::yield_now().await;
    assert!(!add.is_finished());
    node.route_pod(&pod);
    add.await.unwrap().unwrap();
    assert_eq!(node.pod_ports(), [host_nic(&request)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_vanishes_ends_the_wait() {
    let mut node = Node::start().await;
    // Whether the ADD sees the pod before it goes is the scheduler's choice.
    std::sync::Arc::get_mut(&mut node.plugger).unwrap().patience.watch = Duration::from_millis(50);
    let (mut pod, namespace) = (routed_pod(6), new_namespace());
    let request = request(&pod, &namespace, 1);
    pod.annotations.clear();
    node.route_pod(&pod);
    let plugger = node.plugger.clone();
    let add = tokio::spawn(async move { plugger.add(&request).await });
    let pods = &node.plugger.cluster.pods;
    // The ADD has looked once its receiver is there.
    while pods.subscribers() == 0 {
        tokio::task::yield_now().await;
    }
    pods.put(PodFacts::key(&pod.namespace, &pod.name), None);
    let error = add.await.unwrap().unwrap_err();
    assert!(matches!(error.stage, Stage::GetPod), "{error}");
}

/// Nobody installs the port; the pod is deleted, or the runtime gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_nobody_wants_any_more_ends_at_once() {
    let node = Node::start().await;
    for by_del in [false, true] {
        let (mut pod, namespace) = (routed_pod(20), new_namespace());
        node.route_pod(&pod);
        let request = request(&pod, &namespace, u8::from(by_del));
        let (plugger, call) = (node.plugger.clone(), request.clone());
        let add = tokio::spawn(async move { plugger.add(&call).await });
        let nic = host_nic(&request);
        wait_view(&node.ovs, "the port", |view| view.interface(&nic).is_some()).await;
        if by_del {
            node.plugger.del(&request).await.unwrap();
        } else {
            pod.deleting = true;
            node.route_pod(&pod);
        }
        let error = add.await.unwrap().unwrap_err();
        assert_eq!(error.stage, if by_del { Stage::ConfigureNic } else { Stage::GetPod });
        assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn del_needs_neither_pod_nor_namespace() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    for (n, forget_netns) in [(7, false), (8, true)] {
        let (pod, namespace) = (routed_pod(n), new_namespace());
        node.route_pod(&pod);
        let mut request = request(&pod, &namespace, 1);
        node.plugger.add(&request).await.unwrap();
        node.plugger.cluster.pods.put(PodFacts::key(&pod.namespace, &pod.name), None);
        if forget_netns {
            request.net_ns.clear();
        }
        drop(namespace);
        request.pod_name.clear();
        request.pod_namespace.clear();
        node.plugger.del(&request).await.unwrap();
        assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_del_does_not_hurt_the_newer_sandbox() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let pod = routed_pod(9);
    node.route_pod(&pod);
    let (old_namespace, new_namespace) = (new_namespace(), new_namespace());
    let old = request(&pod, &old_namespace, 1);
    let new = request(&pod, &new_namespace, 2);
    // A plain learning switch, unlike OVN, is confused by two owners of a MAC.
    node.without_gateway_check();
    node.plugger.add(&old).await.unwrap();
    node.plugger.add(&new).await.unwrap();
    // Only the newest sandbox owns the logical port.
    assert_eq!(node.interface(&host_nic(&old)).unwrap().external_id("iface-id"), None);
    assert_eq!(node.interface(&host_nic(&new)).unwrap().external_id("iface-id"), Some("pod-9.web"));
    node.plugger.del(&old).await.unwrap();
    assert_eq!(node.pod_ports(), [host_nic(&new)]);
    assert!(answers(&new_namespace, "eth0", "10.16.0.1").await);
}

/// K15A: what a host name has room for of a container's id may be the same of two containers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_15a_two_containers_of_one_host_name_do_not_touch_each_other() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    for (if_name, ids) in [
        ("fronthaul10", ["a1", "a2"]),
        // Of 256 random bits 48 in a row.
        ("eth0", ["a123456789ab1", "a123456789ab2"]),
    ] {
        let pods = [(routed_pod(21), new_namespace()), (routed_pod(22), new_namespace())];
        let mut requests = Vec::new();
        for ((pod, namespace), id) in pods.iter().zip(ids) {
            node.route_pod(pod);
            let request = request(pod, namespace, 1);
            requests.push(cni::api::CniRequest {
                container_id: format!("{id:0<64}"),
                if_name: if_name.into(),
                ..request
            });
            node.plugger.add(requests.last().unwrap()).await.unwrap();
        }
        let [first, second] = [&requests[0], &requests[1]];
        assert_eq!(node.pod_ports().len(), 2, "{if_name}: {:?}", node.pod_ports());
        for (_, namespace) in &pods {
            assert!(answers(namespace, if_name, "10.16.0.1").await, "{if_name}");
        }
        // Nor does a call that is repeated, or one for what is gone.
        node.plugger.add(second).await.unwrap();
        for _ in 0..2 {
            node.plugger.del(second).await.unwrap();
            assert_eq!(node.pod_ports().len(), 1, "{if_name}");
            assert_eq!(node.pod_links().await, node.pod_ports().into_iter().collect::<Vec<_>>());
            assert!(answers(&pods[0].1, if_name, "10.16.0.1").await, "{if_name}");
        }
        node.plugger.del(first).await.unwrap();
        assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    }
}

/// A port that Kube-OVN made has a few digits of the id in its name, and no mark of the container.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_of_kube_ovn_with_a_long_interface_name_goes_with_its_pod_alone() {
    let node = Node::start().await;
    let (pod, namespace) = (routed_pod(23), new_namespace());
    let request = request(&pod, &namespace, 1);
    let request = cni::api::CniRequest { if_name: "fronthaul10".into(), ..request };
    let port = format!("{}_fronthaul10_h", &request.container_id[..1]);
    let ids = [
        ("vendor", "kube-ovn"),
        ("iface-id", "pod-23.web"),
        ("pod_name", "pod-23"),
        ("pod_namespace", "web"),
        ("pod_netns", &request.net_ns),
    ];
    let spec = daemon::ovs::PortSpec {
        bridge: daemon::ovs::BR_INT.into(),
        name: port.clone(),
        external_ids: ids.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Default::default()
    };
    node.ovs.apply(|view| daemon::ovs::plan::ensure_port(view, &spec)).await.unwrap();
    let another = cni::api::CniRequest { pod_name: "another".into(), ..request.clone() };
    node.plugger.del(&another).await.unwrap();
    assert_eq!(node.pod_ports(), [port]);
    node.plugger.del(&request).await.unwrap();
    assert!(node.pod_ports().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_at_once_all_succeed() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let pods: Vec<_> = (0..30).map(|n| (routed_pod(n), new_namespace())).collect();
    let mut calls = tokio::task::JoinSet::new();
    for (pod, namespace) in &pods {
        node.route_pod(pod);
        let (plugger, request) = (node.plugger.clone(), request(pod, namespace, 1));
        calls.spawn(async move { plugger.add(&request).await });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(node.pod_ports().len(), 30);
    let mut calls = tokio::task::JoinSet::new();
    for (pod, namespace) in &pods {
        let (plugger, request) = (node.plugger.clone(), request(pod, namespace, 1));
        calls.spawn(async move { plugger.del(&request).await });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gc_removes_what_the_runtime_does_not_know() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let pods: Vec<_> = (10..13).map(|n| (routed_pod(n), new_namespace())).collect();
    let requests: Vec<_> = pods.iter().map(|(pod, namespace)| request(pod, namespace, 1)).collect();
    for ((pod, _), request) in pods.iter().zip(&requests) {
        node.route_pod(pod);
        node.plugger.add(request).await.unwrap();
    }
    let attachment = |request: &cni::api::CniRequest| Attachment {
        container_id: request.container_id.clone(),
        if_name: request.if_name.clone(),
    };
    let gc = GcRequest {
        network: "kube-ovn".into(),
        cni_type: "kube-ovn".into(),
        provider: "ovn".into(),
        valid_attachments: vec![attachment(&requests[1])],
    };
    // Another network's list says nothing about this one's ports.
    let other = GcRequest { network: "other".into(), valid_attachments: Vec::new(), ..gc.clone() };
    node.plugger.gc(&other).await.unwrap();
    assert_eq!(node.pod_ports().len(), 3);
    node.plugger.gc(&gc).await.unwrap();
    assert_eq!(node.pod_ports(), [host_nic(&requests[1])]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interface_whose_sandbox_died_is_cleaned_up() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (dead, alive) = ((routed_pod(14), new_namespace()), (routed_pod(15), new_namespace()));
    for (pod, namespace) in [&dead, &alive] {
        node.route_pod(pod);
        node.plugger.add(&request(pod, namespace, 1)).await.unwrap();
    }
    let (gone, kept) = (host_nic(&request(&dead.0, &dead.1, 1)), host_nic(&request(&alive.0, &alive.1, 1)));
    let mut suspects = Suspects::default();
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], false));
    // Somebody deletes the pair of a pod that lives: it is to be mended (D73), for which the row is needed.
    node.host.netlink.delete_link(&gone).await.unwrap();
    for _ in 0..3 {
        assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], false));
    }
    // The pod goes.
    let pods = &node.plugger.cluster.pods;
    pods.put(PodFacts::key(&dead.0.namespace, &dead.0.name), None);
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], true));
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![gone], false));
    assert_eq!(node.pod_ports(), [kept]);
}

/// The agent has just started, and calls come before the switch's rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_come_before_the_switch_is_known_find_the_ports() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(24), new_namespace());
    pod.annotations.insert(crds::keys::pod_key("ovn", "pod_nic_type"), "internal-port".into());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    node.plugger.add(&request).await.unwrap();
    let check = CheckRequest { request: request.clone(), expected: ExpectedState::default() };
    let old = node.ovs.clone();
    node.ovs = daemon::ovs::Ovs::connect(vec![node.server.endpoint()]);
    node.restart_agent();
    assert!(!node.ovs.view().is_connected());
    node.plugger.check(&check).await.unwrap();
    node.ovs = daemon::ovs::Ovs::connect(vec![node.server.endpoint()]);
    node.restart_agent();
    assert!(!node.ovs.view().is_connected());
    node.plugger.del(&request).await.unwrap();
    let port = names::container_nic(&request.container_id, &request.if_name);
    wait_view(&old, "the port is gone", |view| view.port(&port).is_none()).await;
}

/// So many others are being made that the turn does not come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_queues_ends_with_del_and_in_time() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (routed_pod(25), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let add = |plugger: &std::sync::Arc<daemon::plug::Plugger>| {
        let (plugger, call) = (plugger.clone(), request.clone());
        tokio::spawn(async move { plugger.add(&call).await })
    };
    let free = node.plugger.at_once.available_permits();
    let plugger = node.plugger.clone();
    let all = plugger.at_once.acquire_many(free.try_into().unwrap()).await.unwrap();
    let first = add(&node.plugger);
    while node.plugger.locks.try_lock(&request.container_id).is_some() {
        tokio::task::yield_now().await;
    }
    // The runtime gives up and tries again: that one waits for the first.
    let second = add(&node.plugger);
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        tokio::task::yield_now().await;
    }
    node.plugger.del(&request).await.unwrap();
    for call in [first, second] {
        let error = call.await.unwrap().unwrap_err();
        assert!(error.message.contains("DEL came"), "{error}");
    }
    drop(all);
    drop(plugger);
    std::sync::Arc::get_mut(&mut node.plugger).unwrap().patience.whole = Duration::from_millis(300);
    let plugger = node.plugger.clone();
    let all = plugger.at_once.acquire_many(free.try_into().unwrap()).await.unwrap();
    let error = node.plugger.add(&request).await.unwrap_err();
    assert!(error.message.contains("too many interfaces"), "{error}");
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
    drop(all);
    node.plugger.add(&request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_are_in_the_switch_and_go_with_the_port() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(16), new_namespace());
    for (key, value) in [("ingress_rate", "2"), ("egress_rate", "3")] {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), value.into());
    }
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    node.plugger.add(&request).await.unwrap();
    let interface = node.interface(&host_nic(&request)).unwrap();
    assert_eq!(interface.column("ingress_policing_rate").and_then(ovsdb::Value::as_i64), Some(3000));
    let qos =
        node.ovs.view().port(&host_nic(&request)).unwrap().get("qos").unwrap().set_uuids().next().unwrap();
    assert_eq!(node.ovs.view().queues_of(&qos).len(), 1);
    node.plugger.del(&request).await.unwrap();
    assert!(node.ovs.view().queues_of(&qos).is_empty());
}
