//! The whole agent with the real OVN: ports are installed by ovn-controller,
//! gateways are answered for by logical flows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod icmp;
mod support;

use std::time::{Duration, Instant};

use daemon::sys::Namespace;
use support::agent::Machine;
use support::ovn::Ovn;
use support::{Process, new_namespace, request, routed_pod};

/// One ping out of a namespace; whether it was answered.
fn ping(namespace: &Namespace, address: &str) -> bool {
    icmp::ping(namespace, address, 1) == 1
}

/// The join gateways answer.
async fn wait_join(machine: &Machine) {
    machine
        .api
        .wait_node("the join gateway", |node| {
            let conditions = node.pointer("/status/conditions").and_then(|list| list.as_array());
            conditions.is_some_and(|list| {
                list.iter().any(|c| c["type"] == "NetworkUnavailable" && c["status"] == "False")
            })
        })
        .await;
}

/// A node with the real OVN and a ready agent, which lives as long as the last value.
async fn ready() -> (Machine, Ovn, Process) {
    let machine = Machine::bare().await;
    let ovn = Ovn::start(&machine).await;
    let agent = machine.start_agent();
    machine.wait_ready().await;
    (machine, ovn, agent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_ping_after_add_is_answered() {
    let (machine, ovn, _agent) = ready().await;
    wait_join(&machine).await;
    let pods: Vec<_> = (0..6).map(|n| (routed_pod(n), new_namespace())).collect();
    let mut times = Vec::new();
    for (pod, namespace) in &pods {
        ovn.add_pod(pod).await;
        machine.route_pod(pod);
        let begin = Instant::now();
        machine.add(&request(pod, namespace, 1)).await;
        times.push(begin.elapsed());
        for target in ["10.16.0.1", "fd00::1", "100.64.0.2", "fd00:100::2"] {
            assert!(ping(namespace, target), "{} can't reach {target}", pod.name);
        }
    }
    println!("ADD with northd's work, one after another: {times:.1?}");
    // The first and the last, in both families: pods reach pods.
    for target in ["10.16.0.10", "fd00::10"] {
        assert!(ping(&pods[5].1, target), "{target}");
    }
    for (pod, namespace) in &pods {
        machine.del(&request(pod, namespace, 1)).await;
    }
    assert!(machine.ovs.view().interfaces().all(|interface| !interface.name().ends_with("_h")));
}

/// Whether a first ping is ever lost, and to what: of each loss it shows what the pod knew of its gateway. `WEIR_ADDS`:
/// how many ADDs (1,000).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak-cni"]
async fn soak_the_first_pings_of_a_thousand_adds() {
    let (machine, ovn, _agent) = ready().await;
    wait_join(&machine).await;
    let pods: Vec<_> = (0..10).map(|n| (routed_pod(n), new_namespace())).collect();
    for (pod, _) in &pods {
        ovn.add_pod(pod).await;
        machine.route_pod(pod);
    }
    let adds = std::env::var("WEIR_ADDS").map_or(1000, |text| text.parse::<usize>().unwrap());
    let (mut lost, mut lost_again, mut losses) = ([0, 0], 0, Vec::new());
    let mut generation = 0_u8;
    for round in 0..adds.div_ceil(pods.len()) {
        generation = generation.wrapping_add(1);
        for (pod, namespace) in &pods {
            machine.add(&request(pod, namespace, generation)).await;
            for (family, gateway) in ["10.16.0.1", "fd00::1"].into_iter().enumerate() {
                if ping(namespace, gateway) {
                    continue;
                }
                let shown = ["neigh", "-6 addr", "-6 route"]
                    .map(|what| support::heal::run(namespace, &format!("ip {what} show dev eth0")))
                    .concat();
                lost[family] += 1;
                lost_again += usize::from(!ping(namespace, gateway));
                losses.push(format!("round {round}, {}, {gateway}:\n{shown}", pod.name));
            }
        }
        for (pod, namespace) in &pods {
            machine.del(&request(pod, namespace, generation)).await;
        }
    }
    println!(
        "{adds} ADDs, first pings lost: {} of IPv4, {} of IPv6; {lost_again} lost again",
        lost[0], lost[1]
    );
    losses.iter().for_each(|loss| println!("{loss}"));
    // The userspace datapath drops what comes while it takes a port in (docs/performance.md).
    assert!(lost_again == 0 && lost[0] + lost[1] <= adds / 100, "{losses:#?}");
}

/// Prints how long ADDs take once northd has done its part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_add() {
    let (machine, ovn, _agent) = ready().await;
    let pods: Vec<_> = (0..60).map(|n| (routed_pod(n), new_namespace())).collect();
    for (pod, _) in &pods {
        ovn.add_pod(pod).await;
        machine.route_pod(pod);
    }
    // northd and ovn-controller settle; nothing tells from outside when.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let requests: Vec<_> = pods.iter().map(|(pod, namespace)| request(pod, namespace, 1)).collect();
    let print = |what: &str, mut times: Vec<Duration>| {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!("{what}: p50 {:.1?} p90 {:.1?} max {:.1?}", at(50), at(90), at(100));
    };
    let mut times = Vec::new();
    for request in &requests[..30] {
        let begin = Instant::now();
        machine.add(request).await;
        times.push(begin.elapsed());
    }
    print("ADD one after another", times);
    let begin = Instant::now();
    let times = futures::future::join_all(requests[30..].iter().map(|request| async {
        machine.add(request).await;
        begin.elapsed()
    }))
    .await;
    print("ADD 30 at once", times);
    for line in machine.log().lines().filter(|line| line.contains("phase")) {
        println!("{line}");
    }
}
