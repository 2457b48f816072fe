//! A schema in the notation of RFC 7047 §3.2, as `get_schema` answers it.

use serde_json::{Map, Value as Json, json};

use crate::schema::{AtomType, BaseType, ColumnSchema, ColumnType, Schema, TableSchema, UNLIMITED};
use crate::value::Value;

/// The notation of a schema: [`Schema::parse`] reads it back.
pub(super) fn to_json(schema: &Schema) -> Json {
    let tables: Map<String, Json> = schema.tables.iter().map(|(n, t)| (n.clone(), table(t))).collect();
    let mut out = json!({"name": schema.name, "tables": tables});
    // A schema needs a version; one that was built for a test may have none.
    out["version"] = if schema.version.is_empty() { "0.0.0".into() } else { schema.version.clone().into() };
    if !schema.cksum.is_empty() {
        out["cksum"] = schema.cksum.clone().into();
    }
    out
}

fn table(table: &TableSchema) -> Json {
    let columns: Map<String, Json> = table.columns.iter().map(|(n, c)| (n.clone(), column(c))).collect();
    let mut out = json!({"columns": columns});
    if table.is_root {
        out["isRoot"] = true.into();
    }
    if table.max_rows != UNLIMITED {
        out["maxRows"] = table.max_rows.into();
    }
    if !table.indexes.is_empty() {
        out["indexes"] = json!(table.indexes);
    }
    out
}

fn column(column: &ColumnSchema) -> Json {
    let mut out = json!({"type": column_type(&column.ty)});
    if column.ephemeral {
        out["ephemeral"] = true.into();
    }
    if !column.mutable {
        out["mutable"] = false.into();
    }
    out
}

fn column_type(ty: &ColumnType) -> Json {
    let mut out = json!({"key": base_type(&ty.key)});
    if let Some(value) = &ty.value {
        out["value"] = base_type(value);
    }
    out["min"] = ty.min.into();
    out["max"] = if ty.max == UNLIMITED { "unlimited".into() } else { ty.max.into() };
    out
}

fn base_type(base: &BaseType) -> Json {
    let name = match base.atom {
        AtomType::Integer => "integer",
        AtomType::Real => "real",
        AtomType::Boolean => "boolean",
        AtomType::String => "string",
        AtomType::Uuid => "uuid",
    };
    let mut out = json!({"type": name});
    let bounds = [
        ("enum", base.one_of.clone().map(|set| Value::Set(set).to_json())),
        ("minInteger", base.min_integer.map(Json::from)),
        ("maxInteger", base.max_integer.map(Json::from)),
        ("minReal", base.min_real.map(Json::from)),
        ("maxReal", base.max_real.map(Json::from)),
        ("minLength", base.min_length.map(Json::from)),
        ("maxLength", base.max_length.map(Json::from)),
    ];
    for (name, bound) in bounds {
        if let Some(bound) = bound {
            out[name] = bound;
        }
    }
    if let Some(reference) = &base.reference {
        out["refTable"] = reference.table.clone().into();
        if !reference.strong {
            out["refType"] = "weak".into();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::northbound;

    #[test]
    fn is_read_back_as_it_was() {
        let schema = northbound();
        assert_eq!(Schema::parse(&to_json(&schema)).unwrap(), schema);
    }
}
