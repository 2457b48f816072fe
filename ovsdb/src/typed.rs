//! Typed rows: structs that name only the columns used.
//!
//! ```
//! use std::collections::{BTreeMap, BTreeSet};
//! use std::sync::Arc;
//! use ovsdb::typed::{Column, TableRow};
//!
//! ovsdb::enumeration! {
//!     /// What a port is.
//!     pub enum Kind {
//!         /// An ordinary one.
//!         Plain = "",
//!         /// The switch's end of a link to a router.
//!         Router = "router",
//!     }
//! }
//! ovsdb::table! {
//!     /// A port of a logical switch.
//!     #[derive(Clone, Debug, PartialEq)]
//!     pub struct SwitchPort in "Logical_Switch_Port" {
//!         /// Its name.
//!         pub name: Arc<str>,
//!         /// Its type; the column's name is a Rust keyword.
//!         pub kind as "type": Kind,
//!         /// An optional column.
//!         pub tag: Option<i64>,
//!         pub addresses: BTreeSet<String>,
//!         pub external_ids: BTreeMap<String, String>,
//!         /// A column that only some servers have.
//!         pub from_the_future: Column<Option<i64>>,
//!     }
//! }
//! assert_eq!(SwitchPort::TABLE, "Logical_Switch_Port");
//! assert_eq!(SwitchPort::COLUMNS[..3], ["name", "type", "tag"]);
//!
//! use ovsdb::{Operation, Value, testing::{Database, northbound}};
//! let mut db = Database::new(northbound());
//! let (port, switch) = (uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2));
//! db.must(&[
//!     Operation::insert("Logical_Switch_Port").uuid(port).column("name", "p").column("tag", 7i64)
//!         .column("type", "vtep").build(),
//!     Operation::insert("Logical_Switch").uuid(switch).column("ports", Value::uuids([port])).build(),
//! ]);
//! let replica = db.replica();
//! let row = replica.row(SwitchPort::TABLE, &port).unwrap();
//! let typed = SwitchPort::try_from(&**row).unwrap();
//! assert_eq!((typed.uuid, &*typed.name, typed.tag), (port, "p", Some(7)));
//! // A server without the column is not one whose column is empty.
//! assert_eq!(typed.from_the_future, Column::Absent);
//! // What the enumeration does not know is kept, and written back as it was.
//! assert_eq!(typed.kind, Kind::Unknown("vtep".into()));
//! assert_eq!(typed.to_columns()["type"], Value::string("vtep"));
//! ```
//!
//! Fields may be `String`, `Arc<str>`, `i64`, `f64`, `bool`, [`Uuid`], [`Atom`], what
//! [`enumeration!`](crate::enumeration!) makes, `Option`, `BTreeSet` and `BTreeMap` of
//! those, [`AtomSet`] and [`AtomMap`] (which share the replica's memory), each of
//! these in a [`Column`] if the server may lack it. A column without `Column` that
//! the server lacks is an error, never a default: an empty set that nobody stated
//! is how data gets deleted.

mod convert;
mod enumeration;

use uuid::Uuid;

use crate::op::RowValues;
use crate::replica::Row;
use crate::value::Value;
#[cfg(doc)]
use crate::value::{Atom, AtomMap, AtomSet};

#[doc(hidden)]
pub use convert::scalar;
pub use convert::{FromAtom, FromColumn, ToAtom, ToColumn};

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

/// The value of a column that a server may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column<T> {
    /// The server's schema has no such column, or it is not followed. Writing it
    /// leaves it out.
    #[default]
    Absent,
    /// The column's value.
    Present(T),
}

impl<T> Column<T> {
    /// The value, if the server has the column.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Absent => None,
            Self::Present(value) => Some(value),
        }
    }
    /// The value, if the server has the column.
    pub fn into_present(self) -> Option<T> {
        match self {
            Self::Absent => None,
            Self::Present(value) => Some(value),
        }
    }
    /// Whether the server lacks the column.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl<T> From<T> for Column<T> {
    fn from(value: T) -> Self {
        Self::Present(value)
    }
}

/// What [`table!`](crate::table!) makes of a struct.
pub trait TableRow: Sized {
    /// The table of the database.
    const TABLE: &'static str;
    /// The columns used, for [`Options::table`](crate::Options::table).
    const COLUMNS: &'static [&'static str];

    /// UUID of the row.
    fn uuid(&self) -> Uuid;
    /// Reads a row by its columns; `None` stands for a column that is not there.
    fn read<'a>(uuid: Uuid, column: impl Fn(&'static str) -> Option<&'a Value>) -> Result<Self, TypeError>;
    /// The columns, without absent ones.
    fn to_columns(&self) -> RowValues;

    /// Reads a row of a replica.
    fn from_row(row: &Row) -> Result<Self, TypeError> {
        Self::read(row.uuid, |column| row.get(column))
    }
}

