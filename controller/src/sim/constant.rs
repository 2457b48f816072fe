//! Constant work: what nothing depends on compiles nothing, and what one pod costs
//! does not depend on how many there are.

use serde_json::json;

use super::Bench;
use super::bench::pod;
use crate::facts::{Kind, ObjectRef};

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
