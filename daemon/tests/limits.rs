//! Limits and mirror of ports against a real ovs-vswitchd (userspace datapath), with measured rates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod icmp;
mod support;

use daemon::netlink::Netlink;
use daemon::ovs::{BR_INT, Discipline, PortQos};
use daemon::plug::names;
use daemon::qos::{Effect, Hold};
use daemon::sys::Namespace;
use ovsdb::Value;
use support::rates::{annotate, effect, is_near, keep, mbits, restarted, root_qdisc, until};
use support::{Node, new_namespace, request, routed_pod, wait_view};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k_160_k_163_rates_hold_both_ways_and_change_while_the_pod_lives() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let _keeper = keep(&node.plugger, &[]);
    let (mut pod, namespace) = (routed_pod(1), new_namespace());
    let free = {
        let (pod, namespace) = (routed_pod(9), new_namespace());
        node.route_pod(&pod);
        node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
        mbits(&node.gateway, &namespace, "10.16.0.19")
    };
    annotate(
        &mut pod,
        &[("ingress_rate", "20"), ("ingress_burst", "1"), ("egress_rate", "10"), ("egress_burst", "1")],
    );
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::host_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    // This datapath takes packets before any filter could police them.
    assert_eq!(effect(&node, &name), Some(Effect { egress: Hold::PodShaper, ingress: Hold::Htb }));
    let (down, up) =
        (mbits(&node.gateway, &namespace, "10.16.0.11"), mbits(&namespace, &node.gateway, "10.16.0.1"));
    println!("without limit {free:.0}, into the pod {down:.2} of 20, out of it {up:.2} of 10 Mbit/s");
    assert!(free > 100.0 && is_near(down, 20.0) && is_near(up, 10.0), "{free} {down} {up}");

    annotate(&mut pod, &[("ingress_rate", "5"), ("egress_rate", "30"), ("ingress_burst", "0.1")]);
    node.route_pod(&pod);
    let wanted = PortQos {
        policing_rate: 30_000,
        policing_burst: 1000,
        discipline: Some(Discipline::Htb { max_rate: 5_000_000, burst: 12_500 }),
    };
    until("the new limits", async || {
        node.plugger.limits.get(&name).is_some_and(|entry| entry.wanted == wanted)
    })
    .await;
    assert_eq!(effect(&node, &name), Some(Effect { egress: Hold::PodShaper, ingress: Hold::Htb }));
    let (down, up) =
        (mbits(&node.gateway, &namespace, "10.16.0.11"), mbits(&namespace, &node.gateway, "10.16.0.1"));
    println!("changed: into the pod {down:.2} of 5, out of it {up:.2} of 30 Mbit/s");
    assert!(is_near(down, 5.0) && is_near(up, 30.0), "{down} {up}");

    pod.annotations.retain(|key, _| !key.contains("_rate"));
    node.route_pod(&pod);
    until("the end of the limits", async || node.plugger.limits.get(&name).is_none()).await;
    assert_eq!(node.ovs.view().all_qos().count() + node.ovs.view().all_queues().count(), 0);
    let up = mbits(&namespace, &node.gateway, "10.16.0.1");
    assert!(up > 60.0, "{up}");
    node.plugger.del(&request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_113_a_change_while_the_daemon_was_down_is_made_up_for() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(2), new_namespace());
    annotate(&mut pod, &[("egress_rate", "10")]);
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::host_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    assert_eq!(root_qdisc(&namespace).await.as_deref(), Some("tbf"));
    // Down: the annotation changes, and somebody takes the shaper away.
    annotate(&mut pod, &[("egress_rate", "40"), ("ingress_rate", "3")]);
    node.route_pod(&pod);
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let index = inside.require_link("eth0").await.unwrap().index;
    inside.delete_root_qdisc(index, 0x5745).await.unwrap();
    let plugger = restarted(&node);
    let first = keep(&plugger, &[]);
    until("the limits after the restart", async || plugger.limits.get(&name).is_some()).await;
    let entry = plugger.limits.get(&name).unwrap();
    assert_eq!(entry.wanted.policing_rate, 40_000);
    assert_eq!(entry.effect, Effect { egress: Hold::PodShaper, ingress: Hold::Htb });
    let tbf = inside.qdiscs(index).await.unwrap().into_iter().find_map(|qdisc| qdisc.tbf).unwrap();
    assert_eq!(tbf.rate, 5_000_000);
    drop(first);
    // Down again, and the limits go.
    pod.annotations.retain(|key, _| !key.contains("_rate"));
    node.route_pod(&pod);
    let plugger = restarted(&node);
    let _second = keep(&plugger, &[]);
    wait_view(&node.ovs, "the end of the rows", |view| view.all_qos().count() == 0).await;
    until("the end of the shaper", async || root_qdisc(&namespace).await.as_deref() != Some("tbf")).await;
    let interface = node.interface(&name).unwrap();
    assert_eq!(interface.column("ingress_policing_rate").and_then(Value::as_i64), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_the_kernel_lacks_is_said_to_be_missing() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(3), new_namespace());
    annotate(&mut pod, &[("latency", "20"), ("loss", "1")]);
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::host_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    let row = || {
        let view = node.ovs.view();
        let qos = view.port(&name).unwrap().get("qos").unwrap().set_uuids().next()?;
        view.qos(&qos).cloned()
    };
    let first = row().unwrap();
    assert_eq!(first.str("type"), Some("linux-netem"), "the contract's row is there in any case");
    assert_eq!(first.map_get("other_config", "latency"), Some("20000"));
    // The switch may need time, or to be told again: the keeper has it.
    let _keeper = keep(&node.plugger, &[]);
    until("the verdict", async || effect(&node, &name).is_some()).await;
    // Whether this kernel can do it, asked of the kernel itself.
    let probe = namespace.run(|| {
        let arguments = ["qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"];
        std::process::Command::new("tc").args(arguments).output().unwrap().status.success()
    });
    let ingress = effect(&node, &name).unwrap().ingress;
    if probe.unwrap() {
        assert_eq!(ingress, Hold::Netem);
    } else {
        assert!(matches!(&ingress, Hold::Missing(reason) if reason.contains("sch_netem")), "{ingress:?}");
        assert!(node.plugger.metrics.render().contains("direction=\"ingress\",mechanism=\"missing\"} 1"));
    }
    // Other values: the switch lets go of the old ones first, or the kernel would keep them.
    let asked = || node.ovs.view().configurations().0;
    let before = asked();
    annotate(&mut pod, &[("latency", "30")]);
    node.route_pod(&pod);
    until("the new values", async || {
        row().is_some_and(|row| row.map_get("other_config", "latency") == Some("30000"))
    })
    .await;
    assert!(row().unwrap().uuid != first.uuid && asked() >= before + 2, "two changes to the switch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_qdisc_of_the_pods_own_is_left_alone_and_told_of() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let (mut pod, namespace) = (routed_pod(4), new_namespace());
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::host_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    let added = namespace.run(|| {
        let arguments = "qdisc add dev eth0 root handle 7: tbf rate 1gbit burst 100k limit 100k";
        std::process::Command::new("tc").args(arguments.split(' ')).status().unwrap().success()
    });
    assert!(added.unwrap());
    let _keeper = keep(&node.plugger, &[]);
    annotate(&mut pod, &[("egress_rate", "10")]);
    node.route_pod(&pod);
    until("the verdict", async || effect(&node, &name).is_some()).await;
    let egress = effect(&node, &name).unwrap().egress;
    assert!(matches!(&egress, Hold::Missing(reason) if reason.contains("tbf 7:")), "{egress:?}");
    let inside = Netlink::in_namespace(&namespace).await.unwrap();
    let index = inside.require_link("eth0").await.unwrap().index;
    assert!(inside.qdiscs(index).await.unwrap().iter().any(|qdisc| qdisc.root && qdisc.major == 7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k_157_k_160_an_internal_port_is_limited_where_it_can_be() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let _keeper = keep(&node.plugger, &[]);
    let (mut pod, namespace) = (routed_pod(8), new_namespace());
    annotate(&mut pod, &[("pod_nic_type", "internal-port"), ("egress_rate", "10"), ("egress_burst", "1")]);
    node.route_pod(&pod);
    let request = request(&pod, &namespace, 1);
    let name = names::container_nic(&request.container_id, "eth0");
    node.plugger.add(&request).await.unwrap();
    assert_eq!(effect(&node, &name), Some(Effect { egress: Hold::PodShaper, ingress: Hold::Unlimited }));
    let first = mbits(&namespace, &node.gateway, "10.16.0.1");
    // While the pod lives; what comes in nothing can hold back, and that is said.
    annotate(&mut pod, &[("egress_rate", "30"), ("ingress_rate", "20")]);
    node.route_pod(&pod);
    until("the new limits", async || {
        node.plugger.limits.get(&name).is_some_and(|entry| entry.wanted.policing_rate == 30_000)
    })
    .await;
    let held = effect(&node, &name).unwrap();
    assert_eq!(held.egress, Hold::PodShaper);
    assert!(matches!(&held.ingress, Hold::Missing(reason) if reason.contains("veth-pair")), "{held:?}");
    let second = mbits(&namespace, &node.gateway, "10.16.0.1");
    let view = node.ovs.view();
    let qos = view.port(&name).unwrap().get("qos").unwrap().set_uuids().next().unwrap();
    assert_eq!(
        view.qos(&qos).unwrap().map_get("other_config", "max-rate"),
        Some("20000000"),
        "K162: the rows are there"
    );
    pod.annotations.retain(|key, _| !key.contains("_rate"));
    node.route_pod(&pod);
    until("the end of the limits", async || node.plugger.limits.get(&name).is_none()).await;
    assert_eq!(node.ovs.view().all_qos().count() + node.ovs.view().all_queues().count(), 0);
    let free = mbits(&namespace, &node.gateway, "10.16.0.1");
    println!("internal port: {first:.2} of 10, {second:.2} of 30, without limit {free:.0} Mbit/s");
    assert!(is_near(first, 10.0) && is_near(second, 30.0) && free > 60.0, "{first} {second} {free}");
    node.plugger.del(&request).await.unwrap();
    assert!(node.interface(&name).is_none());
}

/// Packets that a link of the host has received.
fn received(namespace: &Namespace, link: &'static str) -> u64 {
    let text = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{link}:")).map(str::to_owned));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_171_a_pods_traffic_is_mirrored_when_it_asks_and_after_restarts() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let keeper = keep(&node.plugger, &[]);
    let (mut pod, namespace) = (routed_pod(5), new_namespace());
    let (other, quiet) = (routed_pod(6), new_namespace());
    for (pod, namespace) in [(&pod, &namespace), (&other, &quiet)] {
        node.route_pod(pod);
        node.plugger.add(&request(pod, namespace, 1)).await.unwrap();
    }
    let members = |view: &daemon::ovs::View| {
        let bridge = view.bridge(BR_INT)?;
        let uuid = bridge.get("mirrors")?.set_uuids().next()?;
        Some(view.mirror(&uuid)?.get("select_dst_port")?.set_uuids().count())
    };
    wait_view(&node.ovs, "an empty mirror", |view| members(view) == Some(0)).await;
    wait_view(&node.ovs, "its port", |view| view.interface("mirror0").is_some_and(|i| i.ofport() > Some(0)))
        .await;
    until("the link to be up", async || {
        node.host.netlink.link("mirror0").await.unwrap().is_some_and(|link| link.up)
    })
    .await;
    annotate(&mut pod, &[("mirror", "true")]);
    node.route_pod(&pod);
    wait_view(&node.ovs, "the member", |view| members(view) == Some(1)).await;
    assert!(node.ovs.applied().await);
    until("mirrored packets", async || {
        let before = received(&node.namespace, "mirror0");
        assert!(icmp::ping(&namespace, "10.16.0.1", 20) > 0);
        received(&node.namespace, "mirror0") >= before + 20
    })
    .await;
    let before = received(&node.namespace, "mirror0");
    assert_eq!(icmp::ping(&quiet, "10.16.0.1", 20), 20);
    assert!(received(&node.namespace, "mirror0") < before + 20, "the other pod is not mirrored");

    // A restart of the agent: membership stays, and is not even written.
    drop(keeper);
    let cfg = node.server.socket().to_owned();
    assert!(cfg.exists());
    let plugger = restarted(&node);
    let _keeper = keep(&plugger, &[]);
    until("the first pass", async || plugger.limits.all().is_empty()).await;
    assert_eq!(members(&node.ovs.view()), Some(1));
    // The annotation goes while everything runs.
    annotate(&mut pod, &[("mirror", "false")]);
    node.route_pod(&pod);
    wait_view(&node.ovs, "no member", |view| members(view) == Some(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k_171_all_traffic_is_mirrored_when_the_flag_says_so() {
    let node = Node::start().await;
    let _controller = node.play_ovn_controller();
    let _keeper = keep(&node.plugger, &["--enable-mirror=true", "--mirror-iface=tap0"]);
    let (pod, namespace) = (routed_pod(7), new_namespace());
    node.route_pod(&pod);
    node.plugger.add(&request(&pod, &namespace, 1)).await.unwrap();
    until("the link to be up", async || {
        node.host.netlink.link("tap0").await.unwrap().is_some_and(|link| link.up)
    })
    .await;
    until("mirrored packets", async || {
        let before = received(&node.namespace, "tap0");
        assert!(icmp::ping(&namespace, "10.16.0.1", 20) > 0);
        received(&node.namespace, "tap0") >= before + 40
    })
    .await;
}
