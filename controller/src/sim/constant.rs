//! Constant work: what nothing depends on compiles nothing, and what one pod costs
//! does not depend on how many there are.

use crds::keys;
use ovsdb::testing::{Database, northbound};
use serde_json::json;

use super::Bench;
use super::api::{EPOCH_S, decode};
use super::bench::pod;
use crate::core::Core;
use crate::facts::{Kind, ObjectRef};
use crate::io::{Input, Output};
use crate::world::NEEDED;

fn with_pods(count: usize) -> Bench {
    let mut bench = Bench::cluster(11);
    bench.verify_every = 1_000_000;
    let selector = json!({ "cidrBlock": "10.20.0.0/16", "protocol": "IPv4", "provider": "ovn",
        "namespaceSelectors": [{ "matchLabels": { "team": "a" } }] });
    bench.api.create(&ObjectRef::cluster(Kind::Subnet, "extra"), json!({ "spec": selector })).unwrap();
    for i in 0..count {
        bench.add_pod(&format!("p-{i}"), if i % 2 == 0 { "n-1" } else { "n-2" });
    }
    bench.pass(10_000);
    assert!(bench.core().quiet());
    bench.api.writes.clear();
    bench
}

struct Spent {
    compiled: u64,
    operations: u64,
    writes: usize,
}

fn spent(bench: &mut Bench, change: impl FnOnce(&mut Bench)) -> Spent {
    let before = bench.core().counters();
    bench.api.writes.clear();
    change(bench);
    bench.pass(10_000);
    let after = bench.core().counters();
    Spent {
        compiled: after.compiled - before.compiled,
        operations: after.commit.operations - before.commit.operations,
        writes: bench.api.writes.len(),
    }
}

#[test]
fn status_heartbeats_and_unrelated_labels_compile_nothing() {
    let mut bench = with_pods(3);
    let label =
        json!({ "metadata": { "labels": { "unrelated": "x" }, "annotations": { "example.com/a": "b" } } });
    let changes = [
        (pod("web", "p-1"), json!({ "status": { "phase": "Running" } })),
        (pod("web", "p-1"), label.clone()),
        (
            ObjectRef::cluster(Kind::Node, "n-1"),
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "later" }] } }),
        ),
        (ObjectRef::cluster(Kind::Node, "n-1"), label.clone()),
        (ObjectRef::cluster(Kind::Namespace, "web"), label.clone()),
        (ObjectRef::cluster(Kind::Subnet, "ovn-default"), label.clone()),
        (ObjectRef::cluster(Kind::Vpc, "ovn-cluster"), label.clone()),
        (ObjectRef::cluster(Kind::Ip, "p-1.web"), label),
        (
            ObjectRef::cluster(Kind::Subnet, "ovn-default"),
            json!({ "status": { "conditions": [{ "type": "Somebodys", "status": "True" }] } }),
        ),
    ];
    for (object, patch) in changes {
        let cost = spent(&mut bench, |bench| bench.api.edit(&object, patch.clone()));
        assert_eq!((cost.compiled, cost.operations), (0, 0), "{object}: {patch}");
        // The last one took the list of conditions away, which is put back.
        assert!(
            cost.writes == 0 || patch["status"]["conditions"][0]["type"] == "Somebodys",
            "{object}: {patch}"
        );
    }
}

#[test]
fn one_pod_costs_the_same_among_few_and_many() {
    let costs = [10, 250].map(|count| {
        let mut bench = with_pods(count);
        let added = spent(&mut bench, |bench| bench.add_pod("one-more", "n-1"));
        let changed = spent(&mut bench, |bench| {
            let patch =
                json!({ "metadata": { "annotations": { "ovn.kubernetes.io/port_security": "true" } } });
            bench.api.edit(&pod("web", "one-more"), patch);
        });
        let removed = spent(&mut bench, |bench| bench.api.remove(&pod("web", "one-more")));
        [added, changed, removed].map(|cost| (cost.compiled, cost.operations, cost.writes))
    });
    assert_eq!(costs[0], costs[1]);
}

