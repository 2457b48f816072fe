//! VpcNatGateway (contract §1.9).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use serde_json::Value;

use crate::Workload;

object! {
    /// Spec of a VpcNatGateway.
    pub struct VpcNatGatewaySpec {
        always {
            /// VPC.
            pub vpc: String,
            /// Subnet of the inner address.
            pub subnet: String,
            /// Inner address; needed with one replica.
            pub lan_ip: String,
        }
        /// Namespace of the workload.
        pub namespace: String,
        /// External subnets.
        pub external_subnets: Vec<String>,
        /// Gateway pods.
        pub replicas: i32,
        /// `key:value` node selector.
        pub selector: Vec<String>,
        /// Tolerations of the pods.
        pub tolerations: Vec<Toleration>,
        /// Affinity of the pods, as in a pod spec.
        pub affinity: Value,
        /// QoSPolicy.
        pub qos_policy: String,
        /// BGP speaker beside the gateway.
        pub bgp_speaker: VpcBgpSpeaker,
        /// BFD between VPC and gateway.
        pub bfd: VpcNatGatewayBfd,
        /// Subnets whose traffic takes this gateway.
        pub internal_subnets: Vec<String>,
        /// CIDRs whose traffic takes this gateway.
        #[serde(rename = "internalCIDRs")]
        pub internal_cidrs: Vec<String>,
        /// Routes inside the pod.
        pub routes: Vec<VpcNatGatewayRoute>,
        /// Create no address of its own.
        #[serde(rename = "noDefaultEIP")]
        pub no_default_eip: bool,
        /// Annotations of the pod template.
        pub annotations: BTreeMap<String, String>,
    }
}

object! {
    /// BGP speaker of a gateway.
    pub struct VpcBgpSpeaker {
        /// Run it.
        pub enabled: bool,
        /// Own AS number.
        pub asn: u32,
        /// Neighbours' AS number.
        pub remote_asn: u32,
        /// Neighbours.
        pub neighbors: Vec<String>,
        /// Duration.
        pub hold_time: String,
        /// Router id.
        pub router_id: String,
        /// Password.
        pub password: String,
        /// Graceful restart.
        pub enable_graceful_restart: bool,
        /// More arguments.
        pub extra_args: Vec<String>,
    }
}

object! {
    /// BFD between VPC and gateway.
    pub struct VpcNatGatewayBfd {
        /// Use it.
        pub enabled: bool,
        /// Milliseconds.
        #[serde(rename = "minRX")]
        pub min_rx: i32,
        /// Milliseconds.
        #[serde(rename = "minTX")]
        pub min_tx: i32,
        /// Missed packets that mean down.
        pub multiplier: i32,
    }
}

object! {
    /// A route inside the gateway pod.
    pub struct VpcNatGatewayRoute {
        /// Destination.
        pub cidr: String,
        /// Next hop, or the word `gateway`.
        #[serde(rename = "nextHopIP")]
        pub next_hop_ip: String,
    }
}

object! {
    /// Status of a VpcNatGateway.
    pub struct VpcNatGatewayStatus {
        /// Gateway pods.
        pub replicas: i32,
        /// Pods are ready.
        pub ready: bool,
        /// Inner address(es).
        pub lan_ip: String,
        /// As in spec.
        pub external_subnets: Vec<String>,
        /// As in spec.
        pub selector: Vec<String>,
        /// As in spec.
        pub qos_policy: String,
        /// As in spec.
        pub tolerations: Vec<Toleration>,
        /// As in spec.
        pub affinity: Value,
        /// As in spec.
        pub internal_subnets: Vec<String>,
        /// As in spec.
        #[serde(rename = "internalCIDRs")]
        pub internal_cidrs: Vec<String>,
        /// The workload.
        pub workload: Workload,
    }
}

resource! {
    /// A NAT gateway in pods.
    VpcNatGateway { VpcNatGatewaySpec, VpcNatGatewayStatus }
    kind: "VpcNatGateway", singular: "vpc-nat-gateway", plural: "vpc-nat-gateways", short: ["vpc-nat-gw"],
    scope: Cluster, conditions: false, status_subresource: true
}
