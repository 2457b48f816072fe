//! The wanted rules of one family (node contract §4.3, §4.4), as data.
//!
//! Where it differs from Kube-OVN, on purpose:
//! - the rules that Kube-OVN puts straight into the built-in filter chains live in chains of ours (`OVN-INPUT`,
//!   `OVN-FORWARD`, `OVN-OUTPUT`), so that they have an order, change atomically and go without a trace;
//! - pods are refused the ports of the databases, of the metrics and of the tunnels on every node. A pod reaches a remote
//!   node through its own node, which gives the packet its own address on the way out: the remote node can't tell, so
//!   its own node refuses, in FORWARD, before the translation;
//! - a NAT policy is first-match, as documented, since a rule that matched ends its chain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::inputs::{Inputs, SubnetInput};
use super::sets::{overlay, policy_sets, set_name};
use crate::firewall::{Family, Jump, Rule, Table, WantedTable};

const NAT: &str = "0x90001/0x90001";
const FORWARD: &str = "0x90002/0x90002";
const MASQUERADE: &str = "0x4000/0x4000";
const LOCAL_ONLY: &str = "0x80000/0x80000";
const CLEAR: &str = "-j MARK --set-xmark 0x0/0xffffffff";

/// `-m multiport` takes fifteen ports; a range counts twice.
const MULTIPORT: usize = 15;

/// All chains we ever make. Other people's names start with `OVN-` too.
const CHAINS: [&str; 10] = [
    "OVN-PREROUTING",
    "OVN-INPUT",
    "OVN-FORWARD",
    "OVN-OUTPUT",
    "OVN-POSTROUTING",
    "OVN-MASQUERADE",
    "OVN-NAT-POLICY",
    "OVN-NAT-PSUBNET-*",
    EGRESS_COUNTERS,
    INGRESS_COUNTERS,
];

/// Chains that count what leaves and enters each subnet over this node.
pub(super) const EGRESS_COUNTERS: &str = "OVN-SUBNET-EGRESS";
/// The other direction.
pub(super) const INGRESS_COUNTERS: &str = "OVN-SUBNET-INGRESS";
/// What a counter's comment begins with; the subnet's name follows.
pub(super) const COUNTER: &str = "ovn-subnet-gateway,";
/// Longest comment that the packet filter takes.
const COMMENT: usize = 255;

/// All tables of a family.
pub(super) fn wanted(inputs: &Inputs, family: Family) -> BTreeMap<Table, WantedTable> {
    let names = Names::new(family);
    BTreeMap::from([
        (Table::Nat, nat(inputs, family, &names)),
        (Table::Filter, filter(inputs, family, &names)),
        (Table::Mangle, mangle(inputs, family, &names)),
    ])
}

/// Tables that want nothing of ours: what uninstalling and the unused kind of iptables get.
pub(super) fn unwanted(family: Family) -> BTreeMap<Table, WantedTable> {
    let names = Names::new(family);
    [Table::Nat, Table::Filter, Table::Mangle]
        .into_iter()
        .map(|table| {
            let (obsolete, obsolete_counter) = match table {
                Table::Filter => (obsolete_filter(family, &names), Some(COUNTER.to_owned())),
                Table::Nat | Table::Mangle => (BTreeMap::new(), None),
            };
            let retired = CHAINS.iter().map(|chain| (*chain).to_owned()).collect();
            (table, WantedTable { obsolete, obsolete_counter, retired, ..WantedTable::default() })
        })
        .collect()
}

/// Match expressions on our sets.
struct Names {
    services: String,
    subnets: String,
    nat: String,
    nat_policy: String,
    distributed: String,
    other_node: String,
    other_node_addr: String,
    underlay_pods: String,
    underlay_hosts: String,
}

impl Names {
    fn new(family: Family) -> Self {
        let name = |id: &str| set_name(family, id);
        Self {
            services: name("services"),
            subnets: name("subnets"),
            nat: name("subnets-nat"),
            nat_policy: name("subnets-nat-policy"),
            distributed: name("subnets-distributed-gw"),
            other_node: name("other-node"),
            other_node_addr: name("other-node-addr"),
            underlay_pods: name("underlay-pods"),
            underlay_hosts: name("underlay-hosts"),
        }
    }
}

