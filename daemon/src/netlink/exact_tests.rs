use rtnetlink::packet_route::address::CacheInfo;
use rtnetlink::{AddressMessageBuilder, RouteMessageBuilder};

use super::*;

const NIC: u32 = 7;

/// An address as the kernel tells it of link 7.
pub(crate) fn address_message(net: &str) -> AddressMessage {
    let net: IpNet = net.parse().unwrap();
    let mut message = match net.addr() {
        IpAddr::V4(ip) => AddressMessageBuilder::<std::net::Ipv4Addr>::new()
            .index(NIC)
            .address(ip, net.prefix_len())
            .build(),
        IpAddr::V6(ip) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
            .index(NIC)
            .address(ip, net.prefix_len())
            .build(),
    };
    message.header.flags = AddressHeaderFlags::Permanent;
    message.attributes.push(AddressAttribute::Label("eth1:1".into()));
    message.attributes.push(AddressAttribute::Flags(AddressFlags::Permanent | AddressFlags::Noprefixroute));
    let mut fate = CacheInfo::default();
    fate.ifa_valid = 3600;
    message.attributes.push(AddressAttribute::CacheInfo(fate));
    message
}

/// A route as the kernel tells it of link 7.
pub(crate) fn route_message(destination: &str, gateway: Option<&str>, protocol: u8) -> RouteMessage {
    let route = Route {
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        link: Some(NIC),
        protocol,
        ..Route::new(destination.parse().unwrap())
    };
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.destination.addr(), route.destination.prefix_len())
        .unwrap()
        .table_id(route.table)
        .protocol(route.protocol.into())
        .output_interface(NIC);
    if let Some(gateway) = route.gateway {
        builder = builder.gateway(gateway).unwrap();
    }
    builder.build()
}

/// What link 7 carries.
pub(crate) fn carried(addresses: &[&str], routes: &[(&str, Option<&str>, u8)]) -> Carried {
    Carried {
        addresses: addresses.iter().map(|net| address_message(net)).collect(),
        routes: routes.iter().map(|(to, via, protocol)| route_message(to, *via, *protocol)).collect(),
        names: BTreeMap::from([(NIC, "eth1".into()), (8, "eth2".into())]),
    }
}

fn written<T: Serialize + for<'a> Deserialize<'a>>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

#[test]
fn an_address_keeps_what_its_owner_chose_and_forgets_its_fate() {
    let all = carried(&["10.9.0.11/24", "fd09::11/64", "fe80::1/64", "169.254.3.4/16"], &[]);
    let [v4, v6]: [ExactAddress; 2] = all.addresses(NIC).try_into().unwrap();
    assert!(all.addresses(8).is_empty());
    assert_eq!((v4.to_string().as_str(), v6.is_ipv6()), ("10.9.0.11/24", true));
    assert_eq!((written(&v4), written(&v6)), (v4.clone(), v6.clone()));
    let home = v4.on(NIC, Placed::AsItWas);
    assert!(home.attributes.contains(&AddressAttribute::Label("eth1:1".into())));
    assert!(home.attributes.contains(&AddressAttribute::Flags(AddressFlags::Noprefixroute)));
    assert!(!home.attributes.iter().any(|attribute| matches!(attribute, AddressAttribute::CacheInfo(_))));
    let away = v6.on(9, Placed::Elsewhere);
    assert_eq!(away.header.index, 9);
    assert!(!away.attributes.iter().any(|attribute| matches!(attribute, AddressAttribute::Label(_))));
    let flags = AddressFlags::Noprefixroute | AddressFlags::Nodad;
    assert!(away.attributes.contains(&AddressAttribute::Flags(flags)), "{away:?}");
}

