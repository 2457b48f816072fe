use super::*;

fn egress(gateways: &[&str], table: u32) -> ExternalEgress {
    ExternalEgress {
        gateways: gateways.iter().map(|ip| ip.parse().unwrap()).collect(),
        table,
        priority: 900,
        gateway_here: false,
        local_pods: BTreeSet::new(),
    }
}

fn subnet(name: &str, cidrs: &[&str], egress: ExternalEgress) -> SubnetInput {
    SubnetInput {
        name: name.into(),
        cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        validated: true,
        external_egress: Some(egress),
        ..SubnetInput::default()
    }
}

fn inputs(subnets: Vec<SubnetInput>) -> Inputs {
    Inputs { ipv4: true, ipv6: true, subnets, ..Inputs::default() }
}

fn shown(policies: &Policies) -> (Vec<String>, Vec<String>) {
    (
        policies.rules.iter().map(|r| format!("{} {} {}", r.priority, r.source, r.table)).collect(),
        policies.routes.iter().map(|r| format!("{} {}", r.table, r.gateway)).collect(),
    )
}

#[test]
fn k_112_one_rule_for_each_pod_or_one_for_the_prefix() {
    let mut distributed =
        subnet("a", &["10.17.0.0/16", "fd00:17::/64"], egress(&["172.30.0.9", "fd00::9"], 1000));
    distributed.distributed = true;
    let pods = ["10.17.0.5", "fd00:17::5", "10.99.0.1"].map(|ip| ip.parse().unwrap());
    distributed.external_egress.as_mut().unwrap().local_pods = pods.into();
    let mut central = subnet("b", &["10.18.0.0/16"], egress(&["172.30.0.8"], 1001));
    let elsewhere = wanted(&inputs(vec![distributed.clone(), central.clone()]));
    assert_eq!(
        shown(&elsewhere).0,
        ["900 10.17.0.5/32 1000", "900 fd00:17::5/128 1000"],
        "an address outside the subnet has no rule, and this node is no gateway of the other"
    );
    assert_eq!(shown(&elsewhere).1, ["1000 172.30.0.9", "1000 fd00::9"], "nor does it need the way there");
    assert!(elsewhere.prefixes.iter().any(|(table, _, _)| *table == 1001), "but judges Kube-OVN's rules");
    central.external_egress.as_mut().unwrap().gateway_here = true;
    let here = wanted(&inputs(vec![central, distributed]));
    assert!(shown(&here).0.contains(&"900 10.18.0.0/16 1001".to_owned()));
    assert_eq!(shown(&here).1, ["1000 172.30.0.9", "1000 fd00::9", "1001 172.30.0.8"]);
    assert!(here.problems.is_empty());
}

#[test]
fn what_cant_be_routed_is_told_with_a_remedy() {
    let other = |name: &str, gateway: &str, table| {
        let egress = ExternalEgress { gateway_here: true, ..egress(&[gateway], table) };
        subnet(name, &["10.17.0.0/16"], egress)
    };
    let policies = wanted(&inputs(vec![
        other("b", "172.30.0.8", 1000),
        other("a", "172.30.0.9", 1000),
        other("c", "172.30.0.9", 254),
        other("d", "172.30.0.9", 1000),
    ]));
    assert_eq!(shown(&policies).1, ["1000 172.30.0.9"], "the first by name has the table, with who agrees");
    assert_eq!(policies.problems.len(), 2);
    assert!(policies.problems[0].contains("Subnet b") && policies.problems[0].contains("Subnet a"));
    assert!(
        policies.problems[1].contains("Subnet c") && policies.problems[1].contains("policyRoutingTableID")
    );
    for exempt in [
        SubnetInput { nat_outgoing: true, ..other("x", "172.30.0.9", 1000) },
        SubnetInput { underlay: true, ..other("x", "172.30.0.9", 1000) },
        SubnetInput { deleting: true, ..other("x", "172.30.0.9", 1000) },
    ] {
        assert_eq!(wanted(&inputs(vec![exempt])), Policies::default());
    }
}

