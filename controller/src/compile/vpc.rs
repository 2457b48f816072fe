//! A Vpc: its router and default routes (contract §4.3), finalizer and status.
//! This version acts on the default VPC only.

use std::net::IpAddr;
use std::sync::Arc;

use crds::net;
use ovsdb::Value;
use serde_json::json;

use super::rows::{self, NOT_YET};
use crate::facts::{Facts, Fields, Gate, Keep, Kind, ObjectRef, RowKey, Table};
use crate::view::{View, VpcView};

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let vpc = view.vpc_view(name);
    let object = ObjectRef::cluster(Kind::Vpc, name.clone());
    if *name != view.config().cluster_router {
        if let Some(vpc) = vpc {
            let message = format!(
                "this version of Weir acts on the default VPC {} only; what exists in OVN for this one is left as \
                 it is. Use a version that supports custom VPCs, or delete it",
                view.config().cluster_router
            );
            rows::condition(&mut facts, &object, &vpc.uid, Gate::Now, ("Ready", false), (NOT_YET, &message));
        }
        return facts;
    }
    // The router outlives its object: without it no pod reaches another, and the
    // object comes back at once (unit globals).
    router(name, vpc.as_deref(), &mut facts);
    default_routes(view, name, vpc.as_deref(), &mut facts);
    if let Some(vpc) = vpc {
        status(view, name, &vpc, &object, &mut facts);
    }
    facts
}

fn router(name: &str, vpc: Option<&VpcView>, facts: &mut Facts) {
    let mut options = vec![("mac_binding_age_threshold", "300"), ("dynamic_neigh_routers", "true")];
    if !vpc.is_some_and(|vpc| vpc.learns_neighbours) {
        options.push(("always_learn_from_arp_request", "false"));
    }
    rows::root(Table::LogicalRouter, name).ids(&[]).keys("options", options).add(facts);
}

/// Default routes to the gateway of the join subnet, in the main table and in
/// every table that the spec names: what leaves the cluster goes to the nodes.
fn default_routes(view: &dyn View, router: &str, vpc: Option<&VpcView>, facts: &mut Facts) {
    let join =
        view.subnet(&view.config().node_switch).filter(|join| join.invalid.is_none() && join.supported);
    let Some(join) = join else {
        facts.keeps.push(Keep::Marked(Table::StaticRoute, "vendor", crds::keys::VENDOR.into()));
        return;
    };
    let gateways = net::parse_dual_ips(&join.spec.gateway).unwrap_or_default();
    let named = vpc.into_iter().flat_map(|vpc| vpc.route_tables.iter().map(|table| &**table));
    for table in std::iter::once("").chain(named) {
        for gateway in gateways.iter() {
            route(router, table, gateway, facts);
        }
    }
}

fn route(router: &str, table: &str, nexthop: IpAddr, facts: &mut Facts) {
    let prefix = if nexthop.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let nexthop = nexthop.to_string();
    let key = rows::route_key(router, table, "dst-ip", prefix, &nexthop);
    rows::child(Table::StaticRoute, &key, RowKey::new(Table::LogicalRouter, router), "static_routes")
        .whole("ip_prefix", Value::string(prefix))
        .whole("nexthop", Value::string(nexthop))
        .whole("policy", Value::optional(Some("dst-ip")))
        .whole("route_table", Value::string(table))
        .ids(&[])
        .add(facts);
}

fn status(view: &dyn View, name: &Arc<str>, vpc: &VpcView, object: &ObjectRef, facts: &mut Facts) {
    let subnets: Vec<Arc<str>> = view
        .subnet_names()
        .iter()
        .filter(|subnet| view.subnet(subnet).is_some_and(|subnet| *subnet.spec.vpc == **name))
        .cloned()
        .collect();
    let used = !subnets.is_empty();
    rows::kube(facts, object, &vpc.uid, Gate::Now, Fields::Finalizer(used || !vpc.deleting));
    let fields = [
        ("standby", json!(true)),
        ("default", json!(true)),
        ("defaultLogicalSwitch", json!(&*view.config().default_ls)),
        ("router", json!(&**name)),
        ("subnets", json!(subnets)),
    ];
    let fields = fields.into_iter().map(|(field, value)| (field.into(), value)).collect();
    rows::kube(facts, object, &vpc.uid, Gate::Committed, Fields::Status(fields));
    let message = format!(
        "spec fields that this version of Weir does not act on yet: {}; what exists in OVN for them is left as it is",
        vpc.unsupported.join(", ")
    );
    let (ready, why) = if vpc.unsupported.is_empty() {
        (true, ("ReconcileSuccess", ""))
    } else {
        (false, (NOT_YET, &*message))
    };
    rows::condition(facts, object, &vpc.uid, Gate::Committed, ("Ready", ready), why);
}
