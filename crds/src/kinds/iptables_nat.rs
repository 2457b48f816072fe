//! NAT rules inside a gateway pod: IptablesEIP, IptablesFIPRule, IptablesDnatRule,
//! IptablesSnatRule (contract §1.10).

use crate::Condition;

object! {
    /// Spec of an IptablesEIP.
    pub struct IptablesEipSpec {
        /// Requested IPv4 address.
        #[serde(rename = "v4ip")]
        pub v4_ip: String,
        /// Requested IPv6 address.
        #[serde(rename = "v6ip")]
        pub v6_ip: String,
        /// Requested MAC address.
        pub mac_address: String,
        /// Gateway.
        pub nat_gw_dp: String,
        /// QoSPolicy.
        pub qos_policy: String,
        /// External subnet.
        pub external_subnet: String,
        /// Namespace of the gateway.
        pub namespace: String,
    }
}

object! {
    /// Status of an IptablesEIP.
    pub struct IptablesEipStatus {
        always {
            /// In place.
            pub ready: bool,
            /// Address.
            pub ip: String,
            /// What uses it: comma list of `fip`, `dnat`, `snat`.
            pub nat: String,
            /// Time of the gateway's last restart.
            pub redo: String,
            /// QoSPolicy.
            pub qos_policy: String,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// An external address of a NAT gateway.
    IptablesEip { IptablesEipSpec, IptablesEipStatus }
    kind: "IptablesEIP", singular: "iptables-eip", plural: "iptables-eips", short: ["eip"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of an IptablesFIPRule.
    pub struct IptablesFipRuleSpec {
        always {
            /// IptablesEIP.
            pub eip: String,
            /// Inner address.
            pub internal_ip: String,
        }
    }
}

object! {
    /// Status of an IptablesFIPRule.
    pub struct IptablesFipRuleStatus {
        always {
            /// In place.
            pub ready: bool,
            /// External IPv4 address.
            #[serde(rename = "v4ip")]
            pub v4_ip: String,
            /// External IPv6 address.
            #[serde(rename = "v6ip")]
            pub v6_ip: String,
            /// Gateway.
            pub nat_gw_dp: String,
            /// Time of the gateway's last restart.
            pub redo: String,
            /// Inner address.
            pub internal_ip: String,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A one-to-one translation in a NAT gateway.
    IptablesFipRule { IptablesFipRuleSpec, IptablesFipRuleStatus }
    kind: "IptablesFIPRule", singular: "iptables-fip-rule", plural: "iptables-fip-rules", short: ["fip"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of an IptablesDnatRule.
    pub struct IptablesDnatRuleSpec {
        always {
            /// IptablesEIP.
            pub eip: String,
            /// External port.
            pub external_port: String,
            /// `tcp` or `udp`.
            pub protocol: String,
            /// Inner address.
            pub internal_ip: String,
            /// Inner port.
            pub internal_port: String,
        }
        /// `exclusive` or `share`.
        #[serde(rename = "type")]
        pub r#type: String,
    }
}

object! {
    /// Status of an IptablesDnatRule.
    pub struct IptablesDnatRuleStatus {
        always {
            /// In place.
            pub ready: bool,
            /// External IPv4 address.
            #[serde(rename = "v4ip")]
            pub v4_ip: String,
            /// External IPv6 address.
            #[serde(rename = "v6ip")]
            pub v6_ip: String,
            /// Gateway.
            pub nat_gw_dp: String,
            /// Time of the gateway's last restart.
            pub redo: String,
            /// Protocol.
            pub protocol: String,
            /// Inner address.
            pub internal_ip: String,
            /// Inner port.
            pub internal_port: String,
            /// External port.
            pub external_port: String,
        }
        /// `exclusive` or `share`.
        #[serde(rename = "type")]
        pub r#type: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A port forward in a NAT gateway.
    IptablesDnatRule { IptablesDnatRuleSpec, IptablesDnatRuleStatus }
    kind: "IptablesDnatRule", singular: "iptables-dnat-rule", plural: "iptables-dnat-rules", short: ["dnat"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of an IptablesSnatRule.
    pub struct IptablesSnatRuleSpec {
        always {
            /// IptablesEIP.
            pub eip: String,
            /// Inner sources.
            #[serde(rename = "internalCIDR")]
            pub internal_cidr: String,
        }
    }
}

object! {
    /// Status of an IptablesSnatRule.
    pub struct IptablesSnatRuleStatus {
        always {
            /// In place.
            pub ready: bool,
            /// External IPv4 address.
            #[serde(rename = "v4ip")]
            pub v4_ip: String,
            /// External IPv6 address.
            #[serde(rename = "v6ip")]
            pub v6_ip: String,
            /// Gateway.
            pub nat_gw_dp: String,
            /// Time of the gateway's last restart.
            pub redo: String,
            /// Inner sources.
            #[serde(rename = "internalCIDR")]
            pub internal_cidr: String,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A source translation in a NAT gateway.
    IptablesSnatRule { IptablesSnatRuleSpec, IptablesSnatRuleStatus }
    kind: "IptablesSnatRule", singular: "iptables-snat-rule", plural: "iptables-snat-rules", short: ["snat"],
    scope: Cluster, conditions: true, status_subresource: true
}
