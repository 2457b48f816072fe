//! The engine: compiles units, remembers what each read, and compiles a unit again
//! when one of its reads changed.
//!
//! Flows in: keys of changed projections from the world. Flows out: units whose
//! facts changed, with the facts before and after. Dependencies are never
//! declared: each call of [`View`] is recorded, absence too. Compile functions are
//! pure and total (no indexing, no unwrap: lints), so nothing here guards against
//! panics.

mod recorder;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::facts::Facts;
use crate::view::{Compile, UnitKey};
use crate::world::{ReadKey, World};

use recorder::Recorder;
pub use recorder::SchemaFacts;

/// A unit whose facts changed.
pub struct Recompiled {
    /// The unit.
    pub unit: UnitKey,
    /// Its facts before, empty for a new unit.
    pub old: Arc<Facts>,
    /// Its facts now, empty for a unit whose object is gone.
    pub new: Arc<Facts>,
}

struct Unit {
    reads: Box<[u32]>,
    facts: Arc<Facts>,
}

struct Read {
    key: ReadKey,
    readers: BTreeSet<u32>,
}

/// All units, their facts, and the graph of reads.
pub struct Engine {
    compile: Compile,
    ids: BTreeMap<UnitKey, u32>,
    units: Vec<Option<(UnitKey, Unit)>>,
    free_units: Vec<u32>,
    read_ids: BTreeMap<ReadKey, u32>,
    reads: Vec<Option<Read>>,
    free_reads: Vec<u32>,
    dirty: BTreeSet<UnitKey>,
    compiled: u64,
    unchanged: u64,
    edges: usize,
}

impl Engine {
    /// An engine without units.
    pub fn new(compile: Compile) -> Self {
        Self {
            compile,
            ids: BTreeMap::new(),
            units: Vec::new(),
            free_units: Vec::new(),
            read_ids: BTreeMap::new(),
            reads: Vec::new(),
            free_reads: Vec::new(),
            dirty: BTreeSet::new(),
            compiled: 0,
            unchanged: 0,
            edges: 0,
        }
    }

    /// A projection changed: its readers are to be compiled, and the unit of the
    /// object itself.
    pub fn changed(&mut self, world: &World, key: &ReadKey) {
        if let Some(read) = self.read_ids.get(key).and_then(|id| self.reads.get(*id as usize)?.as_ref()) {
            let readers = read.readers.iter();
            self.dirty
                .extend(readers.filter_map(|id| Some(self.units.get(*id as usize)?.as_ref()?.0.clone())));
        }
        if let Some(unit) = key.unit().filter(|unit| self.ids.contains_key(unit) || exists(world, unit)) {
            self.dirty.insert(unit);
        }
    }

    /// Compiles a unit whatever it read.
    pub fn mark(&mut self, unit: UnitKey) {
        self.dirty.insert(unit);
    }

    /// Compiles what is marked, in key order. Returns the units whose facts changed.
    pub fn run(&mut self, world: &World, schema: &SchemaFacts) -> Vec<Recompiled> {
        let mut out = Vec::new();
        for unit in std::mem::take(&mut self.dirty) {
            let recorder = Recorder::new(world, schema);
            let new = (self.compile)(&recorder, &unit);
            let reads = recorder.into_reads();
            self.compiled += 1;
            let old = self.store(world, &unit, reads, new);
            match old {
                (old, Some(new)) => out.push(Recompiled { unit, old, new }),
                (_, None) => self.unchanged += 1,
            }
        }
        out
    }

    /// Stores the result; returns the old facts, and the new ones if they differ.
    fn store(
        &mut self,
        world: &World,
        unit: &UnitKey,
        reads: BTreeSet<ReadKey>,
        new: Facts,
    ) -> (Arc<Facts>, Option<Arc<Facts>>) {
        let known = self.ids.get(unit).copied();
        let old = known
            .and_then(|id| self.units.get(id as usize)?.as_ref())
            .map(|(_, u)| u.facts.clone())
            .unwrap_or_default();
        let same = *old == new;
        if new == Facts::default() && !exists(world, unit) {
            if let Some(id) = known {
                self.unlink(id);
                self.ids.remove(unit);
                if let Some(slot) = self.units.get_mut(id as usize) {
                    *slot = None;
                }
                self.free_units.push(id);
            }
            return (old, (!same).then(Arc::default));
        }
        let facts = if same { old.clone() } else { Arc::new(new) };
        let id = match known {
            Some(id) => {
                self.unlink(id);
                id
            }
            None => {
                let id = take_slot(&mut self.free_units, &mut self.units);
                self.ids.insert(unit.clone(), id);
                id
            }
        };
        let reads: Box<[u32]> = reads.into_iter().map(|key| self.link(key, id)).collect();
        self.edges += reads.len();
        if let Some(slot) = self.units.get_mut(id as usize) {
            *slot = Some((unit.clone(), Unit { reads, facts: facts.clone() }));
        }
        (old, (!same).then_some(facts))
    }

