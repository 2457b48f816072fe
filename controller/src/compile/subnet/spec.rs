//! Fields of a subnet's spec that the controller fills in or corrects (contract
//! §1.1, §5.1).

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{SubnetSpec, net};
use serde_json::json;

use crate::io::Config;
use crate::view::{SubnetView, is_ovn_provider};

/// The fields as they should be.
pub(super) fn defaults(
    config: &Config,
    name: &str,
    subnet: &SubnetView,
) -> BTreeMap<Arc<str>, serde_json::Value> {
    let spec = &*subnet.spec;
    let (cidr, gateway) = dual_upgrade(config, name, spec);
    let ovn = is_ovn_provider(&spec.provider);
    let mut fields = BTreeMap::from([
        ("protocol".into(), json!(spec.protocol)),
        ("cidrBlock".into(), json!(cidr)),
        ("gateway".into(), json!(gateway)),
        ("excludeIps".into(), json!(spec.exclude_ips)),
        ("default".into(), json!(spec.default)),
        ("gatewayNode".into(), json!(spec.gateway_node)),
    ]);
    // What its user wrote there stays until it counts.
    if !subnet.stays {
        fields.insert("provider".into(), json!(spec.provider));
    }
    if ovn && !subnet.stays {
        fields.insert("vpc".into(), json!(spec.vpc));
    }
    if !spec.gateway_type.is_empty() {
        fields.insert("gatewayType".into(), json!(spec.gateway_type));
    }
    if let Some(on) = spec.enable_lb {
        fields.insert("enableLb".into(), json!(on));
    }
    fields
}

/// Contract §5.1: when the flags became dual-stack, the subnets made from them
/// follow. The block that the object has stays, the other family's is added.
fn dual_upgrade(config: &Config, name: &str, spec: &SubnetSpec) -> (String, String) {
    let unchanged = || (spec.cidr_block.clone(), spec.gateway.clone());
    let (cidr, gateway) = if *name == *config.node_switch {
        (&config.node_switch_cidr, &config.node_switch_gateway)
    } else if *name == *config.default_ls {
        (&config.default_cidr, &config.default_gateway)
    } else {
        return unchanged();
    };
    let (Ok(mut has), Ok(flag)) = (net::parse_dual_cidrs(&spec.cidr_block), net::parse_dual_cidrs(cidr))
    else {
        return unchanged();
    };
    if has.is_dual() || !flag.is_dual() {
        return unchanged();
    }
    let wanted = net::parse_dual_ips(gateway).unwrap_or_default();
    let mut gateways = net::parse_dual_ips(&spec.gateway).unwrap_or_default();
    let first = flag.first_usable();
    if has.v4.is_none() {
        has.v4 = flag.v4;
        gateways.v4 = wanted.v4.or(first.v4);
    }
    if has.v6.is_none() {
        has.v6 = flag.v6;
        gateways.v6 = wanted.v6.or(first.v6);
    }
    (has.to_string(), gateways.to_string())
}
