//! Which rows of a table are followed: conditions of a monitor.
//!
//! A monitor's conditions differ from a `where` of a transaction (RFC 7047 §5.1): a
//! row is followed when **any** clause holds, not when all do, and `true` and `false`
//! are clauses too (ovsdb-server(7), "Monitor_cond"). The server evaluates them for
//! every change: a row that starts to match arrives as an insertion, one that no
//! longer matches leaves as a deletion, whatever columns are followed.

use serde::{Serialize, Serializer};

use crate::op::{Condition, Function};
use crate::schema::{ColumnType, TableSchema};
use crate::value::Value;

/// Which rows of a table are followed: those for which any clause holds.
///
/// ```
/// use ovsdb::{Filter, Uuid};
/// let node = Filter::equals("chassis", Uuid::from_u128(1)).or_includes("tags", "shared");
/// assert_eq!(
///     serde_json::to_string(&node).unwrap(),
///     r#"[["chassis","==",["uuid","00000000-0000-0000-0000-000000000001"]],["tags","includes","shared"]]"#
/// );
/// assert_eq!(serde_json::to_string(&Filter::all()).unwrap(), "[true]");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Filter(Clauses);

#[derive(Clone, Debug, PartialEq)]
enum Clauses {
    All,
    Any(Vec<Condition>),
}

/// A filter that a schema does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter on column {column}: {problem}")]
pub struct FilterError {
    /// The column.
    pub column: String,
    /// What is wrong.
    pub problem: String,
}

impl Default for Filter {
    fn default() -> Self {
        Self::all()
    }
}

impl Filter {
    /// Every row.
    pub fn all() -> Self {
        Self(Clauses::All)
    }
    /// No row: for a table whose rows are asked for later.
    pub fn none() -> Self {
        Self(Clauses::Any(Vec::new()))
    }
    /// Rows for which any of these holds; none of them, no row.
    pub fn any(conditions: impl IntoIterator<Item = Condition>) -> Self {
        Self(Clauses::Any(conditions.into_iter().collect()))
    }
    /// Rows whose column equals a value.
    pub fn equals(column: &str, value: impl Into<Value>) -> Self {
        Self::none().or(column, Function::Equal, value)
    }
    /// Rows whose column has all these elements.
    pub fn includes(column: &str, value: impl Into<Value>) -> Self {
        Self::none().or(column, Function::Includes, value)
    }
    /// Also rows for which the comparison holds.
    pub fn or(mut self, column: &str, function: Function, value: impl Into<Value>) -> Self {
        if let Clauses::Any(conditions) = &mut self.0 {
            conditions.push(Condition::new(column, function, value));
        }
        self
    }
    /// Also rows whose column equals a value.
    pub fn or_equals(self, column: &str, value: impl Into<Value>) -> Self {
        self.or(column, Function::Equal, value)
    }
    /// Also rows whose column has all these elements.
    pub fn or_includes(self, column: &str, value: impl Into<Value>) -> Self {
        self.or(column, Function::Includes, value)
    }
    /// Whether every row is followed.
    pub fn is_all(&self) -> bool {
        self.0 == Clauses::All
    }

    /// Whether a table's schema allows it: its columns exist, the values have their
    /// types, and the comparison suits them (RFC 7047 §5.1).
    ///
    /// # Errors
    /// The first clause that does not fit.
    pub fn check(&self, table: &TableSchema) -> Result<(), FilterError> {
        let Clauses::Any(conditions) = &self.0 else { return Ok(()) };
        for Condition { column, function, value } in conditions {
            let bad = |problem: String| FilterError { column: column.to_string(), problem };
            if &**column == "_uuid" {
                if value.as_uuid().is_none() {
                    return Err(bad(format!("{value:?} is no UUID")));
                }
                continue;
            }
            let Some(schema) = table.columns.get(&**column) else {
                return Err(bad("the server has no such column".into()));
            };
            check_clause(&schema.ty, *function, value).map_err(bad)?;
        }
        Ok(())
    }
}

fn check_clause(ty: &ColumnType, function: Function, value: &Value) -> Result<(), String> {
    let ordered = matches!(
        function,
        Function::Less | Function::LessOrEqual | Function::Greater | Function::GreaterOrEqual
    );
    let number = matches!(ty.key.atom, crate::schema::AtomType::Integer | crate::schema::AtomType::Real);
    if ordered && !(number && !ty.is_map() && ty.max == 1) {
        return Err(format!("{} compares only columns with at most one number", function.as_str()));
    }
    // What a subset may have is less strict than what the column may have.
    let relaxed = match function {
        Function::Includes | Function::Excludes if !ty.is_scalar() => {
            ColumnType { min: 0, max: crate::schema::UNLIMITED, ..ty.clone() }
        }
        _ => ty.clone(),
    };
    match Value::from_json(&value.to_json(), &relaxed) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{value:?} does not fit: {error}")),
    }
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Clauses::All => [true].serialize(s),
            Clauses::Any(conditions) if conditions.is_empty() => [false].serialize(s),
            Clauses::Any(conditions) => conditions.serialize(s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::northbound;
    use crate::value::AtomMap;

    #[test]
    fn clauses_are_alternatives_and_none_is_false() {
        let text = |f: &Filter| serde_json::to_string(f).unwrap();
        assert_eq!(text(&Filter::none()), "[false]");
        assert_eq!(text(&Filter::none().or_equals("name", "a")), r#"[["name","==","a"]]"#);
        // Everything and something more is everything.
        assert!(Filter::all().or_equals("name", "a").is_all());
    }

    #[test]
    fn what_the_schema_does_not_allow_is_named() {
        let schema = northbound();
        let port = &schema.tables["Logical_Switch_Port"];
        let ids = AtomMap::from([("k".into(), "v".into())]);
        for good in [
            Filter::all(),
            Filter::equals("_uuid", crate::Uuid::from_u128(1)),
            Filter::equals("name", "a").or_includes("external_ids", ids),
            Filter::none().or("tag", Function::Less, Value::integer(5)),
            Filter::includes("addresses", "x"),
        ] {
            good.check(port).unwrap();
        }
        for (bad, column) in [
            (Filter::equals("colour", "red"), "colour"),
            (Filter::equals("_uuid", "a"), "_uuid"),
            (Filter::equals("name", Value::integer(1)), "name"),
            (Filter::equals("name", "a").or("name", Function::Less, "b"), "name"),
        ] {
            assert_eq!(bad.check(port).unwrap_err().column, column);
        }
    }
}