    fn link(&mut self, key: ReadKey, unit: u32) -> u32 {
        let id = match self.read_ids.get(&key) {
            Some(id) => *id,
            None => {
                let id = take_slot(&mut self.free_reads, &mut self.reads);
                self.read_ids.insert(key.clone(), id);
                if let Some(slot) = self.reads.get_mut(id as usize) {
                    *slot = Some(Read { key, readers: BTreeSet::new() });
                }
                id
            }
        };
        if let Some(read) = self.reads.get_mut(id as usize).and_then(Option::as_mut) {
            read.readers.insert(unit);
        }
        id
    }

    fn unlink(&mut self, unit: u32) {
        let Some((_, old)) = self.units.get_mut(unit as usize).and_then(Option::as_mut) else { return };
        let reads = std::mem::take(&mut old.reads);
        self.edges -= reads.len();
        for id in reads {
            let Some(slot) = self.reads.get_mut(id as usize) else { continue };
            let Some(read) = slot.as_mut() else { continue };
            read.readers.remove(&unit);
            if read.readers.is_empty() {
                self.read_ids.remove(&read.key);
                *slot = None;
                self.free_reads.push(id);
            }
        }
    }

    /// Facts of a unit.
    pub fn facts(&self, unit: &UnitKey) -> Option<&Arc<Facts>> {
        let id = self.ids.get(unit)?;
        self.units.get(*id as usize)?.as_ref().map(|(_, u)| &u.facts)
    }

    /// What a unit read when it was compiled last.
    pub fn reads(&self, unit: &UnitKey) -> Vec<&ReadKey> {
        let slot = self.ids.get(unit).and_then(|id| self.units.get(*id as usize)?.as_ref());
        let ids = slot.map(|(_, u)| u.reads.iter()).into_iter().flatten();
        ids.filter_map(|id| Some(&self.reads.get(*id as usize)?.as_ref()?.key)).collect()
    }

    /// All units and their facts, by key.
    pub fn units(&self) -> impl Iterator<Item = (&UnitKey, &Arc<Facts>)> {
        self.ids.iter().filter_map(|(key, id)| {
            let (_, unit) = self.units.get(*id as usize)?.as_ref()?;
            Some((key, &unit.facts))
        })
    }

    /// Compilations since the start, and how many of them changed nothing.
    pub fn compiled(&self) -> (u64, u64) {
        (self.compiled, self.unchanged)
    }

    /// Memory of the dependency graph in bytes, by its sizes: keys, slots and edges
    /// (an id in the unit's list, and one in the reader's set with its share of a
    /// tree node).
    pub fn graph_bytes(&self) -> usize {
        const TREE_SHARE: usize = 2;
        let id = size_of::<u32>();
        let slots = self.reads.len() * size_of::<Option<Read>>();
        let keys = self.read_ids.len() * (size_of::<ReadKey>() + id) * TREE_SHARE;
        slots + keys + self.edges * (id + id * TREE_SHARE)
    }

    /// Units, read projections, edges between them.
    pub fn size(&self) -> (usize, usize, usize) {
        (self.ids.len(), self.read_ids.len(), self.edges)
    }
}

fn take_slot<T>(free: &mut Vec<u32>, slots: &mut Vec<Option<T>>) -> u32 {
    free.pop().unwrap_or_else(|| {
        slots.push(None);
        u32::try_from(slots.len() - 1).unwrap_or(u32::MAX)
    })
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
        UnitKey::Other(plural, namespace, name) => world.other(plural, namespace, name).is_some(),
    }
}
