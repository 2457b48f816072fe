//! The public faces of `sorted`: [`AtomSet`] and [`AtomMap`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::sorted::{self, Entry, Sorted};
use crate::value::Atom;

impl Entry for Atom {
    type Key = Atom;
    fn key(&self) -> &Atom {
        self
    }
}

impl Entry for (Atom, Atom) {
    type Key = Atom;
    fn key(&self) -> &Atom {
        &self.0
    }
}

/// A set of atoms: an ordered, persistent stand-in for `BTreeSet<Atom>` (see the
/// crate's notes on cost). `collect()` or `BTreeSet::into()` make one.
#[derive(Clone, PartialEq)]
pub struct AtomSet(Sorted<Atom>);

impl AtomSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Sorted::new())
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether `atom` is an element.
    pub fn contains(&self, atom: &Atom) -> bool {
        self.0.get(atom).is_some()
    }
    /// The elements in ascending order.
    pub fn iter(&self) -> SetIter<'_> {
        SetIter(self.0.iter())
    }
    /// The smallest element.
    pub fn first(&self) -> Option<&Atom> {
        self.iter().next()
    }
    /// Adds an element; `false` when it was there.
    pub fn insert(&mut self, atom: Atom) -> bool {
        if self.contains(&atom) {
            return false;
        }
        self.0.insert(atom);
        true
    }
    /// Removes an element; `false` when it was not there.
    pub fn remove(&mut self, atom: &Atom) -> bool {
        self.0.remove(atom).is_some()
    }
    /// Whether every element is in `other` too.
    pub fn is_subset(&self, other: &AtomSet) -> bool {
        self.len() <= other.len() && self.iter().all(|a| other.contains(a))
    }
    /// Whether no element is in `other`.
    pub fn is_disjoint(&self, other: &AtomSet) -> bool {
        !self.iter().any(|a| other.contains(a))
    }
    /// Elements that are not in `other`.
    pub fn difference<'a>(&'a self, other: &'a AtomSet) -> impl Iterator<Item = &'a Atom> + 'a {
        self.iter().filter(|a| !other.contains(a))
    }
    /// Elements that went and elements that came between this version of a set and
    /// a newer one. Cheap for two versions of one big set: what they share is not
    /// looked at.
    pub fn delta(&self, newer: &AtomSet) -> (Vec<Atom>, Vec<Atom>) {
        self.0.delta(&newer.0)
    }
    /// Elements that are in `other` too.
    pub fn intersection<'a>(&'a self, other: &'a AtomSet) -> impl Iterator<Item = &'a Atom> + 'a {
        self.iter().filter(|a| other.contains(a))
    }
    /// Toggles every element of `other`: what a `modify` update means by a set.
    pub fn symmetric_difference_with(&mut self, other: &AtomSet) {
        // A few toggles copy a chunk each; many are cheaper as one merge.
        if other.len() <= 8 || other.len() < self.len() / 64 {
            for atom in other {
                if !self.remove(atom) {
                    self.insert(atom.clone());
                }
            }
        } else {
            let keep = self.difference(other).cloned();
            let all: Vec<Atom> = keep.chain(other.difference(self).cloned()).collect();
            *self = all.into_iter().collect();
        }
    }
}

/// A map of atoms: an ordered, persistent stand-in for `BTreeMap<Atom, Atom>`.
#[derive(Clone, PartialEq)]
pub struct AtomMap(Sorted<(Atom, Atom)>);

impl AtomMap {
    /// The empty map.
    pub const fn new() -> Self {
        Self(Sorted::new())
    }
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The value of `key`.
    pub fn get(&self, key: &Atom) -> Option<&Atom> {
        self.0.get(key).map(|(_, v)| v)
    }
    /// The string value of a string key, found without building an atom.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| k.as_str() == Some(key)).and_then(|(_, v)| v.as_str())
    }
    /// Whether `key` is there.
    pub fn contains_key(&self, key: &Atom) -> bool {
        self.get(key).is_some()
    }
    /// The pairs in ascending order of keys.
    pub fn iter(&self) -> MapIter<'_> {
        MapIter(self.0.iter())
    }
    /// The keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &Atom> + '_ {
        self.iter().map(|(k, _)| k)
    }
    /// The values in the order of keys.
    pub fn values(&self) -> impl Iterator<Item = &Atom> + '_ {
        self.iter().map(|(_, v)| v)
    }
    /// Sets a key; returns its former value.
    pub fn insert(&mut self, key: Atom, value: Atom) -> Option<Atom> {
        self.0.insert((key, value)).map(|(_, v)| v)
    }
    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &Atom) -> Option<Atom> {
        self.0.remove(key).map(|(_, v)| v)
    }
}

/// Iterator over an [`AtomSet`].
#[derive(Clone)]
pub struct SetIter<'a>(sorted::Iter<'a, Atom>);

impl<'a> Iterator for SetIter<'a> {
    type Item = &'a Atom;
    fn next(&mut self) -> Option<&'a Atom> {
        self.0.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}
impl ExactSizeIterator for SetIter<'_> {}

/// Iterator over an [`AtomMap`].
#[derive(Clone)]
pub struct MapIter<'a>(sorted::Iter<'a, (Atom, Atom)>);

impl<'a> Iterator for MapIter<'a> {
    type Item = (&'a Atom, &'a Atom);
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(k, v)| (k, v))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}
impl ExactSizeIterator for MapIter<'_> {}

