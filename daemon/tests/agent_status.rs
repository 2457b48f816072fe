//! What the agent says of the programs beside it: STATUS, and the findings of its start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::agent::{Machine, call};
use support::ovn::{Ovn, start_controller};
use support::start_vswitchd;

async fn status(machine: &Machine) -> (u16, Value) {
    match call(&machine.file("cni.sock"), "GET", "/api/v1/status", &json!({})).await {
        Ok((code, body)) => (code, serde_json::from_slice(&body).unwrap()),
        // It has not started yet.
        Err(error) => (0, json!(error.to_string())),
    }
}

/// Waits for STATUS to name a dead program; what is there suffers too (code 51).
async fn names_dead(machine: &Machine, words: &str) {
    let begin = Instant::now();
    loop {
        let (code, body) = status(machine).await;
        let reason = body["reason"].as_str().unwrap_or_default();
        if code == 503 && reason.contains(words) {
            assert_eq!(body["limited"], true, "{body}");
            assert!(body["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{body}");
            println!("{words}: told after {:?}", begin.elapsed());
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{code} {body}\n{}", machine.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_032_status_names_a_dead_program() {
    let mut machine = Machine::bare().await;
    let mut ovn = Ovn::start(&machine).await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    ovn.controller = None;
    names_dead(&machine, "ovn-controller is dead").await;
    ovn.controller = Some(start_controller(&machine));
    machine.wait_ready().await;
    machine.vswitchd = None;
    names_dead(&machine, "ovs-vswitchd is dead").await;
    machine.vswitchd = Some(start_vswitchd(&machine.namespace, &machine.server));
    machine.wait_ready().await;
    // One that hangs is no better: it answers nobody.
    let signal = |name: &str| {
        let pid = machine.vswitchd.as_ref().unwrap().0.id().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    let begin = Instant::now();
    while status(&machine).await.0 == 200 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", machine.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    names_dead(&machine, "ovs-vswitchd is dead").await;
    signal("-CONT");
    machine.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_032_status_names_a_dead_database() {
    let mut machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    machine.server.kill();
    names_dead(&machine, "ovsdb-server is dead").await;
}

/// ovn-controller may start long after the agent: what was said of it is corrected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finding_that_heals_is_taken_back() {
    let machine = Machine::boot().await;
    std::fs::create_dir_all(machine.file("ovn-run")).unwrap();
    let _agent = machine.start_agent();
    let has = |reason: &str| machine.api.reasons().iter().any(|told| told == reason);
    let wait = async |reason: &str| {
        let begin = Instant::now();
        while !has(reason) {
            assert!(begin.elapsed() < Duration::from_secs(90), "{reason}\n{}", machine.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    wait("PreflightFinding").await;
    assert!(machine.log().contains("ovn-controller does not answer"));
    assert!(!has("PreflightFindingHealed"));
    let _controller = machine.play_control_socket();
    wait("PreflightFindingHealed").await;
    assert!(machine.log().contains("ovn: it is well now"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ovn_controller_that_starts_a_little_later_is_waited_for() {
    let machine = Machine::boot().await;
    std::fs::create_dir_all(machine.file("ovn-run")).unwrap();
    let _agent = machine.start_agent();
    // The agent has looked, and found nothing.
    names_dead(&machine, "ovn-controller is dead").await;
    let _controller = machine.play_control_socket();
    machine.wait_ready().await;
    // Far beyond the look that follows.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!machine.log().contains("ovn-controller does not answer"), "{}", machine.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_selectors_follow_the_nodes_labels_at_once() {
    let machine = Machine::boot().await;
    let _agent = machine.start_agent();
    machine.wait_ready().await;
    let mut subnet = machine.api.get("subnets", "", "ovn-default").unwrap();
    for (key, value) in [
        ("natOutgoing", json!(false)),
        ("gatewayType", json!("centralized")),
        ("gatewayNodeSelectors", json!([{"matchLabels": {"egress": "yes"}}])),
        ("externalEgressGateway", json!("172.30.0.1")),
        ("policyRoutingTableID", json!(1000)),
        ("policyRoutingPriority", json!(900)),
    ] {
        subnet["spec"][key] = value;
    }
    machine.api.put("subnets", subnet);
    let label = |value: &str| {
        let mut node = machine.api.get("nodes", "", "n1").unwrap();
        node["metadata"]["labels"] = json!({"egress": value});
        machine.api.put("nodes", node);
    };
    let is_gateway =
        async || machine.host.netlink.rules().await.unwrap().iter().any(|rule| rule.priority == 900);
    for (value, wanted) in [("yes", true), ("no", false), ("yes", true)] {
        label(value);
        let begin = Instant::now();
        while is_gateway().await != wanted {
            assert!(begin.elapsed() < Duration::from_secs(20), "{value}: {}", machine.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("label egress={value}: obeyed after {:?}", begin.elapsed());
    }
}
