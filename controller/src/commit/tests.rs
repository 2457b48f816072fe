//! Commit by itself: a desired state, an in-memory database, nothing else.

use std::collections::BTreeMap;

use ovsdb::testing::{Database, northbound};
use ovsdb::{Row, Value};

use super::*;
use crate::engine::Recompiled;
use crate::facts::{Column, RowFact};
use crate::sim::config;

struct Bench {
    commit: Commit,
    desired: Desired,
    facts: BTreeMap<UnitKey, Arc<Facts>>,
    db: Database,
    now_ms: u64,
    sent: Vec<Vec<ovsdb::Operation>>,
}

fn ids(pairs: &[(&str, &str)]) -> Value {
    Value::string_map(pairs.iter().copied())
}

fn switch(name: &str) -> RowFact {
    let columns = [
        ("name", Column::Whole(Value::string(name))),
        ("external_ids", Column::Whole(ids(&[("vendor", "kube-ovn")]))),
    ];
    RowFact { row: RowKey::new(Table::LogicalSwitch, name), parent: None, columns: columns.into() }
}

fn port(name: &str, parent: &str) -> RowFact {
    let (pod, namespace) = name.split_once('.').unwrap();
    let owner = format!("{namespace}/{pod}");
    let columns = [
        ("name", Column::Whole(Value::string(name))),
        ("addresses", Column::Whole(Value::strings(["02:00:00:00:00:01 10.16.0.5"]))),
        ("external_ids", Column::Whole(ids(&[("vendor", "kube-ovn"), ("ls", parent), ("pod", &owner)]))),
    ];
    RowFact {
        row: RowKey::new(Table::LogicalSwitchPort, name),
        parent: Some((RowKey::new(Table::LogicalSwitch, parent), "ports")),
        columns: columns.into(),
    }
}

fn router() -> RowFact {
    let columns = [("name", Column::Whole(Value::string("ovn-cluster")))];
    RowFact { row: RowKey::new(Table::LogicalRouter, "ovn-cluster"), parent: None, columns: columns.into() }
}

fn policy(priority: i64, matching: &str) -> RowFact {
    let key = format!("ovn-cluster|{priority}|{matching}");
    RowFact {
        row: RowKey::new(Table::Policy, key),
        parent: Some((RowKey::new(Table::LogicalRouter, "ovn-cluster"), "policies")),
        columns: [
            ("priority", Column::Whole(Value::integer(priority))),
            ("match", Column::Whole(Value::string(matching))),
            ("action", Column::Whole(Value::string("allow"))),
        ]
        .into(),
    }
}

fn pod(name: &str) -> UnitKey {
    UnitKey::Pod("web".into(), name.into())
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            commit: Commit::default(),
            desired: Desired::default(),
            facts: BTreeMap::new(),
            db: Database::new(northbound()),
            now_ms: 0,
            sent: Vec::new(),
        };
        bench.load();
        bench.commit.start(&bench.desired);
        bench.commit.elected("t".into());
        bench.run();
        bench.sent.clear();
        bench
    }

    fn load(&mut self) {
        let changes = self.db.replica().changes_since(&Database::new(northbound()).replica());
        let schema = self.db.schema().clone();
        self.commit.loaded(&config(), &self.desired, self.db.replica(), &changes, schema);
    }

    fn set(&mut self, unit: UnitKey, rows: Vec<RowFact>, members: Vec<MemberFact>) {
        let new = Arc::new(Facts { rows, members, ..Facts::default() });
        let old = self.facts.insert(unit.clone(), new.clone()).unwrap_or_default();
        let touched = self.desired.update(&Recompiled { unit: unit.clone(), old, new, statement: None });
        self.commit.touch(&self.desired, &unit, &touched);
    }

    fn outside(&mut self, operations: &[ovsdb::Operation]) {
        let changes = self.db.must(operations);
        self.commit.changed(&config(), &self.desired, self.db.replica(), &changes);
    }

    /// One wave: what is sent now, carried out and answered.
    fn wave(&mut self) -> usize {
        let outputs = self.commit.outputs(self.now_ms, &self.desired);
        for output in &outputs {
            let Output::Transact { tag, operations } = output else { continue };
            self.sent.push(operations.clone());
            let (result, changes) = self.db.execute(operations);
            self.commit.changed(&config(), &self.desired, self.db.replica(), &changes);
            self.commit.reply(self.now_ms, *tag, result);
        }
        outputs.len()
    }

    fn run(&mut self) {
        for _ in 0..1000 {
            if self.wave() == 0 {
                return;
            }
        }
        panic!("never quiet: {:?}", self.commit.backlog());
    }

    fn find(&self, table: Table, name: &str) -> Option<Arc<Row>> {
        let replica = self.db.replica();
        replica.table(table.name())?.find_one("name", &Value::string(name)).cloned()
    }
}

