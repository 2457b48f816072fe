//! Cases of contract §3.3 and §3.4, one by one.

use std::net::IpAddr;
use std::sync::Arc;

use super::*;

fn spec(cidr: &str, gateway: &str, excludes: &[&str]) -> crds::SubnetSpec {
    crds::SubnetSpec {
        cidr_block: cidr.into(),
        gateway: gateway.into(),
        exclude_ips: excludes.iter().map(|s| (*s).into()).collect(),
        ..Default::default()
    }
}

fn ipam(cidr: &str, gateway: &str, excludes: &[&str]) -> Ipam {
    let mut ipam = Ipam::new(42);
    ipam.set_subnet("s", &spec(cidr, gateway, excludes)).unwrap();
    ipam
}

fn dynamic(ipam: &mut Ipam, port: &str) -> String {
    text(&ipam.allocate(&Request::new(port, "u", "s")).unwrap())
}

fn text(lease: &Lease) -> String {
    let v4 = lease.v4.map(|a| a.to_string());
    let v6 = lease.v6.map(|a| a.to_string());
    [v4, v6].into_iter().flatten().collect::<Vec<_>>().join(",")
}

#[test]
fn lowest_first_and_reuse_as_late_as_possible() {
    let mut ipam = ipam("10.16.0.0/29", "10.16.0.1", &["10.16.0.3"]);
    let order: Vec<_> = ["a", "b", "c", "d"].iter().map(|p| dynamic(&mut ipam, p)).collect();
    assert_eq!(order, ["10.16.0.2", "10.16.0.4", "10.16.0.5", "10.16.0.6"]);
    ipam.release("b");
    ipam.release("a");
    assert_eq!(dynamic(&mut ipam, "e"), "10.16.0.2", "the pool was empty: the lowest released one");
    let mut fresh = self::ipam("10.16.0.0/28", "10.16.0.1", &[]);
    dynamic(&mut fresh, "a");
    fresh.release("a");
    assert_eq!(dynamic(&mut fresh, "a"), "10.16.0.3", "not the one just freed");
}

#[test]
fn reconfiguration_resets_the_rotation_and_keeps_leases() {
    let mut ipam = ipam("10.16.0.0/28", "10.16.0.1", &[]);
    assert_eq!(dynamic(&mut ipam, "a"), "10.16.0.2");
    assert_eq!(dynamic(&mut ipam, "b"), "10.16.0.3");
    ipam.release("a");
    ipam.set_subnet("s", &spec("10.16.0.0/28", "10.16.0.1", &["10.16.0.9"])).unwrap();
    assert_eq!(dynamic(&mut ipam, "c"), "10.16.0.2");
    // A block that no longer has b's address: b keeps it, and it counts nowhere.
    ipam.set_subnet("s", &spec("10.17.0.0/28", "10.17.0.1", &[])).unwrap();
    assert_eq!(text(ipam.lease("b").unwrap()), "10.16.0.3");
    assert_eq!(ipam.usage("s").v4_using_range, "");
    ipam.release("b");
    assert_eq!(ipam.usage("s").v4_available_range, "10.17.0.2-10.17.0.14");
}

#[test]
fn dual_stack_from_either_half() {
    let mut ipam = ipam("10.16.0.0/29,fd00::/125", "10.16.0.1,fd00::1", &[]);
    assert_eq!(dynamic(&mut ipam, "a"), "10.16.0.2,fd00::2");
    let mut request = Request::new("b", "u", "s");
    request.v4 = Some("10.16.0.5".parse().unwrap());
    assert_eq!(text(&ipam.allocate(&request).unwrap()), "10.16.0.5,fd00::3");
    let mut request = Request::new("c", "u", "s");
    request.family = Some(Family::V6);
    assert_eq!(text(&ipam.allocate(&request).unwrap()), "fd00::4");
    // IPv6 runs out first: the IPv4 half must not be lost.
    for port in ["d", "e"] {
        dynamic(&mut ipam, port);
    }
    let before = ipam.clone();
    let error = ipam.allocate(&Request::new("f", "u", "s")).unwrap_err();
    assert!(matches!(&error, Error::Exhausted { family: "IPv6", .. }), "{error}");
    assert_eq!(before, ipam);
}

