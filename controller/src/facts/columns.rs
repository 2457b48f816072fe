//! The columns of a row: a handful, so a sorted list, which takes a quarter of what a
//! tree's node would. There are hundreds of thousands of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::Column;
use crate::strings::StringMap;

/// Columns by name, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns(Vec<(&'static str, Column)>);

impl Columns {
    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (*other).cmp(name))
    }

    /// Sets a column; the one of that name before, if any.
    pub fn insert(&mut self, name: &'static str, column: Column) -> Option<Column> {
        match self.place(name) {
            Ok(at) => self.0.get_mut(at).map(|(_, slot)| std::mem::replace(slot, column)),
            Err(at) => {
                self.0.insert(at, (name, column));
                None
            }
        }
    }

    /// A column.
    pub fn get(&self, name: &str) -> Option<&Column> {
        self.0.get(self.place(name).ok()?).map(|(_, column)| column)
    }

    /// A column, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Column> {
        let at = self.place(name).ok()?;
        self.0.get_mut(at).map(|(_, column)| column)
    }

    /// All by name.
    pub fn iter(&self) -> impl Iterator<Item = (&&'static str, &Column)> {
        self.0.iter().map(|(name, column)| (name, column))
    }

    /// All by name, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Column)> {
        self.0.iter_mut().map(|(name, column)| (*name, column))
    }

    /// All without their names.
    pub fn values(&self) -> impl Iterator<Item = &Column> {
        self.0.iter().map(|(_, column)| column)
    }

    /// Takes no more memory than needed.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}

type Pair<'a> = (&'a &'static str, &'a Column);

impl<'a> IntoIterator for &'a Columns {
    type Item = Pair<'a>;
    type IntoIter = std::iter::Map<
        std::slice::Iter<'a, (&'static str, Column)>,
        fn(&'a (&'static str, Column)) -> Pair<'a>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(name, column)| (name, column))
    }
}

impl<const N: usize> From<[(&'static str, Column); N]> for Columns {
    fn from(pairs: [(&'static str, Column); N]) -> Self {
        let mut columns = Self::default();
        for (name, column) in pairs {
            columns.insert(name, column);
        }
        columns
    }
}

impl Serialize for Columns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Keys and values of a map.
pub(super) fn shared<K: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (K, V)>) -> StringMap {
    pairs.into_iter().map(|(k, v)| (interned(k.as_ref()), interned(v.as_ref()))).collect()
}

/// Names that every row has are in memory once: the keys of marks, the vendor, the
/// names of switches. What comes first is kept, up to a bound.
fn interned(text: &str) -> Arc<str> {
    /// Longest text and most texts that are kept.
    const BOUNDS: (usize, usize) = (24, 8192);
    thread_local! {
        static KNOWN: std::cell::RefCell<BTreeSet<Arc<str>>> = const { std::cell::RefCell::new(BTreeSet::new()) };
    }
    if text.len() > BOUNDS.0 {
        return text.into();
    }
    KNOWN.with_borrow_mut(|known| match known.get(text) {
        Some(known) => known.clone(),
        None => {
            let new: Arc<str> = text.into();
            if known.len() < BOUNDS.1 {
                known.insert(new.clone());
            }
            new
        }
    })
}

#[cfg(test)]
impl std::ops::Index<&str> for Columns {
    type Output = Column;

    fn index(&self, name: &str) -> &Column {
        self.get(name).unwrap_or_else(|| panic!("no column {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovsdb::Value;

    #[test]
    fn a_sorted_list_behaves_like_a_map() {
        let column = |text: &str| Column::Whole(Value::string(text));
        let mut columns = Columns::from([("b", column("1")), ("a", column("2"))]);
        assert_eq!(columns.insert("b", column("3")), Some(column("1")));
        assert_eq!(columns.insert("c", column("4")), None);
        assert_eq!(columns.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((columns.get("b"), columns.get("d")), (Some(&column("3")), None));
        *columns.get_mut("a").unwrap() = column("5");
        assert_eq!(columns["a"], column("5"));
        assert_eq!(columns, Columns::from([("c", column("4")), ("b", column("3")), ("a", column("5"))]));
    }
}
