use super::*;
use crate::firewall::model::{Tables, restore_sets};
use crate::gateway::inputs::{JoinInput, NatPolicy, SubnetInput};
use crate::gateway::policy::ExternalEgress;
use proptest::prelude::*;

/// A host as far as the gateway touches it.
struct Host {
    sets: SavedSets,
    rules: BTreeMap<Family, Tables>,
    routes: Vec<Route>,
    policy_rules: Vec<Rule>,
    known_tables: BTreeSet<u32>,
}

impl Host {
    fn new() -> Self {
        let foreign =
            [("PREROUTING", "-j OTHER"), ("PREROUTING", "-j KUBE-SERVICES"), ("INPUT", "-j KUBE-FIREWALL")];
        let tables = Tables::with_nat(&foreign);
        Self {
            sets: SavedSets::default(),
            rules: [(Family::V4, tables.clone()), (Family::V6, tables)].into(),
            routes: vec![Route { link: Some(2), ..Route::default_via("172.30.0.1".parse().unwrap()) }],
            policy_rules: Vec::new(),
            known_tables: BTreeSet::new(),
        }
    }

    fn observed(&self) -> Observed {
        Observed {
            sets: self.sets.clone(),
            rules: self.rules.iter().map(|(family, tables)| (*family, tables.saved())).collect(),
            routes: self.routes.clone(),
            policy_rules: self.policy_rules.clone(),
            known_tables: self.known_tables.clone(),
            ..Observed::default()
        }
    }

    fn apply(&mut self, changes: &HostChanges) {
        restore_sets(&mut self.sets, &changes.sets.before);
        for (family, tables) in &mut self.rules {
            tables.restore(changes.rules(*family));
        }
        restore_sets(&mut self.sets, &changes.sets.after);
        self.routes.retain(|route| !changes.delete.contains(route));
        for route in &changes.routes_set {
            self.routes.retain(|have| have.destination != route.destination || have.link != Some(route.link));
            self.routes.push(route.to_netlink());
        }
        for route in &changes.policy_routes {
            self.known_tables.insert(route.table);
            let new = Route { link: Some(2), ..route.to_netlink() };
            self.routes.retain(|have| have.table != new.table || have.destination != new.destination);
            self.routes.push(new);
        }
        for rule in &changes.policy_rules {
            assert!(self.routes.iter().any(|route| route.table == rule.table), "no rule into an empty table");
            self.policy_rules.push(rule.to_netlink());
        }
        self.policy_rules.retain(|rule| !changes.delete_rules.contains(rule));
        self.routes.retain(|route| !changes.delete_policy_routes.contains(route));
    }
}

fn any_inputs() -> impl Strategy<Value = Inputs> {
    let policy = (0_u8..3, any::<bool>(), any::<bool>()).prop_map(|(id, translate, v6)| NatPolicy {
        id: format!("policy{id:06}"),
        translate,
        sources: vec![],
        destinations: vec![if v6 { "2001:db8::/32" } else { "192.0.2.0/24" }.parse().unwrap()],
    });
    let subnet = (0_u8..6, prop::collection::vec(any::<bool>(), 8), prop::collection::vec(policy, 0..3))
        .prop_map(|(number, flags, nat_policy)| SubnetInput {
            name: format!("s{number}"),
            uid: format!("00000000-0000-0000-0000-{number:012}"),
            cidrs: vec![
                format!("10.{number}.0.0/16").parse().unwrap(),
                format!("fd00:{number}::/64").parse().unwrap(),
            ],
            deleting: flags[0] && flags[1],
            underlay: flags[2] && flags[3],
            u2o: flags[1],
            enable_lb: flags[4] && flags[5],
            validated: !(flags[3] && flags[4]),
            nat_outgoing: flags[5],
            distributed: flags[6],
            join: number == 0,
            egress_ips: if flags[7] { vec!["172.30.0.100".parse().unwrap()] } else { vec![] },
            nat_policy,
            external_egress: (flags[0] != flags[6]).then(|| ExternalEgress {
                gateways: vec![format!("172.30.0.{}", 200 + u8::from(flags[1])).parse().unwrap()],
                // Two subnets share a table.
                table: 1000 + u32::from(number / 2),
                priority: 900 + u32::from(number),
                gateway_here: flags[2],
                local_pods: [5, 6]
                    .into_iter()
                    .filter(|pod| flags[*pod as usize])
                    .map(|pod: u8| format!("10.{number}.0.{pod}").parse().unwrap())
                    .collect(),
            }),
        });
    let families = prop_oneof![Just((true, true)), Just((true, false)), Just((false, true))];
    (families, prop::collection::btree_map(0_u8..6, subnet, 0..6), any::<bool>(), any::<bool>()).prop_map(
        |((ipv4, ipv6), subnets, up, ipvs)| Inputs {
            ipv4,
            ipv6,
            subnets: {
                let mut by_name: BTreeMap<String, SubnetInput> = BTreeMap::new();
                by_name.extend(subnets.into_values().map(|subnet| (subnet.name.clone(), subnet)));
                by_name.into_values().collect()
            },
            services: vec!["10.96.0.0/12".parse().unwrap()],
            node_ips: vec!["172.30.0.11".parse().unwrap()],
            join: up.then(|| JoinInput {
                link: 7,
                ips: vec!["10.0.0.2".parse().unwrap(), "fd00:0::2".parse().unwrap()],
                gateways: vec!["10.0.0.1".parse().unwrap(), "fd00:0::1".parse().unwrap()],
            }),
            proxy_sets: if ipvs { ["KUBE-CLUSTER-IP".to_owned()].into() } else { Default::default() },
            ..Inputs::default()
        },
    )
}

proptest! {
    /// Whatever comes after whatever: one pass is enough, a second has nothing to do, and nobody else is touched.
    #[test]
    fn one_pass_is_enough(history in prop::collection::vec(any_inputs(), 1..4)) {
        let mut host = Host::new();
        let foreign: Vec<_> = host.rules.values().map(Tables::foreign).collect();
        let nothing = BTreeMap::new();
        for inputs in &history {
            let wanted = HostState::wanted(inputs);
            let changes = wanted.changes(&host.observed(), &nothing);
            host.apply(&changes);
            let again = wanted.changes(&host.observed(), &nothing);
            prop_assert!(again.is_empty(), "{again:?}");
            prop_assert_eq!(host.rules.values().map(Tables::foreign).collect::<Vec<_>>(), foreign.clone());
        }
        // The order of objects is no input.
        let mut reversed = history[0].clone();
        reversed.subnets.reverse();
        let (a, b) = (HostState::wanted(&history[0]), HostState::wanted(&reversed));
        prop_assert_eq!((a.sets, a.routes), (b.sets, b.routes));
    }
}

#[test]
fn the_state_can_be_shown() {
    let inputs = Inputs { ipv4: true, ..Inputs::default() };
    let wanted = HostState::wanted(&inputs);
    let text = serde_json::to_string(&wanted).unwrap();
    assert_eq!(serde_json::from_str::<HostState>(&text).unwrap(), wanted);
    let changes = wanted.changes(&Host::new().observed(), &BTreeMap::new());
    assert!(serde_json::to_string(&changes).unwrap().contains("ovn40subnets"));
}
