//! Parts that several kinds share.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

object! {
    /// An element of `status.conditions` (contract §1). Times are RFC 3339 in UTC.
    pub struct Condition {
        always {
            /// `Ready`, `Validated`, `Init`, `Error`; egress gateways have their own.
            #[serde(rename = "type")]
            pub r#type: String,
            /// `True`, `False` or `Unknown`.
            pub status: String,
        }
        /// Only on ProviderNetwork: the node that the condition is about.
        pub node: String,
        /// CamelCase reason.
        pub reason: String,
        /// Human-readable message.
        pub message: String,
        /// Generation of the spec that was looked at.
        pub observed_generation: i64,
        /// When any field changed last.
        pub last_update_time: String,
        /// When `status` changed last.
        pub last_transition_time: String,
    }
}

object! {
    /// The status of kinds that have none.
    pub struct NoStatus {}
}

object! {
    /// The workload that serves a gateway object.
    pub struct Workload {
        /// For instance `apps/v1`.
        pub api_version: String,
        /// For instance `Deployment`.
        pub kind: String,
        /// Name of the workload.
        pub name: String,
        /// Nodes its pods run on.
        pub nodes: Vec<String>,
    }
}

/// A number of addresses.
///
/// The API server keeps JSON numbers as 64-bit signed integers or as doubles, so a
/// count above 2^63-1 (an IPv6 /64 has more) loses its last digits on the way. This
/// type writes such a count as a double from the start: what was written and what
/// is read back are then equal, and nothing is patched forever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(u128);

/// Largest count that survives the API server unchanged.
const EXACT: u128 = i64::MAX as u128;

impl Count {
    /// A count, rounded as the API server would.
    pub fn new(value: u128) -> Self {
        if value <= EXACT { Self(value) } else { Self((value as f64) as u128) }
    }

    /// The number.
    pub fn get(self) -> u128 {
        self.0
    }

    /// The number as the JSON value to write.
    pub fn to_json(self) -> serde_json::Value {
        match i64::try_from(self.0) {
            Ok(value) => value.into(),
            Err(_) => (self.0 as f64).into(),
        }
    }
}

impl From<u128> for Count {
    fn from(value: u128) -> Self {
        Self::new(value)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0) {
            Ok(value) => serializer.serialize_i64(value),
            Err(_) => serializer.serialize_f64(self.0 as f64),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of addresses")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Count, E> {
                Ok(Count::new(value.into()))
            }
            // Anything below zero is a count gone wrong: zero.
            fn visit_i64<E>(self, value: i64) -> Result<Count, E> {
                Ok(Count::new(u128::try_from(value).unwrap_or(0)))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Count, E> {
                Ok(Count::new(value as u128))
            }
            fn visit_u128<E>(self, value: u128) -> Result<Count, E> {
                Ok(Count::new(value))
            }
            // Some releases of the original wrote big counts as strings.
            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Count, E> {
                value.parse().map(Count::new).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
