//! Claims: which rows of the northbound database are ours to delete.
//!
//! Flows in: a row of a replica and the natural key of the row that holds it.
//! Flows out: its natural key (any row, so that rows of an older Kube-OVN are
//! adopted instead of doubled), and whether it belongs to a class of an enabled
//! unit. Only a claimed row that no unit states is deleted. A row of no class
//! stays, whoever marked it: a feature that this version lacks never loses its
//! rows, and a row added by hand to one of our routers or switches is nobody's
//! business (DESIGN: deletion needs a claim).
//!
//! Classes are as narrow as names and marks allow: vendor mark, names that agree
//! with the marks, parents of ours, and matches of the exact form that we write.

use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, names};
use ipnet::IpNet;
use ovsdb::{Atom, Row, Value};

use crate::compile::routes::{OF_SPEC, ambiguous};
use crate::compile::rows::{self, policy_key, route_key};
use crate::compile::{bfd, querier, vip};
use crate::facts::Table;
use crate::io::Config;

#[cfg(test)]
pub(crate) mod legacy;
#[cfg(test)]
mod tests;

/// The row that holds another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: &'a str,
}

/// Identity of a row across databases, see [`Table`]. `None` when it has none:
/// a static route or policy that no router holds, options of no switch.
pub fn natural_key(table: Table, row: &Row, holder: Option<Holder<'_>>) -> Option<Arc<str>> {
    let parent = holder.map(|holder| holder.name);
    let text = |column: &str| row.str(column).unwrap_or_default();
    Some(match table {
        Table::NbGlobal => ".".into(),
        Table::StaticRoute => {
            let policy = Some(text("policy")).filter(|policy| !policy.is_empty()).unwrap_or("dst-ip");
            route_key(parent?, text("route_table"), policy, text("ip_prefix"), text("nexthop")).into()
        }
        Table::Policy => policy_key(parent?, row.i64("priority")?, text("match")).into(),
        Table::Acl => {
            let holder = holder?;
            // Versions of Kube-OVN before tiers left the default.
            let tier = row.i64("tier").filter(|tier| *tier != 0).unwrap_or(rows::DEFAULT_TIER);
            let (direction, priority) = (text("direction"), row.i64("priority")?);
            rows::acl_key(holder.table, holder.name, direction, tier, priority, text("match")).into()
        }
        Table::DhcpOptions => {
            let mark = |key: &str| row.map_get("external_ids", key);
            rows::dhcp_key(mark("ls")?, mark("protocol")?, mark("port").unwrap_or_default()).into()
        }
        Table::HaChassis => rows::ha_chassis_key(parent?, row.str("chassis_name")?).into(),
        Table::Bfd => rows::bfd_key(row.str("logical_port")?, row.str("dst_ip")?).into(),
        Table::LogicalRouter
        | Table::LogicalRouterPort
        | Table::LogicalSwitch
        | Table::LogicalSwitchPort
        | Table::HaChassisGroup
        | Table::GatewayChassis
        | Table::PortGroup
        | Table::AddressSet => match row.get("name")? {
            // The replica's own string: there is one for each port.
            Value::Atom(Atom::String(name)) if !name.is_empty() => name.clone(),
            _ => return None,
        },
    })
}

/// The row is of a class that units of this version state: when none states it,
/// it is a leftover and goes.
pub fn claim(config: &Config, table: Table, row: &Row, holder: Option<Holder<'_>>) -> bool {
    let row = Marked(row);
    let parent = holder.map(|holder| holder.name);
    match table {
        Table::NbGlobal => false,
        Table::LogicalRouter => row.vendor(),
        Table::LogicalSwitch => row.vendor() && (is_switch(config, row.name()) || row.external()),
        Table::LogicalRouterPort => router_port(config, &row, parent),
        Table::LogicalSwitchPort => switch_port(config, &row, parent),
        Table::PortGroup => port_group(&row),
        Table::AddressSet => pool_set(&row) || nodes_set(&row),
        Table::StaticRoute => static_route(config, &row, parent),
        Table::Policy => policy(config, &row, parent),
        Table::Acl => holder.is_some_and(|holder| acl(config, &row, holder)),
        Table::DhcpOptions => dhcp_options(config, &row),
        Table::HaChassisGroup => {
            row.vendor()
                && row.name().starts_with("bfd@")
                && row.is("lrp", row.name())
                && row.only(&["vendor", "lrp"])
        }
        // Kube-OVN leaves no marks on them: see `governor`.
        Table::GatewayChassis | Table::Bfd => false,
        Table::HaChassis => parent.is_some_and(|group| {
            row.vendor()
                && group.starts_with("bfd@")
                && row.is("group", group)
                && row.only(&["vendor", "group"])
        }),
    }
}

