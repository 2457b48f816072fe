//! A subnet that is an external network: a switch with a port to the wire. Its gateway is
//! a router outside of OVN; routers of ours come in by ports of their own (unit vpc).

use std::sync::Arc;

use crds::{SubnetSpec, names, net};
use ovsdb::Value;

use super::super::rows;
use super::{INVALID, status};
use crate::facts::{Facts, Fields, Gate, Keep, ObjectRef, RowKey, Table};
use crate::io::Config;
use crate::view::{SubnetView, Usage, View};

/// Reason of a subnet whose Vlan can't be used (contract §8.8).
const WRONG_VLAN: &str = "ValidateSubnetVlanFailed";

/// Where an external network is.
struct Wire {
    /// The physical network.
    network: Arc<str>,
    /// Its VLAN; `None` is untagged.
    tag: Option<i64>,
    /// What is wrong beside.
    problem: Option<String>,
}

/// Where an external network is; `Err` where there is no telling.
fn network(view: &dyn View, spec: &SubnetSpec) -> Result<Wire, String> {
    if spec.vlan.is_empty() {
        let config = view.config();
        let tag = Some(i64::from(config.external_gateway_vlan)).filter(|id| *id != 0);
        return Ok(Wire { network: config.external_gateway_net.clone(), tag, problem: None });
    }
    let name = &spec.vlan;
    let Some(vlan) = view.vlan(name) else {
        return Err(format!("there is no Vlan {name}; create it, or name another one"));
    };
    if let Some(other) = &vlan.conflict {
        return Err(format!(
            "Vlan {name} has id {} of ProviderNetwork {} as Vlan {other} does, which was first; give it another id",
            vlan.id, vlan.provider
        ));
    }
    if vlan.provider.is_empty() {
        return Err(format!("Vlan {name} names no provider; write the name of a ProviderNetwork"));
    }
    if !(0..=4095).contains(&vlan.id) {
        return Err(format!("Vlan {name}: id {} is no VLAN id; write 0 (untagged) to 4095", vlan.id));
    }
    let missing = view.provider_network(&vlan.provider).is_none();
    let problem = missing.then(|| {
        format!(
            "there is no ProviderNetwork {}, which Vlan {name} names, so no node reaches the network; create it",
            vlan.provider
        )
    });
    let tag = Some(i64::from(vlan.id)).filter(|id| *id != 0);
    Ok(Wire { network: vlan.provider.clone(), tag, problem })
}

/// What is wrong with where an external network is.
pub(crate) fn network_problem(view: &dyn View, spec: &SubnetSpec) -> Option<String> {
    network(view, spec).map_or_else(Some, |wire| wire.problem)
}

/// Marks of a subnet's rows: the switch of the flag may also follow from Kube-OVN's
/// ConfigMap, whose rows look the same.
pub(super) fn marks(config: &Config, name: &str) -> &'static [(&'static str, &'static str)] {
    if *name == *config.external_gateway_switch { &[rows::OF_EXTERNAL] } else { &[] }
}

pub(super) fn rows(view: &dyn View, name: &Arc<str>, spec: &SubnetSpec, facts: &mut Facts) {
    let marks = marks(view.config(), name);
    // What Kube-OVN has made for pods on an underlay.
    if !spec.vlan.is_empty() {
        let vips = spec.vips.iter().map(|vip| format!("{name}-vip-{}", vip.trim()));
        let ports = vips.chain([names::mcast_querier(name)]);
        facts.keeps.extend(ports.map(|port| Keep::Row(RowKey::new(Table::LogicalSwitchPort, port))));
        facts.keeps.extend([
            Keep::Marked(Table::PortGroup, "subnet", name.clone()),
            Keep::Marked(Table::Acl, "parent", name.clone()),
            Keep::Marked(Table::DhcpOptions, "ls", name.clone()),
        ]);
    }
    let switch = RowKey::new(Table::LogicalSwitch, name.clone());
    let port = names::localnet_port(name);
    rows::root(Table::LogicalSwitch, name).ids(marks).add(facts);
    let Ok(wire) = network(view, spec) else {
        facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
        return;
    };
    let nets = net::parse_dual_cidrs(&spec.cidr_block).unwrap_or_default();
    let (v4, v6) = (nets.v4.map(|net| net.to_string()), nets.v6.map(|net| net.to_string()));
    let blocks = [("ipv4_network", &v4), ("ipv6_network", &v6)];
    let blocks = blocks.iter().filter_map(|(key, net)| Some((*key, net.as_deref()?)));
    let ids: Vec<(&str, &str)> =
        [("ls", &**name)].into_iter().chain(blocks).chain(marks.iter().copied()).collect();
    rows::named(Table::LogicalSwitchPort, &port, switch, "ports")
        .whole("type", Value::string("localnet"))
        .whole("addresses", Value::strings(["unknown"]))
        .whole("tag", Value::optional(wire.tag))
        .keys("options", [("network_name", &*wire.network)])
        .ids(&ids)
        .add(facts);
}

pub(super) fn fields(
    view: &dyn View,
    object: &ObjectRef,
    subnet: &SubnetView,
    usage: &Usage,
    problem: Option<&str>,
    facts: &mut Facts,
) {
    super::finalizer(object, subnet, usage, facts);
    rows::kube(facts, object, &subnet.uid, Gate::Now, Fields::Status(status::counters(usage)));
    let vlan = network_problem(view, &subnet.spec).map(|vlan| format!("subnet {}: {vlan}", object.name));
    let wrong = problem.map(|problem| (INVALID, problem)).or(vlan.as_deref().map(|vlan| (WRONG_VLAN, vlan)));
    rows::error(facts, object, &subnet.uid, wrong, super::success(subnet));
    let mut say = |gate, ready, why: (&str, &str)| {
        rows::condition(facts, object, &subnet.uid, gate, ("Ready", ready), why);
        if !ready {
            rows::warning(facts, object, &subnet.uid, why.0, why.1);
        }
    };
    let held = status::held(usage).filter(|_| subnet.deleting);
    match (held, problem, vlan) {
        (Some(held), ..) => say(Gate::Now, false, (status::IN_USE, &held)),
        (_, Some(problem), _) => say(Gate::Now, false, (INVALID, problem)),
        (_, _, Some(vlan)) => say(Gate::Now, false, (WRONG_VLAN, &vlan)),
        (None, None, None) => {
            let message = "external network of Vpcs and OvnEips; pods get no addresses here: this version of Weir does \
                           not act on underlay subnets";
            say(Gate::Committed, true, (super::success(subnet), message));
        }
    }
}
