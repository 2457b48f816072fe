//! What a watch decodes: any object of a kind, never failing as a whole.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::fact::Fact;

/// An object as watched: enough metadata for the watch, and its projection.
#[derive(Clone, Debug)]
pub(super) struct Watched<T: Fact> {
    metadata: ObjectMeta,
    /// The projection, or why there is none.
    pub(super) fact: Result<T, String>,
}

impl<T: Fact> Watched<T> {
    /// Its key.
    pub(super) fn key(&self) -> Option<T::Key> {
        let name = self.metadata.name.as_deref()?;
        Some(T::key(self.metadata.namespace.as_deref().unwrap_or_default(), name))
    }
}

impl<'de, T: Fact> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let metadata = ObjectMeta {
            name: text("/metadata/name"),
            namespace: text("/metadata/namespace"),
            uid: text("/metadata/uid"),
            resource_version: text("/metadata/resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, fact: T::decode(&value) })
    }
}

impl<T: Fact> kube::Resource for Watched<T> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.kind.as_str().into()
    }
    fn group(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.group.as_str().into()
    }
    fn version(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.version.as_str().into()
    }
    fn plural(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