#[test]
fn only_our_own_rules_and_routes_go() {
    let mut central = subnet("a", &["10.18.0.0/16"], egress(&["172.30.0.8"], 1001));
    central.external_egress.as_mut().unwrap().gateway_here = true;
    let want = wanted(&inputs(vec![central]));
    let ours = |source: &str, table| {
        PolicyRule { priority: 900, source: source.parse().unwrap(), table }.to_netlink()
    };
    let of_kube_ovn = Rule { protocol: 0, ..ours("10.18.0.0/16", 1001) };
    let of_a_person = Rule { protocol: 3, ..ours("10.18.0.7/32", 1001) };
    let elsewhere = Rule { protocol: 0, ..ours("10.99.0.0/16", 1001) };
    let orphan = ours("10.20.0.0/16", 1005);
    const STATIC: u8 = protocol::STATIC;
    let rules = vec![of_kube_ovn.clone(), of_a_person, elsewhere, orphan.clone()];
    let route = |table, gateway: &str, protocol| Route {
        link: Some(2),
        table,
        protocol,
        ..Route::default_via(gateway.parse().unwrap())
    };
    let routes = vec![
        route(1001, "172.30.0.7", STATIC),
        route(1001, "172.30.0.6", protocol::BOOT),
        route(1005, "172.30.0.5", STATIC),
        route(1006, "172.30.0.4", STATIC),
        route(1007, "172.30.0.3", PROTOCOL),
        route(MAIN_TABLE, "172.30.0.1", STATIC),
        route(MAIN_TABLE, "172.30.0.2", PROTOCOL),
    ];
    let changes = diff(&want, &rules, &routes, &BTreeSet::from([MAIN_TABLE]));
    assert_eq!(changes.add_rules.len(), 1, "Kube-OVN's rule gets a successor of ours");
    assert_eq!(changes.delete_rules, [of_kube_ovn, orphan]);
    assert_eq!(changes.add_routes.len(), 1);
    let gone: Vec<String> = changes.delete_routes.iter().map(|r| r.gateway.unwrap().to_string()).collect();
    assert_eq!(
        gone,
        ["172.30.0.7", "172.30.0.5", "172.30.0.3"],
        "what has no number of ours is not ours in a table that no rule of ours ever named"
    );
    // One of Kube-OVN's, or of an older agent, that leads to the right gateway gets our number in place.
    let right = diff(&want, &[], &[route(1001, "172.30.0.8", STATIC)], &BTreeSet::new());
    assert_eq!((right.add_routes.len(), right.delete_routes.len()), (1, 0));
    // Nothing is left to do afterwards.
    let rules: Vec<Rule> = want.rules.iter().map(PolicyRule::to_netlink).collect();
    let routes: Vec<Route> = want.routes.iter().map(PolicyRoute::to_netlink).collect();
    assert_eq!(diff(&want, &rules, &routes, &BTreeSet::new()), PolicyChanges::default());
}

#[test]
fn a_new_pod_has_its_rule_from_the_start() {
    let subnet = SubnetFacts {
        gateway_type: "distributed".into(),
        external_egress_gateway: "172.30.0.9".into(),
        policy_routing_table_id: 1000,
        policy_routing_priority: 900,
        ..SubnetFacts::default()
    };
    let addresses: Vec<IpNet> =
        ["10.17.0.5/16", "fd00::5/112"].iter().map(|net| net.parse().unwrap()).collect();
    let rules = |subnet: &SubnetFacts| rules_of_pod(subnet, &addresses);
    let wanted = PolicyRule { priority: 900, source: "10.17.0.5/32".parse().unwrap(), table: 1000 };
    assert_eq!(rules(&subnet), [wanted], "there is no gateway of the other family");
    for exempt in [
        SubnetFacts { nat_outgoing: true, ..subnet.clone() },
        SubnetFacts { gateway_type: "centralized".into(), ..subnet.clone() },
        SubnetFacts { vlan: "v".into(), ..subnet.clone() },
        SubnetFacts { vpc: "custom".into(), ..subnet.clone() },
        SubnetFacts { policy_routing_table_id: 254, ..subnet.clone() },
        SubnetFacts { external_egress_gateway: String::new(), ..subnet.clone() },
    ] {
        assert_eq!(rules(&exempt), [], "{exempt:?}");
    }
}
