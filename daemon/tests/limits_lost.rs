//! Limits where something is not as the agent left it: filters of others, a switch that hangs, namespaces and pods that
//! are gone. Against a real ovs-vswitchd (userspace datapath).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use daemon::hostnet::HostNet;
use daemon::netlink::{Netlink, Veth};
use daemon::ovs::{PortQos, View};
use daemon::plug::names;
use daemon::qos::{End, Hold, Keeper, PodEnd, settle};
use daemon::sys::Namespace;
use nix::sys::signal::{Signal, kill};
use ovsdb::{AtomMap, Operation};
use support::rates::{annotate, effect, root_qdisc, told};
use support::{Node, new_namespace, path_of, request, routed_pod, wait_view};

fn tc(namespace: &Namespace, arguments: &'static str) {
    let run = || std::process::Command::new("tc").args(arguments.split(' ')).status().unwrap().success();
    assert!(namespace.run(run).unwrap(), "{arguments}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_does_not_police_is_no_limit() {
    let (outside, pod) = (new_namespace(), new_namespace());
    let host = HostNet::open(outside.clone()).await.unwrap();
    let veth =
        Veth { name: "a_h", peer: "eth0", peer_mac: None, peer_namespace: Some(&pod), mtu: Some(1400) };
    host.netlink.add_veth(&veth).await.unwrap();
    let inside = Netlink::in_namespace(&pod).await.unwrap();
    let index = inside.require_link("eth0").await.unwrap().index;
    let link = host.netlink.require_link("a_h").await.unwrap();
    let wanted = PortQos { policing_rate: 10_000, policing_burst: 8000, discipline: None };
    let end = End::Pod(PodEnd { netlink: &inside, index, mtu: 1400 });
    let look = async || settle(&host.netlink, Some(&link), end, false, &wanted).await.unwrap().egress;
    assert_eq!(look().await, Hold::PodShaper, "nothing polices");
    // Somebody else's, of all packets.
    tc(&outside, "qdisc add dev a_h ingress");
    tc(
        &outside,
        "filter add dev a_h parent ffff: protocol all prio 10 u32 match u32 0 0 \
         action mirred egress mirror dev lo",
    );
    assert_eq!(look().await, Hold::PodShaper);
    assert_eq!(root_qdisc(&pod).await.as_deref(), Some("tbf"), "the pod's own limit stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_gone_is_counted_no_more() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    annotate(&mut pod, &[("egress_rate", "10")]);
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    node.plugger.add(&request).await.unwrap();
    let counted = || {
        let text = node.plugger.metrics.render();
        let series = "weir_limited_interfaces{direction=\"egress\",mechanism=\"pod-shaper\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series)).unwrap();
        line.parse::<u32>().unwrap()
    };
    assert_eq!(counted(), 1);
    node.plugger.del(&request).await.unwrap();
    Keeper::new(node.plugger.clone()).pass(false).await;
    assert_eq!(counted(), 0);
}

/// What the port's shaper is told to hold.
fn max_rate(view: &View, port: &str) -> Option<String> {
    let qos = view.port(port)?.get("qos")?.set_uuids().next()?;
    view.qos(&qos)?.map_get("other_config", "max-rate").map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_that_hangs_is_waited_for_and_the_change_told_once() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(2), new_namespace());
    annotate(&mut pod, &[("ingress_rate", "20")]);
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::host_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    let vswitchd = nix::unistd::Pid::from_raw(node.vswitchd.as_ref().unwrap().0.id().cast_signed());
    let told = told(&node, async |plugger| {
        let mut keeper = Keeper::new(plugger.clone());
        assert!(!keeper.pass(true).await.again);
        assert_eq!(plugger.limits.get(&name).unwrap().effect.ingress, Hold::Htb);
        kill(vswitchd, Signal::SIGSTOP).unwrap();
        annotate(&mut pod, &[("ingress_rate", "5")]);
        node.route_pod(&pod);
        for pass in 0..4 {
            assert!(keeper.pass(pass % 2 == 1).await.again, "pass {pass}");
            assert_eq!(max_rate(&node.ovs.view(), &name).as_deref(), Some("5000000"), "pass {pass}");
        }
        kill(vswitchd, Signal::SIGCONT).unwrap();
        wait_view(&node.ovs, "the switch again", |view| {
            let (asked, acted) = view.configurations();
            acted >= asked
        })
        .await;
        for pass in 0..3 {
            assert!(!keeper.pass(true).await.again, "pass {pass}");
        }
        let entry = plugger.limits.get(&name).unwrap();
        assert_eq!((entry.wanted.discipline.unwrap().kind(), entry.effect.ingress), ("linux-htb", Hold::Htb));
    })
    .await;
    let about = |(reason, _): &&(String, String)| reason.contains("QoS");
    let about: Vec<_> = told.iter().filter(about).collect();
    assert!(matches!(about[..], [(reason, _)] if reason == "PodQoSUpdated"), "{told:?}");
}

/// They hold, whatever happens to them: also for an agent that never read what was asked for before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_stay_while_an_annotation_can_not_be_read() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(6), new_namespace());
    annotate(&mut pod, &[("egress_rate", "10"), ("ingress_rate", "20")]);
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::host_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    let held = node.plugger.limits.get(&name).unwrap();
    annotate(&mut pod, &[("egress_rate", "much")]);
    node.route_pod(&pod);
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let index = inside.require_link("eth0").await.unwrap().index;
    inside.delete_root_qdisc(index, 0x5745).await.unwrap();
    let told = told(&node, async |plugger| {
        assert!(!Keeper::new(plugger.clone()).pass(true).await.again);
        assert_eq!(plugger.limits.get(&name), Some(held));
    })
    .await;
    assert_eq!(root_qdisc(&namespace).await.as_deref(), Some("tbf"));
    let told: Vec<&str> = told.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(told, ["ValidatePodNetworkFailed"]);
}

