use super::super::ruleset::parse_rules;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A table as text: what `iptables-save` would print, and what a batch does to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host(BTreeMap<String, Vec<String>>);

impl Host {
    pub(crate) fn new(rules: &[(&str, &str)]) -> Self {
        let mut host = Self(BTreeMap::new());
        for chain in ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"] {
            host.0.insert(chain.into(), Vec::new());
        }
        for (chain, rule) in rules {
            host.0.entry((*chain).into()).or_default().push((*rule).into());
        }
        host
    }

    fn saved(&self) -> Saved {
        let mut text = String::from("*nat\n");
        for chain in self.0.keys() {
            text.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for (chain, rules) in &self.0 {
            for rule in rules {
                text.push_str(&format!("-A {chain} {rule}\n"));
            }
        }
        parse_rules(&format!("{text}COMMIT\n"))
    }

    fn apply(&mut self, changes: &[TableChange]) {
        for line in changes.iter().flat_map(|change| &change.lines) {
            if let Some(chain) = line.strip_prefix(':') {
                let chain = chain.split(' ').next().unwrap();
                self.0.insert(chain.to_owned(), Vec::new());
                continue;
            }
            let (verb, rest) = line.split_once(' ').unwrap();
            let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            let rules = self.0.get_mut(chain).expect("the chain exists");
            match verb {
                "-A" => rules.push(rule.into()),
                "-D" => {
                    let at = rules.iter().position(|present| present == rule).expect("the rule exists");
                    rules.remove(at);
                }
                "-I" => {
                    let (index, rule) = rule.split_once(' ').unwrap();
                    rules.insert(index.parse::<usize>().unwrap() - 1, rule.into());
                }
                "-X" => {
                    assert!(rules.is_empty());
                    assert!(
                        !self.0.values().flatten().any(|rule| rule.ends_with(&format!("-j {chain}"))),
                        "in use"
                    );
                    self.0.remove(chain);
                }
                other => panic!("{other}"),
            }
        }
    }

    fn foreign(&self) -> Vec<(String, String)> {
        let ours = |rule: &String| rule.contains("-j OVN-") || rule.contains("obsolete");
        self.0
            .iter()
            .filter(|(chain, _)| !chain.starts_with("OVN-"))
            .flat_map(|(chain, rules)| rules.iter().filter(|r| !ours(r)).map(|r| (chain.clone(), r.clone())))
            .collect()
    }
}

fn wanted() -> BTreeMap<Table, WantedTable> {
    let table = WantedTable {
        chains: BTreeMap::from([
            ("OVN-PREROUTING".into(), vec![Rule::new("-i ovn0 -j RETURN"), Rule::new("-j OVN-MASQUERADE")]),
            ("OVN-MASQUERADE".into(), vec![Rule::new("-j MASQUERADE")]),
        ]),
        jumps: vec![Jump {
            from: "PREROUTING".into(),
            to: "OVN-PREROUTING".into(),
            comment: "kube-ovn prerouting rules".into(),
            before: Some("KUBE-SERVICES".into()),
        }],
        obsolete: BTreeMap::from([("INPUT".into(), BTreeSet::from([Rule::new("-s obsolete -j ACCEPT")]))]),
        retired: BTreeSet::from(["OVN-NAT-PSUBNET-*".into()]),
    };
    BTreeMap::from([(Table::Nat, table)])
}

const PORTALS: &str = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
const OURS: &str = "-m comment --comment \"kube-ovn prerouting rules\" -j OVN-PREROUTING";

fn settle(host: &mut Host) -> Vec<TableChange> {
    let changes = diff(&wanted(), &host.saved(), &Learned::default());
    host.apply(&changes);
    changes
}

#[test]
fn an_empty_host() {
    let changes = diff(&wanted(), &Saved::default(), &Learned::default());
    assert_eq!(
        render(&changes),
        "*nat\n:OVN-MASQUERADE - [0:0]\n:OVN-PREROUTING - [0:0]\n-A OVN-MASQUERADE -j MASQUERADE\n\
         -A OVN-PREROUTING -i ovn0 -j RETURN\n-A OVN-PREROUTING -j OVN-MASQUERADE\n\
         -I PREROUTING 1 -m comment --comment \"kube-ovn prerouting rules\" -j OVN-PREROUTING\nCOMMIT\n"
    );
}

#[test]
fn a_jump_below_the_portals_is_put_just_before_them() {
    let mut host = Host::new(&[
        ("PREROUTING", "-j FIRST"),
        ("PREROUTING", PORTALS),
        ("PREROUTING", "-j LAST"),
        ("PREROUTING", OURS),
    ]);
    settle(&mut host);
    assert_eq!(host.0["PREROUTING"], ["-j FIRST", OURS, PORTALS, "-j LAST"]);
    assert!(settle(&mut host).is_empty());
}

