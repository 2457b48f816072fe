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

use std::cmp::Ordering;
use std::sync::Arc;

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

fn find<E: Entry>(entries: &[E], key: &E::Key) -> Result<usize, usize> {
    entries.binary_search_by(|e| e.key().cmp(key))
}

impl<E: Entry> Node<E> {
    fn inner(children: Vec<Node<E>>) -> Self {
        let len = children.iter().map(Node::len).sum();
        Self::Inner(Arc::new(Inner { len, children }))
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(inner) => inner.len,
        }
    }

    /// Whether both are one node in memory.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf(a), Self::Leaf(b)) => Arc::ptr_eq(a, b),
            (Self::Inner(a), Self::Inner(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The smallest key below.
    fn first(&self) -> &E::Key {
        match self {
            Self::Leaf(entries) => entries[0].key(),
            Self::Inner(inner) => inner.children[0].first(),
        }
    }

    /// Inserts below; returns what was replaced, and the right half if it split.
    fn insert(&mut self, entry: E) -> (Option<E>, Option<Node<E>>) {
        match self {
            Self::Leaf(entries) => {
                let at = match find(entries, entry.key()) {
                    Ok(at) => {
                        let mut new = entries.to_vec();
                        let old = std::mem::replace(&mut new[at], entry);
                        *entries = new.into();
                        return (Some(old), None);
                    }
                    Err(at) => at,
                };
                let mut new = Vec::with_capacity(entries.len() + 1);
                new.extend_from_slice(&entries[..at]);
                new.push(entry);
                new.extend_from_slice(&entries[at..]);
                let right = (new.len() > MAX_LEAF).then(|| Node::Leaf(new.split_off(new.len() / 2).into()));
                *entries = new.into();
                (None, right)
            }
            Self::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let at = inner.child_of(entry.key());
                let (old, split) = inner.children[at].insert(entry);
                inner.len += usize::from(old.is_none());
                if let Some(right) = split {
                    inner.children.insert(at + 1, right);
                }
                if inner.children.len() <= MAX_INNER {
                    return (old, None);
                }
                let right = Node::inner(inner.children.split_off(inner.children.len() / 2));
                inner.len -= right.len();
                (old, Some(right))
            }
        }
    }

    /// Removes a key that is there. May leave the node empty.
    fn remove(&mut self, key: &E::Key) {
        match self {
            Self::Leaf(entries) => {
                if let Ok(at) = find(entries, key) {
                    let rest = entries[..at].iter().chain(&entries[at + 1..]);
                    *entries = rest.cloned().collect();
                }
            }
            Self::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let at = inner.child_of(key);
                inner.children[at].remove(key);
                inner.len -= 1;
                inner.tidy(at);
            }
        }
    }

    /// Whether it should join a neighbour, if there is room.
    fn is_small(&self) -> bool {
        match self {
            Self::Leaf(entries) => entries.len() < MAX_LEAF / 4 + 1,
            Self::Inner(inner) => inner.children.len() < MAX_INNER / 4 + 1,
        }
    }

    /// This node and its right neighbour in one, if that leaves room to grow.
    fn joined(&self, right: &Node<E>) -> Option<Node<E>> {
        match (self, right) {
            (Self::Leaf(a), Self::Leaf(b)) if a.len() + b.len() <= MAX_LEAF * 3 / 4 => {
                Some(Self::Leaf(a.iter().chain(b.iter()).cloned().collect()))
            }
            (Self::Inner(a), Self::Inner(b)) if a.children.len() + b.children.len() <= MAX_INNER * 3 / 4 => {
                Some(Self::inner(a.children.iter().chain(&b.children).cloned().collect()))
            }
            _ => None,
        }
    }
}

impl<E: Entry> Inner<E> {
    /// Index of the child where `key` is or belongs.
    fn child_of(&self, key: &E::Key) -> usize {
        self.children.partition_point(|c| c.first() <= key).saturating_sub(1)
    }

    /// Removes or joins a child that a removal left empty or small.
    fn tidy(&mut self, at: usize) {
        if self.children[at].len() == 0 {
            self.children.remove(at);
            return;
        }
        if !self.children[at].is_small() {
            return;
        }
        for left in [at, at.wrapping_sub(1)] {
            let Some(pair) = self.children.get(left..left.saturating_add(2)) else { continue };
            if let Some(joined) = pair[0].joined(&pair[1]) {
                self.children[left] = joined;
                self.children.remove(left + 1);
                return;
            }
        }
    }
}