#[test]
fn a_row_that_changes_its_parent_moves_and_keeps_its_identity() {
    let mut bench = Bench::new();
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![switch("ovn-default")], vec![]);
    bench.set(UnitKey::Subnet("join".into()), vec![switch("join")], vec![]);
    bench.set(pod("a"), vec![port("a.web", "ovn-default")], vec![]);
    bench.run();
    let before = bench.find(Table::LogicalSwitchPort, "a.web").unwrap().uuid;
    bench.sent.clear();
    bench.set(pod("a"), vec![port("a.web", "join")], vec![]);
    bench.run();
    assert_eq!(bench.sent.len(), 1);
    let after = bench.find(Table::LogicalSwitchPort, "a.web").unwrap();
    assert_eq!(after.uuid, before);
    let holds = |name: &str| {
        bench.find(Table::LogicalSwitch, name).unwrap().set("ports").unwrap().contains(&before.into())
    };
    assert!(holds("join") && !holds("ovn-default"));
}

#[test]
fn every_transaction_is_fenced_and_bounded() {
    let mut bench = Bench::new();
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![switch("ovn-default")], vec![]);
    for i in 0..5000 {
        bench.set(pod(&format!("p-{i}")), vec![port(&format!("p-{i}.web"), "ovn-default")], vec![]);
    }
    let first = bench.wave();
    assert!(first > 1);
    let operations: usize = bench.sent.iter().map(Vec::len).sum();
    assert!(operations <= 2200, "{operations}");
    bench.run();
    for operations in &bench.sent {
        assert!(matches!(&operations[0], ovsdb::Operation::Wait { timeout: Some(0), .. }));
        assert!(operations.len() <= 1 + 100 + 2, "{}", operations.len());
    }
    assert_eq!(bench.find(Table::LogicalSwitch, "ovn-default").unwrap().set("ports").unwrap().len(), 5000);
}

#[test]
fn bulk_deletion_is_bounded_as_well() {
    let mut bench = Bench::new();
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![switch("ovn-default")], vec![]);
    for i in 0..3000 {
        bench.set(pod(&format!("p-{i}")), vec![port(&format!("p-{i}.web"), "ovn-default")], vec![]);
    }
    bench.run();
    for i in 0..3000 {
        bench.set(pod(&format!("p-{i}")), vec![], vec![]);
    }
    bench.sent.clear();
    bench.wave();
    assert!(bench.sent.len() <= 7, "{} transactions", bench.sent.len());
    bench.run();
    // A hundred ports go with one mutation.
    assert_eq!(bench.sent.len(), 30);
    assert!(bench.sent.iter().all(|operations| operations.len() == 2));
    assert_eq!(bench.db.replica().table("Logical_Switch_Port").unwrap().len(), 0);
}