/// Rows that Kube-OVN leaves unmarked are ours where what they belong to is stated by a
/// unit: gateways and BFD sessions of a router port in an external network (the port must have a
/// gateway that a unit states: other ports' sessions are other features'), and plain ports of an external
/// network's switch, which are those of OvnEips. The row on which it depends.
pub fn governor(table: Table, row: &Row, holder: Option<Holder<'_>>) -> Option<Governor> {
    let row = Marked(row);
    match table {
        Table::GatewayChassis => {
            let port = holder?.name;
            let ours = row.name() == rows::gateway_chassis_key(port, row.text("chassis_name"));
            (ours && row.only(&[])).then(|| Governor::Gateways(port.into()))
        }
        // Kube-OVN notes there which gateway it has demoted.
        Table::Bfd => row
            .only(&["vendor", "gateway_chassis"])
            .then(|| Governor::Gateways(row.text("logical_port").into())),
        Table::LogicalSwitchPort => {
            let switch = holder?.name;
            let ours = row.vendor() && row.is("ls", switch) && row.only(&["vendor", "ls"]);
            (ours && row.text("type").is_empty()).then(|| Governor::External(switch.into()))
        }
        _ => None,
    }
}

/// On what it depends whether a row without marks is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Governor {
    /// Gateways of that router port are stated.
    Gateways(Arc<str>),
    /// That switch is an external network's.
    External(Arc<str>),
}

/// A row with accessors for names and marks.
struct Marked<'a>(&'a Row);

impl Marked<'_> {
    fn text(&self, column: &str) -> &str {
        self.0.str(column).unwrap_or_default()
    }
    fn name(&self) -> &str {
        self.text("name")
    }
    fn id(&self, key: &str) -> Option<&str> {
        self.0.map_get("external_ids", key)
    }
    fn is(&self, key: &str, value: &str) -> bool {
        self.id(key) == Some(value)
    }
    fn vendor(&self) -> bool {
        self.is("vendor", keys::VENDOR)
    }
    /// Made by us where Kube-OVN's would look the same.
    fn external(&self) -> bool {
        let (mark, value) = rows::OF_EXTERNAL;
        self.is(mark, value)
    }
    /// Beside vendor and subnet, every mark is a gateway node with its address.
    fn gateways(&self) -> bool {
        let marks = self.0.get("external_ids").into_iter().flat_map(ovsdb::Value::map_strings);
        let mut others = marks.filter(|(key, _)| !matches!(*key, "vendor" | "subnet")).peekable();
        others.peek().is_some() && others.all(|(_, value)| value.parse::<IpAddr>().is_ok())
    }
    /// Every mark is one of these: a mark that we do not write is somebody else's.
    fn only(&self, known: &[&str]) -> bool {
        let marks = self.0.get("external_ids");
        marks.is_none_or(|marks| marks.map_strings().all(|(key, _)| known.contains(&key)))
    }
}

/// Switches that no Subnet stands for: of the external gateway, and of
/// interconnection (contract §8.5).
fn is_switch(config: &Config, name: &str) -> bool {
    name != &*config.external_gateway_switch && !matches!(name, "ts" | "ovn-external")
}

/// ACLs of a switch: of a private subnet, and of a subnet's spec. Older versions of
/// Kube-OVN did not leave the vendor's mark.
fn acl(config: &Config, row: &Marked<'_>, holder: Holder<'_>) -> bool {
    holder.table == Table::LogicalSwitch
        && is_switch(config, holder.name)
        && row.is("parent", holder.name)
        && row.id("subnet").is_none_or(|subnet| subnet == holder.name)
        && row.only(&["vendor", "parent", "subnet"])
}

/// Options of a subnet; of a single port only those that we wrote.
fn dhcp_options(config: &Config, row: &Marked<'_>) -> bool {
    let (mark, value) = rows::OF_POD;
    row.vendor()
        && row.id("ls").is_some_and(|switch| is_switch(config, switch))
        && matches!(row.id("protocol"), Some("IPv4" | "IPv6"))
        && row.only(&["vendor", "ls", "protocol", "port", mark])
        && (row.id("port").is_none() || row.is(mark, value))
}

