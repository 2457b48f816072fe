//! The world by itself: defaults and validity of subnets, bindings, leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{IpSpec, SubnetSpec, keys};
use rstest::rstest;

use super::*;
use crate::objects::{Custom, Meta, Object};
use crate::sim::config;
use crate::view::{Lease, LeaseState};

fn spec(cidr: &str) -> SubnetSpec {
    SubnetSpec { cidr_block: cidr.into(), ..SubnetSpec::default() }
}

fn meta(name: &str) -> Meta {
    Meta { name: name.into(), uid: format!("uid-{name}").into(), ..Meta::default() }
}

fn subnet(name: &str, spec: SubnetSpec) -> Object {
    let meta = Meta { finalizers: [keys::FINALIZER.into()].into(), ..meta(name) };
    Object::Subnet(Arc::new(Custom { meta, spec, status: crds::SubnetStatus::default() }))
}

#[test]
fn a_subnet_is_completed_as_the_contract_says() {
    let (full, problem) = subnets::normalise(&config(), "ovn-default", &spec("10.16.3.4/16"));
    assert_eq!(problem, None);
    assert_eq!((&*full.cidr_block, &*full.protocol, &*full.gateway), ("10.16.0.0/16", "IPv4", "10.16.0.1"));
    assert_eq!(full.exclude_ips, ["10.16.0.1"]);
    assert_eq!((&*full.vpc, &*full.provider, &*full.gateway_type), ("ovn-cluster", "ovn", "distributed"));
    assert_eq!(full.enable_lb, Some(true));
    // Completing what is complete changes nothing: nothing is patched forever.
    assert_eq!(subnets::normalise(&config(), "ovn-default", &full), (full.clone(), None));
    let (join, _) = subnets::normalise(&config(), "join", &spec("100.64.0.0/16"));
    assert_eq!(join.enable_lb, None);
}

#[rstest]
#[case(&["10.16.0.9..10.16.0.20", "10.16.0.5..10.16.0.10"], &["10.16.0.1", "10.16.0.5..10.16.0.20"])]
#[case(&["10.16.0.1..10.16.0.3", "10.16.0.2"], &["10.16.0.1..10.16.0.3"])]
#[case(&["10.16.0.7", "10.16.0.7", ""], &["10.16.0.1", "10.16.0.7"])]
fn excluded_ranges_are_united(#[case] given: &[&str], #[case] united: &[&str]) {
    let mut wanted = spec("10.16.0.0/16");
    wanted.exclude_ips = given.iter().map(ToString::to_string).collect();
    assert_eq!(subnets::normalise(&config(), "s", &wanted).0.exclude_ips, united);
}

#[rstest]
#[case("", "", "cidrBlock is empty")]
#[case("10.16.0.0/33", "", "cidrBlock")]
#[case("10.16.0.0/16", "10.17.0.1", "outside")]
#[case("10.16.0.0/16", "x", "gateway")]
fn what_is_wrong_is_said(#[case] cidr: &str, #[case] gateway: &str, #[case] message: &str) {
    let wanted = SubnetSpec { gateway: gateway.into(), ..spec(cidr) };
    let (_, problem) = subnets::normalise(&config(), "s", &wanted);
    assert!(problem.unwrap().1.contains(message));
}

#[test]
fn a_single_gateway_of_a_dual_block_is_completed() {
    let wanted = SubnetSpec { gateway: "fd00::9".into(), ..spec("10.16.0.0/16,fd00::/64") };
    assert_eq!(subnets::normalise(&config(), "s", &wanted).0.gateway, "10.16.0.1,fd00::9");
}

#[test]
fn selectors_bind_namespaces() {
    let mut world = World::new(Arc::new(config()));
    let selector = serde_json::json!([{ "matchExpressions": [
        { "key": "team", "operator": "In", "values": ["a", "b"] },
        { "key": "off", "operator": "DoesNotExist" } ] }]);
    let bound: SubnetSpec = serde_json::from_value(serde_json::json!({
        "cidrBlock": "10.20.0.0/16", "namespaces": ["named"], "namespaceSelectors": selector }))
    .unwrap();
    world.apply(0, subnet("extra", bound));
    let namespace = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Object::Namespace(Arc::new(Namespace { meta: Meta { labels, ..meta(name) } }))
    };
    world.apply(0, namespace("named", &[]));
    world.apply(0, namespace("chosen", &[("team", "b")]));
    world.apply(0, namespace("other", &[("team", "b"), ("off", "")]));
    assert_eq!(*world.namespace_subnets("named"), ["extra".into()]);
    assert_eq!(*world.namespace_subnets("chosen"), ["extra".into()]);
    assert_eq!(*world.namespace_subnets("other"), ["ovn-default".into()]);
    world.take_changed();
    world.apply(0, namespace("other", &[("team", "a")]));
    assert_eq!(*world.namespace_subnets("other"), ["extra".into()]);
    let changed = world.take_changed();
    assert!(changed.contains(&ReadKey::NamespaceSubnets("other".into())));
    assert!(!changed.contains(&ReadKey::NamespaceSubnets("named".into())));
}

