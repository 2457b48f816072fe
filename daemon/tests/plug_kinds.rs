//! Internal ports, several interfaces per pod, underlay subnets: against a
//! real ovs-vswitchd and real namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::api::{CheckRequest, CniRequest, ExpectedState};
use daemon::changes::Changes;
use daemon::kube::{Fact, PodFacts, SubnetFacts};
use daemon::netlink::Netlink;
use daemon::ovs::{BR_INT, PortSpec, plan};
use daemon::plug::lost::Suspects;
use daemon::plug::{Stage, names, replug};
use daemon::sys::Namespace;
use ovsdb::Operation;
use support::{
    Node, SUBNET, addresses, answers, new_namespace, request, routed_pod, start_vswitchd, wait_view,
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

fn annotate(pod: &mut PodFacts, provider: &str, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        pod.annotations.insert(crds::keys::pod_key(provider, key), (*value).to_owned());
    }
}

fn internal_pod(n: u8) -> PodFacts {
    let mut pod = routed_pod(n);
    annotate(&mut pod, "ovn", &[("pod_nic_type", "internal-port")]);
    pod
}

fn internal_port(request: &CniRequest) -> String {
    names::container_nic(&request.container_id, &request.if_name)
}

fn expectation(request: &CniRequest, answer: &cni::api::CniResponse) -> CheckRequest {
    CheckRequest {
        request: request.clone(),
        expected: ExpectedState {
            mac_address: answer.mac_address.clone(),
            addresses: answer
                .ips
                .iter()
                .map(|ip| format!("{}/{}", ip.ip, ip.cidr.split_once('/').unwrap().1))
                .collect(),
            routes: answer.routes.clone(),
            mtu: answer.mtu,
        },
    }
}

/// Waits for something that another process does, with a generous limit.
async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < Duration::from_secs(30), "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn has_link(namespace: &Namespace, name: &str) -> bool {
    Netlink::in_namespace(namespace).await.unwrap().link(name).await.unwrap().is_some()
}

