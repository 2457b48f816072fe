//! Whose address stays when its pod is gone (contract §3.5, Galaxy's GI-20 to GI-27),
//! through the whole pipeline.

use rstest::rstest;
use serde_json::{Value, json};

use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";
const MAC: &str = "ovn.kubernetes.io/mac_address";
const RETAIN: &str = "ovn.kubernetes.io/ip_retain";

fn ready() -> Bench {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    lead(&mut bench, Families::V4);
    bench
}

fn workload(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef::namespaced(kind, "web", name)
}

fn add(bench: &mut Bench, kind: Kind, name: &str, spec: Value) {
    bench.api.create(&workload(kind, name), json!({ "spec": spec })).unwrap();
}

/// A pod of a StatefulSet or of a Deployment's ReplicaSet.
fn add_pod(bench: &mut Bench, kind: Kind, of: &str, name: &str, node: &str, annotations: Value) {
    let uid = bench.api.get(&workload(kind, of)).map(|set| set["metadata"]["uid"].clone());
    let (owner, hash) = match kind {
        Kind::StatefulSet => (("StatefulSet", of.to_owned()), None),
        _ => (("ReplicaSet", format!("{of}-abc")), Some("abc")),
    };
    let body = json!({
        "metadata": {
            "annotations": annotations,
            "labels": hash.map(|hash| json!({ "pod-template-hash": hash })),
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": owner.0, "name": owner.1,
                "uid": uid.unwrap_or_else(|| "gone".into()), "controller": true }],
        },
        "spec": { "nodeName": node, "restartPolicy": "Always" },
        "status": { "phase": "Pending" },
    });
    bench.api.create(&pod(name), body).unwrap();
}

fn address(bench: &Bench, name: &str) -> (String, String) {
    let of = |key: &str| bench.api.annotation(&pod(name), key).unwrap_or_default().to_owned();
    (of(IP), of(MAC))
}

fn has_port(bench: &Bench, name: &str) -> bool {
    let replica = bench.db.replica();
    replica.table("Logical_Switch_Port").unwrap().find_one("name", &ovsdb::Value::string(name)).is_some()
}

fn members(bench: &Bench) -> usize {
    let replica = bench.db.replica();
    let groups = replica.table("Port_Group").unwrap().rows();
    groups.map(|row| row.set("ports").map_or(0, |ports| ports.len())).sum()
}

fn has_record(bench: &Bench, port: &str) -> bool {
    bench.api.get(&cluster(Kind::Ip, port)).is_some()
}

#[test]
fn a_statefulset_keeps_its_ports_and_nothing_is_written_meanwhile() {
    let mut bench = ready();
    add(&mut bench, Kind::StatefulSet, "db", json!({ "replicas": 2 }));
    add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-1", json!({}));
    add_pod(&mut bench, Kind::StatefulSet, "db", "db-1", "n-1", json!({}));
    bench.settle();
    let first = address(&bench, "db-0");
    let before = members(&bench);
    bench.api.writes.clear();
    bench.api.remove(&pod("db-0"));
    bench.pass(120_000);
    assert!(has_port(&bench, "db-0.web") && has_record(&bench, "db-0.web"));
    assert_eq!(members(&bench), before - 2, "memberships go");
    assert_eq!(bench.api.writes, Vec::<String>::new());
    // A leader that finds it so leaves it so.
    let second = restart(&mut bench, Families::V4);
    bench.pass(60_000);
    assert_eq!(bench.api.writes, Vec::<String>::new());
    assert_eq!(bench.processes[second].transactions.len(), 1);
    // A plain pod does not get the address; the next db-0 does, on another node.
    bench.add_pod_with("thief", "n-1", json!({ IP: first.0 }));
    add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-2", json!({}));
    bench.settle();
    assert_eq!(address(&bench, "db-0"), first);
    assert_eq!(bench.api.annotation(&pod("thief"), "ovn.kubernetes.io/allocated"), None);
    assert_eq!(members(&bench), before);
    assert_eq!(bench.api.get(&cluster(Kind::Ip, "db-0.web")).unwrap()["spec"]["nodeName"], "n-2");
    assert!(bench.core().quiet());
}