impl<E: Entry + PartialEq> PartialEq for Sorted<E> {
    fn eq(&self, other: &Self) -> bool {
        let same = self.0.as_ref().zip(other.0.as_ref()).is_some_and(|(a, b)| a.is_same(b));
        same || (self.len() == other.len() && self.iter().eq(other.iter()))
    }
}

impl<E: Entry + PartialEq> Sorted<E> {
    /// What has to go from `self` and what has to come to make it `newer`. Costs as
    /// much as the parts that both do not share: of two versions of one collection
    /// a few nodes, however long it is.
    pub(crate) fn delta(&self, newer: &Self) -> (Vec<E>, Vec<E>) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let (mut a, mut b) = (Walk::new(self), Walk::new(newer));
        loop {
            Walk::settle(&mut a, &mut b);
            match (a.current.split_first(), b.current.split_first()) {
                (None, None) => return (gone, come),
                (Some((x, a_rest)), Some((y, b_rest))) if x.key() == y.key() => {
                    if x != y {
                        gone.push(x.clone());
                        come.push(y.clone());
                    }
                    a.current = a_rest;
                    b.current = b_rest;
                }
                (Some((x, rest)), y) if y.is_none_or(|(y, _)| x.key() < y.key()) => {
                    gone.push(x.clone());
                    a.current = rest;
                }
                (_, Some((y, rest))) => {
                    come.push(y.clone());
                    b.current = rest;
                }
                (Some(_), None) => return (gone, come),
            }
        }
    }
}

/// A way through a tree that can skip whole nodes.
struct Walk<'a, E> {
    /// Nodes still to visit, the next one last.
    pending: Vec<&'a Node<E>>,
    /// The rest of the leaf being visited.
    current: &'a [E],
}

impl<'a, E: Entry> Walk<'a, E> {
    fn new(sorted: &'a Sorted<E>) -> Self {
        Self { pending: sorted.0.iter().collect(), current: &[] }
    }

    /// Brings both to their next entry, past nodes that both share.
    fn settle(a: &mut Self, b: &mut Self) {
        loop {
            if !a.current.is_empty() || !b.current.is_empty() {
                a.open();
                b.open();
                return;
            }
            match (a.pending.last(), b.pending.last()) {
                (Some(x), Some(y)) if x.is_same(y) => {
                    a.pending.pop();
                    b.pending.pop();
                }
                (Some(Node::Inner(x)), Some(y)) if x.len >= y.len() => a.expand(),
                (_, Some(Node::Inner(_))) => b.expand(),
                (Some(Node::Inner(_)), _) => a.expand(),
                _ => {
                    a.open();
                    b.open();
                    return;
                }
            }
        }
    }

    /// Replaces the next node by its children.
    fn expand(&mut self) {
        if let Some(Node::Inner(inner)) = self.pending.last() {
            self.pending.pop();
            self.pending.extend(inner.children.iter().rev());
        }
    }

    /// Enters the next leaf, unless within one.
    fn open(&mut self) {
        while self.current.is_empty()
            && let Some(node) = self.pending.last()
        {
            match node {
                Node::Leaf(entries) => {
                    self.current = entries;
                    self.pending.pop();
                }
                Node::Inner(_) => self.expand(),
            }
        }
    }
}

impl<E: Entry + Ord> Sorted<E> {
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

/// Ascending iterator over the entries of a collection.
pub(crate) struct Iter<'a, E> {
    left: usize,
    /// What is still to visit, outermost first.
    stack: Vec<std::slice::Iter<'a, Node<E>>>,
    current: std::slice::Iter<'a, E>,
}

impl<E> Clone for Iter<'_, E> {
    fn clone(&self) -> Self {
        Self { left: self.left, stack: self.stack.clone(), current: self.current.clone() }
    }
}

impl<'a, E> Iterator for Iter<'a, E> {
    type Item = &'a E;
    fn next(&mut self) -> Option<&'a E> {
        loop {
            if let Some(entry) = self.current.next() {
                self.left -= 1;
                return Some(entry);
            }
            match self.stack.last_mut()?.next() {
                None => drop(self.stack.pop()),
                Some(Node::Leaf(entries)) => self.current = entries.iter(),
                Some(Node::Inner(inner)) => self.stack.push(inner.children.iter()),
            }
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<E> ExactSizeIterator for Iter<'_, E> {}