async fn note_namespace(node: &Node, port: &str, path: &str) {
    let pairs: AtomMap = [("pod_netns".into(), path.into())].into_iter().collect();
    let row = node.interface(port).unwrap().uuid();
    let set = Operation::mutate("Interface").by_uuid(row).set_map("external_ids", pairs).build();
    node.ovs.commit(vec![set]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_somebody_elses_is_not_shaped() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (other, theirs) = (routed_pod(3), new_namespace());
    node.route_pod(&other);
    node.plugger.add(&request(&other, &theirs, 1)).await.unwrap();
    let index = async |namespace: &Namespace| {
        Netlink::in_namespace(namespace).await.unwrap().require_link("eth0").await.unwrap().index
    };
    for (n, kind) in [(4, "veth-pair"), (5, "internal-port")] {
        let (mut pod, namespace) = (routed_pod(n), new_namespace());
        annotate(&mut pod, &[("pod_nic_type", kind)]);
        node.route_pod(&pod);
        let request = request(&pod, &namespace, 1);
        node.plugger.add(&request).await.unwrap();
        let name = match kind {
            "veth-pair" => names::host_nic(&request.container_id, "eth0"),
            _ => names::container_nic(&request.container_id, "eth0"),
        };
        if kind == "veth-pair" {
            assert_eq!(index(&namespace).await, index(&theirs).await, "nothing but the namespace differs");
        }
        annotate(&mut pod, &[("egress_rate", "10")]);
        node.route_pod(&pod);
        let mut keeper = Keeper::new(node.plugger.clone());
        for somebody_elses in [&theirs, &node.namespace] {
            // The process of the pod's ended, and another one has its number.
            note_namespace(&node, &name, &path_of(somebody_elses)).await;
            assert!(!keeper.pass(true).await.again);
            let egress = effect(&node, &name).unwrap().egress;
            assert!(matches!(&egress, Hold::Missing(reason) if reason.contains("reached")), "{egress:?}");
            assert_ne!(root_qdisc(&theirs).await.as_deref(), Some("tbf"), "{kind}");
            for link in node.host.netlink.links().await.unwrap() {
                let qdiscs = node.host.netlink.qdiscs(link.index).await.unwrap();
                assert!(qdiscs.iter().all(|qdisc| qdisc.tbf.is_none()), "{kind} {} {qdiscs:?}", link.name);
            }
        }
        note_namespace(&node, &name, &request.net_ns).await;
        assert!(!keeper.pass(true).await.again);
        assert_eq!(effect(&node, &name).unwrap().egress, Hold::PodShaper, "{kind}");
    }
}
