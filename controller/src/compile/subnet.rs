//! A Subnet: switch, router ports, the policy that routes to it (contract §4.2,
//! §4.3), defaulted spec, finalizer, status. This version acts on the join subnet
//! and the default subnet; normalisation and validation happen in the world.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{Count, SubnetSpec, names, net};
use ovsdb::Value;
use serde_json::json;

use super::checks;
use super::rows::{self, NOT_YET};
use crate::facts::{Facts, Fields, Gate, Keep, Kind, ObjectRef, RowKey, Table};
use crate::io::Config;
use crate::ipam::mac;
use crate::view::{SubnetView, Usage, View};

/// Reason of conditions and events about a spec that is wrong (contract §8.8).
const INVALID: &str = "ValidateLogicalSwitchFailed";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let config = view.config();
    let ours = *name == config.node_switch || *name == config.default_ls;
    let subnet = view.subnet(name);
    match &subnet {
        Some(subnet) if ours && subnet.supported && subnet.invalid.is_none() => {
            rows_of(config, name, subnet, &mut facts);
        }
        // The object is on its way back (unit globals), or broken: either way the
        // network of running pods stays.
        _ if ours => keep_rows(config, name, &mut facts),
        _ => {}
    }
    let Some(subnet) = subnet else { return facts };
    let object = ObjectRef::cluster(Kind::Subnet, name.clone());
    if let Some((reason, message)) = &subnet.invalid {
        for kind in ["Validated", "Ready"] {
            rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, (kind, false), (reason, message));
        }
        rows::warning(&mut facts, &object, &subnet.uid, reason, message);
        return facts;
    }
    let problem = checks::check(name, &subnet.spec);
    match &problem {
        Some(message) => {
            let why = (INVALID, &**message);
            rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, ("Validated", false), why);
            rows::warning(&mut facts, &object, &subnet.uid, INVALID, message);
        }
        None => {
            let why = ("ValidateLogicalSwitchSuccess", "");
            rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, ("Validated", true), why);
        }
    }
    if !ours || !subnet.supported {
        let message = not_ours(config, name);
        rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, ("Ready", false), (NOT_YET, &message));
        return facts;
    }
    let usage = view.usage(name);
    object_fields(config, &object, &subnet, &usage, &mut facts);
    readiness(&object, &subnet, problem.as_deref(), &mut facts);
    facts
}

fn not_ours(config: &Config, name: &str) -> String {
    let (join, default) = (&config.node_switch, &config.default_ls);
    if name == &**join || name == &**default {
        format!(
            "this version of Weir serves {name} as an overlay subnet of VPC {} only (no vlan, provider ovn); its rows \
             in OVN are left as they are",
            config.cluster_router
        )
    } else {
        format!(
            "this version of Weir acts on subnets {join} and {default} only; what exists in OVN for this one is left \
             as it is. Use {default}, or a version that supports more subnets"
        )
    }
}

fn rows_of(config: &Config, name: &str, subnet: &SubnetView, facts: &mut Facts) {
    let router = &config.cluster_router;
    let switch = RowKey::new(Table::LogicalSwitch, name);
    let nets = net::parse_dual_cidrs(&subnet.spec.cidr_block).unwrap_or_default();
    let gateways = net::parse_dual_ips(&subnet.spec.gateway).unwrap_or_default();
    let (switch_port, router_port) = (names::switch_port(name, router), names::router_port(router, name));
    rows::root(Table::LogicalSwitch, name).ids(&[]).add(facts);
    rows::named(Table::LogicalSwitchPort, &switch_port, switch, "ports")
        .whole("type", Value::string("router"))
        .whole("addresses", Value::strings(["router"]))
        .keys("options", [("router-port", &router_port)])
        .ids(&[("ls", name)])
        .add(facts);
    // The MAC stays what it is: hosts have it in their neighbour tables.
    let mac = mac::format(mac::draw(config.seed, &["router port", &router_port], 0));
    rows::named(
        Table::LogicalRouterPort,
        &router_port,
        RowKey::new(Table::LogicalRouter, &**router),
        "ports",
    )
    .whole("networks", Value::strings(gateways.with_prefix(&nets)))
    .initial("mac", Value::string(mac))
    .ids(&[("lr", router)])
    .add(facts);
    for net in nets.iter() {
        let matching = format!("{}.dst == {net}", rows::ip_field(&net.addr()));
        rows::policy(facts, router, rows::TO_SUBNET, &matching, None, &[("subnet", name)]);
    }
}

/// Everything that [`rows_of`] would state, whatever it says now.
fn keep_rows(config: &Config, name: &str, facts: &mut Facts) {
    let router = &config.cluster_router;
    facts.keeps.extend([
        Keep::Row(RowKey::new(Table::LogicalSwitch, name)),
        Keep::Row(RowKey::new(Table::LogicalSwitchPort, names::switch_port(name, router))),
        Keep::Row(RowKey::new(Table::LogicalRouterPort, names::router_port(router, name))),
        Keep::Marked(Table::Policy, "subnet", name.into()),
    ]);
}

