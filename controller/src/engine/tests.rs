//! The engine with compile functions that say what they were asked.

use std::sync::Arc;

use super::*;
use crate::facts::{Kind, ObjectRef, RowFact, RowKey, Table};
use crate::objects::{Meta, Namespace, Node, Object};
use crate::sim::config;
use crate::view::View;

/// A node states one row per namespace that its name lists (`a+b`) and exists.
fn compile(view: &dyn View, unit: &UnitKey) -> Facts {
    let mut facts = Facts::default();
    if let UnitKey::Node(name) = unit
        && view.node(name).is_some()
    {
        for namespace in name.split('+').filter(|namespace| view.namespace(namespace).is_some()) {
            let row = RowKey::new(Table::PortGroup, format!("{name}/{namespace}"));
            facts.rows.push(RowFact { row, parent: None, columns: crate::facts::Columns::default() });
        }
    }
    facts
}

struct Bench {
    world: World,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        Self { world: World::new(Arc::new(config())), engine: Engine::new(compile) }
    }

    fn node(&mut self, name: &str, version: &str) -> Vec<UnitKey> {
        let meta = Meta { name: name.into(), resource_version: version.into(), ..Meta::default() };
        self.world.apply(0, Object::Node(Arc::new(Node { meta, ..Node::default() })));
        self.run()
    }

    fn namespace(&mut self, name: &str) -> Vec<UnitKey> {
        let meta = Meta { name: name.into(), ..Meta::default() };
        self.world.apply(0, Object::Namespace(Arc::new(Namespace { meta })));
        self.run()
    }

    fn delete(&mut self, kind: Kind, name: &str) -> Vec<UnitKey> {
        self.world.delete(&ObjectRef::cluster(kind, name));
        self.run()
    }

    fn run(&mut self) -> Vec<UnitKey> {
        for key in self.world.take_changed() {
            self.engine.changed(&self.world, &key);
        }
        let mut units = Vec::new();
        while let Some(changed) = self.engine.run(&self.world, &SchemaFacts::default()) {
            units.extend(changed.into_iter().map(|change| change.unit));
        }
        units
    }
}

fn unit(name: &str) -> UnitKey {
    UnitKey::Node(name.into())
}

#[test]
fn what_was_absent_is_noticed_when_it_comes() {
    let mut bench = Bench::new();
    bench.node("a+b", "1");
    bench.node("b+c", "1");
    bench.node("c", "1");
    assert_eq!(bench.namespace("b"), [unit("a+b"), unit("b+c")]);
    assert_eq!(bench.namespace("a"), [unit("a+b")]);
    assert_eq!(bench.engine.facts(&unit("a+b")).unwrap().rows.len(), 2);
    assert_eq!(bench.delete(Kind::Namespace, "b"), [unit("a+b"), unit("b+c")]);
}

#[test]
fn a_heartbeat_compiles_nothing() {
    let mut bench = Bench::new();
    bench.namespace("a");
    bench.node("a", "1");
    let compiled = bench.engine.compiled();
    assert!(bench.node("a", "2").is_empty());
    assert_eq!(bench.engine.compiled(), compiled);
}

#[test]
fn units_that_are_gone_leave_nothing_behind() {
    let mut bench = Bench::new();
    bench.namespace("a");
    let empty = (bench.engine.size(), bench.engine.graph_bytes());
    for _ in 0..3 {
        bench.node("a+b+c", "1");
        assert_eq!(bench.engine.reads(&unit("a+b+c")).len(), 4);
        assert_eq!(bench.delete(Kind::Node, "a+b+c"), [unit("a+b+c")]);
        assert_eq!(bench.engine.size(), empty.0);
    }
    assert!(bench.engine.facts(&unit("a+b+c")).is_none());
}
