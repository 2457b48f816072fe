//! IPPools and lists of addresses, through the whole pipeline (contract §1.3, §3.3).

use rstest::rstest;
use serde_json::{Value, json};

use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";
const POOL: &str = "ovn.kubernetes.io/ip_pool";

fn pool(name: &str) -> ObjectRef {
    cluster(Kind::IpPool, name)
}

fn add_pool(bench: &mut Bench, name: &str, spec: Value) {
    let mut spec = spec;
    if spec["subnet"].is_null() {
        spec["subnet"] = "ovn-default".into();
    }
    bench.api.create(&pool(name), json!({ "spec": spec })).unwrap();
}

fn ready(families: Families) -> Bench {
    let mut bench = super::bench(families);
    lead(&mut bench, families);
    bench
}

fn ip(bench: &Bench, name: &str) -> Option<String> {
    bench.api.annotation(&pod(name), IP).map(str::to_owned)
}

fn warned(bench: &Bench, name: &str) -> Vec<String> {
    let events = bench.processes.iter().flat_map(|process| &process.events);
    let about = events.filter(|event| event.warning && event.object == pod(name));
    about.map(|event| format!("{}: {}", event.reason, event.message)).collect()
}

fn status(bench: &Bench, name: &str) -> Value {
    bench.api.get(&pool(name)).unwrap()["status"].clone()
}

#[rstest]
#[case(Families::V4, json!(["10.16.7.10..10.16.7.12"]), "10.16.7.10")]
#[case(Families::V6, json!(["fd00:10:16::70/126"]), "fd00:10:16::70")]
#[case(Families::Dual, json!(["10.16.7.10", "fd00:10:16::77"]), "10.16.7.10,fd00:10:16::77")]
fn a_pool_by_name(#[case] families: Families, #[case] ips: Value, #[case] given: &str) {
    let mut bench = ready(families);
    add_pool(&mut bench, "p-1", json!({ "ips": ips, "enableAddressSet": true }));
    bench.add_pod_with("a-0", "n-1", json!({ POOL: "p-1" }));
    bench.add_pod("other", "n-1");
    bench.settle();
    bench.pass(2_000);
    assert_eq!(ip(&bench, "a-0").as_deref(), Some(given));
    let other = ip(&bench, "other").unwrap();
    assert!(!other.contains("10.16.7.") && !other.contains("::7"), "drawn from the pool: {other}");
    let status = status(&bench, "p-1");
    let key = if families == Families::V6 { "v6UsingIPs" } else { "v4UsingIPs" };
    assert_eq!(status[key], 1, "{status}");
    assert!(
        status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    );
    let replica = bench.db.replica();
    let set = replica.table("Address_Set").unwrap();
    let row = set.find_one("name", &ovsdb::Value::string("p.1")).expect("address set");
    assert_eq!(row.map_get("external_ids", "ippool"), Some("p-1"));
}

#[test]
fn an_address_set_has_the_fewest_cidrs_and_goes_with_its_pool() {
    let mut bench = ready(Families::V4);
    let ips = json!(["10.16.7.0/25", "10.16.7.128..10.16.7.255", "10.16.9.1"]);
    add_pool(&mut bench, "a-b", json!({ "ips": ips, "enableAddressSet": true }));
    bench.settle();
    let content = |bench: &Bench| -> Option<Vec<String>> {
        let replica = bench.db.replica();
        let row =
            replica.table("Address_Set").unwrap().find_one("name", &ovsdb::Value::string("a.b"))?.clone();
        Some(row.get("addresses").unwrap().set_strings().map(str::to_owned).collect())
    };
    assert_eq!(content(&bench).unwrap(), ["10.16.7.0/24", "10.16.9.1"]);
    bench.api.edit(&pool("a-b"), json!({ "spec": { "ips": ["10.16.7.4"] } }));
    bench.settle();
    assert_eq!(content(&bench).unwrap(), ["10.16.7.4"]);
    bench.api.edit(&pool("a-b"), json!({ "spec": { "enableAddressSet": false } }));
    bench.settle();
    assert_eq!(content(&bench), None);
    bench.api.delete(&pool("a-b"), 0);
    bench.settle();
    assert!(bench.api.get(&pool("a-b")).is_none());
}

#[test]
fn a_pool_in_use_waits_with_its_deletion_and_says_on_whom() {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "p", json!({ "ips": ["10.16.7.4"] }));
    bench.add_pod_with("a-0", "n-1", json!({ POOL: "p" }));
    bench.settle();
    bench.pass(2_000);
    bench.api.delete(&pool("p"), 0);
    bench.settle();
    let (state, reason, message) = super::condition(&bench, &pool("p"), "Ready").unwrap();
    assert_eq!((&*state, &*reason), ("False", "InUse"));
    assert!(message.contains("a-0.web"), "{message}");
    bench.api.remove(&pod("a-0"));
    bench.pass(5_000);
    assert!(bench.api.get(&pool("p")).is_none());
}

