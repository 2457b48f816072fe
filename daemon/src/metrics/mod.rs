//! Metrics of the agent, with Kube-OVN's names where it has them (node
//! contract §4.13).

mod ipsets;
mod logs;
mod system;

use std::path::Path;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use logs::{CountingWriter, write_logs_to};

use crate::plug::Stage;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    node_name: String,
    /// The request's path, as upstream.
    method: String,
    status_code: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OvsLabels {
    db: &'static str,
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GatewayLabels {
    hostname: String,
    subnet_name: String,
    cidr: String,
    direction: &'static str,
    protocol: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RestLabels {
    verb: String,
    url: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RestCodeLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabels {
    direction: &'static str,
    mechanism: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NodeLabels {
    node_name: String,
}

/// The registry and what is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    node: String,
    latency: Family<OperationLabels, Histogram>,
    wait_address: Counter<f64, std::sync::atomic::AtomicU64>,
    wait_route: Counter<f64, std::sync::atomic::AtomicU64>,
    wait_connectivity: Counter<f64, std::sync::atomic::AtomicU64>,
    lost: Counter,
    host_changes: Counter,
    ovs_latency: Family<OvsLabels, Histogram>,
    limited: Family<LimitLabels, Gauge>,
    gateway_packets: Family<GatewayLabels, Gauge>,
    gateway_bytes: Family<GatewayLabels, Gauge>,
    rest_latency: Family<RestLabels, Histogram>,
    rest_requests: Family<RestCodeLabels, Counter>,
}

impl Metrics {
    /// Registers everything for this node.
    pub fn new(node: &str) -> Self {
        let mut registry = Registry::default();
        let latency = Family::<OperationLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.001, 2.0, 10))
        });
        registry.register("cni_op_latency_seconds", "Duration of CNI calls", latency.clone());
        let node_labels = NodeLabels { node_name: node.to_owned() };
        // The library appends `_total` to counters.
        let mut seconds = |name: &str, help: &str| {
            let family = Family::<NodeLabels, Counter<f64, std::sync::atomic::AtomicU64>>::default();
            registry.register(name, help, family.clone());
            family.get_or_create(&node_labels).clone()
        };
        let wait_address = seconds("cni_wait_address_seconds", "Time that ADDs waited for an address");
        let wait_route = seconds("cni_wait_route_seconds", "Time that ADDs waited to be routed");
        let wait_connectivity =
            seconds("cni_wait_connectivity_seconds", "Time that ADDs waited for their gateway");
        let lost = Counter::default();
        registry.register(
            "weir_lost_interfaces_removed",
            "Interfaces without a sandbox that were removed",
            lost.clone(),
        );
        registry.register_collector(Box::new(system::System::new(Path::new("/proc"), node)));
        registry.register_collector(Box::new(logs::Lines));
        registry.register_collector(Box::new(ipsets::Ipsets));
        let ovs_latency = Family::<OvsLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(1.0, 2.0, 10))
        });
        let help = "Duration of requests to the local OVS database in milliseconds";
        registry.register("ovs_client_request_latency_milliseconds", help, ovs_latency.clone());
        // Gauges, as the names have no `_total`.
        let (gateway_packets, gateway_bytes) =
            (Family::<GatewayLabels, Gauge>::default(), Family::<GatewayLabels, Gauge>::default());
        registry.register(
            "ovn_subnet_gateway_packets",
            "Packets that passed this node between a subnet and the world",
            gateway_packets.clone(),
        );
        registry.register(
            "ovn_subnet_gateway_packet_bytes",
            "Bytes that passed this node between a subnet and the world",
            gateway_bytes.clone(),
        );
        let rest_latency = Family::<RestLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.001, 2.0, 10))
        });
        registry.register(
            "rest_client_request_latency_seconds",
            "Latency of requests to the API server",
            rest_latency.clone(),
        );
        let rest_requests = Family::<RestCodeLabels, Counter>::default();
        // The library appends `_total`.
        registry.register("rest_client_requests", "Requests to the API server", rest_requests.clone());
        let limited = Family::<LimitLabels, Gauge>::default();
        registry.register(
            "weir_limited_interfaces",
            "Ports with limits, by what holds them; mechanism missing: nothing does",
            limited.clone(),
        );
        let host_changes = Counter::default();
        registry.register(
            "weir_host_changes",
            "Changes made to the host's routes and firewall",
            host_changes.clone(),
        );
        Self {
            registry,
            node: node.to_owned(),
            latency,
            wait_address,
            wait_route,
            wait_connectivity,
            lost,
            host_changes,
            ovs_latency,
            limited,
            gateway_packets,
            gateway_bytes,
            rest_latency,
            rest_requests,
        }
    }

    /// A transaction of the local OVS database was answered.
    pub fn ovs_request(&self, success: bool, took: Duration) {
        let code = if success { "0" } else { "1" };
        let labels = OvsLabels { db: "ovsdb", method: "transact", code };
        self.ovs_latency.get_or_create(&labels).observe(took.as_secs_f64() * 1000.0);
    }

    /// A CNI call was answered.
    pub fn operation(&self, path: &str, status: u16, took: Duration) {
        let labels = OperationLabels {
            node_name: self.node.clone(),
            method: path.to_owned(),
            status_code: status.to_string(),
        };
        self.latency.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// An ADD had its annotations after this long.
    pub fn waited_for_annotations(&self, took: Duration, default_route: bool) {
        let counter = if default_route { &self.wait_route } else { &self.wait_address };
        counter.inc_by(took.as_secs_f64());
    }

    /// An ADD gave up in this stage.
    pub fn gave_up_waiting(&self, stage: Stage, took: Duration) {
        let counter = if stage == Stage::WaitRoute { &self.wait_route } else { &self.wait_address };
        counter.inc_by(took.as_secs_f64());
    }

    /// An ADD's gateways were checked.
    pub fn waited_for_gateway(&self, took: Duration) {
        self.wait_connectivity.inc_by(took.as_secs_f64());
    }

    /// Lost interfaces were removed.
    pub fn lost_interfaces(&self, count: u64) {
        self.lost.inc_by(count);
    }

    /// Sums of packets and bytes of each subnet; `gone` are not counted any more.
    pub fn subnet_gateways(
        &self,
        sums: &std::collections::BTreeMap<crate::gateway::Counted, (u64, u64)>,
        gone: &[crate::gateway::Counted],
    ) {
        let labels = |counted: &crate::gateway::Counted| GatewayLabels {
            hostname: self.node.clone(),
            subnet_name: counted.subnet.clone(),
            cidr: counted.cidr.clone(),
            direction: counted.direction,
            protocol: counted.protocol,
        };
        for counted in gone {
            self.gateway_packets.remove(&labels(counted));
            self.gateway_bytes.remove(&labels(counted));
        }
        for (counted, (packets, bytes)) in sums {
            let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            self.gateway_packets.get_or_create(&labels(counted)).set(whole(*packets));
            self.gateway_bytes.get_or_create(&labels(counted)).set(whole(*bytes));
        }
    }

    /// The API server answered; `code` is `<error>` if it did not.
    pub fn rest_request(&self, verb: &str, url: &str, host: &str, code: &str, took: Duration) {
        let labels = RestLabels { verb: verb.to_owned(), url: url.to_owned() };
        self.rest_latency.get_or_create(&labels).observe(took.as_secs_f64());
        let labels = RestCodeLabels { code: code.to_owned(), method: verb.to_owned(), host: host.to_owned() };
        self.rest_requests.get_or_create(&labels).inc();
    }

    /// How many ports each mechanism limits, by direction.
    pub fn limited_interfaces(&self, counts: &std::collections::BTreeMap<(&'static str, &'static str), i64>) {
        for direction in ["egress", "ingress"] {
            for mechanism in crate::qos::Hold::WORDS {
                let count = counts.get(&(direction, mechanism)).copied().unwrap_or_default();
                self.limited.get_or_create(&LimitLabels { direction, mechanism }).set(count);
            }
        }
    }

    /// The host's state was changed.
    pub fn host_changes(&self, count: u64) {
        self.host_changes.inc_by(count);
    }

    /// The exposition text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_contracts() {
        let metrics = Metrics::new("n1");
        metrics.operation("/api/v1/add", 200, Duration::from_millis(3));
        metrics.waited_for_gateway(Duration::from_millis(1));
        metrics.ovs_request(true, Duration::from_millis(3));
        metrics.rest_request("GET", "/api/v1/pods", "h", "200", Duration::from_millis(3));
        let counted = crate::gateway::Counted {
            subnet: "s".into(),
            cidr: "10.16.0.0/16".into(),
            direction: "ingress",
            protocol: "IPv4",
        };
        metrics.subnet_gateways(&[(counted, (3, 300))].into(), &[]);
        let text = metrics.render();
        for name in [
            "ovs_client_request_latency_milliseconds_bucket{le=\"4.0\",db=\"ovsdb\",method=\"transact\",code=\"0\"}",
            "rest_client_request_latency_seconds_bucket{le=\"0.004\",verb=\"GET\",url=\"/api/v1/pods\"}",
            "ovn_subnet_gateway_packets{hostname=\"n1\",subnet_name=\"s\",cidr=\"10.16.0.0/16\",direction=\"ingress\",protocol=\"IPv4\"} 3",
            "ovn_subnet_gateway_packet_bytes{hostname=\"n1\",subnet_name=\"s\",cidr=\"10.16.0.0/16\",direction=\"ingress\",protocol=\"IPv4\"} 300",
            "klog_lines_total{level=\"INFO\"}",
            "klog_bytes_total{level=\"ERROR\"}",
            // What this kernel has; all of them are in `system.rs`.
            "ip_local_port_range{hostname=\"n1\",start=",
            "dns_search_domain{hostname=\"n1\",additional=",
            "checksum_err_count{hostname=\"n1\"}",
            "cni_op_latency_seconds_bucket{le=\"0.004\",node_name=\"n1\",method=\"/api/v1/add\",status_code=\"200\"}",
            "cni_wait_address_seconds_total{node_name=\"n1\"}",
            "cni_wait_route_seconds_total{node_name=\"n1\"}",
            "cni_wait_connectivity_seconds_total{node_name=\"n1\"}",
            "\nfelix_ipset_calls ",
            "\nfelix_ipset_errors ",
            "\nfelix_ipset_lines_executed ",
            "\nfelix_ipsets_total ",
            "\nfelix_ipsets_calico{ip_version=\"inet6\"} ",
        ] {
            assert!(text.contains(name), "{name} is not in\n{text}");
        }
    }
}
