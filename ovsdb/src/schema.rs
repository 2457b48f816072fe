//! Database schemas: what a server says about its tables (RFC 7047 §3.2).
//!
//! A client asks for the schema first and monitors only what exists on both
//! sides, so that a newer or older server disables a feature instead of breaking
//! the connection. [`crate::testing::SchemaBuilder`] makes small ones for tests.

mod check;

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::value::{Atom, AtomSet, Value};

/// `max` of a column without an upper bound.
pub const UNLIMITED: usize = usize::MAX;

/// A schema that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schema: {path}: {problem}")]
pub struct SchemaError {
    /// Where, for instance `tables.Port.columns.name`.
    pub path: String,
    /// What is wrong.
    pub problem: String,
}

fn error(path: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError { path: path.into(), problem: problem.into() }
}

/// Schema of a database.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// Name of the database, for instance `OVN_Northbound`.
    pub name: String,
    /// Version, `x.y.z`; empty when the server gives none.
    pub version: String,
    /// Checksum, empty when the server gives none.
    pub cksum: String,
    /// Tables by name.
    pub tables: BTreeMap<String, TableSchema>,
}

/// Schema of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSchema {
    /// Columns by name, without the implicit `_uuid` and `_version`.
    pub columns: BTreeMap<String, ColumnSchema>,
    /// Sets of columns whose values together are unique.
    pub indexes: Vec<Vec<String>>,
    /// Whether rows live without being referred to. Rows of other tables vanish
    /// with the last strong reference.
    pub is_root: bool,
    /// Greatest number of rows ([`UNLIMITED`] if there is none).
    pub max_rows: usize,
}

/// Schema of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSchema {
    /// Type.
    pub ty: ColumnType,
    /// Not kept across a restart of the server.
    pub ephemeral: bool,
    /// Whether it may change after the row's insertion.
    pub mutable: bool,
}

/// Type of a column: how many values of which base types.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnType {
    /// Type of the elements, or of the keys of a map.
    pub key: BaseType,
    /// Type of a map's values; `None` for scalars and sets.
    pub value: Option<BaseType>,
    /// Least number of elements: 0 or 1.
    pub min: usize,
    /// Greatest number of elements, at least 1; [`UNLIMITED`] if there is none.
    pub max: usize,
}

/// Types of atoms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AtomType {
    /// 64-bit integer.
    Integer,
    /// Double.
    Real,
    /// Truth value.
    Boolean,
    /// String.
    String,
    /// UUID or reference.
    Uuid,
}

impl AtomType {
    /// The value that a column without one in an `insert` gets.
    pub fn default_atom(self) -> Atom {
        match self {
            Self::Integer => Atom::Integer(0),
            Self::Real => Atom::from(0.0),
            Self::Boolean => Atom::Boolean(false),
            Self::String => Atom::from(""),
            Self::Uuid => Atom::Uuid(uuid::Uuid::nil()),
        }
    }
    /// Its name in a schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Uuid => "uuid",
        }
    }
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "integer" => Self::Integer,
            "real" => Self::Real,
            "boolean" => Self::Boolean,
            "string" => Self::String,
            "uuid" => Self::Uuid,
            _ => return None,
        })
    }
}

/// A reference from a UUID column to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The table referred to.
    pub table: String,
    /// A strong reference keeps the row alive and must not dangle; a weak one is
    /// silently dropped when its row does not exist.
    pub strong: bool,
}

/// An atomic type with its constraints.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseType {
    /// The type of the atom.
    pub atom: AtomType,
    /// The only values allowed (`enum`).
    pub one_of: Option<AtomSet>,
    /// Least integer.
    pub min_integer: Option<i64>,
    /// Greatest integer.
    pub max_integer: Option<i64>,
    /// Least real.
    pub min_real: Option<f64>,
    /// Greatest real.
    pub max_real: Option<f64>,
    /// Least length of a string, in characters.
    pub min_length: Option<usize>,
    /// Greatest length of a string, in characters.
    pub max_length: Option<usize>,
    /// Where a UUID points.
    pub reference: Option<Reference>,
}

impl BaseType {
    /// An unconstrained base type.
    pub fn plain(atom: AtomType) -> Self {
        Self {
            atom,
            one_of: None,
            min_integer: None,
            max_integer: None,
            min_real: None,
            max_real: None,
            min_length: None,
            max_length: None,
            reference: None,
        }
    }

    fn parse(json: &Json, path: &str) -> Result<Self, SchemaError> {
        let object = match json {
            Json::String(name) => {
                let atom =
                    AtomType::parse(name).ok_or_else(|| error(path, format!("no such type: {name}")))?;
                return Ok(Self::plain(atom));
            }
            Json::Object(object) => object,
            _ => return Err(error(path, "a type must be a string or an object")),
        };
        let name = object.get("type").and_then(Json::as_str).unwrap_or_default();
        let atom = AtomType::parse(name).ok_or_else(|| error(path, format!("no such type: {name:?}")))?;
        let mut base = Self::plain(atom);
        let integer = |key: &str| object.get(key).and_then(Json::as_i64);
        let real = |key: &str| object.get(key).and_then(Json::as_f64);
        let length = |key: &str| integer(key).and_then(|i| usize::try_from(i).ok());
        base.min_integer = integer("minInteger");
        base.max_integer = integer("maxInteger");
        base.min_real = real("minReal");
        base.max_real = real("maxReal");
        base.min_length = length("minLength");
        base.max_length = length("maxLength");
        if let Some(table) = object.get("refTable").and_then(Json::as_str) {
            let strong = object.get("refType").and_then(Json::as_str) != Some("weak");
            base.reference = Some(Reference { table: table.into(), strong });
        }
        if let Some(allowed) = object.get("enum") {
            let ty = ColumnType { key: Self::plain(atom), value: None, min: 0, max: UNLIMITED };
            match Value::from_json(allowed, &ty) {
                Ok(Value::Set(set)) => base.one_of = Some(set),
                Ok(_) => return Err(error(path, "enum must be a set")),
                Err(e) => return Err(error(path, format!("enum: {e}"))),
            }
        }
        Ok(base)
    }
}

