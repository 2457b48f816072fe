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
/// type writes such a count as a double from the start and keeps only its leading
/// bits (JSON parsers differ in a double's last one): what was written and what is
/// read back are then equal, and nothing is patched forever. Compare statuses as
/// typed values, not as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(u128);

/// Largest count that survives the API server unchanged.
const EXACT: u128 = i64::MAX as u128;

impl Count {
    /// A count; above 2^63-1 rounded to its 40 leading bits.
    pub fn new(value: u128) -> Self {
        if value <= EXACT {
            return Self(value);
        }
        let dropped = u128::BITS - value.leading_zeros() - 40;
        let half = 1 << (dropped - 1);
        Self(value.saturating_add(half) >> dropped << dropped)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{Subnet, SubnetStatus, Vpc};

    /// What the API server makes of a number: 64 bits signed, or a double, printed
    /// with as few digits as tell it apart and zeros behind (seen on 1.34:
    /// 18446744073709551613 comes back as 18446744073709552000).
    fn through_api_server(value: &serde_json::Value) -> serde_json::Value {
        match value.as_i64() {
            Some(int) => int.into(),
            None => serde_json::from_str(&value.as_f64().unwrap().to_string()).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn counts_survive_the_api_server(high in any::<u64>(), shift in 0u32..64) {
            let count = Count::new(u128::from(high) << shift);
            let stored = through_api_server(&count.to_json());
            prop_assert_eq!(serde_json::from_value::<Count>(stored).unwrap(), count);
            prop_assert_eq!(serde_json::to_value(count).unwrap(), count.to_json());
        }
    }

    #[test]
    fn small_counts_are_exact() {
        assert_eq!(Count::new(65533).to_json(), json!(65533));
        assert_eq!(Count::new(u128::from(u64::MAX) - 2).get(), 1 << 64);
        assert_eq!(serde_json::from_value::<Count>(json!("12")).unwrap().get(), 12);
        assert_eq!(serde_json::from_value::<Count>(json!(-1)).unwrap().get(), 0);
        assert_eq!(serde_json::from_value::<Count>(json!(253.0)).unwrap().get(), 253);
    }

    // Objects of the original controller hold nulls, and fields of other releases.
    #[test]
    fn reading_is_lenient() {
        let subnet: Subnet = serde_json::from_value(json!({
            "apiVersion": "kubeovn.io/v1",
            "kind": "Subnet",
            "metadata": { "name": "s" },
            "spec": { "cidrBlock": "10.0.0.0/24", "excludeIps": null, "enableLb": null, "newer": { "a": 1 } },
            "status": { "natOutgoingPolicyRules": null, "v4availableIPs": 253.0 },
        }))
        .unwrap();
        assert_eq!(subnet.spec.cidr_block, "10.0.0.0/24");
        assert!(subnet.spec.exclude_ips.is_empty());
        assert_eq!(subnet.spec.enable_lb, None);
        assert_eq!(subnet.status.v4_available_ips.get(), 253);
        let vpc: Vpc = serde_json::from_value(json!({ "metadata": {}, "status": null })).unwrap();
        assert_eq!(vpc.spec, Default::default());
    }

    // Columns of `kubectl get` stay empty for absent fields, so these are written.
    #[test]
    fn what_is_always_written() {
        let spec = serde_json::to_value(crate::SubnetSpec::default()).unwrap();
        assert_eq!(
            spec,
            json!({ "default": false, "gatewayNode": "", "natOutgoing": false, "private": false })
        );
        let status = serde_json::to_value(SubnetStatus::default()).unwrap();
        assert_eq!(status["v4usingIPs"], 0);
        assert_eq!(status.get("conditions"), None);
    }
}
