//! Typed rows: structs that name only the columns used.
//!
//! ```
//! use std::collections::{BTreeMap, BTreeSet};
//! use std::sync::Arc;
//! ovsdb::table! {
//!     /// A port of a logical switch.
//!     #[derive(Clone, Debug, PartialEq)]
//!     pub struct SwitchPort in "Logical_Switch_Port" {
//!         /// Its name.
//!         pub name: Arc<str>,
//!         /// Its type; the column's name is a Rust keyword.
//!         pub kind as "type": String,
//!         /// An optional column, and a column that a server may lack.
//!         pub tag: Option<i64>,
//!         pub addresses: BTreeSet<String>,
//!         pub external_ids: BTreeMap<String, String>,
//!     }
//! }
//! assert_eq!(SwitchPort::TABLE, "Logical_Switch_Port");
//! assert_eq!(SwitchPort::COLUMNS, ["name", "type", "tag", "addresses", "external_ids"]);
//!
//! use ovsdb::{Operation, Value, testing::{Database, northbound}};
//! let mut db = Database::new(northbound());
//! let (port, switch) = (uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2));
//! db.must(&[
//!     Operation::insert("Logical_Switch_Port").uuid(port).column("name", "p").column("tag", 7i64).build(),
//!     Operation::insert("Logical_Switch").uuid(switch).column("ports", Value::uuids([port])).build(),
//! ]);
//! let replica = db.replica();
//! let row = replica.row(SwitchPort::TABLE, &port).unwrap();
//! let typed = SwitchPort::try_from(&**row).unwrap();
//! assert_eq!((typed.uuid, &*typed.name, typed.tag), (port, "p", Some(7)));
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::value::{Atom, AtomMap, AtomSet, Value};

/// A row that does not fit its typed struct.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{table}.{column}: {problem}")]
pub struct TypeError {
    /// The table.
    pub table: &'static str,
    /// The column.
    pub column: &'static str,
    /// What does not fit.
    pub problem: String,
}

/// A Rust type for one atom.
pub trait FromAtom: Sized {
    /// Converts, if the atom is of that type.
    fn from_atom(atom: &Atom) -> Option<Self>;
}

macro_rules! from_atom {
    ($($ty:ty => |$atom:ident| $convert:expr),* $(,)?) => {$(
        impl FromAtom for $ty {
            fn from_atom($atom: &Atom) -> Option<Self> {
                $convert
            }
        }
        impl FromColumn for $ty {
            fn from_column(value: Option<&Value>) -> Result<Self, String> {
                let value = value.ok_or("the server has no such column")?;
                value.single().and_then(Self::from_atom).ok_or_else(|| unfit::<Self>(value))
            }
        }
    )*};
}

from_atom! {
    String => |atom| atom.as_str().map(str::to_owned),
    Arc<str> => |atom| match atom {
        Atom::String(s) => Some(s.clone()),
        _ => None,
    },
    i64 => |atom| atom.as_i64(),
    f64 => |atom| atom.as_f64(),
    bool => |atom| atom.as_bool(),
    Uuid => |atom| atom.as_uuid(),
    Atom => |atom| Some(atom.clone()),
}

/// A Rust type for a column.
pub trait FromColumn: Sized {
    /// Converts a column's value; `None` stands for a column that the replica
    /// does not hold.
    fn from_column(value: Option<&Value>) -> Result<Self, String>;
}

fn unfit<T>(value: &Value) -> String {
    format!("{value:?} is no {}", std::any::type_name::<T>())
}

/// Optional columns, and columns that a server may lack.
impl<T: FromAtom> FromColumn for Option<T> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None => Ok(None),
            Some(value) if value.is_empty() => Ok(None),
            Some(value) => {
                value.single().and_then(T::from_atom).map(Some).ok_or_else(|| unfit::<Option<T>>(value))
            }
        }
    }
}

/// Sets; empty for a column that the server lacks.
impl<T: FromAtom + Ord> FromColumn for BTreeSet<T> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let Some(value) = value else { return Ok(Self::new()) };
        let all = value.atoms().map(T::from_atom).collect::<Option<Self>>();
        all.filter(|_| value.as_map().is_none()).ok_or_else(|| unfit::<Self>(value))
    }
}

/// Maps; empty for a column that the server lacks.
impl<K: FromAtom + Ord, V: FromAtom> FromColumn for BTreeMap<K, V> {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        let Some(value) = value else { return Ok(Self::new()) };
        let map = value.as_map().ok_or_else(|| unfit::<Self>(value))?;
        let pairs = map.iter().map(|(k, v)| Some((K::from_atom(k)?, V::from_atom(v)?)));
        pairs.collect::<Option<Self>>().ok_or_else(|| unfit::<Self>(value))
    }
}

/// The set as the replica holds it: shares its memory.
impl FromColumn for AtomSet {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None => Ok(Self::new()),
            Some(value) => value.as_set().cloned().ok_or_else(|| unfit::<Self>(value)),
        }
    }
}

/// The map as the replica holds it: shares its memory.
impl FromColumn for AtomMap {
    fn from_column(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None => Ok(Self::new()),
            Some(value) => value.as_map().cloned().ok_or_else(|| unfit::<Self>(value)),
        }
    }
}

/// Declares a typed row: see the [module](crate::typed).
///
/// The struct gets a field `uuid`, constants `TABLE` and `COLUMNS` (for
/// [`Options::table`](crate::Options::table)), and `TryFrom<&Row>`.
#[macro_export]
macro_rules! table {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $table:literal {
            $( $(#[$field_meta:meta])* $field_vis:vis $field:ident $(as $column:literal)? : $ty:ty ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            /// UUID of the row.
            pub uuid: $crate::Uuid,
            $( $(#[$field_meta])* $field_vis $field: $ty, )*
        }

        #[allow(dead_code)]
        impl $name {
            /// The table of the database.
            pub const TABLE: &'static str = $table;
            /// The columns used.
            pub const COLUMNS: &'static [&'static str] =
                &[$( $crate::table!(@name $field $($column)?) ),*];
        }

        impl ::std::convert::TryFrom<&$crate::Row> for $name {
            type Error = $crate::typed::TypeError;
            fn try_from(row: &$crate::Row) -> ::std::result::Result<Self, Self::Error> {
                ::std::result::Result::Ok(Self {
                    uuid: row.uuid,
                    $( $field: {
                        let column = $crate::table!(@name $field $($column)?);
                        $crate::typed::FromColumn::from_column(row.get(column)).map_err(|problem| {
                            $crate::typed::TypeError { table: $table, column, problem }
                        })?
                    }, )*
                })
            }
        }
    };
    (@name $field:ident $column:literal) => { $column };
    (@name $field:ident) => { stringify!($field) };
}