fn pod(name: &str, annotations: &[(&str, &str)]) -> Object {
    let annotations = annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let meta = Meta { namespace: "web".into(), annotations, ..meta(name) };
    Object::Pod(Arc::new(Pod { meta, node: "n-1".into(), restart_always: true, ..Pod::default() }))
}

fn ip(port: &str, pod: &str, address: &str) -> Object {
    let spec = IpSpec {
        pod_name: pod.into(),
        namespace: "web".into(),
        subnet: "ovn-default".into(),
        v4_ip_address: address.into(),
        mac_address: "02:00:00:00:00:01".into(),
        ..IpSpec::default()
    };
    let meta = Meta { finalizers: [keys::FINALIZER.into()].into(), ..meta(port) };
    Object::Ip(Arc::new(Custom { meta, spec: spec.into(), status: () }))
}

fn world(objects: Vec<Object>) -> World {
    let mut world = World::new(Arc::new(config()));
    let namespace = Object::Namespace(Arc::new(Namespace { meta: meta("web") }));
    let fixed =
        [subnet("ovn-default", spec("10.16.0.0/16")), subnet("join", spec("100.64.0.0/16")), namespace];
    let mut by_kind: BTreeMap<Kind, Vec<Object>> = NEEDED.into_iter().map(|k| (k, Vec::new())).collect();
    for object in fixed.into_iter().chain(objects) {
        by_kind.entry(object.kind()).or_default().push(object);
    }
    for (kind, objects) in by_kind {
        world.list(0, kind, objects);
    }
    assert!(world.loaded());
    world
}

fn held(world: &World, port: &str) -> Option<Arc<Lease>> {
    match world.lease(port) {
        LeaseState::Held(lease) => Some(lease),
        _ => None,
    }
}

fn told(address: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![
        (keys::ALLOCATED, "true"),
        (keys::LOGICAL_SWITCH, "ovn-default"),
        (keys::IP_ADDRESS, address),
        (keys::MAC_ADDRESS, "02:00:00:00:00:07"),
    ]
}

#[test]
fn the_living_keep_their_address_against_leftovers() {
    let mut world = world(vec![ip("a-gone.web", "a-gone", "10.16.0.7"), pod("b", &told("10.16.0.7"))]);
    world.restore_leases(&[]);
    world.settle_leases(true);
    assert_eq!(held(&world, "b.web").unwrap().v4, Some("10.16.0.7".parse().unwrap()));
    assert_eq!(held(&world, "a-gone.web"), None);
    assert!(world.orphan_ip("a-gone.web").is_some());
}

#[test]
fn truth_comes_from_annotations_then_rows_then_objects() {
    let row = PortRow {
        name: "a.web".into(),
        switch: "ovn-default".into(),
        addresses: vec!["02:00:00:00:00:09 10.16.0.11".into()],
    };
    let record = ip("a.web", "a", "10.16.0.12");
    for (pod, rows, expected) in [
        (pod("a", &told("10.16.0.10")), vec![row.clone()], "10.16.0.10"),
        (pod("a", &[]), vec![row], "10.16.0.11"),
        (pod("a", &[]), vec![], "10.16.0.12"),
    ] {
        let mut world = world(vec![pod, record.clone()]);
        rows.iter().for_each(|row| world.port_row(row.name.clone(), true));
        world.restore_leases(&rows);
        world.settle_leases(false);
        assert_eq!(held(&world, "a.web").unwrap().v4, Some(expected.parse().unwrap()));
    }
}

#[test]
fn a_follower_gives_nothing() {
    let mut world = world(vec![pod("a", &[])]);
    world.restore_leases(&[]);
    world.settle_leases(false);
    assert_eq!(held(&world, "a.web"), None);
    world.restore_leases(&[]);
    world.settle_leases(true);
    assert_eq!(held(&world, "a.web").unwrap().v4, Some("10.16.0.2".parse().unwrap()));
}

#[test]
fn an_address_is_free_only_when_row_and_record_are_gone() {
    let mut world = world(vec![pod("a", &[])]);
    world.restore_leases(&[]);
    world.settle_leases(true);
    world.port_row("a.web".into(), true);
    world.apply(0, ip("a.web", "a", "10.16.0.2"));
    world.delete(&ObjectRef::namespaced(Kind::Pod, "web", "a"));
    world.settle_leases(true);
    assert!(held(&world, "a.web").is_some());
    assert_eq!(world.orphan_ip("a.web"), None, "the record outlives the row");
    world.port_row("a.web".into(), false);
    world.settle_leases(true);
    assert!(held(&world, "a.web").is_some() && world.orphan_ip("a.web").is_some());
    world.delete(&ObjectRef::cluster(Kind::Ip, "a.web"));
    world.settle_leases(true);
    assert_eq!(held(&world, "a.web"), None);
}

