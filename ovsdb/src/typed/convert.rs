//! Rust types for atoms and columns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use super::Column;
use crate::value::{Atom, AtomMap, AtomSet, Value};

/// A Rust type that an atom can be read as.
pub trait FromAtom: Sized {
    /// Converts, if the atom is of that type.
    fn from_atom(atom: &Atom) -> Option<Self>;
}

/// A Rust type that can be written as an atom.
pub trait ToAtom {
    /// Converts.
    fn to_atom(&self) -> Atom;
}

/// A Rust type that a column can be read as.
pub trait FromColumn: Sized {
    /// Converts a column's value; `None` stands for a column that is not there.
    fn from_column(value: Option<&Value>) -> Result<Self, String>;
}

/// A Rust type that can be written to a column.
pub trait ToColumn {
    /// Converts; `None` leaves the column out.
    fn to_column(&self) -> Option<Value>;
}

/// The value of a column that must be there.
pub(crate) fn held(value: Option<&Value>) -> Result<&Value, String> {
    value.ok_or_else(|| "the server has no such column (a field that may lack it is a `Column`)".to_owned())
}

pub(crate) fn unfit<T>(value: &Value) -> String {
    let name = std::any::type_name::<T>();
    format!(
        "{value:?} is no {}",
        if name.contains('<') { name } else { name.rsplit("::").next().unwrap_or(name) }
    )
}

/// Reads a column of exactly one value.
#[doc(hidden)]
pub fn scalar<T: FromAtom>(value: Option<&Value>) -> Result<T, String> {
    let value = held(value)?;
    value.single().and_then(T::from_atom).ok_or_else(|| unfit::<T>(value))
}

macro_rules! atoms {
    ($($ty:ty => |$atom:ident| $from:expr, |$own:ident| $to:expr;)*) => {$(
        impl FromAtom for $ty {
            fn from_atom($atom: &Atom) -> Option<Self> {
                $from
            }
        }
        impl ToAtom for $ty {
            fn to_atom(&self) -> Atom {
                let $own = self;
                $to
            }
        }
        impl FromColumn for $ty {
            fn from_column(value: Option<&Value>) -> Result<Self, String> {
                scalar(value)
            }
        }
        impl ToColumn for $ty {
            fn to_column(&self) -> Option<Value> {
                Some(Value::Atom(self.to_atom()))
            }
        }
    )*};
}

atoms! {
    String => |atom| atom.as_str().map(str::to_owned), |own| Atom::from(own);
    Arc<str> => |atom| match atom {
        Atom::String(s) => Some(s.clone()),
        _ => None,
    }, |own| Atom::from(own);
    i64 => |atom| atom.as_i64(), |own| Atom::from(*own);
    f64 => |atom| atom.as_f64(), |own| Atom::from(*own);
    bool => |atom| atom.as_bool(), |own| Atom::from(*own);
    Uuid => |atom| atom.as_uuid(), |own| Atom::from(*own);
    Atom => |atom| Some(atom.clone()), |own| own.clone();
}

/// Columns that a server may lack.
impl<T: FromColumn> FromColumn for Column<T> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None => Ok(Self::Absent),
            Some(_) => T::from_column(value).map(Self::Present),
        }
    }
}
impl<T: ToColumn> ToColumn for Column<T> {
    fn to_column(&self) -> Option<Value> {
        self.present().and_then(T::to_column)
    }
}

/// Optional columns.
impl<T: FromAtom> FromColumn for Option<T> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let value = held(value)?;
        if value.is_empty() {
            return Ok(None);
        }
        value.single().and_then(T::from_atom).map(Some).ok_or_else(|| unfit::<Option<T>>(value))
    }
}
impl<T: ToAtom> ToColumn for Option<T> {
    fn to_column(&self) -> Option<Value> {
        Some(Value::optional(self.as_ref().map(T::to_atom)))
    }
}

/// Sets.
impl<T: FromAtom + Ord> FromColumn for BTreeSet<T> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let value = held(value)?;
        let all = value.atoms().map(T::from_atom).collect::<Option<Self>>();
        all.filter(|_| value.as_map().is_none()).ok_or_else(|| unfit::<Self>(value))
    }
}
impl<T: ToAtom> ToColumn for BTreeSet<T> {
    fn to_column(&self) -> Option<Value> {
        Some(Value::Set(self.iter().map(T::to_atom).collect()))
    }
}

/// Maps.
impl<K: FromAtom + Ord, V: FromAtom> FromColumn for BTreeMap<K, V> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let value = held(value)?;
        let map = value.as_map().ok_or_else(|| unfit::<Self>(value))?;
        let pairs = map.iter().map(|(k, v)| Some((K::from_atom(k)?, V::from_atom(v)?)));
        pairs.collect::<Option<Self>>().ok_or_else(|| unfit::<Self>(value))
    }
}
impl<K: ToAtom, V: ToAtom> ToColumn for BTreeMap<K, V> {
    fn to_column(&self) -> Option<Value> {
        Some(Value::Map(self.iter().map(|(k, v)| (k.to_atom(), v.to_atom())).collect()))
    }
}

/// The set as the replica holds it: shares its memory.
impl FromColumn for AtomSet {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let value = held(value)?;
        value.as_set().cloned().ok_or_else(|| unfit::<Self>(value))
    }
}
impl ToColumn for AtomSet {
    fn to_column(&self) -> Option<Value> {
        Some(Value::Set(self.clone()))
    }
}

/// The map as the replica holds it: shares its memory.
impl FromColumn for AtomMap {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let value = held(value)?;
        value.as_map().cloned().ok_or_else(|| unfit::<Self>(value))
    }
}
impl ToColumn for AtomMap {
    fn to_column(&self) -> Option<Value> {
        Some(Value::Map(self.clone()))
    }
}
