//! Looking at the core: numbers, explanations, the plan, and whether everything
//! that is kept step by step equals what follows from nothing.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Core, Counters};
use crate::facts::{Keep, Kind, ObjectRef, RowKey, Table};
use crate::publish::Source;
use crate::verify::Differences;
use crate::view::UnitKey;

impl Core {
    /// Every needed watch has listed and the database is loaded and connected.
    pub fn ready(&self) -> bool {
        self.started && self.commit.connected()
    }

    /// Our epoch token is in the database: we write.
    pub fn leading(&self) -> bool {
        self.commit.writing()
    }

    /// Nothing is left to do: no difference to the database, nothing in flight, and
    /// if we lead, no object left to look at; no count of addresses that is due later.
    pub fn quiet(&self) -> bool {
        let (groups, _, flights, _) = self.commit.backlog();
        let (dirty, writes, _) = self.publish.backlog();
        let idle = groups == 0 && flights == 0 && (dirty == 0 || !self.leading) && writes == 0;
        self.started && idle && self.world.usage_settled()
    }

    /// Takes the core apart: what each stage holds, by name, so that a bench can drop one
    /// after the other and count what that sets free.
    pub fn take_apart(self) -> Vec<(&'static str, Box<dyn Any>)> {
        let Self { world, engine, desired, commit, publish, .. } = self;
        let mut parts: Vec<(&'static str, Box<dyn Any>)> = vec![
            ("publish", Box::new(publish)),
            ("commit", Box::new(commit)),
            ("desired", Box::new(desired)),
            ("engine", Box::new(engine)),
        ];
        parts.extend(world.take_apart());
        parts
    }

    /// The database's content as we know it, once loaded.
    pub fn replica(&self) -> Option<&ovsdb::Replica> {
        self.commit.replica()
    }

    /// Numbers for metrics.
    pub fn counters(&self) -> Counters {
        let (compiled, compiled_unchanged) = self.engine.compiled();
        let (units, reads, edges) = self.engine.size();
        let (rows, members) = self.desired.size();
        let (leases, refused, _) = self.world.lease_counts();
        let (commit_groups, _, commit_in_flight, commit_failing) = self.commit.backlog();
        let (publish_backlog, publish_in_flight, drift) = self.publish.backlog();
        Counters {
            compiled,
            compiled_unchanged,
            units,
            reads,
            edges,
            graph_bytes: self.engine.graph_bytes(),
            rows,
            members,
            conflicts: self.desired.conflicts().values().map(BTreeSet::len).sum(),
            leases,
            refused,
            commit_groups,
            commit_in_flight,
            commit_failing,
            unclaimed_rows: self.commit.unclaimed().values().sum(),
            commit: self.commit.counters().clone(),
            publish_backlog,
            publish_in_flight,
            drift,
            publish: self.publish.counters().clone(),
        }
    }

    /// Per kind: how many objects, and an order-independent checksum of their
    /// identities and resource versions.
    pub fn checksums(&self) -> BTreeMap<Kind, (usize, u64)> {
        self.world.checksums().clone()
    }

    /// What would change in the database, without writing it.
    pub fn plan(&self) -> Vec<String> {
        self.commit.plan(&self.desired)
    }

    /// The state of the pipeline for diagnostics.
    pub fn status(&self) -> Value {
        let unclaimed: BTreeMap<&str, usize> =
            self.commit.unclaimed().iter().map(|(table, count)| (table.name(), *count)).collect();
        let failing: BTreeMap<String, &String> =
            self.publish.failing().iter().map(|(unit, error)| (format!("{unit:?}"), error)).collect();
        let refused: BTreeMap<String, &String> =
            self.publish.refused().map(|(object, error)| (object.to_string(), error)).collect();
        json!({
            "ready": self.ready(),
            "leading": self.leading(),
            "quiet": self.quiet(),
            "missing": self.world.missing().map(|kind| format!("{kind:?}")).collect::<Vec<_>>(),
            "database": self.commit.connected(),
            "unclaimed": unclaimed,
            "failing": failing,
            "refused": refused,
            "counters": self.counters(),
        })
    }

    /// The facts about an object, the unit that made each, and how far it got.
    pub fn explain(&self, object: &ObjectRef) -> Value {
        let mut units: BTreeSet<UnitKey> = self.publish.units_of(object).cloned().collect();
        units.extend(UnitKey::of(object));
        let explained = units.iter().filter_map(|unit| {
            self.engine.facts(unit)?;
            let facts = self.engine.full(&self.world, &self.schema, unit);
            let rows = facts.rows.iter().map(|fact| {
                json!({
                    "fact": fact,
                    "state": self.commit.state_of(&fact.row),
                    "written_by": self.desired.owner(&fact.row),
                })
            });
            Some(json!({
                "unit": unit,
                "rows": rows.collect::<Vec<_>>(),
                "memberships": facts.members,
                "kubernetes": facts.kube,
                "events": facts.events,
                "keeps": facts.keeps,
                "committed": self.commit.committed(unit, &facts),
                "error": self.commit.error(unit),
                "reads": self.engine.reads(unit).iter().map(|key| format!("{key:?}")).collect::<Vec<_>>(),
            }))
        });
        json!({
            "object": object.to_string(),
            "known": self.world.find(object).is_some(),
            "units": explained.collect::<Vec<_>>(),
            "leases": self.leases_of(object),
        })
    }

    fn leases_of(&self, object: &ObjectRef) -> Value {
        let port = match object.kind {
            Kind::Pod => {
                let pod = self.world.pod(&object.namespace, &object.name);
                let machine = pod.as_ref().and_then(|pod| pod.machine(self.world.config()));
                let base = machine.unwrap_or(&object.name);
                crds::names::pod_port(base, &object.namespace, crds::keys::DEFAULT_PROVIDER)
            }
            Kind::Node => crds::names::node_port(&object.name),
            Kind::Ip => object.name.to_string(),
            _ => return Value::Null,
        };
        match self.world.lease(&port) {
            crate::view::LeaseState::Held(lease) => json!({ "held": *lease }),
            crate::view::LeaseState::Refused(reason, message) => {
                json!({ "refused": { "reason": reason, "message": message } })
            }
            _ => Value::Null,
        }
    }

    /// Compares what is kept step by step (projections, facts, the desired state, what
    /// is pending, what is to be published) with the same made anew from objects,
    /// leases and the replica. Takes as long as a start without the lists; nothing is
    /// found before the start is over, and a difference is a bug of ours.
    pub fn verify(&self) -> Differences {
        let mut found = Differences::default();
        if !self.started {
            return found;
        }
        self.world.verify(self.unix_s, &mut found);
        let mut fresh = self.engine.verify(&self.world, &self.schema, &mut found);
        for port in self.world.foreign_ports() {
            fresh.keep(&Keep::Row(RowKey::new(Table::LogicalSwitchPort, port.clone())), true);
        }
        self.desired.verify(&fresh, &mut found);
        self.commit.verify(self.world.config(), &fresh, &mut found);
        let source = Source { world: &self.world, engine: &self.engine, schema: &self.schema };
        self.publish.verify(self.unix_s, &source, &mut found);
        found
    }
}