#[rstest]
#[case::deleted(&|bench: &mut Bench| bench.api.delete(&workload(Kind::StatefulSet, "db"), 0), false)]
#[case::being_deleted(&|bench: &mut Bench| {
    bench.api.edit(&workload(Kind::StatefulSet, "db"), json!({ "metadata": { "finalizers": ["x"] } }));
    bench.api.delete(&workload(Kind::StatefulSet, "db"), 0);
}, false)]
#[case::scaled_down(&|bench: &mut Bench| {
    bench.api.edit(&workload(Kind::StatefulSet, "db"), json!({ "spec": { "replicas": 0 } }));
}, false)]
#[case::moved_up(&|bench: &mut Bench| {
    bench.api.edit(&workload(Kind::StatefulSet, "db"), json!({ "spec": { "ordinals": { "start": 1 } } }));
}, false)]
#[case::made_anew(&|bench: &mut Bench| {
    bench.api.delete(&workload(Kind::StatefulSet, "db"), 0);
    add(bench, Kind::StatefulSet, "db", json!({ "replicas": 1 }));
}, false)]
#[case::another_subnet(&|bench: &mut Bench| {
    let template = json!({ "metadata": { "annotations": { "ovn.kubernetes.io/logical_switch": "join" } } });
    bench.api.edit(&workload(Kind::StatefulSet, "db"), json!({ "spec": { "template": template } }));
}, false)]
#[case::outside_the_block(&|bench: &mut Bench| {
    let spec = json!({ "cidrBlock": "10.16.4.0/24", "gateway": "10.16.4.1", "excludeIps": ["10.16.4.1"] });
    bench.api.edit(&cluster(Kind::Subnet, "ovn-default"), json!({ "spec": spec }));
    bench.api.edit(&workload(Kind::StatefulSet, "db"), json!({ "spec": { "replicas": 2 } }));
}, false)]
#[case::by_hand(&|bench: &mut Bench| bench.api.delete(&cluster(Kind::Ip, "db-0.web"), 0), true)]
fn a_statefulset_lets_go(#[case] change: &dyn Fn(&mut Bench), #[case] by_hand: bool) {
    for early in [true, false] {
        let mut bench = ready();
        add(&mut bench, Kind::StatefulSet, "db", json!({ "replicas": 1 }));
        add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-1", json!({}));
        bench.settle();
        if early {
            // While the pod lives, what is asked for does no harm.
            change(&mut bench);
            bench.settle();
            assert!(has_port(&bench, "db-0.web") && has_record(&bench, "db-0.web"));
            bench.api.remove(&pod("db-0"));
        } else {
            bench.api.remove(&pod("db-0"));
            bench.settle();
            assert!(has_port(&bench, "db-0.web") && has_record(&bench, "db-0.web"));
            change(&mut bench);
        }
        bench.pass(5_000);
        // Deleting the record of a running pod frees nothing: it is written again, and
        // kept after the pod like any other.
        let kept = early && by_hand;
        assert_eq!(has_port(&bench, "db-0.web"), kept, "early {early}");
        assert_eq!(has_record(&bench, "db-0.web"), kept, "early {early}");
        assert!(bench.core().quiet());
    }
}

#[test]
fn a_record_cannot_be_released_by_hand_while_its_pod_exists() {
    let mut bench = ready();
    bench.add_pod("a-0", "n-1");
    bench.settle();
    let before = address(&bench, "a-0");
    bench.api.delete(&cluster(Kind::Ip, "a-0.web"), 0);
    bench.settle();
    assert!(has_record(&bench, "a-0.web"), "it is written again");
    assert!(bench.api.get(&cluster(Kind::Ip, "a-0.web")).unwrap()["metadata"]["deletionTimestamp"].is_null());
    bench.add_pod_with("thief", "n-1", json!({ IP: before.0 }));
    bench.settle();
    assert_eq!(bench.api.annotation(&pod("thief"), "ovn.kubernetes.io/allocated"), None);
}

