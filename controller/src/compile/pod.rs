//! A pod's interfaces, the default one and others: port, its memberships, its IP object, its
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
use crate::facts::{
    Column, EventFact, Facts, Fields, Gate, Gone, Keep, Kind, KubeFact, ObjectRef, RowKey, Table,
};
use crate::io::Config;
use crate::view::{
    INSTANCE, Interface, Interfaces, Lease, LeaseState, MACHINE, Placement, PodView, SubnetView, View,
};
use crate::wishes;
use crate::world::details;

/// One interface as the functions below see it.
struct Nic<'a> {
    namespace: &'a Arc<str>,
    /// Whose name the port has: the pod's, or that of the machine that it runs.
    name: &'a Arc<str>,
    pod: &'a PodView,
    /// The pod as which the port is: of a machine the one in which the guest runs.
    serving: &'a PodView,
    machine: Option<&'a Machine>,
    /// `ovn` for the default one.
    provider: &'a str,
    /// A port of OVN.
    ovn: bool,
}

/// A virtual machine whose ports several pods share, while it moves between nodes. Each
/// of its pods states the same about them, so that none is told its address before the
/// port is as it has to be.
struct Machine {
    name: Arc<str>,
    /// The pod in which the guest runs.
    pod: Arc<PodView>,
    /// Its interfaces, if that is another pod.
    interfaces: Option<Arc<Interfaces>>,
    placement: Placement,
}

impl Machine {
    fn of(view: &dyn View, namespace: &str, name: &str, pod: &Arc<PodView>) -> Option<Self> {
        let machine = pod.machine(view.config())?.clone();
        let seen = view.machine(namespace, &machine).unwrap_or_default();
        let other = Some(&*seen.active).filter(|active| !active.is_empty() && *active != name);
        let serving = other.and_then(|active| view.pod(namespace, active));
        let networks = serving.as_ref().is_some_and(|serving| serving.networks);
        Some(Self {
            name: machine,
            interfaces: other.filter(|_| networks).and_then(|active| view.interfaces(namespace, active)),
            pod: serving.unwrap_or_else(|| pod.clone()),
            placement: seen.placement.clone(),
        })
    }

    /// The pod as which one of its ports is, given the pod that asks.
    fn serving(&self, provider: &str, own: &PodView) -> PodView {
        let interfaces = self.interfaces.iter().flat_map(|interfaces| &interfaces.list);
        let found = interfaces.into_iter().find(|interface| &*interface.provider == provider);
        found.map_or_else(
            || own.clone(),
            |interface| PodView { requests: interface.requests.clone(), ..(*self.pod).clone() },
        )
    }
}

/// Where a machine's port may be bound (contract §3.6).
pub(super) fn placed(placement: &Placement) -> Column {
    let [chassis, activation] = rows::ACTIVATION;
    match placement {
        Placement::Free => Column::map_without([] as [(&str, &str); 0], &rows::ACTIVATION),
        Placement::Fixed(node) => Column::map_without([(chassis, &**node)], &rows::ACTIVATION),
        Placement::Moving(from, to) => {
            Column::keys([(chassis, &*format!("{from},{to}")), (activation, "rarp")])
        }
    }
}

pub(super) fn compile(view: &dyn View, namespace: &Arc<str>, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(pod) = view.pod(namespace, name).filter(|pod| pod.wants_network) else { return facts };
    let object = ObjectRef::namespaced(Kind::Pod, namespace.clone(), name.clone());
    let interfaces = if pod.networks { view.interfaces(namespace, name) } else { None };
    let mut told = Vec::new();
    // It has one interface less.
    let updated = interfaces.as_ref().is_some_and(|interfaces| !interfaces.stale.is_empty());
    let machine = Machine::of(view, namespace, name, &pod);
    let machine = machine.as_ref();
    let name = machine.map_or(name, |machine| &machine.name);
    if interfaces.as_ref().is_none_or(|interfaces| interfaces.default) {
        let port = names::pod_port(name, namespace, keys::DEFAULT_PROVIDER);
        let serving = machine.map_or(&*pod, |machine| &*machine.pod);
        let provider = keys::DEFAULT_PROVIDER;
        let nic = Nic { namespace, name, pod: &pod, serving, machine, provider, ovn: true };
        told.extend(interface(view, &object, &nic, &port, &mut facts));
    }
    if let Some(interfaces) = &interfaces {
        if let Some(problem) = &interfaces.problem {
            rows::warning(&mut facts, &object, &pod.uid, "ValidatePodNetworkFailed", problem);
        }
        for Interface { provider, port, ovn, requests } in &interfaces.list {
            // Requests of an interface stand under the keys of the default one.
            let pod = PodView { requests: requests.clone(), ..(*pod).clone() };
            let shared = machine.map(|machine| machine.serving(provider, &pod));
            let serving = shared.as_ref().unwrap_or(&pod);
            let nic = Nic { namespace, name, pod: &pod, serving, machine, provider, ovn: *ovn };
            told.extend(interface(view, &object, &nic, port, &mut facts));
        }
        if !interfaces.stale.is_empty() {
            let gone = interfaces.stale.iter().map(|key| (key.clone(), None)).collect();
            rows::kube(&mut facts, &object, &pod.uid, Gate::Committed, Fields::Annotations(gone));
        }
    }
    if !told.is_empty() {
        // Contract §8.8. Publish says it only to pods that it writes to, so a restart
        // repeats none.
        facts.events.push(EventFact {
            object,
            uid: Some(pod.uid.clone()),
            warning: false,
            reason: if updated { "PodNetworkUpdated" } else { "PodNetworkAllocated" }.into(),
            message: told.join("; ").into(),
            gate: Gate::Committed,
        });
    }
    facts
}

