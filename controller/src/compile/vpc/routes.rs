//! Static routes of a router (contract §4.3): those of the spec, and in the default
//! VPC the default routes to the gateway of the join subnet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crds::{StaticRoute, VpcSpec, net};
use ipnet::IpNet;
use ovsdb::Value;

use super::super::rows;
use super::external::Outcome;
use crate::facts::{Column, Facts, Keep, RowKey, Table};
use crate::view::View;

/// The recognised value of `ecmpMode`.
const ECMP: &str = "ecmp_symmetric_reply";
/// Mark of a route that, without it, could be one of source NAT (contract §4.3:
/// both carry the vendor mark only), so that it can be told apart when it goes.
pub(crate) const OF_SPEC: (&str, &str) = ("weir-route", "spec");

/// Table, policy, prefix: of one such destination there is one next hop, or several
/// that all share the load.
type Destination = (String, &'static str, String);

/// A route from a subnet through a node, as long as the node answers.
pub(super) struct Made {
    /// Routing table of the subnet.
    pub(super) table: String,
    /// Its block.
    pub(super) prefix: String,
    pub(super) nexthop: IpAddr,
    pub(super) bfd: RowKey,
}

/// States the routes; says which entries are wrong.
pub(super) fn rows(
    view: &dyn View,
    router: &str,
    spec: &VpcSpec,
    external: &Outcome,
    facts: &mut Facts,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<Destination, (bool, BTreeSet<String>)> = BTreeMap::new();
    for made in &external.routes {
        let nexthop = made.nexthop.to_string();
        base(router, &made.table, "src-ip", &made.prefix, &nexthop)
            .ids(&[])
            .keys("options", [(ECMP, "true")])
            .column("bfd", Column::Refs([made.bfd.clone()].into()))
            .add(facts);
        let destination = (made.table.clone(), "src-ip", made.prefix.clone());
        seen.entry(destination).or_insert((true, BTreeSet::new())).1.insert(nexthop);
    }
    let entries = spec.static_routes.iter().enumerate();
    for (index, entry) in entries.filter(|(_, entry)| !is_made(entry) && !gives_way(entry, external)) {
        let place = format!("staticRoutes[{index}] ({} via {})", entry.cidr, entry.next_hop_ip);
        match check(entry) {
            Err(problem) => problems.push(format!("{place}: {problem}")),
            Ok((policy, prefix, nexthop)) => {
                let shared = entry.ecmp_mode == ECMP || !entry.bfd_id.is_empty();
                let destination = (entry.route_table.clone(), policy, prefix.clone());
                let (all_shared, hops) = seen.entry(destination).or_insert((shared, BTreeSet::new()));
                if hops.contains(&nexthop) {
                    continue;
                }
                let joins = hops.is_empty() || (*all_shared && shared);
                if !joins {
                    problems.push(format!(
                        "{place}: an entry before it has the same destination and another next hop; remove one, or \
                         give both ecmpMode {ECMP}"
                    ));
                    continue;
                }
                hops.insert(nexthop.clone());
                route(view, router, entry, (policy, &prefix, &nexthop), facts);
            }
        }
    }
    if *router == *view.config().cluster_router {
        default_routes(view, router, spec, &seen, facts);
    } else {
        keep_ways_out(view, router, spec, external, facts);
    }
    problems
}

/// Kube-OVN gives each subnet of a custom VPC a `src-ip` route to the subnet's gateway. None is made here (D40), but one
/// that is there stays where it alone leads out: an underlay subnet's, whose gateway is the physical one (contract §5.6),
/// and any in a table that the spec has no route for, since OVN looks up a route before it asks the policies that
/// lead an egress gateway's traffic.
fn keep_ways_out(view: &dyn View, router: &str, spec: &VpcSpec, external: &Outcome, facts: &mut Facts) {
    let outside = spec.enable_external || !spec.extra_external_subnets.is_empty();
    let other_way = |table: &str| {
        outside
            || spec.static_routes.iter().any(|route| *route.route_table == *table)
            || external.routes.iter().any(|route| *route.table == *table)
    };
    // Subnets of one VPC may have one block, and so one route.
    let mut kept = BTreeSet::new();
    for name in view.vpc_subnets(router).iter() {
        let Some(subnet) = view.subnet(name) else { continue };
        let of = &subnet.spec;
        let underlay = !of.vlan.is_empty() && of.u2o_interconnection;
        let cidrs = net::parse_dual_cidrs(&of.cidr_block).unwrap_or_default();
        let gateways = net::parse_dual_ips(&of.gateway).unwrap_or_default();
        let pairs = cidrs.iter().flat_map(|cidr| gateways.iter().map(move |gateway| (cidr, gateway)));
        for (cidr, gateway) in pairs.filter(|(cidr, gateway)| cidr.contains(gateway)) {
            // Its own table, and the main one, which Kube-OVN's subnet worker writes.
            for table in BTreeSet::from([&*of.route_table, ""]) {
                if underlay || !other_way(table) {
                    let (prefix, nexthop) = (cidr.to_string(), gateway.to_string());
                    let key = rows::route_key(router, table, "src-ip", &prefix, &nexthop);
                    kept.insert(RowKey::new(Table::StaticRoute, key));
                }
            }
        }
    }
    facts.keeps.extend(kept.into_iter().map(Keep::Row));
}

/// What Kube-OVN writes into specs for `enableBfd`: rows follow from that field here.
fn is_made(entry: &StaticRoute) -> bool {
    entry.policy == "policySrc" && entry.ecmp_mode == ECMP && !entry.bfd_id.is_empty()
}

/// A default route out by the gateway of an external network whose nodes are watched: what
/// leaves must do so by a node that answers (contract §4.3).
fn gives_way(entry: &StaticRoute, external: &Outcome) -> bool {
    external.bfd
        && matches!(&*entry.policy, "" | "policyDst")
        && matches!(entry.cidr.trim(), "0.0.0.0/0" | "::/0")
        && entry.next_hop_ip.trim().parse::<IpAddr>().is_ok_and(|ip| external.gateways.contains(&ip))
}

/// Policy, prefix and next hop of an entry, or what is wrong with it.
fn check(entry: &StaticRoute) -> Result<(&'static str, String, String), String> {
    let policy = match &*entry.policy {
        "" | "policyDst" => "dst-ip",
        "policySrc" => "src-ip",
        other => return Err(format!("policy {other:?} is unknown; write policyDst or policySrc")),
    };
    if !matches!(&*entry.ecmp_mode, "" | ECMP) {
        return Err(format!("ecmpMode {:?} is unknown; write {ECMP} or nothing", entry.ecmp_mode));
    }
    let prefix = entry.cidr.trim();
    let address = prefix.parse::<IpNet>().map(|net| net.addr()).or_else(|_| prefix.parse::<IpAddr>());
    let Ok(address) = address else {
        return Err(format!("{prefix:?} is neither a CIDR nor an address"));
    };
    let Ok(nexthop) = entry.next_hop_ip.trim().parse::<IpAddr>() else {
        return Err(format!("nextHopIP {:?} is no address", entry.next_hop_ip));
    };
    if address.is_ipv4() != nexthop.is_ipv4() {
        return Err("cidr and nextHopIP are of different families".to_owned());
    }
    Ok((policy, prefix.to_owned(), nexthop.to_string()))
}

fn route(
    view: &dyn View,
    router: &str,
    entry: &StaticRoute,
    (policy, prefix, nexthop): (&'static str, &str, &str),
    facts: &mut Facts,
) {
    let symmetric = entry.ecmp_mode == ECMP;
    let options = if symmetric {
        Column::keys([(ECMP, "true")])
    } else {
        Column::map_without([] as [(&str, &str); 0], &[ECMP])
    };
    let ids =
        if ambiguous(&view.config().cluster_router, router, policy, prefix) { &[OF_SPEC][..] } else { &[] };
    let mut row =
        base(router, &entry.route_table, policy, prefix, nexthop).ids(ids).column("options", options);
    if let Ok(bfd) = entry.bfd_id.parse::<ovsdb::Uuid>() {
        row = row.initial("bfd", Value::optional(Some(bfd)));
    }
    row.add(facts);
}

/// Routes of source NAT look like this too.
pub(crate) fn ambiguous(default_router: &str, router: &str, policy: &str, prefix: &str) -> bool {
    let host = match prefix.parse::<IpNet>() {
        Ok(net) => net.prefix_len() == net.max_prefix_len(),
        Err(_) => true,
    };
    policy == "src-ip" && host && router == default_router
}

/// Default routes to the gateway of the join subnet, in the main table and in
/// every table that the spec names: what leaves the cluster goes to the nodes. Where
/// the spec has a default route of its own, that one counts.
fn default_routes(
    view: &dyn View,
    router: &str,
    spec: &VpcSpec,
    own: &BTreeMap<Destination, (bool, BTreeSet<String>)>,
    facts: &mut Facts,
) {
    let join =
        view.subnet(&view.config().node_switch).filter(|join| join.invalid.is_none() && join.supported);
    let Some(join) = join else {
        facts.keeps.push(Keep::Marked(Table::StaticRoute, "vendor", crds::keys::VENDOR.into()));
        return;
    };
    let gateways = net::parse_dual_ips(&join.spec.gateway).unwrap_or_default();
    let tables: BTreeSet<&str> =
        std::iter::once("").chain(spec.static_routes.iter().map(|route| &*route.route_table)).collect();
    for table in tables {
        for gateway in gateways.iter() {
            let prefix = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            if !own.contains_key(&(table.to_owned(), "dst-ip", prefix.to_owned())) {
                base(router, table, "dst-ip", prefix, &gateway.to_string()).ids(&[]).add(facts);
            }
        }
    }
}

fn base(router: &str, table: &str, policy: &'static str, prefix: &str, nexthop: &str) -> rows::RowBuilder {
    let key = rows::route_key(router, table, policy, prefix, nexthop);
    rows::child(Table::StaticRoute, &key, RowKey::new(Table::LogicalRouter, router), "static_routes")
        .whole("ip_prefix", Value::string(prefix))
        .whole("nexthop", Value::string(nexthop))
        .whole("policy", Value::optional(Some(policy)))
        .whole("route_table", Value::string(table))
}
