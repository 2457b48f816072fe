//! Virtual machines of KubeVirt through the whole pipeline (contract §2.1, §3.5, §3.6):
//! whose name their ports have, how long addresses stay, and what a migration does.

use rstest::rstest;
use serde_json::{Value, json};

use super::{cluster, lead, pod, restart};
use crate::compile::tests::fake::Families;
use crate::facts::{Kind, ObjectRef};
use crate::sim::Bench;

const IP: &str = "ovn.kubernetes.io/ip_address";
const MAC: &str = "ovn.kubernetes.io/mac_address";
const ROUTED: &str = "ovn.kubernetes.io/routed";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const JOB: &str = "kubevirt.io/migrationJobName";
const PORT: &str = "vm-1.web";

fn of(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef::namespaced(kind, "web", name)
}

fn vm() -> ObjectRef {
    of(Kind::VirtualMachine, "vm-1")
}

fn vmi() -> ObjectRef {
    of(Kind::VirtualMachineInstance, "vm-1")
}

fn ready() -> Bench {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    lead(&mut bench, Families::V4);
    for name in ["a", "b"] {
        let config = json!({ "type": "kube-ovn" }).to_string();
        bench.api.create(&of(Kind::Nad, name), json!({ "spec": { "config": config } })).unwrap();
    }
    bench
}

fn add_machine(bench: &mut Bench, networks: &[&str]) {
    let networks: Vec<Value> =
        networks.iter().map(|name| json!({ "name": name, "multus": { "networkName": name } })).collect();
    let spec = json!({ "template": { "spec": { "networks": networks } } });
    bench.api.create(&vm(), json!({ "spec": spec })).unwrap();
}

fn add_instance(bench: &mut Bench, owned: bool, node: &str) {
    let uid = bench.api.get(&vm()).map_or(Value::Null, |vm| vm["metadata"]["uid"].clone());
    let owner =
        json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm-1", "uid": uid }]);
    let body = json!({
        "metadata": { "ownerReferences": if owned { owner } else { json!([]) } },
        "spec": {}, "status": { "nodeName": node },
    });
    bench.api.create(&vmi(), body).unwrap();
}

/// A pod that runs the machine.
fn add_launcher(bench: &mut Bench, name: &str, node: &str, annotations: Value) {
    let uid = bench.api.get(&vmi()).map_or("gone".into(), |vmi| vmi["metadata"]["uid"].clone());
    let owner = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm-1",
        "uid": uid, "controller": true }]);
    let body = json!({
        "metadata": { "annotations": annotations, "ownerReferences": owner },
        "spec": { "nodeName": node, "restartPolicy": "Never" },
        "status": { "phase": "Pending" },
    });
    bench.api.create(&pod(name), body).unwrap();
}

fn running(networks: &[&str]) -> Bench {
    let mut bench = ready();
    add_machine(&mut bench, networks);
    add_instance(&mut bench, true, "n-1");
    let on: serde_json::Map<String, Value> = networks
        .iter()
        .map(|name| (format!("{name}.web.ovn.kubernetes.io/logical_switch"), "ovn-default".into()))
        .chain((!networks.is_empty()).then(|| (NETWORKS.to_owned(), networks.join(",").into())))
        .collect();
    add_launcher(&mut bench, "launcher-1", "n-1", on.into());
    bench.settle();
    assert_eq!(annotation(&bench, "launcher-1", ROUTED), "true", "{:?}", bench.processes[0].events);
    bench
}

fn annotation(bench: &Bench, name: &str, key: &str) -> String {
    bench.api.annotation(&pod(name), key).unwrap_or_default().to_owned()
}

fn address(bench: &Bench, name: &str) -> (String, String) {
    (annotation(bench, name, IP), annotation(bench, name, MAC))
}

fn ports(bench: &Bench) -> Vec<String> {
    let replica = bench.db.replica();
    let rows = replica.table("Logical_Switch_Port").unwrap().rows();
    let mut names: Vec<String> = rows.map(|row| row.str("name").unwrap_or_default().to_owned()).collect();
    names.retain(|name| name.contains(".web"));
    names.sort();
    names
}

fn records(bench: &Bench) -> Vec<String> {
    let all = bench.api.names(Kind::Ip).into_iter().map(|object| object.name.to_string());
    all.filter(|name| name.contains(".web")).collect()
}