impl ColumnType {
    /// A column with exactly one value.
    pub fn scalar(key: BaseType) -> Self {
        Self { key, value: None, min: 1, max: 1 }
    }
    /// A column with at most one value.
    pub fn optional(key: BaseType) -> Self {
        Self { key, value: None, min: 0, max: 1 }
    }
    /// A column with any number of values.
    pub fn set(key: BaseType) -> Self {
        Self { key, value: None, min: 0, max: UNLIMITED }
    }
    /// A column with any number of pairs.
    pub fn map(key: BaseType, value: BaseType) -> Self {
        Self { key, value: Some(value), min: 0, max: UNLIMITED }
    }

    /// Whether the column has exactly one value and is no map.
    pub fn is_scalar(&self) -> bool {
        self.value.is_none() && self.min == 1 && self.max == 1
    }
    /// Whether the column holds pairs.
    pub fn is_map(&self) -> bool {
        self.value.is_some()
    }
    /// Whether the column has at most one value and is no map.
    pub fn is_optional(&self) -> bool {
        self.value.is_none() && self.min == 0 && self.max == 1
    }

    /// What a column holds that an `insert` did not name (RFC 7047 §5.2.1).
    pub fn default_value(&self) -> Value {
        if self.is_scalar() {
            return Value::Atom(self.key.atom.default_atom());
        }
        match (&self.value, self.min) {
            (None, 0) => Value::empty_set(),
            (Some(_), 0) => Value::empty_map(),
            (None, _) => Value::Set(AtomSet::from([self.key.atom.default_atom()])),
            (Some(value), _) => {
                Value::Map([(self.key.atom.default_atom(), value.atom.default_atom())].into())
            }
        }
    }

    fn parse(json: &Json, path: &str) -> Result<Self, SchemaError> {
        let Json::Object(object) = json else {
            return Ok(Self::scalar(BaseType::parse(json, path)?));
        };
        let key = object.get("key").ok_or_else(|| error(path, "no key"))?;
        let key = BaseType::parse(key, path)?;
        let value = object.get("value").map(|v| BaseType::parse(v, path)).transpose()?;
        let bound = |name: &str| match object.get(name) {
            None => Ok(1),
            Some(Json::String(s)) if s == "unlimited" => Ok(UNLIMITED),
            Some(n) => n
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .ok_or_else(|| error(path, format!("bad {name}"))),
        };
        Ok(Self { key, value, min: bound("min")?, max: bound("max")? })
    }
}

impl ColumnSchema {
    /// A persistent, mutable column.
    pub fn new(ty: ColumnType) -> Self {
        Self { ty, ephemeral: false, mutable: true }
    }
}

impl Schema {
    /// Parses the reply to `get_schema`, or the content of a `.ovsschema` file.
    pub fn parse(json: &Json) -> Result<Self, SchemaError> {
        let text = |key: &str| json.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
        let tables =
            json.get("tables").and_then(Json::as_object).ok_or_else(|| error("tables", "missing"))?;
        let mut schema = Self {
            name: text("name"),
            version: text("version"),
            cksum: text("cksum"),
            tables: BTreeMap::new(),
        };
        if schema.name.is_empty() {
            return Err(error("name", "missing"));
        }
        for (name, table) in tables {
            schema.tables.insert(name.clone(), TableSchema::parse(table, &format!("tables.{name}"))?);
        }
        // A schema that names no root has only roots (RFC 7047 §3.2).
        if schema.tables.values().all(|t| !t.is_root) {
            schema.tables.values_mut().for_each(|t| t.is_root = true);
        }
        Ok(schema)
    }

    /// Parses schema text.
    pub fn parse_str(text: &str) -> Result<Self, SchemaError> {
        let json = serde_json::from_str(text).map_err(|e| error("", e.to_string()))?;
        Self::parse(&json)
    }

    /// The schema of a column, if both table and column exist.
    pub fn column(&self, table: &str, column: &str) -> Option<&ColumnSchema> {
        self.tables.get(table)?.columns.get(column)
    }
}

impl TableSchema {
    fn parse(json: &Json, path: &str) -> Result<Self, SchemaError> {
        let columns =
            json.get("columns").and_then(Json::as_object).ok_or_else(|| error(path, "no columns"))?;
        let mut table = Self {
            columns: BTreeMap::new(),
            indexes: Vec::new(),
            is_root: json.get("isRoot").and_then(Json::as_bool).unwrap_or(false),
            max_rows: json
                .get("maxRows")
                .and_then(Json::as_u64)
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(UNLIMITED),
        };
        for (name, column) in columns {
            let path = format!("{path}.columns.{name}");
            let ty = column.get("type").ok_or_else(|| error(&path, "no type"))?;
            let flag = |key: &str| column.get(key).and_then(Json::as_bool);
            let column = ColumnSchema {
                ty: ColumnType::parse(ty, &path)?,
                ephemeral: flag("ephemeral").unwrap_or(false),
                mutable: flag("mutable").unwrap_or(true),
            };
            table.columns.insert(name.clone(), column);
        }
        for index in json.get("indexes").and_then(Json::as_array).into_iter().flatten() {
            let names = index.as_array().into_iter().flatten().filter_map(Json::as_str);
            table.indexes.push(names.map(str::to_owned).collect());
        }
        Ok(table)
    }
}
