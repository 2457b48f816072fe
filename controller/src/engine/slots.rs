//! Keys by number: what units and reads are in the dependency graph.
//!
//! Each key is in memory once, beside what belongs to it; the table by which it is found
//! holds numbers only. There are a million of them in a big cluster, so slots are kept
//! in blocks that never move: a growing list would have room for as many again.

use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashTable;

/// Slots of a block.
const BLOCK: usize = 256;

/// Keys of type `K`, each with a number and a `V`.
pub(super) struct Slots<K, V> {
    blocks: Vec<Vec<Option<(K, V)>>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
}

impl<K, V> Default for Slots<K, V> {
    fn default() -> Self {
        Self { blocks: Vec::new(), free: Vec::new(), table: HashTable::new(), hasher: RandomState::default() }
    }
}

fn slot<K, V>(blocks: &[Vec<Option<(K, V)>>], id: u32) -> Option<&(K, V)> {
    let id = id as usize;
    blocks.get(id / BLOCK)?.get(id % BLOCK)?.as_ref()
}

impl<K: Eq + Hash, V> Slots<K, V> {
    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of a key.
    pub(super) fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |id| slot(&self.blocks, *id).is_some_and(|(k, _)| k == key)).copied()
    }

    /// The key of a number and what belongs to it.
    pub(super) fn get(&self, id: u32) -> Option<&(K, V)> {
        slot(&self.blocks, id)
    }

    /// What belongs to a number, to be changed.
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut V> {
        let id = id as usize;
        self.blocks.get_mut(id / BLOCK)?.get_mut(id % BLOCK)?.as_mut().map(|(_, value)| value)
    }

    /// What belongs to a key.
    pub(super) fn by_key(&self, key: &K) -> Option<&V> {
        self.get(self.find(key)?).map(|(_, value)| value)
    }

    /// Gives a number to a key that has none yet.
    pub(super) fn insert(&mut self, key: K, value: V) -> u32 {
        let Self { blocks, free, table, hasher } = self;
        let hash = hasher.hash_one(&key);
        let id = free.pop().unwrap_or_else(|| {
            if blocks.last().is_none_or(|block| block.len() == BLOCK) {
                blocks.push(Vec::with_capacity(BLOCK));
            }
            let before = (blocks.len() - 1) * BLOCK;
            let last = blocks.last_mut();
            let place = last.map_or(0, |block| {
                block.push(None);
                block.len() - 1
            });
            u32::try_from(before + place).unwrap_or(u32::MAX)
        });
        let place = id as usize;
        if let Some(empty) = blocks.get_mut(place / BLOCK).and_then(|block| block.get_mut(place % BLOCK)) {
            *empty = Some((key, value));
        }
        let blocks = &*blocks;
        table.insert_unique(hash, id, |id| slot(blocks, *id).map_or(0, |(key, _)| hasher.hash_one(key)));
        id
    }

    /// Takes a number back.
    pub(super) fn remove(&mut self, id: u32) -> Option<(K, V)> {
        let place = id as usize;
        let taken = self.blocks.get_mut(place / BLOCK)?.get_mut(place % BLOCK)?.take()?;
        if let Ok(entry) = self.table.find_entry(self.hasher.hash_one(&taken.0), |other| *other == id) {
            entry.remove();
        }
        self.free.push(id);
        Some(taken)
    }

    /// All keys and what belongs to them, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.blocks.iter().flatten().flatten()
    }

    /// Memory in bytes, without what keys and values refer to.
    pub(super) fn bytes(&self) -> usize {
        let slots = self.blocks.len() * BLOCK * size_of::<Option<(K, V)>>();
        // A number and a byte of the hash in each place of the table, of which 7/8 may be used.
        slots
            + self.table.capacity() * 8 / 7 * (size_of::<u32>() + 1)
            + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever comes and goes, the same as in a map; numbers stay while their key does.
        #[test]
        fn behave_like_a_map(steps in prop::collection::vec((0u16..700, any::<u8>(), any::<bool>()), 0..2000)) {
            let mut slots: Slots<u16, u8> = Slots::default();
            let mut model: BTreeMap<u16, (u32, u8)> = BTreeMap::new();
            for (key, value, come) in steps {
                match (model.get_mut(&key), come) {
                    (None, true) => {
                        prop_assert_eq!(slots.find(&key), None);
                        let id = slots.insert(key, value);
                        model.insert(key, (id, value));
                    }
                    (Some((id, kept)), true) => {
                        *slots.get_mut(*id).unwrap() = value;
                        *kept = value;
                    }
                    (Some((id, kept)), false) => {
                        prop_assert_eq!(slots.remove(*id), Some((key, *kept)));
                        prop_assert_eq!(slots.remove(*id), None);
                        model.remove(&key);
                    }
                    (None, false) => prop_assert_eq!(slots.by_key(&key), None),
                }
            }
            prop_assert_eq!(slots.len(), model.len());
            for (key, (id, value)) in &model {
                prop_assert_eq!(slots.find(key), Some(*id));
                prop_assert_eq!(slots.get(*id), Some(&(*key, *value)));
                prop_assert_eq!(slots.by_key(key), Some(value));
            }
            let listed: BTreeMap<u16, u8> = slots.iter().copied().collect();
            prop_assert_eq!(listed, model.iter().map(|(key, (_, value))| (*key, *value)).collect());
        }
    }
}