#[test]
fn a_users_record_reserves_an_address() {
    let mut bench = ready();
    let record = cluster(Kind::Ip, "kept-for-later");
    let spec = json!({ "subnet": "ovn-default", "ipAddress": "10.16.0.2", "podName": "", "namespace": "" });
    bench.api.create(&record, json!({ "spec": spec })).unwrap();
    let any = cluster(Kind::Ip, "any-address");
    bench.api.create(&any, json!({ "spec": { "subnet": "ovn-default" } })).unwrap();
    let bad = cluster(Kind::Ip, "bad");
    bench.api.create(&bad, json!({ "spec": { "subnet": "ovn-default", "ipAddress": "10.99.0.9" } })).unwrap();
    bench.settle();
    let object = bench.api.get(&record).unwrap();
    assert_eq!(object["metadata"]["finalizers"], json!(["kubeovn.io/kube-ovn-controller"]));
    assert_eq!(object["metadata"]["labels"]["ovn.kubernetes.io/ip_reserved"], "true");
    assert_eq!(object["spec"]["v4IpAddress"], "10.16.0.2");
    assert!(bench.api.get(&any).unwrap()["spec"]["ipAddress"].as_str().unwrap().starts_with("10.16.0."));
    let said: Vec<_> = bench.processes.iter().flat_map(|p| &p.events).filter(|e| e.object == bad).collect();
    assert!(said.iter().any(|event| event.message.contains("10.99.0.9")), "{said:?}");
    for name in ["x0", "x1"] {
        bench.add_pod(name, "n-1");
    }
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.pass(5_000);
    let taken = [address(&bench, "x0").0, address(&bench, "x1").0];
    let any_ip = bench.api.get(&any).unwrap()["spec"]["ipAddress"].as_str().unwrap().to_owned();
    assert!(!taken.contains(&"10.16.0.2".into()) && !taken.contains(&any_ip), "{taken:?} {any_ip}");
    assert!(has_record(&bench, "kept-for-later"));
    bench.api.delete(&record, 0);
    bench.settle();
    assert!(!has_record(&bench, "kept-for-later"));
    bench.add_pod_with("next", "n-1", json!({ IP: "10.16.0.2" }));
    bench.settle();
    assert_eq!(address(&bench, "next").0, "10.16.0.2");
}

#[test]
fn a_reservation_for_a_pod_serves_it_and_stays() {
    let mut bench = ready();
    let record = cluster(Kind::Ip, "a-0.web");
    let spec = json!({ "subnet": "ovn-default", "ipAddress": "10.16.3.3", "podName": "a-0", "namespace": "web",
        "macAddress": "02:00:00:00:33:33" });
    bench.api.create(&record, json!({ "spec": spec })).unwrap();
    bench.settle();
    for round in 0..3 {
        bench.add_pod("a-0", "n-1");
        bench.settle();
        let expected = ("10.16.3.3".to_owned(), "02:00:00:00:33:33".to_owned());
        assert_eq!(address(&bench, "a-0"), expected, "round {round}");
        bench.api.remove(&pod("a-0"));
        bench.settle();
        assert!(has_record(&bench, "a-0.web") && !has_port(&bench, "a-0.web"));
    }
}

#[test]
fn gi_21_a_deployment_keeps_the_addresses_of_its_replicas() {
    let mut bench = ready();
    let rolling = json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    add(&mut bench, Kind::Deployment, "api", json!({ "replicas": 2, "strategy": rolling }));
    let keep = json!({ RETAIN: "immutable" });
    for name in ["api-abc-1", "api-abc-2"] {
        add_pod(&mut bench, Kind::Deployment, "api", name, "n-1", keep.clone());
    }
    bench.settle();
    let mut first = [address(&bench, "api-abc-1"), address(&bench, "api-abc-2")];
    first.sort();
    // Node lost: both pods gone, the address stays meanwhile, also over a restart.
    for name in ["api-abc-1", "api-abc-2"] {
        bench.api.remove(&pod(name));
    }
    bench.settle();
    assert!(!has_port(&bench, "api-abc-1.web") && has_record(&bench, "api-abc-1.web"));
    restart(&mut bench, Families::V4);
    bench.add_pod("other", "n-1");
    for name in ["api-abc-3", "api-abc-4"] {
        add_pod(&mut bench, Kind::Deployment, "api", name, "n-2", keep.clone());
    }
    bench.settle();
    let mut second = [address(&bench, "api-abc-3"), address(&bench, "api-abc-4")];
    second.sort();
    assert_eq!(first, second);
    assert!(!has_record(&bench, "api-abc-1.web"), "the record is the new pod's now");
    // Scaled to one: at most one and the surge are kept.
    bench.api.edit(&workload(Kind::Deployment, "api"), json!({ "spec": { "replicas": 0 } }));
    bench.api.remove(&pod("api-abc-3"));
    bench.api.remove(&pod("api-abc-4"));
    bench.settle();
    let kept = ["api-abc-3.web", "api-abc-4.web"].iter().filter(|port| has_record(&bench, port)).count();
    assert_eq!(kept, 1, "replicas 0 and a surge of 1");
    bench.api.delete(&workload(Kind::Deployment, "api"), 0);
    bench.settle();
    assert!(!has_record(&bench, "api-abc-3.web") && !has_record(&bench, "api-abc-4.web"));
    assert!(bench.core().quiet());
}

