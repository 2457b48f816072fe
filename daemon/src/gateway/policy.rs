//! Policy routing of subnets with an external egress gateway (node contract §4.5).
//!
//! What leaves such a subnet is not translated and goes to that gateway: a default route in a table of the subnet's own,
//! and rules that send there what comes from its pods. With a distributed gateway one rule per pod of this node; with a
//! centralized one, one rule for the whole prefix, on the gateway nodes.
//!
//! In: [`Inputs`], the host's rules and routes. Out: what is missing, what goes. Pure. Rules and routes that we make carry
//! a protocol number of our own, by which those of a subnet that went while the agent was down are found. Those of
//! Kube-OVN and of our older versions are replaced: rules without a number where they point from a subnet's prefix into
//! its table, `static` default routes where a subnet has, or rules of ours name, the table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::inputs::{Inputs, SubnetInput};
use crate::firewall::Family;
use crate::kube::SubnetFacts;
use crate::netlink::{MAIN_TABLE, Route, Rule, protocol};

/// Protocol number of our rules and routes (none that `iproute2` knows).
pub const PROTOCOL: u8 = 0x57;
/// Tables that are the system's: local, main, default, unspecified.
const SYSTEM_TABLES: [u32; 4] = [0, 253, MAIN_TABLE, 255];

/// Usual name of the default VPC.
const DEFAULT_VPC: &str = "ovn-cluster";

/// Where what leaves a subnet goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalEgress {
    /// Gateways, one a family.
    pub gateways: Vec<IpAddr>,
    /// Routing table.
    pub table: u32,
    /// Priority of its rules.
    pub priority: u32,
    /// Centralized: this node is one of the subnet's gateways.
    pub gateway_here: bool,
    /// Distributed: addresses of its pods on this node.
    pub local_pods: BTreeSet<IpAddr>,
}

/// A rule in a form that can be shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyRule {
    /// Priority.
    pub priority: u32,
    /// What comes from here …
    pub source: IpNet,
    /// … looks here.
    pub table: u32,
}

impl PolicyRule {
    /// As netlink takes it.
    pub fn to_netlink(&self) -> Rule {
        Rule {
            ipv6: self.source.addr().is_ipv6(),
            priority: self.priority,
            source: Some(self.source),
            destination: None,
            mark: None,
            mask: None,
            input: None,
            table: self.table,
            protocol: PROTOCOL,
        }
    }
}

/// The default route of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyRoute {
    /// The table.
    pub table: u32,
    /// The gateway.
    pub gateway: IpAddr,
}

impl PolicyRoute {
    /// As netlink takes it; the kernel finds the link by which the gateway is reached.
    pub fn to_netlink(&self) -> Route {
        Route { table: self.table, protocol: PROTOCOL, ..Route::default_via(self.gateway) }
    }
}

/// What a host is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies {
    /// Rules.
    pub rules: BTreeSet<PolicyRule>,
    /// Routes.
    pub routes: BTreeSet<PolicyRoute>,
    /// Prefixes of the subnets by (table, priority): whose rules are ours to judge.
    pub prefixes: BTreeSet<(u32, u32, IpNet)>,
    /// What can't be had, with the remedy.
    pub problems: Vec<String>,
}

/// What the wanted state is. A table serves one gateway a family: of two subnets that want different ones the first by
/// name has it.
pub(super) fn wanted(inputs: &Inputs) -> Policies {
    let mut policies = Policies::default();
    let mut taken: BTreeMap<(u32, Family), (IpAddr, &str)> = BTreeMap::new();
    let mut subnets: Vec<&SubnetInput> =
        inputs.subnets.iter().filter(|subnet| !subnet.underlay && !subnet.deleting).collect();
    subnets.sort_by(|a, b| a.name.cmp(&b.name));
    for subnet in subnets {
        let Some(egress) = subnet.external_egress.as_ref().filter(|_| !subnet.nat_outgoing) else { continue };
        let (table, priority) = (egress.table, egress.priority);
        if SYSTEM_TABLES.contains(&table) || priority == 0 {
            policies.problems.push(format!(
                "Subnet {}: external egress needs a routing table of its own and a priority, not table {table} and \
                 priority {priority}; set spec.policyRoutingTableID (not 253–255) and spec.policyRoutingPriority",
                subnet.name
            ));
            continue;
        }
        for gateway in &egress.gateways {
            let family = Family::of(gateway);
            if !inputs.families().contains(&family) {
                continue;
            }
            let (first, owner) = *taken.entry((table, family)).or_insert((*gateway, subnet.name.as_str()));
            if first != *gateway {
                policies.problems.push(format!(
                    "Subnet {}: routing table {table} leads to {first}, for Subnet {owner}, and can't lead to {gateway} \
                     too; give it another spec.policyRoutingTableID",
                    subnet.name
                ));
                continue;
            }
            // Only gateways of a centralized subnet need to reach it.
            if subnet.distributed || egress.gateway_here {
                policies.routes.insert(PolicyRoute { table, gateway: *gateway });
            }
            let cidrs = subnet.cidrs.iter().filter(|cidr| Family::of(&cidr.addr()) == family);
            policies.prefixes.extend(cidrs.clone().map(|cidr| (table, priority, *cidr)));
            let sources: Vec<IpNet> = if !subnet.distributed {
                cidrs.filter(|_| egress.gateway_here).copied().collect()
            } else {
                let own = |ip: &&IpAddr| cidrs.clone().any(|cidr| cidr.contains(*ip));
                egress.local_pods.iter().filter(own).map(|ip| IpNet::from(*ip)).collect()
            };
            policies.rules.extend(sources.into_iter().map(|source| PolicyRule { priority, source, table }));
        }
    }
    policies
}

