//! Subnets beside each other: who collides with whom, and who wins.
//!
//! Flows in: subnets, VPCs, node addresses, and what was decided before. Flows out:
//! a projection per subnet. A newcomer never switches off a network that is in use:
//! of two that collide the one served already wins, then the older one, then the
//! smaller UID. The loser names the winner and heals when that one goes, since
//! everything is decided anew whenever one of the inputs changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crds::net::{self, DualNets};
use crds::{SubnetSpec, names};
use ipnet::IpNet;

use super::subnets::{self, Invalid, REASON};
use crate::io::Config;
use crate::objects::Subnet;
use crate::view::{SubnetView, VpcView};

type ByName<T> = BTreeMap<Arc<str>, T>;

/// What subnets are judged by.
pub(super) struct Surroundings<'a> {
    pub config: &'a Config,
    pub subnets: &'a ByName<Arc<Subnet>>,
    /// Of a Vpc by name.
    pub vpc: &'a dyn Fn(&str) -> Option<Arc<VpcView>>,
    /// InternalIPs of nodes, with their nodes.
    pub nodes: &'a BTreeMap<IpAddr, Arc<str>>,
    /// Names of all nodes.
    pub node_names: &'a BTreeSet<Arc<str>>,
    /// What was decided last.
    pub before: &'a ByName<Arc<SubnetView>>,
    /// The VPC in which a subnet is that names another one, if that is so: a VPC whose status lists it,
    /// while it has addresses in use (contract §1.1: the VPC of a subnet is immutable).
    pub stays_in: &'a dyn Fn(&Subnet, &str) -> Option<Arc<str>>,
    /// The provider that a subnet of OVN keeps which names one that is not OVN's, if that is so: while
    /// it has addresses in use.
    pub stays_ours: &'a dyn Fn(&Subnet) -> Option<Arc<str>>,
    /// Subnets that are named as external networks.
    pub externals: &'a ByName<usize>,
}

/// Where addresses of two subnets can meet: a VPC and a vlan (contract §8.9).
type Place = (String, String);

/// What winners hold already.
#[derive(Default)]
struct Taken {
    nets: BTreeMap<Place, Vec<(DualNets, Arc<str>)>>,
    /// Port groups of nodes begin with the subnet's name, dashes as dots.
    groups: BTreeMap<String, Arc<str>>,
    /// Ports of routers and of switches to routers, by name: those of `a-b` in VPC `c` and
    /// of `a` in `b-c` have one.
    ports: BTreeMap<String, Arc<str>>,
    tables: BTreeMap<(Place, u32), Arc<str>>,
}