#[rstest]
#[case(json!({ "ips": ["10.99.0.1"] }), "outside cidrBlock 10.16.0.0/16")]
#[case(json!({ "ips": ["10.16.0.9..10.16.0.3"] }), "lower address first")]
#[case(json!({ "ips": ["10.16.7.0/30"] }), "IPPool first too")]
#[case(json!({ "ips": ["10.16.9.1"], "subnet": "nowhere" }), "subnet nowhere does not exist")]
#[case(json!({ "ips": [] }), "ips is empty")]
#[case(json!({ "ips": [], "preAllocate": true }), "needs size")]
fn a_pool_that_cannot_be_used_says_why_and_heals(#[case] spec: Value, #[case] needle: &str) {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "first", json!({ "ips": ["10.16.7.2"] }));
    bench.settle();
    add_pool(&mut bench, "second", spec);
    bench.settle();
    let (state, reason, message) = super::condition(&bench, &pool("second"), "Ready").unwrap();
    assert_eq!((&*state, &*reason), ("False", "UpdateIPAMFailed"));
    assert!(message.contains(needle), "{message}");
    assert_eq!(super::condition(&bench, &pool("first"), "Ready").unwrap().0, "True");
    bench.add_pod_with("a-0", "n-1", json!({ POOL: "second" }));
    bench.settle();
    assert_eq!(ip(&bench, "a-0"), None);
    assert!(warned(&bench, "a-0").iter().any(|text| text.contains("second")), "{:?}", warned(&bench, "a-0"));
    let good = json!({ "ips": ["10.16.8.8"], "subnet": "ovn-default", "preAllocate": null });
    bench.api.edit(&pool("second"), json!({ "spec": good }));
    bench.settle();
    assert_eq!(super::condition(&bench, &pool("second"), "Ready").unwrap().0, "True");
    assert_eq!(ip(&bench, "a-0").as_deref(), Some("10.16.8.8"), "heals");
}

#[test]
fn pools_of_a_namespace_are_mandatory() {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "b", json!({ "ips": ["10.16.7.9"], "namespaces": ["web"] }));
    add_pool(&mut bench, "a", json!({ "ips": ["10.16.8.9"], "namespaces": ["web"] }));
    bench.settle();
    let namespace = cluster(Kind::Namespace, "web");
    assert_eq!(bench.api.annotation(&namespace, POOL), Some("a,b"));
    for name in ["p-0", "p-1", "p-2"] {
        bench.add_pod(name, "n-1");
        bench.settle();
    }
    assert_eq!(ip(&bench, "p-0").as_deref(), Some("10.16.8.9"), "the first pool that has one");
    assert_eq!(ip(&bench, "p-1").as_deref(), Some("10.16.7.9"));
    assert_eq!(ip(&bench, "p-2"), None, "nothing outside the pools");
    assert!(warned(&bench, "p-2").iter().any(|text| text.starts_with("AcquireAddressFailed: IPPool")));
    bench.api.delete(&pod("p-0"), 0);
    bench.settle();
    assert_eq!(ip(&bench, "p-2").as_deref(), Some("10.16.8.9"), "heals when an address is free");
    bench.api.edit(&pool("a"), json!({ "spec": { "namespaces": [] } }));
    bench.api.edit(&pool("b"), json!({ "spec": { "namespaces": [] } }));
    bench.add_pod("p-3", "n-1");
    bench.settle();
    assert_eq!(ip(&bench, "p-3").as_deref(), Some("10.16.0.2"));
    assert_eq!(bench.api.annotation(&namespace, POOL), None);
}

#[rstest]
#[case("10.16.7.1,10.16.7.2,10.16.7.3", &["10.16.7.1", "10.16.7.2", "10.16.7.3"])]
#[case("10.16.7.1;10.16.7.2", &["10.16.7.1", "10.16.7.2"])]
fn a_list_serves_the_first_that_is_free(#[case] list: &str, #[case] given: &[&str]) {
    let mut bench = ready(Families::V4);
    for n in 0..=given.len() {
        bench.add_pod_with(&format!("x{n}"), "n-1", json!({ POOL: list }));
        bench.settle();
    }
    let got: Vec<_> = (0..given.len()).filter_map(|n| ip(&bench, &format!("x{n}"))).collect();
    assert_eq!(got, given);
    let last = format!("x{}", given.len());
    assert_eq!(ip(&bench, &last), None);
    let said = warned(&bench, &last);
    assert!(said.iter().any(|text| text.contains("x0.web") && text.contains("in use")), "{said:?}");
    bench.api.delete(&pod("x0"), 0);
    bench.settle();
    assert_eq!(ip(&bench, &last).as_deref(), Some(given[0]));
}