fn refusal(view: &dyn View, object: &ObjectRef, pod: &PodView, port: &str, facts: &mut Facts) {
    if let LeaseState::Refused(reason, message) = view.lease(port) {
        rows::warning(facts, object, &pod.uid, &reason, &message);
    }
}

/// States one interface; says what the pod's event has about it once it is complete.
fn interface(
    view: &dyn View,
    object: &ObjectRef,
    nic: &Nic<'_>,
    port: &str,
    facts: &mut Facts,
) -> Option<String> {
    let pod = nic.pod;
    refusal(view, object, pod, port, facts);
    let LeaseState::Held(lease) = view.lease(port) else { return None };
    let subnet = view.subnet(&lease.subnet).filter(|subnet| subnet.supported || !nic.ovn);
    let Some(subnet) = subnet else {
        // The subnet is on its way back, or became one that this version lacks.
        facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, &*lease.port)));
        return None;
    };
    let known = |pod: &PodView| !pod.node.is_empty() && view.node(&pod.node).is_some();
    let (placed, serving) = (known(pod), nic.serving);
    if nic.ovn {
        logical_port(view, nic, &subnet, &lease, facts);
        if let Some(problem) = wishes::problem(&pod.requests) {
            // One that has its address already: it goes on without.
            rows::warning(facts, object, &pod.uid, "ValidatePodNetworkFailed", &problem);
        }
        if known(serving) {
            let own = north_gateway(view.config(), nic, &subnet, &lease, facts);
            memberships(view.config(), serving, &subnet, &lease, own, facts);
        }
    }
    let pod_type = serving.owner.as_ref().map_or("", |(kind, _)| kind);
    let owner = rows::IpOwner {
        namespace: nic.namespace,
        pod: nic.name,
        pod_type: if pod_type == INSTANCE { MACHINE } else { pod_type },
        node: &serving.node,
        annotations: &serving.kept,
    };
    facts.kube.push(KubeFact {
        object: ObjectRef::cluster(Kind::Ip, lease.port.clone()),
        uid: None,
        gate: Gate::Now,
        fields: Fields::Object(rows::ip_object(&lease, &owner, None)),
    });
    if pod.terminating || subnet.invalid.is_some() {
        return None;
    }
    let fields = annotations(view, nic, &subnet, &lease, placed);
    rows::kube(facts, object, &pod.uid, Gate::Committed, fields);
    placed.then(|| details(nic.provider, &lease))
}

fn logical_port(view: &dyn View, nic: &Nic<'_>, subnet: &SubnetView, lease: &Lease, facts: &mut Facts) {
    let pod = nic.serving;
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
    let id = format!("{}/{}", nic.namespace, nic.name);
    let vips = vips.join(",");
    let mut ids = vec![("ls", &*lease.subnet), ("pod", &*id)];
    if nic.provider != keys::DEFAULT_PROVIDER {
        ids.push(("provider", nic.provider));
    }
    if !vips.is_empty() {
        ids.extend(rows::VIP_MARKS.into_iter().zip([&*vips, "true"]));
    }
    let ids = marks(view.config(), subnet, &ids);
    let dhcp = dhcp::port(view, pod, subnet, lease, facts);
    let switch = RowKey::new(Table::LogicalSwitch, &*lease.subnet);
    let mut row = rows::named(Table::LogicalSwitchPort, &lease.port, switch, "ports")
        .whole("type", Value::string(""))
        .whole("addresses", Value::strings(addresses))
        .whole("port_security", Value::strings(security))
        .column("external_ids", ids);
    for (column, refs) in dhcp {
        row = row.column(column, refs);
    }
    if let Some(machine) = nic.machine {
        row = row.column("options", placed(&machine.placement));
    } else if pod.requests.get(keys::ACTIVATION_STRATEGY).is_some_and(|text| !text.trim().is_empty())
        && !pod.node.is_empty()
    {
        let [chassis, strategy] = rows::ACTIVATION;
        let node = format!("{0},{0}", pod.node);
        row = row.keys("options", [(chassis, &*node), (strategy, "rarp")]);
    }
    row.add(facts);
}

