//! What OVN answers hosts by DHCP and router advertisements (contract §4.7): one
//! `DHCP_Options` row per subnet and family, one per port that asks for its own.

use std::collections::BTreeMap;

use crds::{SubnetSpec, keys, net};
use ovsdb::Value;

use super::rows;
use crate::facts::{Column, Facts, Gone, RowKey, Table};
use crate::io::Config;
use crate::ipam::mac;
use crate::view::{Lease, PodView, SubnetView, View};
use crate::wishes::options;

/// Names of the server in answers: an address that no host has.
const SERVER: &str = "169.254.0.254";
/// Router advertisements without a configuration of their own.
const RA_DEFAULTS: &str = "address_mode=dhcpv6_stateful,max_interval=30,min_interval=5,send_periodic=true";
/// Family as rows name it.
fn protocol(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

/// What is wrong with the options of a spec.
pub(super) fn check(spec: &SubnetSpec) -> Option<String> {
    let fields = [
        ("dhcpV4Options", &spec.dhcp_v4_options, spec.enable_dhcp),
        ("dhcpV6Options", &spec.dhcp_v6_options, spec.enable_dhcp),
        ("ipv6RAConfigs", &spec.ipv6_ra_configs, spec.enable_ipv6_ra),
    ];
    fields.into_iter().filter(|(_, _, on)| *on).find_map(|(field, text, _)| {
        let error = options(text).err()?;
        Some(format!("{field}: {error}; write option=value,option=value"))
    })
}

/// MTU of the subnet's hosts, bytes: what the tunnel leaves of 1,500.
fn mtu(config: &Config, spec: &SubnetSpec) -> u32 {
    let tunnel = match &*config.network_type {
        "vxlan" => 50,
        "stt" => 72,
        _ => 100,
    };
    if spec.mtu != 0 { spec.mtu } else { 1500 - tunnel }
}

/// Row of a subnet and family.
pub(super) fn subnet_row(subnet: &str, v4: bool) -> RowKey {
    RowKey::new(Table::DhcpOptions, rows::dhcp_key(subnet, protocol(v4), ""))
}

/// States the rows of a subnet.
pub(super) fn rows(config: &Config, name: &str, spec: &SubnetSpec, facts: &mut Facts) {
    if !spec.enable_dhcp {
        return;
    }
    for net in net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default().iter() {
        let v4 = net.addr().is_ipv4();
        let text = if v4 { &spec.dhcp_v4_options } else { &spec.dhcp_v6_options };
        let options = options(text).unwrap_or_default();
        row(config, name, spec, (v4, ""), options, facts);
    }
}

/// Says whether it could be stated: not without a block of that family that can be read.
fn row(
    config: &Config,
    subnet: &str,
    spec: &SubnetSpec,
    (v4, port): (bool, &str),
    mut options: BTreeMap<String, String>,
    facts: &mut Facts,
) -> bool {
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    let Some(net) = nets.iter().find(|net| net.addr().is_ipv4() == v4) else { return false };
    let mac = mac::format(mac::draw(config.seed, &["dhcp server", subnet, protocol(v4)], 0));
    // A server's identity stays what it is once hosts have leases from it.
    let mut initial: BTreeMap<&str, String> = BTreeMap::new();
    if v4 {
        let gateway = net::parse_dual_ips(&spec.gateway).unwrap_or_default().v4;
        let defaults = [
            ("lease_time", Some("3600".to_owned())),
            ("router", gateway.map(|ip| ip.to_string())),
            ("server_id", Some(SERVER.to_owned())),
            ("mtu", Some(mtu(config, spec).to_string())),
        ];
        for (key, value) in defaults {
            if let Some(value) = value {
                options.entry(key.to_owned()).or_insert(value);
            }
        }
    }
    let identity = if v4 { "server_mac" } else { "server_id" };
    if !options.contains_key(identity) {
        initial.insert(identity, mac);
    }
    let key = rows::dhcp_key(subnet, protocol(v4), port);
    let mut ids = vec![("ls", subnet), ("protocol", protocol(v4))];
    if !port.is_empty() {
        ids.extend([("port", port), rows::OF_POD]);
    }
    rows::top(RowKey::new(Table::DhcpOptions, key))
        .whole("cidr", Value::string(net.to_string()))
        .column("options", Column::map(options, initial, Gone::Others))
        .ids(&ids)
        .add(facts);
    true
}

/// The references of a pod's port, and the rows of its own that it asks for, also on a
/// subnet without DHCP. Without both nothing is said: a row that goes takes the
/// references along. Nor is a row referred to that nobody states, as those of a subnet
/// that can't work: the port would wait for it, and with the port all that changes about
/// it meanwhile. What it refers to already stays.
pub(super) fn port(
    view: &dyn View,
    pod: &PodView,
    subnet: &SubnetView,
    lease: &Lease,
    facts: &mut Facts,
) -> Vec<(&'static str, Column)> {
    let mut columns = Vec::new();
    let families = [
        (true, lease.v4.is_some(), keys::DHCP_V4_OPTIONS, "dhcpv4_options"),
        (false, lease.v6.is_some(), keys::DHCP_V6_OPTIONS, "dhcpv6_options"),
    ];
    for (v4, present, annotation, column) in families {
        if !present || !subnet.is_ovn() {
            continue;
        }
        let own =
            pod.requests.get(annotation).and_then(|text| options(text).ok()).filter(|own| !own.is_empty());
        let (stated, target) = match own {
            Some(own) => (
                row(view.config(), &lease.subnet, &subnet.spec, (v4, &lease.port), own, facts),
                RowKey::new(Table::DhcpOptions, rows::dhcp_key(&lease.subnet, protocol(v4), &lease.port)),
            ),
            None => (subnet.spec.enable_dhcp && subnet.invalid.is_none(), subnet_row(&lease.subnet, v4)),
        };
        if !stated {
            continue;
        }
        columns.push((column, Column::Refs([target].into())));
    }
    columns
}

/// Columns of a router port that advertises itself.
pub(super) fn advertisements(spec: &SubnetSpec) -> [(&'static str, Column); 2] {
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    let on = spec.enable_ipv6_ra && nets.v6.is_some();
    let text = if spec.ipv6_ra_configs.trim().is_empty() { RA_DEFAULTS } else { &*spec.ipv6_ra_configs };
    let configs = options(text).unwrap_or_default();
    let configs = if on { Value::string_map(configs) } else { Value::empty_map() };
    let prefix = nets.v6.filter(|_| on).map(|net| net.prefix_len().to_string());
    [("ipv6_ra_configs", Column::Whole(configs)), ("ipv6_prefix", Column::Whole(Value::strings(prefix)))]
}