macro_rules! common {
    ($ty:ident, $iter:ident, $item:ty, $refitem:ty, $std:ty, $debug:ident) => {
        impl Default for $ty {
            fn default() -> Self {
                Self::new()
            }
        }
        impl Eq for $ty {}
        impl PartialOrd for $ty {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for $ty {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.compare(&other.0)
            }
        }
        impl Hash for $ty {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.len().hash(state);
                for item in self.iter() {
                    item.hash(state);
                }
            }
        }
        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.$debug().entries(self.iter()).finish()
            }
        }
        impl FromIterator<$item> for $ty {
            fn from_iter<I: IntoIterator<Item = $item>>(iter: I) -> Self {
                Self(Sorted::from_unsorted(iter.into_iter().collect()))
            }
        }
        impl From<$std> for $ty {
            fn from(std: $std) -> Self {
                std.into_iter().collect()
            }
        }
        impl From<$ty> for $std {
            fn from(ours: $ty) -> Self {
                ours.into_iter().collect()
            }
        }
        impl<const N: usize> From<[$item; N]> for $ty {
            fn from(items: [$item; N]) -> Self {
                items.into_iter().collect()
            }
        }
        impl<'a> IntoIterator for &'a $ty {
            type Item = $refitem;
            type IntoIter = $iter<'a>;
            fn into_iter(self) -> $iter<'a> {
                self.iter()
            }
        }
        impl IntoIterator for $ty {
            type Item = $item;
            type IntoIter = std::vec::IntoIter<$item>;
            fn into_iter(self) -> Self::IntoIter {
                self.0.iter().cloned().collect::<Vec<_>>().into_iter()
            }
        }
    };
}

common!(AtomSet, SetIter, Atom, &'a Atom, BTreeSet<Atom>, debug_set);
common!(AtomMap, MapIter, (Atom, Atom), (&'a Atom, &'a Atom), BTreeMap<Atom, Atom>, debug_map);

impl Extend<Atom> for AtomSet {
    fn extend<I: IntoIterator<Item = Atom>>(&mut self, iter: I) {
        for atom in iter {
            self.insert(atom);
        }
    }
}

impl Extend<(Atom, Atom)> for AtomMap {
    fn extend<I: IntoIterator<Item = (Atom, Atom)>>(&mut self, iter: I) {
        for (key, value) in iter {
            self.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Edit {
        Insert(i64, i64),
        Remove(i64),
    }

    fn edits() -> impl Strategy<Value = Vec<Edit>> {
        let edit = prop_oneof![
            3 => (0..900i64, 0..3i64).prop_map(|(k, v)| Edit::Insert(k, v)),
            2 => (0..900i64).prop_map(Edit::Remove),
        ];
        prop::collection::vec(edit, 0..2500)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn a_delta_turns_one_version_into_the_other(start in prop::collection::vec(0..900i64, 0..900), edits in edits()) {
            let old: AtomSet = start.iter().map(|&i| Atom::Integer(i)).collect();
            let mut new = old.clone();
            for edit in edits {
                match edit {
                    Edit::Insert(k, _) => new.insert(k.into()),
                    Edit::Remove(k) => new.remove(&k.into()),
                };
            }
            let (gone, come) = old.delta(&new);
            prop_assert_eq!(gone, old.difference(&new).cloned().collect::<Vec<_>>());
            prop_assert_eq!(come, new.difference(&old).cloned().collect::<Vec<_>>());
        }

        #[test]
        fn behaves_like_the_standard_collections(start in prop::collection::vec(0..900i64, 0..900), edits in edits()) {
            let mut set: AtomSet = start.iter().map(|&i| Atom::Integer(i)).collect();
            let mut std_set: BTreeSet<Atom> = start.iter().map(|&i| Atom::Integer(i)).collect();
            let mut map = AtomMap::new();
            let mut std_map = BTreeMap::new();
            let snapshot = (set.clone(), std_set.clone());
            for edit in edits {
                match edit {
                    Edit::Insert(k, v) => {
                        prop_assert_eq!(set.insert(k.into()), std_set.insert(k.into()));
                        prop_assert_eq!(map.insert(k.into(), v.into()), std_map.insert(Atom::from(k), Atom::from(v)));
                    }
                    Edit::Remove(k) => {
                        prop_assert_eq!(set.remove(&k.into()), std_set.remove(&k.into()));
                        prop_assert_eq!(map.remove(&k.into()), std_map.remove(&Atom::from(k)));
                    }
                }
            }
            prop_assert_eq!(set.len(), std_set.len());
            prop_assert_eq!(BTreeSet::from(set.clone()), std_set.clone());
            prop_assert_eq!(BTreeMap::from(map.clone()), std_map.clone());
            prop_assert_eq!(&set, &AtomSet::from(std_set));
            prop_assert_eq!(&map, &AtomMap::from(std_map));
            // The snapshot taken before was not touched.
            prop_assert_eq!(BTreeSet::from(snapshot.0), snapshot.1);
        }

        #[test]
        fn symmetric_difference_matches_the_model(a in prop::collection::btree_set(0..600i64, 0..500), b in prop::collection::btree_set(0..600i64, 0..300)) {
            let mut set: AtomSet = a.iter().map(|&i| Atom::Integer(i)).collect();
            let other: AtomSet = b.iter().map(|&i| Atom::Integer(i)).collect();
            set.symmetric_difference_with(&other);
            let model: AtomSet = a.symmetric_difference(&b).map(|&i| Atom::Integer(i)).collect();
            prop_assert_eq!(set, model);
        }
    }

    #[test]
    fn later_pair_wins_when_collected() {
        let map: AtomMap =
            [("a".into(), "1".into()), ("b".into(), "2".into()), ("a".into(), "3".into())].into();
        assert_eq!(map.get_str("a"), Some("3"));
        assert_eq!(map.len(), 2);
    }
}
