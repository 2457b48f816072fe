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
#[cfg(test)]
mod tests;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::facts::{Facts, ObjectRef};
use crate::view::{Compile, UnitKey};
use crate::world::{ReadKey, World};

use compact::Compactor;
use fingerprint::Fingerprints;
pub use fingerprint::event_fingerprint;
use recorder::Recorder;
pub use recorder::SchemaFacts;

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

struct Read {
    key: ReadKey,
    readers: Readers,
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
    ids: BTreeMap<UnitKey, u32>,
    units: Vec<Option<(UnitKey, Unit)>>,
    free_units: Vec<u32>,
    read_ids: BTreeMap<ReadKey, u32>,
    reads: Vec<Option<Read>>,
    free_reads: Vec<u32>,
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
            ids: BTreeMap::new(),
            units: Vec::new(),
            free_units: Vec::new(),
            read_ids: BTreeMap::new(),
            reads: Vec::new(),
            free_reads: Vec::new(),
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
        if let Some(read) = self.read_ids.get(key).and_then(|id| self.reads.get(*id as usize)?.as_ref()) {
            let readers = read.readers.iter();
            self.dirty
                .extend(readers.filter_map(|id| Some(self.units.get(id as usize)?.as_ref()?.0.clone())));
        }
        if let Some(unit) = key.unit().filter(|unit| self.ids.contains_key(unit) || exists(world, unit)) {
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

    /// Stores the result; `None` when the facts are the same as before.
    fn store(
        &mut self,
        world: &World,
        unit: &UnitKey,
        reads: BTreeSet<ReadKey>,
        full: Facts,
    ) -> Option<Recompiled> {
        let known = self.ids.get(unit).copied();
        let before = known.and_then(|id| self.units.get_mut(id as usize)?.as_mut()).map(|(_, u)| u);
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
                self.ids.remove(unit);
                if let Some(slot) = self.units.get_mut(id as usize) {
                    *slot = None;
                }
                self.free_units.push(id);
            }
        } else {
            let before = known.map(|id| (id, self.same_reads(id, &reads)));
            let id = match before {
                Some((id, true)) => id,
                Some((id, false)) => {
                    self.unlink(id);
                    id
                }
                None => {
                    let id = take_slot(&mut self.free_units, &mut self.units);
                    self.ids.insert(unit.clone(), id);
                    id
                }
            };
            let reads: Box<[u32]> = match before {
                Some((_, true)) => self.take_reads(id),
                _ => {
                    let reads: Box<[u32]> = reads.into_iter().map(|key| self.link(key, id)).collect();
                    self.edges += reads.len();
                    reads
                }
            };
            let Fingerprints { objects, kube, events } = now;
            if let Some(slot) = self.units.get_mut(id as usize) {
                *slot = Some((unit.clone(), Unit { reads, facts: new.clone(), objects, kube, events }));
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
    fn same_reads(&self, unit: u32, reads: &BTreeSet<ReadKey>) -> bool {
        let Some((_, kept)) = self.units.get(unit as usize).and_then(Option::as_ref) else { return false };
        kept.reads.len() == reads.len()
            && kept.reads.iter().all(|id| {
                let read = self.reads.get(*id as usize).and_then(Option::as_ref);
                read.is_some_and(|read| reads.contains(&read.key))
            })
    }

    fn take_reads(&mut self, unit: u32) -> Box<[u32]> {
        let slot = self.units.get_mut(unit as usize).and_then(Option::as_mut);
        slot.map(|(_, unit)| std::mem::take(&mut unit.reads)).unwrap_or_default()
    }

    /// All facts of a unit, compiled again. The same as at the last run, since
    /// compile is a pure function of what the world then showed and still shows.
    pub fn full(&self, world: &World, schema: &SchemaFacts, unit: &UnitKey) -> Facts {
        if self.ids.contains_key(unit) {
            (self.compile)(&Recorder::new(world, schema), unit)
        } else {
            Facts::default()
        }
    }

    /// Objects that a unit speaks about.
    pub fn objects(&self, unit: &UnitKey) -> &[ObjectRef] {
        let slot = self.ids.get(unit).and_then(|id| self.units.get(*id as usize)?.as_ref());
        slot.map_or(&[], |(_, u)| &u.objects)
    }

    fn link(&mut self, key: ReadKey, unit: u32) -> u32 {
        let id = match self.read_ids.get(&key) {
            Some(id) => *id,
            None => {
                let id = take_slot(&mut self.free_reads, &mut self.reads);
                self.read_ids.insert(key.clone(), id);
                if let Some(slot) = self.reads.get_mut(id as usize) {
                    *slot = Some(Read { key, readers: Readers::One(unit) });
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
            if read.readers.remove(unit) {
                self.read_ids.remove(&read.key);
                *slot = None;
                self.free_reads.push(id);
            }
        }
    }

    /// Rows, memberships and keeps of a unit.
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
        UnitKey::IpPool(name) => world.ippool(name).is_some(),
        UnitKey::Vip(name) => world.vip(name).is_some(),
        UnitKey::ProviderNetwork(name) => world.provider_network(name).is_some(),
        UnitKey::OvnEip(name) => world.ovn_eip(name).is_some(),
        UnitKey::Vlan(name) => world.vlan(name).is_some(),
        UnitKey::Kept(port) => world.kept(port).is_some(),
        UnitKey::Other(plural, namespace, name) => world.other(plural, namespace, name).is_some(),
    }
}
