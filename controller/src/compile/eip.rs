//! An OvnEip (contract §1.11): the port of one of type `lsp`, labels, status, finalizer.
//!
//! The router's port that has the address of one of type `lrp` is the Vpc's; NAT rules are
//! units of their own. The address is free when nothing uses it any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{keys, names};
use ovsdb::Value;
use serde_json::json;

use super::rows;
use super::vpc::external;
use crate::facts::{Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::view::{EipType, EipView, Lease, LeaseState, View};

/// Reason of an OvnEip that has its addresses.
const ALLOCATED: &str = "AddressAllocated";
/// Reason of one whose spec asks for other addresses than it has.
const IMMUTABLE: &str = "AddressImmutable";
/// Reason of one that waits for who uses it.
const IN_USE: &str = "InUse";
/// Reason of one whose port's name another object has.
const TAKEN: &str = "NameInUse";
/// Reason of one that nothing asks for.
const UNUSED: &str = "NotUsed";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(eip) = view.ovn_eip(name) else { return facts };
    let object = ObjectRef::cluster(Kind::OvnEip, name.clone());
    let wanted = wanted(view, &eip);
    if eip.made && wanted == Some(false) && eip.users.is_empty() {
        // It goes with what it was made for; its address is free when the port is gone.
        facts.kube.push(KubeFact {
            object,
            uid: Some(eip.uid.clone()),
            gate: Gate::Now,
            fields: Fields::Absent,
        });
        return facts;
    }
    let using = users(view, &eip, wanted);
    let held = !eip.deleting || !using.is_empty();
    rows::kube(&mut facts, &object, &eip.uid, Gate::Now, Fields::Finalizer(held));
    if eip.deleting {
        if held {
            let message = format!("being deleted, waits for {}", using.join(", "));
            rows::condition(&mut facts, &object, &eip.uid, Gate::Now, ("Ready", false), (IN_USE, &message));
            rows::warning(&mut facts, &object, &eip.uid, IN_USE, &message);
        }
        return facts;
    }
    if let LeaseState::Refused(reason, message) = view.lease(&eip.port) {
        for (kind, status) in [("Ready", false), ("Error", true)] {
            rows::condition(&mut facts, &object, &eip.uid, Gate::Now, (kind, status), (&reason, &message));
        }
        rows::warning(&mut facts, &object, &eip.uid, &reason, &message);
    }
    let Some(lease) = &eip.lease else {
        if matches!(view.lease(&eip.port), LeaseState::Held(_)) {
            let message =
                format!("port {name} is that of another object already; give the OvnEip another name");
            rows::condition(&mut facts, &object, &eip.uid, Gate::Now, ("Ready", false), (TAKEN, &message));
            rows::warning(&mut facts, &object, &eip.uid, TAKEN, &message);
        }
        return facts;
    };
    if eip.kind == Some(EipType::SwitchPort) {
        port(view, name, lease, &mut facts);
    }
    fields(&object, &eip, lease, wanted, &mut facts);
    facts
}

/// Whether the Vpc of a router's port asks for it; `None` for other types.
fn wanted(view: &dyn View, eip: &EipView) -> Option<bool> {
    let vpc = eip.vpc.as_ref().filter(|_| eip.kind == Some(EipType::RouterPort))?;
    let asks =
        view.vpc(vpc).is_some_and(|of| of.mirrored || external::wants(view, vpc, &of).contains(&eip.subnet));
    Some(asks)
}

/// What has to go before its address is free.
fn users(view: &dyn View, eip: &EipView, wanted: Option<bool>) -> Vec<String> {
    let mut using: Vec<String> = eip.users.iter().map(|user| format!("{user}; delete it")).collect();
    match (&eip.vpc, eip.kind) {
        (Some(vpc), Some(EipType::RouterPort)) if wanted == Some(true) || eip.row => using.push(format!(
            "the port of Vpc {vpc} in Subnet {}; take the subnet out of the Vpc's enableExternal or \
             extraExternalSubnets",
            eip.subnet
        )),
        // One of a broken subnet goes with the switch.
        (_, Some(EipType::SwitchPort)) if eip.row && usable(view, &eip.subnet) => {
            using.push("its port to go from the database".into());
        }
        _ => {}
    }
    using
}

