//! Metrics of subnets and addresses, with Kube-OVN's names and labels (contract §8.7).
//!
//! Flows in: Subnet, IP and Node objects as the watches showed them last. Flows out:
//! their gauges; those named `…_info` have the value 1 and say all in labels.

use std::fmt;
use std::net::IpAddr;
use std::sync::PoisonError;

use crds::net::{self, IpRange};
use prometheus_client::encoding::DescriptorEncoder;

use super::Labels;
use super::state::State;
use crate::objects::Subnet;

/// Addresses listed one by one at most: of more than that nobody reads the list, and
/// a scrape of 150,000 series costs the monitoring more than it tells.
const ASSIGNED: usize = 20_000;

impl State {
    /// Counts, ranges, gateways and addresses.
    pub(super) fn subnets(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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
        Self::gauges(encoder, "subnet_used_ip_count", "Used addresses of the subnet", used)?;
        let ipam = subnets.values().flat_map(|subnet| ranges(subnet)).map(|labels| (labels, 1_i64));
        Self::gauges(encoder, "subnet_ipam_info", "Ranges of the subnet: free, reserved and used", ipam)?;
        let central = subnets.values().filter(|subnet| subnet.spec.gateway_type == "centralized");
        let central = central.flat_map(|subnet| self.gateways(subnet)).map(|labels| (labels, 1_i64));
        Self::gauges(encoder, "centralized_subnet_info", "Gateways of a centralized subnet", central)?;
        self.assigned(encoder)
    }

    /// One series a family: what is matched, and where it leaves.
    fn gateways(&self, subnet: &Subnet) -> Vec<Labels> {
        let nets = net::parse_dual_cidrs(&subnet.spec.cidr_block).unwrap_or_default();
        let active = &subnet.status.activate_gateway;
        let nodes = self.shared.nodes().borrow().clone().unwrap_or_default();
        let of_family = |v4: bool| {
            let names = active.split(',').map(str::trim);
            let joins = names.filter_map(|name| nodes.get(name)).flat_map(|node| node.join.split(','));
            let hops = joins.filter(|ip| ip.trim().parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == v4));
            hops.map(str::trim).collect::<Vec<_>>().join(",")
        };
        nets.iter()
            .map(|block| {
                let v4 = block.addr().is_ipv4();
                vec![
                    ("subnet_name", subnet.meta.name.to_string()),
                    ("enable_ecmp", subnet.spec.enable_ecmp.to_string()),
                    ("gateway_node", subnet.spec.gateway_node.clone()),
                    ("active_gateway", active.clone()),
                    ("match", format!("ip{}.src == {block}", if v4 { 4 } else { 6 })),
                    ("nexthops", of_family(v4)),
                ]
            })
            .collect()
    }

    /// Each pod's addresses.
    fn assigned(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ips = self.shared.ips.lock().unwrap_or_else(PoisonError::into_inner);
        let omitted = ips.len().saturating_sub(ASSIGNED);
        let series = ips.values().take(ASSIGNED).flat_map(|ip| {
            let spec = &ip.spec;
            let pod = match &*spec.namespace {
                "" => spec.pod_name.to_string(),
                namespace => format!("{namespace}/{}", spec.pod_name),
            };
            let subnet = spec.subnet.to_string();
            let addresses =
                [&spec.v4_ip_address, &spec.v6_ip_address].into_iter().filter(|ip| !ip.is_empty());
            addresses
                .map(|address| {
                    let labels: Labels = vec![
                        ("subnet_name", subnet.clone()),
                        ("ip", address.to_string()),
                        ("pod_name", pod.clone()),
                    ];
                    (labels, 1_i64)
                })
                .collect::<Vec<_>>()
        });
        Self::gauges(encoder, "subnet_ip_assign_info", "Addresses of pods and nodes", series)?;
        let omitted = i64::try_from(omitted).unwrap_or(i64::MAX);
        Self::gauges(
            encoder,
            "weir_subnet_ip_assign_omitted",
            "IP objects beyond those that subnet_ip_assign_info lists",
            [(Labels::new(), omitted)],
        )
    }
}

/// One series a family: ranges as the status has them, excludes as the spec has them.
fn ranges(subnet: &Subnet) -> Vec<Labels> {
    let (spec, status) = (&subnet.spec, &subnet.status);
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    nets.iter()
        .map(|block| {
            let v4 = block.addr().is_ipv4();
            let excluded = spec
                .exclude_ips
                .iter()
                .filter(|text| IpRange::parse(text).is_ok_and(|range| range.first.is_ipv4() == v4));
            let (free, using) = if v4 {
                (&status.v4_available_ip_range, &status.v4_using_ip_range)
            } else {
                (&status.v6_available_ip_range, &status.v6_using_ip_range)
            };
            vec![
                ("subnet_name", subnet.meta.name.to_string()),
                ("cidr", block.to_string()),
                ("free", free.clone()),
                ("reserved", excluded.map(String::as_str).collect::<Vec<_>>().join(",")),
                ("available", free.clone()),
                ("using", using.clone()),
            ]
        })
        .collect()
}
