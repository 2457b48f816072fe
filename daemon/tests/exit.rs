//! The node's port in an external network: with the real OVN a router watches it by BFD and a VPC leaves by it; what
//! somebody takes away comes back; the agent may die after every step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod icmp;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use daemon::exit::{Exit, OVNEXT, OVNEXT0, Place};
use daemon::kube::{Cluster, OvnEipFacts, OwnNodeFacts, SubnetFacts};
use daemon::netlink::{Netlink, Veth};
use daemon::node::NodeStatus;
use daemon::ovs::{BR_INT, BridgeSpec, PortSpec, plan};
use daemon::parts::NodeParts;
use daemon::sys::{EthtoolSocket, Namespace};
use ovsdb::{Operation, Uuid, Value};
use serde_json::json;
use support::agent::{Machine, until};
use support::death::{killed_after, settle};
use support::ovn::Ovn;
use support::underlay::sh;
use support::{Node, addresses, new_namespace, start_vswitchd, wait_view};

fn map<const N: usize>(pairs: [(&str, &str); N]) -> Value {
    Value::string_map(pairs)
}

fn eip(kind: &str, name: &str, ip: &str, mac: &str, ready: bool) -> serde_json::Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {
            "ovn.kubernetes.io/ovn_eip_type": kind, "ovn.kubernetes.io/subnet": "ext"}},
        "spec": {"type": kind, "externalSubnet": "ext"},
        "status": {"type": kind, "v4Ip": ip, "v6Ip": "", "macAddress": mac, "ready": ready},
    })
}

const NODE_IP: &str = "172.18.0.11";
const NODE_MAC: &str = "02:00:00:00:00:11";

/// The objects that make this node a way out.
fn objects(machine: &Machine) {
    let subnet = json!({
        "metadata": {"name": "ext", "uid": "uid-ext"},
        "spec": {"cidrBlock": "172.18.0.0/24", "gateway": "172.18.0.1", "vlan": "v-0", "vpc": "ovn-cluster"},
    });
    machine.api.put("subnets", subnet);
    machine.api.put("ovn-eips", eip("lrp", "out-ext", "172.18.0.10", "02:00:00:00:00:10", true));
    machine.api.put("ovn-eips", eip("lsp", "n1", NODE_IP, NODE_MAC, false));
}

fn netns_flag(machine: &Machine) -> String {
    format!("--netns-dir={}", machine.file("netns").display())
}

fn ready(machine: &Machine) -> bool {
    machine.api.get("ovn-eips", "", "n1").is_some_and(|eip| eip["status"]["ready"] == true)
}

fn label(machine: &Machine) -> String {
    let node = machine.api.get("nodes", "", "n1").unwrap();
    node["metadata"]["labels"]["ovn.kubernetes.io/node-ext-gw"].as_str().unwrap_or_default().to_owned()
}

/// A device of a namespace as a port of a bridge.
async fn attach(
    machine: &Machine,
    bridge: &str,
    port: &str,
    id: Option<&str>,
    other: &Namespace,
    script: &str,
) {
    let veth = Veth { name: port, peer: "eth0", peer_mac: None, peer_namespace: Some(other), mtu: None };
    machine.host.netlink.add_veth(&veth).await.unwrap();
    machine.host.ethtool.tx_checksum_off(port).unwrap();
    other.run(|| EthtoolSocket::open().unwrap().tx_checksum_off("eth0").unwrap()).unwrap();
    sh(other, script);
    let ids = id.map(|id| ("iface-id".to_owned(), id.to_owned())).into_iter().collect();
    let spec =
        PortSpec { bridge: bridge.into(), name: port.into(), external_ids: ids, ..PortSpec::default() };
    machine.ovs.apply(|view| plan::ensure_port(view, &spec)).await.unwrap();
}

