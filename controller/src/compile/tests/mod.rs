//! Golden tests of units: the worked example of the contract (§10) without its
//! Service and policy, in each family, and what happens around it.

pub(crate) mod fake;
mod networks;
mod render;

use std::sync::Arc;

use rstest::rstest;

use self::fake::{Cluster, Families};
use self::render::render;
use super::compile;
use crate::facts::{Facts, Fields, Keep, RowKey, Table};
use crate::view::{LeaseState, MachineView, NodeView, Placement, PodView, UnitKey};

fn pod() -> UnitKey {
    UnitKey::Pod("web".into(), "a-0".into())
}

#[rstest]
#[case(Families::V4, "ipv4")]
#[case(Families::V6, "ipv6")]
#[case(Families::Dual, "dual")]
fn worked_example(#[case] families: Families, #[case] name: &str) {
    let cluster = Cluster::worked_example(families);
    let text: String = cluster
        .units()
        .iter()
        .map(|unit| format!("## {unit:?}\n{}\n", render(&compile(&cluster, unit))))
        .collect();
    insta::with_settings!({ snapshot_suffix => name, omit_expression => true }, {
        insta::assert_snapshot!("worked_example", text);
    });
}

#[test]
fn a_unit_whose_object_is_gone_states_nothing() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.pods.clear();
    cluster.nodes.clear();
    cluster.namespaces.clear();
    for unit in [
        pod(),
        UnitKey::Node("n-1".into()),
        UnitKey::Namespace("web".into()),
        UnitKey::Ip("a-0.web".into()),
        UnitKey::Subnet("gone".into()),
        UnitKey::Vpc("gone".into()),
        UnitKey::Other("vlans", "".into(), "gone".into()),
    ] {
        assert_eq!(compile(&cluster, &unit), Facts::default(), "{unit:?}");
    }
}

#[test]
fn a_pod_without_a_node_is_told_its_address_first() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.pod_mut("web", "a-0").node = "".into();
    let facts = compile(&cluster, &pod());
    assert!(facts.members.is_empty());
    let once = annotations(&facts).expect("annotations");
    assert_eq!(&*once.0, crds::keys::ALLOCATED);
    assert!(!once.1.contains(&Arc::from(crds::keys::ROUTED)));
    // A node that has no object yet has no groups either.
    cluster.pod_mut("web", "a-0").node = "new".into();
    assert_eq!(compile(&cluster, &pod()).members, []);
}

fn annotations(facts: &Facts) -> Option<(Arc<str>, Vec<Arc<str>>)> {
    facts.kube.iter().find_map(|fact| match &fact.fields {
        Fields::AnnotationsOnce { marker, values } => {
            Some((marker.clone(), values.keys().cloned().collect()))
        }
        _ => None,
    })
}

#[test]
fn a_pod_on_its_way_out_keeps_its_port_and_is_told_nothing() {
    let mut cluster = Cluster::worked_example(Families::V4);
    let before = compile(&cluster, &pod());
    cluster.pod_mut("web", "a-0").terminating = true;
    let after = compile(&cluster, &pod());
    assert_eq!((before.rows, before.members), (after.rows.clone(), after.members.clone()));
    assert_eq!(annotations(&after), None);
    cluster.pod_mut("web", "a-0").wants_network = false;
    assert_eq!(compile(&cluster, &pod()), Facts::default());
}

#[test]
fn a_refused_pod_says_why() {
    let mut cluster = Cluster::worked_example(Families::V4);
    let refused = LeaseState::Refused("AcquireAddressFailed".into(), "subnet is full; do this".into());
    cluster.leases.insert("a-0.web".into(), refused);
    let facts = compile(&cluster, &pod());
    assert_eq!((facts.rows.len(), facts.members.len(), facts.kube.len(), facts.keeps.len()), (0, 0, 0, 0));
    assert_eq!(facts.events.len(), 1);
    assert!(facts.events[0].warning && &*facts.events[0].reason == "AcquireAddressFailed");
}

#[test]
fn a_port_whose_subnet_is_gone_for_a_moment_stays() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.subnets.remove("ovn-default");
    let facts = compile(&cluster, &pod());
    assert!(facts.rows.is_empty());
    assert_eq!(facts.keeps, [Keep::Row(RowKey::new(Table::LogicalSwitchPort, "a-0.web"))]);
}

#[test]
fn a_machines_port_has_its_name_and_is_the_same_for_each_of_its_pods() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.pod_mut("web", "a-0").owner = Some(("VirtualMachineInstance".into(), "vm-1".into()));
    cluster.hold("vm-1.web", "ovn-default", Families::V4.v4("10.16.0.7"), None, 7);
    let node = Arc::new(NodeView { chassis: Some("chassis-2".into()), ..(*cluster.nodes["n-1"]).clone() });
    cluster.nodes.insert("n-2".into(), node);
    let other = PodView { node: "n-2".into(), uid: "b".into(), ..cluster.pod_mut("web", "a-0").clone() };
    cluster.pods.insert(("web".into(), "b-0".into()), Arc::new(other));
    let placement = Placement::Moving("n-1".into(), "n-2".into());
    cluster.machines.insert("vm-1".into(), Arc::new(MachineView { active: "a-0".into(), placement }));
    let (source, target) =
        (compile(&cluster, &pod()), compile(&cluster, &UnitKey::Pod("web".into(), "b-0".into())));
    assert_eq!((&source.rows, &source.members), (&target.rows, &target.members));
    insta::assert_snapshot!(render(&target));
    // With `--keep-vm-ip=false` it is a pod like any other.
    cluster.config.keep_vm_ip = false;
    assert_eq!(&*compile(&cluster, &pod()).rows[0].row.key, "a-0.web");
}