fn from(set: &str) -> String {
    format!("-m set --match-set {set} src")
}

fn to(set: &str) -> String {
    format!("-m set --match-set {set} dst")
}

fn not_from(set: &str) -> String {
    format!("-m set ! --match-set {set} src")
}

fn not_to(set: &str) -> String {
    format!("-m set ! --match-set {set} dst")
}

fn marked(mark: &str) -> String {
    format!("-m mark --mark {mark}")
}

fn set_mark(mark: &str) -> String {
    format!("-j MARK --set-xmark {mark}")
}

fn rule(parts: &[&str]) -> Rule {
    Rule::new(parts.join(" "))
}

fn jump(from: &str, to: &str, kind: &str) -> Jump {
    Jump { from: from.into(), to: to.into(), comment: format!("kube-ovn {kind} rules"), before: None }
}

/// A comment that ends with a subnet's name, or with what fits of it.
fn comment(begin: &str, subnet: &str) -> String {
    begin.chars().chain(subnet.chars()).take(COMMENT).collect()
}

fn nat(inputs: &Inputs, family: Family, names: &Names) -> WantedTable {
    let random = if inputs.config.random_fully { " --random-fully" } else { "" };
    let mut chains = BTreeMap::from([
        ("OVN-PREROUTING".to_owned(), nat_prerouting(inputs, family, names)),
        ("OVN-POSTROUTING".to_owned(), nat_postrouting(inputs, family, names, random)),
        ("OVN-MASQUERADE".to_owned(), vec![Rule::new(CLEAR), Rule::new(format!("-j MASQUERADE{random}"))]),
    ]);
    nat_policy(inputs, family, &mut chains);
    let prerouting =
        Jump { before: Some("KUBE-SERVICES".into()), ..jump("PREROUTING", "OVN-PREROUTING", "prerouting") };
    WantedTable {
        chains,
        jumps: vec![prerouting, jump("POSTROUTING", "OVN-POSTROUTING", "postrouting")],
        retired: BTreeSet::from(["OVN-NAT-PSUBNET-*".to_owned()]),
        ..WantedTable::default()
    }
}

fn nat_prerouting(inputs: &Inputs, family: Family, names: &Names) -> Vec<Rule> {
    let proxy_set = |v4: &str, v6: &str| {
        let name = if family == Family::V4 { v4 } else { v6 };
        inputs.proxy_sets.contains(name).then(|| name.to_owned())
    };
    // Pod to Service through the node: the answer has to come back through it.
    let service = match proxy_set("KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP") {
        Some(set) => format!("-m set --match-set {set} dst,dst"),
        None => to(&names.services),
    };
    let mut rules = vec![rule(&["-i ovn0", &from(&names.subnets), &service, &set_mark(MASQUERADE)])];
    if inputs.node_ip(family).is_some() {
        for protocol in ["tcp", "udp"] {
            let upper = protocol.to_uppercase();
            let set = proxy_set(
                &format!("KUBE-NODE-PORT-LOCAL-{upper}"),
                &format!("KUBE-6-NODE-PORT-LOCAL-{upper}"),
            );
            if let Some(set) = set {
                let protocol = format!("-p {protocol}");
                let port = format!("-m set --match-set {set} dst");
                rules.push(rule(&[&protocol, "-m addrtype --dst-type LOCAL", &port, &set_mark(LOCAL_ONLY)]));
                rules.push(rule(&[&protocol, &from(&names.other_node), &port, &set_mark(MASQUERADE)]));
            }
        }
    }
    rules
}