#[test]
fn ports_go_before_bulk_repair() {
    let mut bench = Bench::new();
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![switch("ovn-default")], vec![]);
    bench.run();
    // Bulk of many units, far more than a wave.
    for i in 0..400 {
        let unit = UnitKey::Vpc(format!("v-{i:03}").into());
        let rows = (0..40).map(|n| policy(31_000, &format!("ip4.dst == 10.{n}.0.0/16 && {i}")));
        bench.set(unit, rows.collect(), vec![]);
    }
    bench.set(UnitKey::Vpc("ovn-cluster".into()), vec![router()], vec![]);
    bench.wave();
    bench.wave();
    bench.set(pod("late"), vec![port("late.web", "ovn-default")], vec![]);
    bench.sent.clear();
    bench.wave();
    let first = format!("{:?}", bench.sent[0]);
    assert!(first.contains("late.web") && !first.contains("Logical_Router_Policy"), "{first}");
    let operations: usize = bench.sent.iter().map(Vec::len).sum();
    assert!(operations < 900, "bulk took {operations} operations of a wave");
    assert!(bench.find(Table::LogicalSwitchPort, "late.web").is_some());
    bench.run();
    assert_eq!(bench.db.replica().table("Logical_Router_Policy").unwrap().len(), 400 * 40);
}

#[test]
fn a_culprit_is_found_told_and_tried_again_with_patience() {
    let mut bench = Bench::new();
    bench.set(UnitKey::Vpc("ovn-cluster".into()), vec![router()], vec![]);
    bench.run();
    for i in 0..40 {
        // Priorities above 32767 are refused by the schema.
        let priority = if i == 17 { 99_999 } else { 30_000 };
        let unit = UnitKey::Subnet(format!("s-{i:02}").into());
        bench.set(unit, vec![policy(priority, &format!("ip4.dst == 10.0.{i}.0/24"))], vec![]);
    }
    bench.run();
    let policies = |bench: &Bench| bench.db.replica().table("Logical_Router_Policy").unwrap().len();
    assert_eq!(policies(&bench), 39);
    let culprit = UnitKey::Subnet("s-17".into());
    assert!(bench.commit.error(&culprit).unwrap().contains("constraint"));
    assert_eq!(bench.commit.back_offs.len(), 1);
    assert!(!bench.commit.committed(&culprit, &bench.facts[&culprit]));
    let failures = bench.commit.counters().failures;
    let mut waits = Vec::new();
    for _ in 0..4 {
        let at = bench.commit.wake_at().unwrap();
        waits.push(at - bench.now_ms);
        bench.now_ms = at;
        bench.run();
    }
    assert_eq!(bench.commit.counters().failures, failures + 4);
    assert!(waits.windows(2).all(|w| w[1] == 2 * w[0]), "{waits:?}");
    // New facts are tried at once, and end the error.
    bench.set(culprit.clone(), vec![policy(30_000, "ip4.dst == 10.0.17.0/24")], vec![]);
    bench.run();
    assert_eq!((policies(&bench), bench.commit.error(&culprit)), (40, None));
    assert_eq!(bench.commit.wake_at(), None);
}

#[test]
fn a_token_that_the_database_refuses_is_tried_again_with_patience() {
    let mut bench = Bench::new();
    bench.commit.elected("u".into());
    let refusal = || {
        let kind = ovsdb::TransactErrorKind::Io;
        Err(ovsdb::TransactError { kind, op_index: None, details: "disk full".to_owned() })
    };
    let mut waits = Vec::new();
    for _ in 0..5 {
        let outputs = bench.commit.outputs(bench.now_ms, &bench.desired);
        let [Output::Transact { tag, .. }] = &*outputs else { panic!("{outputs:?}") };
        bench.commit.reply(bench.now_ms, *tag, refusal());
        assert!(bench.commit.outputs(bench.now_ms, &bench.desired).is_empty(), "not at once");
        let at = bench.commit.wake_at().unwrap();
        waits.push(at - bench.now_ms);
        bench.now_ms = at;
    }
    assert!(waits.windows(2).all(|wait| wait[1] == 2 * wait[0]), "{waits:?}");
    bench.run();
    assert!(bench.commit.writing());
    assert_eq!(bench.commit.wake_at(), None);
}

