//! ACLs on a subnet's switch (contract §4.8, §6.5): a private subnet's wall with its
//! gates, and the ACLs of the spec. All of a subnet's ACLs change in one transaction,
//! so that a wall is never down for a moment.
//!
//! Two gates are ours. The wall stands before every port of the switch, also the one to
//! the router, through which the subnet's own pods talk to others. And nodes come with
//! their own addresses, not with those of the join subnet: in the contract ACLs of port
//! groups let them in, two to four a node and only while there are NetworkPolicies; here
//! one ACL a subnet and family refers to a set of all nodes' addresses (unit globals).

use std::collections::BTreeSet;

use crds::{SubnetSpec, names, net};
use ipnet::IpNet;
use ovsdb::Value;

use super::super::rows;
use crate::facts::{Facts, RowKey, Table};
use crate::view::View;

/// Nodes enter a private subnet.
const FROM_NODES: i64 = 3000;
/// Traffic within a subnet whose spec has ACLs.
const WITHIN: i64 = 1900;
/// What may enter a private subnet.
const GATE: i64 = 1001;
/// Nothing else may.
const WALL: i64 = 1000;

/// One ACL.
struct Acl<'a> {
    direction: &'a str,
    priority: i64,
    matching: String,
    action: &'a str,
    /// It is one of `spec.acls`, or `allowEWTraffic`.
    of_spec: bool,
}

/// States the ACLs; says which entries of the spec are wrong.
pub(super) fn rows(view: &dyn View, name: &str, spec: &SubnetSpec, facts: &mut Facts) -> Option<String> {
    if spec.private {
        private(view, name, spec, facts);
    }
    let mut problem = None;
    let mut seen = BTreeSet::new();
    for (index, acl) in spec.acls.iter().enumerate() {
        let matching = acl.r#match.trim();
        let checked = check(acl).and_then(|()| {
            let key = (&acl.direction, acl.priority, matching);
            if seen.insert(key) {
                Ok(())
            } else {
                Err("an entry before it has the same direction, priority and match".into())
            }
        });
        match checked {
            Ok(()) => add(
                name,
                facts,
                Acl {
                    direction: &acl.direction,
                    priority: i64::from(acl.priority),
                    matching: matching.to_owned(),
                    action: &acl.action,
                    of_spec: true,
                },
            ),
            Err(error) => {
                problem.get_or_insert(format!(
                    "acls[{index}] (priority {}, match {matching:?}): {error}",
                    acl.priority
                ));
            }
        }
    }
    if !spec.acls.is_empty() && spec.allow_ew_traffic {
        for net in nets(spec) {
            for direction in ["from-lport", "to-lport"] {
                let matching = between(&net, &net);
                add(
                    name,
                    facts,
                    Acl { direction, priority: WITHIN, matching, action: "allow", of_spec: true },
                );
            }
        }
    }
    problem
}

fn nets(spec: &SubnetSpec) -> Vec<IpNet> {
    net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default().iter().collect()
}

fn between(from: &IpNet, to: &IpNet) -> String {
    let field = rows::ip_field(&from.addr());
    format!("{field}.src == {from} && {field}.dst == {to}")
}

fn private(view: &dyn View, name: &str, spec: &SubnetSpec, facts: &mut Facts) {
    let gate = |priority, matching| Acl {
        direction: "to-lport",
        priority,
        matching,
        action: "allow-related",
        of_spec: false,
    };
    add(name, facts, Acl { action: "drop", ..gate(WALL, "ip".to_owned()) });
    // Stateless: OVN tracks no connections on ports to routers.
    let out = format!("outport == {:?}", names::switch_port(name, &spec.vpc));
    add(name, facts, Acl { action: "allow-stateless", ..gate(GATE, out) });
    let config = view.config();
    let join = view.subnet(&config.node_switch).filter(|join| join.invalid.is_none());
    let join = join.map_or_else(|| config.node_switch_cidr.to_string(), |join| join.spec.cidr_block.clone());
    let join = net::parse_dual_cidrs(&join).unwrap_or_default();
    let ours = nets(spec);
    let same_family = |a: &IpNet, b: &IpNet| a.addr().is_ipv4() == b.addr().is_ipv4();
    let mut stated = BTreeSet::new();
    for net in &ours {
        let mut once = |acl: Acl<'static>, facts: &mut Facts| {
            if stated.insert((acl.priority, acl.matching.clone())) {
                add(name, facts, acl);
            }
        };
        for node in join.iter().filter(|node| same_family(node, net)) {
            once(gate(FROM_NODES, format!("{}.src == {node}", rows::ip_field(&node.addr()))), facts);
        }
        // A custom VPC's pods may have an address that is a node's elsewhere.
        if *spec.vpc == *config.cluster_router {
            let nodes = rows::nodes_set(net.addr().is_ipv4());
            once(gate(FROM_NODES, format!("{}.src == ${nodes}", rows::ip_field(&net.addr()))), facts);
        }
        once(gate(GATE, between(net, net)), facts);
        let allowed = spec.allow_subnets.iter().filter_map(|text| text.trim().parse::<IpNet>().ok());
        for allowed in allowed.map(|net| net.trunc()).filter(|allowed| same_family(allowed, net)) {
            let matching = format!("({}) || ({})", between(net, &allowed), between(&allowed, net));
            once(gate(GATE, matching), facts);
        }
    }
}

fn add(name: &str, facts: &mut Facts, acl: Acl<'_>) {
    let key = rows::acl_key(
        Table::LogicalSwitch,
        name,
        acl.direction,
        rows::DEFAULT_TIER,
        acl.priority,
        &acl.matching,
    );
    let marks = [("parent", name), ("subnet", name)];
    let mut row = rows::child(Table::Acl, &key, RowKey::new(Table::LogicalSwitch, name), "acls")
        .whole("direction", Value::string(acl.direction))
        .whole("priority", Value::integer(acl.priority))
        .whole("match", Value::string(acl.matching))
        .whole("action", Value::string(acl.action))
        .whole("tier", Value::integer(rows::DEFAULT_TIER))
        .ids(if acl.of_spec { &marks } else { &marks[..1] });
    if acl.action == "drop" && !acl.of_spec {
        row = row
            .whole("log", Value::boolean(true))
            .whole("severity", Value::optional(Some("warning")))
            .whole("name", Value::optional(Some(rows::acl_name(name))));
    }
    row.add(facts);
}

fn check(acl: &crds::Acl) -> Result<(), String> {
    if !matches!(&*acl.direction, "from-lport" | "to-lport") {
        return Err(format!("direction {:?} is unknown; write from-lport or to-lport", acl.direction));
    }
    if !matches!(&*acl.action, "allow" | "allow-related" | "allow-stateless" | "drop" | "reject") {
        return Err(format!(
            "action {:?} is unknown; write allow, allow-related, allow-stateless, drop or reject",
            acl.action
        ));
    }
    if !(0..=32767).contains(&acl.priority) {
        return Err("priority must be between 0 and 32767".to_owned());
    }
    rows::check_match(&acl.r#match)
}
