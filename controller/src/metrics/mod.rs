//! Prometheus metrics: Kube-OVN's names where they apply (contract §8.7), `weir_*`
//! for what is Weir's own.
//!
//! Flows in: observations from the other runtime modules, and at each scrape the
//! state of watches, core and process. Flows out: the OpenMetrics text of
//! [`Metrics::encode`].

mod shared;
mod state;
mod subnets;

use std::fmt;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::io::{KubeError, KubeWrite};
use crate::watch::{Statuses, plural};

pub use shared::{Database, Shared, Snapshot, Southbound};

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    api_writes: Family<Labels, Counter>,
    api_latency: Histograms,
    ovs_latency: Histograms,
    transactions: Family<Labels, Counter>,
    events: Family<Labels, Counter>,
    handle: Histogram,
    holder: Family<Labels, Gauge>,
    chassis_removed: Counter,
    patched: Family<Labels, Gauge>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn milliseconds() -> Histogram {
    Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 5_000.0, 20_000.0])
}

fn seconds() -> Histogram {
    Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 10.0])
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry with everything that is observed; state is added by
    /// [`Metrics::with_state`].
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            api_writes: Family::default(),
            api_latency: Family::new_with_constructor(seconds),
            ovs_latency: Family::new_with_constructor(milliseconds),
            transactions: Family::default(),
            events: Family::default(),
            handle: seconds(),
            holder: Family::default(),
            chassis_removed: Counter::default(),
            patched: Family::default(),
        };
        let registry = &mut metrics.registry;
        registry.register(
            "weir_api_writes",
            "Writes to the API server by kind, verb and result",
            metrics.api_writes.clone(),
        );
        registry.register(
            "weir_transactions",
            "Northbound transactions by result",
            metrics.transactions.clone(),
        );
        registry.register("weir_events", "Kubernetes events by what became of them", metrics.events.clone());
        registry.register(
            "weir_handle_seconds",
            "Time the core took for a batch of inputs",
            metrics.handle.clone(),
        );
        registry.register(
            "weir_lease_holder",
            "1 for the identity that holds the Lease",
            metrics.holder.clone(),
        );
        registry.register(
            "weir_patched_ovn_options",
            "1 for an option that a flag asks for and that only Kube-OVN's patched OVN honours",
            metrics.patched.clone(),
        );
        registry.register(
            "weir_chassis_removed",
            "Chassis of nodes that are gone, and duplicates, deleted",
            metrics.chassis_removed.clone(),
        );
        registry.register(
            "rest_client_request_latency_seconds",
            "Latency of requests to the API server",
            metrics.api_latency.clone(),
        );
        registry.register(
            "ovs_client_request_latency_milliseconds",
            "Latency of requests to OVN databases",
            metrics.ovs_latency.clone(),
        );
        metrics
    }

    /// Adds the state that is looked at when a scrape comes.
    pub fn with_state(mut self, shared: Shared, watches: Statuses) -> Self {
        self.registry.register_collector(Box::new(state::State { shared, watches }));
        self
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// A metric that can't be written, which would be a bug.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Counts a finished write to the API server.
    pub fn kube_write(&self, write: &KubeWrite, result: &Result<(), KubeError>) {
        let (object, verb) = match write {
            KubeWrite::Patch { object, status: true, .. } => (object, "patch_status"),
            KubeWrite::Patch { object, .. } => (object, "patch"),
            KubeWrite::Create { object, .. } => (object, "create"),
            KubeWrite::Delete { object, .. } => (object, "delete"),
        };
        let result = match result {
            Ok(()) => "ok",
            Err(KubeError::Gone) => "gone",
            Err(KubeError::Exists) => "exists",
            Err(KubeError::Retry(_)) => "retry",
            Err(KubeError::Invalid(_)) => "invalid",
        };
        let labels = vec![
            ("kind", plural(object.kind).to_owned()),
            ("verb", verb.to_owned()),
            ("result", result.to_owned()),
        ];
        self.api_writes.get_or_create(&labels).inc();
    }

    /// Observes a request to the API server.
    pub fn api_request(&self, verb: &str, path: &str, took: Duration) {
        let labels = vec![("verb", verb.to_owned()), ("url", url_template(path))];
        self.api_latency.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Observes an answered transaction. `result` is `ok` or the kind of error.
    pub fn transaction(&self, took: Duration, result: &str) {
        self.transactions.get_or_create(&vec![("result", result.to_owned())]).inc();
        let code = if result == "ok" { "0" } else { "1" };
        let labels = vec![
            ("db", "OVN_Northbound".to_owned()),
            ("method", "transact".to_owned()),
            ("code", code.to_owned()),
        ];
        self.ovs_latency.get_or_create(&labels).observe(took.as_secs_f64() * 1_000.0);
    }

    /// Counts a Kubernetes event: `sent`, `aggregated`, `limited`, `overflow` or `failed`.
    pub fn event(&self, outcome: &'static str) {
        self.events.get_or_create(&vec![("outcome", outcome.to_owned())]).inc();
    }

    /// Notes options that stock OVN does not honour.
    pub fn patched_options(&self, names: &[&'static str]) {
        for name in names {
            self.patched.get_or_create(&vec![("option", (*name).to_owned())]).set(1);
        }
    }

    /// Counts a deleted chassis.
    pub fn chassis_removed(&self) {
        self.chassis_removed.inc();
    }

    /// Observes the time of a batch.
    pub fn handled(&self, took: Duration) {
        self.handle.observe(took.as_secs_f64());
    }

    /// Notes who holds the Lease.
    pub fn lease_holder(&self, holder: &str) {
        self.holder.clear();
        if !holder.is_empty() {
            self.holder.get_or_create(&vec![("holder", holder.to_owned())]).set(1);
        }
    }
}

/// A path without namespaces and names, so that the label has few values.
fn url_template(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').collect();
    // "", "api", version or "", "apis", group, version
    let resource = if parts.get(1) == Some(&"api") { 3 } else { 4 };
    let resource = if parts.get(resource) == Some(&"namespaces") && parts.len() > resource + 2 {
        if let Some(part) = parts.get_mut(resource + 1) {
            *part = "{namespace}";
        }
        resource + 2
    } else {
        resource
    };
    if let Some(part) = parts.get_mut(resource + 1) {
        *part = "{name}";
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Kind, ObjectRef};
    use crate::io::Input;

    #[test]
    fn urls_have_few_values() {
        for (path, expected) in [
            ("/api/v1/pods?watch=true", "/api/v1/pods"),
            ("/api/v1/nodes/n1", "/api/v1/nodes/{name}"),
            ("/api/v1/namespaces/n1", "/api/v1/namespaces/{name}"),
            ("/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/{namespace}/pods/{name}"),
            ("/apis/kubeovn.io/v1/subnets/s/status", "/apis/kubeovn.io/v1/subnets/{name}/status"),
            ("/apis/kubeovn.io/v1/ips", "/apis/kubeovn.io/v1/ips"),
            (
                "/apis/coordination.k8s.io/v1/namespaces/a/leases",
                "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
            ),
        ] {
            assert_eq!(url_template(path), expected);
        }
    }

    #[test]
    fn everything_encodes_under_its_name() {
        let shared = Shared::default();
        let subnet = serde_json::json!({"metadata": {"name": "s1", "uid": "u"},
            "spec": {"cidrBlock": "10.1.0.0/16", "protocol": "IPv4"},
            "status": {"v4availableIPs": 7, "v4usingIPs": 3}});
        let subnet = crate::watch::decode::Decoder::new(Kind::Subnet).object(&subnet.to_string()).unwrap();
        shared.observe(&Input::Listed(Kind::Subnet, vec![subnet]));
        let central = serde_json::json!({"metadata": {"name": "s2", "uid": "u"},
            "spec": {"cidrBlock": "10.2.0.0/16,fd02::/64", "protocol": "Dual", "gatewayType": "centralized",
                "gatewayNode": "n1,n2", "enableEcmp": true, "excludeIps": ["10.2.0.1", "10.2.0.9..10.2.0.12", "fd02::1"]},
            "status": {"activateGateway": "n1", "v4availableIPrange": "10.2.0.4-10.2.0.8", "v4usingIPrange": "10.2.0.2-10.2.0.3"}});
        let central = crate::watch::decode::Decoder::new(Kind::Subnet).object(&central.to_string()).unwrap();
        shared.observe(&Input::Applied(central));
        let node = serde_json::json!({"metadata": {"name": "n1", "uid": "u",
            "annotations": {"ovn.kubernetes.io/ip_address": "100.64.0.2,fd00:100::2"}}});
        let node = crate::watch::decode::Decoder::new(Kind::Node).object(&node.to_string()).unwrap();
        shared.observe(&Input::Listed(Kind::Node, vec![node]));
        let ip = serde_json::json!({"metadata": {"name": "a-0.web", "uid": "u"},
            "spec": {"podName": "a-0", "namespace": "web", "subnet": "s2", "v4IpAddress": "10.2.0.2", "v6IpAddress": "fd02::2"}});
        let ip = crate::watch::decode::Decoder::new(Kind::Ip).object(&ip.to_string()).unwrap();
        shared.observe(&Input::Applied(ip));
        let metrics = Metrics::new().with_state(shared, Statuses::default());
        metrics.api_request("GET", "/api/v1/pods", Duration::from_millis(3));
        metrics.transaction(Duration::from_millis(3), "ok");
        metrics.event("sent");
        metrics.lease_holder("a");
        metrics.lease_holder("b");
        let write = KubeWrite::Delete { object: ObjectRef::cluster(Kind::Ip, "x"), uid: "u".into() };
        metrics.kube_write(&write, &Err(KubeError::Gone));
        let text = metrics.encode().unwrap();
        for line in [
            r#"subnet_available_ip_count{subnet_name="s1",protocol="IPv4",subnet_cidr="10.1.0.0/16"} 7"#,
            r#"subnet_used_ip_count{subnet_name="s1",protocol="IPv4",subnet_cidr="10.1.0.0/16"} 3"#,
            r#"centralized_subnet_info{subnet_name="s2",enable_ecmp="true",gateway_node="n1,n2",active_gateway="n1",match="ip4.src == 10.2.0.0/16",nexthops="100.64.0.2"} 1"#,
            r#"centralized_subnet_info{subnet_name="s2",enable_ecmp="true",gateway_node="n1,n2",active_gateway="n1",match="ip6.src == fd02::/64",nexthops="fd00:100::2"} 1"#,
            r#"subnet_ipam_info{subnet_name="s2",cidr="10.2.0.0/16",free="10.2.0.4-10.2.0.8",reserved="10.2.0.1,10.2.0.9..10.2.0.12",available="10.2.0.4-10.2.0.8",using="10.2.0.2-10.2.0.3"} 1"#,
            r#"subnet_ip_assign_info{subnet_name="s2",ip="10.2.0.2",pod_name="web/a-0"} 1"#,
            r#"subnet_ip_assign_info{subnet_name="s2",ip="fd02::2",pod_name="web/a-0"} 1"#,
            r#"weir_api_writes_total{kind="ips",verb="delete",result="gone"} 1"#,
            r#"weir_lease_holder{holder="b"} 1"#,
            r#"weir_transactions_total{result="ok"} 1"#,
            r#"ovs_client_request_latency_milliseconds_count{db="OVN_Northbound",method="transact",code="0"} 1"#,
            r#"rest_client_request_latency_seconds_count{verb="GET",url="/api/v1/pods"} 1"#,
            "weir_leader 0",
            "weir_units_compiled_total 0",
            "weir_unclaimed_rows 0",
            "weir_rows_touched_total 0",
            "process_cpu_seconds_total",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains(r#"holder="a""#));
        // The list of contract §8.7, with the type by which dashboards use them.
        for (name, kind) in [
            ("subnet_available_ip_count", "gauge"),
            ("subnet_used_ip_count", "gauge"),
            ("centralized_subnet_info", "gauge"),
            ("subnet_ipam_info", "gauge"),
            ("subnet_ip_assign_info", "gauge"),
            ("ovs_client_request_latency_milliseconds", "histogram"),
            ("rest_client_request_latency_seconds", "histogram"),
            ("klog_lines", "counter"),
            ("klog_bytes", "counter"),
        ] {
            let line = format!("# TYPE {name} {kind}\n");
            assert!(text.contains(&line), "{line} is missing in\n{text}");
        }
    }
}
