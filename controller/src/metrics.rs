//! Prometheus metrics: Kube-OVN's names where they apply (contract §8.7), `weir_*`
//! for what is Weir's own.
//!
//! Flows in: observations from the other runtime modules, and at each scrape the
//! state of watches, core and process. Flows out: the OpenMetrics text of
//! [`Metrics::encode`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::core::Counters;
use crate::facts::Kind;
use crate::io::{Input, KubeError, KubeWrite};
use crate::objects::{Object, Subnet};
use crate::watch::{Statuses, plural};

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// What the loop around the core publishes after every batch.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The core's numbers.
    pub counters: Counters,
    /// Every watch and the database are loaded, as the core sees it.
    pub ready: bool,
    /// The core writes.
    pub leading: bool,
    /// We hold the Lease.
    pub elected: bool,
    /// Transactions in flight.
    pub transactions_in_flight: usize,
    /// Kubernetes writes in flight or queued.
    pub writes_in_flight: usize,
    /// How long the input handled last had waited.
    pub lag: Duration,
    /// When the loop published this.
    pub at: Option<Instant>,
}

/// State shared between the loop and those who look at it.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    snapshot: Arc<Mutex<Snapshot>>,
    subnets: Arc<Mutex<BTreeMap<Arc<str>, Arc<Subnet>>>>,
    database: Arc<Mutex<Database>>,
}

/// The database session as diagnostics see it.
#[derive(Clone, Debug, Default)]
pub struct Database {
    /// Connected and loaded.
    pub synced: bool,
    /// The server in use.
    pub endpoint: Option<String>,
    /// Why the last connection ended.
    pub last_error: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// Losses of sync so far.
    pub resyncs: u64,
    /// Columns the server lacks.
    pub missing: Vec<String>,
}