/// What the controller writes for a VPC that leaves by this node. The UUID of the BFD session.
async fn rows(ovn: &Ovn) -> Uuid {
    let id = Uuid::new_v4;
    let [router, inner, outer, gateway, session, route] = std::array::from_fn(|_| id());
    let [pod, pair, wire, node, back] = std::array::from_fn(|_| id());
    let port = |uuid: Uuid, name: &str, kind: &str, addresses: &str| {
        Operation::insert("Logical_Switch_Port")
            .uuid(uuid)
            .column("name", name)
            .column("type", kind)
            .column("addresses", Value::strings([addresses]))
    };
    let router_port = |uuid: Uuid, name: &str, mac: &str, net: &str| {
        Operation::insert("Logical_Router_Port")
            .uuid(uuid)
            .column("name", name)
            .column("mac", mac)
            .column("networks", Value::strings([net]))
    };
    let switch = |name: &str, ports: &[Uuid]| {
        Operation::insert("Logical_Switch")
            .column("name", name)
            .column("ports", Value::uuids(ports.iter().copied()))
            .build()
    };
    ovn.transact(vec![
        port(pod, "p.web", "", "02:00:00:00:00:70 10.70.0.10").build(),
        port(pair, "out-1-out", "router", "router")
            .column("options", map([("router-port", "out-out-1")]))
            .build(),
        switch("out-1", &[pod, pair]),
        port(wire, "localnet.ext", "localnet", "unknown")
            .column("options", map([("network_name", "net1")]))
            .build(),
        port(node, "n1", "", &format!("{NODE_MAC} {NODE_IP}")).build(),
        port(back, "ext-out", "router", "router")
            .column("options", map([("router-port", "out-ext")]))
            .build(),
        switch("ext", &[wire, node, back]),
        router_port(inner, "out-out-1", "02:00:00:00:00:71", "10.70.0.1/24").build(),
        Operation::insert("Gateway_Chassis")
            .uuid(gateway)
            .column("name", "out-ext-chassis-1")
            .column("chassis_name", "chassis-1")
            .column("priority", 100)
            .build(),
        router_port(outer, "out-ext", "02:00:00:00:00:10", "172.18.0.10/24")
            .column("gateway_chassis", Value::uuids([gateway]))
            .build(),
        Operation::insert("BFD")
            .uuid(session)
            .column("logical_port", "out-ext")
            .column("dst_ip", NODE_IP)
            .column("min_tx", Value::optional(Some(100i64)))
            .column("min_rx", Value::optional(Some(100i64)))
            .column("detect_mult", Value::optional(Some(3i64)))
            .build(),
        Operation::insert("Logical_Router_Static_Route")
            .uuid(route)
            .column("policy", Value::optional(Some("src-ip")))
            .column("ip_prefix", "10.70.0.0/24")
            .column("nexthop", NODE_IP)
            .column("bfd", Value::uuids([session]))
            .column("options", map([("ecmp_symmetric_reply", "true")]))
            .build(),
        Operation::insert("Logical_Router")
            .uuid(router)
            .column("name", "out")
            .column("ports", Value::uuids([inner, outer]))
            .column("static_routes", Value::uuids([route]))
            .column("options", map([("dynamic_neigh_routers", "true")]))
            .build(),
    ])
    .await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_watches_the_node_and_a_vpc_leaves_by_it() {
    let machine = Machine::bare().await;
    let ovn = Ovn::start(&machine).await;
    // The physical network: its gateway, with somebody behind it.
    let bridge =
        BridgeSpec { name: "br-net1".into(), datapath_type: "netdev".into(), ..BridgeSpec::default() };
    machine.ovs.apply(|view| plan::ensure_bridge(view, &bridge)).await.unwrap();
    let ids = [("ovn-bridge-mappings".to_owned(), "net1:br-net1".to_owned())].into();
    machine.ovs.apply(|view| plan::set_root_external_ids(view, &ids)).await.unwrap();
    wait_view(&machine.ovs, "br-int", |view| view.bridge(BR_INT).is_some()).await;
    let (outside, pod) = (new_namespace(), new_namespace());
    // OVN answers ARP only to senders of the network; the address behind the gateway is none.
    let script = "ip link set lo up; ip addr add 198.51.100.7/32 dev lo; ip addr add 172.18.0.1/24 dev eth0; \
                  echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce; \
                  ip link set eth0 up; ip route add 10.70.0.0/24 via 172.18.0.10";
    attach(&machine, "br-net1", "wire", None, &outside, script).await;
    let script = "ip link set eth0 address 02:00:00:00:00:70; ip addr add 10.70.0.10/24 dev eth0; \
                  ip link set eth0 up; ip route add default via 10.70.0.1";
    attach(&machine, BR_INT, "pod-port", Some("p.web"), &pod, script).await;
    let session = rows(&ovn).await.to_string();
    objects(&machine);
    let flags = [netns_flag(&machine)];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let agent = machine.start_agent_with(&flags);

    until(&machine, "the node says it is ready", async || ready(&machine) && label(&machine) == "true").await;
    let wait = |status: &str| ovn.nbctl(&["wait-until", "BFD", &session, &format!("status={status}")]);
    wait("up");
    ovn.nbctl(&["--wait=hv", "sync"]);
    let leaves = || icmp::ping(&pod, "198.51.100.7", 1) == 1;
    until(&machine, "traffic leaves", async || leaves()).await;
    assert_eq!(icmp::ping(&pod, "198.51.100.7", 5), 5);
    let inside = Place::of(&machine.file("netns")).open(OVNEXT).unwrap();
    assert_eq!(addresses(&inside, OVNEXT0).await, [format!("{NODE_IP}/24")]);

    // The agent dies: routers see it, the port stays. It comes back: they see that too.
    drop(agent);
    wait("down");
    assert_eq!(addresses(&inside, OVNEXT0).await, [format!("{NODE_IP}/24")]);
    let agent = machine.start_agent_with(&flags);
    wait("up");
    ovn.nbctl(&["--wait=hv", "sync"]);
    until(&machine, "traffic leaves again", async || leaves()).await;

    // A graceful end is told at once.
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(agent.0.id().try_into().unwrap()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    wait("down");
    drop(agent);
    let _agent = machine.start_agent_with(&flags);
    wait("up");

    // The network's gateway is gone: this router still reaches the node, and is told.
    sh(&outside, "ip addr del 172.18.0.1/24 dev eth0");
    wait("down");
    until(&machine, "the silent gateway is told", async || {
        machine.api.told().iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["reason"] == "ExternalPortFailed" && text.contains("gateway 172.18.0.1")
        })
    })
    .await;
    // With its last address the link has lost its routes too.
    sh(&outside, "ip addr add 172.18.0.1/24 dev eth0; ip route add 10.70.0.0/24 via 172.18.0.10");
    wait("up");
    ovn.nbctl(&["--wait=hv", "sync"]);
    until(&machine, "traffic leaves by the gateway that is back", async || leaves()).await;

    // The OvnEip goes, and all of it with it.
    machine.api.delete("ovn-eips", "", "n1");
    until(&machine, "all is gone", async || {
        let port = machine.ovs.view().interface(OVNEXT0).is_some();
        !port && label(&machine) == "false" && !machine.file("netns").join(OVNEXT).exists()
    })
    .await;
    wait("down");
    ovn.nbctl(&["--wait=hv", "sync"]);
    until(&machine, "nothing leaves", async || !leaves()).await;
}

