//! What the node contract says of pods' interfaces and what other files' tests do not look at (docs/node-checks.md).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use daemon::kube::{NodeFacts, PodFacts, SubnetFacts};
use daemon::netlink::{Netlink, Route, Veth};
use daemon::plug::{NodeNetwork, Stage, names};
use daemon::sys::Namespace;
use support::{MTU, Node, SUBNET, addresses, new_namespace, request, routed_pod};

fn annotate(pod: &mut PodFacts, provider: &str, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        pod.annotations.insert(crds::keys::pod_key(provider, key), (*value).to_owned());
    }
}

/// §2.2 step 4c, §2.4 steps 2 and 5: a pod with a MAC alone gets its addresses elsewhere. It has the interface without
/// addresses and routes, no gateway is asked, and what the pod's own DHCP client did stays when ADD is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_a_mac_alone_has_an_interface_without_addresses() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    pod.annotations.clear();
    annotate(
        &mut pod,
        "ovn",
        &[("allocated", "true"), ("mac_address", "0a:58:0a:10:00:0b"), ("logical_switch", SUBNET)],
    );
    node.route_pod(&pod);
    let call = request(&pod, &namespace, 1);
    let answer = node.plugger.add(&call).await.unwrap();
    assert!(answer.ips.is_empty() && answer.routes.is_empty(), "{answer:?}");
    assert_eq!((answer.mac_address.as_str(), answer.nicname.as_str()), ("0a:58:0a:10:00:0b", "eth0"));
    assert!(addresses(&namespace, "eth0").await.is_empty());
    let port = names::host_nic(&call.container_id, "eth0");
    assert_eq!(node.interface(&port).unwrap().external_id("ip"), None, "only if there is any");
    node.plugger.del(&call).await.unwrap();
    assert!(node.pod_ports().is_empty());
}

/// §2.3 steps 3, 6 and 12, §2.2 step 8: columns and properties of the interface that nothing else looks at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_interface_has_the_contracts_properties() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let storage = BTreeMap::from([("storage".to_owned(), "172.31.0.11".parse().unwrap())]);
    node.network.send_replace(Some(NodeNetwork { mtu: MTU, userspace: true, node_networks: storage }));
    let subnets = &node.plugger.cluster.subnets;
    let mut subnet = SubnetFacts::clone(&subnets.object(&SUBNET.into()).unwrap());
    subnet.node_network = "storage".into();
    subnets.put(SUBNET.into(), Some(subnet));
    let (mut pod, namespace) = (routed_pod(2), new_namespace());
    annotate(&mut pod, "ovn", &[("virtualmachine", "vm-7")]);
    node.route_pod(&pod);
    let call = request(&pod, &namespace, 1);
    node.plugger.add(&call).await.unwrap();
    let port = names::host_nic(&call.container_id, "eth0");
    assert_eq!(port, format!("{}_h", &call.container_id[..12]));
    let row = node.interface(&port).unwrap();
    assert_eq!(row.external_id("encap-ip"), Some("172.31.0.11"));
    assert_eq!(row.external_id("iface-id"), Some("vm-7.web"), "a machine's port has the machine's name");
    assert_eq!(row.external_id("pod_name"), Some("pod-2"), "and says whose pod it is");
    let host = node.host.netlink.require_link(&port).await.unwrap();
    assert!(host.up && host.tx_queue_len == 1000, "{host:?}");
    let inside = Netlink::in_namespace(&namespace).await.unwrap().require_link("eth0").await.unwrap();
    // The fast path's kernel module knows pods' devices by it.
    assert_eq!(inside.alias, Some(format!("{}_c", &call.container_id[..12])));
    assert_eq!(inside.mtu, MTU);
    node.plugger.del(&call).await.unwrap();
}

/// §2.4 step 9: each address of a pod has the gateway of its family, or the ADD fails and leaves nothing. A subnet that
/// asks no gateway gives what there is: both addresses, and the route that there is a gateway for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_gateways_do_not_fit_its_addresses_is_refused() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(4), new_namespace());
    annotate(&mut pod, "ovn", &[("gateway", "10.16.0.1")]);
    node.route_pod(&pod);
    let call = request(&pod, &namespace, 1);
    let error = node.plugger.add(&call).await.unwrap_err();
    assert_eq!((error.stage, error.code), (Stage::ConfigureNic, 7));
    assert!(error.message.starts_with("pod web/pod-4 interface eth0: of IPv6 "), "{error}");
    assert!(error.message.contains("fd00::14") && error.message.contains(SUBNET), "{error}");
    assert!(error.remedy.contains("spec.gateway of subnet ovn-default"), "{}", error.remedy);
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty());

    node.without_gateway_check();
    let answer = node.plugger.add(&call).await.unwrap();
    let given: Vec<_> = answer.ips.iter().map(|ip| (ip.ip.as_str(), ip.gateway.as_str())).collect();
    assert_eq!(given, [("10.16.0.14", "10.16.0.1"), ("fd00::14", "")]);
    assert_eq!(defaults(&namespace).await, (true, false));
    node.plugger.del(&call).await.unwrap();
}

