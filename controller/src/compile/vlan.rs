//! A Vlan: who uses it, for whom it waits, and whether another one is in its place (contract §1.6). Its
//! effect is the port to the wire of external networks (unit subnet) and, on nodes, the agent's.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Kind, ObjectRef};
use crate::view::View;

/// Reason of one that is being deleted and waits for its Subnets.
const IN_USE: &str = "InUse";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(vlan) = view.vlan(name) else { return facts };
    let object = ObjectRef::cluster(Kind::Vlan, name.clone());
    let status = BTreeMap::from([
        ("subnets".into(), json!(vlan.subnets)),
        ("conflict".into(), json!(vlan.conflict.is_some())),
    ]);
    rows::kube(&mut facts, &object, &vlan.uid, Gate::Now, Fields::Status(status));
    rows::kube(&mut facts, &object, &vlan.uid, Gate::Now, Fields::Finalizer(!vlan.subnets.is_empty()));
    if vlan.deleting && !vlan.subnets.is_empty() {
        let users: Vec<&str> = vlan.subnets.iter().map(|subnet| &**subnet).collect();
        let message = format!("being deleted, waits for Subnet {}; delete it first", users.join(", "));
        rows::condition(&mut facts, &object, &vlan.uid, Gate::Now, ("Ready", false), (IN_USE, &message));
        rows::warning(&mut facts, &object, &vlan.uid, IN_USE, &message);
        return facts;
    }
    match &vlan.conflict {
        Some(other) => {
            let message = format!(
                "Vlan {other}, which was first, has id {} of ProviderNetwork {} too; give this one another id",
                vlan.id, vlan.provider
            );
            rows::condition(
                &mut facts,
                &object,
                &vlan.uid,
                Gate::Now,
                ("Ready", false),
                ("Conflict", &message),
            );
            rows::warning(&mut facts, &object, &vlan.uid, "Conflict", &message);
        }
        None => {
            let why = ("ReconcileSuccess", "");
            rows::condition(&mut facts, &object, &vlan.uid, Gate::Now, ("Ready", true), why);
        }
    }
    facts
}