#[test]
fn requests_by_address() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &["10.16.0.100..10.16.0.110"]);
    let ask =
        |port: &str, address: &str| Request::new(port, "u", "s").with_annotations(Some(address), None, None);
    let lease = ipam.allocate(&ask("a", "10.16.0.105").unwrap()).unwrap();
    assert_eq!(text(&lease), "10.16.0.105", "an excluded address may be asked for");
    assert_eq!(ipam.usage("s").v4_using, 0, "and does not count as used");
    assert_eq!(ipam.usage("s").v4_using_range, "10.16.0.105");
    for (address, needle) in [
        ("10.16.0.105", "in use by a"),
        ("10.16.0.1", "in use by its gateway"),
        ("10.16.0.0", "neither its first nor its last"),
        ("10.16.0.255", "neither its first nor its last"),
        ("10.17.0.5", "not a host address of subnet s (10.16.0.0/24)"),
        ("fd00::5", "no IPv6 addresses"),
    ] {
        let error = ipam.allocate(&ask("b", address).unwrap()).unwrap_err();
        assert!(error.to_string().contains(needle), "{address}: {error}");
        assert_eq!(error.reason(), "AcquireAddressFailed");
    }
    // A port that moves frees what it had.
    dynamic(&mut ipam, "b");
    ipam.allocate(&ask("b", "10.16.0.77").unwrap()).unwrap();
    assert_eq!(ipam.usage("s").v4_using_range, "10.16.0.77,10.16.0.105");
}

#[test]
fn unreadable_requests_name_the_remedy() {
    let base = || Request::new("a", "u", "s");
    for (ip, mac, family, needle) in [
        (Some("10.16.0.5/16"), None, None, "without prefix length"),
        (Some("10.16.0.5,10.16.0.6"), None, None, "at most one IPv4"),
        (None, Some("01:00:00:00:00:01"), None, "unicast"),
        (None, Some("zz"), None, "02:00:00"),
        (None, None, Some("IPv4"), "ipv4 or ipv6"),
    ] {
        let error = base().with_annotations(ip, mac, family).unwrap_err();
        assert!(error.to_string().contains(needle), "{error}");
        assert_eq!(error.reason(), "ValidatePodNetworkFailed");
    }
    let contradiction = base().with_annotations(Some("10.16.0.5"), None, Some("ipv6")).unwrap();
    let mut ipam = ipam("10.16.0.0/24,fd00::/64", "10.16.0.1,fd00::1", &[]);
    assert!(ipam.allocate(&contradiction).unwrap_err().to_string().contains("remove one"));
}

#[test]
fn macs() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    ipam.set_router_mac("s", mac::parse("02:00:00:00:00:01"));
    let ask =
        |port: &str, mac: &str| Request::new(port, "u", "s").with_annotations(None, Some(mac), None).unwrap();
    assert_eq!(&*ipam.allocate(&ask("a", "02:00:00:00:00:0A")).unwrap().mac, "02:00:00:00:00:0a");
    assert!(ipam.allocate(&ask("b", "02:00:00:00:00:0a")).unwrap_err().to_string().contains("in use by a"));
    assert!(ipam.allocate(&ask("b", "02:00:00:00:00:01")).unwrap_err().to_string().contains("router port"));
    let drawn = mac::draw(42, &["s", "c", "u"], 0);
    ipam.allocate(&ask("b", &mac::format(drawn))).unwrap();
    let lease = ipam.allocate(&Request::new("c", "u", "s")).unwrap();
    assert_eq!(&*lease.mac, mac::format(mac::draw(42, &["s", "c", "u"], 1)), "a taken one is drawn again");
}

#[test]
fn a_mac_that_several_had_is_free_when_the_last_is_gone() {
    let lease = |port: &str, v4: &str| Lease {
        port: port.into(),
        subnet: "s".into(),
        v4: v4.parse().ok(),
        v6: None,
        mac: "02:00:00:00:00:0a".into(),
        owner: "u".into(),
    };
    let held = [lease("a", "10.16.0.2"), lease("b", "10.16.0.3"), lease("c", "10.16.0.4")];
    for order in
        [["a", "b", "c"], ["a", "c", "b"], ["b", "a", "c"], ["b", "c", "a"], ["c", "a", "b"], ["c", "b", "a"]]
    {
        let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
        held.iter().for_each(|lease| ipam.restore(lease).unwrap());
        let ask =
            || Request::new("d", "u", "s").with_annotations(None, Some("02:00:00:00:00:0a"), None).unwrap();
        for (gone, port) in order.iter().enumerate() {
            let error = ipam.allocate(&ask()).unwrap_err().to_string();
            assert!(
                order[gone..].iter().any(|p| error.contains(&format!("in use by {p}"))),
                "{order:?}: {error}"
            );
            ipam.release(port);
        }
        ipam.allocate(&ask()).unwrap();
    }
}

