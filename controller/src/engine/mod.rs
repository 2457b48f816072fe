//! The engine: compiles units, remembers what each read, and compiles a unit again
//! when one of its reads changed.
//!
//! Flows in: keys of changed projections from the world. Flows out: units whose
//! facts changed, with the facts before and after. Dependencies are never
//! declared: each call of [`View`] is recorded, absence too. Compile functions are
//! pure and total (no indexing, no unwrap: lints), so nothing here guards against
//! panics.
//!
//! Rows and memberships are kept. What a unit states about Kubernetes objects is
//! ten times as big and looked at a few times in a pod's life, so only its
//! fingerprint is kept; whoever needs it has it compiled again ([`Engine::full`]).

mod compact;
mod fingerprint;
mod recorder;
mod slots;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::facts::{Facts, ObjectRef};
use crate::view::{Compile, UnitKey};
use crate::world::{ReadKey, World};

use compact::Compactor;
use fingerprint::Fingerprints;
pub use fingerprint::event_fingerprint;
use recorder::Recorder;
pub use recorder::SchemaFacts;
use slots::Slots;

/// Units compiled in one portion.
const PORTION: usize = 256;

/// A unit whose facts changed.
pub struct Recompiled {
    /// The unit.
    pub unit: UnitKey,
    /// Its rows, memberships and keeps before, empty for a new unit.
    pub old: Arc<Facts>,
    /// The same now, empty for a unit whose object is gone.
    pub new: Arc<Facts>,
    /// What it states about Kubernetes objects, if that changed.
    pub statement: Option<Statement>,
}

/// A changed statement about Kubernetes objects.
pub struct Statement {
    /// Objects that the unit spoke about before.
    pub objects_before: Box<[ObjectRef]>,
    /// Fingerprints of the events it stated before.
    pub events_before: Box<[u64]>,
    /// What it states about Kubernetes objects now, and its events.
    pub facts: Arc<Facts>,
}

struct Unit {
    reads: Box<[u32]>,
    /// Rows, memberships, keeps.
    facts: Arc<Facts>,
    /// Objects that it speaks about.
    objects: Box<[ObjectRef]>,
    /// Fingerprints of its Kubernetes facts and events.
    kube: u64,
    events: Box<[u64]>,
}

/// Units that read a projection: mostly one, and then no tree is worth its memory.
enum Readers {
    One(u32),
    Many(BTreeSet<u32>),
}

impl Readers {
    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (one, many) = match self {
            Self::One(unit) => (Some(*unit), None),
            Self::Many(units) => (None, Some(units)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }

    fn insert(&mut self, unit: u32) {
        match self {
            Self::One(other) if *other == unit => {}
            Self::One(other) => *self = Self::Many([*other, unit].into()),
            Self::Many(units) => {
                units.insert(unit);
            }
        }
    }

    /// Removes a unit; `true` when nobody is left.
    fn remove(&mut self, unit: u32) -> bool {
        match self {
            Self::One(other) => *other == unit,
            Self::Many(units) => {
                units.remove(&unit);
                units.is_empty()
            }
        }
    }
}

/// All units, their facts, and the graph of reads.
pub struct Engine {
    compile: Compile,
    units: Slots<UnitKey, Unit>,
    reads: Slots<ReadKey, Readers>,
    dirty: BTreeSet<UnitKey>,
    compactor: Compactor,
    compiled: u64,
    unchanged: u64,
    edges: usize,
}

impl Engine {
    /// An engine without units.
    pub fn new(compile: Compile) -> Self {
        Self {
            compile,
            units: Slots::default(),
            reads: Slots::default(),
            dirty: BTreeSet::new(),
            compactor: Compactor::default(),
            compiled: 0,
            unchanged: 0,
            edges: 0,
        }
    }

    /// A projection changed: its readers are to be compiled, and the unit of the
    /// object itself.
    pub fn changed(&mut self, world: &World, key: &ReadKey) {
        if let Some(readers) = self.reads.by_key(key) {
            self.dirty.extend(readers.iter().filter_map(|id| Some(self.units.get(id)?.0.clone())));
        }
        if let Some(unit) = key.unit().filter(|unit| self.units.find(unit).is_some() || exists(world, unit)) {
            self.dirty.insert(unit);
        }
    }

