//! An IP object whose port is gone: its finalizer, then the object itself
//! (contract §3.5). While a port lives the port's own unit states the object.

use std::sync::Arc;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Kind, ObjectRef};
use crate::view::View;

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    if let Some(uid) = view.orphan_ip(name) {
        let object = ObjectRef::cluster(Kind::Ip, name.clone());
        rows::kube(&mut facts, &object, &uid, Gate::Now, Fields::Finalizer(false));
        rows::kube(&mut facts, &object, &uid, Gate::Now, Fields::Absent);
    }
    facts
}
