//! SwitchLBRule and RouterLBRule (contract §1.12).

object! {
    /// Spec of a SwitchLBRule.
    pub struct SwitchLbRuleSpec {
        always {
            /// Virtual address.
            pub vip: String,
            /// Namespace of the backends.
            pub namespace: String,
            /// Ports.
            pub ports: Vec<LbRulePort>,
        }
        /// `key:value` pairs that select backend pods.
        pub selector: Vec<String>,
        /// Backend addresses; they win over the selector.
        pub endpoints: Vec<String>,
        /// Empty, `None` or `ClientIP`.
        pub session_affinity: String,
    }
}

object! {
    /// A port of a rule.
    pub struct LbRulePort {
        always {
            /// Name.
            pub name: String,
            /// Port of the virtual address.
            pub port: i32,
        }
        /// Port of the backends.
        pub target_port: i32,
        /// `TCP`, `UDP` or `SCTP`.
        pub protocol: String,
    }
}

object! {
    /// Status of a SwitchLBRule and of a RouterLBRule.
    pub struct LbRuleStatus {
        always {
            /// `53/UDP,53/TCP`.
            pub ports: String,
            /// Generated Service, `namespace/name`.
            pub service: String,
        }
    }
}

resource! {
    /// A load balancer on the switches of a VPC.
    SwitchLbRule { SwitchLbRuleSpec, LbRuleStatus }
    kind: "SwitchLBRule", singular: "switch-lb-rule", plural: "switch-lb-rules", short: ["slr"],
    scope: Cluster, conditions: false, status_subresource: true
}

object! {
    /// Spec of a RouterLBRule.
    pub struct RouterLbRuleSpec {
        always {
            /// OvnEip.
            pub ovn_eip: String,
            /// Ports.
            pub ports: Vec<LbRulePort>,
        }
        /// VPC.
        pub vpc: String,
        /// Namespace of the backends.
        pub namespace: String,
        /// `key:value` pairs that select backend pods.
        pub selector: Vec<String>,
        /// Backend addresses; they win over the selector.
        pub endpoints: Vec<String>,
        /// Empty, `None` or `ClientIP`.
        pub session_affinity: String,
    }
}

resource! {
    /// A load balancer on the router of a VPC.
    RouterLbRule { RouterLbRuleSpec, LbRuleStatus }
    kind: "RouterLBRule", singular: "router-lb-rule", plural: "router-lb-rules", short: ["rlr"],
    scope: Cluster, conditions: false, status_subresource: true
}
