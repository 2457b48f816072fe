//! Objects held against the definitions that the API server checks them with: a
//! field that the schema does not know would be dropped on the way and patched
//! again for ever.

use serde_json::Value;

/// What is wrong with an object's spec and status, by path.
pub(super) fn problems(kind: &str, object: &Value) -> Vec<String> {
    let definition = crds::schema::all().into_iter().find(|d| d.info.kind == kind).expect("a kind of ours");
    let mut found = Vec::new();
    let parts = [("spec", Some(definition.spec)), ("status", definition.status)];
    for (part, schema) in parts {
        match (object.get(part), schema) {
            (Some(value), Some(schema)) => walk(value, &schema.to_json(), part, &mut found),
            (Some(_), None) => found.push(format!("{part}: not in the schema")),
            (None, _) => {}
        }
    }
    found
}

fn walk(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    let right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => true,
    };
    if !right {
        found.push(format!("{path}: {value} is no {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        found.push(format!("{path}: {value} is not one of {}", schema["enum"]));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            found.push(format!("{path}.{name}: required"));
        }
    }
    for (name, child) in value.as_object().into_iter().flatten() {
        let inner = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        match inner {
            Some(inner) => walk(child, inner, &format!("{path}.{name}"), found),
            None => found.push(format!("{path}.{name}: unknown")),
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        walk(item, &schema["items"], &format!("{path}[{index}]"), found);
    }
}

#[test]
fn a_field_that_would_be_dropped_is_found() {
    let object = serde_json::json!({ "spec": { "cidrBlok": "10.0.0.0/8", "default": "yes" }, "status": {} });
    assert_eq!(problems("Subnet", &object).len(), 2);
}