/// All subnets' projections.
pub(super) fn project(around: &Surroundings<'_>) -> ByName<SubnetView> {
    let Surroundings { config, subnets, before, .. } = around;
    let mut contestants: Vec<_> = subnets
        .values()
        .map(|subnet| {
            let name = &subnet.meta.name;
            // One that becomes another CNI's would lose its switch.
            let ours = (around.stays_ours)(subnet);
            let given = ours.as_ref().map(|provider| SubnetSpec { provider: provider.to_string(), ..subnet.spec.clone() });
            let (mut spec, invalid) = subnets::normalise(config, name, given.as_ref().unwrap_or(&subnet.spec));
            let ours = ours.map(|provider| {
                let asked = &subnet.spec.provider;
                format!(
                    "provider is {asked}, but it has addresses in use in OVN and stays there; write {provider}, or delete \
                     what uses them first"
                )
            });
            let stays = (around.stays_in)(subnet, &spec.vpc).map(|home| {
                let asked = std::mem::replace(&mut spec.vpc, home.to_string());
                format!(
                    "vpc is {asked}, but it has addresses in use in Vpc {home} and stays there; write that, or delete \
                     what uses them first"
                )
            });
            let stays = stays.or(ours);
            let old = before.get(name).filter(|old| old.invalid.is_none() && old.uid == subnet.meta.uid);
            let known = old.is_some_and(|old| {
                (&old.spec.cidr_block, &old.spec.vpc, &old.spec.vlan)
                    == (&spec.cidr_block, &spec.vpc, &spec.vlan)
            });
            let validated = is_validated(subnet);
            let fixed = *name == config.node_switch || *name == config.default_ls;
            let age = (subnet.meta.created_at, subnet.meta.uid.clone(), name.clone());
            ((!fixed, !validated, !known, age), subnet, spec, (invalid, stays))
        })
        .collect();
    contestants.sort_by(|a, b| a.0.cmp(&b.0));
    let mut taken = Taken::default();
    let mut views = BTreeMap::new();
    for ((_, unvalidated, unknown, _), subnet, spec, (mut invalid, stays)) in contestants {
        let name = &subnet.meta.name;
        let ovn = crate::view::is_ovn_provider(&spec.provider);
        // Whoever has given addresses was served, whatever is wrong with it by now.
        let status = &subnet.status;
        let used = status.v4_using_ips.get() > 0 || status.v6_using_ips.get() > 0;
        let served = !unvalidated || !unknown || used;
        if invalid.is_none() && ovn {
            let problem = collision(around, &taken, name, &spec, served);
            invalid =
                problem.map(|text| -> Invalid { (REASON.into(), format!("subnet {name}: {text}").into()) });
        }
        let mut problem = invalid.is_none().then(|| taken.table(name, &spec)).flatten();
        if invalid.is_none() && ovn {
            if overlay_of_default(config, &spec) {
                problem = problem.or_else(|| taken.shared_group(name, around.node_names));
            }
            taken.take(config, name, &spec);
            problem = stays.clone().or(problem);
        }
        let external = around.externals.contains_key(name) && subnets::external(config, name, &spec);
        views.insert(
            name.clone(),
            SubnetView {
                uid: subnet.meta.uid.clone(),
                deleting: subnet.meta.deleting_at.is_some(),
                supported: subnets::supported(&spec) && !external,
                external,
                spec: Arc::new(spec),
                invalid,
                problem: problem.map(|text| format!("subnet {name}: {text}").into()),
                stays: stays.is_some(),
            },
        );
    }
    views
}

/// Its condition says that it was found good.
pub(super) fn is_validated(subnet: &Subnet) -> bool {
    subnet.status.conditions.iter().any(|c| c.r#type == "Validated" && c.status == "True")
}

fn place(spec: &crds::SubnetSpec) -> Place {
    (spec.vpc.clone(), spec.vlan.clone())
}

fn overlay_of_default(config: &Config, spec: &crds::SubnetSpec) -> bool {
    *spec.vpc == *config.cluster_router && spec.vlan.is_empty()
}

/// With what the subnet collides, and the remedy. What came later than a served
/// subnet is at fault itself, so `served` ones are not judged by services and nodes.
fn collision(
    around: &Surroundings<'_>,
    taken: &Taken,
    name: &Arc<str>,
    spec: &crds::SubnetSpec,
    served: bool,
) -> Option<String> {
    let Surroundings { config, nodes, .. } = around;
    if *spec.vpc != *config.cluster_router {
        match (around.vpc)(&spec.vpc) {
            None => return Some(format!("there is no Vpc {}; create it, or name another one", spec.vpc)),
            Some(vpc) if vpc.mirrored => {
                return Some(format!(
                    "Vpc {} mirrors a router that is not ours; name another Vpc, or take the label off",
                    spec.vpc
                ));
            }
            Some(_) => {}
        }
    }
    for port in ports(name, spec) {
        if let Some(other) = taken.ports.get(&port) {
            return Some(format!(
                "its port to the router would have the name of that of subnet {other} ({port}); rename it"
            ));
        }
    }
    if !served
        && let Some(vpc) = (around.vpc)(&spec.vpc)
        && vpc.spec.vpc_peerings.iter().any(|peering| *peering.remote_vpc == **name)
    {
        let port = names::router_port(&spec.vpc, name);
        return Some(format!(
            "its port to the router would have the name of the one to Vpc {name}, of which Vpc {} is a peer ({port}); \
             rename it",
            spec.vpc
        ));
    }
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    if overlay_of_default(config, spec) {
        let group = names::dot_form(name);
        if group == "node" {
            return Some("port groups of nodes begin with `node`; give the subnet another name".into());
        }
        if let Some(other) = taken.groups.get(&group) {
            return Some(format!("its port groups would be those of subnet {other} ({group}.…); rename it"));
        }
        // A node that came later leads nobody's pods astray unnoticed: see below.
        if let Some(text) = taken.shared_group(name, around.node_names).filter(|_| !served) {
            return Some(text);
        }
        if !served {
            let services = net::parse_dual_cidrs(&config.service_cluster_ip_range).unwrap_or_default();
            if services.overlaps(&nets) {
                return Some(format!(
                    "cidrBlock {} overlaps the cluster's service range {services}; choose another block",
                    spec.cidr_block
                ));
            }
            if let Some((ip, node)) = nets.iter().find_map(|net| inside(nodes, &net)) {
                return Some(format!(
                    "address {ip} of node {node} is inside cidrBlock {}, so pods could not reach the node; choose \
                     another block",
                    spec.cidr_block
                ));
            }
        }
    }
    let others = taken.nets.get(&place(spec)).into_iter().flatten();
    let (_, other) = others.into_iter().find(|(other, _)| other.overlaps(&nets))?;
    Some(format!("cidrBlock {} overlaps that of subnet {other}; choose another block", spec.cidr_block))
}

/// The first node address inside a network.
fn inside<'a>(nodes: &'a BTreeMap<IpAddr, Arc<str>>, net: &IpNet) -> Option<(IpAddr, &'a Arc<str>)> {
    nodes.range(net.network()..=net.broadcast()).next().map(|(ip, node)| (*ip, node))
}

