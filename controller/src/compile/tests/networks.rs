//! Golden tests of what subnets and VPCs may ask for.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use super::fake::{Cluster, Families};
use super::render::render;
use crate::compile::compile;
use crate::facts::{Column, Facts, Keep, Table};
use crate::view::UnitKey;

/// Changes fields of a subnet's spec.
fn edit(cluster: &mut Cluster, subnet: &str, fields: Value) {
    let view = cluster.subnet_mut(subnet);
    let mut spec = serde_json::to_value(&*view.spec).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    view.spec = Arc::new(serde_json::from_value(spec).unwrap());
}

fn subnet(cluster: &Cluster, name: &str) -> Facts {
    compile(cluster, &UnitKey::Subnet(name.into()))
}

fn vpc(cluster: &Cluster, name: &str) -> Facts {
    compile(cluster, &UnitKey::Vpc(name.into()))
}

/// Rows of these tables, as text.
fn rows_of(facts: &Facts, tables: &[Table]) -> String {
    let mut some = facts.clone();
    some.rows.retain(|row| tables.contains(&row.row.table));
    (some.kube, some.events) = Default::default();
    render(&some)
}

/// What the conditions of an object say.
fn said(facts: &Facts) -> String {
    let text = render(facts);
    text.lines().filter(|line| line.contains(": condition ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn private_subnets_and_acls_of_the_spec() {
    let mut cluster = Cluster::worked_example(Families::Dual);
    let fields = json!({
        "private": true,
        "allowSubnets": ["10.17.0.0/16", "10.18.7.7/16", "fd00:17::/64"],
        "allowEWTraffic": true,
        "acls": [
            { "direction": "to-lport", "priority": 1005, "match": "ip4.src == 10.9.0.0/16", "action": "allow-related" },
            { "direction": "from-lport", "priority": 1006, "match": "tcp.dst == 25", "action": "reject" },
        ],
    });
    edit(&mut cluster, "ovn-default", fields);
    let facts = subnet(&cluster, "ovn-default");
    insta::with_settings!({ omit_expression => true }, {
        insta::assert_snapshot!(rows_of(&facts, &[Table::Acl]));
    });
    assert!(said(&facts).contains("Ready=true SetPrivateLogicalSwitchSuccess"), "{}", said(&facts));
}

#[rstest]
#[case(json!({ "direction": "in" }), "direction")]
#[case(json!({ "priority": 40000 }), "priority")]
#[case(json!({ "action": "pass" }), "action")]
#[case(json!({ "match": " " }), "match is empty")]
#[case(json!({ "match": "ip4.src == {10.0.0.1" }), "'{'")]
#[case(json!({ "match": "(ip4" }), "'('")]
#[case(json!({ "match": "ip4)" }), "')'")]
#[case(json!({ "match": "inport == \"a" }), "quote")]
#[case(json!({ "match": "ip4\nip6" }), "line break")]
#[case(json!({ "priority": 7, "match": "ip6" }), "same direction, priority and match")]
fn an_acl_that_is_wrong_is_named_and_the_others_stand(#[case] wrong: Value, #[case] named: &str) {
    let mut cluster = Cluster::worked_example(Families::V4);
    let good = json!({ "direction": "to-lport", "priority": 7, "match": "ip6", "action": "drop" });
    let mut acl = json!({ "direction": "to-lport", "priority": 9, "match": "ip4", "action": "drop" });
    for (key, value) in wrong.as_object().unwrap() {
        acl[key] = value.clone();
    }
    edit(&mut cluster, "ovn-default", json!({ "acls": [good, acl] }));
    let facts = subnet(&cluster, "ovn-default");
    assert_eq!(facts.rows.iter().filter(|row| row.row.table == Table::Acl).count(), 1);
    let text = said(&facts);
    assert!(text.contains("acls[1]") && text.contains(named), "{text}");
    assert!(text.contains("Ready=false SetLogicalSwitchAclsFailed"), "{text}");
}

/// Three nodes with join addresses 100.64.0.2 to .4.
fn nodes(families: Families) -> Cluster {
    let mut cluster = Cluster::worked_example(families);
    let node = cluster.nodes["n-1"].clone();
    for (name, number) in [("n-2", 3), ("n-3", 4)] {
        cluster.nodes.insert(name.into(), node.clone());
        cluster.node_mut(name).chassis = Some(format!("chassis-{number}").into());
        let v4 = families.v4(&format!("100.64.0.{number}"));
        let v6 = families.v6(&format!("fd00:100:64::{number}"));
        cluster.hold(&format!("node-{name}"), "join", v4, v6, number);
    }
    cluster
}

fn hops(facts: &Facts) -> Vec<String> {
    let policies = facts.rows.iter().filter(|row| row.row.key.contains("|29000|"));
    policies
        .map(|row| match &row.columns["nexthops"] {
            Column::Whole(value) => value.set_strings().collect::<Vec<_>>().join(" "),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[rstest]
#[case(Families::V4, "ipv4")]
#[case(Families::V6, "ipv6")]
#[case(Families::Dual, "dual")]
fn centralized_gateways(#[case] families: Families, #[case] name: &str) {
    let mut cluster = nodes(families);
    edit(
        &mut cluster,
        "ovn-default",
        json!({ "gatewayType": "centralized", "gatewayNode": "n-2:192.0.2.9,n-1" }),
    );
    let facts = subnet(&cluster, "ovn-default");
    insta::with_settings!({ snapshot_suffix => name, omit_expression => true }, {
        insta::assert_snapshot!("centralized_gateway", rows_of(&facts, &[Table::Policy]));
    });
    assert!(render(&facts).contains(r#"activateGateway="n-2""#));
    assert!(said(&facts).contains("Ready=true ReconcileCentralizedGatewaySuccess"));
    // Nodes have no groups and no policies for it (contract §5.3).
    let node = render(&compile(&cluster, &UnitKey::Node("n-1".into())));
    assert!(!node.contains("29000") && !node.contains("ovn.default.n.1"), "{node}");
    let pod = compile(&cluster, &UnitKey::Pod("web".into(), "a-0".into()));
    assert_eq!(pod.members.len(), 1, "its node's group only");
}

#[test]
fn a_gateway_fails_over_and_stays_where_it_is() {
    let mut cluster = nodes(Families::V4);
    edit(&mut cluster, "ovn-default", json!({ "gatewayType": "centralized", "gatewayNode": "n-2,n-1,n-9" }));
    cluster.node_mut("n-2").ready = false;
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.2"]);
    // It does not go back when the first is ready again.
    cluster.node_mut("n-2").ready = true;
    cluster.active = Some("n-1".into());
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.2"]);
    // One that gives no answer is as good as one that is not ready, unless none does.
    cluster.node_mut("n-1").silent = true;
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.3"]);
    cluster.node_mut("n-2").silent = true;
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.2"]);
    cluster.node_mut("n-1").silent = false;
    cluster.node_mut("n-2").silent = false;
    // One that is no longer named is left.
    edit(&mut cluster, "ovn-default", json!({ "gatewayNode": "n-3" }));
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.4"]);
    // A node without an address on the join switch can't be used.
    cluster.leases.remove("node-n-3");
    let facts = subnet(&cluster, "ovn-default");
    assert!(hops(&facts).is_empty());
    assert!(
        facts.keeps.contains(&Keep::Marked(Table::Policy, "subnet", "ovn-default".into())),
        "what is there stays"
    );
    let text = said(&facts);
    assert!(text.contains("Ready=false NoActiveGatewayFound") && text.contains("n-3"), "{text}");
    edit(&mut cluster, "ovn-default", json!({ "gatewayNode": "" }));
    assert!(said(&subnet(&cluster, "ovn-default")).contains("Ready=false NoReadyGateway"));
    // By selector: the fake view chooses all nodes.
    edit(
        &mut cluster,
        "ovn-default",
        json!({ "gatewayNodeSelectors": [{ "matchLabels": { "gw": "yes" } }] }),
    );
    cluster.active = None;
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.2"]);
}

#[test]
fn ecmp_uses_all_ready_nodes() {
    let mut cluster = nodes(Families::V4);
    let fields = json!({ "gatewayType": "centralized", "gatewayNode": "n-1,n-2,n-3", "enableEcmp": true });
    edit(&mut cluster, "ovn-default", fields);
    assert_eq!(hops(&subnet(&cluster, "ovn-default")), ["100.64.0.2 100.64.0.3 100.64.0.4"]);
    cluster.node_mut("n-2").ready = false;
    let facts = subnet(&cluster, "ovn-default");
    assert_eq!(hops(&facts), ["100.64.0.2 100.64.0.4"]);
    assert!(render(&facts).contains(r#"activateGateway="""#), "no single one is active");
}

#[test]
fn gateway_types_of_custom_vpcs_are_ignored() {
    let mut cluster = nodes(Families::V4);
    cluster.add_more();
    edit(&mut cluster, "sub2", json!({ "gatewayType": "centralized", "gatewayNode": "n-1" }));
    let facts = subnet(&cluster, "sub2");
    assert!(hops(&facts).is_empty());
    assert!(said(&facts).contains("Ready=true"));
}

#[test]
fn dhcp_and_router_advertisements() {
    let mut cluster = Cluster::worked_example(Families::Dual);
    let fields = json!({
        "enableDHCP": true, "dhcpV4Options": "dns_server={8.8.8.8,1.1.1.1},lease_time=60", "mtu": 1380,
        "enableIPv6RA": true, "routeTable": "blue",
    });
    edit(&mut cluster, "ovn-default", fields);
    let facts = subnet(&cluster, "ovn-default");
    let pod = compile(&cluster, &UnitKey::Pod("web".into(), "a-0".into()));
    cluster.pod_mut("web", "a-0").requests.insert(crds::keys::DHCP_V4_OPTIONS.into(), "lease_time=9".into());
    let own = compile(&cluster, &UnitKey::Pod("web".into(), "a-0".into()));
    let tables = [Table::DhcpOptions, Table::LogicalRouterPort, Table::LogicalSwitchPort];
    let text = [&facts, &pod, &own].map(|facts| rows_of(facts, &tables)).join("---\n");
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) });
    assert!(render(&facts).contains("dhcpV4OptionsUUID=\"uuid of DHCP_Options ovn-default|IPv4|\""));
    edit(&mut cluster, "ovn-default", json!({ "dhcpV4Options": "dns_server" }));
    assert!(said(&subnet(&cluster, "ovn-default")).contains("dhcpV4Options"));
}

#[test]
fn virtual_addresses() {
    let mut cluster = Cluster::worked_example(Families::V4);
    edit(&mut cluster, "ovn-default", json!({ "vips": ["10.16.0.200"] }));
    let facts = subnet(&cluster, "ovn-default");
    insta::with_settings!({ omit_expression => true }, {
        insta::assert_snapshot!(rows_of(&facts, &[Table::LogicalSwitchPort]));
    });
}

#[test]
fn nat_rules_get_ids() {
    let mut cluster = Cluster::worked_example(Families::V4);
    let rules = json!([{ "match": { "dstIPs": "192.0.2.0/24" }, "action": "forward" }]);
    edit(&mut cluster, "ovn-default", json!({ "natOutgoingPolicyRules": rules }));
    let text = render(&subnet(&cluster, "ovn-default"));
    assert!(text.contains(r#""ruleID":""#) && text.contains("192.0.2.0/24"), "{text}");
}

#[test]
fn routes_policies_peerings_and_bfd_of_a_vpc() {
    let mut cluster = nodes(Families::V4);
    cluster.add_more();
    let spec = json!({
        "staticRoutes": [
            { "cidr": "0.0.0.0/0", "nextHopIP": "10.18.0.254" },
            { "cidr": "10.18.0.9", "nextHopIP": "10.18.0.253", "policy": "policySrc", "routeTable": "blue" },
            { "cidr": "10.30.0.0/16", "nextHopIP": "10.18.0.3", "ecmpMode": "ecmp_symmetric_reply" },
            { "cidr": "10.30.0.0/16", "nextHopIP": "10.18.0.4", "ecmpMode": "ecmp_symmetric_reply" },
        ],
        "policyRoutes": [
            { "priority": 20, "match": "ip4.dst == 10.40.0.0/16", "action": "drop", "nextHopIP": "1.2.3.4" },
            { "priority": 10, "match": "ip4.src == 10.18.0.0/16", "action": "reroute", "nextHopIP": "10.18.0.4, 10.18.0.3" },
        ],
        "vpcPeerings": [{ "remoteVpc": "ovn-cluster", "localConnectIP": "169.254.0.2/30" }],
        "bfdPort": { "enabled": true, "ip": "10.255.255.255" },
    });
    cluster.spec_of("vpc-1", spec);
    let facts = vpc(&cluster, "vpc-1");
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(render(&facts)) });
    // The default VPC's own default route counts, not the one to the nodes.
    let own = json!({ "staticRoutes": [{ "cidr": "0.0.0.0/0", "nextHopIP": "10.16.0.9" }] });
    cluster.spec_of("ovn-cluster", own);
    let text = render(&vpc(&cluster, "ovn-cluster"));
    assert!(text.contains("|0.0.0.0/0|10.16.0.9") && !text.contains("|0.0.0.0/0|100.64.0.1"), "{text}");
    // A source route to a host could be one of NAT: it is marked.
    let host =
        json!({ "staticRoutes": [{ "cidr": "10.16.0.5", "nextHopIP": "10.16.0.9", "policy": "policySrc" }] });
    cluster.spec_of("ovn-cluster", host);
    assert!(render(&vpc(&cluster, "ovn-cluster")).contains("weir-route"));
}

#[rstest]
#[case(json!({ "staticRoutes": [{ "cidr": "10.0.0.0/40", "nextHopIP": "10.18.0.1" }] }), "staticRoutes[0]", "CIDR")]
#[case(json!({ "staticRoutes": [{ "cidr": "10.0.0.0/8", "nextHopIP": "x" }] }), "staticRoutes[0]", "no address")]
#[case(json!({ "staticRoutes": [{ "cidr": "10.0.0.0/8", "nextHopIP": "fd00::1" }] }), "staticRoutes[0]", "families")]
#[case(json!({ "staticRoutes": [{ "cidr": "10.0.0.0/8", "nextHopIP": "10.18.0.1", "policy": "src" }] }), "staticRoutes[0]", "policySrc")]
#[case(json!({ "staticRoutes": [{ "cidr": "10.0.0.0/8", "nextHopIP": "10.18.0.1", "ecmpMode": "hash" }] }), "staticRoutes[0]", "ecmpMode")]
#[case(json!({ "staticRoutes": [{ "cidr": "10.0.0.0/8", "nextHopIP": "10.18.0.1" }, { "cidr": "10.0.0.0/8", "nextHopIP": "10.18.0.2" }] }), "staticRoutes[1]", "another next hop")]
#[case(json!({ "policyRoutes": [{ "priority": 40000, "match": "ip4", "action": "allow" }] }), "policyRoutes[0]", "32767")]
#[case(json!({ "policyRoutes": [{ "priority": 1, "match": "", "action": "allow" }] }), "policyRoutes[0]", "match is empty")]
#[case(json!({ "policyRoutes": [{ "priority": 1, "match": "ip4", "action": "nat" }] }), "policyRoutes[0]", "reroute")]
#[case(json!({ "policyRoutes": [{ "priority": 1, "match": "ip4", "action": "reroute" }] }), "policyRoutes[0]", "needs a nextHopIP")]
#[case(json!({ "policyRoutes": [{ "priority": 1, "match": "ip4", "action": "reroute", "nextHopIP": "10.0.0.1,fd00::1" }] }), "policyRoutes[0]", "both families")]
#[case(json!({ "policyRoutes": [{ "priority": 1, "match": "ip4", "action": "drop" }, { "priority": 1, "match": "ip4", "action": "allow" }] }), "policyRoutes[1]", "same priority and match")]
#[case(json!({ "vpcPeerings": [{ "remoteVpc": "vpc-1", "localConnectIP": "169.254.0.1/30" }] }), "vpcPeerings[0]", "own peer")]
#[case(json!({ "vpcPeerings": [{ "remoteVpc": "x", "localConnectIP": "169.254.0.1" }] }), "vpcPeerings[0]", "no CIDR")]
#[case(json!({ "vpcPeerings": [{ "remoteVpc": "", "localConnectIP": "169.254.0.1/30" }] }), "vpcPeerings[0]", "empty")]
#[case(json!({ "defaultSubnet": "sub1" }), "defaultSubnet", "ovn-cluster")]
#[case(json!({ "defaultSubnet": "none" }), "defaultSubnet", "there is no Subnet none")]
#[case(json!({ "bfdPort": { "enabled": true, "ip": "10.0.0.300" } }), "bfdPort", "one address")]
fn entries_that_are_wrong_are_named(#[case] spec: Value, #[case] entry: &str, #[case] named: &str) {
    let mut cluster = nodes(Families::V4);
    cluster.add_more();
    cluster.spec_of("vpc-1", spec);
    let facts = vpc(&cluster, "vpc-1");
    let text = said(&facts);
    assert!(text.contains("Validated=false ValidateVpcFailed"), "{text}");
    assert!(text.contains(entry) && text.contains(named), "{text}");
    assert_eq!(facts.events.len(), 1);
    assert!(
        facts.rows.iter().any(|row| row.row.table == Table::LogicalRouter),
        "the router is served all the same"
    );
}

#[test]
fn namespaces_of_a_vpc_restrict_its_subnets() {
    let mut cluster = Cluster::worked_example(Families::V4);
    cluster.add_more();
    cluster.spec_of("vpc-1", json!({ "namespaces": ["web"] }));
    edit(&mut cluster, "sub2", json!({ "namespaces": ["web"] }));
    assert!(said(&subnet(&cluster, "sub2")).contains("Validated=true"));
    edit(&mut cluster, "sub2", json!({ "namespaces": ["web", "shop"] }));
    let text = said(&subnet(&cluster, "sub2"));
    assert!(text.contains("namespace shop") && text.contains("vpc-1"), "{text}");
}

#[test]
fn pods_reach_the_dns_cache_of_their_node() {
    let mut cluster = Cluster::worked_example(Families::Dual);
    cluster.config.node_local_dns_ip = "169.254.20.10,fd00::a".into();
    let text = rows_of(&compile(&cluster, &UnitKey::Node("n-1".into())), &[Table::Policy]);
    for line in [
        "ovn-cluster|30000|ip4.src == $node.n.1_ip4 && ip4.dst == 169.254.20.10",
        "ovn-cluster|30000|ip6.src == $node.n.1_ip6 && ip6.dst == fd00::a",
        r#""isLocalDnsCache": "true""#,
    ] {
        assert!(text.contains(line), "{text}");
    }
}
