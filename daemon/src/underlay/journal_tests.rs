use super::*;
use crate::netlink::exact::tests::carried;

const NIC: u32 = 7;
const BOOT: &str = "today";

type Routes<'a> = &'a [(&'a str, Option<&'a str>, u8)];

fn load(addresses: &[&str], routes: Routes<'_>) -> Load {
    Load::of(&carried(addresses, routes), NIC)
}

fn nets(load: &Load) -> Vec<String> {
    load.addresses.iter().map(ToString::to_string).collect()
}

fn destinations(load: &Load) -> Vec<String> {
    load.routes.iter().map(|route| route.summary().unwrap().destination.to_string()).collect()
}

const STATIC: u8 = protocol::STATIC;
const HOME: Routes<'_> = &[("0.0.0.0/0", Some("10.9.0.1"), STATIC), ("::/0", Some("fd09::1"), STATIC)];

fn wish() -> Wish {
    Wish { network: "net1".into(), nic: "eth1".into(), ..Wish::default() }
}

fn moved(load: Load) -> Journal {
    Journal { nic: "eth1".into(), moved: true, load, boot: BOOT.into(), ..Journal::default() }
}

#[test]
fn the_first_time_the_nic_is_recorded() {
    let nic = load(&["10.9.0.11/24"], HOME);
    let journal = Journal::first(&wish(), nic.clone(), Settings::default(), BOOT);
    assert_eq!((journal.nic.as_str(), journal.moved, &journal.load), ("eth1", false, &nic));
    let text = journal.text().unwrap();
    assert_eq!(serde_json::from_str::<Journal>(&text).unwrap(), journal);
}

#[test]
fn a_crash_in_the_middle_loses_nothing_of_either_side() {
    let recorded = Journal { moved: false, ..moved(load(&["10.9.0.11/24", "fd09::11/64"], HOME)) };
    let journal = recorded.next(&load(&["10.9.0.11/24", "10.9.0.12/24"], &[]), BOOT);
    assert_eq!(nets(&journal.load), ["10.9.0.11/24", "fd09::11/64", "10.9.0.12/24"]);
    assert_eq!(journal.load.routes.len(), 2);
    assert!(journal.stale.is_empty());
}

#[test]
fn a_quiet_nic_or_a_reboot_changes_nothing() {
    let all = load(&["10.9.0.11/24", "fd09::11/64"], HOME);
    for (nic, boot) in
        [(Load::default(), BOOT), (all.clone(), BOOT), (Load::default(), "later"), (all.clone(), "later")]
    {
        let journal = moved(all.clone()).next(&nic, boot);
        assert_eq!((&journal.load, journal.stale.is_empty()), (&all, true));
        // A NIC that has said nothing since the boot will.
        assert_eq!(journal.boot, if nic.is_empty() { BOOT } else { boot });
    }
}

#[test]
fn what_the_hosts_configuration_has_lost_is_gone_after_a_reboot() {
    let all = load(&["10.9.0.11/24", "fd09::11/64"], HOME);
    let nic = load(&["fd09::11/64"], &[("::/0", Some("fd09::1"), STATIC)]);
    let next = |journal: &Journal, nic: &Load, boot: &str| journal.clone().next(nic, boot);
    let same_boot = next(&moved(all.clone()), &nic, BOOT);
    assert_eq!(
        (&same_boot.load, same_boot.stale.is_empty()),
        (&all, true),
        "a family that the host is silent of stays"
    );
    for moved_before in [true, false] {
        let before = Journal { moved: moved_before, ..moved(all.clone()) };
        let later = next(&before, &nic, "later");
        assert_eq!(
            (nets(&later.load), destinations(&later.load)),
            (vec!["fd09::11/64".into()], vec!["::/0".into()])
        );
        assert_eq!(nets(&later.stale), ["10.9.0.11/24"]);
        // From then on each family counts by itself again.
        let four = next(&later, &load(&["10.9.0.99/24"], &[]), "later");
        let both: std::collections::BTreeSet<_> = nets(&four.load).into_iter().collect();
        assert_eq!(both, ["10.9.0.99/24".to_owned(), "fd09::11/64".to_owned()].into());
    }
    // A record of an agent that did not know of boots says nothing about them.
    let unknown = next(&Journal { boot: String::new(), ..moved(all.clone()) }, &nic, BOOT);
    assert_eq!((unknown.load, unknown.boot.as_str()), (all, BOOT));
}

