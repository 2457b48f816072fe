//! IPPool (contract §1.3).

use crate::{Condition, Count};

object! {
    /// Spec of an IPPool.
    pub struct IpPoolSpec {
        always {
            /// Subnet the addresses are of.
            pub subnet: String,
            /// `ip`, `a..b` or CIDR.
            pub ips: Vec<String>,
        }
        /// Pods of these namespaces must use the pool.
        pub namespaces: Vec<String>,
        /// Keep an address set with the pool's addresses.
        pub enable_address_set: bool,
        /// Most addresses in use at once; 0 is no limit.
        pub size: u32,
        /// Choose addresses of the subnet until there are `size`, and write them to `ips`.
        pub pre_allocate: bool,
    }
}

object! {
    /// Status of an IPPool.
    pub struct IpPoolStatus {
        always {
            /// Free IPv4 addresses.
            #[serde(rename = "v4AvailableIPs")]
            pub v4_available_ips: Count,
            /// Their ranges.
            #[serde(rename = "v4AvailableIPRange")]
            pub v4_available_ip_range: String,
            /// Used IPv4 addresses.
            #[serde(rename = "v4UsingIPs")]
            pub v4_using_ips: Count,
            /// Their ranges.
            #[serde(rename = "v4UsingIPRange")]
            pub v4_using_ip_range: String,
            /// Free IPv6 addresses.
            #[serde(rename = "v6AvailableIPs")]
            pub v6_available_ips: Count,
            /// Their ranges.
            #[serde(rename = "v6AvailableIPRange")]
            pub v6_available_ip_range: String,
            /// Used IPv6 addresses.
            #[serde(rename = "v6UsingIPs")]
            pub v6_using_ips: Count,
            /// Their ranges.
            #[serde(rename = "v6UsingIPRange")]
            pub v6_using_ip_range: String,
        }
        /// Ready, Error.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// Addresses of a subnet set aside for some pods.
    IpPool { IpPoolSpec, IpPoolStatus }
    kind: "IPPool", singular: "ippool", plural: "ippools", short: ["ippool"], scope: Cluster,
    conditions: true, status_subresource: true
}