/// Ports to switches and to peers, the port for BFD, and ports in external networks, which
/// have chassis. That of the default VPC in the external gateway's own network may be the
/// ConfigMap's, which is a feature of its own: only one with our mark is ours.
fn router_port(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    let Some(router) = parent else { return false };
    let empty = |column: &str| row.0.get(column).is_none_or(|value| value.set_uuids().next().is_none());
    if row.vendor() && row.is("lr", router) && row.name() == bfd::name(router) {
        return row.0.map_get("options", "bfd-only") == Some("true") && row.only(&["vendor", "lr"]);
    }
    let other = row.name().strip_prefix(router).and_then(|rest| rest.strip_prefix('-'));
    let named = row.vendor() && row.is("lr", router) && empty("ha_chassis_group");
    let Some(other) = other.filter(|other| named && !other.is_empty()) else { return false };
    if row.external() {
        return row.only(&["vendor", "lr", rows::OF_EXTERNAL.0]);
    }
    let configured = router == &*config.cluster_router && other == &*config.external_gateway_switch;
    row.only(&["vendor", "lr"]) && (empty("gateway_chassis") || !configured)
}

fn switch_port(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    // Ports of Vips carry a mark of their own, on whatever switch.
    if let Some(vip) = row.id(vip::MARK) {
        let name = row.name();
        return row.vendor() && (name == vip || name == format!("{vip}.v6") || row.id("pod").is_some());
    }
    let Some(switch) = parent.filter(|switch| row.vendor() && row.is("ls", switch)) else { return false };
    if !is_switch(config, switch) {
        // Of the external gateway's own switch: ports of custom VPCs, and what carries our mark.
        let known = row.external()
            && row.only(&["vendor", "ls", "ipv4_network", "ipv6_network", rows::OF_EXTERNAL.0]);
        let port = to_router(row, switch).is_some_and(|router| router != &*config.cluster_router);
        return known || (port && switch == &*config.external_gateway_switch && row.only(&["vendor", "ls"]));
    }
    match row.text("type") {
        "router" => to_router(row, switch).is_some(),
        "" => match row.id("pod") {
            // An attachment is ours if it says so: one that Kube-OVN left and no pod lists
            // any more looks like one whose network we can't see.
            Some(pod) if querier::is_port(switch, row.name(), pod) => row.only(&["vendor", "ls", "pod"]),
            Some(pod) => pod.split_once('/').is_some_and(|(namespace, pod)| {
                let provider = row.id("provider").unwrap_or(keys::DEFAULT_PROVIDER);
                row.name() == names::pod_port(pod, namespace, provider)
            }),
            None => {
                let node = row.name().strip_prefix("node-").is_some_and(|node| !node.is_empty());
                node && switch == &*config.node_switch && row.only(&["vendor", "ls"])
            }
        },
        "virtual" => {
            let address = row.name().strip_prefix(switch).and_then(|rest| rest.strip_prefix("-vip-"));
            address.is_some_and(|ip| ip.parse::<IpAddr>().is_ok()) && row.only(&["vendor", "ls"])
        }
        _ => false,
    }
}

/// The router that a port of a switch leads to, if it is named as such ports are.
fn to_router<'a>(row: &Marked<'a>, switch: &str) -> Option<&'a str> {
    let name = row.0.str("name").filter(|_| row.text("type") == "router")?;
    let router = name.strip_prefix(switch)?.strip_prefix('-')?;
    (row.0.map_get("options", "router-port") == Some(&*names::router_port(router, switch))).then_some(router)
}

/// Groups of a subnet's pods on a node, and of all pods on a node.
fn port_group(row: &Marked<'_>) -> bool {
    let (Some(node), Some(np)) = (row.id("node"), row.id("np")) else { return false };
    match row.id("subnet") {
        Some(subnet) => {
            row.vendor()
                && np == format!("{subnet}/{node}")
                && row.name() == names::subnet_node_group(subnet, node)
                && row.only(&["vendor", "subnet", "node", "np"])
        }
        None => {
            np == format!("node/{node}")
                && row.name() == names::node_group(node)
                && row.only(&["vendor", "node", "np"])
        }
    }
}

/// Addresses of an IPPool (contract §4.4).
fn pool_set(row: &Marked<'_>) -> bool {
    row.id("ippool").is_some_and(|pool| names::dot_form(pool) == row.name())
        && row.only(&["vendor", "ippool"])
}