/// What is taken away comes back without waiting for the minute's verification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_away_comes_back() {
    let mut machine = Machine::boot().await;
    sh(&machine.gateway, "ip addr add 172.18.0.1/24 dev gw");
    // Somebody has the address: the node is not ready, and says who.
    sh(&machine.gateway, &format!("ip addr add {NODE_IP}/24 dev gw"));
    objects(&machine);
    let flags = [netns_flag(&machine)];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let _agent = machine.start_agent_with(&flags);
    until(&machine, "the conflict is told", async || {
        machine.api.told().iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["reason"] == "ExternalPortFailed" && text.contains(NODE_IP)
        })
    })
    .await;
    assert!(!ready(&machine));
    sh(&machine.gateway, &format!("ip addr del {NODE_IP}/24 dev gw"));
    until(&machine, "ready once the address is free", async || ready(&machine)).await;

    let place = Place::of(&machine.file("netns"));
    let whole = async || {
        let Some(inside) = place.open(OVNEXT) else { return false };
        let Ok(netlink) = Netlink::in_namespace(&inside).await else { return false };
        let up = netlink.link(OVNEXT0).await.unwrap().is_some_and(|link| link.up);
        let text = sh(&inside, "ip route show; cat /proc/net/udp /proc/sys/net/ipv4/ip_forward");
        let all = up && addresses(&inside, OVNEXT0).await == [format!("{NODE_IP}/24")];
        all && text.contains("default via 172.18.0.1") && text.contains(":0EC8 ") && text.ends_with("1\n")
    };
    until(&machine, "whole at first", whole).await;
    let inside = || place.open(OVNEXT).unwrap();
    for (what, script) in [
        ("the address", format!("ip addr del {NODE_IP}/24 dev {OVNEXT0}")),
        ("the route", "ip route del default".to_owned()),
        ("the link", format!("ip link set {OVNEXT0} down")),
        ("the device", format!("ip link del {OVNEXT0}")),
    ] {
        sh(&inside(), &script);
        until(&machine, what, whole).await;
    }
    machine.ovs.apply(|view| Ok(plan::remove_port(view, OVNEXT0))).await.unwrap();
    until(&machine, "the port", whole).await;
    machine.vswitchd = None;
    machine.vswitchd = Some(start_vswitchd(&machine.namespace, &machine.server));
    until(&machine, "after a restart of the switch", whole).await;
    let reached = || icmp::ping(&machine.gateway, NODE_IP, 1) == 1;
    until(&machine, "it answers", async || reached()).await;

    // The clean-up of a node takes it along.
    drop(_agent);
    let (done, said) = machine.run_agent("--cleanup");
    assert!(done, "{said}");
    assert!(machine.ovs.view().interface(OVNEXT0).is_none());
}

