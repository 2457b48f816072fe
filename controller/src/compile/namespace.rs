//! A Namespace: annotations that say which subnets its pods use (contract §2.2).

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::keys;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Kind, ObjectRef};
use crate::view::View;

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(namespace) = view.namespace(name) else { return facts };
    let bound = view.namespace_subnets(name);
    let subnets: Vec<_> = bound.iter().filter_map(|s| view.subnet(s).map(|seen| (s, seen))).collect();
    // A subnet that is still to be created, or one whose spec can't be read, has
    // nothing to say yet; half a list would send pods to the wrong subnet.
    if subnets.is_empty() || subnets.len() < bound.len() || subnets.iter().any(|(_, s)| s.invalid.is_some()) {
        return facts;
    }
    let join =
        |parts: Vec<String>, separator: &str| -> Option<Arc<str>> { Some(parts.join(separator).into()) };
    let pools = view.namespace_pools(name);
    let annotations = BTreeMap::from([
        (keys::IP_POOL.into(), (!pools.is_empty()).then(|| pools.join(",").into())),
        (keys::LOGICAL_SWITCH.into(), join(subnets.iter().map(|(name, _)| name.to_string()).collect(), ",")),
        (keys::CIDR.into(), join(subnets.iter().map(|(_, s)| s.spec.cidr_block.clone()).collect(), ";")),
        (
            keys::EXCLUDE_IPS.into(),
            join(subnets.iter().map(|(_, s)| s.spec.exclude_ips.join(",")).collect(), ";"),
        ),
    ]);
    let object = ObjectRef::cluster(Kind::Namespace, name.clone());
    rows::kube(&mut facts, &object, &namespace, Gate::Now, Fields::Annotations(annotations));
    facts
}
