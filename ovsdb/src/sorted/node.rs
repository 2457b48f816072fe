//! Nodes: how they split, join and copy themselves along a path.

use std::sync::Arc;

use super::{Entry, Inner, MAX_INNER, MAX_LEAF, Node};

pub(super) fn find<E: Entry>(entries: &[E], key: &E::Key) -> Result<usize, usize> {
    entries.binary_search_by(|e| e.key().cmp(key))
}

impl<E: Entry> Node<E> {
    pub(super) fn inner(children: Vec<Node<E>>) -> Self {
        let len = children.iter().map(Node::len).sum();
        Self::Inner(Arc::new(Inner { len, children }))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(inner) => inner.len,
        }
    }

    /// Whether both are one node in memory.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf(a), Self::Leaf(b)) => Arc::ptr_eq(a, b),
            (Self::Inner(a), Self::Inner(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The smallest key below.
    pub(super) fn first(&self) -> &E::Key {
        match self {
            Self::Leaf(entries) => entries[0].key(),
            Self::Inner(inner) => inner.children[0].first(),
        }
    }

    /// Inserts below; returns what was replaced, and the right half if it split.
    pub(super) fn insert(&mut self, entry: E) -> (Option<E>, Option<Node<E>>) {
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
    pub(super) fn remove(&mut self, key: &E::Key) {
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
    pub(super) fn child_of(&self, key: &E::Key) -> usize {
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