    /// Compiles a unit whatever it read.
    pub fn mark(&mut self, unit: UnitKey) {
        self.dirty.insert(unit);
    }

    /// Compiles what is marked, in key order and in portions: a restart would else
    /// hold all facts of the cluster at once. `None` when nothing is marked;
    /// otherwise the units whose facts changed.
    pub fn run(&mut self, world: &World, schema: &SchemaFacts) -> Option<Vec<Recompiled>> {
        if self.dirty.is_empty() {
            return None;
        }
        let mut out = Vec::new();
        for _ in 0..PORTION {
            let Some(unit) = self.dirty.pop_first() else { break };
            let recorder = Recorder::new(world, schema);
            let full = (self.compile)(&recorder, &unit);
            let reads = recorder.into_reads();
            self.compiled += 1;
            match self.store(world, &unit, reads, full) {
                Some(change) => out.push(change),
                None => self.unchanged += 1,
            }
        }
        Some(out)
    }

    /// Stores the result; `None` when the facts are the same as before. `reads` are sorted.
    fn store(
        &mut self,
        world: &World,
        unit: &UnitKey,
        reads: Vec<ReadKey>,
        full: Facts,
    ) -> Option<Recompiled> {
        let known = self.units.find(unit);
        let before = known.and_then(|id| self.units.get_mut(id));
        let (old, objects, kube, events) = match before {
            Some(u) => {
                (u.facts.clone(), std::mem::take(&mut u.objects), u.kube, std::mem::take(&mut u.events))
            }
            None => (Arc::default(), Box::default(), 0, Box::default()),
        };
        let gone = full == Facts::default() && !exists(world, unit);
        let now = Fingerprints::of(&full);
        let same = (old.rows == full.rows) && (old.members == full.members) && (old.keeps == full.keeps);
        let spoken = kube != now.kube || events != now.events;
        let Facts { rows, members, keeps, kube: stated, events: said } = full;
        let new = if same {
            old.clone()
        } else {
            let mut facts = Facts { rows, members, keeps, ..Facts::default() };
            self.compactor.compact(&now.objects, &mut facts);
            Arc::new(facts)
        };
        if gone {
            if let Some(id) = known {
                self.unlink(id);
                self.units.remove(id);
            }
        } else {
            let Fingerprints { objects, kube, events } = now;
            let facts = new.clone();
            match known {
                Some(id) => {
                    if !self.same_reads(id, &reads) {
                        self.unlink(id);
                        self.link_all(id, reads);
                    }
                    if let Some(u) = self.units.get_mut(id) {
                        (u.facts, u.objects, u.kube, u.events) = (facts, objects, kube, events);
                    }
                }
                None => {
                    let new = Unit { reads: Box::default(), facts, objects, kube, events };
                    let id = self.units.insert(unit.clone(), new);
                    self.link_all(id, reads);
                }
            }
        }
        let statement = spoken.then(|| Statement {
            objects_before: objects,
            events_before: events,
            facts: Arc::new(Facts { kube: stated, events: said, ..Facts::default() }),
        });
        (!same || spoken).then(|| Recompiled { unit: unit.clone(), old, new, statement })
    }

    /// The unit read the same at its last run: nothing to link anew.
    fn same_reads(&self, unit: u32, reads: &[ReadKey]) -> bool {
        let Some((_, kept)) = self.units.get(unit) else { return false };
        kept.reads.len() == reads.len()
            && kept
                .reads
                .iter()
                .zip(reads)
                .all(|(id, read)| self.reads.get(*id).is_some_and(|(k, _)| k == read))
    }

    /// All facts of a unit, compiled again. The same as at the last run, since
    /// compile is a pure function of what the world then showed and still shows.
    pub fn full(&self, world: &World, schema: &SchemaFacts, unit: &UnitKey) -> Facts {
        if self.units.find(unit).is_some() {
            (self.compile)(&Recorder::silent(world, schema), unit)
        } else {
            Facts::default()
        }
    }