/// Runs the agent's loop for internal ports until the guard is dropped.
async fn mend(node: &Node) -> tokio_util::sync::DropGuard {
    let (cancel, changes) = (CancellationToken::new(), broadcast::Sender::new(1024));
    let mut monitor = node.host.monitor().await.unwrap();
    let receiver = changes.subscribe();
    let stop = cancel.clone();
    tokio::spawn(async move {
        while let Some(Some(change)) = stop.run_until_cancelled(monitor.next()).await {
            let _ = changes.send(change);
        }
    });
    tokio::spawn(replug::run(node.plugger.clone(), receiver, Changes::default(), cancel.clone()));
    cancel.drop_guard()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_157_an_internal_port_is_the_pods_eth0_and_survives_the_switch() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (internal_pod(1), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let answer = node.plugger.add(&request).await.unwrap();
    assert_eq!((answer.nicname.as_str(), answer.mac_address.as_str()), ("eth0", "0a:58:0a:10:00:0b"));
    assert_eq!(addresses(&namespace, "eth0").await, ["10.16.0.11/16", "fd00::11/112"]);
    let port = internal_port(&request);
    let interface = node.interface(&port).unwrap();
    assert_eq!(interface.kind(), "internal");
    for (key, value) in [("iface-id", "pod-1.web"), ("ip", "10.16.0.11,fd00::11"), ("ifname", "eth0")] {
        assert_eq!(interface.external_id(key), Some(value), "{key}");
    }
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    assert!(answers(&node.gateway, "gw", "fd00::11").await);
    assert!(node.host.netlink.link(&port).await.unwrap().is_none(), "its device is in the pod");
    let check = expectation(&request, &answer);
    node.plugger.check(&check).await.unwrap();
    // A repeated ADD keeps it.
    let uuid = interface.uuid();
    assert_eq!(node.plugger.add(&request).await.unwrap().ips, answer.ips);
    assert_eq!(node.interface(&port).unwrap().uuid(), uuid);

    // The switch calls the link down, and clean-up leaves it alone all the same.
    wait_view(&node.ovs, "the link is down for the switch", |view| {
        view.interface(&port).unwrap().link_state() == Some("down")
    })
    .await;
    let mut suspects = Suspects::default();
    for _ in 0..3 {
        assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], false));
    }

    let _mending = mend(&node).await;
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let old = inside.require_link("eth0").await.unwrap().index;
    node.vswitchd = None;
    let carrier = async || inside.link("eth0").await.unwrap().is_some_and(|link| link.running);
    eventually("the device is dead without the switch", async || !carrier().await).await;
    node.vswitchd = Some(start_vswitchd(&node.namespace, &node.server));
    let begin = Instant::now();
    eventually("there is a new device", async || {
        let link = inside.link("eth0").await.unwrap();
        link.is_some_and(|link| link.index != old) && addresses(&namespace, "eth0").await.len() == 2
    })
    .await;
    println!("re-plugged {:?} after the switch's start", begin.elapsed());
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
    assert!(answers(&node.gateway, "gw", "fd00::11").await);
    node.plugger.check(&check).await.unwrap();

    node.plugger.del(&request).await.unwrap();
    assert!(node.pod_ports().is_empty());
    eventually("the device goes with its port", async || !has_link(&namespace, "eth0").await).await;
    node.plugger.del(&request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_internal_port_whose_device_was_deleted_is_made_anew() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (internal_pod(2), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let answer = node.plugger.add(&request).await.unwrap();
    assert!(node.plugger.replug(true).await.done.is_empty(), "nothing to mend");
    Netlink::in_namespace(&namespace).await.unwrap().delete_link("eth0").await.unwrap();
    assert_eq!(node.plugger.replug(true).await.done, [internal_port(&request)]);
    node.plugger.check(&expectation(&request, &answer)).await.unwrap();
    assert!(answers(&namespace, "eth0", "10.16.0.1").await);
}

/// Of two pods one can't be mended: a call for its container does not end, or OVN does not install it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_has_to_wait_holds_up_no_other() {
    for by_call in [true, false] {
        let mut node = Node::start().await;
        let controller = node.play_ovn_controller();
        Arc::get_mut(&mut node.plugger).unwrap().patience.installed = Duration::from_secs(600);
        let pods = [(internal_pod(7), new_namespace()), (internal_pod(8), new_namespace())];
        let mut requests = Vec::new();
        for (pod, namespace) in &pods {
            node.route_pod(pod);
            requests.push(request(pod, namespace, 1));
            node.plugger.add(requests.last().unwrap()).await.unwrap();
        }
        let _mending = mend(&node).await;
        drop(controller);
        let held = match by_call {
            true => Some(node.plugger.locks.lock(&requests[0].container_id).await),
            false => None,
        };
        // Something of it is to be mended, for which OVN would have to install it again.
        let row = node.interface(&internal_port(&requests[0])).unwrap();
        let touched = Operation::mutate("Interface")
            .by_uuid(row.uuid())
            .delete_map_keys("external_ids", ["ovn-installed", "pod_netns"])
            .build();
        node.ovs.commit(vec![touched]).await.unwrap();
        if !by_call {
            wait_view(&node.ovs, "its mending has begun", |view| {
                view.interface(&internal_port(&requests[0])).unwrap().external_id("pod_netns").is_some()
            })
            .await;
        }
        let mut inside = Vec::new();
        for (_, namespace) in &pods {
            let netlink = Netlink::in_namespace(namespace).await.unwrap();
            let old = netlink.require_link("eth0").await.unwrap().index;
            inside.push((netlink, old));
        }
        let mended = async |n: usize| {
            let (netlink, old): &(Netlink, u32) = &inside[n];
            let link = netlink.link("eth0").await.unwrap();
            link.is_some_and(|link| link.index != *old && link.running)
        };
        node.vswitchd = None;
        node.vswitchd = Some(start_vswitchd(&node.namespace, &node.server));
        eventually("the other one has its device", async || mended(1).await).await;
        assert!(!mended(0).await, "by call {by_call}: this one waits");
        drop(held);
        let _controller = node.play_ovn_controller();
        eventually("and then this one", async || mended(0).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_internal_port_goes_with_its_sandbox() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (internal_pod(3), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    node.plugger.add(&request).await.unwrap();
    drop(namespace);
    let mut suspects = Suspects::default();
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![], true));
    assert_eq!(node.plugger.clean_lost(&mut suspects).await, (vec![internal_port(&request)], false));
    assert!(node.pod_ports().is_empty());
}

/// A second network on the same switch: 10.17.0.0/16 with provider `nad.web.ovn`.
async fn second_network(node: &Node) {
    let inside = Netlink::in_namespace(&node.gateway).await.unwrap();
    let link = inside.require_link("gw").await.unwrap();
    inside.add_address(link.index, "10.17.0.1/16".parse().unwrap(), true).await.unwrap();
    let subnet = SubnetFacts {
        name: "second".into(),
        provider: "nad.web.ovn".into(),
        cidr_block: "10.17.0.0/16".into(),
        mtu: 1300,
        ..SubnetFacts::default()
    };
    node.plugger.cluster.subnets.put("second".into(), Some(subnet));
}

fn attachment(request: &CniRequest, if_name: &str) -> CniRequest {
    CniRequest {
        if_name: if_name.into(),
        provider: "nad.web.ovn".into(),
        network: "second".into(),
        ..request.clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_153_a_pod_has_an_interface_per_attachment() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    second_network(&node).await;
    let (mut pod, namespace) = (routed_pod(4), new_namespace());
    annotate(&mut pod, "ovn", &[("default_route", "false")]);
    let second = [
        ("allocated", "true"),
        ("routed", "true"),
        ("cidr", "10.17.0.0/16"),
        ("gateway", "10.17.0.1"),
        ("logical_switch", "second"),
    ];
    // The same attachment twice: once plain, once under its interface's name.
    for (provider, ip, mac) in [
        ("nad.web.ovn", "10.17.0.4", "0a:58:0a:11:00:04"),
        ("nad.web.ovn.net2", "10.17.0.5", "0a:58:0a:11:00:05"),
    ] {
        annotate(&mut pod, provider, &second);
        annotate(&mut pod, provider, &[("ip_address", ip), ("mac_address", mac)]);
    }
    annotate(
        &mut pod,
        "nad.web.ovn",
        &[("default_route", "true"), ("routes", r#"[{"dst":"192.168.7.0/24","gw":"10.17.0.9"}]"#)],
    );
    node.route_pod(&pod);
    let eth0 = request(&pod, &namespace, 1);
    let (net1, net2) = (attachment(&eth0, "net1"), attachment(&eth0, "net2"));
    // A runtime may set up the attachments of one sandbox at once (C052).
    let (one, two, three) =
        tokio::join!(node.plugger.add(&eth0), node.plugger.add(&net1), node.plugger.add(&net2));
    let (one, two, three) = (one.unwrap(), two.unwrap(), three.unwrap());
    assert_eq!(
        (one.nicname.as_str(), two.nicname.as_str(), three.nicname.as_str()),
        ("eth0", "net1", "net2")
    );
    assert_eq!((two.mtu, three.mtu), (1300, 1300));
    assert!(one.ips.iter().all(|ip| ip.gateway.is_empty()), "eth0 has no default route");
    assert_eq!(two.ips[0].gateway, "10.17.0.1");
    assert_eq!(addresses(&namespace, "net1").await, ["10.17.0.4/16"]);
    assert_eq!(addresses(&namespace, "net2").await, ["10.17.0.5/16"]);
    let ids: Vec<String> = [&eth0, &net1, &net2]
        .iter()
        .map(|r| names::host_nic(&r.container_id, &r.if_name))
        .map(|port| node.interface(&port).unwrap().external_id("iface-id").unwrap().to_owned())
        .collect();
    assert_eq!(ids, ["pod-4.web", "pod-4.web.nad.web.ovn", "pod-4.web.nad.web.ovn.net2"]);
    let defaults: Vec<_> = Netlink::in_namespace(&namespace)
        .await
        .unwrap()
        .routes()
        .await
        .unwrap()
        .into_iter()
        .filter(|route| route.is_default() && route.gateway.is_some())
        .filter_map(|route| route.gateway)
        .collect();
    assert_eq!(defaults, ["10.17.0.1".parse::<std::net::IpAddr>().unwrap()]);
    // Routes belong to the attachment, not to one of its interfaces: the last one made has them.
    let extra =
        |answer: &cni::api::CniResponse| answer.routes.iter().any(|route| route.dst == "192.168.7.0/24");
    assert!(extra(&two) || extra(&three));
    let (mut two, mut three) = (two, three);
    for answer in [&mut two, &mut three] {
        answer.routes.retain(|route| route.dst != "192.168.7.0/24");
    }
    for (request, answer) in [(&eth0, &one), (&net1, &two), (&net2, &three)] {
        node.plugger.check(&expectation(request, answer)).await.unwrap();
    }
    // One goes, the others stay.
    node.plugger.del(&net1).await.unwrap();
    assert!(node.plugger.check(&expectation(&net1, &two)).await.is_err());
    node.plugger.check(&expectation(&net2, &three)).await.unwrap();
    assert_eq!(node.pod_ports().len(), 2);
    tokio::try_join!(node.plugger.del(&eth0), node.plugger.del(&net2)).unwrap();
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_without_subnet_is_refused_with_the_remedy() {
    let node = Node::start().await;
    let (pod, namespace) = (routed_pod(5), new_namespace());
    node.route_pod(&pod);
    let error = node.plugger.add(&attachment(&request(&pod, &namespace, 1), "net1")).await.unwrap_err();
    assert_eq!((error.stage, error.stage.status()), (Stage::Provider, 400));
    assert!(error.remedy.contains("nad.web.ovn"), "{error:?}");
}

/// The subnet becomes an underlay one, its patch port is there.
async fn underlay(node: &Node) {
    let subnets = &node.plugger.cluster.subnets;
    let mut subnet = SubnetFacts::clone(&subnets.object(&SUBNET.into()).unwrap());
    subnet.vlan = "v1".into();
    subnets.put(SUBNET.into(), Some(subnet));
    let patch = PortSpec {
        bridge: BR_INT.into(),
        name: format!("patch-localnet.{SUBNET}-to-br-int"),
        kind: "patch".into(),
        ..PortSpec::default()
    };
    node.ovs.apply(|view| plan::ensure_port(view, &patch)).await.unwrap();
}

/// Pod 6, whose address of one family somebody else has.
async fn with_rival(rival: &str, detect: bool) -> (Node, support::Controller, CniRequest, Namespace) {
    let mut node = Node::start().await;
    let controller = node.play_ovn_controller();
    underlay(&node).await;
    Arc::get_mut(&mut node.plugger).unwrap().detect_conflicts = detect;
    let inside = Netlink::in_namespace(&node.gateway).await.unwrap();
    let link = inside.require_link("gw").await.unwrap();
    inside.add_address(link.index, rival.parse().unwrap(), true).await.unwrap();
    let (pod, namespace) = (routed_pod(6), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    (node, controller, request, namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_somebody_has_on_the_physical_network_is_found() {
    for (rival, told) in [("10.16.0.16/16", "10.16.0.16"), ("fd00::16/112", "fd00::16")] {
        let (node, _controller, request, namespace) = with_rival(rival, true).await;
        let error = node.plugger.add(&request).await.unwrap_err();
        assert!(
            error.message.contains(&format!("IP address {told} has already been used by host")),
            "{error}"
        );
        if !told.contains(':') {
            assert!(error.message.contains("MAC 0a:00:00:00:00:01"), "{error}");
        }
        assert!(!error.remedy.is_empty());
        assert!(addresses(&namespace, "eth0").await.is_empty());
        assert_eq!(node.pod_links().await.len(), 0, "nothing is left");
    }
}

/// The flag is for IPv4 alone (node contract §2.4 step 3): IPv6 has the kernel's own detection, on every physical network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ipv6_address_that_somebody_has_is_found_whatever_the_flag_says() {
    let (mut node, _controller, request, namespace) = with_rival("fd00::16/112", false).await;
    let error = node.plugger.add(&request).await.unwrap_err();
    assert!(error.message.contains("IP address fd00::16 has already been used by host"), "{error}");
    assert!(addresses(&namespace, "eth0").await.is_empty());
    assert_eq!(node.pod_links().await.len(), 0, "nothing is left");

    // And all wait for the way to the physical network.
    let patch = format!("patch-localnet.{SUBNET}-to-br-int");
    node.ovs.apply(|view| Ok(plan::remove_port(view, &patch))).await.unwrap();
    Arc::get_mut(&mut node.plugger).unwrap().patience.installed = Duration::from_secs(2);
    let error = node.plugger.add(&request).await.unwrap_err();
    assert!(error.message.contains(&format!("{patch} is not ready")), "{error}");
    assert!(error.remedy.contains("provider network"), "{error:?}");
}

/// Both the interconnection's address and the physical gateway have to answer (node contract §2.4 step 9).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_u2o_pod_needs_the_interconnection_and_of_two_families_one() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    underlay(&node).await;
    let api = node.take_events();
    Arc::get_mut(&mut node.plugger).unwrap().patience.gateway = Duration::from_secs(2);
    let subnets = &node.plugger.cluster.subnets;
    let mut subnet = SubnetFacts::clone(&subnets.object(&SUBNET.into()).unwrap());
    subnet.u2o_interconnection = true;
    subnet.u2o_interconnection_ip = "10.16.0.254,fd00::fe".into();
    subnets.put(SUBNET.into(), Some(subnet));
    let (pod, namespace) = (routed_pod(9), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let error = node.plugger.add(&request).await.unwrap_err();
    assert!(error.message.contains("gateway 10.16.0.254 does not answer"), "{error}");
    assert!(node.pod_ports().iter().all(|port| port.starts_with("patch-")), "{:?}", node.pod_ports());
    // Of IPv4 both answer now. Another ADD would not bring IPv6.
    let inside = Netlink::in_namespace(&node.gateway).await.unwrap();
    let link = inside.require_link("gw").await.unwrap();
    inside.add_address(link.index, "10.16.0.254/16".parse().unwrap(), true).await.unwrap();
    node.plugger.add(&request).await.unwrap();
    let told = || {
        let mut events = api.told().into_iter();
        events.find(|event| event["reason"] == "PodNetworkGatewaySilent")
    };
    eventually("the owner is told", async || told().is_some()).await;
    let event = told().unwrap();
    assert!(event["message"].as_str().unwrap().contains("fd00::fe"), "{event}");
    assert_eq!(event["involvedObject"]["name"], "pod-9");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_asked_when_the_flag_is_off_or_the_address_is_free() {
    let (node, _controller, request, _namespace) = with_rival("10.16.0.16/16", false).await;
    node.without_gateway_check();
    node.plugger.add(&request).await.unwrap();

    let (node, _controller, request, namespace) = with_rival("10.16.0.99/16", true).await;
    let begin = Instant::now();
    node.plugger.add(&request).await.unwrap();
    println!("ADD with detection: {:?}", begin.elapsed());
    assert_eq!(addresses(&namespace, "eth0").await, ["10.16.0.16/16", "fd00::16/112"]);
    node.plugger.cluster.pods.put(PodFacts::key("web", "pod-6"), None);
    node.plugger.del(&request).await.unwrap();
}
