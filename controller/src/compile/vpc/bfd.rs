//! The BFD port of a VPC (contract §4.3, §4.6): a router port that only speaks BFD,
//! hosted by the first of a group of nodes that lives.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crds::{BfdPortStatus, VpcSpec, net};
use ovsdb::Value;

use super::super::rows;
use crate::facts::{Column, Facts, Keep, RowKey, Table};
use crate::ipam::mac;
use crate::view::{Selecting, View};

/// Without a selector at most so many nodes host the port.
const HOSTS: usize = 3;
/// Priority of the first node; the next ones have less.
const FIRST: i64 = 100;

/// Name of the port and of its group.
pub(crate) fn name(router: &str) -> String {
    format!("bfd@{router}")
}

/// States the port; what became of it for the status.
pub(super) fn rows(
    view: &dyn View,
    router: &Arc<str>,
    spec: &VpcSpec,
    facts: &mut Facts,
    problems: &mut Vec<String>,
) -> BfdPortStatus {
    let Some(port) = spec.bfd_port.as_ref().filter(|port| port.enabled) else {
        return BfdPortStatus::default();
    };
    let name = name(router);
    let ips = match net::parse_dual_ips(&port.ip) {
        Ok(ips) if !ips.is_empty() => ips,
        Ok(_) => {
            problems.push("bfdPort: ip is empty; write one address, or one of each family".to_owned());
            return keep(&name, facts);
        }
        Err(error) => {
            problems.push(format!("bfdPort: ip: {error}; write one address, or one of each family"));
            return keep(&name, facts);
        }
    };
    let chosen = view.selected_nodes(&Selecting::Bfd(router.clone()));
    let limit = if port.node_selector.is_some() { usize::MAX } else { HOSTS };
    let mut known = BTreeSet::new();
    let hosts = chosen.iter().filter_map(|node| Some((node.clone(), view.node(node)?.chassis.clone()?)));
    // Two nodes that name one chassis are one host.
    let hosts = hosts.filter(|(_, chassis)| known.insert(chassis.clone()));
    let hosts: Vec<(Arc<str>, Arc<str>)> = hosts.take(limit).collect();
    if hosts.is_empty() {
        problems.push("bfdPort: no node that it selects has a chassis yet; choose other nodes".to_owned());
        return keep(&name, facts);
    }
    let group = RowKey::new(Table::HaChassisGroup, &*name);
    rows::root(Table::HaChassisGroup, &name).ids(&[("lrp", &name)]).add(facts);
    for (index, (_, chassis)) in hosts.iter().enumerate() {
        let key = rows::ha_chassis_key(&name, chassis);
        let priority = (FIRST - i64::try_from(index).unwrap_or(FIRST)).max(0);
        rows::child(Table::HaChassis, &key, group.clone(), "ha_chassis")
            .whole("chassis_name", Value::string(chassis.clone()))
            .whole("priority", Value::integer(priority))
            .ids(&[("group", &name)])
            .add(facts);
    }
    let networks = ips.iter().map(|ip| match ip {
        IpAddr::V4(ip) => format!("{ip}/32"),
        IpAddr::V6(ip) => format!("{ip}/128"),
    });
    let mac = mac::format(mac::draw(view.config().seed, &["router port", &name], 0));
    rows::named(Table::LogicalRouterPort, &name, RowKey::new(Table::LogicalRouter, router.clone()), "ports")
        .whole("networks", Value::strings(networks))
        .initial("mac", Value::string(mac))
        .keys("options", [("bfd-only", "true")])
        .column("ha_chassis_group", Column::Refs([group].into()))
        .ids(&[("lr", router)])
        .add(facts);
    BfdPortStatus {
        name,
        ip: ips.to_string(),
        nodes: hosts.into_iter().map(|(node, _)| node.to_string()).collect(),
    }
}

/// A typing error must not tear down the sessions of running gateways.
fn keep(name: &str, facts: &mut Facts) -> BfdPortStatus {
    facts.keeps.extend([
        Keep::Row(RowKey::new(Table::LogicalRouterPort, name)),
        Keep::Row(RowKey::new(Table::HaChassisGroup, name)),
        Keep::Marked(Table::HaChassis, "group", name.into()),
    ]);
    BfdPortStatus::default()
}
