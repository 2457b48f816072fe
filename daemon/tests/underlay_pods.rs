//! Pods on the physical network, through a provider bridge whose NIC carries the node's own address: MTU, gateway check,
//! duplicate detection, and the way to the node itself. The switch is real; OVN's part is a pair of patch ports.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod icmp;
mod support;

use daemon::kube::{NodeFacts, PodFacts, SubnetFacts, VlanFacts};
use support::underlay::{Agent, Wire, patch, sh};
use support::{Node, addresses, new_namespace, request, routed_pod};

/// Pod `n` at 10.9.0.(20+n) and fd09::(20+n).
fn pod_on_the_lan(n: u8) -> PodFacts {
    let mut pod = routed_pod(n);
    for (key, value) in [
        ("ip_address", format!("10.9.0.{},fd09::{}", 20 + n, 20 + n)),
        ("cidr", "10.9.0.0/24,fd09::/64".to_owned()),
        ("gateway", "10.9.0.1,fd09::1".to_owned()),
        ("logical_switch", "lan".to_owned()),
        ("provider_network", "net1".to_owned()),
        ("vlan_id", "0".to_owned()),
    ] {
        pod.annotations.insert(crds::keys::pod_key("ovn", key), value);
    }
    pod
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_151_pods_of_a_vlan_subnet_are_on_the_physical_network() {
    let node = Node::start().await;
    let wire = Wire::plug(&node, "eth1").await;
    sh(&wire.namespace, "ip link set wire mtu 1450");
    sh(&node.namespace, "ip link set eth1 mtu 1450");
    let agent = Agent::new(&node);
    agent.cluster.vlans.put("v0".into(), Some(VlanFacts { id: 0, provider: "net1".into() }));
    agent.want("net1", "eth1");
    let mut underlay = agent.start(&node);
    assert!(underlay.pass().await);
    let wish = daemon::underlay::member::Wish {
        network: "net1".into(),
        nic: "eth1".into(),
        trunks: [0].into(),
        ..daemon::underlay::member::Wish::default()
    };
    let ready = underlay.ensure(&wish).await.unwrap();
    assert_eq!(ready.mtu, 1450);
    patch(&node, "br-net1", "patch-localnet.lan-to-br-int", "br-int", "patch-br-int-to-localnet.lan").await;
    let label = crds::keys::provider_network_key("net1", "mtu");
    let facts = NodeFacts {
        name: "n1".into(),
        labels: [(label, ready.mtu.to_string())].into(),
        ..NodeFacts::default()
    };
    agent.cluster.nodes.put("n1".into(), Some(facts));
    let subnet = SubnetFacts {
        name: "lan".into(),
        vlan: "v0".into(),
        cidr_block: "10.9.0.0/24,fd09::/64".into(),
        gateway: "10.9.0.1,fd09::1".into(),
        validated: true,
        ..SubnetFacts::default()
    };
    agent.cluster.subnets.put("lan".into(), Some(subnet));
    let _controller = node.play_ovn_controller();

    let (pod, namespace) = (pod_on_the_lan(1), new_namespace());
    node.route_pod(&pod);
    let answer = node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
    assert_eq!(answer.mtu, 1450, "the provider network's, not the tunnels'");
    // K15C, D91: the tag is the localnet port's; here it would have no effect, and mislead.
    let host = answer.host.unwrap().name;
    let tag = node.ovs.view().port(&host).unwrap().get("tag").cloned();
    assert!(tag.is_none_or(|tag| tag.single().is_none()), "{host} is tagged");
    assert_eq!(addresses(&namespace, "eth0").await, ["10.9.0.21/24", "fd09::21/64"]);
    // The first packet after the answer passes, both ways; and the node itself is reached.
    assert_eq!(icmp::ping(&namespace, "10.9.0.1", 3), 3);
    assert_eq!(icmp::ping(&namespace, "fd09::1", 3), 3);
    assert_eq!(icmp::ping(&wire.namespace, "10.9.0.21", 3), 3);
    assert_eq!(icmp::ping(&namespace, "10.9.0.11", 3), 3, "the node's own address");

    // Somebody on the wire has the next pod's address.
    sh(&wire.namespace, "ip addr add 10.9.0.22/24 dev wire");
    let (pod, namespace) = (pod_on_the_lan(2), new_namespace());
    node.route_pod(&pod);
    let error = node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap_err();
    assert!(error.message.contains("10.9.0.22 has already been used by host with MAC"), "{error}");

    // A gateway that does not answer fails the ADD and is named.
    let mut pod = pod_on_the_lan(3);
    pod.annotations.insert(crds::keys::pod_key("ovn", "gateway"), "10.9.0.250,fd09::250".into());
    let namespace = new_namespace();
    node.route_pod(&pod);
    let error = node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap_err();
    assert!(error.message.contains("gateway 10.9.0.250 does not answer"), "{error}");
}
