//! A Vpc: its router, the routes and policies of its spec, its half of each peering
//! (contract §1.4, §4.3), finalizer and status. An entry of the spec that is wrong
//! is named in a condition and left out; the others are served.

pub(crate) mod bfd;
pub(super) mod external;
mod peerings;
mod policies;
pub(crate) mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::BfdPortStatus;
use serde_json::json;

use super::rows;
use crate::facts::{Column, Facts, Fields, Gate, Kind, ObjectRef, Table};
use crate::view::{View, VpcView};

/// Reason of conditions and events about entries that are wrong.
const INVALID: &str = "ValidateVpcFailed";
/// Reason of the condition of a Vpc that waits for its subnets to be gone.
const IN_USE: &str = "SubnetsExist";
/// Reason of one whose external network lacks something.
const NO_EXTERNAL: &str = "ExternalNetworkNotReady";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let default = *name == view.config().cluster_router;
    let vpc = view.vpc(name);
    match &vpc {
        // The default router outlives its object: without it no pod reaches another,
        // and the object comes back at once (unit globals).
        None if !default => return facts,
        Some(vpc) if vpc.mirrored => return facts,
        _ => {}
    }
    let spec = vpc.as_ref().map(|vpc| vpc.spec.clone()).unwrap_or_default();
    router(view, name, &spec, &mut facts);
    let outcome = vpc.as_ref().map(|vpc| external::rows(view, name, vpc, &mut facts)).unwrap_or_default();
    let mut problems = routes::rows(view, name, &spec, &outcome, &mut facts);
    problems.extend(policies::rows(name, &spec, &mut facts));
    let waiting = peerings::rows(view, name, &spec, &mut facts, &mut problems);
    let bfd = bfd::rows(view, name, &spec, &mut facts, &mut problems);
    if let Some(vpc) = vpc {
        let object = ObjectRef::cluster(Kind::Vpc, name.clone());
        status(view, &object, &vpc, &bfd, &outcome, &mut facts);
        let waiting = [waiting, outcome.notes.clone()].concat();
        conditions(view, &object, &vpc, (&problems, &outcome.lacks, &waiting), &mut facts);
    }
    facts
}

fn router(view: &dyn View, name: &str, spec: &crds::VpcSpec, facts: &mut Facts) {
    // With external networks, peers, or an underlay that it routes for, OVN must learn
    // neighbours from ARP requests.
    let subnets = view.vpc_subnets(name);
    let learns = spec.enable_external
        || !spec.extra_external_subnets.is_empty()
        || !spec.vpc_peerings.is_empty()
        || subnets.iter().any(|s| view.subnet(s).is_some_and(|s| s.spec.u2o_interconnection));
    let options = [("mac_binding_age_threshold", "300"), ("dynamic_neigh_routers", "true")];
    const LEARNING: &str = "always_learn_from_arp_request";
    let options = if learns {
        Column::map_without(options, &[LEARNING])
    } else {
        Column::keys(options.into_iter().chain([(LEARNING, "false")]))
    };
    rows::root(Table::LogicalRouter, name).ids(&[]).column("options", options).add(facts);
}

fn status(
    view: &dyn View,
    object: &ObjectRef,
    vpc: &VpcView,
    bfd: &BfdPortStatus,
    outcome: &external::Outcome,
    facts: &mut Facts,
) {
    let config = view.config();
    let default = object.name == config.cluster_router;
    let subnets = view.vpc_subnets(&object.name);
    let used = !subnets.is_empty();
    rows::kube(facts, object, &vpc.uid, Gate::Now, Fields::Finalizer(used || !vpc.deleting));
    let first = if default { &*config.default_ls } else { &*vpc.spec.default_subnet };
    let peers: std::collections::BTreeSet<&str> =
        vpc.spec.vpc_peerings.iter().map(|peering| &*peering.remote_vpc).collect();
    let switch = &config.external_gateway_switch;
    let extra: Vec<&str> = vpc
        .spec
        .extra_external_subnets
        .iter()
        .map(|name| &**name)
        .filter(|name| outcome.connected.contains(*name))
        .collect();
    let fields = [
        ("enableExternal", json!(vpc.spec.enable_external && outcome.connected.contains(switch))),
        ("extraExternalSubnets", json!(extra)),
        ("enableBfd", json!(outcome.bfd)),
        ("standby", json!(true)),
        ("default", json!(default)),
        ("defaultLogicalSwitch", json!(first)),
        ("router", json!(&*object.name)),
        ("subnets", json!(*subnets)),
        ("vpcPeerings", json!(peers)),
        ("bfdPort", json!({ "name": bfd.name, "ip": bfd.ip, "nodes": bfd.nodes })),
    ];
    let fields: BTreeMap<_, _> = fields.into_iter().map(|(field, value)| (field.into(), value)).collect();
    rows::kube(facts, object, &vpc.uid, Gate::Committed, Fields::Status(fields));
}

fn conditions(
    view: &dyn View,
    object: &ObjectRef,
    vpc: &VpcView,
    (problems, lacks, waiting): (&[String], &[String], &[String]),
    facts: &mut Facts,
) {
    let say = |facts: &mut Facts, gate, kind, status, why| {
        rows::condition(facts, object, &vpc.uid, gate, (kind, status), why);
    };
    let mut problems = problems.to_vec();
    problems.extend(default_subnet(view, object, vpc));
    let problem = problems.join("; ");
    if problems.is_empty() {
        say(facts, Gate::Now, "Validated", true, ("ValidateVpcSuccess", ""));
    } else {
        say(facts, Gate::Now, "Validated", false, (INVALID, &problem));
        rows::warning(facts, object, &vpc.uid, INVALID, &problem);
    }
    let lacking = lacks.join(". ");
    let wrong = (!problems.is_empty()).then_some((INVALID, &*problem));
    let wrong = wrong.or((!lacks.is_empty()).then_some((NO_EXTERNAL, &*lacking)));
    rows::error(facts, object, &vpc.uid, wrong, "ReconcileSuccess");
    let subnets = view.vpc_subnets(&object.name);
    if vpc.deleting && !subnets.is_empty() {
        let names = subnets.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
        let message = format!("being deleted, waits for its subnets {names}; delete them");
        say(facts, Gate::Now, "Ready", false, (IN_USE, &message));
        rows::warning(facts, object, &vpc.uid, IN_USE, &message);
    } else if !problems.is_empty() {
        say(facts, Gate::Now, "Ready", false, (INVALID, &problem));
    } else if !lacks.is_empty() {
        say(facts, Gate::Now, "Ready", false, (NO_EXTERNAL, &lacking));
        rows::warning(facts, object, &vpc.uid, NO_EXTERNAL, &lacking);
    } else {
        say(facts, Gate::Committed, "Ready", true, ("ReconcileSuccess", &waiting.join("; ")));
    }
}

/// The subnet that the VPC's namespaces get first must be there, and the VPC's.
fn default_subnet(view: &dyn View, object: &ObjectRef, vpc: &VpcView) -> Option<String> {
    let name = &*vpc.spec.default_subnet;
    if name.is_empty() {
        return None;
    }
    match view.subnet(name) {
        None => Some(format!("defaultSubnet: there is no Subnet {name}; create it, or name another one")),
        Some(subnet) if *subnet.spec.vpc != *object.name => Some(format!(
            "defaultSubnet: Subnet {name} is in Vpc {}; name one of this Vpc's",
            subnet.spec.vpc
        )),
        Some(_) => None,
    }
}
