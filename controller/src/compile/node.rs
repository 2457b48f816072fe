//! A Node: its port on the join switch, the policies that lead to it and the one
//! by which its pods leave, its port groups, annotations and IP object (contract
//! §2.3, §4.3, §4.4, §5.2). Groups are made when the node comes: making one later,
//! for the first pod, would cost OVN a full recompute on the pod's path.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crds::{keys, names};
use ovsdb::Value;
use serde_json::json;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::io::Config;
use crate::objects::StringMap;
use crate::view::{Lease, LeaseState, NodeView, Overlay, SubnetView, View};

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(node) = view.node(name) else { return facts };
    let object = ObjectRef::cluster(Kind::Node, name.clone());
    let config = view.config();
    rows::root(Table::PortGroup, &names::node_group(name))
        .ids(&[("node", name), ("np", &format!("node/{name}"))])
        .add(&mut facts);
    let overlays = view.overlays();
    for subnet in overlays.iter().filter(|subnet| subnet.distributed) {
        subnet_group(&subnet.name, name, &mut facts);
    }
    conflicts(&overlays, &object, &node, &mut facts);
    if let Some(other) = &node.namesake {
        let message = format!(
            "node {name} has the port groups of node {other} ({}), since OVN does not tell their names apart, so its pods \
             leave by that node; give it another name",
            names::node_group(name)
        );
        rows::warning(&mut facts, &object, &node.uid, "NodeNameConflict", &message);
    }

    let port: Arc<str> = names::node_port(name).into();
    let join = view.subnet(&config.node_switch).filter(|join| join.supported && join.invalid.is_none());
    let state = view.lease(&port);
    let moving = state == LeaseState::Moving;
    let lease = match (state, join) {
        (LeaseState::Held(lease), Some(join)) if lease.subnet == config.node_switch => Some((lease, join)),
        (LeaseState::Refused(reason, message), _) => {
            rows::warning(&mut facts, &object, &node.uid, &reason, &message);
            None
        }
        _ => None,
    };
    let Some((lease, join)) = lease else {
        if !moving {
            facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
        }
        facts.keeps.push(Keep::Marked(Table::Policy, "node", name.clone()));
        return facts;
    };
    join_port(&config.node_switch, &lease, &mut facts);
    to_node(&config.cluster_router, name, &node, &lease, &mut facts);
    to_local_dns(config, name, &lease, &mut facts);
    for subnet in overlays.iter().filter(|subnet| subnet.distributed) {
        from_pods(&config.cluster_router, subnet, name, &lease, &mut facts);
    }
    object_fields(&object, &node, &join, &lease, &mut facts);
    facts
}

/// Pods of the subnet on the node. Groups of a subnet that is broken, or on its way
/// back, are kept by the subnet's own unit.
fn subnet_group(subnet: &str, node: &str, facts: &mut Facts) {
    rows::root(Table::PortGroup, &names::subnet_node_group(subnet, node))
        .ids(&[("subnet", subnet), ("node", node), ("np", &format!("{subnet}/{node}"))])
        .add(facts);
}

/// A node address inside an overlay CIDR is unreachable from pods.
fn conflicts(overlays: &[Overlay], object: &ObjectRef, node: &NodeView, facts: &mut Facts) {
    let addresses = || node.ipv4.map(IpAddr::V4).into_iter().chain(node.ipv6.map(IpAddr::V6));
    for subnet in overlays {
        for ip in addresses().filter(|ip| subnet.nets.contains(ip)) {
            let message = format!(
                "address {ip} of node {} is inside cidrBlock {} of subnet {}, so pods can't reach the node; \
                 give the subnet a block without node addresses, or the node another address",
                object.name, subnet.nets, subnet.name
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

/// Pods reach the DNS cache of the node that they are on.
fn to_local_dns(config: &Config, name: &str, lease: &Lease, facts: &mut Facts) {
    let caches = config.node_local_dns_ip.split(',').filter_map(|text| text.trim().parse::<IpAddr>().ok());
    for cache in caches {
        let join = rows::addresses(lease).find(|join| join.is_ipv4() == cache.is_ipv4());
        let Some(join) = join else { continue };
        let matching = rows::local_dns_match(&names::node_group(name), &cache);
        let family = if cache.is_ipv4() { "4" } else { "6" };
        let ids = [("node", name), ("address-family", family), (rows::LOCAL_DNS, "true")];
        rows::policy(facts, &config.cluster_router, rows::TO_NODE, &matching, Some(join), &ids);
    }
}

/// Traffic of a subnet's pods on the node leaves by its join port.
fn from_pods(router: &str, subnet: &Overlay, node: &str, lease: &Lease, facts: &mut Facts) {
    let group = names::subnet_node_group(&subnet.name, node);
    for nexthop in rows::addresses(lease) {
        let served = if nexthop.is_ipv4() { subnet.nets.v4.is_some() } else { subnet.nets.v6.is_some() };
        if served {
            let field = rows::ip_field(&nexthop);
            let matching = format!("{field}.src == ${group}_{field}");
            let ids = [("subnet", &*subnet.name), ("node", node)];
            rows::policy(facts, router, rows::GATEWAY, &matching, Some(nexthop), &ids);
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
