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

use crds::{keys, names, net};
use ipnet::IpNet;
use ovsdb::Row;

use crate::compile::rows::{self, policy_key, route_key};
use crate::compile::vip;
use crate::facts::Table;
use crate::io::Config;

#[cfg(test)]
pub(crate) mod legacy;
#[cfg(test)]
mod tests;

/// Identity of a row across databases, see [`Table`]. `None` when it has none:
/// a static route or policy that no router holds.
pub fn natural_key(table: Table, row: &Row, parent: Option<&str>) -> Option<Arc<str>> {
    let text = |column: &str| row.str(column).unwrap_or_default();
    Some(match table {
        Table::NbGlobal => ".".into(),
        Table::StaticRoute => {
            let policy = Some(text("policy")).filter(|policy| !policy.is_empty()).unwrap_or("dst-ip");
            route_key(parent?, text("route_table"), policy, text("ip_prefix"), text("nexthop")).into()
        }
        Table::Policy => policy_key(parent?, row.i64("priority")?, text("match")).into(),
        Table::LogicalRouter
        | Table::LogicalRouterPort
        | Table::LogicalSwitch
        | Table::LogicalSwitchPort
        | Table::PortGroup
        | Table::AddressSet => row.str("name").filter(|name| !name.is_empty())?.into(),
    })
}

/// The row is of a class that units of this version state: when none states it,
/// it is a leftover and goes.
pub fn claim(config: &Config, table: Table, row: &Row, parent: Option<&str>) -> bool {
    let row = Marked(row);
    match table {
        Table::NbGlobal => false,
        Table::LogicalRouter => row.vendor() && row.name() == &*config.cluster_router,
        Table::LogicalSwitch => row.vendor() && is_switch(config, row.name()),
        Table::LogicalRouterPort => router_port(config, &row, parent),
        Table::LogicalSwitchPort => switch_port(config, &row, parent),
        Table::PortGroup => port_group(config, &row),
        Table::AddressSet => pool_set(&row),
        Table::StaticRoute => default_route(config, &row, parent),
        Table::Policy => policy(config, &row, parent),
    }
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
    /// Every mark is one of these: a mark that we do not write is somebody else's.
    fn only(&self, known: &[&str]) -> bool {
        let marks = self.0.get("external_ids");
        marks.is_none_or(|marks| marks.map_strings().all(|(key, _)| known.contains(&key)))
    }
}

fn is_switch(config: &Config, name: &str) -> bool {
    name == &*config.node_switch || name == &*config.default_ls
}

/// Our two switches' ports on the default router.
fn router_port(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    let router = &*config.cluster_router;
    row.vendor()
        && parent == Some(router)
        && row.is("lr", router)
        && [&config.node_switch, &config.default_ls]
            .iter()
            .any(|ls| names::router_port(router, ls) == row.name())
}

fn switch_port(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    // Ports of Vips carry a mark of their own, on whatever switch.
    if let Some(vip) = row.id(vip::MARK) {
        let name = row.name();
        return row.vendor() && (name == vip || name == format!("{vip}.v6") || row.id("pod").is_some());
    }
    let Some(switch) = parent.filter(|switch| is_switch(config, switch)) else { return false };
    if !row.vendor() || !row.is("ls", switch) {
        return false;
    }
    match row.text("type") {
        "router" => row.name() == names::switch_port(switch, &config.cluster_router),
        "" => match row.id("pod") {
            // The default interface: attachments carry their provider in the name.
            Some(pod) => pod.split_once('/').is_some_and(|(namespace, pod)| {
                row.name() == names::pod_port(pod, namespace, keys::DEFAULT_PROVIDER)
            }),
            None => {
                let node = row.name().strip_prefix("node-").is_some_and(|node| !node.is_empty());
                node && switch == &*config.node_switch && row.only(&["vendor", "ls"])
            }
        },
        _ => false,
    }
}

/// Groups of the default subnet's pods on a node, and of all pods on a node.
fn port_group(config: &Config, row: &Marked<'_>) -> bool {
    let (Some(node), Some(np)) = (row.id("node"), row.id("np")) else { return false };
    let subnet = &*config.default_ls;
    match row.id("subnet") {
        Some(marked) => {
            row.vendor()
                && marked == subnet
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

/// Default routes into the join subnet. Those of users, of NAT and of
/// interconnection have other prefixes, next hops or marks.
fn default_route(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    let joins = net::parse_dual_cidrs(&config.node_switch_cidr).unwrap_or_default();
    let nexthop = row.text("nexthop").parse::<IpAddr>();
    parent == Some(&*config.cluster_router)
        && row.vendor()
        && row.only(&["vendor"])
        && matches!(row.text("policy"), "" | "dst-ip")
        && matches!(row.text("ip_prefix"), "0.0.0.0/0" | "::/0")
        && nexthop.is_ok_and(|nexthop| joins.contains(&nexthop))
        && row.0.reference("bfd").is_none()
}

/// The three kinds of policies that units of this version make (contract §4.3).
fn policy(config: &Config, row: &Marked<'_>, parent: Option<&str>) -> bool {
    if parent != Some(&*config.cluster_router) || !row.vendor() {
        return false;
    }
    let Some((field, operand)) = row.text("match").split_once(' ') else { return false };
    let action = row.text("action");
    match row.0.i64("priority") {
        Some(rows::TO_SUBNET) => {
            let ours = row.id("subnet").is_some_and(|subnet| is_switch(config, subnet));
            ours && row.only(&["vendor", "subnet"]) && action == "allow" && to_net(field, operand)
        }
        Some(rows::TO_NODE) => {
            let ours = row.id("node").is_some() && row.id("address-family").is_some();
            ours && row.only(&["vendor", "node", "address-family"])
                && action == "reroute"
                && to_address(field, operand)
        }
        Some(rows::GATEWAY) => {
            let subnet = &*config.default_ls;
            let ours = row.id("node").is_some_and(|node| {
                let group = names::subnet_node_group(subnet, node);
                ["ip4", "ip6"].iter().any(|ip| row.text("match") == format!("{ip}.src == ${group}_{ip}"))
            });
            ours && row.is("subnet", subnet) && row.only(&["vendor", "subnet", "node"]) && action == "reroute"
        }
        _ => false,
    }
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
