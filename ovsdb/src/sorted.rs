//! Persistent ordered collections: what a set or map column holds.
//!
//! A logical switch refers to its ports by one set column, which can hold a
//! hundred thousand elements and changes with every pod. A change keeps the old
//! row alive (consumers get old and new), so a plain B-tree would be copied whole
//! each time. Here structure is shared: small collections (nearly all) are one
//! sorted slice, big ones a B-tree of slices, of which a change copies one path.
//! Cloning is one reference count.
//!
//! Nodes are small because copying one touches the reference count of everything
//! below it, and in a big database that is mostly cache misses.
//!
//! [`crate::AtomSet`] and [`crate::AtomMap`] are the public faces.

mod iter;
mod node;
mod walk;

use std::cmp::Ordering;
use std::sync::Arc;

pub(crate) use iter::Iter;
use node::find;

/// A leaf is split above this length. Tests use tiny nodes to get deep trees.
const MAX_LEAF: usize = if cfg!(test) { 4 } else { 64 };
/// An inner node is split above this number of children.
const MAX_INNER: usize = if cfg!(test) { 4 } else { 32 };

/// An element of a sorted collection: a set's atom or a map's pair.
pub(crate) trait Entry: Clone {
    /// What it is sorted by.
    type Key: Ord;
    /// Its key.
    fn key(&self) -> &Self::Key;
}

/// Sorted, duplicate-free, persistent. `None`: empty.
#[derive(Clone)]
pub(crate) struct Sorted<E>(Option<Node<E>>);

/// All leaves are equally deep, no node is empty.
#[derive(Clone)]
enum Node<E> {
    Leaf(Arc<[E]>),
    Inner(Arc<Inner<E>>),
}

#[derive(Clone)]
struct Inner<E> {
    /// Entries below.
    len: usize,
    children: Vec<Node<E>>,
}

impl<E: Entry> Sorted<E> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// From entries in strictly ascending order.
    fn from_ascending(entries: Vec<E>) -> Self {
        if entries.len() <= MAX_LEAF {
            return Self((!entries.is_empty()).then(|| Node::Leaf(entries.into())));
        }
        let mut level: Vec<Node<E>> =
            groups(entries, MAX_LEAF).into_iter().map(|g| Node::Leaf(g.into())).collect();
        while level.len() > 1 {
            level = groups(level, MAX_INNER).into_iter().map(Node::inner).collect();
        }
        Self(level.pop())
    }

    /// From entries in any order; of two with one key the later wins.
    pub(crate) fn from_unsorted(mut entries: Vec<E>) -> Self {
        let ascending = entries.windows(2).all(|w| w[0].key() < w[1].key());
        if !ascending {
            // The sort is stable, so the later duplicate comes second: keep it.
            entries.sort_by(|a, b| a.key().cmp(b.key()));
            let mut unique: Vec<E> = Vec::with_capacity(entries.len());
            for entry in entries {
                match unique.last_mut() {
                    Some(last) if last.key() == entry.key() => *last = entry,
                    _ => unique.push(entry),
                }
            }
            entries = unique;
        }
        Self::from_ascending(entries)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Node::len)
    }

    pub(crate) fn iter(&self) -> Iter<'_, E> {
        let mut iter = Iter { left: self.len(), stack: Vec::new(), current: [].iter() };
        match &self.0 {
            None => {}
            Some(Node::Leaf(entries)) => iter.current = entries.iter(),
            Some(Node::Inner(inner)) => iter.stack.push(inner.children.iter()),
        }
        iter
    }

    pub(crate) fn get(&self, key: &E::Key) -> Option<&E> {
        let mut node = self.0.as_ref()?;
        loop {
            match node {
                Node::Leaf(entries) => return find(entries, key).ok().map(|at| &entries[at]),
                Node::Inner(inner) => node = &inner.children[inner.child_of(key)],
            }
        }
    }

    /// Inserts or replaces; returns what was there.
    pub(crate) fn insert(&mut self, entry: E) -> Option<E> {
        let Some(root) = &mut self.0 else {
            self.0 = Some(Node::Leaf(Arc::new([entry])));
            return None;
        };
        let (old, split) = root.insert(entry);
        if let Some(right) = split {
            let left = root.clone();
            *root = Node::inner(vec![left, right]);
        }
        old
    }

    /// Removes; returns what was there.
    pub(crate) fn remove(&mut self, key: &E::Key) -> Option<E> {
        // Looked up first: a miss must not copy a path.
        let old = self.get(key)?.clone();
        let root = self.0.as_mut()?;
        root.remove(key);
        if root.len() == 0 {
            self.0 = None;
            return Some(old);
        }
        while let Some(Node::Inner(inner)) = &self.0
            && inner.children.len() == 1
        {
            self.0 = inner.children.first().cloned();
        }
        Some(old)
    }
}

/// Cuts into groups of about three quarters of `max`, of equal length but for one.
fn groups<T>(items: Vec<T>, max: usize) -> Vec<Vec<T>> {
    let count = items.len().div_ceil(max * 3 / 4);
    let (length, longer) = (items.len() / count, items.len() % count);
    let mut items = items.into_iter();
    (0..count).map(|i| items.by_ref().take(length + usize::from(i < longer)).collect()).collect()
}

impl<E: Entry + PartialEq> PartialEq for Sorted<E> {
    fn eq(&self, other: &Self) -> bool {
        let same = self.0.as_ref().zip(other.0.as_ref()).is_some_and(|(a, b)| a.is_same(b));
        same || (self.len() == other.len() && self.iter().eq(other.iter()))
    }
}

impl<E: Entry + Ord> Sorted<E> {
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}
