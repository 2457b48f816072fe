//! Sets of addresses as sorted, disjoint, non-adjacent intervals.
//!
//! An IPv6 /64 with three holes is four entries, so its size costs nothing;
//! every operation is logarithmic in the number of intervals.

use std::collections::BTreeMap;

/// A set of `u128` stored as maximal closed intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet {
    /// First → last of every interval.
    spans: BTreeMap<u128, u128>,
    /// Number of elements, saturating.
    count: u128,
}

/// Number of elements of a closed interval, saturating for the whole space.
fn size(first: u128, last: u128) -> u128 {
    (last - first).saturating_add(1)
}

/// Looks into sets so far, for tests that count.
#[cfg(test)]
pub(super) mod steps {
    use std::cell::Cell;

    thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

    pub(in super::super) fn taken() -> u64 {
        STEPS.get()
    }

    pub(super) fn step() {
        STEPS.set(STEPS.get() + 1);
    }
}

/// One look into a set.
#[inline]
fn step() {
    #[cfg(test)]
    steps::step();
}

impl IntervalSet {
    /// The set of `first..=last` (empty if they are in the wrong order).
    pub(crate) fn of(first: u128, last: u128) -> Self {
        let mut set = Self::default();
        set.insert(first, last);
        set
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> u128 {
        self.count
    }

    /// Intervals in ascending order.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u128, u128)> + '_ {
        self.spans.iter().map(|(a, b)| (*a, *b))
    }

    /// No element.
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The elements inside `first..=last`. Costs as much as there are intervals
    /// inside, not as the set has.
    pub(crate) fn within(&self, first: u128, last: u128) -> Self {
        let mut set = Self::default();
        let before = self.spans.range(..=first).next_back().map(|(a, b)| (*a, *b));
        let inside = self.spans.range(first..=last.max(first)).map(|(a, b)| (*a, *b));
        for (a, b) in before.into_iter().chain(inside) {
            let (a, b) = (a.max(first), b.min(last));
            if a <= b {
                set.insert(a, b);
            }
        }
        set
    }

    /// The two sets have an element in common; the lowest such.
    pub(crate) fn meets(&self, other: &Self) -> Option<u128> {
        other.spans().find_map(|(first, last)| self.within(first, last).spans().next().map(|(a, _)| a))
    }

    /// Membership.
    pub(crate) fn contains(&self, x: u128) -> bool {
        step();
        self.spans.range(..=x).next_back().is_some_and(|(_, last)| *last >= x)
    }

    /// The lowest element for which `skip` is false.
    pub(crate) fn lowest(&self, skip: impl Fn(u128) -> bool) -> Option<u128> {
        self.spans().find_map(|(first, last)| {
            (first..=last).find(|x| {
                step();
                !skip(*x)
            })
        })
    }

    /// Adds `first..=last`, merging what it touches.
    pub(crate) fn insert(&mut self, first: u128, last: u128) {
        if first > last {
            return;
        }
        let (mut lo, mut hi) = (first, last);
        // Every interval that overlaps or is adjacent begins at or before last + 1;
        // walk them from the right.
        while let Some((&a, &b)) = self.spans.range(..=last.saturating_add(1)).next_back() {
            step();
            if b.saturating_add(1) < first {
                break;
            }
            lo = lo.min(a);
            hi = hi.max(b);
            self.spans.remove(&a);
            self.count -= size(a, b);
        }
        self.spans.insert(lo, hi);
        self.count = self.count.saturating_add(size(lo, hi));
    }

    /// Removes `first..=last`.
    pub(crate) fn remove(&mut self, first: u128, last: u128) {
        if first > last {
            return;
        }
        while let Some((&a, &b)) = self.spans.range(..=last).next_back() {
            step();
            if b < first {
                break;
            }
            self.spans.remove(&a);
            self.count -= size(a, b);
            if b > last {
                self.spans.insert(last + 1, b);
                self.count += size(last + 1, b);
            }
            if a < first {
                self.spans.insert(a, first - 1);
                self.count += size(a, first - 1);
            }
        }
    }

    /// Adds all elements of `other`.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (a, b) in other.spans() {
            self.insert(a, b);
        }
    }

    /// Removes all elements of `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (a, b) in other.spans() {
            self.remove(a, b);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any sequence of inserts and removals equals the same on a plain set, and
        /// the intervals stay maximal.
        #[test]
        fn behaves_like_a_set(ops in prop::collection::vec((any::<bool>(), 0u128..60, 0u128..12), 0..60)) {
            let mut set = IntervalSet::default();
            let mut model = BTreeSet::new();
            for (add, first, len) in ops {
                let last = first + len;
                if add {
                    set.insert(first, last);
                    model.extend(first..=last);
                } else {
                    set.remove(first, last);
                    model.retain(|x| *x < first || *x > last);
                }
                prop_assert_eq!(set.len(), model.len() as u128);
                let listed: Vec<u128> = set.spans().flat_map(|(a, b)| a..=b).collect();
                prop_assert_eq!(listed, model.iter().copied().collect::<Vec<_>>());
                let spans: Vec<_> = set.spans().collect();
                prop_assert!(spans.windows(2).all(|w| w[0].1 + 1 < w[1].0));
                prop_assert_eq!(set.lowest(|x| x % 2 == 0), model.iter().copied().find(|x| x % 2 == 1));
                for x in 0..75 {
                    prop_assert_eq!(set.contains(x), model.contains(&x));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn parts_and_meetings(
            members in prop::collection::vec(any::<bool>(), 80),
            others in prop::collection::vec(any::<bool>(), 80),
            first in 0u128..80, length in 0u128..80,
        ) {
            let set_of = |members: &[bool]| {
                let mut set = IntervalSet::default();
                for (x, _) in (0u128..).zip(members).filter(|(_, member)| **member) {
                    set.insert(x, x);
                }
                set
            };
            let (a, b) = (set_of(&members), set_of(&others));
            let inside = a.within(first, first + length);
            let listed: Vec<u128> = inside.spans().flat_map(|(a, b)| a..=b).collect();
            let plain: Vec<u128> = (first..=first + length).filter(|x| a.contains(*x)).collect();
            prop_assert_eq!(inside.len(), plain.len() as u128);
            prop_assert_eq!(listed, plain);
            prop_assert_eq!(a.meets(&b), (0..80).find(|x| a.contains(*x) && b.contains(*x)));
        }
    }

    #[test]
    fn the_ends_of_the_space() {
        let mut set = IntervalSet::of(0, u128::MAX);
        assert_eq!(set.len(), u128::MAX);
        set.remove(u128::MAX, u128::MAX);
        set.remove(0, 0);
        assert!(!set.contains(u128::MAX) && !set.contains(0) && set.contains(1));
        assert_eq!(set.spans().collect::<Vec<_>>(), [(1, u128::MAX - 1)]);
    }
}
