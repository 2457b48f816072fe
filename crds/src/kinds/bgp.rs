//! BgpConf and EvpnConf (contract §1.16).

use crate::NoStatus;

object! {
    /// Spec of a BgpConf.
    pub struct BgpConfSpec {
        always {
            /// Own AS number.
            #[serde(rename = "localASN")]
            pub local_asn: u32,
            /// Neighbours' AS number.
            #[serde(rename = "peerASN")]
            pub peer_asn: u32,
            /// Neighbours.
            pub neighbours: Vec<String>,
        }
        /// Router id.
        pub router_id: String,
        /// Password.
        pub password: String,
        /// Duration.
        pub hold_time: String,
        /// Duration.
        pub keepalive_time: String,
        /// Duration.
        pub connect_time: String,
        /// Neighbours may be several hops away.
        pub ebgp_multi_hop: bool,
        /// Graceful restart.
        pub graceful_restart: bool,
    }
}

resource! {
    /// BGP settings that egress gateways refer to.
    BgpConf { BgpConfSpec, NoStatus }
    kind: "BgpConf", singular: "bgp-conf", plural: "bgp-confs", short: [],
    scope: Cluster, conditions: false, status_subresource: false
}

object! {
    /// Spec of an EvpnConf.
    pub struct EvpnConfSpec {
        always {
            /// VXLAN network id.
            pub vni: u32,
            /// Route targets.
            pub route_targets: Vec<String>,
        }
    }
}

resource! {
    /// EVPN settings that egress gateways refer to.
    EvpnConf { EvpnConfSpec, NoStatus }
    kind: "EvpnConf", singular: "evpn-conf", plural: "evpn-confs", short: [],
    scope: Cluster, conditions: false, status_subresource: false
}