/// Which of two rows of one key is meant is one question: else what refers to them is never as it is wanted.
#[test]
fn of_doubled_rows_the_same_is_judged_and_planned() {
    let mut bench = Bench::new();
    let (wrong, right, a) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
    let marks = [("vendor", "kube-ovn"), ("ls", "ovn-default"), ("protocol", "IPv4")];
    let options = |uuid: Uuid, server: &str| {
        ovsdb::Operation::insert("DHCP_Options")
            .uuid(uuid)
            .column("cidr", "10.16.0.0/16")
            .column("options", ids(&[("server_id", server)]))
            .column("external_ids", ids(&marks))
            .build()
    };
    let dhcp = RowFact {
        row: RowKey::new(Table::DhcpOptions, crate::compile::rows::dhcp_key("ovn-default", "IPv4", "")),
        parent: None,
        columns: [
            ("cidr", Column::Whole(Value::string("10.16.0.0/16"))),
            ("options", Column::Whole(ids(&[("server_id", "169.254.0.254")]))),
            ("external_ids", Column::Whole(ids(&marks))),
        ]
        .into(),
    };
    let mut referring = port("a.web", "ovn-default");
    referring.columns.insert("dhcpv4_options", Column::Refs([dhcp.row.clone()].into()));
    bench.outside(&[
        options(wrong, "10.16.0.9"),
        options(right, "169.254.0.254"),
        ovsdb::Operation::insert("Logical_Switch_Port")
            .uuid(a)
            .column("name", "a.web")
            .column("addresses", "02:00:00:00:00:01 10.16.0.5")
            .column("external_ids", ids(&[("vendor", "kube-ovn"), ("ls", "ovn-default"), ("pod", "web/a")]))
            .column("dhcpv4_options", Value::uuids([right]))
            .build(),
        ovsdb::Operation::insert("Logical_Switch")
            .uuid(Uuid::from_u128(4))
            .column("name", "ovn-default")
            .column("external_ids", ids(&[("vendor", "kube-ovn")]))
            .column("ports", Value::uuids([a]))
            .build(),
    ]);
    bench.set(pod("a"), vec![referring], vec![]);
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![switch("ovn-default"), dhcp], vec![]);
    bench.run();
    assert_eq!(bench.commit.plan(&bench.desired), Vec::<String>::new());
    assert_eq!(
        bench.find(Table::LogicalSwitchPort, "a.web").unwrap().get("dhcpv4_options"),
        Some(&Value::uuids([right]))
    );
    assert_eq!(bench.db.replica().table("DHCP_Options").unwrap().len(), 1);
}

#[test]
fn of_doubled_rows_one_stays_and_others_keys_are_left_alone() {
    let mut bench = Bench::new();
    let (router_uuid, a, b) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
    let row = |uuid: Uuid, options: &[(&str, &str)]| {
        ovsdb::Operation::insert("Logical_Router_Policy")
            .uuid(uuid)
            .column("priority", Value::integer(31_000))
            .column("match", "ip4.dst == 10.16.0.0/16")
            .column("action", "allow")
            .column("options", ids(options))
            .column("external_ids", ids(&[("vendor", "kube-ovn"), ("subnet", "ovn-default")]))
            .build()
    };
    bench.outside(&[
        row(a, &[("odd", "1")]),
        row(b, &[]),
        ovsdb::Operation::insert("Logical_Router")
            .uuid(router_uuid)
            .column("name", "ovn-cluster")
            .column("policies", Value::uuids([a, b]))
            .build(),
    ]);
    let mut wanted = policy(31_000, "ip4.dst == 10.16.0.0/16");
    let keys = [("vendor", "kube-ovn"), ("subnet", "ovn-default")];
    let keys = keys.map(|(k, v)| (Arc::from(k), Arc::from(v))).into();
    wanted.columns.insert("external_ids", Column::Keys(keys));
    wanted.columns.insert("options", Column::Whole(Value::empty_map()));
    bench.set(UnitKey::Vpc("ovn-cluster".into()), vec![router()], vec![]);
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![wanted], vec![]);
    bench.run();
    let policies = |bench: &Bench| -> Vec<Arc<Row>> {
        let replica = bench.db.replica();
        replica.table("Logical_Router_Policy").unwrap().rows().cloned().collect()
    };
    assert_eq!(policies(&bench).iter().map(|r| r.uuid).collect::<Vec<_>>(), [b]);
    let hand = ids(&[("subnet", "wrong"), ("x", "y")]);
    bench.outside(&[ovsdb::Operation::update("Logical_Router_Policy")
        .by_uuid(b)
        .column("external_ids", hand)
        .build()]);
    bench.run();
    let repaired = ids(&[("vendor", "kube-ovn"), ("subnet", "ovn-default"), ("x", "y")]);
    assert_eq!(policies(&bench)[0].get("external_ids"), Some(&repaired));
}