#[test]
fn a_relabelled_namespace_is_one_unit_whatever_lives_in_it() {
    let relabel = json!({ "metadata": { "labels": { "team": "a" } } });
    let costs = [5, 120].map(|count| {
        let mut bench = with_pods(count);
        let namespace = ObjectRef::cluster(Kind::Namespace, "web");
        let cost = spent(&mut bench, |bench| bench.api.edit(&namespace, relabel.clone()));
        assert_eq!(bench.api.annotation(&namespace, "ovn.kubernetes.io/logical_switch"), Some("extra"));
        // Pods keep what they were told: one write, the namespace's own.
        (cost.compiled, cost.operations, cost.writes)
    });
    assert_eq!(costs[0], costs[1]);
    assert_eq!((costs[0].1, costs[0].2), (0, 1), "{costs:?}");
}

/// Ten thousand pods with their addresses, as a follower sees them after a start.
fn crowd() -> Core {
    let mut core = Core::new(super::bench::config(), crate::compile::compile);
    let subnet = |name: &str, spec: serde_json::Value| {
        json!({ "metadata": { "name": name, "uid": format!("uid-{name}") }, "spec": spec }).to_string()
    };
    let extra =
        json!({ "cidrBlock": "10.20.0.0/16", "namespaceSelectors": [{ "matchLabels": { "team": "a" } }] });
    let pods = (0..10_000).map(|n| {
        let address = format!("10.16.{}.{}", 1 + n / 250, 1 + n % 250);
        let annotations = json!({
            (keys::ALLOCATED): "true", (keys::ROUTED): "true", (keys::LOGICAL_SWITCH): "ovn-default",
            (keys::IP_ADDRESS): address, (keys::MAC_ADDRESS): format!("02:00:00:00:{:02x}:{:02x}", n / 256, n % 256),
        });
        json!({ "metadata": { "namespace": "web", "name": format!("p-{n}"), "uid": format!("uid-p-{n}"),
                "annotations": annotations }, "spec": { "nodeName": "n-1", "restartPolicy": "Always" } })
        .to_string()
    });
    for kind in NEEDED {
        let texts: Vec<String> = match kind {
            Kind::Pod => pods.clone().collect(),
            Kind::Subnet => vec![
                subnet("ovn-default", json!({ "cidrBlock": "10.16.0.0/16", "default": true })),
                subnet("extra", extra.clone()),
            ],
            Kind::Namespace => vec![json!({ "metadata": { "name": "web", "uid": "uid-web" } }).to_string()],
            _ => Vec::new(),
        };
        let objects = texts.iter().map(|text| decode(kind, text)).collect();
        core.handle(0, EPOCH_S, Input::Listed(kind, objects));
    }
    let db = Database::new(northbound());
    let (replica, schema) = (db.replica(), db.schema().clone());
    core.handle(0, EPOCH_S, Input::NbLoaded { replica, changes: Vec::new(), schema });
    core
}

/// Issue 5, constant work: labels of a namespace with 10,000 pods touch the rows and objects
/// that really change, which are none of the pods'.
#[test]
fn ten_thousand_pods_are_not_looked_at_when_their_namespace_is_relabelled() {
    let mut core = crowd();
    let before = core.counters();
    assert!(before.leases >= 10_000 && before.rows >= 10_000, "{before:?}");
    let plan = core.plan();
    let relabelled = json!({ "metadata": { "name": "web", "uid": "uid-web", "labels": { "team": "a" } } });
    let outputs = core.handle(1, EPOCH_S, Input::Applied(decode(Kind::Namespace, &relabelled.to_string())));
    let after = core.counters();
    assert_eq!(after.compiled - before.compiled, 1, "the namespace");
    assert_eq!((after.rows, after.members, after.leases), (before.rows, before.members, before.leases));
    assert!(!outputs.iter().any(|output| matches!(output, Output::Transact { .. } | Output::Kube { .. })));
    assert!(core.plan() == plan, "no row of a pod is to be written anew");
    let bound = core.explain(&ObjectRef::cluster(Kind::Namespace, "web")).to_string();
    assert!(bound.contains("extra"), "{bound}");
    assert_eq!(core.verify().first, Vec::<String>::new());
}
