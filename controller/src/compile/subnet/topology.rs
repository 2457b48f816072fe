//! A subnet's place in the network: its switch, the pair of ports that joins it to
//! its VPC's router, and the policy that keeps traffic to it inside (contract §4.2,
//! §4.3).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crds::{SubnetSpec, names, net};
use ovsdb::Value;

use super::super::{dhcp, rows};
use super::external;
use crate::facts::{Column, Facts, Keep, RowKey, Table};
use crate::io::Config;
use crate::ipam::mac;
use crate::view::{LeaseState, Usage, View};

/// `other` is `other_config` of the switch, where something is said about it; `contested` says that
/// a port has the gateway's address: what the router has stays then.
pub(super) fn rows(
    config: &Config,
    name: &Arc<str>,
    spec: &SubnetSpec,
    (other, contested): (Option<Column>, bool),
    facts: &mut Facts,
) {
    let router = &*spec.vpc;
    let switch = RowKey::new(Table::LogicalSwitch, name.clone());
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    let gateways = net::parse_dual_ips(&spec.gateway).unwrap_or_default();
    let (switch_port, router_port) = (names::switch_port(name, router), names::router_port(router, name));
    let marks = external::marks(config, name);
    let mut row = rows::root(Table::LogicalSwitch, name).ids(marks);
    if let Some(other) = other {
        row = row.column("other_config", other);
    }
    row.add(facts);
    rows::named(Table::LogicalSwitchPort, &switch_port, switch, "ports")
        .whole("type", Value::string("router"))
        .whole("addresses", Value::strings(["router"]))
        .keys("options", [("router-port", &router_port)])
        .ids(&[&[("ls", &**name)][..], marks].concat())
        .add(facts);
    // The MAC stays what it is: hosts have it in their neighbour tables.
    let mac = mac::format(mac::draw(config.seed, &["router port", &router_port], 0));
    let mut port = rows::named(
        Table::LogicalRouterPort,
        &router_port,
        RowKey::new(Table::LogicalRouter, router),
        "ports",
    )
    .initial("mac", Value::string(mac))
    .column("options", route_table(&spec.route_table))
    .ids(&[("lr", router)]);
    let networks = Value::strings(gateways.with_prefix(&nets));
    port = if contested { port.initial("networks", networks) } else { port.whole("networks", networks) };
    for (column, value) in dhcp::advertisements(spec) {
        port = port.column(column, value);
    }
    port.add(facts);
    for net in nets.iter() {
        let matching = format!("{}.dst == {net}", rows::ip_field(&net.addr()));
        rows::policy(facts, router, rows::TO_SUBNET, &matching, None, &[("subnet", name)]);
    }
}

fn route_table(name: &str) -> Column {
    if name.is_empty() {
        Column::map_without([] as [(&str, &str); 0], &["route_table"])
    } else {
        Column::keys([("route_table", name)])
    }
}

/// One port per virtual address; the pods that list the address take turns in
/// answering for it (contract §4.2). One that some port has for itself waits for that
/// port's end: two ports may not answer for one address.
pub(super) fn vips(view: &dyn View, name: &Arc<str>, spec: &SubnetSpec, usage: &Usage, facts: &mut Facts) {
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    let vips = spec.vips.iter().filter_map(|text| text.trim().parse::<IpAddr>().ok());
    let vips: BTreeSet<IpAddr> = vips.filter(|ip| nets.contains(ip)).collect();
    for ip in vips {
        let address = ip.to_string();
        if usage.contested_vips.iter().any(|(contested, _)| *contested == ip) {
            let port = format!("{name}-vip-{address}");
            facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
            continue;
        }
        let ports = view.vip_ports(&address);
        let here =
            |port: &&Arc<str>| matches!(view.lease(port), LeaseState::Held(lease) if lease.subnet == *name);
        let parents = ports.iter().filter(here).map(|port| &**port).collect::<Vec<_>>().join(",");
        let options = if parents.is_empty() {
            Column::map_without([("virtual-ip", &*address)], &["virtual-parents"])
        } else {
            Column::keys([("virtual-ip", &*address), ("virtual-parents", &*parents)])
        };
        let switch = RowKey::new(Table::LogicalSwitch, name.clone());
        rows::named(Table::LogicalSwitchPort, &format!("{name}-vip-{address}"), switch, "ports")
            .whole("type", Value::string("virtual"))
            .column("options", options)
            .ids(&[("ls", name)])
            .add(facts);
    }
}

/// Everything that units state for a subnet, whatever it says now: one that can't be
/// read, or that this version lacks, must not tear down the network of running pods.
pub(super) fn keep(router: &str, name: &Arc<str>, vips: &[String], facts: &mut Facts) {
    for vip in vips {
        let port = format!("{name}-vip-{}", vip.trim());
        facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
    }
    facts.keeps.extend([
        Keep::Row(RowKey::new(Table::LogicalSwitch, name.clone())),
        Keep::Row(RowKey::new(Table::LogicalSwitchPort, names::switch_port(name, router))),
        Keep::Row(RowKey::new(Table::LogicalSwitchPort, names::mcast_querier(name))),
        Keep::Row(RowKey::new(Table::LogicalSwitchPort, names::localnet_port(name))),
        Keep::Row(RowKey::new(Table::LogicalRouterPort, names::router_port(router, name))),
        // Its router too, should the VPC be gone.
        Keep::Row(RowKey::new(Table::LogicalRouter, router)),
        Keep::Marked(Table::Policy, "subnet", name.clone()),
        Keep::Marked(Table::PortGroup, "subnet", name.clone()),
        Keep::Marked(Table::Acl, "parent", name.clone()),
        Keep::Marked(Table::DhcpOptions, "ls", name.clone()),
    ]);
}
