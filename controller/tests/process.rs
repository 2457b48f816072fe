//! The whole binary against an API server in memory (over TCP) and a real
//! ovsdb-server: pods get their network, a restart writes nothing, signals and lost
//! leaderships end it in order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod rig;

use std::time::Duration;

use nix::sys::signal::Signal;
use rig::{PODS, Rig, eventually};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_their_network_and_a_restart_writes_nothing() {
    let rig = Rig::new().await;
    rig.node("n1", "192.0.2.1");
    rig.pod("web-0", "n1");
    let controller = rig.start(&[]).await;
    rig.routed("web-0").await;
    rig.pod("web-1", "n1");
    let annotations = rig.routed("web-1").await;
    assert!(annotations["ovn.kubernetes.io/ip_address"].as_str().unwrap().starts_with("10.16."));
    eventually("both ports", async || rig.has_port("web-0.shop").await && rig.has_port("web-1.shop").await)
        .await;

    // Deleted: the port goes, then the IP object.
    rig.api.delete(&format!("{PODS}/web-0"));
    eventually("the port is gone", async || !rig.has_port("web-0.shop").await).await;
    eventually("the IP object is gone", async || rig.api.get("/apis/kubeovn.io/v1/ips/web-0.shop").is_none())
        .await;

    // Explained, with the unit that made each fact.
    let explained =
        controller.call("explain", json!({"kind": "Pod", "namespace": "shop", "name": "web-1"})).await;
    assert!(explained.to_string().contains("web-1.shop"), "{explained}");
    controller.quiet().await;

    // SIGTERM: the Lease is released, the exit is clean.
    let code = controller.stop().await;
    assert_eq!(code, Some(0));
    assert_eq!(rig.holder(), "");

    // Again: nothing to do, so nothing is written but the Lease and the new epoch.
    rig.api.forget_requests();
    let controller = rig.start(&[]).await;
    controller.writing().await;
    controller.quiet().await;
    assert_eq!(rig.api.writes(), Vec::<String>::new());
    assert_eq!(controller.transactions().await, 1, "the epoch token alone");
    eventually("metrics say so too", async || {
        controller.metric("weir_commit_transactions_total").await == 1.0
    })
    .await;
    assert_eq!(controller.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_controller_of_the_same_pod_leads_again_at_once_and_catches_up() {
    let rig = Rig::new().await;
    rig.node("n1", "192.0.2.1");
    rig.pod("old", "n1");
    let controller = rig.start(&[]).await;
    rig.routed("old").await;
    controller.kill().await;
    // While it is down (U16): a hundred pods come, one goes.
    for n in 0..100 {
        rig.pod(&format!("new-{n}"), "n1");
    }
    rig.api.delete(&format!("{PODS}/old"));
    let began = std::time::Instant::now();
    let controller = rig.start(&[]).await;
    rig.routed("new-0").await;
    assert!(began.elapsed() < Duration::from_secs(12), "did not wait for the Lease: {:?}", began.elapsed());
    for n in 1..100 {
        rig.routed(&format!("new-{n}")).await;
    }
    eventually("the old port is gone", async || !rig.has_port("old.shop").await).await;
    assert_eq!(controller.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_lease_is_taken_leaves_and_writes_nothing_more() {
    let rig = Rig::new().await;
    rig.node("n1", "192.0.2.1");
    let controller = rig.start(&["--leader-elect-retry-period=500ms"]).await;
    controller.writing().await;
    controller.quiet().await;
    rig.api.patch(rig::LEASE, json!({"spec": {"holderIdentity": "thief"}}));
    let code = controller.ended().await;
    assert_eq!(code, Some(1));
    rig.api.forget_requests();
    assert_eq!(rig.holder(), "thief");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_epoch_is_replaced_is_fenced() {
    let rig = Rig::new().await;
    rig.node("n1", "192.0.2.1");
    let controller = rig.start(&[]).await;
    controller.writing().await;
    controller.quiet().await;
    // What a new leader does while the old one sleeps.
    rig.steal_epoch().await;
    rig.pod("p", "n1");
    assert_eq!(controller.ended().await, Some(1));
    assert!(!rig.has_port("p.shop").await, "the fence kept it out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_slept_through_a_hand_over_writes_nothing() {
    let fast = [
        "--leader-elect-lease-duration=6s",
        "--leader-elect-renew-deadline=5s",
        "--leader-elect-retry-period=500ms",
    ];
    let rig = Rig::new().await;
    rig.node("n1", "192.0.2.1");
    rig.pod("before", "n1");
    let sleeper = rig.start(&fast).await;
    rig.routed("before").await;
    sleeper.quiet().await;
    let other = rig.start_other("b", &fast).await;
    sleeper.signal(Signal::SIGSTOP);
    // The other one takes over and works; the sleeper would have to do the same things.
    other.writing().await;
    rig.pod("after", "n1");
    rig.api.delete(&format!("{PODS}/before"));
    rig.routed("after").await;
    eventually("the port is gone", async || !rig.has_port("before.shop").await).await;
    other.quiet().await;
    rig.api.forget_requests();
    let transactions = other.transactions().await;

    sleeper.signal(Signal::SIGCONT);
    assert_eq!(sleeper.ended().await, Some(1));
    assert_eq!(rig.api.writes(), Vec::<String>::new());
    assert!(rig.holder().starts_with("controller-b"), "the Lease is left alone: {}", rig.holder());
    other.quiet().await;
    assert_eq!(other.transactions().await, transactions, "there was nothing to repair");
    assert_eq!(other.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_ready_and_writes_nothing() {
    let rig = Rig::new().await;
    rig.node("n1", "192.0.2.1");
    rig.pod("p", "n1");
    rig.foreign_leader();
    rig.api.forget_requests();
    let controller = rig.start(&["--leader-elect-lease-duration=60s"]).await;
    assert_eq!(controller.get("/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(controller.get("/livez").await.0, 200);
    let status = controller.call("status", json!([])).await;
    assert_eq!(status["leadership"]["elected"], false);
    assert_eq!(status["leadership"]["holder"], "other");
    let plan = controller.call("plan", json!([])).await;
    assert!(plan.to_string().contains("add Logical_Router ovn-cluster"), "what it would do: {plan}");
    assert!(status["watches"].as_array().unwrap().iter().all(|watch| watch["loaded"] == true), "{status}");
    let pods = status["watches"].as_array().unwrap().iter().find(|watch| watch["kind"] == "pods").unwrap();
    let world =
        status["core"]["checksums"].as_array().unwrap().iter().find(|kind| kind["kind"] == "pods").unwrap();
    assert_eq!(pods["objects"], 1);
    assert_eq!(world["objects"], 1);
    assert_eq!(pods["checksum"], world["checksum"], "nothing is on its way");
    assert_eq!(rig.api.writes(), Vec::<String>::new());
    assert!(!rig.has_port("p.shop").await);
    assert_eq!(controller.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_ready_without_its_database_and_says_why() {
    let mut rig = Rig::new().await;
    rig.database.kill();
    let controller = rig.start_unready(&[]).await;
    eventually("watches are loaded", async || {
        let (code, text) = controller.get("/readyz").await;
        code == 503 && text.contains("northbound database") && !text.contains("watch of")
    })
    .await;
    assert_eq!(controller.get("/livez").await.0, 200, "a restart would not help");
    rig.database.resume().unwrap();
    eventually("ready", async || controller.get("/readyz").await.0 == 200).await;
    assert_eq!(controller.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_in_flags_are_told_with_their_remedy() {
    let output = tokio::process::Command::new(rig::BINARY)
        .args(["--default-cidr=10.96.0.0/16", "--ovn-nb-addr=tcp:127.0.0.1:1"])
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("--default-cidr") && text.contains("overlaps --service-cluster-ip-range"),
        "{text}"
    );
    let output = tokio::process::Command::new(rig::BINARY).arg("--help").output().await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("--node-switch-cidr"));
}

/// Flags `--secure-serving` and `--tls-*`: metrics by TLS for those who may read them.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_by_tls_for_those_who_may() {
    let rig = Rig::new().await;
    let controller = rig.start(&["--secure-serving", "--tls-min-version=TLS13"]).await;
    let address = controller.address().to_owned();
    let open = || {
        let stream = std::net::TcpStream::connect(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        tokio::net::TcpStream::from_std(stream).unwrap()
    };
    fake::tls::hold(open, "weir_ready").await;
    let asked = |what: &str| rig.api.requests().iter().filter(|request| request.ends_with(what)).count();
    // A yes is believed for a while.
    assert_eq!((asked("/tokenreviews"), asked("/subjectaccessreviews")), (3, 2));
    assert_eq!(controller.stop().await, Some(0));
}
