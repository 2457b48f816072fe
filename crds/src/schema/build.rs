//! Words that schemas are built with.

use serde_json::{Map, Value, json};

/// A structural OpenAPI schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema(Map<String, Value>);

impl Schema {
    fn of(r#type: &str) -> Self {
        Self(Map::from_iter([("type".to_owned(), r#type.into())]))
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// The schema as JSON.
    pub fn to_json(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// Human-readable meaning, shown by `kubectl explain`.
    pub(crate) fn about(self, text: &str) -> Self {
        self.with("description", text)
    }

    /// Only these values.
    pub(crate) fn one_of(self, values: &[&str]) -> Self {
        self.with("enum", json!(values))
    }

    /// Value the API server fills in.
    pub(crate) fn default(self, value: impl Into<Value>) -> Self {
        self.with("default", value)
    }

    /// Inclusive limits of a number.
    pub(crate) fn range(self, min: i64, max: i64) -> Self {
        self.with("minimum", min).with("maximum", max)
    }

    /// Smallest number.
    pub(crate) fn at_least(self, min: i64) -> Self {
        self.with("minimum", min)
    }

    /// Longest text.
    pub(crate) fn max_length(self, length: u32) -> Self {
        self.with("maxLength", length)
    }

    /// Regular expression of a text.
    pub(crate) fn pattern(self, pattern: &str) -> Self {
        self.with("pattern", pattern)
    }

    /// None of these values.
    pub(crate) fn none_of(self, values: Value) -> Self {
        self.with("not", json!({ "enum": values }))
    }

    /// A list without duplicates, merged element by element.
    pub(crate) fn set(self) -> Self {
        self.with("x-kubernetes-list-type", "set")
    }

    /// Fields that must be present.
    pub(crate) fn required(self, fields: &[&str]) -> Self {
        self.with("required", json!(fields))
    }

    /// Unknown fields are kept.
    pub(crate) fn open(self) -> Self {
        self.with("x-kubernetes-preserve-unknown-fields", true)
    }

    /// A rule in the common expression language.
    pub(crate) fn rule(mut self, rule: &str, message: &str) -> Self {
        let rules = self.0.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(json!({ "rule": rule, "message": message }));
        }
        self
    }

    /// Can't change after creation.
    pub(crate) fn immutable(self) -> Self {
        self.rule("self == oldSelf", "This field is immutable.")
    }
}

/// A text.
pub(crate) fn text() -> Schema {
    Schema::of("string")
}

/// A truth value.
pub(crate) fn flag() -> Schema {
    Schema::of("boolean")
}

/// A whole number.
pub(crate) fn int() -> Schema {
    Schema::of("integer")
}

/// A whole number of 32 bits.
pub(crate) fn int32() -> Schema {
    int().with("format", "int32")
}

/// A number that may be larger than 64 bits hold.
pub(crate) fn number() -> Schema {
    Schema::of("number")
}

/// A list.
pub(crate) fn list(items: Schema) -> Schema {
    Schema::of("array").with("items", items.to_json())
}

/// A list of texts.
pub(crate) fn texts() -> Schema {
    list(text())
}

/// An object with these fields.
pub(crate) fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Schema)>) -> Schema {
    let fields: Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema.to_json())).collect();
    Schema::of("object").with("properties", fields)
}

/// A map from text to text.
pub(crate) fn text_map() -> Schema {
    Schema::of("object").with("additionalProperties", json!({ "type": "string" }))
}

/// An object whose shape is that of another API.
pub(crate) fn foreign_object() -> Schema {
    Schema::of("object").open()
}

/// Any value.
pub(crate) fn anything() -> Schema {
    Schema(Map::new()).open()
}

/// A number or a text.
pub(crate) fn int_or_text() -> Schema {
    Schema(Map::new()).with("x-kubernetes-int-or-string", true)
}

/// A label selector.
pub(crate) fn label_selector() -> Schema {
    object([("matchLabels", text_map()), ("matchExpressions", list(requirement()))])
}

/// A label or field requirement.
pub(crate) fn requirement() -> Schema {
    object([("key", text()), ("operator", text()), ("values", texts())]).required(&["key", "operator"])
}

/// Tolerations of pods.
pub(crate) fn tolerations() -> Schema {
    list(object([
        ("key", text()),
        ("operator", text()),
        ("value", text()),
        ("effect", text()),
        ("tolerationSeconds", int().with("format", "int64")),
    ]))
}

/// `status.conditions`.
pub(crate) fn conditions() -> Schema {
    list(object(condition_fields())).about("Latest observations of the object's state.")
}

/// Fields of a condition.
pub(crate) fn condition_fields() -> Vec<(&'static str, Schema)> {
    vec![
        ("type", text()),
        ("status", text().about("True, False or Unknown.")),
        ("reason", text()),
        ("message", text()),
        ("observedGeneration", int().with("format", "int64")),
        ("lastUpdateTime", text()),
        ("lastTransitionTime", text()),
    ]
}

/// The workload of a gateway.
pub(crate) fn workload() -> Schema {
    object([("apiVersion", text()), ("kind", text()), ("name", text()), ("nodes", texts())])
}
