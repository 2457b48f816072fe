//! What the host's sets cost, under the names of the library that Kube-OVN uses (Felix of Calico): runs of `ipset`,
//! failures, lines, and how many sets there are.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::firewall::ipset_counts;

/// Exports the counts. As gauges: the library's counters have no `_total`, and ours would get it.
#[derive(Debug)]
pub(super) struct Ipsets;

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Collector for Ipsets {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = ipset_counts();
        for (name, help, count) in [
            ("felix_ipset_calls", "Number of ipset commands executed", counts.calls),
            ("felix_ipset_errors", "Number of ipset command failures", counts.errors),
            ("felix_ipset_lines_executed", "Number of ipset operations executed", counts.lines),
            ("felix_ipsets_total", "Number of IP sets on this node, everybody's", counts.sets),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(whole(count)).encode(metric)?;
        }
        let help = "Number of IP sets of this agent";
        let mut metric = encoder.encode_descriptor("felix_ipsets_calico", help, None, MetricType::Gauge)?;
        for (family, count) in ["inet", "inet6"].into_iter().zip(counts.ours) {
            let labels = [("ip_version", family)];
            ConstGauge::new(whole(count)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
