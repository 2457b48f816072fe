//! The pipeline as one deterministic value: inputs in, outputs out, time as an
//! argument (DESIGN: sans-I/O). `run/` drives it under tokio, `sim/` under a
//! simulator.
//!
//! One input is taken through all stages before the next: world (and leases) →
//! engine → desired → commit → publish. Nothing is compiled before every needed
//! watch has listed and the database is loaded; nothing is written before our
//! epoch token is in the database.

mod inspect;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::commit::{self, Commit};
use crate::desired::Desired;
use crate::engine::{Engine, SchemaFacts};
use crate::facts::{Keep, Kind, RowKey, Table};
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
    /// Number of the list of subnets that our election asked for, whether it was asked for,
    /// and whether it has come.
    ///
    /// The leader before us may have sent off the end of a subnet (its last finalizer) that
    /// our watch does not know of yet: it was deleted before we were elected, and whoever is no
    /// leader sends nothing. So no address is given before everything of that time is known
    /// of subnets: one that is being deleted gives none.
    refresh: (u64, bool),
    fresh: bool,
    /// Wall clock of the last input.
    unix_s: i64,
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
            refresh: (0, true),
            fresh: false,
            unix_s: 0,
        }
    }

    /// Takes one input and says what to do. `now_ms` is a monotonic clock in
    /// milliseconds, `unix_s` the wall clock in seconds (grace periods, condition
    /// times).
    pub fn handle(&mut self, now_ms: u64, unix_s: i64, input: Input) -> Vec<Output> {
        self.unix_s = unix_s;
        self.take(now_ms, unix_s, input);
        self.settle(now_ms, unix_s);
        let mut outputs = self.commit.outputs(now_ms, &self.desired);
        if !std::mem::replace(&mut self.refresh.1, true) {
            outputs.push(Output::Refresh(Kind::Subnet, self.refresh.0));
        }
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
            Input::Elected { epoch } => {
                self.refresh = (self.refresh.0 + 1, false);
                self.fresh = false;
                self.commit.elected(epoch);
            }
            Input::Fresh(kind, number) => {
                self.fresh |= (kind, number) == (Kind::Subnet, self.refresh.0);
            }
            Input::Deposed => self.commit.deposed(),
            Input::KubeReply { id, result } => self.publish.reply(now_ms, id, result),
            Input::Silent(nodes) => self.world.set_silent(nodes),
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
                Table::GatewayChassis => self.world.gateway_row(&key.key, self.commit.gateway(key)),
                Table::Bfd => self.world.session_row(&key.key, self.commit.session(key)),
                // Of the subnets; those of single ports are in no status.
                Table::DhcpOptions if key.key.ends_with('|') => {
                    self.world.note_row(key, self.commit.uuid_of(key));
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
        self.world.settle_leases(writing && self.fresh);
        self.world.project_usage(now_ms);
        self.world.judge_sessions(now_ms);
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
        // Before it is known which units are open: what can't be written is called after it.
        for news in self.world.take_news() {
            self.publish.tell(news);
        }
        units.extend(self.commit.take_notified());
        for unit in units {
            let facts = self.engine.facts(&unit);
            let conflict = self.conflict(&unit);
            // Who lost a column has rows in the database, but not as it wants them.
            let committed =
                conflict.is_none() && facts.is_none_or(|facts| self.commit.committed(&unit, facts));
            self.publish.set_committed(&unit, committed, &self.engine);
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
}
