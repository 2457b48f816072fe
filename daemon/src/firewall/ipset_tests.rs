use super::super::model::restore_sets;
use super::*;
use proptest::prelude::*;

fn nets(entries: &[&str]) -> SetSpec {
    SetSpec::nets(Family::V4, entries.iter().map(|entry| entry.parse().unwrap()))
}

fn wanted(name: &str, spec: SetSpec) -> BTreeMap<String, SetSpec> {
    BTreeMap::from([(name.to_owned(), spec)])
}

#[test]
fn reads_what_the_tool_prints() {
    let text = "create ovn40subnets hash:net family inet hashsize 1024 maxelem 1048576 bucketsize 12 initval 0xe3\n\
        add ovn40subnets 10.16.0.0/16\nadd ovn40subnets 10.0.0.1\nadd ovn40subnets 10.9.0.0/16 nomatch\n\
        create ovn60subnets hash:net family inet6 hashsize 1024 maxelem 65536\nadd ovn60subnets fd00::1\n\
        create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536\n\
        add KUBE-CLUSTER-IP 10.96.0.1,tcp:443\ncreate lists list:set size 8\nsurprise\n";
    let sets = parse_save(text);
    let set = &sets.ours["ovn40subnets"];
    assert_eq!(set.entries, nets(&["10.16.0.0/16", "10.0.0.1/32"]).entries);
    assert_eq!(set.odd, BTreeSet::from(["10.9.0.0/16".to_owned()]));
    assert_eq!(set.max_elements, Some(1_048_576));
    assert_eq!(sets.ours["ovn60subnets"].max_elements, Some(65536));
    assert_eq!(sets.others, BTreeSet::from(["KUBE-CLUSTER-IP".to_owned(), "lists".to_owned()]));
}

#[test]
fn a_missing_set_is_created_with_its_content() {
    let plan = plan_sets(
        &wanted("ovn40subnets", nets(&["10.16.0.9/16", "10.0.0.1/32"])),
        &SavedSets::default(),
        |_| false,
    );
    assert_eq!(
        plan.before,
        "create ovn40subnets hash:net family inet hashsize 1024 maxelem 1048576\n\
         add ovn40subnets 10.0.0.1\nadd ovn40subnets 10.16.0.0/16\n"
    );
    assert!(plan.after.is_empty());
}

#[test]
fn a_different_set_is_swapped_and_leftovers_of_a_crash_go() {
    let mut saved = SavedSets::default();
    let first = plan_sets(&wanted("ovn40subnets", nets(&["10.16.0.0/16"])), &saved, |_| false);
    restore_sets(&mut saved, &first.before);
    saved.ours.insert("ovn4tsubnets".into(), SavedSet::default());
    saved.ours.insert("ovn4tother".into(), SavedSet::default());
    saved.ours.insert("ovn40natpr-x-src".into(), SavedSet::default());
    saved.ours.insert("ovn40unknown".into(), SavedSet::default());
    // The settings differ: nothing in place would mend that.
    saved.ours.get_mut("ovn40subnets").unwrap().max_elements = Some(65536);
    let plan =
        plan_sets(&wanted("ovn40subnets", nets(&["10.17.0.0/16"])), &saved, |name| name.contains("natpr-"));
    assert_eq!(
        plan.before,
        "destroy ovn4tsubnets\ncreate ovn4tsubnets hash:net family inet hashsize 1024 maxelem 1048576\n\
         add ovn4tsubnets 10.17.0.0/16\nswap ovn4tsubnets ovn40subnets\ndestroy ovn4tsubnets\n"
    );
    assert_eq!(plan.destroyed, ["ovn40natpr-x-src", "ovn4tother"]);
    assert_eq!(plan.changes[0].removed, nets(&["10.16.0.0/16"]).entries);
}

#[test]
fn a_small_change_costs_its_own_elements() {
    let many: Vec<String> = (0..200).map(|n| format!("10.{n}.0.0/16")).collect();
    let all = |names: &[String]| nets(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut saved = SavedSets::default();
    let first = plan_sets(&wanted("ovn40subnets", all(&many)), &saved, |_| false);
    restore_sets(&mut saved, &first.before);
    let mut next = many.clone();
    next[3] = "192.168.0.0/24".into();
    let plan = plan_sets(&wanted("ovn40subnets", all(&next)), &saved, |_| false);
    assert_eq!(plan.before, "add ovn40subnets 192.168.0.0/24\ndel ovn40subnets 10.3.0.0/16\n");
    // Another world: one swap.
    let plan = plan_sets(&wanted("ovn40subnets", all(&many[..20])), &saved, |_| false);
    assert!(plan.before.contains("swap ovn4tsubnets ovn40subnets"), "{}", plan.before);
}

#[test]
fn another_type_is_a_conflict_with_a_remedy() {
    let mut saved = SavedSets::default();
    restore_sets(&mut saved, "create ovn40subnets hash:ip family inet hashsize 1024 maxelem 1048576\n");
    let plan = plan_sets(&wanted("ovn40subnets", nets(&[])), &saved, |_| false);
    assert!(plan.is_empty());
    assert!(plan.conflicts[0].to_string().contains("ipset destroy ovn40subnets"));
}

#[test]
fn everything_is_written_as_two_halves() {
    assert_eq!(nets(&["0.0.0.0/0"]).entries, nets(&["0.0.0.0/1", "128.0.0.0/1"]).entries);
    assert!(SetSpec::nets(Family::V6, ["10.0.0.0/8".parse().unwrap()]).entries.is_empty());
}

fn any_sets() -> impl Strategy<Value = BTreeMap<String, SetSpec>> {
    let entry = (any::<u32>(), 1_u8..=32)
        .prop_map(|(ip, len)| IpNet::V4(ipnet::Ipv4Net::new(ip.into(), len).unwrap()));
    let spec = prop::collection::vec(entry, 0..6).prop_map(|entries| SetSpec::nets(Family::V4, entries));
    prop::collection::btree_map("ovn4[0t](a|b|natpr-1)", spec, 0..5).prop_map(|mut sets| {
        sets.retain(|name, _| !is_temporary(name));
        sets
    })
}

proptest! {
    #[test]
    fn after_the_scripts_nothing_is_left_to_do(first in any_sets(), second in any_sets(), crash in 0_usize..40) {
        let mut host = SavedSets::default();
        let retire = |name: &str| name.contains("natpr-");
        let plan = plan_sets(&first, &host, retire);
        restore_sets(&mut host, &plan.before);
        // The agent dies somewhere in the middle of the next script …
        let plan = plan_sets(&second, &host, retire);
        let part: Vec<&str> = plan.before.lines().take(crash).collect();
        restore_sets(&mut host, &part.join("\n"));
        // … and starts again.
        let plan = plan_sets(&second, &host, retire);
        restore_sets(&mut host, &plan.before);
        restore_sets(&mut host, &plan.after);
        prop_assert!(plan_sets(&second, &host, retire).is_empty());
        prop_assert!(host.ours.keys().all(|name| !is_temporary(name)));
        for (name, spec) in &second {
            prop_assert_eq!(&host.ours[name].entries, &spec.entries);
        }
    }

    #[test]
    fn any_text_is_read(text in "(create|add|[a-z]{1,4}| |\n|ovn40a|hash:net|10.0.0.0/8){0,60}") {
        let _ = parse_save(&text);
    }
}
