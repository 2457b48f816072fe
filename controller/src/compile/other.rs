//! Objects of kinds that this version does not act on: they say so, in their
//! conditions where the schema has any, else by an event. Of an IptablesEIP the address is
//! held; why it can't be is told too.

use std::sync::Arc;

use super::rows::{self, NOT_YET};
use crate::facts::{Facts, Gate, Kind, ObjectRef};
use crate::objects::IPTABLES_EIPS;
use crate::view::{LeaseState, View, nat_port};

/// Reason of an IptablesEIP whose address is nobody else's.
const RESERVED: &str = "AddressReserved";
/// Reason of one that has none, or none that anybody could be given.
const NONE: &str = "NoAddress";

pub(super) fn compile(view: &dyn View, plural: &'static str, namespace: &Arc<str>, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(uid) = view.other(plural, namespace, name) else { return facts };
    let object = ObjectRef { kind: Kind::Other(plural), namespace: namespace.clone(), name: name.clone() };
    let info = crds::kind_by_plural(plural);
    let message = format!(
        "this version of Weir does not act on {} yet; what exists in OVN for it is left as it is. Use a version that \
         supports it, or delete it",
        info.map_or(plural, |info| info.kind)
    );
    if info.is_some_and(|info| info.has_conditions) {
        rows::condition(&mut facts, &object, &uid, Gate::Now, ("Ready", false), (NOT_YET, &message));
    } else {
        rows::warning(&mut facts, &object, &uid, NOT_YET, &message);
    }
    if plural == IPTABLES_EIPS {
        let (status, reason, message) = match view.lease(&nat_port(name)) {
            LeaseState::Refused(reason, message) => (true, reason, message),
            LeaseState::Held(_) => (false, RESERVED.into(), "".into()),
            // What a condition said before stands until it is known.
            LeaseState::Moving | LeaseState::Pending => return facts,
            LeaseState::None => (false, NONE.into(), "".into()),
        };
        if status {
            rows::warning(&mut facts, &object, &uid, &reason, &message);
        }
        rows::condition(&mut facts, &object, &uid, Gate::Now, ("Error", status), (&reason, &message));
    }
    facts
}