    /// Objects that a unit speaks about.
    pub fn objects(&self, unit: &UnitKey) -> &[ObjectRef] {
        self.units.by_key(unit).map_or(&[], |unit| &unit.objects)
    }

    fn link_all(&mut self, unit: u32, reads: Vec<ReadKey>) {
        let reads: Box<[u32]> = reads.into_iter().map(|key| self.link(key, unit)).collect();
        self.edges += reads.len();
        if let Some(linked) = self.units.get_mut(unit) {
            linked.reads = reads;
        }
    }

    fn link(&mut self, key: ReadKey, unit: u32) -> u32 {
        match self.reads.find(&key) {
            Some(id) => {
                if let Some(readers) = self.reads.get_mut(id) {
                    readers.insert(unit);
                }
                id
            }
            None => self.reads.insert(key, Readers::One(unit)),
        }
    }

    fn unlink(&mut self, unit: u32) {
        let Some(old) = self.units.get_mut(unit) else { return };
        let reads = std::mem::take(&mut old.reads);
        self.edges -= reads.len();
        for id in reads {
            if self.reads.get_mut(id).is_some_and(|readers| readers.remove(unit)) {
                self.reads.remove(id);
            }
        }
    }

    /// Rows, memberships and keeps of a unit.
    pub fn facts(&self, unit: &UnitKey) -> Option<&Arc<Facts>> {
        self.units.by_key(unit).map(|unit| &unit.facts)
    }

    /// What a unit read when it was compiled last.
    pub fn reads(&self, unit: &UnitKey) -> Vec<&ReadKey> {
        let ids = self.units.by_key(unit).map(|unit| unit.reads.iter()).into_iter().flatten();
        ids.filter_map(|id| Some(&self.reads.get(*id)?.0)).collect()
    }

    /// All units and their facts, in no order.
    pub fn units(&self) -> impl Iterator<Item = (&UnitKey, &Arc<Facts>)> {
        self.units.iter().map(|(key, unit)| (key, &unit.facts))
    }

    /// Compilations since the start, and how many of them changed nothing.
    pub fn compiled(&self) -> (u64, u64) {
        (self.compiled, self.unchanged)
    }

    /// Memory of the dependency graph in bytes, by its sizes: reads with their keys, and
    /// edges (a number in the unit's list, and one in the reader's set with its share of a
    /// tree node).
    pub fn graph_bytes(&self) -> usize {
        const TREE_SHARE: usize = 2;
        let id = size_of::<u32>();
        self.reads.bytes() + self.edges * (id + id * TREE_SHARE)
    }

    /// Units, read projections, edges between them.
    pub fn size(&self) -> (usize, usize, usize) {
        (self.units.len(), self.reads.len(), self.edges)
    }
}

/// The object that the unit is about exists (units that flags demand always do).
fn exists(world: &World, unit: &UnitKey) -> bool {
    match unit {
        UnitKey::Globals => true,
        UnitKey::Vpc(name) => *name == world.config().cluster_router || world.vpc(name).is_some(),
        UnitKey::Subnet(name) => {
            let config = world.config();
            *name == config.node_switch || *name == config.default_ls || world.subnet(name).is_some()
        }
        UnitKey::Node(name) => world.node(name).is_some(),
        UnitKey::Namespace(name) => world.namespace(name).is_some(),
        UnitKey::Pod(namespace, name) => world.pod(namespace, name).is_some(),
        UnitKey::Ip(name) => world.orphan_ip(name).is_some(),
        UnitKey::IpPool(name) => world.ippool(name).is_some(),
        UnitKey::Vip(name) => world.vip(name).is_some(),
        UnitKey::ProviderNetwork(name) => world.provider_network(name).is_some(),
        UnitKey::OvnEip(name) => world.ovn_eip(name).is_some(),
        UnitKey::Vlan(name) => world.vlan(name).is_some(),
        UnitKey::Kept(port) => world.kept(port).is_some(),
        UnitKey::Other(plural, namespace, name) => world.other(plural, namespace, name).is_some(),
    }
}