fn start(node: &Node, cluster: &Arc<Cluster>, place: &Place) -> Exit {
    let (_told, status) =
        tokio::sync::watch::channel(NodeStatus { userspace: true, ..NodeStatus::default() });
    let alone = NodeParts::alone("n1".into(), node.ovs.clone(), node.host.clone(), status);
    Exit::new(NodeParts { cluster: cluster.clone(), ..alone }, place.clone())
}

/// The agent dies after every step of making the port and of taking it away; the next one goes on, or turns back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_dies_after_every_step() {
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init();
    let node = Node::start().await;
    sh(&node.gateway, "ip addr add 172.18.0.1/24 dev gw");
    let folder = tempfile::tempdir().unwrap();
    let place = Place::of(folder.path());
    let cluster = Arc::new(Cluster::default());
    let subnet = SubnetFacts {
        name: "ext".into(),
        cidr_block: "172.18.0.0/24".into(),
        gateway: "172.18.0.1".into(),
        ..SubnetFacts::default()
    };
    cluster.subnets.replace(BTreeMap::from([("ext".into(), subnet)]));
    cluster.own_node.replace(BTreeMap::from([("n1".into(), OwnNodeFacts::default())]));
    let wanted = |there: bool| {
        let eip = OvnEipFacts {
            uid: "u".into(),
            kind: "lsp".into(),
            subnet: "ext".into(),
            addresses: vec![NODE_IP.parse().unwrap()],
            mac: NODE_MAC.into(),
            ..OvnEipFacts::default()
        };
        cluster.ovn_eips.replace(there.then(|| ("n1".into(), eip)).into_iter().collect());
    };
    // A pass that meets a device on its way says so, and is repeated.
    let until_done = async || {
        for _ in 0..20 {
            if start(&node, &cluster, &place).pass().await {
                return;
            }
        }
        panic!("it does not come to its end");
    };
    let gone = || node.ovs.view().interface(OVNEXT0).is_none() && place.open(OVNEXT).is_none();
    let mut survived = [0, 0];
    for dies_at in [0, 1] {
        for turn in [false, true] {
            for steps in 1.. {
                wanted(true);
                if dies_at == 1 {
                    until_done().await;
                }
                wanted(dies_at == 0);
                let mut exit = start(&node, &cluster, &place);
                let died = killed_after(steps, exit.pass()).await;
                drop(exit);
                settle(&node).await;
                let there = (dies_at == 0) != turn;
                wanted(there);
                until_done().await;
                let what = format!("{dies_at}, died after step {steps} ({died:?}), turn {turn}");
                if there {
                    let inside = place.open(OVNEXT).expect("the namespace");
                    assert_eq!(addresses(&inside, OVNEXT0).await, [format!("{NODE_IP}/24")], "{what}");
                    assert!(node.host.netlink.link(OVNEXT0).await.unwrap().is_none(), "{what}");
                    wanted(false);
                    until_done().await;
                }
                // Without a port nobody can tell whose a namespace is; the label, which is not here, says so.
                let mut last = start(&node, &cluster, &place);
                last.clean_up().await.unwrap();
                assert!(gone(), "{what}");
                if died.is_none() {
                    break;
                }
                survived[dies_at] += 1;
            }
        }
    }
    println!("deaths survived: {survived:?}");
    assert!(survived[0] >= 12 && survived[1] >= 2, "{survived:?}");
}