#[test]
fn gi_22_never_is_until_freed_by_hand() {
    let mut bench = ready();
    add(&mut bench, Kind::Deployment, "api", json!({ "replicas": 1 }));
    add_pod(&mut bench, Kind::Deployment, "api", "api-abc-1", "n-1", json!({ RETAIN: "never" }));
    bench.add_pod_with("single", "n-1", json!({ RETAIN: "never" }));
    bench.settle();
    let (first, single) = (address(&bench, "api-abc-1"), address(&bench, "single"));
    bench.api.remove(&pod("api-abc-1"));
    bench.api.remove(&pod("single"));
    bench.api.delete(&workload(Kind::Deployment, "api"), 0);
    bench.settle();
    restart(&mut bench, Families::V4);
    bench.pass(60_000);
    assert!(has_record(&bench, "api-abc-1.web") && has_record(&bench, "single.web"));
    add(&mut bench, Kind::Deployment, "api", json!({ "replicas": 1 }));
    add_pod(&mut bench, Kind::Deployment, "api", "api-abc-9", "n-2", json!({ RETAIN: "never" }));
    bench.add_pod_with("single", "n-2", json!({ RETAIN: "never" }));
    bench.settle();
    assert_eq!((address(&bench, "api-abc-9"), address(&bench, "single")), (first.clone(), single));
    bench.api.remove(&pod("api-abc-9"));
    bench.settle();
    bench.api.delete(&cluster(Kind::Ip, "api-abc-9.web"), 0);
    bench.settle();
    assert!(!has_record(&bench, "api-abc-9.web"));
    bench.add_pod_with("next", "n-1", json!({ IP: first.0 }));
    bench.settle();
    assert_eq!(address(&bench, "next").0, first.0);
}

#[test]
fn gi_20_a_finished_pod_gives_its_address_back() {
    let mut bench = ready();
    for (name, policy, status) in [
        ("done", "Never", json!({ "phase": "Succeeded" })),
        ("failed", "Never", json!({ "phase": "Failed" })),
        ("evicted", "Always", json!({ "phase": "Failed", "reason": "Evicted" })),
    ] {
        bench.add_pod(name, "n-1");
        bench.api.edit(&pod(name), json!({ "spec": { "restartPolicy": policy } }));
        bench.settle();
        let ip = address(&bench, name).0;
        bench.api.edit(&pod(name), json!({ "status": status }));
        bench.settle();
        assert!(!has_record(&bench, &format!("{name}.web")), "{name}");
        bench.add_pod_with("next", "n-1", json!({ IP: ip }));
        bench.settle();
        assert_eq!(address(&bench, "next").0, ip);
        bench.api.remove(&pod("next"));
        bench.settle();
    }
}

#[test]
fn gi_06_a_late_deletion_of_the_old_pod_takes_nothing_from_the_new_one() {
    for seed in 0..20 {
        let mut bench = Bench::cluster(7_000 + seed);
        add(&mut bench, Kind::StatefulSet, "db", json!({ "replicas": 1 }));
        add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-1", json!({}));
        bench.settle();
        let first = address(&bench, "db-0");
        bench.api.delete(&pod("db-0"), 30);
        for _ in 0..bench.rng.below(20) {
            bench.step();
        }
        bench.api.remove(&pod("db-0"));
        add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-2", json!({}));
        bench.settle();
        bench.pass(40_000);
        assert_eq!(address(&bench, "db-0"), first, "seed {seed}");
        assert!(has_port(&bench, "db-0.web") && has_record(&bench, "db-0.web"), "seed {seed}");
        assert!(bench.core().quiet());
    }
}

