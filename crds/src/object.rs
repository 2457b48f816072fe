//! How the Rust types of custom resources are made.
//!
//! Two macros and the trait they serve. `object!` declares a part of a resource
//! (a spec, a status, an element of a list): reading is lenient (an absent or null
//! field is its default, an unknown one is skipped), writing omits defaults except
//! for fields that the original API always prints. `resource!` declares a whole
//! resource around a spec and a status.
//!
//! The derive of the `kube` crate isn't used for whole resources because it insists
//! on `spec`, which the schemas leave optional: one Vpc without a spec would then
//! fail to decode.

use serde::{Deserialize, Deserializer};

/// Whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One namespace of names for the whole cluster.
    Cluster,
    /// Names are per namespace.
    Namespaced,
}

/// Facts about a kind that programs need without its schema: what to watch and
/// where a condition can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindInfo {
    /// Kind, for instance `VpcDns`.
    pub kind: &'static str,
    /// Lower-case singular name.
    pub singular: &'static str,
    /// Plural name in URLs, for instance `vpc-dnses`.
    pub plural: &'static str,
    /// Short names for `kubectl`.
    pub short_names: &'static [&'static str],
    /// Scope.
    pub scope: Scope,
    /// The schema's status has `conditions`.
    pub has_conditions: bool,
    /// The kind has a `status` subresource. Without it, status (if any) is a plain
    /// field of the object.
    pub has_status_subresource: bool,
}

/// A custom resource of this crate.
pub trait Kind: kube_core::Resource<DynamicType = ()> {
    /// Its spec.
    type Spec;
    /// Its status; [`NoStatus`](crate::NoStatus) for kinds without one.
    type Status;
    /// Facts about the kind.
    const INFO: KindInfo;
    /// The spec, default when the object has none.
    fn spec(&self) -> &Self::Spec;
    /// The status, default when the object has none.
    fn status(&self) -> &Self::Status;
}

/// Reads a field whose value may be `null`.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// True for values that are not worth writing.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares a part of a resource. Fields in the `always { … }` group are written
/// even when they hold their default.
macro_rules! object {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( always { $( $(#[$ameta:meta])* pub $afield:ident : $atype:ty ),* $(,)? } )?
            $( $(#[$fmeta:meta])* pub $field:ident : $type:ty ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $( $(
                $(#[$ameta])*
                #[serde(deserialize_with = "crate::object::null_as_default")]
                pub $afield: $atype,
            )* )?
            $(
                $(#[$fmeta])*
                #[serde(
                    deserialize_with = "crate::object::null_as_default",
                    skip_serializing_if = "crate::object::is_default"
                )]
                pub $field: $type,
            )*
        }
    };
}

/// Declares a whole resource.
macro_rules! resource {
    (
        $(#[$meta:meta])*
        $name:ident { $spec:ty, $status:ty }
        kind: $kind:literal, singular: $singular:literal, plural: $plural:literal,
        short: $short:expr, scope: $scope:ident, conditions: $conditions:literal,
        status_subresource: $sub:literal
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Deserialize)]
        pub struct $name {
            /// Object metadata.
            #[serde(default)]
            pub metadata: ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What the user wants.
            #[serde(default, deserialize_with = "crate::object::null_as_default")]
            pub spec: $spec,
            /// What was observed.
            #[serde(default, deserialize_with = "crate::object::null_as_default")]
            pub status: $status,
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use ::serde::ser::SerializeStruct;
                let status = !crate::object::is_default(&self.status);
                let mut object = serializer.serialize_struct($kind, 4 + usize::from(status))?;
                object.serialize_field("apiVersion", crate::API_VERSION)?;
                object.serialize_field("kind", $kind)?;
                object.serialize_field("metadata", &self.metadata)?;
                object.serialize_field("spec", &self.spec)?;
                if status {
                    object.serialize_field("status", &self.status)?;
                }
                object.end()
            }
        }

        impl ::kube_core::Resource for $name {
            type DynamicType = ();
            type Scope = resource!(@scope $scope);
            fn kind(_: &()) -> ::std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group(_: &()) -> ::std::borrow::Cow<'_, str> {
                crate::GROUP.into()
            }
            fn version(_: &()) -> ::std::borrow::Cow<'_, str> {
                crate::VERSION.into()
            }
            fn plural(_: &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        impl crate::object::Kind for $name {
            type Spec = $spec;
            type Status = $status;
            const INFO: crate::object::KindInfo = crate::object::KindInfo {
                kind: $kind,
                singular: $singular,
                plural: $plural,
                short_names: &$short,
                scope: crate::object::Scope::$scope,
                has_conditions: $conditions,
                has_status_subresource: $sub,
            };
            fn spec(&self) -> &$spec {
                &self.spec
            }
            fn status(&self) -> &$status {
                &self.status
            }
        }
    };
    (@scope Cluster) => { ::kube_core::ClusterResourceScope };
    (@scope Namespaced) => { ::kube_core::NamespaceResourceScope };
}