#[test]
fn port_requests() {
    let mut cluster = Cluster::worked_example(Families::Dual);
    let pod_ = cluster.pod_mut("web", "a-0");
    for (key, value) in [
        (crds::keys::PORT_SECURITY, "true"),
        (crds::keys::PORT_VIPS, "10.16.0.200, fd00:10:16::c8"),
        (crds::keys::LAYER2_FORWARD, "true"),
        (crds::keys::POD_NIC_TYPE, "offload-port"),
    ] {
        pod_.requests.insert(key.into(), value.into());
    }
    pod_.owner = Some(("StatefulSet".into(), "a".into()));
    insta::assert_snapshot!(render(&compile(&cluster, &pod())));
}

#[test]
fn a_broken_subnet_tears_nothing_down() {
    let mut cluster = Cluster::worked_example(Families::V4);
    let healthy: Vec<_> = cluster.units().iter().map(|unit| compile(&cluster, unit)).collect();
    let subnet = cluster.subnet_mut("ovn-default");
    let why =
        ("ValidateLogicalSwitchFailed".into(), "subnet ovn-default: cidrBlock is no CIDR; write one".into());
    subnet.invalid = Some(why);
    let broken: Vec<_> = cluster.units().iter().map(|unit| compile(&cluster, unit)).collect();
    let keeps: Vec<&Keep> = broken.iter().flat_map(|facts| &facts.keeps).collect();
    for row in healthy.iter().flat_map(|facts| &facts.rows) {
        let stated = broken.iter().flat_map(|facts| &facts.rows).any(|r| r.row == row.row);
        let kept = keeps.iter().any(|keep| match keep {
            Keep::Row(key) => *key == row.row,
            Keep::Marked(table, key, value) => {
                *table == row.row.table
                    && matches!(&row.columns["external_ids"],
                        crate::facts::Column::Keys(ids) if ids.get(key) == Some(value))
            }
        });
        assert!(stated || kept, "lost: {}", row.row);
    }
    let facts = compile(&cluster, &UnitKey::Subnet("ovn-default".into()));
    insta::assert_snapshot!(render(&facts));
}

#[test]
fn objects_that_are_not_acted_on_say_so() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.add_more();
    let subnet = cluster.subnet_mut("sub1");
    subnet.supported = false;
    for unit in [
        UnitKey::Subnet("sub1".into()),
        UnitKey::Other("vlans", "".into(), "p1".into()),
        UnitKey::Other("bgp-confs", "".into(), "b1".into()),
    ] {
        let facts = compile(&cluster, &unit);
        assert!(facts.rows.is_empty() && facts.members.is_empty(), "{unit:?}");
        assert!(facts.kube.iter().all(|fact| matches!(fact.fields, Fields::Condition { .. })), "{unit:?}");
        assert!(render(&facts).contains("NotYetSupported"), "{unit:?}");
    }
    // A Vpc that mirrors somebody else's router is nobody's business.
    Arc::make_mut(cluster.vpcs.get_mut("vpc-1").expect("vpc")).mirrored = true;
    assert_eq!(compile(&cluster, &UnitKey::Vpc("vpc-1".into())), Facts::default());
}

#[test]
fn more_subnets_and_vpcs() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.add_more();
    let text: String = ["Vpc ovn-cluster", "Vpc vpc-1", "Subnet sub1", "Subnet sub2", "Node n-1", "Pod b-0"]
        .iter()
        .map(|what| {
            let name = |prefix: &str| what.strip_prefix(prefix).map(Arc::from);
            let unit = name("Vpc ").map(UnitKey::Vpc);
            let unit = unit.or_else(|| name("Subnet ").map(UnitKey::Subnet));
            let unit = unit.or_else(|| name("Node ").map(UnitKey::Node));
            let unit = unit.unwrap_or_else(|| UnitKey::Pod("web".into(), "b-0".into()));
            format!("## {what}\n{}\n", render(&compile(&cluster, &unit)))
        })
        .collect();
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) });
}

#[test]
fn fields_that_are_missing_show() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.spec_of(
        "ovn-cluster",
        serde_json::json!({ "enableExternal": true, "staticRoutes": [
        { "cidr": "10.9.0.0/16", "nextHopIP": "10.16.0.9", "routeTable": "blue" },
    ] }),
    );
    let text = render(&compile(&cluster, &UnitKey::Vpc("ovn-cluster".into())));
    assert!(text.contains("no Subnet external") && text.contains("ExternalNetworkNotReady"), "{text}");
    // With external networks neighbours are learnt from requests.
    assert!(text.contains("without Keys({\"always_learn_from_arp_request\"})"), "{text}");
    assert!(text.contains("ovn-cluster|blue|dst-ip|0.0.0.0/0|100.64.0.1"), "{text}");
    assert!(text.contains("ovn-cluster|blue|dst-ip|10.9.0.0/16|10.16.0.9"), "{text}");
}

