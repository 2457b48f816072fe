//! What pods ask for by annotation (contract §3.3), through the whole pipeline.

use rstest::rstest;
use serde_json::json;

use super::{lead, pod};
use crate::compile::tests::fake::Families;
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";
const MAC: &str = "ovn.kubernetes.io/mac_address";

pub(super) fn warnings(bench: &Bench, name: &str) -> Vec<(String, String)> {
    let events = bench.processes.iter().flat_map(|process| &process.events);
    events
        .filter(|event| event.warning && event.object == pod(name))
        .map(|event| (event.reason.to_string(), event.message.to_string()))
        .collect()
}

#[rstest]
#[case(Families::V4, "10.16.9.9", "10.16.9.9")]
#[case(Families::V6, "fd00:10:16::99", "fd00:10:16::99")]
#[case(Families::Dual, "10.16.9.9,fd00:10:16::99", "10.16.9.9,fd00:10:16::99")]
#[case(Families::Dual, "10.16.9.9", "10.16.9.9,fd00:10:16::2")]
#[case(Families::Dual, "fd00:10:16::99", "10.16.0.2,fd00:10:16::99")]
fn an_address(#[case] families: Families, #[case] asked: &str, #[case] given: &str) {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    bench.add_pod_with("a-0", "n-1", json!({ IP: asked, MAC: "02:AA:00:00:00:01" }));
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("a-0"), IP), Some(given));
    assert_eq!(bench.api.annotation(&pod("a-0"), MAC), Some("02:aa:00:00:00:01"));
    assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/routed"), Some("true"));
}

#[test]
fn of_two_that_want_the_same_one_wins_and_the_other_heals() {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    for name in ["a-0", "a-1"] {
        bench.add_pod_with(name, "n-1", json!({ IP: "10.16.9.9" }));
    }
    bench.settle();
    let routed = |bench: &Bench, name: &str| {
        bench.api.annotation(&pod(name), "ovn.kubernetes.io/routed") == Some("true")
    };
    let (winner, loser) = if routed(&bench, "a-0") { ("a-0", "a-1") } else { ("a-1", "a-0") };
    assert!(routed(&bench, winner) && !routed(&bench, loser));
    let said = warnings(&bench, loser);
    assert!(
        said.iter().any(|(reason, message)| reason == "AcquireAddressFailed"
            && message.contains("10.16.9.9")
            && message.contains(&format!("{winner}.web"))),
        "{said:?}"
    );
    bench.api.delete(&pod(winner), 0);
    bench.settle();
    assert!(routed(&bench, loser), "heals when the address is free");
}

#[rstest]
#[case(json!({ IP: "10.99.0.1" }), "AcquireAddressFailed", "10.99.0.1")]
#[case(json!({ IP: "10.16.0.1" }), "AcquireAddressFailed", "gateway")]
#[case(json!({ IP: "10.16.0.0/16" }), "ValidatePodNetworkFailed", "prefix length")]
#[case(json!({ MAC: "nonsense" }), "ValidatePodNetworkFailed", "nonsense")]
#[case(json!({ "ovn.kubernetes.io/ip_family": "ipv6" }), "AcquireAddressFailed", "IPv6")]
#[case(json!({ "ovn.kubernetes.io/ip_pool": "p1" }), "AcquireAddressFailed", "ip_pool")]
#[case(json!({ "ovn.kubernetes.io/vip": "v1" }), "ValidatePodNetworkFailed", "Vip v1 does not exist")]
#[case(json!({ "ovn.kubernetes.io/eip": "192.0.2.9" }), "AcquireAddressFailed", "eip")]
#[case(json!({ "ovn.kubernetes.io/security_groups": "sg1" }), "AcquireAddressFailed", "security_groups")]
#[case(json!({ "ovn.kubernetes.io/north_gateway": "here" }), "ValidatePodNetworkFailed", "north_gateway")]
#[case(json!({ "ovn.kubernetes.io/dhcp-v6-options": "a" }), "ValidatePodNetworkFailed", "dhcp-v6-options")]
#[case(json!({ "ovn.kubernetes.io/logical_switch": "sub9" }), "AcquireAddressFailed", "sub9")]
fn what_cannot_be_is_said(#[case] annotations: serde_json::Value, #[case] reason: &str, #[case] named: &str) {
    let mut bench = super::bench(Families::V4);
    lead(&mut bench, Families::V4);
    bench.add_pod_with("a-0", "n-1", annotations);
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("a-0"), "ovn.kubernetes.io/allocated"), None);
    let said = warnings(&bench, "a-0");
    assert!(said.iter().any(|(r, m)| r == reason && m.contains(named)), "{said:?}");
    let replica = bench.db.replica();
    let ports = replica.table("Logical_Switch_Port").unwrap();
    assert!(!ports.rows().any(|row| row.str("name") == Some("a-0.web")));
}
