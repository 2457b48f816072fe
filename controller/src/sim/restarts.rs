//! Restarts, repairs, silence.

use ovsdb::{Operation, Replica, Value};

use super::Bench;
use super::bench::pod;
use crate::facts::{Kind, ObjectRef};

fn with_pods(seed: u64, count: usize) -> Bench {
    let mut bench = Bench::cluster(seed);
    for i in 0..count {
        bench.add_pod(&format!("p-{i}"), if i % 2 == 0 { "n-1" } else { "n-2" });
    }
    bench.settle();
    bench
}

fn uuid(replica: &Replica, table: &str, name: &str) -> ovsdb::Uuid {
    replica.table(table).unwrap().find_one("name", &Value::string(name)).unwrap().uuid
}

/// A process that dies: nothing it asked for is done any more.
fn kill(bench: &mut Bench) {
    bench.processes.last_mut().unwrap().paused = true;
}

#[test]
fn pods_come_up_with_one_create_and_one_patch() {
    let mut bench = Bench::cluster(1);
    bench.api.writes.clear();
    for i in 0..20 {
        bench.add_pod(&format!("p-{i}"), "n-1");
    }
    bench.settle();
    assert!(bench.core().quiet(), "{}", bench.core().status());
    for i in 0..20 {
        let name = format!("p-{i}");
        assert_eq!(bench.api.annotation(&pod("web", &name), "ovn.kubernetes.io/routed"), Some("true"));
        let about = |verb: &str, object: &str| {
            bench
                .api
                .writes
                .iter()
                .filter(|w| {
                    w.starts_with(&format!("{verb} {object} ")[..]) || **w == format!("{verb} {object}")
                })
                .count()
        };
        assert_eq!(about("create", &format!("IP {name}.web")), 1);
        assert_eq!(about("patch", &format!("IP {name}.web")), 0, "{:#?}", bench.api.writes);
        assert_eq!(about("patch", &format!("Pod web/{name}")), 1, "{:#?}", bench.api.writes);
        let events = bench.processes[0].events.iter().filter(|event| event.object == pod("web", &name));
        let said: Vec<&str> = events.map(|event| &*event.reason).collect();
        assert_eq!(said, ["PodNetworkAllocated"], "said once, when it is true");
    }
}

#[test]
fn a_restart_with_a_hundred_pods_writes_nothing_but_the_token() {
    let mut bench = with_pods(2, 100);
    let before = bench.db.replica();
    kill(&mut bench);
    bench.api.writes.clear();
    let second = bench.start();
    bench.elect(second);
    bench.pass(60_000);
    assert_eq!(bench.processes[second].transactions.len(), 1);
    assert_eq!(bench.api.writes, Vec::<String>::new());
    assert!(bench.processes[second].events.is_empty(), "{:?}", bench.processes[second].events);
    let changes = bench.db.replica().changes_since(&before);
    assert_eq!(changes.len(), 1, "{changes:?}");
}