#[test]
fn some_holders_are_those_with_the_lowest_addresses() {
    let mut ipam = ipam("10.16.0.0/24,fd00::/64", "10.16.0.1,fd00::1", &[]);
    assert!(ipam.holders("s", 2).is_empty() && ipam.holders("t", 2).is_empty());
    for port in ["c", "b", "a"] {
        dynamic(&mut ipam, port);
    }
    assert_eq!(ipam.holders("s", 2), ["b".into(), "c".into()] as [Arc<str>; 2]);
    assert_eq!(ipam.holders("s", 9).len(), 3);
    // Of a block that is another now they hold addresses all the same.
    ipam.set_subnet("s", &spec("10.17.0.0/24", "10.17.0.1", &[])).unwrap();
    dynamic(&mut ipam, "d");
    assert_eq!(ipam.holders("s", 1), ["d".into()] as [Arc<str>; 1]);
    assert_eq!(ipam.holders("s", 9).len(), 4);
}

#[test]
fn a_successor_inherits() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    let first = ipam.allocate(&Request::new("a", "old", "s")).unwrap();
    assert!(Arc::ptr_eq(&first, &ipam.allocate(&Request::new("a", "old", "s")).unwrap()));
    let second = ipam.allocate(&Request::new("a", "new", "s")).unwrap();
    assert_eq!((&*second.owner, second.v4, &second.mac), ("new", first.v4, &first.mac));
    assert_eq!(ipam.usage("s").v4_using, 1);
}

#[test]
fn a_running_port_keeps_its_subnet_and_families() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    ipam.set_subnet("t", &spec("10.18.0.0/24", "10.18.0.1", &[])).unwrap();
    let lease = ipam.allocate(&Request::new("a", "u", "s")).unwrap();
    assert_eq!(ipam.allocate(&Request::new("a", "u", "t")).unwrap(), lease);
    ipam.set_subnet("s", &spec("10.16.0.0/24,fd00::/64", "10.16.0.1,fd00::1", &[])).unwrap();
    assert_eq!(ipam.allocate(&Request::new("a", "u", "s")).unwrap(), lease);
    assert_eq!(text(&ipam.allocate(&Request::new("a", "v", "s")).unwrap()), "10.16.0.2,fd00::2");
    assert_eq!(text(&ipam.allocate(&Request::new("a", "w", "t")).unwrap()), "10.18.0.2");
    assert_eq!(ipam.usage("s").v4_using, 0, "moving to another subnet frees the old address");
}

#[test]
fn candidates_in_order() {
    let mut ipam = ipam("10.16.0.0/30", "10.16.0.1", &[]);
    ipam.set_subnet("t", &spec("10.18.0.0/24", "10.18.0.1", &[])).unwrap();
    let request =
        |port: &str| Request { subnets: vec!["s".into(), "t".into()], ..Request::new(port, "u", "s") };
    assert_eq!(text(&ipam.allocate(&request("a")).unwrap()), "10.16.0.2");
    assert_eq!(text(&ipam.allocate(&request("b")).unwrap()), "10.18.0.2", "the first one is full");
    let asked = request("c").with_annotations(Some("10.18.0.9"), None, None).unwrap();
    assert_eq!(text(&ipam.allocate(&asked).unwrap()), "10.18.0.9", "the one that has the address");
    let taken = request("d").with_annotations(Some("10.18.0.9"), None, None).unwrap();
    assert!(matches!(ipam.allocate(&taken), Err(Error::Conflict { .. })), "says more than out of range");
    let nowhere = Request::new("e", "u", "nope");
    assert!(ipam.allocate(&nowhere).unwrap_err().to_string().contains("nope does not exist"));
}

#[test]
fn node_addresses_are_drawn_again_but_may_be_asked_for() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    let avoid: Arc<BTreeSet<IpAddr>> = Arc::new(["10.16.0.2".parse().unwrap()].into());
    let request = Request { avoid: avoid.clone(), ..Request::new("a", "u", "s") };
    assert_eq!(text(&ipam.allocate(&request).unwrap()), "10.16.0.3");
    let request = Request { avoid, ..Request::new("b", "u", "s") };
    let request = request.with_annotations(Some("10.16.0.2"), None, None).unwrap();
    assert_eq!(text(&ipam.allocate(&request).unwrap()), "10.16.0.2");
}

#[test]
fn prefixes_without_network_and_broadcast() {
    for (cidr, first, last) in [
        ("10.0.0.0/31", "10.0.0.0", Some("10.0.0.1")),
        ("fd00::/127", "fd00::", Some("fd00::1")),
        ("10.0.0.7/32", "10.0.0.7", None),
    ] {
        let mut ipam = ipam(cidr, "", &[]);
        assert_eq!(dynamic(&mut ipam, "a"), first);
        if let Some(last) = last {
            assert_eq!(dynamic(&mut ipam, "b"), last);
        }
        assert!(ipam.allocate(&Request::new("z", "u", "s")).is_err());
    }
}

