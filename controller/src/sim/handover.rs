//! What one leader has on the wire when the next one begins.

use serde_json::json;

use super::Bench;
use super::bench::pod;
use crate::facts::{Kind, ObjectRef};

/// A subnet is deleted and unused, and the leader has sent off its last finalizer when another
/// one takes over, whose watch of subnets has not come so far. A pod asks for an address there:
/// it gets none, whether the write arrives before or after, and is told why.
#[test]
fn a_subnet_that_ends_during_a_handover_gives_no_address() {
    let kinds = [json!({ "vpc": "ovn-cluster" }), json!({ "provider": "wan.web" })];
    // When the list of the new leader comes is drawn too.
    for seed in 0..64 {
        let (overlay, arrives_late) = (seed & 1 == 0, seed & 2 == 0);
        let mut bench = Bench::cluster(seed);
        let extra = ObjectRef::cluster(Kind::Subnet, "extra");
        let mut spec = kinds[usize::from(!overlay)].clone();
        spec["cidrBlock"] = "10.20.0.0/24".into();
        bench.api.create(&extra, json!({ "spec": spec })).unwrap();
        let nad = ObjectRef::namespaced(Kind::Nad, "web", "wan");
        let config = json!({ "type": "macvlan", "ipam": { "type": "kube-ovn" } }).to_string();
        bench.api.create(&nad, json!({ "spec": { "config": config } })).unwrap();
        let old = bench.processes.len() - 1;
        let new = bench.start();
        bench.settle();
        assert!(bench.api.get(&extra).unwrap()["metadata"]["finalizers"][0].is_string());
        // The old leader alone learns of the deletion, and answers.
        bench.processes[new].lagging.insert(Kind::Subnet);
        bench.api.delete(&extra, 0);
        bench.watch(old, Kind::Subnet);
        let wire = bench.take_writes(old);
        assert!(wire.iter().any(|write| format!("{write:?}").contains("finalizers")), "{wire:?}");
        bench.processes[old].paused = true;
        bench.elect(new);
        let arrive = |bench: &mut Bench| {
            for write in &wire {
                let _ = bench.api.write(write);
            }
        };
        if !arrives_late {
            arrive(&mut bench);
        }
        let wish = if overlay {
            json!({ "ovn.kubernetes.io/logical_switch": "extra" })
        } else {
            json!({ "k8s.v1.cni.cncf.io/networks": "wan" })
        };
        bench.add_pod_with("late", "n-1", wish);
        // Not for longer: what a watch that lags for ever does not show is tried for ever.
        while bench.step() {}
        if arrives_late {
            arrive(&mut bench);
        }
        bench.processes[new].lagging.clear();
        bench.settle();
        assert!(bench.api.get(&extra).is_none(), "seed {seed}, overlay: {overlay}, late: {arrives_late}");
        let key = if overlay { "ovn.kubernetes.io/ip_address" } else { "wan.web.kubernetes.io/ip_address" };
        assert_eq!(
            bench.api.annotation(&pod("web", "late"), key),
            None,
            "seed {seed}, overlay: {overlay}, late: {arrives_late}"
        );
        let said = bench.processes[new].events.iter().any(|event| {
            event.object == pod("web", "late")
                && event.warning
                && (event.message.contains("extra") || !overlay)
        });
        assert!(said, "seed {seed}, overlay: {overlay}, late: {arrives_late}");
    }
}

/// A list that was asked for by an election before says nothing about this one.
#[test]
fn each_election_asks_for_a_list_of_its_own() {
    use crate::io::{Input, Output};
    let mut bench = Bench::cluster(78);
    let core = &mut bench.processes[0].core;
    let mut numbers = Vec::new();
    for epoch in ["a", "b"] {
        core.handle(0, 0, Input::Deposed);
        let outputs = core.handle(0, 0, Input::Elected { epoch: epoch.into() });
        numbers.extend(outputs.iter().filter_map(|output| match output {
            Output::Refresh(Kind::Subnet, number) => Some(*number),
            _ => None,
        }));
        let again = core.handle(0, 0, Input::Tick);
        assert!(!again.iter().any(|output| matches!(output, Output::Refresh(..))));
    }
    assert!(numbers.len() == 2 && numbers[0] < numbers[1], "{numbers:?}");
}
