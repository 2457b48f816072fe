use super::*;
use crate::firewall::{Learned, Saved, diff, parse_rules, render};
use crate::gateway::inputs::{Clamp, NatPolicy, SubnetInput, UnderlayInput};
use crate::gateway::sets;

fn subnet(name: &str, cidrs: &[&str]) -> SubnetInput {
    SubnetInput {
        name: name.into(),
        uid: format!("00000000-0000-0000-0000-{name:0>12}"),
        cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        validated: true,
        distributed: true,
        ..SubnetInput::default()
    }
}

/// Two nodes, both families, one subnet of each kind.
pub(crate) fn example() -> Inputs {
    Inputs {
        ipv4: true,
        ipv6: true,
        subnets: vec![
            SubnetInput { nat_outgoing: true, ..subnet("default", &["10.16.0.0/16", "fd00:10:16::/112"]) },
            SubnetInput { join: true, ..subnet("join", &["100.64.0.0/16", "fd00:100:64::/112"]) },
            SubnetInput {
                nat_outgoing: true,
                distributed: false,
                egress_ips: vec!["172.30.0.100".parse().unwrap(), "fd00:172::100".parse().unwrap()],
                ..subnet("central", &["10.17.0.0/16", "fd00:10:17::/112"])
            },
            SubnetInput {
                nat_outgoing: true,
                nat_policy: vec![
                    NatPolicy {
                        id: "aaaaaaaaaaaa".into(),
                        translate: false,
                        sources: vec!["10.18.0.5/32".parse().unwrap()],
                        destinations: vec!["192.0.2.0/24".parse().unwrap()],
                    },
                    NatPolicy {
                        id: "bbbbbbbbbbbb".into(),
                        translate: true,
                        sources: vec![],
                        destinations: vec![
                            "2001:db8::/32".parse().unwrap(),
                            "198.51.100.0/24".parse().unwrap(),
                        ],
                    },
                    NatPolicy { id: "cccccccccccc".into(), translate: true, ..NatPolicy::default() },
                ],
                ..subnet("policy", &["10.18.0.0/16", "fd00:10:18::/112"])
            },
            SubnetInput { underlay: true, nat_outgoing: true, ..subnet("vlan", &["10.50.0.0/24"]) },
            SubnetInput { deleting: true, nat_outgoing: true, ..subnet("leaving", &["10.19.0.0/16"]) },
        ],
        services: vec!["10.96.0.0/12".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()],
        node_name: "n1".into(),
        node_ips: vec!["172.30.0.11".parse().unwrap(), "fd00:172::11".parse().unwrap()],
        other_node_ips: ["172.30.0.12", "fd00:172::12"].iter().map(|ip| ip.parse().unwrap()).collect(),
        other_node_addresses: ["172.31.0.12"].iter().map(|ip| ip.parse().unwrap()).collect(),
        underlay: UnderlayInput {
            pods: ["172.30.0.0/24", "fd00:172::/64"].iter().map(|net| net.parse().unwrap()).collect(),
            hosts: ["172.30.0.1/32", "10.0.0.1/32"].iter().map(|net| net.parse().unwrap()).collect(),
        },
        ..Inputs::default()
    }
}

/// Compares with a file; `WEIR_UPDATE_GOLDEN=1` writes it.
fn golden(name: &str, text: &str) {
    let path = format!("{}/src/gateway/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("WEIR_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name} differs");
}

#[test]
fn k_123_rules_of_a_dual_stack_node() {
    for (family, name) in [(Family::V4, "rules-v4.txt"), (Family::V6, "rules-v6.txt")] {
        let changes = diff(&wanted(&example(), family), &Saved::default(), &Learned::default());
        golden(name, &render(&changes));
    }
}

#[test]
fn k_120_sets_of_a_dual_stack_node() {
    let plan = crate::firewall::plan_sets(&sets::wanted(&example()), &Default::default(), |_| false);
    golden("sets.txt", &plan.before);
}

