//! Subnet (contract §1.1).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::{Condition, Count};

object! {
    /// Spec of a Subnet.
    pub struct SubnetSpec {
        always {
            /// The subnet of namespaces without a binding.
            pub default: bool,
            /// `n1,n2` or `n1:ip,n2:ip`: gateway nodes of a centralized subnet.
            pub gateway_node: String,
            /// Nodes translate the source address of traffic that leaves.
            pub nat_outgoing: bool,
            /// Refuse traffic from other subnets.
            pub private: bool,
        }
        /// Owning VPC; empty is the default VPC.
        pub vpc: String,
        /// `IPv4`, `IPv6`, `Dual`, or `Mac`.
        pub protocol: String,
        /// Namespaces bound by name.
        pub namespaces: Vec<String>,
        /// `v4`, `v6` or `v4,v6`.
        pub cidr_block: String,
        /// Gateway address(es), first usable address by default.
        pub gateway: String,
        /// `ip` or `a..b`: never chosen dynamically.
        pub exclude_ips: Vec<String>,
        /// Provider, `ovn` by default.
        pub provider: String,
        /// `distributed` or `centralized`.
        pub gateway_type: String,
        /// Used when `gateway_node` is empty.
        pub gateway_node_selectors: Vec<LabelSelector>,
        /// Up to two addresses, one per family.
        pub external_egress_gateway: String,
        /// Priority of the `ip rule` for the external egress gateway.
        pub policy_routing_priority: u32,
        /// Routing table for the external egress gateway.
        #[serde(rename = "policyRoutingTableID")]
        pub policy_routing_table_id: u32,
        /// MTU of pods in bytes, 0 derives it.
        pub mtu: u32,
        /// CIDRs that may enter a private subnet.
        pub allow_subnets: Vec<String>,
        /// Vlan object; makes it an underlay subnet.
        pub vlan: String,
        /// Virtual addresses.
        pub vips: Vec<String>,
        /// Underlay subnet whose gateway is a logical router port.
        pub logical_gateway: bool,
        /// Nodes skip the gateway probe.
        pub disable_gateway_check: bool,
        /// Excluded from interconnection routes.
        pub disable_inter_connection: bool,
        /// Answer DHCP.
        #[serde(rename = "enableDHCP")]
        pub enable_dhcp: bool,
        /// `k=v,k=v`.
        #[serde(rename = "dhcpV4Options")]
        pub dhcp_v4_options: String,
        /// `k=v,k=v`.
        #[serde(rename = "dhcpV6Options")]
        pub dhcp_v6_options: String,
        /// Send router advertisements.
        #[serde(rename = "enableIPv6RA")]
        pub enable_ipv6_ra: bool,
        /// Router port's `ipv6_ra_configs`.
        #[serde(rename = "ipv6RAConfigs")]
        pub ipv6_ra_configs: String,
        /// Raw ACLs on the switch.
        pub acls: Vec<Acl>,
        /// With ACLs: allow traffic within the subnet.
        #[serde(rename = "allowEWTraffic")]
        pub allow_ew_traffic: bool,
        /// Ordered exceptions from `nat_outgoing`.
        pub nat_outgoing_policy_rules: Vec<NatOutgoingPolicyRule>,
        /// Requested address of the underlay-to-overlay router port.
        #[serde(rename = "u2oInterconnectionIP")]
        pub u2o_interconnection_ip: String,
        /// Route between underlay and overlay.
        #[serde(rename = "u2oInterconnection")]
        pub u2o_interconnection: bool,
        /// Options of that routing.
        #[serde(rename = "u2oFeatures")]
        pub u2o_features: U2oFeatures,
        /// Attach the VPC's load balancers; unset means the controller's flag.
        pub enable_lb: Option<bool>,
        /// Equal-cost routes over gateway nodes.
        pub enable_ecmp: bool,
        /// Multicast snooping and querier.
        pub enable_multicast_snoop: bool,
        /// May serve external load-balancer addresses.
        #[serde(rename = "enableExternalLBAddress")]
        pub enable_external_lb_address: bool,
        /// Route table of the router port.
        pub route_table: String,
        /// Namespaces bound by label.
        pub namespace_selectors: Vec<LabelSelector>,
        /// Node network that carries this subnet's tunnels.
        pub node_network: String,
    }
}

