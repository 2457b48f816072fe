//! Many pods at once, then a restart: everybody is served with one API create and
//! one patch, few transactions, and the restart writes nothing. Prints what it cost.
//!
//! `WEIR_SCALE_PODS` sets the number (300 by default), `WEIR_CONTROLLER` another
//! binary, for instance a release build.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::time::Instant;

use rig::{PODS, Rig, eventually};

fn pods() -> usize {
    std::env::var("WEIR_SCALE_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

fn routed(rig: &Rig) -> usize {
    let all = rig.api.all("/api/v1/pods");
    all.iter().filter(|pod| pod["metadata"]["annotations"]["ovn.kubernetes.io/routed"] == "true").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pods_at_once_and_a_restart() {
    let rig = Rig::new().await;
    for node in 1..=10 {
        rig.node(&format!("n{node}"), &format!("192.0.2.{node}"));
    }
    let controller = rig.start(&[]).await;
    eventually("nodes have joined", async || rig.api.all("/apis/kubeovn.io/v1/ips").len() == 10).await;
    controller.quiet().await;
    rig.api.forget_requests();
    let before = controller.transactions().await;
    let idle = controller.usage();

    let began = Instant::now();
    let count = pods();
    for pod in 0..count {
        rig.pod(&format!("p-{pod}"), &format!("n{}", pod % 10 + 1));
    }
    eventually("all pods are routed", async || routed(&rig) == count).await;
    let took = began.elapsed();
    controller.quiet().await;
    let transactions = controller.transactions().await - before;
    let (cpu, memory) = controller.usage();
    let writes = rig.api.writes();
    let of = |what: &str| writes.iter().filter(|request| request.contains(what)).count();
    println!(
        "{count} pods: {took:?}, {:.2} ms of processor and {transactions} transactions in all, {} creates, {} pod patches, {} events, {} others; {:.1} MiB, {:.1} KiB a pod",
        (cpu - idle.0) * 1_000.0 / count as f64,
        of("POST /apis/kubeovn.io/v1/ips"),
        of(PODS),
        of("/events"),
        writes.len() - of("POST /apis/kubeovn.io/v1/ips") - of(PODS) - of("/events"),
        memory / 1024.0,
        (memory - idle.1) / count as f64,
    );
    assert_eq!(of("POST /apis/kubeovn.io/v1/ips"), count, "one create per pod");
    assert_eq!(of(PODS), count, "one patch per pod");
    // How well they batch depends on the machine; more than one per pod would be wrong anywhere.
    assert!(transactions as usize <= count, "{transactions}");
    assert_eq!(controller.stop().await, Some(0));

    rig.api.forget_requests();
    let began = Instant::now();
    rig.pod("first", "n1");
    let controller = rig.start(&[]).await;
    rig.routed("first").await;
    let first = began.elapsed();
    controller.quiet().await;
    let (cpu, memory) = controller.usage();
    println!("restart: first new pod after {first:?}, {cpu:.2} s of processor, {:.1} MiB", memory / 1024.0);
    let others: Vec<String> = rig
        .api
        .writes()
        .into_iter()
        .filter(|request| !request.ends_with("/pods/first") && !request.contains("/events"))
        .filter(|request| {
            request != "POST /apis/kubeovn.io/v1/ips" && !request.contains("/subnets/ovn-default")
        })
        .collect();
    assert_eq!(others, Vec::<String>::new(), "nothing but the new pod's own writes");
    assert_eq!(controller.stop().await, Some(0));
}