fn nat_postrouting(inputs: &Inputs, family: Family, names: &Names, random: &str) -> Vec<Rule> {
    let masquerade = "-j OVN-MASQUERADE";
    let mut rules = Vec::new();
    if let Some(ip) = inputs.node_ip(family) {
        let snat = format!("-j SNAT --to-source {ip}{random}");
        rules.push(rule(&[&from(&names.services), &to(&names.subnets), &marked(MASQUERADE), &snat]));
    }
    rules.extend([
        rule(&[&marked(MASQUERADE), masquerade]),
        rule(&[&from(&names.subnets), &to(&names.subnets), masquerade]),
        rule(&[&marked(LOCAL_ONLY), &to(&names.distributed), "-j RETURN"]),
        rule(&[&marked(LOCAL_ONLY), masquerade]),
        // Answers to connections that came in routed: translating them would break them.
        Rule::new("-p tcp -m tcp --tcp-flags SYN NONE -m conntrack --ctstate NEW -j RETURN"),
        rule(&[&not_from(&names.subnets), &not_from(&names.other_node), &to(&names.nat), "-j RETURN"]),
        rule(&[&from(&names.nat_policy), &not_to(&names.subnets), "-j OVN-NAT-POLICY"]),
        rule(&[&marked(NAT), masquerade]),
        rule(&[&marked(FORWARD), "-j RETURN"]),
    ]);
    for (cidr, ip) in designated(inputs, family) {
        let snat = format!("-j SNAT --to-source {ip}{random}");
        rules.push(rule(&[&format!("-s {cidr}"), &not_to(&names.subnets), &snat]));
    }
    rules.push(rule(&[&from(&names.nat), &not_to(&names.subnets), masquerade]));
    rules
}

/// Prefixes whose traffic leaves with an address of its own on this node.
fn designated(inputs: &Inputs, family: Family) -> Vec<(String, IpAddr)> {
    overlay(inputs)
        .filter(|subnet| !subnet.deleting && subnet.nat_outgoing && !subnet.distributed)
        .filter_map(|subnet| {
            let ip = subnet.egress_ips.iter().find(|ip| Family::of(ip) == family)?;
            Some((cidr_of(subnet, family)?, *ip))
        })
        .collect()
}

fn cidr_of(subnet: &SubnetInput, family: Family) -> Option<String> {
    subnet.cidrs.iter().find(|cidr| Family::of(&cidr.addr()) == family).map(ToString::to_string)
}

/// One chain that finds the subnet, and one per subnet with its rules.
fn nat_policy(inputs: &Inputs, family: Family, chains: &mut BTreeMap<String, Vec<Rule>>) {
    let mut by_name: Vec<&SubnetInput> = overlay(inputs).filter(|subnet| subnet.has_nat_policy()).collect();
    by_name.sort_by(|a, b| a.name.cmp(&b.name));
    let mut dispatch = Vec::new();
    for subnet in by_name {
        let (Some(cidr), Some(short)) = (cidr_of(subnet, family), short_uid(&subnet.uid)) else { continue };
        let chain = format!("OVN-NAT-PSUBNET-{short}");
        let jump = Rule::jump(&comment("natPolicySubnet-", &subnet.name), &chain);
        dispatch.push(rule(&[&format!("-s {cidr}"), jump.as_str()]));
        let mut rules = Vec::new();
        for policy in &subnet.nat_policy {
            let of_family = |nets: &[ipnet::IpNet]| nets.iter().any(|net| Family::of(&net.addr()) == family);
            let (sources, destinations) = policy_sets(family, &policy.id);
            let mut matches = Vec::new();
            for (nets, expression) in
                [(&policy.sources, from(&sources)), (&policy.destinations, to(&destinations))]
            {
                if of_family(nets) {
                    matches.push(expression);
                } else if !nets.is_empty() {
                    // Only addresses of the other family: the rule says nothing about this one.
                    matches.clear();
                    break;
                }
            }
            if matches.is_empty() || policy.id.is_empty() {
                continue;
            }
            let matches = matches.join(" ");
            rules.push(rule(&[&matches, &set_mark(if policy.translate { NAT } else { FORWARD })]));
            rules.push(rule(&[&matches, "-j RETURN"]));
        }
        chains.insert(chain, rules);
    }
    chains.insert("OVN-NAT-POLICY".into(), dispatch);
}

/// The last twelve characters of a UID; one that is shorter or odd names no chain.
fn short_uid(uid: &str) -> Option<&str> {
    let short = uid.get(uid.len().checked_sub(12)?..)?;
    short.chars().all(|c| c.is_ascii_alphanumeric()).then_some(short)
}

