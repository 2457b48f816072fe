//! The union by itself.

use super::*;
use crate::facts::Table;
use ovsdb::Value;

fn key(name: &str) -> RowKey {
    RowKey::new(Table::PortGroup, name)
}

fn row(name: &str, column: Column) -> RowFact {
    RowFact { row: key(name), parent: None, columns: [("external_ids", column)].into() }
}

fn keys(pairs: &[(&str, &str)]) -> Column {
    Column::Keys(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect())
}

fn member(group: &str, element: &str) -> MemberFact {
    let element = RowKey::new(Table::LogicalSwitchPort, element);
    MemberFact { row: key(group), column: "ports", element }
}

#[derive(Default)]
struct Bench {
    desired: Desired,
    facts: BTreeMap<UnitKey, Arc<Facts>>,
}

impl Bench {
    fn set(&mut self, unit: &str, rows: Vec<RowFact>, members: Vec<MemberFact>) -> Touched {
        let unit = UnitKey::Node(unit.into());
        let new = Arc::new(Facts { rows, members, ..Facts::default() });
        let old = self.facts.insert(unit.clone(), new.clone()).unwrap_or_default();
        self.desired.update(&Recompiled { unit, old, new, statement: None })
    }
}

#[test]
fn maps_unite_and_the_smallest_unit_wins() {
    let mut bench = Bench::default();
    bench.set("b", vec![row("g", keys(&[("x", "b"), ("y", "b")]))], vec![]);
    assert!(bench.desired.conflicts().is_empty());
    let touched = bench.set("a", vec![row("g", keys(&[("x", "a"), ("z", "a")]))], vec![]);
    assert!(touched.rows.contains(&key("g")));
    let merged = bench.desired.row(&key("g")).unwrap().into_owned();
    assert_eq!(merged.columns["external_ids"], keys(&[("x", "a"), ("y", "b"), ("z", "a")]));
    let lost = &bench.desired.conflicts()[&UnitKey::Node("b".into())];
    assert_eq!(lost.len(), 1);
    bench.set("a", vec![], vec![]);
    assert!(bench.desired.conflicts().is_empty());
    bench.set("b", vec![], vec![]);
    assert!(bench.desired.row(&key("g")).is_none());
    assert_eq!(bench.desired.size(), (0, 0));
}

#[test]
fn unchanged_rows_are_not_touched() {
    let mut bench = Bench::default();
    let one = || row("g", Column::Whole(Value::string_map([("a", "1")])));
    bench.set("a", vec![one()], vec![]);
    let touched = bench.set("a", vec![row("h", keys(&[])), one()], vec![]);
    assert_eq!(touched.rows, [key("h")].into());
}

#[test]
fn memberships_are_counted_by_unit() {
    let mut bench = Bench::default();
    assert_eq!(bench.set("a", vec![], vec![member("g", "p")]).members.len(), 1);
    assert_eq!(bench.set("b", vec![], vec![member("g", "p")]).members.len(), 0);
    assert_eq!(bench.set("a", vec![], vec![]).members.len(), 0);
    assert_eq!(bench.desired.member_owners(&member("g", "p")), [UnitKey::Node("b".into())]);
    assert_eq!(bench.set("b", vec![], vec![]).members.len(), 1);
    assert_eq!(bench.desired.groups_of(&member("g", "p").element).count(), 0);
}