/// Galaxy allocates in the filter stage under a lock, since binds run beside the next
/// filter; here there is one writer. A pool is never overdrawn, however pods come, and no
/// address is in two ports on the way.
#[test]
fn gi_03_a_sized_pool_is_never_overdrawn_however_pods_come() {
    for seed in 0..12 {
        let mut bench = Bench::cluster(7_200 + seed);
        let spec = json!({ "subnet": "ovn-default", "ips": ["10.16.8.0..10.16.8.9"], "size": 3 });
        bench.api.create(&cluster(Kind::IpPool, "few"), json!({ "spec": spec })).unwrap();
        bench.faults = crate::sim::Faults { lost: 3, relist: 5, write: 5 };
        let used = |bench: &Bench| -> Vec<String> {
            let replica = bench.db.replica();
            let rows = replica.table("Logical_Switch_Port").unwrap().rows();
            let texts =
                rows.filter_map(|row| row.set("addresses")?.iter().next()?.as_str().map(str::to_owned));
            texts.filter_map(|text| text.split_once(" 10.16.8.").map(|(_, end)| end.to_owned())).collect()
        };
        let check = |bench: &Bench| {
            let mut all = used(bench);
            let held = all.len();
            all.sort();
            all.dedup();
            assert!(held <= 3 && all.len() == held, "seed {seed}: {:?}", used(bench));
        };
        for number in 0..7 {
            bench.add_pod_with(&format!("p-{number}"), "n-1", json!({ "ovn.kubernetes.io/ip_pool": "few" }));
            for _ in 0..bench.rng.below(8) {
                bench.step();
                check(&bench);
            }
        }
        bench.faults = crate::sim::Faults::default();
        for _ in 0..5_000 {
            if !bench.step() {
                break;
            }
            check(&bench);
        }
        bench.settle();
        assert_eq!(used(&bench).len(), 3, "seed {seed}");
        // What one gives back the next one gets.
        let served = |bench: &Bench| -> Vec<usize> {
            (0..7).filter(|n| !address(bench, &format!("p-{n}")).0.is_empty()).collect()
        };
        let first = served(&bench);
        bench.api.remove(&pod(&format!("p-{}", first[0])));
        bench.settle();
        check(&bench);
        assert_eq!(served(&bench).len(), 3, "seed {seed}");
        assert_ne!(served(&bench), first);
    }
}

#[test]
fn gi_05_a_pod_that_vanishes_during_allocation_gives_its_address_back() {
    for seed in 0..20 {
        let mut bench = Bench::cluster(7_100 + seed);
        bench.add_pod("a-0", "n-1");
        for _ in 0..bench.rng.below(14) {
            bench.step();
        }
        bench.api.remove(&pod("a-0"));
        bench.pass(5_000);
        assert!(!has_port(&bench, "a-0.web") && !has_record(&bench, "a-0.web"), "seed {seed}");
        assert_eq!(bench.core().counters().leases, 2, "seed {seed}: the nodes'");
    }
}

#[test]
fn gi_27_a_running_pods_address_is_adopted_even_if_nothing_records_it() {
    let mut bench = super::bench(Families::V4);
    let told = json!({
        "ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/routed": "true",
        IP: "10.16.0.2", MAC: "02:00:00:00:00:42", "ovn.kubernetes.io/logical_switch": "ovn-default",
        "ovn.kubernetes.io/cidr": "10.16.0.0/16", "ovn.kubernetes.io/gateway": "10.16.0.1",
        "ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/pod_nic_type": "veth-pair",
    });
    bench.add_pod_with("old", "n-1", told.clone());
    bench.add_pod_with("twin", "n-1", told);
    bench.add_pod("new", "n-1");
    lead(&mut bench, Families::V4);
    bench.settle();
    assert!(has_record(&bench, "old.web") && has_port(&bench, "old.web"));
    assert_eq!(address(&bench, "new").0, "10.16.0.3");
    let said: Vec<_> =
        bench.processes.iter().flat_map(|p| &p.events).filter(|e| e.object == pod("twin")).collect();
    assert!(said.iter().any(|event| event.message.contains("old.web")), "{said:?}");
}

