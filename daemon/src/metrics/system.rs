//! Kernel settings and counters that Kube-OVN's agent exports (node contract
//! §4.13), read when somebody asks, not on a timer.

use std::fmt;
use std::path::{Path, PathBuf};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// A file of numbers, and the metric it becomes: with each number as a label;
/// without labels there is one number.
struct Setting {
    metric: &'static str,
    help: &'static str,
    path: &'static str,
    labels: &'static [&'static str],
}

const SETTINGS: &[Setting] = &[
    Setting {
        metric: "ip_local_port_range",
        help: "Range of local ports",
        path: "sys/net/ipv4/ip_local_port_range",
        labels: &["start", "end"],
    },
    Setting {
        metric: "tcp_mem",
        help: "Memory limits of TCP in pages",
        path: "sys/net/ipv4/tcp_mem",
        labels: &["minimum", "pressure", "maximum"],
    },
    Setting {
        metric: "tcp_tw_recycle",
        help: "Reuse of sockets in TIME-WAIT (kernels before 4.12)",
        path: "sys/net/ipv4/tcp_tw_recycle",
        labels: &[],
    },
    Setting {
        metric: "tcp_mtu_probing",
        help: "TCP probes the path's MTU",
        path: "sys/net/ipv4/tcp_mtu_probing",
        labels: &[],
    },
    Setting {
        metric: "nf_conntrack_tcp_be_liberal",
        help: "Connection tracking accepts packets outside of the window",
        path: "sys/net/netfilter/nf_conntrack_tcp_be_liberal",
        labels: &[],
    },
    Setting {
        metric: "bridge_nf_call_iptables",
        help: "Bridged packets pass iptables",
        path: "sys/net/bridge/bridge-nf-call-iptables",
        labels: &[],
    },
    Setting {
        metric: "max_size",
        help: "Limit of cached IPv6 routes",
        path: "sys/net/ipv6/route/max_size",
        labels: &[],
    },
];

/// Reads `/proc` when metrics are asked for.
#[derive(Debug)]
pub(super) struct System {
    proc: PathBuf,
    resolver: PathBuf,
    hostname: String,
}

impl System {
    pub(super) fn new(proc: &Path, hostname: &str) -> Self {
        Self { proc: proc.to_owned(), resolver: "/etc/resolv.conf".into(), hostname: hostname.to_owned() }
    }

    /// The numbers of a file; none if this kernel has no such file.
    fn numbers(&self, path: &str) -> Vec<i64> {
        let text = std::fs::read_to_string(self.proc.join(path)).unwrap_or_default();
        text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    }

    /// Domains of the last `search` line, the root apart; in words if there is none (as upstream).
    fn search_domains(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.resolver).unwrap_or_default();
        let last = text.lines().filter_map(|line| line.trim().strip_prefix("search ")).next_back();
        let domains: Vec<String> = last
            .unwrap_or_default()
            .split_whitespace()
            .filter(|name| *name != ".")
            .map(str::to_owned)
            .collect();
        if domains.is_empty() { vec!["no additional search domain".to_owned()] } else { domains }
    }

    /// Packets with a wrong checksum: `InCsumErrors` of every protocol.
    fn checksum_errors(&self) -> i64 {
        let text = std::fs::read_to_string(self.proc.join("net/snmp")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let errors = lines.chunks(2).filter_map(|pair| {
            let [names, values] = pair else { return None };
            let column = names.split_whitespace().position(|name| name == "InCsumErrors")?;
            values.split_whitespace().nth(column)?.parse::<i64>().ok()
        });
        errors.sum()
    }
}

impl Collector for System {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for setting in SETTINGS {
            let numbers = self.numbers(setting.path);
            if numbers.is_empty() {
                continue;
            }
            let mut metric =
                encoder.encode_descriptor(setting.metric, setting.help, None, MetricType::Gauge)?;
            let mut labels = vec![("hostname", self.hostname.clone())];
            labels.extend(
                setting.labels.iter().zip(&numbers).map(|(label, number)| (*label, number.to_string())),
            );
            // Several numbers are labels, as upstream: the gauge itself says nothing then.
            let value = if setting.labels.is_empty() { numbers[0] } else { 1 };
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Search domains of the resolver";
        let mut metric = encoder.encode_descriptor("dns_search_domain", help, None, MetricType::Gauge)?;
        for domain in self.search_domains() {
            let labels = [("hostname", self.hostname.as_str()), ("additional", domain.as_str())];
            ConstGauge::new(1_i64).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Packets with a wrong checksum";
        let mut metric = encoder.encode_descriptor("checksum_err_count", help, None, MetricType::Gauge)?;
        let labels = [("hostname", self.hostname.as_str())];
        ConstGauge::new(self.checksum_errors()).encode(metric.encode_family(&labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    #[test]
    fn files_become_metrics_and_missing_ones_are_left_out() {
        let proc = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = proc.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        file("sys/net/ipv4/tcp_mtu_probing", "1\n");
        file("sys/net/ipv4/tcp_mem", "1\t2\t3\n");
        file("sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1\n");
        file("sys/net/bridge/bridge-nf-call-iptables", "0\n");
        file("sys/net/ipv6/route/max_size", "2147483647\n");
        file(
            "net/snmp",
            "Icmp: InMsgs InErrors InCsumErrors\nIcmp: 9 1 2\nUdp: InDatagrams InCsumErrors MemErrors\nUdp: 5 3 0\n",
        );
        let mut registry = Registry::default();
        file("resolv.conf", "search old\nnameserver 10.0.0.1\nsearch a.example . b.example\n");
        let resolver = proc.path().join("resolv.conf");
        registry.register_collector(Box::new(System { resolver, ..System::new(proc.path(), "n1") }));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "ip_local_port_range{hostname=\"n1\",start=\"32768\",end=\"60999\"} 1",
            "dns_search_domain{hostname=\"n1\",additional=\"a.example\"} 1",
            "dns_search_domain{hostname=\"n1\",additional=\"b.example\"} 1",
            "tcp_mtu_probing{hostname=\"n1\"} 1",
            "tcp_mem{hostname=\"n1\",minimum=\"1\",pressure=\"2\",maximum=\"3\"} 1",
            "checksum_err_count{hostname=\"n1\"} 5",
            "nf_conntrack_tcp_be_liberal{hostname=\"n1\"} 1",
            "bridge_nf_call_iptables{hostname=\"n1\"} 0",
            "max_size{hostname=\"n1\"} 2147483647",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("tcp_tw_recycle"));
    }
}