#[test]
fn a_pod_waits_for_its_node_and_namespace_without_complaint() {
    let mut world = world(vec![]);
    world.restore_leases(&[]);
    let Object::Pod(scheduled) = pod("a", &[]) else { unreachable!() };
    let mut unscheduled = (*scheduled).clone();
    unscheduled.node = "".into();
    world.apply(0, Object::Pod(Arc::new(unscheduled)));
    world.settle_leases(true);
    assert_eq!(world.lease("a.web"), LeaseState::None);
    world.apply(0, Object::Pod(scheduled));
    world.settle_leases(true);
    assert!(held(&world, "a.web").is_some());
    let Object::Pod(elsewhere) = pod("b", &[]) else { unreachable!() };
    let mut elsewhere = (*elsewhere).clone();
    elsewhere.meta.namespace = "later".into();
    world.apply(0, Object::Pod(Arc::new(elsewhere)));
    world.settle_leases(true);
    assert_eq!(world.lease("b.later"), LeaseState::None);
    world.apply(0, Object::Namespace(Arc::new(Namespace { meta: meta("later") })));
    world.settle_leases(true);
    assert!(held(&world, "b.later").is_some());
}

#[test]
fn a_full_subnet_serves_those_who_wait_in_turn() {
    let pods = ["a", "b", "c", "d"].map(|name| pod(name, &[]));
    let mut world = world(pods.into());
    world.apply(0, subnet("ovn-default", spec("10.16.0.0/29")));
    world.apply(0, pod("e", &[]));
    world.restore_leases(&[]);
    world.settle_leases(true);
    // Six addresses, the gateway's excepted.
    assert!(held(&world, "e.web").is_some());
    world.apply(0, pod("f", &[]));
    world.settle_leases(true);
    assert!(matches!(world.lease("f.web"), LeaseState::Refused(..)));
    world.delete(&ObjectRef::namespaced(Kind::Pod, "web", "b"));
    world.settle_leases(true);
    assert!(held(&world, "f.web").is_some());
}

#[test]
fn a_subnet_gives_addresses_once_our_finalizer_is_on_it() {
    let bare = |finalizers: &[&str]| {
        let finalizers = finalizers.iter().map(|f| (*f).into()).collect();
        let meta = Meta { finalizers, ..meta("ovn-default") };
        let spec = spec("10.16.0.0/16");
        Object::Subnet(Arc::new(Custom { meta, spec, status: crds::SubnetStatus::default() }))
    };
    let mut world = world(vec![pod("a-0", &[])]);
    world.apply(0, bare(&["another's"]));
    world.restore_leases(&[]);
    world.settle_leases(true);
    assert_eq!(world.lease("a-0.web"), LeaseState::None, "it waits, and is not refused");
    world.apply(0, bare(&["another's", keys::FINALIZER]));
    world.settle_leases(true);
    assert!(held(&world, "a-0.web").is_some());
}

/// Statuses change whenever pods come and go; those that wait can't be served for that.
#[test]
fn a_status_makes_nobody_look_at_refused_ports_again() {
    let pool = |using: &str, ips: &str| {
        let spec = serde_json::json!({ "subnet": "ovn-default", "ips": [ips] });
        let status = serde_json::json!({ "v4UsingIPRange": using });
        let (spec, status) = (serde_json::from_value(spec).unwrap(), serde_json::from_value(status).unwrap());
        Object::IpPool(Arc::new(Custom { meta: meta("p"), spec, status }))
    };
    let vip = |ready: bool, ip: &str| {
        let spec = serde_json::json!({ "subnet": "ovn-default", "v4ip": ip });
        let status = serde_json::json!({ "ready": ready });
        let (spec, status) = (serde_json::from_value(spec).unwrap(), serde_json::from_value(status).unwrap());
        Object::Vip(Arc::new(Custom { meta: meta("v"), spec, status }))
    };
    let refused = pod("a-0", &[(keys::IP_ADDRESS, "10.99.0.1")]);
    let mut world = world(vec![refused, pool("", "10.16.7.4"), vip(false, "10.16.7.9")]);
    world.restore_leases(&[]);
    world.settle_leases(true);
    assert!(matches!(world.lease("a-0.web"), LeaseState::Refused(..)));
    let port: Arc<str> = "a-0.web".into();
    for (object, looks) in [
        (pool("10.16.7.4", "10.16.7.4"), false),
        (vip(true, "10.16.7.9"), false),
        (pool("10.16.7.4", "10.16.7.5"), true),
        (vip(true, "10.16.7.8"), true),
    ] {
        let kind = object.kind();
        world.apply(0, object);
        assert_eq!(world.leases.todo.contains(&port), looks, "{kind:?}");
        world.settle_leases(true);
    }
}
