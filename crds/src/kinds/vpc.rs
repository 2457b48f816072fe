//! Vpc (contract §1.4).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::Condition;

object! {
    /// Spec of a Vpc.
    pub struct VpcSpec {
        /// Subnet annotated first on the VPC's namespaces.
        pub default_subnet: String,
        /// Namespaces that may use the VPC.
        pub namespaces: Vec<String>,
        /// Static routes.
        pub static_routes: Vec<StaticRoute>,
        /// Policy routes.
        pub policy_routes: Vec<PolicyRoute>,
        /// Peerings with other VPCs.
        pub vpc_peerings: Vec<VpcPeering>,
        /// Connect to the default external subnet.
        pub enable_external: bool,
        /// Connect to more external subnets.
        pub extra_external_subnets: Vec<String>,
        /// BFD on external routes.
        pub enable_bfd: bool,
        /// A router port that only speaks BFD.
        pub bfd_port: Option<BfdPort>,
    }
}

object! {
    /// A static route.
    pub struct StaticRoute {
        always {
            /// CIDR or address.
            pub cidr: String,
            /// Next hop.
            #[serde(rename = "nextHopIP")]
            pub next_hop_ip: String,
        }
        /// `policyDst` (default) or `policySrc`.
        pub policy: String,
        /// `ecmp_symmetric_reply` or empty.
        pub ecmp_mode: String,
        /// BFD row.
        pub bfd_id: String,
        /// Route table, empty is the main one.
        pub route_table: String,
    }
}

object! {
    /// A policy route.
    pub struct PolicyRoute {
        /// 0 to 32767.
        pub priority: i32,
        /// OVN match expression.
        #[serde(rename = "match")]
        pub r#match: String,
        /// `allow`, `drop` or `reroute`.
        pub action: String,
        /// Next hops of `reroute`, comma separated.
        #[serde(rename = "nextHopIP")]
        pub next_hop_ip: String,
    }
}

object! {
    /// One side of a peering.
    pub struct VpcPeering {
        /// The other VPC.
        pub remote_vpc: String,
        /// Our CIDR(s) on the connection.
        #[serde(rename = "localConnectIP")]
        pub local_connect_ip: String,
    }
}

object! {
    /// A dedicated BFD router port.
    pub struct BfdPort {
        always {
            /// Create it.
            pub enabled: bool,
        }
        /// One or two addresses.
        pub ip: String,
        /// Nodes that may host it; without, at most three nodes do.
        pub node_selector: Option<LabelSelector>,
    }
}

object! {
    /// The BFD router port as it is.
    pub struct BfdPortStatus {
        /// Port name.
        pub name: String,
        /// Address(es).
        pub ip: String,
        /// Nodes that host it.
        pub nodes: Vec<String>,
    }
}

object! {
    /// Status of a Vpc.
    pub struct VpcStatus {
        always {
            /// The router exists.
            pub standby: bool,
            /// It is the default VPC.
            pub default: bool,
            /// Its default subnet.
            pub default_logical_switch: String,
            /// Logical router, named like the VPC.
            pub router: String,
            /// Load balancer row.
            pub tcp_load_balancer: String,
            /// Load balancer row with session affinity.
            pub tcp_session_load_balancer: String,
            /// Load balancer row.
            pub udp_load_balancer: String,
            /// Load balancer row with session affinity.
            pub udp_session_load_balancer: String,
            /// Load balancer row.
            pub sctp_load_balancer: String,
            /// Load balancer row with session affinity.
            pub sctp_session_load_balancer: String,
            /// Subnets, sorted.
            pub subnets: Vec<String>,
            /// Peer VPCs.
            pub vpc_peerings: Vec<String>,
            /// Connected to the default external subnet.
            pub enable_external: bool,
            /// Connected to these external subnets.
            pub extra_external_subnets: Vec<String>,
            /// BFD on external routes.
            pub enable_bfd: bool,
            /// The BFD router port.
            pub bfd_port: BfdPortStatus,
        }
        /// Validated, Ready, Error.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A virtual private cloud: one logical router.
    Vpc { VpcSpec, VpcStatus }
    kind: "Vpc", singular: "vpc", plural: "vpcs", short: ["vpc"], scope: Cluster,
    conditions: true, status_subresource: true
}
