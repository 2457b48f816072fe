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
    let journal = Journal::next(None, &wish(), &nic, Settings::default(), BOOT);
    assert_eq!((journal.nic.as_str(), journal.moved, &journal.load), ("eth1", false, &nic));
    let text = journal.text().unwrap();
    assert_eq!(serde_json::from_str::<Journal>(&text).unwrap(), journal);
}

#[test]
fn a_crash_in_the_middle_loses_nothing_of_either_side() {
    let recorded = Journal { moved: false, ..moved(load(&["10.9.0.11/24", "fd09::11/64"], HOME)) };
    let journal = Journal::next(
        Some(recorded),
        &wish(),
        &load(&["10.9.0.11/24", "10.9.0.12/24"], &[]),
        Settings::default(),
        BOOT,
    );
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
        let journal = Journal::next(Some(moved(all.clone())), &wish(), &nic, Settings::default(), boot);
        assert_eq!((&journal.load, journal.stale.is_empty()), (&all, true));
        // A NIC that has said nothing since the boot will.
        assert_eq!(journal.boot, if nic.is_empty() { BOOT } else { boot });
    }
}

#[test]
fn what_the_hosts_configuration_has_lost_is_gone_after_a_reboot() {
    let all = load(&["10.9.0.11/24", "fd09::11/64"], HOME);
    let nic = load(&["fd09::11/64"], &[("::/0", Some("fd09::1"), STATIC)]);
    let next = |journal: &Journal, nic: &Load, boot: &str| {
        Journal::next(Some(journal.clone()), &wish(), nic, Settings::default(), boot)
    };
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
    let journal = Journal::next(Some(moved(old)), &wish(), &nic, Settings::default(), BOOT);
    assert_eq!(nets(&journal.load), ["10.9.0.99/24", "fd09::11/64"]);
    // The default route still fits; the others hung on what is gone.
    assert_eq!(destinations(&journal.load), ["10.9.0.0/24", "0.0.0.0/0", "::/0"]);
    assert_eq!(nets(&journal.stale), ["10.9.0.11/24", "10.9.1.11/24"]);
    assert_eq!(destinations(&journal.stale), ["10.9.1.0/24", "10.5.0.0/16"]);
    // Until the bridge has lost them, another pass keeps them in mind.
    let again = Journal::next(Some(journal.clone()), &wish(), &Load::default(), Settings::default(), BOOT);
    assert_eq!(again.stale, journal.stale);
}

#[test]
fn a_route_that_is_added_to_the_nic_moves_too() {
    let old = load(&["10.9.0.11/24"], &[]);
    let nic = load(&[], &[("10.6.0.0/16", Some("10.9.0.1"), STATIC)]);
    let journal = Journal::next(Some(moved(old)), &wish(), &nic, Settings::default(), BOOT);
    assert_eq!(destinations(&journal.load), ["10.6.0.0/16"]);
    assert_eq!(nets(&journal.load), ["10.9.0.11/24"]);
}
