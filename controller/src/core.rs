//! The pipeline as one deterministic value: inputs in, outputs out, time as an
//! argument (DESIGN: sans-I/O). `run/` drives it under tokio, `sim/` under a
//! simulator.
//!
//! One input is taken through all stages before the next: world (and leases) →
//! engine → desired → commit → publish. Nothing is compiled before every needed
//! watch has listed and the database is loaded; nothing is written before our
//! epoch token is in the database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::commit::{self, Commit};
use crate::desired::Desired;
use crate::engine::{Engine, SchemaFacts};
use crate::facts::{Keep, Kind, ObjectRef, RowKey, Table};
use crate::io::{Config, Input, Output};
use crate::publish::{self, Publish, Source};
use crate::view::{Compile, UnitKey};
use crate::world::{ReadKey, World};

/// Numbers for metrics and diagnostics; those of events count since the start of
/// the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Units compiled.
    pub compiled: u64,
    /// Of these, the ones whose facts stayed the same.
    pub compiled_unchanged: u64,
    /// Units now.
    pub units: usize,
    /// Projections that units read, and edges between units and them.
    pub reads: usize,
    /// Edges of the dependency graph.
    pub edges: usize,
    /// Its memory, bytes.
    pub graph_bytes: usize,
    /// Rows and memberships wanted.
    pub rows: usize,
    /// Memberships wanted.
    pub members: usize,
    /// Columns on which two units disagree.
    pub conflicts: usize,
    /// Leases held.
    pub leases: usize,
    /// Ports whose request for an address was refused.
    pub refused: usize,
    /// Groups of rows that differ from the database.
    pub commit_groups: usize,
    /// Transactions in flight.
    pub commit_in_flight: usize,
    /// Groups in back-off after a failure.
    pub commit_failing: usize,
    /// Rows of known tables that no enabled class claims.
    pub unclaimed_rows: usize,
    /// Of commit.
    pub commit: commit::Counters,
    /// Objects that publish has to look at.
    pub publish_backlog: usize,
    /// Kubernetes writes in flight.
    pub publish_in_flight: usize,
    /// Objects whose written-once annotations differ from their facts.
    pub drift: usize,
    /// Of publish.
    pub publish: publish::Counters,
}

/// The controller without its I/O.
pub struct Core {
    world: World,
    engine: Engine,
    schema: SchemaFacts,
    desired: Desired,
    commit: Commit,
    publish: Publish,
    /// Everything is loaded and was compiled once.
    started: bool,
    /// We write since an election.
    leading: bool,
}

impl Core {
    /// A core that knows nothing yet. `compile` is [`crate::compile::compile`] in
    /// production.
    pub fn new(config: Config, compile: Compile) -> Self {
        Self {
            world: World::new(Arc::new(config)),
            engine: Engine::new(compile),
            schema: SchemaFacts::default(),
            desired: Desired::default(),
            commit: Commit::default(),
            publish: Publish::default(),
            started: false,
            leading: false,
        }
    }

    /// Takes one input and says what to do. `now_ms` is a monotonic clock in
    /// milliseconds, `unix_s` the wall clock in seconds (grace periods, condition
    /// times).
    pub fn handle(&mut self, now_ms: u64, unix_s: i64, input: Input) -> Vec<Output> {
        self.take(now_ms, unix_s, input);
        self.settle(now_ms, unix_s);
        let mut outputs = self.commit.outputs(now_ms, &self.desired);
        self.publish.set_active(self.started && self.commit.writing());
        let source = Source { world: &self.world, engine: &self.engine, schema: &self.schema };
        outputs.extend(self.publish.outputs(now_ms, unix_s, &source));
        let wake = [
            self.world.wake_at(now_ms, unix_s).filter(|_| self.started),
            self.commit.wake_at(),
            self.publish.wake_at(),
        ];
        outputs.extend(wake.into_iter().flatten().min().map(|at| Output::WakeAt(at.max(now_ms + 1))));
        outputs
    }

    fn take(&mut self, now_ms: u64, unix_s: i64, input: Input) {
        match input {
            Input::Applied(object) => self.world.apply(unix_s, object),
            Input::Deleted(object) => self.world.delete(&object),
            Input::Listed(kind, objects) => self.world.list(unix_s, kind, objects),
            Input::NbLoaded { replica, changes, schema } => {
                if self.schema.0.as_ref() != Some(&schema) {
                    self.schema = SchemaFacts(Some(schema.clone()));
                    self.engine.changed(&self.world, &ReadKey::Schema);
                }
                let config = self.world.config().clone();
                let keys = self.commit.loaded(&config, &self.desired, replica, &changes, schema);
                self.note_ports(&keys);
            }
            Input::NbChanged { replica, changes } => {
                let config = self.world.config().clone();
                let keys = self.commit.changed(&config, &self.desired, replica, &changes);
                self.note_ports(&keys);
            }
            Input::NbLost => self.commit.lost(),
            Input::NbReply { tag, result } => self.commit.reply(now_ms, tag, result),
            Input::Elected { epoch } => self.commit.elected(epoch),
            Input::Deposed => self.commit.deposed(),
            Input::KubeReply { id, result } => self.publish.reply(now_ms, id, result),
            Input::Tick => {}
        }
    }