object! {
    /// Options of underlay-to-overlay routing.
    pub struct U2oFeatures {
        /// Only overlay destinations.
        pub overlay_only_routing: bool,
    }
}

object! {
    /// A raw ACL.
    pub struct Acl {
        /// `from-lport` or `to-lport`.
        pub direction: String,
        /// 0 to 32767.
        pub priority: i32,
        /// OVN match expression.
        #[serde(rename = "match")]
        pub r#match: String,
        /// `allow`, `allow-related`, `allow-stateless`, `drop`, `reject`.
        pub action: String,
    }
}

object! {
    /// An exception from `natOutgoing`.
    pub struct NatOutgoingPolicyRule {
        always {
            /// What it applies to.
            #[serde(rename = "match")]
            pub r#match: NatOutgoingPolicyMatch,
            /// `nat` or `forward`.
            pub action: String,
        }
    }
}

object! {
    /// Comma-separated addresses and CIDRs of one family.
    pub struct NatOutgoingPolicyMatch {
        /// Sources.
        #[serde(rename = "srcIPs")]
        pub src_ips: String,
        /// Destinations.
        #[serde(rename = "dstIPs")]
        pub dst_ips: String,
    }
}

object! {
    /// A rule with the id under which nodes know it.
    pub struct NatOutgoingPolicyRuleStatus {
        always {
            /// First 12 hex digits of SHA-256 over subnet, index and rule.
            #[serde(rename = "ruleID")]
            pub rule_id: String,
            /// What it applies to.
            #[serde(rename = "match")]
            pub r#match: NatOutgoingPolicyMatch,
            /// `nat` or `forward`.
            pub action: String,
        }
    }
}

object! {
    /// Status of a Subnet. Note the lower-case spelling of the counters' JSON names.
    pub struct SubnetStatus {
        always {
            /// Free IPv4 addresses.
            #[serde(rename = "v4availableIPs")]
            pub v4_available_ips: Count,
            /// Their ranges, `a-b,c`.
            #[serde(rename = "v4availableIPrange")]
            pub v4_available_ip_range: String,
            /// Used IPv4 addresses.
            #[serde(rename = "v4usingIPs")]
            pub v4_using_ips: Count,
            /// Their ranges.
            #[serde(rename = "v4usingIPrange")]
            pub v4_using_ip_range: String,
            /// Free IPv6 addresses.
            #[serde(rename = "v6availableIPs")]
            pub v6_available_ips: Count,
            /// Their ranges.
            #[serde(rename = "v6availableIPrange")]
            pub v6_available_ip_range: String,
            /// Used IPv6 addresses.
            #[serde(rename = "v6usingIPs")]
            pub v6_using_ips: Count,
            /// Their ranges.
            #[serde(rename = "v6usingIPrange")]
            pub v6_using_ip_range: String,
            /// Active node of a centralized subnet.
            pub activate_gateway: String,
            /// Row of the IPv4 DHCP options.
            #[serde(rename = "dhcpV4OptionsUUID")]
            pub dhcp_v4_options_uuid: String,
            /// Row of the IPv6 DHCP options.
            #[serde(rename = "dhcpV6OptionsUUID")]
            pub dhcp_v6_options_uuid: String,
            /// Address of the underlay-to-overlay router port.
            #[serde(rename = "u2oInterconnectionIP")]
            pub u2o_interconnection_ip: String,
            /// Its MAC address.
            #[serde(rename = "u2oInterconnectionMAC")]
            pub u2o_interconnection_mac: String,
            /// Its VPC.
            #[serde(rename = "u2oInterconnectionVPC")]
            pub u2o_interconnection_vpc: String,
            /// Address of the multicast querier.
            #[serde(rename = "mcastQuerierIP")]
            pub mcast_querier_ip: String,
            /// Its MAC address.
            #[serde(rename = "mcastQuerierMAC")]
            pub mcast_querier_mac: String,
        }
        /// Validated, Ready, Error.
        pub conditions: Vec<Condition>,
        /// The rules with their ids.
        pub nat_outgoing_policy_rules: Vec<NatOutgoingPolicyRuleStatus>,
    }
}

resource! {
    /// A network segment: one logical switch.
    Subnet { SubnetSpec, SubnetStatus }
    kind: "Subnet", singular: "subnet", plural: "subnets", short: ["subnet"], scope: Cluster,
    conditions: true, status_subresource: true
}
