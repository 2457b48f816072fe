//! The rows of a table, and its indexes.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use rpds::HashTrieMapSync;
use uuid::Uuid;

use super::{Row, TableLayout};
use crate::sorted::{Entry, Sorted};
use crate::value::Value;

/// A fixed hash, so that iteration order depends on content alone: simulations
/// and tests repeat exactly.
pub(crate) type PersistentMap<K, V> = HashTrieMapSync<K, V, BuildHasherDefault<DefaultHasher>>;

/// Children of a trie node. An update copies one node a level, that is, touches
/// the reference count of each child: with the crate's own 64 that is mostly cache
/// misses, with 16 a third of them (measured: `examples/measure.rs`).
const DEGREE: u8 = 16;

/// An empty map.
pub(crate) fn persistent_map<K: Eq + std::hash::Hash, V>() -> PersistentMap<K, V> {
    PersistentMap::new_with_hasher_and_degree_and_ptr_kind(BuildHasherDefault::default(), DEGREE)
}

impl Entry for Uuid {
    type Key = Uuid;
    fn key(&self) -> &Uuid {
        self
    }
}

/// The rows that have one value in an indexed column. Nearly always one.
#[derive(Clone)]
enum Bucket {
    One(Uuid),
    Many(Sorted<Uuid>),
}

/// Rows by the value of one column.
#[derive(Clone)]
struct Index {
    column: usize,
    rows: PersistentMap<Value, Bucket>,
}

impl Index {
    fn add(&mut self, row: &Row) {
        let value = &row.values[self.column];
        let bucket = match self.rows.get(value) {
            None => Bucket::One(row.uuid),
            Some(Bucket::One(other)) => Bucket::Many(Sorted::from_unsorted(vec![*other, row.uuid])),
            Some(Bucket::Many(many)) => {
                let mut many = many.clone();
                many.insert(row.uuid);
                Bucket::Many(many)
            }
        };
        self.rows.insert_mut(value.clone(), bucket);
    }

    fn remove(&mut self, row: &Row) {
        let value = &row.values[self.column];
        match self.rows.get(value) {
            Some(Bucket::Many(many)) if many.len() > 1 => {
                let mut many = many.clone();
                many.remove(&row.uuid);
                self.rows.insert_mut(value.clone(), Bucket::Many(many));
            }
            _ => {
                self.rows.remove_mut(value);
            }
        }
    }
}

/// The rows of one table.
#[derive(Clone)]
pub struct Table {
    layout: Arc<TableLayout>,
    rows: PersistentMap<Uuid, Arc<Row>>,
    indexes: Vec<Index>,
}

impl Table {
    pub(crate) fn new(layout: Arc<TableLayout>) -> Self {
        let index = |&column: &usize| Index { column, rows: persistent_map() };
        let indexes = layout.indexed.iter().map(index).collect();
        Self { layout, rows: persistent_map(), indexes }
    }
    /// Name of the table.
    pub fn name(&self) -> &Arc<str> {
        &self.layout.name
    }
    /// The columns held.
    pub fn layout(&self) -> &Arc<TableLayout> {
        &self.layout
    }
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.size()
    }
    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
    /// All rows, in an order that depends on their UUIDs alone.
    pub fn rows(&self) -> impl Iterator<Item = &Arc<Row>> + '_ {
        self.rows.values()
    }
    /// One row.
    pub fn get(&self, uuid: &Uuid) -> Option<&Arc<Row>> {
        self.rows.get(uuid)
    }
    /// Rows whose column equals a value: by an index where the schema or the
    /// session declares one for this column, else by looking at every row.
    pub fn find_by<'a>(
        &'a self,
        column: &str,
        value: &Value,
    ) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        let position = self.layout.position(column);
        let wanted = position.and_then(|p| value.clone().shaped(&self.layout.columns[p].1));
        let index = position.and_then(|p| self.indexes.iter().find(|i| i.column == p));
        let (mut one, mut many, mut scan) = (None, None, None);
        match (index, position, wanted) {
            (Some(index), _, Some(wanted)) => match index.rows.get(&wanted) {
                Some(Bucket::One(uuid)) => one = self.rows.get(uuid),
                Some(Bucket::Many(uuids)) => many = Some(uuids.iter().filter_map(|u| self.rows.get(u))),
                None => {}
            },
            (None, Some(p), Some(wanted)) => {
                scan = Some(self.rows.values().filter(move |row| row.values[p] == wanted));
            }
            _ => {}
        }
        one.into_iter().chain(many.into_iter().flatten()).chain(scan.into_iter().flatten())
    }
    /// The first row that [`Self::find_by`] gives.
    pub fn find_one(&self, column: &str, value: &Value) -> Option<&Arc<Row>> {
        self.find_by(column, value).next()
    }

    /// Puts a row, returns the one it replaces.
    pub(crate) fn put(&mut self, row: Arc<Row>) -> Option<Arc<Row>> {
        let old = self.rows.get(&row.uuid).cloned();
        for index in &mut self.indexes {
            match &old {
                Some(old) if old.values[index.column] == row.values[index.column] => {}
                Some(old) => {
                    index.remove(old);
                    index.add(&row);
                }
                None => index.add(&row),
            }
        }
        self.rows.insert_mut(row.uuid, row);
        old
    }

    /// Removes a row and returns it.
    pub(crate) fn take(&mut self, uuid: &Uuid) -> Option<Arc<Row>> {
        let old = self.rows.get(uuid).cloned()?;
        for index in &mut self.indexes {
            index.remove(&old);
        }
        self.rows.remove_mut(uuid);
        Some(old)
    }
}