fn usable(view: &dyn View, subnet: &str) -> bool {
    view.subnet(subnet).is_some_and(|subnet| subnet.external && subnet.invalid.is_none())
}

fn port(view: &dyn View, name: &Arc<str>, lease: &Lease, facts: &mut Facts) {
    let row = RowKey::new(Table::LogicalSwitchPort, name.clone());
    if !usable(view, &lease.subnet) {
        facts.keeps.extend(
            [row, RowKey::new(Table::LogicalSwitchPort, names::localnet_port(&lease.subnet))].map(Keep::Row),
        );
        return;
    }
    rows::named(Table::LogicalSwitchPort, name, RowKey::new(Table::LogicalSwitch, &*lease.subnet), "ports")
        .whole("type", Value::string(""))
        .whole("addresses", Value::strings([rows::port_address(lease)]))
        .ids(&[("ls", &*lease.subnet)])
        .add(facts);
}

fn fields(object: &ObjectRef, eip: &EipView, lease: &Lease, wanted: Option<bool>, facts: &mut Facts) {
    let kind = eip.kind.unwrap_or_default();
    let text = |ip: Option<String>| ip.unwrap_or_default();
    let (v4, v6) = (text(lease.v4.map(|ip| ip.to_string())), text(lease.v6.map(|ip| ip.to_string())));
    let labels: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::from([
        (keys::SUBNET_LABEL.into(), lease.subnet.clone()),
        (keys::OVN_EIP_TYPE_LABEL.into(), kind.name().into()),
        (keys::EIP_V4_IP_LABEL.into(), v4.as_str().into()),
        (keys::EIP_V6_IP_LABEL.into(), keys::label_of_address(&v6).into()),
    ]);
    rows::kube(facts, object, &eip.uid, Gate::Now, Fields::Labels(labels));
    let status = BTreeMap::from([
        ("type".into(), json!(kind.name())),
        ("v4Ip".into(), json!(v4)),
        ("v6Ip".into(), json!(v6)),
        ("macAddress".into(), json!(&*lease.mac)),
    ]);
    rows::kube(facts, object, &eip.uid, Gate::Now, Fields::Status(status));
    match &eip.changed {
        Some(message) => {
            rows::warning(facts, object, &eip.uid, IMMUTABLE, message);
            rows::condition(facts, object, &eip.uid, Gate::Now, ("Error", true), (IMMUTABLE, message));
        }
        None => rows::condition(facts, object, &eip.uid, Gate::Now, ("Error", false), (ALLOCATED, "")),
    }
    // Whether a node is ready for its port, that node says (contract, node §4.8).
    let ready = |facts: &mut Facts, ready: bool| {
        let status = BTreeMap::from([("ready".into(), json!(ready))]);
        rows::kube(facts, object, &eip.uid, Gate::Committed, Fields::Status(status));
    };
    match (kind, wanted) {
        (EipType::RouterPort, wanted) if wanted != Some(true) || !eip.row => {
            let message = match (&eip.vpc, wanted) {
                (Some(vpc), Some(true)) => {
                    format!("its port of Vpc {vpc} is not there yet; see the Vpc's conditions")
                }
                (Some(vpc), _) => format!(
                    "no Vpc {vpc} asks for it: name Subnet {} in the Vpc's extraExternalSubnets, or set its \
                     enableExternal",
                    eip.subnet
                ),
                (None, _) => {
                    format!("an OvnEip of type lrp is called <Vpc>-{}; give it such a name", eip.subnet)
                }
            };
            rows::condition(facts, object, &eip.uid, Gate::Now, ("Ready", false), (UNUSED, &message));
        }
        (kind, _) => {
            if kind != EipType::SwitchPort {
                ready(facts, true);
            }
            rows::condition(facts, object, &eip.uid, Gate::Committed, ("Ready", true), (ALLOCATED, ""));
        }
    }
}
