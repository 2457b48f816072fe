//! External networks of a VPC (contract §4.3, §4.6, §5.5): a port of its router in each,
//! hosted by the gateway nodes, with the addresses of an OvnEip; BFD sessions to the ports that
//! nodes have there, and routes through those that answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::{keys, names, net};
use ovsdb::Value;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::{rows, subnet};
use super::routes::Made;
use crate::facts::{Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::view::{
    EXTERNAL_TAKES, EipType, Lease, LeaseState, Selecting, Standing, SubnetView, View, VpcView,
};
use crate::world::{FIRST, LOWERED, RAISED, TURN};

/// What became of the external networks.
#[derive(Default)]
pub(super) struct Outcome {
    /// Those in which the router has a port.
    pub(super) connected: BTreeSet<Arc<str>>,
    /// Sessions and their routes are stated.
    pub(super) bfd: bool,
    /// What is wanted and lacking, with the remedy.
    pub(super) lacks: Vec<String>,
    /// What to know beside.
    pub(super) notes: Vec<String>,
    /// Routes through nodes that answer.
    pub(super) routes: Vec<Made>,
    /// Gateways of the networks to which default routes give way.
    pub(super) gateways: BTreeSet<std::net::IpAddr>,
}

/// The external networks that a VPC has to be in. One on its way out keeps them until its
/// subnets are gone.
pub(crate) fn wants(view: &dyn View, name: &str, vpc: &VpcView) -> BTreeSet<Arc<str>> {
    if vpc.deleting && view.vpc_subnets(name).is_empty() {
        return BTreeSet::new();
    }
    let first = vpc.spec.enable_external.then(|| view.config().external_gateway_switch.clone());
    let more = vpc.spec.extra_external_subnets.iter().map(|name| name.as_str().into());
    first.into_iter().chain(more).collect()
}

/// States the ports; what there is to say of them.
pub(super) fn rows(view: &dyn View, router: &Arc<str>, vpc: &VpcView, facts: &mut Facts) -> Outcome {
    let mut outcome = Outcome::default();
    let wanted = wants(view, router, vpc);
    if wanted.is_empty() {
        if vpc.spec.enable_bfd && !vpc.deleting {
            outcome.lacks.push("enableBfd: there is no external network; set enableExternal".into());
        }
        return outcome;
    }
    let hosts = match gateways(view, router) {
        Ok(hosts) => hosts,
        Err(problem) => {
            outcome.lacks.push(problem);
            Vec::new()
        }
    };
    let default = *router == view.config().cluster_router;
    let mut kept = false;
    for name in &wanted {
        match connect(view, router, vpc, name, &hosts, facts) {
            Ok(problem) => {
                outcome.connected.insert(name.clone());
                outcome.lacks.extend(problem);
                if vpc.spec.enable_bfd && !default {
                    sessions(view, router, name, facts, &mut outcome);
                }
            }
            Err(problem) => {
                kept = true;
                keep(router, name, facts);
                outcome.lacks.extend(problem);
            }
        }
    }
    if vpc.spec.enable_bfd && kept {
        facts.keeps.push(Keep::Marked(Table::StaticRoute, "vendor", keys::VENDOR.into()));
    }
    if vpc.spec.enable_bfd && default {
        outcome
            .notes
            .push("enableBfd has no effect in the default VPC, whose pods leave by their nodes".into());
    }
    outcome
}

/// The router's port in one network. `Ok` with what is wrong beside; `Err` where it can't be
/// made (`None`: its OvnEip is on its way).
fn connect(
    view: &dyn View,
    router: &Arc<str>,
    vpc: &VpcView,
    name: &Arc<str>,
    hosts: &[Arc<str>],
    facts: &mut Facts,
) -> Result<Option<String>, Option<String>> {
    let external = network(view, name).map_err(Some)?;
    let port = names::router_port(router, name);
    create(router, vpc, name, &port, facts);
    let lease = address(view, name, &port)?;
    let nets = net::parse_dual_cidrs(&external.spec.cidr_block).unwrap_or_default();
    let Some(first) = hosts.first() else { return Err(None) };
    // Kube-OVN's ConfigMap makes such rows of the default VPC too.
    let own = *router == view.config().cluster_router && *name == view.config().external_gateway_switch;
    let mark = own.then_some(rows::OF_EXTERNAL);
    let ids = |first: (&'static str, &str)| {
        [Some(first), mark].into_iter().flatten().map(|(k, v)| (k, v.to_owned())).collect::<Vec<_>>()
    };
    let (of_router, of_switch) = (ids(("lr", router)), ids(("ls", name)));
    let ips = net::DualIps { v4: lease.v4, v6: lease.v6 };
    rows::named(Table::LogicalRouterPort, &port, RowKey::new(Table::LogicalRouter, router.clone()), "ports")
        .whole("networks", Value::strings(ips.with_prefix(&nets)))
        .whole("mac", Value::string(lease.mac.clone()))
        .ids(&of_router.iter().map(|(k, v)| (*k, &**v)).collect::<Vec<_>>())
        .add(facts);
    let switch = RowKey::new(Table::LogicalSwitch, name.clone());
    rows::named(Table::LogicalSwitchPort, &names::switch_port(name, router), switch, "ports")
        .whole("type", Value::string("router"))
        .whole("addresses", Value::strings(["router"]))
        .keys("options", [("router-port", &*port)])
        .ids(&of_switch.iter().map(|(k, v)| (*k, &**v)).collect::<Vec<_>>())
        .add(facts);
    let standing = view.standing(&port, first);
    for (index, chassis) in hosts.iter().enumerate() {
        let key = rows::gateway_chassis_key(&port, chassis);
        let place = i64::try_from(index).unwrap_or(FIRST);
        let priority = match &standing {
            Standing::Up if index == 0 => RAISED,
            Standing::Down | Standing::Turn(_) if index == 0 => LOWERED,
            Standing::Turn(turn) if turn == chassis => TURN,
            _ => (FIRST - place).max(0),
        };
        rows::named(
            Table::GatewayChassis,
            &key,
            RowKey::new(Table::LogicalRouterPort, &*port),
            "gateway_chassis",
        )
        .whole("chassis_name", Value::string(chassis.clone()))
        .whole("priority", Value::integer(priority))
        .add(facts);
    }
    let problem = subnet::network_problem(view, &external.spec);
    Ok(problem.map(|problem| format!("Subnet {name}: {problem}")))
}

/// The Subnet of an external network, or why it is none.
fn network(view: &dyn View, name: &Arc<str>) -> Result<Arc<SubnetView>, String> {
    let whence =
        if *name == view.config().external_gateway_switch { " (flag --external-gateway-switch)" } else { "" };
    let Some(subnet) = view.subnet(name) else {
        return Err(format!("there is no Subnet {name}{whence}; create it, or name another one"));
    };
    if !subnet.external {
        return Err(format!("Subnet {name}{whence} is no external network: {EXTERNAL_TAKES}"));
    }
    match &subnet.invalid {
        Some((_, message)) => Err(format!("Subnet {name} can't be used: {message}")),
        None => Ok(subnet),
    }
}

/// The OvnEip is there; what it says is its owner's from then on.
fn create(router: &Arc<str>, vpc: &VpcView, name: &Arc<str>, eip: &str, facts: &mut Facts) {
    let owner =
        json!([{ "apiVersion": crds::API_VERSION, "kind": "Vpc", "name": &**router, "uid": &*vpc.uid }]);
    let body = json!({
        "apiVersion": crds::API_VERSION,
        "kind": "OvnEip",
        "metadata": { "name": eip, "finalizers": [keys::FINALIZER], "ownerReferences": owner },
        "spec": { "externalSubnet": &**name, "type": EipType::RouterPort.name() },
    });
    let object = ObjectRef::cluster(Kind::OvnEip, eip);
    facts.kube.push(KubeFact { object, uid: None, gate: Gate::Now, fields: Fields::Created(body) });
}

/// The addresses of the port.
fn address(view: &dyn View, name: &Arc<str>, eip: &str) -> Result<Arc<Lease>, Option<String>> {
    let Some(found) = view.ovn_eip(eip) else { return Err(None) };
    let is = |what: &str| {
        Some(format!(
            "OvnEip {eip}, whose address is that of the port in Subnet {name}, is {what}; delete it, or give it \
            type lrp and externalSubnet {name}"
        ))
    };
    if found.kind != Some(EipType::RouterPort) {
        return Err(is(&format!("of type {}", found.kind.map_or("unknown", EipType::name))));
    }
    if found.subnet != *name {
        return Err(is(&format!("of Subnet {}", found.subnet)));
    }
    match (&found.lease, view.lease(&found.port)) {
        (Some(lease), _) => Ok(lease.clone()),
        (None, LeaseState::Refused(_, message)) => {
            Err(Some(format!("OvnEip {eip} has no address: {message}")))
        }
        (None, _) => Err(None),
    }
}

/// The chassis that host the router's ports, the first of which serves. Each VPC has an
/// order of its own, so that not all are on one node.
fn gateways(view: &dyn View, router: &Arc<str>) -> Result<Vec<Arc<str>>, String> {
    let chosen = view.selected_nodes(&Selecting::External);
    if chosen.is_empty() {
        return Err(format!("no node has label {}=true; label the gateway nodes", keys::EXTERNAL_GW_LABEL));
    }
    let mut known = BTreeSet::new();
    let chassis = chosen.iter().filter_map(|node| view.node(node)?.chassis.clone());
    // Two nodes that name one chassis are one host.
    let mut hosts: Vec<Arc<str>> = chassis.filter(|chassis| known.insert(chassis.clone())).collect();
    if hosts.is_empty() {
        return Err(format!(
            "gateway nodes {} have no chassis yet; see that kube-ovn-cni runs there",
            chosen.join(", ")
        ));
    }
    if *router != view.config().cluster_router {
        hosts.sort_by_cached_key(|chassis| Sha256::digest(format!("{router}{chassis}").as_bytes()).to_vec());
    }
    Ok(hosts)
}

/// Sessions to the ports of nodes, and routes through those that answer.
fn sessions(view: &dyn View, router: &Arc<str>, name: &Arc<str>, facts: &mut Facts, outcome: &mut Outcome) {
    let port = names::router_port(router, name);
    let config = view.config();
    let peers = view.peers(name);
    match peers.len() {
        0 => {
            outcome.lacks.push(format!(
                "enableBfd: no OvnEip of type lsp in Subnet {name} is ready; create one for each gateway node, with the \
                 node's name"
            ));
            return;
        }
        1 => outcome.notes.push(format!(
            "enableBfd: {} is the only ready OvnEip of type lsp in Subnet {name}, so nothing takes over from it; create \
             one for another node",
            peers.first().map_or("", |peer| &peer.port)
        )),
        _ => {}
    }
    outcome.bfd = true;
    let mut next = Vec::new();
    for ip in peers.iter().flat_map(|peer| rows::addresses(peer)) {
        let key = RowKey::new(Table::Bfd, rows::bfd_key(&port, &ip.to_string()));
        rows::top(key.clone())
            .whole("logical_port", Value::string(&*port))
            .whole("dst_ip", Value::string(ip.to_string()))
            .whole("min_tx", Value::optional(Some(i64::from(config.bfd_min_tx))))
            .whole("min_rx", Value::optional(Some(i64::from(config.bfd_min_rx))))
            .whole("detect_mult", Value::optional(Some(i64::from(config.bfd_detect_mult))))
            .add(facts);
        next.push((ip, key));
    }
    let subnets = view.vpc_subnets(router);
    let all: Vec<_> = subnets.iter().filter_map(|name| Some((name, view.subnet(name)?))).collect();
    let served = |subnet: &SubnetView| subnet.supported && subnet.invalid.is_none() && subnet.is_ovn();
    let blocks = |subnet: &SubnetView| net::parse_dual_cidrs(&subnet.spec.cidr_block).unwrap_or_default();
    for (subnet, view) in all.iter().filter(|(_, view)| served(view)) {
        if !view.spec.enable_ecmp && !config.enable_ecmp {
            continue;
        }
        for block in blocks(view).iter() {
            for (ip, session) in next.iter().filter(|(ip, _)| ip.is_ipv4() == block.addr().is_ipv4()) {
                outcome.routes.push(Made {
                    table: view.spec.route_table.clone(),
                    prefix: block.to_string(),
                    nexthop: *ip,
                    bfd: session.clone(),
                });
            }
            let shorter = all.iter().find(|(other, of)| {
                other != subnet
                    && served(of)
                    && blocks(of).iter().any(|net| {
                        net.addr().is_ipv4() == block.addr().is_ipv4()
                            && net.prefix_len() < block.prefix_len()
                    })
            });
            if let Some((other, _)) = shorter {
                outcome.notes.push(format!(
                    "Subnet {subnet}: what it sends to Subnet {other}, whose block has a shorter prefix, leaves by the \
                     external network too, since OVN prefers longer prefixes, of sources too; give both blocks one length"
                ));
            }
        }
    }
    if let Some(external) = view.subnet(name) {
        outcome.gateways.extend(net::parse_dual_ips(&external.spec.gateway).unwrap_or_default().iter());
    }
}

/// What can't be made now stays as it is.
fn keep(router: &str, name: &str, facts: &mut Facts) {
    facts.keeps.extend([
        Keep::Row(RowKey::new(Table::LogicalRouterPort, names::router_port(router, name))),
        Keep::Row(RowKey::new(Table::LogicalSwitchPort, names::switch_port(name, router))),
    ]);
}