#[test]
fn a_route_knows_no_link_until_it_is_put_on_one() {
    let all =
        carried(&[], &[("0.0.0.0/0", Some("10.9.0.1"), 4), ("fd99::/64", None, 2), ("fe80::/64", None, 2)]);
    let routes = all.routes(NIC);
    assert_eq!(routes.len(), 2, "the link's own prefix is no route of ours");
    assert!(all.routes(8).is_empty());
    for route in &routes {
        assert_eq!(&written(route), route);
        let message = route.on(9, &BTreeMap::new(), false).unwrap();
        assert!(message.attributes.contains(&RouteAttribute::Oif(9)), "{message:?}");
        let mut back = message;
        for attribute in &mut back.attributes {
            if let RouteAttribute::Oif(index) = attribute {
                *index = NIC;
            }
        }
        assert_eq!(
            ExactRoute::of(&back, NIC, &BTreeMap::new()).as_ref(),
            Some(route),
            "the same on any link"
        );
    }
    let default = routes.iter().find(|route| !route.is_ipv6()).unwrap();
    assert_eq!(default.gateways(), ["10.9.0.1".parse::<IpAddr>().unwrap()]);
    assert!(default.to_string().starts_with("0.0.0.0/0 via 10.9.0.1"), "{default}");
}

#[test]
fn of_several_hops_only_ours_moves() {
    let hop = |link, gateway: &str| {
        let builder = rtnetlink::RouteNextHopBuilder::new_ipv4();
        builder.interface(link).via(gateway.parse::<IpAddr>().unwrap()).unwrap().build()
    };
    let mut message = route_message("10.5.0.0/16", None, 4);
    message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Oif(_)));
    message.attributes.push(RouteAttribute::MultiPath(vec![hop(NIC, "10.9.0.1"), hop(8, "10.8.0.1")]));
    let names = BTreeMap::from([(NIC, "eth1".to_owned()), (8, "eth2".to_owned())]);
    let route = written(&ExactRoute::of(&message, NIC, &names).unwrap());
    let links = |message: RouteMessage| {
        let hops = message.attributes.into_iter().find_map(|attribute| match attribute {
            RouteAttribute::MultiPath(hops) => Some(hops),
            _ => None,
        });
        hops.unwrap().iter().map(|hop| hop.interface_index).collect::<Vec<_>>()
    };
    // The other link has another number after a reboot.
    let now = BTreeMap::from([("eth2".to_owned(), 20)]);
    assert_eq!(links(route.on(9, &now, false).unwrap()), [9, 20]);
    assert!(route.on(9, &BTreeMap::new(), false).is_none(), "eth2 is gone");
}

#[test]
fn of_ipv6_a_hop_among_others_is_the_plain_route() {
    let hop = |link| {
        let builder = rtnetlink::RouteNextHopBuilder::new_ipv6().interface(link);
        builder.via("fd09::1".parse::<IpAddr>().unwrap()).unwrap().build()
    };
    let names = BTreeMap::from([(NIC, "eth1".to_owned()), (8, "br-net1".to_owned())]);
    let plain = ExactRoute::of(&route_message("::/0", Some("fd09::1"), 4), NIC, &names).unwrap();
    let mut shared = route_message("::/0", None, 4);
    shared.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Oif(_)));
    shared.attributes.push(RouteAttribute::MultiPath(vec![hop(NIC), hop(8)]));
    assert_eq!(ExactRoute::of(&shared, NIC, &names), Some(plain));
}

#[test]
fn junk_is_an_error_and_no_panic() {
    for junk in [
        r#"{"is":"x","raw":""}"#,
        r#"{"is":"x","raw":"0"}"#,
        r#"{"is":"x","raw":"zz"}"#,
        r#"{"is":"x","raw":"0a0b"}"#,
        r#"{"is":"x","raw":"00000000000000000000000000"}"#,
        r#"{"is":"x"}"#,
        "3",
    ] {
        assert!(serde_json::from_str::<ExactAddress>(junk).is_err(), "{junk}");
        // Twelve bytes of nothing are a route to nowhere; less is none.
        if junk.len() < 40 {
            assert!(serde_json::from_str::<ExactRoute>(junk).is_err(), "{junk}");
        }
    }
}
