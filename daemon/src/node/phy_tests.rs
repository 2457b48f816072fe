use super::*;
use crate::netlink::Address;

const NIC: u32 = 3;
const BRIDGE: u32 = 9;

fn link(index: u32, name: &str, mac: u8) -> Link {
    Link {
        index,
        name: name.into(),
        mac: Some(Mac([2, 0, 0, 0, 0, mac])),
        mtu: 1500,
        up: true,
        running: true,
        kind: None,
        peer: None,
        controller: None,
        tx_queue_len: 0,
        alias: None,
    }
}

fn address(index: u32, net: &str) -> Address {
    Address {
        index,
        net: net.parse().unwrap(),
        peer: None,
        link_scope: net.starts_with("fe80"),
        tentative: false,
        duplicate: false,
        permanent: true,
        secondary: false,
        label: None,
    }
}

fn default_route(link: u32) -> Route {
    Route { link: Some(link), ..Route::default_via("10.9.0.1".parse().unwrap()) }
}

/// A kernel that knows the steps, with the one side effect that matters:
/// routes whose gateway is not on-link any more are refused.
fn apply(host: &mut HostView, step: &Step) {
    match step {
        Step::Mac(index, mac) => {
            host.links.iter_mut().find(|link| link.index == *index).unwrap().mac = Some(*mac);
        }
        Step::Up(index) => host.links.iter_mut().find(|link| link.index == *index).unwrap().up = true,
        Step::AddAddress(index, net) => {
            if !host.addresses.iter().any(|a| a.index == *index && a.net == *net) {
                host.addresses.push(address(*index, &net.to_string()));
            }
        }
        Step::DeleteAddress(index, net) => host.addresses.retain(|a| !(a.index == *index && a.net == *net)),
        Step::AddRoute(route) => {
            let link = route.link.unwrap();
            if let Some(gateway) = route.gateway {
                assert!(
                    host.addresses.iter().any(|a| a.index == link && a.net.contains(&gateway)),
                    "the gateway is not reachable"
                );
            }
            host.routes.retain(|r| (r.destination, r.metric) != (route.destination, route.metric));
            host.routes.push(route.clone());
        }
        Step::DeleteRoute(route) => host.routes.retain(|r| r != route),
    }
}

fn host() -> HostView {
    HostView {
        links: vec![link(NIC, "eth1", 1), link(BRIDGE, "br-phy", 9)],
        addresses: vec![
            address(NIC, "10.9.0.11/24"),
            address(NIC, "fd09::11/64"),
            address(NIC, "fe80::1/64"),
        ],
        routes: vec![default_route(NIC)],
    }
}

fn is_moved(host: &HostView) -> bool {
    let bridge = host.link("br-phy").unwrap();
    let nic = host.link("eth1").unwrap();
    addresses(host, bridge)
        == BTreeSet::from(["10.9.0.11/24".parse().unwrap(), "fd09::11/64".parse().unwrap()])
        && addresses(host, nic).is_empty()
        && host.routes == [default_route(BRIDGE)]
        && bridge.mac == nic.mac
}

fn pass(host: &mut HostView, recorded: Option<Journal>, crash_after: Option<usize>) -> Journal {
    let nic = host.link("eth1").unwrap().clone();
    let bridge = host.link("br-phy").unwrap().clone();
    let journal = journal(host, &nic, recorded);
    let plan = move_plan(host, &journal, &nic, &bridge);
    for step in plan.iter().take(crash_after.unwrap_or(plan.len())) {
        apply(host, step);
    }
    journal
}

#[test]
fn a_move_is_complete_and_idempotent() {
    let mut host = host();
    let journal = pass(&mut host, None, None);
    assert!(is_moved(&host), "{host:?}");
    let before = host.clone();
    let again = pass(&mut host, Some(journal.clone()), None);
    assert_eq!(again, journal);
    assert_eq!(format!("{before:?}"), format!("{host:?}"));
}

#[test]
fn a_crash_after_any_step_is_resumed() {
    let complete = {
        let host = host();
        let nic = host.link("eth1").unwrap();
        let journal = journal(&host, nic, None);
        move_plan(&host, &journal, nic, host.link("br-phy").unwrap()).len()
    };
    for crash in 0..=complete {
        let mut host = host();
        let journal = pass(&mut host, None, Some(crash));
        pass(&mut host, Some(journal), None);
        assert!(is_moved(&host), "after a crash at step {crash}: {host:?}");
    }
}

#[test]
fn a_bridge_that_ovs_made_anew_gets_everything_back() {
    let mut host = host();
    let journal = pass(&mut host, None, None);
    // ovs-vswitchd restarted: the interface is new, addresses and routes went with the old one.
    host.addresses.retain(|address| address.index != BRIDGE);
    host.routes.clear();
    host.links[1] = link(BRIDGE, "br-phy", 77);
    pass(&mut host, Some(journal), None);
    assert!(is_moved(&host), "{host:?}");
}

#[test]
fn after_a_reboot_the_nics_new_address_wins() {
    let mut host = host();
    let journal = pass(&mut host, None, None);
    host.addresses = vec![address(NIC, "10.9.0.99/24")];
    host.routes = vec![default_route(NIC)];
    pass(&mut host, Some(journal), None);
    let bridge = host.link("br-phy").unwrap();
    assert_eq!(addresses(&host, bridge), BTreeSet::from(["10.9.0.99/24".parse().unwrap()]));
}

#[test]
fn restoring_gives_the_nic_exactly_what_it_had() {
    let before = host();
    let mut host = host();
    let journal = pass(&mut host, None, None);
    let (nic, bridge) = (host.link("eth1").unwrap().clone(), host.link("br-phy").unwrap().clone());
    for step in restore_plan(&host, &journal, &bridge, &nic) {
        apply(&mut host, &step);
    }
    assert_eq!(addresses(&host, &nic), addresses(&before, &nic));
    assert_eq!(host.routes, before.routes);
    assert!(addresses(&host, &bridge).is_empty());
}

#[test]
fn the_journal_round_trips() {
    let host = host();
    let written = journal(&host, host.link("eth1").unwrap(), None);
    let ids = written.external_ids();
    assert_eq!(serde_json::from_str::<Vec<SavedRoute>>(&ids[JOURNAL_ROUTES]).unwrap(), written.routes);
    assert_eq!(ids[JOURNAL_ADDRESSES], "10.9.0.11/24,fd09::11/64");
}