#[test]
fn a_rollout_that_cannot_go_on_says_so() {
    let mut bench = ready();
    let rolling = json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    add(&mut bench, Kind::Deployment, "api", json!({ "replicas": 1, "strategy": rolling }));
    let list = json!({ "ovn.kubernetes.io/ip_pool": "10.16.5.5,10.16.5.6" });
    for name in ["api-abc-1", "api-abc-2", "api-abc-3"] {
        add_pod(&mut bench, Kind::Deployment, "api", name, "n-1", list.clone());
        bench.settle();
    }
    let said: Vec<_> =
        bench.processes.iter().flat_map(|p| &p.events).filter(|e| e.object == pod("api-abc-3")).collect();
    let wanted = |text: &str| text.contains("Deployment api") && text.contains("maxSurge");
    assert!(said.iter().any(|e| &*e.reason == "RolloutDeadlock" && wanted(&e.message)), "{said:?}");
}

#[rstest]
#[case("sometimes", "immutable or never")]
#[case("immutable", "Deployment or StatefulSet")]
fn what_retention_cannot_mean_is_said(#[case] word: &str, #[case] needle: &str) {
    let mut bench = ready();
    bench.add_pod_with("a-0", "n-1", json!({ RETAIN: word }));
    bench.settle();
    assert_eq!(address(&bench, "a-0").0, "");
    let said: Vec<_> =
        bench.processes.iter().flat_map(|p| &p.events).filter(|e| e.object == pod("a-0")).collect();
    assert!(said.iter().any(|event| event.message.contains(needle)), "{said:?}");
}

#[rstest]
#[case(json!({ "replicas": 3 }), "10.16.7.1,10.16.7.2,10.16.7.3")]
#[case(json!({ "replicas": 3 }), "10.16.7.1;10.16.7.2;10.16.7.3")]
fn a_statefulsets_list_is_by_ordinal(#[case] spec: Value, #[case] list: &str) {
    let mut bench = ready();
    add(&mut bench, Kind::StatefulSet, "db", spec);
    let asks = json!({ "ovn.kubernetes.io/ip_pool": list });
    for n in [2, 0, 1] {
        add_pod(&mut bench, Kind::StatefulSet, "db", &format!("db-{n}"), "n-1", asks.clone());
        bench.settle();
        assert_eq!(address(&bench, &format!("db-{n}")).0, format!("10.16.7.{}", n + 1));
    }
    add_pod(&mut bench, Kind::StatefulSet, "db", "db-3", "n-1", asks);
    bench.settle();
    assert_eq!(address(&bench, "db-3").0, "");
    let said: Vec<_> =
        bench.processes.iter().flat_map(|p| &p.events).filter(|e| e.object == pod("db-3")).collect();
    assert!(said.iter().any(|event| event.message.contains("ordinal 3")), "{said:?}");
}

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// A network beside the default one, of which another CNI makes interfaces.
fn add_network(bench: &mut Bench) {
    let nad = ObjectRef::namespaced(Kind::Nad, "web", "vlan");
    let config = json!({ "type": "ipvlan", "ipam": { "type": "kube-ovn" } });
    bench.api.create(&nad, json!({ "spec": { "config": config.to_string() } })).unwrap();
    let spec = json!({ "cidrBlock": "172.20.0.0/24", "provider": "vlan.web" });
    bench.api.create(&cluster(Kind::Subnet, "plain"), json!({ "spec": spec })).unwrap();
    bench.settle();
}