#[rstest]
#[case("10.16.7.1,fd00:10:16::71;10.16.7.2,fd00:10:16::72", "x1", "10.16.7.1,fd00:10:16::71")]
#[case("10.16.7.1,fd00:10:16::71", "x1", "10.16.7.1,fd00:10:16::71")]
#[case("fd00:10:16::71,10.16.7.1", "x1", "10.16.7.1,fd00:10:16::71")]
fn dual_entries(#[case] list: &str, #[case] name: &str, #[case] given: &str) {
    let mut bench = ready(Families::Dual);
    bench.add_pod_with(name, "n-1", json!({ POOL: list }));
    bench.settle();
    assert_eq!(ip(&bench, name).as_deref(), Some(given));
}

#[test]
fn u_02_a_deployment_with_a_fixed_pool_scales_to_zero_and_back() {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "p", json!({ "ips": ["10.16.7.1..10.16.7.3"] }));
    bench.settle();
    for round in 0..20 {
        let names: Vec<String> = (0..3).map(|n| format!("r{round}-{n}")).collect();
        for name in &names {
            bench.add_pod_with(name, "n-1", json!({ POOL: "p" }));
        }
        bench.settle();
        assert!(names.iter().all(|name| ip(&bench, name).is_some()), "round {round}");
        for name in &names {
            bench.api.remove(&pod(name));
        }
        bench.pass(3_000);
        assert_eq!(status(&bench, "p")["v4UsingIPs"], 0, "round {round}");
    }
}

#[test]
fn u_08_excluded_addresses_are_never_drawn_and_pools_serve_their_own_subnet() {
    let mut bench = ready(Families::V4);
    let subnet = cluster(Kind::Subnet, "ovn-default");
    bench.api.edit(&subnet, json!({ "spec": { "excludeIps": ["10.16.0.1", "10.16.0.3", "10.16.7.2"] } }));
    bench.add_pod_with("static", "n-1", json!({ IP: "10.16.0.3" }));
    bench.settle();
    bench.api.remove(&pod("static"));
    bench.settle();
    add_pool(&mut bench, "p", json!({ "ips": ["10.16.7.1..10.16.7.3"] }));
    bench.settle();
    for n in 0..2 {
        bench.add_pod_with(&format!("pooled-{n}"), "n-1", json!({ POOL: "p" }));
        bench.add_pod(&format!("plain-{n}"), "n-1");
    }
    bench.settle();
    let mut got: Vec<_> =
        ["pooled-0", "pooled-1", "plain-0", "plain-1"].iter().filter_map(|name| ip(&bench, name)).collect();
    got.sort();
    assert_eq!(got, ["10.16.0.2", "10.16.0.4", "10.16.7.1", "10.16.7.3"]);
}

#[test]
fn a_limited_pool_is_full_at_its_size() {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "p", json!({ "ips": ["10.16.7.0/24"], "size": 2 }));
    for name in ["x0", "x1", "x2"] {
        bench.add_pod_with(name, "n-1", json!({ POOL: "p" }));
        bench.settle();
    }
    bench.pass(2_000);
    assert!(ip(&bench, "x0").is_some() && ip(&bench, "x1").is_some());
    assert_eq!(ip(&bench, "x2"), None);
    assert_eq!(status(&bench, "p")["v4AvailableIPs"], 0);
    bench.api.edit(&pool("p"), json!({ "spec": { "size": 3 } }));
    bench.settle();
    assert!(ip(&bench, "x2").is_some());
}

#[test]
fn a_pool_chooses_its_addresses_once() {
    for families in [Families::V4, Families::V6, Families::Dual] {
        let mut bench = ready(families);
        bench.add_pod("first", "n-1");
        bench.settle();
        add_pool(&mut bench, "p", json!({ "size": 3, "preAllocate": true }));
        bench.settle();
        let ips = bench.api.get(&pool("p")).unwrap()["spec"]["ips"].clone();
        let count = ips.as_array().unwrap().len();
        assert_eq!(count, if families == Families::Dual { 6 } else { 3 }, "{ips}");
        for name in ["x0", "x1", "x2"] {
            bench.add_pod_with(name, "n-1", json!({ POOL: "p" }));
        }
        bench.settle();
        restart(&mut bench, families);
        assert_eq!(bench.api.get(&pool("p")).unwrap()["spec"]["ips"], ips, "chosen once");
        let list: Vec<&str> = ips.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for name in ["x0", "x1", "x2"] {
            let got = ip(&bench, name).unwrap();
            assert!(got.split(',').all(|ip| list.contains(&ip)), "{got} of {list:?}");
        }
        assert!(bench.core().quiet());
    }
}