/// Rules that a pod's first packet needs, for ADD, which must not wait for the host's loop; the loop keeps them and
/// takes them away. A default VPC of another name (`--cluster-router`) has to wait for the loop.
pub fn rules_of_pod(subnet: &SubnetFacts, addresses: &[IpNet]) -> Vec<PolicyRule> {
    let (table, priority) = (subnet.policy_routing_table_id, subnet.policy_routing_priority);
    let applies = !subnet.external_egress_gateway.is_empty()
        && !subnet.nat_outgoing
        && subnet.gateway_type == "distributed"
        && !subnet.is_underlay()
        && subnet.in_default_vpc(DEFAULT_VPC)
        && !SYSTEM_TABLES.contains(&table)
        && priority > 0;
    let leads = |net: &&IpNet| {
        let gateways =
            subnet.external_egress_gateway.split(',').filter_map(|ip| ip.trim().parse::<IpAddr>().ok());
        gateways.into_iter().any(|gateway| gateway.is_ipv6() == net.addr().is_ipv6())
    };
    let addresses = addresses.iter().filter(|_| applies).filter(leads);
    addresses.map(|net| PolicyRule { priority, source: IpNet::from(net.addr()), table }).collect()
}

/// What a host needs, in the order in which it is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyChanges {
    pub(super) add_routes: Vec<PolicyRoute>,
    pub(super) add_rules: Vec<PolicyRule>,
    pub(super) delete_rules: Vec<Rule>,
    pub(super) delete_routes: Vec<Route>,
}

/// Compares. `known` are tables that were wanted before.
pub(super) fn diff(
    wanted: &Policies,
    rules: &[Rule],
    routes: &[Route],
    known: &BTreeSet<u32>,
) -> PolicyChanges {
    let mut changes = PolicyChanges::default();
    let plain = |rule: &Rule| {
        rule.destination.is_none() && rule.mark.is_none() && rule.input.is_none() && rule.source.is_some()
    };
    let as_wanted = |rule: &Rule| {
        let source = rule.source.filter(|_| plain(rule))?;
        let rule = PolicyRule { priority: rule.priority, source, table: rule.table };
        wanted.rules.get(&rule)
    };
    let mut present = BTreeSet::new();
    for rule in rules {
        let of_kube_ovn = rule.protocol == 0
            && rule.source.is_some_and(|source| {
                plain(rule)
                    && wanted.prefixes.iter().any(|(table, priority, prefix)| {
                        *table == rule.table && *priority == rule.priority && prefix.contains(&source)
                    })
            });
        match as_wanted(rule).filter(|_| rule.protocol == PROTOCOL) {
            Some(found) if present.insert(found) => {}
            Some(_) => changes.delete_rules.push(rule.clone()),
            // Its successor of ours is there before it goes.
            None if rule.protocol == PROTOCOL || of_kube_ovn => changes.delete_rules.push(rule.clone()),
            None => {}
        }
    }
    changes.add_rules = wanted.rules.iter().filter(|rule| !present.contains(rule)).cloned().collect();
    let tables: BTreeSet<u32> = wanted
        .routes
        .iter()
        .map(|route| route.table)
        .chain(known.iter().copied())
        .chain(rules.iter().filter(|rule| rule.protocol == PROTOCOL).map(|rule| rule.table))
        .chain(changes.delete_rules.iter().map(|rule| rule.table))
        .collect();
    // A default route of another protocol is somebody else's.
    let ours = |route: &Route| match route.protocol {
        PROTOCOL => true,
        protocol::STATIC => tables.contains(&route.table),
        _ => false,
    };
    let ours: Vec<&Route> = routes
        .iter()
        .filter(|route| !SYSTEM_TABLES.contains(&route.table))
        .filter(|route| route.is_default() && route.gateway.is_some() && ours(route))
        .collect();
    let is =
        |have: &Route, route: &PolicyRoute| have.table == route.table && have.gateway == Some(route.gateway);
    let marked = |route: &PolicyRoute| ours.iter().any(|have| have.protocol == PROTOCOL && is(have, route));
    changes.add_routes = wanted.routes.iter().filter(|route| !marked(route)).cloned().collect();
    // One that is as wanted but for its protocol is replaced in place.
    let goes = |have: &&&Route| !wanted.routes.iter().any(|route| is(have, route));
    changes.delete_routes = ours.iter().filter(goes).map(|route| (*route).clone()).collect();
    changes
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
