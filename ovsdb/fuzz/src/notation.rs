//! Values survive being written and read; text that is no value is refused, never
//! a panic.
//!
//! Input: a column's type, then text, which is read as a value and as a schema.

use std::cell::RefCell;

use ovsdb::notation::Interner;
use ovsdb::schema::{AtomType, BaseType, ColumnType, UNLIMITED};
use ovsdb::{Schema, Value};

use super::Input;

const ATOMS: [AtomType; 5] =
    [AtomType::Integer, AtomType::Real, AtomType::Boolean, AtomType::String, AtomType::Uuid];

thread_local! {
    /// Lives as long as the fuzzer: what one input leaves in it, another finds.
    static INTERNER: RefCell<Interner> = RefCell::default();
}

/// Checks one input.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let ty = column_type(&mut input);
    let Ok(text) = std::str::from_utf8(input.rest()) else { return };
    if let Some(value) = read(text, Some(&ty)) {
        assert!(has_shape(&value, &ty), "{value:?} as {ty:?}");
        assert_eq!(value.clone().shaped(&ty).as_ref(), Some(&value));
        let written = serde_json::to_string(&value).unwrap();
        assert_eq!(read(&written, Some(&ty)).as_ref(), Some(&value), "written as {written}");
    }
    if let Some(value) = read(text, None) {
        let written = serde_json::to_string(&value).unwrap();
        // A set of one is written as its element.
        let expected = value.single().cloned().map_or(value, Value::Atom);
        assert_eq!(read(&written, None), Some(expected), "written as {written}");
    }
    if let Ok(schema) = Schema::parse_str(text) {
        for column in schema.tables.values().flat_map(|t| t.columns.values()) {
            let default = column.ty.default_value();
            assert!(has_shape(&default, &column.ty), "{default:?} as {:?}", column.ty);
        }
    }
}

fn column_type(input: &mut Input<'_>) -> ColumnType {
    let key = BaseType::plain(input.one_of(&ATOMS));
    let value = BaseType::plain(input.one_of(&ATOMS));
    match input.below(6) {
        0 => ColumnType::scalar(key),
        1 => ColumnType::optional(key),
        2 => ColumnType::set(key),
        3 => ColumnType::map(key, value),
        4 => ColumnType { key, value: None, min: 1, max: UNLIMITED },
        _ => ColumnType { key, value: Some(value), min: 0, max: 1 },
    }
}

/// Reads text straight and by way of a tree, which must come to the same.
fn read(text: &str, ty: Option<&ColumnType>) -> Option<Value> {
    let straight = INTERNER.with_borrow_mut(|i| Value::from_text(text, ty, i)).ok();
    let tree = serde_json::from_str(text).ok().and_then(|json| match ty {
        Some(ty) => Value::from_json(&json, ty).ok(),
        None => Value::from_json_untyped(&json).ok(),
    });
    assert_eq!(straight, tree, "{text}");
    straight
}

fn has_shape(value: &Value, ty: &ColumnType) -> bool {
    match value {
        Value::Atom(_) => ty.is_scalar(),
        Value::Set(_) => !ty.is_scalar() && !ty.is_map(),
        Value::Map(_) => ty.is_map(),
    }
}