fn filter(inputs: &Inputs, family: Family, names: &Names) -> WantedTable {
    let accepts: Vec<Rule> = accepts(names);
    // What comes by ovn0 comes from pods, whatever source it claims; what comes by another link, by its source. Not from
    // this node to itself over the loopback link, even with its address in the join subnet as source.
    let mut input = refusals(inputs, family, "-i ovn0", "");
    // A Subnet whose prefix has nodes' addresses in it (an underlay one without its vlan) must not cut their tunnels.
    let pods = format!("{} {}", from(&names.subnets), not_from(&names.other_node_addr));
    input.extend(refusals(inputs, family, "! -i lo", &pods));
    // Underlay pods come by the physical network, with their own source.
    let underlay = format!("{} {}", from(&names.underlay_pods), not_from(&names.underlay_hosts));
    if !inputs.underlay.pods.is_empty() {
        input.extend(refusals(inputs, family, "! -i lo", &underlay));
    }
    let other_nodes = to(&names.other_node_addr);
    let (mut forward, counters) = count(inputs, family);
    forward.extend(refusals(inputs, family, "-i ovn0", &other_nodes));
    forward.extend(refusals(inputs, family, "", &format!("{pods} {other_nodes}")));
    let mut output = Vec::new();
    if ipvs(inputs, family) {
        // A Service without end points: ipvs would hand the packet to the host's own stack or let it leave.
        let reject = no_end_points(family, names);
        let reject = rule(&["-p tcp", reject.as_str()]);
        input.push(reject.clone());
        output.push(reject);
    }
    input.extend(accepts.clone());
    forward.extend(accepts);
    // The kernel copies the inner packet's mark to the tunnel packet, which would then be masqueraded.
    for port in ["6081", "4789"] {
        output.push(Rule::new(format!("-p udp -m udp --dport {port} {CLEAR}")));
    }
    let mut chains = BTreeMap::from([
        ("OVN-INPUT".to_owned(), input),
        ("OVN-FORWARD".to_owned(), forward),
        ("OVN-OUTPUT".to_owned(), output),
    ]);
    chains.extend(counters);
    WantedTable {
        chains,
        jumps: vec![
            jump("INPUT", "OVN-INPUT", "input"),
            jump("FORWARD", "OVN-FORWARD", "forward"),
            jump("OUTPUT", "OVN-OUTPUT", "output"),
        ],
        obsolete: obsolete_filter(family, names),
        obsolete_counter: Some(COUNTER.to_owned()),
        retired: BTreeSet::from([EGRESS_COUNTERS.to_owned(), INGRESS_COUNTERS.to_owned()]),
    }
}

/// Counters of what passes the node between each subnet and the world, and the jumps to them. Only what goes through
/// `ovn0` looks at them, and no further than its own subnet.
fn count(inputs: &Inputs, family: Family) -> (Vec<Rule>, BTreeMap<String, Vec<Rule>>) {
    let mut subnets: Vec<(&str, String)> = overlay(inputs)
        .filter(|_| inputs.config.counters)
        .filter_map(|subnet| Some((subnet.name.as_str(), cidr_of(subnet, family)?)))
        .collect();
    subnets.sort();
    if subnets.is_empty() {
        return (Vec::new(), BTreeMap::new());
    }
    let chain = |side: &str| -> Vec<Rule> {
        let counter = |(name, cidr): &(&str, String)| {
            let jump = Rule::jump(&comment(COUNTER, name), "RETURN");
            rule(&[&format!("{side} {cidr}"), jump.as_str()])
        };
        subnets.iter().map(counter).collect()
    };
    let jumps = vec![rule(&["-i ovn0 -j", EGRESS_COUNTERS]), rule(&["-o ovn0 -j", INGRESS_COUNTERS])];
    let chains = [(EGRESS_COUNTERS, chain("-s")), (INGRESS_COUNTERS, chain("-d"))];
    (jumps, chains.into_iter().map(|(name, rules)| (name.to_owned(), rules)).collect())
}

fn ipvs(inputs: &Inputs, family: Family) -> bool {
    inputs.proxy_sets.contains(if family == Family::V4 { "KUBE-CLUSTER-IP" } else { "KUBE-6-CLUSTER-IP" })
}

fn accepts(names: &Names) -> Vec<Rule> {
    [from(&names.subnets), to(&names.subnets), from(&names.services), to(&names.services)]
        .iter()
        .map(|expression| rule(&[expression, "-j ACCEPT"]))
        .collect()
}

