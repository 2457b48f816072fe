//! SecurityGroup (contract §1.8).

object! {
    /// Spec of a SecurityGroup.
    pub struct SecurityGroupSpec {
        /// Rules for traffic to members.
        pub ingress_rules: Vec<SecurityGroupRule>,
        /// Rules for traffic from members.
        pub egress_rules: Vec<SecurityGroupRule>,
        /// Members may talk to each other.
        pub allow_same_group_traffic: bool,
        /// 0 or 1.
        pub tier: i32,
    }
}

object! {
    /// A rule.
    pub struct SecurityGroupRule {
        always {
            /// `ipv4` or `ipv6`.
            pub ip_version: String,
            /// `address` or `securityGroup`.
            pub remote_type: String,
            /// `allow`, `drop` or `pass`.
            pub policy: String,
        }
        /// `all`, `icmp`, `tcp` or `udp`.
        pub protocol: String,
        /// 1 to 16384, 1 is strongest.
        pub priority: i32,
        /// Address or CIDR.
        pub remote_address: String,
        /// SecurityGroup.
        pub remote_security_group: String,
        /// First destination port.
        pub port_range_min: i32,
        /// Last destination port.
        pub port_range_max: i32,
        /// Member's address or CIDR.
        pub local_address: String,
        /// First source port.
        pub source_port_range_min: i32,
        /// Last source port.
        pub source_port_range_max: i32,
    }
}

object! {
    /// Status of a SecurityGroup.
    pub struct SecurityGroupStatus {
        always {
            /// Port group.
            pub port_group: String,
            /// As in spec.
            pub allow_same_group_traffic: bool,
            /// Hash of the ingress rules in the database.
            pub ingress_md5: String,
            /// Hash of the egress rules in the database.
            pub egress_md5: String,
            /// Last attempt succeeded.
            pub ingress_last_sync_success: bool,
            /// Last attempt succeeded.
            pub egress_last_sync_success: bool,
        }
    }
}

resource! {
    /// A stateful filter that pods opt into.
    SecurityGroup { SecurityGroupSpec, SecurityGroupStatus }
    kind: "SecurityGroup", singular: "security-group", plural: "security-groups", short: ["sg"],
    scope: Cluster, conditions: false, status_subresource: true
}