#[test]
fn u46_what_the_host_configures_anew_replaces_its_family() {
    let old = load(
        &["10.9.0.11/24", "10.9.1.11/24", "fd09::11/64"],
        &[
            ("0.0.0.0/0", Some("10.9.0.1"), STATIC),
            ("10.5.0.0/16", Some("10.9.1.1"), STATIC),
            ("10.9.1.0/24", None, protocol::KERNEL),
            ("::/0", Some("fd09::1"), STATIC),
        ],
    );
    let nic = load(&["10.9.0.99/24"], &[("10.9.0.0/24", None, protocol::KERNEL)]);
    let journal = moved(old).next(&nic, BOOT);
    assert_eq!(nets(&journal.load), ["10.9.0.99/24", "fd09::11/64"]);
    // The default route still fits; the others hung on what is gone.
    assert_eq!(destinations(&journal.load), ["10.9.0.0/24", "0.0.0.0/0", "::/0"]);
    assert_eq!(nets(&journal.stale), ["10.9.0.11/24", "10.9.1.11/24"]);
    assert_eq!(destinations(&journal.stale), ["10.9.1.0/24", "10.5.0.0/16"]);
    // Until the bridge has lost them, another pass keeps them in mind.
    let again = journal.clone().next(&Load::default(), BOOT);
    assert_eq!(again.stale, journal.stale);
}

#[test]
fn a_route_that_is_added_to_the_nic_moves_too() {
    let old = load(&["10.9.0.11/24"], &[]);
    let nic = load(&[], &[("10.6.0.0/16", Some("10.9.0.1"), STATIC)]);
    let journal = moved(old).next(&nic, BOOT);
    assert_eq!(destinations(&journal.load), ["10.6.0.0/16"]);
    assert_eq!(nets(&journal.load), ["10.9.0.11/24"]);
}

/// A boot has given the NIC what the record says; the agent dies with the NIC half emptied, or half filled for a switch that
/// is gone.
#[test]
fn a_part_of_what_is_recorded_is_no_news() {
    let all = load(&["10.9.0.11/24", "10.9.0.12/24", "fd09::11/64", "fd09::12/64"], HOME);
    let part = load(&["10.9.0.12/24", "fd09::11/64"], &[]);
    for before in [moved(all.clone()), moved(all.clone()).next(&all, BOOT)] {
        let journal = before.next(&part, BOOT);
        assert_eq!((&journal.load, journal.stale.is_empty(), journal.moved), (&all, true, false));
    }
}

/// The host configures the NIC anew; the agent dies with the NIC half emptied, and its successor reads the record.
#[test]
fn a_death_after_a_renewal_loses_nothing_and_keeps_what_is_to_go_in_mind() {
    let read = |journal: &Journal| serde_json::from_str::<Journal>(&journal.text().unwrap()).unwrap();
    let both = load(&["10.9.0.98/24", "10.9.0.99/24"], &[]);
    let renewed = moved(load(&["10.9.0.11/24"], &[])).next(&both, BOOT);
    let again = read(&renewed).next(&load(&["10.9.0.99/24"], &[]), BOOT);
    assert_eq!((nets(&again.load), nets(&again.stale)), (nets(&both), vec!["10.9.0.11/24".into()]));
    // What was to go is wanted again.
    let back = read(&renewed).next(&load(&["10.9.0.11/24"], &[]), BOOT);
    assert_eq!(nets(&back.load), ["10.9.0.98/24", "10.9.0.99/24", "10.9.0.11/24"]);
    assert!(back.stale.is_empty());
    // The process that found it goes on listening to the host.
    let more = renewed.clone().next(&load(&["10.9.0.98/24", "10.9.0.97/24"], &[]), BOOT);
    assert_eq!(nets(&more.load), ["10.9.0.98/24", "10.9.0.97/24"]);
}

#[test]
fn a_single_address_comes_beside_the_others() {
    let all = load(&["10.9.0.11/24", "fd09::11/64"], HOME);
    let vips = load(&["10.9.0.100/32", "fd09::100/128"], &[]);
    let journal = moved(all.clone()).next(&vips, BOOT);
    assert_eq!(nets(&journal.load), ["10.9.0.11/24", "10.9.0.100/32", "fd09::11/64", "fd09::100/128"]);
    assert_eq!((&journal.load.routes, journal.stale.is_empty()), (&all.routes, true));
    // With others, it is a part of the whole.
    let whole = load(&["10.9.0.99/24", "10.9.0.101/32"], &[]);
    assert_eq!(nets(&journal.next(&whole, BOOT).load.family(false)), ["10.9.0.99/24", "10.9.0.101/32"]);
}
