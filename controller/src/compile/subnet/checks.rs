//! Rules of a subnet's spec that its addresses do not depend on (contract §8.9).
//! Addresses are checked where the spec is normalised; a subnet that breaks one
//! of these rules says so and goes on serving its pods.

use std::net::IpAddr;

use crds::SubnetSpec;
use crds::net::{self, IpRange};
use ipnet::IpNet;

use super::super::dhcp;
use crate::view::{Usage, View};

/// What is wrong with the spec and how to put it right, `None` when nothing is.
pub(super) fn check(view: &dyn View, name: &str, spec: &SubnetSpec) -> Option<String> {
    let problem = by_itself(name, spec).or_else(|| namespaces(view, spec))?;
    Some(format!("subnet {name}: {problem}"))
}

/// A virtual address that a port has for itself: the port was there first.
pub(super) fn contested(usage: &Usage) -> Option<String> {
    let (ip, holder) = usage.contested_vips.first()?;
    Some(format!(
        "vips: {ip} is in use by {holder}, so it is no virtual address yet; delete what uses it, or choose another \
         address"
    ))
}

/// The gateway is an address that a port has: the port was there first, and the router's port stays
/// what it is until the address is free.
pub(super) fn contested_gateway(usage: &Usage) -> Option<String> {
    let (ip, holder) = usage.contested_gateways.first()?;
    Some(format!(
        "gateway: {ip} is in use by {holder}, so it is not the gateway yet; delete what uses it, or choose another \
         address"
    ))
}

/// A VPC that names its namespaces serves no others (contract §5.5).
fn namespaces(view: &dyn View, spec: &SubnetSpec) -> Option<String> {
    if spec.namespaces.is_empty() || spec.vpc.is_empty() || *spec.vpc == *view.config().cluster_router {
        return None;
    }
    let allowed = view.vpc(&spec.vpc)?.spec.namespaces.clone();
    let other = spec.namespaces.iter().find(|namespace| !allowed.contains(namespace))?;
    (!allowed.is_empty()).then(|| {
        format!(
            "namespace {other} is none of Vpc {}'s; add it to the Vpc's namespaces, or remove it here",
            spec.vpc
        )
    })
}

fn by_itself(name: &str, spec: &SubnetSpec) -> Option<String> {
    simple(name, spec)
        .or_else(|| lists(spec))
        .or_else(|| egress_gateway(spec))
        .or_else(|| interconnection(spec))
        .or_else(|| dhcp::check(spec))
}

fn simple(name: &str, spec: &SubnetSpec) -> Option<String> {
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    if spec.vpc == name {
        return Some(format!(
            "vpc is {name} too; a VPC and a subnet may not have one name, rename the subnet"
        ));
    }
    if !matches!(&*spec.gateway_type, "" | "distributed" | "centralized") {
        return Some(format!(
            "gatewayType {:?} is unknown; write distributed or centralized",
            spec.gateway_type
        ));
    }
    if spec.mtu != 0 && spec.mtu < 1280 && nets.v6.is_some() {
        return Some(format!("mtu {} is below 1280, which IPv6 needs; raise it or remove it", spec.mtu));
    }
    None
}

fn lists(spec: &SubnetSpec) -> Option<String> {
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    for text in &spec.exclude_ips {
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Some(format!("excludeIps: write {text:?} in lower case"));
        }
        if let Err(error) = IpRange::parse(text) {
            return Some(format!("excludeIps: {error}"));
        }
    }
    for text in &spec.allow_subnets {
        if text.parse::<IpNet>().is_err() {
            return Some(format!("allowSubnets: {text:?} is not a CIDR such as 10.0.0.0/8"));
        }
    }
    let gateways = net::parse_dual_ips(&spec.gateway).unwrap_or_default();
    for text in &spec.vips {
        let Some(ip) = text.trim().parse::<IpAddr>().ok().filter(|ip| nets.contains(ip)) else {
            return Some(format!("vips: {text:?} is not an address inside cidrBlock {}", spec.cidr_block));
        };
        if gateways.iter().any(|gateway| gateway == ip) {
            return Some(format!("vips: {text} is the gateway; choose another address"));
        }
    }
    for rule in &spec.nat_outgoing_policy_rules {
        let listed = |list: &str| -> Option<Vec<bool>> {
            let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts
                .map(|part| part.parse::<IpNet>().map(|n| n.addr()).or_else(|_| part.parse::<IpAddr>()).ok())
                .map(|ip| ip.map(|ip| ip.is_ipv4()))
                .collect()
        };
        let families = listed(&rule.r#match.src_ips).zip(listed(&rule.r#match.dst_ips));
        let one = families.is_some_and(|(src, dst)| {
            let all: Vec<bool> = src.into_iter().chain(dst).collect();
            all.windows(2).all(|pair| pair[0] == pair[1])
        });
        if !one || !matches!(&*rule.action, "nat" | "forward") {
            return Some(
                "natOutgoingPolicyRules: a rule needs addresses or CIDRs of one family, and action nat or forward".into(),
            );
        }
    }
    None
}