#[test]
fn a_jump_anywhere_above_stays_there() {
    let mut host = Host::new(&[("PREROUTING", "-j CILIUM"), ("PREROUTING", OURS), ("PREROUTING", PORTALS)]);
    settle(&mut host);
    assert_eq!(host.0["PREROUTING"], ["-j CILIUM", OURS, PORTALS]);
}

#[test]
fn duplicates_become_one() {
    let mut host = Host::new(&[
        ("PREROUTING", "-j FIRST"),
        ("PREROUTING", OURS),
        ("PREROUTING", PORTALS),
        ("PREROUTING", OURS),
    ]);
    settle(&mut host);
    assert_eq!(host.0["PREROUTING"], ["-j FIRST", OURS, PORTALS]);
}

#[test]
fn what_an_older_agent_left_goes() {
    let mut host = Host::new(&[
        ("INPUT", "-j KUBE-FIREWALL"),
        ("INPUT", "-s obsolete -j ACCEPT"),
        ("INPUT", "-s obsolete -j ACCEPT"),
        ("OVN-NAT-PSUBNET-abc", "-j RETURN"),
        ("OVN-TPROXY", "-j RETURN"),
    ]);
    settle(&mut host);
    assert_eq!(host.0["INPUT"], ["-j KUBE-FIREWALL"]);
    assert!(!host.0.contains_key("OVN-NAT-PSUBNET-abc"));
    assert!(host.0.contains_key("OVN-TPROXY"), "chains of features that we don't have stay");
}

#[test]
fn removal_leaves_only_what_others_made() {
    let mut host = Host::new(&[("PREROUTING", "-j FIRST"), ("PREROUTING", PORTALS)]);
    let before = host.clone();
    settle(&mut host);
    let nothing = WantedTable { retired: BTreeSet::from(["OVN-*".into()]), ..WantedTable::default() };
    let nothing = BTreeMap::from([(Table::Nat, nothing)]);
    host.apply(&diff(&nothing, &host.saved(), &Learned::default()));
    assert_eq!(host, before);
}

#[test]
fn another_notation_of_the_tool_is_learned() {
    let mut host = Host::new(&[]);
    let changes = settle(&mut host);
    host.0.insert("OVN-MASQUERADE".into(), vec!["-j MASQUERADE --to-ports 0".into()]);
    assert_eq!(diff(&wanted(), &host.saved(), &Learned::default()).len(), 1);
    let mut learned = Learned::default();
    assert_eq!(learned.learn(&wanted(), &host.saved(), &changes), ["nat OVN-MASQUERADE"]);
    assert!(diff(&wanted(), &host.saved(), &learned).is_empty());
    host.0.insert("OVN-MASQUERADE".into(), vec!["-j ACCEPT".into()]);
    assert_eq!(diff(&wanted(), &host.saved(), &learned).len(), 1, "tampering is still seen");
}

fn any_host() -> impl Strategy<Value = Host> {
    let rule = prop::sample::select(vec![
        ("PREROUTING", OURS),
        ("PREROUTING", PORTALS),
        ("PREROUTING", "-j FIRST"),
        ("PREROUTING", "-j LAST"),
        ("INPUT", "-s obsolete -j ACCEPT"),
        ("INPUT", "-j KUBE-FIREWALL"),
        ("INPUT", "-j OVN-NAT-PSUBNET-x"),
        ("OVN-PREROUTING", "-i ovn0 -j RETURN"),
        ("OVN-MASQUERADE", "-j MASQUERADE"),
        ("OVN-NAT-PSUBNET-x", "-j RETURN"),
        ("KUBE-SERVICES", "-j RETURN"),
    ]);
    prop::collection::vec(rule, 0..12).prop_map(|rules| Host::new(&rules))
}

proptest! {
    #[test]
    fn one_batch_settles_any_host(mut host in any_host()) {
        let foreign = host.foreign();
        settle(&mut host);
        prop_assert_eq!(diff(&wanted(), &host.saved(), &Learned::default()), vec![]);
        prop_assert_eq!(host.foreign(), foreign);
        let rules = &host.0["PREROUTING"];
        prop_assert_eq!(rules.iter().filter(|rule| *rule == OURS).count(), 1);
        let ours = rules.iter().position(|rule| rule == OURS).unwrap();
        let portals = rules.iter().position(|rule| rule == PORTALS).unwrap_or(usize::MAX);
        prop_assert!(ours < portals);
    }

    #[test]
    fn any_text_is_read(text in "(\\*nat|\\*|:|-A |OVN-|PREROUTING| |-j |\"|\n){0,60}") {
        let _ = diff(&wanted(), &parse_rules(&text), &Learned::default());
    }
}
