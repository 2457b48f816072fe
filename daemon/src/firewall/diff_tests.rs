use super::super::model::Tables;
use super::super::ruleset::parse_rules;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

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
        ..WantedTable::default()
    };
    BTreeMap::from([(Table::Nat, table)])
}

const PORTALS: &str = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
const OURS: &str = "-m comment --comment \"kube-ovn prerouting rules\" -j OVN-PREROUTING";

fn settle(host: &mut Tables) -> Vec<TableChange> {
    let changes = diff(&wanted(), &host.saved(), &Learned::default());
    host.restore(&changes);
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
    let mut host = Tables::with_nat(&[
        ("PREROUTING", "-j FIRST"),
        ("PREROUTING", PORTALS),
        ("PREROUTING", "-j LAST"),
        ("PREROUTING", OURS),
    ]);
    settle(&mut host);
    assert_eq!(host.nat()["PREROUTING"], ["-j FIRST", OURS, PORTALS, "-j LAST"]);
    assert!(settle(&mut host).is_empty());
}

#[test]
fn a_jump_anywhere_above_stays_there() {
    let mut host =
        Tables::with_nat(&[("PREROUTING", "-j CILIUM"), ("PREROUTING", OURS), ("PREROUTING", PORTALS)]);
    settle(&mut host);
    assert_eq!(host.nat()["PREROUTING"], ["-j CILIUM", OURS, PORTALS]);
}

#[test]
fn duplicates_become_one() {
    let mut host = Tables::with_nat(&[
        ("PREROUTING", "-j FIRST"),
        ("PREROUTING", OURS),
        ("PREROUTING", PORTALS),
        ("PREROUTING", OURS),
    ]);
    settle(&mut host);
    assert_eq!(host.nat()["PREROUTING"], ["-j FIRST", OURS, PORTALS]);
}

#[test]
fn what_an_older_agent_left_goes() {
    let mut host = Tables::with_nat(&[
        ("INPUT", "-j KUBE-FIREWALL"),
        ("INPUT", "-s obsolete -j ACCEPT"),
        ("INPUT", "-s obsolete -j ACCEPT"),
        ("OVN-NAT-PSUBNET-abc", "-j RETURN"),
        ("OVN-TPROXY", "-j RETURN"),
    ]);
    settle(&mut host);
    assert_eq!(host.nat()["INPUT"], ["-j KUBE-FIREWALL"]);
    assert!(!host.nat().contains_key("OVN-NAT-PSUBNET-abc"));
    assert!(host.nat().contains_key("OVN-TPROXY"), "chains of features that we don't have stay");
}

#[test]
fn removal_leaves_only_what_others_made() {
    let mut host = Tables::with_nat(&[("PREROUTING", "-j FIRST"), ("PREROUTING", PORTALS)]);
    let before = host.clone();
    settle(&mut host);
    let nothing = WantedTable { retired: BTreeSet::from(["OVN-*".into()]), ..WantedTable::default() };
    let nothing = BTreeMap::from([(Table::Nat, nothing)]);
    host.restore(&diff(&nothing, &host.saved(), &Learned::default()));
    assert_eq!(host, before);
}

/// The lines of a change between two contents of one chain, after it was carried out on the model.
fn edit(before: &[&str], after: &[&str]) -> Vec<String> {
    let mut host = Tables::with_nat(&[]);
    host.nat_mut().insert("OVN-X".into(), before.iter().map(|rule| (*rule).to_owned()).collect());
    let chain = after.iter().map(|rule| Rule::new(*rule)).collect();
    let table = WantedTable { chains: BTreeMap::from([("OVN-X".into(), chain)]), ..WantedTable::default() };
    let changes = diff(&BTreeMap::from([(Table::Nat, table)]), &host.saved(), &Learned::default());
    host.restore(&changes);
    assert_eq!(host.nat()["OVN-X"], after);
    changes.into_iter().flat_map(|change| change.lines).collect()
}

#[test]
fn one_rule_costs_one_line() {
    let chain = ["-s 1 -j A", "-s 2 -j A", "-s 3 -j A", "-s 4 -j A"];
    assert_eq!(edit(&chain[..3], &chain), ["-I OVN-X 4 -s 4 -j A"]);
    assert_eq!(edit(&chain, &[&chain[..1], &chain[2..]].concat()), ["-D OVN-X -s 2 -j A"]);
    let replaced = ["-s 1 -j A", "-s 9 -j B", "-s 3 -j A", "-s 4 -j A"];
    assert_eq!(edit(&chain, &replaced), ["-D OVN-X -s 2 -j A", "-I OVN-X 2 -s 9 -j B"]);
    assert_eq!(edit(&chain, &[]).len(), 4);
    // Another order, equal rules, hardly anything in common: the whole chain.
    for (before, after) in [
        (vec!["-s 1 -j A", "-s 2 -j A"], vec!["-s 2 -j A", "-s 1 -j A"]),
        (vec!["-s 1 -j A", "-s 1 -j A"], vec!["-s 1 -j A"]),
        (vec!["-s 1 -j A"], vec!["-s 7 -j A", "-s 8 -j A", "-s 9 -j A"]),
    ] {
        assert_eq!(edit(&before, &after)[0], ":OVN-X - [0:0]");
    }
}

#[test]
fn another_notation_of_the_tool_is_learned() {
    let mut host = Tables::with_nat(&[]);
    let changes = settle(&mut host);
    host.nat_mut().insert("OVN-MASQUERADE".into(), vec!["-j MASQUERADE --to-ports 0".into()]);
    assert_eq!(diff(&wanted(), &host.saved(), &Learned::default()).len(), 1);
    let mut learned = Learned::default();
    assert_eq!(learned.learn(&wanted(), &host.saved(), &changes), ["nat OVN-MASQUERADE"]);
    assert!(diff(&wanted(), &host.saved(), &learned).is_empty());
    host.nat_mut().insert("OVN-MASQUERADE".into(), vec!["-j ACCEPT".into()]);
    assert_eq!(diff(&wanted(), &host.saved(), &learned).len(), 1, "tampering is still seen");
}

fn any_host() -> impl Strategy<Value = Tables> {
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
    prop::collection::vec(rule, 0..12).prop_map(|rules| Tables::with_nat(&rules))
}

proptest! {
    #[test]
    fn one_batch_settles_any_host(mut host in any_host()) {
        let foreign = host.foreign();
        settle(&mut host);
        prop_assert_eq!(diff(&wanted(), &host.saved(), &Learned::default()), vec![]);
        prop_assert_eq!(host.foreign(), foreign);
        let rules = &host.nat()["PREROUTING"];
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
