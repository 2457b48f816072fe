//! QoSPolicy (contract §1.14).

use crate::Condition;

object! {
    /// Spec of a QoSPolicy.
    pub struct QosPolicySpec {
        always {
            /// May be bound more than once.
            pub shared: bool,
            /// `EIP` or `NATGW`.
            pub binding_type: String,
            /// Limits.
            pub bandwidth_limit_rules: Vec<BandwidthLimitRule>,
        }
    }
}

object! {
    /// A limit.
    pub struct BandwidthLimitRule {
        always {
            /// Name.
            pub name: String,
        }
        /// Interface in the gateway pod.
        pub interface: String,
        /// Mbit/s.
        pub rate_max: String,
        /// Megabytes.
        pub burst_max: String,
        /// Priority.
        pub priority: i32,
        /// `ingress` or `egress`.
        pub direction: String,
        /// `ip`.
        pub match_type: String,
        /// `src <cidr>` or `dst <cidr>`.
        pub match_value: String,
    }
}

object! {
    /// Status of a QoSPolicy.
    pub struct QosPolicyStatus {
        always {
            /// As in spec.
            pub shared: bool,
            /// As in spec.
            pub binding_type: String,
            /// As in spec.
            pub bandwidth_limit_rules: Vec<BandwidthLimitRule>,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// Bandwidth limits of external addresses or NAT gateways.
    QosPolicy { QosPolicySpec, QosPolicyStatus }
    kind: "QoSPolicy", singular: "qos-policy", plural: "qos-policies", short: ["qos"],
    scope: Cluster, conditions: true, status_subresource: true
}
