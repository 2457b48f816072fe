//! Subnets as compile sees them: defaulted and normalised (contract §1.1),
//! checked against themselves and against each other, and bound to namespaces
//! (contract §2.2).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::net::{self, DualNets, IpRange};
use crds::{SubnetSpec, keys};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::io::Config;
use crate::objects::{StringMap, Subnet};
use crate::view::SubnetView;

/// Why a subnet cannot work: reason and message of its condition.
type Invalid = (Arc<str>, Arc<str>);

const REASON: &str = "ValidateLogicalSwitchFailed";

/// The spec with every default filled in, and what is wrong with it by itself.
pub(crate) fn normalise(config: &Config, name: &str, spec: &SubnetSpec) -> (SubnetSpec, Option<Invalid>) {
    let mut spec = spec.clone();
    if spec.provider.is_empty() {
        spec.provider = keys::DEFAULT_PROVIDER.into();
    }
    if !is_ovn(&spec) {
        return (spec, None);
    }
    if spec.vpc.is_empty() {
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
    if spec.enable_lb.is_none() && *name != *config.node_switch {
        spec.enable_lb = Some(config.enable_lb);
    }
    let problem = addresses(&mut spec)
        .err()
        .map(|detail| -> Invalid { (REASON.into(), format!("subnet {name}: {detail}").into()) });
    (spec, problem)
}

/// Handled by OVN (other providers only use our IPAM).
fn is_ovn(spec: &SubnetSpec) -> bool {
    spec.provider == keys::DEFAULT_PROVIDER || spec.provider.ends_with(".ovn")
}

/// This version acts on the two subnets that flags name, as overlays of the
/// default VPC for pods' default interface. Every other one is left as it is.
pub(crate) fn supported(config: &Config, name: &str, spec: &SubnetSpec) -> bool {
    (*name == *config.node_switch || *name == *config.default_ls)
        && spec.provider == keys::DEFAULT_PROVIDER
        && spec.vlan.is_empty()
        && *spec.vpc == *config.cluster_router
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

/// All subnets' projections. Of two that overlap in one VPC the one that is
/// already in use wins, so that a newcomer can never switch off a working network;
/// the other says whom it collides with, and heals when that one goes.
pub(crate) fn project(
    config: &Config,
    subnets: &BTreeMap<Arc<str>, Arc<Subnet>>,
) -> BTreeMap<Arc<str>, SubnetView> {
    let mut views = BTreeMap::new();
    let mut order: Vec<&Arc<Subnet>> = subnets.values().collect();
    order.sort_by_key(|subnet| {
        let name = &subnet.meta.name;
        let ours = *name == config.node_switch || *name == config.default_ls;
        let validated =
            subnet.status.conditions.iter().any(|c| c.r#type == "Validated" && c.status == "True");
        (!ours, !validated, name.clone())
    });
    // By VPC and vlan: only there two blocks meet (contract §8.9).
    let mut taken: Vec<(DualNets, (String, String), Arc<str>)> = Vec::new();
    for subnet in order {
        let name = &subnet.meta.name;
        let (spec, mut invalid) = normalise(config, name, &subnet.spec);
        if invalid.is_none() && is_ovn(&spec) {
            let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
            let place = (spec.vpc.clone(), spec.vlan.clone());
            let other = taken.iter().find(|(other, at, _)| *at == place && other.overlaps(&nets));
            match other {
                Some((_, _, other)) => {
                    invalid = Some((
                        REASON.into(),
                        format!(
                            "subnet {name}: cidrBlock {} overlaps that of subnet {other}; choose another block",
                            spec.cidr_block
                        )
                        .into(),
                    ));
                }
                None => taken.push((nets, place, name.clone())),
            }
        }
        views.insert(
            name.clone(),
            SubnetView {
                uid: subnet.meta.uid.clone(),
                deleting: subnet.meta.deleting_at.is_some(),
                supported: supported(config, name, &spec),
                spec: Arc::new(spec),
                invalid,
            },
        );
    }
    views
}

/// Subnets bound to a namespace by name or selector, by name; the default subnet
/// when there is none.
pub(crate) fn bound(
    config: &Config,
    views: &BTreeMap<Arc<str>, Arc<SubnetView>>,
    namespace: &str,
    labels: &StringMap,
) -> Vec<Arc<str>> {
    let binds = |view: &SubnetView| {
        view.spec.namespaces.iter().any(|n| n == namespace)
            || view.spec.namespace_selectors.iter().any(|s| matches(s, labels))
    };
    let names: Vec<Arc<str>> =
        views.iter().filter(|(_, view)| binds(view)).map(|(name, _)| name.clone()).collect();
    if names.is_empty() { vec![config.default_ls.clone()] } else { names }
}

/// Kubernetes label selector semantics; an empty selector selects everything, an
/// unknown operator nothing.
pub(crate) fn matches(selector: &LabelSelector, labels: &StringMap) -> bool {
    let value = |key: &str| labels.get(key).map(|v| &**v);
    let equal = selector.match_labels.iter().flatten().all(|(k, v)| value(k) == Some(v));
    equal
        && selector.match_expressions.iter().flatten().all(|e| {
            let listed = |v: &str| e.values.iter().flatten().collect::<BTreeSet<_>>().contains(&v.to_owned());
            match &*e.operator {
                "In" => value(&e.key).is_some_and(listed),
                "NotIn" => !value(&e.key).is_some_and(listed),
                "Exists" => value(&e.key).is_some(),
                "DoesNotExist" => value(&e.key).is_none(),
                _ => false,
            }
        })
}
