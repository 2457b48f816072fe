//! Iteration in ascending order.

use super::Node;

/// Ascending iterator over the entries of a collection.
pub(crate) struct Iter<'a, E> {
    pub(super) left: usize,
    /// What is still to visit, outermost first.
    pub(super) stack: Vec<std::slice::Iter<'a, Node<E>>>,
    pub(super) current: std::slice::Iter<'a, E>,
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
