//! What a verification finds: whether everything that is kept step by step equals
//! what follows from nothing but objects, leases and the replica.
//!
//! Flows in: each stage compares its own state with one made anew (`verify.rs` of
//! each). Flows out: the differences in words. Nothing is changed: a difference is a
//! bug of ours, to be reported, and a restart heals it.

use serde::Serialize;

/// Differences that are told in words; all are counted.
const TOLD: usize = 100;

/// The differences of one verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// How many.
    pub total: usize,
    /// The first ones.
    pub first: Vec<String>,
}

impl Differences {
    /// Notes one; `text` is only made when there is room for it.
    pub fn add(&mut self, text: impl FnOnce() -> String) {
        self.total += 1;
        if self.first.len() < TOLD {
            self.first.push(text());
        }
    }

    /// Notes one unless the two are equal.
    pub fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: impl FnOnce() -> String,
        kept: &T,
        fresh: &T,
    ) {
        if kept != fresh {
            self.add(|| format!("{}: kept {kept:?}, made anew {fresh:?}", what()));
        }
    }

    /// Compares two sorted maps key by key.
    pub fn maps<'a, K, V>(
        &mut self,
        what: &str,
        kept: impl IntoIterator<Item = (&'a K, &'a V)>,
        fresh: impl IntoIterator<Item = (&'a K, &'a V)>,
    ) where
        K: Ord + std::fmt::Debug + 'a,
        V: PartialEq + std::fmt::Debug + 'a,
    {
        let (mut kept, mut fresh) = (kept.into_iter().peekable(), fresh.into_iter().peekable());
        loop {
            let order = match (kept.peek(), fresh.peek()) {
                (None, None) => return,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            match order {
                std::cmp::Ordering::Less => {
                    if let Some((key, value)) = kept.next() {
                        self.add(|| format!("{what} {key:?}: kept {value:?}, not made anew"));
                    }
                }
                std::cmp::Ordering::Greater => {
                    if let Some((key, value)) = fresh.next() {
                        self.add(|| format!("{what} {key:?}: made anew {value:?}, not kept"));
                    }
                }
                std::cmp::Ordering::Equal => {
                    if let (Some((key, a)), Some((_, b))) = (kept.next(), fresh.next()) {
                        self.same(|| format!("{what} {key:?}"), a, b);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_kind_of_difference_is_found_and_memory_is_bounded() {
        let kept = BTreeMap::from([(1, "a"), (2, "b"), (4, "d")]);
        let fresh = BTreeMap::from([(2, "x"), (3, "c"), (4, "d")]);
        let mut found = Differences::default();
        found.maps("number", &kept, &fresh);
        assert_eq!(
            found.first,
            [
                "number 1: kept \"a\", not made anew",
                "number 2: kept \"b\", made anew \"x\"",
                "number 3: made anew \"c\", not kept"
            ]
        );
        (0..1000).for_each(|n| found.add(|| n.to_string()));
        assert_eq!((found.total, found.first.len()), (1003, TOLD));
    }
}