/// What is free is known when what pods have was put back.
#[test]
fn a_pool_that_a_new_leader_finds_chooses_nobodys_addresses() {
    let mut bench = ready(Families::V4);
    for name in ["x0", "x1", "x2"] {
        bench.add_pod(name, "n-1");
    }
    bench.settle();
    bench.processes.last_mut().unwrap().paused = true;
    add_pool(&mut bench, "p", json!({ "size": 3, "preAllocate": true }));
    restart(&mut bench, Families::V4);
    let ips = bench.api.get(&pool("p")).unwrap()["spec"]["ips"].clone();
    let list: Vec<&str> = ips.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(list.len(), 3, "{ips}");
    for name in ["x0", "x1", "x2"] {
        let got = ip(&bench, name).unwrap();
        assert!(!list.contains(&&*got), "{got} is {name}'s: {ips}");
    }
    assert_eq!(super::condition(&bench, &pool("p"), "Ready").unwrap().0, "True");
}

#[test]
fn a_pool_that_found_too_few_addresses_chooses_when_there_are_enough() {
    let mut bench = ready(Families::V4);
    let spec = json!({ "cidrBlock": "10.30.0.0/29" });
    bench.api.create(&cluster(Kind::Subnet, "s"), json!({ "spec": spec })).unwrap();
    for n in 0..4 {
        let on = json!({ "ovn.kubernetes.io/logical_switch": "s" });
        bench.add_pod_with(&format!("x{n}"), "n-1", on);
    }
    bench.settle();
    add_pool(&mut bench, "p", json!({ "subnet": "s", "size": 2, "preAllocate": true }));
    bench.settle();
    let (state, _, message) = super::condition(&bench, &pool("p"), "Ready").unwrap();
    assert_eq!(state, "False");
    assert!(message.contains("free addresses"), "{message}");
    bench.api.remove(&pod("x1"));
    bench.settle();
    bench.pass(2_000);
    assert_eq!(super::condition(&bench, &pool("p"), "Ready").unwrap().0, "True");
    assert_eq!(bench.api.get(&pool("p")).unwrap()["spec"]["ips"].as_array().unwrap().len(), 2);
    bench.verify();
}

#[test]
fn a_pool_that_became_invalid_in_use_tells_the_truth_and_goes() {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "p", json!({ "ips": ["10.16.7.4", "10.16.7.5"] }));
    bench.add_pod_with("a-0", "n-1", json!({ POOL: "p" }));
    bench.settle();
    bench.pass(2_000);
    assert_eq!(status(&bench, "p")["v4UsingIPs"], 1);
    // One that it lists is in use, though another entry is wrong.
    bench.api.edit(&pool("p"), json!({ "spec": { "ips": ["10.16.7.4", "10.99.0.1"] } }));
    bench.settle();
    bench.pass(2_000);
    assert_eq!(super::condition(&bench, &pool("p"), "Ready").unwrap().0, "False");
    assert_eq!(status(&bench, "p")["v4UsingIPs"], 1);
    assert_eq!(status(&bench, "p")["v4AvailableIPs"], 0);
    bench.api.delete(&pool("p"), 0);
    bench.settle();
    assert!(bench.api.get(&pool("p")).is_some(), "a-0 has an address of it");
    bench.api.edit(&pool("p"), json!({ "spec": { "ips": ["10.99.0.1"] } }));
    bench.pass(5_000);
    assert!(bench.api.get(&pool("p")).is_none(), "nobody has one that it lists");
    assert_eq!(ip(&bench, "a-0").as_deref(), Some("10.16.7.4"));
}

#[test]
fn a_pool_whose_use_has_just_begun_waits_with_its_deletion_too() {
    let mut bench = ready(Families::V4);
    add_pool(&mut bench, "p", json!({ "ips": ["10.16.7.4", "10.16.7.5"] }));
    bench.add_pod("other", "n-1");
    bench.settle();
    bench.pass(2_000);
    // Usage is told a second later.
    bench.add_pod("one-more", "n-1");
    while bench.step() {}
    bench.add_pod_with("a-0", "n-1", json!({ POOL: "p" }));
    while bench.step() {}
    assert_eq!(ip(&bench, "a-0").as_deref(), Some("10.16.7.4"));
    bench.api.delete(&pool("p"), 0);
    while bench.step() {}
    assert!(bench.api.get(&pool("p")).is_some());
    assert_eq!(super::condition(&bench, &pool("p"), "Ready").unwrap().1, "InUse");
    bench.api.remove(&pod("a-0"));
    bench.pass(5_000);
    assert!(bench.api.get(&pool("p")).is_none());
}
