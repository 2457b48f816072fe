//! Values of columns: atoms, sets of atoms, maps of atoms (RFC 7047 §3.2, §5.1).
//!
//! A replica always holds the shape that the schema prescribes: a column with
//! exactly one value is an [`Value::Atom`], an optional column or a set is a
//! [`Value::Set`] (of zero or one element for optional ones), a map is a
//! [`Value::Map`]. Callers that build values need not care: an atom stands for a
//! one-element set wherever a set is expected, on the wire and in
//! [`Value::shaped`].

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;

pub use crate::collections::{AtomMap, AtomSet, MapIter, SetIter};

/// A real number with a total order, so that atoms can be sorted and hashed.
/// Negative zero is stored as zero; JSON knows no other odd values.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderedReal(f64);

impl OrderedReal {
    /// Wraps a number.
    pub fn new(value: f64) -> Self {
        Self(if value == 0.0 { 0.0 } else { value })
    }
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for OrderedReal {
    fn eq(&self, other: &Self) -> bool {
        self.0.total_cmp(&other.0) == Ordering::Equal
    }
}
impl Eq for OrderedReal {}
impl PartialOrd for OrderedReal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for OrderedReal {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl Hash for OrderedReal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
impl From<f64> for OrderedReal {
    fn from(value: f64) -> Self {
        Self::new(value)
    }
}

/// One indivisible value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// A 64-bit signed integer.
    Integer(i64),
    /// A double.
    Real(OrderedReal),
    /// A truth value.
    Boolean(bool),
    /// A string.
    String(Arc<str>),
    /// A reference to a row, or a plain UUID.
    Uuid(Uuid),
    /// A reference to the row that an `insert` of the same transaction gives this
    /// `uuid-name`. Only in requests: a server stores and tells UUIDs.
    Named(Arc<str>),
}

impl Atom {
    /// A reference by `uuid-name`.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self::Named(name.into())
    }
    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(s) => Some(s),
            _ => None,
        }
    }
    /// The integer, if it is one.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(i) => Some(*i),
            _ => None,
        }
    }
    /// The real number, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Real(r) => Some(r.get()),
            _ => None,
        }
    }
    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Boolean(b) => Some(*b),
            _ => None,
        }
    }
    /// The UUID, if it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        match self {
            Self::Uuid(u) => Some(*u),
            _ => None,
        }
    }
}

impl fmt::Debug for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(i) => write!(f, "{i}"),
            Self::Real(r) => write!(f, "{:?}", r.get()),
            Self::Boolean(b) => write!(f, "{b}"),
            Self::String(s) => write!(f, "{s:?}"),
            Self::Uuid(u) => write!(f, "{u}"),
            Self::Named(name) => write!(f, "named {name}"),
        }
    }
}

macro_rules! atom_from {
    ($($ty:ty => |$v:ident| $make:expr),* $(,)?) => {$(
        impl From<$ty> for Atom {
            fn from($v: $ty) -> Self {
                $make
            }
        }
        impl From<$ty> for Value {
            fn from(v: $ty) -> Self {
                Value::Atom(v.into())
            }
        }
    )*};
}
atom_from! {
    &str => |v| Atom::String(v.into()),
    String => |v| Atom::String(v.into()),
    &String => |v| Atom::String(v.as_str().into()),
    Arc<str> => |v| Atom::String(v),
    &Arc<str> => |v| Atom::String(v.clone()),
    i64 => |v| Atom::Integer(v),
    f64 => |v| Atom::Real(v.into()),
    bool => |v| Atom::Boolean(v),
    Uuid => |v| Atom::Uuid(v),
}

/// The value of one column of one row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// A scalar.
    Atom(Atom),
    /// A set, or an optional value.
    Set(AtomSet),
    /// A map.
    Map(AtomMap),
}

