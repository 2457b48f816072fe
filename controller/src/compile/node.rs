//! A Node: its port on the join switch, the policies that lead to it and the one
//! by which its pods leave, its port groups, annotations and IP object (contract
//! §2.3, §4.3, §4.4, §5.2). Groups are made when the node comes: making one later,
//! for the first pod, would cost OVN a full recompute on the pod's path.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, names, net};
use ovsdb::Value;
use serde_json::json;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::objects::StringMap;
use crate::view::{Lease, LeaseState, NodeView, SubnetView, View};

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(node) = view.node(name) else { return facts };
    let object = ObjectRef::cluster(Kind::Node, name.clone());
    let config = view.config();
    rows::root(Table::PortGroup, &names::node_group(name))
        .ids(&[("node", name), ("np", &format!("node/{name}"))])
        .add(&mut facts);
    let egress = view.subnet(&config.default_ls);
    subnet_group(&config.default_ls, egress.as_deref(), name, &mut facts);
    conflicts(view, &object, &node, &mut facts);

    let port: Arc<str> = names::node_port(name).into();
    let join = view.subnet(&config.node_switch).filter(|join| join.supported && join.invalid.is_none());
    let lease = match (view.lease(&port), join) {
        (LeaseState::Held(lease), Some(join)) if lease.subnet == config.node_switch => Some((lease, join)),
        (LeaseState::Refused(reason, message), _) => {
            rows::warning(&mut facts, &object, &node.uid, &reason, &message);
            None
        }
        _ => None,
    };
    let Some((lease, join)) = lease else {
        facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
        facts.keeps.push(Keep::Marked(Table::Policy, "node", name.clone()));
        return facts;
    };
    join_port(&config.node_switch, &lease, &mut facts);
    to_node(&config.cluster_router, name, &node, &lease, &mut facts);
    from_pods(view, egress.as_deref(), name, &lease, &mut facts);
    object_fields(&object, &node, &join, &lease, &mut facts);
    facts
}

/// The subnet's pods leave through the node they are on.
fn distributed(subnet: &SubnetView) -> bool {
    subnet.spec.gateway_type != "centralized"
}

fn subnet_group(subnet: &str, view: Option<&SubnetView>, node: &str, facts: &mut Facts) {
    let group = names::subnet_node_group(subnet, node);
    match view {
        Some(view) if view.supported && distributed(view) => rows::root(Table::PortGroup, &group)
            .ids(&[("subnet", subnet), ("node", node), ("np", &format!("{subnet}/{node}"))])
            .add(facts),
        Some(view) if view.supported => {}
        _ => facts.keeps.push(Keep::Row(RowKey::new(Table::PortGroup, group))),
    }
}

/// A node address inside an overlay CIDR is unreachable from pods.
fn conflicts(view: &dyn View, object: &ObjectRef, node: &NodeView, facts: &mut Facts) {
    let addresses = || node.ipv4.map(IpAddr::V4).into_iter().chain(node.ipv6.map(IpAddr::V6));
    for subnet in view.subnet_names().iter() {
        let Some(seen) = view.subnet(subnet) else { continue };
        if *seen.spec.vpc != *view.config().cluster_router || !seen.spec.vlan.is_empty() {
            continue;
        }
        let nets = net::parse_dual_cidrs(&seen.spec.cidr_block).unwrap_or_default();
        for ip in addresses().filter(|ip| nets.contains(ip)) {
            let message = format!(
                "address {ip} of node {} is inside cidrBlock {} of subnet {subnet}, so pods can't reach the node; \
                 give the subnet a block without node addresses, or the node another address",
                object.name, seen.spec.cidr_block
            );
            rows::warning(facts, object, &node.uid, "NodeAddressConflictWithSubnet", &message);
        }
    }
}

fn join_port(switch: &str, lease: &Lease, facts: &mut Facts) {
    let parent = RowKey::new(Table::LogicalSwitch, switch);
    rows::named(Table::LogicalSwitchPort, &lease.port, parent, "ports")
        .whole("type", Value::string(""))
        .whole("addresses", Value::strings([rows::port_address(lease)]))
        .whole("port_security", Value::empty_set())
        .ids(&[("ls", switch)])
        .add(facts);
}

/// Traffic to the node's own address enters it by its join port.
fn to_node(router: &str, name: &str, node: &NodeView, lease: &Lease, facts: &mut Facts) {
    let families = [
        (node.ipv4.map(IpAddr::V4), lease.v4.map(IpAddr::V4), "4"),
        (node.ipv6.map(IpAddr::V6), lease.v6.map(IpAddr::V6), "6"),
    ];
    for (address, join, family) in families {
        if let Some((address, join)) = address.zip(join) {
            let matching = format!("{}.dst == {address}", rows::ip_field(&address));
            let ids = [("node", name), ("address-family", family)];
            rows::policy(facts, router, rows::TO_NODE, &matching, Some(join), &ids);
        }
    }
}

/// Traffic of the node's pods leaves by its join port.
fn from_pods(view: &dyn View, subnet: Option<&SubnetView>, node: &str, lease: &Lease, facts: &mut Facts) {
    let config = view.config();
    let Some(subnet) = subnet.filter(|subnet| subnet.supported && subnet.invalid.is_none()) else {
        facts.keeps.push(Keep::Marked(Table::Policy, "node", node.into()));
        return;
    };
    if !distributed(subnet) {
        return;
    }
    let nets = net::parse_dual_cidrs(&subnet.spec.cidr_block).unwrap_or_default();
    let group = names::subnet_node_group(&config.default_ls, node);
    for nexthop in rows::addresses(lease) {
        let served = if nexthop.is_ipv4() { nets.v4.is_some() } else { nets.v6.is_some() };
        if served {
            let field = rows::ip_field(&nexthop);
            let matching = format!("{field}.src == ${group}_{field}");
            let ids = [("subnet", &*config.default_ls), ("node", node)];
            rows::policy(facts, &config.cluster_router, rows::GATEWAY, &matching, Some(nexthop), &ids);
        }
    }
}

fn object_fields(object: &ObjectRef, node: &NodeView, join: &SubnetView, lease: &Lease, facts: &mut Facts) {
    let annotations = [
        (keys::ALLOCATED, "true"),
        (keys::IP_ADDRESS, &rows::joined(lease, ",")),
        (keys::MAC_ADDRESS, &lease.mac),
        (keys::CIDR, &join.spec.cidr_block),
        (keys::GATEWAY, &join.spec.gateway),
        (keys::LOGICAL_SWITCH, &lease.subnet),
        (keys::PORT_NAME, &lease.port),
    ];
    let annotations: BTreeMap<_, _> =
        annotations.into_iter().map(|(key, value)| (key.into(), Some(value.into()))).collect();
    rows::kube(facts, object, &node.uid, Gate::Committed, Fields::Annotations(annotations));
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": &*object.name, "uid": &*node.uid });
    let whose = rows::IpOwner {
        namespace: "",
        pod: &object.name,
        pod_type: "",
        node: &object.name,
        annotations: &StringMap::new(),
    };
    facts.kube.push(KubeFact {
        object: ObjectRef::cluster(Kind::Ip, lease.port.clone()),
        uid: None,
        gate: Gate::Now,
        fields: Fields::Object(rows::ip_object(lease, &whose, Some(owner))),
    });
}
