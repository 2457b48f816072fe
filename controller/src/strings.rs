//! Strings and small maps of strings as they stand in hundreds of thousands of objects:
//! in memory once, without spare room.
//!
//! Flows in: labels, annotations, keys and values of map columns. Flows out: shared
//! slices. A tree's smallest node takes 376 bytes, which is more than most of these
//! maps hold.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

type Pair = (Arc<str>, Arc<str>);

/// A map of strings as a sorted slice: cloned by counting, searched by halving, changed
/// by copying. For maps of a handful of keys that hardly ever change.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringMap(Arc<[Pair]>);

impl StringMap {
    /// The empty map.
    pub fn new() -> Self {
        Self::default()
    }

    fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(key))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// A key, as it is stored, and its value.
    pub fn get_key_value(&self, key: &str) -> Option<(&Arc<str>, &Arc<str>)> {
        self.0.get(self.place(key).ok()?).map(|(key, value)| (key, value))
    }

    /// The key is there.
    pub fn contains_key(&self, key: &str) -> bool {
        self.place(key).is_ok()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Sets a key, which copies the map.
    pub fn insert(&mut self, key: Arc<str>, value: Arc<str>) {
        let mut pairs = self.0.to_vec();
        match self.place(&key) {
            Ok(at) => {
                if let Some(pair) = pairs.get_mut(at) {
                    pair.1 = value;
                }
            }
            Err(at) => pairs.insert(at, (key, value)),
        }
        self.0 = pairs.into();
    }

    /// With the keys of another map that this one lacks.
    pub fn with_missing_of(&self, other: &Self) -> Self {
        // Of two pairs with one key the later counts.
        other.0.iter().chain(&*self.0).cloned().collect()
    }
}

impl FromIterator<Pair> for StringMap {
    /// Of several pairs with one key the last counts.
    fn from_iter<I: IntoIterator<Item = Pair>>(pairs: I) -> Self {
        let mut pairs: Vec<Pair> = pairs.into_iter().collect();
        if pairs.is_empty() {
            return Self::default();
        }
        if !pairs.is_sorted_by(|a, b| a.0 < b.0) {
            // Stable, and turned around, so that the last of equal ones comes first.
            pairs.reverse();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            pairs.dedup_by(|later, first| later.0 == first.0);
        }
        Self(pairs.into())
    }
}

impl<const N: usize> From<[Pair; N]> for StringMap {
    fn from(pairs: [Pair; N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for StringMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = StringMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs.into_iter().collect())
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Equal values in memory once. What comes first stays until `most` are known; then the
/// table starts anew, so that values which never repeat do not pile up in a process
/// that lives for months.
#[derive(Debug)]
pub struct Shared<T: Hash + Eq> {
    known: HashSet<T>,
    most: usize,
}

impl<T: Hash + Eq + Clone> Shared<T> {
    /// Knows so many values at most.
    pub fn new(most: usize) -> Self {
        Self { known: HashSet::new(), most }
    }

    /// The value that is equal, made if it is new.
    pub fn get<Q>(&mut self, value: &Q) -> T
    where
        T: Borrow<Q> + for<'a> From<&'a Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.known.get(value) {
            Some(known) => known.clone(),
            None => self.keep(value.into()),
        }
    }

    /// The first of all equal values.
    pub fn one(&mut self, value: T) -> T {
        match self.known.get(&value) {
            Some(known) => known.clone(),
            None => self.keep(value),
        }
    }

    fn keep(&mut self, value: T) -> T {
        if self.known.len() >= self.most {
            self.known.clear();
        }
        self.known.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn pairs(list: &[(String, String)]) -> impl Iterator<Item = Pair> {
        list.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into()))
    }

    proptest! {
        /// Whatever is put in, in whatever order and however often, it is what a tree would hold.
        #[test]
        fn a_slice_behaves_like_a_tree(
            list in prop::collection::vec(("[a-d]{0,2}", "[a-z]{0,2}"), 0..12),
            more in prop::collection::vec(("[a-d]{0,2}", "[a-z]{0,2}"), 0..6),
        ) {
            let mut map: StringMap = pairs(&list).collect();
            let mut tree: BTreeMap<Arc<str>, Arc<str>> = pairs(&list).collect();
            prop_assert!(map.iter().eq(tree.iter()));
            for (key, value) in pairs(&more) {
                map.insert(key.clone(), value.clone());
                tree.insert(key, value);
            }
            prop_assert!(map.iter().eq(tree.iter()));
            prop_assert_eq!((map.len(), map.is_empty()), (tree.len(), tree.is_empty()));
            for key in ["", "a", "ab", "d", "zz"] {
                prop_assert_eq!(map.get(key), tree.get(key));
                prop_assert_eq!(map.contains_key(key), tree.contains_key(key));
            }
            prop_assert_eq!(format!("{map:?}"), format!("{tree:?}"));
            let json = serde_json::to_string(&map).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&tree).unwrap());
            prop_assert_eq!(serde_json::from_str::<StringMap>(&json).unwrap(), map.clone());
            let other: StringMap = pairs(&more).chain([("q".into(), "1".into())]).collect();
            tree.entry("q".into()).or_insert_with(|| "1".into());
            prop_assert!(map.with_missing_of(&other).iter().eq(tree.iter()));
        }
    }

    #[test]
    fn equal_values_are_one_and_the_table_is_bounded() {
        let mut shared: Shared<Arc<str>> = Shared::new(8);
        let (a, b) = (shared.get("app"), shared.get("app"));
        assert!(Arc::ptr_eq(&a, &b));
        assert!(Arc::ptr_eq(&a, &shared.one("app".into())));
        for number in 0..100 {
            shared.get(number.to_string().as_str());
        }
        assert!(shared.known.len() <= 8);
    }
}