impl Value {
    /// A string scalar.
    pub fn string(s: impl Into<Arc<str>>) -> Self {
        Self::Atom(Atom::String(s.into()))
    }
    /// An integer scalar.
    pub fn integer(i: i64) -> Self {
        Self::Atom(Atom::Integer(i))
    }
    /// A boolean scalar.
    pub fn boolean(b: bool) -> Self {
        Self::Atom(Atom::Boolean(b))
    }
    /// A UUID scalar.
    pub fn uuid(u: Uuid) -> Self {
        Self::Atom(Atom::Uuid(u))
    }
    /// A set of strings.
    pub fn strings<I>(items: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        Self::Set(items.into_iter().map(|s| Atom::String(s.into())).collect())
    }
    /// A set of integers.
    pub fn integers(items: impl IntoIterator<Item = i64>) -> Self {
        Self::Set(items.into_iter().map(Atom::Integer).collect())
    }
    /// A set of references.
    pub fn uuids(items: impl IntoIterator<Item = Uuid>) -> Self {
        Self::Set(items.into_iter().map(Atom::Uuid).collect())
    }
    /// A map of strings to strings.
    pub fn string_map<I, K, V>(items: I) -> Self
    where
        I: IntoIterator<Item = (K, V)>,
        K: Into<Arc<str>>,
        V: Into<Arc<str>>,
    {
        Self::Map(items.into_iter().map(|(k, v)| (Atom::String(k.into()), Atom::String(v.into()))).collect())
    }
    /// The empty set (an optional column without a value).
    pub fn empty_set() -> Self {
        Self::Set(AtomSet::new())
    }
    /// The empty map.
    pub fn empty_map() -> Self {
        Self::Map(AtomMap::new())
    }
    /// An optional value: a set of none or one.
    pub fn optional(value: Option<impl Into<Atom>>) -> Self {
        Self::Set(value.into_iter().map(Into::into).collect())
    }

    /// The one atom of a scalar or of a set with exactly one element.
    pub fn single(&self) -> Option<&Atom> {
        match self {
            Self::Atom(atom) => Some(atom),
            Self::Set(set) if set.len() == 1 => set.first(),
            _ => None,
        }
    }
    /// The string of a scalar, or of an optional column that has one.
    pub fn as_str(&self) -> Option<&str> {
        self.single()?.as_str()
    }
    /// The integer of a scalar, or of an optional column that has one.
    pub fn as_i64(&self) -> Option<i64> {
        self.single()?.as_i64()
    }
    /// The number of a scalar, or of an optional column that has one.
    pub fn as_f64(&self) -> Option<f64> {
        self.single()?.as_f64()
    }
    /// The boolean of a scalar, or of an optional column that has one.
    pub fn as_bool(&self) -> Option<bool> {
        self.single()?.as_bool()
    }
    /// The UUID of a scalar, or of an optional column that has one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        self.single()?.as_uuid()
    }
    /// The set of a set or optional column.
    pub fn as_set(&self) -> Option<&AtomSet> {
        match self {
            Self::Set(set) => Some(set),
            _ => None,
        }
    }
    /// The map of a map column.
    pub fn as_map(&self) -> Option<&AtomMap> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }
    /// Whether it is an empty set or an empty map.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Atom(_) => false,
            Self::Set(set) => set.is_empty(),
            Self::Map(map) => map.is_empty(),
        }
    }
    /// The atoms of a scalar or set; nothing for a map.
    pub fn atoms(&self) -> impl Iterator<Item = &Atom> + '_ {
        let (one, many) = match self {
            Self::Atom(atom) => (Some(atom), None),
            Self::Set(set) => (None, Some(set.iter())),
            Self::Map(_) => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
    /// The strings of a scalar or set.
    pub fn set_strings(&self) -> impl Iterator<Item = &str> + '_ {
        self.atoms().filter_map(Atom::as_str)
    }
    /// The UUIDs of a scalar or set.
    pub fn set_uuids(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.atoms().filter_map(Atom::as_uuid)
    }
    /// The value of a key in a map of strings.
    pub fn map_get(&self, key: &str) -> Option<&str> {
        self.as_map()?.get_str(key)
    }
    /// The pairs of a map of strings.
    pub fn map_strings(&self) -> impl Iterator<Item = (&str, &str)> + '_ {
        self.as_map().into_iter().flatten().filter_map(|(k, v)| Some((k.as_str()?, v.as_str()?)))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Atom(atom) => atom.fmt(f),
            Self::Set(set) => set.fmt(f),
            Self::Map(map) => map.fmt(f),
        }
    }
}

impl From<Atom> for Value {
    fn from(atom: Atom) -> Self {
        Self::Atom(atom)
    }
}
impl From<AtomSet> for Value {
    fn from(set: AtomSet) -> Self {
        Self::Set(set)
    }
}
impl From<AtomMap> for Value {
    fn from(map: AtomMap) -> Self {
        Self::Map(map)
    }
}
impl From<std::collections::BTreeSet<Atom>> for Value {
    fn from(set: std::collections::BTreeSet<Atom>) -> Self {
        Self::Set(set.into())
    }
}
impl From<std::collections::BTreeMap<Atom, Atom>> for Value {
    fn from(map: std::collections::BTreeMap<Atom, Atom>) -> Self {
        Self::Map(map.into())
    }
}