/// Requested chassis and activation of a port.
fn placement(bench: &Bench, port: &str) -> (String, String) {
    let replica = bench.db.replica();
    let row =
        replica.table("Logical_Switch_Port").unwrap().find_one("name", &ovsdb::Value::string(port)).unwrap();
    let option = |key: &str| row.map_get("options", key).unwrap_or_default().to_owned();
    (option("requested-chassis"), option("activation-strategy"))
}

/// Port groups that the port is in.
fn groups(bench: &Bench, port: &str) -> Vec<String> {
    let replica = bench.db.replica();
    let row =
        replica.table("Logical_Switch_Port").unwrap().find_one("name", &ovsdb::Value::string(port)).unwrap();
    let groups = replica.table("Port_Group").unwrap().rows();
    let with =
        groups.filter(|group| group.set("ports").is_some_and(|ports| ports.contains(&row.uuid.into())));
    let mut names: Vec<String> = with.map(|group| group.str("name").unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_machines_port_has_its_name_and_stays_while_it_is_stopped() {
    let mut bench = running(&[]);
    let first = address(&bench, "launcher-1");
    assert_eq!((ports(&bench), records(&bench)), (vec![PORT.to_owned()], vec![PORT.to_owned()]));
    let spec = bench.api.get(&cluster(Kind::Ip, PORT)).unwrap()["spec"].clone();
    assert_eq!(
        (&spec["podName"], &spec["podType"], &spec["namespace"]),
        (&json!("vm-1"), &json!("VirtualMachine"), &json!("web"))
    );
    assert_eq!(annotation(&bench, "launcher-1", "ovn.kubernetes.io/virtualmachine"), "vm-1");
    // Stopped: the instance and its pod go.
    bench.api.writes.clear();
    bench.api.remove(&pod("launcher-1"));
    bench.api.remove(&vmi());
    bench.pass(120_000);
    assert_eq!((ports(&bench), records(&bench)), (vec![PORT.to_owned()], vec![PORT.to_owned()]));
    assert_eq!(groups(&bench, PORT), Vec::<String>::new(), "memberships go");
    assert_eq!(bench.api.writes, Vec::<String>::new());
    let second = restart(&mut bench, Families::V4);
    bench.pass(60_000);
    assert_eq!(bench.api.writes, Vec::<String>::new());
    assert_eq!(bench.processes[second].transactions.len(), 1);
    // Started elsewhere, by a pod of another name.
    bench.add_pod_with("thief", "n-1", json!({ IP: first.0 }));
    add_instance(&mut bench, true, "");
    add_launcher(&mut bench, "launcher-2", "n-2", json!({}));
    bench.settle();
    assert_eq!(address(&bench, "launcher-2"), first);
    assert_eq!(address(&bench, "thief").0, first.0, "it asked for it");
    assert_eq!(annotation(&bench, "thief", ROUTED), "");
    assert_eq!(bench.api.get(&cluster(Kind::Ip, PORT)).unwrap()["spec"]["nodeName"], "n-2");
    assert_eq!(groups(&bench, PORT), ["node.n.2", "ovn.default.n.2"]);
    assert!(bench.core().quiet(), "{}", bench.core().status());
}

/// Whether the machine and its instance are there after a change, and so its address.
#[rstest]
#[case::stopped(&|bench: &mut Bench| bench.api.remove(&vmi()), true)]
#[case::stopping(&|bench: &mut Bench| terminate(bench, &vmi()), true)]
#[case::deleted(&|bench: &mut Bench| {
    bench.api.remove(&vmi());
    bench.api.remove(&vm());
}, false)]
#[case::being_deleted(&|bench: &mut Bench| {
    terminate(bench, &vmi());
    terminate(bench, &vm());
}, false)]
#[case::deleted_with_its_instance_left(&|bench: &mut Bench| bench.api.remove(&vm()), true)]
#[case::an_instance_of_its_own(&|bench: &mut Bench| {
    bench.api.edit(&vmi(), json!({ "metadata": { "ownerReferences": [] } }));
    bench.api.remove(&vm());
}, true)]
#[case::an_instance_of_its_own_ends(&|bench: &mut Bench| {
    bench.api.edit(&vmi(), json!({ "metadata": { "ownerReferences": [] } }));
    terminate(bench, &vmi());
}, false)]
#[case::another_subnet(&|bench: &mut Bench| {
    let template = json!({ "metadata": { "annotations": { "ovn.kubernetes.io/logical_switch": "join" } } });
    bench.api.edit(&vm(), json!({ "spec": { "template": template } }));
}, false)]
#[case::outside_the_block(&|bench: &mut Bench| {
    let spec = json!({ "cidrBlock": "10.16.4.0/24", "gateway": "10.16.4.1", "excludeIps": ["10.16.4.1"] });
    bench.api.edit(&cluster(Kind::Subnet, "ovn-default"), json!({ "spec": spec }));
}, false)]
fn a_machine_keeps_or_lets_go(#[case] change: &dyn Fn(&mut Bench), #[case] kept: bool) {
    for early in [true, false] {
        let mut bench = running(&[]);
        if early {
            // While a pod runs it, its port stays whatever becomes of the machine.
            change(&mut bench);
            bench.settle();
            assert_eq!(records(&bench), [PORT]);
            bench.api.remove(&pod("launcher-1"));
        } else {
            bench.api.remove(&pod("launcher-1"));
            bench.settle();
            assert_eq!(records(&bench), [PORT]);
            change(&mut bench);
        }
        bench.pass(5_000);
        assert_eq!(!ports(&bench).is_empty(), kept, "early {early}");
        assert_eq!(!records(&bench).is_empty(), kept, "early {early}");
        // And so it is for one that takes over.
        restart(&mut bench, Families::V4);
        bench.pass(5_000);
        assert_eq!(!records(&bench).is_empty(), kept, "early {early}, taken over");
        assert!(bench.core().quiet());
    }
}