#[test]
fn an_interface_that_a_statefulsets_pod_has_no_more_is_not_kept_for_it() {
    for restarted in [false, true] {
        let mut bench = ready();
        add_network(&mut bench);
        add(&mut bench, Kind::StatefulSet, "db", json!({ "replicas": 1 }));
        add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-1", json!({ NETWORKS: "vlan" }));
        bench.settle();
        let first = address(&bench, "db-0");
        bench.api.remove(&pod("db-0"));
        bench.settle();
        assert!(has_record(&bench, "db-0.web.vlan.web") && has_record(&bench, "db-0.web"));
        // The next one is on it again, and the one after is not.
        add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-1", json!({ NETWORKS: "vlan" }));
        bench.settle();
        let of = |bench: &Bench| {
            let key = "vlan.web.kubernetes.io/ip_address";
            bench.api.annotation(&pod("db-0"), key).map(str::to_owned)
        };
        assert_eq!(of(&bench).as_deref(), Some("172.20.0.2"));
        bench.api.remove(&pod("db-0"));
        bench.settle();
        if restarted {
            bench.processes.last_mut().unwrap().paused = true;
        }
        add_pod(&mut bench, Kind::StatefulSet, "db", "db-0", "n-1", json!({}));
        if restarted {
            lead(&mut bench, Families::V4);
        }
        bench.settle();
        assert_eq!(address(&bench, "db-0"), first);
        assert!(!has_record(&bench, "db-0.web.vlan.web"), "restarted {restarted}");
        assert!(bench.core().quiet(), "{}", bench.core().status());
    }
}

#[test]
fn gi_21_a_deployment_keeps_the_addresses_of_all_its_interfaces() {
    let mut bench = ready();
    add_network(&mut bench);
    let none = json!({ "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } });
    add(&mut bench, Kind::Deployment, "api", json!({ "replicas": 3, "strategy": none }));
    let keep = json!({ RETAIN: "immutable", NETWORKS: "vlan" });
    let of = |bench: &Bench, names: &[&str]| -> Vec<String> {
        let key = "vlan.web.kubernetes.io/ip_address";
        let told = |name: &&str| {
            [address(bench, name).0, bench.api.annotation(&pod(name), key).unwrap_or_default().to_owned()]
        };
        let mut all: Vec<String> = names.iter().flat_map(told).collect();
        all.sort();
        all
    };
    let old = ["api-abc-1", "api-abc-2", "api-abc-3"];
    for name in old {
        add_pod(&mut bench, Kind::Deployment, "api", name, "n-1", keep.clone());
    }
    bench.settle();
    let first = of(&bench, &old);
    // One after the other, as in a rollout; then all at once.
    for name in old {
        bench.api.remove(&pod(name));
    }
    bench.settle();
    for name in old {
        for port in [format!("{name}.web"), format!("{name}.web.vlan.web")] {
            assert!(has_record(&bench, &port), "{port}");
        }
    }
    restart(&mut bench, Families::V4);
    bench.add_pod_with("other", "n-1", json!({ NETWORKS: "vlan" }));
    let new = ["api-abc-4", "api-abc-5", "api-abc-6"];
    for name in new {
        add_pod(&mut bench, Kind::Deployment, "api", name, "n-2", keep.clone());
    }
    bench.settle();
    assert_eq!(of(&bench, &new), first);
    assert!(bench.core().quiet(), "{}", bench.core().status());
    // One too many of each network.
    bench.api.edit(&workload(Kind::Deployment, "api"), json!({ "spec": { "replicas": 2 } }));
    for name in new {
        bench.api.remove(&pod(name));
    }
    bench.settle();
    for end in ["web", "web.vlan.web"] {
        let kept = new.iter().filter(|name| has_record(&bench, &format!("{name}.{end}"))).count();
        assert_eq!(kept, 2, "{end}");
    }
}

#[test]
fn gi_22_never_ends_when_the_pod_asks_no_more() {
    for restarted in [false, true] {
        let mut bench = ready();
        bench.add_pod_with("single", "n-1", json!({ RETAIN: "never" }));
        bench.settle();
        bench.api.edit(&pod("single"), json!({ "metadata": { "annotations": { RETAIN: null } } }));
        bench.settle();
        let record = bench.api.get(&cluster(Kind::Ip, "single.web")).unwrap();
        let left = record["metadata"]["annotations"].to_string();
        assert!(!left.contains("ip_retain"), "{left}");
        if restarted {
            restart(&mut bench, Families::V4);
        }
        bench.api.remove(&pod("single"));
        bench.settle();
        assert!(!has_record(&bench, "single.web") && !has_port(&bench, "single.web"));
    }
}