/// Refuses new connections to Services that nobody has taken on.
fn no_end_points(family: Family, names: &Names) -> Rule {
    rule(&[
        "-m mark ! --mark 0x4000/0x4000",
        &to(&names.services),
        "-m conntrack --ctstate NEW",
        &reject(family, "udp"),
    ])
}

/// What Kube-OVN has, or had in an older version, in the built-in chains for the same purposes.
fn obsolete_filter(family: Family, names: &Names) -> BTreeMap<String, BTreeSet<Rule>> {
    let accepts: BTreeSet<Rule> = accepts(names).into_iter().collect();
    let any = no_end_points(family, names);
    let refusals = [rule(&["-p tcp", any.as_str()]), any];
    let mut output: BTreeSet<Rule> = ["6081", "4789"]
        .iter()
        .map(|port| Rule::new(format!("-p udp -m udp --dport {port} {CLEAR}")))
        .collect();
    output.extend(refusals.clone());
    let mut input = accepts.clone();
    input.extend(refusals);
    BTreeMap::from([
        ("INPUT".to_owned(), input),
        ("FORWARD".to_owned(), accepts),
        ("OUTPUT".to_owned(), output),
    ])
}

fn reject(family: Family, protocol: &str) -> String {
    let with = match (protocol, family) {
        ("tcp", _) => "tcp-reset",
        (_, Family::V4) => "icmp-port-unreachable",
        (_, Family::V6) => "icmp6-port-unreachable",
    };
    format!("-j REJECT --reject-with {with}")
}

/// Rules that refuse the ports, the cheapest matches first: nearly every packet is for another one.
fn refusals(inputs: &Inputs, family: Family, interface: &str, who: &str) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (protocol, ports) in [("tcp", &inputs.config.refused_tcp), ("udp", &inputs.config.refused_udp)] {
        for list in port_lists(ports) {
            let protocol_match = format!("-p {protocol}");
            let ports = format!("-m multiport --dports {list}");
            let reject = reject(family, protocol);
            let parts: Vec<&str> = [interface, &protocol_match, &ports, who, &reject]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect();
            rules.push(rule(&parts));
        }
    }
    rules
}

/// Ports and ranges as `-m multiport` wants them, as many lists as needed.
fn port_lists(ports: &[(u16, u16)]) -> Vec<String> {
    let mut lists: Vec<(usize, Vec<String>)> = Vec::new();
    for (first, last) in ports {
        let (weight, text) =
            if first == last { (1, first.to_string()) } else { (2, format!("{first}:{last}")) };
        match lists.last_mut() {
            Some((used, list)) if *used + weight <= MULTIPORT => {
                *used += weight;
                list.push(text);
            }
            _ => lists.push((weight, vec![text])),
        }
    }
    lists.into_iter().map(|(_, list)| list.join(",")).collect()
}

fn mangle(inputs: &Inputs, family: Family, names: &Names) -> WantedTable {
    let mut rules = vec![rule(&[
        "-p tcp",
        &from(&names.subnets),
        "-m tcp --tcp-flags RST RST -m conntrack --ctstate INVALID -j DROP",
    ])];
    for (cidr, _) in designated(inputs, family) {
        // Without a SYN it would enter conntrack untranslated and stay so.
        rules.push(rule(&[
            &format!("-s {cidr}"),
            "-p tcp",
            &not_to(&names.subnets),
            "-m tcp --tcp-flags SYN NONE -m conntrack --ctstate NEW -j DROP",
        ]));
    }
    if let Some(clamp) = &inputs.config.clamp {
        // The headers of IP and TCP.
        let headers = if family == Family::V4 { 40 } else { 60 };
        let size = clamp.mtu.saturating_sub(headers);
        rules.push(rule(&[
            &format!("-o {}", clamp.link),
            "-p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS",
            &format!("--set-mss {size}"),
        ]));
    }
    WantedTable {
        chains: BTreeMap::from([("OVN-POSTROUTING".to_owned(), rules)]),
        jumps: vec![jump("POSTROUTING", "OVN-POSTROUTING", "postrouting")],
        ..WantedTable::default()
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