fn terminate(bench: &mut Bench, object: &ObjectRef) {
    bench.api.edit(object, json!({ "metadata": { "finalizers": ["kubevirt.io/x"] } }));
    bench.api.delete(object, 0);
}

#[test]
fn a_machine_made_anew_starts_afresh_and_a_record_deleted_by_hand_frees() {
    let mut bench = running(&[]);
    let first = address(&bench, "launcher-1").0;
    bench.api.remove(&vmi());
    bench.api.remove(&pod("launcher-1"));
    bench.settle();
    bench.api.remove(&vm());
    add_machine(&mut bench, &[]);
    bench.pass(5_000);
    assert!(ports(&bench).is_empty() && records(&bench).is_empty());
    add_instance(&mut bench, true, "n-1");
    add_launcher(&mut bench, "launcher-2", "n-1", json!({ IP: "10.16.9.9" }));
    bench.settle();
    assert_ne!(address(&bench, "launcher-2").0, first);
    bench.api.remove(&pod("launcher-2"));
    bench.settle();
    bench.api.delete(&cluster(Kind::Ip, PORT), 0);
    bench.pass(5_000);
    assert!(ports(&bench).is_empty() && records(&bench).is_empty());
}

#[test]
fn networks_of_a_machine_are_unplugged_while_it_runs_and_while_it_is_stopped() {
    let (a, b) = ("vm-1.web.a.web.ovn".to_owned(), "vm-1.web.b.web.ovn".to_owned());
    let all = vec![PORT.to_owned(), a.clone(), b.clone()];
    let networks = |names: &[&str]| {
        let list: Vec<Value> =
            names.iter().map(|name| json!({ "name": name, "multus": { "networkName": name } })).collect();
        json!({ "spec": { "template": { "spec": { "networks": list } } } })
    };
    // Stopped: what the machine still has stays.
    let mut bench = running(&["a", "b"]);
    assert_eq!((ports(&bench), records(&bench)), (all.clone(), all.clone()));
    bench.api.remove(&pod("launcher-1"));
    bench.api.remove(&vmi());
    bench.pass(5_000);
    assert_eq!((ports(&bench), records(&bench)), (all.clone(), all.clone()));
    bench.api.edit(&vm(), networks(&["a"]));
    bench.pass(5_000);
    let left = vec![PORT.to_owned(), a.clone()];
    assert_eq!((ports(&bench), records(&bench)), (left.clone(), left.clone()));
    restart(&mut bench, Families::V4);
    bench.pass(5_000);
    assert_eq!((ports(&bench), records(&bench)), (left.clone(), left));
    // Running: the pod's list loses it, and so does the machine; in this order or the other.
    for spec_first in [true, false] {
        let mut bench = running(&["a", "b"]);
        let unplug = json!({ "metadata": { "annotations": { NETWORKS: "b" } } });
        if spec_first {
            bench.api.edit(&vm(), networks(&["b"]));
            bench.settle();
            assert_eq!(ports(&bench), all, "a pod still has it");
            bench.api.edit(&pod("launcher-1"), unplug);
        } else {
            bench.api.edit(&pod("launcher-1"), unplug);
            bench.settle();
            assert_eq!(ports(&bench), all, "the machine still has it");
            bench.api.edit(&vm(), networks(&["b"]));
        }
        bench.pass(5_000);
        let left = vec![PORT.to_owned(), b.clone()];
        assert_eq!((ports(&bench), records(&bench)), (left.clone(), left), "spec first: {spec_first}");
        let annotations = bench.api.get(&pod("launcher-1")).unwrap()["metadata"]["annotations"].to_string();
        assert!(!annotations.contains("a.web.ovn.kubernetes.io"), "{annotations}");
        assert!(bench.core().quiet());
    }
}

