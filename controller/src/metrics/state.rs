//! What a scrape looks at: watches, core, subnets, the process.
//!
//! Flows in: [`Shared`] and [`Statuses`] at the moment of the scrape. Flows out: their
//! metrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Labels, Shared};
use crate::core::Counters;
use crate::facts::Kind;
use crate::watch::{Statuses, plural};

/// State that is read at scrape time.
#[derive(Debug)]
pub(super) struct State {
    pub(super) shared: Shared,
    pub(super) watches: Statuses,
}

impl State {
    pub(super) fn gauges<T: Copy>(
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
