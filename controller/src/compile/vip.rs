//! A Vip (contract §1.7): its ports, labels, status and finalizer.
//!
//! `switch_lb_vip` is a port that answers with the router's MAC, `kube_host_vm_vip` a
//! plain port. A Vip of a namespace is also a virtual port, which moves between the
//! pods that may answer for it. OVN knows one address for a virtual port, so a
//! dual-stack Vip has a second one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crds::keys;
use ovsdb::Value;
use serde_json::json;

use super::rows::{self, NOT_YET};
use crate::facts::{Facts, Fields, Gate, Keep, Kind, ObjectRef, RowKey, Table};
use crate::view::{Lease, LeaseState, SubnetView, View, VipView};

/// Reason of a Vip that has its addresses.
const ALLOCATED: &str = "AddressAllocated";
/// Reason of one whose spec asks for other addresses than it has.
const IMMUTABLE: &str = "AddressImmutable";
/// Reason of one whose port's name another object has.
const TAKEN: &str = "NameInUse";
/// Mark of rows that belong to a Vip.
pub(crate) const MARK: &str = "vip";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(vip) = view.vip(name) else { return facts };
    let object = ObjectRef::cluster(Kind::Vip, name.clone());
    if let LeaseState::Refused(reason, message) = view.lease(&vip.port) {
        for (kind, status) in [("Ready", false), ("Error", true)] {
            rows::condition(&mut facts, &object, &vip.uid, Gate::Now, (kind, status), (&reason, &message));
        }
        rows::warning(&mut facts, &object, &vip.uid, &reason, &message);
    }
    if vip.deleting {
        let free = vip.used_by.is_none();
        rows::kube(&mut facts, &object, &vip.uid, Gate::Now, Fields::Finalizer(!free));
        if free {
            return facts;
        }
    } else {
        rows::kube(&mut facts, &object, &vip.uid, Gate::Now, Fields::Finalizer(true));
    }
    let Some(lease) = &vip.lease else {
        if matches!(view.lease(&vip.port), LeaseState::Held(_)) {
            let port = &vip.port;
            let message = format!("port {port} is that of another object already; give the Vip another name");
            rows::condition(&mut facts, &object, &vip.uid, Gate::Now, ("Ready", false), (TAKEN, &message));
            rows::warning(&mut facts, &object, &vip.uid, TAKEN, &message);
        }
        return facts;
    };
    let Some(subnet) = view.subnet(&lease.subnet).filter(|subnet| subnet.supported) else {
        for port in [name.clone(), vip.port.clone()] {
            facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port)));
        }
        return facts;
    };
    ports(view, name, (&vip, lease), &subnet, &mut facts);
    fields(&object, &vip, lease, &mut facts);
    facts
}

fn ports(
    view: &dyn View,
    name: &Arc<str>,
    (vip, lease): (&VipView, &Lease),
    subnet: &SubnetView,
    facts: &mut Facts,
) {
    if !subnet.spec.provider.is_empty()
        && subnet.spec.provider != keys::DEFAULT_PROVIDER
        && !subnet.spec.provider.ends_with(".ovn")
    {
        return;
    }
    let switch = || RowKey::new(Table::LogicalSwitch, &*lease.subnet);
    let id = format!("{}/{name}", vip.spec.namespace);
    let plain = |mac: &str| {
        let addresses = format!("{mac} {}", rows::joined(lease, " "));
        rows::named(Table::LogicalSwitchPort, &vip.port, switch(), "ports")
            .whole("type", Value::string(""))
            .whole("addresses", Value::strings([addresses]))
            .ids(&[("ls", &*lease.subnet), ("pod", &*id), (MARK, name)])
    };
    match &*vip.spec.r#type {
        // Without its router's MAC the port would answer with one that leads nowhere.
        "switch_lb_vip" => match &vip.router_mac {
            Some(mac) => plain(mac).keys("options", [("arp_proxy", "true")]).add(facts),
            None => facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, vip.port.clone()))),
        },
        "kube_host_vm_vip" => plain(&lease.mac).add(facts),
        _ => {}
    }
    if vip.spec.namespace.is_empty() || vip.spec.r#type == "kube_host_vm_vip" {
        return;
    }
    // OVN looks for them on the Vip's own switch: a pod answers by the port that it has there.
    let here =
        |port: &&Arc<str>| matches!(view.lease(port), LeaseState::Held(held) if held.subnet == lease.subnet);
    let parents = vip.parents.iter().filter(here).map(|port| &**port).collect::<Vec<_>>().join(",");
    let addresses: Vec<IpAddr> = rows::addresses(lease).collect();
    for (n, ip) in addresses.iter().enumerate() {
        let port = if n == 0 { name.to_string() } else { format!("{name}.v6") };
        rows::named(Table::LogicalSwitchPort, &port, switch(), "ports")
            .whole("type", Value::string("virtual"))
            .keys("options", [("virtual-ip", &*ip.to_string()), ("virtual-parents", &*parents)])
            .ids(&[("ls", &*lease.subnet), (MARK, name)])
            .add(facts);
    }
}

fn fields(object: &ObjectRef, vip: &VipView, lease: &Lease, facts: &mut Facts) {
    let user = vip.used_by.as_deref().unwrap_or_default();
    let labels = BTreeMap::from([
        (keys::SUBNET_LABEL.into(), lease.subnet.clone()),
        (keys::IP_RESERVED_LABEL.into(), user.into()),
    ]);
    rows::kube(facts, object, &vip.uid, Gate::Now, Fields::Labels(labels));
    let text = |ip: Option<String>| ip.unwrap_or_default();
    let mac = vip.router_mac.as_ref().unwrap_or(&lease.mac);
    let status = BTreeMap::from([
        ("type".into(), json!(vip.spec.r#type)),
        ("v4ip".into(), json!(text(lease.v4.map(|ip| ip.to_string())))),
        ("v6ip".into(), json!(text(lease.v6.map(|ip| ip.to_string())))),
        ("mac".into(), json!(mac)),
        ("selector".into(), json!(vip.spec.selector)),
    ]);
    rows::kube(facts, object, &vip.uid, Gate::Now, Fields::Status(status));
    let unused = without_effect(vip).unwrap_or_default();
    if !unused.is_empty() {
        rows::warning(facts, object, &vip.uid, NOT_YET, &unused);
    }
    let why = (ALLOCATED, &*unused);
    rows::condition(facts, object, &vip.uid, Gate::Committed, ("Ready", true), why);
    match &vip.changed {
        Some(message) => {
            rows::warning(facts, object, &vip.uid, IMMUTABLE, message);
            rows::condition(facts, object, &vip.uid, Gate::Now, ("Error", true), (IMMUTABLE, message));
        }
        None => rows::condition(facts, object, &vip.uid, Gate::Now, ("Error", false), (ALLOCATED, "")),
    }
}

/// Fields that the Vip is served without.
fn without_effect(vip: &VipView) -> Option<String> {
    if vip.spec.attach_subnets.is_empty() {
        return None;
    }
    Some(if vip.spec.r#type == "switch_lb_vip" {
        "spec.attachSubnets attaches load balancers, which this version of Weir does not act on; what exists in OVN \
         for them is left as it is"
            .to_owned()
    } else {
        "spec.attachSubnets has a meaning for type switch_lb_vip only; remove it".to_owned()
    })
}