/// Ports between the subnet's switch and its router, by the names that OVN knows.
fn ports(name: &str, spec: &crds::SubnetSpec) -> [String; 2] {
    [names::router_port(&spec.vpc, name), names::switch_port(name, &spec.vpc)]
}

impl Taken {
    /// A port group of the subnet that something else has too: for subnets `a` and `a-b`, or `node-a`,
    /// names of nodes can make up the difference.
    fn shared_group(&self, name: &Arc<str>, nodes: &BTreeSet<Arc<str>>) -> Option<String> {
        let group = names::dot_form(name);
        let begins =
            |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'));
        let others = self.groups.iter().filter(|(other, _)| begins(other, &group) || begins(&group, other));
        let others = others.map(|(other, subnet)| (other.as_str(), Some(subnet)));
        let all = others.chain(begins(&group, "node").then_some(("node", None)));
        for (other, subnet) in all {
            let of = |begin: &str, node: &str| format!("{begin}.{}", names::dot_form(node));
            let theirs: BTreeMap<String, &Arc<str>> =
                nodes.iter().map(|node| (of(other, node), node)).collect();
            for own in nodes {
                let shared = of(&group, own);
                if let Some(node) = theirs.get(&shared) {
                    let whose = match subnet {
                        Some(subnet) => format!("of subnet {subnet} for node {node}"),
                        None => format!("of all pods on node {node}"),
                    };
                    return Some(format!(
                        "its port group for node {own} is that {whose} too ({shared}), so pods of one leave by the node \
                         of the other; give the subnet or the node another name"
                    ));
                }
            }
        }
        None
    }

    fn take(&mut self, config: &Config, name: &Arc<str>, spec: &crds::SubnetSpec) {
        let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
        self.nets.entry(place(spec)).or_default().push((nets, name.clone()));
        self.ports.extend(ports(name, spec).map(|port| (port, name.clone())));
        if overlay_of_default(config, spec) {
            self.groups.insert(names::dot_form(name), name.clone());
        }
    }

    /// Two subnets of one place may not use one routing table on nodes (contract §1.1).
    fn table(&mut self, name: &Arc<str>, spec: &crds::SubnetSpec) -> Option<String> {
        if spec.external_egress_gateway.is_empty() || spec.policy_routing_table_id == 0 {
            return None;
        }
        let table = spec.policy_routing_table_id;
        match self.tables.get(&(place(spec), table)) {
            Some(other) => Some(format!(
                "policyRoutingTableID {table} is that of subnet {other} too; choose another table"
            )),
            None => {
                self.tables.insert((place(spec), table), name.clone());
                None
            }
        }
    }
}
