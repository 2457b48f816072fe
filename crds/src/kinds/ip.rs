//! IP: the record of one logical port's addresses (contract §1.2).

use crate::NoStatus;

object! {
    /// Spec of an IP.
    pub struct IpSpec {
        always {
            /// Pod or VM; node for node ports.
            pub pod_name: String,
            /// Namespace of the pod, empty for node ports.
            pub namespace: String,
            /// Subnet.
            pub subnet: String,
            /// More subnets the addresses count in.
            pub attach_subnets: Vec<String>,
            /// Node.
            pub node_name: String,
            /// Both addresses, `v4,v6`.
            pub ip_address: String,
            /// IPv4 address.
            pub v4_ip_address: String,
            /// IPv6 address.
            pub v6_ip_address: String,
            /// Addresses in the attached subnets.
            pub attach_ips: Vec<String>,
            /// MAC address.
            pub mac_address: String,
            /// MAC addresses in the attached subnets.
            pub attach_macs: Vec<String>,
            /// Container, unused today.
            #[serde(rename = "containerID")]
            pub container_id: String,
            /// Empty, `StatefulSet` or `VirtualMachine`.
            pub pod_type: String,
        }
    }
}

resource! {
    /// The record of one logical port's addresses; its name is the port's.
    Ip { IpSpec, NoStatus }
    kind: "IP", singular: "ip", plural: "ips", short: ["ip"], scope: Cluster,
    conditions: false, status_subresource: false
}
