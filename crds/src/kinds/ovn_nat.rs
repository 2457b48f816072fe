//! NAT on a logical router: OvnEip, OvnFip, OvnSnatRule, OvnDnatRule (contract §1.11).

use crate::Condition;

object! {
    /// Spec of an OvnEip.
    pub struct OvnEipSpec {
        /// External subnet.
        pub external_subnet: String,
        /// Requested IPv4 address.
        pub v4_ip: String,
        /// Requested IPv6 address.
        pub v6_ip: String,
        /// Requested MAC address.
        pub mac_address: String,
        /// `nat`, `lrp` or `lsp`.
        #[serde(rename = "type")]
        pub r#type: String,
    }
}

object! {
    /// Status of an OvnEip.
    pub struct OvnEipStatus {
        always {
            /// Type.
            #[serde(rename = "type")]
            pub r#type: String,
            /// What uses it.
            pub nat: String,
            /// In place.
            pub ready: bool,
            /// IPv4 address.
            pub v4_ip: String,
            /// IPv6 address.
            pub v6_ip: String,
            /// MAC address.
            pub mac_address: String,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// An external address of a logical router.
    OvnEip { OvnEipSpec, OvnEipStatus }
    kind: "OvnEip", singular: "ovn-eip", plural: "ovn-eips", short: ["oeip"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of an OvnFip.
    pub struct OvnFipSpec {
        /// OvnEip.
        pub ovn_eip: String,
        /// `vip` or `ip`.
        pub ip_type: String,
        /// Vip or IP object.
        pub ip_name: String,
        /// VPC.
        pub vpc: String,
        /// Inner IPv4 address.
        pub v4_ip: String,
        /// Inner IPv6 address.
        pub v6_ip: String,
        /// `distributed` or `centralized`.
        #[serde(rename = "type")]
        pub r#type: String,
    }
}

object! {
    /// Status of an OvnFip.
    pub struct OvnFipStatus {
        always {
            /// In place.
            pub ready: bool,
            /// VPC.
            pub vpc: String,
            /// External IPv4 address.
            pub v4_eip: String,
            /// External IPv6 address.
            pub v6_eip: String,
            /// Inner IPv4 address.
            pub v4_ip: String,
            /// Inner IPv6 address.
            pub v6_ip: String,
        }
        /// MAC address of a distributed translation.
        pub mac_address: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A one-to-one translation on a logical router.
    OvnFip { OvnFipSpec, OvnFipStatus }
    kind: "OvnFip", singular: "ovn-fip", plural: "ovn-fips", short: ["ofip"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of an OvnSnatRule.
    pub struct OvnSnatRuleSpec {
        /// OvnEip.
        pub ovn_eip: String,
        /// Subnet whose CIDR is translated.
        pub vpc_subnet: String,
        /// Vip or IP object.
        pub ip_name: String,
        /// VPC.
        pub vpc: String,
        /// Inner IPv4 sources.
        pub v4_ip_cidr: String,
        /// Inner IPv6 sources.
        pub v6_ip_cidr: String,
    }
}

object! {
    /// Status of an OvnSnatRule.
    pub struct OvnSnatRuleStatus {
        always {
            /// In place.
            pub ready: bool,
            /// VPC.
            pub vpc: String,
            /// External IPv4 address.
            pub v4_eip: String,
            /// External IPv6 address.
            pub v6_eip: String,
            /// Inner IPv4 sources.
            pub v4_ip_cidr: String,
            /// Inner IPv6 sources.
            pub v6_ip_cidr: String,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A source translation on a logical router.
    OvnSnatRule { OvnSnatRuleSpec, OvnSnatRuleStatus }
    kind: "OvnSnatRule", singular: "ovn-snat-rule", plural: "ovn-snat-rules", short: ["osnat"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of an OvnDnatRule.
    pub struct OvnDnatRuleSpec {
        /// OvnEip.
        pub ovn_eip: String,
        /// `vip` or `ip`.
        pub ip_type: String,
        /// Vip or IP object.
        pub ip_name: String,
        /// Inner port.
        pub internal_port: String,
        /// External port.
        pub external_port: String,
        /// `tcp` or `udp`.
        pub protocol: String,
        /// VPC.
        pub vpc: String,
        /// Inner IPv4 address.
        pub v4_ip: String,
        /// Inner IPv6 address.
        pub v6_ip: String,
    }
}

object! {
    /// Status of an OvnDnatRule.
    pub struct OvnDnatRuleStatus {
        always {
            /// In place.
            pub ready: bool,
            /// VPC.
            pub vpc: String,
            /// External IPv4 address.
            pub v4_eip: String,
            /// External IPv6 address.
            pub v6_eip: String,
            /// Inner IPv4 address.
            pub v4_ip: String,
            /// Inner IPv6 address.
            pub v6_ip: String,
            /// External port.
            pub external_port: String,
            /// Inner port.
            pub internal_port: String,
            /// Protocol.
            pub protocol: String,
        }
        /// Vip or IP object.
        pub ip_name: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A port forward on a logical router.
    OvnDnatRule { OvnDnatRuleSpec, OvnDnatRuleStatus }
    kind: "OvnDnatRule", singular: "ovn-dnat-rule", plural: "ovn-dnat-rules", short: ["odnat"],
    scope: Cluster, conditions: true, status_subresource: true
}
