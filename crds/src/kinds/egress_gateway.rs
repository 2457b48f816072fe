//! VpcEgressGateway (contract §1.15).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::{Condition, Workload};

object! {
    /// Spec of a VpcEgressGateway.
    pub struct VpcEgressGatewaySpec {
        always {
            /// External subnet.
            pub external_subnet: String,
        }
        /// VPC; empty is the default VPC.
        pub vpc: String,
        /// Gateway pods; unset means 1 (the schema's default).
        pub replicas: Option<i32>,
        /// Prefix of the workload's name.
        pub prefix: String,
        /// Image.
        pub image: String,
        /// Inner subnet; empty is the VPC's default subnet.
        pub internal_subnet: String,
        /// Inner addresses.
        #[serde(rename = "internalIPs")]
        pub internal_ips: Vec<String>,
        /// Outer addresses.
        #[serde(rename = "externalIPs")]
        pub external_ips: Vec<String>,
        /// IPPool of the inner addresses.
        #[serde(rename = "internalIPPool")]
        pub internal_ip_pool: String,
        /// IPPool of the outer addresses.
        #[serde(rename = "externalIPPool")]
        pub external_ip_pool: String,
        /// Pods whose traffic takes the gateway.
        pub selectors: Vec<EgressSelector>,
        /// Sources whose traffic takes the gateway.
        pub policies: Vec<EgressPolicy>,
        /// `Cluster` or `Local`.
        pub traffic_policy: String,
        /// `Required` or `Preferred`.
        pub pod_anti_affinity: String,
        /// BFD between VPC and gateway.
        pub bfd: EgressBfd,
        /// BgpConf.
        pub bgp_conf: String,
        /// EvpnConf.
        pub evpn_conf: String,
        /// Nodes that may run the gateway.
        pub node_selector: Vec<EgressNodeSelector>,
        /// Tolerations of the pods.
        pub tolerations: Vec<Toleration>,
        /// Resources of the container, as in a pod spec.
        pub resources: Value,
        /// Limits per gateway pod.
        pub bandwidth: EgressBandwidth,
        /// Metrics and logs.
        pub observability: EgressObservability,
    }
}

object! {
    /// Pods by label.
    pub struct EgressSelector {
        /// Namespaces.
        pub namespace_selector: Option<LabelSelector>,
        /// Pods in them.
        pub pod_selector: Option<LabelSelector>,
    }
}

object! {
    /// Sources by address.
    pub struct EgressPolicy {
        /// Translate the source address.
        pub snat: bool,
        /// Addresses and CIDRs.
        pub ip_blocks: Vec<String>,
        /// Subnets.
        pub subnets: Vec<String>,
    }
}

object! {
    /// BFD between VPC and gateway. Unset numbers have the schema's defaults.
    pub struct EgressBfd {
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
    /// Nodes by label and field.
    pub struct EgressNodeSelector {
        /// Labels.
        pub match_labels: BTreeMap<String, String>,
        /// Label expressions.
        pub match_expressions: Vec<NodeSelectorRequirement>,
        /// Field expressions.
        pub match_fields: Vec<NodeSelectorRequirement>,
    }
}

object! {
    /// Mbit/s as a number, or a quantity in bit/s with M, Mi, G or Gi.
    pub struct EgressBandwidth {
        /// Into the gateway.
        pub ingress: Value,
        /// Out of the gateway.
        pub egress: Value,
    }
}

object! {
    /// Metrics and logs of a gateway.
    pub struct EgressObservability {
        /// Counters of interfaces.
        pub interface_metrics: Enabled,
        /// Connection tracking.
        pub conntrack: EgressConntrack,
        /// Resources of the observer container, as in a pod spec.
        pub resources: Value,
        /// ServiceMonitor to create.
        pub service_monitor: Option<ServiceMonitorMeta>,
    }
}

object! {
    /// A switch.
    pub struct Enabled {
        /// On.
        pub enabled: bool,
    }
}

object! {
    /// What to tell about tracked connections.
    pub struct EgressConntrack {
        /// Counters.
        pub metrics: Enabled,
        /// Log lines.
        pub log: EgressConntrackLog,
    }
}

object! {
    /// Log lines about tracked connections.
    pub struct EgressConntrackLog {
        /// On.
        pub enabled: bool,
        /// Start, end.
        pub events: Value,
        /// Include and exclude lists.
        pub filters: Value,
        /// Limit.
        pub rate_limit: EgressLogRate,
    }
}

object! {
    /// Limit of log lines.
    pub struct EgressLogRate {
        /// Lines per second.
        pub records_per_second: i32,
        /// Lines at once.
        pub burst: i32,
    }
}

object! {
    /// Metadata of a generated ServiceMonitor.
    pub struct ServiceMonitorMeta {
        /// Labels.
        pub labels: BTreeMap<String, String>,
        /// Annotations.
        pub annotations: BTreeMap<String, String>,
    }
}

object! {
    /// Status of a VpcEgressGateway.
    pub struct VpcEgressGatewayStatus {
        always {
            /// Pods.
            pub replicas: i32,
            /// Selector of the pods, for the scale subresource.
            pub label_selector: String,
            /// Ready.
            pub ready: bool,
            /// `Pending`, `Processing` or `Completed`.
            pub phase: String,
            /// Conditions.
            pub conditions: Vec<Condition>,
        }
        /// Inner addresses.
        #[serde(rename = "internalIPs")]
        pub internal_ips: Vec<String>,
        /// Outer addresses.
        #[serde(rename = "externalIPs")]
        pub external_ips: Vec<String>,
        /// The workload.
        pub workload: Workload,
    }
}

resource! {
    /// An egress gateway in pods.
    VpcEgressGateway { VpcEgressGatewaySpec, VpcEgressGatewayStatus }
    kind: "VpcEgressGateway", singular: "vpc-egress-gateway", plural: "vpc-egress-gateways",
    short: ["vpc-egress-gw", "veg"], scope: Namespaced, conditions: true, status_subresource: true
}