fn egress_gateway(spec: &SubnetSpec) -> Option<String> {
    if spec.external_egress_gateway.is_empty() {
        return None;
    }
    if spec.nat_outgoing {
        return Some("externalEgressGateway and natOutgoing exclude each other; remove one of them".into());
    }
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    match net::parse_dual_ips(&spec.external_egress_gateway) {
        Err(error) => Some(format!("externalEgressGateway: {error}; write one address per family")),
        Ok(ips) if (ips.v4.is_some(), ips.v6.is_some()) != (nets.v4.is_some(), nets.v6.is_some()) => {
            Some(format!(
                "externalEgressGateway {ips} does not have the families of cidrBlock {}; write one address for each",
                spec.cidr_block
            ))
        }
        Ok(_) => None,
    }
}

fn interconnection(spec: &SubnetSpec) -> Option<String> {
    if spec.logical_gateway && spec.u2o_interconnection {
        return Some("logicalGateway and u2oInterconnection exclude each other; remove one of them".into());
    }
    if spec.u2o_features.overlay_only_routing && (!spec.u2o_interconnection || spec.vlan.is_empty()) {
        return Some(
            "u2oFeatures.overlayOnlyRouting needs u2oInterconnection and vlan; set them or remove it".into(),
        );
    }
    if spec.u2o_interconnection_ip.is_empty() {
        return None;
    }
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    let gateways = net::parse_dual_ips(&spec.gateway).unwrap_or_default();
    let wanted = net::parse_dual_ips(&spec.u2o_interconnection_ip).unwrap_or_default();
    let fits = |ip: IpAddr| nets.contains(&ip) && gateways.iter().all(|gateway| gateway != ip);
    (wanted.is_empty() || !wanted.iter().all(fits)).then(|| {
        format!(
            "u2oInterconnectionIP {:?} must be inside cidrBlock {} and not the gateway; choose another address",
            spec.u2o_interconnection_ip, spec.cidr_block
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn spec(more: serde_json::Value) -> SubnetSpec {
        let mut all = json!({
            "vpc": "ovn-cluster", "provider": "ovn", "cidrBlock": "10.16.0.0/16,fd00::/64",
            "gateway": "10.16.0.1,fd00::1", "excludeIps": ["10.16.0.1", "fd00::1"], "gatewayType": "distributed",
        });
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }

    #[rstest]
    #[case(json!({}))]
    #[case(json!({ "gatewayType": "centralized", "mtu": 1400, "vips": ["10.16.0.9"], "allowSubnets": ["10.0.0.0/8"] }))]
    #[case(json!({ "externalEgressGateway": "192.0.2.1,2001:db8::1" }))]
    #[case(json!({ "vlan": "v", "u2oInterconnection": true, "u2oInterconnectionIP": "10.16.0.9,fd00::9" }))]
    #[case(json!({ "natOutgoingPolicyRules": [{ "match": { "srcIPs": "10.16.0.0/24,10.16.9.9" }, "action": "nat" }] }))]
    fn good(#[case] more: serde_json::Value) {
        assert_eq!(by_itself("s", &spec(more)), None);
    }

    #[rstest]
    #[case(json!({ "vpc": "s" }), "rename")]
    #[case(json!({ "gatewayType": "both" }), "distributed or centralized")]
    #[case(json!({ "mtu": 1000 }), "1280")]
    #[case(json!({ "excludeIps": ["FD00::9"] }), "lower case")]
    #[case(json!({ "excludeIps": ["10.16.0.9..10.16.0.2"] }), "excludeIps")]
    #[case(json!({ "allowSubnets": ["10.0.0.0"] }), "allowSubnets")]
    #[case(json!({ "vips": ["10.17.0.9"] }), "vips")]
    #[case(json!({ "vips": ["fd00::1"] }), "gateway")]
    #[case(json!({ "externalEgressGateway": "192.0.2.1,2001:db8::1", "natOutgoing": true }), "exclude each other")]
    #[case(json!({ "externalEgressGateway": "192.0.2.1" }), "families")]
    #[case(json!({ "externalEgressGateway": "192.0.2.1,192.0.2.2" }), "one address per family")]
    #[case(json!({ "logicalGateway": true, "u2oInterconnection": true, "vlan": "v" }), "exclude each other")]
    #[case(json!({ "u2oFeatures": { "overlayOnlyRouting": true } }), "needs")]
    #[case(json!({ "u2oInterconnectionIP": "10.16.0.1" }), "not the gateway")]
    #[case(json!({ "natOutgoingPolicyRules": [{ "match": { "srcIPs": "10.0.0.1", "dstIPs": "fd00::1" }, "action": "nat" }] }), "one family")]
    #[case(json!({ "natOutgoingPolicyRules": [{ "match": { "srcIPs": "x" }, "action": "nat" }] }), "one family")]
    fn bad(#[case] more: serde_json::Value, #[case] named: &str) {
        let message = by_itself("s", &spec(more)).expect("refused");
        assert!(message.contains(named), "{message}");
    }
}