fn object_fields(config: &Config, object: &ObjectRef, subnet: &SubnetView, usage: &Usage, facts: &mut Facts) {
    let uid = &subnet.uid;
    // Contract §3.7: an empty subnet lets go, any other is held.
    let used = usage.v4_using > 0 || usage.v6_using > 0;
    rows::kube(facts, object, uid, Gate::Now, Fields::Finalizer(used || !subnet.deleting));
    if !subnet.deleting {
        rows::kube(facts, object, uid, Gate::Now, Fields::Spec(defaults(config, &object.name, &subnet.spec)));
    }
    rows::kube(facts, object, uid, Gate::Now, Fields::Status(counters(usage)));
}

/// Ready once its rows are in the database, unless the spec asks for what is
/// wrong, or for what this version lacks.
fn readiness(object: &ObjectRef, subnet: &SubnetView, problem: Option<&str>, facts: &mut Facts) {
    let unsupported = unsupported(&subnet.spec);
    let message = format!(
        "spec fields that this version of Weir does not act on yet: {}; remove them, or use a version that \
         supports them. What exists in OVN for them is left as it is",
        unsupported.join(", ")
    );
    let (gate, ready, why) = match problem {
        Some(problem) => (Gate::Now, false, (INVALID, problem)),
        None if unsupported.is_empty() => (Gate::Committed, true, ("ResetLogicalSwitchAclSuccess", "")),
        None => (Gate::Now, false, (NOT_YET, &*message)),
    };
    rows::condition(facts, object, &subnet.uid, gate, ("Ready", ready), why);
}

/// Fields of the spec that the controller fills in or corrects (contract §1.1).
fn defaults(config: &Config, name: &str, spec: &SubnetSpec) -> BTreeMap<Arc<str>, serde_json::Value> {
    let (cidr, gateway) = dual_upgrade(config, name, spec);
    let mut fields = BTreeMap::from([
        ("provider".into(), json!(spec.provider)),
        ("vpc".into(), json!(spec.vpc)),
        ("protocol".into(), json!(spec.protocol)),
        ("cidrBlock".into(), json!(cidr)),
        ("gateway".into(), json!(gateway)),
        ("excludeIps".into(), json!(spec.exclude_ips)),
        ("gatewayType".into(), json!(spec.gateway_type)),
        ("default".into(), json!(spec.default)),
    ]);
    if let Some(on) = spec.enable_lb {
        fields.insert("enableLb".into(), json!(on));
    }
    fields
}

/// Contract §5.1: when the flags became dual-stack, the subnets made from them
/// follow. The block that the object has stays, the other family's is added.
fn dual_upgrade(config: &Config, name: &str, spec: &SubnetSpec) -> (String, String) {
    let (cidr, gateway) = if *name == *config.node_switch {
        (&config.node_switch_cidr, &config.node_switch_gateway)
    } else {
        (&config.default_cidr, &config.default_gateway)
    };
    let unchanged = || (spec.cidr_block.clone(), spec.gateway.clone());
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

fn counters(usage: &Usage) -> BTreeMap<Arc<str>, serde_json::Value> {
    let count = |n: u128| Count::new(n).to_json();
    BTreeMap::from([
        ("v4availableIPs".into(), count(usage.v4_available)),
        ("v4usingIPs".into(), count(usage.v4_using)),
        ("v6availableIPs".into(), count(usage.v6_available)),
        ("v6usingIPs".into(), count(usage.v6_using)),
        ("v4availableIPrange".into(), json!(usage.v4_available_range)),
        ("v4usingIPrange".into(), json!(usage.v4_using_range)),
        ("v6availableIPrange".into(), json!(usage.v6_available_range)),
        ("v6usingIPrange".into(), json!(usage.v6_using_range)),
    ])
}

/// Fields that are set and that this version does not act on.
fn unsupported(spec: &SubnetSpec) -> Vec<&'static str> {
    let fields = [
        ("gatewayType=centralized", spec.gateway_type == "centralized"),
        ("externalEgressGateway", !spec.external_egress_gateway.is_empty()),
        ("private", spec.private),
        ("vips", !spec.vips.is_empty()),
        ("logicalGateway", spec.logical_gateway),
        ("enableDHCP", spec.enable_dhcp),
        ("enableIPv6RA", spec.enable_ipv6_ra),
        ("acls", !spec.acls.is_empty()),
        ("natOutgoingPolicyRules", !spec.nat_outgoing_policy_rules.is_empty()),
        ("u2oInterconnection", spec.u2o_interconnection),
        ("enableMulticastSnoop", spec.enable_multicast_snoop),
        ("routeTable", !spec.route_table.is_empty()),
        ("nodeNetwork", !spec.node_network.is_empty()),
    ];
    fields.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
}
