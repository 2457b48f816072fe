//! An IPPool: its address set, status and finalizer (contract §1.3, §4.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{Count, names};
use ovsdb::Value;
use serde_json::json;

use super::rows;
use crate::facts::{Facts, Fields, Gate, Keep, Kind, ObjectRef, RowKey, Table};
use crate::view::{IpPoolView, PoolUsage, Usage, View};

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let Some(pool) = view.ippool(name) else { return facts };
    let object = ObjectRef::cluster(Kind::IpPool, name.clone());
    let set = names::dot_form(name);
    if let Some(addresses) = &pool.address_set {
        rows::root(Table::AddressSet, &set)
            .whole("addresses", Value::strings(addresses.iter().map(|text| text.to_string())))
            .ids(&[("ippool", name)])
            .add(&mut facts);
    }
    if let Some((reason, message)) = &pool.invalid {
        // What policies refer to stays while the pool is being put right.
        facts.keeps.push(Keep::Row(RowKey::new(Table::AddressSet, set)));
        for (kind, status) in [("Ready", false), ("Error", true)] {
            rows::condition(&mut facts, &object, &pool.uid, Gate::Now, (kind, status), (reason, message));
        }
        rows::warning(&mut facts, &object, &pool.uid, reason, message);
    } else if let Some(ips) = &pool.fill {
        let fields = BTreeMap::from([("ips".into(), json!(ips))]);
        rows::kube(&mut facts, &object, &pool.uid, Gate::Now, Fields::Spec(fields));
    }
    let usage = view.pool_usage(name);
    status(&object, &pool, &usage, &mut facts);
    facts
}

fn status(object: &ObjectRef, pool: &IpPoolView, usage: &PoolUsage, facts: &mut Facts) {
    let used = usage.usage.v4_using > 0 || usage.usage.v6_using > 0;
    rows::kube(facts, object, &pool.uid, Gate::Now, Fields::Finalizer(used || !pool.deleting));
    rows::kube(facts, object, &pool.uid, Gate::Now, Fields::Status(counters(&usage.usage)));
    if pool.invalid.is_some() {
        return;
    }
    if pool.deleting && used {
        let message = format!(
            "the pool goes when its addresses are free; still in use by {}{}",
            usage.holders.join(", "),
            if usage.usage.v4_using.max(usage.usage.v6_using) > 5 { " and others" } else { "" },
        );
        let why = ("InUse", &*message);
        rows::condition(facts, object, &pool.uid, Gate::Now, ("Ready", false), why);
        return;
    }
    let why = ("UpdateIPAMSucceeded", "");
    rows::success(facts, object, &pool.uid, Gate::Committed, why.0);
    rows::condition(facts, object, &pool.uid, Gate::Committed, ("Ready", true), why);
    rows::condition(facts, object, &pool.uid, Gate::Now, ("Error", false), why);
}

fn counters(usage: &Usage) -> BTreeMap<Arc<str>, serde_json::Value> {
    let count = |n: u128| Count::new(n).to_json();
    BTreeMap::from([
        ("v4AvailableIPs".into(), count(usage.v4_available)),
        ("v4AvailableIPRange".into(), json!(usage.v4_available_range)),
        ("v4UsingIPs".into(), count(usage.v4_using)),
        ("v4UsingIPRange".into(), json!(usage.v4_using_range)),
        ("v6AvailableIPs".into(), count(usage.v6_available)),
        ("v6AvailableIPRange".into(), json!(usage.v6_available_range)),
        ("v6UsingIPs".into(), count(usage.v6_using)),
        ("v6UsingIPRange".into(), json!(usage.v6_using_range)),
    ])
}
