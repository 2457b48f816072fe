//! A subnet by itself, as compile sees it: defaulted, normalised (contract §1.1)
//! and checked.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use crds::net::{self, IpRange};
use crds::{SubnetSpec, keys};

use crate::io::Config;
use crate::view::is_ovn_provider;

/// Why a subnet cannot work: reason and message of its condition.
pub(super) type Invalid = (Arc<str>, Arc<str>);

/// Reason of conditions about a spec that is wrong (contract §8.8).
pub(super) const REASON: &str = "ValidateLogicalSwitchFailed";

/// The spec with every default filled in, and what is wrong with it by itself.
pub(crate) fn normalise(config: &Config, name: &str, spec: &SubnetSpec) -> (SubnetSpec, Option<Invalid>) {
    let mut spec = spec.clone();
    if spec.provider.is_empty() {
        spec.provider = keys::DEFAULT_PROVIDER.into();
    }
    let ovn = is_ovn_provider(&spec.provider);
    if ovn && spec.vpc.is_empty() {
        spec.vpc = config.cluster_router.to_string();
    }
    let in_default_vpc = *spec.vpc == *config.cluster_router;
    if in_default_vpc {
        spec.default &= *name == *config.default_ls;
        if spec.gateway_type.is_empty() {
            spec.gateway_type = "distributed".into();
        }
    }
    if spec.gateway_type == "distributed" {
        spec.gateway_node.clear();
    }
    if spec.vlan.is_empty() {
        spec.u2o_interconnection = false;
    }
    if !spec.u2o_interconnection {
        spec.u2o_interconnection_ip.clear();
    }
    if ovn && spec.enable_lb.is_none() && *name != *config.node_switch {
        spec.enable_lb = Some(config.enable_lb);
    }
    let problem = addresses(&mut spec)
        .err()
        .map(|detail| -> Invalid { (REASON.into(), format!("subnet {name}: {detail}").into()) });
    (spec, problem)
}

/// This version serves overlays, and addresses of foreign providers. Underlay
/// subnets are left as they are.
pub(crate) fn supported(spec: &SubnetSpec) -> bool {
    spec.vlan.is_empty()
}

/// It can be an external network: the router on the wire is its gateway (contract §5.4,
/// §5.6). That of the flag needs no Vlan, since flags name its physical network.
pub(crate) fn external(config: &Config, name: &str, spec: &SubnetSpec) -> bool {
    is_ovn_provider(&spec.provider)
        && (!spec.vlan.is_empty() || *name == *config.external_gateway_switch)
        && !spec.cidr_block.is_empty()
        && !spec.logical_gateway
        && !spec.u2o_interconnection
}

fn addresses(spec: &mut SubnetSpec) -> Result<(), String> {
    if spec.cidr_block.is_empty() {
        if spec.vlan.is_empty() {
            return Err("cidrBlock is empty; write one CIDR, or one of each family".into());
        }
        spec.protocol = "Mac".into();
        return Ok(());
    }
    let nets = net::parse_dual_cidrs(&spec.cidr_block).map_err(|e| format!("cidrBlock: {e}"))?;
    spec.cidr_block = nets.to_string();
    spec.protocol = nets.protocol().into();
    let mut gateway = net::parse_dual_ips(&spec.gateway).map_err(|e| format!("gateway: {e}"))?;
    let first = nets.first_usable();
    gateway.v4 = gateway.v4.or(first.v4);
    gateway.v6 = gateway.v6.or(first.v6);
    if let Some(ip) = gateway.iter().find(|ip| !nets.contains(ip)) {
        return Err(format!("gateway {ip} is outside cidrBlock {}; choose one inside", spec.cidr_block));
    }
    spec.gateway = gateway.to_string();
    let gateways: Vec<IpAddr> = gateway.iter().collect();
    spec.exclude_ips = excludes(&spec.exclude_ips, &gateways)?;
    Ok(())
}

/// `excludeIps` without repetition and overlap, with the gateways, in the string
/// order in which the original writes them.
fn excludes(given: &[String], gateways: &[IpAddr]) -> Result<Vec<String>, String> {
    let mut ranges = Vec::new();
    for text in given.iter().filter(|text| !text.trim().is_empty()) {
        ranges.push(IpRange::parse(text).map_err(|e| format!("excludeIps: {e}"))?);
    }
    ranges.sort_by_key(|range| (range.first, Reverse(range.last)));
    let mut merged: Vec<IpRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.contains(&range.first) => last.last = last.last.max(range.last),
            _ => merged.push(range),
        }
    }
    for gateway in gateways {
        if !merged.iter().any(|range| range.contains(gateway)) {
            merged.push(IpRange { first: *gateway, last: *gateway });
        }
    }
    let mut texts: Vec<String> = merged.iter().map(ToString::to_string).collect();
    texts.sort();
    Ok(texts)
}