/// Declares a typed row: see the [module](crate::typed).
///
/// The struct gets a field `uuid`, and implements [`TableRow`](crate::typed::TableRow)
/// and `TryFrom<&Row>`.
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

        impl $crate::typed::TableRow for $name {
            const TABLE: &'static str = $table;
            const COLUMNS: &'static [&'static str] =
                &[$( $crate::table!(@name $field $($column)?) ),*];

            fn uuid(&self) -> $crate::Uuid {
                self.uuid
            }

            fn read<'a>(
                uuid: $crate::Uuid,
                column: impl Fn(&'static str) -> ::std::option::Option<&'a $crate::Value>,
            ) -> ::std::result::Result<Self, $crate::typed::TypeError> {
                ::std::result::Result::Ok(Self {
                    uuid,
                    $( $field: {
                        let name = $crate::table!(@name $field $($column)?);
                        $crate::typed::FromColumn::from_column(column(name)).map_err(|problem| {
                            $crate::typed::TypeError { table: $table, column: name, problem }
                        })?
                    }, )*
                })
            }

            fn to_columns(&self) -> $crate::RowValues {
                let mut columns = $crate::RowValues::new();
                $( if let ::std::option::Option::Some(value) =
                    $crate::typed::ToColumn::to_column(&self.$field)
                {
                    columns.insert($crate::table!(@name $field $($column)?).into(), value);
                } )*
                columns
            }
        }

        impl ::std::convert::TryFrom<&$crate::Row> for $name {
            type Error = $crate::typed::TypeError;
            fn try_from(row: &$crate::Row) -> ::std::result::Result<Self, Self::Error> {
                $crate::typed::TableRow::from_row(row)
            }
        }
    };
    (@name $field:ident $column:literal) => { $column };
    (@name $field:ident) => { stringify!($field) };
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::*;
    use crate::value::{Atom, AtomMap, AtomSet};

    crate::enumeration! {
        enum Color { Red = "red", Blue = "blue" }
    }

    crate::table! {
        #[derive(Clone, Debug, PartialEq)]
        struct Everything in "T" {
            text: String,
            shared: Arc<str>,
            number: i64,
            real: f64,
            flag: bool,
            reference as "ref": Uuid,
            color: Color,
            optional: Option<Color>,
            set: BTreeSet<i64>,
            map: BTreeMap<String, Color>,
            atoms: AtomSet,
            pairs: AtomMap,
            later: Column<BTreeSet<Color>>,
        }
    }

    fn sample() -> Everything {
        Everything {
            uuid: Uuid::from_u128(1),
            text: "t".into(),
            shared: "s".into(),
            number: -1,
            real: 0.5,
            flag: true,
            reference: Uuid::from_u128(2),
            color: Color::Red,
            optional: Some(Color::Unknown("mauve".into())),
            set: [1, 2].into(),
            map: [("k".into(), Color::Blue), ("l".into(), Color::from("teal"))].into(),
            atoms: [Atom::from("a")].into(),
            pairs: [(Atom::from("a"), Atom::from(1i64))].into(),
            later: Column::Present([Color::Red, Color::from("teal")].into()),
        }
    }

    fn read(columns: &RowValues) -> Result<Everything, TypeError> {
        Everything::read(Uuid::from_u128(1), |c| columns.get(c))
    }

    #[test]
    fn rows_survive_being_written_and_read_unknown_enumerators_included() {
        let row = sample();
        assert_eq!(read(&row.to_columns()), Ok(row.clone()));
        assert_eq!(row.to_columns()["optional"], Value::strings(["mauve"]));
        let empty = Everything { optional: None, set: BTreeSet::new(), later: Column::Absent, ..row };
        assert_eq!(empty.to_columns()["optional"], Value::empty_set());
        assert!(!empty.to_columns().contains_key("later"));
        assert_eq!(read(&empty.to_columns()), Ok(empty));
    }

    #[test]
    fn absent_is_neither_default_nor_error_where_declared_and_an_error_elsewhere() {
        for column in Everything::COLUMNS {
            let mut columns = sample().to_columns();
            columns.remove(*column);
            match read(&columns) {
                Ok(row) => {
                    assert_eq!(*column, "later");
                    assert!(row.later.is_absent());
                }
                Err(error) => {
                    assert_eq!(error.column, *column);
                    assert!(error.problem.contains("no such column"), "{error}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mut columns = sample().to_columns();
        columns.insert("number".into(), "x".into());
        assert_eq!(read(&columns).unwrap_err().to_string(), "T.number: \"x\" is no i64");
    }
}