/// §2.2 step 8: the MTU of a provider network is the node's to tell. The node is waited for, as everything that watches
/// bring; one that never comes is stage `get-node`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_on_a_provider_network_waits_for_the_nodes_label() {
    let mut node = Node::start().await;
    Arc::get_mut(&mut node.plugger).unwrap().patience.annotations = Duration::from_millis(300);
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(5), new_namespace());
    annotate(&mut pod, "ovn", &[("provider_network", "net1")]);
    node.route_pod(&pod);
    let call = request(&pod, &namespace, 1);
    let error = node.plugger.add(&call).await.unwrap_err();
    assert_eq!((error.stage, error.stage.as_str(), error.code), (Stage::GetNode, "get-node", 0));
    assert!(error.message.starts_with("pod web/pod-5 ") && error.remedy.contains("NODE_NAME"), "{error:?}");
    assert!(node.pod_ports().is_empty());

    Arc::get_mut(&mut node.plugger).unwrap().patience.annotations = Duration::from_secs(20);
    let labels = BTreeMap::from([(crds::keys::provider_network_key("net1", "mtu"), "1380".to_owned())]);
    let cluster = node.plugger.cluster.clone();
    let add = node.plugger.add(&call);
    tokio::pin!(add);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut add).await.is_err(), "it waits");
    cluster.nodes.put("n1".into(), Some(NodeFacts { name: "n1".into(), labels, ..NodeFacts::default() }));
    assert_eq!(add.await.unwrap().mtu, 1380);
    node.plugger.del(&call).await.unwrap();
}

async fn defaults(namespace: &Namespace) -> (bool, bool) {
    let routes = Netlink::in_namespace(namespace).await.unwrap().routes().await.unwrap();
    let has = |ipv6: bool| {
        let of_family = |route: &&Route| route.destination.addr().is_ipv6() == ipv6;
        routes.iter().filter(of_family).any(|route| route.is_default() && route.gateway.is_some())
    };
    (has(false), has(true))
}

/// §2.2 step 9: for another plugin we only give addresses; the default routes that are there give way to one that the
/// annotation brings, family by family, and stay without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegating_plugin_finds_the_way_clear_for_its_default_route() {
    let node = Node::start().await;
    let subnets = &node.plugger.cluster.subnets;
    let subnet = SubnetFacts {
        name: "lan".into(),
        cidr_block: "10.18.0.0/16".into(),
        provider: "lan.web".into(),
        ..SubnetFacts::default()
    };
    subnets.put("lan".into(), Some(subnet));
    let (mut pod, namespace) = (routed_pod(3), new_namespace());
    annotate(
        &mut pod,
        "lan.web",
        &[
            ("allocated", "true"),
            ("ip_address", "10.18.0.4"),
            ("mac_address", "0a:58:0a:12:00:04"),
            ("cidr", "10.18.0.0/16"),
            ("gateway", "10.18.0.1"),
            ("logical_switch", "lan"),
        ],
    );
    // The pod's own network, with both default routes.
    let veth =
        Veth { name: "other", peer: "eth0", peer_mac: None, peer_namespace: Some(&namespace), mtu: None };
    node.host.netlink.add_veth(&veth).await.unwrap();
    node.host.netlink.set_up(node.host.netlink.require_link("other").await.unwrap().index).await.unwrap();
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let eth0 = inside.require_link("eth0").await.unwrap().index;
    inside.set_up(eth0).await.unwrap();
    for net in ["10.16.0.13/16", "fd00::13/112"] {
        inside.add_address(eth0, net.parse().unwrap(), true).await.unwrap();
    }
    for gateway in ["10.16.0.1", "fd00::1"] {
        let route = Route { link: Some(eth0), ..Route::default_via(gateway.parse().unwrap()) };
        inside.replace_route(&route).await.unwrap();
    }
    let mut call = request(&pod, &namespace, 1);
    call.cni_type = "macvlan".into();
    call.provider = "lan.web".into();
    call.if_name = "net1".into();

    node.route_pod(&pod);
    let answer = node.plugger.add(&call).await.unwrap();
    assert_eq!(answer.ips[0].ip, "10.18.0.4");
    assert_eq!(answer.ips[0].gateway, "", "net1 has no default route of its own");
    assert_eq!(defaults(&namespace).await, (true, true), "without a default route of theirs");

    annotate(&mut pod, "lan.web", &[("routes", r#"[{"gw":"10.18.0.1"}]"#)]);
    node.route_pod(&pod);
    let answer = node.plugger.add(&call).await.unwrap();
    assert_eq!((answer.routes[0].dst.as_str(), answer.routes[0].gw.as_str()), ("", "10.18.0.1"));
    assert_eq!(defaults(&namespace).await, (false, true), "of their family alone");
    assert!(node.pod_ports().is_empty() && node.pod_links().await.is_empty(), "nothing of ours is made");
}
