//! The MTU of pods fits the tunnel: across two nodes with real ovs-vswitchds (userspace datapath) a packet of exactly the
//! pods' MTU that may not be fragmented arrives, one byte more does not leave, for each encapsulation over each family.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod icmp;
mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use daemon::flags::NetworkType;
use daemon::netlink::{Netlink, Veth};
use daemon::node::tunnel::pod_mtu;
use daemon::ovs::{BR_INT, BridgeSpec, PortSpec, plan};
use daemon::plug::NodeNetwork;
use icmp::End;
use ovsdb::{AtomMap, Operation};
use support::{Node, new_namespace, request, routed_pod, wait_view};

const UNDERLAY: u32 = 1500;

/// The tunnel NIC on its bridge, as the agent sets it up for the userspace datapath.
async fn prepare(node: &Node, addresses: [&str; 2]) {
    let bridge =
        BridgeSpec { name: "br-phy".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    node.ovs.apply(|view| plan::ensure_bridge(view, &bridge)).await.unwrap();
    let port = PortSpec { bridge: "br-phy".into(), name: "eth1".into(), ..PortSpec::default() };
    node.ovs.apply(|view| plan::ensure_port(view, &port)).await.unwrap();
    wait_view(&node.ovs, "br-phy", |view| view.interface("eth1").is_some_and(|i| i.ofport() > Some(0))).await;
    wait_view(&node.ovs, "br-phy", |view| view.interface("br-phy").is_some_and(|i| i.ofport().is_some()))
        .await;
    let link = node.host.netlink.require_link("br-phy").await.unwrap();
    node.host.ethtool.tx_checksum_off("br-phy").unwrap();
    node.host.netlink.set_up(link.index).await.unwrap();
    for net in addresses {
        node.host.netlink.add_address(link.index, net.parse().unwrap(), true).await.unwrap();
    }
}

/// A tunnel port on br-int in place of the one before.
async fn tunnel(node: &Node, kind: &str, remote: &str) {
    node.ovs.apply(|view| Ok(plan::remove_port(view, "tun0"))).await.unwrap();
    let spec =
        PortSpec { bridge: BR_INT.into(), name: "tun0".into(), kind: kind.into(), ..PortSpec::default() };
    node.ovs.apply(|view| plan::ensure_port(view, &spec)).await.unwrap();
    let options: AtomMap = [("remote_ip", remote), ("key", "7"), ("csum", "true")]
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    let interface = node.interface("tun0").unwrap().uuid();
    let options = Operation::mutate("Interface").by_uuid(interface).set_map("options", options).build();
    node.ovs.commit(vec![options]).await.unwrap();
    wait_view(&node.ovs, "the tunnel", |view| view.interface("tun0").is_some_and(|i| i.ofport() > Some(0)))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u_43_the_largest_packet_of_a_pod_fits_every_tunnel() {
    let (a, b) = (Node::start().await, Node::start().await);
    let veth = Veth {
        name: "eth1",
        peer: "eth1",
        peer_mac: None,
        peer_namespace: Some(&b.namespace),
        mtu: Some(UNDERLAY),
    };
    a.host.netlink.add_veth(&veth).await.unwrap();
    let far = b.host.netlink.require_link("eth1").await.unwrap();
    b.host.netlink.set_up(far.index).await.unwrap();
    for node in [&a, &b] {
        node.host.ethtool.tx_checksum_off("eth1").unwrap();
        node.without_gateway_check();
    }
    prepare(&a, ["10.9.0.1/24", "fd09::1/64"]).await;
    prepare(&b, ["10.9.0.2/24", "fd09::2/64"]).await;
    let controllers = (a.play_ovn_controller(), b.play_ovn_controller());
    let mut number = 0;
    for (kind, network) in [("geneve", NetworkType::Geneve), ("vxlan", NetworkType::Vxlan)] {
        for remotes in [["10.9.0.2", "10.9.0.1"], ["fd09::2", "fd09::1"]] {
            tunnel(&a, kind, remotes[0]).await;
            tunnel(&b, kind, remotes[1]).await;
            let mtu = pod_mtu(0, network, UNDERLAY, remotes[0].parse().unwrap());
            let mut pods = Vec::new();
            for node in [&a, &b] {
                node.network.send_replace(Some(NodeNetwork {
                    mtu,
                    userspace: true,
                    node_networks: BTreeMap::new(),
                }));
                number += 1;
                let (pod, namespace) = (routed_pod(number), new_namespace());
                node.route_pod(&pod);
                let answer = node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
                assert_eq!(answer.mtu, i64::from(mtu));
                let mac = answer.mac_address.parse().unwrap();
                let ends = answer.ips.iter().map(|ip| End { mac, ip: ip.ip.parse().unwrap() });
                let link =
                    Netlink::in_namespace(&namespace).await.unwrap().require_link("eth0").await.unwrap();
                pods.push((namespace, link.index, ends.collect::<Vec<End>>()));
            }
            let (namespace, link, ends) = &pods[0];
            for (from, to) in ends.iter().zip(&pods[1].2) {
                let ping = |size: u32| icmp::ping_unfragmented(namespace, *link, *from, *to, size as usize);
                let begin = Instant::now();
                // The switches learn, and ask for each other's tunnel address.
                while !ping(100).unwrap() {
                    assert!(begin.elapsed() < Duration::from_secs(30), "{kind} over {remotes:?}: {to:?}");
                }
                assert!(ping(mtu).unwrap(), "{kind} over {remotes:?}: {mtu} bytes to {to:?}");
                let refused = ping(mtu + 1).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE), "{kind}: one byte more");
            }
            println!("{kind} over {}: {mtu} bytes pass", remotes[0]);
        }
    }
    drop(controllers);
}
