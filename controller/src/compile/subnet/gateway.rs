//! The gateway of a centralized subnet (contract §5.3): one policy per family that
//! reroutes what leaves to the join addresses of gateway nodes. A distributed
//! subnet's policies are stated by the nodes.

use std::net::IpAddr;
use std::sync::Arc;

use crds::{names, net};
use ovsdb::Value;

use super::super::rows;
use crate::facts::{Column, Facts, Gone, Keep, RowKey, Table};
use crate::view::{LeaseState, Selecting, SubnetView, View};

/// Reason of a subnet that names no node that there is (contract §8.8).
const NONE_NAMED: &str = "NoReadyGateway";
/// Reason of a subnet of whose gateway nodes none is ready.
const NONE_READY: &str = "NoActiveGatewayFound";

/// What became of the gateway.
#[derive(Default)]
pub(super) struct Gateway {
    /// The node that is used, if only one is.
    pub active: Option<Arc<str>>,
    /// Why there is none: reason and message.
    pub problem: Option<(&'static str, String)>,
}

/// A gateway node that can be used.
struct Ready {
    node: Arc<str>,
    addresses: Vec<IpAddr>,
    /// It gives no answer.
    silent: bool,
}

/// The subnet leaves by nodes that it names.
pub(super) fn centralized(view: &dyn View, subnet: &SubnetView) -> bool {
    subnet.spec.gateway_type == "centralized" && *subnet.spec.vpc == *view.config().cluster_router
}

/// States the policies. Without a usable node those that exist stay: a gateway that
/// may be dead is not worse than none.
pub(super) fn rows(view: &dyn View, name: &Arc<str>, subnet: &SubnetView, facts: &mut Facts) -> Gateway {
    let named = named(view, name, subnet);
    let mut ready: Vec<Ready> = named.iter().filter_map(|node| ready(view, node)).collect();
    // Those that answer, if any does.
    if ready.iter().any(|gateway| !gateway.silent) {
        ready.retain(|gateway| !gateway.silent);
    }
    let config = view.config();
    let shared = subnet.spec.enable_ecmp || config.enable_ecmp;
    let before = view.active_gateway(name);
    let kept = ready.iter().find(|gateway| before.as_ref() == Some(&gateway.node));
    let used: Vec<&Ready> =
        if shared { ready.iter().collect() } else { kept.or(ready.first()).into_iter().collect() };
    if used.is_empty() {
        facts.keeps.push(Keep::Marked(Table::Policy, "subnet", name.clone()));
        facts.keeps.push(Keep::Marked(Table::PortGroup, "subnet", name.clone()));
        return Gateway { active: None, problem: Some(problem(name, &named)) };
    }
    for net in net::parse_dual_cidrs(&subnet.spec.cidr_block).unwrap_or_default().iter() {
        let of_family = |gateway: &&Ready| -> Option<(Arc<str>, String)> {
            let ip = gateway.addresses.iter().find(|ip| ip.is_ipv4() == net.addr().is_ipv4())?;
            Some((gateway.node.clone(), ip.to_string()))
        };
        let hops: Vec<(Arc<str>, String)> = used.iter().filter_map(of_family).collect();
        if !hops.is_empty() {
            let matching = format!("{}.src == {net}", rows::ip_field(&net.addr()));
            policy(&config.cluster_router, name, &matching, &hops, facts);
        }
    }
    Gateway { active: used.first().filter(|_| !shared).map(|gateway| gateway.node.clone()), problem: None }
}

/// Next hops of one policy are exchanged in one change: the new one is there before
/// the old one is gone.
fn policy(router: &str, subnet: &str, matching: &str, hops: &[(Arc<str>, String)], facts: &mut Facts) {
    let key = rows::policy_key(router, rows::GATEWAY, matching);
    let marks = [("vendor", crds::keys::VENDOR), ("subnet", subnet)];
    let marks = marks.into_iter().chain(hops.iter().map(|(node, ip)| (&**node, &**ip)));
    let marks = Column::map(marks, [] as [(&str, &str); 0], Gone::Others);
    rows::child(Table::Policy, &key, RowKey::new(Table::LogicalRouter, router), "policies")
        .whole("priority", Value::integer(rows::GATEWAY))
        .whole("match", Value::string(matching))
        .whole("action", Value::string("reroute"))
        .whole("nexthops", Value::strings(hops.iter().map(|(_, ip)| ip.as_str())))
        .column("external_ids", marks)
        .add(facts);
}

/// Gateway nodes in the order of the spec; by name where a selector chooses them.
fn named(view: &dyn View, name: &Arc<str>, subnet: &SubnetView) -> Vec<Arc<str>> {
    let listed = listed(&subnet.spec.gateway_node);
    if listed.is_empty() && !subnet.spec.gateway_node_selectors.is_empty() {
        return view.selected_nodes(&Selecting::Gateways(name.clone())).to_vec();
    }
    listed
}

/// `n1,n2`, or `n1:ip,n2:ip`; the address is the nodes' business.
pub(crate) fn listed(text: &str) -> Vec<Arc<str>> {
    let mut nodes: Vec<Arc<str>> = Vec::new();
    for part in text.split(',') {
        let node = part.split(':').next().unwrap_or_default().trim();
        if !node.is_empty() && !nodes.iter().any(|known| **known == *node) {
            nodes.push(node.into());
        }
    }
    nodes
}

fn ready(view: &dyn View, name: &Arc<str>) -> Option<Ready> {
    let node = view.node(name).filter(|node| node.ready)?;
    let LeaseState::Held(lease) = view.lease(&names::node_port(name)) else { return None };
    let addresses = rows::addresses(&lease).collect();
    Some(Ready { node: name.clone(), addresses, silent: node.silent })
}

fn problem(subnet: &str, named: &[Arc<str>]) -> (&'static str, String) {
    if named.is_empty() {
        let message = format!(
            "subnet {subnet}: gatewayType centralized needs gateway nodes, and there are none; name nodes in \
             gatewayNode, or choose them by gatewayNodeSelectors"
        );
        return (NONE_NAMED, message);
    }
    let list = named.iter().map(|node| &**node).collect::<Vec<_>>().join(", ");
    let message = format!(
        "subnet {subnet}: none of the gateway nodes {list} is ready; what is in place stays. Repair one of them, or \
         name others"
    );
    (NONE_READY, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_nodes_with_and_without_address() {
        let names = |text: &str| listed(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names("n1,n2"), ["n1", "n2"]);
        assert_eq!(names("n1:192.0.2.1, n2:2001:db8::1,n1"), ["n1", "n2"]);
        assert!(names(" , ").is_empty());
    }
}
