//! A port that no pod has now and whose address is kept: for the next pod of a
//! StatefulSet or Deployment, or because a user reserved it (contract §3.5).
//!
//! The row of a port that has its workload's name stays, without memberships; the
//! IP object is the record by which the address is known after a restart.

use std::sync::Arc;

use crds::{keys, names};
use ovsdb::Value;

use super::rows;
use crate::facts::{Column, Facts, Fields, Gate, Keep, Kind, KubeFact, ObjectRef, RowKey, Table};
use crate::view::{KeptView, Lease, LeaseState, View};

pub(super) fn compile(view: &dyn View, port: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(kept) = view.kept(port) else { return facts };
    let object = ObjectRef::cluster(Kind::Ip, port.clone());
    let lease = match view.lease(port) {
        LeaseState::Held(lease) => lease,
        LeaseState::Refused(reason, message) => {
            if let Some(uid) = &kept.uid {
                rows::warning(&mut facts, &object, uid, &reason, &message);
            }
            return facts;
        }
        LeaseState::Moving | LeaseState::Pending | LeaseState::None => return facts,
    };
    if kept.row {
        let usable = view.subnet(&lease.subnet).is_some_and(|subnet| subnet.supported);
        if usable {
            row(&kept, &lease, &mut facts);
        } else {
            facts.keeps.push(Keep::Row(RowKey::new(Table::LogicalSwitchPort, port.clone())));
        }
    }
    let owner = rows::IpOwner {
        namespace: &kept.namespace,
        pod: &kept.pod,
        pod_type: &kept.pod_type,
        node: &kept.node,
        annotations: &kept.annotations,
    };
    let mut body = rows::ip_object(&lease, &owner, None);
    if kept.reserved {
        body["metadata"]["labels"][crds::keys::IP_RESERVED_LABEL] = "true".into();
    }
    facts.kube.push(KubeFact { object, uid: None, gate: Gate::Now, fields: Fields::Object(body) });
    facts
}

/// What the address and a lost row need; what the last pod had beside stays. (A row with
/// another address would be believed at the next start.)
fn row(kept: &KeptView, lease: &Lease, facts: &mut Facts) {
    let switch = RowKey::new(Table::LogicalSwitch, &*lease.subnet);
    let id = format!("{}/{}", kept.namespace, kept.pod);
    let mut ids = vec![("ls", &*lease.subnet), ("pod", &*id)];
    let provider = names::provider_in(&lease.port, &kept.pod, &kept.namespace);
    ids.extend(provider.map(|provider| ("provider", provider)));
    // Virtual addresses are listed by pods alone.
    let marks = [("vendor", keys::VENDOR)].into_iter().chain(ids);
    rows::named(Table::LogicalSwitchPort, &lease.port, switch, "ports")
        .whole("type", Value::string(""))
        .whole("addresses", Value::strings([rows::port_address(lease)]))
        // The next pod's port is armed anew, and a machine starts on any node, wherever a
        // migration has left it.
        .column("options", Column::map_without([] as [(&str, &str); 0], &rows::ACTIVATION))
        .column("external_ids", Column::map_without(marks, &rows::VIP_MARKS))
        .add(facts);
}