    /// Leases depend on which ports are in the database.
    fn note_ports(&mut self, keys: &BTreeSet<RowKey>) {
        for key in keys {
            match key.table {
                Table::LogicalSwitchPort => {
                    self.world.port_row(key.key.clone(), self.commit.present(key));
                }
                Table::LogicalRouterPort => {
                    self.world.router_port_row(&key.key, self.commit.router_port_mac(key));
                }
                _ => {}
            }
        }
    }

    /// Takes what changed through the stages.
    fn settle(&mut self, now_ms: u64, unix_s: i64) {
        let first = !self.started;
        if first {
            if !self.world.loaded() || self.commit.replica().is_none() {
                return;
            }
            self.started = true;
            self.world.restore_leases(&self.commit.ports());
            let config = self.world.config();
            let fixed = [
                UnitKey::Globals,
                UnitKey::Vpc(config.cluster_router.clone()),
                UnitKey::Subnet(config.node_switch.clone()),
                UnitKey::Subnet(config.default_ls.clone()),
            ];
            fixed.into_iter().for_each(|unit| self.engine.mark(unit));
        }
        let writing = self.commit.writing();
        if writing && !self.leading && self.world.leases_stale() {
            // The leader before us may have given leases that we only see as rows.
            self.world.restore_leases(&self.commit.ports());
        }
        self.leading = writing;
        self.world.end_graces(unix_s);
        self.world.settle_leases(writing);
        self.world.project_usage(now_ms);
        for (port, foreign) in self.world.take_foreign_ports() {
            let keep = Keep::Row(RowKey::new(Table::LogicalSwitchPort, port));
            self.desired.keep(&keep, foreign);
            self.commit.touch_kept(&self.desired, &keep);
        }
        for key in self.world.take_changed() {
            self.engine.changed(&self.world, &key);
        }
        let mut units = BTreeSet::new();
        while let Some(recompiled) = self.engine.run(&self.world, &self.schema) {
            for change in recompiled {
                let touched = self.desired.update(&change);
                self.commit.touch(&self.desired, &change.unit, &touched);
                if let Some(statement) = &change.statement {
                    self.publish.unit(&change.unit, statement);
                }
                units.insert(change.unit);
            }
        }
        if first {
            self.commit.start(&self.desired);
        }
        units.extend(self.commit.take_notified());
        for unit in units {
            let facts = self.engine.facts(&unit);
            let committed = facts.is_none_or(|facts| self.commit.committed(&unit, facts));
            self.publish.set_committed(&unit, committed, &self.engine);
            let conflict = self.conflict(&unit);
            let error = self.commit.error(&unit).or(conflict.as_deref());
            self.publish.set_failing(&unit, error, &self.engine, &self.world);
        }
        self.publish.touched(self.world.take_touched());
    }

    /// A unit that lost a column to another one.
    fn conflict(&self, unit: &UnitKey) -> Option<String> {
        let conflict = self.desired.conflicts().get(unit)?.first()?;
        Some(format!(
            "column {} of {} is set to another value by {:?}; change one of them",
            conflict.column, conflict.row, conflict.winner
        ))
    }

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
        self.commit.plan()
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
        units.extend(unit_of(object));
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
            Kind::Pod => crds::names::pod_port(&object.name, &object.namespace, crds::keys::DEFAULT_PROVIDER),
            Kind::Node => crds::names::node_port(&object.name),
            Kind::Ip => object.name.to_string(),
            _ => return Value::Null,
        };
        match self.world.lease(&port) {
            crate::view::LeaseState::Held(lease) => json!({ "held": *lease }),
            crate::view::LeaseState::Refused(reason, message) => {
                json!({ "refused": { "reason": reason, "message": message } })
            }
            crate::view::LeaseState::None => Value::Null,
        }
    }
}

/// The unit that is about an object.
fn unit_of(object: &ObjectRef) -> Option<UnitKey> {
    let name = object.name.clone();
    Some(match object.kind {
        Kind::Pod => UnitKey::Pod(object.namespace.clone(), name),
        Kind::Node => UnitKey::Node(name),
        Kind::Namespace => UnitKey::Namespace(name),
        Kind::Subnet => UnitKey::Subnet(name),
        Kind::Vpc => UnitKey::Vpc(name),
        Kind::Ip => UnitKey::Ip(name),
        Kind::Other(plural) => UnitKey::Other(plural, object.namespace.clone(), name),
    })
}
