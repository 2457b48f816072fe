//! The difference of two versions of one collection.

use super::{Entry, Node, Sorted};

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