impl Shared {
    /// The latest snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes a snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// The database session.
    pub fn database(&self) -> Database {
        self.database.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is known of the database session.
    pub fn set_database(&self, change: impl FnOnce(&mut Database)) {
        change(&mut self.database.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Follows subnets for their address counts.
    pub fn observe(&self, input: &Input) {
        let mut subnets = self.subnets.lock().unwrap_or_else(PoisonError::into_inner);
        match input {
            Input::Applied(Object::Subnet(subnet)) => {
                subnets.insert(subnet.meta.name.clone(), subnet.clone());
            }
            Input::Deleted(object) if object.kind == Kind::Subnet => {
                subnets.remove(&object.name);
            }
            Input::Listed(Kind::Subnet, objects) => {
                *subnets = objects
                    .iter()
                    .filter_map(|object| match object {
                        Object::Subnet(subnet) => Some((subnet.meta.name.clone(), subnet.clone())),
                        _ => None,
                    })
                    .collect();
            }
            _ => {}
        }
    }
}

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
        self.registry.register_collector(Box::new(State { shared, watches }));
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

/// State that is read at scrape time.
#[derive(Debug)]
struct State {
    shared: Shared,
    watches: Statuses,
}

impl State {
    fn gauges<T: Copy>(
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, T)>,
    ) -> fmt::Result
    where
        ConstGauge<T>: EncodeMetric,
    {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counters(
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn watches(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.watches.all();
        let kind = |kind: &Kind| vec![("kind", plural(*kind).to_owned())];
        let age =
            all.iter().filter_map(|(k, s)| s.proof.map(|proof| (kind(k), proof.elapsed().as_secs_f64())));
        Self::gauges(encoder, "weir_watch_age_seconds", "Time since the watch last proved to be alive", age)?;
        let objects = all.iter().map(|(k, s)| (kind(k), i64::try_from(s.objects).unwrap_or(i64::MAX)));
        Self::gauges(encoder, "weir_watch_objects", "Objects in the watch's cache", objects)?;
        let loaded = all.iter().map(|(k, s)| (kind(k), i64::from(s.loaded)));
        Self::gauges(encoder, "weir_watch_loaded", "1 once the kind was listed", loaded)?;
        let lists = all.iter().map(|(k, s)| (kind(k), s.lists));
        Self::counters(encoder, "weir_watch_lists", "Complete lists", lists)?;
        let events = all.iter().map(|(k, s)| (kind(k), s.events));
        Self::counters(encoder, "weir_watch_events", "Events received", events)?;
        let failures = all.iter().map(|(k, s)| (kind(k), s.failures));
        Self::counters(encoder, "weir_watch_failures", "Failed attempts to list or watch", failures)?;
        let bad = all.iter().map(|(k, s)| (kind(k), s.bad));
        Self::counters(
            encoder,
            "weir_watch_bad_objects",
            "Objects that could not be decoded and were skipped",
            bad,
        )
    }

    fn core(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.shared.snapshot();
        let database = self.shared.database();
        let one = |name: &str, help: &str, value: i64, encoder: &mut DescriptorEncoder<'_>| {
            Self::gauges(encoder, name, help, [(Labels::new(), value)])
        };
        let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        one("weir_leader", "1 while this replica holds the Lease", i64::from(snapshot.elected), encoder)?;
        one(
            "weir_writing",
            "1 while this replica's epoch is in the database",
            i64::from(snapshot.leading),
            encoder,
        )?;
        one("weir_ready", "1 once everything is loaded", i64::from(snapshot.ready), encoder)?;
        one(
            "weir_database_connected",
            "1 while the database is loaded",
            i64::from(database.synced),
            encoder,
        )?;
        let inflight = number(snapshot.transactions_in_flight);
        one("weir_transactions_in_flight", "Transactions without answer", inflight, encoder)?;
        let inflight = number(snapshot.writes_in_flight);
        one("weir_api_writes_in_flight", "Writes to the API server without answer", inflight, encoder)?;
        let lag = snapshot.lag.as_secs_f64();
        Self::gauges(
            encoder,
            "weir_input_lag_seconds",
            "How long the last input waited for the core",
            [(Labels::new(), lag)],
        )?;
        Self::counters(
            encoder,
            "weir_database_connections",
            "Database connections that loaded",
            [(Labels::new(), database.connections)],
        )?;
        Self::counters(
            encoder,
            "weir_database_resyncs",
            "Losses of sync with the database",
            [(Labels::new(), database.resyncs)],
        )?;
        for (name, help, gauge, value) in core_numbers(&snapshot.counters) {
            if gauge {
                one(name, help, i64::try_from(value).unwrap_or(i64::MAX), encoder)?;
            } else {
                Self::counters(encoder, name, help, [(Labels::new(), value)])?;
            }
        }
        Ok(())
    }

    fn subnets(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let subnets = self.shared.subnets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let labels = |subnet: &Subnet| {
            vec![
                ("subnet_name", subnet.meta.name.to_string()),
                ("protocol", subnet.spec.protocol.clone()),
                ("subnet_cidr", subnet.spec.cidr_block.clone()),
            ]
        };
        let count = |count: crds::Count| i64::try_from(count.get()).unwrap_or(i64::MAX);
        // A dual subnet has one series; the scarcer family is what an operator needs to know.
        let available = subnets.values().map(|subnet| {
            let status = &subnet.status;
            let value = match subnet.spec.protocol.as_str() {
                "IPv6" => status.v6_available_ips,
                "Dual" => status.v4_available_ips.min(status.v6_available_ips),
                _ => status.v4_available_ips,
            };
            (labels(subnet), count(value))
        });
        Self::gauges(encoder, "subnet_available_ip_count", "Available addresses of the subnet", available)?;
        let used = subnets.values().map(|subnet| {
            let status = &subnet.status;
            let value =
                if subnet.spec.protocol == "IPv6" { status.v6_using_ips } else { status.v4_using_ips };
            (labels(subnet), count(value))
        });
        Self::gauges(encoder, "subnet_used_ip_count", "Used addresses of the subnet", used)
    }

    fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse::<i64>().ok()
        };
        if let Some(rss) = kib("VmRSS") {
            Self::gauges(
                encoder,
                "process_resident_memory_bytes",
                "Resident memory",
                [(Labels::new(), rss * 1024)],
            )?;
        }
        // utime and stime are fields 14 and 15, in clock ticks of 1/100 s.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ticks: f64 = after_name.split(' ').skip(11).take(2).filter_map(|v| v.parse::<f64>().ok()).sum();
        let mut metric = encoder.encode_descriptor(
            "process_cpu_seconds",
            "Processor time used",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(ticks / 100.0).encode(metric.encode_family(&Labels::new())?)?;
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            let count = i64::try_from(entries.count()).unwrap_or(i64::MAX);
            Self::gauges(encoder, "process_open_fds", "Open files", [(Labels::new(), count)])?;
        }
        Ok(())
    }
}

/// The core's numbers as metrics: name, help, gauge (or counter), value.
fn core_numbers(counters: &Counters) -> Vec<(&'static str, &'static str, bool, u64)> {
    let size = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    let (commit, publish) = (&counters.commit, &counters.publish);
    const COUNTER: bool = false;
    const GAUGE: bool = true;
    vec![
        ("weir_units_compiled", "Units compiled", COUNTER, counters.compiled),
        (
            "weir_units_unchanged",
            "Compiled units whose facts stayed the same",
            COUNTER,
            counters.compiled_unchanged,
        ),
        (
            "weir_commit_transactions",
            "Transactions sent, epoch tokens included",
            COUNTER,
            commit.transactions,
        ),
        ("weir_rows_touched", "Operations on rows sent, fences not counted", COUNTER, commit.operations),
        ("weir_commit_failures", "Transactions the database refused", COUNTER, commit.failures),
        ("weir_commit_lost", "Transactions whose outcome was lost with the connection", COUNTER, commit.lost),
        ("weir_commit_unconverged", "Groups sent again though acknowledged", COUNTER, commit.unconverged),
        (
            "weir_publish_retries",
            "Kubernetes writes that failed and are tried again",
            COUNTER,
            publish.retries,
        ),
        ("weir_publish_invalid", "Kubernetes writes whose content was refused", COUNTER, publish.invalid),
        ("weir_units", "Units", GAUGE, size(counters.units)),
        ("weir_unit_reads", "Projections that units read", GAUGE, size(counters.reads)),
        ("weir_unit_edges", "Edges between units and what they read", GAUGE, size(counters.edges)),
        ("weir_rows", "Rows and memberships wanted", GAUGE, size(counters.rows)),
        ("weir_members", "Memberships wanted", GAUGE, size(counters.members)),
        ("weir_conflicts", "Columns on which two units disagree", GAUGE, size(counters.conflicts)),
        ("weir_leases", "Address leases held", GAUGE, size(counters.leases)),
        ("weir_refused", "Ports whose request for an address was refused", GAUGE, size(counters.refused)),
        (
            "weir_unclaimed_rows",
            "Rows of known tables that no enabled class claims",
            GAUGE,
            size(counters.unclaimed_rows),
        ),
        (
            "weir_commit_backlog",
            "Groups of rows that differ from the database",
            GAUGE,
            size(counters.commit_groups),
        ),
        (
            "weir_commit_failing",
            "Groups of rows in back-off after a failure",
            GAUGE,
            size(counters.commit_failing),
        ),
        (
            "weir_publish_backlog",
            "Objects that publish has to look at",
            GAUGE,
            size(counters.publish_backlog),
        ),
        ("weir_drift", "Objects whose written-once annotations differ", GAUGE, size(counters.drift)),
    ]
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.core(&mut encoder)?;
        self.watches(&mut encoder)?;
        self.subnets(&mut encoder)?;
        crate::logs::encode(&mut encoder)?;
        Self::process(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ObjectRef;

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
    }
}
