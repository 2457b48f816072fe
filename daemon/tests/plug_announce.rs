//! New pods tell their neighbours where their addresses are: who knew the
//! addresses' former owners would go on asking for those. (k_: node contract
//! §2.4, step 3; D77: in a lull of the calls.)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use daemon::netlink::Netlink;
use daemon::sys::{ArpMessage, ArpSocket};
use support::death::{killed_after, settle};
use support::{Node, new_namespace, request, routed_pod, wait_view};

/// Waits for the gratuitous ARP of an address; what else is heard is passed over.
async fn heard(socket: &tokio::io::unix::AsyncFd<ArpSocket>, address: Ipv4Addr) -> [u8; 6] {
    let listen = async {
        loop {
            let mut ready = socket.readable().await.unwrap();
            let Ok(Ok(frame)) = ready.try_io(|socket| socket.get_ref().receive()) else { continue };
            let Some(message) = ArpMessage::parse(&frame) else { continue };
            if message.sender_ip == address && message.target_ip == address {
                return message.sender_mac;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), listen).await.expect("nobody announced the address")
}

async fn listen(node: &Node) -> tokio::io::unix::AsyncFd<ArpSocket> {
    let link = Netlink::in_namespace(&node.gateway).await.unwrap().require_link("gw").await.unwrap();
    node.gateway.run_async(move || ArpSocket::open(link.index)).await.unwrap().unwrap().watched().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_hear_of_a_new_pod() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let socket = listen(&node).await;
    let (pod, namespace) = (routed_pod(1), new_namespace());
    node.route_pod(&pod);
    node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
    assert_eq!(heard(&socket, Ipv4Addr::new(10, 16, 0, 11)).await, [0x0a, 0x58, 0x0a, 0x10, 0, 0x0b]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_hear_of_it_while_other_calls_go_on() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let socket = listen(&node).await;
    // Its controller never routes this one; DEL ends the call at last.
    let (waiting, other) = (routed_pod(2), new_namespace());
    let mut unrouted = waiting.clone();
    unrouted.annotations.clear();
    node.route_pod(&unrouted);
    let call = request(&waiting, &other, 1);
    let (plugger, waits) = (Arc::clone(&node.plugger), call.clone());
    let pending = tokio::spawn(async move { plugger.add(&waits).await });
    let (pod, namespace) = (routed_pod(1), new_namespace());
    node.route_pod(&pod);
    node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
    assert_eq!(heard(&socket, Ipv4Addr::new(10, 16, 0, 11)).await, [0x0a, 0x58, 0x0a, 0x10, 0, 0x0b]);
    assert!(!pending.is_finished(), "the other call still waits");
    node.plugger.del(&call).await.unwrap();
    assert!(pending.await.unwrap().is_err());
}

/// D78: the host gives ports of the switch no address, and no route with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_ends_have_no_address() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (pod, namespace) = (routed_pod(1), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    node.plugger.add(&request).await.unwrap();
    let name = daemon::plug::names::host_nic(&request.container_id, "eth0");
    wait_view(&node.ovs, "the port is up", |view| {
        view.interface(&name).is_some_and(|interface| interface.link_state() == Some("up"))
    })
    .await;
    let link = node.host.netlink.require_link(&name).await.unwrap();
    assert!(link.up && link.running);
    let addresses = node.host.netlink.addresses(Some(link.index)).await.unwrap();
    assert!(addresses.is_empty(), "{addresses:?}");
    let routes = node.host.netlink.routes().await.unwrap();
    let unicast = |net: &ipnet::IpNet| !net.addr().is_multicast();
    assert!(!routes.iter().any(|route| route.link == Some(link.index) && unicast(&route.destination)));
}

/// D78: nothing of a port changes once the switch knows of it, since after each change ovs-vswitchd asks the kernel about
/// all its ports. Wherever an ADD dies that has its port in the database, the link is up and has its carrier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_complete_before_the_switch_hears_of_it() {
    let mut node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let mut seen = 0;
    for steps in 1.. {
        let (mut pod, namespace) = (routed_pod(1), new_namespace());
        pod.uid = format!("uid-{steps}");
        node.route_pod(&pod);
        let request = request(&pod, &namespace, 1);
        let died = killed_after(steps, node.plugger.add(&request)).await;
        settle(&node).await;
        if !node.pod_ports().is_empty() {
            let name = daemon::plug::names::host_nic(&request.container_id, "eth0");
            let link = node.host.netlink.require_link(&name).await.unwrap();
            assert!(link.up && link.running, "{died:?}: {link:?}");
            seen += 1;
        }
        node.restart_agent();
        node.plugger.del(&request).await.unwrap();
        if died.is_none() {
            break;
        }
    }
    assert!(seen > 1, "no ADD died with its port in the database");
}
