//! Peerings: each VPC makes its own half, a router port that names the other half as
//! its peer (contract §4.3).

use std::collections::BTreeSet;

use crds::{VpcPeering, VpcSpec, names};
use ipnet::IpNet;
use ovsdb::Value;

use super::super::rows;
use crate::facts::{Facts, RowKey, Table};
use crate::ipam::mac;
use crate::view::View;

/// States our halves; adds wrong entries to `problems`, and says which peerings
/// still lack their other half.
pub(super) fn rows(
    view: &dyn View,
    router: &str,
    spec: &VpcSpec,
    facts: &mut Facts,
    problems: &mut Vec<String>,
) -> Vec<String> {
    let mut waiting = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, entry) in spec.vpc_peerings.iter().enumerate() {
        let place = format!("vpcPeerings[{index}] ({})", entry.remote_vpc);
        let nets = match check(router, entry) {
            Ok(_) if !seen.insert(&entry.remote_vpc) => {
                problems.push(format!("{place}: an entry before it has the same remoteVpc; remove one"));
                continue;
            }
            Ok(nets) => nets,
            Err(problem) => {
                problems.push(format!("{place}: {problem}"));
                continue;
            }
        };
        let remote = &*entry.remote_vpc;
        let port = names::router_port(router, remote);
        if let Some(subnet) = subnet_of(view, &port) {
            problems.push(format!(
                "{place}: its router port would have the name of that of subnet {subnet} ({port}); rename the subnet, or \
                 one of the Vpcs"
            ));
            continue;
        }
        let other = view.vpc(remote);
        let back = other
            .as_ref()
            .is_some_and(|vpc| vpc.spec.vpc_peerings.iter().any(|peering| *peering.remote_vpc == *router));
        if !back {
            waiting.push(format!("{place}: Vpc {remote} has no peering back to {router} yet"));
        }
        let mac = mac::format(mac::draw(view.config().seed, &["router port", &port], 0));
        rows::named(Table::LogicalRouterPort, &port, RowKey::new(Table::LogicalRouter, router), "ports")
            .whole("networks", Value::strings(nets))
            .whole("peer", Value::optional(Some(names::router_port(remote, router))))
            .initial("mac", Value::string(mac))
            .ids(&[("lr", router)])
            .add(facts);
    }
    waiting
}

/// The subnet whose router port has that name: names of VPCs and subnets are joined by a dash.
fn subnet_of<'a>(view: &dyn View, port: &'a str) -> Option<&'a str> {
    let parts = port.match_indices('-').filter_map(|(at, _)| Some((port.get(..at)?, port.get(at + 1..)?)));
    let of_both = |(vpc, subnet): &(&str, &str)| {
        view.subnet(subnet).is_some_and(|seen| *seen.spec.vpc == **vpc && seen.invalid.is_none())
    };
    parts.into_iter().find(of_both).map(|(_, subnet)| subnet)
}

/// The networks of our half, or what is wrong with the entry.
fn check(router: &str, entry: &VpcPeering) -> Result<Vec<String>, String> {
    if entry.remote_vpc.is_empty() {
        return Err("remoteVpc is empty; name a Vpc".to_owned());
    }
    if *entry.remote_vpc == *router {
        return Err("a Vpc can't be its own peer; name another one".to_owned());
    }
    let parts = entry.local_connect_ip.split(',').map(str::trim).filter(|part| !part.is_empty());
    let nets: Result<Vec<String>, String> = parts
        .map(|part| {
            let net = part.parse::<IpNet>();
            net.map(|net| net.to_string())
                .map_err(|_| format!("localConnectIP {part:?} is no CIDR such as 169.254.0.1/30"))
        })
        .collect();
    let nets = nets?;
    if nets.is_empty() {
        return Err("localConnectIP is empty; write one CIDR, or one of each family".to_owned());
    }
    Ok(nets)
}
