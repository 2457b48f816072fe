//! Vip (contract §1.7).

use crate::Condition;

object! {
    /// Spec of a Vip.
    pub struct VipSpec {
        /// Namespace whose pods may carry it.
        pub namespace: String,
        /// Subnet.
        pub subnet: String,
        /// Empty, `switch_lb_vip` or `kube_host_vm_vip`.
        #[serde(rename = "type")]
        pub r#type: String,
        /// Requested IPv4 address.
        #[serde(rename = "v4ip")]
        pub v4_ip: String,
        /// Requested IPv6 address, lower case.
        #[serde(rename = "v6ip")]
        pub v6_ip: String,
        /// Requested MAC address.
        pub mac_address: String,
        /// `key:value` pairs that select pods.
        pub selector: Vec<String>,
        /// More subnets.
        pub attach_subnets: Vec<String>,
    }
}

object! {
    /// Status of a Vip.
    pub struct VipStatus {
        always {
            /// Type.
            #[serde(rename = "type")]
            pub r#type: String,
            /// IPv4 address.
            #[serde(rename = "v4ip")]
            pub v4_ip: String,
            /// IPv6 address.
            #[serde(rename = "v6ip")]
            pub v6_ip: String,
            /// MAC address.
            pub mac: String,
        }
        /// Selector in use.
        pub selector: Vec<String>,
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// An address that is not bound to one pod.
    Vip { VipSpec, VipStatus }
    kind: "Vip", singular: "vip", plural: "vips", short: ["vip"], scope: Cluster,
    conditions: true, status_subresource: false
}
