//! Builds schemas in a few lines.
//!
//! ```
//! use ovsdb::testing::{SchemaBuilder, integer, reference, string};
//! let schema = SchemaBuilder::new("Shop", "1.0.0")
//!     .table("Shelf", |t| t.root().unique(["name"]).scalar("name", string()).set("items", reference("Item")))
//!     .table("Item", |t| t.scalar("label", string()).optional("price", integer().range(0, 1000)))
//!     .build();
//! assert!(schema.column("Item", "price").unwrap().ty.is_optional());
//! ```

use crate::schema::{
    AtomType, BaseType, ColumnSchema, ColumnType, Reference, Schema, TableSchema, UNLIMITED,
};
use crate::value::Atom;

/// Builds a [`Schema`].
#[derive(Clone, Debug)]
pub struct SchemaBuilder(Schema);

impl SchemaBuilder {
    /// An empty schema.
    pub fn new(name: &str, version: &str) -> Self {
        Self(Schema {
            name: name.into(),
            version: version.into(),
            cksum: String::new(),
            tables: std::collections::BTreeMap::new(),
        })
    }
    /// Adds a table.
    pub fn table(mut self, name: &str, build: impl FnOnce(TableBuilder) -> TableBuilder) -> Self {
        let table = TableSchema {
            columns: std::collections::BTreeMap::new(),
            indexes: Vec::new(),
            is_root: false,
            max_rows: UNLIMITED,
        };
        self.0.tables.insert(name.into(), build(TableBuilder(table)).0);
        self
    }
    /// The schema.
    pub fn build(self) -> Schema {
        self.0
    }
}

/// Builds a table of a [`SchemaBuilder`].
#[derive(Clone, Debug)]
pub struct TableBuilder(TableSchema);

impl TableBuilder {
    /// Rows live without references.
    pub fn root(mut self) -> Self {
        self.0.is_root = true;
        self
    }
    /// At most so many rows.
    pub fn max_rows(mut self, max: usize) -> Self {
        self.0.max_rows = max;
        self
    }
    /// These columns together are unique.
    pub fn unique<'a>(mut self, columns: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.indexes.push(columns.into_iter().map(str::to_owned).collect());
        self
    }
    /// A column with exactly one value.
    pub fn scalar(self, name: &str, key: ColumnBuilder) -> Self {
        self.column(name, ColumnType::scalar(key.0))
    }
    /// A column with at most one value.
    pub fn optional(self, name: &str, key: ColumnBuilder) -> Self {
        self.column(name, ColumnType::optional(key.0))
    }
    /// A column with any number of values.
    pub fn set(self, name: &str, key: ColumnBuilder) -> Self {
        self.column(name, ColumnType::set(key.0))
    }
    /// A column with bounds of its own.
    pub fn bounded(self, name: &str, key: ColumnBuilder, min: usize, max: usize) -> Self {
        self.column(name, ColumnType { key: key.0, value: None, min, max })
    }
    /// A map of strings to strings.
    pub fn strings(self, name: &str) -> Self {
        self.map(name, string(), string())
    }
    /// A map.
    pub fn map(self, name: &str, key: ColumnBuilder, value: ColumnBuilder) -> Self {
        self.column(name, ColumnType::map(key.0, value.0))
    }
    /// The column of that name may not change after the row's insertion.
    pub fn immutable(mut self, name: &str) -> Self {
        if let Some(column) = self.0.columns.get_mut(name) {
            column.mutable = false;
        }
        self
    }
    fn column(mut self, name: &str, ty: ColumnType) -> Self {
        self.0.columns.insert(name.into(), ColumnSchema::new(ty));
        self
    }
}

/// A base type being built.
#[derive(Clone, Debug)]
pub struct ColumnBuilder(BaseType);

impl ColumnBuilder {
    /// Only these strings.
    pub fn one_of<'a>(mut self, allowed: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.one_of = Some(allowed.into_iter().map(Atom::from).collect());
        self
    }
    /// Only integers from `min` to `max`.
    pub fn range(mut self, min: i64, max: i64) -> Self {
        self.0.min_integer = Some(min);
        self.0.max_integer = Some(max);
        self
    }
    /// Only integers from `min`.
    pub fn at_least(mut self, min: i64) -> Self {
        self.0.min_integer = Some(min);
        self
    }
    /// Only reals from `min` to `max`.
    pub fn real_range(mut self, min: f64, max: f64) -> Self {
        self.0.min_real = Some(min);
        self.0.max_real = Some(max);
        self
    }
    /// Only strings of `min` to `max` characters.
    pub fn length(mut self, min: usize, max: usize) -> Self {
        self.0.min_length = Some(min);
        self.0.max_length = Some(max);
        self
    }
}

/// A string.
pub fn string() -> ColumnBuilder {
    ColumnBuilder(BaseType::plain(AtomType::String))
}
/// An integer.
pub fn integer() -> ColumnBuilder {
    ColumnBuilder(BaseType::plain(AtomType::Integer))
}
/// A real number.
pub fn real_number() -> ColumnBuilder {
    ColumnBuilder(BaseType::plain(AtomType::Real))
}
/// A boolean.
pub fn boolean() -> ColumnBuilder {
    ColumnBuilder(BaseType::plain(AtomType::Boolean))
}
/// A UUID that refers to nothing.
pub fn uuid() -> ColumnBuilder {
    ColumnBuilder(BaseType::plain(AtomType::Uuid))
}
/// A strong reference to a row of a table.
pub fn reference(table: &str) -> ColumnBuilder {
    refers(table, true)
}
/// A weak reference to a row of a table.
pub fn weak(table: &str) -> ColumnBuilder {
    refers(table, false)
}
fn refers(table: &str, strong: bool) -> ColumnBuilder {
    let mut base = BaseType::plain(AtomType::Uuid);
    base.reference = Some(Reference { table: table.into(), strong });
    ColumnBuilder(base)
}