#[test]
fn a_spec_that_breaks_a_rule_says_so_and_serves_on() {
    let mut cluster = Cluster::worked_example(Families::V4);
    let healthy = compile(&cluster, &UnitKey::Subnet("ovn-default".into()));
    let mut spec = (*cluster.subnet_mut("ovn-default").spec).clone();
    spec.external_egress_gateway = "192.0.2.1".into();
    cluster.subnet_mut("ovn-default").spec = Arc::new(spec);
    let facts = compile(&cluster, &UnitKey::Subnet("ovn-default".into()));
    assert_eq!(facts.rows, healthy.rows);
    let text = render(&facts);
    assert!(text.contains("Validated=false ValidateLogicalSwitchFailed"), "{text}");
    assert!(text.contains("Ready=false ValidateLogicalSwitchFailed"), "{text}");
    assert_eq!(facts.events.len(), 1);
}

#[test]
fn a_pod_on_the_join_subnet_is_in_its_nodes_group_only() {
    let mut cluster = Cluster::worked_example(Families::V4);
    let LeaseState::Held(lease) = cluster.leases["a-0.web"].clone() else { panic!("held") };
    let lease = crate::view::Lease { subnet: "join".into(), ..(*lease).clone() };
    cluster.leases.insert("a-0.web".into(), LeaseState::Held(Arc::new(lease)));
    let facts = compile(&cluster, &pod());
    assert_eq!(facts.members, [super::rows::member("node.n.1", "a-0.web")]);
}

#[test]
fn a_node_inside_a_pod_network_is_told() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.node_mut("n-1").ipv4 = Some("10.16.9.9".parse().unwrap());
    let facts = compile(&cluster, &UnitKey::Node("n-1".into()));
    assert_eq!(facts.events.len(), 1);
    assert_eq!(&*facts.events[0].reason, "NodeAddressConflictWithSubnet");
    assert!(facts.events[0].message.contains("10.16.9.9") && facts.events[0].message.contains("ovn-default"));
}

#[test]
fn a_node_without_a_lease_keeps_what_it_has() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.leases.remove("node-n-1");
    let facts = compile(&cluster, &UnitKey::Node("n-1".into()));
    assert_eq!(facts.rows.len(), 2, "its groups: pods do not wait for its join port");
    assert_eq!(facts.keeps.len(), 2);
    assert!(facts.kube.is_empty());
}

#[test]
fn deletion_of_objects() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.orphans.insert("gone.web".into(), "ip-uid".into());
    let facts = compile(&cluster, &UnitKey::Ip("gone.web".into()));
    assert_eq!(
        facts.kube.iter().map(|f| f.fields.clone()).collect::<Vec<_>>(),
        [Fields::Finalizer(false), Fields::Absent]
    );
    // A subnet in use is held, an empty one is let go; its rows stay, since it comes back.
    cluster.subnet_mut("ovn-default").deleting = true;
    let held = compile(&cluster, &UnitKey::Subnet("ovn-default".into()));
    assert!(held.kube.iter().any(|f| f.fields == Fields::Finalizer(true)));
    cluster.usage.clear();
    let free = compile(&cluster, &UnitKey::Subnet("ovn-default".into()));
    assert!(free.kube.iter().any(|f| f.fields == Fields::Finalizer(false)));
    assert!(!free.kube.iter().any(|f| matches!(f.fields, Fields::Spec(_))));
    assert_eq!(held.rows, free.rows);
    cluster.subnets.clear();
    let gone = compile(&cluster, &UnitKey::Subnet("ovn-default".into()));
    assert_eq!((gone.rows.len(), gone.keeps.len()), (0, 10));
}

#[test]
fn flags_that_became_dual_stack_complete_the_subnets() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.config.default_cidr = "10.99.0.0/16,fd00:10:16::/112".into();
    let text = render(&compile(&cluster, &UnitKey::Subnet("ovn-default".into())));
    assert!(text.contains(r#"cidrBlock="10.16.0.0/16,fd00:10:16::/112""#), "{text}");
    assert!(text.contains(r#"gateway="10.16.0.1,fd00:10:16::1""#), "{text}");
}

#[test]
fn namespaces_with_several_subnets() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.add_more();
    cluster.bindings.insert("web".into(), Arc::new(vec!["ovn-default".into(), "sub1".into()]));
    insta::assert_snapshot!(render(&compile(&cluster, &UnitKey::Namespace("web".into()))));
    cluster.bindings.insert("web".into(), Arc::new(vec!["ovn-default".into(), "coming".into()]));
    assert_eq!(compile(&cluster, &UnitKey::Namespace("web".into())), Facts::default());
}
