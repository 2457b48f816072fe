//! A pod's default interface: its port, its memberships, its IP object, its
//! annotations (contract §2.1, §3.2, §4.2).
//!
//! Nothing here is a trigger of a full recompute in OVN, and the cost does not
//! depend on the number of pods. Kubernetes sees two writes: the IP object, which
//! records the lease, and one patch with all annotations after the port and its
//! memberships are in the database. A pod that has an address but no node yet is
//! told the address; `routed` follows when it has one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{keys, names};
use ovsdb::Value;

use super::{dhcp, rows};
use crate::facts::{EventFact, Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::io::Config;
use crate::ipam::is_machine;
use crate::view::{Lease, LeaseState, PodView, SubnetView, View};

pub(super) fn compile(view: &dyn View, namespace: &Arc<str>, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(pod) = view.pod(namespace, name).filter(|pod| pod.wants_network) else { return facts };
    let object = ObjectRef::namespaced(Kind::Pod, namespace.clone(), name.clone());
    let machine = pod.owner.as_ref().filter(|(kind, _)| is_machine(kind)).map(|(_, machine)| machine);
    let lease = view.lease(&names::pod_port(name, namespace, keys::DEFAULT_PROVIDER));
    if let LeaseState::Refused(reason, message) = &lease {
        rows::warning(&mut facts, &object, &pod.uid, reason, message);
    }
    if let Some(machine) = machine {
        let port = names::pod_port(machine, namespace, keys::DEFAULT_PROVIDER);
        facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
        return facts;
    }
    let LeaseState::Held(lease) = &lease else { return facts };
    let Some(subnet) = view.subnet(&lease.subnet).filter(|subnet| subnet.supported) else {
        // The subnet is on its way back, or became one that this version lacks.
        facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, &*lease.port)));
        return facts;
    };
    let placed = !pod.node.is_empty() && view.node(&pod.node).is_some();
    logical_port(view, &pod, (namespace, name), &subnet, lease, &mut facts);
    if placed {
        memberships(view.config(), &pod, &subnet, lease, &mut facts);
    }
    let owner = rows::IpOwner {
        namespace,
        pod: name,
        pod_type: pod.owner.as_ref().map_or("", |(kind, _)| kind),
        node: &pod.node,
        annotations: &pod.kept,
    };
    facts.kube.push(KubeFact {
        object: ObjectRef::cluster(Kind::Ip, lease.port.clone()),
        uid: None,
        gate: Gate::Now,
        fields: Fields::Object(rows::ip_object(lease, &owner, None)),
    });
    if !pod.terminating && subnet.invalid.is_none() {
        let fields = annotations(view, &pod, &subnet, lease, placed);
        rows::kube(&mut facts, &object, &pod.uid, Gate::Committed, fields);
        if placed {
            allocated(&object, &pod, lease, &mut facts);
        }
    }
    facts
}

/// The event of contract §8.8. Publish says it only to pods that it writes to, so a
/// restart repeats none.
fn allocated(object: &ObjectRef, pod: &PodView, lease: &Lease, facts: &mut Facts) {
    let message = format!(
        "provider={} subnet={} ip={} mac={} logicalSwitchPort={}",
        keys::DEFAULT_PROVIDER,
        lease.subnet,
        rows::joined(lease, ","),
        lease.mac,
        lease.port
    );
    facts.events.push(EventFact {
        object: object.clone(),
        uid: Some(pod.uid.clone()),
        warning: false,
        reason: "PodNetworkAllocated".into(),
        message: message.into(),
        gate: Gate::Committed,
    });
}

fn logical_port(
    view: &dyn View,
    pod: &PodView,
    (namespace, name): (&str, &str),
    subnet: &SubnetView,
    lease: &Lease,
    facts: &mut Facts,
) {
    let on = |key: &str| pod.requests.get(key).is_some_and(|value| &**value == "true");
    let address = rows::port_address(lease);
    let vips: Vec<&str> = pod
        .requests
        .get(keys::PORT_VIPS)
        .into_iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|vip| !vip.is_empty())
        .collect();
    // The flag decides for pods that say nothing (`pain.md` U67).
    let secure = match pod.requests.get(keys::PORT_SECURITY).map(|value| &**value) {
        Some("true") => true,
        Some("false") => false,
        _ => view.config().port_security,
    };
    let security = secure.then(|| [&[&*address], &vips[..]].concat().join(" "));
    let mut addresses = vec![address.clone()];
    if on(keys::LAYER2_FORWARD) {
        addresses.push("unknown".into());
    }
    let id = format!("{namespace}/{name}");
    let vips = vips.join(",");
    let mut ids = vec![("ls", &*lease.subnet), ("pod", &*id)];
    if !vips.is_empty() {
        ids.extend([("vips", &*vips), ("attach-vips", "true")]);
    }
    let dhcp = dhcp::port(view, pod, subnet, lease, facts);
    let switch = RowKey::new(Table::LogicalSwitch, &*lease.subnet);
    let mut row = rows::named(Table::LogicalSwitchPort, &lease.port, switch, "ports")
        .whole("type", Value::string(""))
        .whole("addresses", Value::strings(addresses))
        .whole("port_security", Value::strings(security))
        .ids(&ids);
    for (column, refs) in dhcp {
        row = row.column(column, refs);
    }
    row.add(facts);
}

/// The groups of the pod's node; unit node makes them. Nodes route for the default
/// VPC only.
fn memberships(config: &Config, pod: &PodView, subnet: &SubnetView, lease: &Lease, facts: &mut Facts) {
    if *subnet.spec.vpc != *config.cluster_router || !subnet.is_ovn() {
        return;
    }
    // The join subnet has no groups of its own: what is on it leaves through no gateway.
    if lease.subnet != config.node_switch && subnet.spec.gateway_type != "centralized" {
        facts.members.push(rows::member(&names::subnet_node_group(&lease.subnet, &pod.node), &lease.port));
    }
    facts.members.push(rows::member(&names::node_group(&pod.node), &lease.port));
}

/// Written once. Without a node the marker is `allocated`; with one it is
/// `routed`, which the daemon waits for, so that a pod told its address earlier
/// gets exactly the missing key.
fn annotations(view: &dyn View, pod: &PodView, subnet: &SubnetView, lease: &Lease, placed: bool) -> Fields {
    let nic = pod.requests.get(keys::POD_NIC_TYPE).filter(|nic| !nic.is_empty());
    let values = [
        (keys::ALLOCATED, "true"),
        (keys::IP_ADDRESS, &rows::joined(lease, ",")),
        (keys::MAC_ADDRESS, &lease.mac),
        (keys::CIDR, &subnet.spec.cidr_block),
        (keys::GATEWAY, &subnet.spec.gateway),
        (keys::LOGICAL_SWITCH, &lease.subnet),
        (keys::LOGICAL_ROUTER, &subnet.spec.vpc),
        (keys::POD_NIC_TYPE, nic.unwrap_or(&view.config().pod_nic_type)),
    ];
    let routed = placed.then_some((keys::ROUTED, "true"));
    let values: BTreeMap<_, _> =
        values.into_iter().chain(routed).map(|(key, value)| (key.into(), value.into())).collect();
    let marker = if placed { keys::ROUTED } else { keys::ALLOCATED };
    Fields::AnnotationsOnce { marker: marker.into(), values }
}
