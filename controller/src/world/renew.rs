//! Views that take the place of older ones: units that read them hear of it, if there is anything new.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ByName, ReadKey};

/// Puts a view in the place of the one before it, if there is anything new in it.
pub(super) fn renew<V: PartialEq>(
    views: &mut ByName<Arc<V>>,
    changed: &mut BTreeSet<ReadKey>,
    key: fn(Arc<str>) -> ReadKey,
    (name, view): (Arc<str>, V),
) {
    if views.get(&name).is_none_or(|old| **old != view) {
        views.insert(name.clone(), Arc::new(view));
        changed.insert(key(name));
    }
}

/// The same for all views of a kind: those that are no longer there go.
pub(super) fn renew_all<V: PartialEq>(
    views: &mut ByName<Arc<V>>,
    changed: &mut BTreeSet<ReadKey>,
    key: fn(Arc<str>) -> ReadKey,
    now: ByName<V>,
) {
    let gone: Vec<_> = views.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
    for name in gone {
        views.remove(&name);
        changed.insert(key(name));
    }
    for view in now {
        renew(views, changed, key, view);
    }
}