/// One step of a migration, and what is expected afterwards: requested chassis, activation
/// strategy, the node whose groups the port is in.
type Stage = (&'static str, fn(&mut Bench), (&'static str, &'static str, &'static str));

fn phase(bench: &mut Bench, phase: &str) {
    let status = json!({ "phase": phase, "migrationState": { "sourceNode": "n-1" } });
    bench.api.edit(&of(Kind::Migration, "move"), json!({ "status": status }));
}

fn arrive(bench: &mut Bench) {
    bench.api.edit(&vmi(), json!({ "status": { "nodeName": "n-2" } }));
}

fn end(bench: &mut Bench, name: &str, phase: &str) {
    bench.api.edit(&pod(name), json!({ "status": { "phase": phase } }));
}

const STAGES: [Stage; 4] = [
    (
        "asked for",
        |bench| {
            let spec = json!({ "spec": { "vmiName": "vm-1" }, "status": { "phase": "Pending" } });
            bench.api.create(&of(Kind::Migration, "move"), spec).unwrap();
        },
        ("", "", "n.1"),
    ),
    (
        "target not scheduled",
        |bench| {
            add_launcher(
                bench,
                "launcher-2",
                "",
                json!({ JOB: "move", NETWORKS: "a",
        "a.web.ovn.kubernetes.io/logical_switch": "ovn-default" }),
            )
        },
        ("", "", "n.1"),
    ),
    (
        "target scheduled",
        |bench| {
            bench.api.edit(&pod("launcher-2"), json!({ "spec": { "nodeName": "n-2" } }));
            phase(bench, "Scheduling");
        },
        ("n-1,n-2", "rarp", "n.1"),
    ),
    ("running", |bench| phase(bench, "Running"), ("n-1,n-2", "rarp", "n.1")),
];
const SUCCESS: [Stage; 4] = [
    ("arrived", arrive, ("n-1,n-2", "rarp", "n.2")),
    ("succeeded", |bench| phase(bench, "Succeeded"), ("n-2", "", "n.2")),
    ("source ended", |bench| end(bench, "launcher-1", "Succeeded"), ("n-2", "", "n.2")),
    ("source deleted", |bench| bench.api.remove(&pod("launcher-1")), ("", "", "n.2")),
];
const FAILURE: [Stage; 3] = [
    ("failed", |bench| phase(bench, "Failed"), ("n-1", "", "n.1")),
    ("target ended", |bench| end(bench, "launcher-2", "Failed"), ("n-1", "", "n.1")),
    ("target deleted", |bench| bench.api.remove(&pod("launcher-2")), ("", "", "n.1")),
];