#[test]
fn rules_with_kube_proxy_in_ipvs_mode() {
    let mut inputs = Inputs { subnets: example().subnets.into_iter().take(2).collect(), ..example() };
    inputs.proxy_sets =
        ["KUBE-CLUSTER-IP", "KUBE-NODE-PORT-LOCAL-TCP"].iter().map(ToString::to_string).collect();
    let changes = diff(&wanted(&inputs, Family::V4), &Saved::default(), &Learned::default());
    golden("rules-v4-ipvs.txt", &render(&changes));
    let v6 = render(&diff(&wanted(&inputs, Family::V6), &Saved::default(), &Learned::default()));
    assert!(!v6.contains("KUBE-6"));
}

#[test]
fn k_134_segments_are_clamped_only_when_asked_for() {
    let mut inputs = example();
    let clamp = |inputs: &Inputs, family| {
        let mangle = &wanted(inputs, family)[&Table::Mangle];
        let rules = mangle.chains["OVN-POSTROUTING"].iter().filter(|rule| rule.as_str().contains("TCPMSS"));
        rules.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(clamp(&inputs, Family::V4), Vec::<String>::new());
    inputs.config.clamp = Some(Clamp { link: "eth1".into(), mtu: 1400 });
    let rule = "-o eth1 -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss";
    assert_eq!(clamp(&inputs, Family::V4), [format!("{rule} 1360")]);
    assert_eq!(clamp(&inputs, Family::V6), [format!("{rule} 1340")]);
}

#[test]
fn counters_end_with_their_subnet_and_can_be_off() {
    let mut inputs = example();
    let long = "x".repeat(253);
    let policy = example().subnets[3].clone();
    inputs.subnets.push(SubnetInput { name: long.clone(), ..policy });
    let nat = &wanted(&inputs, Family::V4)[&Table::Nat].chains["OVN-NAT-POLICY"];
    assert!(nat.iter().all(|rule| rule.as_str().split(' ').nth(5).unwrap().len() <= 255), "{nat:?}");
    inputs.subnets.pop();
    inputs.subnets.push(subnet(&long, &["10.40.0.0/16"]));
    let filter = |inputs: &Inputs| wanted(inputs, Family::V4)[&Table::Filter].clone();
    let table = filter(&inputs);
    let counters = &table.chains[EGRESS_COUNTERS];
    assert_eq!(counters.len(), 6, "one for each overlay subnet, the leaving one too");
    for rule in counters {
        let comment = rule.as_str().split('"').nth(1).unwrap();
        assert!(comment.len() <= 255 && rule.target() == Some("RETURN"), "{rule}");
    }
    inputs.config.counters = false;
    let table = filter(&inputs);
    assert!(!table.chains.contains_key(EGRESS_COUNTERS) && table.is_retired(INGRESS_COUNTERS));
    assert!(table.chains["OVN-FORWARD"].iter().all(|rule| !rule.as_str().contains("SUBNET-")));
}

#[test]
fn every_set_that_a_rule_names_is_wanted() {
    let inputs = example();
    let sets = sets::wanted(&inputs);
    for family in [Family::V4, Family::V6] {
        for table in wanted(&inputs, family).values() {
            for rule in table.chains.values().flatten() {
                let words: Vec<&str> = rule.as_str().split(' ').collect();
                for pair in words.windows(2).filter(|pair| pair[0] == "--match-set") {
                    assert!(sets.contains_key(pair[1]), "{}", pair[1]);
                }
            }
        }
    }
    assert!(sets.keys().all(|name| name.len() <= 31));
}

#[test]
fn refusals_stand_before_the_accepts() {
    for family in [Family::V4, Family::V6] {
        let filter = &wanted(&example(), family)[&Table::Filter];
        for chain in ["OVN-INPUT", "OVN-FORWARD"] {
            let rules = &filter.chains[chain];
            let last_refusal = rules.iter().rposition(|rule| rule.as_str().contains("-j REJECT")).unwrap();
            let first_accept = rules.iter().position(|rule| rule.as_str().contains("-j ACCEPT")).unwrap();
            assert!(last_refusal < first_accept);
        }
    }
}

#[test]
fn k_124_kube_ovns_own_filter_rules_are_replaced() {
    let saved = parse_rules(
        "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m set --match-set ovn40subnets src -j ACCEPT\n\
         -A INPUT -j KUBE-FIREWALL\n-A INPUT -s 10.0.0.0/8 -j ACCEPT\nCOMMIT\n",
    );
    let batch = render(&diff(&wanted(&example(), Family::V4), &saved, &Learned::default()));
    assert!(batch.contains("\n-D INPUT -m set --match-set ovn40subnets src -j ACCEPT\n"));
    assert_eq!(batch.matches("\n-D ").count(), 1);
}

/// Read back as the tools print them; what only counts has no fixed text.
#[test]
fn k_124_kube_ovns_refusals_and_counters_go_too() {
    for (family, set, with) in
        [(Family::V4, "ovn40", "icmp-port-unreachable"), (Family::V6, "ovn60", "icmp6-port-unreachable")]
    {
        let any = format!(
            "-m mark ! --mark 0x4000/0x4000 -m set --match-set {set}services dst -m conntrack --ctstate NEW -j REJECT \
             --reject-with {with}"
        );
        let old = [
            format!("INPUT -p tcp {any}"),
            format!("INPUT {any}"),
            format!("OUTPUT -p tcp {any}"),
            format!("OUTPUT {any}"),
            "FORWARD -s 10.16.0.0/16 -m comment --comment \"ovn-subnet-gateway,gone\"".into(),
            "FORWARD -d fd00::/112 -m comment --comment \"ovn-subnet-gateway,a.b\"".into(),
        ];
        let mut text = "*filter\n:INPUT ACCEPT [0:0]\n-A FORWARD -j KUBE-FORWARD\n".to_owned();
        old.iter().for_each(|rule| text.push_str(&format!("-A {rule}\n")));
        text.push_str("-A FORWARD -s 10.16.0.0/16 -m comment --comment mine\nCOMMIT\n");
        for wanted in [wanted(&example(), family), unwanted(family)] {
            let batch = render(&diff(&wanted, &parse_rules(&text), &Learned::default()));
            for rule in &old {
                assert!(batch.contains(&format!("\n-D {rule}\n")), "{rule}: {batch}");
            }
            assert_eq!(batch.matches("\n-D ").count(), old.len());
        }
    }
}

#[test]
fn policies_count_only_where_sources_are_translated() {
    let mut inputs = example();
    let policy = |inputs: &Inputs| {
        let chains = wanted(inputs, Family::V4)[&Table::Nat].chains.clone();
        let set = sets::wanted(inputs)["ovn40subnets-nat-policy"].entries.len();
        (chains["OVN-NAT-POLICY"].len(), chains.len(), set)
    };
    assert_eq!(policy(&inputs), (1, 5, 1));
    inputs.subnets[3].nat_outgoing = false;
    assert_eq!(policy(&inputs), (0, 4, 0));
    assert!(!sets::wanted(&inputs).keys().any(|name| name.contains("natpr-")));
}

#[test]
fn ports_are_split_at_the_modules_limit() {
    let ports: Vec<(u16, u16)> = (0..20).map(|i| (1000 + i * 10, 1000 + i * 10 + u16::from(i < 8))).collect();
    let lists = port_lists(&ports);
    assert_eq!(lists.len(), 2);
    for list in &lists {
        assert!(list.split(',').map(|port| 1 + usize::from(port.contains(':'))).sum::<usize>() <= 15);
    }
    assert_eq!(lists.join(",").split(',').count(), 20);
    assert_eq!(port_lists(&[]), Vec::<String>::new());
}