/// Addresses of nodes, for private subnets.
fn nodes_set(row: &Marked<'_>) -> bool {
    row.vendor() && row.only(&["vendor"]) && [true, false].iter().any(|v4| row.name() == rows::nodes_set(*v4))
}

/// Routes of specs, and default routes into the join subnet. Those of
/// interconnection have marks of their own, those of source NAT look like routes of
/// the spec to a host; the latter carry one more mark when we made them.
fn static_route(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    let Some(router) = parent.filter(|_| row.vendor()) else { return false };
    let policy = Some(row.text("policy")).filter(|policy| !policy.is_empty()).unwrap_or("dst-ip");
    let (mark, value) = OF_SPEC;
    if ambiguous(&config.cluster_router, router, policy, row.text("ip_prefix")) {
        return row.is(mark, value) && row.only(&["vendor", mark]);
    }
    row.only(&["vendor", mark])
}

/// The kinds of policies that units of this version make (contract §4.3).
fn policy(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    if parent.is_none() || !row.vendor() {
        return false;
    }
    let matching = row.text("match");
    let (field, operand) = matching.split_once(' ').unwrap_or((matching, ""));
    let action = row.text("action");
    let priority = row.0.i64("priority");
    // Entries of a Vpc's spec have the vendor mark and no other. Interconnection's
    // have an origin, which may be missing (contract §4.3).
    if row.only(&["vendor"]) {
        return !(priority == Some(rows::INTERCONNECTION) && action == "allow" && to_net(field, operand));
    }
    match priority {
        Some(rows::TO_SUBNET) => {
            let ours = row.id("subnet").is_some();
            ours && row.only(&["vendor", "subnet"]) && action == "allow" && to_net(field, operand)
        }
        Some(rows::TO_NODE) => {
            let ours = row.id("node").is_some() && row.id("address-family").is_some();
            if row.is(rows::LOCAL_DNS, "true") {
                let cache = matching.rsplit_once(" == ").and_then(|(_, ip)| ip.parse::<IpAddr>().ok());
                let form = row.id("node").zip(cache).is_some_and(|(node, cache)| {
                    matching == rows::local_dns_match(&names::node_group(node), &cache)
                });
                return ours
                    && form
                    && action == "reroute"
                    && parent == Some(&*config.cluster_router)
                    && row.only(&["vendor", "node", "address-family", rows::LOCAL_DNS]);
            }
            ours && parent == Some(&*config.cluster_router)
                && row.only(&["vendor", "node", "address-family"])
                && action == "reroute"
                && to_address(field, operand)
        }
        Some(rows::NORTH_GATEWAY) => {
            // Those for floating addresses look the same, and are nobody's yet.
            let (mark, value) = rows::OF_POD;
            let ip = operand.strip_prefix("== ").and_then(|text| text.parse::<IpAddr>().ok());
            parent == Some(&*config.cluster_router)
                && row.is(mark, value)
                && row.id("subnet").is_some()
                && row.only(&["vendor", "subnet", mark])
                && action == "reroute"
                && ip.is_some_and(|ip| field == format!("{}.src", rows::ip_field(&ip)))
        }
        Some(rows::GATEWAY) => {
            let Some(subnet) = row.id("subnet").filter(|_| action == "reroute") else { return false };
            if row.only(&["vendor", "subnet", "node"]) && row.id("node").is_some() {
                return row.id("node").is_some_and(|node| {
                    let group = names::subnet_node_group(subnet, node);
                    ["ip4", "ip6"].iter().any(|ip| matching == format!("{ip}.src == ${group}_{ip}"))
                });
            }
            from_net(field, operand) && row.gateways()
        }
        _ => false,
    }
}

/// `ipX.src == <cidr>`.
fn from_net(field: &str, operand: &str) -> bool {
    let net = operand.strip_prefix("== ").and_then(|text| text.parse::<IpNet>().ok());
    net.is_some_and(|net| field == format!("{}.src", rows::ip_field(&net.addr())))
}

/// `ipX.dst == <cidr>`.
fn to_net(field: &str, operand: &str) -> bool {
    let net = operand.strip_prefix("== ").and_then(|text| text.parse::<IpNet>().ok());
    net.is_some_and(|net| field == format!("{}.dst", rows::ip_field(&net.addr())))
}

/// `ipX.dst == <address>`.
fn to_address(field: &str, operand: &str) -> bool {
    let ip = operand.strip_prefix("== ").and_then(|text| text.parse::<IpAddr>().ok());
    ip.is_some_and(|ip| field == format!("{}.dst", rows::ip_field(&ip)))
}