#[rstest]
#[case::success(&SUCCESS, "launcher-2")]
#[case::failure(&FAILURE, "launcher-1")]
fn a_migration_keeps_the_address_and_moves_the_port(
    #[case] outcome: &[Stage],
    #[case] last: &str,
    #[values(false, true)] restarts: bool,
) {
    let mut bench = running(&["a"]);
    let first = address(&bench, "launcher-1");
    let attached = "vm-1.web.a.web.ovn";
    for (what, step, (chassis, strategy, node)) in STAGES.iter().chain(outcome) {
        step(&mut bench);
        if restarts {
            // In the middle of the stage.
            for _ in 0..bench.rng.below(20) {
                bench.step();
            }
            restart(&mut bench, Families::V4);
        }
        bench.pass(2_000);
        for port in [PORT, attached] {
            let expected = ((*chassis).to_owned(), (*strategy).to_owned());
            assert_eq!(placement(&bench, port), expected, "{what}, {port}");
            assert_eq!(
                groups(&bench, port),
                [format!("node.{node}"), format!("ovn.default.{node}")],
                "{what}"
            );
        }
        assert_eq!(
            (ports(&bench), records(&bench)),
            (vec![PORT.into(), attached.into()], vec![PORT.into(), attached.into()])
        );
        assert!(bench.core().quiet(), "{what}: {}", bench.core().status());
    }
    assert_eq!(address(&bench, last), first);
    let record = bench.api.get(&cluster(Kind::Ip, PORT)).unwrap()["spec"].clone();
    assert_eq!(record["v4IpAddress"], first.0.as_str());
    // Both pods were told the same.
    let told = |key: &str| bench.api.annotation(&pod(last), key).map(str::to_owned);
    assert!(told("a.web.ovn.kubernetes.io/ip_address").is_some());
    // The next start may be anywhere.
    bench.api.remove(&pod(last));
    bench.api.remove(&vmi());
    bench.pass(5_000);
    assert_eq!(placement(&bench, PORT), (String::new(), String::new()));
}

/// The port is bound on both nodes before the target's CNI may look for it: otherwise two
/// chassis would quarrel about it.
#[test]
fn the_target_is_told_only_when_its_port_waits_for_it() {
    for seed in 0..20 {
        let mut bench = running(&[]);
        bench.rng = crate::sim::Rng::new(seed);
        let spec = json!({ "spec": { "vmiName": "vm-1" }, "status": { "phase": "Pending" } });
        bench.api.create(&of(Kind::Migration, "move"), spec).unwrap();
        add_launcher(&mut bench, "launcher-2", "n-2", json!({ JOB: "move" }));
        let mut rounds = 0;
        while annotation(&bench, "launcher-2", ROUTED).is_empty() {
            if !bench.step() {
                bench.pass(20);
            }
            rounds += 1;
            assert!(rounds < 10_000, "told at last");
        }
        assert_eq!(placement(&bench, PORT), ("n-1,n-2".into(), "rarp".into()), "seed {seed}");
        assert_eq!(address(&bench, "launcher-1"), address(&bench, "launcher-2"));
    }
}

#[test]
fn k_without_the_flags_machines_are_pods() {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    let mut config = crate::compile::tests::fake::config(Families::V4);
    config.keep_vm_ip = false;
    let process = bench.start_with(crate::core::Core::new(config, super::compile));
    bench.elect(process);
    add_machine(&mut bench, &[]);
    add_instance(&mut bench, true, "n-1");
    add_launcher(&mut bench, "launcher-1", "n-1", json!({}));
    add_launcher(&mut bench, "launcher-2", "n-2", json!({ JOB: "move" }));
    bench.settle();
    assert_eq!(ports(&bench), ["launcher-1.web", "launcher-2.web"]);
    assert_ne!(address(&bench, "launcher-1").0, address(&bench, "launcher-2").0);
    assert_eq!(annotation(&bench, "launcher-1", "ovn.kubernetes.io/virtualmachine"), "");
    bench.api.remove(&pod("launcher-1"));
    bench.pass(5_000);
    assert_eq!(
        (ports(&bench), records(&bench)),
        (vec!["launcher-2.web".into()], vec!["launcher-2.web".into()])
    );
}

#[test]
fn without_live_migration_the_ports_are_not_pinned() {
    let mut bench = super::bench(Families::V4);
    super::add_node(&mut bench, Families::V4, "n-2", 12);
    let mut config = crate::compile::tests::fake::config(Families::V4);
    config.live_migration = false;
    let process = bench.start_with(crate::core::Core::new(config, super::compile));
    bench.elect(process);
    add_machine(&mut bench, &[]);
    add_instance(&mut bench, true, "n-1");
    add_launcher(&mut bench, "launcher-1", "n-1", json!({}));
    bench.settle();
    add_launcher(&mut bench, "launcher-2", "n-2", json!({ JOB: "move" }));
    bench.settle();
    assert_eq!(placement(&bench, PORT), (String::new(), String::new()));
    assert_eq!(address(&bench, "launcher-1"), address(&bench, "launcher-2"));
}
