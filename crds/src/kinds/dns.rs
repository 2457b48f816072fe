//! VpcDns and DNSNameResolver (contract §1.13, §1.17).

use crate::Condition;

object! {
    /// Spec of a VpcDns.
    pub struct VpcDnsSpec {
        always {
            /// VPC.
            pub vpc: String,
            /// Subnet.
            pub subnet: String,
        }
        /// Pods, 1 to 3; unset keeps the template's.
        pub replicas: i32,
        /// ConfigMap with the Corefile.
        pub corefile: String,
    }
}

object! {
    /// Status of a VpcDns.
    pub struct VpcDnsStatus {
        always {
            /// It is the one that serves its VPC.
            pub active: bool,
        }
        /// Conditions.
        pub conditions: Vec<Condition>,
    }
}

resource! {
    /// A DNS server inside a VPC.
    VpcDns { VpcDnsSpec, VpcDnsStatus }
    kind: "VpcDns", singular: "vpc-dns", plural: "vpc-dnses", short: ["vpc-dns"],
    scope: Cluster, conditions: true, status_subresource: true
}

object! {
    /// Spec of a DNSNameResolver.
    pub struct DnsNameResolverSpec {
        always {
            /// Name with trailing dot, may begin with `*.`.
            pub name: String,
        }
    }
}

object! {
    /// Status of a DNSNameResolver, written by an external resolver.
    pub struct DnsNameResolverStatus {
        /// Names that match.
        pub resolved_names: Vec<ResolvedName>,
    }
}

object! {
    /// A name and its addresses.
    pub struct ResolvedName {
        always {
            /// Name.
            pub dns_name: String,
            /// Addresses.
            pub resolved_addresses: Vec<ResolvedAddress>,
        }
        /// `Degraded`.
        pub conditions: Vec<Condition>,
        /// Failures in a row.
        pub resolution_failures: i32,
    }
}

object! {
    /// An address of a name.
    pub struct ResolvedAddress {
        always {
            /// Address.
            pub ip: String,
            /// Seconds.
            pub ttl_seconds: i32,
            /// RFC 3339.
            pub last_lookup_time: String,
        }
    }
}

resource! {
    /// Addresses of a domain name that admin policies use.
    DnsNameResolver { DnsNameResolverSpec, DnsNameResolverStatus }
    kind: "DNSNameResolver", singular: "dnsnameresolver", plural: "dnsnameresolvers", short: ["dnr"],
    scope: Cluster, conditions: false, status_subresource: true
}
