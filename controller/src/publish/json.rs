//! JSON merge patches (RFC 7386) and comparisons that know about omitted defaults.

use serde_json::{Map, Value};

/// Applies a merge patch.
pub(super) fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                apply(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

/// Applying the patch would change nothing. Objects are stored without fields
/// that hold their default, so an absent field equals its default.
pub(super) fn holds(target: Option<&Value>, patch: &Value) -> bool {
    match (target, patch) {
        (None, Value::Object(patch)) => patch.values().all(|value| holds(None, value)),
        (Some(Value::Object(target)), Value::Object(patch)) => {
            patch.iter().all(|(key, value)| holds(target.get(key), value))
        }
        (Some(Value::Array(target)), Value::Array(patch)) => {
            target.len() == patch.len() && target.iter().zip(patch).all(|(t, p)| holds(Some(t), p))
        }
        (None, value) => is_default(value),
        (Some(target), value) => target == value || (target.is_null() && is_default(value)),
    }
}

/// What JSON encoders leave out.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// Sets the value at a path of object keys.
pub(super) fn set(target: &mut Value, path: &[&str], value: Value) {
    let mut place = target;
    for key in path {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(object) = place else { return };
        place = object.entry((*key).to_owned()).or_insert(Value::Null);
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_that_was_applied_holds() {
        let mut target = json!({"a": {"b": 1, "c": [1]}, "d": "x"});
        let patch = json!({"a": {"c": [2, 3], "e": {"f": true}}, "d": null});
        assert!(!holds(Some(&target), &patch));
        apply(&mut target, &patch);
        assert_eq!(target, json!({"a": {"b": 1, "c": [2, 3], "e": {"f": true}}}));
        assert!(holds(Some(&target), &patch));
    }

    #[test]
    fn defaults_may_be_omitted() {
        let condition = json!({"status": {"conditions": [{"type": "Ready", "message": ""}]}});
        assert!(holds(Some(&json!({"status": {"conditions": [{"type": "Ready"}]}})), &condition));
        assert!(holds(Some(&json!({})), &json!({"spec": {"private": false, "vpc": "", "n": 0}})));
        assert!(!holds(Some(&json!({"spec": {"private": true}})), &json!({"spec": {"private": false}})));
    }

    #[test]
    fn paths_are_made() {
        let mut target = Value::Null;
        set(&mut target, &["metadata", "labels", "a"], json!("b"));
        assert_eq!(target, json!({"metadata": {"labels": {"a": "b"}}}));
    }
}