#[test]
fn restore() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    let lease = Lease {
        port: "a".into(),
        subnet: "s".into(),
        v4: Some("10.16.0.9".parse().unwrap()),
        v6: None,
        mac: "02:00:00:00:00:0A".into(),
        owner: "".into(),
    };
    ipam.restore(&lease).unwrap();
    ipam.restore(&lease).unwrap();
    let held = ipam.allocate(&Request::new("a", "u", "s")).unwrap();
    assert_eq!((text(&held), &*held.mac, &*held.owner), ("10.16.0.9".into(), "02:00:00:00:00:0a", "u"));
    let other = Lease { port: "b".into(), ..lease.clone() };
    let before = ipam.clone();
    assert!(matches!(ipam.restore(&other), Err(Error::Conflict { .. })));
    assert!(matches!(ipam.restore(&Lease { subnet: "x".into(), ..lease.clone() }), Err(Error::NoSubnet(_))));
    assert!(matches!(ipam.restore(&Lease { mac: "".into(), ..lease }), Err(Error::InvalidRequest(_))));
    assert_eq!(before, ipam);
    let outside = Lease {
        port: "old".into(),
        subnet: "s".into(),
        v4: Some("192.0.2.7".parse().unwrap()),
        v6: None,
        mac: "02:00:00:00:00:0a".into(),
        owner: "".into(),
    };
    ipam.restore(&outside).unwrap();
    assert_eq!(ipam.usage("s").v4_using_range, "10.16.0.9");
}

#[test]
fn removed_subnets_take_their_leases_along() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    dynamic(&mut ipam, "b");
    dynamic(&mut ipam, "a");
    ipam.take_changed();
    assert_eq!(ipam.remove_subnet("s"), ["a".into(), "b".into()]);
    assert_eq!(ipam.take_changed(), ["s".into()].into());
    assert!(ipam.lease("a").is_none());
    assert_eq!(ipam.usage("s"), Usage::default());
}

#[test]
fn unreadable_subnets_change_nothing() {
    let mut ipam = ipam("10.16.0.0/24", "10.16.0.1", &[]);
    let before = ipam.clone();
    for (cidr, gateway, exclude) in [
        ("", "", ""),
        ("10.16.0.0/33", "", ""),
        ("10.16.0.0/24,10.17.0.0/24", "", ""),
        ("10.16.0.0/24", "x", ""),
        ("10.16.0.0/24", "", "10.16.0.9..10.16.0.3"),
        ("10.16.0.0/24", "", "10.16.0.9..fd00::1"),
    ] {
        let excludes: &[&str] = if exclude.is_empty() { &[] } else { &[exclude] };
        let error = ipam.set_subnet("s", &spec(cidr, gateway, excludes)).unwrap_err();
        assert!(error.to_string().contains("subnet s"), "{error}");
    }
    assert_eq!(before, ipam);
}

/// The counts of a /64 and of 10.0.0.0/8; 50,000 ports are a matter of a second
/// even without optimisation, and releasing every second one keeps it so.
#[test]
fn large_subnets() {
    let mut ipam = ipam("10.0.0.0/8,fd00::/64", "10.0.0.1,fd00::1", &[]);
    assert_eq!(ipam.usage("s").v6_available, (1 << 64) - 3);
    for n in 0..50_000u32 {
        ipam.allocate(&Request::new(n.to_string(), "u", "s")).unwrap();
    }
    for n in (0..50_000u32).step_by(2) {
        ipam.release(&n.to_string());
    }
    assert_eq!(ipam.usage("s").v4_using, 25_000);
    let text = ipam.usage("s").v4_using_range;
    assert!(text.ends_with(",...") && text.len() < 256 * 1024, "{}", text.len());
    assert_eq!(dynamic(&mut ipam, "new"), "10.0.195.82,fd00::c352");
}

#[test]
fn steps_of_one_address_depend_neither_on_the_block_nor_on_the_leases() {
    use super::interval::steps;
    let case = |cidr: &str, leases: usize, scattered: bool| {
        let mut ipam = ipam(cidr, "", &[]);
        for n in 0..leases * if scattered { 2 } else { 1 } {
            dynamic(&mut ipam, &format!("p-{n}"));
        }
        (0..if scattered { leases } else { 0 }).for_each(|n| ipam.release(&format!("p-{}", 2 * n)));
        let cycle = |ipam: &mut Ipam| {
            let before = steps::taken();
            dynamic(ipam, "one-more");
            ipam.release("one-more");
            steps::taken() - before
        };
        (0..20).map(|_| cycle(&mut ipam)).max().unwrap()
    };
    let small = case("10.16.0.0/24", 100, false);
    assert_eq!(case("fd00::/64", 100, false), small);
    assert_eq!(case("10.0.0.0/8", 20_000, false), small);
    assert_eq!(case("fd00::/64", 20_000, false), small);
    // As many intervals as there can be: every second address came back.
    assert!(case("10.0.0.0/8", 5_000, true) <= small + 1);
    assert!(case("fd00::/64", 5_000, true) <= small + 1);
}