#[test]
fn a_failed_transaction_takes_no_innocent_along() {
    let mut bench = Bench::new();
    // The switch can't be made; its ports wait without being blamed.
    let mut broken = switch("ovn-default");
    broken.columns.insert("other_config", Column::Whole(Value::string_map([("a", "b")])));
    let mut bad = policy(99_999, "x");
    bad.parent = Some((RowKey::new(Table::LogicalRouter, "ovn-cluster"), "policies"));
    bench.set(UnitKey::Vpc("ovn-cluster".into()), vec![router()], vec![]);
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![broken.clone(), bad], vec![]);
    for i in 0..10 {
        bench.set(pod(&format!("p-{i}")), vec![port(&format!("p-{i}.web"), "ovn-default")], vec![]);
    }
    bench.run();
    assert!(bench.commit.error(&UnitKey::Subnet("ovn-default".into())).is_some());
    for i in 0..10 {
        assert_eq!(bench.commit.error(&pod(&format!("p-{i}"))), None);
    }
    bench.set(UnitKey::Subnet("ovn-default".into()), vec![broken], vec![]);
    bench.run();
    assert_eq!(bench.find(Table::LogicalSwitch, "ovn-default").unwrap().set("ports").unwrap().len(), 10);
    assert_eq!(bench.commit.backlog(), (0, 0, 0, 0));
}

#[test]
fn units_that_need_each_others_rows_go_together() {
    let mut bench = Bench::new();
    let (a, b) = (UnitKey::Subnet("a".into()), UnitKey::Subnet("b".into()));
    // Each makes a switch, and a port on the other's; one lacks a third party's row.
    bench.set(a.clone(), vec![switch("join"), port("p-1.web", "ovn-default")], vec![]);
    let mut needy = vec![switch("ovn-default"), port("p-2.web", "join")];
    needy.push(policy(100, "ip4"));
    bench.set(b.clone(), needy, vec![]);
    bench.run();
    assert!(bench.find(Table::LogicalSwitch, "join").is_none(), "nothing half-made while a row is lacking");
    let transactions = bench.sent.len();
    bench.set(UnitKey::Vpc("ovn-cluster".into()), vec![router()], vec![]);
    bench.run();
    for (unit, name) in [(&a, "join"), (&b, "ovn-default")] {
        assert!(bench.commit.committed(unit, &bench.facts[unit]));
        assert_eq!(bench.find(Table::LogicalSwitch, name).unwrap().set("ports").unwrap().len(), 1);
    }
    assert_eq!(bench.sent.len(), transactions + 2, "the router, then the two together");
    assert_eq!(bench.commit.backlog(), (0, 0, 0, 0));
}

/// What a group waits for may be needed no more before it comes: the group must not wait on.
#[test]
fn who_needs_a_lacking_row_no_more_goes_on_without_it() {
    let mut bench = Bench::new();
    bench.set(UnitKey::Subnet("s".into()), vec![switch("s")], vec![]);
    bench.run();
    let row = port("a.web", "s");
    let member =
        MemberFact { row: RowKey::new(Table::PortGroup, "s.n.1"), column: "ports", element: row.row.clone() };
    bench.set(pod("a"), vec![row.clone()], vec![member]);
    bench.run();
    assert!(bench.find(Table::LogicalSwitchPort, "a.web").is_none(), "its group is not there");
    bench.set(pod("a"), vec![row], vec![]);
    bench.run();
    assert!(bench.find(Table::LogicalSwitchPort, "a.web").is_some());
    assert!(bench.commit.pending.is_empty());
}