/// `external_ids` of a port. One of a custom VPC says that it is in the group for ports without a
/// group, but not yet (contract §4.2, §6.4); who makes the group changes that.
fn marks(config: &Config, subnet: &SubnetView, ids: &[(&str, &str)]) -> Column {
    let grouped = [("associated_sg_default-securitygroup", "false")];
    let initial = if *subnet.spec.vpc == *config.cluster_router { &[][..] } else { &grouped };
    let all = [("vendor", keys::VENDOR)].into_iter().chain(ids.iter().copied());
    Column::map(all, initial.iter().copied(), Gone::Keys(&rows::VIP_MARKS))
}

/// The default interface of a pod of the default VPC may have a next hop of its own
/// (contract §4.3), of each family one. Says whether all of its traffic has one.
fn north_gateway(
    config: &Config,
    nic: &Nic<'_>,
    subnet: &SubnetView,
    lease: &Lease,
    facts: &mut Facts,
) -> bool {
    let text = nic.serving.requests.get(keys::NORTH_GATEWAY).map_or("", |text| text.trim());
    let default = nic.provider == keys::DEFAULT_PROVIDER && *subnet.spec.vpc == *config.cluster_router;
    let Some(hops) = wishes::north_gateway(text).ok().filter(|_| default) else { return false };
    let mut all = true;
    for ip in rows::addresses(lease) {
        match hops.iter().find(|hop| hop.is_ipv4() == ip.is_ipv4()) {
            Some(hop) => {
                let matching = format!("{}.src == {ip}", rows::ip_field(&ip));
                let ids = [("subnet", &*lease.subnet), rows::OF_POD];
                rows::policy(facts, &config.cluster_router, rows::NORTH_GATEWAY, &matching, Some(hop), &ids);
            }
            None => all = false,
        }
    }
    all
}

/// The groups of the pod's node; unit node makes them. Nodes route for the default
/// VPC only, and not for pods whose traffic leaves by a next hop of their `own`.
fn memberships(
    config: &Config,
    pod: &PodView,
    subnet: &SubnetView,
    lease: &Lease,
    own: bool,
    facts: &mut Facts,
) {
    if *subnet.spec.vpc != *config.cluster_router || !subnet.is_ovn() {
        return;
    }
    // The join subnet has no groups of its own: what is on it leaves through no gateway.
    // Nor are those of one that can't work stated: what is in them stays, and nobody waits for them.
    let grouped = subnet.invalid.is_none() && subnet.spec.gateway_type != "centralized";
    if lease.subnet != config.node_switch && grouped && !own {
        facts.members.push(rows::member(&names::subnet_node_group(&lease.subnet, &pod.node), &lease.port));
    }
    facts.members.push(rows::member(&names::node_group(&pod.node), &lease.port));
}

/// Written once. Without a node the marker is `allocated`; with one it is
/// `routed`, which the daemon waits for, so that a pod told its address earlier
/// gets exactly the missing key.
fn annotations(view: &dyn View, nic: &Nic<'_>, subnet: &SubnetView, lease: &Lease, placed: bool) -> Fields {
    let kind = nic.pod.requests.get(keys::POD_NIC_TYPE).filter(|kind| !kind.is_empty());
    let key = |default: &'static str| -> Arc<str> {
        match default.strip_prefix("ovn.kubernetes.io/") {
            Some(name) if nic.provider != keys::DEFAULT_PROVIDER => keys::pod_key(nic.provider, name).into(),
            _ => default.into(),
        }
    };
    let mut values: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::from([
        (key(keys::ALLOCATED), "true".into()),
        (key(keys::IP_ADDRESS), rows::joined(lease, ",").into()),
        (key(keys::MAC_ADDRESS), lease.mac.clone()),
        (key(keys::CIDR), subnet.spec.cidr_block.as_str().into()),
        (key(keys::GATEWAY), subnet.spec.gateway.as_str().into()),
    ]);
    if nic.ovn {
        let kind = kind.cloned().unwrap_or_else(|| view.config().pod_nic_type.clone());
        values.insert(key(keys::LOGICAL_SWITCH), lease.subnet.clone());
        values.insert(key(keys::LOGICAL_ROUTER), subnet.spec.vpc.as_str().into());
        values.insert(key(keys::POD_NIC_TYPE), kind);
    }
    if let Some(machine) = nic.machine {
        values.insert(key(keys::VIRTUAL_MACHINE), machine.name.clone());
    }
    // Another CNI's interface has no route stage (contract §2.1).
    let marker = if placed && nic.ovn { keys::ROUTED } else { keys::ALLOCATED };
    if marker == keys::ROUTED {
        values.insert(key(keys::ROUTED), "true".into());
    }
    Fields::AnnotationsOnce { marker: key(marker), values }
}