#[test]
fn a_restart_at_any_point_ends_the_same() {
    for seed in 0..30 {
        let mut bench = Bench::new(seed);
        bench.add_namespace("web");
        bench.add_node("n-1", "192.0.2.11");
        let first = bench.start();
        bench.elect(first);
        for i in 0..3 {
            bench.add_pod(&format!("p-{i}"), "n-1");
        }
        // Every thirty steps of the way, and always once in the middle of things.
        for _ in 0..(seed * 7 % 120) {
            bench.step();
        }
        kill(&mut bench);
        let second = bench.start();
        bench.elect(second);
        bench.settle();
        assert!(bench.core().quiet(), "seed {seed}: {}", bench.core().status());
        for i in 0..3 {
            let object = pod("web", &format!("p-{i}"));
            assert_eq!(
                bench.api.annotation(&object, "ovn.kubernetes.io/routed"),
                Some("true"),
                "seed {seed}"
            );
        }
        let ports = bench.db.replica().table("Logical_Switch_Port").unwrap().len();
        assert_eq!(ports, 2 + 1 + 3, "seed {seed}");
        kill(&mut bench);
        bench.api.writes.clear();
        let third = bench.start();
        bench.elect(third);
        bench.pass(60_000);
        assert_eq!(bench.processes[third].transactions.len(), 1, "seed {seed}");
        assert_eq!(bench.api.writes, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn damage_while_down_is_repaired_by_exactly_two_changes() {
    let mut bench = with_pods(3, 10);
    kill(&mut bench);
    let replica = bench.db.replica();
    let port = uuid(&replica, "Logical_Switch_Port", "p-1.web");
    let victim = uuid(&replica, "Logical_Switch_Port", "p-2.web");
    let switch = uuid(&replica, "Logical_Switch", "ovn-default");
    let foreign = ovsdb::Uuid::from_u128(0xf0);
    let whole = bench.db.replica();
    bench.transact(&[
        Operation::update("Logical_Switch_Port")
            .by_uuid(port)
            .column("addresses", Value::strings(["02:00:00:00:00:99 10.16.9.9"]))
            .build(),
        Operation::mutate("Logical_Switch")
            .by_uuid(switch)
            .delete_set("ports", Value::uuids([victim]))
            .build(),
        Operation::insert("Logical_Switch_Port").uuid(foreign).column("name", "by-hand").build(),
        Operation::mutate("Logical_Switch")
            .by_uuid(switch)
            .insert_set("ports", Value::uuids([foreign]))
            .build(),
    ]);
    bench.api.writes.clear();
    let second = bench.start();
    bench.elect(second);
    bench.settle();
    assert_eq!(bench.writes_of(second), 1, "{:#?}", bench.processes[second].transactions);
    let repaired = bench.db.replica();
    let table = repaired.table("Logical_Switch_Port").unwrap();
    assert!(table.get(&foreign).is_some());
    let before = whole.row("Logical_Switch_Port", &port).unwrap();
    assert_eq!(before, table.get(&port).unwrap());
    let again = table.find_one("name", &Value::string("p-2.web")).unwrap();
    let old = whole.row("Logical_Switch_Port", &victim).unwrap();
    assert_ne!(again.uuid, victim, "a row never comes back under its old UUID");
    assert_eq!(again.get("addresses"), old.get("addresses"));
    // The port groups have it again.
    for (group, table) in [("ovn.default.n.1", "Port_Group"), ("node.n.1", "Port_Group")] {
        let group = repaired.table(table).unwrap().find_one("name", &Value::string(group)).unwrap();
        assert!(group.set("ports").unwrap().contains(&again.uuid.into()));
    }
    assert_eq!(bench.api.writes, Vec::<String>::new());
}

#[test]
fn any_owned_row_deleted_by_hand_is_back_at_once() {
    let mut bench = with_pods(4, 4);
    let whole = bench.db.replica();
    let tables: Vec<_> = whole.tables().map(|t| t.name().clone()).collect();
    for table in tables {
        for row in whole.table(&table).unwrap().rows() {
            if &*table == "NB_Global" {
                continue;
            }
            let count = bench.db.replica().table(&table).unwrap().len();
            let now = bench.now_ms;
            let mut operations = vec![Operation::delete(table.clone()).by_uuid(row.uuid).build()];
            for (parent, column, child) in crate::commit::PARENT_COLUMNS {
                if child.name() == &*table {
                    operations = vec![
                        Operation::mutate(parent.name()).delete_set(column, Value::uuids([row.uuid])).build(),
                    ];
                    if bench
                        .db
                        .replica()
                        .table(parent.name())
                        .unwrap()
                        .rows()
                        .any(|r| r.set(column).unwrap().contains(&row.uuid.into()))
                    {
                        break;
                    }
                }
            }
            bench.transact(&operations);
            bench.settle();
            assert!(bench.now_ms - now < 60_000);
            assert_eq!(bench.db.replica().table(&table).unwrap().len(), count, "{row:?}");
        }
    }
    assert!(bench.core().quiet());
}

#[test]
fn heartbeats_and_status_compile_nothing() {
    let mut bench = with_pods(5, 5);
    let compiled = bench.core().counters().compiled;
    bench.api.writes.clear();
    let transactions = bench.processes[0].transactions.len();
    let node = ObjectRef::cluster(Kind::Node, "n-1");
    for beat in 0..10 {
        let conditions = serde_json::json!([{ "type": "Ready", "status": "True", "beat": beat }]);
        bench.api.edit(&node, serde_json::json!({ "status": { "conditions": conditions } }));
        let status = serde_json::json!({ "status": { "phase": "Running", "beat": beat },
            "metadata": { "labels": { "beat": beat.to_string() } } });
        bench.api.edit(&pod("web", "p-1"), status);
    }
    bench.settle();
    assert_eq!(bench.core().counters().compiled, compiled);
    assert_eq!(bench.api.writes, Vec::<String>::new());
    assert_eq!(bench.processes[0].transactions.len(), transactions);
}
