//! A Subnet: switch, router ports, policies (contract §4.2, §4.3), defaulted spec,
//! finalizer, conditions, status. Normalisation and what it collides with are the
//! world's business; underlay subnets are left as they are.

mod acls;
mod checks;
mod external;
pub(crate) mod gateway;
pub(crate) mod querier;
pub(super) use external::network_problem;
mod spec;
mod status;
mod topology;

use std::sync::Arc;

use super::dhcp;
use super::rows::{self, NOT_YET};
use crate::facts::{Facts, Fields, Gate, Kind, ObjectRef};
use crate::view::{SubnetView, Usage, View};

/// What became of the rows that can fail by the spec.
#[derive(Default)]
struct Outcome {
    /// An entry of `acls` that is wrong.
    acl: Option<String>,
    gateway: gateway::Gateway,
    querier: querier::Querier,
}

/// Reason of conditions and events about a spec that is wrong (contract §8.8).
const INVALID: &str = "ValidateLogicalSwitchFailed";

/// Reason of a subnet that has an entry of `acls` which is wrong (contract §8.8).
const WRONG_ACL: &str = "SetLogicalSwitchAclsFailed";

pub(super) fn compile(view: &dyn View, name: &Arc<str>) -> Facts {
    let mut facts = Facts::default();
    let config = view.config();
    let Some(subnet) = view.subnet(name) else {
        // One that flags name is on its way back (unit globals).
        if *name == config.node_switch || *name == config.default_ls {
            topology::keep(&config.cluster_router, name, &[], &mut facts);
        }
        return facts;
    };
    let object = ObjectRef::cluster(Kind::Subnet, name.clone());
    let usage = view.usage(name);
    let mut outcome = Outcome::default();
    if subnet.supported && subnet.invalid.is_none() && subnet.is_ovn() {
        outcome.querier = querier::rows(view, name, &subnet, &mut facts);
        let contested = !usage.contested_gateways.is_empty();
        topology::rows(config, name, &subnet.spec, (outcome.querier.config.clone(), contested), &mut facts);
        topology::vips(view, name, &subnet.spec, &usage, &mut facts);
        dhcp::rows(config, name, &subnet.spec, &mut facts);
        outcome.acl = acls::rows(view, name, &subnet.spec, &mut facts);
        if gateway::centralized(view, &subnet) {
            outcome.gateway = gateway::rows(view, name, &subnet, &mut facts);
        }
    } else if subnet.external && subnet.invalid.is_none() {
        external::rows(view, name, &subnet.spec, &mut facts);
    } else if subnet.is_ovn() {
        topology::keep(&subnet.spec.vpc, name, &subnet.spec.vips, &mut facts);
    }
    if let Some((reason, message)) = &subnet.invalid {
        for kind in ["Validated", "Ready"] {
            rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, (kind, false), (reason, message));
        }
        rows::error(&mut facts, &object, &subnet.uid, Some((reason, message)), "");
        rows::warning(&mut facts, &object, &subnet.uid, reason, message);
        if subnet.deleting {
            finalizer(&object, &subnet, &usage, &mut facts);
        }
        return facts;
    }
    let named = |problem: &String| format!("subnet {name}: {problem}");
    let problem = checks::check(view, name, &subnet.spec)
        .or_else(|| subnet.problem.as_deref().map(str::to_owned))
        .or_else(|| checks::contested_gateway(&usage).as_ref().map(named))
        .or_else(|| checks::contested(&usage).as_ref().map(named))
        .or_else(|| outcome.querier.problem.as_ref().map(named));
    match &problem {
        Some(message) => {
            let why = (INVALID, &**message);
            rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, ("Validated", false), why);
            rows::warning(&mut facts, &object, &subnet.uid, INVALID, message);
        }
        None => {
            let why = ("ValidateLogicalSwitchSuccess", "");
            rows::success(&mut facts, &object, &subnet.uid, Gate::Now, why.0);
            rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, ("Validated", true), why);
        }
    }
    if subnet.external {
        external::fields(view, &object, &subnet, &usage, problem.as_deref(), &mut facts);
        return facts;
    }
    if !subnet.supported {
        let message = underlay(name);
        rows::condition(&mut facts, &object, &subnet.uid, Gate::Now, ("Ready", false), (NOT_YET, &message));
        // One that was an external network, or that nobody has an address of.
        if subnet.deleting {
            finalizer(&object, &subnet, &usage, &mut facts);
        }
        return facts;
    }
    object_fields(view, &object, &subnet, &usage, &outcome, &mut facts);
    let acl = outcome.acl.as_ref().map(named);
    readiness(&object, &subnet, &usage, (problem.as_deref(), acl.as_deref(), &outcome.gateway), &mut facts);
    facts
}

