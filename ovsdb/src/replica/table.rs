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

/// The rows that have one value in the columns of an index. Nearly always one.
#[derive(Clone)]
enum Bucket {
    One(Uuid),
    Many(Sorted<Uuid>),
}

/// What rows are found by: the values of an index's columns, in their order.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    One(Value),
    Several(Arc<[Value]>),
}

/// Rows by the values of some columns.
#[derive(Clone)]
struct Index {
    /// Positions, ascending.
    columns: Arc<[usize]>,
    rows: PersistentMap<Key, Bucket>,
}

impl Index {
    fn key(&self, row: &Row) -> Key {
        match *self.columns {
            [column] => Key::One(row.values[column].clone()),
            _ => Key::Several(self.columns.iter().map(|&c| row.values[c].clone()).collect()),
        }
    }

    /// Whether two rows are found by the same values.
    fn is_same(&self, a: &Row, b: &Row) -> bool {
        self.columns.iter().all(|&c| a.values[c] == b.values[c])
    }

    fn add(&mut self, row: &Row) {
        let key = self.key(row);
        let bucket = match self.rows.get(&key) {
            None => Bucket::One(row.uuid),
            Some(Bucket::One(other)) => Bucket::Many(Sorted::from_unsorted(vec![*other, row.uuid])),
            Some(Bucket::Many(many)) => {
                let mut many = many.clone();
                many.insert(row.uuid);
                Bucket::Many(many)
            }
        };
        self.rows.insert_mut(key, bucket);
    }

    fn remove(&mut self, row: &Row) {
        let key = self.key(row);
        match self.rows.get(&key) {
            Some(Bucket::Many(many)) if many.len() > 1 => {
                let mut many = many.clone();
                many.remove(&row.uuid);
                self.rows.insert_mut(key, Bucket::Many(many));
            }
            _ => {
                self.rows.remove_mut(&key);
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
        let index =
            |columns: &Vec<usize>| Index { columns: columns.as_slice().into(), rows: persistent_map() };
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
        self.find_by_all(&[(column, value)])
    }
    /// Rows whose columns equal these values, all of them: by an index where the
    /// schema or the session declares one for these columns (in any order), else by
    /// looking at every row. None for a column that is not held, or for a value
    /// that does not have its shape. In the order of UUIDs when an index gave them.
    pub fn find_by_all<'a>(
        &'a self,
        columns: &[(&str, &Value)],
    ) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        let (mut one, mut many, mut scan) = (None, None, None);
        if let Some(wanted) = self.wanted(columns) {
            match self.indexes.iter().find(|i| i.columns.iter().eq(wanted.iter().map(|(p, _)| p))) {
                Some(index) => {
                    let mut values = wanted.into_iter().map(|(_, value)| value);
                    let key = match (values.len(), values.next()) {
                        (1, Some(value)) => Key::One(value),
                        (_, first) => Key::Several(first.into_iter().chain(values).collect()),
                    };
                    match index.rows.get(&key) {
                        Some(Bucket::One(uuid)) => one = self.rows.get(uuid),
                        Some(Bucket::Many(uuids)) => {
                            many = Some(uuids.iter().filter_map(|u| self.rows.get(u)));
                        }
                        None => {}
                    }
                }
                None => {
                    let matches = move |row: &&Arc<Row>| wanted.iter().all(|(p, v)| row.values[*p] == *v);
                    scan = Some(self.rows.values().filter(matches));
                }
            }
        }
        one.into_iter().chain(many.into_iter().flatten()).chain(scan.into_iter().flatten())
    }

    /// Positions and shaped values by position; `None` when no row can match.
    fn wanted(&self, columns: &[(&str, &Value)]) -> Option<Vec<(usize, Value)>> {
        let mut wanted = Vec::with_capacity(columns.len());
        for (column, value) in columns {
            let position = self.layout.position(column)?;
            wanted.push((position, (*value).clone().shaped(&self.layout.columns[position].1)?));
        }
        wanted.sort_unstable_by_key(|(position, _)| *position);
        // The same column twice: with one value it is said once, with two no row matches.
        wanted.dedup();
        wanted.windows(2).all(|w| w[0].0 != w[1].0).then_some(wanted)
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
                Some(old) if index.is_same(old, &row) => {}
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