fn underlay(name: &str) -> String {
    format!(
        "this version of Weir does not act on underlay subnets (spec.vlan) such as {name}; what exists in OVN for it \
         is left as it is, until a Vpc or an OvnEip names it as external network. Use an overlay subnet, or a version \
         that supports underlay subnets"
    )
}

/// Contract §3.7: a subnet on its way out waits until no address of it is used.
fn finalizer(object: &ObjectRef, subnet: &SubnetView, usage: &Usage, facts: &mut Facts) {
    let used = usage.v4_using > 0 || usage.v6_using > 0 || !usage.holders.is_empty();
    rows::kube(facts, object, &subnet.uid, Gate::Now, Fields::Finalizer(used || !subnet.deleting));
}

fn object_fields(
    view: &dyn View,
    object: &ObjectRef,
    subnet: &SubnetView,
    usage: &Usage,
    outcome: &Outcome,
    facts: &mut Facts,
) {
    let (config, uid) = (view.config(), &subnet.uid);
    finalizer(object, subnet, usage, facts);
    if !subnet.deleting {
        rows::kube(facts, object, uid, Gate::Now, Fields::Spec(spec::defaults(config, &object.name, subnet)));
    }
    rows::kube(facts, object, uid, Gate::Now, Fields::Status(status::counters(usage)));
    let active = outcome.gateway.active.as_deref();
    let network = status::network(view, &object.name, subnet, active, &outcome.querier);
    rows::kube(facts, object, uid, Gate::Committed, Fields::Status(network));
}

/// Ready once its rows are in the database, unless the spec asks for what is wrong.
fn readiness(
    object: &ObjectRef,
    subnet: &SubnetView,
    usage: &Usage,
    (problem, acl, gateway): (Option<&str>, Option<&str>, &gateway::Gateway),
    facts: &mut Facts,
) {
    let held = status::held(usage);
    let wrong = (problem.map(|problem| (INVALID, problem)))
        .or_else(|| acl.map(|acl| (WRONG_ACL, acl)))
        .or_else(|| gateway.problem.as_ref().map(|(reason, message)| (*reason, message.as_str())));
    rows::error(facts, object, &subnet.uid, wrong, success(subnet));
    let (gate, ready, why) = match (problem, &held) {
        (_, Some(held)) if subnet.deleting => {
            rows::warning(facts, object, &subnet.uid, status::IN_USE, held);
            (Gate::Now, false, (status::IN_USE, &**held))
        }
        (Some(problem), _) => (Gate::Now, false, (INVALID, problem)),
        (None, _) if acl.is_some() => {
            let message = acl.unwrap_or_default();
            rows::warning(facts, object, &subnet.uid, WRONG_ACL, message);
            (Gate::Now, false, (WRONG_ACL, message))
        }
        _ if gateway.problem.is_some() => {
            let (reason, message) = gateway.problem.as_ref().map_or((INVALID, ""), |(r, m)| (*r, m.as_str()));
            rows::warning(facts, object, &subnet.uid, reason, message);
            (Gate::Now, false, (reason, message))
        }
        (None, _) => (Gate::Committed, true, (success(subnet), "")),
    };
    if ready {
        rows::success(facts, object, &subnet.uid, gate, why.0);
    }
    rows::condition(facts, object, &subnet.uid, gate, ("Ready", ready), why);
}

/// The reason of a subnet that is ready (contract §8.8).
fn success(subnet: &SubnetView) -> &'static str {
    match &*subnet.spec {
        _ if !subnet.is_ovn() => "SetNonOvnSubnetSuccess",
        spec if spec.private => "SetPrivateLogicalSwitchSuccess",
        spec if spec.gateway_type == "centralized" => "ReconcileCentralizedGatewaySuccess",
        _ => "ResetLogicalSwitchAclSuccess",
    }
}
